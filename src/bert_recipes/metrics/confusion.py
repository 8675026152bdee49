"""Which class is taken for which, and what follows for each class.

Legend: N rows, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bert_recipes.errors import InputError


@dataclass(frozen=True)
class ClassScore:
    """How well one class is found; each figure is 0 where its denominator is.

    Attributes:
        precision: Share of the rows predicted so that are so, 0 to 1.
        recall: Share of the rows of the class that were found, 0 to 1.
        f1: Harmonic mean of both, 0 to 1.
        support: Rows of the class.
        predicted: Rows predicted so.
    """

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


def confusion_matrix(predictions: ArrayLike, references: ArrayLike, num_classes: int) -> np.ndarray:
    """Count how often each class is taken for each.

    Args:
        predictions: int (N,), 0 to C - 1.
        references: Like `predictions`.
        num_classes: C.

    Returns:
        int64 (C, C): row = the class that is right, column = the class that was predicted.

    Raises:
        InputError: If the two differ in length, or a class is out of range.

    Source:
        As `sklearn.metrics.confusion_matrix`.

    Example:
        >>> confusion_matrix([0, 1, 1], [0, 0, 1], 2).tolist()
        [[1, 1], [0, 1]]
    """
    predicted, gold = np.asarray(predictions, dtype=np.int64), np.asarray(references, dtype=np.int64)
    if predicted.shape != gold.shape or predicted.ndim != 1:
        raise InputError(f"predictions and references differ in shape: {predicted.shape} and {gold.shape}")
    for name, values in (("prediction", predicted), ("reference", gold)):
        wrong = values[(values < 0) | (values >= num_classes)]
        if len(wrong):
            raise InputError(f"{name} {wrong[0]}; allowed are the classes 0 to {num_classes - 1}")
    counts = np.bincount(gold * num_classes + predicted, minlength=num_classes * num_classes)
    return counts.reshape(num_classes, num_classes)


def class_scores(matrix: np.ndarray) -> list[ClassScore]:
    """Precision, recall and F1 of each class of a confusion matrix.

    Args:
        matrix: int (C, C) of `confusion_matrix`.

    Source:
        As `sklearn.metrics.precision_recall_fscore_support` with zero_division=0.

    Example:
        >>> [round(score.f1, 2) for score in class_scores(confusion_matrix([0, 1, 1], [0, 0, 1], 2))]
        [0.67, 0.67]
    """
    rows, columns = matrix.sum(axis=1).tolist(), matrix.sum(axis=0).tolist()
    return [score_of(int(matrix[k, k]), columns[k], rows[k]) for k in range(len(matrix))]


def score_of(right: int, predicted: int, support: int) -> ClassScore:
    """The figures of a class of which so many rows are right, predicted and there."""
    total = predicted + support
    return ClassScore(
        precision=right / predicted if predicted else 0.0,
        recall=right / support if support else 0.0,
        f1=2 * right / total if total else 0.0,
        support=support,
        predicted=predicted,
    )
