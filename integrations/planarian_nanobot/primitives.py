"""The primitives as nanobot's tools."""

from __future__ import annotations

from typing import Any, ClassVar

from planarian_core import Sandbox
from planarian_nanobot.inside import chosen_sandbox
from planarian_nanobot.tool import PATH, REFERENCE, SANDBOX, SandboxTool, string

_DIFF = 12_000
_FORK = string("The fork's id.")


class Snapshot(SandboxTool):
    title = "snapshot"
    teaching = (
        "Take a statepoint: a version of the whole environment (files, running processes with their memory, remote "
        "state) that can be restored exactly. One is taken after your calls, too."
    )
    properties: ClassVar[dict[str, Any]] = {
        "name": string("A short name to find it by."),
        "description": string("What is done and works, for whoever comes back here."),
        "sandbox": SANDBOX,
    }

    async def work(self, sandbox: str, **arguments: Any) -> str:
        name, description = arguments.get("name") or "", arguments.get("description") or ""
        point = await self._in(sandbox, lambda s: s.snapshot(name, description))
        missing = [f"not captured: {gap.domain}: {gap.subject}: {gap.reason}" for gap in point.coverage.missing]
        return "\n".join([f"kept as {point.id}" + (f" ({name})" if name else ""), *missing])


class Rollback(SandboxTool):
    title = "rollback"
    teaching = (
        "Bring the whole environment back to a statepoint: files, processes, remote effects. Do so when something went "
        "wrong, rather than repair it step by step. What is now is kept too; the result names it."
    )
    properties: ClassVar[dict[str, Any]] = {
        "statepoint": REFERENCE,
        "outcome": string("What was tried since and how it ended; kept for later."),
        "sandbox": SANDBOX,
    }
    required = ("statepoint",)

    async def work(self, sandbox: str, **arguments: Any) -> str:
        statepoint, outcome = arguments["statepoint"], arguments.get("outcome") or ""

        def back(chosen: Sandbox) -> str:
            if outcome:
                _note(chosen, statepoint, outcome, "failed")
            return chosen.rollback(statepoint).to_markdown()

        return await self._in(sandbox, back)


class Ledger(SandboxTool):
    title = "ledger"
    teaching = "List the statepoints to go back to, newest first: what each holds, and what was tried from it before."
    properties: ClassVar[dict[str, Any]] = {"sandbox": SANDBOX}
    reads = True

    async def work(self, sandbox: str, **arguments: Any) -> str:
        def listed(chosen: Sandbox) -> str:
            return chosen.planarian.ledger(chosen).to_markdown(chosen.planarian.config.ledger_characters)

        return await self._in(sandbox, listed)


class Outcome(SandboxTool):
    title = "outcome"
    teaching = (
        "Note how what was tried from a statepoint ended. It outlives rollbacks: whoever comes back there reads it."
    )
    properties: ClassVar[dict[str, Any]] = {
        "statepoint": REFERENCE,
        "text": string("What was tried from there and how it ended."),
        "status": string("How it ended.", enum=["note", "succeeded", "failed"]),
        "sandbox": SANDBOX,
    }
    required = ("statepoint", "text")

    async def work(self, sandbox: str, **arguments: Any) -> str:
        status = arguments.get("status") or "note"
        await self._in(sandbox, lambda s: _note(s, arguments["statepoint"], arguments["text"], status))
        return "noted"


class Fork(SandboxTool):
    title = "fork"
    teaching = (
        "Make an independent copy of the environment at a statepoint; your own stays as it is. Give the copy's id to "
        "the other tools, as sandbox, to work in it."
    )
    properties: ClassVar[dict[str, Any]] = {
        "statepoint": REFERENCE,
        "name": string("A short name for the fork."),
        "sandbox": SANDBOX,
    }

    async def work(self, sandbox: str, **arguments: Any) -> str:
        statepoint, name = arguments.get("statepoint") or "@head", arguments.get("name") or ""

        def forked(source: Sandbox) -> str:
            fork, context = source.planarian.fork_with_context(statepoint, of=source, name=name, by_agent=True)
            return f"sandbox: {fork.id}\n\n{context.to_markdown()}"

        return await self._in(sandbox, forked)


class Promote(SandboxTool):
    title = "promote"
    teaching = "Make a fork's present state the state of the sandbox that it came from. What that one was is kept."
    properties: ClassVar[dict[str, Any]] = {
        "fork": _FORK,
        "force": {"type": "boolean", "description": "Set aside what its source did since; that is kept."},
    }
    required = ("fork",)

    async def work(self, sandbox: str, **arguments: Any) -> str:
        force = bool(arguments.get("force"))
        return await self._in(arguments["fork"], lambda s: s.planarian.promote(s, force=force).to_markdown())


class RemoveFork(SandboxTool):
    title = "remove_fork"
    teaching = "End a fork and remove it with its statepoints."
    properties: ClassVar[dict[str, Any]] = {"fork": _FORK}
    required = ("fork",)

    async def work(self, sandbox: str, **arguments: Any) -> str:
        def removed(own: Sandbox) -> str:
            fork = chosen_sandbox(own, arguments["fork"], other=True)
            own.planarian.remove_sandbox(fork)
            return f"{fork.id} removed"

        return await self._in("", removed)


class Diff(SandboxTool):
    title = "diff"
    teaching = "What changed between two statepoints, or since one: files, processes, remote effects."
    properties: ClassVar[dict[str, Any]] = {
        "a": REFERENCE,
        "b": string("Another one; empty: the present."),
        "sandbox": SANDBOX,
    }
    reads = True

    async def work(self, sandbox: str, **arguments: Any) -> str:
        a, b = arguments.get("a") or "@head", arguments.get("b") or None
        return await self._in(sandbox, lambda s: s.planarian.diff(a, b, of=s).to_markdown(_DIFF))


class RestorePaths(SandboxTool):
    title = "restore_paths"
    teaching = "Bring single files or directories back from a statepoint; the rest, and what runs, isn't touched."
    properties: ClassVar[dict[str, Any]] = {
        "statepoint": REFERENCE,
        "paths": {"type": "array", "items": PATH, "minItems": 1, "description": "What to bring back."},
        "sandbox": SANDBOX,
    }
    required = ("statepoint", "paths")

    async def work(self, sandbox: str, **arguments: Any) -> str:
        statepoint, paths = arguments["statepoint"], arguments["paths"]
        done = await self._in(sandbox, lambda s: s.planarian.restore_paths(s, statepoint, paths))
        left_out = [f"left out: {gap.subject}: {gap.reason}" for gap in done.left_out]
        lines = [f"restored: {path}" for path in done.restored] + [f"removed: {path}" for path in done.removed]
        return "\n".join([*lines, *left_out]) or "nothing was to be restored"


def _note(sandbox: Sandbox, statepoint: str, text: str, status: str) -> None:
    author = f"agent of {sandbox.id}"
    sandbox.planarian.append_outcome(statepoint, text, status=status, author=author, of=sandbox)


ALL: tuple[type[SandboxTool], ...] = (
    Snapshot, Rollback, Ledger, Outcome, Fork, Promote, RemoveFork, Diff, RestorePaths,
)  # fmt: skip
