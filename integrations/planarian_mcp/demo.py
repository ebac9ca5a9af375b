"""The story of ``planarian demo --remote``: rows, a file and a running server go back, and forth, as one.

An agent cleans customers in PostgreSQL through MCP Toolbox for Databases, behind ``planarian proxy``. It writes a
report in its sandbox, and a server there keeps totals in memory. The cleaning was wrong. What the demo claims it
proves: the rows by a database connection of its own, which knows nothing of the proxy.
"""

from __future__ import annotations

import csv
import io
import shutil
from importlib.resources import files

from rich.table import Table

from planarian_core import Planarian, Sandbox
from planarian_core.model import RestoreContext, Statepoint
from planarian_core.testing.demonstration import Demonstration
from planarian_mcp.demo_agent import Agent, agent
from planarian_mcp.demo_shop import REPORT, SERVICE, Shop, require, shop


def remote_story(demonstration: Demonstration) -> None:
    """An agent cleans data, wrongly; one rollback brings rows, file and server back together."""
    require()
    with shop(demonstration.place) as opened, demonstration.open(opened.configuration) as planarian:
        project = demonstration.place / "project"
        project.mkdir()
        shutil.copyfile(str(files("planarian_mcp") / "demo_totals.py"), project / "totals.py")
        sandbox = planarian.create_sandbox(project)
        with agent(demonstration, sandbox, planarian.home, SERVICE) as worker:
            Story(demonstration, planarian, sandbox, opened, worker).tell()


_SERVE = "python3 totals.py serve >/dev/null 2>&1 &"
_SERVER = "the server with its memory"
_PARTS = ("every row", "the report", _SERVER)
"""What :meth:`Story.look` sees."""


class Story:
    """The demo, told once: :meth:`tell`."""

    def __init__(
        self, demonstration: Demonstration, planarian: Planarian, sandbox: Sandbox, opened: Shop, worker: Agent
    ) -> None:
        self.demonstration = demonstration
        self.planarian = planarian
        self.sandbox = sandbox
        self.shop = opened
        self.agent = worker
        self.prove = demonstration.prove
        self.seen: dict[str, tuple[str, str, str]] = {}
        """By statepoint, what :meth:`look` saw when it was taken."""
        self.agreements = Table("", "in the table", "in the report", "in memory", title="customers · orders · spent")
        record = sandbox.record
        demonstration.about = {
            "sandbox": record.spec.backend,
            "files": record.filesystem,
            "processes": record.process,
        }
        capabilities = planarian.plugins.process(record.process).capabilities
        self.keeps_memory, self.keeps_commands = capabilities.memory, capabilities.memory or capabilities.restarts

    def tell(self) -> None:
        on = ", ".join(f"{what}: {name}" for what, name in self.demonstration.about.items())
        self.demonstration.say(f"An agent with a sandbox ({on}) and a database (PostgreSQL through MCP Toolbox)")
        self.prove("the agent sees Toolbox's tools", "execute_sql" in self.agent.tools, ", ".join(self.agent.tools))
        before = self.the_agent_reports()
        wrong = self.the_agent_cleans_wrongly()
        self.one_rollback(before)
        self.the_rollback_is_rolled_back(wrong)
        right = self.and_again_the_right_way(before)
        self.every_statepoint_once_more(before, wrong, right)
        self.demonstration.chapter("At every statepoint")
        self.demonstration.console.print(self.agreements)

    # --- the chapters ---

    def the_agent_reports(self) -> Statepoint:
        self.demonstration.chapter("The agent reads the customers, reports, and starts a server")
        self.agent.shell(_SERVE)
        self.write_report()
        return self.statepoint("before", "the report on the customers as they were")

    def the_agent_cleans_wrongly(self) -> Statepoint:
        self.demonstration.chapter("The agent cleans the customers, and is wrong")
        self.agent.sql("UPDATE customers SET email = lower(btrim(email))")
        self.agent.sql("DELETE FROM customers a USING customers b WHERE a.email = b.email AND a.id > b.id")
        self.write_report()
        wrong = self.statepoint("cleaned", "e-mail addresses in lower case, one customer for each")
        there = {row[0] for row in self.shop.report()}
        gone = "customers 2 and 4, with their orders" if not there & {"2", "4"} else str(there)
        self.prove("two people became one: Ann Roy isn't Ann Lee", "2" not in there, gone)
        return wrong

    def one_rollback(self, before: Statepoint) -> None:
        self.demonstration.chapter("One rollback")
        self.planarian.append_outcome("cleaned", "lost Ann Roy and her orders", status="failed", of=self.sandbox)
        context = self.go_to(before)
        undone = [effect.summary for effect in context.remote_undone]
        self.prove("it says what it undid", len(undone) == 2, f"{len(undone)} remote effects")
        for line in context.to_markdown().splitlines():
            self.demonstration.say(f"  | {line}", "dim")

    def the_rollback_is_rolled_back(self, wrong: Statepoint) -> None:
        self.demonstration.chapter("The rollback is rolled back, rows included")
        context = self.go_to(wrong)
        done = [effect.summary for effect in context.remote_redone]
        self.prove("it says what it did again", len(done) == 2, f"{len(done)} remote effects")

    def and_again_the_right_way(self, before: Statepoint) -> Statepoint:
        self.demonstration.chapter("Back again, and this time the right way")
        self.go_to(before)
        if not self.keeps_commands:
            self.agent.shell(_SERVE)
        self.agent.sql("UPDATE orders SET customer = 3 WHERE customer = 4")
        self.agent.sql("DELETE FROM customers WHERE id = 4")
        self.agent.sql("UPDATE customers SET email = 'cy@example.org' WHERE id = 5")
        self.write_report()
        right = self.statepoint("merged", "one duplicate merged, its order kept")
        kept = [row[1] for row in self.shop.report()]
        self.prove("both Anns are there", kept[:2] == ["ann@example.org", "Ann@example.org"], ", ".join(kept[:2]))
        return right

    def every_statepoint_once_more(self, *statepoints: Statepoint) -> None:
        self.demonstration.chapter("Every statepoint once more, in another order")
        for statepoint in (statepoints[1], statepoints[2], statepoints[0], statepoints[2]):
            self.go_to(statepoint)

    # --- its parts ---

    def write_report(self) -> None:
        """The agent asks the database, writes what it learnt to a file, and lets the server load it."""
        rows = self.agent.sql(REPORT)
        text = io.StringIO()
        writer = csv.DictWriter(text, ["id", "email", "orders", "spent"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.agent.shell("cat > report.csv", stdin=text.getvalue())
        self.agent.shell("python3 totals.py load")

    def statepoint(self, name: str, description: str) -> Statepoint:
        taken = self.planarian.snapshot(self.sandbox, name=name, description=description)
        self.demonstration.say(f"statepoint {taken.id} {name}: {description}")
        gaps = [f"{gap.subject}: {gap.reason}" for gap in taken.coverage.missing]
        self.demonstration.not_covered += [gap for gap in gaps if gap not in self.demonstration.not_covered]
        self.seen[taken.id] = self.look()
        self.agree(name)
        return taken

    def go_to(self, statepoint: Statepoint) -> RestoreContext:
        """One rollback, after which rows, file and server are what they were when the statepoint was taken."""
        context = self.planarian.rollback(self.sandbox, statepoint)
        now, then = self.look(), self.seen[statepoint.id]
        for what, seen, before in zip(_PARTS, now, then, strict=True):
            if what is _SERVER and not self.keeps_memory:
                continue
            self.prove(f"{statepoint.name}: {what} as it was", seen == before, f"{len(seen.encode())} bytes compared")
        self.agree(f"back at {statepoint.name}")
        return context

    def look(self) -> tuple[str, str, str]:
        """All rows, by the witness; the report; the server's totals and pid."""
        report = self.sandbox.run("cat report.csv").stdout
        if not self.keeps_memory:
            return self.shop.rows(), report, "isn't kept here"  # the coverage says so too
        pid, totals = (self.sandbox.run(["python3", "totals.py", what]).stdout.strip() for what in ("pid", "show"))
        return self.shop.rows(), report, f"{totals} (pid {pid})"

    def agree(self, where: str) -> None:
        """The report says what is in the table, and so does the server."""
        _, report, server = self.look()
        table = self.shop.report()
        reported = [tuple(row.values()) for row in csv.DictReader(io.StringIO(report))]
        self.prove(f"{where}: report and table agree", reported == table, _totals(table))
        if self.keeps_memory:
            told = server.partition(" (pid")[0]
            self.prove(f"{where}: server and table agree", told == _totals(table), told)
        said = [_totals(table), _totals(reported), server]
        self.agreements.add_row(
            where, *(text.replace(" customers, ", " · ").replace(" orders, ", " · ") for text in said)
        )


def _totals(report: list[tuple[str, ...]]) -> str:
    cents = sum(round(float(row[3]) * 100) for row in report)
    orders = sum(int(row[2]) for row in report)
    return f"{len(report)} customers, {orders} orders, {cents / 100:.2f}"
