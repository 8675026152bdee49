"""Metrics by name, as the rows of tasks give them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.metrics import classification, correlation, entities, squad


# Each takes predictions and references and gives one figure, or several by name.
_CLASSIFICATION: Mapping[str, Callable[[Any, Any], float | dict[str, float]]] = {
    "accuracy": classification.accuracy,
    "f1": classification.f1,
    "f1_macro": classification.f1_macro,
    "f1_micro": classification.f1_micro,
    "matthews_correlation": classification.matthews_correlation,
    "multi_label": classification.multi_label,
}
_METRICS: Mapping[str, Callable[[Any, Any], float | dict[str, float]]] = {
    **_CLASSIFICATION,
    "pearson": correlation.pearson,
    "spearmanr": correlation.spearmanr,
    "entities": lambda predictions, references: entities.entity_scores(references, predictions),
    "squad": lambda predictions, references: squad.squad_scores(references, predictions),
    "squad_v2": lambda predictions, references: squad.squad_v2_scores(references, predictions),
}
METRIC_NAMES = tuple(_METRICS)


def compute(names: Sequence[str], predictions: Any, references: Any) -> dict[str, float]:
    """Compute metrics by name.

    ====================================  ==============================================  ==========================
    name                                  predictions and references                      figures
    ====================================  ==============================================  ==========================
    accuracy, f1_macro, f1_micro          classes (N,), or flags (N, C) for multi-label   under the name, 0 to 1
    f1                                    classes 0 and 1 (N,)                            under the name, 0 to 1
    matthews_correlation                  classes (N,)                                    under the name, -1 to 1
    pearson, spearmanr                    numbers (N,)                                    under the name, -1 to 1; nan
                                                                                          where not defined
    multi_label                           flags (N, C)                                    `classification.multi_label`
    entities                              lists of tags                                   `entities.entity_scores`
    squad, squad_v2                       id -> text, and id -> texts                     `squad`, in percent
    ====================================  ==============================================  ==========================

    Args:
        names: Some of `METRIC_NAMES`.
        predictions: See the table.
        references: See the table; no negative class numbers, which mark hidden labels.

    Returns:
        Figure -> value, in the order of the names.

    Raises:
        InputError: If a name is unknown, or predictions and references are empty, differ in length or cannot be
            measured so.

    Example:
        >>> compute(["accuracy", "f1"], [1, 1, 0, 0], [1, 0, 0, 0])
        {'accuracy': 0.75, 'f1': 0.6666666666666666}
    """
    names = (names,) if isinstance(names, str) else names
    if not names:
        raise InputError(f"no metric is named; allowed are {', '.join(METRIC_NAMES)}")
    for name in names:
        _check_name(name)
    if any(name in _CLASSIFICATION for name in names):
        _refuse_hidden_labels(references)
    scores: dict[str, float] = {}
    for name in names:
        value = _METRICS[name](predictions, references)
        scores.update(value if isinstance(value, dict) else {name: value})
    return scores


def _check_name(name: str) -> None:
    if name not in _METRICS:
        nearest = difflib.get_close_matches(str(name).lower(), METRIC_NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise InputError(f"unknown metric {name!r}: {hint}Allowed are {', '.join(METRIC_NAMES)}")


def _refuse_hidden_labels(references: Any) -> None:
    """GLUE's test files have -1 where the label is: scores against them would look like real ones."""
    try:
        labels = np.asarray(references)
    except ValueError:
        return  # Rows of different length: the metric itself says so.
    if labels.ndim == 1 and labels.dtype.kind == "i" and (labels < 0).any():
        row = int(np.flatnonzero(labels < 0)[0])
        raise InputError(
            f"references, row {row}: label {labels[row]}, so the labels are hidden, as in GLUE's test files; "
            "measure on a split with labels"
        )
