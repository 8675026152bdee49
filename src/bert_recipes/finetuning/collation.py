"""From lists of ids to padded batches, and the original's way of cutting a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from bert_recipes.finetuning.kind import Batch, Feature


# key -> value that stands at padding; any other key of a feature is the caller's
_PADS = {"attention_mask": 0, "token_type_ids": 0}


def truncate_pair(tokens_a: list[int], tokens_b: list[int], max_tokens: int) -> None:
    """Shorten two lists in place until they have max_tokens together.

    The longer one loses its last token; of two equally long ones the second (so that A keeps the odd token, which stock
    `longest_first` gives to B). Source: google-research/bert run_classifier.py `_truncate_seq_pair`.

    Args:
        tokens_a: Ids of the first text.
        tokens_b: Ids of the second text.
        max_tokens: Tokens that both may have together, 0 or more.
    """
    excess = len(tokens_a) + len(tokens_b) - max_tokens
    if excess <= 0:
        return
    # Popping the longer one by one first brings them to one length, then takes turns, B first.
    longer, difference = (tokens_a, tokens_b), len(tokens_a) - len(tokens_b)
    if difference < 0:
        longer = (tokens_b, tokens_a)
    first = min(excess, abs(difference))
    rest = excess - first
    cut = {id(longer[0]): first, id(longer[1]): 0}
    cut[id(tokens_b)] += (rest + 1) // 2
    cut[id(tokens_a)] += rest // 2
    for tokens in (tokens_a, tokens_b):
        del tokens[max(0, len(tokens) - cut[id(tokens)]) :]


def pad_batch(
    features: Sequence[Feature],
    pad_token_id: int,
    *,
    pad_to: int | None = None,
    label_pads: Mapping[str, int] | None = None,
) -> Batch:
    """Pad features to the longest of them.

    Args:
        features: Each with lists of one length under input_ids, token_type_ids, attention_mask (made where it is
            missing) and under the keys of label_pads.
        pad_token_id: Id of [PAD].
        pad_to: Pad to this length instead.
        label_pads: Further per-position keys -> the value at padding, for example {"labels": -100}.

    Returns:
        int64 (B, S) tensors under these keys.
    """
    length = max(len(feature["input_ids"]) for feature in features) if pad_to is None else pad_to
    pads = {"input_ids": pad_token_id} | _PADS | dict(label_pads or {})
    batch = {}
    for key, pad in pads.items():
        array = np.full((len(features), length), pad, dtype=np.int64)
        for row, feature in zip(array, features, strict=True):
            values = [1] * len(feature["input_ids"]) if key == "attention_mask" else feature[key]
            row[: len(values)] = values
        batch[key] = torch.from_numpy(array)
    return batch


def pad_further(batch: Batch, length: int, pads: Mapping[str, int]) -> Batch:
    """Lengthen the per-position tensors of a batch on the right.

    Args:
        batch: Of `pad_batch`; tensors of (B,) stay as they are.
        length: Positions wanted, at least those of the batch.
        pads: Key -> value at padding.
    """
    missing = length - batch["input_ids"].shape[-1]
    if missing == 0:
        return batch
    return {
        key: torch.nn.functional.pad(value, (0, missing), value=pads[key]) if key in pads else value
        for key, value in batch.items()
    }
