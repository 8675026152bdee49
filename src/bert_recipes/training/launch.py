"""The processes of a launch: their GPUs, their group, answers of the main process for all."""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainingArguments

from bert_recipes.errors import InputError, describe_os_error
from bert_recipes.shipped import command_hint


logger = logging.getLogger(__name__)


# The machine


def check_gpus() -> None:
    """Refuse more processes on this machine than it has GPUs."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.accelerator.device_count()
    if 0 < gpus < processes:
        raise InputError(
            f"{processes} processes were started on this machine, one a GPU, and it has {gpus} "
            "GPU(s): set num_processes, of all machines together, in the configuration of the "
            "launch, or give `accelerate launch` --num_processes"
        )


def take_one_gpu(args: TrainingArguments, *, trains: bool) -> None:
    """Refuse to train in one process that sees several GPUs; what only measures takes the first.

    Stock would split the batches of one process by `nn.DataParallel`.
    """
    if args.n_gpu <= 1:
        return
    if trains:
        launch = command_hint(
            checkout=(
                "LAUNCH=ddp with make, or accelerate launch --config_file "
                f"accelerate_configs/ddp.yaml --num_processes {args.n_gpu} recipes/..., or "
                "--launch ddp of a sweep"
            ),
            wheel="accelerate launch --multi_gpu -m bert_recipes",
        )
        raise InputError(
            f"one process sees {args.n_gpu} GPUs; to use all, with a process for each: {launch}; "
            "to use one: CUDA_VISIBLE_DEVICES=0"
        )
    logger.info("one of %d GPUs is used", args.n_gpu)
    args._n_gpu = 1


# Processes together


def join_processes_on_cpus(timeout: timedelta) -> None:
    """Form the group of several processes on CPUs, with a time limit for a frozen process.

    Stock would ignore `ddp_timeout` on CPUs and wait for torch's 30 minutes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=timeout)


def check_processes_agree(args: TrainingArguments, name: str, value: str, advice: str) -> None:
    """Refuse to train where processes chose different values: their gradients are summed."""
    if args.world_size == 1:
        return
    values = gather_object([value])
    if len(set(values)) > 1:
        raise InputError(
            f"the processes have other values of {name}: {', '.join(values)}; their machines are "
            f"not alike: give {advice}"
        )


Result = TypeVar("Result")


def run_on_main_process(args: TrainingArguments, function: Callable[[], Result]) -> Result:
    """Call a function in the main process alone, and return its result in all processes.

    An `InputError` of the function is raised in every process; so is an `OSError`, as one.
    """
    result_and_error: list[Any] = [None, None]
    if args.process_index == 0:
        try:
            result_and_error[0] = function()
        except InputError as error:
            result_and_error[1] = error
        except OSError as error:
            result_and_error[1] = InputError(describe_os_error(error))
    if args.world_size > 1:
        broadcast_object_list(result_and_error)
    result, error_of_main = result_and_error
    if error_of_main is not None:
        raise error_of_main
    return result
