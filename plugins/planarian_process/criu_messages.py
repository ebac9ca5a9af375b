"""The messages of CRIU's RPC, from the system's pycriu."""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from planarian_core.errors import BackendUnavailable

INSTALL = (
    "apt-get install --no-install-recommends -t sid criu python3-pycriu"
    "  (CRIU 4.2 or newer; Debian 12 and 13 have it in sid only: add sid and trixie to the apt sources, pinned low)"
)

_DESCRIPTION = "AddSerializedFile"
_messages_lock = threading.Lock()
_messages: Any = None


def _message_file() -> Path | None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    roots = [Path(entry) for entry in sys.path if entry]
    roots += [Path("/usr/lib/python3/dist-packages"), Path("/usr/local/lib/python3/dist-packages")]
    for prefix in ("/usr", "/usr/local"):
        for library in ("lib", "lib64"):
            roots += [Path(prefix, library, version, kind) for kind in ("site-packages", "dist-packages")]
            roots += sorted(Path(prefix, library).glob("python3.*/site-packages"))
    return next((file for root in roots if (file := root / "pycriu" / "rpc_pb2.py").is_file()), None)


def messages() -> Any:
    """The message classes and constants of CRIU's RPC, as attributes, from the description in the system's pycriu.

    The description is read out of pycriu's file and nothing of it is run: its generated code insists on the protobuf
    of its own Python, and would put ``rpc.proto`` where another library may have one, too.

    Raises:
        BackendUnavailable: pycriu isn't installed, or is none that we can read.
    """
    global _messages
    with _messages_lock:
        if _messages is None:
            file = _message_file()
            if file is None:
                raise BackendUnavailable("pycriu, CRIU's Python package, was not found", remedy=INSTALL)
            try:
                _messages = _classes(_description(file))
            except Exception as failure:  # it can be malformed in any way; all mean the same here
                raise BackendUnavailable(f"{file} can't be read: {failure}", remedy=INSTALL) from failure
        return _messages


def _description(file: Path) -> bytes:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == _DESCRIPTION:
            return bytes(ast.literal_eval(node.args[0]))
    raise ValueError(f"no {_DESCRIPTION} in it")


def _classes(description: bytes) -> SimpleNamespace:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # a dependency on Linux alone

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(description)
    file = pool.FindFileByName(descriptor_pb2.FileDescriptorProto.FromString(description).name)
    kinds = {name: message_factory.GetMessageClass(kind) for name, kind in file.message_types_by_name.items()}
    values = {value.name: value.number for kind in file.enum_types_by_name.values() for value in kind.values}
    return SimpleNamespace(**kinds, **values)
