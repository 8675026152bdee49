"""DeepSpeed and FSDP2, which share a model out over processes: what makes training the same as without them.

In bfloat16 the forward pass is computed under autocast, as without an engine. Weights that learn, gradients summed over
micro-batches, and what processes add up stay in float32.
"""

import os
from typing import Any

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from bert_recipes.errors import InputError


def asks_for_fsdp(args: TrainingArguments) -> bool:
    """Whether the launcher or a setting asks for FSDP."""
    by_launcher = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
    return by_launcher or args.fsdp_plugin_args is not None


def complete_engine(args: TrainingArguments, built: dict[str, Any]) -> dict[str, Any]:
    """Set what engines leave to their user, in the arguments that the Trainer has built for Accelerate."""
    is_deepspeed = built["deepspeed_plugin"] is not None
    if args.fp16 and (is_deepspeed or asks_for_fsdp(args)):
        raise InputError("precision is 'fp16'; allowed under DeepSpeed and FSDP: bf16, fp32")
    if is_deepspeed:
        built["mixed_precision"] = "no"
        _complete_deepspeed(built["deepspeed_plugin"].deepspeed_config)
    elif asks_for_fsdp(args):
        built["fsdp_plugin"] = _complete_fsdp(args, built["fsdp_plugin"] or FullyShardedDataParallelPlugin())
    return built


def _complete_fsdp(args: TrainingArguments, plugin: FullyShardedDataParallelPlugin) -> FullyShardedDataParallelPlugin:
    """FSDP2 whose policy rounds neither inputs nor outputs of the model, which are counts and losses, nor the sums of gradients."""
    if plugin.fsdp_version != 2:
        raise InputError(f"fsdp_version is {plugin.fsdp_version}; allowed: 2, as in accelerate_configs/fsdp.yaml")
    if args.bf16:
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    if args.device.type == "cpu":
        # Of processes on CPUs Accelerate makes DDP and does not say so, though torch's FSDP2 runs there.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return plugin


def _complete_deepspeed(config: dict[str, Any]) -> None:
    """Leave optimiser, schedule and precision to the run.

    In DeepSpeed's own bf16 mode the model's weights, the sums of micro-batches and what processes add up would be bfloat16; for
    an offloaded optimiser Accelerate would take an Adam of DeepSpeed's.
    """
    for name in ("optimizer", "scheduler"):
        if name in config:
            raise InputError(
                f"the configuration of DeepSpeed has a section '{name}'; take it out: --optimizer and --schedule decide"
            )
    # A section "bf16" that is missing would be filled in, one that says false would be held against the run's precision.
    config |= {"bf16": {}, "fp16": {"enabled": False}, "zero_force_ds_cpu_optimizer": False}
