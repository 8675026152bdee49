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
from bert_recipes.tasks.task import figure_names, with_suffix


# Each row is right or wrong by itself, which the words of a sentence are not.
_FRACTIONS = ("accuracy", "subset_accuracy")
# Beside the metrics by which a checkpoint could be chosen; without those of single types of
# entities.
_ALSO_COMPARED = ("split_f1",)
_SIGNED = ("matthews_correlation", "pearson", "spearmanr")


def describe_certainty(
    kind: TaskKind,
    splits: Mapping[str, EncodedSplit],
    predictions: Mapping[str, Sequence[Prediction]],
) -> dict[str, dict[str, Any]]:
    """Return intervals and baselines of the metrics by which a checkpoint could be chosen; splits
    are named by metric prefix.

    Returns:
        `intervals`: metric -> [low, high], 95 %; `baselines`: metric -> what one answer to all rows
            gets (`_answers`);
        `jackknife`: metric -> `jackknife_replicates`, six digits of them.
    """
    certainty: dict[str, dict[str, Any]] = {"intervals": {}, "baselines": {}, "jackknife": {}}
    for suffix, encoded in splits.items():
        predicted = predictions.get(encoded.split.name)
        if not predicted or not encoded.split.examples:
            continue
        for kind_of_figure, figures in _describe_split(kind, encoded.split, predicted).items():
            for name, value in figures.items():
                certainty[kind_of_figure][with_suffix(suffix, name)] = value
    return certainty


def _describe_split(
    kind: TaskKind, split: Split, predicted: Sequence[Prediction]
) -> dict[str, dict[str, Any]]:
    examples = split.examples

    def score(rows: Sequence[int]) -> Mapping[str, float]:
        return kind.score([examples[row] for row in rows], [predicted[row] for row in rows])

    scores = kind.score(examples, predicted)
    replicates = jackknife_replicates(score, len(examples))
    names = figure_names(kind.task.metrics, [split.name], kind.task.labels)
    jackknife = {}
    for name in (*figure_names(kind.task.metrics, [split.name]), *_ALSO_COMPARED):
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
    """Return the best that one answer to every row gets; a correlation with equal predictions is
    undefined: they know nothing, so it is 0.
    """
    baselines: dict[str, float] = {}
    for value in _answers(kind, examples):
        scores = kind.score(examples, [_with_value(prediction, value) for prediction in predicted])
        for name in names:
            if math.isfinite(scores.get(name, math.nan)):
                baselines[name] = max(scores[name], baselines.get(name, scores[name]))
    return {name: baselines.get(name, 0.0) for name in names}


def _answers(kind: TaskKind, examples: Sequence[Any]) -> list[Any]:
    """Return what may be predicted for every row: the most frequent answer, and the last class
    ("positive" of two) or all labels.
    """
    task = kind.task
    if task.kind == "question_answering":
        return [""]
    if task.kind == "token_classification":
        return [task.labels[mode(chain.from_iterable(example.labels for example in examples))]]
    most = mode(example.label for example in examples)
    if task.problem_type == "multi_label_classification":
        return [[task.labels[number] for number in most], list(task.labels)]
    if task.kind == "multiple_choice" or task.problem_type == "regression":
        return [most]
    return [task.labels[most], task.labels[-1]]


def _with_value(prediction: Any, value: Any) -> Any:
    if hasattr(prediction, "null_odds"):
        return replace(prediction, value=value, best_text=value, null_odds=0.0)
    is_tags = isinstance(value, str) and isinstance(prediction.value, list)
    return replace(prediction, value=[value] * len(prediction.value) if is_tags else value)
