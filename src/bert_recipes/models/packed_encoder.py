"""The encoder of a stock `BertModel` on packed rows: which models and calls it serves, and how.

Legend: B sequences, S positions, T rows (real tokens, and a few more: `PackedLayout.places`), H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.bert import modeling_bert as stock

from bert_recipes.models.encoder_layer import LayerSettings, encode_layer, layer_parameters
from bert_recipes.models.kernels.loading import Kernels
from bert_recipes.models.padding_free import PackedLayout, make_layout
from bert_recipes.models.vocabulary_loss import SharedGradient, look_up


# hidden_act -> whether it is the GELU by the error function; the other one is the tanh formula of the original.
GELU_IS_EXACT = {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}
# Keywords that change no hidden states.
_HARMLESS = ("num_items_in_batch", "return_dict")
# What an encoder consists of; anything else in it (adapters, another attention) is somebody's own.
_KNOWN_TYPES = {
    *(stock.BertEmbeddings, stock.BertEncoder, stock.BertLayer, stock.BertAttention, stock.BertSelfAttention),
    *(stock.BertSelfOutput, stock.BertIntermediate, stock.BertOutput, stock.BertPooler),
    *(stock.BertPreTrainingHeads, stock.BertLMPredictionHead),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.GELU),
    *(type(ACT2FN[name]) for name in GELU_IS_EXACT),
}
# The same of the activations that a layer may hold, by their type.
_EXACT_TYPES = {type(ACT2FN[name]): is_exact for name, is_exact in GELU_IS_EXACT.items()}
# Hooks of transformers that change no numbers: gradient checkpointing's on the embeddings, and those that collect hidden states,
# which stay on the layers after one call has asked for them and do nothing in the others.
_IDLE_HOOKS = ("make_inputs_require_grads", "output_capturing_hook")
_EMBEDDINGS = 0  # stream of the embeddings' dropout


@dataclass(frozen=True)
class Encoded:
    """The last hidden states of the real tokens of a batch."""

    rows: torch.Tensor  # (T, H), in bfloat16 under such an autocast
    layout: PackedLayout
    # Where an output layer that shares the word embeddings' weight may leave its gradient; None if they learn nothing.
    shared: SharedGradient | None


def why_not_packed(model: transformers.BertModel) -> str | None:
    """Why neither the packed encoder nor stock layers on packed rows serve a model; None if they do."""
    config = model.config
    if config.hidden_act not in GELU_IS_EXACT:
        return f"hidden_act is {config.hidden_act}"
    if config.is_decoder or getattr(config, "add_cross_attention", False):
        return "it is a decoder"
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return "its weights are spread over processes"
    return None


def why_not_batch(model: Any, attention_mask: torch.Tensor | None, kwargs: dict[str, Any]) -> str | None:
    """Why the packed encoder does not serve a call; None if it does.

    It serves calls that ask for nothing but the last hidden states, of sequences that begin with a token, from plain modules.
    """
    config = model.config
    asked = [name for name, value in kwargs.items() if value is not None and value is not False]
    asked += [name for name in ("output_attentions", "output_hidden_states") if getattr(config, name)]
    if unserved := sorted({name for name in asked if name not in _HARMLESS}):
        return f"{', '.join(unserved)} is asked for"
    if torch._C._get_tracing_state() is not None:
        return "the model is traced"
    # Of our kernels, or of torch's flash kernel.
    allowed = (torch.float16, torch.bfloat16) if model.device.type == "cuda" else (torch.float32, torch.bfloat16)
    if (dtype := products_type(model)) not in allowed:
        return f"products are in {dtype}"
    return why_not_modules(model) or _why_not_mask(model, attention_mask)


def why_not_modules(model: Any) -> str | None:
    """Which module of the embeddings, the encoder or the pooler is not stock BERT's, or None."""
    for part in ("embeddings", "encoder", "pooler"):
        top = getattr(model, part)
        # The pooler is called as it is; only what it is given has to be known.
        modules = top.named_modules() if part != "pooler" else [] if top is None else [("", top)]
        for name, module in modules:
            if not is_plain(module):
                return f"{f'{part}.{name}'.rstrip('.')} is not as stock BERT has it (hooks, another type or forward)"
    others = model.embeddings.position_embeddings, model.embeddings.token_type_embeddings
    if any(each.padding_idx is not None for each in others):
        return "an embedding of positions or segments has a padding_idx"
    uneven = [number for number, layer in enumerate(model.encoder.layer) if not _is_even(layer, config=model.config)]
    return f"layer {uneven[0]} has two dropout rates, two epsilons or another activation" if uneven else None


def _why_not_mask(model: Any, attention_mask: torch.Tensor | None) -> str | None:
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        return f"attention_mask has {attention_mask.dim()} dimensions"
    if not bool((attention_mask[:, 0] != 0).all()):
        return "a row does not begin with a token"
    # Where pads are rows too, they have to follow the tokens.
    is_token = attention_mask != 0
    if model.computes_pads and not bool((is_token[:, 1:] <= is_token[:, :-1]).all()):
        return "there are pads between tokens"
    return None


def products_type(model: Any) -> torch.dtype:
    """What products are computed in: autocast's type, or the weights'."""
    device = model.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype


def is_plain(module: nn.Module, own_type: type[nn.Module] | None = None) -> bool:
    """Whether a module, without its parts, is as stock BERT has it: of a known type or `own_type`, without hooks or its own forward."""
    after = [hook for hook in module._forward_hooks.values() if getattr(hook, "__name__", "") not in _IDLE_HOOKS]
    hooks = (after, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    is_known = type(module) in _KNOWN_TYPES or type(module) is own_type
    return is_known and not any(hooks) and "forward" not in module.__dict__ and _is_complete(module)


def _is_complete(module: nn.Module) -> bool:
    """Whether a module of torch has the parameters, and only the abilities, that stock BERT's has."""
    if isinstance(module, nn.Linear | nn.LayerNorm):
        return module.weight is not None and module.bias is not None
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return True


def _is_even(layer: Any, config: Any) -> bool:
    """Whether both halves of a layer have the same dropout and the same epsilon, and its activation is the configuration's."""
    first, second, act = layer.attention.output, layer.output, layer.intermediate.intermediate_act_fn
    is_exact = act.approximate == "none" if type(act) is nn.GELU else _EXACT_TYPES.get(type(act))
    same = _rate(first.dropout) == _rate(second.dropout) and first.LayerNorm.eps == second.LayerNorm.eps
    return same and is_exact == GELU_IS_EXACT[config.hidden_act]


def encode_packed(
    model: Any,
    kernels: Kernels,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    keep: dict[int, torch.Tensor | None] | None = None,
) -> Encoded:
    """Run embeddings and layers on the real tokens of a batch.

    Args:
        model: A `bert_recipes.models.bert_model.BertModel`; its weights are used, its modules' own forwards are not.
        input_ids: int64 (B, S).
        attention_mask: (B, S) of any type, 0 = pad, or None.
        token_type_ids: int64 (B, S), (1, S) or None.
        position_ids: int64 (B, S), (1, S) or None.
        keep: Its keys say which hidden states are wanted beside the last, 0 for the embeddings; they become the values, (T, H).
    """
    config, dtype = model.config, products_type(model)
    layers: Any = model.encoder.layer
    settings = [
        LayerSettings(
            heads=config.num_attention_heads,
            epsilon=layer.output.LayerNorm.eps,
            exact_gelu=GELU_IS_EXACT[config.hidden_act],
            hidden_dropout=_rate(layer.output.dropout),
            attention_dropout=_rate(layer.attention.self.dropout),
            dtype=dtype,
        )
        for layer in layers
    ]
    embeddings_dropout = _rate(model.embeddings.dropout)
    seeds = [0] * (len(layers) + 1)
    if embeddings_dropout or any(each.hidden_dropout or each.attention_dropout for each in settings):
        # One draw from torch's generator decides all masks of a pass: its state is all that a resume needs.
        seeds = torch.randint(-(2**63), 2**63 - 1, (len(seeds),)).tolist()

    shape = (input_ids.shape[0], input_ids.shape[1])
    layout = make_layout(
        attention_mask, shape, input_ids.device, heads=config.num_attention_heads, computes_pads=model.computes_pads
    )
    shared = SharedGradient()
    rows = _embed(model.embeddings, layout, input_ids, token_type_ids, position_ids, shared).to(dtype)
    if embeddings_dropout > 0:
        rows = _Dropout.apply(rows, seeds[-1], embeddings_dropout, kernels)
    wanted = {} if keep is None else keep
    if 0 in wanted:
        wanted[0] = rows
    for number, (layer, own, seed) in enumerate(zip(layers, settings, seeds, strict=False), start=1):
        arguments = (rows, layout, own, seed, kernels, layer_parameters(layer))
        if layer.training and layer.gradient_checkpointing:
            if _is_cut_off(layer, rows):
                rows.requires_grad_()
            rows = layer._gradient_checkpointing_func(encode_layer, *arguments)
        else:
            rows = encode_layer(*arguments)
        if number in wanted:
            wanted[number] = rows
    learns = torch.is_grad_enabled() and model.embeddings.word_embeddings.weight.requires_grad
    return Encoded(rows, layout, shared if learns else None)


def _is_cut_off(layer: Any, rows: torch.Tensor) -> bool:
    """Whether a layer that learns would get no gradient: reentrant checkpointing passes it on only where an input has one."""
    is_reentrant = getattr(layer._gradient_checkpointing_func, "keywords", {}).get("use_reentrant", True)
    learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in layer.parameters())
    return is_reentrant and learns and not rows.requires_grad


def _rate(dropout: nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def _embed(
    embeddings: Any,
    layout: PackedLayout,
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    shared: SharedGradient,
) -> torch.Tensor:
    """The normalised sum of the three embeddings, (T, H) in the type of the weights."""
    batch, size = layout.shape
    if position_ids is None:
        position_ids = torch.arange(size, device=input_ids.device)[None]
    positions = layout.pack(position_ids.expand(batch, size))
    word = embeddings.word_embeddings
    total = look_up(word.weight, layout.pack(input_ids), word.padding_idx, shared)
    total = total + F.embedding(positions, embeddings.position_embeddings.weight)
    types = embeddings.token_type_embeddings.weight
    if token_type_ids is None:
        total = total + types[0]
    else:
        total = total + F.embedding(layout.pack(token_type_ids.expand(batch, size)), types)
    norm = embeddings.LayerNorm
    with torch.autocast(total.device.type, enabled=False):
        return F.layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, seed: int, p: float, kernels: Kernels) -> torch.Tensor:
        ctx.seed, ctx.p, ctx.kernels = seed, p, kernels
        return kernels.dropout(rows, seed, _EMBEDDINGS, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.kernels.dropout(grad.contiguous(), ctx.seed, _EMBEDDINGS, ctx.p), None, None, None
