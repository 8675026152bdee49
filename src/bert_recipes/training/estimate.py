"""Estimate the time, memory and disk space that a run needs, from a few of its steps."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_utils import IntervalStrategy

from bert_recipes.errors import InputError
from bert_recipes.files import write_json
from bert_recipes.training.console import format_hours
from bert_recipes.training.speed import peak_memory_mb
from bert_recipes.training.trainer import RecipeTrainer


# The first steps allocate, compile and fill the caches.
WARMUP_STEPS = 3
TIMED_STEPS = 10
# After this time two steps are enough: where a step takes minutes, the first is as slow as later
# ones.
MOST_SECONDS = 60.0


class Estimate(NamedTuple):
    """Time and memory of a run by a few of its steps; evaluations do not count."""

    seconds_per_step: float
    tokens_per_second: float
    steps: float
    hours: float
    memory_mb: float  # of a process, at its peak


class _StepTimer(TrainerCallback):
    """Takes the time of each step, and ends the training after a few."""

    def __init__(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._gather = gather
        self.times: list[float] = []
        # Whether so much time has passed that fewer steps are enough; all processes agree on it, or
        # one would wait for the next step of another.
        self.is_slow = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the time when the step is computed."""
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.times.append(now)
        seconds = torch.tensor([now - self.times[0]], device=args.device)
        seconds_of_processes = self._gather(seconds)
        self.is_slow = seconds_of_processes.max().item() > MOST_SECONDS
        control.should_save = False
        control.should_evaluate = False
        if self.is_slow or len(self.times) > WARMUP_STEPS + TIMED_STEPS:
            control.should_training_stop = True


def measure_steps(trainer: RecipeTrainer) -> Estimate:
    """Train a few steps, in all processes, and return what the run will take.

    The model is changed.
    """
    args = trainer.args
    timer = _StepTimer(trainer.accelerator.gather)
    trainer.add_callback(timer)
    for tracker in get_reporting_integration_callbacks(args.report_to):
        trainer.pop_callback(tracker)
    args.logging_strategy = IntervalStrategy.STEPS
    args.logging_steps = 1
    args.load_best_model_at_end = False
    RecipeTrainer.train(trainer)  # of two phases the first
    times = timer.times if timer.is_slow else timer.times[WARMUP_STEPS:]
    if len(times) < 2:
        raise InputError(
            f"estimate: a run of {len(timer.times)} steps is too short; {WARMUP_STEPS + 2} are "
            "needed"
        )
    seconds = statistics.median(after - before for before, after in itertools.pairwise(times))
    rates = [
        line["tokens_per_second"]
        for line in trainer.state.log_history
        if "tokens_per_second" in line
    ]
    steps = trainer.state.max_steps
    hours = seconds * steps / 3600
    if args.max_minutes is not None:
        steps = 60 * args.max_minutes / seconds
        hours = args.max_minutes / 60
    memory_mb = peak_memory_mb(args.device)
    return Estimate(seconds, statistics.median(rates), steps, hours, memory_mb)


def print_estimate(trainer: RecipeTrainer) -> None:
    """Train a few steps, in all processes, and print what the run will take.

    Nothing is left on the disk; the model is changed.
    """
    try:
        estimate = measure_steps(trainer)
    finally:
        if trainer.is_world_process_zero():
            with contextlib.suppress(OSError):  # it holds a run
                Path(trainer.args.output_dir).rmdir()  # made by the Trainer
    if not trainer.is_world_process_zero():
        return
    if trainer.args.estimate_file is not None:
        write_json(Path(trainer.args.estimate_file), estimate._asdict())
    for name, text in _describe(estimate, trainer).items():
        print(f"{name:<16}{text}")  # noqa: T201  (what the user asked for)


def _describe(estimate: Estimate, trainer: RecipeTrainer) -> dict[str, str]:
    """Return the lines of an estimate by what they are about."""
    minutes = trainer.args.max_minutes
    length = f"{estimate.steps:,} steps"
    duration = format_hours(estimate.hours)
    if minutes is not None:
        length = f"{minutes:g} minutes"
        duration = f"about {estimate.steps:,.0f} steps"
    duration += ", without evaluations"
    if trainer.num_phases > 1:
        duration += " (if those of the second phase were as long as the first)"
    rate = f"{estimate.seconds_per_step:.3g} s, {estimate.tokens_per_second:,.0f} tokens/s"
    parameters = trainer.model.num_parameters()
    megabytes = 4 * parameters / 1e6
    checkpoint = (
        f"up to {3 * megabytes:,.0f} MB each checkpoint (weights, at most two states of the "
        "optimizer)"
    )
    return {
        "parameters": f"{parameters:,}",
        "a step": f"{trainer.global_batch_size:,} examples, {rate}",
        length: duration,
        "memory": f"{estimate.memory_mb:,.0f} MB a process, at the peak of these steps",
        "disk": f"{megabytes:,.0f} MB the model, {checkpoint}",
    }
