"""Labels of words: named entities, parts of speech."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.collation import pad_batch
from bert_recipes.finetuning.conll_columns import write_columns
from bert_recipes.finetuning.document_windows import DocumentWindow, lay_out_documents
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction
from bert_recipes.finetuning.prediction_files import write_jsonl
from bert_recipes.metrics import compute
from bert_recipes.metrics.entities import entity_scores
from bert_recipes.models.bert import IGNORE_INDEX
from bert_recipes.tasks.examples import Example, Split, TaggedExample
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import OriginalBertTokenizer


class TokenClassification:
    """One label for each word, read off its first piece.

    Sentences are read in windows of their document (`lay_out_documents`); the words of a window that belong to another
    one are context only: no loss, no prediction. Every word is trained on once an epoch and predicted once.

    By default the other pieces of a word have no label. With `label_all_pieces` they have one too: I-X where the word's
    label is B-X and the task knows I-X, the word's own label otherwise. Predictions are read off first pieces either
    way.

    Args:
        task: Row of kind token_classification.
        tokenizer: The checkpoint's.
        settings: max_seq_length, pad_to_max_length and label_all_pieces are read.
        label2id: Name of a label -> number of the model's class.

    Raises:
        InputError: The task has labels that the model does not have.

    Source: BERT, Devlin et al. 2019, section 5.3: maximal document context, the first sub-token, no CRF.
    """

    auto_class: ClassVar[str] = "AutoModelForTokenClassification"
    label_keys: ClassVar[tuple[str, ...]] = ("labels",)
    loss_counts_padding: ClassVar[bool] = False

    def __init__(
        self, task: Task, tokenizer: OriginalBertTokenizer, settings: TaskArguments, label2id: Mapping[str, int]
    ) -> None:
        missing = [name for name in task.labels if name not in label2id]
        if missing:
            raise InputError(
                f"task {task.name}: the model has no class for {', '.join(missing)}; it knows {', '.join(label2id)}"
            )
        self.task, self.tokenizer, self.settings = task, tokenizer, settings
        self._first_class = np.array([label2id[name] for name in task.labels], np.int64)
        inside = [f"I-{name[2:]}" if name.startswith("B-") else name for name in task.labels]
        self._later_class = np.array(
            [
                label2id[other if other in task.labels else name]
                for name, other in zip(task.labels, inside, strict=True)
            ],
            np.int64,
        )

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Sentences -> windows; one feature for each window, in training and in prediction alike.

        Args:
            split: Examples of class `TaggedExample`.
            for_training: Changes nothing here.

        Returns:
            Features with labels where the split has them; details are the `DocumentWindow`s.
        """
        examples = cast(Sequence[TaggedExample], split.examples)
        windows = lay_out_documents(
            examples, self.tokenizer, self.settings.max_seq_length, context=self.settings.context
        )
        features = [self._feature(window, examples, with_labels=split.is_labelled) for window in windows]
        lengths = np.array([len(window.input_ids) for window in windows], np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths, details=windows)

    def _feature(
        self, window: DocumentWindow, examples: Sequence[TaggedExample], *, with_labels: bool
    ) -> dict[str, list[int]]:
        feature = {"input_ids": window.input_ids, "token_type_ids": [0] * len(window.input_ids)}
        if with_labels:
            labels = np.full(len(window.input_ids), IGNORE_INDEX, np.int64)
            tags = np.fromiter(
                (_labels(examples[s])[w] for s, w in zip(window.sentences, window.words, strict=True)), np.int64
            )
            if self.settings.label_all_pieces:
                for tag, start, count in zip(tags, window.positions, window.num_pieces, strict=True):
                    labels[start + 1 : start + count] = self._later_class[tag]
            labels[window.positions] = self._first_class[tags]
            feature["labels"] = labels.tolist()
        return feature

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad to the longest window, or to max_seq_length with `pad_to_max_length`.

        Returns:
            int64 (B, S) input_ids, token_type_ids, attention_mask, and labels (-100: not labelled) where all have them.
        """
        labelled = all("labels" in feature for feature in features)
        return pad_batch(
            features,
            self.tokenizer.pad_token_id,
            pad_to=self.settings.max_seq_length if self.settings.pad_to_max_length else None,
            label_pads={"labels": IGNORE_INDEX} if labelled else None,
        )

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): labelled pieces; one for each word unless `label_all_pieces`."""
        return (batch["labels"] != IGNORE_INDEX).sum()

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """float32 (): cross-entropy in nats, summed over the labelled pieces.

        Args:
            output: `logits` (B, S, C).
            batch: With labels.
        """
        logits = output.logits.float()
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """float32 (S, C) logits of each window, without padding."""
        lengths = batch["attention_mask"].sum(-1).tolist()
        logits = output.logits.detach().float().cpu().numpy()
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Take each word's most probable label of the task from the window that it belongs to.

        Returns:
            One prediction a sentence: a label a word, and the probabilities of these labels.
        """
        examples = cast(Sequence[TaggedExample], encoded.split.examples)
        labels: list[list[str]] = [[""] * len(example.tokens) for example in examples]
        probabilities: list[list[float]] = [[0.0] * len(example.tokens) for example in examples]
        for window, logits in zip(encoded.details, outputs, strict=True):
            scores = logits[window.positions][:, self._first_class].astype(np.float64)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            best = scores.argmax(-1)
            shares = scores.max(-1) / scores.sum(-1)
            words = zip(window.sentences, window.words, best.tolist(), shares.tolist(), strict=True)
            for sentence, word, number, share in words:
                labels[sentence][word] = self.task.labels[number]
                probabilities[sentence][word] = share
        return [
            Prediction(idx=example.idx, value=own_labels, probabilities=own_shares)
            for example, own_labels, own_shares in zip(examples, labels, probabilities, strict=True)
        ]

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Entity scores by the CoNLL rules for "entities"; every other metric of the task over the single words."""
        tagged = cast(Sequence[TaggedExample], examples)
        gold = [[self.task.labels[label] for label in _labels(example)] for example in tagged]
        predicted = [cast(list[str], prediction.value) for prediction in predictions]
        figures: dict[str, float] = {}
        if "entities" in self.task.metrics:
            figures |= entity_scores(gold, predicted)
        others = [name for name in self.task.metrics if name != "entities"]
        if others:
            guesses = [self.task.labels.index(name) for name in itertools.chain.from_iterable(predicted)]
            truth = [label for example in tagged for label in _labels(example)]
            figures |= compute(others, guesses, truth)
        return figures

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> list[Path]:
        """Write predictions_<split>.jsonl and, in CoNLL columns, predictions_<split>.txt (`write_columns`)."""
        tagged = cast(Sequence[TaggedExample], examples)
        columns = folder / f"predictions_{split_name}.txt"
        write_columns(columns, tagged, self.task.labels, [cast(list[str], each.value) for each in predictions])
        return [write_jsonl(folder, split_name, predictions), columns]


def _labels(example: TaggedExample) -> tuple[int, ...]:
    assert example.labels is not None, "the split is labelled"
    return example.labels
