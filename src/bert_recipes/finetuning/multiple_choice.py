"""The right one of several endings: SWAG."""

from collections.abc import Mapping, Sequence
from typing import Any

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
from bert_recipes.tasks.examples import Split


class MultipleChoice(TaskKind):
    """Read each choice behind the context, and compare the choices' numbers by a softmax.

    An input is [CLS] context [SEP] choice [SEP].

    A batch of B examples with C choices is B * C inputs for the model. Where examples have fewer
    choices than others of their batch, inputs without text fill them up; `num_choices` then says
    how many count.

    Source: BERT, Devlin et al. 2019, section 4.4; the truncation is that of google-research/bert
    run_classifier.py.
    """

    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Return features whose input_ids and token_type_ids are lists of C lists.

        C is 2 or greater. The length of a feature is that of its longest choice.
        """
        tokenizer = self.tokenizer
        features: list[dict[str, Any]] = []
        lengths = []
        examples: Sequence[Any] = split.examples
        for example in examples:
            feature: dict[str, Any] = {"input_ids": [], "token_type_ids": []}
            # Without context the endings show what they give away by themselves.
            shows_context = self.settings.context != "none"
            context = tokenizer.encode_ids(example.context) if shows_context else []
            for choice in example.choices:
                ending = tokenizer.encode_ids(choice)
                text = join_texts(tokenizer, [*context], ending, self.settings.max_seq_length)
                feature["input_ids"].append(text["input_ids"])
                feature["token_type_ids"].append(text["token_type_ids"])
            if split.is_labelled:
                feature["labels"] = example.label
            features.append(feature)
            lengths.append(max(len(input_ids) for input_ids in feature["input_ids"]))
        return EncodedSplit(split, features, np.array(lengths, np.int64))

    def pad(
        self, features: Sequence[Feature], label_pads: Mapping[str, int] | None = None
    ) -> Batch:
        """Pad all choices to the longest of the batch, and to the most choices.

        Returns:
            int64 (B, C, S) input_ids, token_type_ids and attention_mask; where examples differ,
            num_choices, int64 (B,).
        """
        counts = [len(feature["input_ids"]) for feature in features]
        most = max(counts)
        filling = join_texts(self.tokenizer, [], None, self.settings.max_seq_length)
        choices: list[Feature] = []
        for feature, count in zip(features, counts, strict=True):
            for number in range(count):
                choices.append({key: feature[key][number] for key in filling})
            choices += [filling] * (most - count)
        batch = {}
        for key, value in super().pad(choices).items():
            batch[key] = value.unflatten(0, (len(features), most))
        if min(counts) < most:
            batch["num_choices"] = torch.tensor(counts)
        return batch

    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of (B, C) logits over each example's own choices.

        It is summed over the examples.
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
        """Predict the number of the choice with the greatest logit, the first of equals.

        Its probabilities are the softmax over all choices.
        """
        predictions = []
        for example, logits in zip(encoded.split.examples, outputs, strict=True):
            probabilities = softmax(logits.astype(np.float64)).tolist()
            predictions.append(Prediction(example.idx, int(logits.argmax()), probabilities))
        return predictions

    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Return the task's metrics over the numbers of the choices."""
        labels = [example.label for example in examples]
        values = [prediction.value for prediction in predictions]
        return compute(self.task.metrics, values, labels)
