"""One text or a pair of texts -> one class, several classes, or a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes import metrics
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.collation import pad_batch, truncate_pair
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction
from bert_recipes.finetuning.prediction_files import write_jsonl
from bert_recipes.tasks.examples import Split, TextExample
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import OriginalBertTokenizer


class SequenceClassification:
    """Classification and regression of texts, by the rules of google-research/bert run_classifier.py.

    [CLS] A [SEP], also where B is empty, or [CLS] A [SEP] B [SEP]; a pair that is too long loses tokens at the end of its longer text.

    Args:
        task: Its row; `problem_type` decides the loss.
        tokenizer: The model's.
        settings: Lengths.
        label2id: Label name -> class number of the model; empty for regression.
    """

    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"
    label_keys: ClassVar[tuple[str, ...]] = ("labels",)
    loss_counts_padding: ClassVar[bool] = False

    def __init__(
        self, task: Task, tokenizer: OriginalBertTokenizer, settings: TaskArguments, label2id: Mapping[str, int]
    ) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.settings = settings
        self._class_of_label = [label2id[name] for name in task.labels]

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """One feature an example, with `labels` where the split has them."""
        features = [self._feature(example) for example in split.examples if isinstance(example, TextExample)]
        lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths)

    def _feature(self, example: TextExample) -> Feature:
        cls_id, sep_id = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        first = self.tokenizer.encode_ids(example.text)
        second = self.tokenizer.encode_ids(example.text_pair or "")
        if not second:  # run_classifier.py `convert_single_example`: a pair only where its second text has tokens
            del first[self.settings.max_seq_length - 2 :]
            ids, types = [cls_id, *first, sep_id], [0] * (len(first) + 2)
        else:
            truncate_pair(first, second, self.settings.max_seq_length - 3)
            ids = [cls_id, *first, sep_id, *second, sep_id]
            types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        feature: dict[str, Any] = {"input_ids": ids, "token_type_ids": types}
        if example.label is not None:
            feature["labels"] = self._target(example.label)
        return feature

    def _target(self, label: int | float | tuple[int, ...]) -> int | float | list[float]:
        if isinstance(label, tuple):
            wanted = {self._class_of_label[number] for number in label}
            return [float(number in wanted) for number in range(len(self._class_of_label))]
        if self.task.problem_type == "regression":
            return float(label)
        return self._class_of_label[int(label)]

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad; `labels` is int64 (B,), float32 (B,) for regression, float32 (B, C) for several labels."""
        pad_to = self.settings.max_seq_length if self.settings.pad_to_max_length else None
        batch = pad_batch(features, self.tokenizer.pad_token_id, pad_to=pad_to)
        if all("labels" in feature for feature in features):
            is_number = self.task.problem_type == "single_label_classification"
            dtype = torch.int64 if is_number else torch.float32
            batch["labels"] = torch.tensor([feature["labels"] for feature in features], dtype=dtype)
        return batch

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): examples."""
        return batch["labels"].new_tensor(len(batch["labels"]), dtype=torch.int64)

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Cross-entropy, squared error, or the binary cross-entropy averaged over the labels; summed over examples."""
        logits, labels = output.logits.float(), batch["labels"]
        if self.task.problem_type == "regression":
            return F.mse_loss(logits.squeeze(-1), labels, reduction="sum")
        if self.task.problem_type == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=-1).sum()
        return F.cross_entropy(logits, labels, reduction="sum")

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """float32 (C,) logits for each example."""
        return list(output.logits.float().cpu().numpy())

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """The largest logit, the number itself, or every label of probability 0.5 and more."""
        pairs = zip(encoded.split.examples, outputs, strict=True)
        return [self._prediction(example.idx, logits.astype(np.float64)) for example, logits in pairs]

    def _prediction(self, idx: int | str, logits: np.ndarray) -> Prediction:
        if self.task.problem_type == "regression":
            return Prediction(idx=idx, value=float(logits[0]))
        in_task_order = logits[self._class_of_label]
        if self.task.problem_type == "multi_label_classification":
            shares = 1.0 / (1.0 + np.exp(-in_task_order))
            probabilities = dict(zip(self.task.labels, shares.tolist(), strict=True))
            names = [name for name, share in probabilities.items() if share >= 0.5]
            return Prediction(idx=idx, value=names, probabilities=probabilities)
        shares = np.exp(in_task_order - in_task_order.max())
        shares /= shares.sum()
        probabilities = dict(zip(self.task.labels, shares.tolist(), strict=True))
        return Prediction(idx=idx, value=self.task.labels[int(shares.argmax())], probabilities=probabilities)

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The figures that the task's row names."""
        references = [example.label for example in examples]
        if self.task.problem_type == "multi_label_classification":
            values = [item.value if isinstance(item.value, list) else [] for item in predictions]
            named = [[self.task.labels.index(name) for name in value] for value in values]
            return metrics.compute(self.task.metrics, self._matrix(named), self._matrix(references))
        if self.task.problem_type == "regression":
            return metrics.compute(self.task.metrics, [item.value for item in predictions], references)
        numbers = [self.task.labels.index(item.value) for item in predictions]
        return metrics.compute(self.task.metrics, numbers, references)

    def _matrix(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Label numbers of each example -> bool (N, C)."""
        matrix = np.zeros((len(rows), len(self.task.labels)), dtype=bool)
        for row, numbers in zip(matrix, rows, strict=True):
            row[list(numbers)] = True
        return matrix

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Any], predictions: Sequence[Prediction]
    ) -> list[Path]:
        """predictions_<split>.jsonl: `idx`, `prediction` (label name(s) or number), `probabilities`."""
        return [write_jsonl(folder, split_name, predictions)]
