"""What a pre-training run knows and its files do not: counts over its training pairs, and what it says of held-out ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.data.sampler import PreTrainingOrder, epoch_order
from bert_recipes.evaluation import EVALUATION_SEED
from bert_recipes.monitoring import describe_progress
from bert_recipes.reports.held_out import EXAMPLE_PAIRS, look_at_pairs


if TYPE_CHECKING:
    from bert_recipes.pretraining import PreTrainingData
    from bert_recipes.trainer import BertTrainer, TrainingPhase


# Enough for shares to a percent, and read in a second from a store of any size.
SAMPLED_PAIRS = 2048
NUM_BARS = 16


def describe_run(trainer: BertTrainer, data: PreTrainingData) -> dict[str, Any]:
    """Sizes of a run, for the log and the report."""
    args = trainer.args
    return {
        "parameters": trainer.model.num_parameters(),
        "vocabulary": len(data.tokenizer),
        "pairs_in_epoch_0": data.train.num_pairs(0),
        "global_train_batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    }


def gather_pretraining(
    trainer: BertTrainer, data: PreTrainingData, results: dict[str, Any], description: dict[str, Any]
) -> dict[str, Any]:
    """Everything that report.json holds; called by all processes, for where they share the weights out none can compute alone.

    Args:
        trainer: After training.
        data: Of the first phase.
        results: all_results.json.
        description: Of `describe_run`.

    Returns:
        JSON values. The counts over training pairs are the main process' alone.
    """
    facts: dict[str, Any] = {
        "kind": "pretraining",
        "run": description,
        "identity": dict(data.identity),
        "held_out": _held_out(trainer, data.tokenizer),
    }
    if trainer.is_world_process_zero():
        steps = trainer.state.max_steps
        facts["remark"] = describe_progress(results, steps, steps, 0)
        facts["corpus"] = _describe_corpus(data)
        facts["phases"] = [count_phase(trainer, part) for part in trainer.phases]
    return facts


def _held_out(trainer: BertTrainer, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any] | None:
    """What the model says of the first pairs that an evaluation measures."""
    dataset: Any = trainer.eval_dataset
    if dataset is None:
        return None
    order = epoch_order(EVALUATION_SEED, 0, dataset.num_pairs(0))[: min(EXAMPLE_PAIRS, trainer.max_eval_pairs)]
    features = [dataset[(0, index)] for index in order.tolist()]
    return look_at_pairs(trainer.model, tokenizer, trainer.eval_collator(features))


def _describe_corpus(data: PreTrainingData) -> dict[str, dict[str, int]]:
    """Documents, sentences and tokens of the store's parts; of instance files their number alone."""
    parts = {"training": data.train, "held out": data.validation}
    return {
        name: _describe_part(getattr(part, "store", None), part.num_pairs(0))
        for name, part in parts.items()
        if part is not None
    }


def _describe_part(store: Any, num_pairs: int) -> dict[str, int]:
    counts = (
        {} if store is None else {n: int(getattr(store, f"num_{n}")) for n in ("documents", "sentences", "tokens")}
    )
    return {**counts, "pairs in epoch 0": num_pairs}


def count_phase(trainer: BertTrainer, part: TrainingPhase) -> dict[str, Any]:
    """Count over a sample of the micro-batches that a phase was trained on: lengths, pads, what was masked, next sentences.

    The sample lies at equal distances over the phase's last pass over the data, whose table of pairs is at hand.

    Args:
        trainer: After training.
        part: One of its phases.
    """
    phase, dataset, collator = part.phase, part.train_dataset, part.data_collator
    end = phase.end_step if phase.end_step > phase.first_step else trainer.state.max_steps
    end = min(end, trainer.state.global_step)  # what was trained on, also where something ended the run before
    batch = phase.global_batch
    micro, _ = trainer.args.split_batch(batch, phase.micro_batch)
    samples = (end - phase.first_step) * batch
    order = PreTrainingOrder(dataset, samples, trainer.args.seed)
    chosen = list(_sampled_batches(samples, dataset.num_pairs(_last_epoch(dataset, samples)), micro))
    longest = int(dataset.max_seq_length)
    counts = PairCounts(longest, trainer.processing_class.mask_token_id)
    for begin in chosen:
        counts.add(collator([dataset[key] for key in order.keys(begin, begin + micro)]))
    return {
        "steps": [phase.first_step, end],
        "max_seq_length": longest,
        "global_batch": batch,
        "micro_batch": micro,
        "trained_pairs": samples,
        "sampled_batches": len(chosen),
        "sampled_from": samples - (min(chosen) if chosen else 0),
        **counts.as_json(),
    }


def _last_epoch(dataset: Any, samples: int) -> int:
    epoch, before = 0, dataset.num_pairs(0)
    while before < samples and dataset.num_pairs(epoch) > 0:
        epoch += 1
        before += dataset.num_pairs(epoch)
    return epoch


def _sampled_batches(samples: int, an_epoch: int, micro: int) -> Iterator[int]:
    """First samples of whole micro-batches, rising, at equal distances over the last `an_epoch` samples."""
    first, last = -(-max(samples - an_epoch, 0) // micro), samples // micro
    number = min(max(SAMPLED_PAIRS // micro, 1), last - first)
    for place in np.linspace(first, last - 1, max(number, 0)).round().astype(np.int64).tolist():
        yield place * micro


class PairCounts:
    """Counts over batches of the collator.

    Args:
        longest: Tokens of the longest pair.
        mask_id: Id of [MASK].
    """

    def __init__(self, longest: int, mask_id: int) -> None:
        self.mask_id = mask_id
        width = -(-longest // NUM_BARS)
        self.edges = [width * place for place in range(-(-longest // width) + 1)]
        self.lengths = np.zeros(len(self.edges) - 1, dtype=np.int64)
        self.sums: dict[str, int] = dict.fromkeys(
            ("pairs", "positions", "tokens", "predicted", "masked", "kept", "next", "random_next"), 0
        )

    def add(self, batch: dict[str, torch.Tensor]) -> None:
        """Add a batch."""
        lengths = batch["attention_mask"].sum(dim=1).numpy()
        # A pair of exactly an edge's length belongs to the bar that ends there.
        self.lengths += np.histogram(lengths - 0.5, bins=self.edges)[0]
        predicted = batch["labels"] != IGNORE_INDEX
        seen, right = batch["input_ids"][predicted], batch["labels"][predicted]
        added = {
            "pairs": len(lengths),
            "positions": batch["input_ids"].numel(),
            "tokens": int(lengths.sum()),
            "predicted": int(predicted.sum()),
            "masked": int((seen == self.mask_id).sum()),
            "kept": int((seen == right).sum()),
        }
        if "next_sentence_label" in batch:
            random_next = int(batch["next_sentence_label"].sum())
            added |= {"next": len(lengths) - random_next, "random_next": random_next}
        for name, number in added.items():
            self.sums[name] += number

    def as_json(self) -> dict[str, Any]:
        """All counts, and the histogram of the lengths."""
        return {**self.sums, "length_edges": self.edges, "length_counts": self.lengths.tolist()}
