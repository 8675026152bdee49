"""Run a command as a process that ends with this one."""

import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


# For a run that saves before it ends.
SECONDS_TO_END = 20


def end_with_children() -> None:
    """Make SIGTERM and SIGHUP end this process, and so the run in progress, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, signal.default_int_handler)


def _end_with_parent() -> Callable[[], None] | None:
    """Return what lets the system end a new process when its parent is gone, also by SIGKILL."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # PR_SET_PDEATHSIG is 1
    return functools.partial(prctl, 1, signal.SIGTERM)


def run_process(command: Sequence[str], log: Path, group: str) -> int:
    """Run to the end in a process group, which ends with this one (after SIGKILL: on Linux)."""
    # Under its name wandb, where `report_to` names it, shows the runs together.
    environment = {"WANDB_RUN_GROUP": group, **os.environ}
    with log.open("w", encoding="utf-8") as output:
        # preexec_fn is one call into the C library, which cannot wait for another thread.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            preexec_fn=_end_with_parent(),
        )
        exit_code = 1
        try:
            exit_code = process.wait()
        finally:
            if exit_code:
                _end_group(process)
        return exit_code


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a process and its children: SIGTERM, and later SIGKILL.

    A launcher may end before its children, and a run that stays alive would write into a folder
    that is run again. A second Ctrl-C meanwhile makes an end of the patience, and of nothing else.
    """
    for number, patience in ((signal.SIGTERM, SECONDS_TO_END), (signal.SIGKILL, 1)):
        # macOS does not permit a signal to processes that have all ended.
        with suppress(ProcessLookupError, PermissionError, KeyboardInterrupt):
            os.killpg(process.pid, number)
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)  # until there is no such group
                time.sleep(0.1)
