"""How far the outputs of a model are from those of its checkpoint, and what that does to its scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tqdm import tqdm

from bert_recipes.errors import InputError
from bert_recipes.exporting.heads import Head
from bert_recipes.exporting.runners import Batch, Output, Runner
from bert_recipes.finetuning.kind import NOT_FINITE


class Scores(Protocol):
    """Collects what one model says of the inputs."""

    def add(self, place: Any, batch: Batch, output: Output) -> None:
        """Add the outputs of a batch.

        Args:
            place: What came with the batch.
            batch: With its labels.
            output: Of the model.
        """
        ...

    def figures(self) -> dict[str, float]:
        """Figure -> value; empty without labels."""
        ...

    def decisions(self) -> list[Any]:
        """What is predicted, in one order for all models; empty where numbers are."""
        ...


class RealInputs(Protocol):
    """Inputs to compare on.

    Attributes:
        source: Where they are from, for reports.
        unit: What they are: "examples", "pairs", "texts".
        num_examples: How many.
        max_seq_length: Positions of the longest that is possible.
        points: What one point of 100 of that figure is.
    """

    source: str
    unit: str
    num_examples: int
    max_seq_length: int
    points: float

    @property
    def score(self) -> str | None:
        """The figure that decides, larger is better; None without labels."""
        ...

    def batches(self, size: int) -> Iterator[tuple[Any, Batch]]:
        """Yield (place, batch), always in the same order."""
        ...

    def new_scores(self) -> Scores:
        """For one model."""
        ...


class Differences:
    """Differences of outputs over real positions: those of pads mean nothing and are left out.

    Attributes:
        largest: Absolute; infinite where an output is not finite.
        mean: Absolute, over all numbers.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.largest = 0.0
        self._sum = 0.0
        self._count = 0

    @property
    def mean(self) -> float:
        """Mean of the absolute differences."""
        return self._sum / max(self._count, 1)

    def add(self, expected: Output, output: Output, batch: Batch) -> None:
        """Add a batch."""
        mask = batch["attention_mask"].bool()
        for name in self.head.outputs:
            if expected[name].shape != output[name].shape:
                raise ValueError(f"{name}: {tuple(output[name].shape)} for {tuple(expected[name].shape)}")
            # Row by row: logits over a vocabulary are large.
            for number, (one, other) in enumerate(zip(expected[name], output[name], strict=True)):
                difference = (one - other).abs()
                if self.head.is_by_token(name):
                    difference = difference[mask[number]]
                if difference.numel():
                    most = difference.max().item()
                    self.largest = max(self.largest, most if math.isfinite(most) else math.inf)
                    self._sum += difference.sum(dtype=torch.float64).item()
                    self._count += difference.numel()


@dataclass(frozen=True)
class Comparison:
    """One model beside the checkpoint.

    Attributes:
        scores: Figure -> value; empty without labels.
        largest, mean: Absolute differences of the outputs; 0 for the checkpoint itself.
        same: Share of predictions that are the checkpoint's, 0 to 1; None where numbers are predicted.
    """

    scores: Mapping[str, float]
    largest: float
    mean: float
    same: float | None


def compare(
    reference: Runner,
    others: Mapping[str, Runner],
    head: Head,
    inputs: RealInputs,
    batch_size: int,
) -> tuple[Comparison, dict[str, Comparison]]:
    """Run all models over the inputs.

    Args:
        reference: The checkpoint.
        others: Name -> model that is compared with it.
        head: Of all of them.
        inputs: What they are run on.
        batch_size: Inputs at once.

    Returns:
        The checkpoint's own figures, and those of the others by name.
    """
    own = inputs.new_scores()
    scores = {name: inputs.new_scores() for name in others}
    differences = {name: Differences(head) for name in others}
    for place, batch in tqdm(inputs.batches(batch_size), desc="compare", unit="batch", leave=False, disable=None):
        expected = reference(batch)
        if not all(torch.isfinite(values).all() for values in expected.values()):
            raise InputError(f"the checkpoint cannot be compared with: {NOT_FINITE}")
        own.add(place, batch, expected)
        for name, runner in others.items():
            output = runner(batch)
            scores[name].add(place, batch, output)
            differences[name].add(expected, output, batch)
    decided = own.decisions()
    return Comparison(own.figures(), 0.0, 0.0, 1.0 if decided else None), {
        name: Comparison(
            scores[name].figures(),
            differences[name].largest,
            differences[name].mean,
            _share_of_equal(decided, scores[name].decisions()),
        )
        for name in others
    }


def _share_of_equal(one: Sequence[Any], other: Sequence[Any]) -> float | None:
    return sum(a == b for a, b in zip(one, other, strict=True)) / len(one) if one else None
