"""Launches that this machine can run, how they end, and what the main process finds out for all."""

import logging
import os
import subprocess
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

import torch
from accelerate.utils import broadcast_object_list, is_deepspeed_available
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
from transformers import TrainingArguments

from bert_recipes.errors import InputError, describe_os_error


logger = logging.getLogger(__name__)

# What torch's launcher gives a process that it has told to stop is 30; a step and a checkpoint may take longer.
SHUTDOWN_VARIABLE, SHUTDOWN_SECONDS = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 600


def checked(start: Callable[[Any], None]) -> Callable[[Any], None]:
    """One of Accelerate's launchers, or `become`, that first sees whether this machine can run what is asked for."""
    return lambda args: (start if check_machine(args, torch.accelerator.device_count()) else become)(args)


def check_machine(args: Any, gpus: int) -> bool:
    """Refuse, before a process is started, a launch that this machine has not the packages or the GPUs for.

    Without any GPU, what one machine alone would train is made one process on the CPU, with a warning, and False is returned.
    """
    if args.use_deepspeed and not is_deepspeed_available():
        raise InputError(
            f'{args.config_file or "--use_deepspeed"} needs DeepSpeed, which is not installed: pip install -e ".[deepspeed]"'
        )
    of_the_run = " ".join(getattr(args, "training_script_args", None) or [])
    on_purpose = args.cpu or getattr(args, "use_cpu", False) or "--use_cpu true" in of_the_run.lower()
    if args.use_deepspeed:
        on_purpose = on_purpose or os.environ.get("DS_ACCELERATOR") == "cpu"  # DeepSpeed's own way to ask for CPUs
    asks = args.config_file is not None or args.multi_gpu or args.use_fsdp or args.use_deepspeed
    if on_purpose or not asks:
        return True
    processes = max((args.num_processes or 1) // (args.num_machines or 1), 1)
    where = args.config_file or "the launch"
    if gpus == 0 and (args.num_machines or 1) == 1 and not (args.use_fsdp or args.use_deepspeed):
        logger.warning("%s: no GPU that torch can use: one process trains on the CPU", where)
        args.cpu = args.use_cpu = True
        args.num_processes, args.gpu_ids, args.num_cpu_threads_per_process = 1, None, torch.get_num_threads()
        return False
    if gpus == 0:
        raise InputError(
            f"{where} starts {processes} process{'es' if processes > 1 else ''} on this machine, one a GPU, and it has no GPU that "
            "torch can use; on CPUs: LAUNCH=cpu, or LAUNCH=ddp_cpu (accelerate_configs/ddp_cpu.yaml) for several processes"
        )
    if processes > gpus:
        machines = f" for {args.num_machines} machines" if (args.num_machines or 1) > 1 else ""
        raise InputError(
            f"{where}: num_processes is {args.num_processes}{machines}, which makes {processes} on this one, and it has {gpus} "
            f"GPU{'s' if gpus > 1 else ''}; allowed: one process a GPU: set num_processes there, or give the launcher "
            f"--num_processes {gpus * (args.num_machines or 1)}"
        )
    return True


def become(args: Any) -> NoReturn:
    """Become the one process that is to be started, instead of waiting for it: signals reach it, and its exit code counts."""
    command, environment = prepare_simple_launcher_cmd_env(args)
    os.execvpe(command[0], command, environment)


def launcher_errors() -> tuple[type[Exception], ...]:
    """What `accelerate launch` raises where the run that it has started has not ended well."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    return SignalException, ChildFailedError, subprocess.CalledProcessError


def exit_code_of(error: Exception) -> int:
    """The code with which the run has ended, by one of `launcher_errors`."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if isinstance(error, SignalException):
        return 128 + int(error.sigval)
    if isinstance(error, ChildFailedError):
        # The one that failed first says why; those that the agent ended afterwards say nothing.
        code = min(error.failures.values(), key=lambda failure: failure.timestamp).exitcode
    else:
        code = cast(subprocess.CalledProcessError, error).returncode
    return code if code > 0 else 128 - code


Answer = TypeVar("Answer")


def run_on_main_process(args: TrainingArguments, question: Callable[[], Answer]) -> Answer:
    """Let the main process find something out, so that all processes do the same and the world is asked once.

    An `InputError` of the question is raised in every process; so is an `OSError`, as one.
    """
    found: list[Any] = [None, None]
    if args.process_index == 0:
        try:
            found[0] = question()
        except InputError as error:
            found[1] = error
        except OSError as error:
            found[1] = InputError(describe_os_error(error))
    if args.world_size > 1:
        broadcast_object_list(found)
    if found[1] is not None:
        raise found[1]
    answer: Answer = found[0]
    return answer
