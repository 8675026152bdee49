"""Classes, several labels, numbers, choices: what was mistaken for what.

Every function takes the task's row, labelled examples and their predictions, and returns JSON values.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bert_recipes.metrics.calibration import expected_calibration_error, reliability_bins
from bert_recipes.metrics.confusion import class_scores, confusion_matrix, score_of


if TYPE_CHECKING:
    from bert_recipes.finetuning.kind import Prediction
    from bert_recipes.tasks.examples import ChoiceExample, TextExample
    from bert_recipes.tasks.task import Task


NUM_WORST = 12
LONGEST_TEXT = 500
# A matrix of more classes is not looked at but searched: then the most frequent mistakes are listed.
MOST_CLASSES = 25
NUM_MISTAKES = 20
MOST_DOTS = 1500


def label_facts(task: Task, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """One class a text: confusion matrix, scores by class, calibration, most confident errors."""
    number_of = {name: number for number, name in enumerate(task.labels)}
    gold = [int(_known(example.label)) for example in examples]
    said = [number_of[str(prediction.value)] for prediction in predictions]
    shares = [_share(prediction, str(prediction.value)) for prediction in predictions]
    wrong = (
        {
            "texts": texts_of(task, examples[row]),
            "said": task.labels[said[row]],
            "truth": task.labels[gold[row]],
            "probability": shares[row],
        }
        for row in _most_sure([row for row in range(len(gold)) if said[row] != gold[row]], shares)
    )
    return {
        **class_facts(task.labels, gold, said),
        "calibration": calibration(shares, [a == b for a, b in zip(said, gold, strict=True)]),
        "worst": list(wrong),
    }


def class_facts(names: Sequence[str], gold: Sequence[int], said: Sequence[int]) -> dict[str, Any]:
    """Scores of each class, and the confusion matrix or, of many classes, the most frequent mistakes."""
    facts: dict[str, Any] = {"labels": list(names)}
    if len(names) <= MOST_CLASSES:
        matrix = confusion_matrix(said, gold, len(names))
        return facts | {
            "classes": [asdict(score) for score in class_scores(matrix)],
            "confusion": matrix.tolist(),
        }
    # No matrix: of ten thousand classes it has a hundred million cells.
    pairs = Counter(zip(gold, said, strict=True))
    right, predicted, support = Counter({a: n for (a, b), n in pairs.items() if a == b}), Counter(said), Counter(gold)
    scores = [score_of(right[number], predicted[number], support[number]) for number in range(len(names))]
    wrong = heapq.nsmallest(NUM_MISTAKES, ((-count, a, b) for (a, b), count in pairs.items() if a != b))
    return facts | {
        "classes": [asdict(score) for score in scores],
        "mistakes": [[names[a], names[b], -count] for count, a, b in wrong],
    }


def labels_facts(task: Task, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Several labels a text: scores by label, calibration of all decisions, decisions that were most surely wrong."""
    gold = [set(_label_tuple(example.label)) for example in examples]
    shares = np.array([[_share(prediction, name) for name in task.labels] for prediction in predictions])
    there = np.array([[number in labels for number in range(len(task.labels))] for labels in gold])
    said = shares >= 0.5
    distance = np.abs(shares - there).max(axis=1)
    worst = []
    for row in heapq.nlargest(
        NUM_WORST, np.flatnonzero((said != there).any(axis=1)).tolist(), key=distance.__getitem__
    ):
        number = int(np.abs(shares[row] - there[row]).argmax())
        worst.append(
            {
                "texts": texts_of(task, examples[row]),
                "said": _names(task, np.flatnonzero(said[row])),
                "truth": _names(task, sorted(gold[row])),
                "about": task.labels[number],
                "probability": float(shares[row, number]),
            }
        )
    both, predicted, support = (said & there).sum(axis=0), said.sum(axis=0), there.sum(axis=0)
    counts = zip(both.tolist(), predicted.tolist(), support.tolist(), strict=True)
    return {
        "labels": list(task.labels),
        "classes": [asdict(score_of(*numbers)) for numbers in counts],
        "calibration": calibration(shares.ravel(), there.ravel()),
        "worst": worst,
    }


def number_facts(task: Task, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """A number a text: a sample of both, size of the errors, largest errors."""
    gold = np.array([float(_known(example.label)) for example in examples])
    said = np.array([float(prediction.value) for prediction in predictions])  # type: ignore[arg-type]
    errors = np.abs(said - gold)
    rows = heapq.nlargest(NUM_WORST, range(len(gold)), key=errors.__getitem__)
    chosen = np.linspace(0, len(gold) - 1, min(len(gold), MOST_DOTS)).round().astype(np.int64)
    return {
        "dots": [gold[chosen].tolist(), said[chosen].tolist()],
        "mean_absolute_error": float(errors.mean()),
        "root_mean_squared_error": float(np.sqrt((errors**2).mean())),
        "error_of_the_mean": float(np.abs(gold - gold.mean()).mean()),
        "worst": [
            {"texts": texts_of(task, examples[row]), "said": f"{said[row]:.3f}", "truth": f"{gold[row]:.3f}"}
            for row in rows
        ],
    }


def choice_facts(task: Task, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """One of several choices: which place is right and which was chosen, calibration, most confident errors."""
    gold = [int(_known(example.label)) for example in examples]
    said = [int(prediction.value) for prediction in predictions]  # type: ignore[arg-type]
    shares = [
        float(prediction.probabilities[number])  # type: ignore[index]
        for prediction, number in zip(predictions, said, strict=True)
    ]
    places = [str(number + 1) for number in range(max(len(example.choices) for example in examples))]
    worst = [
        {
            "texts": [["context", clip(examples[row].context)]],
            "said": clip(examples[row].choices[said[row]]),
            "truth": clip(examples[row].choices[gold[row]]),
            "probability": shares[row],
        }
        for row in _most_sure([row for row in range(len(gold)) if said[row] != gold[row]], shares)
    ]
    return {
        **class_facts(places, gold, said),
        "calibration": calibration(shares, [a == b for a, b in zip(said, gold, strict=True)]),
        "worst": worst,
    }


# Shared


def calibration(shares: ArrayLike, outcomes: ArrayLike) -> dict[str, Any]:
    """Bins and expected calibration error of predictions."""
    bins = reliability_bins(shares, outcomes)
    return {"bins": [asdict(each) for each in bins], "expected_calibration_error": expected_calibration_error(bins)}


def _most_sure(rows: Sequence[int], shares: Sequence[float]) -> list[int]:
    """The rows with the greatest probabilities; of equal ones the first."""
    return heapq.nsmallest(NUM_WORST, rows, key=lambda row: -shares[row])


def texts_of(task: Task, example: TextExample) -> list[list[str]]:
    """[name of the column, text] of an example's texts, cut to a length that can be looked at."""
    texts = [example.text, *([] if example.text_pair is None else [example.text_pair])]
    names = [*task.text_columns, "text", "text"] if len(texts) > 1 else [""]
    return [[name, clip(text)] for name, text in zip(names, texts, strict=False)]


def clip(text: str, longest: int = LONGEST_TEXT) -> str:
    """A text on one line; of a longer one whole words at its beginning."""
    one_line = " ".join(text.split())
    if len(one_line) <= longest:
        return one_line
    end = one_line.rfind(" ", longest // 2, longest + 1)
    return f"{one_line[: longest if end < 0 else end]} ..."


def _share(prediction: Prediction, name: str) -> float:
    assert isinstance(prediction.probabilities, dict)
    return float(prediction.probabilities[name])


def _known(label: Any) -> Any:
    assert label is not None, "the split is labelled"
    return label


def _label_tuple(label: Any) -> tuple[int, ...]:
    return tuple(_known(label))


def _names(task: Task, numbers: Iterable[int]) -> str:
    return ", ".join(task.labels[int(number)] for number in numbers) or "none"
