"""The clock of the speedruns: seconds of training, without evaluations, to the first good one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback

from bert_recipes import BertTrainer, DataCollatorForPreTraining


@dataclass(frozen=True)
class Goal:
    """What a held-out evaluation has to show."""

    max_mlm_loss: float  # nats
    min_nsp_accuracy: float = 0.0

    def is_met(self, point: dict[str, float]) -> bool:
        """Return whether a point of a curve is good enough."""
        is_loss_met = point["mlm_loss"] <= self.max_mlm_loss
        return is_loss_met and point["nsp_accuracy"] >= self.min_nsp_accuracy


class Clock(TrainerCallback):
    """Count the seconds from `start`, without evaluations, and end the run at the goal."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._start = 0.0
        self.seconds = 0.0
        self.is_reached = False
        self.curve: list[dict[str, float]] = []

    def describe(self) -> str:
        """Return what the last evaluation measured."""
        if not self.curve:
            return "no evaluation"
        last = self.curve[-1]
        return f"{last['mlm_loss']:.3f} nats, {last['nsp_accuracy']:.1%}, {last['step']} steps"

    def start(self) -> None:
        """Start; before a model is made, if it learns anything from the text."""
        self._start = time.perf_counter()

    def watch(self, trainer: BertTrainer, collator: DataCollatorForPreTraining) -> None:
        """Follow a trainer, whose evaluations get the masks of `collator`, whatever its own are."""
        self._trainer = trainer
        self._collator = collator
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set what is measured, after the Trainer has set its own collator."""
        self._trainer.eval_collator = self._collator

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pause the clock before an evaluation."""
        if control.should_evaluate:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.seconds += time.perf_counter() - self._start

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any
    ) -> None:
        """End the run at the goal, or let the clock go on."""
        point = {
            "step": state.global_step,
            "seconds": self.seconds,
            "mlm_loss": metrics["eval_mlm_loss"],
            "nsp_accuracy": metrics["eval_nsp_accuracy"],
        }
        self.curve.append(point)
        self.is_reached = self._goal.is_met(point)
        if self.is_reached:
            control.should_training_stop = True
        self.start()
