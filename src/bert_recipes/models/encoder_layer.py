"""A BERT layer on packed rows as one differentiable function.

The same mathematics as stock `BertLayer`, with one product for query, key and value, no work on
pads, dropout masks that are computed again instead of stored, and one pass over memory between two
products (`bert_recipes.models.kernels`).

Legend: T rows (real tokens, and a few more: `PackedLayout.places`), H hidden size, F feed-forward
size, h heads, d = H / h, G sequences of a group, S positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.padding_free import PackedLayout


# Up to here the weights in the products' type are kept for the backward pass. With more rows
# converting them once more is a small part of the work, and the memory (14 MB a layer of BERT base)
# counts.
KEEPING_ROWS = 1024
# Which of a layer's independent masks; attention takes one for each group from there on.
_AFTER_ATTENTION, _AFTER_FEED_FORWARD, _ATTENTION = 0, 1, 2


@dataclass(frozen=True)
class LayerSettings:
    """What is not learnt."""

    heads: int
    epsilon: float  # of the LayerNorms
    exact_gelu: bool  # by the error function; otherwise by the tanh formula
    hidden_dropouts: tuple[
        float, float
    ]  # after attention, after the feed-forward part; 0 in evaluation
    attention_dropout: float  # the same
    dtype: torch.dtype  # of products and of what lies between them: float32 or bfloat16
    is_causal: bool = False  # a token sees those before it alone; `compiled_layers` only


def encode_layer(
    rows: torch.Tensor,
    layout: PackedLayout,
    settings: LayerSettings,
    seed: int,
    kernels: Kernels,
    parameters: tuple[torch.Tensor, ...],
) -> torch.Tensor:
    """One layer: rows (T, H) in `settings.dtype` -> the same; the 64 bits of `seed` decide the
    dropout masks.

    The sixteen parameters are weight and bias of query, key, value, the attention's output, its
    LayerNorm, both feed-forward layers, the last LayerNorm.
    """
    return _Layer.apply(rows, layout, settings, seed, kernels, *parameters)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        layout: PackedLayout,
        settings: LayerSettings,
        seed: int,
        kernels: Kernels,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        wq, bq, wk, bk, wv, bv, wo, bo, g1, c1, wi, bi, wf, bf, g2, c2 = parameters
        dtype, (p, q) = settings.dtype, settings.hidden_dropouts
        weights = _converted((wq, wk, wv, wo, wi, wf), dtype)
        w_in, wo_, wi_, wf_ = weights
        b_in = torch.cat([bq, bk, bv]).float()
        heads, probabilities, context = _attend(
            rows @ w_in.t(), b_in, layout, settings, seed, kernels
        )
        mixed, normal_1, inverse_1 = kernels.dropout_add_norm(
            context @ wo_.t(),
            bo.float(),
            rows,
            g1.float(),
            c1.float(),
            settings.epsilon,
            seed,
            _AFTER_ATTENTION,
            p,
        )
        inner = mixed @ wi_.t()
        out, normal_2, inverse_2 = kernels.dropout_add_norm(
            kernels.bias_gelu(inner, bi.float(), settings.exact_gelu) @ wf_.t(),
            bf.float(), mixed, g2.float(), c2.float(),
            settings.epsilon, seed, _AFTER_FEED_FORWARD, q,
        )  # fmt: skip
        ctx.layout, ctx.settings, ctx.seed, ctx.kernels, ctx.num_groups = (
            layout,
            settings,
            seed,
            kernels,
            len(heads),
        )
        ctx.keeps_weights = len(rows) < KEEPING_ROWS
        ctx.dtypes = tuple(parameter.dtype for parameter in parameters)
        ctx.save_for_backward(
            rows, context, normal_1, inverse_1, mixed, inner, normal_2, inverse_2,
            bi, g1, g2, *heads, *probabilities,
            *(weights if ctx.keeps_weights else (wq, wk, wv, wo, wi, wf)),
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        rows, context, normal_1, inverse_1, mixed, inner, normal_2, inverse_2, *rest = (
            ctx.saved_tensors
        )
        bi, g1, g2, *kept = rest
        count = ctx.num_groups
        heads, probabilities, weights = kept[:count], kept[count : 2 * count], kept[2 * count :]
        w_in, wo, wi, wf = weights if ctx.keeps_weights else _converted(weights, ctx.settings.dtype)
        settings, seed, kernels, (p, q) = (
            ctx.settings,
            ctx.seed,
            ctx.kernels,
            ctx.settings.hidden_dropouts,
        )
        learns = any(ctx.needs_input_grad[5:])

        of_mixed, of_out, dg2, dc2, dbf = kernels.dropout_add_norm_backward(
            grad.contiguous(), normal_2, inverse_2, g2.float(), seed, _AFTER_FEED_FORWARD, q
        )
        of_inner = of_out @ wf
        active, dbi = kernels.bias_gelu_backward_(of_inner, inner, bi.float(), settings.exact_gelu)
        dwf = of_out.t() @ active if learns else None
        del active
        dwi = of_inner.t() @ mixed if learns else None
        of_mixed = torch.addmm(of_mixed, of_inner, wi)
        of_rows, of_out, dg1, dc1, dbo = kernels.dropout_add_norm_backward(
            of_mixed, normal_1, inverse_1, g1.float(), seed, _AFTER_ATTENTION, p
        )
        dwo = of_out.t() @ context if learns else None
        of_in = _attend_backward(
            of_out @ wo, heads, probabilities, ctx.layout, settings, seed, kernels
        )
        of_rows = torch.addmm(of_rows, of_in, w_in)
        if not learns:
            return of_rows, *(None,) * 20
        dwq, dwk, dwv = (of_in.t() @ rows).chunk(3)
        dbq, dbk, dbv = kernels.column_sum(of_in).chunk(3)
        gradients = (dwq, dbq, dwk, dbk, dwv, dbv, dwo, dbo, dg1, dc1, dwi, dbi, dwf, dbf, dg2, dc2)
        return (
            of_rows,
            None,
            None,
            None,
            None,
            *(g.to(t) for g, t in zip(gradients, ctx.dtypes, strict=True)),
        )


def _converted(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """The six weights of a layer in another type; those of query, key and value below each other,
    (3 H, H).
    """
    *parts, wo, wi, wf = weights
    return torch.cat([part.to(dtype) for part in parts]), wo.to(dtype), wi.to(dtype), wf.to(dtype)


def _attend(
    projected: torch.Tensor,
    bias: torch.Tensor,
    layout: PackedLayout,
    settings: LayerSettings,
    seed: int,
    kernels: Kernels,
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values (T, 3 H) without their bias -> for each group (3, G, h, S, d) and
    probabilities (G, h, S, S); (T, H).
    """
    heads, probabilities = [], []
    context = _rows_to_fill(projected, projected.shape[1] // 3, layout)
    for number, group in enumerate(layout.groups):
        split = kernels.split_heads(
            projected[group.start : group.end], bias, group.offsets, settings.heads, group.length, 3
        )
        query, key, value = split.flatten(1, 2)
        scores = torch.bmm(query, key.mT).view(*split.shape[1:4], group.length)
        scaling = split.shape[-1] ** -0.5
        dropped = kernels.softmax_dropout_(
            scores,
            group.offsets,
            group.keys,
            scaling,
            seed,
            _ATTENTION + number,
            settings.attention_dropout,
        )
        mixed = torch.bmm(dropped.flatten(0, 1), value).view(1, *split.shape[1:])
        kernels.merge_heads_(context[group.start : group.end], mixed, group.offsets)
        heads.append(split)
        probabilities.append(scores)
    return heads, probabilities, context


def _rows_to_fill(like: torch.Tensor, width: int, layout: PackedLayout) -> torch.Tensor:
    """(T, width), zeros in the rows that belong to no group."""
    rows = like.new_empty((len(like), width))
    rows[layout.num_tokens :].zero_()
    return rows


def _attend_backward(
    grad: torch.Tensor,
    heads: list[torch.Tensor],
    probabilities: list[torch.Tensor],
    layout: PackedLayout,
    settings: LayerSettings,
    seed: int,
    kernels: Kernels,
) -> torch.Tensor:
    """Gradient of the context (T, H) -> gradient of queries, keys and values (T, 3 H)."""
    of_projected = _rows_to_fill(grad, 3 * grad.shape[1], layout)
    for number, (group, split, scores) in enumerate(
        zip(layout.groups, heads, probabilities, strict=True)
    ):
        query, key, value = split.flatten(1, 2)
        of_mixed = kernels.split_heads(
            grad[group.start : group.end], None, group.offsets, settings.heads, group.length, 1
        ).flatten(0, 2)
        p, stream, scaling = (
            settings.attention_dropout,
            _ATTENTION + number,
            split.shape[-1] ** -0.5,
        )
        of_scores = torch.bmm(of_mixed, value.mT).view_as(scores)
        of_split = torch.empty_like(split)
        of_query, of_key, of_value = of_split.flatten(1, 2)
        torch.bmm(kernels.dropout(scores, seed, stream, p).flatten(0, 1).mT, of_mixed, out=of_value)
        kernels.softmax_dropout_backward_(
            of_scores, scores, group.offsets, group.keys, scaling, seed, stream, p
        )
        of_scores = of_scores.flatten(0, 1)
        torch.bmm(of_scores, key, out=of_query)
        torch.bmm(of_scores.mT, query, out=of_key)
        kernels.merge_heads_(of_projected[group.start : group.end], of_split, group.offsets)
    return of_projected
