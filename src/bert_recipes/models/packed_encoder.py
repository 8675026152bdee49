"""The encoder of a stock `BertModel` on packed rows: which models and calls it serves, and how.

Legend: B sequences, S positions, T rows (real tokens), H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bert_recipes.kernels import Kernels
from bert_recipes.models.encoder_layer import LayerSettings, encode_layer, layer_parameters
from bert_recipes.models.padding_free import PackedLayout, make_layout


# hidden_act -> whether it is the GELU by the error function; the other one is the tanh formula of the original.
GELU_IS_EXACT = {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}
_EMBEDDINGS = 0  # stream of the embeddings' dropout


def why_not_packed(model: transformers.BertModel) -> str | None:
    """Why the packed encoder does not serve a model; None if it does."""
    config = model.config
    if config.hidden_act not in GELU_IS_EXACT:
        return f"hidden_act is {config.hidden_act}"
    if config.is_decoder or getattr(config, "add_cross_attention", False):
        return "it is a decoder"
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return "its weights are spread over processes"
    return None


def serves_batch(model: Any, attention_mask: torch.Tensor | None, kwargs: dict[str, Any]) -> bool:
    """Whether a call asks for nothing but the last hidden states, of sequences that begin with a token."""
    config = model.config
    if any(value for value in kwargs.values()) or config.output_attentions or config.output_hidden_states:
        return False
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if attention_mask is None:
        return True
    if attention_mask.dim() != 2 or not bool((attention_mask[:, 0] == 1).all()):
        return False
    # Where pads are rows too, they have to follow the tokens.
    return not model.computes_pads or bool((attention_mask[:, 1:] <= attention_mask[:, :-1]).all())


def encode_packed(
    model: Any,
    kernels: Kernels,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
) -> tuple[torch.Tensor, PackedLayout]:
    """Run embeddings and layers on the real tokens of a batch.

    Args:
        model: A `bert_recipes.models.bert_model.BertModel`; its weights are used, its modules' own forwards are not.
        kernels: How to compute.
        input_ids: int64 (B, S).
        attention_mask: int (B, S) or None.
        token_type_ids: int64 (B, S) or None.
        position_ids: int64 (B, S), (1, S) or None.

    Returns:
        The last hidden states (T, H), in bfloat16 under such an autocast, and their layout.
    """
    config, training = model.config, model.training
    device = input_ids.device.type
    dtype = model.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    settings = LayerSettings(
        heads=config.num_attention_heads,
        epsilon=config.layer_norm_eps,
        exact_gelu=GELU_IS_EXACT[config.hidden_act],
        hidden_dropout=config.hidden_dropout_prob if training else 0.0,
        attention_dropout=config.attention_probs_dropout_prob if training else 0.0,
        dtype=dtype,
    )
    drops = settings.hidden_dropout > 0 or settings.attention_dropout > 0
    # One draw from torch's generator decides all masks of the pass: its state is all that a resume needs.
    layers: Any = model.encoder.layer
    count = len(layers) + 1
    seeds = torch.randint(-(2**63), 2**63 - 1, (count,)).tolist() if drops else [0] * count

    shape = (input_ids.shape[0], input_ids.shape[1])
    layout = make_layout(
        attention_mask, shape, input_ids.device, heads=settings.heads, computes_pads=model.computes_pads
    )
    rows = _embed(model.embeddings, layout, input_ids, token_type_ids, position_ids).to(dtype)
    if settings.hidden_dropout > 0:
        rows = _Dropout.apply(rows, seeds[-1], settings.hidden_dropout, kernels)
    for layer, seed in zip(layers, seeds, strict=False):
        arguments = (rows, layout, settings, seed, kernels, layer_parameters(layer))
        if training and layer.gradient_checkpointing:
            rows = layer._gradient_checkpointing_func(encode_layer, *arguments)
        else:
            rows = encode_layer(*arguments)
    return rows, layout


def _embed(
    embeddings: Any,
    layout: PackedLayout,
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
) -> torch.Tensor:
    """The normalised sum of the three embeddings, (T, H) in the type of the weights."""
    batch, size = layout.shape
    if position_ids is None:
        position_ids = torch.arange(size, device=input_ids.device)[None]
    positions = layout.pack(position_ids.expand(batch, size))
    word = embeddings.word_embeddings
    total = F.embedding(layout.pack(input_ids), word.weight, padding_idx=word.padding_idx)
    total = total + F.embedding(positions, embeddings.position_embeddings.weight)
    if token_type_ids is None:
        total = total + embeddings.token_type_embeddings.weight[0]
    else:
        total = total + F.embedding(layout.pack(token_type_ids), embeddings.token_type_embeddings.weight)
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
