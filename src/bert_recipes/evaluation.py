"""How good a pre-training checkpoint is on held-out pairs, beside two yardsticks that need no model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Sampler

from bert_recipes.data.sampler import EpochedDataset, epoch_order
from bert_recipes.models.bert import IGNORE_INDEX, BertForPreTrainingOutput


# The held-out pairs and masks stay the same whatever the seed of the training, so that runs can be compared.
EVALUATION_SEED = 12345
# Settings of the data that decide what the held-out pairs and their masks are.
MEASURED_WITH = (
    *("max_seq_length", "short_seq_prob", "mlm_probability", "max_predictions_per_seq", "max_eval_pairs"),
    *("mask_rate", "keep_rate", "random_rate", "whole_word", "selection"),
)


class EvaluationSampler(Sampler[tuple[int, int]]):
    """This process's share of the held-out pairs: the first `max_pairs` of a fixed shuffled order.

    Every process gets the same number of batches, so that collectives inside the model never hang; what is only there
    to fill up has `is_filler` True and must not be counted.

    Args:
        dataset: The held-out pairs.
        max_pairs: Pairs to use at most.
        batch_size: Pairs of a batch.
        rank, world_size: This process and their number.
    """

    def __init__(self, dataset: EpochedDataset, max_pairs: int, batch_size: int, rank: int, world_size: int) -> None:
        order = epoch_order(EVALUATION_SEED, 0, dataset.num_pairs(0))[:max_pairs]
        self.num_pairs = len(order)
        share = order[rank::world_size].tolist()
        longest = -(-self.num_pairs // world_size)
        self.num_batches = -(-longest // batch_size)
        batches = [share[start : start + batch_size] for start in range(0, len(share), batch_size)]
        self.is_filler = [False] * len(batches) + [True] * (self.num_batches - len(batches))
        self.batches = batches + [order[:1].tolist()] * (self.num_batches - len(batches))

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:  # type: ignore[override]
        for batch in self.batches:
            yield [(0, index) for index in batch]


def unigram_log_probs(counts: np.ndarray) -> torch.Tensor:
    """Log-probability of each token under add-one counts.

    Args:
        counts: int64 (V,), how often each token stands in the training split.

    Returns:
        float64 (V,), nats; sums to 1 in probability.
    """
    smoothed = counts.astype(np.float64) + 1.0
    return torch.from_numpy(np.log(smoothed / smoothed.sum()))


class PreTrainingSums:
    """Sums over held-out batches from which the metrics follow; the sums of several processes may be added.

    Args:
        device: Where the batches are.
        unigram: float64 (V,) of `unigram_log_probs`, or None without that yardstick.
    """

    NAMES = (
        "mlm_loss",
        "mlm_correct",
        "masked",
        "unigram_loss",
        "unigram_correct",
        "nsp_loss",
        "nsp_correct",
        "pairs",
        "random",
        "tokens",
    )

    def __init__(self, device: torch.device, unigram: torch.Tensor | None = None) -> None:
        self.values = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)
        self.unigram = None if unigram is None else unigram.to(device)

    def add(self, output: BertForPreTrainingOutput, batch: dict[str, torch.Tensor]) -> None:
        """Add one batch.

        Args:
            output: What the model gave for it, with labels and return_full_logits=False, losses being means over this batch.
            batch: The collator's batch.
        """
        assert output.mlm_loss is not None
        assert output.prediction_logits is not None
        targets = batch["labels"][batch["labels"] != IGNORE_INDEX]
        masked, pairs = targets.numel(), len(batch["input_ids"])
        zero = torch.zeros((), device=targets.device)
        parts = [
            output.mlm_loss.double() * masked,
            (output.prediction_logits.argmax(-1) == targets).sum(),
            torch.tensor(masked),
            zero if self.unigram is None else -self.unigram[targets].sum(),
            zero if self.unigram is None else (targets == self.unigram.argmax()).sum(),
        ]
        if "next_sentence_label" in batch:
            assert output.nsp_loss is not None
            assert output.seq_relationship_logits is not None
            labels = batch["next_sentence_label"]
            correct = (output.seq_relationship_logits.argmax(-1) == labels).sum()
            parts += [output.nsp_loss.double() * pairs, correct, torch.tensor(pairs), labels.sum()]
        else:
            parts += [zero, zero, zero, zero]
        parts.append(batch["attention_mask"].sum())
        self.values += torch.stack([part.to(self.values) for part in parts])

    def metrics(self, prefix: str = "eval") -> dict[str, float]:
        """Means in nats and shares in 0..1, with the yardsticks beside them.

        Returns:
            `{prefix}_loss`, `_mlm_loss`, `_mlm_accuracy`, `_perplexity`, `_unigram_loss`, `_unigram_accuracy` (of
            always saying the most frequent piece), `_nsp_loss`, `_nsp_accuracy`, `_majority_accuracy`, `_masked_tokens`,
            `_pairs`; what has no data is left out.
        """
        sums = dict(zip(self.NAMES, self.values.tolist(), strict=True))
        result: dict[str, float] = {}
        losses = []
        if sums["masked"]:
            losses.append(sums["mlm_loss"] / sums["masked"])
            result["mlm_loss"] = losses[-1]
            result["mlm_accuracy"] = sums["mlm_correct"] / sums["masked"]
            result["perplexity"] = math.exp(min(losses[-1], 700.0))  # exp overflows above 709
            if self.unigram is not None:
                result["unigram_loss"] = sums["unigram_loss"] / sums["masked"]
                result["unigram_accuracy"] = sums["unigram_correct"] / sums["masked"]
        if sums["pairs"]:
            losses.append(sums["nsp_loss"] / sums["pairs"])
            result["nsp_loss"] = losses[-1]
            result["nsp_accuracy"] = sums["nsp_correct"] / sums["pairs"]
            result["majority_accuracy"] = max(sums["random"], sums["pairs"] - sums["random"]) / sums["pairs"]
        result["loss"] = sum(losses)
        result["masked_tokens"], result["pairs"] = sums["masked"], sums["pairs"]
        return {f"{prefix}_{name}": value for name, value in result.items()}
