"""Quotas: a snapshot is refused before anything is frozen, and the error says what is used and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planarian_core import Planarian, quota
from planarian_core.config import Config
from planarian_core.errors import CaptureError, ConfigurationError
from planarian_core.sandbox import Sandbox
from planarian_core.units import parse_duration, parse_share, parse_size, size


@pytest.fixture
def sandbox(fake_planarian: Planarian, workspace: Path) -> Sandbox:
    return fake_planarian.create_sandbox(workspace, name="box")


def _write(sandbox: Sandbox, name: str, count: int) -> None:
    (Path(sandbox.record.spec.layer) / name).write_bytes(b"x" * count)


def test_a_quota_that_is_used_up_refuses_the_next_snapshot(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    _write(sandbox, "big", 3000)
    fake_planarian.with_config(max_bytes="5k")
    fake_planarian.snapshot(sandbox)
    fake_planarian.snapshot(sandbox)  # the last one may pass the quota by what it adds
    assert quota.stored(fake_planarian.registry) == quota.stored(fake_planarian.registry, sandbox.id) == 6000
    with pytest.raises(CaptureError, match=r"5\.9 KiB and may take 5\.0 KiB") as caught:
        fake_planarian.snapshot(sandbox)
    assert caught.value.code == "quota"
    assert "planarian prune" in caught.value.remedy
    assert "max_bytes" in caught.value.remedy
    assert "goes on running" in caught.value.state
    assert len(fake_planarian.registry.statepoints()) == 2, "nothing was begun"
    assert sandbox.run(["true"]).exit_code == 0
    fake_planarian.with_config(max_bytes="6k")
    fake_planarian.snapshot(sandbox)


def test_what_failed_does_not_count(
    fake_planarian: Planarian, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(sandbox, "big", 3000)
    monkeypatch.setenv("PLANARIAN_FAULT", "snapshot.durable=fail")
    with pytest.raises(CaptureError):
        fake_planarian.snapshot(sandbox)
    assert quota.stored(fake_planarian.registry) == 0


def test_too_little_free_space_refuses_the_snapshot(fake_planarian: Planarian, sandbox: Sandbox) -> None:
    status = os.statvfs(fake_planarian.home)
    whole, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    for wanted in (str(whole), f"{100 - 100 * (whole - free) // whole + 1}%" if free < whole * 0.98 else "1000T"):
        fake_planarian.with_config(min_free=wanted)
        with pytest.raises(CaptureError, match="disk space") as caught:
            fake_planarian.snapshot(sandbox)
        assert caught.value.code == "disk-low"
        assert "planarian prune" in caught.value.remedy
    assert fake_planarian.registry.statepoints() == []
    fake_planarian.with_config(min_free="0")
    fake_planarian.snapshot(sandbox)


def test_a_rollback_without_room_for_its_safety_statepoint_says_how_to_do_without(
    fake_planarian: Planarian, sandbox: Sandbox
) -> None:
    fake_planarian.snapshot(sandbox, name="one")
    fake_planarian.with_config(min_free="1000T")
    with pytest.raises(CaptureError) as caught:
        fake_planarian.rollback(sandbox, "one")
    assert "--no-safety" in caught.value.remedy
    fake_planarian.rollback(sandbox, "one", safety=False)


@pytest.mark.parametrize(
    "setting",
    [{"max_bytes": "lots"}, {"min_free": "101%"}, {"min_free": "-1"}, {"prune": "all"}, {"prune": "keep-last:0"}],
)
def test_a_setting_that_is_none_is_refused(setting: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Config(**setting)  # type: ignore[arg-type]  # each is a str field


def test_sizes_and_durations() -> None:
    assert [parse_size(text) for text in ("7", "2k", "3 MiB", "1GB", "0")] == [7, 2048, 3 << 20, 1 << 30, 0]
    assert [parse_share(text, 2000) for text in ("1%", "0.5 %", "30", "1k")] == [20, 10, 30, 1024]
    assert [parse_duration(text) for text in ("90s", "2min", "2m", "1h", "7d", "2w")] == [
        90, 120, 120, 3600, 604800, 1209600,
    ]  # fmt: skip
    for text in ("", "7", "d", "-1d", "1.5h", "1y"):
        with pytest.raises(ConfigurationError):
            parse_duration(text)
    assert [size(count) for count in (0, 1023, 1024, 3 << 30, 5 << 50)] == [
        "0 B", "1023 B", "1.0 KiB", "3.0 GiB", "5120.0 TiB",
    ]  # fmt: skip
