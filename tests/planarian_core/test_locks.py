"""Shared and exclusive locks between threads and processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from planarian_core.errors import SandboxError
from planarian_core.locks import SandboxLock


def test_calls_share_and_a_snapshot_excludes(tmp_path: Path) -> None:
    lock = SandboxLock(tmp_path, "sb-1")
    with lock.acquire(exclusive=False), lock.acquire(exclusive=False):
        with pytest.raises(SandboxError) as caught:
            lock.acquire(exclusive=True, timeout=0)
        assert caught.value.code == "sandbox-busy"
    with lock.acquire(exclusive=True):
        for exclusive in (True, False):
            with pytest.raises(SandboxError):
                lock.acquire(exclusive=exclusive, timeout=0)
    lock.acquire(exclusive=True, timeout=0).release()


def test_a_waiting_snapshot_holds_new_calls_back(tmp_path: Path) -> None:
    lock = SandboxLock(tmp_path, "sb-1")
    call = lock.acquire(exclusive=False)
    order: list[str] = []

    def snapshot() -> None:
        with lock.acquire(exclusive=True):
            order.append("snapshot")

    waiting = threading.Thread(target=snapshot)
    waiting.start()
    while True:  # until the waiter stands in the gate
        try:
            lock.acquire(exclusive=False, timeout=0).release()
        except SandboxError:
            break

    def call_late() -> None:
        with lock.acquire(exclusive=False):
            order.append("call")

    late = threading.Thread(target=call_late)
    late.start()
    call.release()
    waiting.join(10)
    late.join(10)
    assert order == ["snapshot", "call"]


def test_the_kernel_releases_a_dead_process_s_lock(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from planarian_core.locks import SandboxLock\n"
        f"h = SandboxLock(Path({str(tmp_path)!r}), 'sb-1').acquire(exclusive=True); print('held', flush=True)\n"
        "time.sleep(60)"
    )
    lock = SandboxLock(tmp_path, "sb-1")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(SandboxError):
            lock.acquire(exclusive=False, timeout=0)
        holder.kill()
    lock.acquire(exclusive=True, timeout=5).release()


def test_upgrade_excludes_for_a_while_and_then_shares_again(tmp_path: Path) -> None:
    lock = SandboxLock(tmp_path, "sb-1")
    held = lock.acquire(exclusive=False)
    with held.upgraded(timeout=5), pytest.raises(SandboxError):
        lock.acquire(exclusive=False, timeout=0)
    lock.acquire(exclusive=False, timeout=0).release()
    with pytest.raises(SandboxError):
        lock.acquire(exclusive=True, timeout=0)
    held.release()
    lock.acquire(exclusive=True, timeout=0).release()


def test_only_one_sharer_upgrades_at_a_time(tmp_path: Path) -> None:
    lock = SandboxLock(tmp_path, "sb-1")
    first, second = lock.acquire(exclusive=False), lock.acquire(exclusive=False)
    upgraded = threading.Event()

    def upgrade() -> None:
        with first.upgraded():
            upgraded.set()

    waiting = threading.Thread(target=upgrade)
    waiting.start()
    assert not upgraded.wait(0.2), "the second call is still under way"
    with pytest.raises(SandboxError), second.upgraded():
        pass
    assert not upgraded.is_set(), "a refused upgrade must not let go of its share"
    second.release()
    waiting.join(10)
    assert upgraded.is_set()
