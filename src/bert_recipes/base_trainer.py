"""What both Trainers of this project share: the loss of the global batch, one data order, optimisers by name, the meter."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel
from transformers.trainer_utils import TrainOutput

from bert_recipes.engines import asks_for_fsdp
from bert_recipes.errors import InputError
from bert_recipes.flops import Work
from bert_recipes.layer_choice import choose_layers
from bert_recipes.matmul_rate import best_rate
from bert_recipes.memory import keep_freed_memory
from bert_recipes.meter import StepMeter
from bert_recipes.optimization import Schedule, create_bert_schedule, create_optimizer, set_peak_rate
from bert_recipes.resumable_trainer import ResumableTrainer
from bert_recipes.run_arguments import RunArguments
from bert_recipes.run_cost import RunCost
from bert_recipes.run_progress import NO_ENGINE
from bert_recipes.step_batches import Order, StepBatches
from bert_recipes.stopping import ignore_signals
from bert_recipes.trackers.recording import Trackers


logger = logging.getLogger(__name__)


@contextmanager
def _without_stock_trackers(args: RunArguments) -> Iterator[None]:
    """The Trainer makes no callbacks of `report_to`: ours, which cannot end a run, take their place."""
    wanted, args.report_to = args.report_to, []
    try:
        yield
    finally:
        args.report_to = wanted


class GlobalBatchTrainer(ResumableTrainer):
    """`Trainer` whose losses are means over the *global* batch: all micro-batches of all processes.

    Stock BERT heads scale the loss with both. Step s trains on samples [s * G, (s + 1) * G) of one fixed order, however
    the global batch G is split: the whole run is one pass over a sampler. A subclass says what the loss is a mean over
    (`count_items`), and computes its part of it (`compute_loss`).
    """

    lr_scheduler: Any

    def __init__(self, model: PreTrainedModel, args: RunArguments, **kwargs: Any) -> None:
        if args.use_cpu:
            # FSDP gathers the weights of a layer where it is called as a module, which the fast ones are not.
            choose_layers(model, "off" if asks_for_fsdp(args) else args.fast_layers)
            if args.keep_freed_memory:
                keep_freed_memory()
        if args.ddp_find_unused_parameters is None and model.config.model_type == "bert":
            args.ddp_find_unused_parameters = False  # every pass uses all; stock would look for unused ones in each
        self.trackers = Trackers(args)
        callbacks = [self.trackers, *(kwargs.pop("callbacks", None) or [])]
        with _without_stock_trackers(args):
            super().__init__(model=model, args=args, callbacks=callbacks, **kwargs)
        if args.optimizer == "lamb" and self.engine != NO_ENGINE:
            raise InputError(
                f"optimizer is lamb; {self.engine} shares tensors out over the processes, and none knows the norms that LAMB scales "
                "with: give --optimizer bert_adam or adamw, or LAUNCH=ddp"
            )
        self.accelerator.ddp_handler.gradient_as_bucket_view = True  # no second copy of the gradients
        # Our losses are divided by the counts of the whole step: the Trainer shall not divide them again.
        self.model_accepts_loss_kwargs = True
        self.meter = StepMeter(self.args.device)
        self.cost = RunCost(
            self.args.energy,
            is_first=self.args.process_index == 0,
            is_first_of_machine=self.args.local_process_index == 0,
            num_processes=self.args.world_size,
        )
        self._cost_of_checkpoint: dict[str, Any] = {}
        self._flops_per_token: int | None = None
        # FLOP/s of matrix products of a process; found when it is first asked for.
        self._peak: float | None = None
        self.identity["global batch"] = self.global_batch_size

    # The run

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """As `ResumableTrainer`; what it costs is in `cost`."""
        args = self.args
        logger.info(
            "batch: %d examples x %d micro-batches x %d processes = %d examples a step",
            *(args.train_batch_size, args.gradient_accumulation_steps, args.world_size, self.global_batch_size),
        )
        self.cost.begin()
        # The weights are made. Each process drops elements of its own; a resume loads the states of its checkpoint after this.
        if self.args.process_index > 0:
            torch.manual_seed(self.args.seed + self.args.process_index)
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            self.cost.end()

    # Data

    @property
    def global_batch_size(self) -> int:
        """Examples of an optimiser step over all processes."""
        return self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    def one_pass_loader(self, order: Order, first_step: int = 0) -> DataLoader:
        """The micro-batches of this process as one pass over the whole run; those that are done are not read.

        Args:
            order: Samples of the steps from `first_step` on.
            first_step: Steps of the run that are another order's.
        """
        args = self.args
        a_step = args.gradient_accumulation_steps
        batches = StepBatches(
            order,
            batch_size=args.train_batch_size,
            num_processes=args.world_size,
            process_index=args.process_index,
            first=first_step * a_step,
            skipped=self.steps_done * a_step,
        )
        return DataLoader(
            self.train_dataset,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            # A worker that cannot hand a batch over (shared memory is full) says so and reads on; nobody would ever get that batch.
            timeout=args.ddp_timeout if args.dataloader_num_workers else 0,
            worker_init_fn=ignore_signals,
        )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; the time in here is time that the model waits for data."""
        start = time.perf_counter()
        samples = super().get_batch_samples(*args, **kwargs)
        self.meter.count_wait(time.perf_counter() - start)
        return samples

    # Loss

    def count_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """int64 (K,): what each part of the loss is a mean over, in this batch."""
        raise NotImplementedError

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | None:
        """float64 (K,): `count_items` of the coming step over all micro-batches and processes, at least 1 each."""
        if not batch_samples:
            return None
        start = time.perf_counter()
        parts = [
            torch.cat([items := self.count_items(batch).to(device), self.count_work(batch, items).to(device)])
            for batch in batch_samples
        ]
        counts = torch.stack(parts).sum(dim=0, dtype=torch.float64)
        if self.args.world_size > 1:
            counts = torch.cat([counts, counts.new_tensor([self.stop_flag()])])
            counts = self.accelerator.reduce(counts, reduction="sum")
            self.note_stop_flags(counts[-1])
            counts = counts[:-1]
        items, work = counts[:-4], counts[-4:]
        self.meter.count_step(work)
        self.meter.count_wait(start - time.perf_counter())  # counting is called while fetching, and is no waiting
        return items.clamp(min=1.0)

    def count_work(self, batch: dict[str, torch.Tensor], items: torch.Tensor) -> torch.Tensor:
        """int64 (4,): the fields of `Work` for a batch.

        Args:
            batch: What the collator made.
            items: Of `count_items`.
        """
        lengths = batch["attention_mask"].sum(dim=-1).flatten()
        zero = lengths.new_zeros(())
        return torch.stack([lengths.sum(), (lengths**2).sum(), lengths.new_tensor(len(lengths)), zero])

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
            schedule = self.schedule_of(num_training_steps)
            if schedule.warmup_steps >= schedule.steps:
                logger.warning(
                    "warmup_steps %d is not shorter than the run of %d steps: the learning rate will not reach its peak; "
                    "a tenth of the steps is usual",
                    schedule.warmup_steps,
                    schedule.steps,
                )
            self.lr_scheduler = create_bert_schedule(optimizer or self.optimizer, schedule)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def schedule_of(self, num_training_steps: int) -> Schedule:
        """The schedule of the steps that are trained now."""
        args = self.args
        warmup = args.get_warmup_steps(num_training_steps)
        return Schedule(0, num_training_steps, warmup, args.learning_rate, args.schedule_power)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As stock; the peak of the learning rate is that of the schedule."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.args.schedule != "trainer":
            set_peak_rate(self.lr_scheduler, self.schedule_of(self.state.max_steps).learning_rate)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As stock, 6 x parameters x tokens; stock walks through all modules at every step to count the parameters."""
        if self._flops_per_token is None:
            self._flops_per_token = 6 * self.model.num_parameters(exclude_embeddings=True)
        return self._flops_per_token * inputs[self.model.main_input_name].numel()

    # Resuming

    def go_on(self) -> None:
        """With the hours and the energy of the parts before."""
        super().go_on()
        if self._progress:
            self.cost.go_on_from(self._progress.get("cost"))

    def _write_progress(self, folder: Path) -> None:
        # All processes add up what they have measured; the main process writes it.
        self._cost_of_checkpoint = self.cost.so_far()
        super()._write_progress(folder)

    def progress_of_run(self) -> dict[str, Any]:
        """With hours and energy up to now."""
        return {**super().progress_of_run(), "cost": self._cost_of_checkpoint}

    def progress_of_process(self) -> dict[str, Any]:
        """With the meter's sums."""
        return {**super().progress_of_process(), "meter": self.meter.sums()}

    def take_progress(self, progress: dict[str, Any]) -> None:
        """With the meter's sums."""
        super().take_progress(progress)
        self.meter.take_sums(progress["meter"])

    # Logging

    def flops_of(self, work: Work) -> int | None:
        """Model FLOPs of training steps (`flops.training_flops`); None where nobody knows them."""
        return None

    def certainty(self) -> dict[str, Any]:
        """What all_results.json says of how sure the last evaluation's figures are."""
        return {}

    def describe_pace(self) -> dict[str, float]:
        """What the meter's last reading comes to: `mfu`, the share of the machine's rate of matrix products, and `hours_left`.

        The machine's rate is measured at the first call, which takes up to a few seconds for a large model on a CPU.
        """
        if self.meter.interval is None:
            return {}
        args, (work, seconds, steps) = self.args, self.meter.interval
        pace = {"hours_left": (self.state.max_steps - self.state.global_step) * seconds / steps / 3600}
        flops = self.flops_of(work)
        if flops is None:
            return pace
        if self._peak is None:
            precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
            tokens = round(work.tokens / steps / args.gradient_accumulation_steps / args.world_size)
            self._peak = best_rate(self.model.config, max(tokens, 1), precision, args.device)
        return {"mfu": flops / seconds / (self._peak * args.world_size), **pace}

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """As stock; time spent in here is no training time."""
        start = time.perf_counter()
        self.meter.start_clock()
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.meter.leave_out(start)
