"""Which tokens RoBERTa, ALBERT and SpanBERT predict: one row at a time, with the draws of their own code in its order.

Whoever calls hands in the generator: one of a key in training (`masking.mask_tokens`), the original's own where its results are reproduced.

Legend: n tokens of a row, special tokens included.
"""

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from bert_recipes.data.pairs import shuffle


def mask_fairseq(
    ids: np.ndarray,
    starts: np.ndarray | None,
    *,
    probability: float,
    shares: tuple[float, float],
    mask_id: int,
    vocabulary: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """RoBERTa's masks: any token may be predicted, special ones too; the share is exact on average, there is no limit.

    Args:
        ids: int64 (n,).
        starts: bool (n,), where words begin, special tokens being words; None: tokens are chosen, not words.
        probability: Share of tokens, or of words.
        shares: Of the chosen ones, those that are left as they are, and those that become a random word.
        vocabulary: int64, the ids that random words are drawn from, uniformly.

    Returns:
        int64 (n,), what the model sees; bool (n,), what it predicts.

    Source: fairseq data/mask_tokens_dataset.py.
    """
    repeats = None if starts is None else np.diff(np.append(np.flatnonzero(starts), len(ids)))
    size = len(ids) if repeats is None else len(repeats)
    chosen = np.zeros(size, dtype=bool)
    chosen[rng.choice(size, int(probability * size + rng.random()), replace=False)] = True
    keep, replace = shares
    other = chosen & (rng.random(size) < keep + replace)
    kept = other & (rng.random(size) < keep / max(keep + replace, 1e-12))
    masks = [chosen, chosen & ~kept, other & ~kept]
    chosen, changed, at_random = masks if repeats is None else (np.repeat(mask, repeats) for mask in masks)
    masked = ids.copy()
    masked[changed] = mask_id
    masked[at_random] = vocabulary[(rng.random(int(at_random.sum())) * len(vocabulary)).astype(np.int64)]
    return masked, chosen


def choose_ngrams(
    words: Sequence[list[int]], limit: int, most_words: int, rng: random.Random, uniform: Callable[[], float]
) -> list[list[int]]:
    """ALBERT's masks: runs of one to `most_words` whole words, n of them with a probability proportional to 1/n.

    A run that does not fit is tried shorter, one that meets another is passed over.

    Args:
        words: Positions of each word, in order.
        limit: Positions that are predicted, at most.
        uniform: Gives the numbers in [0, 1) that decide n; the original draws them from another generator.

    Returns:
        The positions of the runs, in the order of their choice.

    Source: google-research/albert create_pretraining_data.py, create_masked_lm_predictions.
    """
    shares = np.cumsum(1.0 / np.arange(1, most_words + 1))
    shares /= shares[-1]
    order = list(range(len(words)))
    shuffle(order, rng)
    covered: set[int] = set()
    runs = []
    for start in order:
        if len(covered) >= limit:
            break
        count = int(shares.searchsorted(uniform(), side="right")) + 1
        run = [position for word in words[start : start + count] for position in word]
        while count > 1 and len(covered) + len(run) > limit:
            count -= 1
            run = [position for word in words[start : start + count] for position in word]
        if len(covered) + len(run) <= limit and covered.isdisjoint(run):
            covered.update(run)
            runs.append(run)
    return runs


def mask_spans(
    ids: np.ndarray,
    starts: np.ndarray,
    *,
    probability: float,
    shares: tuple[float, float],
    mask_id: int,
    vocabulary: np.ndarray,
    words: tuple[int, int],
    geometric_p: float,
    rng: np.random.RandomState,
) -> tuple[np.ndarray, np.ndarray]:
    """SpanBERT's masks: spans of whole words, which are masked, kept or replaced as a whole; their lengths have a cut geometric distribution.

    Args:
        ids: int64 (n,), without special tokens.
        starts: bool (n,), where words begin.
        probability: Share of tokens that are predicted, rounded up; the last span may be cut.
        shares: Of spans that become masks, and whose pieces are drawn anew; the others are left as they are.
        vocabulary: int64, the ids that random words are drawn from, uniformly.
        words: Of a span, at least and at most.

    Returns:
        int64 (n,), what the model sees; bool (n,), what it predicts.

    Source: SpanBERT pretraining/fairseq/data/masking.py, PairWithSpanMaskingScheme, with one replacement a span.
    """
    size, low = len(ids), words[0]
    odds = np.array([geometric_p * (1 - geometric_p) ** (count - low) for count in range(low, words[1] + 1)])
    cumulated = np.cumsum(odds / odds.sum())
    cumulated /= cumulated[-1]
    begins = np.flatnonzero(np.append(True, starts[1:])).tolist()
    ends, word_of = [*begins[1:], size], np.cumsum(np.append(True, starts[1:])) - 1
    chosen, wanted = np.zeros(size, dtype=bool), math.ceil(size * probability)
    spans: list[list[int]] = []
    while (missing := wanted - int(chosen.sum())) > 0:
        count = low + int(cumulated.searchsorted(rng.random_sample(), side="right"))
        rng.random_sample()  # the original may prefer words of a kind here, which its recipe does not
        anchor = int(rng.randint(0, size))
        if chosen[anchor]:
            continue
        word = int(word_of[anchor])
        span = np.arange(begins[word], ends[min(word + count, len(ends)) - 1])
        new = np.flatnonzero(~chosen[span])
        span = span[: new[missing - 1] + 1] if len(new) >= missing else span
        chosen[span] = True
        spans.append([int(span[0]), int(span[-1])])
    masked = ids.copy()
    for begin, end in _joined(spans):
        draw = rng.random_sample()
        if draw < shares[0]:
            masked[begin : end + 1] = mask_id
        elif draw < sum(shares):
            masked[begin : end + 1] = vocabulary[[int(rng.randint(0, len(vocabulary))) for _ in range(begin, end + 1)]]
    return masked, chosen


def _joined(spans: list[list[int]]) -> list[list[int]]:
    """In order, those that touch or overlap as one."""
    joined: list[list[int]] = []
    for begin, end in sorted(spans, key=lambda span: span[0]):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return joined
