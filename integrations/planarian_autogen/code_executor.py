"""Runs code blocks in an environment's sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
import warnings
from dataclasses import dataclass
from typing import ClassVar, Self

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel

from planarian_autogen.environment import Environment
from planarian_autogen.settings import EnvironmentSettings
from planarian_core.context import one_line
from planarian_core.coroutines import being_cancelled
from planarian_core.errors import ConfigurationError
from planarian_core.model import CommandResult

_TIMED_OUT = 124
_CANCELLED = 125
_FILENAME = "# filename:"
# Standard error joins standard output in the order of writing. The code comes by standard input: an argument may be too
# short for it. $1 is the file, $2 says whether to remove it; the rest is the program.
_EXECUTE = """exec 2>&1
file=$1 keep=$2; shift 2
mkdir -p -- "$(dirname -- "$file")" && cat >"$file" || exit
"$@" "$file" </dev/null
code=$?
test "$keep" || rm -f -- "$file"
exit $code
"""


class SandboxCodeExecutorConfig(BaseModel):
    """The environment, and how code runs in it."""

    environment: EnvironmentSettings
    timeout: float = 60
    work_dir: str = ""
    cleanup_temp_files: bool = True
    python: str = "python3"
    output_limit: int = 1024 * 1024


@dataclass
class SandboxCodeResult(CodeResult):
    """``code_file`` is the first block's file, as the sandbox names it."""

    code_file: str | None


class SandboxCodeExecutor(CodeExecutor, Component[SandboxCodeExecutorConfig]):
    """Runs Python and shell code in an environment, each block in a process of its own that starts in the workspace.
    After each call a statepoint is taken if the policy says so.

    It takes the place of AutoGen's ``LocalCommandLineCodeExecutor``: results, exit codes (124 timeout, 125 cancelled)
    and ``# filename: NAME`` in a first line are that one's. What blocks leave running goes on.

    Args:
        timeout: seconds for each block; its whole process tree ends then.
        work_dir: where blocks start: relative to the workspace, or absolute.
        cleanup_temp_files: remove the files that blocks ran from, but for those that were given a name.
        python: the interpreter, as the sandbox finds it.
        output_limit: bytes of a block's output; the middle of more is cut out.
    """

    component_provider_override = "planarian_autogen.SandboxCodeExecutor"
    component_config_schema = SandboxCodeExecutorConfig

    PROGRAMS: ClassVar[dict[str, str]] = {"bash": "bash", "shell": "sh", "sh": "sh", "python": "", "py": ""}
    """Languages, and what runs them; empty for the Python interpreter."""

    def __init__(
        self,
        environment: Environment,
        *,
        timeout: float = 60,
        work_dir: str = "",
        cleanup_temp_files: bool = True,
        python: str = "python3",
        output_limit: int = 1024 * 1024,
    ) -> None:
        if timeout <= 0:
            raise ConfigurationError("timeout must be greater than 0")
        self.environment = environment
        self._config = SandboxCodeExecutorConfig(
            environment=environment.settings, timeout=timeout, work_dir=work_dir,
            cleanup_temp_files=cleanup_temp_files, python=python, output_limit=output_limit,
        )  # fmt: skip

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> SandboxCodeResult:
        """Run the blocks one after the other, up to one that fails.

        Raises:
            PlanarianError: the sandbox failed; code that fails is a result.
        """
        described = one_line(f"after {', '.join(block.language for block in code_blocks)}: {_shown(code_blocks)}", 300)
        output, first, code = "", None, 0
        async with self.environment.call(described) as notes:
            for block in code_blocks:
                result, file = await self._block(block, cancellation_token)
                first = first or file
                code = result.exit_code
                output += result.output
                if code != 0:
                    break
        return SandboxCodeResult(code, "\n".join([output, *notes]) if notes else output, first)

    async def _block(self, block: CodeBlock, token: CancellationToken) -> tuple[CodeResult, str | None]:
        program = self.PROGRAMS.get(block.language.lower())
        if program is None:
            return CodeResult(1, f"\nunknown language {block.language.lower()}"), None
        try:
            file, named = self._file(block, program or "py")
        except ValueError as error:
            return CodeResult(1, str(error)), None
        keep = "keep" if named or not self._config.cleanup_temp_files else ""
        command = ["sh", "-c", _EXECUTE, "sh", file, keep, program or self._config.python]
        running = asyncio.ensure_future(self._run(command, block.code))
        token.link_future(running)
        try:
            done = await running
        except asyncio.CancelledError:
            if not token.is_cancelled() or being_cancelled():
                raise
            await self._clean(file, keep)
            return CodeResult(_CANCELLED, "\nCancelled"), file
        if done.timed_out:
            await self._clean(file, keep)
            return CodeResult(_TIMED_OUT, f"{done.stdout}\nTimeout"), file
        return CodeResult(done.exit_code, done.stdout), file

    async def _run(self, command: list[str], code: str) -> CommandResult:
        cwd = self._directory()
        return await self.environment.run(
            command, cwd=cwd, stdin=code, timeout=self._config.timeout, output_limit=self._config.output_limit
        )

    async def _clean(self, file: str, keep: str) -> None:
        """Remove what a block that was ended has left of itself."""
        if not keep:
            await self.environment.run(["rm", "-f", "--", file], timeout=60)

    def _directory(self) -> str:
        return posixpath.normpath(posixpath.join(self.environment.sandbox.workspace, self._config.work_dir))

    def _file(self, block: CodeBlock, suffix: str) -> tuple[str, bool]:
        """Where a block's code goes, and whether it was given a name; ValueError when that leads out of the directory.

        Only the name is looked at: it is the sandbox's own processes that write.
        """
        directory = self._directory()
        line = block.code.split("\n", 1)[0]
        if not line.startswith(_FILENAME):
            digest = hashlib.sha256(block.code.encode("utf-8", "surrogatepass")).hexdigest()
            return posixpath.join(directory, f"tmp_code_{digest}.{suffix}"), False
        path = posixpath.normpath(posixpath.join(directory, line.removeprefix(_FILENAME).strip()))
        if posixpath.commonpath([directory, path]) != directory or path == directory:
            raise ValueError("Filename is not in the workspace")
        return path, True

    async def start(self) -> None:
        """Find or make the sandbox."""
        await self.environment.start()

    async def stop(self) -> None:
        """Wait for the last statepoint. The sandbox stays, with what runs in it.

        Raises:
            CaptureError: that statepoint could not be taken.
        """
        await self.environment.settle()

    async def restart(self) -> None:
        """Nothing: each block has a fresh interpreter or shell anyway. The environment, with what runs in it, stays; it
        goes back by its statepoints.
        """
        warnings.warn("Each code block has a process of its own. No action is taken.", UserWarning, stacklevel=2)

    def _to_config(self) -> SandboxCodeExecutorConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: SandboxCodeExecutorConfig) -> Self:
        given = config.model_dump(exclude={"environment"})
        return cls(Environment.of(config.environment), **given)


def _shown(blocks: list[CodeBlock]) -> str:
    return "; ".join(block.code for block in blocks)
