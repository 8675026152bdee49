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
from bert_recipes.models.electra import ElectraForMaskedLM, ElectraForPreTraining
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
# Prefixes of the masked-LM heads' weights; those of ELECTRA's generator are several.
MASKED_LM_HEADS = ("cls.predictions.", "lm_head.", "predictions.", "vocab_", "generator")
# Those of the heads for pairs.
PAIR_HEADS = ("cls.seq_relationship.", "sop_classifier.")


def open_checkpoint(
    name: str, *, cached_only: bool, member: str | None = None
) -> tuple[Any, list[str]]:
    """Open a checkpoint with a complete encoder, ours or stock.

    Args:
        name: Folder or Hub name.
        cached_only: Ask the local Hub cache only.
        member: One of `MEMBERS`; None: what its config.json says.

    Returns:
        The model, and the weights of the heads that the checkpoint lacks: they are new.
    """
    model_class = _member_class(name, cached_only, member)
    model, info = model_class.from_pretrained(
        name,
        use_safetensors=has_safetensors(name, cached_only=cached_only),
        output_loading_info=True,
        # whatever the file holds: weights that learn are kept in full precision
        dtype=torch.float32,
        local_files_only=cached_only,
        ignore_mismatched_sizes=True,  # refused by name below
    )
    mismatched = [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    if mismatched:
        raise InputError(
            f"{name}: {_summarize_names(mismatched)} not of the size that config.json says"
        )
    model.disable_positions()  # the checkpoint's weights have replaced the zeros
    check_layers(name, model.config, info["unexpected_keys"])
    encoder_prefix = f"{model.base_model_prefix}."
    pooler_prefix = f"{encoder_prefix}pooler"
    missing = []
    for key in info["missing_keys"]:
        # A masked-LM checkpoint has neither the head for pairs nor the pooler below it.
        if key.startswith(encoder_prefix) and not key.startswith(pooler_prefix):
            missing.append(key)
    if missing:
        raise InputError(
            f"{name}: no weights for {_summarize_names(missing)}; only the heads and the pooler "
            "may be missing"
        )
    return model, sorted(info["missing_keys"])


def _member_class(name: str, cached_only: bool, member: str | None) -> Any:
    """Return the class of a checkpoint; refuse one of another architecture."""
    try:
        config, _ = BertConfig.get_config_dict(name, local_files_only=cached_only)
        model_type = config.get("model_type", "bert")  # the oldest checkpoints do not name it
    except (AttributeError, TypeError) as error:
        raise InputError(f"{name}: config.json holds no mapping") from error
    if member is None and "ElectraForMaskedLM" in (config.get("architectures") or ()):
        return ElectraForMaskedLM  # a generator by itself; the member has both networks
    model_class: Any = MEMBERS.get(member or model_type)
    if model_class is None or model_class.config_class.model_type != model_type:
        expected = MEMBERS[member or "bert"].config_class.model_type.upper()
        raise InputError(
            f"{name} is no {expected}: the model_type in its config.json is {model_type!r}"
        )
    return model_class


def _summarize_names(names: Sequence[str]) -> str:
    """Return the first name in the alphabet, and how many more there are."""
    first = min(names)
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


@torch.no_grad()
def add_tokens(
    model: BertForPreTraining, pieces: Mapping[int, Sequence[int]], vocab_size: int
) -> None:
    """Give new ids embeddings and output biases, in place: the mean of those of old ids.

    Predictions for texts without new tokens stay the same, but for the softmax's share of the new
    ones. A mean of old rows predicts a new word about as often as its pieces.

    Args:
        model: The model whose vocabulary grows.
        pieces: New id -> old ids, at least one.
        vocab_size: The number of the tokenizer's pieces. Rows beyond it, which pad a vocabulary,
            stay.
    """
    old_size = model.config.vocab_size
    size = max(vocab_size, old_size)
    for new_id, old_ids in pieces.items():
        assert 0 <= new_id < size
        assert all(0 <= old_id < old_size for old_id in old_ids)
    if size > old_size:
        model.resize_token_embeddings(size, mean_resizing=False)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    predictions = model.cls.predictions
    weights = [embedding.weight]
    if predictions.decoder.weight is not embedding.weight:
        weights.append(predictions.decoder.weight)
    # The head keeps its bias under two names, mostly of one tensor.
    biases = [predictions.bias]
    if predictions.decoder.bias is not predictions.bias:
        biases.append(predictions.decoder.bias)
    for new_id, old_ids in pieces.items():
        rows = torch.tensor(list(old_ids), device=embedding.weight.device)
        for weight in weights:
            weight[new_id] = weight[rows].mean(dim=0)
        for bias in biases:
            bias[new_id] = bias[rows].mean()
