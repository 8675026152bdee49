"""Compare a run's metrics with the majority-class baseline and with the spread over the rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import mode
from typing import Any

import numpy as np

from bert_recipes.finetuning.kind import EncodedSplit, Prediction, TaskKind
from bert_recipes.metrics.certainty import (
    jackknife_intervals,
    jackknife_replicates,
    wilson_interval,
)
from bert_recipes.tasks.examples import Split
from bert_recipes.tasks.task import figure_names, with_prefix


# Each row is right or wrong by itself, which the words of a sentence are not.
_FRACTIONS = ("accuracy", "subset_accuracy")
_SIGNED = ("matthews_correlation", "pearson", "spearmanr")


def describe_certainty(
    kind: TaskKind,
    splits: Mapping[str, EncodedSplit],
    predictions: Mapping[str, Sequence[Prediction]],
) -> dict[str, dict[str, Any]]:
    """Return intervals and baselines of the metrics by which a checkpoint could be chosen.

    Args:
        kind: Measures.
        splits: By metric prefix.
        predictions: Of the examples of a split, by its name.

    Returns:
        `intervals`: metric -> [low, high], 95 %.
        `baselines`: metric -> what one answer to all rows gets (`_list_answers`).
        `jackknife`: metric -> `jackknife_replicates`, six digits of them.
    """
    certainty: dict[str, dict[str, Any]] = {"intervals": {}, "baselines": {}, "jackknife": {}}
    for prefix, encoded in splits.items():
        predicted = predictions.get(encoded.split.name)
        if not predicted or not encoded.split.examples:
            continue
        for figure, values in _describe_split(kind, encoded.split, predicted).items():
            for name, value in values.items():
                certainty[figure][with_prefix(prefix, name)] = value
    return certainty


def _describe_split(
    kind: TaskKind, split: Split, predicted: Sequence[Prediction]
) -> dict[str, dict[str, Any]]:
    """Return what `describe_certainty` does, of one split."""
    examples = split.examples

    def score(rows: Sequence[int]) -> Mapping[str, float]:
        return kind.score([examples[row] for row in rows], [predicted[row] for row in rows])

    scores = kind.score(examples, predicted)
    replicates = jackknife_replicates(score, len(examples))
    names = figure_names(kind.task.metrics, [split.name], kind.task.labels)
    # Without those of single types of entities, with one that chooses no checkpoint.
    compared = [*figure_names(kind.task.metrics, [split.name]), "split_f1"]
    jackknife = {}
    for name in compared:
        if name in replicates:
            jackknife[name] = [round(value, 6) for value in replicates[name]]
    return {
        "intervals": _find_intervals(kind, names, scores, replicates, len(examples)),
        "baselines": _find_baselines(kind, names, examples, predicted),
        "jackknife": jackknife,
    }


def _find_intervals(
    kind: TaskKind,
    names: Sequence[str],
    scores: Mapping[str, float],
    replicates: Mapping[str, Sequence[float]],
    num_rows: int,
) -> dict[str, list[float]]:
    """Return the intervals of metrics, within the metrics' bounds.

    A share of rows has Wilson's, which is known where the jackknife's is not.

    Args:
        kind: Decides about the bounds.
        names: Of the metrics.
        scores: Of all rows.
        replicates: Of `jackknife_replicates`.
        num_rows: Of the split.
    """
    intervals = jackknife_intervals(scores, replicates)
    if kind.task.kind != "token_classification":
        for name in _FRACTIONS:
            if name in scores:
                intervals[name] = wilson_interval(scores[name], num_rows)
    highest = 100.0 if kind.task.kind == "question_answering" else 1.0
    clipped = {}
    for name in names:
        if name in intervals:
            lowest = -highest if name in _SIGNED else 0.0
            clipped[name] = np.clip(intervals[name], lowest, highest).tolist()
    return clipped


def _find_baselines(
    kind: TaskKind, names: Sequence[str], examples: Sequence[Any], predicted: Sequence[Prediction]
) -> dict[str, float]:
    """Return the best that one answer to every row gets.

    A correlation with equal predictions is undefined: they know nothing, so it is 0.
    """
    baselines: dict[str, float] = {}
    for value in _list_answers(kind, examples):
        scores = kind.score(examples, [_with_value(prediction, value) for prediction in predicted])
        for name in names:
            score = scores.get(name, math.nan)
            if math.isfinite(score):
                baselines[name] = max(score, baselines.get(name, score))
    return {name: baselines.get(name, 0.0) for name in names}


def _list_answers(kind: TaskKind, examples: Sequence[Any]) -> list[Any]:
    """Return what may be predicted for every row.

    It is the most frequent answer, and the last class ("positive" of two) or all labels.
    """
    task = kind.task
    if task.kind == "question_answering":
        return [""]
    if task.kind == "token_classification":
        labels = chain.from_iterable(example.labels for example in examples)
        return [task.labels[mode(labels)]]
    most_frequent = mode(example.label for example in examples)
    if task.problem_type == "multi_label_classification":
        return [[task.labels[number] for number in most_frequent], list(task.labels)]
    if task.kind == "multiple_choice" or task.problem_type == "regression":
        return [most_frequent]
    return [task.labels[most_frequent], task.labels[-1]]


def _with_value(prediction: Any, value: Any) -> Any:
    """Return a prediction with another value, for each of its words if it is one of tags."""
    if hasattr(prediction, "null_odds"):
        return replace(prediction, value=value, best_text=value, null_odds=0.0)
    if isinstance(value, str) and isinstance(prediction.value, list):
        return replace(prediction, value=[value] * len(prediction.value))
    return replace(prediction, value=value)
