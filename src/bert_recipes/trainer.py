"""The Trainer of this project: exact losses over the global batch, one data order, held-out evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from bert_recipes.arguments import PreTrainingArguments
from bert_recipes.base_trainer import GlobalBatchTrainer
from bert_recipes.checkpointing import read_step
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.sampler import PreTrainingOrder
from bert_recipes.errors import InputError
from bert_recipes.evaluation import EVALUATION_SEED, EvaluationSampler, PreTrainingSums, unigram_log_probs
from bert_recipes.flops import Work, training_flops
from bert_recipes.models.bert import IGNORE_INDEX, BertForPreTraining
from bert_recipes.optimization import Schedule
from bert_recipes.phases import Phase


@dataclass(frozen=True)
class TrainingPhase:
    """A phase and its data.

    Attributes:
        phase: Its steps, batches and schedule.
        train_dataset, eval_dataset, data_collator: As `Trainer` takes them.
    """

    phase: Phase
    train_dataset: Any
    eval_dataset: Any
    data_collator: DataCollatorForPreTraining


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
        phases: The phases of the run, with their data; None: one, with the data given.
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
        phases: Sequence[TrainingPhase] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model=model, args=args, data_collator=data_collator, **kwargs)
        if phases is None:
            phase = Phase(0, args.max_steps, args.examples_a_step, args.per_device_train_batch_size, 0, None)
            phases = [TrainingPhase(phase, self.train_dataset, self.eval_dataset, data_collator)]
        self.phases = list(phases)
        self.identity["global batch"] = ", then ".join(str(part.phase.global_batch) for part in self.phases)
        self._check_batches()
        self._enter(self.phases[0])
        self.unigram = None if unigram_counts is None else unigram_log_probs(unigram_counts)
        self.max_eval_pairs = max_eval_pairs

    # Phases

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """As stock, one phase after the other: each goes on from the last checkpoint of the one before."""
        resumed = resume_from_checkpoint if isinstance(resume_from_checkpoint, str) else None
        done = 0 if resumed is None else read_step(Path(resumed))
        *before, last = self.phases
        for part in before:
            if done < part.phase.end_step:
                self._enter(part)
                super().train(resume_from_checkpoint=resumed, **kwargs)
                resumed = str(self._checkpoint_folder())
                self._let_go_of_deepspeed()
        self._enter(last)
        return super().train(resume_from_checkpoint=resumed, **kwargs)

    def _enter(self, part: TrainingPhase) -> None:
        """Take a phase's data and batches."""
        self._part, phase = part, part.phase
        self.train_dataset, self.eval_dataset = part.train_dataset, part.eval_dataset
        self.data_collator = part.data_collator
        self.eval_collator = replace(part.data_collator, seed=EVALUATION_SEED)
        micro, accumulation = self.args.split_batch(phase.global_batch, phase.micro_batch)
        self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps = micro, accumulation
        self._train_batch_size = self.args.train_batch_size

    def _let_go_of_deepspeed(self) -> None:
        """Its engine is one phase's: the Trainer makes a new one of the bare model only."""
        if self.deepspeed is not None:
            self.deepspeed.destroy()
            self.deepspeed, self.model_wrapped = None, self.model

    def _check_batches(self) -> None:
        """See before the first phase that the batches of all of them can be cut."""
        splits = [self.args.split_batch(part.phase.global_batch, part.phase.micro_batch) for part in self.phases]
        counts = [accumulation for _, accumulation in splits]
        if self.is_deepspeed_enabled and len(set(counts)) > 1:
            fitting = [max(1, micro * accumulation // max(counts)) for micro, accumulation in splits]
            total = self.phases[0].phase.global_batch
            raise InputError(
                f"phase2_per_device_train_batch_size: DeepSpeed takes the same number of micro-batches a step in both phases, here it "
                f"would be {' and then '.join(map(str, counts))}; give --global_train_batch_size {total}, "
                f"--per_device_train_batch_size {fitting[0]} and --phase2_per_device_train_batch_size {fitting[-1]}"
            )

    def _ends_here(self) -> bool:
        """A phase ends with a checkpoint, the next one begins with it."""
        return self._part is not self.phases[-1] and self.state.global_step == self._part.phase.end_step

    def schedule_of(self, num_training_steps: int) -> Schedule:
        """The run's schedule, or the phase's own."""
        phase, args = self._part.phase, self.args
        if phase.own_schedule is not None:
            warmup, rate = phase.own_schedule
            steps, start = phase.end_step - phase.first_step, phase.first_step
        else:
            others = [part.phase for part in self.phases if part.phase.own_schedule is not None]
            steps = others[0].first_step if others else num_training_steps
            warmup, rate, start = args.warmup_steps, args.learning_rate, 0
        return Schedule(
            start, steps, int(warmup if warmup >= 1 else math.ceil(warmup * steps)), rate, args.schedule_power
        )

    # Data

    def get_train_dataloader(self) -> DataLoader:
        """The micro-batches of the phase, as one pass over its `PreTrainingOrder`."""
        args, phase = self.args, self._part.phase
        if isinstance(self.train_dataset, PreTrainingDataset):
            known = self._progress.get("pairs_of_epochs", {}).get(str(phase.first_step), {})
            # Another store, seed or length, which allow_changes lets pass, has other pairs.
            if known.get("index") == self.train_dataset.index_name:
                self.train_dataset.remember_num_pairs(known["counts"])
        self._pairs_an_epoch = self.train_dataset.num_pairs(0)
        self._epochs_before = sum(
            (part.phase.end_step - part.phase.first_step) * part.phase.global_batch / part.train_dataset.num_pairs(0)
            for part in self.phases
            if part.phase.first_step < phase.first_step
        )
        if args.max_steps < 0:
            args.max_steps = self._steps_of_epochs(args.num_train_epochs)
        steps = args.max_steps - phase.first_step
        self._order = PreTrainingOrder(self.train_dataset, steps * self.global_batch_size, args.seed)
        return self.one_pass_loader(self._order, first_step=phase.first_step)

    def progress_of_run(self) -> dict[str, Any]:
        """With the number of pairs of each epoch up to now, which a run that goes on elsewhere would have to count anew."""
        counts = [self.train_dataset.num_pairs(epoch) for epoch in range(self._order.epoch + 1)]
        index = self.train_dataset.index_name if isinstance(self.train_dataset, PreTrainingDataset) else None
        known = {"index": index, "counts": counts}
        return {**super().progress_of_run(), "pairs_of_epochs": {str(self._part.phase.first_step): known}}

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

    def count_work(self, batch: dict[str, torch.Tensor], items: torch.Tensor) -> torch.Tensor:
        """With the predicted tokens."""
        return torch.cat([super().count_work(batch, items)[:3], items[:1]])

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

    # Logging

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add both losses, the rate of real tokens (no padding, all processes), MFU and the hours left to the training log."""
        if "loss" in logs:
            logs.update(self.meter.read(self.accelerator))
            logs.update(self.describe_pace())
        if hasattr(self, "_pairs_an_epoch"):
            # One pass of the loader is a whole phase; what a reader wants to know is how often the run has seen the data.
            steps = self.state.global_step - self._part.phase.first_step
            self.state.epoch = self._epochs_before + steps * self.global_batch_size / self._pairs_an_epoch
        super().log(logs, start_time)

    def flops_of(self, work: Work) -> int:
        """With both heads."""
        return training_flops(self.model.config, work)

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
        with self.stoppable():
            for batch, is_filler in tqdm(
                batches, total=len(dataloader), desc=description, leave=False, disable=self._quiet
            ):
                self.check_stop()
                batch = self._prepare_inputs(batch)
                with self.accelerator.autocast():
                    output = model(**batch, return_full_logits=False)
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
