"""Times of the steps of a whole Trainer loop, and what is in them."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback

from bert_recipes.training.speed import Work
from speed.spec import MAX_WARMUP_STEPS, SampleSpec


IGNORE_INDEX = -100


class StepTimer(TrainerCallback):
    """Ends the training when the time is over; a step's time is that from the end of the step before it to its own end.

    So fetching data, logging and the callbacks are in it. On a GPU the ends are events on the device's own clock: the
    host may run ahead as it does in any training, and the sum of the times is still exact, because the device is
    synchronised before the first and after the last one.

    Args:
        spec: Warm-up, least and most steps, seconds; `warmup_steps` is what the warm-up took in the end.
        on_gpu: Whether the model is on a CUDA device.
    """

    def __init__(self, spec: SampleSpec, *, on_gpu: bool) -> None:
        self.spec = spec
        self.on_gpu = on_gpu
        self._marks: list[Any] = []
        self._begin = 0.0
        self._warm = 0.0
        self._steps = 0
        self.warmup_steps = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember when it began, for the time of the warm-up."""
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of a step."""
        self._steps += 1
        if not self._marks:
            if self._is_warming():
                return
            self.warmup_steps = self._steps
            self._synchronise()
            self._warm = time.perf_counter()
        self._mark()
        measured = self._steps - self.warmup_steps
        is_over = not self.spec.whole_pass and time.perf_counter() - self._warm >= self.spec.budget_seconds
        if measured >= self.spec.max_steps or (measured >= self.spec.min_steps and is_over):
            control.should_training_stop = True

    def _is_warming(self) -> bool:
        """A large model's memory takes some steps to find its places; that is a matter of steps, and of time where they are long."""
        if self._steps < self.spec.warmup_steps:
            return True
        return self._steps < MAX_WARMUP_STEPS and time.perf_counter() - self._begin < self.spec.warmup_seconds

    def _mark(self) -> None:
        if not self.on_gpu:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def _synchronise(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def read(self) -> tuple[float, list[float]]:
        """Seconds of the warm-up, and of each measured step."""
        self._synchronise()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self.on_gpu:
            return self._warm - self._begin, [first.elapsed_time(second) / 1000 for first, second in pairs]
        return self._warm - self._begin, [second - first for first, second in pairs]


class BatchCounter:
    """Counts what a Trainer's batches hold, and keeps its losses; nothing is read from the device before the end.

    Args:
        trainer: Its `get_batch_samples` and `training_step` are wrapped.
        masked_lm: Whether the labels are those of a masked-LM head.
    """

    def __init__(self, trainer: Any, *, masked_lm: bool) -> None:
        self._masked_lm = masked_lm
        self._steps: list[list[torch.Tensor]] = []
        self._positions: list[int] = []
        self._losses: list[list[torch.Tensor]] = []
        fetch, train = trainer.get_batch_samples, trainer.training_step

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            samples = fetch(*args, **kwargs)
            if samples[0]:
                self._count(samples[0])
            return samples

        def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = train(*args, **kwargs)
            self._losses[-1].append(loss.detach())
            return loss

        trainer.get_batch_samples, trainer.training_step = get_batch_samples, training_step

    def _count(self, batches: list[dict[str, torch.Tensor]]) -> None:
        """Count one optimiser step. The one place that knows what a batch looks like."""
        totals, positions = [], 0
        for batch in batches:
            lengths = batch["attention_mask"].sum(dim=-1)
            masked = (batch["labels"] != IGNORE_INDEX).sum() if self._masked_lm else lengths.new_zeros(())
            totals.append(torch.stack([lengths.sum(), (lengths**2).sum(), masked, lengths.new_tensor(len(lengths))]))
            positions += batch["input_ids"].numel()
        self._steps.append(totals)
        self._positions.append(positions)
        self._losses.append([])

    def read(self, first: int, count: int) -> tuple[list[Work], list[int], list[float]]:
        """Work, positions (tokens and pads) and loss of `count` steps from step `first` on."""
        chosen = slice(first, first + count)
        totals = [torch.stack(parts).sum(dim=0).tolist() for parts in self._steps[chosen]]
        works = [Work(tokens=t, squares=s, masked=m, sequences=b) for t, s, m, b in totals]
        losses = [float(torch.stack(parts).sum()) for parts in self._losses[chosen]]
        return works, self._positions[chosen], losses


def add_up(works: list[Work]) -> Work:
    """The sum over steps."""
    return Work(
        tokens=sum(work.tokens for work in works),
        squares=sum(work.squares for work in works),
        sequences=sum(work.sequences for work in works),
        masked=sum(work.masked for work in works),
    )
