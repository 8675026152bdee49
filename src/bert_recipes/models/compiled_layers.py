"""The encoder on packed rows in torch operations, which torch.compile fuses: the way of a GPU.

The same mathematics as stock's layers. Query, key and value are one product, and what lies between
two products is one kernel. Sums and LayerNorms are computed in float32.

Legend: T packed rows, K of them that are read after a layer, H hidden size, E embedding size, M
predicted tokens, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from bert_recipes.models.embeddings import EmbeddingIds, add_and_norm_embeddings
from bert_recipes.models.kernels import plain
from bert_recipes.models.packed_attention import attend
from bert_recipes.models.padding_free import PackedLayout, RowOffsets
from bert_recipes.models.stock_layers import LayerSettings, LayerWeights


# Type of the rows between two layers. With bfloat16 products alone BERT base's first gradient has
# an error of 0.8 %, as in stock under autocast; with rows in bfloat16 it is 1.3 %.
RESIDUAL_DTYPE = torch.float32
# Models of a process, in training and evaluation, that are compiled apart; torch's 8 would be too
# few for a sweep.
RECOMPILE_LIMIT = 64
# Rows whose LayerNorm gradient one program of a GPU adds up. For batches of over 67,000 rows
# Inductor takes 64, two at a time: on an H200 the two kernels of a layer then took 22 times as long
# for four times the rows.
ROWS_PER_PROGRAM = 16


@dataclass(frozen=True)
class CompiledLayers:
    """Compute embeddings, layers and the loss over the vocabulary by compiled functions.

    Batches have other numbers of rows and positions, so these are symbols from the start: one
    compiled function serves all.
    """

    is_compiled: bool = True  # False: the same operations one by one

    def embed(
        self, embeddings: Any, layout: PackedLayout, ids: EmbeddingIds, dropout: float
    ) -> torch.Tensor:
        """Call `embed`."""
        self._mark_sizes(layout.places, *ids)
        return self._call(embed)(embeddings, layout, ids, dropout)

    def encode_layer(
        self,
        rows: torch.Tensor,
        offsets: RowOffsets,
        settings: LayerSettings,
        weights: LayerWeights,
        output_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Call `encode_layer`."""
        self._mark_number_of_rows(rows)
        self._mark_sizes(offsets.query_offsets, offsets.key_offsets, offsets.key_rows, output_rows)
        return self._call(encode_layer)(rows, offsets, settings, weights, output_rows)

    def cross_entropy_(
        self,
        logits: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
        needs_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Call `plain.cross_entropy_`."""
        self._mark_number_of_rows(logits)
        self._mark_sizes(targets)
        return self._call(plain.cross_entropy_)(logits, bias, targets, scale, needs_gradient)

    def _mark_number_of_rows(self, tensor: torch.Tensor) -> None:
        """Make the first size of a tensor a symbol."""
        if self.is_compiled:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)

    def _mark_sizes(self, *tensors: torch.Tensor | None) -> None:
        """Make all sizes of some tensors symbols."""
        if not self.is_compiled:
            return
        for tensor in tensors:
            if tensor is not None:
                torch._dynamo.maybe_mark_dynamic(tensor, list(range(tensor.dim())))

    def _call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _compile(function) if self.is_compiled else function


@functools.cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
    torch._dynamo.config.recompile_limit = limit
    # Under DDP dynamo would cut a function where a bucket of gradients ends, so that they can be
    # summed during the backward pass; layer by layer, they can.
    torch._dynamo.config.optimize_ddp = False
    options: dict[str, Any] = {"triton.mix_order_reduction_split_size": ROWS_PER_PROGRAM}
    return torch.compile(function, options=options)


def embed(embeddings: Any, layout: PackedLayout, ids: EmbeddingIds, dropout: float) -> torch.Tensor:
    """Sum the embeddings of each row and normalize, (T, E) in `RESIDUAL_DTYPE`.

    Args:
        embeddings: Stock's module, whose weights are used.
        layout: The layout of the T rows.
        ids: The ids of the padded batch.
        dropout: 0 in evaluation.
    """
    word = embeddings.word_embeddings
    words = F.embedding(layout.pack(ids.input_ids), word.weight, word.padding_idx)
    rows = add_and_norm_embeddings(embeddings, layout, words, ids)
    return F.dropout(rows, dropout).to(RESIDUAL_DTYPE)


def encode_layer(
    rows: torch.Tensor,
    offsets: RowOffsets,
    settings: LayerSettings,
    weights: LayerWeights,
    output_rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute one layer, rows (T, H) in `RESIDUAL_DTYPE` -> the same.

    Products are in `settings.dtype`. With `output_rows`, int64 (K,), all rows are attended to, and
    the rest of the layer is computed for these alone: -> (K, H).
    """
    dtype = settings.dtype
    hidden_size = rows.shape[1]
    head_size = hidden_size // settings.heads

    projection = torch.cat([weights.query, weights.key, weights.value]).to(dtype)
    bias = torch.cat([weights.query_bias, weights.key_bias, weights.value_bias]).to(dtype)
    projected = F.linear(rows.to(dtype), projection, bias)
    query, key, value = projected.view(-1, 3, settings.heads, head_size).unbind(1)
    context = attend(query, key, value, offsets, settings.attention_dropout, settings.is_causal)
    context = context.flatten(1)
    if output_rows is not None:
        context = context.index_select(0, output_rows)
        rows = rows.index_select(0, output_rows)
    attention_output = _linear(
        context, weights.attention_output, weights.attention_output_bias, dtype
    )
    rows = _add_and_norm(
        rows,
        F.dropout(attention_output.float(), settings.attention_output_dropout),
        weights.attention_norm,
        weights.attention_norm_bias,
        settings.epsilon,
    )

    inner = _linear(rows, weights.intermediate, weights.intermediate_bias, dtype)
    active = F.gelu(inner, approximate="none" if settings.exact_gelu else "tanh")
    output = _linear(active, weights.output, weights.output_bias, dtype)
    return _add_and_norm(
        rows,
        F.dropout(output.float(), settings.output_dropout),
        weights.output_norm,
        weights.output_norm_bias,
        settings.epsilon,
    )


def _linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return a linear layer of rows, computed in a type."""
    return F.linear(rows.to(dtype), weight.to(dtype), bias.to(dtype))


def _add_and_norm(
    residual: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    """Return LayerNorm(residual + values) of rows (T, H), computed in float32.

    The result has the type of the residual.
    """
    total = residual.float() + values
    normal = F.layer_norm(total, weight.shape, weight.float(), bias.float(), epsilon)
    return normal.to(residual.dtype)
