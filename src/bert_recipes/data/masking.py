"""Choose the tokens that are predicted and what replaces them, by random numbers that are functions
of a key.

Masks do not depend on workers, processes or resumes: a generator with a state gives other numbers
when one more batch is fetched before a checkpoint; a counter-based one gives number i of key k
without any history. The mixing function is SplitMix64's finaliser (Steele, Lea and Flood 2014,
"Fast splittable pseudorandom number generators"), the constants are David Stafford's variant 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_recipes.data.other_masks import (
    FairseqDraws,
    Units,
    choose_ngrams,
    choose_spans,
    mask_fairseq,
    replace_spans,
)
from bert_recipes.errors import InputError
from bert_recipes.settings import check, option


_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on a uint64 array (wraps modulo 2**64)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def hash_keys(seed: int, *parts: np.ndarray) -> np.ndarray:
    """Return one 64-bit key per row, uint64 (B,), from a seed (modulo 2**64) and integer columns
    (B,).
    """
    rows = len(parts[0])
    key = _mix(np.full(rows, seed % 2**64, dtype=np.uint64) + _GOLDEN_GAMMA)
    for part in parts:
        key = _mix((key ^ np.asarray(part).astype(np.uint64)) + _GOLDEN_GAMMA)
    return key


def keyed_uniforms(keys: np.ndarray, stream: int, positions: np.ndarray) -> np.ndarray:
    """Return number ``positions`` of each key: float64 in [0, 1), of the shape of both arrays
    together.

    Args:
        keys: uint64.
        stream: Which of the independent streams of a key to read, 0 or more.
        positions: Integers from 0; broadcast against the keys.
    """
    base = _mix(keys ^ _mix(np.array([stream + 1], dtype=np.uint64) * _GOLDEN_GAMMA))
    counters = (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    return (_mix(base + counters) >> np.uint64(11)).astype(np.float64) * _TO_UNIT


IGNORE_INDEX = -100
SELECTIONS = ("count", "bernoulli", "fairseq", "ngrams", "spans", "causal", "none")
# ALBERT's runs have at most so many words (--ngram); SpanBERT's spans as many, with this geometric
# distribution (Joshi et al. 2020, section 3.1).
MOST_NGRAM_WORDS, SPAN_WORDS, SPAN_GEOMETRIC_P = 3, (1, 10), 0.2
_STREAM_SELECT, _STREAM_REPLACE, _STREAM_WORD, _STREAM_COUNT, _STREAM_KEEP = 0, 1, 2, 3, 4


@dataclass(kw_only=True)
class MaskingRates:
    """The fraction of tokens that are predicted and of what the model sees instead; 0.8, 0.1 and
    0.1 in the paper.
    """

    mlm_probability: float = option(
        0.15, "of a row's tokens, [CLS] and both [SEP] counted", above=0, below=1
    )
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
        check(self)
        total = self.mask_rate + self.keep_rate + self.random_rate
        if abs(total - 1.0) > 1e-6:
            raise InputError(
                f"mask_rate {self.mask_rate} + keep_rate {self.keep_rate} + random_rate "
                f"{self.random_rate} = {total:g}; "
                "the three must sum to 1 (paper: 0.8, 0.1, 0.1)"
            )


def default_max_predictions(max_seq_length: int, mlm_probability: float) -> int:
    """The limit of predictions where none is given: the fraction of the longest pair; 20 for 128
    tokens, 77 for 512.

    Source: google-research/bert README: around max_seq_length * masked_lm_prob.
    """
    return math.ceil(max_seq_length * mlm_probability)


def mask_tokens(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    lengths: np.ndarray,
    keys: np.ndarray,
    *,
    rates: MaskingRates,
    mask_token_id: int,
    vocab_size: int,
    is_continuation: np.ndarray | None = None,
    not_drawn: Sequence[int] = (),
    never_drawn: Sequence[int] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Mask a batch; a pure function of its arguments.

    Args:
        input_ids: int64 (B, S).
        candidates: bool (B, S), True where a token may be predicted: not [CLS], [SEP], padding.
        lengths: int64 (B,), tokens of the row with its special tokens, without padding.
        keys: uint64 (B,), the row's source of randomness (`hash_keys`).
        vocab_size: Random words are drawn uniformly from [0, vocab_size), special and unused ones
            included, as in the original.
        is_continuation: bool (vocab_size,), True for pieces that go on with a word; needed for
            whole_word, "ngrams" and "spans".
        not_drawn: Ids that "fairseq" and "spans" do not draw: fairseq's first four, [CLS], padding,
            [SEP], [UNK].
        never_drawn: Ids that no selection draws.

    Returns:
        masked: int64 (B, S), a new array.
        labels: int64 (B, S), the original id where the model predicts, -100 elsewhere.
    """
    if rates.selection == "none":
        return input_ids, np.full_like(input_ids, IGNORE_INDEX)
    if rates.selection == "causal":
        labels = np.full_like(input_ids, IGNORE_INDEX)
        has_next = np.arange(1, input_ids.shape[1]) < lengths[:, None]
        labels[:, :-1] = np.where(has_next, input_ids[:, 1:], IGNORE_INDEX)
        return input_ids, labels
    vocabulary = np.delete(np.arange(vocab_size), list(never_drawn))
    if rates.selection in ("fairseq", "ngrams", "spans"):
        needs_words = rates.whole_word or rates.selection != "fairseq"
        if needs_words and is_continuation is None:
            raise ValueError(f"whole_word and the selection {rates.selection} need is_continuation")
        # Special tokens are words of their own, and what follows one begins a word.
        is_token = np.arange(input_ids.shape[1]) < lengths[:, None]
        starts = ~candidates | np.pad(~candidates, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
        starts |= True if is_continuation is None else ~is_continuation[input_ids]
        starts &= is_token
        batch = _Batch(input_ids, candidates, lengths, keys, starts, is_token)
        if rates.selection == "ngrams":
            chosen = _choose_ngrams(batch, rates)
            masked = _replace(input_ids, chosen, keys, rates, mask_token_id, vocabulary)
        else:
            mask = _mask_by_fairseq if rates.selection == "fairseq" else _mask_spans
            words = np.delete(np.arange(vocab_size), [*never_drawn, *not_drawn])
            masked, chosen = mask(batch, rates, mask_token_id, words)
        return masked, np.where(chosen, input_ids, IGNORE_INDEX)
    if rates.whole_word:
        if is_continuation is None:
            raise ValueError("whole_word needs is_continuation")
        starts = candidates & ~is_continuation[input_ids]
        # The first candidate opens a unit even if it is a "##" piece: truncation from the front can
        # cut a word.
        starts |= candidates & (np.cumsum(candidates, axis=1) == 1)
    else:
        starts = candidates
    chosen = _choose(starts, candidates, lengths, keys, rates)
    masked = _replace(input_ids, chosen, keys, rates, mask_token_id, vocabulary)
    return masked, np.where(chosen, input_ids, IGNORE_INDEX)


def _choose(
    starts: np.ndarray,
    candidates: np.ndarray,
    lengths: np.ndarray,
    keys: np.ndarray,
    rates: MaskingRates,
) -> np.ndarray:
    """Bool (B, S): the tokens to predict. A unit (a token, or a word's pieces) is taken whole or
    not at all.
    """
    size = starts.shape[1]
    unit = np.cumsum(starts, axis=1)  # (B, S), number of each candidate's unit, from 1
    num_units = unit[:, -1:].copy()
    unit -= 1
    unit[~candidates] = 0
    scores = keyed_uniforms(keys[:, None], _STREAM_SELECT, np.arange(size))
    real = np.arange(size) < num_units
    limit = rates.max_predictions_per_seq
    if rates.selection == "bernoulli":
        taken = real & (scores < rates.mlm_probability)
        wanted = None if limit is None else np.full(len(keys), limit)
    else:
        taken = real
        # np.rint rounds half to even, as Python 3's round in the original.
        wanted = np.maximum(1, np.rint(lengths * rates.mlm_probability)).astype(np.int64)
        if limit is not None:
            wanted = np.minimum(wanted, limit)
    if wanted is not None and rates.whole_word:
        flat = (np.arange(len(unit))[:, None] * size + unit)[candidates]
        sizes = np.bincount(flat, minlength=unit.size).reshape(
            unit.shape
        )  # candidates in each unit
        taken = _take_in_order(scores, taken, sizes, wanted)
    elif wanted is not None:
        taken = _take_lowest(scores, taken, wanted)
    return np.take_along_axis(taken, unit, axis=1) & candidates


def _take_lowest(scores: np.ndarray, real: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Bool (B, S): the `wanted` lowest scores of each row among the real ones: units of one token,
    the usual case.
    """
    among = np.where(real, scores, 2.0)
    highest = np.take_along_axis(
        np.sort(among, axis=1), np.minimum(wanted, scores.shape[1])[:, None] - 1, axis=1
    )
    return real & (among <= highest)


def _take_in_order(
    scores: np.ndarray, real: np.ndarray, sizes: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Bool (B, S): units in the random order of their scores until `wanted` tokens are full.

    A unit that would exceed the count is skipped and smaller ones after it may still fit, as in the
    original.
    """
    order = np.argsort(np.where(real, scores, 2.0), axis=1, kind="stable")
    ordered_sizes = np.where(
        np.take_along_axis(real, order, axis=1), np.take_along_axis(sizes, order, axis=1), 0
    )
    picked = np.zeros_like(real)
    total = np.zeros(len(wanted), dtype=np.int64)
    for column in range(ordered_sizes.shape[1]):
        size = ordered_sizes[:, column]
        picked[:, column] = (size > 0) & (total + size <= wanted)
        total += np.where(picked[:, column], size, 0)
        if not (total < wanted).any():
            break
    taken = np.zeros_like(real)
    np.put_along_axis(taken, order, picked, axis=1)
    return taken


def _replace(
    input_ids: np.ndarray,
    chosen: np.ndarray,
    keys: np.ndarray,
    rates: MaskingRates,
    mask_token_id: int,
    vocabulary: np.ndarray,
) -> np.ndarray:
    """int64 (B, S): [MASK], the token itself or a random word; drawn for each piece, under
    whole_word too.
    """
    rows, columns = np.nonzero(chosen)
    draws = keyed_uniforms(keys[rows], _STREAM_REPLACE, columns)
    words = vocabulary[
        (keyed_uniforms(keys[rows], _STREAM_WORD, columns) * len(vocabulary)).astype(np.int64)
    ]
    kept = input_ids[rows, columns]
    masked = input_ids.copy()
    masked[rows, columns] = np.where(
        draws < rates.mask_rate,
        mask_token_id,
        np.where(draws >= rates.mask_rate + rates.keep_rate, words, kept),
    )
    return masked


@dataclass(frozen=True)
class _Batch:
    """The arrays of a batch for `mask_tokens`."""

    input_ids: np.ndarray
    candidates: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray
    starts: np.ndarray  # bool (B, S), where words and special tokens begin
    is_token: np.ndarray  # bool (B, S), no padding

    def draw(self, stream: int, positions: np.ndarray | None = None) -> np.ndarray:
        """Return numbers of a stream, by default one for each position: float64 (B, S) in [0,
        1).
        """
        if positions is None:
            positions = np.arange(self.input_ids.shape[1])
        return keyed_uniforms(self.keys[:, None], stream, positions)


def _mask_by_fairseq(
    batch: _Batch, rates: MaskingRates, mask_token_id: int, vocabulary: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    draws = FairseqDraws(
        count=batch.draw(_STREAM_COUNT, np.zeros(1))[:, 0],
        order=batch.draw(_STREAM_SELECT),
        replacement=batch.draw(_STREAM_REPLACE),
        kept=batch.draw(_STREAM_KEEP),
        word=batch.draw(_STREAM_WORD),
    )
    return mask_fairseq(
        batch.input_ids,
        Units.from_starts(batch.starts if rates.whole_word else batch.is_token, batch.is_token),
        draws,
        probability=rates.mlm_probability,
        keep_rate=rates.keep_rate,
        random_rate=rates.random_rate,
        mask_token_id=mask_token_id,
        vocabulary=vocabulary,
    )


def _choose_ngrams(batch: _Batch, rates: MaskingRates) -> np.ndarray:
    words = Units.from_starts(batch.starts & batch.candidates, batch.candidates)
    limits = np.maximum(1, np.rint(batch.lengths * rates.mlm_probability)).astype(np.int64)
    if rates.max_predictions_per_seq is not None:
        limits = np.minimum(limits, rates.max_predictions_per_seq)
    is_word = np.arange(batch.input_ids.shape[1]) < words.counts[:, None]
    order = np.argsort(np.where(is_word, batch.draw(_STREAM_SELECT), 2.0), axis=1)
    return choose_ngrams(words, limits, MOST_NGRAM_WORDS, order, batch.draw(_STREAM_COUNT))


def _mask_spans(
    batch: _Batch, rates: MaskingRates, mask_token_id: int, vocabulary: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    # Spans are drawn as if special tokens were not there: what is no candidate is moved behind the
    # others.
    moved = np.argsort(~batch.candidates, axis=1, kind="stable")
    candidates = np.take_along_axis(batch.candidates, moved, axis=1)
    starts = np.take_along_axis(batch.starts, moved, axis=1) & candidates
    chosen = choose_spans(
        Units.from_starts(starts, candidates),
        probability=rates.mlm_probability,
        words_of_span=SPAN_WORDS,
        geometric_p=SPAN_GEOMETRIC_P,
        length_draws=lambda attempt: batch.draw(_STREAM_COUNT, np.array([attempt]))[:, 0],
        anchor_draws=lambda attempt: batch.draw(_STREAM_SELECT, np.array([attempt]))[:, 0],
    )
    masked = replace_spans(
        np.take_along_axis(batch.input_ids, moved, axis=1),
        chosen,
        mask_rate=rates.mask_rate,
        random_rate=rates.random_rate,
        mask_token_id=mask_token_id,
        vocabulary=vocabulary,
        replacement_draws=batch.draw(_STREAM_REPLACE),
        word_draws=batch.draw(_STREAM_WORD),
    )
    result, is_predicted = np.empty_like(batch.input_ids), np.empty_like(chosen)
    np.put_along_axis(result, moved, masked, axis=1)
    np.put_along_axis(is_predicted, moved, chosen, axis=1)
    return result, is_predicted
