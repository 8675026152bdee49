"""Estimate how far a figure would move with other rows of the same kind: intervals of 95 %."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


# Pre-training: share -> what it is a share of.
_SHARE_OF = {
    "nsp_accuracy": "eval_pairs",
    "sop_accuracy": "eval_pairs",
    "mlm_accuracy": "eval_masked_tokens",
}


# Of the normal distribution.
_Z = 1.96
_NUM_GROUPS = 20
# Fewer rows say nothing of their spread.
_FEWEST_ROWS = 5


def wilson_interval(share: float, rows: float) -> tuple[float, float]:
    """Return the interval of a share of independent rows, 0 to 1.

    Source: Wilson 1927, the score interval.

    Example:
        >>> [round(end, 3) for end in wilson_interval(1.0, 10)]
        [0.722, 1.0]
    """
    middle = share + _Z**2 / (2 * rows)
    half = _Z * math.sqrt(share * (1 - share) / rows + (_Z / (2 * rows)) ** 2)
    scale = 1 + _Z**2 / rows
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def jackknife_replicates(
    score: Callable[[Sequence[int]], Mapping[str, float]], rows: int
) -> dict[str, list[float]]:
    """Compute figures of any kind again without one group of the rows after the other.

    Args:
        score: Numbers of rows -> their figures.
        rows: How many there are.

    Returns:
        Figure -> its value without each of 20 groups, NaN where it is undefined; {} for fewer than
        five rows. The groups depend on the number of rows alone, so those of two models over the
        same rows are the same.

    Source: the delete-a-group jackknife (Kott 2001).
    """
    if rows < _FEWEST_ROWS:
        return {}
    num_groups = min(_NUM_GROUPS, rows)
    order = np.random.default_rng(0).permutation(rows)  # files may be sorted by their labels
    replicates: dict[str, list[float]] = {}
    for group in range(num_groups):
        remaining = np.delete(order, np.s_[group::num_groups])
        for name, value in score(remaining.tolist()).items():
            values = replicates.setdefault(name, [math.nan] * num_groups)
            values[group] = value
    return replicates


def jackknife_intervals(
    figures: Mapping[str, float], replicates: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, float]]:
    """Return the intervals of figures with their `jackknife_replicates`.

    A figure that is undefined, or the same whichever rows are left out, has none.

    Source: Kott 2001; Student's t to the first order of Cornish and Fisher.
    """
    intervals = {}
    for name, values in replicates.items():
        if name not in figures:
            continue
        freedom = len(values) - 1
        students_t = _Z + (_Z**3 + _Z) / (4 * freedom)
        half = students_t * math.sqrt(freedom) * float(np.std(values))
        if half > 1e-9:  # not where it is nan either
            intervals[name] = (figures[name] - half, figures[name] + half)
    return intervals


def half_interval(name: str, results: Mapping[str, Any]) -> float:
    """Return how far a figure may lie from its value for the rows that were measured.

    0 where nothing is known.
    """
    intervals = results.get("intervals") or {}
    interval = intervals.get(name)
    if interval is None and name in _SHARE_OF:
        rows = results.get(_SHARE_OF[name])
        if rows:
            interval = wilson_interval(results[f"eval_{name}"], rows)
    if interval is None:
        return 0.0
    # It may be cut off where the figure can be no higher or lower.
    low, high = interval
    value = results[f"eval_{name}"]
    return max(high - value, value - low)
