"""The right one of several endings: SWAG."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch.nn import functional as F

from bert_recipes.finetuning.kind import (
    Batch,
    EncodedSplit,
    Feature,
    Prediction,
    TaskKind,
    join_texts,
    softmax,
)
from bert_recipes.metrics.classification import compute
from bert_recipes.tasks.examples import ChoiceExample, Split


class MultipleChoice(TaskKind):
    """Read each choice behind the context, [CLS] context [SEP] choice [SEP]; it gives one number,
    and a softmax compares them.

    A batch of B examples with C choices is B * C inputs for the model. Where examples have fewer
    choices than others of their batch, inputs without text fill them up; `num_choices` then says
    how many count.

    Source: BERT, Devlin et al. 2019, section 4.4; the truncation is that of google-research/bert
    run_classifier.py.
    """

    auto_class: ClassVar[str] = "AutoModelForMultipleChoice"

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Return features whose input_ids and token_type_ids are lists of C lists, C being 2 or
        more.

        The length of a feature is that of its longest choice.
        """
        features: list[dict[str, Any]] = []
        for example in cast(Sequence[ChoiceExample], split.examples):
            # Endings alone: what they give away by themselves.
            context = (
                []
                if self.settings.context == "none"
                else self.tokenizer.encode_ids(example.context)
            )
            texts = [
                join_texts(
                    self.tokenizer,
                    [*context],
                    self.tokenizer.encode_ids(choice),
                    self.settings.max_seq_length,
                )
                for choice in example.choices
            ]
            features.append(
                {key: [text[key] for text in texts] for key in ("input_ids", "token_type_ids")}
            )
            if split.is_labelled:
                features[-1]["labels"] = example.label
        lengths = np.array([max(map(len, feature["input_ids"])) for feature in features], np.int64)
        return EncodedSplit(split=split, features=features, lengths=lengths)

    def pad(
        self, features: Sequence[Feature], label_pads: Mapping[str, int] | None = None
    ) -> Batch:
        """Pad all choices to the longest of the batch, and to the most choices: (B, C, S)."""
        counts = [len(feature["input_ids"]) for feature in features]
        filling = join_texts(self.tokenizer, [], None, self.settings.max_seq_length)
        choices: list[Feature] = []
        for feature, count in zip(features, counts, strict=True):
            for ids, types in zip(feature["input_ids"], feature["token_type_ids"], strict=True):
                choices.append({"input_ids": ids, "token_type_ids": types})
            choices += [filling] * (max(counts) - count)
        batch = {
            key: value.unflatten(0, (len(features), -1))
            for key, value in super().pad(choices).items()
        }
        if min(counts) < max(counts):
            batch["num_choices"] = torch.tensor(counts)
        return batch

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy over each example's own choices, of (B, C) logits; summed over
        the examples.
        """
        logits = output.logits.float()
        if "num_choices" in batch:
            numbers = torch.arange(logits.shape[1], device=logits.device)
            is_filling = numbers >= batch["num_choices"][:, None]
            logits = logits.masked_fill(is_filling, -torch.inf)
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """Return float32 (C,) logits of each example's own choices."""
        rows = super().split_outputs(output, batch)
        if "num_choices" not in batch:
            return rows
        counts = batch["num_choices"].tolist()
        return [row[:count] for row, count in zip(rows, counts, strict=True)]

    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Predict the number of the choice with the greatest logit (the first of equals), and the
        softmax over all choices.
        """
        predictions = []
        for example, logits in zip(encoded.split.examples, outputs, strict=True):
            probabilities = softmax(logits.astype(np.float64)).tolist()
            predictions.append(
                Prediction(idx=example.idx, value=int(logits.argmax()), probabilities=probabilities)
            )
        return predictions

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the task's metrics over the numbers of the choices."""
        gold = [example.label for example in examples]
        return compute(self.task.metrics, [prediction.value for prediction in predictions], gold)
