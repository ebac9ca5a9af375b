"""How a bundle is written down: frames of bounded size in one zstd stream, between a head and an end mark.

``zstd -d`` reads a bundle: head and end mark are skippable frames. The end mark names the length of what is between,
so a bundle that was cut short, or to which something was added, is known before anything else is looked at; and the
digest of the manifest, the stream's last frame, which names size and SHA-256 of every part. ``docs/bundles.md`` has
the format in full.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any, cast

import zstandard

from planarian_core.errors import PlanarianError

VERSION = 1
PIECE = 1024 * 1024
"""Longest piece of a file in one frame, in bytes."""
LONGEST = 4 * 1024 * 1024
"""Longest frame of any other kind: one record."""

_LEVEL = 3
_WINDOW = 64 * 1024 * 1024
_SKIP = struct.Struct("<II")
_HEAD = struct.Struct("<II16sI")
_HEAD_MAGIC, _END_MAGIC = 0x184D2A50, 0x184D2A51
_NAME = b"planarian-bundle"
_END = struct.Struct("<IIQ32s32s8s")
_END_MARK = b"end mark"
_FRAME = struct.Struct("!cI")
_OFFSET = struct.Struct("!Q")
_NO_SEAL = bytes(32)


class BundleError(PlanarianError):
    """A bundle can't be written, is damaged, hostile or of another version, or doesn't fit this host or home."""

    default_code = "bundle"


class Kind(Enum):
    """What a frame is."""

    HEAD = b"H"
    LINEAGE = b"L"
    PART = b"P"
    ENTRY = b"E"
    DATA = b"D"
    UP = b"U"
    MANIFEST = b"M"


_KINDS = {kind.value: kind for kind in Kind}
_LENGTHS = {Kind.DATA: PIECE + _OFFSET.size, Kind.UP: 0}


@dataclass(frozen=True)
class Frame:
    """One frame. ``part`` is the part of the bundle that it belongs to."""

    kind: Kind
    payload: bytes
    part: str

    def record(self) -> Any:
        """The payload as plain data; BundleError when it is none."""
        return parse(self.payload)

    def piece(self) -> tuple[int, bytes]:
        """Offset and bytes of a piece of a file's content."""
        if len(self.payload) <= _OFFSET.size:
            raise damaged("a piece of a file is empty")
        return _OFFSET.unpack_from(self.payload)[0], self.payload[_OFFSET.size :]


def damaged(what: str) -> BundleError:
    """The error for a bundle that isn't as one is written; nothing was changed."""
    return BundleError(
        f"the bundle can't be trusted to be whole: {what}",
        code="bundle-damaged",
        state="nothing was imported",
        remedy="get it again from where it was made: planarian export",
    )


def parse(payload: bytes) -> Any:
    """Plain data from JSON; BundleError when it isn't JSON, or so nested that it is no record of ours."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise damaged("a record is no JSON") from error


def serial(data: Any) -> bytes:
    """Plain data as JSON, in ASCII."""
    return json.dumps(data, separators=(",", ":")).encode("ascii")


class _Parts:
    """Counts and hashes frames by part, the same way on both sides."""

    def __init__(self) -> None:
        self._current = "head"
        self._hashes = {"head": hashlib.sha256()}
        self._bytes = {"head": 0}

    @property
    def current(self) -> str:
        return self._current

    def begin(self, name: str) -> None:
        if name in self._hashes:
            raise damaged("a part comes twice")
        self._current = name
        self._hashes[name] = hashlib.sha256()
        self._bytes[name] = 0

    def add(self, header: bytes, payload: bytes) -> None:
        self._hashes[self._current].update(header)
        self._hashes[self._current].update(payload)
        self._bytes[self._current] += len(header) + len(payload)

    def manifest(self) -> dict[str, Any]:
        parts = {name: {"bytes": self._bytes[name], "sha256": self._hashes[name].hexdigest()} for name in self._hashes}
        return {"parts": parts}


class BundleWriter:
    """Writes one bundle into a binary file that is open at its beginning. Call :meth:`finish` at the end."""

    def __init__(self, file: IO[bytes], key: bytes) -> None:
        self._file = file
        self._key = key
        self._parts = _Parts()
        file.write(_HEAD.pack(_HEAD_MAGIC, _HEAD.size - _SKIP.size, _NAME, VERSION))
        compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, threads=min(os.cpu_count() or 1, 4))
        self._stream = compressor.stream_writer(file, closefd=False)

    def write(self, kind: Kind, payload: bytes = b"") -> None:
        """Append a frame to the present part."""
        if len(payload) > _LENGTHS.get(kind, LONGEST):
            raise BundleError(
                f"a record of {len(payload)} bytes is too long for a bundle",
                code="bundle-record",
                state="nothing was exported",
                remedy="choose another statepoint: planarian log",
            )
        header = _FRAME.pack(kind.value, len(payload))
        self._stream.write(header)
        self._stream.write(payload)
        if kind is not Kind.MANIFEST:
            self._parts.add(header, payload)

    def record(self, kind: Kind, data: Any) -> None:
        self.write(kind, serial(data))

    def piece(self, offset: int, data: bytes) -> None:
        """A piece of the content of the file that was begun."""
        self.write(Kind.DATA, _OFFSET.pack(offset) + data)

    def part(self, name: str) -> None:
        """Begin a part."""
        self._parts.begin(name)
        self.record(Kind.PART, {"part": name})

    def finish(self) -> None:
        """Write the manifest and the end mark."""
        manifest = serial(self._parts.manifest())
        self.write(Kind.MANIFEST, manifest)
        self._stream.flush(zstandard.FLUSH_FRAME)
        length = self._file.tell() - _HEAD.size
        digest = hashlib.sha256(manifest).digest()
        self._file.write(
            _END.pack(_END_MAGIC, _END.size - _SKIP.size, length, digest, seal(self._key, digest), _END_MARK)
        )


def seal(key: bytes, digest: bytes) -> bytes:
    """What only who has ``key`` can make of a manifest's digest."""
    return hmac.digest(key, _NAME + digest, "sha256") if key else _NO_SEAL


class BundleReader:
    """Reads one bundle from a seekable binary file.

    Raises:
        BundleError: at once for a file that is no bundle, is of another version, was cut short or added to.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        head = file.read(_HEAD.size)
        if (
            len(head) < _HEAD.size
            or head[: _SKIP.size + len(_NAME)]
            != _HEAD.pack(_HEAD_MAGIC, _HEAD.size - _SKIP.size, _NAME, 0)[: _SKIP.size + len(_NAME)]
        ):
            raise BundleError(
                "the file is no bundle of Planarian's",
                code="bundle-none",
                state="nothing was imported",
                remedy="name a file that planarian export wrote",
            )
        self._check_version(_HEAD.unpack(head)[3])
        self.length = size - _HEAD.size - _END.size
        file.seek(max(size - _END.size, 0))
        end = file.read(_END.size)
        if self.length <= 0 or len(end) != _END.size:
            raise damaged("it is cut short")
        magic, skip, length, self.digest, self._seal, mark = _END.unpack(end)
        if (magic, skip, length, mark) != (_END_MAGIC, _END.size - _SKIP.size, self.length, _END_MARK):
            raise damaged("it is cut short, or something was added to it")

    @staticmethod
    def _check_version(version: int) -> None:
        if version != VERSION:
            raise BundleError(
                f"the bundle has format {version}; this Planarian knows {VERSION}",
                code="bundle-version",
                state="nothing was imported",
                remedy="upgrade planarian" if version > VERSION else "export it again",
            )

    def sealed_with(self, key: bytes) -> bool:
        """Whether who wrote the manifest had ``key``. What the manifest says is checked by reading to the end."""
        return bool(key) and hmac.compare_digest(self._seal, seal(key, self.digest))

    def frames(self) -> Iterator[Frame]:
        """All frames but the manifest, from the first; at the end everything was checked against it.

        Memory is bounded by the longest frame, whatever the bundle says.

        Raises:
            BundleError: damaged.
        """
        self._file.seek(_HEAD.size)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        source = cast(IO[bytes], _Bounded(self._file, self.length))  # it is only read from
        parts = _Parts()
        try:
            with decompressor.stream_reader(source, read_across_frames=True, closefd=False) as stream:
                while True:
                    header = _exactly(stream, _FRAME.size)
                    letter, length = _FRAME.unpack(header)
                    kind = _KINDS.get(letter)
                    if kind is None or length > _LENGTHS.get(kind, LONGEST):
                        raise damaged("a frame of an unknown kind or length")
                    payload = _exactly(stream, length)
                    if kind is Kind.MANIFEST:
                        break
                    if kind is Kind.PART:
                        parts.begin(_part_name(payload))
                    parts.add(header, payload)
                    yield Frame(kind, payload, parts.current)
                if stream.read(1):
                    raise damaged("something follows its end")
        except zstandard.ZstdError as error:
            raise damaged(f"it can't be decompressed ({error})") from error
        if hashlib.sha256(payload).digest() != self.digest or parse(payload) != parts.manifest():
            raise damaged("a part doesn't have the size and hash that it should")


def _part_name(payload: bytes) -> str:
    data = parse(payload)
    name = data.get("part") if isinstance(data, Mapping) else None
    if not isinstance(name, str):
        raise damaged("a part has no name")
    return name


def _exactly(stream: Any, count: int) -> bytes:
    """That many bytes, however they come; fewer are an error."""
    pieces = []
    while count:
        piece = stream.read(min(count, PIECE))
        if not piece:
            raise damaged("it ends in the middle")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


class _Bounded:
    """The next ``length`` bytes of a file, to read from."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file = file
        self._left = length

    def read(self, count: int = -1) -> bytes:
        wanted = self._left if count < 0 else min(count, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data
