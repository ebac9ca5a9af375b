"""The page of ``planarian log --html``: its template, style and scripts, and how they become one file.

Everything that the page shows comes as JSON in one ``<script type="application/json">``, with ``<``, ``>`` and ``&``
escaped; the scripts put it into text nodes. The page's content security policy allows its own style and script alone,
by their hashes, and no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

_SCRIPTS = ("elements.js", "graph.js", "details.js", "page.js")
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page(data: Mapping[str, Any]) -> str:
    """One self-contained page, ASCII but for our own words; ``data`` is what :mod:`~planarian_core.cli.log_html` made.

    The same data makes the same page.
    """
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "})();"
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )
    parts = {"policy": policy, "style": style, "script": script, "data": _embedded(data)}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that can't end the element that it stands in."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return re.sub("[<>&]", lambda found: _ESCAPED[found[0]], text)
