"""Choose the tokens that RoBERTa, ALBERT and SpanBERT predict, for all rows of a batch at once.

All draws are numbers in [0, 1) that the caller hands in: functions of a key in training
(`masking.mask_tokens`), those of the original's own generator where its results are reproduced.

Legend: B rows, S positions, W words of the longest row. A unit is a token, or a word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Units:
    """The units of each row, in order, and the tokens that belong to them."""

    of_token: np.ndarray  # int64 (B, S), the unit of each token; 0 where there is none
    is_token: np.ndarray  # bool (B, S), tokens of a unit
    counts: np.ndarray  # int64 (B,)

    @classmethod
    def from_starts(cls, starts: np.ndarray, is_token: np.ndarray) -> Units:
        """Build units from bool (B, S): where one starts, and which tokens are in one."""
        numbers = np.cumsum(starts, axis=1)
        of_token = np.where(is_token, numbers - 1, 0)
        return cls(of_token, is_token, numbers[:, -1])

    def sizes(self) -> np.ndarray:
        """Return int64 (B, S), the tokens of each unit."""
        rows, positions = np.nonzero(self.is_token)
        sizes = np.zeros(self.of_token.shape, dtype=np.int64)
        np.add.at(sizes, (rows, self.of_token[rows, positions]), 1)
        return sizes

    def tokens(self, units: np.ndarray) -> np.ndarray:
        """Return bool (B, S), the tokens of the units for which bool (B, S) is true."""
        return np.take_along_axis(units, self.of_token, axis=1) & self.is_token


@dataclass(frozen=True)
class FairseqDraws:
    """Numbers in [0, 1) for `mask_fairseq`."""

    count: np.ndarray  # (B,), rounds the number of predicted units up or down
    order: np.ndarray  # (B, S), the units with the lowest numbers are predicted
    replacement: np.ndarray  # (B, S), by unit: does it become [MASK]
    kept: np.ndarray  # (B, S), by unit: is it left as it is, or replaced at random
    word: np.ndarray  # (B, S), by token: which random word


def mask_fairseq(
    input_ids: np.ndarray,
    units: Units,
    draws: FairseqDraws,
    *,
    probability: float,
    keep_rate: float,
    random_rate: float,
    mask_token_id: int,
    vocabulary: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask by RoBERTa's rule: any token may be predicted, special ones too; the rate is exact on
    average, there is no limit.

    Args:
        input_ids: int64 (B, S).
        probability: Fraction of units.
        keep_rate: Fraction of the predicted units that is left as it is.
        random_rate: Fraction of them of which each token becomes a random word.
        vocabulary: int64, the ids that random words are drawn from, uniformly.

    Returns:
        int64 (B, S), what the model sees; bool (B, S), what it predicts.

    Source: fairseq data/mask_tokens_dataset.py.
    """
    is_unit = np.arange(input_ids.shape[1]) < units.counts[:, None]
    num_predicted = (probability * units.counts + draws.count).astype(np.int64)
    predicted = is_unit & (_ranks(np.where(is_unit, draws.order, 2.0)) < num_predicted[:, None])
    is_other = predicted & (draws.replacement < keep_rate + random_rate)
    is_kept = is_other & (draws.kept < keep_rate / max(keep_rate + random_rate, 1e-12))

    masked = np.where(units.tokens(predicted & ~is_other), mask_token_id, input_ids)
    random_words = vocabulary[(draws.word * len(vocabulary)).astype(np.int64)]
    masked = np.where(units.tokens(is_other & ~is_kept), random_words, masked)
    return masked, units.tokens(predicted)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Return int64 (B, S): 0 for the lowest score of a row, 1 for the next."""
    order = np.argsort(scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(scores.shape[1])[None], axis=1)
    return ranks


def choose_ngrams(
    words: Units, limits: np.ndarray, most_words: int, order: np.ndarray, length_draws: np.ndarray
) -> np.ndarray:
    """Choose ALBERT's n-grams: runs of one to `most_words` whole words, n of them with a
    probability proportional to 1/n.

    A run that does not fit is tried shorter, one that meets another is passed over.

    Args:
        limits: int64 (B,), positions that are predicted, at most.
        order: int64 (B, W), the words from which runs start, in the order in which they are tried.
        length_draws: (B, W), numbers in [0, 1): how many words the run of each try has.

    Returns:
        bool (B, S), the tokens to predict.

    Source: google-research/albert create_pretraining_data.py, create_masked_lm_predictions.
    """
    rows = np.arange(len(limits))
    shares = np.cumsum(1.0 / np.arange(1, most_words + 1))
    ends = np.cumsum(words.sizes(), axis=1)
    ends = np.pad(ends, ((0, 0), (1, 0)))  # (B, S + 1), tokens before each word
    is_covered = np.zeros((len(limits), words.of_token.shape[1] + most_words), dtype=bool)
    num_covered = np.zeros(len(limits), dtype=np.int64)
    for number in range(order.shape[1]):
        is_open = (number < words.counts) & (num_covered < limits)
        if not is_open.any():
            break
        first = order[:, number]
        length = np.searchsorted(shares / shares[-1], length_draws[:, number], side="right") + 1
        for _ in range(most_words - 1):
            size = ends[rows, np.minimum(first + length, words.counts)] - ends[rows, first]
            length -= (length > 1) & (num_covered + size > limits)
        length = np.minimum(length, words.counts - first)
        size = ends[rows, np.minimum(first + length, words.counts)] - ends[rows, first]
        is_free = num_covered + size <= limits
        for offset in range(most_words):
            is_free &= ~(is_covered[rows, first + offset] & (offset < length))
        is_taken = is_open & is_free
        for offset in range(most_words):
            is_covered[rows, first + offset] |= is_taken & (offset < length)
        num_covered += np.where(is_taken, size, 0)
    return words.tokens(is_covered[:, : words.of_token.shape[1]])


# Tells the numbers of one try of `choose_spans`: which try -> float (B,) in [0, 1).
SpanDraws = Callable[[int], np.ndarray]


def choose_spans(
    words: Units,
    *,
    probability: float,
    words_of_span: tuple[int, int],
    geometric_p: float,
    length_draws: SpanDraws,
    anchor_draws: SpanDraws,
) -> np.ndarray:
    """Choose SpanBERT's spans of whole words; their lengths have a cut geometric distribution.

    Tokens of a row count without special ones, as if these were not there.

    Args:
        words: Of rows in which tokens come first: `is_token` is true from the first position on.
        probability: Fraction of tokens that are predicted, rounded up; the last span may be cut.
        words_of_span: Of a span, at least and at most.
        length_draws: How many words the span of a try has.
        anchor_draws: In which token's word it starts.

    Returns:
        bool (B, S), the tokens to predict.

    Source: SpanBERT pretraining/fairseq/data/masking.py, PairWithSpanMaskingScheme.
    """
    lowest, highest = words_of_span
    odds = geometric_p * (1 - geometric_p) ** np.arange(highest - lowest + 1)
    shares = np.cumsum(odds / odds.sum())
    num_tokens = words.is_token.sum(axis=1)
    num_wanted = np.ceil(num_tokens * probability).astype(np.int64)
    sizes = words.sizes()
    ends = np.cumsum(sizes, axis=1)  # (B, S), one past the last token of each word
    begins = ends - sizes
    rows, positions = np.arange(len(num_tokens)), np.arange(words.is_token.shape[1])
    chosen = np.zeros_like(words.is_token)
    attempt = 0
    while ((missing := num_wanted - chosen.sum(axis=1)) > 0).any():
        length = lowest + np.searchsorted(shares / shares[-1], length_draws(attempt), side="right")
        anchor = (anchor_draws(attempt) * num_tokens).astype(np.int64)
        attempt += 1
        is_tried = (missing > 0) & ~chosen[rows, anchor]
        first = words.of_token[rows, anchor]
        last = np.minimum(first + length, words.counts) - 1
        span = (positions >= begins[rows, first][:, None]) & (positions < ends[rows, last][:, None])
        span &= is_tried[:, None]
        is_new = span & ~chosen
        # The last new token of a row is the last one of its span.
        is_last = np.cumsum(is_new, axis=1) > missing[:, None]
        chosen |= is_new & ~is_last
    return chosen


def replace_spans(
    input_ids: np.ndarray,
    chosen: np.ndarray,
    *,
    mask_rate: float,
    random_rate: float,
    mask_token_id: int,
    vocabulary: np.ndarray,
    replacement_draws: np.ndarray,
    word_draws: np.ndarray,
) -> np.ndarray:
    """Mask each span, keep it or replace all its tokens at random; spans that touch are one.

    Args:
        input_ids: int64 (B, S).
        chosen: bool (B, S), of `choose_spans`.
        mask_rate: Fraction of the spans that become masks.
        random_rate: Fraction of those whose tokens become random words; the others are left as they
            are.
        vocabulary: int64, the ids that random words are drawn from, uniformly.
        replacement_draws: (B, S), numbers in [0, 1); that of its first position decides about a
            span.
        word_draws: (B, S), numbers in [0, 1), by token.

    Returns:
        int64 (B, S), what the model sees.
    """
    is_first = chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1]
    first = np.maximum.accumulate(np.where(is_first, np.arange(chosen.shape[1]), 0), axis=1)
    draws = np.take_along_axis(replacement_draws, first, axis=1)
    random_words = vocabulary[(word_draws * len(vocabulary)).astype(np.int64)]
    replaced = np.where(draws < mask_rate, mask_token_id, input_ids)
    is_random = (draws >= mask_rate) & (draws < mask_rate + random_rate)
    return np.where(chosen, np.where(is_random, random_words, replaced), input_ids)
