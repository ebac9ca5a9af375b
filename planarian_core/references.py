"""What names of statepoints mean in a sandbox, and whose they are."""

from __future__ import annotations

from planarian_core import lineage
from planarian_core.errors import LineageError
from planarian_core.model import Branch, Statepoint, Status
from planarian_core.registry import Registry


class References:
    """Finds statepoints by what users and agents call them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def resolve(self, sandbox_id: str, reference: str) -> Statepoint:
        """The committed statepoint that a reference means in a sandbox; a fork may name the one that it came from.

        Raises:
            LineageError: unknown, ambiguous, not committed, or of another sandbox.
        """
        branch = self._registry.branch(sandbox_id)
        exact = self._exactly(branch, reference)
        if exact is not None:
            return exact
        own = self._registry.statepoints(sandbox_id)
        known = {s.id for s in own}
        origin = self._registry.find(branch.forked_from) if branch.forked_from else None
        every = own if origin is None or origin.id in known else [origin, *own]
        try:
            return lineage.resolve(reference, every, branch.head)
        except LineageError as error:
            self._name_other_owner(reference, sandbox_id, error)
            raise

    def _exactly(self, branch: Branch, reference: str) -> Statepoint | None:
        """The head or a whole id, without a look at all the others: there can be thousands."""
        exact = branch.head if reference in ("@head", "@") else reference
        found = self._registry.find(exact) if exact and exact.startswith("sp-") else None
        if found is None or found.status is not Status.COMMITTED:
            return None
        return found if found.sandbox_id == branch.sandbox_id or found.id == branch.forked_from else None

    def owner(self, reference: str) -> str | None:
        """The sandbox that a whole id belongs to; None when it is no whole id."""
        found = self._registry.find(reference)
        return found.sandbox_id if found else None

    def _name_other_owner(self, reference: str, sandbox_id: str, error: LineageError) -> None:
        other = self.owner(reference)
        if other is None or other == sandbox_id:
            return
        raise LineageError(
            f"{reference} belongs to sandbox {other}, not to {sandbox_id}",
            code="statepoint-foreign",
            state="nothing was changed",
            remedy=f"name that sandbox, or fork from it: planarian fork -s {other} {reference}",
        ) from error
