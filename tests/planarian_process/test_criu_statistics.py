"""What CRIU counts of a dump, as its own Python package reads it."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from planarian_core.testing.process import Subject
from planarian_process import criu_engine
from planarian_process.criu_statistics import Statistics, statistics

CRIT = """
import io, json, sys
from pycriu import images
print(json.dumps(images.load(io.BytesIO(sys.stdin.buffer.read()))["entries"][0]["dump"]))
"""


@pytest.mark.needs("criu")
@pytest.mark.needs("namespaces")
def test_it_is_what_criu_counted(counting: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    contents: list[bytes] = []

    def kept(content: bytes) -> Statistics | None:
        contents.append(content)
        return statistics(content)

    monkeypatch.setattr(criu_engine, "statistics", kept)
    taken = counting.take(inside=lambda: time.sleep(0.3))
    (content,) = contents
    done = subprocess.run(["/usr/bin/python3", "-c", CRIT], input=content, capture_output=True, check=True)
    counted = json.loads(done.stdout)
    assert taken.artefact is not None
    assert taken.artefact.details["counted"] == {
        "standstill": pytest.approx((counted["freezing_time"] + counted["frozen_time"]) / 1e6),
        "memory": pytest.approx(counted["memdump_time"] / 1e6),
        "pages": counted["pages_written"],
    }
    assert counted["pages_written"] > 0
    assert taken.artefact.details["counted"]["standstill"] > 0.3, "what the caller does in the instant is part of it"
    for damaged in (b"", content[:-1], content[:12], b"x" + content[1:], content + b"\0"):
        assert statistics(damaged) is None


def test_what_is_no_such_file_counts_nothing() -> None:
    assert statistics(b"\x40\x59\x10\x55\x06\x33\x09\x57\x02\0\0\0\xff\xff") is None
