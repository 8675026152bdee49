"""Callbacks of both Trainers: an end in good order at a signal, warnings about the loss, and what a run costs.

Energy and CO2 are estimates: the power draw that the user gives times the time, or what codecarbon (an extra) reads off or
models on each machine; times the carbon intensity that is given, or codecarbon's for a country. Nothing here reaches the
network, and nothing that goes wrong while it is measured ends a run.
"""

import logging
import math
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bert_recipes.errors import Interrupted
from bert_recipes.training.emissions import EnergySettings


logger = logging.getLogger(__name__)

_SECONDS_PER_HOUR, _WATTS_PER_KILOWATT, _GRAMS_PER_KILOGRAM = 3600.0, 1000.0, 1000.0
# How often codecarbon reads the power; its own default.
_MEASURE_SECONDS = 15


class CostMeter:
    """Hours, energy and CO2 of a run: those of its parts before, as the checkpoint says, and of this one, the `with` block.

    What a process computed after its last checkpoint and before it was killed is in no sum: that work is lost.
    """

    def __init__(self, args: Any) -> None:
        self.settings: EnergySettings = args.energy
        self._num_processes = args.world_size
        self._is_given = args.process_index == 0 and self.settings.power_watts is not None
        wants_tracker = self.settings.power_watts is None and self.settings.country_iso_code is not None
        self._has_tracker = args.local_process_index == 0 and wants_tracker
        self._tracker: Any = None
        # codecarbon's newest totals.
        self._last: Any = None
        self._before: Mapping[str, Any] = {}
        self._since: float | None = None
        self._seconds = 0.0

    def __enter__(self) -> None:
        self._before, self._seconds, self._last = {}, 0.0, None
        self._since = time.perf_counter()
        if self._has_tracker:
            self._tracker = self._make_tracker()
            self._tracker.start()

    def __exit__(self, *error: object) -> None:
        if self._since is not None:
            self._seconds, self._since = time.perf_counter() - self._since, None
        if self._tracker is not None:
            self._tracker.stop()
            self._tracker = None

    def resume(self, before: Mapping[str, Any] | None) -> None:
        """Add what `so_far` said in a checkpoint; None for one that says nothing: then the sums are not complete."""
        self._before = {"is_whole": False} if before is None else dict(before)

    def so_far(self) -> dict[str, Any]:
        """The sums over all parts, processes and machines, JSON; every process must call it.

        Returns:
            `seconds`; `is_whole`: whether they are known from the run's first step on; with an estimate of the energy also
            `energy_seconds` (for which it is known), `energy_kwh`, `methods`, and with a carbon intensity `co2_kg`.
        """
        seconds = self._seconds if self._since is None else time.perf_counter() - self._since
        own: dict[str, Any] = {"kwh": self._kilowatt_hours(seconds), "method": self._method}
        everyone = gather_object([own]) if self._num_processes > 1 else [own]
        before = self._before
        total: dict[str, Any] = {
            "seconds": before.get("seconds", 0.0) + seconds,
            "is_whole": before.get("is_whole", True),
        }
        readings = [each for each in everyone if each["kwh"] is not None]
        if not readings and "energy_kwh" not in before:
            return total
        kwh = sum(each["kwh"] for each in readings)
        total["energy_seconds"] = before.get("energy_seconds", 0.0) + (seconds if readings else 0.0)
        total["energy_kwh"] = before.get("energy_kwh", 0.0) + kwh
        # The ways of measuring of all parts, the newest values of each.
        now = [each["method"] for each in readings if each["method"] is not None]
        kinds = {method.split(";")[0] for method in now}
        old = [method for method in before.get("methods", ()) if method.split(";")[0] not in kinds]
        total["methods"] = list(dict.fromkeys([*old, *now]))
        intensity = self.settings.grams_per_kilowatt_hour
        # A sum of which a part is not known is not known.
        if (intensity is not None or not readings) and ("energy_kwh" not in before or "co2_kg" in before):
            total["co2_kg"] = before.get("co2_kg", 0.0) + kwh * (intensity or 0.0) / _GRAMS_PER_KILOGRAM
        return total

    def _kilowatt_hours(self, seconds: float) -> float | None:
        """Energy of this part; None where this process measures nothing, or codecarbon could not."""
        if self._is_given and self.settings.power_watts is not None:
            return self.settings.power_watts / _WATTS_PER_KILOWATT * seconds / _SECONDS_PER_HOUR
        if self._tracker is not None:
            self._tracker.flush()
        if self._last is None or not math.isfinite(self._last.energy_consumed):
            return None
        return float(self._last.energy_consumed)

    @property
    def _method(self) -> str | None:
        if self._is_given:
            return f"a given power draw of {self.settings.power_watts:g} W times the hours"
        if self._last is None:
            return None
        powers = [(part, getattr(self._last, f"{part.lower()}_power")) for part in ("CPU", "GPU", "RAM")]
        means = " + ".join(f"{part} {watts:.1f} W" for part, watts in powers if watts)
        version, mode = self._last.codecarbon_version, self._last.tracking_mode
        return f"codecarbon {version}, tracking mode {mode}; on average {means or 'no power'}"

    def _make_tracker(self) -> Any:
        """A tracker of codecarbon that writes no file and asks nobody; its methods log what goes wrong and raise nothing."""
        logging.getLogger("codecarbon").setLevel(logging.CRITICAL)  # it also speaks before it knows its own level
        from codecarbon import OfflineEmissionsTracker

        return OfflineEmissionsTracker(
            country_iso_code=self.settings.country_iso_code,
            # Whatever the user's own configuration of codecarbon says: no file, no service, no lock.
            output_methods=[],
            output_handlers=[self],
            emissions_endpoint=None,
            electricitymaps_api_token=None,
            force_carbon_intensity_g_co2e_kwh=self.settings.grams_per_kilowatt_hour,
            allow_multiple_runs=True,
            measure_power_secs=_MEASURE_SECONDS,
            api_call_interval=-1,
            tracking_mode="machine",
            log_level="critical",
        )

    # What codecarbon calls when it is flushed or stopped (its BaseOutput).

    def out(self, total: Any, delta: Any) -> None:
        """Keep codecarbon's totals."""
        self._last = total

    live_out = out

    def task_out(self, data: Any, experiment_name: str) -> None:
        """Nothing: there are no tasks."""

    def exit(self) -> None:
        """Nothing: no file is open."""


def cost_facts(cost: Mapping[str, Any], settings: EnergySettings) -> dict[str, Any]:
    """What all_results.json says of `CostMeter.so_far` after training.

    Returns:
        `train_seconds`, over all parts of the run; `train_seconds_is_whole`, false where the first ones are not known;
        `energy`, an estimate, where there is one.
    """
    facts: dict[str, Any] = {"train_seconds": round(cost["seconds"], 1), "train_seconds_is_whole": cost["is_whole"]}
    if "energy_kwh" in cost:
        energy: dict[str, Any] = {"kwh": cost["energy_kwh"], "seconds": round(cost["energy_seconds"], 1)}
        if "co2_kg" in cost:
            energy["co2_kg"] = cost["co2_kg"]
        facts["energy"] = energy | {"estimated_by": "; ".join(cost["methods"])} | settings.describe()
    elif settings != EnergySettings():
        logger.warning("codecarbon could not measure the energy of this run; all_results.json says nothing of it")
    return facts


# Our choices: how near to the baseline counts as stuck, and after which fraction of the steps past warm-up a warning comes.
STUCK_MARGIN_NATS = 0.1
STUCK_AFTER_FRACTION = 0.1
_SLOWER = "a lower learning rate, a longer warm-up, or resume from an earlier checkpoint (--resume FOLDER)"

# A training loss this far above the mean of the lines before, in their deviations and in nats, is a spike.
SPIKE_DEVIATIONS, SPIKE_NATS = 6.0, 0.5
SPIKE_MEMORY = 50


def describe_spike(losses: Sequence[float], step: int) -> str | None:
    """A sentence when the last of the logged training losses (nats) jumps out of the `SPIKE_MEMORY` before it, else None."""
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

    `metrics` are an evaluation's, with or without the prefix "eval_".
    """
    values = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    if not {"unigram_loss", "mlm_loss"} <= values.keys() or step < warmup_steps + STUCK_AFTER_FRACTION * max_steps:
        return None
    if not math.isfinite(values["mlm_loss"]):
        return f"at step {step} the held-out masked-LM loss is not finite: training has diverged; {_SLOWER}"
    gain = values["unigram_loss"] - values["mlm_loss"]
    if gain > STUCK_MARGIN_NATS:
        return None
    message = (
        f"at step {step} the held-out masked-LM loss is {values['mlm_loss']:.2f}; guessing by word frequency alone gives "
        f"{values['unigram_loss']:.2f}: "
    )
    if gain < -STUCK_MARGIN_NATS:
        return f"{message}the model is worse than that. More steps if the loss still falls; if it rose or jumps, {_SLOWER}"
    return (
        f"{message}nothing shows that the model has learned more than the frequencies. What helps: more steps (large models "
        "sit here for thousands), a higher learning rate (tiny to small: 5e-4 to 2e-3), a longer warm-up or lower rate if "
        "the loss jumps, a larger global batch, a smaller model on a small corpus; and look at what the model sees with "
        "`make show-data`"
    )


class LossWatch(TrainerCallback):
    """Logs `describe_progress` after an evaluation, and `describe_spike` after a line of the training log."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Warn when the loss jumps."""
        if "loss" not in (kwargs.get("logs") or {}) or not state.is_world_process_zero:
            return
        recent = state.log_history[-2 * SPIKE_MEMORY - 2 :]
        message = describe_spike([line["loss"] for line in recent if "loss" in line], state.global_step)
        if message:
            logger.warning(message)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Warn when the loss is no better than the unigram loss."""
        warmup = args.get_warmup_steps(state.max_steps)
        message = describe_progress(kwargs.get("metrics") or {}, state.global_step, state.max_steps, warmup)
        if message and state.is_world_process_zero:
            logger.warning(message)


# What Slurm, Kubernetes and `kill` send, and what Ctrl-C sends.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopOnSignal(TrainerCallback):
    """Ends a run after the step that is being computed, with a checkpoint, once SIGTERM or SIGINT has come to one of its processes.

    A second SIGINT ends the process at once, with exit code 130: whoever presses Ctrl-C twice does not want to wait. Later
    SIGTERMs change nothing, as launchers pass them on more than once.
    """

    def __init__(self) -> None:
        #: Number of the signal that asked this process to stop.
        self.signal: int | None = None
        self._leaves_block = False
        self.begin()

    def begin(self) -> None:
        """A training begins."""
        self.is_stopped = False
        #: float (), on the device: by step, how many processes have been asked; to be added by who sums up a step's counts.
        self.flags: list[torch.Tensor] = []

    def stop(self, control: TrainerControl) -> None:
        """End the training at this step; `control.is_interrupted` tells other callbacks that it is no end of a run."""
        self.is_stopped = control.should_training_stop = True
        control.is_interrupted = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop where all processes know that one was asked to."""
        if args.world_size == 1:
            is_asked = self.signal is not None
        else:
            # The sum of the step before: it is there by now, and reading it makes no device wait.
            known = self.flags[0] if self.flags else None
            del self.flags[:-1]
            is_asked = known is not None and bool(known > 0)
        if is_asked or self.is_stopped:
            self.stop(control)
            control.should_save = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals inside of the block; in a thread other than the main one Python cannot."""
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
        """While listening: the first signal leaves the block where it is, so the block must wait for no other process and write nothing."""
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
                _say(f"{signal.Signals(number).name}: stopping in good order; Ctrl-C again leaves at once")
            if self._leaves_block:
                raise Interrupted(f"stopped by {signal.Signals(number).name}", 128 + number)
        elif number == signal.SIGINT:
            _say("left at once")
            os._exit(128 + signal.SIGINT)


def ignore_signals(worker: int = 0) -> None:
    """Leave signals to the process that trains: for `DataLoader`'s workers, which get Ctrl-C too."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())
