"""Intervals of 95 % for the mean of a figure over seeds: other seeds and other rows move it."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class SeedAndRowCertainty(NamedTuple):
    """Standard error and intervals of a figure's mean over seeds."""

    error: float  # standard error, for other seeds and, with replicates, for other rows too
    # 95 %, `of_seeds`, and with replicates `of_rows` and `of_both`.
    intervals: dict[str, tuple[float, float]]


def seed_and_row_certainty(figures: Sequence[float], replicates: Any = None) -> SeedAndRowCertainty:
    """Return how far a figure's mean would move with other seeds, other rows, and both.

    Args:
        figures: One a seed, of two seeds or more.
        replicates: float (S, G), the `jackknife_replicates` of each seed; None where they are not
            known.

    The interval over seeds is by Student's t; that of both is at least as wide as either.

    Every seed is measured on the same rows: an effect of the rows is in the figures of all seeds,
    and no deviation between seeds shows it. What one seed does on one group of rows is in both
    variances, so it is taken out of one (variance components of a crossed design: Searle, Casella
    and McCulloch 1992, chapter 4). Half intervals of independent parts add up by their squares
    (Zou and Donner 2008).
    """
    from scipy.stats import t as student  # takes most of a second

    num_seeds = len(figures)
    error_of_seeds = float(np.std(figures, ddof=1)) / math.sqrt(num_seeds)
    t_of_seeds = float(student.ppf(0.975, num_seeds - 1))
    half_of_seeds = t_of_seeds * error_of_seeds
    error = error_of_seeds
    halves = {"of_seeds": half_of_seeds}
    if replicates is not None:
        error_of_rows, error_without_interaction = _row_errors(np.asarray(replicates))
        error = max(error_of_rows, math.hypot(error_of_seeds, error_without_interaction))
        num_groups = np.shape(replicates)[1]
        t_of_rows = float(student.ppf(0.975, num_groups - 1))
        half_of_rows = t_of_rows * error_of_rows
        half_without_interaction = t_of_rows * error_without_interaction
        half_of_both = math.hypot(half_of_seeds, half_without_interaction)
        halves["of_rows"] = half_of_rows
        halves["of_both"] = max(half_of_rows, half_of_both)
    mean = float(np.mean(figures))
    intervals = {name: (mean - half, mean + half) for name, half in halves.items()}
    return SeedAndRowCertainty(error, intervals)


def _row_errors(replicates: np.ndarray) -> tuple[float, float]:
    """Return two standard errors of a mean over seeds by rows.

    The second one is without the interaction: what one seed does on one group of rows.
    """
    num_seeds, num_groups = replicates.shape
    degrees_of_freedom = num_groups - 1
    # Pseudo-values of the jackknife, about the mean of their seed.
    deviations = replicates.mean(axis=1, keepdims=True) - replicates
    pseudo_values = degrees_of_freedom * deviations
    means = pseudo_values.mean(axis=0)
    variance_of_rows = np.square(means).sum() / (num_groups * degrees_of_freedom)

    squares = np.square(pseudo_values - means).sum()
    mean_square_of_interaction = squares / ((num_seeds - 1) * degrees_of_freedom)
    variance_of_interaction = mean_square_of_interaction / (num_seeds * num_groups)
    variance_without = max(0.0, variance_of_rows - variance_of_interaction)
    return math.sqrt(variance_of_rows), math.sqrt(variance_without)


def subtract_replicates(
    pairs: Sequence[tuple[Sequence[float | None], Sequence[float | None]]],
) -> np.ndarray | None:
    """Return the replicates of each seed's difference, float (S, G), first minus second.

    None where a replicate is undefined (a metric without one of the groups) or the groups differ.

    Args:
        pairs: The `jackknife_replicates` of two models, for each seed.
    """
    num_groups = len(pairs[0][0])
    differences = []
    for first, second in pairs:
        if not len(first) == len(second) == num_groups > 0:
            return None
        # None becomes NaN.
        difference = np.array(first, dtype=float) - np.array(second, dtype=float)
        if not np.isfinite(difference).all():
            return None
        differences.append(difference)
    return np.array(differences)
