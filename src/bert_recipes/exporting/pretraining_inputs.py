"""Held-out pairs of a store, or lines of text, as what an export is compared on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.errors import InputError
from bert_recipes.evaluation import EVALUATION_SEED, EvaluationSampler, PreTrainingSums
from bert_recipes.exporting.runners import Batch, Output
from bert_recipes.models.bert import IGNORE_INDEX, BertForPreTrainingOutput
from bert_recipes.tasks.files import read_text_lines
from bert_recipes.tokenization import OriginalBertTokenizer


class TextLines:
    """Lines of a text file as single segments, for `PretrainingInputs`.

    Args:
        path: UTF-8; blank lines are passed by.
        tokenizer: Cuts them.
        max_seq_length: Positions of an input; what does not fit is cut off.
        max_lines: Lines that are read.

    Raises:
        InputError: No such file, not UTF-8, or no text in it.
    """

    def __init__(self, path: Path, tokenizer: OriginalBertTokenizer, max_seq_length: int, max_lines: int) -> None:
        if not path.is_file():
            raise InputError(f"--input_file {path}: no such file")
        self.rows: list[list[int]] = []
        for line in read_text_lines(path):
            pieces = tokenizer.encode_ids(line)[: max_seq_length - 2]
            if pieces:
                self.rows.append([int(tokenizer.cls_token_id), *pieces, int(tokenizer.sep_token_id)])
            if len(self.rows) == max_lines:
                break
        if not self.rows:
            raise InputError(f"--input_file {path}: no text in it")

    def num_pairs(self, epoch: int) -> int:
        """Number of lines."""
        return len(self.rows)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        """An input; the key decides its mask."""
        ids = self.rows[key[1]]
        return {"input_ids": ids, "token_type_ids": [0] * len(ids), "key": key}


class PretrainingInputs:
    """See `RealInputs` in comparison.py; masks are those of every evaluation.

    Args:
        dataset: Held-out pairs, or `TextLines`.
        collator: Pads and masks.
        max_pairs: Pairs that are used.
        max_seq_length: Positions of the longest.
        source: Where they are from.
        unit: "pairs" or "texts".
    """

    score = "mlm_accuracy"
    points = 0.01

    def __init__(
        self,
        dataset: Any,
        collator: DataCollatorForPreTraining,
        max_pairs: int,
        max_seq_length: int,
        source: str,
        unit: str,
    ) -> None:
        self._dataset, self._max_pairs = dataset, max_pairs
        self._collator = replace(collator, seed=EVALUATION_SEED)
        self.max_seq_length, self.source, self.unit = max_seq_length, source, unit
        self.num_examples = self._sampler(1).num_pairs

    def _sampler(self, size: int) -> EvaluationSampler:
        return EvaluationSampler(self._dataset, self._max_pairs, size, 0, 1)

    def batches(self, size: int) -> Iterator[tuple[None, Batch]]:
        """Yield masked batches with their labels."""
        for keys in self._sampler(size):
            yield None, self._collator([self._dataset[key] for key in keys])

    def new_scores(self) -> PretrainingScores:
        """For one model."""
        return PretrainingScores()


class PretrainingScores:
    """See `Scores` in comparison.py; sums alone are kept: logits over a vocabulary are large."""

    def __init__(self) -> None:
        self._sums = PreTrainingSums(torch.device("cpu"))
        self._decided: list[int] = []

    def add(self, place: None, batch: Batch, output: Output) -> None:
        """Add losses and hits at the masked tokens, and of the pairs."""
        masked = batch["labels"] != IGNORE_INDEX
        logits, targets = output["prediction_logits"][masked], batch["labels"][masked]
        seen = BertForPreTrainingOutput(mlm_loss=_mean_loss(logits, targets), prediction_logits=logits)
        self._decided += logits.argmax(-1).tolist()
        if "next_sentence_label" in batch:
            pairs = output["seq_relationship_logits"]
            seen.nsp_loss, seen.seq_relationship_logits = _mean_loss(pairs, batch["next_sentence_label"]), pairs
            self._decided += pairs.argmax(-1).tolist()
        self._sums.add(seen, dict(batch))

    def figures(self) -> dict[str, float]:
        """Losses and accuracies of both tasks, without what they were counted over."""
        figures = self._sums.metrics("")
        wanted: Sequence[str] = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
        return {name: figures[f"_{name}"] for name in wanted if f"_{name}" in figures}

    def decisions(self) -> list[int]:
        """The piece put in for each masked token, and the verdict on each pair."""
        return self._decided


def _mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, targets, reduction="sum") / max(targets.numel(), 1)
