"""The validation splits of a task, or inputs without labels, as what an export is compared on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from bert_recipes.exporting.runners import Batch, Output
from bert_recipes.finetuning.kind import EncodedSplit, Prediction, TaskKind
from bert_recipes.tasks.figures import with_suffix


# Number of the split's suffix, numbers of the features of a batch.
Place = tuple[str, np.ndarray]


class TaskInputs:
    """See `RealInputs` in comparison.py.

    Args:
        kind: Encodes, collates, decodes and scores.
        splits: Suffix of the figures ("" for a single split) -> encoded split.
        source: Where they are from.
    """

    unit = "examples"

    def __init__(self, kind: TaskKind, splits: Mapping[str, EncodedSplit], source: str) -> None:
        self.kind, self.splits, self.source = kind, splits, source
        self.num_examples = sum(len(encoded.split.examples) for encoded in splits.values())
        self.max_seq_length = kind.settings.max_seq_length
        is_labelled = all(encoded.split.is_labelled for encoded in splits.values())
        self.score = kind.task.best_metric if is_labelled else None
        # SQuAD's scripts count in percent, all others from 0 to 1.
        self.points = 1.0 if kind.task.kind == "question_answering" else 0.01

    def batches(self, size: int) -> Iterator[tuple[Place, Batch]]:
        """Yield batches of like length, the longest first, as predictions are made."""
        for suffix, encoded in self.splits.items():
            order = np.argsort(-encoded.lengths, kind="stable")
            for start in range(0, len(order), size):
                numbers = order[start : start + size]
                yield (suffix, numbers), self.kind.collate([encoded[number] for number in numbers])

    def new_scores(self) -> TaskScores:
        """For one model."""
        return TaskScores(self)


class TaskScores:
    """See `Scores` in comparison.py; outputs of a head are few, so that all are kept until they are decoded.

    Args:
        inputs: All batches of which will be added.
    """

    def __init__(self, inputs: TaskInputs) -> None:
        self._inputs = inputs
        self._outputs: dict[str, dict[int, np.ndarray]] = {suffix: {} for suffix in inputs.splits}
        self._decoded: dict[str, list[Prediction]] = {}

    def add(self, place: Place, batch: Batch, output: Output) -> None:
        """Keep what the kind makes of the outputs."""
        suffix, numbers = place
        arrays = self._inputs.kind.split_outputs(SimpleNamespace(**output), dict(batch))
        self._outputs[suffix] |= dict(zip(numbers.tolist(), arrays, strict=True))

    def _predictions(self, suffix: str) -> list[Prediction]:
        if suffix not in self._decoded:
            encoded, outputs = self._inputs.splits[suffix], self._outputs[suffix]
            self._decoded[suffix] = self._inputs.kind.decode(
                encoded, [outputs[number] for number in range(len(encoded))]
            )
        return self._decoded[suffix]

    def figures(self) -> dict[str, float]:
        """The task's figures, those of several splits with their suffixes."""
        if self._inputs.score is None:
            return {}
        return {
            with_suffix(suffix, name): float(value)
            for suffix, encoded in self._inputs.splits.items()
            for name, value in self._inputs.kind.score(encoded.split.examples, self._predictions(suffix)).items()
        }

    def decisions(self) -> list[Any]:
        """Labels, answers and choices; of tagging one a word; of regression none."""
        values: list[Any] = [
            prediction.value for suffix in self._inputs.splits for prediction in self._predictions(suffix)
        ]
        if any(isinstance(value, float) for value in values):
            return []
        if self._inputs.kind.task.kind == "token_classification":
            return [label for labels in values for label in labels]
        return values
