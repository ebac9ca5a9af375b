"""What the stories of ``planarian demo`` share: a place of their own, and claims that are compared first.

A story prints what happens and proves what it says; one claim that doesn't hold ends the demo with exit code 1.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from planarian_core.runtime import Planarian


@dataclass(frozen=True)
class Proof:
    """A claim, whether it holds, and what was seen."""

    claim: str
    holds: bool
    seen: str


class Demonstration:
    """One telling of a story. ``backends`` are those that the user chose (``sandbox``, ``filesystem``, ``process``);
    ``place`` is an empty directory that :func:`demonstration` removes at the end, unless it is to be kept.
    """

    def __init__(self, place: Path, console: Console, backends: Mapping[str, str], *, keep: bool = False) -> None:
        self.place = place
        self.console = console
        self.backends = backends
        self.keep = keep
        self.proofs: list[Proof] = []
        self.not_covered: list[str] = []
        """What the statepoints of the story don't hold; said at the end."""
        self.about: dict[str, str] = {}
        """What the story ran on."""

    @contextlib.contextmanager
    def open(self, configuration: str = "") -> Iterator[Planarian]:
        """A home below ``place`` with this ``planarian.toml``; its sandboxes are removed at the end."""
        home = self.place / "home"
        home.mkdir(mode=0o700)
        if configuration:
            (home / "planarian.toml").write_text(configuration)
        with Planarian.open(home) as planarian:
            planarian.with_config(**self.backends)
            try:
                yield planarian
            finally:
                for record in [] if self.keep else reversed(planarian.registry.sandboxes()):  # forks come after
                    planarian.remove_sandbox(planarian.sandbox(record.id))

    def chapter(self, title: str) -> None:
        self.console.rule(title)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style or None, markup=False)

    def prove(self, claim: str, holds: bool, seen: str) -> None:
        """Make a claim that was just compared."""
        self.proofs.append(Proof(claim, holds, seen))
        style, word = ("green", "proven") if holds else ("bold red", "NOT TRUE")
        short = seen if len(seen) < 80 and "\n" not in seen else ""
        self.say(f"  {word}: {claim}" + (f" ({short})" if short else ""), style)
        if not holds:
            self.say(seen, "red")

    @property
    def proven(self) -> bool:
        """Whether there were claims, and all of them hold."""
        return bool(self.proofs) and all(proof.holds for proof in self.proofs)

    def to_dict(self) -> dict[str, object]:
        return {
            "proven": self.proven,
            **self.about,
            "proofs": [asdict(proof) for proof in self.proofs],
            "not_covered": self.not_covered,
        }


@contextlib.contextmanager
def demonstration(backends: Mapping[str, str], *, keep: bool = False, quiet: bool = False) -> Iterator[Demonstration]:
    """Tell a story in a temporary directory, on the terminal unless ``quiet``."""
    place = Path(tempfile.mkdtemp(prefix="planarian-demo-"))
    try:
        yield Demonstration(place, Console(quiet=quiet, highlight=False), backends, keep=keep)
    finally:
        if not keep:
            shutil.rmtree(place)
