"""Changes what an image says of itself: that the processes have a network namespace of their own; when it was taken.

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

INVENTORY = "inventory.img"
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
    entry.field.add(name="uptime", number=8, type=4, label=1)  # optional uint64
    entry.field.add(name="own", number=3, type=11, label=1, type_name=".planarian.criu.Identifiers")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("planarian.criu.Inventory"))


def add_network(images: Path) -> None:
    """Change the inventory in place. Idempotent.

    Raises:
        ValueError: it is none that we know: the image would be restored into the network of whoever restores it.
    """
    entry = _read(images)
    if not (entry.HasField("own") and entry.own.HasField("network")):
        raise ValueError(f"{INVENTORY} names no network namespace")
    entry.own.network = _NOBODYS
    _write(images, entry)


def set_uptime(images: Path, uptime: int) -> None:
    """Say that the image was taken ``uptime`` microseconds after the boot: of processes that started earlier.

    Raises:
        ValueError: it has no inventory that we know.
    """
    entry = _read(images)
    entry.uptime = uptime
    _write(images, entry)


def _read(images: Path) -> Any:
    content = (images / INVENTORY).read_bytes()
    if len(content) < _HEAD.size:
        raise ValueError(f"{INVENTORY} is cut short")
    magic, length = _HEAD.unpack_from(content)
    if (magic, _HEAD.size + length) != (_MAGIC, len(content)):
        raise ValueError(f"{INVENTORY} has an unknown form")
    return _entry_class().FromString(content[_HEAD.size :])


def _write(images: Path, entry: Any) -> None:
    changed = entry.SerializeToString()
    draft = images / f"{INVENTORY}.new"
    draft.write_bytes(_HEAD.pack(_MAGIC, len(changed)) + changed)
    os.replace(draft, images / INVENTORY)
