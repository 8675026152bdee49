"""What both Trainers of this project share: the loss of the global batch, one data order, optimisers by name, the meter."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer

from bert_recipes.errors import InputError, saving
from bert_recipes.layer_choice import choose_layers
from bert_recipes.memory import keep_freed_memory
from bert_recipes.meter import StepMeter
from bert_recipes.optimization import create_bert_schedule, create_optimizer
from bert_recipes.run_arguments import RunArguments


logger = logging.getLogger(__name__)


class GlobalBatchTrainer(Trainer):
    """`Trainer` whose losses are means over the *global* batch: all micro-batches of all processes.

    Stock BERT heads scale the loss with both. Step s trains on samples [s * G, (s + 1) * G) of one fixed order, however
    the global batch G is split: the whole run is one pass over a sampler. A subclass says what the loss is a mean over
    (`count_items`), and computes its part of it (`compute_loss`).
    """

    args: RunArguments
    optimizer: Any
    lr_scheduler: Any

    def __init__(self, model: PreTrainedModel, args: RunArguments, **kwargs: Any) -> None:
        """Set the Trainer up, and on a CPU the model's layers and the process' memory for speed."""
        if args.use_cpu:
            choose_layers(model, args.fast_layers, for_training=kwargs.get("train_dataset") is not None)
            keep_freed_memory()
        super().__init__(model=model, args=args, **kwargs)
        # Our losses are divided by the counts of the whole step: the Trainer shall not divide them again.
        self.model_accepts_loss_kwargs = True
        self.meter = StepMeter(self.args.device)
        self._flops_per_token: int | None = None

    # Data

    @property
    def global_batch_size(self) -> int:
        """Examples of an optimiser step over all processes."""
        return self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    def one_pass_loader(self, sampler: Any) -> DataLoader:
        """The whole run as one pass over a sampler whose length is a multiple of the global batch."""
        args = self.args
        loader = DataLoader(
            self.train_dataset,
            batch_size=args.train_batch_size,
            sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            drop_last=True,
        )
        return self.accelerator.prepare(loader)

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
        counts = torch.stack(
            [
                torch.cat([self.count_items(batch).to(device), batch["attention_mask"].sum().to(device)[None]])
                for batch in batch_samples
            ]
        ).sum(dim=0, dtype=torch.float64)
        if self.args.world_size > 1:
            counts = self.accelerator.reduce(counts, reduction="sum")
        self.meter.count_step(counts[-1])
        self.meter.count_wait(start - time.perf_counter())  # counting is called while fetching, and is no waiting
        return counts[:-1].clamp(min=1.0)

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
            start, total = self._schedule_part(num_training_steps)
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

    def _schedule_part(self, num_training_steps: int) -> tuple[int, int]:
        """Step of the schedule at which the run begins, and steps of the whole schedule."""
        return 0, num_training_steps

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As stock, 6 x parameters x tokens; stock walks through all modules at every step to count the parameters."""
        if self._flops_per_token is None:
            self._flops_per_token = 6 * self.model.num_parameters(exclude_embeddings=True)
        return self._flops_per_token * inputs[self.model.main_input_name].numel()

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
