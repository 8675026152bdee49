"""A model whose vocabulary has grown: new tokens start as the mean of the pieces that they were cut into."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from transformers import BertForPreTraining


@torch.no_grad()
def add_tokens(model: BertForPreTraining, pieces: Mapping[int, Sequence[int]], vocab_size: int) -> None:
    """Give new ids embeddings and output biases, in place: the mean of those of other ids.

    What the model says about texts without new tokens stays what it was, but for the softmax's share of the new ones. A mean
    of old rows predicts a new word about as often as its pieces.

    Args:
        model: With the masked-LM head, whose weight is the embedding.
        pieces: New id -> old ids, at least one.
        vocab_size: Of the tokenizer. Rows beyond it, which pad a vocabulary, stay.

    Raises:
        ValueError: A new id is no row beyond the old ones, or an old id is none.
    """
    old_size = model.config.vocab_size
    size = max(vocab_size, old_size)
    if any(not 0 <= new < size or any(not 0 <= old < old_size for old in olds) for new, olds in pieces.items()):
        raise ValueError(f"new ids below {size} and old ids below {old_size} are needed")
    if size > old_size:
        model.resize_token_embeddings(size, mean_resizing=False)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    predictions = model.cls.predictions
    # The head keeps its bias under two names.
    biases = {id(bias): bias for bias in (predictions.bias, predictions.decoder.bias)}.values()
    for new, olds in pieces.items():
        rows = torch.tensor(list(olds), device=embedding.weight.device)
        embedding.weight[new] = embedding.weight[rows].mean(dim=0)
        for bias in biases:
            bias[new] = bias[rows].mean()
