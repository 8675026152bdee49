"""What the metrics of a run are to be held against: the constant answer, and the spread over the rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import mode
from typing import Any

import numpy as np

from bert_recipes.finetuning.kind import EncodedSplit, Prediction, TaskKind
from bert_recipes.metrics.certainty import jackknife_intervals, jackknife_replicates, wilson_interval
from bert_recipes.tasks.task import figure_names, with_suffix


# Each row is right or wrong by itself, which the words of a sentence are not.
_FRACTIONS = ("accuracy", "subset_accuracy")
# Beside the metrics by which a checkpoint could be chosen; without those of single types of entities.
_ALSO_COMPARED = ("split_f1",)
_SIGNED = ("matthews_correlation", "pearson", "spearmanr")


def describe_certainty(
    kind: TaskKind, splits: Mapping[str, EncodedSplit], predictions: Mapping[str, Sequence[Prediction]]
) -> dict[str, dict[str, Any]]:
    """Intervals and baselines of the metrics by which a checkpoint could be chosen; splits are named by metric prefix.

    Returns:
        `intervals`: metric -> [low, high], 95 %; `baselines`: metric -> what one answer to all rows gets (`_answers`);
        `jackknife`: metric -> `jackknife_replicates`, six digits of them.
    """
    found: dict[str, dict[str, Any]] = {"intervals": {}, "baselines": {}, "jackknife": {}}
    for suffix, encoded in splits.items():
        examples, predicted = encoded.split.examples, predictions.get(encoded.split.name)
        if not predicted or not examples:
            continue
        constants = [
            kind.score(examples, [_with_value(each, value) for each in predicted])
            for value in _answers(kind, examples)
        ]

        def score(rows: Sequence[int], examples: Any = examples, predicted: Any = predicted) -> Mapping[str, float]:
            return kind.score([examples[row] for row in rows], [predicted[row] for row in rows])

        scores, replicates = kind.score(examples, predicted), jackknife_replicates(score, len(examples))
        intervals = jackknife_intervals(scores, replicates)
        if kind.task.kind != "token_classification":
            intervals |= {name: wilson_interval(scores[name], len(examples)) for name in _FRACTIONS if name in scores}
        top = 100.0 if kind.task.kind == "question_answering" else 1.0
        for name in figure_names(kind.task.metrics, [encoded.split.name], kind.task.labels):
            values = [each[name] for each in constants if name in each and math.isfinite(each[name])]
            # A correlation with equal predictions is undefined: they know nothing.
            found["baselines"][with_suffix(suffix, name)] = max(values, default=0.0)
            if name in intervals:
                ends = np.clip(intervals[name], -top if name in _SIGNED else 0.0, top)
                found["intervals"][with_suffix(suffix, name)] = ends.tolist()
        for name in (*figure_names(kind.task.metrics, [encoded.split.name]), *_ALSO_COMPARED):
            if name in replicates:
                found["jackknife"][with_suffix(suffix, name)] = [round(value, 6) for value in replicates[name]]
    return found


def _answers(kind: TaskKind, examples: Sequence[Any]) -> list[Any]:
    """What may be predicted for every row: the most frequent answer, and the last class ("positive" of two) or all labels."""
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
