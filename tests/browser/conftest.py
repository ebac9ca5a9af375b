"""A headless Chromium, driven through its DevTools pipe: real clicks and keys, and what the page did with them."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = "chromium-headless-shell"
_SECONDS = 60
_MIDDLE = (
    "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
    "return [r.x + r.width / 2, r.y + r.height / 2];"
)
_KEYS = {
    "Enter": 13, "Escape": 27, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36,
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip


class Browser:
    """One page in one browser. ``requests`` are the addresses that it asked for, ``problems`` what its console said."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One DevTools command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._from, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(json.dumps(parameters["args"])[:2000])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {parameters['message']}")

    def close(self) -> None:
        """End the browser, so that it waits for its own children."""
        self._session = ""
        self.call("Browser.close")

    def open(self, page: Path, width: int = 1280, height: int = 860, *, dark: bool = False) -> None:
        """Load a page from a file and wait until it has run its scripts."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page.as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def js(self, expression: str) -> Any:
        """The value of a script expression in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression holds."""
        ends = time.monotonic() + _SECONDS
        while not self.js(expression):
            assert time.monotonic() < ends, f"never: {expression}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """A real click with the mouse in the middle of the first element that matches."""
        place = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); {_MIDDLE} }})()",
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """A key by its DOM name."""
        code = _KEYS.get(key, ord(key[0].upper()))
        text = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with an empty profile; it and its children are gone afterwards."""
    profile = tmp_path_factory.mktemp("profile")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    command = [PROGRAM, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    theirs, ours = _pipes()
    # It reads commands from descriptor 3 and writes answers to 4.
    plumbing = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]} {theirs[0]}<&- {theirs[1]}>&-'
    started = subprocess.Popen(
        ["bash", "-c", plumbing, "bash", *command],
        pass_fds=theirs,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for descriptor in theirs:
        os.close(descriptor)
    try:
        opened = Browser(ours[0], ours[1])
        yield opened
        opened.close()
        started.wait(_SECONDS)
    finally:
        for descriptor in ours:
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(_SECONDS)


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """What the browser reads and writes, and what we write and read; none of them is 3 or 4."""
    commands, answers = os.pipe(), os.pipe()
    every = (commands[0], answers[1], commands[1], answers[0])
    moved = tuple(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in every)
    for descriptor in every:
        os.close(descriptor)
    return (moved[0], moved[1]), (moved[2], moved[3])
