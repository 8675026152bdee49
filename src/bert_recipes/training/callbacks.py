"""Callbacks of both Trainers: signals, checkpoints, evaluations by the clock, loss warnings."""

import logging
import math
import os
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl

from bert_recipes.errors import Interrupted, is_main_process
from bert_recipes.models.sampled_softmax import SampledSoftmax
from bert_recipes.training.late_number import LateNumber
from bert_recipes.training.optimization import momentum_of_muon


logger = logging.getLogger(__name__)

# Our choices. A model whose held-out loss is not this much below the baseline is stuck.
STUCK_MARGIN_NATS = 0.1
# A warning comes after this fraction of the run past warm-up.
STUCK_AFTER_FRACTION = 0.1
# A model first learns word frequencies: a shorter run is warned near its end alone.
EARLY_STEPS = 1000
NEAR_END = 0.9  # fraction of the run
# A last held-out loss that is this much above the lowest shows that the model learned too long.
OVERFIT_MARGIN_NATS = 0.1
# A discriminator whose loss is nearer than this fraction to the base rate's is stuck. Every
# discriminator begins there, so the warning comes later.
NEAR_BASE_RATE = 0.05
BASE_RATE_AFTER_FRACTION = 0.5
_LOWER_RATE_ADVICE = (
    "a lower learning rate, a longer warm-up, or resume from an earlier checkpoint "
    "(--resume FOLDER)"
)

# A training loss that is above the mean of the previous log lines by both of these is a spike.
SPIKE_DEVIATIONS = 6.0  # standard deviations of those lines
SPIKE_NATS = 0.5
SPIKE_MEMORY = 50  # log lines that are compared


def describe_spike(losses: Sequence[float], step: int) -> str | None:
    """Return a sentence when the last logged training loss is a spike, else None.

    Args:
        losses: In nats, in order; the last is compared with `SPIKE_MEMORY` before it.
        step: The step of the last line.
    """
    last = losses[-1]
    before = [loss for loss in losses[-SPIKE_MEMORY - 1 : -1] if math.isfinite(loss)]
    if len(before) < SPIKE_MEMORY // 5 or not math.isfinite(last):
        return None
    mean = statistics.fmean(before)
    if last - mean < max(SPIKE_NATS, SPIKE_DEVIATIONS * statistics.pstdev(before)):
        return None
    return (
        f"at step {step} the training loss is {last:.2f}; the {len(before)} lines of the log "
        f"before have {mean:.2f} on average. If it does not come down again: {_LOWER_RATE_ADVICE}"
    )


def describe_stuck_loss(metrics: dict[str, float], step: int) -> str | None:
    """Return a sentence when the held-out MLM loss is no better than the unigram loss, else None.

    A loss that is not finite is no better.
    """
    loss = metrics.get("eval_mlm_loss")
    unigram_loss = metrics.get("eval_unigram_loss")
    if loss is None or unigram_loss is None:
        return None
    if not math.isfinite(loss):
        return (
            f"at step {step} the held-out masked-LM loss is not finite: training has diverged; "
            f"{_LOWER_RATE_ADVICE}"
        )
    gain = unigram_loss - loss
    if gain > STUCK_MARGIN_NATS:
        return None
    if gain < -STUCK_MARGIN_NATS:
        comparison = "worse than"
        advice = (
            "Train for more steps if the loss still falls; if it rose or jumps, "
            f"{_LOWER_RATE_ADVICE}"
        )
    else:
        comparison = "no better than"
        advice = (
            "What helps: more steps (large models stay here for thousands), a higher learning rate "
            "(tiny to small: 5e-4 to 2e-3), a longer warm-up or lower rate if the loss jumps, a "
            "larger global batch, a smaller model on a small corpus; and look at what the model "
            "sees with recipes/show_data.py"
        )
    return (
        f"at step {step} the held-out masked-LM loss is {loss:.2f}, {comparison} the "
        f"word-frequency baseline ({unigram_loss:.2f}). {advice}"
    )


def describe_stuck_discriminator(metrics: dict[str, float], step: int) -> str | None:
    """Return a sentence when ELECTRA's discriminator is no better than the base rate, else None."""
    loss = metrics.get("eval_disc_loss")
    base_rate = metrics.get("eval_base_rate_loss")
    if loss is None or base_rate is None or not loss > (1 - NEAR_BASE_RATE) * base_rate:
        return None
    return (
        f"at step {step} the held-out replaced-token loss is {loss:.4f}, no better than the "
        f"base-rate baseline ({base_rate:.4f}). What helps: more steps, and --random_replacements "
        "0.6 where it is not given yet"
    )


def describe_overfitting(trainer: Any) -> str | None:
    """Return a sentence when the last held-out MLM loss is well above the lowest, else None.

    Losses of an earlier phase are of other lengths, and do not count.
    """
    if trainer.args.load_best_model_at_end:  # the lowest is what the run keeps
        return None
    evaluations = []
    for line in trainer.state.log_history:
        if "eval_mlm_loss" in line and line["step"] > trainer.first_step:
            evaluations.append((line["eval_mlm_loss"], line["step"]))
    if not evaluations:
        return None
    loss, step = evaluations[-1]
    lowest, best_step = min(evaluations)
    has_risen = loss > lowest + OVERFIT_MARGIN_NATS
    if not has_risen:
        return None
    return (
        f"at step {step} the held-out masked-LM loss is {loss:.2f}, and was {lowest:.2f} at step "
        f"{best_step}. If the training loss has fallen since, the model learns its text by heart. "
        "What helps: more text, fewer steps or minutes, --dropout 0.1. If it has risen too: "
        f"{_LOWER_RATE_ADVICE}"
    )


class LossWatch(TrainerCallback):
    """Warns about the loss.

    After an evaluation that is not too early it logs `describe_stuck_loss` and
    `describe_stuck_discriminator`, and near the end `describe_overfitting`, each once in a run.
    After a line of the training log it logs `describe_spike`.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        # The warnings that have not come yet, and after which fraction of the run past the warm-up
        # they may come.
        self.pending_warnings: dict[Callable[[dict[str, float], int], str | None], float] = {
            describe_stuck_loss: STUCK_AFTER_FRACTION,
            describe_stuck_discriminator: BASE_RATE_AFTER_FRACTION,
        }
        self.has_warned_of_overfitting = False

    def on_log(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Warn when the loss jumps."""
        if "loss" not in (kwargs.get("logs") or {}) or not state.is_world_process_zero:
            return
        recent = state.log_history[-2 * SPIKE_MEMORY - 2 :]  # evaluations have lines, too
        losses = [line["loss"] for line in recent if "loss" in line]
        message = describe_spike(losses, state.global_step)
        if message:
            logger.warning(message)

    def on_evaluate(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Warn, once in a run, when a held-out loss is no better than its baseline."""
        if not state.is_world_process_zero:
            return
        progress, warmup = self._progress(args, state)
        is_near_end = progress >= NEAR_END
        is_early = state.global_step < EARLY_STEPS
        for describe, fraction in list(self.pending_warnings.items()):
            message = describe(kwargs.get("metrics") or {}, state.global_step)
            is_due = is_near_end or (progress >= warmup + fraction and not is_early)
            if message is not None and is_due:
                logger.warning(message)
                del self.pending_warnings[describe]
        if is_near_end and not self.has_warned_of_overfitting:
            message = describe_overfitting(self.trainer)
            if message is not None:
                logger.warning(message)
                self.has_warned_of_overfitting = True

    def _progress(self, args: Any, state: Any) -> tuple[float, float]:
        """Return the fraction of the run that is done, and that of the warm-up."""
        if not state.max_steps:  # an evaluation of a finished model
            return 1.0, 0.0
        warmup = args.get_warmup_steps(state.max_steps) / state.max_steps
        return self.trainer.progress, warmup


class EarlyStopping(TrainerCallback):
    """Ends a run after `patience` evaluations in a row without a better one than before.

    Evaluations are counted in the log, which a resumed run has too; stock's callback counts from
    zero again.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.is_training = False

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Ignore evaluations before training, and stop at once where those before a resume say so.

        One that was made up for at the resume is among them.
        """
        self.is_training = True
        self.on_evaluate(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Ignore evaluations after training."""
        self.is_training = False

    def on_evaluate(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Stop where the best value lies `patience` evaluations back.

        A value that is not finite is worse than all others.
        """
        metric = args.metric_for_best_model.removeprefix("eval_")
        sign = 1 if args.greater_is_better else -1
        values = []
        for line in state.log_history:
            value = line.get(f"eval_{metric}")
            if value is not None:
                values.append(sign * value if math.isfinite(value) else -math.inf)
        if not self.is_training or not values:
            return
        evaluations_since_best = len(values) - 1 - values.index(max(values))
        if evaluations_since_best >= self.patience:
            control.should_training_stop = True
            self.is_training = False
            if state.is_world_process_zero:
                logger.info(
                    "stopped early: %d evaluations in a row have no better %s than the one before "
                    "them",
                    self.patience,
                    metric,
                )


# Our choices for a run by the clock, as fractions of its minutes. The intervals of a file are in
# steps, and a slow machine has few of them.
MEASURED_EVERY = 0.2  # evaluations and checkpoints, at least so often
LOGGED_EVERY = 0.02
MOST_FOR_EVALUATIONS = 0.2  # part of the minutes that evaluations take, at most


class ClockIntervals(TrainerCallback):
    """Logs, measures and saves a run by the clock at least at fixed fractions of its minutes.

    The intervals of its settings, in steps, may be too long for its minutes.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Begin where the clock is, in a resumed run too."""
        clock = self.trainer.clock
        self.longest_step = 0.0
        self.clock_of_last_step = clock
        self.clock_of_last = {"should_log": clock, "should_evaluate": clock, "should_save": clock}

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for a log line, an evaluation and a checkpoint where they are due."""
        # The clock is the same in all processes. The evaluation after a step is part of the time of
        # the next step.
        clock = self.trainer.clock
        self.longest_step = max(self.longest_step, clock - self.clock_of_last_step)
        self.clock_of_last_step = clock
        measured_every = max(MEASURED_EVERY, self.longest_step / MOST_FOR_EVALUATIONS)
        self._ask(control, "should_log", args.logging_strategy, LOGGED_EVERY)
        self._ask(control, "should_evaluate", args.eval_strategy, measured_every)
        self._ask(control, "should_save", args.save_strategy, measured_every)

    def _ask(self, control: TrainerControl, event: str, strategy: str, interval: float) -> None:
        clock = self.trainer.clock
        is_due = clock - self.clock_of_last[event] >= interval
        if strategy == "steps" and (is_due or getattr(control, event)):
            setattr(control, event, True)
            self.clock_of_last[event] = clock


class CountEpochs(TrainerCallback):
    """Counts the passes over the data at each step, for other callbacks and for the state.

    To stock the whole run is one pass of the loader.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Set the epochs of the state, at each step and in front of a first evaluation."""
        state.epoch = self.trainer.epochs_at(state.global_step)

    on_step_end = on_train_begin


class SaveAtEpochs(TrainerCallback):
    """Asks for a checkpoint, to be kept, after each number of passes in `save_at_epochs`."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Ask where one of the numbers has been passed in this step."""
        step = state.global_step
        epochs_before = self.trainer.epochs_at(step - 1)
        # The steps of a run are rounded down: its last pass may end within what would be one more.
        is_last = step == state.max_steps
        epochs = self.trainer.epochs_at(step + 1 if is_last else step)
        if any(epochs_before < number <= epochs for number in args.save_at_epochs):
            control.should_save = True
            self.trainer.kept_steps.append(step)


class MomentumWarmup(TrainerCallback):
    """Raises the momentum of Muon's matrices in the first part of a run."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the momentum of the coming step."""
        momentum = momentum_of_muon(self.trainer.progress, args.muon_momentum_warmup)
        for group in self.trainer.optimizer.param_groups:
            if "momentum" in group:
                group["momentum"] = momentum


class DrawPieces(TrainerCallback):
    """Gives a model its sampled softmax while it is trained, and draws the pieces of each step."""

    def __init__(self, softmax: SampledSoftmax) -> None:
        self._softmax = softmax

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the model the softmax."""
        kwargs["model"].sampled_softmax = self._softmax

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take it back: who trains the model without this Trainer would draw no pieces."""
        kwargs["model"].sampled_softmax = None

    def on_step_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Draw; the same for every process and micro-batch of the step."""
        self._softmax.draw(state.global_step)


# SIGTERM comes from Slurm, Kubernetes and `kill`, SIGINT from Ctrl-C.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopOnSignal(TrainerCallback):
    """Ends a run at SIGTERM or SIGINT, after the step that is being computed, with a checkpoint.

    Of several processes one that has got the signal is enough; they end after the next step. A
    second SIGINT ends the process at once, with exit code 130: whoever presses Ctrl-C twice does
    not want to wait. Later SIGTERMs change nothing, as launchers pass them on more than once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the one that asked this process to stop
        self._leaves_block = False
        self.begin()

    def begin(self) -> None:
        """Begin a training."""
        self.is_stopped = False
        # How many of several processes were asked to stop before this step
        # (`RecipeTrainer._share_counts`).
        self.num_asked: LateNumber | None = None

    def stop(self, control: TrainerControl) -> None:
        """End the training at this step.

        `control.is_interrupted` tells other callbacks that the run is not finished.
        """
        self.is_stopped = True
        control.should_training_stop = True
        control.is_interrupted = True

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Stop where this process was asked to; of several, where all know that one was."""
        is_asked = self.signal is not None
        if self.num_asked is not None:
            is_asked = self.num_asked.read() > 0
        if is_asked or self.is_stopped:
            self.stop(control)
            control.should_save = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals inside of the block; Python cannot outside of the main thread."""
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
        """Let the first signal leave the block where it is, while listening.

        The block must wait for no other process and write nothing.
        """
        self._leaves_block = True
        try:
            yield
        except Interrupted:
            pass  # `signal` is set, so the caller's `check_stop` raises
        finally:
            self._leaves_block = False

    def _remember(self, number: int, frame: FrameType | None) -> None:
        # Without logging: the interrupted code may hold the lock of logging.
        if self.signal is None:
            self.signal = number
            if is_main_process():
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
    """Leave signals to the process that trains, in `DataLoader`'s workers, which get Ctrl-C too."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())
