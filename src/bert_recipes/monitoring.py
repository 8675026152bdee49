"""Says in words when a run is not learning."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


logger = logging.getLogger(__name__)

# Our choices: how near to the yardstick counts as stuck, and after which share of the steps past warm-up it is said.
STUCK_MARGIN_NATS = 0.1
STUCK_AFTER_SHARE = 0.1
_SLOWER = "a lower learning rate, a longer warm-up, or go on from an earlier checkpoint (--resume FOLDER)"

# A training loss this far above the mean of the lines before, in their deviations and in nats, is a spike.
SPIKE_DEVIATIONS, SPIKE_NATS = 6.0, 0.5
SPIKE_MEMORY = 50


def describe_spike(losses: Sequence[float], step: int) -> str | None:
    """A sentence when the last loss jumps out of those before it, else None.

    Args:
        losses: Logged training losses, nats; `SPIKE_MEMORY` of them and the newest one are looked at.
        step: Of the newest one.
    """
    *before, last = losses[-SPIKE_MEMORY - 1 :]
    before = [loss for loss in before if math.isfinite(loss)]
    if len(before) < SPIKE_MEMORY // 5 or not math.isfinite(last):
        return None
    mean = statistics.fmean(before)
    if last - mean < max(SPIKE_NATS, SPIKE_DEVIATIONS * statistics.pstdev(before)):
        return None
    return (
        f"at step {step} the training loss is {last:.2f}; the {len(before)} lines of the log before have {mean:.2f} on average. If it "
        f"does not come down again: {_SLOWER}"
    )


def describe_progress(metrics: dict[str, float], step: int, max_steps: int, warmup_steps: int) -> str | None:
    """A sentence when the held-out MLM loss is no better than the unigram loss, or not finite, else None.

    Args:
        metrics: An evaluation's metrics, with or without the prefix "eval_".
        step: Optimiser steps done.
        max_steps: Steps of the run.
        warmup_steps: Steps of the warm-up.
    """
    values = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    if not {"unigram_loss", "mlm_loss"} <= values.keys() or step < warmup_steps + STUCK_AFTER_SHARE * max_steps:
        return None
    if not math.isfinite(values["mlm_loss"]):
        return f"at step {step} the held-out masked-LM loss is not finite: training has diverged; {_SLOWER}"
    gain = values["unigram_loss"] - values["mlm_loss"]
    if gain > STUCK_MARGIN_NATS:
        return None
    said = (
        f"at step {step} the held-out masked-LM loss is {values['mlm_loss']:.2f}; guessing by word frequency alone gives "
        f"{values['unigram_loss']:.2f}: "
    )
    if gain < -STUCK_MARGIN_NATS:
        return (
            f"{said}the model is worse than that. More steps if the loss still falls; if it rose or jumps, {_SLOWER}"
        )
    return (
        f"{said}nothing shows that the model has learned more than the frequencies. What helps: more steps (large models "
        "sit here for thousands), a higher learning rate (tiny to small: 5e-4 to 2e-3), a longer warm-up or lower rate if "
        "the loss jumps, a larger global batch, a smaller model on a small corpus; and look at what the model sees with "
        "`make show-data`"
    )


class ProgressWatch(TrainerCallback):
    """Logs `describe_progress` after an evaluation, and `describe_spike` after a line of the training log."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Warn when the loss jumps."""
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        recent = state.log_history[-2 * SPIKE_MEMORY - 2 :]
        message = describe_spike([line["loss"] for line in recent if "loss" in line], state.global_step)
        if message:
            logger.warning(message)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Warn when the loss is no better than the unigram loss."""
        warmup = args.get_warmup_steps(state.max_steps)
        message = describe_progress(metrics or {}, state.global_step, state.max_steps, warmup)
        if message and state.is_world_process_zero:
            logger.warning(message)
