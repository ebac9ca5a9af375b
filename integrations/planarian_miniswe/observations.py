"""What an action's outcome looks like to mini-swe-agent: in the words of its ``LocalEnvironment``."""

from __future__ import annotations

import os
from typing import Any

from planarian_core.model import CommandResult

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_LONGEST_ARGUMENT = 128 * 1024 - 1  # the kernel's MAX_ARG_STRLEN


def observation(result: CommandResult, command: str, seconds: float, output_limit: int) -> dict[str, Any]:
    """Of a command that ran."""
    output = result.stdout + result.stderr
    if result.timed_out:
        return failure("TimeoutExpired", f"Command '{command}' timed out after {seconds} seconds", output)
    cut = f"The output was longer than {output_limit} bytes; its middle was cut out."
    return {"output": output, "returncode": result.exit_code, "exception_info": cut if result.truncated else ""}


def failure(kind: str, error: str, output: str = "") -> dict[str, Any]:
    """Of an action that failed rather than ended."""
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": kind, "exception": error},
    }


def refusal(command: str) -> dict[str, Any] | None:
    """Of a command that no system could run; None when it can be tried."""
    try:
        length = len(os.fsencode(command))
    except UnicodeEncodeError as error:
        return failure("UnicodeEncodeError", str(error))
    if "\0" in command:
        return failure("ValueError", "embedded null byte")
    if length > _LONGEST_ARGUMENT:
        return failure("OSError", "[Errno 7] Argument list too long: write long content to a file piece by piece")
    return None


def submission(seen: dict[str, Any]) -> str | None:
    """What the agent submits; None when it goes on. A cut output is no submission: it would be a damaged one."""
    lines = seen["output"].lstrip().splitlines(keepends=True)
    if not lines or lines[0].strip() != SUBMIT or seen["returncode"] != 0 or seen["exception_info"]:
        return None
    return "".join(lines[1:])
