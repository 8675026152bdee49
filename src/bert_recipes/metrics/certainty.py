"""How far a figure would move with other rows of the same kind: intervals of 95 %."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


# Pre-training: share -> what it is a share of.
_SHARE_OF = {
    "nsp_accuracy": "eval_pairs",
    "sop_accuracy": "eval_pairs",
    "mlm_accuracy": "eval_masked_tokens",
}


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
    groups = min(_GROUPS, rows)
    order = np.random.default_rng(0).permutation(rows)  # files may be sorted by their labels
    scores = [score(np.delete(order, np.s_[group::groups]).tolist()) for group in range(groups)]
    names = dict.fromkeys(name for each in scores for name in each)
    return {name: [each.get(name, math.nan) for each in scores] for name in names}


def jackknife_intervals(
    figures: Mapping[str, float], replicates: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, float]]:
    """Return the intervals of figures with their `jackknife_replicates`.

    A figure that is undefined, or the same whichever rows are left out, has none.

    Source: Kott 2001; Student's t to the first order of Cornish and Fisher.
    """
    intervals = {}
    for name, values in replicates.items():
        freedom = len(values) - 1
        factor = _Z + (_Z**3 + _Z) / (4 * freedom)
        half = factor * math.sqrt(freedom) * float(np.std(values))
        if name in figures and half > 1e-9:  # not where it is nan either
            intervals[name] = (figures[name] - half, figures[name] + half)
    return intervals


class SeedAndRowCertainty(NamedTuple):
    """How far a figure's mean over seeds would move with other seeds and rows."""

    error: float  # standard error, for other seeds and, with replicates, for other rows too
    intervals: dict[
        str, tuple[float, float]
    ]  # 95 %, `of_seeds`, and with replicates `of_rows` and `of_both`


def seed_and_row_certainty(figures: Sequence[float], replicates: Any = None) -> SeedAndRowCertainty:
    """Return the standard error of a figure's mean over seeds, and its intervals: for other seeds,
    for other rows, and for both.

    Args:
        figures: One a seed, of two seeds or more.
        replicates: float (S, G), the `jackknife_replicates` of each seed; None where they are not
            known.

    The interval over seeds is by Student's t; that of both holds the other two.

    Every seed is measured on the same rows: an effect of the rows is in the figures of all seeds,
    and no deviation between seeds shows it. What one seed does on one group of rows is in both
    variances, so it is taken out of one (variance
    components of a crossed design: Searle, Casella and McCulloch 1992, chapter 4). Half intervals
    of independent parts add up by their squares (Zou and Donner 2008).
    """
    from scipy.stats import t as student  # takes most of a second

    num_seeds = len(figures)
    error_of_seeds = float(np.std(figures, ddof=1)) / math.sqrt(num_seeds)
    error = error_of_seeds
    halves = {"of_seeds": float(student.ppf(0.975, num_seeds - 1)) * error_of_seeds}
    if replicates is not None:
        error_of_rows, error_of_rows_alone = _row_errors(np.asarray(replicates))
        error = max(error_of_rows, math.hypot(error_of_seeds, error_of_rows_alone))
        quantile = float(student.ppf(0.975, np.shape(replicates)[1] - 1))
        halves["of_rows"] = quantile * error_of_rows
        halves["of_both"] = max(
            halves["of_rows"], math.hypot(halves["of_seeds"], quantile * error_of_rows_alone)
        )
    mean = float(np.mean(figures))
    return SeedAndRowCertainty(
        error, {name: (mean - half, mean + half) for name, half in halves.items()}
    )


def _row_errors(replicates: np.ndarray) -> tuple[float, float]:
    """Return the standard error of the mean over seeds by its rows, and that without what differs
    between seeds.
    """
    num_seeds, num_groups = replicates.shape
    # Pseudo-values of the jackknife, about the mean of their seed.
    pseudo_values = (num_groups - 1) * (replicates.mean(axis=1, keepdims=True) - replicates)
    means = pseudo_values.mean(axis=0)
    variance = float(np.square(means).sum() / (num_groups * (num_groups - 1)))
    squares = float(np.square(pseudo_values - means).sum() / ((num_seeds - 1) * (num_groups - 1)))
    interaction = squares / (num_seeds * num_groups)
    return math.sqrt(variance), math.sqrt(max(0.0, variance - interaction))


def half_interval(name: str, results: Mapping[str, Any]) -> float:
    """How far a figure may lie from its value for the rows that were measured; 0 where nothing is
    known.
    """
    interval = (results.get("intervals") or {}).get(name)
    rows = results.get(_SHARE_OF.get(name, ""))
    if interval is None and rows:
        interval = wilson_interval(results[f"eval_{name}"], rows)
    return (interval[1] - interval[0]) / 2 if interval else 0.0
