"""Steps that are left out because their gradient is not finite: how many, and when it is enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bert_recipes.errors import InputError


@dataclass
class SkippedSteps:
    """Counts them.

    Attributes:
        limit: So many in a row end the run.
        total: In the whole run.
        in_a_row: Up to now.
    """

    limit: int
    total: int = 0
    in_a_row: int = 0

    def note(self, norm: float) -> bool:
        """Take a step's gradient norm; whether the step is to be left out."""
        if math.isfinite(norm):
            self.in_a_row = 0
            return False
        self.total += 1
        self.in_a_row += 1
        return True

    def check(self, step: int, *, is_deepspeed: bool) -> None:
        """End the run where it is enough.

        Args:
            step: The one that is left out, from 1.
            is_deepspeed: DeepSpeed has updated the weights by the time that it tells the norm.

        Raises:
            InputError: So many in a row, or one under DeepSpeed.
        """
        if self.in_a_row < self.limit and not is_deepspeed:
            return
        times = f"{self.in_a_row} steps in a row" if self.in_a_row > 1 else "one step"
        why = ", and DeepSpeed cannot leave a step out" if is_deepspeed else ""
        raise InputError(
            f"step {step}: the gradient was not finite for {times}{why}; the checkpoints are from before. Lower learning_rate, "
            "give more warmup_steps, or --precision fp32"
        )
