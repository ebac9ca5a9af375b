"""nanobot's process is killed and started again; nanobot is missing, or of another version."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import time

import pytest

from planarian_core import Planarian
from planarian_core.errors import ConfigurationError
from planarian_core.requirements import require
from planarian_core.testing.scripted_model import serving
from tests.planarian_nanobot.conftest import Bots, bash, ended, script

ONE_RUN = """
import asyncio, sys
from nanobot import Nanobot

async def go():
    async with Nanobot.from_config(sys.argv[1]) as bot:
        await bot.run("go")

asyncio.run(go())
"""


def test_a_killed_process_is_taken_up_again(bots: Bots) -> None:
    """The sandbox outlives nanobot; a new one finds it by the session, as the last call left it."""
    steps = [bash("echo -n kept > f"), ("snapshot", {"name": "kept"}), bash("echo half > f; touch begun; sleep 3143")]
    with serving(script(steps)) as model:
        process = subprocess.Popen([sys.executable, "-c", ONE_RUN, str(bots.configure(model))], env=os.environ)
        for _ in range(1200):
            if (bots.workspace / "begun").exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert (bots.workspace / "begun").exists()
    _, model = bots.run(bash("cat f"), ("rollback", {"statepoint": "kept"}), bash("cat f; ls"))
    found, _, back = model.seen[-1].results[-3:]
    assert "half" in found
    assert back == "keptf\nExit code: 0"
    with Planarian.open(bots.home) as planarian:
        assert len(planarian.registry.sandboxes()) == 1
    assert ended("3143")


def test_a_version_out_of_range_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.4.0")
    with pytest.raises(ConfigurationError, match=r"nanobot-ai 0\.4\.0 is installed; at least 0\.3\.5 and below 0\.4"):
        require("nanobot-ai", "nanobot", at_least=(0, 3, 5), below=(0, 4))


def test_a_missing_extra_is_said() -> None:
    hidden = """
import importlib.metadata, sys
real = importlib.metadata.version
def version(name):
    if name == "nanobot-ai":
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
import planarian_nanobot
"""
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert "nanobot-ai isn't installed" in done.stderr
    assert "pip install 'planarian[nanobot]'" in done.stderr
