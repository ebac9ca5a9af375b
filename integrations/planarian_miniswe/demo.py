"""The story of ``planarian demo``: an agent breaks its environment, gets it back, and tries two ways on.

mini-swe-agent's real agent runs with a scripted model in a sandbox of its own. What the demo claims it proves: it
hashes the whole tree with code of its own, and asks a live server for a counter that exists in memory only.
"""

from __future__ import annotations

import logging
import os
import shutil
from importlib.resources import files
from pathlib import Path

from rich.tree import Tree

from planarian_core import Planarian, Sandbox
from planarian_core.errors import ConfigurationError, PlanarianError
from planarian_core.model import Statepoint
from planarian_core.testing.demonstration import Demonstration
from planarian_miniswe.environment import PlanarianEnvironment
from planarian_miniswe.observations import SUBMIT
from planarian_miniswe.requirements import require_mini

_NAME = {"GIT_AUTHOR_NAME": "agent", "GIT_COMMITTER_NAME": "agent"}
_MAIL = {"GIT_AUTHOR_EMAIL": "agent@example.org", "GIT_COMMITTER_EMAIL": "agent@example.org"}
_COUNTER_AT_STATEPOINT = 3


def agent_story(demonstration: Demonstration) -> None:
    """An agent breaks its environment, gets it back exactly, and tries two ways on."""
    _prepare_mini(demonstration.place)
    with demonstration.open() as planarian:
        Story(demonstration, planarian).tell()


class Story:
    """The demo, told once: :meth:`tell`."""

    def __init__(self, demonstration: Demonstration, planarian: Planarian) -> None:
        self.demonstration = demonstration
        self.planarian = planarian
        self.console = demonstration.console
        self.prove = demonstration.prove
        project = demonstration.place / "project"
        project.mkdir()
        (project / "src").mkdir()
        (project / "src" / "pi.py").write_text("print(22 / 7)\n")
        shutil.copyfile(str(files("planarian_miniswe") / "demo_counter.py"), project / "counter.py")
        self.environment = PlanarianEnvironment(
            planarian=planarian, workspace=str(project), policy="manual", env=_NAME | _MAIL
        )
        self.sandbox = self.environment.sandbox
        capabilities = planarian.plugins.process(self.sandbox.record.process).capabilities
        self.keeps_memory, self.keeps_commands = capabilities.memory, capabilities.memory or capabilities.restarts

    def tell(self) -> None:
        record = self.sandbox.record
        backends = f"{record.spec.backend} sandbox, files by {record.filesystem}, processes by {record.process}"
        self.demonstration.about = {
            "sandbox": record.spec.backend,
            "files": record.filesystem,
            "processes": record.process,
        }
        self.console.print(f"An agent in its own environment: {backends}")
        works = self.the_agent_works()
        before = tree_hash(self.sandbox)
        self.the_agent_makes_a_mistake(before)
        self.the_agent_goes_back(before)
        self.two_forks_try_alternatives(works, before)
        self.console.rule("What is known now")
        self.console.print(self.planarian.ledger(self.sandbox).to_markdown(), markup=False)
        self.console.print(statepoint_tree(self.planarian))

    # --- the chapters ---

    def the_agent_works(self) -> Statepoint:
        self.console.rule("The agent works, starts a server, and takes a statepoint")
        self.agent(
            "git init -q && git add . && git commit -qm 'pi, roughly' && git log --oneline",
            "python3 counter.py serve >/dev/null 2>&1 &",
            "for i in 1 2 3; do python3 counter.py add; done",
            "planarian snapshot works -d 'committed; the server has counted to 3'",
        )
        works = self.planarian.resolve(self.sandbox, "works")
        self.demonstration.not_covered += [f"{gap.subject}: {gap.reason}" for gap in works.coverage.missing]
        return works

    def the_agent_makes_a_mistake(self, before: str) -> None:
        self.console.rule("The agent makes a mistake")
        *_, seen = self.agent(
            "rm -rf src .git/objects .git/refs && python3 counter.py add 96",
            'kill "$(python3 counter.py pid)"; sleep 0.1',
            "git log --oneline; ls src; python3 counter.py show",
        )
        self.prove("the repository and the server are broken", "fatal" in seen and "is down" in seen, seen)
        broken = tree_hash(self.sandbox)
        self.prove("the tree has changed", broken != before, f"{before[:16]} before, {broken[:16]} after")

    def the_agent_goes_back(self, before: str) -> None:
        self.console.rule("The agent goes back")
        *_, context = self.agent(
            "planarian outcome works 'removed src and half of .git by mistake' --status failed",
            "planarian ledger",
            "echo 'this command ends at the rollback'; planarian rollback works; echo 'and never gets here'",
        )
        there = "rolled back to" in context and "by mistake" in context and "never gets here" not in context
        self.prove("the agent is told where it is now", there, context)
        after = tree_hash(self.sandbox)
        self.prove("the tree is exactly that of the statepoint", after == before, f"{after[:16]}, {before[:16]}")
        log, counter = self.agent("git log --oneline", "python3 counter.py show")
        self.prove("git has its history again", "pi, roughly" in log, log)
        self.prove_counter("the server", counter, 0)

    def two_forks_try_alternatives(self, works: Statepoint, born: str) -> None:
        untouched = tree_hash(self.sandbox)
        leibniz = self.in_a_fork(works, born, "leibniz", "4 * sum((-1) ** k / (2 * k + 1) for k in range(1000))", 10)
        machin = self.in_a_fork(works, born, "machin", "16 * math.atan(1 / 5) - 4 * math.atan(1 / 239)", 100)
        self.console.rule("Nobody got in the other's way")
        results = [fork.run("python3 src/pi.py").stdout.strip() for fork in (leibniz, machin)]
        self.prove("the forks went different ways", len({*results}) == 2, " and ".join(results))
        hashes = [tree_hash(sandbox) for sandbox in (self.sandbox, leibniz, machin)]
        self.prove("the source's tree did not change", hashes[0] == untouched, f"{hashes[0][:16]}, {untouched[:16]}")
        self.prove("each has a tree of its own", len({*hashes}) == 3, ", ".join(h[:16] for h in hashes))
        for name, sandbox, added in (
            ("the source", self.sandbox, 0),
            ("leibniz", leibniz, 10),
            ("machin", machin, 100),
        ):
            self.prove_counter(name, sandbox.run("python3 counter.py show").stdout, added)

    def in_a_fork(self, works: Statepoint, born: str, name: str, formula: str, count: int) -> Sandbox:
        self.console.rule(f"A fork tries {name}")
        fork = self.planarian.fork(works, name=name)
        self.prove(f"{name} was born as the statepoint", tree_hash(fork) == born, born[:16])
        with PlanarianEnvironment(planarian=self.planarian, attach=fork.id, env=_NAME | _MAIL) as environment:
            self.agent(
                f"printf 'import math\\nprint({formula})\\n' > src/pi.py && git commit -qam 'pi by {name}'",
                f"python3 counter.py add {count}; python3 src/pi.py",
                f'planarian outcome works "{name} gives $(python3 src/pi.py)" --status succeeded',
                f"planarian snapshot {name}",
                environment=environment,
            )
        return fork

    # --- how it is told and proven ---

    def agent(self, *commands: str, environment: PlanarianEnvironment | None = None) -> list[str]:
        """Let mini-swe-agent run with a model that answers with ``commands``; returns what it observed."""
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.models.test_models import DeterministicModel, make_output

        answers = [make_output("", [{"command": command}], cost=0) for command in (*commands, f"echo {SUBMIT}")]
        model = DeterministicModel(outputs=answers, cost_per_call=0)  # type: ignore[no-untyped-call]  # upstream's
        agent = DefaultAgent(
            model, environment or self.environment, system_template="Work.", instance_template="{{task}}", cost_limit=0
        )
        agent.run("find pi")
        observed = [str(m["extra"]["raw_output"]) for m in agent.messages if "raw_output" in m.get("extra", {})]
        for command, output in zip(commands, observed, strict=True):
            self.console.print(f"$ {command}", style="bold", markup=False)
            self.console.print(output.rstrip() or "(no output)", style="dim", markup=False)
        return observed

    def prove_counter(self, whose: str, answer: str, added: int) -> None:
        """The server lives, with its memory where the process backend keeps memory, started anew where it doesn't."""
        if not self.keeps_commands:
            return  # the statepoint's coverage says so, and the end of the demo repeats it
        expected = added + (_COUNTER_AT_STATEPOINT if self.keeps_memory else 0)
        how = "with its memory" if self.keeps_memory else "started anew, without its memory"
        self.prove(f"{whose} answers {expected}: it lives, {how}", answer.strip() == str(expected), answer.strip())


def tree_hash(sandbox: Sandbox) -> str:
    """The hash of a sandbox's whole workspace, by a program that shares no code with Planarian."""
    program = (files("planarian_miniswe") / "demo_tree_hash.py").read_text()
    result = sandbox.run(["python3", "-I", "-", sandbox.workspace], stdin=program, timeout=60)
    if result.exit_code:
        raise PlanarianError(f"the tree could not be hashed: {result.stderr}", code="demo")
    return result.stdout.strip()


def statepoint_tree(planarian: Planarian) -> Tree:
    """All statepoints of a home as they grew from each other, with the sandboxes whose head they are."""
    heads: dict[str | None, list[str]] = {}
    for record in planarian.registry.sandboxes():
        heads.setdefault(planarian.registry.branch(record.id).head, []).append(record.name or record.id)
    root = Tree("statepoints")
    nodes: dict[str | None, Tree] = {}
    for record in planarian.registry.sandboxes():
        for statepoint in planarian.registry.statepoints(record.id):
            here = "".join(f" <- {name}" for name in heads.get(statepoint.id, ()))
            label = f"{statepoint.id} {statepoint.name or statepoint.description}{here}"
            nodes[statepoint.id] = nodes.get(statepoint.parent_id, root).add(label)
    return root


def _prepare_mini(place: Path) -> None:
    """mini-swe-agent without its greeting, and without a configuration directory in the user's home."""
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", str(place / "mini-swe-agent"))
    require_mini()
    logging.getLogger("minisweagent").setLevel(logging.WARNING)
    if shutil.which("git") is None:
        raise ConfigurationError("the demo needs git", remedy="install git")
