"""What the training log says between two of its lines: losses, rate of real tokens, wait for data."""

from __future__ import annotations

import time

import torch
from accelerate import Accelerator


class StepMeter:
    """Sums between two lines of the training log, kept on the device so that no step waits for it.

    Args:
        device: The model's device.
    """

    def __init__(self, device: torch.device) -> None:
        """Start at zero, with the clock stopped."""
        self._losses = torch.zeros(2, dtype=torch.float64, device=device)
        self._tokens = torch.zeros((), dtype=torch.float64, device=device)
        self._has_loss = [False, False]
        self._steps = 0
        self._waited = 0.0
        self._since: float | None = None

    def count_step(self, tokens: torch.Tensor) -> None:
        """Count one optimiser step and its real tokens over all processes."""
        self._steps += 1
        self._tokens += tokens

    def count_wait(self, seconds: float) -> None:
        """Add time for which the model waited for its data."""
        self._waited += seconds

    def add_losses(self, mlm_loss: torch.Tensor | None, nsp_loss: torch.Tensor | None, scale: int) -> None:
        """Add this micro-batch's parts of the step's losses."""
        for position, loss in enumerate((mlm_loss, nsp_loss)):
            if loss is not None:
                self._losses[position] += loss.detach() * scale
                self._has_loss[position] = True

    def start_clock(self) -> None:
        """Start measuring, once: after the first step, which is slow everywhere."""
        if self._since is None:
            self._since = time.perf_counter()
            self._waited = 0.0
            self._tokens.zero_()

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
        now, tokens = time.perf_counter(), self._tokens.item()
        if tokens and self._since is not None:
            result["tokens_per_second"] = tokens / (now - self._since)
            result["data_wait_share"] = self._waited / (now - self._since)
        self._losses.zero_()
        self._tokens.zero_()
        self._steps, self._waited, self._since = 0, 0.0, now
        return result
