"""Labels of words: which entities were found, which labels were mistaken for which, the most confident errors."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bert_recipes.metrics.confusion import score_of
from bert_recipes.metrics.entities import count_entities, total_counts
from bert_recipes.reports.label_facts import NUM_WORST, calibration, class_facts, clip


if TYPE_CHECKING:
    from bert_recipes.finetuning.kind import Prediction
    from bert_recipes.tasks.examples import TaggedExample
    from bert_recipes.tasks.task import Task


# Words to the left and to the right of a wrong one.
CONTEXT_WORDS = 14


def tag_facts(task: Task, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """What `label_facts` says of texts, of words; with the task's metric "entities" also of whole entities.

    Args:
        task: Its row.
        examples: Labelled sentences.
        predictions: A label and its probability a word.

    Returns:
        JSON values.
    """
    number_of = {name: number for number, name in enumerate(task.labels)}
    gold: list[int] = []
    said: list[int] = []
    shares: list[float] = []
    wrong: list[tuple[float, int, int]] = []
    for row, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        assert example.labels is not None
        assert isinstance(prediction.value, list)
        assert isinstance(prediction.probabilities, list)
        numbers = [number_of[name] for name in prediction.value]
        gold += example.labels
        said += numbers
        shares += prediction.probabilities
        places = [place for place, pair in enumerate(zip(numbers, example.labels, strict=True)) if pair[0] != pair[1]]
        if places:  # one of each sentence: the examples shall differ
            surest = max(places, key=prediction.probabilities.__getitem__)
            wrong.append((prediction.probabilities[surest], row, surest))
    facts = class_facts(task.labels, gold, said) | {
        "words": len(gold),
        "calibration": calibration(shares, [a == b for a, b in zip(said, gold, strict=True)]),
        "worst": [
            _error(task, examples[row], predictions[row], place)
            for _, row, place in heapq.nsmallest(NUM_WORST, wrong, key=lambda item: (-item[0], item[1]))
        ],
    }
    if "entities" in task.metrics:
        facts["entities"] = _entities(task, examples, predictions)
    return facts


def _entities(
    task: Task, examples: Sequence[TaggedExample], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """Scores of each type of entity, and of all."""
    gold = [[task.labels[number] for number in example.labels or ()] for example in examples]
    by_type = count_entities(gold, [prediction.value for prediction in predictions])  # type: ignore[misc]
    named = {**by_type, "all": total_counts(by_type)}
    return [
        {"type": name, **asdict(score_of(counts.correct, counts.predicted, counts.gold))}
        for name, counts in named.items()
    ]


def _error(task: Task, example: TaggedExample, prediction: Prediction, place: int) -> dict[str, Any]:
    """A wrong word in its sentence."""
    assert example.labels is not None
    first, end = max(0, place - CONTEXT_WORDS), place + 1 + CONTEXT_WORDS
    before, after = example.tokens[first:place], example.tokens[place + 1 : end]
    return {
        "before": ("... " if first else "") + clip(" ".join(before)),
        "word": clip(example.tokens[place]),
        "after": clip(" ".join(after)) + (" ..." if end < len(example.tokens) else ""),
        "said": prediction.value[place],  # type: ignore[index]
        "truth": task.labels[example.labels[place]],
        "probability": float(prediction.probabilities[place]),  # type: ignore[index]
    }
