"""Versioned serialisation of the frozen values in :mod:`planarian_core.model`.

Plain data in, plain data out: dataclasses become objects, tuples lists, enums their values. Unknown keys are ignored
and missing ones take the field's default, so that a registry written by an older or newer minor version still reads.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Turn a model value into JSON-safe data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list | frozenset | set):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(cls: type[T], data: Any) -> T:
    """Rebuild a model value of type ``cls`` from what :func:`encode` made.

    Raises:
        TypeError, ValueError: the data doesn't fit (the registry turns this into RegistryCorrupt).
    """
    return typing.cast(T, _decode(cls, data))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, data: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if data is None:
            return None
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
        return _decode(hint, data)
    if origin is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_decode(args[0], item) for item in data)
        return tuple(_decode(a, item) for a, item in zip(args, data, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        item_hint = typing.get_args(hint)[1]
        return {key: _decode(item_hint, item) for key, item in data.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(data, Mapping):
            raise TypeError(f"{hint.__name__} expects an object, not {type(data).__name__}")
        hints = _hints(hint)
        known = {f.name: _decode(hints[f.name], data[f.name]) for f in dataclasses.fields(hint) if f.name in data}
        return hint(**known)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(data)
    return data
