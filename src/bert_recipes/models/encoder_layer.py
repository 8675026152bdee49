"""A BERT layer on packed rows as one differentiable function, for the kernels of a CPU.

The same mathematics as stock `BertLayer`, with one product for query, key and value, no work on
pads, dropout masks that are computed again instead of stored, and one pass over memory between two
products (`bert_recipes.models.kernels`).

Legend: T rows (real tokens, and a few more: `PackedLayout.places`), K of them that are read after
the layer, H hidden size, F feed-forward size, h heads, d = H / h, G sequences of a group, S
positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.padding_free import PackedLayout
from bert_recipes.models.stock_layers import LayerSettings, LayerWeights


# With fewer rows the cast weights are kept for the backward pass. With more rows casting them again
# is a small part of the work, and their memory (14 MB a layer of BERT base) counts.
MIN_ROWS_TO_CAST_AGAIN = 1024
# Numbers of a layer's independent dropout masks. Attention has one for each group, from
# FIRST_ATTENTION_STREAM on.
ATTENTION_OUTPUT_STREAM = 0
OUTPUT_STREAM = 1
FIRST_ATTENTION_STREAM = 2


def encode_layer(
    rows: torch.Tensor,
    layout: PackedLayout,
    settings: LayerSettings,
    seed: int,
    kernels: Kernels,
    weights: LayerWeights,
    output_rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute one layer, rows (T, H) -> (T, H), both in `settings.dtype`.

    The 64 bits of `seed` decide the dropout masks. With `output_rows`, int64 (K,), all rows are
    attended to, and the rest of the layer is computed for these alone: -> (K, H).
    """
    return _Layer.apply(rows, layout, settings, seed, kernels, output_rows, *weights)


class _CastWeights(NamedTuple):
    """Hold the weights of a layer's matrix products, cast to the type of the products."""

    projection: torch.Tensor  # (3 H, H), query, key and value below each other
    attention_output: torch.Tensor  # (H, H)
    intermediate: torch.Tensor  # (F, H)
    output: torch.Tensor  # (H, F)


class _Activations(NamedTuple):
    """Hold the results of the forward pass that the backward pass needs."""

    rows: torch.Tensor  # (T, H)
    # The others are of the K rows that are read.
    context: torch.Tensor  # (K, H), values weighed by attention
    attended: torch.Tensor  # (K, H), the LayerNorm of the rows and attention's output
    attended_normal: torch.Tensor  # (K, H), the same before weight and bias of the LayerNorm
    attended_inverse: torch.Tensor  # float32 (K,), 1 / deviation
    inner: torch.Tensor  # (K, F), before bias and GELU
    output_normal: torch.Tensor  # (K, H), of the last LayerNorm
    output_inverse: torch.Tensor  # float32 (K,)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        layout: PackedLayout,
        settings: LayerSettings,
        seed: int,
        kernels: Kernels,
        output_rows: torch.Tensor | None,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        weights = LayerWeights(*parameters)
        cast_weights = _cast_weights(weights, settings.dtype)
        # Results of matrix products are passed on at once: a variable would keep their memory.
        heads, probabilities, context = _attend(
            rows @ cast_weights.projection.t(),
            torch.cat([weights.query_bias, weights.key_bias, weights.value_bias]).float(),
            layout,
            settings,
            seed,
            kernels,
        )
        residual = rows
        if output_rows is not None:
            context = context[output_rows]
            residual = rows[output_rows]
        attended, attended_normal, attended_inverse = kernels.dropout_add_norm(
            context @ cast_weights.attention_output.t(),
            weights.attention_output_bias.float(),
            residual,
            weights.attention_norm.float(),
            weights.attention_norm_bias.float(),
            settings.epsilon,
            seed,
            ATTENTION_OUTPUT_STREAM,
            settings.attention_output_dropout,
        )
        inner = attended @ cast_weights.intermediate.t()
        inner_bias = weights.intermediate_bias.float()
        output, output_normal, output_inverse = kernels.dropout_add_norm(
            kernels.bias_gelu(inner, inner_bias, settings.exact_gelu) @ cast_weights.output.t(),
            weights.output_bias.float(),
            attended,
            weights.output_norm.float(),
            weights.output_norm_bias.float(),
            settings.epsilon,
            seed,
            OUTPUT_STREAM,
            settings.output_dropout,
        )
        activations = _Activations(
            rows=rows,
            context=context,
            attended=attended,
            attended_normal=attended_normal,
            attended_inverse=attended_inverse,
            inner=inner,
            output_normal=output_normal,
            output_inverse=output_inverse,
        )
        ctx.layout = layout
        ctx.settings = settings
        ctx.seed = seed
        ctx.kernels = kernels
        ctx.output_rows = output_rows
        kept_weights = cast_weights if len(rows) < MIN_ROWS_TO_CAST_AGAIN else ()
        ctx.save_for_backward(*activations, *heads, *probabilities, *weights, *kept_weights)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        activations, heads, probabilities, weights, cast_weights = _saved_tensors(ctx)
        settings = ctx.settings
        seed = ctx.seed
        kernels = ctx.kernels
        output_rows = ctx.output_rows
        learns = any(ctx.needs_input_grad[6:])

        attended_grad, dense_grad, *output_grads = kernels.dropout_add_norm_backward(
            grad.contiguous(),
            activations.output_normal,
            activations.output_inverse,
            weights.output_norm.float(),
            seed,
            OUTPUT_STREAM,
            settings.output_dropout,
        )
        inner_grad = dense_grad @ cast_weights.output
        inner_bias = weights.intermediate_bias.float()
        active, intermediate_bias_grad = kernels.bias_gelu_backward_(
            inner_grad, activations.inner, inner_bias, settings.exact_gelu
        )
        output_grad: Any = dense_grad.t() @ active if learns else None
        del active
        intermediate_grad: Any = inner_grad.t() @ activations.attended if learns else None
        attended_grad = torch.addmm(attended_grad, inner_grad, cast_weights.intermediate)
        rows_grad, dense_grad, *attention_grads = kernels.dropout_add_norm_backward(
            attended_grad,
            activations.attended_normal,
            activations.attended_inverse,
            weights.attention_norm.float(),
            seed,
            ATTENTION_OUTPUT_STREAM,
            settings.attention_output_dropout,
        )
        attention_output_grad: Any = dense_grad.t() @ activations.context if learns else None
        context_grad = dense_grad @ cast_weights.attention_output
        if output_rows is not None:
            rows_grad = _spread(rows_grad, output_rows, activations.rows)
            context_grad = _spread(context_grad, output_rows, activations.rows)
        projected_grad = _attend_backward(
            context_grad,
            heads,
            probabilities,
            ctx.layout,
            settings,
            seed,
            kernels,
        )
        rows_grad = torch.addmm(rows_grad, projected_grad, cast_weights.projection)
        if not learns:
            return rows_grad, *[None] * (5 + len(weights))

        query_grad, key_grad, value_grad = (projected_grad.t() @ activations.rows).chunk(3)
        query_bias_grad, key_bias_grad, value_bias_grad = kernels.column_sum(projected_grad).chunk(
            3
        )
        attention_norm_grad, attention_norm_bias_grad, attention_output_bias_grad = attention_grads
        output_norm_grad, output_norm_bias_grad, output_bias_grad = output_grads
        gradients = LayerWeights(
            query=query_grad,
            query_bias=query_bias_grad,
            key=key_grad,
            key_bias=key_bias_grad,
            value=value_grad,
            value_bias=value_bias_grad,
            attention_output=attention_output_grad,
            attention_output_bias=attention_output_bias_grad,
            attention_norm=attention_norm_grad,
            attention_norm_bias=attention_norm_bias_grad,
            intermediate=intermediate_grad,
            intermediate_bias=intermediate_bias_grad,
            output=output_grad,
            output_bias=output_bias_grad,
            output_norm=output_norm_grad,
            output_norm_bias=output_norm_bias_grad,
        )
        typed = []
        for gradient, weight in zip(gradients, weights, strict=True):
            typed.append(gradient.to(weight.dtype))
        return rows_grad, None, None, None, None, None, *typed


def _spread(gradient: torch.Tensor, output_rows: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the gradient of all rows (T, H) from that of those that are read, (K, H).

    A row may be read more than once.
    """
    return torch.zeros_like(rows).index_add_(0, output_rows, gradient)


def _saved_tensors(
    ctx: Any,
) -> tuple[_Activations, list[torch.Tensor], list[torch.Tensor], LayerWeights, _CastWeights]:
    """Return activations, heads and probabilities of each group, and the weights of a layer."""
    tensors = list(ctx.saved_tensors)
    num_groups = len(ctx.layout.groups)
    first_head = len(_Activations._fields)
    first_probability = first_head + num_groups
    first_weight = first_probability + num_groups
    first_cast_weight = first_weight + len(LayerWeights._fields)
    weights = LayerWeights(*tensors[first_weight:first_cast_weight])
    if len(tensors) > first_cast_weight:
        cast_weights = _CastWeights(*tensors[first_cast_weight:])
    else:
        cast_weights = _cast_weights(weights, ctx.settings.dtype)
    activations = _Activations(*tensors[:first_head])
    heads = tensors[first_head:first_probability]
    probabilities = tensors[first_probability:first_weight]
    return activations, heads, probabilities, weights, cast_weights


def _cast_weights(weights: LayerWeights, dtype: torch.dtype) -> _CastWeights:
    """Return the weights of a layer's matrix products in the type of the products."""
    query = weights.query.to(dtype)
    key = weights.key.to(dtype)
    value = weights.value.to(dtype)
    return _CastWeights(
        projection=torch.cat([query, key, value]),
        attention_output=weights.attention_output.to(dtype),
        intermediate=weights.intermediate.to(dtype),
        output=weights.output.to(dtype),
    )


def _attend(
    projected: torch.Tensor,
    bias: torch.Tensor,
    layout: PackedLayout,
    settings: LayerSettings,
    seed: int,
    kernels: Kernels,
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Let each row attend to the rows of its own sequence.

    Args:
        projected: (T, 3 H), queries, keys and values without their bias.
        bias: float32 (3 H,).

    Returns:
        The heads of each group (3, G, h, S, d), its attention probabilities (G, h, S, S), and the
        context (T, H)
    """
    heads_of_groups = []
    probabilities_of_groups = []
    context = _rows_to_fill(projected, projected.shape[1] // 3, layout)
    for number, group in enumerate(layout.groups):
        group_rows = slice(group.start, group.end)
        heads = kernels.split_heads(
            projected[group_rows], bias, group.offsets, settings.heads, group.length, 3
        )
        num_sequences, num_heads, length, head_size = heads.shape[1:]
        query, key, value = heads.flatten(1, 2)
        scores = torch.bmm(query, key.mT).view(num_sequences, num_heads, length, length)
        dropped = kernels.softmax_dropout_(
            scores,
            group.offsets,
            group.num_keys,
            head_size**-0.5,
            seed,
            FIRST_ATTENTION_STREAM + number,
            settings.attention_dropout,
        )
        mixed = torch.bmm(dropped.flatten(0, 1), value).view(1, *heads.shape[1:])
        kernels.merge_heads_(context[group_rows], mixed, group.offsets)
        heads_of_groups.append(heads)
        probabilities_of_groups.append(scores)  # the kernel has replaced the scores
    return heads_of_groups, probabilities_of_groups, context


def _attend_backward(
    context_grad: torch.Tensor,
    heads_of_groups: list[torch.Tensor],
    probabilities_of_groups: list[torch.Tensor],
    layout: PackedLayout,
    settings: LayerSettings,
    seed: int,
    kernels: Kernels,
) -> torch.Tensor:
    """Return the gradient of queries, keys and values (T, 3 H) from that of the context (T, H)."""
    dropout = settings.attention_dropout
    projected_grad = _rows_to_fill(context_grad, 3 * context_grad.shape[1], layout)
    tensors_of_groups = zip(layout.groups, heads_of_groups, probabilities_of_groups, strict=True)
    for number, (group, heads, probabilities) in enumerate(tensors_of_groups):
        stream = FIRST_ATTENTION_STREAM + number
        group_rows = slice(group.start, group.end)
        query, key, value = heads.flatten(1, 2)
        mixed_grad = kernels.split_heads(
            context_grad[group_rows], None, group.offsets, settings.heads, group.length, 1
        ).flatten(0, 2)
        scores_grad = torch.bmm(mixed_grad, value.mT).view_as(probabilities)
        heads_grad = torch.empty_like(heads)
        query_grad, key_grad, value_grad = heads_grad.flatten(1, 2)
        dropped = kernels.dropout(probabilities, seed, stream, dropout).flatten(0, 1)
        torch.bmm(dropped.mT, mixed_grad, out=value_grad)
        kernels.softmax_dropout_backward_(
            scores_grad,
            probabilities,
            group.offsets,
            group.num_keys,
            heads.shape[-1] ** -0.5,
            seed,
            stream,
            dropout,
        )
        scores_grad = scores_grad.flatten(0, 1)
        torch.bmm(scores_grad, key, out=query_grad)
        torch.bmm(scores_grad.mT, query, out=key_grad)
        kernels.merge_heads_(projected_grad[group_rows], heads_grad, group.offsets)
    return projected_grad


def _rows_to_fill(like: torch.Tensor, width: int, layout: PackedLayout) -> torch.Tensor:
    """Return an empty tensor (T, width) with zeros in the rows that belong to no group."""
    rows = like.new_empty((len(like), width))
    rows[layout.num_tokens :].zero_()
    return rows
