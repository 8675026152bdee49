r"""Fine-tune with the stock Trainer of transformers, as recipes/finetune.py does.

    python benchmarks/finetune_stock.py --config recipes/configs/finetune/glue.yaml --task mrpc \
        --model_name_or_path M \
        --data_dir DATA --output_dir runs/mrpc_stock

The baseline of benchmarks/compare_with_stock.py: the same weights, the same inputs. Flags as for
recipes/finetune.py; the model is measured and not saved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError, run_cli, saving
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    TaskArguments,
    TeachingArguments,
    check_access,
)
from bert_recipes.finetuning.kind import EncodedSplit, Prediction
from bert_recipes.finetuning.order import training_order
from bert_recipes.finetuning.run import FineTuningRun, describe_data, files_read, prepare_run
from bert_recipes.reports.page import finetuning_table
from bert_recipes.run_folder import CONFIG_FILE, RESULTS_FILE, TASK_FILE
from bert_recipes.settings import option
from bert_recipes.tasks.task_file import write_task_file
from bert_recipes.training.launch import check_launch, start_logging
from bert_recipes.training.resume import lock_output_dir, prepare_output_dir
from bert_recipes.training.run import results_text
from bert_recipes.training.speed import describe_machine, peak_memory_mb


# What both sides share; everything else is the stock default.
_SHARED = (
    "output_dir",
    "seed",
    "use_cpu",
    "bf16",
    "fp16",
    "disable_tqdm",
    "logging_steps",
    "dataloader_num_workers",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_grad_norm",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
)
COLLATORS: dict[str, Any] = {
    "token_classification": DataCollatorForTokenClassification,
    "multiple_choice": DataCollatorForMultipleChoice,
}


@dataclass
class StockArguments:
    """Settings of the stock side alone."""

    same_batches: bool = option(False, "train on the batches of recipes/finetune.py")


def check_stock_has(optimizer: str, schedule: str) -> None:
    """Refuse an optimizer or a schedule that the stock Trainer does not have."""
    if optimizer not in ("adamw", "trainer") or schedule != "trainer":
        raise InputError(
            f"optimizer is {optimizer}, schedule {schedule}; stock has --optimizer adamw "
            "--schedule trainer"
        )


class StockTrainer(Trainer):
    """`Trainer` as it comes, with the stock order of like lengths for every kind of feature.

    Only a `datasets.Dataset` can tell the stock Trainer its lengths, and what it finds out itself
    is the number of choices where an example has several.
    """

    def __init__(self, lengths: np.ndarray, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lengths = lengths
        # Stock heads ignore num_items_in_batch: without this the loss is multiplied by the
        # micro-batches of a step.
        self.model_accepts_loss_kwargs = False

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthGroupedSampler(batch, lengths=self.lengths.tolist())


def make_stock_trainer(
    run: FineTuningRun, args: FineTuningArguments, *, max_steps: int, same_batches: bool = False
) -> StockTrainer:
    """Make a stock Trainer with a prepared run's model, features and settings, and stock's loss.

    Args:
        run: Of `prepare_run`.
        args: Its settings.
        max_steps: What the user gave, -1 for none; `prepare_run` turns epochs into steps.
        same_batches: Serve the batches of `training_order` and not the stock ones.
    """
    check_stock_has(args.optimizer, args.schedule)
    if args.world_size > 1:
        raise InputError(
            f"{args.world_size} processes; both sides are compared in one process each"
        )
    trainer, strategy = run.trainer, args.train_sampling_strategy
    train = trainer.train_dataset
    features: Sequence[Any] = [dict(train[number]) for number in range(len(train))]
    if same_batches:
        order = training_order(
            train.lengths,
            num_steps=args.max_steps,
            global_batch=trainer.global_batch_size,
            seed=args.seed,
            strategy=strategy,
        )
        features = [features[number] for number in order]
        strategy = "sequential"
    stock_args = TrainingArguments(
        **{name: getattr(args, name) for name in _SHARED},
        max_steps=max_steps,
        optim="adamw_torch_fused",
        train_sampling_strategy=strategy,
        save_strategy="no",
        report_to="none",
    )
    # Ours may have chosen another implementation of the attention for this machine.
    trainer.model.set_attn_implementation("sdpa")
    collator = COLLATORS.get(run.task.kind, DataCollatorWithPadding)
    return StockTrainer(
        train.lengths,
        model=trainer.model,
        args=stock_args,
        data_collator=collator(trainer.processing_class),
        train_dataset=features,
        processing_class=trainer.processing_class,
    )


def train_stock(trainer: StockTrainer) -> tuple[float, int]:
    """Train; return the seconds, measured as `run_training` measures ours, and the steps."""
    start = time.perf_counter()
    trainer.train()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - start, 1), trainer.state.global_step


def evaluate_stock(run: FineTuningRun, trainer: StockTrainer) -> dict[str, float]:
    """Return figures on the validation splits by stock `predict`, with ours' metrics and names."""
    start = time.perf_counter()
    metrics: dict[str, float] = {}
    for name, encoded in run.trainer.eval_dataset.items():
        predictions = predict_stock(run, trainer, encoded)
        figures = run.trainer.kind.score(encoded.split.examples, predictions)
        for figure, value in figures.items():
            metrics[f"eval_{name}_{figure}" if name else f"eval_{figure}"] = value
    metrics["eval_seconds"] = round(time.perf_counter() - start, 2)
    return metrics


def predict_stock(
    run: FineTuningRun, trainer: StockTrainer, encoded: EncodedSplit
) -> list[Prediction]:
    """Predict each example by stock `predict` and our decoding."""
    # With batches of like length `predict` would give its outputs in another order than that of the
    # rows.
    trainer.args.train_sampling_strategy = "sequential"
    features = [dict(encoded[number]) for number in range(len(encoded))]
    outputs = trainer.predict(features).predictions
    return run.trainer.kind.decode(encoded, rows_of(outputs, encoded.lengths))


def rows_of(outputs: Any, lengths: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of each example without those of pads.

    Args:
        outputs: Float (N, C), (N, S, C), or (N, S) for start and for end, padded to the longest
            of all.
        lengths: Tokens of each example.
    """
    rows = []
    if isinstance(outputs, tuple):
        for row, length in zip(np.stack(outputs, axis=-1), lengths, strict=True):
            rows.append(np.ascontiguousarray(row[:length].T))
        return rows
    if outputs.ndim == 2:
        return list(outputs)
    return [row[:length] for row, length in zip(outputs, lengths, strict=True)]


def main() -> None:
    """Prepare the run as ours, then train and measure it with stock classes."""
    settings, args, stock = parse_arguments(
        TaskArguments, FineTuningArguments, StockArguments, check_first=check_access
    )
    start_logging(args)
    check_launch(args)
    if not args.has_output_dir:
        args.output_dir = f"runs/{settings.loaded_task.name}_stock"

    # 1. Task, data, checkpoint and head as for recipes/finetune.py
    max_steps = args.max_steps
    run = prepare_run(settings, args)
    args.resume = "no"  # stock checkpoints are not ours to go on from
    lock_output_dir(args)
    sources = files_read(settings, TeachingArguments())
    prepare_output_dir(args, (settings, args, stock), checkpoint=None, sources=sources)
    trainer = make_stock_trainer(
        run,
        args,
        max_steps=max_steps,
        same_batches=stock.same_batches,
    )
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    save_config(folder / CONFIG_FILE, settings, args, stock)

    # 2. Training and figures
    seconds, steps = train_stock(trainer)
    results = {
        **describe_data(run),
        "train_steps": steps,
        "train_seconds": seconds,
        **evaluate_stock(run, trainer),
        "peak_memory_mb": round(peak_memory_mb(args.device), 1),
        "machine": describe_machine(args.device),
        "date": time.strftime("%Y-%m-%d"),
    }

    with saving(folder):
        for name, encoded in run.encoded_tests.items():  # --do_predict
            predictions = predict_stock(run, trainer, encoded)
            run.trainer.kind.write(folder, name, encoded.split.examples, predictions)
        trainer.save_state()
        (folder / RESULTS_FILE).write_text(results_text(results), encoding="utf-8")
        write_task_file(folder / TASK_FILE, run.task)

    print(finetuning_table(results))
    logging.getLogger("finetune_stock").info("%s: %s", RESULTS_FILE, folder)


if __name__ == "__main__":
    run_cli(main)
