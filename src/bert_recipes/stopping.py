"""Signals that ask a run to stop in good order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bert_recipes.errors import Interrupted


# What Slurm, Kubernetes and `kill` send, and what Ctrl-C sends.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Remembers that a signal asked this process to stop.

    The first SIGTERM or SIGINT is remembered. A second SIGINT ends the process at once, with exit code 130: whoever
    presses Ctrl-C twice does not want to wait. Later SIGTERMs change nothing, as launchers pass them on more than once.

    Attributes:
        signal: Number of the signal, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._leaves_block = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals inside of the block; in a thread other than the main one Python cannot."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._remember) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While listening: the first signal leaves the block where it is, so the block must wait for no other process and write nothing."""
        self._leaves_block = True
        try:
            yield
        except Interrupted:
            pass  # `signal` says it
        finally:
            self._leaves_block = False

    def _remember(self, number: int, frame: FrameType | None) -> None:
        # Not by logging: its lock may be held by the very code that was interrupted.
        if self.signal is None:
            self.signal = number
            if os.environ.get("RANK", "0") == "0":
                _say(f"{signal.Signals(number).name}: stopping in good order; Ctrl-C again leaves at once")
            if self._leaves_block:
                raise Interrupted(f"stopped by {signal.Signals(number).name}", 128 + number)
        elif number == signal.SIGINT:
            _say("left at once")
            os._exit(128 + signal.SIGINT)


def ignore_signals(worker: int = 0) -> None:
    """Leave signals to the process that trains: for processes that load data, which get Ctrl-C too.

    Args:
        worker: Number of the worker; `DataLoader` passes it.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())
