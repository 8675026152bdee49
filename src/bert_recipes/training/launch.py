"""Process of a launch: its GPU, engines (DeepSpeed, FSDP2), what the main one finds out for all."""

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import broadcast_object_list
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from bert_recipes.errors import InputError, describe_os_error


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


# Engines: what makes training under them the same as without. In bfloat16 the forward pass is
# computed under autocast; weights that learn, gradients summed over micro-batches, and what
# processes add up stay in float32.


def asks_for_fsdp(args: TrainingArguments) -> bool:
    """Whether the launcher or a setting asks for FSDP."""
    by_launcher = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
    return by_launcher or args.fsdp_plugin_args is not None


def announce_compilation() -> None:
    """Say before DeepSpeed compiles its communication of CPUs, once a machine, that it will: it
    takes minutes and prints nothing.
    """
    from torch.utils.cpp_extension import (
        get_default_build_root,
    )  # takes time, and is needed here only

    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    if not any(folder.rglob("deepspeed_shm_comm.so")):
        logger.info(
            "DeepSpeed compiles its communication between CPU processes, once a machine: this "
            "takes minutes"
        )


def layer_classes(model: torch.nn.Module) -> list[str]:
    """Return the names of the classes of a model's layers, which are what stands in its lists of
    modules.
    """
    names: set[str] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            names.update(type(layer).__name__ for layer in module)
    return sorted(names)


def complete_engine(args: TrainingArguments, built: dict[str, Any]) -> dict[str, Any]:
    """Set what engines leave to their user, in the arguments that the Trainer has built for
    Accelerate.
    """
    deepspeed, is_fsdp = built["deepspeed_plugin"], asks_for_fsdp(args)
    if args.fp16 and (deepspeed is not None or is_fsdp):
        raise InputError("precision is 'fp16'; allowed under DeepSpeed and FSDP: bf16, fp32")
    if deepspeed is not None:
        if args.device.type == "cpu":
            announce_compilation()
        built["mixed_precision"] = "no"
        config = deepspeed.deepspeed_config
        if own := {"optimizer", "scheduler"} & config.keys():
            raise InputError(
                f"the configuration of DeepSpeed has a section '{min(own)}'; take it out: "
                "--optimizer and --schedule decide"
            )
        # In DeepSpeed's own bf16 mode weights, sums of micro-batches and what processes add up
        # would be bfloat16. A section "bf16" that is missing would be filled in, one that says
        # false would be held against the run's precision. For an optimiser that is offloaded
        # Accelerate would take an Adam of DeepSpeed's.
        config |= {"bf16": {}, "fp16": {"enabled": False}, "zero_force_ds_cpu_optimizer": False}
    elif is_fsdp:
        plugin = built["fsdp_plugin"] = built["fsdp_plugin"] or FullyShardedDataParallelPlugin()
        if plugin.fsdp_version != 2:
            raise InputError(
                f"fsdp_version is {plugin.fsdp_version}; allowed: 2, as in "
                "accelerate_configs/fsdp.yaml"
            )
        if args.bf16:
            # Inputs and outputs of the model are counts and losses: they are not rounded, nor are
            # the sums of gradients.
            plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        if args.device.type == "cpu":
            # Of processes on CPUs Accelerate makes DDP and does not say so, though torch's FSDP2
            # runs there.
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return built


# Processes together


def join_processes_on_cpus(timeout: timedelta) -> None:
    """Form the group of several processes on CPUs, so that none waits longer for a frozen one: the
    Trainer leaves the timeout out.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=timeout)


Answer = TypeVar("Answer")


def run_on_main_process(args: TrainingArguments, question: Callable[[], Answer]) -> Answer:
    """Let the main process find something out, so that all processes do the same and the world is
    asked once.

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
