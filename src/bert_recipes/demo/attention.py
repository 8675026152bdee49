"""Which piece looks at which: the attention weights of every layer and head.

Legend: L layers, A heads, S positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bert_recipes.errors import InputError
from bert_recipes.tokenization import OriginalBertTokenizer


@dataclass(frozen=True)
class AttentionWeights:
    """What `look_at_attention` saw.

    Attributes:
        pieces: The first positions of the input, [CLS] and [SEP] among them, as many as were asked for.
        weights: float32 (L, A, S, S), S = len(pieces); row q is what piece q looks at, a sum of 1 over all positions read.
        num_read: Positions that the model has read.
        num_positions: Positions that the texts have; more than num_read where they were cut.
    """

    pieces: list[str]
    weights: np.ndarray
    num_read: int
    num_positions: int


@torch.no_grad()
def look_at_attention(
    encoder: Any, tokenizer: OriginalBertTokenizer, first: str, second: str = "", most: int | None = None
) -> AttentionWeights:
    """Read a text or a pair and keep the weights.

    Args:
        encoder: BERT whose attention implementation is "eager".
        tokenizer: Its tokenizer.
        first: Text.
        second: Second text; "" for none.
        most: Keep those between the first positions only, to hold a long text's in little memory; None keeps all.

    Raises:
        InputError: A pair for a model that knows one segment only.
    """
    if second and encoder.config.type_vocab_size < 2:
        raise InputError("the model knows no second segment (type_vocab_size 1 in its config.json); leave it empty")
    texts = (first, second) if second else (first,)
    num_positions = len(tokenizer(*texts, verbose=False)["input_ids"])
    inputs = tokenizer(
        *texts, return_tensors="pt", truncation=True, max_length=encoder.config.max_position_embeddings
    ).to(encoder.device)
    layers = encoder(**inputs, output_attentions=True).attentions
    kept = [layer[0, :, :most, :most].float().cpu() for layer in layers]
    ids = inputs["input_ids"][0].tolist()
    pieces = tokenizer.convert_ids_to_tokens(ids[:most])
    return AttentionWeights(pieces, torch.stack(kept).numpy(), len(ids), num_positions)
