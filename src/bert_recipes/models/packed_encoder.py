"""The encoder of a stock BERT or a member of its family on packed rows: which models and calls it
serves, and how.

Legend: B sequences, S positions, T rows (real tokens, and a few more: `PackedLayout.places`), H
hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers.activations import ACT2FN

from bert_recipes.models.compiled_layers import RESIDUAL_DTYPE, CompiledLayers
from bert_recipes.models.encoder_layer import LayerSettings, encode_layer
from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.padding_free import PackedLayout, make_layout, plan_rows, planned_layout
from bert_recipes.models.vocabulary_loss import SharedGradient, look_up


# hidden_act -> whether it is the GELU by the error function; the other one is the tanh formula of
# the original.
GELU_IS_EXACT = {"gelu": True, "gelu_new": False, "gelu_pytorch_tanh": False}
# Keywords that change no hidden states.
_HARMLESS = ("num_items_in_batch", "return_dict")
# Activation type -> the same.
_EXACT_TYPES = {type(ACT2FN[name]): is_exact for name, is_exact in GELU_IS_EXACT.items()}
# What an encoder consists of besides stock's own classes; anything else in it (adapters, another
# attention) is somebody's own.
_KNOWN_TYPES = {
    nn.ModuleList,
    nn.Linear,
    nn.LayerNorm,
    nn.Embedding,
    nn.Dropout,
    nn.Tanh,
    nn.GELU,
    *_EXACT_TYPES,
}
_STOCK_MODULES = {
    f"transformers.models.{name}.modeling_{name}"
    for name in ("bert", "roberta", "albert", "distilbert", "electra")
}
# Model type -> where a layer keeps its eight modules with weights (query, key, value, the
# attention's output, its LayerNorm, both feed-forward layers, the last LayerNorm), its dropouts (of
# the attention's probabilities, after attention, after the feed-forward part) and its activation.
_BERT_LAYER = (
    *(
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
    *(
        "attention.self.dropout",
        "attention.output.dropout",
        "output.dropout",
        "intermediate.intermediate_act_fn",
    ),
)
_LAYERS = {
    **dict.fromkeys(("bert", "roberta", "electra"), _BERT_LAYER),
    # Stock has no dropout after ALBERT's feed-forward part, nor after DistilBERT's attention.
    "albert": (
        *(
            "attention.query",
            "attention.key",
            "attention.value",
            "attention.dense",
            "attention.LayerNorm",
        ),
        *("ffn", "ffn_output", "full_layer_layer_norm"),
        *("attention.attention_dropout", "attention.output_dropout", None, "activation"),
    ),
    "distilbert": (
        *(
            "attention.q_lin",
            "attention.k_lin",
            "attention.v_lin",
            "attention.out_lin",
            "sa_layer_norm",
        ),
        *(
            "ffn.lin1",
            "ffn.lin2",
            "output_layer_norm",
            "attention.dropout",
            None,
            "ffn.dropout",
            "ffn.activation",
        ),
    ),
}
# Hooks of transformers that change no numbers: gradient checkpointing's on the embeddings, and
# those that collect hidden states, which stay on the layers after one call has asked for them and
# do nothing in the others.
_IDLE_HOOKS = ("make_inputs_require_grads", "output_capturing_hook")
_EMBEDDINGS = 0  # stream of the embeddings' dropout


@dataclass(frozen=True)
class Encoded:
    """The last hidden states of the real tokens of a batch."""

    rows: torch.Tensor  # (T, H), in bfloat16 under such an autocast
    layout: PackedLayout
    # Where an output layer that shares the word embeddings' weight may leave its gradient; None if
    # they learn nothing.
    shared: SharedGradient | None
    is_stock: bool = False  # the output of the encoder called as a module, padding and all

    @property
    def is_planned(self) -> bool:
        """Whether the rows are those of `plan_rows`: the real tokens in the order of the padded
        batch.
        """
        return self.layout.offsets is not None and self.layout.places is not None


class LayerParts(NamedTuple):
    """The modules and dropout rates of one encoder layer."""

    modules: tuple[Any, ...]  # the eight with weights
    # Of probabilities, after attention, after the feed-forward part; 0 in evaluation.
    dropouts: tuple[float, float, float]
    activation: nn.Module

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The sixteen of `encode_layer`."""
        return tuple(
            parameter for module in self.modules for parameter in (module.weight, module.bias)
        )

    def settings(self, config: Any, dtype: torch.dtype) -> LayerSettings:
        """Return what is not learnt; `dtype` is that of the products."""
        return LayerSettings(
            heads=config.num_attention_heads,
            epsilon=self.modules[7].eps,
            exact_gelu=bool(_is_exact(self.activation)),
            hidden_dropouts=self.dropouts[1:],
            attention_dropout=self.dropouts[0],
            dtype=dtype,
            is_causal=bool(getattr(config, "is_decoder", False)),
        )


def layers_of(model: Any) -> Iterator[tuple[Any, LayerParts]]:
    """The layers of an encoder in the order in which they are computed, shared ones more than
    once.
    """
    config = model.config
    *modules, attention, first, second, activation = _LAYERS[config.model_type]
    if config.model_type == "albert":
        groups, depth = model.encoder.albert_layer_groups, config.num_hidden_layers
        chosen = [
            groups[int(number / (depth / len(groups)))] for number in range(depth)
        ]  # as stock rounds
        layers = [layer for group in chosen for layer in group.albert_layers]
    else:
        layers = (model.transformer if config.model_type == "distilbert" else model.encoder).layer
    take = attrgetter(*modules)
    for layer in layers:
        rates: Any = tuple(
            0.0 if name is None else _rate(attrgetter(name)(layer))
            for name in (attention, first, second)
        )
        yield layer, LayerParts(take(layer), rates, attrgetter(activation)(layer))


def _is_exact(activation: nn.Module) -> bool | None:
    """Whether an activation is the GELU by the error function; None where it is no GELU of ours."""
    return (
        activation.approximate == "none"
        if type(activation) is nn.GELU
        else _EXACT_TYPES.get(type(activation))
    )


def why_not_packed(model: Any, *, serves_decoders: bool = False) -> str | None:
    """Say why the packed encoder does not serve a model; None if it does."""
    config = model.config
    activation = getattr(config, "hidden_act", None) or config.activation
    if activation not in GELU_IS_EXACT:
        return f"hidden_act is {activation}"
    if getattr(config, "add_cross_attention", False):
        return "it has cross-attention"
    if getattr(config, "is_decoder", False) and not serves_decoders:
        return "it is a decoder"
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return "its weights are spread over processes"
    return None


def asked_for(config: Any, kwargs: Mapping[str, Any]) -> list[str]:
    """What a call, or the configuration of its model, asks for beside the last hidden states."""
    asked = {name for name, value in kwargs.items() if value is not None and value is not False}
    asked |= {
        name for name in ("output_attentions", "output_hidden_states") if getattr(config, name)
    }
    return sorted(asked.difference(_HARMLESS))


def why_not_batch(
    model: Any,
    attention_mask: torch.Tensor | None,
    kwargs: dict[str, Any],
    *,
    is_planned: bool = False,
) -> str | None:
    """Say why the packed encoder does not serve a call; None if it does.

    It serves calls that ask for nothing but the last hidden states, of sequences that begin with a
    token, from plain modules. A batch that `plan_rows` has planned has such sequences.
    """
    if asked := asked_for(model.config, kwargs):
        return f"{', '.join(asked)} is asked for"
    if torch._C._get_tracing_state() is not None:
        return "the model is traced"
    # Of our kernels, or of torch's flash kernel.
    allowed = (
        (torch.float16, torch.bfloat16)
        if model.device.type == "cuda"
        else (torch.float32, torch.bfloat16)
    )
    if (dtype := products_type(model)) not in allowed:
        return f"products are in {dtype}"
    reason = why_not_modules(model)
    return reason if reason is not None or is_planned else _why_not_mask(model, attention_mask)


def why_not_modules(model: Any) -> str | None:
    """Which module of the encoder or its embeddings or pooler is not stock's, or None."""
    for name, module in model.named_modules():
        # The pooler is called as it is; only what it is given has to be known.
        if name and not name.startswith("pooler.") and not is_plain(module):
            return f"{name} is not as stock BERT has it (hooks, another type or forward)"
    for number, (_, parts) in enumerate(layers_of(model)):
        if parts.modules[4].eps != parts.modules[7].eps or _is_exact(parts.activation) is None:
            return f"layer {number} has two epsilons or another activation"
    return None


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
    """Whether a module, without its parts, is as stock BERT has it: of a known type or `own_type`,
    without hooks or its own forward.
    """
    after = [
        hook
        for hook in module._forward_hooks.values()
        if getattr(hook, "__name__", "") not in _IDLE_HOOKS
    ]
    hooks = (after, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    kind = type(module)
    is_known = kind in _KNOWN_TYPES or kind.__module__ in _STOCK_MODULES or kind is own_type
    return is_known and not any(hooks) and "forward" not in module.__dict__ and _is_complete(module)


def _is_complete(module: nn.Module) -> bool:
    """Whether a module of torch has the parameters, and only the abilities, that stock BERT's
    has.
    """
    if isinstance(module, nn.Linear | nn.LayerNorm):
        return module.weight is not None and module.bias is not None
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return True


def encode_packed(
    model: Any,
    kernels: Kernels | CompiledLayers,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    plan: Mapping[str, torch.Tensor] | None = None,
    keep: dict[int, torch.Tensor | None] | None = None,
) -> Encoded:
    """Run embeddings and layers on the real tokens of a batch.

    Args:
        model: A `bert_recipes.models.bert_model.PackedModel`; its weights are used, its modules'
            own forwards are not.
        kernels: Of `load_kernels`.
        input_ids: int64 (B, S).
        attention_mask: (B, S) of any type, 0 = pad, or None.
        token_type_ids: int64 (B, S), (1, S) or None.
        position_ids: int64 (B, S), (1, S) or None.
        plan: Of `plan_rows`, for `CompiledLayers`; None: made here, for which a GPU waits.
        keep: Its keys say which hidden states are wanted beside the last, 0 for the embeddings;
            they become the values, (T, H).
    """
    if position_ids is None:
        position_ids = positions_of(model.embeddings, input_ids)
    inputs = (input_ids, token_type_ids, position_ids)
    if isinstance(kernels, CompiledLayers):
        if plan is None:
            plan = plan_rows(
                torch.ones_like(input_ids) if attention_mask is None else attention_mask
            )
        return _encode_by_compiled_layers(model, kernels, plan, *inputs, keep or {})
    return _encode_by_kernels(model, kernels, attention_mask, *inputs, keep or {})


def _encode_by_compiled_layers(
    model: Any,
    layers: CompiledLayers,
    plan: Mapping[str, torch.Tensor],
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor,
    keep: dict[int, torch.Tensor | None],
) -> Encoded:
    shape = (input_ids.shape[0], input_ids.shape[1])
    layout = planned_layout(plan, shape, computes_pads=model.computes_pads)
    assert layout.offsets is not None
    dtype, offsets = products_type(model), layout.offsets
    if token_type_ids is not None:
        token_type_ids = token_type_ids.expand(shape)
    # Each operation says its own type.
    with torch.autocast(input_ids.device.type, enabled=False):
        rows = layers.embed(
            model.embeddings,
            layout,
            input_ids,
            token_type_ids,
            position_ids.expand(shape),
            dropout=_rate(model.embeddings.dropout),
            dtype=RESIDUAL_DTYPE,
        )
        if (projection := model.projection) is not None:
            rows = F.linear(
                rows.to(dtype), projection.weight.to(dtype), projection.bias.to(dtype)
            ).to(RESIDUAL_DTYPE)

        def encode(rows: torch.Tensor, number: int, parts: LayerParts) -> torch.Tensor:
            return layers.encode_layer(
                rows, offsets, parts.settings(model.config, dtype), parts.parameters
            )

        rows = _run_layers(list(layers_of(model)), rows, encode, keep)
    return Encoded(rows, layout, None)


def _encode_by_kernels(
    model: Any,
    kernels: Kernels,
    attention_mask: torch.Tensor | None,
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor,
    keep: dict[int, torch.Tensor | None],
) -> Encoded:
    config, dtype, layers = model.config, products_type(model), list(layers_of(model))
    embeddings_dropout = _rate(model.embeddings.dropout)
    seeds = [0] * (len(layers) + 1)
    if embeddings_dropout > 0 or any(any(parts.dropouts) for _, parts in layers):
        # One draw from torch's generator decides all masks of a pass: its state is all that a
        # resume needs.
        seeds = torch.randint(-(2**63), 2**63 - 1, (len(seeds),)).tolist()

    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    layout = make_layout(
        attention_mask, heads=config.num_attention_heads, computes_pads=model.computes_pads
    )
    shared = SharedGradient()
    rows = _embed(model.embeddings, layout, input_ids, token_type_ids, position_ids, shared).to(
        dtype
    )
    if embeddings_dropout > 0:
        rows = _Dropout.apply(rows, seeds[-1], embeddings_dropout, kernels)
    if (project := model.projection) is not None:
        rows = project(rows).to(dtype)

    def encode(rows: torch.Tensor, number: int, parts: LayerParts) -> torch.Tensor:
        settings, seed = parts.settings(config, dtype), seeds[number - 1]
        return encode_layer(rows, layout, settings, seed, kernels, parts.parameters)

    rows = _run_layers(layers, rows, encode, keep)
    learns = torch.is_grad_enabled() and model.embeddings.word_embeddings.weight.requires_grad
    return Encoded(rows, layout, shared if learns else None)


def _run_layers(
    layers: Sequence[tuple[Any, LayerParts]],
    rows: torch.Tensor,
    encode: Callable[[torch.Tensor, int, LayerParts], torch.Tensor],
    keep: dict[int, torch.Tensor | None],
) -> torch.Tensor:
    """Run the layers one after the other, with gradient checkpointing where it is switched on."""
    if 0 in keep:
        keep[0] = rows
    for number, (layer, parts) in enumerate(layers, start=1):
        if layer.training and getattr(layer, "gradient_checkpointing", False):
            if _is_cut_off(layer, rows):
                rows.requires_grad_()
            rows = layer._gradient_checkpointing_func(encode, rows, number, parts)
        else:
            rows = encode(rows, number, parts)
        if number in keep:
            keep[number] = rows
    return rows


def _is_cut_off(layer: Any, rows: torch.Tensor) -> bool:
    """Whether a layer that learns would get no gradient: reentrant checkpointing passes it on only
    where an input has one.
    """
    is_reentrant = getattr(layer._gradient_checkpointing_func, "keywords", {}).get(
        "use_reentrant", True
    )
    learns = torch.is_grad_enabled() and any(
        parameter.requires_grad for parameter in layer.parameters()
    )
    return is_reentrant and learns and not rows.requires_grad


def _rate(dropout: nn.Dropout) -> float:
    return dropout.p if dropout.training else 0.0


def positions_of(embeddings: Any, input_ids: torch.Tensor) -> torch.Tensor:
    """int64 (B, S) or (1, S): the positions that stock gives to tokens, RoBERTa's counted from the
    one after that of pads.
    """
    pad = embeddings.position_embeddings.padding_idx
    if pad is None:
        return torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    is_token = input_ids.ne(pad).long()
    return is_token.cumsum(1) * is_token + pad


def _embed(
    embeddings: Any,
    layout: PackedLayout,
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor,
    shared: SharedGradient,
) -> torch.Tensor:
    """The normalised sum of the embeddings, (T, E) in the type of the weights."""
    positions = layout.pack(position_ids.expand(layout.shape))
    word, place = embeddings.word_embeddings, embeddings.position_embeddings
    total = look_up(word.weight, layout.pack(input_ids), word.padding_idx, shared)
    total = total + F.embedding(positions, place.weight, place.padding_idx)
    types = getattr(embeddings, "token_type_embeddings", None)  # DistilBERT has none
    if types is not None and token_type_ids is None:
        total = total + types.weight[0]
    elif types is not None and token_type_ids is not None:
        total = total + F.embedding(
            layout.pack(token_type_ids.expand(layout.shape)), types.weight, types.padding_idx
        )
    norm = embeddings.LayerNorm
    with torch.autocast(total.device.type, enabled=False):
        return F.layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, seed: int, p: float, kernels: Kernels
    ) -> torch.Tensor:
        ctx.seed, ctx.p, ctx.kernels = seed, p, kernels
        return kernels.dropout(rows, seed, _EMBEDDINGS, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return (
            ctx.kernels.dropout(grad.contiguous(), ctx.seed, _EMBEDDINGS, ctx.p),
            None,
            None,
            None,
        )
