"""Whether a model's probabilities mean what they say.

Legend: N predictions, M bins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bert_recipes.errors import InputError


# Guo et al. 2017, Table 1.
NUM_BINS = 15


@dataclass(frozen=True)
class Bin:
    """Predictions of like probability.

    Attributes:
        low, high: Its probabilities are above `low` and at most `high`; 0 belongs to the first bin.
        count: Predictions in it.
        confidence: Their mean probability, 0 to 1; the middle of an empty bin.
        accuracy: Share of them that is right, 0 to 1; 0 of an empty bin.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def reliability_bins(probabilities: ArrayLike, outcomes: ArrayLike, num_bins: int = NUM_BINS) -> list[Bin]:
    """Sort predictions into bins of equal width by their probability.

    Args:
        probabilities: float (N,), 0 to 1: what the model gave its prediction.
        outcomes: bool (N,): whether the prediction was right.
        num_bins: M.

    Raises:
        InputError: If the two differ in length, are empty, or a probability is none.

    Source:
        Guo et al. 2017, "On Calibration of Modern Neural Networks", section 2, reliability diagrams.
    """
    shares, right = np.asarray(probabilities, dtype=np.float64), np.asarray(outcomes, dtype=bool)
    if shares.shape != right.shape or shares.ndim != 1 or not len(shares):
        raise InputError(f"probabilities and outcomes of shape {shares.shape} and {right.shape}; one of each a row")
    if not ((shares >= 0) & (shares <= 1 + 1e-6)).all():
        raise InputError("a probability is not between 0 and 1")
    # Bin m holds those in ((m - 1) / M, m / M].
    numbers = np.clip(np.ceil(shares * num_bins).astype(np.int64) - 1, 0, num_bins - 1)
    counts = np.bincount(numbers, minlength=num_bins)
    sums = np.bincount(numbers, weights=shares, minlength=num_bins)
    hits = np.bincount(numbers, weights=right, minlength=num_bins)
    bins = []
    for number, (count, total, hit) in enumerate(zip(counts.tolist(), sums.tolist(), hits.tolist(), strict=True)):
        low, high = number / num_bins, (number + 1) / num_bins
        bins.append(Bin(low, high, count, total / count if count else (low + high) / 2, hit / count if count else 0.0))
    return bins


def expected_calibration_error(bins: list[Bin]) -> float:
    """Mean distance of accuracy and confidence over the bins, each counting as many times as it has predictions; 0 to 1.

    Source:
        Naeini et al. 2015; Guo et al. 2017, section 2, with 15 bins as in their Table 1.

    Example:
        >>> expected_calibration_error(reliability_bins([0.9, 0.9, 0.9, 0.9], [True, True, True, False]))
        0.15000000000000002
    """
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / total
