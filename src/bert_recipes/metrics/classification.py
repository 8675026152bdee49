"""Metrics by name: classes and multi-label flags by scikit-learn, correlations by SciPy.

Both are imported when they are first needed.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bert_recipes.errors import InputError, did_you_mean


# Predictions and references -> one value, or several by name.
Metric = Callable[[Any, Any], float | dict[str, float]]


def _accuracy(predictions: Any, references: Any) -> float:
    is_right = predictions == references
    if is_right.ndim == 2:
        is_right = is_right.all(axis=1)
    return float(is_right.mean())


def _f1(average: str, predictions: Any, references: Any) -> float:
    """Return F1; `average` is scikit-learn's: binary (the classes 0 and 1), macro or micro."""
    from sklearn.metrics import f1_score

    if references.ndim == 2 and references.shape[1] == 1:
        # scikit-learn would take flags of one column for classes, and average over 0 and 1.
        average = "binary"
    if average == "binary" and not np.isin([predictions, references], [0, 1]).all():
        raise InputError("f1 is for the classes 0 and 1; take f1_macro or f1_micro")
    return float(f1_score(references, predictions, average=average, zero_division=0))


def _matthews(predictions: Any, references: Any) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(references, predictions))


def _multi_label(predictions: Any, references: Any) -> dict[str, float]:
    return {
        "f1_micro": _f1("micro", predictions, references),
        "f1_macro": _f1("macro", predictions, references),
        "subset_accuracy": _accuracy(predictions, references),
    }


def _correlation(name: str, predictions: Any, references: Any) -> float:
    from scipy import stats

    if len(predictions) < 2:
        return float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant side: nan says it
        value = getattr(stats, name)(_scaled(predictions), _scaled(references))[0]
    return float(np.clip(value, -1.0, 1.0))


def _scaled(numbers: Any) -> Any:
    """Return numbers up to 1: squares of tiny ones would vanish, those of large ones overflow."""
    numbers = numbers.astype(np.float64)
    return numbers / (np.abs(numbers).max() or 1.0)


_CLASSIFICATION: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": partial(_f1, "binary"),
    "f1_macro": partial(_f1, "macro"),
    "f1_micro": partial(_f1, "micro"),
    "matthews_correlation": _matthews,
    "multi_label": _multi_label,
}
_CORRELATION: dict[str, Metric] = {
    "pearson": partial(_correlation, "pearsonr"),
    "spearmanr": partial(_correlation, "spearmanr"),
}
_METRICS = {**_CLASSIFICATION, **_CORRELATION}
METRIC_NAMES = tuple(_METRICS)


def compute(names: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """Compute metrics by name.

    ============================  ==================================  ===========================
    name                          predictions and references          values
    ============================  ==================================  ===========================
    accuracy, f1_macro, f1_micro  classes (N,), or flags (N, C)       under the name, 0 to 1
    f1                            classes 0 and 1 (N,)                under the name, 0 to 1
    matthews_correlation          classes (N,)                        under the name, -1 to 1
    pearson, spearmanr            numbers (N,)                        -1 to 1; nan if not defined
    multi_label                   flags (N, C)                        f1_*, subset_accuracy
    ============================  ==================================  ===========================

    Example:
        >>> compute(["accuracy"], [1, 1, 0, 0], [1, 0, 0, 0])
        {'accuracy': 0.75}
    """
    if isinstance(names, str):
        raise InputError(f"names is {names!r}; give a list: [{names!r}]")
    scores: dict[str, float] = {}
    for name in names:
        if name not in _METRICS:
            hint = did_you_mean(name.lower(), METRIC_NAMES)
            raise InputError(
                f"unknown metric {name!r}: {hint}Allowed are {', '.join(METRIC_NAMES)}"
            )
        predicted, gold = _as_arrays(name, predictions, references)
        value = _METRICS[name](predicted, gold)
        scores.update(value if isinstance(value, dict) else {name: value})
    return scores


def _as_arrays(name: str, predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return both as arrays of one shape; refuse hidden labels and what is not finite."""
    predicted = np.asarray(predictions)
    gold = np.asarray(references)
    if predicted.shape != gold.shape or not predicted.size:
        raise InputError(
            f"{name}: predictions of shape {predicted.shape} for references of shape {gold.shape}"
        )
    for values in (predicted, gold):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"{name}: a prediction or a reference is not finite")
    # GLUE's test files have -1 where the label is: scores against them would look like real ones.
    if name in _CLASSIFICATION and gold.dtype.kind == "i" and gold.min() < 0:
        raise InputError(
            f"{name}: a label is {gold.min()}: the labels are hidden, as in GLUE's test files; "
            "take a split with labels"
        )
    if predicted.dtype.kind == "b":
        return predicted.astype(int), gold.astype(int)
    return predicted, gold
