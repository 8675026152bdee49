"""The members of the family by name, and their checkpoints: opened whole, grown by tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import BertConfig

from bert_recipes.errors import InputError
from bert_recipes.hub_access import has_safetensors
from bert_recipes.models.bert import (
    BertForMaskedLM,
    BertForPreTraining,
    BertLMHeadModel,
    PreTrainingModel,
)
from bert_recipes.models.electra import GENERATOR_PREFIX, ElectraForPreTraining
from bert_recipes.models.family import (
    AlbertForPreTraining,
    DistilBertForMaskedLM,
    RobertaForMaskedLM,
)
from bert_recipes.models.sizes import check_layers


# Member -> the class that is pre-trained; its `config_class.model_type` is what config.json says.
MEMBERS: dict[str, type[PreTrainingModel]] = {
    "bert": BertForPreTraining,
    "bert_mlm": BertForMaskedLM,
    "bert_ltr": BertLMHeadModel,
    "roberta": RobertaForMaskedLM,
    "albert": AlbertForPreTraining,
    "distilbert": DistilBertForMaskedLM,
    "electra": ElectraForPreTraining,
}


# Prefixes of the masked-LM heads' weights.
MASKED_LM_HEADS = ("cls.predictions.", "lm_head.", "predictions.", "vocab_", GENERATOR_PREFIX)


def open_checkpoint(
    name: str, *, cached_only: bool, member: str | None = None
) -> tuple[Any, list[str]]:
    """Open a checkpoint with a complete encoder, ours or stock; also return the weights of the
    heads that it lacks: they are new.

    Args:
        name: Folder or Hub name.
        cached_only: Ask the local Hub cache only.
        member: Of `MEMBERS`; None: what its config.json says.
    """
    try:
        config, _ = BertConfig.get_config_dict(name, local_files_only=cached_only)
        found = config.get("model_type", "bert")  # the oldest checkpoints do not name their kind
    except (AttributeError, TypeError) as error:
        raise InputError(f"{name}: config.json holds no mapping") from error
    kind = MEMBERS.get(member or found)
    if kind is None or kind.config_class.model_type != found:
        wanted = member.partition("_")[0].upper() if member else "BERT"
        raise InputError(f"{name} is no {wanted}: the model_type in its config.json is {found!r}")
    network, info = kind.from_pretrained(
        name,
        use_safetensors=has_safetensors(name, cached_only=cached_only),
        output_loading_info=True,
        # whatever the file holds: weights that learn are kept in full precision
        dtype=torch.float32,
        local_files_only=cached_only,
        ignore_mismatched_sizes=True,  # refused by name below
    )
    if wrong := [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]:
        raise InputError(f"{name}: {_first_of(wrong)} not of the size that config.json says")
    network.hide_positions()
    check_layers(name, network.config, info["unexpected_keys"])
    # A masked-LM checkpoint has neither the head for pairs nor the pooler below it.
    prefix = f"{network.base_model_prefix}."
    if lost := [
        key
        for key in info["missing_keys"]
        if key.startswith(prefix) and not key.startswith(f"{prefix}pooler")
    ]:
        raise InputError(
            f"{name}: no weights for {_first_of(lost)}; only the heads and the pooler may be "
            "missing"
        )
    return network, sorted(info["missing_keys"])


def _first_of(names: list[str]) -> str:
    return f"{min(names)}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


@torch.no_grad()
def add_tokens(
    model: BertForPreTraining, pieces: Mapping[int, Sequence[int]], vocab_size: int
) -> None:
    """Give new ids embeddings and output biases, in place: the mean of those of other ids.

    What the model says about texts without new tokens stays what it was, but for the softmax's
    share of the new ones. A mean of old rows predicts a new word about as often as its pieces.

    Args:
        pieces: New id -> old ids, at least one.
        vocab_size: Of the tokenizer. Rows beyond it, which pad a vocabulary, stay.
    """
    old_size = model.config.vocab_size
    size = max(vocab_size, old_size)
    assert all(
        0 <= new < size and all(0 <= old < old_size for old in olds) for new, olds in pieces.items()
    )
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
