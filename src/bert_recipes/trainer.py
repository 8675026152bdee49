"""The Trainer of this project: exact losses over the global batch, one data order, held-out evaluation."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from bert_recipes.arguments import PreTrainingArguments
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.sampler import PreTrainingSampler
from bert_recipes.errors import InputError, saving
from bert_recipes.evaluation import EVALUATION_SEED, EvaluationSampler, PreTrainingSums, unigram_log_probs
from bert_recipes.meter import StepMeter
from bert_recipes.models.bert import IGNORE_INDEX, BertForPreTraining
from bert_recipes.optimization import create_bert_schedule, create_optimizer


logger = logging.getLogger(__name__)


class BertTrainer(Trainer):
    """`Trainer` for `BertForPreTraining`.

    What it changes: the MLM loss is the mean over all predicted tokens and the NSP loss the mean over all pairs of the
    *global* batch, all micro-batches of all processes (stock BERT heads scale with both); step s trains on samples
    [s * G, (s + 1) * G) of one fixed order, however the global batch G is split; both losses and the rate of real tokens
    are logged; evaluation is exact over held-out pairs.

    Args:
        args: Settings.
        train_dataset: `PreTrainingDataset` or `InstanceDataset`.
        eval_dataset: The same kind of data set over held-out documents.
        data_collator: Pads and masks.
        unigram_counts: int64 (V,), token counts of the training split, for the unigram yardstick.
        max_eval_pairs: Held-out pairs an evaluation uses.
        kwargs: Everything else that `Trainer` takes.
    """

    args: PreTrainingArguments
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: BertForPreTraining,
        args: PreTrainingArguments,
        data_collator: DataCollatorForPreTraining,
        *,
        unigram_counts: np.ndarray | None = None,
        max_eval_pairs: int = 2000,
        **kwargs: Any,
    ) -> None:
        """Set the Trainer up."""
        super().__init__(model=model, args=args, data_collator=data_collator, **kwargs)
        self.eval_collator = replace(data_collator, seed=EVALUATION_SEED)
        self.unigram = None if unigram_counts is None else unigram_log_probs(unigram_counts)
        self.max_eval_pairs = max_eval_pairs
        self.meter = StepMeter(args.device)

    # Data

    def get_train_dataloader(self) -> DataLoader:
        """The whole run as one pass over `PreTrainingSampler`."""
        args = self.args
        self._global_batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._pairs_an_epoch = self.train_dataset.num_pairs(0)
        if args.max_steps < 0:
            args.max_steps = self._steps_of_epochs(args.num_train_epochs)
        loader = DataLoader(
            self.train_dataset,
            batch_size=args.train_batch_size,
            sampler=PreTrainingSampler(self.train_dataset, args.max_steps * self._global_batch, args.seed),
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            drop_last=True,
        )
        return self.accelerator.prepare(loader)

    def _steps_of_epochs(self, num_epochs: float) -> int:
        """Whole optimiser steps in the pairs of that many epochs; at least one."""
        whole = int(num_epochs)
        pairs = sum(self.train_dataset.num_pairs(epoch) for epoch in range(whole))
        if num_epochs > whole:
            pairs += math.floor((num_epochs - whole) * self.train_dataset.num_pairs(whole))
        return max(1, pairs // self._global_batch)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """This process's share of the held-out pairs; not sharded again by Accelerate."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        sampler = EvaluationSampler(
            dataset, self.max_eval_pairs, self.args.eval_batch_size, self.args.process_index, self.args.world_size
        )
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=self.eval_collator)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; the time in here is time that the model waits for data."""
        start = time.perf_counter()
        samples = super().get_batch_samples(*args, **kwargs)
        self.meter.count_wait(time.perf_counter() - start)
        return samples

    # Loss

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | None:
        """float64 (2,): predicted tokens and pairs of the coming step over all micro-batches and processes."""
        if not batch_samples:
            return None
        start = time.perf_counter()
        counts = torch.zeros(3, dtype=torch.float64, device=device)
        for batch in batch_samples:
            masked = (batch["labels"] != IGNORE_INDEX).sum()
            pairs = torch.tensor(len(batch["input_ids"]))
            counts += torch.stack([part.to(counts) for part in (masked, pairs, batch["attention_mask"].sum())])
        if self.args.world_size > 1:
            counts = self.accelerator.reduce(counts, reduction="sum")
        self.meter.count_step(counts[2])
        self.meter.count_wait(start - time.perf_counter())  # counting is called while fetching, and is no waiting
        return counts[:2].clamp(min=1.0)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> Any:
        """Loss of one micro-batch; those of a step add up to the loss of the global batch.

        Args:
            model: The wrapped model.
            inputs: The collator's batch.
            return_outputs: Also return the model's output.
            num_items_in_batch: float64 (2,) of `_get_num_items_in_batch`; None outside training.
        """
        if num_items_in_batch is None:
            output = model(**inputs)
            return (output.loss, output) if return_outputs else output.loss
        masked, pairs = num_items_in_batch.float()
        output = model(**inputs, num_items_in_batch=masked, num_pairs_in_batch=pairs)
        # Processes average their gradients, our parts are to be added up.
        scale = self.args.world_size
        self.meter.add_losses(output.mlm_loss, output.nsp_loss, scale)
        loss = output.loss * scale
        return (loss, output) if return_outputs else loss

    # Optimiser

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Build the optimiser that `args.optimizer` names."""
        if self.args.optimizer == "trainer":
            return super().create_optimizer(model)
        if self.optimizer is None:
            self.optimizer = create_optimizer(
                self.args.optimizer,
                self.model if model is None else model,
                learning_rate=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                epsilon=self.args.adam_epsilon,
                weight_decay=self.args.weight_decay,
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """Build the schedule that `args.schedule` names."""
        if self.args.schedule == "trainer":
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            start = self.args.schedule_start_step
            total = self.args.schedule_total_steps or start + num_training_steps
            if start + num_training_steps > total:
                raise InputError(
                    f"schedule_start_step {start} + {num_training_steps} steps is more than schedule_total_steps {total}: the "
                    "rest would be trained at rate 0; raise it or lower max_steps"
                )
            warmup = self.args.get_warmup_steps(total)
            if warmup >= start + num_training_steps:
                logger.warning(
                    "warmup_steps %d is not shorter than the run of %d steps: the learning rate will not reach its peak; "
                    "a tenth of the steps is usual",
                    warmup,
                    num_training_steps,
                )
            self.lr_scheduler = create_bert_schedule(optimizer or self.optimizer, warmup, total, start)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # Saving

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """As stock; what cannot be written is said in one line."""
        with saving(self.args.output_dir):
            super()._save_checkpoint(*args, **kwargs)

    # Logging

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """As stock; time spent in here is no training time."""
        start = time.perf_counter()
        self.meter.start_clock()
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.meter.leave_out(start)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add both losses and the rate of real tokens (no padding, all processes) to the training log."""
        if "loss" in logs:
            logs.update(self.meter.read(self.accelerator))
        if hasattr(self, "_global_batch"):
            # One pass of the loader is the whole run; what a reader wants to know is the pass over the data.
            self.state.epoch = self.state.global_step * self._global_batch / self._pairs_an_epoch
        super().log(logs, start_time)

    # Evaluation

    @torch.no_grad()
    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Exact means over all held-out pairs of all processes (see `PreTrainingSums.metrics`)."""
        model = self.model
        was_training = model.training
        sampler = cast(EvaluationSampler, dataloader.batch_sampler)
        model.eval()
        sums = PreTrainingSums(self.args.device, self.unigram)
        batches = zip(dataloader, sampler.is_filler, strict=True)
        for batch, is_filler in tqdm(
            batches, total=len(dataloader), desc=description, leave=False, disable=self._quiet
        ):
            batch = self._prepare_inputs(batch)
            with self.accelerator.autocast():
                output = model(**batch)
            if not is_filler:
                sums.add(output, batch)
        model.train(was_training)
        if self.args.world_size > 1:
            sums.values = self.accelerator.reduce(sums.values, reduction="sum")
        metrics = sums.metrics(metric_key_prefix)
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=sampler.num_pairs)

    @property
    def _quiet(self) -> bool:
        return self.args.disable_tqdm or not self.is_world_process_zero()
