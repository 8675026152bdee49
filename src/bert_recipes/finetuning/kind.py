"""What a kind of task has to know; the four kinds are the only classes of fine-tuning.

Legend: B batch, S positions, C classes or choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.tasks.examples import Example, Split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import OriginalBertTokenizer


# One model input: input_ids, token_type_ids, attention_mask as lists of int, and labels under the kind's label_keys.
Feature = Mapping[str, Any]
Batch = dict[str, torch.Tensor]
# What is said of a model whose outputs are NaN or infinite.
NOT_FINITE = (
    "the model's outputs are not finite; its weights are broken or its training has diverged: take another checkpoint, or "
    "train with a lower learning rate"
)


@dataclass(frozen=True)
class EncodedSplit:
    """A split as the model takes it; a map-style data set of `Feature`.

    Attributes:
        split: The examples.
        features: Model inputs; one for each example in its order, or several (question answering).
        lengths: int64 (features,), positions of each.
        details: What the kind needs to come back from outputs to predictions.
    """

    split: Split
    features: Sequence[Feature]
    lengths: np.ndarray
    details: Any = None

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> Feature:
        return self.features[index]


@dataclass(frozen=True)
class Prediction:
    """What the model says of one example.

    Attributes:
        idx: The example's id.
        value: Name of a label, a number (regression), the names of the labels predicted (multi-label), one label a word
            (token classification), the answer's text (question answering), the number of the choice (multiple choice).
        probabilities: Label -> probability; for token classification one float a word (that of the label predicted);
            for multiple choice one float a choice; None for regression.
    """

    idx: int | str
    value: str | int | float | list[str]
    probabilities: dict[str, float] | list[float] | float | None = None


class TaskKind(Protocol):
    """How a kind of task is encoded, trained, decoded and measured.

    Args:
        task: The row.
        tokenizer: The checkpoint's.
        settings: Lengths and what else the kind asks for.
        label2id: Label names -> class numbers of the model; empty where there are no named labels.
    """

    task: Task
    tokenizer: OriginalBertTokenizer
    settings: TaskArguments
    # Name of the class in transformers that has the head.
    auto_class: ClassVar[str]
    # Keys of a batch that are labels: the model never sees them.
    label_keys: ClassVar[tuple[str, ...]]
    # Whether the loss changes with the padded length: then all micro-batches of a step are padded alike.
    loss_counts_padding: ClassVar[bool]

    def __init__(
        self, task: Task, tokenizer: OriginalBertTokenizer, settings: TaskArguments, label2id: Mapping[str, int]
    ) -> None:
        """Refuse a task that the kind cannot be made for with an `InputError`."""

    def encode(self, split: Split, *, for_training: bool) -> EncodedSplit:
        """Examples -> features; labels are added where the split has them."""
        ...

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad to the longest feature of the batch.

        Returns:
            int64 (B, S) input_ids, token_type_ids, attention_mask ((B, C, S) for multiple choice), and the labels.
        """
        ...

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): what the loss is a mean over: examples, labelled tokens, features."""
        ...

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """float32 (): the loss summed over the batch's items, differentiable.

        Args:
            output: What the model returned without labels (`logits`, or `start_logits` and `end_logits`).
            batch: The collated batch with its labels.
        """
        ...

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """One float32 array for each feature of the batch, without padding.

        Shapes: sequence_classification (C,), token_classification (S, C), question_answering (2, S) start and end,
        multiple_choice (C,).
        """
        ...

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Outputs in the order of the features -> one prediction for each example, in the order of the examples."""
        ...

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The task's figures over labelled examples."""
        ...

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> list[Path]:
        """Write predictions_<split>.jsonl and the kind's own files; return their paths."""
        ...
