"""Print one aligned line per logging step and per evaluation."""

import time
from collections.abc import Mapping
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from bert_recipes.training.arguments import NO_STEP_LIMIT


# Name in the log -> label, and format of the value. Other values are in trainer_state.json and with
# the trackers.
_TRAINING = {
    "loss": ("loss", "{:.3f}"),
    "mlm_loss": ("masked-LM", "{:.3f}"),
    "nsp_loss": ("next-sentence", "{:.3f}"),
    "sop_loss": ("sentence-order", "{:.3f}"),
    "disc_loss": ("replaced tokens", "{:.4f}"),
    "grad_norm": ("gradient", "{:.2f}"),
    "learning_rate": ("rate", "{:.1e}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.0%}"),
    "epoch": ("epoch", "{:.3g}"),
}
_FRACTIONS = ("accuracy", "f1", "exact", "precision", "recall")
# Part of a metric's name -> text that is printed instead.
_LONG_WORDS = {
    "_": " ",
    "mlm": "masked-LM",
    "nsp": "next-sentence",
    "sop": "sentence-order",
    "disc": "replaced-token",
}
# Parts of the names that the line of an evaluation leaves out: times, and values that follow from
# others.
_LEFT_OUT = (
    "runtime",
    "seconds",
    "_number",
    "per_second",
    "_pairs",
    "_tokens",
    "perplexity",
    "bits_per_character",
    "eval_loss",
    "test_loss",
    "baseline",
    "unigram",
    "majority",
)
# Our choices. After this time the seconds of a step are known well enough to be printed.
FIRST_LINE_SECONDS = 3.0
# The same where only one micro-batch is timed.
FIRST_LINE_SECONDS_OF_ONE_MICRO_BATCH = 8.0
# A line is printed at least this often.
MAX_SILENCE_SECONDS = 60.0
# A run by the clock should have more steps (docs/books.md).
FEW_STEPS = 3000


def format_hours(hours: float) -> str:
    """Return a duration in seconds, minutes, hours or days.

    Example:
        >>> format_hours(0.02), format_hours(0.5), format_hours(7.4), format_hours(150)
        ('72 s', '30 min', '7.4 h', '6.2 days')
    """
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    if hours >= 1:
        return f"{hours:.1f} h"
    seconds = round(3600 * hours)
    return f"{seconds / 60:.0f} min" if seconds > 100 else f"{max(1, seconds)} s"


def pace_line(trainer: Any, seconds: float) -> str:
    """Return the line with the time that a run will take; `seconds` is the time of a step."""
    state = trainer.state
    minutes = trainer.args.max_minutes
    steps = state.max_steps
    num_resumed = trainer.num_resumed_steps
    has_phases = trainer.num_phases > 1
    if minutes is not None:
        steps = 60 * minutes / seconds
        num_resumed = 0
        all_steps = f"about {steps:,.0f} steps in {minutes:g} minutes"
    elif num_resumed:
        duration = format_hours((steps - num_resumed) * seconds / 3600)
        all_steps = f"the {steps - num_resumed:,} steps of this start take about {duration}"
    else:
        duration = format_hours(steps * seconds / 3600)
        all_steps = f"{steps:,} steps take about {duration}, without evaluations"
        if has_phases:
            all_steps += ", if inputs of the second phase were as short as those of the first"
    # How long the epochs of a later phase are is not known yet.
    first, end = num_resumed, steps
    if has_phases:
        first = max(num_resumed, trainer.first_step)
        end = trainer.phase_end
    passes = trainer.epochs_at(end) - trainer.epochs_at(first)
    number = f"{passes:,.0f}" if passes >= 10 else f"{passes:.2g}"
    when = " in this phase" if has_phases else ""
    all_steps += f" ({number} passes over the data{when})"
    if minutes is not None and steps < FEW_STEPS:
        all_steps += (
            ", which are few: the smallest models learn most in their first "
            f"{FEW_STEPS:,} (docs/books.md)"
        )
    pace = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return f"{_step_label(state.global_step, state.max_steps)}a step takes {pace} s: {all_steps}"


def training_line(logs: Mapping[str, Any], step: int, max_steps: int) -> str:
    """Return a line of the training log."""
    columns = []
    for name, (label, number_format) in _TRAINING.items():
        if name in logs:
            number = number_format.format(logs[name])
            columns.append(f"{label} {number}")
    data_wait_share = logs.get("data_wait_share", 0.0)
    if data_wait_share >= 0.05:
        columns.append(f"waiting for data {data_wait_share:.0%}")
    if "hours_left" in logs and step < max_steps:
        duration = format_hours(logs["hours_left"])
        columns.append(f"{duration} left")
    return _step_label(step, max_steps) + "  ".join(columns)


def evaluation_line(logs: Mapping[str, Any], step: int, max_steps: int) -> str:
    """Return a line of an evaluation."""
    is_test = any(name.startswith("test_") for name in logs)
    prefix = "test_" if is_test else "eval_"
    columns = []
    for name, value in logs.items():
        metric = name.removeprefix(prefix)
        if metric == name or not isinstance(value, int | float):
            continue
        # The name of a type of entities or questions begins with a capital letter. These metrics
        # are in the table at the end.
        if metric[0].isupper() or any(word in name for word in _LEFT_OUT):
            continue
        for short, long in _LONG_WORDS.items():
            metric = metric.replace(short, long)
        is_fraction = name.endswith(_FRACTIONS) and 0 <= value <= 1
        columns.append(f"{metric} {value:.1%}" if is_fraction else f"{metric} {value:.3f}")
    title = "test: " if is_test else "held out: "
    return _step_label(step, max_steps) + title + "  ".join(columns)


def _step_label(step: int, max_steps: int) -> str:
    if max_steps == 0:
        return ""
    if max_steps >= NO_STEP_LIMIT:
        return f"step {step:>7,}  "
    last = f"{max_steps:,}"
    return f"step {step:>{len(last)},}/{last}  "


class LogPrinter(TrainerCallback):
    """Print a line for each log and each evaluation, in the main process.

    The first line comes soon and has the seconds of a step. Later ones follow each other within
    `MAX_SILENCE_SECONDS`.

    Args:
        trainer: Whose log is printed.
    """

    _has_printed_pace = False

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        super().on_train_begin(args, state, control, **kwargs)
        self._last_line = time.monotonic()
        self._micro_batch_ends: list[float] = []  # until the pace is printed

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print the pace once, and later the step where nothing was printed for long."""
        super().on_step_end(args, state, control, **kwargs)
        if not state.is_world_process_zero:
            return
        now = time.monotonic()
        silence = now - self._last_line
        if self._has_printed_pace:
            if silence > MAX_SILENCE_SECONDS:
                self._write_line(_step_label(state.global_step, state.max_steps))
            return
        # The first micro-batch allocates and compiles: later ones are timed, if there are any.
        self._micro_batch_ends.append(now)
        num_timed = len(self._micro_batch_ends) - 1
        if num_timed:
            seconds = (now - self._micro_batch_ends[0]) / num_timed
            first_line_seconds = FIRST_LINE_SECONDS
        elif args.device.type == "cpu":
            seconds = silence
            first_line_seconds = FIRST_LINE_SECONDS_OF_ONE_MICRO_BATCH
        else:  # a GPU compiles for longer than many of its steps take
            return
        if silence > first_line_seconds:
            seconds *= args.gradient_accumulation_steps
            self._write_line(pace_line(self.trainer, seconds))
            self._has_printed_pace = True

    # Time micro-batches too; within a step the bar does not move.
    on_substep_end = on_step_end

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print the line of a log or of an evaluation."""
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            if "hours_left" in logs:
                self._has_printed_pace = True
            format_line = training_line if "loss" in logs else evaluation_line
            line = format_line(logs, state.global_step, state.max_steps)
            self._write_line(line)

    def _write_line(self, line: str) -> None:
        self._last_line = time.monotonic()
        self.write(line)

    def write(self, line: str) -> None:
        """Write to stdout."""
        print(line, flush=True)  # noqa: T201


class LogPrinterAboveBar(LogPrinter, ProgressCallback):
    """Print the lines of `LogPrinter` above stock's progress bar."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw a bar; a run by the clock has one without an end, as its steps are not known."""
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None and state.max_steps >= NO_STEP_LIMIT:
            self.training_bar.total = None

    def write(self, line: str) -> None:
        """Write above the bar."""
        if self.training_bar is None:
            super().write(line)
        else:
            self.training_bar.write(line)
