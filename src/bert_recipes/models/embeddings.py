"""The embeddings of the stock encoders on packed rows.

Legend: B sequences, S positions, T packed rows, E embedding size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bert_recipes.models.kernels.plain import Kernels
from bert_recipes.models.padding_free import PackedLayout
from bert_recipes.models.stock_layers import dropout_rate
from bert_recipes.models.vocabulary_loss import TiedGradient, tied_embedding


# Number of the embeddings' dropout mask; they have a seed of their own.
DROPOUT_STREAM = 0


class EmbeddingIds(NamedTuple):
    """Hold what the embeddings look up."""

    input_ids: torch.Tensor  # int64 (B, S), as the others
    token_type_ids: torch.Tensor | None  # None: the first type, or a model without types
    position_ids: torch.Tensor


def default_positions(embeddings: Any, input_ids: torch.Tensor) -> torch.Tensor:
    """Return the positions that stock gives to tokens, int64 (B, S) or (1, S).

    RoBERTa's are counted from the one after that of pads.
    """
    pad = embeddings.position_embeddings.padding_idx
    if pad is None:
        return torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    is_token = input_ids.ne(pad).long()
    return is_token.cumsum(1) * is_token + pad


def add_and_norm_embeddings(
    embeddings: Any, layout: PackedLayout, words: torch.Tensor, ids: EmbeddingIds
) -> torch.Tensor:
    """Return the LayerNorm of the sum of word, position and token type embeddings, (T, E).

    Args:
        embeddings: Stock's module, whose weights are used.
        layout: The layout of the T rows.
        words: (T, E), the word embeddings of the rows.
        ids: The ids of the padded batch.
    """
    positions = layout.pack(ids.position_ids)
    position = embeddings.position_embeddings
    total = words + F.embedding(positions, position.weight, position.padding_idx)
    token_type = getattr(embeddings, "token_type_embeddings", None)  # DistilBERT has none
    if token_type is not None and ids.token_type_ids is None:
        total = total + token_type.weight[0]
    elif token_type is not None and ids.token_type_ids is not None:
        types = layout.pack(ids.token_type_ids)
        total = total + F.embedding(types, token_type.weight, token_type.padding_idx)
    norm = embeddings.LayerNorm
    return F.layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def embed(
    embeddings: Any,
    layout: PackedLayout,
    ids: EmbeddingIds,
    dtype: torch.dtype,
    seed: int,
    kernels: Kernels,
    tied_gradient: TiedGradient,
) -> torch.Tensor:
    """Return the normalized sum of the embeddings after dropout, (T, E) in `dtype`.

    Args:
        embeddings: Stock's module, whose weights are used.
        layout: The layout of the T rows.
        ids: The ids of the padded batch.
        dtype: The dtype of the result.
        seed: The seed of the dropout mask, 64 bits.
        kernels: The result of `load_kernels`, for a CPU.
        tied_gradient: May bring the gradient of an output layer of the same weight.
    """
    word = embeddings.word_embeddings
    words = tied_embedding(word.weight, layout.pack(ids.input_ids), word.padding_idx, tied_gradient)
    with torch.autocast(words.device.type, enabled=False):
        rows = add_and_norm_embeddings(embeddings, layout, words, ids).to(dtype)
    dropout = dropout_rate(embeddings.dropout)
    if dropout == 0:
        return rows
    return _Dropout.apply(rows, seed, dropout, kernels)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, seed: int, p: float, kernels: Kernels
    ) -> torch.Tensor:
        ctx.seed = seed
        ctx.p = p
        ctx.kernels = kernels
        return kernels.dropout(rows, seed, DROPOUT_STREAM, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        rows_grad = ctx.kernels.dropout(grad.contiguous(), ctx.seed, DROPOUT_STREAM, ctx.p)
        return rows_grad, None, None, None
