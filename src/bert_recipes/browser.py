"""A page in a headless Chromium: what it shows, does and asks for."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from bert_recipes.chromium import Chromium
from bert_recipes.errors import saving


# Seconds until something is done again that a page has not heard.
_PATIENCE = 4.0
# As many times in a row, a tenth of a second apart, a page has the same size once it is laid out.
_ALIKE = 5


class Browser:
    """One tab of a headless browser that can reach this machine and its files only.

    Args:
        size: Width and height of the window in pixels.
        dark: Whether pages are asked for their dark colours.

    Attributes:
        requests: Addresses that pages asked for.
        messages: What pages complained of: exceptions, and what the browser logged.

    Raises:
        InputError: No Chromium is installed, or it does not start.

    Example:
        >>> with Browser() as browser:  # doctest: +SKIP
        ...     browser.open("http://127.0.0.1:7860")
        ...     browser.wait_for("document.querySelector('h1')")
        ...     browser.take_picture(Path("page.png"))
    """

    def __init__(self, size: tuple[int, int] = (1280, 900), *, dark: bool = False) -> None:
        self._chromium = Chromium()
        self.requests, self.messages = self._chromium.requests, self._chromium.messages
        try:
            self.set_window(size, dark=dark)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._chromium.close()

    def set_window(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Change what pages are shown in; the one that is open follows.

        Args:
            size: Width and height in pixels, also smaller ones than a window of a desk's screen can have.
            dark: Whether pages are asked for their dark colours.

        Raises:
            TimeoutError: The page does not follow.
        """
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._chromium.call("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._chromium.call("Emulation.setEmulatedMedia", {"features": scheme})
        self.wait_for(f"innerWidth === {width} && innerHeight === {height}")

    def open(self, url: str) -> None:
        """Go to an address, of a server on this machine or of a file, and wait until all of it is loaded.

        Raises:
            RuntimeError: It cannot be opened.
            TimeoutError: It is not loaded in time.
        """
        answer = self._chromium.call("Page.navigate", {"url": url})
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, code: str) -> Any:
        """Value of a JavaScript expression; a promise is waited for.

        Raises:
            RuntimeError: The code throws.
        """
        answer = self._chromium.call(
            "Runtime.evaluate", {"expression": code, "returnByValue": True, "awaitPromise": True}
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{code}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait_for(self, condition: str, timeout: float = 60.0) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            TimeoutError: It is not in time.
        """
        deadline = time.monotonic() + timeout
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{condition} did not become true in {timeout:g} s")
            time.sleep(0.1)

    def click(self, selector: str, condition: str = "true", timeout: float = 60.0) -> None:
        """Press the mouse in the middle of an element, where a person would, and again if nothing comes of it.

        Args:
            selector: CSS selector of something that can be seen.
            condition: JavaScript expression that is true when the click has been heard: a page that is still building itself
                hears none.
            timeout: Seconds.

        Raises:
            TimeoutError: Nothing came of it in time.
        """
        element = f"document.querySelector({json.dumps(selector)})"

        def press() -> None:
            self.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
            place = self.evaluate(
                f"(() => {{ const r = {element}.getBoundingClientRect(); "
                "return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
            )
            for kind in ("mousePressed", "mouseReleased"):
                self._chromium.call(
                    "Input.dispatchMouseEvent", {"type": kind, **place, "button": "left", "clickCount": 1}
                )

        self._repeat(press, condition, timeout)

    def type_text(self, selector: str, text: str, timeout: float = 60.0) -> None:
        """Replace what a text field holds, as the keyboard does, and again if the field is replaced meanwhile.

        Args:
            selector: CSS selector of the field.
            text: What is typed.
            timeout: Seconds.

        Raises:
            TimeoutError: The field does not take it.
        """
        field = f"document.querySelector({json.dumps(selector)})"

        def type_once() -> None:
            self.evaluate(f"{field}.focus(); {field}.select()")
            self._chromium.call("Input.insertText", {"text": text})

        self._repeat(type_once, f"{field}.value === {json.dumps(text)}", timeout)

    def _repeat(self, action: Callable[[], None], condition: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            action()
            try:
                return self.wait_for(condition, timeout=_PATIENCE)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise

    def take_picture(self, path: Path, *, whole_page: bool = False) -> None:
        """Write what is shown as PNG.

        Args:
            path: The file.
            whole_page: What lies below the window too.
        """
        params: dict[str, Any] = {"format": "png"}
        if whole_page:
            size = self._steady_size()
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            params |= {"captureBeyondViewport": True, "clip": clip}
        data = base64.b64decode(self._chromium.call("Page.captureScreenshot", params)["data"])
        with saving(path):
            path.write_bytes(data)

    def _steady_size(self) -> dict[str, float]:
        """Size of the whole page as soon as it has stopped to change: a page goes on laying itself out once it is loaded."""
        sizes: list[dict[str, float]] = []
        deadline = time.monotonic() + _PATIENCE
        while len(sizes) < _ALIKE or time.monotonic() < deadline:
            sizes.append(self._chromium.call("Page.getLayoutMetrics")["cssContentSize"])
            if len(sizes) >= _ALIKE and all(size == sizes[-1] for size in sizes[-_ALIKE:]):
                break
            time.sleep(0.1)
        return sizes[-1]
