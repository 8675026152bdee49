"""What a kind of task has to know; the four kinds are the only classes of fine-tuning.

Legend: B batch, S positions, C classes or choices.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.tasks.rows import Split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


# One model input: input_ids, token_type_ids, attention_mask as lists of int, and labels under the kind's label_keys.
Feature = Mapping[str, Any]
Batch = dict[str, torch.Tensor]
NOT_FINITE = (
    "the model's outputs are not finite; its weights are broken or its training has diverged: take another checkpoint, or "
    "train with a lower learning rate"
)


@dataclass(frozen=True)
class EncodedSplit:
    """A split as the model takes it; a map-style data set of `Feature`, in the order of the examples.

    Attributes:
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
        value: Name of a label, a number (regression), the names of the labels predicted (multi-label), one label a word
            (token classification), the answer's text (question answering), the number of the choice (multiple choice).
        probabilities: Label -> probability; for token classification one float a word (that of the label predicted);
            for multiple choice one float a choice; None for regression.
    """

    idx: int | str
    value: str | int | float | list[str]
    probabilities: dict[str, float] | list[float] | float | None = None

    def as_line(self, idx: int | str) -> dict[str, Any]:
        """`idx`, `prediction` and, where there are any, `probabilities` (6 digits), as JSON."""
        line: dict[str, Any] = {"idx": idx, "prediction": self.value}
        if self.probabilities is not None:
            line["probabilities"] = _rounded(self.probabilities)
        return line


class TaskKind(ABC):
    """How a kind of task is encoded, trained, decoded and measured.

    Args:
        task: The row.
        tokenizer: The checkpoint's.
        settings: Lengths and what else the kind asks for.
        label2id: Label names -> class numbers of the model; empty where there are no named labels.
    """

    # Name of the class in transformers that has the head.
    auto_class: ClassVar[str]
    # Keys of a batch that are labels: the model never sees them.
    label_keys: ClassVar[tuple[str, ...]] = ("labels",)
    # Whether the loss changes with the padded length: then all micro-batches of a step are padded alike.
    loss_counts_padding: ClassVar[bool] = False

    def __init__(
        self, task: Task, tokenizer: OriginalBertTokenizer, settings: TaskArguments, label2id: Mapping[str, int]
    ) -> None:
        self.task, self.tokenizer, self.settings = task, tokenizer, settings

    @abstractmethod
    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Examples -> features; labels are added where the split has them."""

    @abstractmethod
    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad to the longest feature: int64 (B, S) or (B, C, S) input_ids, token_type_ids, attention_mask; the labels."""

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): what the loss is a mean over: examples, labelled tokens, features."""
        return torch.tensor(len(batch["labels"]), device=batch["labels"].device)

    @abstractmethod
    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """float32 (): the loss summed over the batch's items, of what the model returned without labels."""

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """One float32 array for each feature of the batch, without padding: (C,) logits, unless the kind says otherwise."""
        return list(output.logits.detach().float().cpu().numpy())

    @abstractmethod
    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Outputs in the order of the features -> one prediction for each example, in the order of the examples."""

    @abstractmethod
    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """The task's metrics over labelled examples."""

    def write(self, folder: Path, split_name: str, examples: Sequence[Any], predictions: Sequence[Any]) -> list[Path]:
        """Write predictions_<split>.jsonl and the kind's own files; return their paths."""
        path = folder / f"predictions_{split_name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for prediction in predictions:
                file.write(json.dumps(prediction.as_line(prediction.idx), ensure_ascii=False) + "\n")
        return [path]

    def pad(self, features: Sequence[Feature], label_pads: Mapping[str, int] | None = None) -> Batch:
        """`pad_batch`, to max_seq_length where the settings ask for it."""
        pad_to = self.settings.max_seq_length if self.settings.pad_to_max_length else None
        return pad_batch(features, int(self.tokenizer.pad_token_id), pad_to=pad_to, label_pads=label_pads)


def truncate_pair(tokens_a: list[int], tokens_b: list[int], max_tokens: int) -> None:
    """Shorten two lists in place until they have max_tokens together.

    The longer one loses its last token; of two equally long ones the second (so that A keeps the odd token, which stock
    `longest_first` gives to B). Source: google-research/bert run_classifier.py `_truncate_seq_pair`.
    """
    excess = len(tokens_a) + len(tokens_b) - max_tokens
    if excess <= 0:
        return
    # Popping the longer one by one first brings them to one length, then takes turns, B first.
    difference = len(tokens_a) - len(tokens_b)
    first = min(excess, abs(difference))
    rest = excess - first
    cut_a = (first if difference > 0 else 0) + rest // 2
    cut_b = (first if difference < 0 else 0) + (rest + 1) // 2
    del tokens_a[max(0, len(tokens_a) - cut_a) :], tokens_b[max(0, len(tokens_b) - cut_b) :]


def join_texts(
    tokenizer: OriginalBertTokenizer, first: list[int], second: list[int] | None, max_seq_length: int
) -> dict[str, Any]:
    """[CLS] first [SEP], or [CLS] first [SEP] second [SEP] (also of an empty second), cut to max_seq_length positions."""
    cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if second is None:
        first = first[: max_seq_length - 2]
        return {"input_ids": [cls_id, *first, sep_id], "token_type_ids": [0] * (len(first) + 2)}
    truncate_pair(first, second, max_seq_length - 3)
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    return {"input_ids": [cls_id, *first, sep_id, *second, sep_id], "token_type_ids": types}


def pad_batch(
    features: Sequence[Feature],
    pad_token_id: int,
    *,
    pad_to: int | None = None,
    label_pads: Mapping[str, int] | None = None,
) -> Batch:
    """Pad features to the longest of them, or to pad_to: int64 (B, S) input_ids, token_type_ids and an attention_mask.

    label_pads has further per-position keys -> the value at padding, for example {"labels": -100}.
    """
    length = max(len(feature["input_ids"]) for feature in features) if pad_to is None else pad_to
    pads = {"input_ids": pad_token_id, "attention_mask": 0, "token_type_ids": 0, **(label_pads or {})}
    batch = {}
    for key, pad in pads.items():
        array = np.full((len(features), length), pad, dtype=np.int64)
        for row, feature in zip(array, features, strict=True):
            values = [1] * len(feature["input_ids"]) if key == "attention_mask" else feature[key]
            row[: len(values)] = values
        batch[key] = torch.from_numpy(array)
    return batch


def pad_further(batch: Batch, length: int, pads: Mapping[str, int]) -> Batch:
    """Lengthen the per-position tensors of a batch, those with a key in pads, to so many positions."""
    missing = length - batch["input_ids"].shape[-1]
    return {
        key: torch.nn.functional.pad(value, (0, missing), value=pads[key]) if key in pads else value
        for key, value in batch.items()
    }


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64 (C,) logits to probabilities."""
    values = np.exp(logits - logits.max())
    return values / values.sum()


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
