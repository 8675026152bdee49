"""A headless Chromium as a process, and its DevTools protocol over two pipes."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

from bert_recipes.errors import InputError


_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    # Colours are those that a page names, whatever the screen.
    "--force-color-profile=srgb",
    # No name is looked up, and only this machine is reached.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
# Chromium reads from descriptor 3 and writes to 4. The ends of the pipes may have these numbers themselves: first out of the way.
_STARTER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, start=3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Path of an installed Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


class Chromium:
    """One tab of a headless browser that can reach this machine and its files only.

    Attributes:
        requests: Addresses that pages asked for.
        messages: What pages complained of: exceptions, and what the browser logged.

    Raises:
        InputError: No Chromium is installed, or it does not start.
    """

    def __init__(self) -> None:
        path = find_browser()
        if path is None:
            raise InputError(f"no browser is installed; one of {', '.join(_NAMES)} is needed on the path")
        self._folder = tempfile.TemporaryDirectory(prefix="bert-recipes-browser-", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = [*_FLAGS, f"--user-data-dir={self._folder.name}"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _STARTER, str(to_browser), str(from_browser), path, *flags, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.messages: list[str] = []
        try:
            self._open_tab()
        except (RuntimeError, OSError) as reason:
            self.close()
            raise InputError(f"{path} does not start without a window: {reason}; try {path} --headless=new") from None
        except BaseException:
            self.close()
            raise

    def _open_tab(self) -> None:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and remove its folder."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._folder.cleanup()

    def call(self, method: str, params: dict[str, Any] | None = None, timeout: float = 60.0) -> dict[str, Any]:
        """Call a method of the protocol and note the events that come before its answer.

        Args:
            method: For example "Page.navigate".
            params: Its parameters.
            timeout: Seconds.

        Returns:
            Its result.

        Raises:
            RuntimeError: The browser says that it went wrong.
            TimeoutError: No answer in time.
        """
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if self._session is not None:
            request["sessionId"] = self._session
        data = json.dumps(request).encode() + b"\0"
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except BrokenPipeError:
            raise RuntimeError(f"the browser has ended before {method}") from None
        deadline = time.monotonic() + timeout
        while True:
            message = self._receive(deadline, method)
            if message.get("id") == request["id"]:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error'].get('message')}")
                return message["result"]
            self._note(message)

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            readable, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise TimeoutError(f"the browser did not answer {method} in time")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError(f"the browser has ended before it answered {method}")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Network.webSocketCreated":
            self.requests.append(params["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(
                f"{details.get('text')} {details.get('exception', {}).get('description', '')}".strip()
            )
        elif event.get("method") == "Log.entryAdded":
            entry = params["entry"]
            self.messages.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}".strip())
