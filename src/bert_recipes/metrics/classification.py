"""Figures of classifications: accuracy, F1, Matthews correlation; one class a row, or any number of classes a row.

Legend: N rows, C classes.

Classes are whole numbers or names. Multi-label rows are boolean (or 0/1) matrices (N, C).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from bert_recipes.errors import InputError


def accuracy(predictions: ArrayLike, references: ArrayLike) -> float:
    """Share of the rows that are right; of multi-label rows those with every class right (subset accuracy).

    Args:
        predictions: int or str (N,), or bool (N, C).
        references: Like `predictions`.

    Returns:
        0 to 1.

    Raises:
        InputError: If the two differ in shape or type, or are empty.

    Source:
        As `sklearn.metrics.accuracy_score`.

    Example:
        >>> accuracy([0, 1, 1, 0], [0, 1, 0, 0])
        0.75
    """
    predicted, gold = _checked(predictions, references)
    equal = predicted == gold
    return float((equal.all(axis=1) if equal.ndim == 2 else equal).mean())


def f1(predictions: ArrayLike, references: ArrayLike) -> float:
    """F1 of class 1 of the two classes 0 and 1; 0 where class 1 is neither predicted nor there.

    Args:
        predictions: int or bool (N,), 0 or 1.
        references: Like `predictions`.

    Returns:
        0 to 1.

    Raises:
        InputError: If there is another class than 0 and 1; if the two differ in length, or are empty.

    Source:
        As `sklearn.metrics.f1_score` with pos_label=1 and zero_division=0; GLUE's F1 for MRPC and QQP.

    Example:
        >>> f1([1, 1, 0, 0], [1, 0, 1, 0])
        0.5
    """
    predicted, gold = _checked(predictions, references, multi_label=False)
    for name, values in (("prediction", predicted), ("reference", gold)):
        others = values[(values != 0) & (values != 1)] if values.dtype.kind == "i" else values
        if len(others):
            raise InputError(
                f"f1: {name} {others[0].item()!r}, but this figure is for the classes 0 and 1; take f1_macro or f1_micro"
            )
    both = int((predicted & gold).sum())
    total = int(predicted.sum() + gold.sum())
    return 2 * both / total if total else 0.0


def f1_macro(predictions: ArrayLike, references: ArrayLike) -> float:
    """Mean of the classes' F1, every class counting alike.

    The classes are those that are predicted or there; of multi-label rows all C columns, a column that is neither
    predicted nor there counting 0.

    Args:
        predictions: int or str (N,), or bool (N, C).
        references: Like `predictions`.

    Returns:
        0 to 1.

    Raises:
        InputError: If the two differ in shape or type, or are empty.

    Source:
        As `sklearn.metrics.f1_score` with average="macro" and zero_division=0.

    Example:
        >>> f1_macro([0, 1, 2, 2], [0, 1, 1, 2])
        0.7777777777777777
    """
    both, predicted, gold = _class_counts(*_checked(predictions, references))
    total = predicted + gold
    return float(np.mean(np.divide(2 * both, total, out=np.zeros(len(total)), where=total > 0)))


def f1_micro(predictions: ArrayLike, references: ArrayLike) -> float:
    """F1 of all decisions together; equals the accuracy where every row has one class.

    Args:
        predictions: int or str (N,), or bool (N, C).
        references: Like `predictions`.

    Returns:
        0 to 1; 0 where no class is predicted nor there in any multi-label row.

    Raises:
        InputError: If the two differ in shape or type, or are empty.

    Source:
        As `sklearn.metrics.f1_score` with average="micro" and zero_division=0.

    Example:
        >>> f1_micro([[1, 0, 1], [0, 0, 0]], [[1, 0, 0], [0, 1, 0]])
        0.5
    """
    both, predicted, gold = _class_counts(*_checked(predictions, references))
    total = int(predicted.sum() + gold.sum())
    return 2 * int(both.sum()) / total if total else 0.0


def matthews_correlation(predictions: ArrayLike, references: ArrayLike) -> float:
    """Matthews correlation of two or more classes; 0 where one of the two sides knows one class only.

    Args:
        predictions: int or str (N,).
        references: Like `predictions`.

    Returns:
        -1 to 1.

    Raises:
        InputError: If the two differ in shape or type, or are empty, or are multi-label.

    Source:
        As `sklearn.metrics.matthews_corrcoef`; GLUE's figure for CoLA and AX.

    Example:
        >>> matthews_correlation([1, 1, 0, 0], [1, 1, 0, 1])
        0.5773502691896258
    """
    both, predicted, gold = _class_counts(*_checked(predictions, references, multi_label=False))
    # Python's whole numbers: the product of the variances passes 2^63 from about 50,000 rows on.
    rows = int(predicted.sum())
    covariance = int(both.sum()) * rows - int(predicted @ gold)
    variances = (rows**2 - int(predicted @ predicted)) * (rows**2 - int(gold @ gold))
    return covariance / math.sqrt(variances) if variances else 0.0


def multi_label(predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
    """Figures of rows that may have any number of classes.

    Args:
        predictions: bool (N, C), or 0/1.
        references: Like `predictions`.

    Returns:
        f1_micro, f1_macro, subset_accuracy (share of the rows with every class right), each 0 to 1.

    Raises:
        InputError: If the two differ in shape, are empty or no matrices of 0 and 1.

    Example:
        >>> multi_label([[1, 0], [0, 1]], [[1, 0], [1, 1]])
        {'f1_micro': 0.8, 'f1_macro': 0.8333333333333333, 'subset_accuracy': 0.5}
    """
    predicted, gold = _checked(predictions, references, multi_label=True)
    return {
        "f1_micro": f1_micro(predicted, gold),
        "f1_macro": f1_macro(predicted, gold),
        "subset_accuracy": accuracy(predicted, gold),
    }


def _class_counts(predicted: np.ndarray, gold: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 (C,) each: how often a class is predicted and there, predicted, there."""
    if predicted.ndim == 2:
        return (predicted & gold).sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0)
    classes, numbers = np.unique(np.concatenate([predicted, gold]), return_inverse=True)
    predicted, gold = np.split(numbers.reshape(-1), 2)
    hits = gold[predicted == gold]
    both, predicted, gold = (np.bincount(values, minlength=len(classes)) for values in (hits, predicted, gold))
    return both, predicted, gold


def _checked(
    predictions: ArrayLike, references: ArrayLike, *, multi_label: bool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Both as int64 or str (N,), or both as int64 0/1 (N, C); multi_label says which is allowed (None: either)."""
    predicted, gold = _as_classes(predictions, "predictions"), _as_classes(references, "references")
    if predicted.shape != gold.shape:
        raise InputError(
            f"predictions and references differ in shape: {predicted.shape} and {gold.shape}; one of each for every row"
        )
    if not predicted.size:
        raise InputError("no predictions and no references: at least one row is needed")
    if predicted.dtype.kind != gold.dtype.kind:
        raise InputError(
            f"predictions like {predicted.flat[0].item()!r} cannot be compared with references like "
            f"{gold.flat[0].item()!r}; give both as class numbers or both as names"
        )
    if multi_label is not None and multi_label != (predicted.ndim == 2):
        allowed = "a matrix (rows, classes) of 0 and 1" if multi_label else "one class for every row"
        raise InputError(f"predictions and references of shape {predicted.shape}, but this figure takes {allowed}")
    if predicted.ndim == 2:
        for name, values in (("predictions", predicted), ("references", gold)):
            _check_flags(name, values)
    return predicted, gold


def _as_classes(values: ArrayLike, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name}: rows of different length; a row has one flag for every class") from error
    if array.ndim not in (1, 2):
        raise InputError(f"{name} of shape {array.shape}; allowed are (rows,) and (rows, classes)")
    # Whole floats too: labels of multi-label models are floats.
    if array.dtype.kind in "bui" or (array.dtype.kind == "f" and np.array_equal(array, np.trunc(array))):
        return array.astype(np.int64)
    if array.dtype.kind == "U" or not array.size:
        return array
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    kinds = sorted({type(value).__name__ for value in array.flat})
    raise InputError(
        f"{name} hold values of type {', '.join(kinds)}; allowed are class numbers (of probabilities the argmax) or names"
    )


def _check_flags(name: str, values: np.ndarray) -> None:
    if values.dtype.kind != "i":
        raise InputError(f"{name}, row 0: {values[0].tolist()}; a multi-label row holds only 0 and 1")
    wrong = np.flatnonzero(((values != 0) & (values != 1)).any(axis=1))
    if len(wrong):
        raise InputError(f"{name}, row {wrong[0]}: {values[wrong[0]].tolist()}; a multi-label row holds only 0 and 1")
