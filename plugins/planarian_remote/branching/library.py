"""The library of doltlite, bound with ctypes.

``import doltlite`` would put its engine in the place of this process's SQLite, or start the process anew where
``sqlite3`` is already loaded. The registry uses ``sqlite3``; so the package is only asked where its library lies, and
the library is loaded beside SQLite, with its own symbols (``RTLD_DEEPBIND``).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from planarian_core.errors import BackendUnavailable

_P, _INT, _INT64, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p

AUTHORIZER = ctypes.CFUNCTYPE(_INT, _P, _INT, _TEXT, _TEXT, _TEXT, _TEXT)
PROGRESS = ctypes.CFUNCTYPE(_INT, _P)
TRANSIENT = ctypes.c_void_p(-1)
"""Tells the engine to copy a bound value."""

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "sqlite3_open_v2": (_INT, [_TEXT, ctypes.POINTER(_P), _INT, _TEXT]),
    "sqlite3_close_v2": (_INT, [_P]),
    "sqlite3_errmsg": (_TEXT, [_P]),
    "sqlite3_extended_errcode": (_INT, [_P]),
    "sqlite3_busy_timeout": (_INT, [_P, _INT]),
    "sqlite3_prepare_v2": (_INT, [_P, _P, _INT, ctypes.POINTER(_P), ctypes.POINTER(_P)]),
    "sqlite3_step": (_INT, [_P]),
    "sqlite3_finalize": (_INT, [_P]),
    "sqlite3_stmt_readonly": (_INT, [_P]),
    "sqlite3_stmt_isexplain": (_INT, [_P]),
    "sqlite3_bind_parameter_count": (_INT, [_P]),
    "sqlite3_bind_null": (_INT, [_P, _INT]),
    "sqlite3_bind_int64": (_INT, [_P, _INT, _INT64]),
    "sqlite3_bind_double": (_INT, [_P, _INT, ctypes.c_double]),
    "sqlite3_bind_text": (_INT, [_P, _INT, _TEXT, _INT, _P]),
    "sqlite3_bind_blob": (_INT, [_P, _INT, _TEXT, _INT, _P]),
    "sqlite3_column_count": (_INT, [_P]),
    "sqlite3_column_name": (_TEXT, [_P, _INT]),
    "sqlite3_column_type": (_INT, [_P, _INT]),
    "sqlite3_column_int64": (_INT64, [_P, _INT]),
    "sqlite3_column_double": (ctypes.c_double, [_P, _INT]),
    "sqlite3_column_blob": (_P, [_P, _INT]),
    "sqlite3_column_bytes": (_INT, [_P, _INT]),
    "sqlite3_changes64": (_INT64, [_P]),
    "sqlite3_get_autocommit": (_INT, [_P]),
    "sqlite3_set_authorizer": (_INT, [_P, AUTHORIZER, _P]),
    "sqlite3_progress_handler": (None, [_P, _INT, PROGRESS, _P]),
}


def find() -> Path:
    """The library that the installed package ``doltlite`` brings.

    Raises:
        BackendUnavailable: the package isn't there, or has no library for this platform.
    """
    spec = importlib.util.find_spec("doltlite")
    name = "libdoltlite.dylib" if sys.platform == "darwin" else "libdoltlite.so"
    found = Path(spec.origin).parent / "_lib" / name if spec and spec.origin else None
    if found is None or not found.is_file():
        raise BackendUnavailable(
            "doltlite isn't installed" if found is None else f"the package doltlite brings no {name}",
            code="doltlite-missing",
            state="nothing was changed",
            remedy="pip install 'planarian[branching]', or set library = \"…/libdoltlite.so\" for the service",
        )
    return found


@cache
def load(path: Path) -> ctypes.CDLL:
    """The library, ready to be called; each path is loaded once in a process.

    Raises:
        BackendUnavailable: it can't be loaded, or is not doltlite's.
    """
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise BackendUnavailable(
            f"doltlite's library can't be used: {error}", code="doltlite-missing", state="nothing was changed"
        ) from error
    return library
