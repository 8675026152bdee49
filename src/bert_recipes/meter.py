"""What the training log says between two of its lines: losses, rate of real tokens, wait for data."""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator

from bert_recipes.flops import Work


class StepMeter:
    """Sums between two lines of the training log, kept on the device so that no step waits for it.

    Args:
        device: The model's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._losses = torch.zeros(2, dtype=torch.float64, device=device)
        # Tokens, squares of lengths, sequences, predicted tokens: the fields of `Work`.
        self._work = torch.zeros(4, dtype=torch.float64, device=device)
        self._has_loss = [False, False]
        self._steps = self._timed_steps = 0
        self._waited = 0.0
        self._since: float | None = None
        #: What the steps since the reading before have computed, their seconds and number; None where nothing was timed.
        self.interval: tuple[Work, float, int] | None = None

    def count_step(self, work: torch.Tensor) -> None:
        """Count one optimiser step.

        Args:
            work: float64 (4,), over all processes: real tokens, sum of the squared lengths, sequences, predicted tokens.
        """
        self._steps += 1
        self._timed_steps += 1
        self._work += work

    def count_wait(self, seconds: float) -> None:
        """Add time for which the model waited for its data."""
        self._waited += seconds

    def add_losses(self, mlm_loss: torch.Tensor | None, nsp_loss: torch.Tensor | None, scale: int) -> None:
        """Add this micro-batch's parts of the step's losses."""
        for position, loss in enumerate((mlm_loss, nsp_loss)):
            if loss is not None:
                self._losses[position] += loss.detach() * scale
                self._has_loss[position] = True

    def sums(self) -> list[float]:
        """The sums of this process since the last reading, for a checkpoint: both losses, steps, which losses are known."""
        return [*self._losses.tolist(), float(self._steps), *map(float, self._has_loss)]

    def take_sums(self, sums: list[float]) -> None:
        """Go on with the sums of a checkpoint; the clock starts anew."""
        self._losses.copy_(torch.tensor(sums[:2], dtype=torch.float64))
        self._steps = round(sums[2])
        self._has_loss = [bool(known) for known in sums[3:]]

    def start_clock(self) -> None:
        """Start measuring, once: after the first step, which is slow everywhere."""
        if self._since is None:
            self._since = time.perf_counter()
            self._waited = 0.0
            self._work.zero_()
            self._timed_steps = 0

    def leave_out(self, start: float) -> None:
        """Do not count the time since `start` (of `time.perf_counter`): it was no training."""
        now = time.perf_counter()
        # A reading in between has started the next interval already.
        since = now if self._since is None else self._since
        self._since = since + now - max(start, since)

    def read(self, accelerator: Accelerator) -> dict[str, float]:
        """Means since the last reading, and start anew.

        Returns:
            `mlm_loss`, `nsp_loss` in nats; `tokens_per_second`; `data_wait_share`, the share of the time (0 to 1) for
            which the model waited for its data.
        """
        losses = accelerator.reduce(self._losses.clone(), reduction="mean") / max(self._steps, 1)
        result = {
            name: loss
            for name, loss, known in zip(("mlm_loss", "nsp_loss"), losses.tolist(), self._has_loss, strict=True)
            if known
        }
        now, work = time.perf_counter(), Work(*(round(value) for value in self._work.tolist()))
        self.interval = None
        if work.tokens and self._since is not None:
            self.interval = work, now - self._since, self._timed_steps
            result["tokens_per_second"] = work.tokens / (now - self._since)
            result["data_wait_share"] = self._waited / (now - self._since)
        self._losses.zero_()
        self._work.zero_()
        self._steps, self._timed_steps, self._waited, self._since = 0, 0, 0.0, now
        return result
