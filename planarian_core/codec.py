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
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Turn a model value into JSON-safe data."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    names = _field_names(kind)
    if names is not None:
        fields = ((name, getattr(value, name)) for name in names)
        return {name: item if type(item) in _PLAIN else encode(item) for name, item in fields}
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
    hint: Any = cls
    return typing.cast(T, _decoder(hint)(data))


@functools.cache
def _field_names(cls: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


@functools.cache
def _decoder(hint: Any) -> Callable[[Any], Any]:
    """What decodes values of a type; made once for each, because a tool call decodes several records."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = _decoder(next(a for a in args if a is not type(None)))
        return lambda data: None if data is None else inner(data)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            each = _decoder(args[0])
            return lambda data: tuple(map(each, data))
        parts = [_decoder(a) for a in args]
        return lambda data: tuple(part(item) for part, item in zip(parts, data, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _decoder(args[1])
        return lambda data: {key: item(value) for key, value in data.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint
    return _as_it_is


def _record_decoder(cls: type) -> Callable[[Any], Any]:
    hints: dict[str, Callable[[Any], Any]] = {}

    def decode_record(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise TypeError(f"{cls.__name__} expects an object, not {type(data).__name__}")
        if not hints:  # not before: a type may hold itself
            types_ = typing.get_type_hints(cls)
            hints.update({f.name: _decoder(types_[f.name]) for f in dataclasses.fields(cls)})
        return cls(**{name: decoder(data[name]) for name, decoder in hints.items() if name in data})

    return decode_record


def _as_it_is(data: Any) -> Any:
    return data


_PLAIN = frozenset({str, int, float, bool, type(None)})
