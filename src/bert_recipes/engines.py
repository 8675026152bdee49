"""DeepSpeed and FSDP2, which share a model out over processes: the same training as without them."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import convert_outputs_to_fp32
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from bert_recipes.errors import InputError
from bert_recipes.pushing import PushingTrainer


def asks_for_fsdp(args: TrainingArguments) -> bool:
    """Whether the launcher or a setting asks for FSDP."""
    by_launcher = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
    return by_launcher or args.fsdp_plugin_args is not None


class EngineTrainer(PushingTrainer):
    """`Trainer` whose runs are the same under every engine: the run's optimiser and schedule, losses and sums in float32.

    In bfloat16 the forward pass is computed under autocast, as without an engine. Weights that learn, gradients summed over
    micro-batches, and what processes add up stay in float32.
    """

    def __init__(self, model: Any, args: Any, **kwargs: Any) -> None:
        """Set the Trainer up; Accelerate puts no autocast around a model that an engine has."""
        super().__init__(model=model, args=args, **kwargs)
        if args.bf16 and (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            autocast = torch.autocast(args.device.type, torch.bfloat16)
            self.model.forward = convert_outputs_to_fp32(autocast(self.model.forward))

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """As stock, with what engines leave to their user."""
        built: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        is_deepspeed = built["deepspeed_plugin"] is not None
        if self.args.fp16 and (is_deepspeed or asks_for_fsdp(self.args)):
            raise InputError("precision is 'fp16'; allowed under DeepSpeed and FSDP: bf16, fp32")
        if is_deepspeed:
            built["mixed_precision"] = "no"
            _complete_deepspeed(built["deepspeed_plugin"].deepspeed_config)
        elif asks_for_fsdp(self.args):
            built["fsdp_plugin"] = self._complete_fsdp(built["fsdp_plugin"] or FullyShardedDataParallelPlugin())
        return built

    def _complete_fsdp(self, plugin: FullyShardedDataParallelPlugin) -> FullyShardedDataParallelPlugin:
        """FSDP2 whose policy rounds neither inputs nor outputs of the model, which are counts and losses, nor the sums of gradients."""
        if plugin.fsdp_version != 2:
            raise InputError(f"fsdp_version is {plugin.fsdp_version}; allowed: 2, as in accelerate_configs/fsdp.yaml")
        if self.args.bf16:
            plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        if self.args.device.type == "cpu":
            # Of processes on CPUs Accelerate makes DDP and does not say so, though torch's FSDP2 runs there.
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return plugin

    def _load_best_model(self) -> None:
        """As stock; torch loads FSDP2's root group as if it were sharded, which it is not after an evaluation."""
        if self.is_fsdp_enabled:
            self.model.reshard()
        super()._load_best_model()

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; under FSDP Accelerate finds no embeddings: they stay in one group with the heads, which share weight and bias with them."""
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        # In a group of their own they would leave the other name of the decoder's bias, `cls.predictions.bias`, in another.
        self.model.get_input_embeddings = self.model.get_output_embeddings = lambda: None
        try:
            return super()._prepare_for_training(*args, **kwargs)
        finally:
            del self.model.get_input_embeddings, self.model.get_output_embeddings


def _complete_deepspeed(config: dict[str, Any]) -> None:
    """Leave optimiser, schedule and precision to the run.

    Args:
        config: DeepSpeed's, which is changed. In its own bf16 mode the model's weights, the sums of micro-batches and what processes
            add up would be bfloat16; for an offloaded optimiser Accelerate would take an Adam of DeepSpeed's.
    """
    for name in ("optimizer", "scheduler"):
        if name in config:
            raise InputError(
                f"the configuration of DeepSpeed has a section '{name}'; take it out: --optimizer and --schedule decide"
            )
    # A section "bf16" that is missing would be filled in, one that says false would be held against the run's precision.
    config |= {"bf16": {}, "fp16": {"enabled": False}, "zero_force_ds_cpu_optimizer": False}
