"""The Trainer of this project: exact losses over the global batch, one data order, held-out evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers.trainer_utils import EvalLoopOutput

from bert_recipes.arguments import PreTrainingArguments
from bert_recipes.base_trainer import GlobalBatchTrainer
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.sampler import PreTrainingSampler
from bert_recipes.evaluation import EVALUATION_SEED, EvaluationSampler, PreTrainingSums, unigram_log_probs
from bert_recipes.models.bert import IGNORE_INDEX, BertForPreTraining


class BertTrainer(GlobalBatchTrainer):
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

    # Data

    def get_train_dataloader(self) -> DataLoader:
        """The whole run as one pass over `PreTrainingSampler`."""
        args = self.args
        self._pairs_an_epoch = self.train_dataset.num_pairs(0)
        if args.max_steps < 0:
            args.max_steps = self._steps_of_epochs(args.num_train_epochs)
        return self.one_pass_loader(
            PreTrainingSampler(self.train_dataset, args.max_steps * self.global_batch_size, args.seed)
        )

    def _steps_of_epochs(self, num_epochs: float) -> int:
        """Whole optimiser steps in the pairs of that many epochs; at least one."""
        whole = int(num_epochs)
        pairs = sum(self.train_dataset.num_pairs(epoch) for epoch in range(whole))
        if num_epochs > whole:
            pairs += math.floor((num_epochs - whole) * self.train_dataset.num_pairs(whole))
        return max(1, pairs // self.global_batch_size)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """This process's share of the held-out pairs; not sharded again by Accelerate."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        sampler = EvaluationSampler(
            dataset, self.max_eval_pairs, self.args.eval_batch_size, self.args.process_index, self.args.world_size
        )
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=self.eval_collator)

    # Loss

    def count_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """int64 (2,): predicted tokens and pairs."""
        masked = (batch["labels"] != IGNORE_INDEX).sum()
        return torch.stack([masked, masked.new_tensor(len(batch["input_ids"]))])

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

    # Schedule

    def _schedule_part(self, num_training_steps: int) -> tuple[int, int]:
        start = self.args.schedule_start_step
        return start, self.args.schedule_total_steps or start + num_training_steps

    # Logging

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add both losses and the rate of real tokens (no padding, all processes) to the training log."""
        if "loss" in logs:
            logs.update(self.meter.read(self.accelerator))
        if hasattr(self, "_pairs_an_epoch"):
            # One pass of the loader is the whole run; what a reader wants to know is the pass over the data.
            self.state.epoch = self.state.global_step * self.global_batch_size / self._pairs_an_epoch
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
