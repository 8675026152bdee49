"""One text or a pair of texts -> one class, several classes, or a number."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction, TaskKind, join_texts, softmax
from bert_recipes.metrics.classification import compute
from bert_recipes.tasks.rows import Split, TextExample
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


class SequenceClassification(TaskKind):
    """Classification and regression of texts, by the rules of google-research/bert run_classifier.py.

    [CLS] A [SEP], also where B is empty, or [CLS] A [SEP] B [SEP]; a pair that is too long loses tokens at the end of its
    longer text. The task's `problem_type` decides the loss.
    """

    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"

    def __init__(
        self, task: Task, tokenizer: OriginalBertTokenizer, settings: TaskArguments, label2id: Mapping[str, int]
    ) -> None:
        super().__init__(task, tokenizer, settings, label2id)
        self._class_of_label = [label2id[name] for name in task.labels]

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """One feature per example, with `labels` where the split has them."""
        features = [self._feature(example) for example in split.examples if isinstance(example, TextExample)]
        lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths)

    def _feature(self, example: TextExample) -> Feature:
        # run_classifier.py `convert_single_example`: a pair only where its second text has tokens
        texts = self.tokenizer.encode_ids(example.text), self.tokenizer.encode_ids(example.text_pair or "") or None
        feature: dict[str, Any] = join_texts(self.tokenizer, *texts, self.settings.max_seq_length)
        label = example.label
        if isinstance(label, tuple):
            wanted = {self._class_of_label[number] for number in label}
            feature["labels"] = [float(number in wanted) for number in range(len(self._class_of_label))]
        elif label is not None:
            is_number = self.task.problem_type == "regression"
            feature["labels"] = float(label) if is_number else self._class_of_label[int(label)]
        return feature

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad; `labels` is int64 (B,), float32 (B,) for regression, float32 (B, C) for several labels."""
        batch = self.pad(features)
        if all("labels" in feature for feature in features):
            is_class = self.task.problem_type == "single_label_classification"
            dtype = torch.int64 if is_class else torch.float32
            batch["labels"] = torch.tensor([feature["labels"] for feature in features], dtype=dtype)
        return batch

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Cross-entropy, squared error, or the binary cross-entropy averaged over the labels; summed over examples."""
        logits, labels = output.logits.float(), batch["labels"]
        if self.task.problem_type == "regression":
            return F.mse_loss(logits.squeeze(-1), labels, reduction="sum")
        if self.task.problem_type == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=-1).sum()
        return F.cross_entropy(logits, labels, reduction="sum")

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """The largest logit, the number itself, or every label of probability 0.5 and more."""
        pairs = zip(encoded.split.examples, outputs, strict=True)
        return [self._prediction(example.idx, logits.astype(np.float64)) for example, logits in pairs]

    def _prediction(self, idx: int | str, logits: np.ndarray) -> Prediction:
        if self.task.problem_type == "regression":
            return Prediction(idx=idx, value=float(logits[0]))
        in_task_order = logits[self._class_of_label]
        if self.task.problem_type == "multi_label_classification":
            values = 1.0 / (1.0 + np.exp(-in_task_order))
            chosen: Any = [name for name, value in zip(self.task.labels, values, strict=True) if value >= 0.5]
        else:
            values = softmax(in_task_order)
            chosen = self.task.labels[int(values.argmax())]
        probabilities = dict(zip(self.task.labels, values.tolist(), strict=True))
        return Prediction(idx=idx, value=chosen, probabilities=probabilities)

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The metrics that the task's row names."""
        references = [example.label for example in examples]
        if self.task.problem_type == "multi_label_classification":
            values = [item.value if isinstance(item.value, list) else [] for item in predictions]
            named = [[self.task.labels.index(name) for name in value] for value in values]
            return compute(self.task.metrics, self._matrix(named), self._matrix(references))
        if self.task.problem_type == "regression":
            return compute(self.task.metrics, [item.value for item in predictions], references)
        numbers = [self.task.labels.index(item.value) for item in predictions]
        return compute(self.task.metrics, numbers, references)

    def _matrix(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Label numbers of each example -> bool (N, C)."""
        matrix = np.zeros((len(rows), len(self.task.labels)), dtype=bool)
        for row, numbers in zip(matrix, rows, strict=True):
            row[list(numbers)] = True
        return matrix
