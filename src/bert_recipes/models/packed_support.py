"""The models and calls that the packed encoder serves; stock layers serve the others.

Legend: B sequences, S positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bert_recipes.models.sizes import reads_left_to_right
from bert_recipes.models.stock_layers import (
    EXACT_BY_TYPE,
    GELU_IS_EXACT,
    gelu_is_exact,
    layers_of,
)


# Modules of a plain encoder have these types, or are classes of these Python modules. Others are
# adapters, another attention, ...
PLAIN_TYPES = {
    nn.ModuleList,
    nn.Linear,
    nn.LayerNorm,
    nn.Embedding,
    nn.Dropout,
    nn.Tanh,
    nn.GELU,
    *EXACT_BY_TYPE,
}
PLAIN_MODULES = {
    "transformers.models.bert.modeling_bert",
    "transformers.models.roberta.modeling_roberta",
    "transformers.models.albert.modeling_albert",
    "transformers.models.distilbert.modeling_distilbert",
    "transformers.models.electra.modeling_electra",
    "bert_recipes.models.bert_model",
}
# Hooks of transformers that change no numbers: gradient checkpointing's on the embeddings, and
# those that collect hidden states, which stay on the layers after one call has asked for them and
# do nothing in the others.
IDLE_HOOKS = ("make_inputs_require_grads", "output_capturing_hook")
# Arguments that the packed encoder reads, and those that change no hidden states.
SERVED_ARGUMENTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
HARMLESS_ARGUMENTS = {"num_items_in_batch", "return_dict"}
# Types of products that our kernels have, and torch's flash kernel.
CPU_TYPES = (torch.float32, torch.bfloat16)
GPU_TYPES = (torch.float16, torch.bfloat16)


def why_not_model(model: Any, *, serves_decoders: bool = False) -> str | None:
    """Return why the packed encoder does not serve a model; None if it does."""
    config = model.config
    activation = getattr(config, "hidden_act", None) or config.activation
    if activation not in GELU_IS_EXACT:
        return f"hidden_act is {activation}"
    if getattr(config, "add_cross_attention", False):
        return "it has cross-attention"
    if reads_left_to_right(config) and not serves_decoders:
        return "it is a decoder"
    if reads_left_to_right(config) and model.computes_pads:
        return "it is a decoder that computes pads"
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return "its weights are spread over processes"
    return None


def why_not_call(model: Any, inputs: Mapping[str, Any], *, has_packing: bool = False) -> str | None:
    """Return why the packed encoder does not serve a call; None if it does.

    The packed encoder serves calls that ask for nothing but the last hidden states, of sequences
    that begin with a token, from plain modules. A batch with a packing (`make_packing`) has such
    sequences.

    Args:
        inputs: The arguments of the encoder by name.
        has_packing: The batch has a packing.
    """
    if inputs.get("input_ids") is None:
        return "input_ids are not given"
    if names := _unserved_arguments(model.config, inputs):
        return f"{', '.join(names)} is asked for"
    if torch._C._get_tracing_state() is not None:
        return "the model is traced"
    dtype = products_type(model)
    allowed_types = GPU_TYPES if model.device.type == "cuda" else CPU_TYPES
    if dtype not in allowed_types:
        return f"products are in {dtype}"
    reason = _why_not_modules(model)
    if reason is None and not has_packing:
        reason = _why_not_mask(model, inputs.get("attention_mask"))
    return reason


def _unserved_arguments(config: Any, inputs: Mapping[str, Any]) -> list[str]:
    """Return what a call, or the model's configuration, asks for beside the last hidden states."""
    names = set()
    for name, value in inputs.items():
        if value is not None and value is not False:
            names.add(name)
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name):
            names.add(name)
    return sorted(names - SERVED_ARGUMENTS - HARMLESS_ARGUMENTS)


def _why_not_modules(model: Any) -> str | None:
    """Return which module of the encoder or its embeddings is not stock's; None if all are."""
    for name, module in model.named_modules():
        # The pooler is called as it is; only what it is given has to be plain.
        if name and not name.startswith("pooler.") and not is_plain(module):
            return f"{name} is not as stock BERT has it (hooks, another type or forward)"
    for number, layer in enumerate(layers_of(model)):
        if layer.attention_norm.eps != layer.output_norm.eps:
            return f"the LayerNorms of layer {number} have two epsilons"
        if gelu_is_exact(layer.activation) is None:
            return f"layer {number} has another activation than GELU"
    return None


def _why_not_mask(model: Any, attention_mask: torch.Tensor | None) -> str | None:
    """Return why rows cannot be packed by a mask, (B, S) of any type; None if they can."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        return f"attention_mask has {attention_mask.dim()} dimensions"
    is_token = attention_mask != 0
    if not bool(is_token[:, 0].all()):
        return "a row does not begin with a token"
    # Where pads are rows too, they have to follow the tokens.
    if model.computes_pads and bool((is_token[:, 1:] > is_token[:, :-1]).any()):
        return "there are pads between tokens"
    return None


def products_type(model: Any) -> torch.dtype:
    """Return the type in which products are computed: autocast's, or the weights'."""
    device = model.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype


def is_plain(module: nn.Module) -> bool:
    """Return whether a module, without its children, computes what the stock one does.

    Such a module has a plain type, no hooks, and no forward of its instance.
    """
    kind = type(module)
    if kind not in PLAIN_TYPES and kind.__module__ not in PLAIN_MODULES:
        return False
    if module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    for hook in module._forward_hooks.values():
        if getattr(hook, "__name__", "") not in IDLE_HOOKS:
            return False
    return "forward" not in module.__dict__ and _has_stock_parameters(module)


def _has_stock_parameters(module: nn.Module) -> bool:
    """Return whether a module of torch has the parameters and options of stock BERT's."""
    if isinstance(module, nn.Linear | nn.LayerNorm):
        return module.weight is not None and module.bias is not None
    if isinstance(module, nn.Embedding):
        has_options = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
        return not has_options
    return True
