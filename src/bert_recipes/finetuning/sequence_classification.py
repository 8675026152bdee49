"""Classify one text or a pair of texts: one class, several classes, or a number."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import (
    Batch,
    EncodedSplit,
    Prediction,
    TaskKind,
    join_texts,
    softmax,
)
from bert_recipes.finetuning.squad import cut_windows
from bert_recipes.metrics.classification import compute
from bert_recipes.tasks.examples import Split, TextExample
from bert_recipes.tasks.task import Task


def pairs_have_no_windows(task: Task, long_documents: str | None) -> str:
    """Return the refusal of `long_documents` for a task of pairs."""
    return (
        f"long_documents is {long_documents}; task {task.name} has pairs, which lose tokens at "
        "their ends: leave it out"
    )


class SequenceClassification(TaskKind):
    """Classify texts, or read a number off them, as google-research/bert run_classifier.py.

    [CLS] A [SEP], also where B is empty, or [CLS] A [SEP] B [SEP]; a pair that is too long loses
    tokens at the end of its longer text. The task's `problem_type` decides the loss.

    `long_documents` says what is read of a single text that is too long: its head, its tail, a
    quarter of head and the rest of tail (Sun et al. 2019, section 5.3.1), or windows. A window is
    trained on as an example with its document's label (Pappagari et al. 2019); a document's
    prediction joins the logits of its windows.
    """

    def __post_init__(self) -> None:
        """Refuse what cannot be done with the task's texts."""
        task = self.task
        if self.settings.pool == "vote" and task.problem_type != "single_label_classification":
            raise InputError(
                f"pool is vote; task {task.name} has no classes of which one is right: give mean, "
                "max or first"
            )

        # Number of a label in the task -> the model's class.
        self._class_of_label = [self.label2id[name] for name in task.labels]

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Return one feature per example, or per window of one.

        They have `labels` where the split has them. The details are the number of features of each
        example.
        """
        features: list[dict[str, Any]] = []
        num_features_of_examples = []
        examples: Sequence[Any] = split.examples
        for example in examples:
            label = self._label_of(example)
            text = self.tokenizer.encode_ids(example.text)
            text_pair = self.tokenizer.encode_ids(example.text_pair or "")
            # run_classifier.py `convert_single_example`: a pair only where its second text has
            # tokens
            second = text_pair if text_pair else None
            inputs = self._cut(text, is_pair=second is not None)
            for first in inputs:
                feature = join_texts(self.tokenizer, first, second, self.settings.max_seq_length)
                if label is not None:
                    feature["labels"] = label
                features.append(feature)
            num_features_of_examples.append(len(inputs))

        lengths = [len(feature["input_ids"]) for feature in features]
        return EncodedSplit(
            split, features, np.array(lengths, dtype=np.int64), details=num_features_of_examples
        )

    def _label_of(self, example: TextExample) -> Any:
        """Return an example's label as the loss takes it.

        Returns:
            The model's class (int), a number (float), or a flag for each of the model's classes
            (list of float); None without a label.
        """
        label = example.label
        if label is None:
            return None
        if isinstance(label, tuple):  # several labels: one flag a class
            flags = [0.0] * len(self._class_of_label)
            for number in label:
                flags[self._class_of_label[number]] = 1.0
            return flags
        if self.task.problem_type == "regression":
            return float(label)
        return self._class_of_label[int(label)]

    def _cut(self, text: list[int], *, is_pair: bool) -> list[list[int]]:
        """Return what is read of a text, in one input or several.

        Args:
            text: Ids of its pieces.
            is_pair: Whether a second text follows, which shares the positions.

        Returns:
            Ids for each input. A pair is returned as it is: `join_texts` cuts it.
        """
        long_documents = self.settings.long_documents
        layout = self.tokenizer.layout
        max_tokens = self.settings.max_seq_length - len(layout.prefix) - len(layout.suffix)
        if long_documents in (None, "head") or len(text) <= max_tokens:
            return [text]
        if is_pair:
            raise InputError(pairs_have_no_windows(self.task, long_documents))

        if long_documents == "tail":
            return [text[-max_tokens:]]
        if long_documents == "head_tail":
            # 128 of 512 positions, [CLS] and [SEP] counted: Sun et al. 2019, section 5.3.1.
            head = self.settings.max_seq_length // 4
            tail = max_tokens - head
            return [text[:head] + text[-tail:]]

        windows = cut_windows(len(text), max_tokens, self.settings.doc_stride)
        return [text[start:end] for start, end in windows]

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy or the squared error, summed over examples.

        With several labels it is the binary cross-entropy averaged over the labels.
        """
        logits = output.logits.float()
        labels = batch["labels"]

        if self.task.problem_type == "regression":
            numbers = logits.squeeze(-1)
            return F.mse_loss(numbers, labels, reduction="sum")

        if self.task.problem_type == "multi_label_classification":
            losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
            losses_of_examples = losses.mean(dim=-1)
            return losses_of_examples.sum()

        return F.cross_entropy(logits, labels, reduction="sum")

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Predict the largest logit, the number itself, or the labels of probability 0.5 or more.

        Logits of an example's windows are pooled.
        """
        pool = self.settings.pool or "mean"
        predictions = []
        start = 0
        for example, num_features in zip(encoded.split.examples, encoded.details, strict=True):
            end = start + num_features
            windows = np.stack(outputs[start:end])
            start = end

            logits = pool_logits(windows, pool)
            if self.task.problem_type == "regression":
                prediction = Prediction(example.idx, float(logits[0]))
            else:
                prediction = self._decode_labels(example.idx, logits)
            predictions.append(prediction)
        return predictions

    def _decode_labels(self, idx: int | str, logits: np.ndarray) -> Prediction:
        """Return the prediction that logits stand for.

        Args:
            idx: Of the example.
            logits: Float (C,), in the order of the model's classes.
        """
        logits = logits.astype(np.float64)
        logits_of_labels = logits[self._class_of_label]
        names = self.task.labels

        if self.task.problem_type == "multi_label_classification":
            probabilities = 1.0 / (1.0 + np.exp(-logits_of_labels))
            numbers = np.flatnonzero(probabilities >= 0.5)
            value: Any = [names[number] for number in numbers]
        else:
            probabilities = softmax(logits_of_labels)
            best = int(probabilities.argmax())
            value = names[best]

        shares = dict(zip(names, probabilities.tolist(), strict=True))
        return Prediction(idx, value, shares)

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the metrics that the task's definition names."""
        labels = self.task.labels
        references: Any = [example.label for example in examples]
        values: Any = [prediction.value for prediction in predictions]

        if self.task.problem_type == "single_label_classification":
            values = [labels.index(name) for name in values]

        elif self.task.problem_type == "multi_label_classification":
            # Flags, bool (N, C).
            flags = [np.isin(labels, names) for names in values]
            values = np.array(flags)
            numbers = np.arange(len(labels))
            gold_flags = [np.isin(numbers, label) for label in references]
            references = np.array(gold_flags)

        return compute(self.task.metrics, values, references)


def pool_logits(windows: np.ndarray, pool: str) -> np.ndarray:
    """Return the logits of a document, of those of its windows.

    Args:
        windows: Float (windows, C).
        pool: "mean", "max", "first", or "vote": as the windows' answers are spread.

    Returns:
        Float (C,).
    """
    num_windows, num_classes = windows.shape
    if num_windows == 1 or pool == "first":
        return windows[0]
    if pool == "max":
        return windows.max(0)
    if pool == "vote":
        answers = windows.argmax(-1)
        votes = np.bincount(answers, minlength=num_classes)
        # The log of a share is a logit of that probability. Equal votes: the mean decides.
        shares = np.maximum(votes / num_windows, 1e-6)
        return np.log(shares) + 1e-9 * windows.mean(0)
    return windows.mean(0)
