"""The right one of several endings: SWAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.collation import pad_batch, truncate_pair
from bert_recipes.finetuning.kind import Batch, EncodedSplit, Feature, Prediction
from bert_recipes.finetuning.prediction_files import write_jsonl
from bert_recipes.metrics import compute
from bert_recipes.tasks.examples import ChoiceExample, Example, Split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import OriginalBertTokenizer


class MultipleChoice:
    """Each choice is read behind the context, [CLS] context [SEP] choice [SEP], and gives one number; a softmax compares them.

    A pair that is too long loses its last tokens, the longer text first (`truncate_pair`). A batch of B examples with C
    choices is B * C inputs for the model.

    Args:
        task: Row of kind multiple_choice.
        tokenizer: The checkpoint's.
        settings: max_seq_length and pad_to_max_length are read.
        label2id: Not used: choices have numbers, no names.

    Source: BERT, Devlin et al. 2019, section 4.4; the truncation is that of google-research/bert run_classifier.py.
    """

    auto_class: ClassVar[str] = "AutoModelForMultipleChoice"
    label_keys: ClassVar[tuple[str, ...]] = ("labels",)
    loss_counts_padding: ClassVar[bool] = False

    def __init__(
        self, task: Task, tokenizer: OriginalBertTokenizer, settings: TaskArguments, label2id: Mapping[str, int]
    ) -> None:
        self.task, self.tokenizer, self.settings = task, tokenizer, settings

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Examples -> features whose input_ids and token_type_ids are lists of C lists.

        Args:
            split: Examples of class `ChoiceExample`, all with C choices, C at least 2.
            for_training: Changes nothing here.

        Returns:
            One feature an example; its length is that of its longest choice.
        """
        features = [
            self._feature(example, with_label=split.is_labelled)
            for example in cast(Sequence[ChoiceExample], split.examples)
        ]
        lengths = np.array([max(map(len, feature["input_ids"])) for feature in features], np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths)

    def _feature(self, example: ChoiceExample, *, with_label: bool) -> dict[str, Any]:
        cls_id, sep_id = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        context = self.tokenizer.encode_ids(example.context)
        feature: dict[str, Any] = {"input_ids": [], "token_type_ids": []}
        for choice in example.choices:
            first, second = list(context), self.tokenizer.encode_ids(choice)
            truncate_pair(first, second, self.settings.max_seq_length - 3)
            feature["input_ids"].append([cls_id, *first, sep_id, *second, sep_id])
            feature["token_type_ids"].append([0] * (len(first) + 2) + [1] * (len(second) + 1))
        if with_label:
            feature["labels"] = example.label
        return feature

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad all choices to the longest of the batch, or to max_seq_length with `pad_to_max_length`.

        Returns:
            int64 (B, C, S) input_ids, token_type_ids, attention_mask, and (B,) labels where all have them.
        """
        choices = [
            {"input_ids": ids, "token_type_ids": types}
            for feature in features
            for ids, types in zip(feature["input_ids"], feature["token_type_ids"], strict=True)
        ]
        pad_to = self.settings.max_seq_length if self.settings.pad_to_max_length else None
        flat = pad_batch(choices, self.tokenizer.pad_token_id, pad_to=pad_to)
        batch = {key: value.unflatten(0, (len(features), -1)) for key, value in flat.items()}
        if all("labels" in feature for feature in features):
            batch["labels"] = torch.tensor([feature["labels"] for feature in features], dtype=torch.int64)
        return batch

    def count_items(self, batch: Batch) -> torch.Tensor:
        """int64 (): examples."""
        return torch.tensor(len(batch["labels"]), device=batch["labels"].device)

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """float32 (): cross-entropy over the choices in nats, summed over the examples.

        Args:
            output: `logits` (B, C).
            batch: With labels.
        """
        return torch.nn.functional.cross_entropy(output.logits.float(), batch["labels"], reduction="sum")

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """float32 (C,) logits of each example."""
        return list(output.logits.detach().float().cpu().numpy())

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Number of the choice with the greatest logit (the first of equals), and the softmax over all choices."""
        predictions = []
        for example, logits in zip(encoded.split.examples, outputs, strict=True):
            shares = np.exp(logits.astype(np.float64) - logits.max())
            shares /= shares.sum()
            predictions.append(Prediction(idx=example.idx, value=int(logits.argmax()), probabilities=shares.tolist()))
        return predictions

    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """The task's metrics over the numbers of the choices."""
        gold = [cast(ChoiceExample, example).label for example in examples]
        return compute(self.task.metrics, [prediction.value for prediction in predictions], gold)

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> list[Path]:
        """Write predictions_<split>.jsonl."""
        return [write_jsonl(folder, split_name, predictions)]
