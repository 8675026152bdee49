"""How far a figure would move with other rows of the same kind: intervals of 95 %."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


# Pre-training: share -> what it is a share of.
_SHARE_OF = {"nsp_accuracy": "eval_pairs", "sop_accuracy": "eval_pairs", "mlm_accuracy": "eval_masked_tokens"}


# Of the normal distribution.
_Z = 1.96
# Fewer rows say nothing of their spread.
_FEWEST_ROWS, _GROUPS = 5, 20


def wilson_interval(share: float, rows: float) -> tuple[float, float]:
    """Interval of a share of independent rows, 0 to 1.

    Source: Wilson 1927, the score interval.

    Example:
        >>> [round(end, 3) for end in wilson_interval(1.0, 10)]
        [0.722, 1.0]
    """
    middle, scale = share + _Z**2 / (2 * rows), 1 + _Z**2 / rows
    half = _Z * math.sqrt(share * (1 - share) / rows + (_Z / (2 * rows)) ** 2)
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def jackknife_intervals(
    score: Callable[[Sequence[int]], Mapping[str, float]], rows: int
) -> dict[str, tuple[float, float]]:
    """Intervals of figures of any kind, which are computed anew without one group of the rows after the other.

    Args:
        score: Numbers of rows -> their figures.
        rows: How many there are.

    Returns:
        Figure -> interval; none of a figure that is undefined, or the same whichever rows are left out.

    Source: the delete-a-group jackknife (Kott 2001); Student's t to the first order of Cornish and Fisher.
    """
    if rows < _FEWEST_ROWS:
        return {}
    groups = min(_GROUPS, rows)
    order = np.random.default_rng(0).permutation(rows)  # files may be sorted by their labels
    parts = [score(np.delete(order, np.s_[group::groups]).tolist()) for group in range(groups)]
    factor = _Z + (_Z**3 + _Z) / (4 * (groups - 1))
    found = {}
    for name, value in score(range(rows)).items():
        half = factor * math.sqrt(groups - 1) * float(np.std([part.get(name, math.nan) for part in parts]))
        if half > 1e-9:  # not where it is nan either
            found[name] = (value - half, value + half)
    return found


def half_interval(name: str, results: Mapping[str, Any]) -> float:
    """How far a figure may lie from its value for the rows that were measured; 0 where nothing is known."""
    interval = (results.get("intervals") or {}).get(name)
    rows = results.get(_SHARE_OF.get(name, ""))
    if interval is None and rows:
        interval = wilson_interval(results[f"eval_{name}"], rows)
    return (interval[1] - interval[0]) / 2 if interval else 0.0
