"""What a run will take, from a few of its steps: time, memory, disk."""

import contextlib
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from bert_recipes.errors import InputError
from bert_recipes.training.console import format_hours
from bert_recipes.training.speed import peak_memory_mb
from bert_recipes.training.trainer import RecipeTrainer


# The first steps allocate, compile and fill the caches.
WARMUP_STEPS, TIMED_STEPS = 3, 10


class _FewSteps(TrainerCallback):
    """Takes the time of each step, and ends the training after a few."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the time when the step is computed."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        control.should_save = control.should_evaluate = False
        control.should_training_stop = len(self.times) > WARMUP_STEPS + TIMED_STEPS


def print_estimate(trainer: RecipeTrainer) -> None:
    """Train a few steps, in all processes, and print what the run will take; leaves nothing on disk, and the model changed."""
    args, few, model = trainer.args, _FewSteps(), trainer.model
    trainer.add_callback(few)
    trainer.pop_callback(trainer.trackers)
    args.logging_steps, args.load_best_model_at_end = 1, False
    RecipeTrainer.train(trainer)  # of two phases the first
    timed = few.times[WARMUP_STEPS:]
    if len(timed) < 2:
        raise InputError(f"estimate: a run of {len(few.times)} steps is too short; {WARMUP_STEPS + 2} are needed")
    seconds = statistics.median(after - before for before, after in itertools.pairwise(timed))
    rates = [line["tokens_per_second"] for line in trainer.state.log_history if "tokens_per_second" in line]
    steps, weights = trainer.state.max_steps, 4 * model.num_parameters() / 1e6
    phases = (
        " (if those of the second phase were as long as the first)" if len(getattr(trainer, "phases", ())) > 1 else ""
    )
    whole, length = f"{steps:,} steps", format_hours(seconds * steps / 3600)
    if args.max_minutes is not None:
        whole, length = f"{args.max_minutes:g} minutes", f"about {60 * args.max_minutes / seconds:,.0f} steps"
    rows = {
        "parameters": f"{model.num_parameters():,}",
        "a step": f"{trainer.global_batch_size:,} examples, {seconds:.3g} s, {statistics.median(rates):,.0f} tokens/s",
        whole: f"{length}, without evaluations{phases}",
        "memory": f"{peak_memory_mb():,.0f} MB a process, at its peak",
        "disk": f"{weights:,.0f} MB the model, about {3 * weights:,.0f} MB each checkpoint (weights and two states of the optimiser)",
    }
    if trainer.is_world_process_zero():
        with contextlib.suppress(OSError):  # it holds a run
            Path(args.output_dir).rmdir()  # made by the Trainer
        print(*(f"{name:<16}{text}" for name, text in rows.items()), sep="\n")  # noqa: T201  (what the user asked for)
