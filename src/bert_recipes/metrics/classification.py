"""Metrics by name: classes and multi-label flags by scikit-learn, correlations by SciPy; both are
imported when they are first needed.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_recipes.errors import InputError, did_you_mean
from bert_recipes.metrics import entities, squad


def _f1(average: str) -> Callable[[Any, Any], float]:
    def score(predictions: Any, references: Any) -> float:
        from sklearn.metrics import f1_score

        if (
            average == "binary"
            and not np.isin(np.concatenate([predictions, references]), [0, 1]).all()
        ):
            raise InputError("f1 is for the classes 0 and 1; take f1_macro or f1_micro")
        # A matrix of one column would be taken for one class a row.
        if np.ndim(references) == 2 and np.shape(references)[1] == 1:
            return score_binary(np.ravel(predictions), np.ravel(references))
        return float(f1_score(references, predictions, average=average, zero_division=0))

    return score


score_binary = _f1("binary")


def _accuracy(predictions: Any, references: Any) -> float:
    equal = np.asarray(predictions) == np.asarray(references)
    return float((equal.all(axis=1) if equal.ndim == 2 else equal).mean())


def _matthews(predictions: Any, references: Any) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(references, predictions))


def _multi_label(predictions: Any, references: Any) -> dict[str, float]:
    scores = {
        f"f1_{average}": _f1(average)(predictions, references) for average in ("micro", "macro")
    }
    return scores | {"subset_accuracy": _accuracy(predictions, references)}


def _correlation(name: str) -> Callable[[Any, Any], float]:
    def score(predictions: Any, references: Any) -> float:
        from scipy import stats

        x, y = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
        if len(x) < 2:
            return float("nan")
        # Squares of tiny numbers would vanish, and those of large ones overflow.
        x, y = (values / (np.abs(values).max() or 1.0) for values in (x, y))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a constant side: nan says it
            return float(np.clip(getattr(stats, name)(x, y)[0], -1.0, 1.0))

    return score


# Each takes predictions and references and gives one value, or several by name.
_CLASSIFICATION: dict[str, Callable[[Any, Any], float | dict[str, float]]] = {
    "accuracy": _accuracy,
    "f1": score_binary,
    "f1_macro": _f1("macro"),
    "f1_micro": _f1("micro"),
    "matthews_correlation": _matthews,
    "multi_label": _multi_label,
}
_CORRELATION = {"pearson": _correlation("pearsonr"), "spearmanr": _correlation("spearmanr")}
_METRICS: dict[str, Callable[[Any, Any], float | dict[str, float]]] = {
    **_CLASSIFICATION,
    **_CORRELATION,
    "entities": lambda predictions, references: entities.entity_scores(references, predictions),
    "squad": lambda predictions, references: squad.squad_scores(references, predictions),
    "squad_v2": lambda predictions, references: squad.squad_v2_scores(references, predictions),
}
METRIC_NAMES = tuple(_METRICS)


def compute(names: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """Compute metrics by name.

    ============================  ==============================================
    ================================= name                          predictions and references
    values ============================  ==============================================
    ================================= accuracy, f1_macro, f1_micro  classes (N,), or flags (N, C)
    for multi-label   under the name, 0 to 1 f1                            classes 0 and 1 (N,)
    under the name, 0 to 1 matthews_correlation          classes (N,)
    under the name, -1 to 1 pearson, spearmanr            numbers (N,)
    -1 to 1; nan where not defined multi_label                   flags (N, C)
    f1_micro, f1_macro, subset_accuracy entities                      lists of tags
    `entities.entity_scores` squad, squad_v2               id -> text, and id -> texts
    `squad`, in percent ============================  ==============================================
    =================================

    Example:
        >>> compute(["accuracy"], [1, 1, 0, 0], [1, 0, 0, 0])
        {'accuracy': 0.75}
    """
    scores: dict[str, float] = {}
    for name in (names,) if isinstance(names, str) else names:
        if name not in _METRICS:
            hint = did_you_mean(str(name).lower(), METRIC_NAMES)
            raise InputError(
                f"unknown metric {name!r}: {hint}Allowed are {', '.join(METRIC_NAMES)}"
            )
        if name in _CLASSIFICATION or name in _CORRELATION:
            predictions, references = _checked(name, predictions, references)
        value = _METRICS[name](predictions, references)
        scores.update(value if isinstance(value, dict) else {name: value})
    return scores


def _checked(name: str, predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
    predicted, gold = np.asarray(predictions), np.asarray(references)
    if predicted.shape != gold.shape or not predicted.size:
        raise InputError(
            f"{name}: predictions of shape {predicted.shape} for references of shape {gold.shape}"
        )
    numbers = [values for values in (predicted, gold) if values.dtype.kind == "f"]
    if not all(np.isfinite(values).all() for values in numbers):
        raise InputError(f"{name}: a prediction or a reference is not finite")
    # GLUE's test files have -1 where the label is: scores against them would look like real ones.
    if name in _CLASSIFICATION and gold.dtype.kind == "i" and gold.min() < 0:
        raise InputError(
            f"{name}: a label is {gold.min()}: the labels are hidden, as in GLUE's test files; "
            "take a split with labels"
        )
    return (
        (predicted.astype(int), gold.astype(int))
        if predicted.dtype.kind == "b"
        else (predicted, gold)
    )
