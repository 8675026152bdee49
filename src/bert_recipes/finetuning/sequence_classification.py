"""One text or a pair of texts -> one class, several classes, or a number."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Prediction, TaskKind, join_texts, softmax
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
        features: list[dict[str, Any]] = []
        for example in cast(Sequence[TextExample], split.examples):
            # run_classifier.py `convert_single_example`: a pair only where its second text has tokens
            pair = self.tokenizer.encode_ids(example.text_pair or "") or None
            text, label = self.tokenizer.encode_ids(example.text), example.label
            features.append(join_texts(self.tokenizer, text, pair, self.settings.max_seq_length))
            if isinstance(label, tuple):
                wanted = {self._class_of_label[number] for number in label}
                features[-1]["labels"] = [float(number in wanted) for number in range(len(self._class_of_label))]
            elif label is not None:
                is_number = self.task.problem_type == "regression"
                features[-1]["labels"] = float(label) if is_number else self._class_of_label[int(label)]
        lengths = np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths)

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
        predictions = []
        for example, output in zip(encoded.split.examples, outputs, strict=True):
            if self.task.problem_type == "regression":
                predictions.append(Prediction(example.idx, float(output[0])))
                continue
            logits = output.astype(np.float64)[self._class_of_label]
            if self.task.problem_type == "multi_label_classification":
                values = 1.0 / (1.0 + np.exp(-logits))
                chosen: Any = [name for name, value in zip(self.task.labels, values, strict=True) if value >= 0.5]
            else:
                values = softmax(logits)
                chosen = self.task.labels[int(values.argmax())]
            probabilities = dict(zip(self.task.labels, values.tolist(), strict=True))
            predictions.append(Prediction(example.idx, chosen, probabilities))
        return predictions

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The metrics that the task's row names."""
        labels = self.task.labels
        references: Any = [example.label for example in examples]
        values: Any = [item.value for item in predictions]
        if self.task.problem_type == "single_label_classification":
            values = [labels.index(name) for name in values]
        elif self.task.problem_type == "multi_label_classification":  # bool (N, C)
            values = np.array([[name in value for name in labels] for value in values])
            references = np.array([[number in label for number in range(len(labels))] for label in references])
        return compute(self.task.metrics, values, references)
