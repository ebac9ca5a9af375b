"""Says in an image that the processes have a network namespace of their own.

CRIU takes the namespaces that a tree does not share with itself into the image. A worker that is in the tree's network
namespace therefore leaves that one out (:meth:`planarian_process.criu_engine.Engine.dump`). Where an image has a
namespace that its inventory doesn't give to CRIU itself, a restore makes a new one: so the inventory gets another.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

_NAME = "inventory.img"
_HEAD = struct.Struct("<II")
_MAGIC = 0x58313116
_NOBODYS = 0x7FFFFFFF
"""An identifier that CRIU, which counts from 1, gives to no namespace."""


@cache
def _entry_class() -> Any:
    """CRIU's ``inventory_entry`` with the few fields that matter; protobuf keeps the others as they are.

    Made in a pool of its own, so that it meets neither pycriu's nor anybody else's files of these names.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # a dependency on Linux alone

    file = descriptor_pb2.FileDescriptorProto(name="planarian/criu_inventory.proto", package="planarian.criu")
    identifiers = file.message_type.add(name="Identifiers")
    identifiers.field.add(name="network", number=6, type=13, label=1)  # optional uint32
    entry = file.message_type.add(name="Inventory")
    entry.field.add(name="own", number=3, type=11, label=1, type_name=".planarian.criu.Identifiers")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("planarian.criu.Inventory"))


def add_network(images: Path) -> None:
    """Change the inventory in place. Idempotent.

    Raises:
        ValueError: it is none that we know: the image would be restored into the network of whoever restores it.
    """
    path = images / _NAME
    content = path.read_bytes()
    if len(content) < _HEAD.size:
        raise ValueError(f"{_NAME} is cut short")
    magic, length = _HEAD.unpack_from(content)
    if (magic, _HEAD.size + length) != (_MAGIC, len(content)):
        raise ValueError(f"{_NAME} has an unknown form")
    entry = _entry_class().FromString(content[_HEAD.size :])
    if not (entry.HasField("own") and entry.own.HasField("network")):
        raise ValueError(f"{_NAME} names no network namespace")
    entry.own.network = _NOBODYS
    changed = entry.SerializeToString()
    draft = images / f"{_NAME}.new"
    draft.write_bytes(_HEAD.pack(magic, len(changed)) + changed)
    os.replace(draft, path)
