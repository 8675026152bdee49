"""What a launcher's end says about the run that it has started."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from bert_recipes.config_file import read_tree


# What torch's launcher gives a process that it has told to stop is 30; a step and a checkpoint may take longer.
SHUTDOWN_VARIABLE, SHUTDOWN_SECONDS = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 600


def starts_one_process(args: Any) -> bool:
    """Whether `accelerate launch` with these arguments would start one process, without torch's agent.

    Args:
        args: Of Accelerate's parser.
    """
    settings: dict[str, Any] = {}
    if args.config_file is not None and Path(args.config_file).is_file():
        settings, _ = read_tree(Path(args.config_file))
    chosen = any(getattr(args, name, False) for name in ("multi_gpu", "use_deepspeed", "use_fsdp", "tpu"))
    kind = str(settings.get("distributed_type", "NO"))
    processes = args.num_processes or int(settings.get("num_processes", 1))
    return not chosen and kind == "NO" and processes == 1


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
