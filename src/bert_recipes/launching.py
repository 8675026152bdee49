"""What a launcher's end says about the run that it has started."""

from __future__ import annotations

import os
import subprocess
from typing import Any, NoReturn

from accelerate.utils.launch import prepare_simple_launcher_cmd_env


# What torch's launcher gives a process that it has told to stop is 30; a step and a checkpoint may take longer.
SHUTDOWN_VARIABLE, SHUTDOWN_SECONDS = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 600


def become(args: Any) -> NoReturn:
    """Go on as the one process that is to be started, instead of waiting for it: signals reach it, and its exit code counts.

    Args:
        args: Of Accelerate's parser, completed.
    """
    command, environment = prepare_simple_launcher_cmd_env(args)
    os.execvpe(command[0], command, environment)


def exit_code_of(error: BaseException) -> int | None:
    """The code with which the run has ended, as far as a launcher's exception tells; None for any other exception.

    Args:
        error: What `accelerate launch` raised.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if isinstance(error, SignalException):
        return 128 + int(error.sigval)
    if isinstance(error, ChildFailedError):
        # The one that failed first says why; those that the agent ended afterwards say nothing.
        first = min(error.failures.values(), key=lambda failure: failure.timestamp)
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    if isinstance(error, subprocess.CalledProcessError):
        return error.returncode if error.returncode > 0 else 128 - error.returncode
    return None
