"""Answers of question answering: right, in part right, wrong; whether there is one; the most confident errors."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bert_recipes.metrics.squad import squad_scores, squad_v2_scores
from bert_recipes.reports.label_facts import NUM_WORST, calibration, class_facts, clip


if TYPE_CHECKING:
    from bert_recipes.finetuning.kind import Prediction
    from bert_recipes.tasks.examples import QuestionExample
    from bert_recipes.tasks.task import Task


# Letters of a paragraph around an answer.
CONTEXT_LETTERS = 220
NUM_BARS = 10


def answer_facts(task: Task, examples: Sequence[QuestionExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Distribution of F1, calibration of exact matches, whether "no answer" was said where there is none, worst errors.

    Args:
        task: Its row; with the metric "squad_v2" a question may have no answer.
        examples: With their gold answers.
        predictions: Of class `AnswerPrediction`, whose probability is its share among the best answers.

    Returns:
        JSON values.
    """
    may_be_none = "squad_v2" in task.metrics
    scores = [
        _scores(example, prediction, may_be_none) for example, prediction in zip(examples, predictions, strict=True)
    ]
    shares = [float(prediction.probabilities) for prediction in predictions]  # type: ignore[arg-type]
    wrong = [row for row, (_, f1) in enumerate(scores) if f1 == 0]
    bars = [0] * NUM_BARS
    for _, f1 in scores:
        bars[min(int(f1 * NUM_BARS), NUM_BARS - 1)] += 1
    facts: dict[str, Any] = {
        "f1_counts": bars,
        "calibration": calibration(shares, [exact == 1 for exact, _ in scores]),
        "worst": [
            _error(examples[row], str(predictions[row].value), shares[row])
            for row in heapq.nsmallest(NUM_WORST, wrong, key=lambda row: -shares[row])
        ],
    }
    if may_be_none:
        gold = [int(not example.answers) for example in examples]
        said = [int(prediction.value == "") for prediction in predictions]
        facts |= class_facts(["has an answer", "no answer"], gold, said)
    return facts


def _scores(example: QuestionExample, prediction: Prediction, may_be_none: bool) -> tuple[float, float]:
    """Exact match and F1 of one question, 0 to 1."""
    gold = {example.idx: [answer.text for answer in example.answers or ()]}
    said = {example.idx: str(prediction.value)}
    if may_be_none:
        figures = squad_v2_scores(gold, said)
        return figures["exact"] / 100, figures["f1"] / 100
    figures = squad_scores(gold, said)
    return figures["exact_match"] / 100, figures["f1"] / 100


def _error(example: QuestionExample, said: str, share: float) -> dict[str, Any]:
    """A wrong answer, with the paragraph around the right one."""
    answer = example.answers[0] if example.answers else None
    truths = list(dict.fromkeys(clip(each.text, 120) for each in example.answers or ()))[:3]
    if answer is not None:
        start, end = answer.answer_start, answer.answer_start + len(answer.text)
    else:
        start = max(example.context.find(said), 0) if said else 0
        end = start
    first, last = start - CONTEXT_LETTERS, end + CONTEXT_LETTERS
    # Whole words: from the first space on, up to the last one; a paragraph without any is cut where it falls.
    first = 0 if first <= 0 else max(first, example.context.find(" ", first, start))
    if last < len(example.context):
        space = example.context.rfind(" ", end, last)
        last = space if space > end else last
    return {
        "question": clip(example.question),
        "before": ("... " if first else "") + _one_line(example.context[first:start]),
        "answer": clip(answer.text) if answer is not None else "",
        "after": _one_line(example.context[end:last]) + (" ..." if last < len(example.context) else ""),
        "said": clip(said) or "no answer",
        "truth": " / ".join(truths) or "no answer",
        "probability": share,
    }


def _one_line(text: str) -> str:
    """A text without line breaks, the spaces at its ends kept: it goes on beside an answer."""
    return re.sub(r"\s+", " ", text)
