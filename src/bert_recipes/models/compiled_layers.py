"""The encoder on packed rows in torch operations, which torch.compile fuses: the way of a GPU.

The same mathematics as stock's layers. Query, key and value are one product, and what lies between
two products is one kernel. Sums and LayerNorms are computed in float32.

Legend: T packed rows, H hidden size, F feed-forward size, E embedding size, h heads, d = H / h, V
vocabulary, M predicted tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from bert_recipes.models.encoder_layer import LayerSettings
from bert_recipes.models.kernels import plain
from bert_recipes.models.packed_attention import attend
from bert_recipes.models.padding_free import PackedLayout, RowOffsets


# Of the rows between two layers. Of BERT base's first gradient bfloat16 products alone leave 0.8 %
# of error, as stock has under autocast; rows in bfloat16 make it 1.3 %.
RESIDUAL_DTYPE = torch.float32
# Models of a process, in training and evaluation, that are compiled apart; torch's 8 would be too
# few for a sweep.
RECOMPILE_LIMIT = 64


@dataclass(frozen=True)
class CompiledLayers:
    """What computes embeddings, layers and the loss over the vocabulary; `is_compiled` False: the
    same operations one by one.

    Batches have other numbers of rows and positions, so these are symbols from the start: one
    compiled function serves all.
    """

    is_compiled: bool = True

    def embed(
        self,
        embeddings: Any,
        layout: PackedLayout,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        **settings: Any,
    ) -> torch.Tensor:
        """Call `embed`."""
        self._mark_sizes(layout.places, input_ids, token_type_ids, position_ids)
        return self._call(embed)(
            embeddings, layout, input_ids, token_type_ids, position_ids, **settings
        )

    def encode_layer(
        self,
        rows: torch.Tensor,
        offsets: RowOffsets,
        settings: LayerSettings,
        parameters: tuple[torch.Tensor, ...],
    ) -> torch.Tensor:
        """Call `encode_layer`."""
        if self.is_compiled:
            torch._dynamo.maybe_mark_dynamic(rows, 0)
            self._mark_sizes(offsets.rows, offsets.keys, offsets.key_rows)
        return self._call(encode_layer)(rows, offsets, settings, parameters)

    def cross_entropy_(
        self,
        logits: torch.Tensor,
        bias: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
        needs_gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Call `plain.cross_entropy_`."""
        if self.is_compiled:
            torch._dynamo.maybe_mark_dynamic(logits, 0)
            self._mark_sizes(targets)
        return self._call(plain.cross_entropy_)(logits, bias, targets, scale, needs_gradient)

    def _mark_sizes(self, *tensors: torch.Tensor | None) -> None:
        if self.is_compiled:
            for tensor in tensors:
                if tensor is not None:
                    torch._dynamo.maybe_mark_dynamic(tensor, list(range(tensor.dim())))

    def _call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return _compiled(function) if self.is_compiled else function


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.config.recompile_limit = max(
        torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT
    )
    return torch.compile(function)


def embed(
    embeddings: Any,
    layout: PackedLayout,
    input_ids: torch.Tensor,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor,
    *,
    dropout: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Sum the embeddings of each row and normalise: (T, E) in `dtype`.

    Args:
        embeddings: Stock's module, whose weights are used.
        input_ids: int64 (B, S).
        token_type_ids: int64 (B, S); None: the first type, or a model without types.
        position_ids: int64 (B, S).
        dropout: 0 in evaluation.
    """
    word, position = embeddings.word_embeddings, embeddings.position_embeddings
    rows = F.embedding(layout.pack(input_ids), word.weight, word.padding_idx)
    rows = rows + F.embedding(layout.pack(position_ids), position.weight, position.padding_idx)
    token_type = getattr(embeddings, "token_type_embeddings", None)  # DistilBERT has none
    if token_type is not None and token_type_ids is None:
        rows = rows + token_type.weight[0]
    elif token_type is not None and token_type_ids is not None:
        rows = rows + F.embedding(
            layout.pack(token_type_ids), token_type.weight, token_type.padding_idx
        )
    norm = embeddings.LayerNorm
    rows = F.layer_norm(rows, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return F.dropout(rows, dropout).to(dtype)


def encode_layer(
    rows: torch.Tensor,
    offsets: RowOffsets,
    settings: LayerSettings,
    parameters: tuple[torch.Tensor, ...],
) -> torch.Tensor:
    """Compute one layer: rows (T, H) in `RESIDUAL_DTYPE` -> the same; products are in
    `settings.dtype`.

    The sixteen parameters are those of `encoder_layer.encode_layer`.
    """
    dtype = settings.dtype
    wq, bq, wk, bk, wv, bv, wo, bo, g1, c1, wi, bi, wf, bf, g2, c2 = parameters
    hidden_size = rows.shape[1]
    after_attention, after_feed_forward = settings.hidden_dropouts

    weight, bias = torch.cat([wq, wk, wv]).to(dtype), torch.cat([bq, bk, bv]).to(dtype)
    projected = F.linear(rows.to(dtype), weight, bias).view(
        -1, 3, settings.heads, hidden_size // settings.heads
    )
    query, key, value = projected.unbind(1)
    if offsets.key_rows is not None:
        key, value = key[offsets.key_rows], value[offsets.key_rows]
    context = attend(
        query,
        key,
        value,
        offsets.rows,
        offsets.keys,
        offsets.max_length,
        settings.attention_dropout,
        settings.is_causal,
    )
    mixed = F.linear(context.flatten(1), wo.to(dtype), bo.to(dtype))
    rows = _add_and_norm(rows, mixed, g1, c1, settings.epsilon, after_attention)

    inner = F.linear(rows.to(dtype), wi.to(dtype), bi.to(dtype))
    inner = F.gelu(inner, approximate="none" if settings.exact_gelu else "tanh")
    output = F.linear(inner, wf.to(dtype), bf.to(dtype))
    return _add_and_norm(rows, output, g2, c2, settings.epsilon, after_feed_forward)


def _add_and_norm(
    residual: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    dropout: float,
) -> torch.Tensor:
    """Return LayerNorm(residual + dropout(values)) of rows (T, H), computed in float32, in the type
    of the residual.
    """
    total = residual.float() + F.dropout(values.float(), dropout)
    return F.layer_norm(total, weight.shape, weight.float(), bias.float(), epsilon).to(
        residual.dtype
    )
