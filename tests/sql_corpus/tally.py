"""What a run found, counted, and the bars that it must reach."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

BAR = 0.97
"""Of the INSERT, UPDATE, DELETE and MERGE that plainly succeed, as many must be accepted."""
DML = ("INSERT", "UPDATE", "DELETE", "MERGE")


@dataclass(frozen=True)
class Violation:
    """A promise that was not kept: where, by which statement, and what differs."""

    file: str
    line: int
    statement: str
    broken: str
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        statement = " ".join(self.statement.split())
        lines = [f"{self.file}.sql:{self.line}: {self.broken}: {statement[:500]}", *self.differences]
        return "\n    ".join(lines)


@dataclass
class Tally:
    """Counts of one file, or of several added up."""

    statements: int = 0
    bare: Counter[str] = field(default_factory=Counter)
    """Not sent: inside a transaction block, or of psql."""
    reads: int = 0
    changed: int = 0
    """Accepted statements after which the database was another."""
    exact: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    """The server's own error, without us as well."""
    turned_away: Counter[str] = field(default_factory=Counter)
    """DML that plainly succeeds, and was refused or failed here."""
    sequences: int = 0
    """Undone effects after which a sequence stands elsewhere than before."""
    violations: list[Violation] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        self.statements += other.statements
        self.reads += other.reads
        self.failed += other.failed
        self.changed += other.changed
        self.sequences += other.sequences
        self.violations += other.violations
        for name in ("bare", "exact", "refused", "turned_away"):
            getattr(self, name).update(getattr(other, name))
        return self

    def refuse(self, command: str, reason: str) -> None:
        self.refused[f"{command}: {generalised(reason)}"] += 1

    def turn_away(self, command: str, reason: str) -> None:
        self.turned_away[f"{command}: {generalised(reason)}"] += 1

    @property
    def accepted_dml(self) -> int:
        return sum(count for command, count in self.exact.items() if command in DML)

    @property
    def share(self) -> float:
        """Of the autocommit DML that plainly succeeds, how much was accepted."""
        plain = self.accepted_dml + sum(self.turned_away.values())
        return self.accepted_dml / plain if plain else 1.0

    @property
    def passed(self) -> bool:
        return not self.violations and self.share >= BAR

    def report(self, most: int = 60) -> str:
        """The figures, for people."""
        plain = self.accepted_dml + sum(self.turned_away.values())
        bare = ", ".join(f"{count:,} {what}" for what, count in self.bare.most_common())
        lines = [
            f"statements {self.statements:,} (not sent: {bare or 'none'})",
            f"reads that changed nothing {self.reads:,}; failed as they do without us {self.failed:,}",
            f"accepted, undone exactly and done again exactly {sum(self.exact.values()):,}: {_listed(self.exact)}",
            f"of all accepted {self.changed:,} changed something",
            f"refused without effect {sum(self.refused.values()):,}, by reason:",
            *(f"  {count:6,}  {reason}" for reason, count in self.refused.most_common(most)),
            f"  {max(len(self.refused) - most, 0):6,}  more reasons" if len(self.refused) > most else "",
            f"undone effects after which a sequence stands elsewhere {self.sequences:,} (sequences don't roll back)",
            f"INSERT, UPDATE, DELETE, MERGE that plainly succeed: {plain:,}",
            f"of these accepted {self.accepted_dml:,}: {100 * self.share:.2f} % (bar {100 * BAR:.0f} %)",
            *(f"  {count:6,}  {reason}" for reason, count in self.turned_away.most_common(most)),
            f"violations {len(self.violations)} (bar 0)",
            *(f"  {violation}" for violation in self.violations[:most]),
        ]
        return "\n".join(line for line in lines if line)


def generalised(reason: str) -> str:
    """A reason without the names and numbers in it, to count by."""
    reason = re.sub(r"\"[^\"]*\"|'[^']*'|`[^`]*`", "…", " ".join(reason.split()))
    reason = re.sub(r"\b[a-z_0-9]+\.[a-z_0-9.\"]+", "…", reason, flags=re.IGNORECASE)
    return re.sub(r"\b\d+\b", "N", reason)[:160]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count:,}" for what, count in counts.most_common(40))
