"""Choose the tokens that are predicted and what replaces them.

The random numbers are functions of a key.

Masks do not depend on workers, processes or resumes: a generator with a state gives other numbers
when one more batch is fetched before a checkpoint; a counter-based one gives number i of key k
without any history. The mixing function is SplitMix64's finalizer (Steele, Lea and Flood 2014,
"Fast splittable pseudorandom number generators"), the constants are David Stafford's variant 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bert_recipes.data.other_masks import (
    AFTER_ALL_DRAWS,
    FairseqDraws,
    Replacement,
    Units,
    choose_ngrams,
    choose_spans,
    draw_words,
    mask_fairseq,
    replace_spans,
)
from bert_recipes.errors import InputError
from bert_recipes.settings import check_limits, option


_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
# A float64 has 53 bits.
_UNUSED_BITS = np.uint64(64 - 53)
_TO_UNIT = 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """Return SplitMix64's finalizer of a uint64 array (wraps modulo 2**64)."""
    x = x ^ (x >> np.uint64(30))
    x = x * _MIX_1
    x = x ^ (x >> np.uint64(27))
    x = x * _MIX_2
    return x ^ (x >> np.uint64(31))


def hash_keys(seed: int, *columns: np.ndarray) -> np.ndarray:
    """Return uint64 (B,), a key per row, from a seed (modulo 2**64) and integer columns (B,)."""
    num_rows = len(columns[0])
    seeds = np.full(num_rows, seed % 2**64, dtype=np.uint64)
    keys = _mix(seeds + _GOLDEN_GAMMA)
    for column in columns:
        numbers = np.asarray(column).astype(np.uint64)
        keys = keys ^ numbers
        keys = _mix(keys + _GOLDEN_GAMMA)
    return keys


def keyed_uniforms(keys: np.ndarray, stream: int, positions: np.ndarray) -> np.ndarray:
    """Return the numbers of each key at `positions`, float64 in [0, 1).

    Their shape is that of both arrays together.

    Args:
        keys: uint64.
        stream: Which of the independent streams of a key to read, 0 or more.
        positions: Integers from 0; broadcast against the keys.
    """
    stream_number = np.array([stream + 1], dtype=np.uint64)
    stream_bits = _mix(stream_number * _GOLDEN_GAMMA)
    stream_keys = _mix(keys ^ stream_bits)

    counters = positions.astype(np.uint64) + _ONE
    states = stream_keys + counters * _GOLDEN_GAMMA
    bits = _mix(states)

    highest_bits = bits >> _UNUSED_BITS
    return highest_bits.astype(np.float64) * _TO_UNIT


IGNORE_INDEX = -100
SELECTIONS = ("count", "bernoulli", "fairseq", "ngrams", "spans", "causal", "none")
# Those whose fraction of predicted tokens may change during a run.
VARIABLE_SELECTIONS = ("count", "bernoulli", "ngrams")
# Those that predict special tokens too.
SPECIAL_SELECTIONS = ("fairseq", "causal")
# ALBERT's runs have at most this many words (--ngram).
MOST_NGRAM_WORDS = 3
# SpanBERT's spans: words of one, at least and at most, and the parameter of the geometric
# distribution of their lengths (Joshi et al. 2020, section 3.1).
SPAN_WORDS = (1, 10)
SPAN_GEOMETRIC_P = 0.2
# Streams of `keyed_uniforms`.
_STREAM_SELECT = 0
_STREAM_REPLACE = 1
_STREAM_WORD = 2
_STREAM_COUNT = 3
_STREAM_KEEP = 4


@dataclass(kw_only=True)
class MaskingRates:
    """The fraction of tokens that are predicted, and of what the model sees instead.

    The latter are 0.8, 0.1 and 0.1 in the paper.
    """

    mlm_probability: float = option(
        0.15, "of a row's tokens, [CLS] and both [SEP] counted", above=0, below=1
    )
    # At the end of the run; the fraction goes there in a straight line. None: it stays.
    mlm_probability_end: float | None = option(None, "at the end of the run", above=0, below=1)
    max_predictions_per_seq: int | None = option(None, "per row; None = no limit", least=1)
    mask_rate: float = option(0.8, "[MASK]", least=0, most=1)
    keep_rate: float = option(0.1, "the token itself", least=0, most=1)
    random_rate: float = option(0.1, "a random token", least=0, most=1)
    whole_word: bool = False  # all pieces of a word or none (the original's --do_whole_word_mask)
    # "count": exactly min(max_predictions_per_seq, max(1, round(mlm_probability * length))) tokens,
    # as the original; "bernoulli": each word independently with probability mlm_probability, at
    # least none; "fairseq": RoBERTa's, special tokens too, no limit; "ngrams": ALBERT's; "spans":
    # SpanBERT's (`other_masks`); "causal": nothing is masked, each token predicts the next one;
    # "none": nothing is masked or predicted.
    selection: str = option("count", "which tokens", choices=SELECTIONS)

    def __post_init__(self) -> None:
        check_limits(self)
        total = self.mask_rate + self.keep_rate + self.random_rate
        if abs(total - 1.0) > 1e-6:
            raise InputError(
                f"mask_rate, keep_rate and random_rate must sum to 1, not {total:g} (paper: 0.8, "
                "0.1, 0.1)"
            )
        if self.mlm_probability_end is not None and self.selection not in VARIABLE_SELECTIONS:
            raise InputError(
                f"mlm_probability_end is {self.mlm_probability_end:g} and selection "
                f"{self.selection}; allowed with {', '.join(VARIABLE_SELECTIONS)}"
            )

    def probabilities_at(self, progress: np.ndarray) -> np.ndarray:
        """Return the fraction of predicted tokens of each row, by its progress; float64 (B,)."""
        if self.mlm_probability_end is None:
            return np.full(len(progress), self.mlm_probability)
        return self.mlm_probability + (self.mlm_probability_end - self.mlm_probability) * progress


def default_max_predictions(max_seq_length: int, mlm_probability: float) -> int:
    """Return the limit of predictions where none is given: the fraction of the longest pair.

    It is 20 for 128 tokens, 77 for 512.

    Source: google-research/bert README: around max_seq_length * masked_lm_prob.
    """
    return math.ceil(max_seq_length * mlm_probability)


def mask_tokens(  # noqa: PLR0913  # the public signature
    input_ids: np.ndarray,
    candidates: np.ndarray,
    lengths: np.ndarray,
    keys: np.ndarray,
    *,
    rates: MaskingRates,
    mask_token_id: int,
    vocab_size: int,
    is_continuation: np.ndarray | None = None,
    special_ids: Sequence[int] = (),
    excluded_ids: Sequence[int] = (),
    special_ends_word: bool = False,
    progress: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask a batch; a pure function of its arguments.

    Args:
        input_ids: int64 (B, S).
        candidates: bool (B, S), True where a token may be predicted: not [CLS], [SEP], padding.
        lengths: int64 (B,), tokens of the row with its special tokens, without padding.
        keys: uint64 (B,), the row's source of randomness (`hash_keys`).
        rates: How many tokens are predicted, and what the model sees instead.
        mask_token_id: Id of [MASK].
        vocab_size: Random words are drawn uniformly from [0, vocab_size), special and unused ones
            included, as in the original.
        is_continuation: bool (vocab_size,), True for pieces that go on with a word; needed for
            whole_word, "ngrams" and "spans".
        special_ids: Ids that "fairseq" and "spans" do not draw: fairseq's first four, [CLS],
            padding, [SEP], [UNK].
        excluded_ids: Ids that no selection draws.
        special_ends_word: For whole_word: whether a piece after a special token always begins a
            word. If not, a continuation piece there joins the word before, as in the original.
            "fairseq", "ngrams" and "spans" never join.
        progress: float64 (B,), the fraction of the run at which each row is read; None: its begin.

    Returns:
        masked: int64 (B, S); a new array, or `input_ids` where nothing is masked.
        labels: int64 (B, S), the original id where the model predicts, -100 elsewhere.
    """
    if progress is None:
        progress = np.zeros(len(lengths))
    probabilities = rates.probabilities_at(progress)
    batch = _Batch(
        input_ids, candidates, lengths, keys, probabilities, is_continuation, special_ends_word
    )
    if rates.selection == "none":
        return input_ids, np.full_like(input_ids, IGNORE_INDEX)
    if rates.selection == "causal":
        return input_ids, _next_tokens(batch)
    excluded = list(excluded_ids)
    if rates.selection in ("fairseq", "spans"):
        excluded += special_ids
    replacement = Replacement(
        rates.mask_rate,
        rates.keep_rate,
        rates.random_rate,
        mask_token_id,
        np.delete(np.arange(vocab_size), excluded),
    )
    if rates.selection == "fairseq":
        masked, is_predicted = _mask_by_fairseq(batch, rates, replacement)
    elif rates.selection == "spans":
        masked, is_predicted = _mask_spans(batch, rates, replacement)
    else:
        choose = _choose_ngrams if rates.selection == "ngrams" else _choose_units
        is_predicted = choose(batch, rates)
        masked = _replace_tokens(batch, is_predicted, replacement)
    return masked, np.where(is_predicted, input_ids, IGNORE_INDEX)


@dataclass(frozen=True)
class _Batch:
    """The arrays of a batch for `mask_tokens`."""

    input_ids: np.ndarray
    candidates: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray
    probabilities: np.ndarray  # (B,)
    is_continuation: np.ndarray | None
    special_ends_word: bool

    @property
    def is_token(self) -> np.ndarray:
        """Return bool (B, S), False for padding."""
        return np.arange(self.input_ids.shape[1]) < self.lengths[:, None]

    @property
    def goes_on(self) -> np.ndarray:
        """Return bool (B, S), the pieces that go on with a word."""
        if self.is_continuation is None:
            raise ValueError("whole_word and the selections ngrams and spans need is_continuation")
        return self.is_continuation[self.input_ids]

    @property
    def is_word_start(self) -> np.ndarray:
        """Return bool (B, S), where words and special tokens begin.

        Special tokens are words too, and the token after one begins a word.
        """
        is_special = ~self.candidates
        follows_special = np.pad(is_special, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
        starts = is_special | follows_special | ~self.goes_on
        return starts & self.is_token

    def draw(self, stream: int) -> np.ndarray:
        """Return a number of a stream for each position: float64 (B, S) in [0, 1)."""
        return keyed_uniforms(self.keys[:, None], stream, np.arange(self.input_ids.shape[1]))

    def draw_one(self, stream: int, number: int) -> np.ndarray:
        """Return a number of a stream for each row: float64 (B,) in [0, 1)."""
        return keyed_uniforms(self.keys, stream, np.array([number]))

    def limits(self, rates: MaskingRates) -> np.ndarray:
        """Return int64 (B,), the tokens to predict in each row.

        np.rint rounds half to even, as Python 3's round in the original.
        """
        limits = np.rint(self.lengths * self.probabilities).astype(np.int64)
        return np.clip(limits, 1, rates.max_predictions_per_seq)


def _replace_tokens(
    batch: _Batch, is_predicted: np.ndarray, replacement: Replacement
) -> np.ndarray:
    """Return int64 (B, S), what the model sees.

    Drawn for each piece, under whole_word too (Devlin et al. 2019, section 3.1, Task #1).
    """
    rows, columns = np.nonzero(is_predicted)
    keys = batch.keys[rows]
    draws = keyed_uniforms(keys, _STREAM_REPLACE, columns)
    word_draws = keyed_uniforms(keys, _STREAM_WORD, columns)
    is_masked = draws < replacement.mask_rate  # 80 %: [MASK]
    is_random = draws >= replacement.mask_rate + replacement.keep_rate  # 10 %: a random word
    random_words = draw_words(replacement.words, word_draws)
    tokens = batch.input_ids[rows, columns]  # 10 %: the token itself
    masked = batch.input_ids.copy()
    masked[rows, columns] = np.select(
        [is_masked, is_random], [replacement.mask_token_id, random_words], default=tokens
    )
    return masked


def _next_tokens(batch: _Batch) -> np.ndarray:
    """Return int64 (B, S), the token after each; -100 where there is none."""
    labels = np.full_like(batch.input_ids, IGNORE_INDEX)
    has_next = batch.is_token[:, 1:]
    labels[:, :-1] = np.where(has_next, batch.input_ids[:, 1:], IGNORE_INDEX)
    return labels


def _choose_units(batch: _Batch, rates: MaskingRates) -> np.ndarray:
    """Return bool (B, S), the tokens to predict by "count" or "bernoulli".

    A unit, a token or the pieces of a word, is taken as one or not at all.
    """
    starts = batch.candidates
    if rates.whole_word and batch.special_ends_word:
        starts = starts & batch.is_word_start
    elif rates.whole_word:
        # The first candidate opens a unit even if it is a "##" piece: truncation from the front can
        # cut a word.
        is_first = np.cumsum(batch.candidates, axis=1) == 1
        starts = starts & (is_first | ~batch.goes_on)
    units = Units.from_starts(starts, batch.candidates)
    scores = batch.draw(_STREAM_SELECT)  # column u is for unit u
    is_open = units.is_unit
    limits = batch.limits(rates)
    if rates.selection == "bernoulli":
        is_open = is_open & (scores < batch.probabilities[:, None])
        limits[:] = rates.max_predictions_per_seq or scores.shape[1]
    if rates.whole_word:
        is_chosen = _take_in_order(scores, is_open, units.sizes(), limits)
    else:
        is_chosen = _take_lowest(scores, is_open, limits)
    return units.tokens(is_chosen)


def _take_lowest(scores: np.ndarray, is_open: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return bool (B, S), the open units with the lowest scores, `limits` of each row.

    Of units of one token, the usual case.
    """
    scores = np.where(is_open, scores, AFTER_ALL_DRAWS)
    last = np.minimum(limits, scores.shape[1]) - 1
    highest = np.take_along_axis(np.sort(scores, axis=1), last[:, None], axis=1)
    return is_open & (scores <= highest)


def _take_in_order(
    scores: np.ndarray, is_open: np.ndarray, sizes: np.ndarray, limits: np.ndarray
) -> np.ndarray:
    """Return bool (B, S), units in the random order of their scores until `limits` are full.

    A unit that would exceed the limit is skipped and smaller ones after it may still fit, as in the
    original.
    """
    scores = np.where(is_open, scores, AFTER_ALL_DRAWS)
    order = np.argsort(scores, axis=1, kind="stable")
    ordered_sizes = np.take_along_axis(np.where(is_open, sizes, 0), order, axis=1)
    is_chosen = np.zeros_like(is_open)
    totals = np.zeros(len(limits), dtype=np.int64)
    for column, size in enumerate(ordered_sizes.T):
        fits = (size > 0) & (totals + size <= limits)
        is_chosen[:, column] = fits
        totals += np.where(fits, size, 0)
        if (totals >= limits).all():
            break

    in_row_order = np.zeros_like(is_open)
    np.put_along_axis(in_row_order, order, is_chosen, axis=1)
    return in_row_order


def _mask_by_fairseq(
    batch: _Batch, rates: MaskingRates, replacement: Replacement
) -> tuple[np.ndarray, np.ndarray]:
    draws = FairseqDraws(
        count=batch.draw_one(_STREAM_COUNT, 0),
        order=batch.draw(_STREAM_SELECT),
        replacement=batch.draw(_STREAM_REPLACE),
        keep=batch.draw(_STREAM_KEEP),
        word=batch.draw(_STREAM_WORD),
    )
    starts = batch.is_word_start if rates.whole_word else batch.is_token
    units = Units.from_starts(starts, batch.is_token)
    return mask_fairseq(batch.input_ids, units, draws, rates.mlm_probability, replacement)


def _choose_ngrams(batch: _Batch, rates: MaskingRates) -> np.ndarray:
    starts = batch.is_word_start & batch.candidates
    words = Units.from_starts(starts, batch.candidates)
    scores = batch.draw(_STREAM_SELECT)
    scores[~words.is_unit] = AFTER_ALL_DRAWS
    order = np.argsort(scores, axis=1)
    length_draws = batch.draw(_STREAM_COUNT)
    return choose_ngrams(words, batch.limits(rates), MOST_NGRAM_WORDS, order, length_draws)


def _mask_spans(
    batch: _Batch, rates: MaskingRates, replacement: Replacement
) -> tuple[np.ndarray, np.ndarray]:
    # SpanBERT draws spans as if special tokens were absent: sort the candidates to the front.
    candidates_first = np.argsort(~batch.candidates, axis=1, kind="stable")
    candidates = np.take_along_axis(batch.candidates, candidates_first, axis=1)
    starts = np.take_along_axis(batch.is_word_start, candidates_first, axis=1) & candidates
    sorted_is_predicted = choose_spans(
        Units.from_starts(starts, candidates),
        probability=rates.mlm_probability,
        words_of_span=SPAN_WORDS,
        geometric_p=SPAN_GEOMETRIC_P,
        length_draws=partial(batch.draw_one, _STREAM_COUNT),
        anchor_draws=partial(batch.draw_one, _STREAM_SELECT),
    )
    sorted_masked = replace_spans(
        np.take_along_axis(batch.input_ids, candidates_first, axis=1),
        sorted_is_predicted,
        replacement,
        replacement_draws=batch.draw(_STREAM_REPLACE),
        word_draws=batch.draw(_STREAM_WORD),
    )
    masked = np.empty_like(batch.input_ids)
    is_predicted = np.empty_like(batch.candidates)
    np.put_along_axis(masked, candidates_first, sorted_masked, axis=1)
    np.put_along_axis(is_predicted, candidates_first, sorted_is_predicted, axis=1)
    return masked, is_predicted
