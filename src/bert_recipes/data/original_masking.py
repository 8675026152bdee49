"""Masks as the original draws them: one random number after the other, from the generator that also drew the pairs.

Training does not use this (``masking.py`` is vectorised and keyed); it serves ``create_pretraining_data.py``.
"""

import random
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass

from bert_recipes.errors import InputError


@dataclass(frozen=True, kw_only=True)
class OriginalMasking:
    """How many tokens are predicted and what stands in their place.

    Attributes:
        masked_lm_prob: Share of an input's tokens that is predicted, special tokens counted in; 0 to 1. One token is
            predicted in any case.
        max_predictions_per_seq: Most predictions an input; at least 1.
        whole_word: Whether pieces that start with ``##`` are masked together with the piece before them.
        mask_id: Id of [MASK].
        random_word_ids: The vocabulary in file order, special and unused entries too: what a random word is drawn from.
        is_continuation: For each id, whether its piece starts with ``##``.

    Raises:
        InputError: A rate or a limit out of range.
    """

    masked_lm_prob: float
    max_predictions_per_seq: int
    whole_word: bool
    mask_id: int
    random_word_ids: Sequence[int]
    is_continuation: Sequence[bool]

    def __post_init__(self) -> None:
        if not 0.0 <= self.masked_lm_prob <= 1.0:
            raise InputError(f"masked_lm_prob: {self.masked_lm_prob} given, allowed is a share, 0 to 1")
        if self.max_predictions_per_seq < 1:
            raise InputError(f"max_predictions_per_seq: {self.max_predictions_per_seq} given, at least 1 is needed")


def mask_in_original_order(
    input_ids: MutableSequence[int], boundary: int, masking: OriginalMasking, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Mask an input in place.

    Args:
        input_ids: [CLS] A [SEP] B [SEP], (L,); changed in place.
        boundary: Number of positions up to and with the first [SEP].
        masking: The rule.
        rng: Source of the draws.

    Returns:
        The predicted positions in ascending order, and the original ids there.

    Source: google-research/bert create_pretraining_data.py, create_masked_lm_predictions.
    """
    positions = [*range(1, boundary - 1), *range(boundary, len(input_ids) - 1)]
    limit = min(masking.max_predictions_per_seq, max(1, round(len(input_ids) * masking.masked_lm_prob)))
    if masking.whole_word:
        chosen = _choose_whole_words(positions, input_ids, masking.is_continuation, limit, rng)
    else:
        shuffle(positions, rng)
        chosen = positions[:limit]
    labels = {}
    for position in chosen:
        labels[position] = input_ids[position]
        if rng.random() < 0.8:
            input_ids[position] = masking.mask_id
        elif rng.random() >= 0.5:
            words = masking.random_word_ids
            input_ids[position] = words[rng.randint(0, len(words) - 1)]
    ordered = sorted(labels)
    return ordered, [labels[position] for position in ordered]


def _choose_whole_words(
    positions: list[int], input_ids: Sequence[int], is_continuation: Sequence[bool], limit: int, rng: random.Random
) -> list[int]:
    """Return the positions of whole words in drawn order; a word that would exceed the limit is passed over.

    As in the original, a continuation at the start of B (its word was cut by truncation) joins the last word of A.
    """
    words: list[list[int]] = []
    for position in positions:
        if words and is_continuation[input_ids[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    shuffle(words, rng)
    chosen: list[int] = []
    for word in words:
        if len(chosen) >= limit:
            break
        if len(chosen) + len(word) <= limit:
            chosen += word
    return chosen


def shuffle(items: list, rng: random.Random) -> None:
    """Do what ``rng.shuffle(items)`` does, with the same draws, in half the time: the shuffles are most of the work.

    The algorithm is spelt out, so the instances would not change if a later Python shuffled in another way.
    """
    draw = rng.getrandbits
    num_left = len(items)
    while num_left > 1:
        # As many bits for every place down to the next power of two.
        bits = num_left.bit_length()
        fewest = max(2, 1 << (bits - 1))
        for last in range(num_left - 1, fewest - 2, -1):
            other = draw(bits)
            while other > last:
                other = draw(bits)
            items[last], items[other] = items[other], items[last]
        num_left = fewest - 1
