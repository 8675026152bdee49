"""Fine-tuning with `transformers.Trainer` as it comes, on the features and from the weights of our own run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import (
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from bert_recipes.data.order import training_order
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments
from bert_recipes.finetuning.kind import EncodedSplit, Prediction
from bert_recipes.finetuning.run import FineTuningRun
from stock.plan import check_stock_has


# What both sides share; everything else is the stock default.
_SHARED = (
    *("output_dir", "seed", "use_cpu", "bf16", "fp16", "disable_tqdm", "logging_steps", "dataloader_num_workers"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("num_train_epochs", "learning_rate", "lr_scheduler_type", "warmup_steps", "max_grad_norm"),
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
)


class StockTrainer(Trainer):
    """`Trainer` as it comes, with the stock order of like lengths for every kind of feature.

    Only a `datasets.Dataset` can tell the stock Trainer its lengths, and what it finds out itself is the number of choices
    where an example has several.

    Args:
        lengths: Positions of each training feature.
        kwargs: Everything that `Trainer` takes.
    """

    def __init__(self, lengths: np.ndarray, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lengths = lengths
        # Stock heads ignore num_items_in_batch: without this the loss is multiplied by the micro-batches of a step.
        self.model_accepts_loss_kwargs = False

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthGroupedSampler(batch, lengths=self.lengths.tolist())


def make_stock_trainer(
    run: FineTuningRun, args: FineTuningArguments, *, max_steps: int, same_batches: bool = False
) -> StockTrainer:
    """A stock Trainer with a run's model, its features, its settings and the stock loss.

    Args:
        run: Prepared by `prepare_run`; its own Trainer is not to be used for training any more.
        args: The run's.
        max_steps: What the user gave, -1 for none; `prepare_run` turns epochs into steps.
        same_batches: Serve the batches of `training_order` and not the stock ones.
    """
    check_stock_has(args.optimizer, args.schedule)
    if args.world_size > 1:
        raise InputError(f"{args.world_size} processes; both sides are compared in one process each")
    train = run.trainer.train_dataset
    features: Sequence[Any] = [dict(train[number]) for number in range(len(train))]
    strategy = args.train_sampling_strategy
    if same_batches:
        batch = run.trainer.global_batch_size
        order = training_order(
            train.lengths, num_steps=args.max_steps, global_batch=batch, seed=args.seed, strategy=strategy
        )
        features, strategy = [features[number] for number in order], "sequential"
    values = {name: getattr(args, name) for name in _SHARED}
    stock_args = TrainingArguments(
        **(values | {"max_steps": max_steps}),
        optim="adamw_torch_fused",
        train_sampling_strategy=strategy,
        save_strategy="no",
        report_to="none",
    )
    # Ours may have chosen another implementation of the attention for this machine.
    run.trainer.model.set_attn_implementation("sdpa")
    return StockTrainer(
        train.lengths,
        model=run.trainer.model,
        args=stock_args,
        data_collator=_collator(run),
        train_dataset=features,
        processing_class=run.trainer.processing_class,
    )


def _collator(run: FineTuningRun) -> Any:
    """What stock examples pad their batches with."""
    classes: Mapping[str, Any] = {
        "token_classification": DataCollatorForTokenClassification,
        "multiple_choice": DataCollatorForMultipleChoice,
    }
    return classes.get(run.task.kind, DataCollatorWithPadding)(run.trainer.processing_class)


def evaluate_stock(run: FineTuningRun, trainer: StockTrainer) -> dict[str, float]:
    """Figures on the validation splits by stock `predict` and our metrics, named as ours are.

    Args:
        run: Gives splits, decoding and metrics.
        trainer: Trained.
    """
    start = time.perf_counter()
    metrics: dict[str, float] = {}
    for name, encoded in run.trainer.eval_dataset.items():
        prefix = f"eval_{name}_" if name else "eval_"
        figures = run.trainer.kind.score(encoded.split.examples, predict_stock(run, trainer, encoded))
        metrics |= {f"{prefix}{key}": value for key, value in figures.items()}
    metrics["eval_seconds"] = round(time.perf_counter() - start, 2)
    return metrics


def predict_stock(run: FineTuningRun, trainer: StockTrainer, encoded: EncodedSplit) -> list[Prediction]:
    """Predictions by stock `predict` and our decoding, one for each example."""
    # With batches of like length `predict` would give its outputs in another order than that of the rows.
    trainer.args.train_sampling_strategy = "sequential"
    output = trainer.predict([dict(encoded[number]) for number in range(len(encoded))])
    return run.trainer.kind.decode(encoded, split_predictions(output.predictions, encoded))


def split_predictions(predictions: Any, encoded: EncodedSplit) -> list[np.ndarray]:
    """Arrays of `Trainer.predict`, padded to the longest of all -> the kind's output array of each feature.

    Args:
        predictions: float (N, C), (N, S, C), or (N, S) for start and for end.
        encoded: The split.
    """
    if isinstance(predictions, tuple):
        predictions = np.stack(predictions, axis=-1)
        pairs = zip(predictions, encoded.lengths, strict=True)
        return [np.ascontiguousarray(row[:length].T) for row, length in pairs]
    if predictions.ndim == 2:
        return list(predictions)
    return [row[:length] for row, length in zip(predictions, encoded.lengths, strict=True)]


def train_stock(trainer: StockTrainer) -> tuple[float, int]:
    """Train; seconds that it took, measured as `run_training` measures ours, and optimiser steps."""
    start = time.perf_counter()
    trainer.train()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - start, 1), trainer.state.global_step
