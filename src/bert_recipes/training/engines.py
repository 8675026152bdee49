"""Training engines (FSDP2, DeepSpeed ZeRO): what makes training under them the same as without.

In bfloat16 the forward pass is computed under autocast; weights that learn, gradients summed over
micro-batches, and what processes add up stay in float32.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import convert_outputs_to_fp32
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import Trainer, TrainingArguments

from bert_recipes.checkpointing import why_incomplete
from bert_recipes.errors import InputError
from bert_recipes.models.electra import ElectraForPreTraining
from bert_recipes.training.launch import asks_for_fsdp


NO_ENGINE = "none"
# Optimizers that orthogonalize or scale whole tensors.
WHOLE_TENSOR_OPTIMIZERS = ("lamb", "muon")


def name_engine(trainer: Trainer) -> str:
    """Return the name of the engine that splits the optimizer's state, and its checkpoint files."""
    if trainer.is_deepspeed_enabled:
        plugin: Any = trainer.accelerator.state.deepspeed_plugin
        return f"DeepSpeed ZeRO {plugin.zero_stage}"
    return "FSDP" if trainer.is_fsdp_enabled else NO_ENGINE


def set_up_engine(trainer: Any, optimizer: str) -> None:
    """Check the optimizer, and compute the forward pass in bfloat16 if the run does.

    Accelerate puts no autocast around a model that an engine has.
    """
    engine = trainer.engine
    if engine == NO_ENGINE:
        return
    if optimizer in WHOLE_TENSOR_OPTIMIZERS:
        raise InputError(
            f"optimizer is {optimizer}; {engine} splits tensors over the processes, and it needs "
            "whole ones: give --optimizer bert_adam or adamw, or LAUNCH=ddp"
        )
    if trainer.args.bf16:
        autocast = torch.autocast(trainer.args.device.type, torch.bfloat16)
        trainer.model.forward = convert_outputs_to_fp32(autocast(trainer.model.forward))


def complete_engine(args: TrainingArguments, built: dict[str, Any]) -> dict[str, Any]:
    """Set what engines leave to their user, in the arguments `built` for Accelerate."""
    deepspeed = built["deepspeed_plugin"]
    if deepspeed is None and not asks_for_fsdp(args):
        return built
    if args.fp16:
        raise InputError("precision is 'fp16'; allowed under DeepSpeed and FSDP: bf16, fp32")
    if deepspeed is not None:
        built["mixed_precision"] = "no"
        _complete_deepspeed(deepspeed.deepspeed_config)
    else:
        built["fsdp_plugin"] = built["fsdp_plugin"] or FullyShardedDataParallelPlugin()
        _complete_fsdp(args, built["fsdp_plugin"])
    return built


def _complete_deepspeed(config: dict[str, Any]) -> None:
    for section in ("optimizer", "scheduler"):
        if section in config:
            raise InputError(
                f"the configuration of DeepSpeed has a section '{section}'; take it out: "
                "--optimizer and --schedule decide"
            )
    # In DeepSpeed's own bf16 mode weights, sums of micro-batches and sums over processes would be
    # bfloat16. A missing section "bf16" would be filled in; one that says false would contradict
    # the run's precision and be refused.
    config["bf16"] = {}
    config["fp16"] = {"enabled": False}
    # With an offloaded optimizer Accelerate would take an Adam of DeepSpeed.
    config["zero_force_ds_cpu_optimizer"] = False
    zero = config.get("zero_optimization", {})
    if zero.get("stage") == 3:
        # Without it no model.safetensors is written.
        zero["stage3_gather_16bit_weights_on_model_save"] = True


def _complete_fsdp(args: TrainingArguments, plugin: Any) -> None:
    if plugin.fsdp_version != 2:
        raise InputError(
            f"fsdp_version is {plugin.fsdp_version}; allowed: 2, as in accelerate_configs/fsdp.yaml"
        )
    # With Accelerate's default for FSDP2 the Trainer writes no model.safetensors. The settings of
    # that default would stay.
    plugin.state_dict_config = plugin.optim_state_dict_config = None
    plugin.set_state_dict_type("FULL_STATE_DICT")
    if args.bf16:
        # Counts and losses are inputs and outputs of the model: they are not rounded, nor are sums
        # of gradients.
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    if args.device.type == "cpu":
        # On CPUs Accelerate would use DDP without a warning, though torch's FSDP2 runs there.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def layer_classes(model: torch.nn.Module) -> list[str]:
    """Return the class names of a model's layers, which are the modules of its lists."""
    names: set[str] = set()
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            names.update(type(layer).__name__ for layer in module)
    return sorted(names)


@contextmanager
def fsdp_groups(trainer: Trainer) -> Iterator[None]:
    """Let FSDP wrap a model's layers inside of the block.

    Its embeddings stay in one group with the heads, which share weight and bias with them. In a
    second group they would leave the other name of the decoder's bias, `cls.predictions.bias`, in
    the first.
    """
    model: Any = trainer.model
    plugin: Any = trainer.accelerator.state.fsdp_plugin
    plugin.transformer_cls_names_to_wrap = layer_classes(model)
    model.get_input_embeddings = model.get_output_embeddings = lambda: None
    try:
        yield
    finally:
        del model.get_input_embeddings, model.get_output_embeddings


@contextmanager
def sharded_once(trainer: Trainer) -> Iterator[None]:
    """Let Accelerate take a model that an earlier phase has sharded, with its optimizer, as it is.

    It would find the optimizer's parameters again by the addresses of their shards, and these are 0
    for every empty shard.
    """
    accelerator: Any = trainer.accelerator
    if not isinstance(trainer.model, FSDPModule):
        yield
        return

    def register(model: Any, optimizer: Any) -> tuple[Any, Any]:
        accelerator._models.append(model)
        accelerator._optimizers.append(optimizer)
        return model, optimizer

    accelerator.prepare = register
    try:
        yield
    finally:
        del accelerator.prepare


def load_fsdp_weights(trainer: Any, checkpoint: Path) -> None:
    """Load the weights of a checkpoint into a model under FSDP; the main process reads them.

    Stock needs a second copy of them in another file.
    """
    model = trainer.model
    # Torch expects FSDP2's root group to be sharded, and after an evaluation it is not.
    model.reshard()
    weights = {}
    if trainer.is_world_process_zero():
        stored = trainer.read_weights(checkpoint)
        weights = {name: stored[name] for name, _ in model.named_parameters()}
    # Not strict: shared tensors are missing under their second name.
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(model, weights, options=options)


# DeepSpeed's checkpoints


def check_zero_checkpoint(checkpoint: Path) -> None:
    """Refuse a folder that is no complete checkpoint of DeepSpeed.

    Its files are pickles: opening one from elsewhere may run code. The manifest says that they are
    what was written, not who wrote them.
    """
    reason = why_incomplete(checkpoint)
    if reason is not None:
        raise InputError(f"checkpoint: {checkpoint} is no complete checkpoint: {reason}")
    # DeepSpeed's name of the folder with the files of all processes.
    if not (checkpoint / "latest").is_file():
        raise InputError(
            f"checkpoint: {checkpoint} is not DeepSpeed's: it is in Hub form already, and opens "
            "with from_pretrained"
        )


def consolidate_zero_checkpoint(checkpoint: Path) -> transformers.PreTrainedModel:
    """Return the model of a checkpoint that passed `check_zero_checkpoint`.

    The weights are float32, with stock's class and names.
    """
    try:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    except ImportError as error:
        raise InputError(
            "DeepSpeed is missing; install it: pip install 'bert-recipes[deepspeed]'"
        ) from error
    config: Any = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    architecture = config.architectures[0]
    # Stock's class has no generator, which the weights have.
    model_class: Any = ElectraForPreTraining
    if architecture != ElectraForPreTraining.__name__:
        model_class = getattr(transformers, architecture)
    model: transformers.PreTrainedModel = model_class(config)
    # DeepSpeed writes messages to stdout, which has the script's output alone.
    with redirect_stdout(sys.stderr):
        weights = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint))
    # Loading copies the weights: DeepSpeed returns a shared weight as one tensor under two names,
    # which safetensors does not write.
    keys = model.load_state_dict(weights, strict=False)
    model.tie_weights()
    # A shared weight may be there under one of its names only.
    tied = model.all_tied_weights_keys or {}
    wrong_keys = [key for key in keys.missing_keys if key not in tied]
    wrong_keys += keys.unexpected_keys
    if wrong_keys:
        raise InputError(
            f"checkpoint: {checkpoint} and its config.json do not belong together "
            f"({', '.join(wrong_keys[:3])})"
        )
    return model
