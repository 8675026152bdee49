"""Choose the tokens that RoBERTa, ALBERT and SpanBERT predict, for all rows of a batch at once.

All draws are numbers in [0, 1) that the caller hands in: functions of a key in training
(`masking.mask_tokens`), those of the original's own generator where its results are reproduced.

Legend: B rows, S positions, W words of the longest row. A unit is a token, or a word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


# Draws are below 1: what has this number instead comes after them all.
AFTER_ALL_DRAWS = 2.0


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
        return cls(of_token, is_token, counts=numbers[:, -1])

    @property
    def is_unit(self) -> np.ndarray:
        """Return bool (B, S): column u is true where the row has a unit u."""
        return np.arange(self.of_token.shape[1]) < self.counts[:, None]

    def sizes(self) -> np.ndarray:
        """Return int64 (B, S): column u has the number of tokens of unit u."""
        rows, positions = np.nonzero(self.is_token)
        sizes = np.zeros(self.of_token.shape, dtype=np.int64)
        np.add.at(sizes, (rows, self.of_token[rows, positions]), 1)
        return sizes

    def tokens(self, units: np.ndarray) -> np.ndarray:
        """Return bool (B, S) by position: the tokens of units u for which `units[:, u]` is true."""
        return np.take_along_axis(units, self.of_token, axis=1) & self.is_token


@dataclass(frozen=True)
class Replacement:
    """Rates and words of the tokens that the model sees instead of predicted ones."""

    mask_rate: float
    keep_rate: float
    random_rate: float
    mask_token_id: int
    words: np.ndarray  # int64, the ids that random words are drawn from, uniformly


def draw_words(words: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the word of each number in [0, 1)."""
    return words[(draws * len(words)).astype(np.int64)]


@dataclass(frozen=True)
class FairseqDraws:
    """Numbers in [0, 1) for `mask_fairseq`."""

    count: np.ndarray  # (B,), rounds the number of predicted units up or down
    order: np.ndarray  # (B, S), the units with the lowest numbers are predicted
    replacement: np.ndarray  # (B, S), by unit: does it become [MASK]
    keep: np.ndarray  # (B, S), by unit: is it left as it is, or replaced at random
    word: np.ndarray  # (B, S), by token: which random word


def mask_fairseq(
    input_ids: np.ndarray,
    units: Units,
    draws: FairseqDraws,
    probability: float,
    replacement: Replacement,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask by RoBERTa's rule: any token may be predicted, special ones too.

    The rate is exact on average, there is no limit.

    Args:
        input_ids: int64 (B, S).
        units: The units of the rows.
        draws: Random numbers.
        probability: Fraction of units that are predicted.
        replacement: The replacement; its rates are fractions of the predicted units.

    Returns:
        int64 (B, S), what the model sees; bool (B, S), what it predicts.

    Source: fairseq data/mask_tokens_dataset.py.
    """
    num_predicted = (probability * units.counts + draws.count).astype(np.int64)
    order = np.where(units.is_unit, draws.order, AFTER_ALL_DRAWS)
    is_predicted = units.is_unit & (_ranks(order) < num_predicted[:, None])

    keep_rate = replacement.keep_rate
    unmasked_rate = keep_rate + replacement.random_rate
    is_unmasked = is_predicted & (draws.replacement < unmasked_rate)
    is_kept = is_unmasked & (draws.keep < keep_rate / max(unmasked_rate, 1e-12))
    is_masked = is_predicted & ~is_unmasked
    is_random = is_unmasked & ~is_kept

    masked = np.where(units.tokens(is_masked), replacement.mask_token_id, input_ids)
    random_words = draw_words(replacement.words, draws.word)
    masked = np.where(units.tokens(is_random), random_words, masked)
    return masked, units.tokens(is_predicted)


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Return int64 (B, S): 0 for the lowest score of a row, 1 for the next."""
    order = np.argsort(scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(scores.shape[1])[None], axis=1)
    return ranks


def _run_lengths(most_words: int, draws: np.ndarray) -> np.ndarray:
    """Return lengths from 1 to `most_words` for draws in [0, 1): n is as frequent as 1/n."""
    weights = 1.0 / np.arange(1, most_words + 1)
    sums = np.cumsum(weights)
    return np.searchsorted(sums / sums[-1], draws, side="right") + 1


def choose_ngrams(
    words: Units, limits: np.ndarray, most_words: int, order: np.ndarray, length_draws: np.ndarray
) -> np.ndarray:
    """Choose ALBERT's n-grams: runs of one to `most_words` whole words.

    A run has n words with a probability proportional to 1/n. One that does not fit is tried
    shorter, one that meets another is passed over.

    Args:
        words: The words of the rows.
        limits: int64 (B,), positions that are predicted, at most.
        most_words: The most words of a run.
        order: int64 (B, W), the words from which runs start, in the order in which they are tried.
        length_draws: (B, W), numbers in [0, 1): how many words the run of each try has.

    Returns:
        bool (B, S), the tokens to predict.

    Source: google-research/albert create_pretraining_data.py, create_masked_lm_predictions.
    """
    num_rows = len(limits)
    rows = np.arange(num_rows)
    num_positions = words.of_token.shape[1]
    lengths = _run_lengths(most_words, length_draws)
    tokens_before = np.cumsum(words.sizes(), axis=1)
    tokens_before = np.pad(tokens_before, ((0, 0), (1, 0)))  # (B, S + 1)

    def count_tokens(first: np.ndarray, length: np.ndarray) -> np.ndarray:
        end = np.minimum(first + length, words.counts)
        return tokens_before[rows, end] - tokens_before[rows, first]

    offsets = np.arange(most_words)
    is_covered = np.zeros((num_rows, num_positions + most_words), dtype=bool)
    num_covered = np.zeros(num_rows, dtype=np.int64)
    for attempt in range(order.shape[1]):
        is_open = (attempt < words.counts) & (num_covered < limits)
        if not is_open.any():
            break
        first = order[:, attempt]
        length = lengths[:, attempt]
        for _ in range(most_words - 1):
            is_too_long = num_covered + count_tokens(first, length) > limits
            can_be_shorter = length > 1
            length = np.where(is_too_long & can_be_shorter, length - 1, length)
        length = np.minimum(length, words.counts - first)
        size = count_tokens(first, length)

        # Offsets of a run may reach beyond the row, where `is_covered` has spare columns.
        columns = first[:, None] + offsets
        is_in_run = offsets < length[:, None]
        meets_another = (is_covered[rows[:, None], columns] & is_in_run).any(axis=1)
        fits = num_covered + size <= limits
        is_chosen = is_open & fits & ~meets_another
        is_covered[rows[:, None], columns] |= is_in_run & is_chosen[:, None]
        num_covered += np.where(is_chosen, size, 0)

    return words.tokens(is_covered[:, :num_positions])


# The numbers (B,) in [0, 1) of an attempt of `choose_spans`, by its number.
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
        words: The words of rows in which tokens come first: `is_token` is true from the first
            position on.
        probability: Fraction of tokens that are predicted, rounded up; the last span may be cut.
        words_of_span: The words of a span, at least and at most.
        geometric_p: The parameter of the distribution.
        length_draws: How many words the span of an attempt has.
        anchor_draws: In which token's word it starts.

    Returns:
        bool (B, S), the tokens to predict.

    Source: SpanBERT pretraining/fairseq/data/masking.py, PairWithSpanMaskingScheme.
    """
    lowest, highest = words_of_span
    odds = geometric_p * (1 - geometric_p) ** np.arange(highest - lowest + 1)
    shares = np.cumsum(odds / odds.sum())
    shares /= shares[-1]

    num_tokens = words.is_token.sum(axis=1)
    num_predicted = np.ceil(num_tokens * probability).astype(np.int64)
    sizes = words.sizes()
    ends = np.cumsum(sizes, axis=1)  # (B, S), one past the last token of each word
    begins = ends - sizes
    rows = np.arange(len(num_tokens))
    positions = np.arange(words.is_token.shape[1])

    is_predicted = np.zeros_like(words.is_token)
    num_left = num_predicted
    attempt = 0
    while (num_left > 0).any():
        length = lowest + np.searchsorted(shares, length_draws(attempt), side="right")
        anchor = (anchor_draws(attempt) * num_tokens).astype(np.int64)
        is_open = (num_left > 0) & ~is_predicted[rows, anchor]
        first_word = words.of_token[rows, anchor]
        last_word = np.minimum(first_word + length, words.counts) - 1
        begin = begins[rows, first_word]
        end = ends[rows, last_word]
        is_in_span = (positions >= begin[:, None]) & (positions < end[:, None])

        is_new = is_in_span & is_open[:, None] & ~is_predicted
        # A span that is too long is cut at its end.
        is_within_limit = np.cumsum(is_new, axis=1) <= num_left[:, None]
        is_predicted |= is_new & is_within_limit
        num_left = num_predicted - is_predicted.sum(axis=1)
        attempt += 1

    return is_predicted


def replace_spans(
    input_ids: np.ndarray,
    is_predicted: np.ndarray,
    replacement: Replacement,
    replacement_draws: np.ndarray,
    word_draws: np.ndarray,
) -> np.ndarray:
    """Mask each span, keep it or replace all its tokens at random; spans that touch are one.

    Args:
        input_ids: int64 (B, S).
        is_predicted: bool (B, S), of `choose_spans`.
        replacement: The replacement; its rates are fractions of the spans.
        replacement_draws: (B, S), numbers in [0, 1); that of its first position decides about a
            span.
        word_draws: (B, S), numbers in [0, 1), by token.

    Returns:
        int64 (B, S), what the model sees.
    """
    follows_predicted = np.pad(is_predicted, ((0, 0), (1, 0)))[:, :-1]
    is_first = is_predicted & ~follows_predicted
    positions = np.arange(is_predicted.shape[1])
    first_of_span = np.maximum.accumulate(np.where(is_first, positions, 0), axis=1)
    draws = np.take_along_axis(replacement_draws, first_of_span, axis=1)

    is_masked = draws < replacement.mask_rate
    is_random = ~is_masked & (draws < replacement.mask_rate + replacement.random_rate)
    masked = np.where(is_predicted & is_masked, replacement.mask_token_id, input_ids)
    random_words = draw_words(replacement.words, word_draws)
    return np.where(is_predicted & is_random, random_words, masked)
