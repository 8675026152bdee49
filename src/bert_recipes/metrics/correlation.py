"""Correlations between predicted and true scores (STS-B)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bert_recipes.errors import InputError


def pearson(predictions: ArrayLike, references: ArrayLike) -> float:
    """Pearson's correlation coefficient.

    Args:
        predictions: float (N,), finite.
        references: Like `predictions`.

    Returns:
        -1 to 1; nan where it is not defined: a single row, or one side constant. No number would be right there.

    Raises:
        InputError: If the two differ in length, are empty, or hold something else than finite numbers.

    Source:
        As `scipy.stats.pearsonr`, which refuses a single row.

    Example:
        >>> pearson([1.0, 2.0, 4.0], [10.0, 20.0, 40.0])
        1.0
    """
    return _correlate(*_checked(predictions, references))


def spearmanr(predictions: ArrayLike, references: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, equal values sharing the mean of their ranks.

    Args:
        predictions: float (N,), finite.
        references: Like `predictions`.

    Returns:
        -1 to 1; nan where it is not defined: a single row, or one side constant.

    Raises:
        InputError: If the two differ in length, are empty, or hold something else than finite numbers.

    Source:
        As `scipy.stats.spearmanr`; the STS-B figure of Devlin et al. 2019, Table 1.

    Example:
        >>> spearmanr([1.0, 2.0, 4.0], [0.1, 0.2, 90.0])
        1.0
    """
    predicted, gold = _checked(predictions, references)
    return _correlate(_average_ranks(predicted), _average_ranks(gold))


def _correlate(x: np.ndarray, y: np.ndarray) -> float:
    # Asked of the values, not of their differences from the mean: the mean of equal numbers may be off by a rounding.
    if (x == x[0]).all() or (y == y[0]).all():
        return float("nan")
    x, y = _deviations(x), _deviations(y)
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _deviations(values: np.ndarray) -> np.ndarray:
    """float64 (N,): differences from the mean, the largest being 1 or -1.

    Squares of tiny numbers would vanish, and those of large ones overflow.
    """
    deviations = values - values.mean()
    return np.asarray(deviations / np.abs(deviations).max())


def _average_ranks(values: np.ndarray) -> np.ndarray:
    """float64 (N,): rank of each value from 1, equal values sharing the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse.reshape(-1)])


def _checked(predictions: ArrayLike, references: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    predicted, gold = _as_scores(predictions, "predictions"), _as_scores(references, "references")
    if len(predicted) != len(gold):
        raise InputError(
            f"{len(predicted)} predictions, but {len(gold)} references; there must be one of each for every row"
        )
    if not len(predicted):
        raise InputError("no predictions and no references: at least one row is needed")
    return predicted, gold


def _as_scores(values: ArrayLike, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: numbers expected, one for every row ({error})") from error
    if array.dtype.kind not in "buif" and array.size:
        raise InputError(f"{name}: numbers expected, got {array.flat[0]!r}")
    if numbers.ndim != 1:
        raise InputError(f"{name} of shape {numbers.shape}; one number for every row expected")
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise InputError(f"{name}, row {row}: {numbers[row]} is no score; every row needs a finite number")
    return numbers
