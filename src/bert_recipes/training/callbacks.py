"""Callbacks of both Trainers: an end in good order at a signal, and warnings about the loss."""

import logging
import math
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl

from bert_recipes.errors import Interrupted
from bert_recipes.training.late_number import LateNumber


logger = logging.getLogger(__name__)

# Our choices: how near to the baseline counts as stuck, and after which fraction of the steps past
# warm-up a warning comes.
STUCK_MARGIN_NATS = 0.1
STUCK_AFTER_FRACTION = 0.1
# A model of fewer steps is still at the frequencies, so a short run is warned near its end alone.
EARLY_STEPS, NEAR_END = 1000, 0.9
# A discriminator whose loss is nearer than this fraction to the base rate's is stuck; it sits there
# first, so longer is waited.
NEAR_BASE_RATE, BASE_RATE_AFTER_FRACTION = 0.05, 0.5
_SLOWER = (
    "a lower learning rate, a longer warm-up, or resume from an earlier checkpoint "
    "(--resume FOLDER)"
)

# A training loss this far above the mean of the lines before, in their deviations and in nats, is a
# spike.
SPIKE_DEVIATIONS, SPIKE_NATS = 6.0, 0.5
SPIKE_MEMORY = 50


def describe_spike(losses: Sequence[float], step: int) -> str | None:
    """A sentence when the last of the logged training losses (nats) jumps out of the `SPIKE_MEMORY`
    before it, else None.
    """
    *before, last = losses[-SPIKE_MEMORY - 1 :]
    before = [loss for loss in before if math.isfinite(loss)]
    if len(before) < SPIKE_MEMORY // 5 or not math.isfinite(last):
        return None
    mean = statistics.fmean(before)
    if last - mean < max(SPIKE_NATS, SPIKE_DEVIATIONS * statistics.pstdev(before)):
        return None
    return (
        f"at step {step} the training loss is {last:.2f}; the {len(before)} lines of the log "
        f"before have {mean:.2f} on average. If it "
        f"does not come down again: {_SLOWER}"
    )


def describe_progress(metrics: dict[str, float], step: int) -> str | None:
    """A sentence when an evaluation's held-out MLM loss is no better than the unigram loss, or not
    finite, else None.
    """
    values = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    if not {"unigram_loss", "mlm_loss"} <= values.keys():
        return None
    if not math.isfinite(values["mlm_loss"]):
        return (
            f"at step {step} the held-out masked-LM loss is not finite: training has diverged; "
            f"{_SLOWER}"
        )
    gain = values["unigram_loss"] - values["mlm_loss"]
    if gain > STUCK_MARGIN_NATS:
        return None
    if gain < -STUCK_MARGIN_NATS:
        comparison = "worse than"
        advice = f"Train for more steps if the loss still falls; if it rose or jumps, {_SLOWER}"
    else:
        comparison = "no better than"
        advice = (
            "What helps: more steps (large models stay here for thousands), a higher learning rate "
            "(tiny to small: 5e-4 to 2e-3), a longer warm-up or lower rate if the loss jumps, a "
            "larger global batch, a smaller model on a small corpus; and look at what the model "
            "sees with `make show-data`"
        )
    return (
        f"at step {step} the held-out masked-LM loss is {values['mlm_loss']:.2f}, {comparison} the "
        f"word-frequency baseline ({values['unigram_loss']:.2f}). {advice}"
    )


def describe_discriminator(metrics: dict[str, float], step: int) -> str | None:
    """Return a sentence when ELECTRA's discriminator knows little more than how many tokens are
    replaced, else None.
    """
    loss, base_rate = metrics.get("eval_disc_loss"), metrics.get("eval_base_rate_loss")
    if loss is None or base_rate is None or not loss > (1 - NEAR_BASE_RATE) * base_rate:
        return None
    return (
        f"at step {step} the held-out replaced-token loss is {loss:.4f}, no better than the "
        f"base-rate baseline ({base_rate:.4f}). What helps: more steps, and --random_replacements "
        "0.6 where it is not given yet"
    )


class LossWatch(TrainerCallback):
    """Warns about the loss.

    After an evaluation that is not too early it logs `describe_progress` and
    `describe_discriminator`, each once in a run; after a line of the training log `describe_spike`.
    """

    def __init__(self) -> None:
        # What describes an evaluation, until it has warned, and after which fraction of the run
        # past the warm-up.
        self.waiting: dict[Callable[[dict[str, float], int], str | None], float] = {
            describe_progress: STUCK_AFTER_FRACTION,
            describe_discriminator: BASE_RATE_AFTER_FRACTION,
        }

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Start the clock."""
        self.begin = time.monotonic()

    def on_log(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Warn when the loss jumps."""
        if "loss" not in (kwargs.get("logs") or {}) or not state.is_world_process_zero:
            return
        recent = state.log_history[-2 * SPIKE_MEMORY - 2 :]
        message = describe_spike(
            [line["loss"] for line in recent if "loss" in line], state.global_step
        )
        if message:
            logger.warning(message)

    def on_evaluate(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Warn, once in a run, when a held-out loss is no better than what is known without a
        model.
        """
        if not state.is_world_process_zero:
            return
        done, warmup = 1.0, 0.0  # of a finished model that is measured
        if state.max_steps:
            done = state.global_step / state.max_steps
            warmup = args.get_warmup_steps(state.max_steps) / state.max_steps
            if (minutes := getattr(args, "max_minutes", None)) is not None:
                done = (time.monotonic() - self.begin) / (60 * minutes)
        for describe, after in list(self.waiting.items()):
            message = describe(kwargs.get("metrics") or {}, state.global_step)
            is_due = done >= NEAR_END or (
                done >= warmup + after and state.global_step >= EARLY_STEPS
            )
            if message is not None and is_due:
                logger.warning(message)
                del self.waiting[describe]


class EarlyStopping(TrainerCallback):
    """Ends a run after `patience` evaluations in a row without a better one than before.

    It counts them in the log, which a resumed run has too; stock's callback counts from zero again.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.is_training = False

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Ignore what was measured before training."""
        self.is_training = True

    def on_evaluate(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Stop where the best value lies `patience` evaluations back; one that is not finite is
        none.
        """
        name, sign = (
            f"eval_{args.metric_for_best_model.removeprefix('eval_')}",
            1 if args.greater_is_better else -1,
        )
        values = [line[name] for line in state.log_history if name in line]
        values = [sign * value if math.isfinite(value) else -math.inf for value in values]
        if (
            self.is_training
            and values
            and len(values) - 1 - values.index(max(values)) >= self.patience
        ):
            control.should_training_stop, self.is_training = True, False
            if state.is_world_process_zero:
                message = (
                    "stopped early: %d evaluations in a row have no better %s than the one "
                    "before them"
                )
                logger.info(message, self.patience, name.removeprefix("eval_"))


# At least so often a run by the clock is measured and saved, and logged, in fractions of its
# minutes; evaluations take a
# fifth of them at most. Our choices: a file's intervals are in steps, and a slow machine has few of
# them.
MEASURED_EVERY, LOGGED_EVERY, MOST_FOR_EVALUATIONS = 0.2, 0.02, 0.2


class ClockIntervals(TrainerCallback):
    """Logs, measures and saves a run by the clock where the intervals of its settings, in steps,
    are too long for its minutes.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Begin where the clock is, in a resumed run too."""
        self.clock_of_last_step, self.longest_step = self.trainer.clock, 0.0
        self.clock_of = dict.fromkeys(
            ("should_log", "should_evaluate", "should_save"), self.trainer.clock
        )

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for what is due."""
        # The clock is the same in all processes, and the evaluation after a step is part of the
        # next one's time.
        clock = self.trainer.clock
        self.longest_step = max(self.longest_step, clock - self.clock_of_last_step)
        self.clock_of_last_step = clock
        measured_every = max(MEASURED_EVERY, self.longest_step / MOST_FOR_EVALUATIONS)
        for event, strategy, every in (
            ("should_log", args.logging_strategy, LOGGED_EVERY),
            ("should_evaluate", args.eval_strategy, measured_every),
            ("should_save", args.save_strategy, measured_every),
        ):
            is_due = clock - self.clock_of[event] >= every
            if strategy == "steps" and (is_due or getattr(control, event)):
                setattr(control, event, True)
                self.clock_of[event] = clock


# What Slurm, Kubernetes and `kill` send, and what Ctrl-C sends.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopOnSignal(TrainerCallback):
    """Ends a run after the step that is being computed, with a checkpoint, once SIGTERM or SIGINT
    has come to one of its processes.

    A second SIGINT ends the process at once, with exit code 130: whoever presses Ctrl-C twice does
    not want to wait. Later SIGTERMs change nothing, as launchers pass them on more than once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the one that asked this process to stop
        self._leaves_block = False
        self.begin()

    def begin(self) -> None:
        """A training begins."""
        self.is_stopped = False
        # By step, how many processes have been asked; `RecipeTrainer` adds it with the step's
        # counts.
        self.flags: list[LateNumber] = []

    def stop(self, control: TrainerControl) -> None:
        """End the training at this step; `control.is_interrupted` tells other callbacks that it is
        no end of a run.
        """
        self.is_stopped = control.should_training_stop = True
        control.is_interrupted = True

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Stop where all processes know that one was asked to."""
        if args.world_size == 1:
            is_asked = self.signal is not None
        else:
            # The sum of the step before: reading it makes nobody wait.
            is_asked = bool(self.flags) and self.flags[0].read() > 0
            del self.flags[:-1]
        if is_asked or self.is_stopped:
            self.stop(control)
            control.should_save = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals inside of the block; in a thread other than the main one Python
        cannot.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._remember) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While listening: the first signal leaves the block where it is, so the block must wait
        for no other process and write nothing.
        """
        self._leaves_block = True
        try:
            yield
        except Interrupted:
            pass  # `signal` says it
        finally:
            self._leaves_block = False

    def _remember(self, number: int, frame: FrameType | None) -> None:
        # Not by logging: its lock may be held by the very code that was interrupted.
        if self.signal is None:
            self.signal = number
            if os.environ.get("RANK", "0") == "0":
                _say(
                    f"{signal.Signals(number).name}: the run saves and stops; Ctrl-C again ends "
                    "it at once"
                )
            if self._leaves_block:
                raise Interrupted(f"stopped by {signal.Signals(number).name}", 128 + number)
        elif number == signal.SIGINT:
            _say("left at once")
            os._exit(128 + signal.SIGINT)


def ignore_signals(worker: int = 0) -> None:
    """Leave signals to the process that trains: for `DataLoader`'s workers, which get Ctrl-C
    too.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())
