"""What a run prints while it goes: one aligned line per logging step and per evaluation, instead of the library's dictionaries."""

from collections.abc import Mapping
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from bert_recipes.training.arguments import MOST_STEPS


# Name in the log -> label, and how its value is written. What is not listed is in trainer_state.json and with the trackers.
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
}
_FRACTIONS = ("accuracy", "f1", "exact", "precision", "recall")
# Of an evaluation: how long it took, and what its neighbours say already.
_LEFT_OUT = (
    "runtime",
    "seconds",
    "_number",
    "per_second",
    "_pairs",
    "_tokens",
    "perplexity",
    "eval_loss",
    "test_loss",
    "baseline",
    "unigram",
    "majority",
)


def time_left(hours: float) -> str:
    """A duration as people say it.

    Example:
        >>> time_left(0.02), time_left(0.5), time_left(7.4)
        ('1 min left', '30 min left', '7.4 h left')
    """
    return f"{hours:.1f} h left" if hours >= 1 else f"{max(1, round(hours * 60))} min left"


def training_line(logs: Mapping[str, Any], step: int, max_steps: int) -> str:
    """A line of the training log."""
    parts = [f"{label} {form.format(logs[name])}" for name, (label, form) in _TRAINING.items() if name in logs]
    if logs.get("data_wait_share", 0.0) >= 0.05:
        parts.append(f"waiting for data {logs['data_wait_share']:.0%}")
    if "hours_left" in logs and step < max_steps:
        parts.append(time_left(logs["hours_left"]))
    return _at(step, max_steps) + "  ".join(parts)


def evaluation_line(logs: Mapping[str, Any], step: int, max_steps: int) -> str:
    """A line of an evaluation: each metric beside what is reached without a model, where that is known."""
    parts = []
    prefix = "test_" if any(name.startswith("test_") for name in logs) else "eval_"
    for name, value in logs.items():
        if (
            not name.startswith(prefix)
            or not isinstance(value, int | float)
            or any(part in name for part in _LEFT_OUT)
            or name.removeprefix(prefix)[
                0
            ].isupper()  # of one type of entities or questions: the table at the end has them
        ):
            continue
        label = name.removeprefix(prefix).replace("_", " ").replace("mlm", "masked-LM")
        label = (
            label.replace("nsp", "next-sentence").replace("sop", "sentence-order").replace("disc", "replaced-token")
        )
        is_fraction = name.endswith(_FRACTIONS) and 0 <= value <= 1
        parts.append(f"{label} {value:.1%}" if is_fraction else f"{label} {value:.3f}")
    return _at(step, max_steps) + ("test: " if prefix == "test_" else "held out: ") + "  ".join(parts)


def _at(step: int, max_steps: int) -> str:
    last = f"{max_steps:,}"
    if max_steps >= MOST_STEPS:
        return f"step {step:>7,}  "
    return "" if not max_steps else f"step {step:>{len(last)},}/{last}  "


class Lines(TrainerCallback):
    """Prints these lines, in the main process."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """A line of the training or of an evaluation."""
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            line = training_line if "loss" in logs else evaluation_line
            self.write(line(logs, state.global_step, state.max_steps))

    def write(self, line: str) -> None:
        """To stdout."""
        print(line, flush=True)  # noqa: T201


class LinesAboveBar(Lines, ProgressCallback):
    """The same above stock's progress bar."""

    def write(self, line: str) -> None:
        """To where the bar is not."""
        if self.training_bar is None:
            super().write(line)
        else:
            self.training_bar.write(line)
