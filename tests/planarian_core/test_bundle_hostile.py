"""Bundles that somebody made to do harm, and bundles changed by chance: refused, and the home is as it was before."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planarian_core import Planarian
from planarian_core.bundle_format import BundleError, BundleReader, BundleWriter, Frame, Kind
from planarian_core.errors import PlanarianError
from planarian_core.sandbox import Sandbox
from planarian_core.testing.fakes import FakePlugin
from planarian_core.testing.oracle import assert_same, describe

FILE: dict[str, Any] = {"k": "file", "m": 0o644, "u": 0, "g": 0, "t": 0, "s": 0}
SETUID = {**FILE, "n": "setuid", "m": 0o4755}
Contents = dict[str, tuple[int, bytes]]


@dataclass
class Stage:
    """A bundle, and a home that it hasn't been imported into. ``key`` is that of the home that made it."""

    bundle: Path
    target: Planarian
    key: bytes

    def frames(self) -> list[Frame]:
        with open(self.bundle, "rb") as file:
            return list(BundleReader(file).frames())

    def write(self, frames: list[Frame], key: bytes = b"") -> Path:
        """A bundle of these frames with an honest manifest: only what they say may be wrong."""
        path = self.bundle.with_name("forged")
        with open(path, "wb") as file:
            writer = BundleWriter(file, key)
            for frame in frames:
                if frame.kind is Kind.PART:
                    writer.part(frame.record()["part"])
                else:
                    writer.write(frame.kind, frame.payload)
            writer.finish()
        return path

    def home(self) -> tuple[Contents, list[str]]:
        """All that is in the target's home, and all that its registry says."""
        found: Contents = {}
        root = self.target.home
        for folder, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = Path(folder, name)
                if not name.startswith("registry.sqlite"):
                    mode = path.lstat().st_mode
                    content = path.read_bytes() if stat.S_ISREG(mode) else b""
                    found[str(path.relative_to(root))] = (mode, content)
        with sqlite3.connect(root / "registry.sqlite") as connection:
            return found, list(connection.iterdump())


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("bundles")
    (folder / "workspace").mkdir()
    (folder / "workspace" / "file").write_text("in the workspace")
    defaults = {"sandbox": "fake", "filesystem": "fake", "process": "fake"}
    with (
        Planarian.open(folder / "source", plugins=[FakePlugin()]) as source,
        Planarian.open(folder / "target", plugins=[FakePlugin()]) as target,
    ):
        source.with_config(**defaults)
        target.with_config(**defaults)
        box = source.create_sandbox(folder / "workspace", name="box")
        box.run("mkdir -p d/e; echo content > d/f; ln -s /etc d/link; head -c 3000 /dev/zero > zeros; echo x > z")
        source.append_outcome(source.snapshot(box, name="one"), "noted")
        source.append_outcome(source.snapshot(box, name="two"), "noted too")
        bundle = source.export("two", folder / "bundle", of=box)
        target.import_with_report(bundle, again=True)  # the home has something that could be hurt
        yield Stage(bundle, target, (source.home / "bundle.key").read_bytes().strip())


def _refused(stage: Stage, path: Path, **options: Any) -> PlanarianError:
    """Import must refuse it, and leave everything as it was."""
    before = stage.home()
    with pytest.raises(PlanarianError) as caught:
        stage.target.import_with_report(path, **options)
    after = stage.home()
    assert after[1] == before[1]
    assert after[0] == before[0]
    return caught.value


def _changed(stage: Stage, kind: Kind, change: Callable[[Any], Any], at: int = 0) -> list[Frame]:
    """The bundle's frames with the record in the ``at``-th one of a kind changed."""
    frames = stage.frames()
    index = [number for number, frame in enumerate(frames) if frame.kind is kind][at]
    data = change(frames[index].record())
    frames[index] = Frame(kind, json.dumps(data).encode(), frames[index].part)
    return frames


def _set(path: str, value: Any) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        *above, last = path.split(".")
        place = data
        for name in above:
            place = place[int(name) if name.isdigit() else name]
        place[last] = value
        return data

    return change


def _insert(stage: Stage, part: str, entry: dict[str, Any]) -> list[Frame]:
    """The bundle's frames with one more name at the end of the top directory of a part."""
    frames = _changed(stage, Kind.HEAD, _set(f"parts.{part}.entries", 1000))
    last = max(number for number, frame in enumerate(frames) if frame.part == part)
    assert frames[last].kind is Kind.UP
    added = Frame(Kind.ENTRY, json.dumps({"n": "zz", **entry}).encode(), part)
    return [*frames[:last], added, *frames[last:]]


# --- damage ---


def test_an_untouched_bundle_is_whole_when_written_anew(stage: Stage) -> None:
    """The forger itself does no damage."""
    path = stage.write(stage.frames(), stage.key)
    assert stage.target.import_with_report(path, check=True).authentic is False
    key = stage.bundle.with_name("key")
    key.write_bytes(stage.key)
    key.chmod(0o600)
    assert stage.target.import_with_report(path, check=True, key_file=key).authentic is True


def test_a_bundle_cut_short_anywhere_is_known_at_once(stage: Stage) -> None:
    data = stage.bundle.read_bytes()
    path = stage.bundle.with_name("cut")
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        error = _refused_quickly(stage, path)
        assert error.code in ("bundle-none", "bundle-damaged")
    for added in (b"\0", b"garbage", data):
        path.write_bytes(data + added)
        assert _refused_quickly(stage, path).code == "bundle-damaged"


def _refused_quickly(stage: Stage, path: Path) -> PlanarianError:
    """Without reading what it holds."""
    with open(path, "rb") as file, pytest.raises(BundleError) as caught:
        BundleReader(file)
    return caught.value


def test_an_unknown_version_is_named(stage: Stage) -> None:
    data = bytearray(stage.bundle.read_bytes())
    data[24:28] = (7).to_bytes(4, "little")
    path = stage.bundle.with_name("newer")
    path.write_bytes(data)
    error = _refused(stage, path)
    assert error.code == "bundle-version"
    assert "format 7" in error.message
    assert "upgrade" in error.remedy


def test_another_bundle_s_end_mark_does_not_fit(stage: Stage) -> None:
    """A seal can't be moved to other content."""
    genuine = stage.bundle.read_bytes()
    forged = stage.write(_changed(stage, Kind.HEAD, _set("statepoint.description", "forged"))).read_bytes()
    path = stage.bundle.with_name("mixed")
    mixed = bytearray(forged)
    mixed[-72:] = genuine[-72:]  # digest, seal and mark
    path.write_bytes(mixed)
    assert _refused(stage, path, trust_images=True).code == "bundle-damaged"


# --- records ---


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sandbox.id", "../../etc"),
        ("sandbox.id", "sb-123"),
        ("sandbox.id", 7),
        ("sandbox.id", "sb-0123456789ab\n"),
        ("sandbox.branch_id", "br-x'; DROP TABLE"),
        ("sandbox.backend", "../fake"),
        ("sandbox.process", ""),
        ("sandbox.name", "a\x1b[2J"),
        ("sandbox.name", "-rf"),
        ("sandbox.name", "sb-0123456789ab"),
        ("sandbox.env", ["LD_PRELOAD"]),
        ("sandbox.env", {"A": 1}),
        ("sandbox.limits", {"memory": -1, "pids": 1}),
        ("sandbox.limits", {"memory": 2**70, "pids": 1}),
        ("sandbox.limits", {"memory": True, "pids": 1}),
        ("sandbox.network", "all"),
        ("sandbox.hidden", "everything"),
        ("sandbox.in_place", "yes"),
        ("sandbox.workspace", None),
        ("statepoint.id", "sp-../../../root"),
        ("statepoint.status", "pending"),
        ("statepoint.status", "pruned"),
        ("statepoint.files", None),
        ("statepoint.parent_id", "x"),
        ("statepoint.parent_id", "sp-000000000000"),
        ("statepoint.parent_id", None),
        ("statepoint.created_at", "yesterday"),
        ("statepoint.created_at", "2" * 100),
        ("statepoint.name", "two/../three"),
        ("statepoint.version", 99),
        ("statepoint.version", float("inf")),
        ("statepoint.timings", {"total": float("nan")}),
        ("statepoint.timings", {"total": "long"}),
        ("statepoint.process_list", [{"pid": "1", "argv": []}]),
        ("statepoint.process_list", {"pid": 1}),
        ("statepoint.coverage", {"captured": "all"}),
        ("statepoint.facts", {"a": {}}),
        ("statepoint.files.details", {"a": 10**400}),
        ("statepoint.files.details", json.loads("[" * 40 + "]" * 40)),
        ("statepoint.processes", {"domain": "processes", "backend": "fake", "reference": "x"}),
        ("outcomes.0.id", "nonsense"),
        ("outcomes.0.statepoint_id", "sp-000000000000"),
        ("outcomes.0.status", "glorious"),
        ("outcomes.0.text", 5),
        ("lineage", 0),
        ("lineage", 2),
        ("lineage", 10**9),
        ("parts", {}),
        ("parts", {"files": {"entries": 1, "bytes": 0}}),
        ("parts", {"files": {"entries": -1, "bytes": 0}}),
        ("parts.more", {"entries": 1, "bytes": 0}),
        ("parts.files.entries", 2),
        ("parts.files.bytes", 5),
        ("image_place", "path"),
        ("image_place", "/etc"),
        ("host", "here"),
        ("host.root", 1),
    ],
)
def test_a_record_that_can_not_be_is_refused(stage: Stage, path: str, value: Any) -> None:
    error = _refused(stage, stage.write(_changed(stage, Kind.HEAD, _set(path, value))), trust_images=True)
    assert error.code in ("bundle-damaged", "bundle-version", "bundle-unfit")
    assert "nothing was imported" in error.state


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("statepoint.id", "sp-zz"),
        ("statepoint.files", {"domain": "files", "backend": "fake", "reference": "../.."}),
        ("statepoint.parent_id", 5),
        ("outcomes.0.id", "oc-1"),
        ("outcomes", None),
    ],
)
def test_an_ancestor_that_can_not_be_is_refused(stage: Stage, path: str, value: Any) -> None:
    _refused(stage, stage.write(_changed(stage, Kind.LINEAGE, _set(path, value))))


def test_an_ancestor_that_is_its_own_is_refused(stage: Stage) -> None:
    head = stage.frames()[0].record()["statepoint"]

    def loop(data: Any) -> Any:
        data["statepoint"]["id"] = data["statepoint"]["parent_id"] = head["id"]
        data["outcomes"] = []
        return data

    frames = _changed(stage, Kind.LINEAGE, loop)
    data = frames[0].record()
    data["statepoint"]["parent_id"] = head["id"]
    frames[0] = Frame(Kind.HEAD, json.dumps(data).encode(), "head")
    _refused(stage, stage.write(frames))


def test_an_outcome_that_is_known_already_is_refused_whole(stage: Stage) -> None:
    taken = next(o.id for p in stage.target.registry.statepoints() for o in stage.target.registry.outcomes(p.id))
    error = _refused(stage, stage.write(_changed(stage, Kind.HEAD, _set("outcomes.0.id", taken))))
    assert error.code == "bundle-known"


def test_an_id_that_comes_twice_in_a_bundle_is_refused_whole(stage: Stage) -> None:
    def same(data: Any) -> Any:
        data["outcomes"] = [data["outcomes"][0], data["outcomes"][0]]
        return data

    assert _refused(stage, stage.write(_changed(stage, Kind.HEAD, same))).code == "bundle-damaged"


def test_a_huge_record_is_refused_before_it_is_read(stage: Stage) -> None:
    frames = stage.frames()
    with pytest.raises(BundleError, match="too long"):
        stage.write([Frame(Kind.HEAD, b" " * (5 * 1024 * 1024), "head"), *frames[1:]])


# --- files ---


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("part", ["files", "origin"])
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({**FILE, "k": "block", "d": os.makedev(8, 0)}, id="block-device"),
        pytest.param({**FILE, "k": "character", "d": os.makedev(1, 1)}, id="memory-device"),
        pytest.param({**FILE, "k": "character", "d": os.makedev(1, 3)}, id="null-device"),
        pytest.param({**FILE, "x": {"security.selinux": "AA=="}}, id="label"),
        pytest.param({**FILE, "x": {"system.nfs4_acl": "AA=="}}, id="system-attribute"),
        pytest.param({**FILE, "n": "../../../../../../tmp/escaped"}, id="traversal"),
        pytest.param({**FILE, "n": "a"}, id="out-of-order"),
    ],
)
def test_a_file_that_no_bundle_may_hold(stage: Stage, entry: dict[str, Any], part: str, sealed: bool) -> None:
    path = stage.write(_insert(stage, part, entry), stage.key if sealed else b"")
    error = _refused(stage, path, trust_images=True)
    assert error.code in ("bundle-content", "bundle-damaged")


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({**FILE, "m": 0o4755}, id="setuid"),
        pytest.param({**FILE, "m": 0o2755}, id="setgid"),
        pytest.param({**FILE, "x": {"security.capability": "AQAAAgAgAAAAAAAAAAAAAAAAAAA="}}, id="capability"),
        pytest.param({**FILE, "x": {"trusted.overlay.metacopy": ""}}, id="overlay"),
    ],
)
@pytest.mark.parametrize("part", ["files", "origin"])
def test_a_file_that_only_a_trusted_bundle_may_hold(stage: Stage, entry: dict[str, Any], part: str) -> None:
    path = stage.write(_insert(stage, part, entry))
    error = _refused(stage, path)
    assert error.code == "bundle-untrusted"
    assert "--trust-images" in error.remedy
    stage.target.import_with_report(path, trust_images=True, check=True)


def test_a_bundle_that_says_less_than_it_holds(stage: Stage) -> None:
    frames = stage.frames()
    index = next(n for n, frame in enumerate(frames) if frame.kind is Kind.DATA)
    more = Frame(Kind.DATA, (10**9).to_bytes(8, "big") + bytes(1024 * 1024), "files")
    entry = frames[index - 1].record()
    frames[index - 1] = Frame(Kind.ENTRY, json.dumps({**entry, "s": 2**40}).encode(), "files")
    _refused(stage, stage.write([*frames[: index + 1], more, *frames[index + 1 :]]))


def test_a_bundle_that_would_fill_the_disk_is_refused_while_it_is_checked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros compress well; they are counted as they come, against the room that there is."""
    frames = _changed(stage, Kind.HEAD, _set("parts.files.bytes", 2**50))
    index = next(n for n, frame in enumerate(frames) if frame.kind is Kind.DATA)
    entry = frames[index - 1].record()
    frames[index - 1] = Frame(Kind.ENTRY, json.dumps({**entry, "s": 2**40}).encode(), "files")
    pieces = [Frame(Kind.DATA, (n << 20).to_bytes(8, "big") + bytes(1 << 20), "files") for n in range(64)]
    path = stage.write([*frames[:index], *pieces, *frames[index + 1 :]])
    assert path.stat().st_size < 100_000
    real = os.statvfs(stage.target.home)
    small = os.statvfs_result((4096, 4096, real[2], 1000, 1000, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    error = _refused(stage, path)
    assert error.code == "bundle-too-large"


def test_a_file_larger_than_the_file_system_can_hold(stage: Stage) -> None:
    frames = stage.frames()
    index = next(n for n, f in enumerate(frames) if f.kind is Kind.ENTRY and f.record()["n"] == "zeros")
    entry = frames[index].record()
    frames[index] = Frame(Kind.ENTRY, json.dumps({**entry, "s": 2**61}).encode(), "files")
    error = _refused(stage, stage.write(frames))
    assert error.code == "bundle-unwritable"


# --- chance ---

Mutation = tuple[str, float, int]
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "drop"]), st.floats(0, 0.999), st.integers(0, 255)),
    min_size=1,
    max_size=3,
)
FRAME_MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "drop", "swap", "twice", "kind", "value"]),
        st.floats(0, 0.999),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=3,
)


def _mutated(data: bytes, mutations: list[Mutation]) -> bytes:
    for what, where, value in mutations:
        at = int(where * len(data))
        if what == "flip":
            data = data[:at] + bytes([data[at] ^ (value or 1)]) + data[at + 1 :] if data else data
        elif what == "cut":
            data = data[:at]
        elif what == "insert":
            data = data[:at] + bytes([value]) * (value % 7 + 1) + data[at:]
        else:
            data = data[:at] + data[at + value % 7 + 1 :]
    return data


def _mutated_frames(frames: list[Frame], mutations: list[Mutation]) -> list[Frame]:
    for what, where, value in mutations:
        if not frames:
            return frames
        at = int(where * len(frames))
        frame = frames[at]
        if what == "drop":
            frames = frames[:at] + frames[at + 1 :]
        elif what == "twice":
            frames = [*frames[: at + 1], frame, *frames[at + 1 :]]
        elif what == "swap":
            other = (at + value) % len(frames)
            frames[at], frames[other] = frames[other], frames[at]
        elif what == "kind":
            kinds = [kind for kind in Kind if kind not in (Kind.MANIFEST, Kind.PART)]
            payload = b"" if (kind := kinds[value % len(kinds)]) is Kind.UP else frame.payload
            frames[at] = Frame(kind, payload, frame.part) if frame.kind is not Kind.PART else frame
        elif what == "value" and frame.kind in (Kind.HEAD, Kind.ENTRY, Kind.LINEAGE):
            frames[at] = Frame(frame.kind, _other_value(frame.payload, value), frame.part)
        elif frame.kind not in (Kind.UP, Kind.PART):
            payload = _mutated(frame.payload, [(what, where * 7 % 1, value)])
            frames[at] = Frame(frame.kind, payload, frame.part)
    return frames


def _other_value(payload: bytes, value: int) -> bytes:
    """A record with one value replaced by something odd."""
    try:
        data = json.loads(payload)
    except ValueError:
        return payload
    odd: list[Any] = [None, -1, 2**63, "", "x" * 300, "../..", "\x1b[2J", "\ud800", [], {}, True, 1e308, float("nan")]
    places: list[tuple[Any, Any]] = []
    todo = [data]
    while todo:
        place = todo.pop()
        items: list[tuple[Any, Any]] = []
        if isinstance(place, dict):
            items = list(place.items())
        elif isinstance(place, list):
            items = list(enumerate(place))
        for key, item in items:
            places.append((place, key))
            todo.append(item)
    if places:
        place, key = places[value % len(places)]
        place[key] = odd[value % len(odd)]
    return json.dumps(data).encode()


FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(mutations=MUTATIONS)
def test_a_bundle_changed_by_chance_is_refused_or_is_the_same(stage: Stage, mutations: list[Mutation]) -> None:
    path = stage.bundle.with_name("fuzzed")
    path.write_bytes(_mutated(stage.bundle.read_bytes(), mutations))
    before = stage.home()
    try:
        made = stage.target.import_with_report(path)
    except PlanarianError:
        assert stage.home() == before
        return
    genuine = stage.target.import_with_report(stage.bundle, again=True)
    same = describe(genuine.record.spec.layer)
    assert_same(describe(made.record.spec.layer), same)
    _remove(stage, made.record.id, genuine.record.id)
    assert stage.home() == before


@FUZZ
@given(mutations=FRAME_MUTATIONS, trusted=st.booleans())
def test_records_changed_by_chance_are_refused_or_make_a_sandbox(
    stage: Stage, mutations: list[Mutation], trusted: bool
) -> None:
    """With honest hashes: all that protects the home is what each record must be."""
    try:
        path = stage.write(_mutated_frames(stage.frames(), mutations))
    except BundleError:
        return  # not even a forger can write it: a part twice
    before = stage.home()
    outside = describe(stage.bundle.parent / "workspace")
    try:
        made = stage.target.import_with_report(path, trust_images=trusted)
    except PlanarianError:
        assert stage.home() == before
    else:
        sandbox = Sandbox(stage.target, made.record.id)
        stage.target.rollback(sandbox, "@head")
        assert Path(sandbox.record.spec.layer).is_relative_to(stage.target.home)
        stage.target.ledger(sandbox).to_markdown()
        _remove(stage, made.record.id)
        assert stage.home() == before
    assert_same(describe(stage.bundle.parent / "workspace"), outside)


def _remove(stage: Stage, *ids: str) -> None:
    for sandbox_id in ids:
        stage.target.remove_sandbox(stage.target.sandbox(sandbox_id))
