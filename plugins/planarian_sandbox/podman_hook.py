"""What CRIU runs at the stages of a checkpoint or restore of a container. Stand-alone, in a directory of its sandbox's.

``reached`` and ``go`` there are FIFOs while a runtime captures: CRIU waits, all tasks stopped and its link files still
there, until the runtime says ``g``; when that dies the checkpoint fails and everything runs on. They serve a restore
of the runtime's as well: CRIU waits, all restored and nothing run, with the host pid of the init in ``reached``. Where
they aren't there, somebody else captures or restores, and nobody is asked. ``restore.json``: ``kill``, the inside pids
that must not run again; ``freeze``, whether the container stands still until it is thawed; ``aside``, the control group
for what isn't the container's then.
"""

from __future__ import annotations

import json
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def ask(what: bytes) -> int:
    try:
        reached = os.open(os.path.join(HERE, "reached"), os.O_WRONLY | os.O_NONBLOCK)
        go = os.open(os.path.join(HERE, "go"), os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(go, True)
        os.write(reached, what)
        return 0 if os.read(go, 1) == b"g" else 1
    except FileNotFoundError:  # somebody else's checkpoint or restore
        return 0
    except OSError:
        return 1


def namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def inside(pid: str) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[-1]) for line in file if line.startswith("NSpid:"))


def group(pid: str) -> str:
    """The directory of its version 2 control group."""
    with open("/proc/self/mountinfo") as file:
        base = next(line.split()[4] for line in file if line.partition(" - ")[2].startswith("cgroup2 "))
    with open(f"/proc/{pid}/cgroup") as file:
        return base + next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))


def pre_resume(order: dict[str, object], init: str) -> None:
    wanted = namespace(init)
    doomed = order["kill"]
    assert isinstance(doomed, list)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if doomed and namespace(pid) == wanted and inside(pid) in doomed:
            # CRIU would give up if one was killed now; a queued stop is taken before it runs, and the runtime kills it.
            for _ in os.listdir(f"/proc/{pid}/task"):
                os.kill(int(pid), signal.SIGSTOP)
    if order["freeze"]:
        frozen = group(init)
        with open(f"{frozen}/cgroup.procs") as file:
            members = file.read().split()
        for pid in members:
            if namespace(pid) != wanted:
                with open(f"{order['aside']}/cgroup.procs", "w") as file:
                    file.write(pid)
        with open(f"{frozen}/cgroup.freeze", "w") as file:
            file.write("1")


def main() -> int:
    stage = os.environ.get("CRTOOLS_SCRIPT_ACTION")
    if stage == "post-dump":
        return ask(b"x")
    if stage == "pre-resume":
        init = os.environ["CRTOOLS_INIT_PID"]
        with open(os.path.join(HERE, "restore.json")) as file:
            pre_resume(json.load(file), init)
        return ask(init.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
