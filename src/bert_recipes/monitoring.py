"""Says in words when a run is not learning."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


logger = logging.getLogger(__name__)

# Our choices: how near to the yardstick counts as stuck, and after which share of the steps past warm-up it is said.
STUCK_MARGIN_NATS = 0.1
STUCK_AFTER_SHARE = 0.1


def describe_progress(metrics: dict[str, float], step: int, max_steps: int, warmup_steps: int) -> str | None:
    """A sentence when the held-out MLM loss stays at the unigram level, else None.

    Args:
        metrics: An evaluation's metrics, with or without the prefix "eval_".
        step: Optimiser steps done.
        max_steps: Steps of the run.
        warmup_steps: Steps of the warm-up.
    """
    values = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    if "unigram_loss" not in values or step < warmup_steps + STUCK_AFTER_SHARE * max_steps:
        return None
    gain = values["unigram_loss"] - values["mlm_loss"]
    if gain > STUCK_MARGIN_NATS:
        return None
    return (
        f"at step {step} the held-out masked-LM loss is {values['mlm_loss']:.2f}; guessing by word frequency alone gives "
        f"{values['unigram_loss']:.2f}: the model has learned the frequencies and nothing else yet. What helps: more "
        "steps (large models sit here for thousands), a higher learning rate (tiny to small: 5e-4 to 2e-3), a longer "
        "warm-up or lower rate if the loss jumps, a larger global batch, a smaller model on a small corpus; and look at "
        "what the model sees with `make show-data`"
    )


class ProgressWatch(TrainerCallback):
    """Logs `describe_progress` after an evaluation."""

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Warn when the loss stays at the unigram level."""
        start = getattr(args, "schedule_start_step", 0)
        total = getattr(args, "schedule_total_steps", None) or start + state.max_steps
        warmup = max(0, args.get_warmup_steps(total) - start)
        message = describe_progress(metrics or {}, state.global_step, state.max_steps, warmup)
        if message and state.is_world_process_zero:
            logger.warning(message)
