"""The context library: evidence in and out (paper, section 4.5 and Table 3). Plain data and bounded Markdown, no LLM.

``record_state`` and ``append_outcome`` gather; ``construct_ledger`` exposes what a caller chooses from;
``restore_context`` tells an agent what its environment is after a rollback. It adds to the agent's context and removes
nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planarian_core.codec import encode
from planarian_core.errors import ConfigurationError
from planarian_core.model import (
    Evidence,
    Gap,
    Outcome,
    ProcessInfo,
    RemoteEffect,
    RestoreContext,
    Statepoint,
    Status,
    new_id,
    utc_now,
)
from planarian_core.registry import Registry

TEXT_LIMIT = 4000
OUTCOME_STATUSES = ("note", "succeeded", "failed")
_FACT_LIMIT = 300


def record_state(description: str, facts: Iterable[Mapping[str, str]]) -> tuple[str, dict[str, str]]:
    """StateRecord: the description and the facts of a statepoint, bounded. Later facts win over earlier ones."""
    merged: dict[str, str] = {}
    for mapping in facts:
        for key, value in mapping.items():
            merged[clip(str(key), 60)] = clip(str(value), _FACT_LIMIT)
    return clip(description, TEXT_LIMIT), dict(list(merged.items())[:32])


def append_outcome(registry: Registry, statepoint: Statepoint, text: str, status: str, author: str) -> Outcome:
    """AppendOutcome: say how a run that went on from ``statepoint`` ended. Durable when it returns.

    Args:
        status: ``note``, ``succeeded`` or ``failed``.
        text: at most :data:`TEXT_LIMIT` characters; the middle of a longer one is cut out.
    """
    if status not in OUTCOME_STATUSES:
        raise ConfigurationError(
            f"an outcome can't be {status!r}", code="outcome-status", remedy=f"one of: {', '.join(OUTCOME_STATUSES)}"
        )
    outcome = Outcome(new_id("oc"), statepoint.id, clip(text, TEXT_LIMIT), status, clip(author, 80), utc_now())
    registry.add_outcome(outcome)
    return outcome


@dataclass(frozen=True)
class Ledger:
    """The state ledger: evidence of committed statepoints, newest first; ``omitted`` older ones did not fit."""

    entries: tuple[Evidence, ...]
    head: str | None
    omitted: int = 0

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data

    def to_markdown(self, limit: int = 6000) -> str:
        """At most ``limit`` characters; whole entries only, newest first."""
        lines = ["# State ledger", ""]
        if not self.entries:
            lines.append("There are no statepoints yet.")
        blocks = [_ledger_entry(entry, entry.statepoint.id == self.head) for entry in self.entries]
        return _fit("\n".join(lines), blocks, limit, self.omitted, "older statepoints")


def construct_ledger(
    registry: Registry, sandbox_id: str, head: str | None, limit: int, *, automatic: bool = True
) -> Ledger:
    """ConstructLedger: the evidence of a sandbox's committed statepoints, and of pruned ones that have outcomes.

    Args:
        limit: characters that the Markdown may take; the number of entries follows from it.
        automatic: include statepoints that nobody asked for by name.
    """
    chosen = [
        s
        for s in registry.statepoints(sandbox_id)
        if (s.status is Status.COMMITTED and (automatic or not s.automatic or registry.outcomes(s.id)))
        or (s.status is Status.PRUNED and registry.outcomes(s.id))
    ]
    chosen.reverse()
    entries: list[Evidence] = []
    used = 0
    for statepoint in chosen:
        evidence = Evidence(statepoint, registry.outcomes(statepoint.id))
        used += len(_ledger_entry(evidence, False)) + 1
        if used > limit and entries:
            break
        entries.append(evidence)
    return Ledger(tuple(entries), head, len(chosen) - len(entries))


def _ledger_entry(evidence: Evidence, is_head: bool) -> str:
    statepoint = evidence.statepoint
    title = f"- **{statepoint.id}**"
    if statepoint.name:
        title += f" `{one_line(statepoint.name, 100)}`"
    if is_head:
        title += " (head)"
    if statepoint.status is Status.PRUNED:
        title += " (pruned: it can't be restored)"
    lines = [f"{title} {statepoint.created_at}"]
    if statepoint.description:
        lines.append(f"  {one_line(statepoint.description, 300)}")
    lines += [f"  {one_line(key, 60)}: {one_line(value, 200)}" for key, value in statepoint.facts.items()]
    lines += [f"  not captured: {g.subject} ({one_line(g.reason, 120)})" for g in statepoint.coverage.missing[:3]]
    lines += [f"  outcome, {_outcome(o, 300)}" for o in evidence.outcomes[-5:]]
    return "\n".join(lines)


def _outcome(outcome: Outcome, limit: int) -> str:
    """How it ended, what was said, and who said it: an agent's word is not the user's."""
    author = f" ({one_line(outcome.author, 40)})" if outcome.author else ""
    return f"{outcome.status}: {one_line(outcome.text, limit)}{author}"


def restore_context(
    registry: Registry,
    action: str,
    sandbox_id: str,
    statepoint: Statepoint,
    *,
    files: tuple[int | None, tuple[str, ...]] = (0, ()),
    not_undone: Sequence[Gap] = (),
    running: tuple[str, ...] = (),
    safety: Statepoint | None = None,
    remote: Sequence[RemoteEffect] = (),
) -> RestoreContext:
    """RestoreContext: what an agent must know after a ``rollback`` or ``fork`` (``action``).

    Args:
        files: how many files the rollback changed back (None: not counted), and a sample of them.
        running: what runs again, in words.
        remote: the effects that were undone and done again.
        safety: the statepoint of the state that was left; what ran in it and doesn't any more is listed.
    """
    kept = {(p.pid, p.argv) for p in statepoint.process_list}
    stopped = safety.process_list if safety else ()
    return RestoreContext(
        action=action,
        statepoint=statepoint,
        sandbox_id=sandbox_id,
        safety_id=safety.id if safety else None,
        files_changed=files[0],
        files_sample=files[1],
        processes_stopped=tuple(process_words(p) for p in stopped if (p.pid, p.argv) not in kept),
        processes_running=running,
        remote_undone=tuple(e for e in remote if not e.pivot and not e.redo),
        remote_redone=tuple(e for e in remote if not e.pivot and e.redo),
        not_undone=(*not_undone, *statepoint.coverage.missing),
        outcomes=registry.outcomes(statepoint.id),
    )


def process_words(process: ProcessInfo) -> str:
    """A process in one line: its pid inside and its command."""
    return one_line(f"{process.pid} {' '.join(process.argv)}", 200)


_VERBS = {
    "rollback": "was rolled back to",
    "fork": "is a fork of",
    "promote": "took over a fork's state, kept as",
    "attach": "was picked up again at",
}


def restore_markdown(context: RestoreContext, limit: int) -> str:
    """RestoreContext as Markdown of at most ``limit`` characters; the order is that of importance to an agent."""
    statepoint = context.statepoint
    label = statepoint.id + (f" (`{one_line(statepoint.name, 100)}`)" if statepoint.name else "")
    verb = _VERBS.get(context.action, context.action)
    head = [
        f"# The environment {verb} statepoint {label}",
        "",
        f"Files and processes of sandbox {context.sandbox_id} are again as they were at {statepoint.created_at}.",
        "What earlier messages say of later changes no longer holds.",
    ]
    if statepoint.description:
        head.append(f"It holds: {one_line(statepoint.description, 600)}")
    head += [f"{one_line(key, 60)}: {one_line(value, 200)}" for key, value in statepoint.facts.items()]
    blocks = [
        _section("Not undone", [f"{g.domain}: {g.subject}: {g.reason}" for g in context.not_undone]),
        _section("Tried from here before", [_outcome(o, 350) for o in reversed(context.outcomes)]),
        _section(
            f"Files changed back ({context.files_changed})", context.files_sample, shown=20, total=context.files_changed
        ),
        _section("Processes stopped", context.processes_stopped),
        _section("Processes running now", context.processes_running),
        _section("Remote effects undone", [f"{e.service}: {e.summary}" for e in context.remote_undone]),
        _section("Remote effects done again", [f"{e.service}: {e.summary}" for e in context.remote_redone]),
    ]
    if context.safety_id:
        blocks.append(f"\nThe state before is kept as {context.safety_id}: a rollback to it undoes this one.")
    return _fit("\n".join(head), [block for block in blocks if block], limit, 0, "sections")


def _section(title: str, items: Sequence[str], shown: int = 12, total: int | None = None) -> str:
    if not items:
        return ""
    lines = [f"\n## {title}", *(f"- {one_line(item, 400)}" for item in items[:shown])]
    left = (total if total is not None else len(items)) - min(len(items), shown)
    if left > 0:
        lines.append(f"- … and {left} more")
    return "\n".join(lines)


def _fit(head: str, blocks: Sequence[str], limit: int, omitted: int, noun: str) -> str:
    """``head`` and as many whole blocks as fit into ``limit`` characters, with a note of what was left out."""
    room = limit - 60
    text = clip(head, max(room, 100))
    for index, block in enumerate(blocks):
        if len(text) + len(block) + 1 > room:
            omitted += len(blocks) - index
            break
        text += f"\n{block}"
    if omitted:
        text += f"\n\n({omitted} {noun} left out)"
    return clip(text + "\n", limit)


def clip(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters; what is cut is cut out of the middle."""
    if len(text) <= limit:
        return text
    mark = " […] "
    keep = max(limit - len(mark), 0)
    return text[: keep - keep // 2] + mark[: limit - keep] + (text[-(keep // 2) :] if keep // 2 else "")


def one_line(text: str, limit: int) -> str:
    """``text`` without line breaks and control characters, clipped: sandbox content must not forge Markdown."""
    printable: Callable[[str], str] = lambda c: c if c.isprintable() else " "  # noqa: E731  # a local one-liner
    return clip(" ".join("".join(map(printable, text)).split()), limit)
