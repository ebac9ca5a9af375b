"""How a command gets at its home and its sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planarian_core.cli.output import remark

if TYPE_CHECKING:
    from planarian_core.recovery import Recovered
    from planarian_core.runtime import Planarian
    from planarian_core.sandbox import Sandbox


def _open(*, recover: bool) -> Planarian:
    from planarian_core.runtime import Planarian

    return Planarian.open(recover=recover)


opener: Callable[..., Planarian] = _open
"""Opens the home that ``PLANARIAN_HOME`` names; tests put another one here."""


@contextmanager
def opened(*, as_json: bool, recover: bool = True) -> Iterator[Planarian]:
    """The home, opened for one command. What opening it had to finish is said on stderr."""
    with opener(recover=recover) as planarian:
        if not as_json:
            for done in planarian.recovered:
                remark(f"planarian: {recovered_words(done)}")
        planarian.with_config(standby="off")  # a warm copy would go when the command ends
        yield planarian


def recovered_words(done: Recovered) -> str:
    """One sentence on an operation that a killed runtime had left."""
    cut_off = f"a {done.operation} of {done.sandbox_id} had been cut off: {done.result}"
    return f"{cut_off}: {done.error}" if done.error else cut_off


def owner(planarian: Planarian, reference: str, statepoint: str) -> Sandbox:
    """The sandbox that was named, else the one that a full statepoint id belongs to, else the only one."""
    from planarian_core.errors import LineageError

    if not reference and statepoint.startswith("sp-"):
        try:
            return planarian.sandbox(planarian.registry.statepoint(statepoint).sandbox_id)
        except LineageError:
            pass  # not a full id: the only sandbox may know what it means
    return planarian.sandbox(reference)
