"""Calls of one remote service on behalf of one sandbox: classified, made so that they can be undone, entered in the
undo log (paper, section 6.1; guarantees 7 and 8).

A call shares the sandbox's lock, as every tool call does, so that no statepoint falls into it; and it excludes other
calls of the same service (the proxy lock), whichever processes make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from planarian_core.errors import PlanarianError, RemoteError, SandboxError
from planarian_core.faults import reach
from planarian_core.interfaces import KeepsEntries, Prepares, ServiceKind, ToolResult, ToolTarget
from planarian_core.locks import SandboxLock
from planarian_core.logged_service import LoggedService
from planarian_core.model import (
    Approval,
    CallClass,
    EffectState,
    RemoteCall,
    RemoteEffect,
    SandboxRecord,
    Verdict,
    utc_now,
)
from planarian_core.plugin_manager import PluginManager
from planarian_core.policy import CallCounter
from planarian_core.registry import Registry, Standing
from planarian_core.sandbox_manager import SandboxManager

Ask = Callable[[RemoteEffect], bool | None]
"""Asks whoever sits at the harness about a pivot; None where nobody can be asked."""


class RemoteSession:
    """The calls that a proxy makes. Usable from one thread at a time; any number of sessions may exist."""

    def __init__(
        self,
        registry: Registry,
        plugins: PluginManager,
        sandboxes: SandboxManager,
        record: SandboxRecord,
        service: LoggedService,
        *,
        approve_all: bool = False,
        ask: Ask | None = None,
    ) -> None:
        self._registry = registry
        self._plugins = plugins
        self._sandboxes = sandboxes
        self._record = record
        self._service = service
        self._approve_all = approve_all
        self._ask = ask
        self._prepares = service.kind if isinstance(service.kind, Prepares) else None
        self._mark = service.mark
        self._keeps_entries = isinstance(service.kind, KeepsEntries)
        self._recognized = service.forkable
        if service.forkable:  # connecting to the wrong one would make a branch there
            service.recognize(record.id, None)
        self._calls = CallCounter(sandboxes.home)
        self._lock = SandboxLock(sandboxes.home / "locks", f"{record.id}.{service.name}")

    @property
    def kind(self) -> ServiceKind:
        return self._service.kind

    def describe(self, tool: str, annotations: Mapping[str, Any]) -> Verdict:
        """What calls of a tool are, as far as that can be said beforehand; for the tool's ``_meta``."""
        return self.kind.describe(tool, annotations)

    def call(self, tool: str, arguments: Mapping[str, Any], target: ToolTarget) -> ToolResult:
        """Make one call through ``target``; the result is the server's own.

        Raises:
            RemoteError: it was not made (``call-refused``, ``service-fenced``, ``pivot-needs-approval``: nothing was
                changed), or its end is not known (``service-unreachable``, ``call-cancelled``): the next call, snapshot
                or rollback finds it out. ``result-too-large``: it was made, and its result thrown away.
            CompensationError: what an earlier call left can't be found out; or ``service-changed``: the configuration
                names another server than the one that the sandbox's effects were made on.
            SandboxError: the sandbox is busy, or gone.
        """
        call = RemoteCall(tool, arguments)
        with (
            self._sandboxes.hold(self._record.id, exclusive=False),
            self._lock.acquire(exclusive=True, timeout=self._sandboxes.config.lock_timeout),
        ):
            standing = self._registry.standing(self._record.id, self._service.name)
            self._check(standing)
            self._calls.add(self._record.id)
            if standing.unsettled:
                self._service.settle(self._record.id, target)
            verdict = self.kind.classify(call)
            if verdict.call_class is CallClass.READ_ONLY:
                found = self._read(call, target)
                if not isinstance(found, Verdict):
                    return found
                verdict = found
            return self._change(call, verdict, target)

    def _read(self, call: RemoteCall, target: ToolTarget) -> ToolResult | Verdict:
        with _only_read(call):
            return self.kind.read(call, target)

    def _change(self, call: RemoteCall, verdict: Verdict, target: ToolTarget) -> ToolResult:
        if verdict.call_class is CallClass.REFUSED:
            raise RemoteError(
                f"{call.tool} was refused: {verdict.reason}", code="call-refused", state="nothing was changed"
            )
        summary = _summary(call)
        if not self._recognized:
            self._service.recognize(self._record.id, target)
            self._recognized = True
        if verdict.call_class is CallClass.PIVOT:
            self._consent(call, verdict, summary)
        log = self._registry.effects
        before = self._prepare(call, verdict, target)
        effect = log.begin(
            self._record.id, self._service.name, call, verdict, summary, before, self._mark,
            ahead=self._keeps_entries and verdict.call_class is CallClass.COMPENSABLE,
        )  # fmt: skip
        reach("call.begun")
        try:
            outcome = self.kind.run(call, effect, target)
        except RemoteError as error:
            if error.code in ("call-refused", "service-error"):
                log.update(effect, EffectState.VOID, durable=False)
            raise
        reach("call.done")
        # The kind can settle this again: a power cut may take the entry back, and costs nothing but a question.
        log.update(
            effect, outcome.state, summary=outcome.summary, details=outcome.details, pivot=outcome.pivot,
            durable=bool(outcome.details or outcome.pivot),
        )  # fmt: skip
        reach("call.recorded")
        return outcome.result

    def _prepare(self, call: RemoteCall, verdict: Verdict, target: ToolTarget) -> Mapping[str, Any]:
        undoable = verdict.call_class in (CallClass.COMPENSABLE, CallClass.BRANCHABLE)
        if undoable and self._prepares is not None:
            with _only_read(call):
                return self._prepares.prepare(call, target)
        return {}

    # --- what may not be called, or not without consent ---

    def _check(self, standing: Standing) -> None:
        """The sandbox is open, not half-way through a rollback whose runtime was killed, and may use the service."""
        sandbox = self._record.id
        if standing.closed:
            raise SandboxError(f"{sandbox} was closed", code="sandbox-closed", remedy=f"planarian attach {sandbox}")
        if standing.rolling_back:
            raise SandboxError(
                f"{sandbox} is in the middle of a rollback that was cut off",
                code="sandbox-unfinished",
                state="nothing was called",
                remedy="planarian recover",
            )
        if standing.fence is not None:
            raise RemoteError(
                f"{self._service.name} is fenced off in {sandbox}: {standing.fence}",
                code="service-fenced",
                state="nothing was changed",
                remedy="call it from the sandbox that this one was forked from, or promote this fork first",
            )

    def _consent(self, call: RemoteCall, verdict: Verdict, summary: str) -> None:
        """Somebody agrees that a call runs which can't be undone; RemoteError if nobody does."""
        earlier = self._registry.effects.equal(self._record.id, self._service.name, call.digest)
        effect = RemoteEffect(self._service.name, "", summary, pivot=True, reason=verdict.reason)
        if earlier is not None:
            effect = replace(effect, repeats=f"effect {earlier.number}, made at {earlier.made_at}, is still in force")
        if self._granted(call, effect) or (earlier is None and (verdict.approved or self._approve_all)):
            return
        said = self._plugins.hook.planarian_approve(sandbox=self._record, effects=[effect])
        if said is None and self._ask is not None:
            said = self._ask(effect)
        if said:
            return
        raise self._unapproved(call, effect, denied=said is False)

    def _approval_id(self, call: RemoteCall) -> str:
        return f"ap-{RemoteCall(f'{self._record.id} {self._service.name}', {'call': call.digest}).digest[:12]}"

    def _granted(self, call: RemoteCall, effect: RemoteEffect) -> bool:
        key = self._approval_id(call)
        approval = self._registry.approvals.get(key)
        if approval is None or not approval.granted:
            return False
        self._registry.approvals.remove(key)  # good for one call
        return True

    def _unapproved(self, call: RemoteCall, effect: RemoteEffect, *, denied: bool) -> PlanarianError:
        again = f", and an equal call was already made ({effect.repeats})" if effect.repeats else ""
        message = f"{effect.service}: {effect.summary} can't be undone: {effect.reason}{again}"
        if denied:
            return RemoteError(f"{message}; it was not approved", code="pivot-denied", state="nothing was changed")
        key = self._approval_id(call)
        self._registry.approvals.put(key, Approval(key, self._record.id, effect, asked_at=utc_now()))
        return RemoteError(
            message,
            code="pivot-needs-approval",
            state="nothing was changed",
            remedy=f"a user allows it once with: planarian approve {key}; then make the same call again",
        )


@contextmanager
def _only_read(call: RemoteCall) -> Iterator[None]:
    """A result that is too large leaves nobody in doubt where calls within only read."""
    try:
        yield
    except RemoteError as error:
        if error.code != "result-too-large":
            raise
        raise RemoteError(
            f"{call.tool}: {error.message}", code=error.code, state="nothing was changed", remedy=error.remedy
        ) from error


def _summary(call: RemoteCall) -> str:
    """One line for people: the tool and its arguments, bounded."""
    shown_arguments = ", ".join(f"{key}={str(value)[:200]!r}" for key, value in list(call.arguments.items())[:8])
    return " ".join(f"{call.tool}({shown_arguments})".split())[:300]
