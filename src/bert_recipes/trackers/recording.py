"""The trackers of a run, each at a distance: one that fails is dropped with one warning, and the run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

from bert_recipes.config import resolved_values
from bert_recipes.errors import InputError
from bert_recipes.trackers.tensorboard_tracker import TensorBoardTracker
from bert_recipes.trackers.tracker import TrackedRun, Tracker
from bert_recipes.trackers.trackio_tracker import TrackioTracker
from bert_recipes.trackers.wandb_tracker import WandbTracker


logger = logging.getLogger(__name__)

TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
}
# What of a finished run's folder is kept with the tracker's run.
_FILES = ("README.md", "report.md", "report.html", "*.png", "run.yaml", "task.yaml", "all_results.json")


class GuardedTracker:
    """Passes the Trainer's events on to a tracker until the tracker fails.

    Args:
        tracker: What may fail.
        run: What it is told.
    """

    def __init__(self, tracker: Tracker, run: TrackedRun) -> None:
        """Open nothing yet: whether there will be anything to log is not known."""
        self.tracker: Tracker | None = tracker
        self.run = run
        self._is_open = False
        self._last: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def end(self, files: Sequence[Path], *, failed: bool) -> None:
        """End the tracker's run, where it has begun.

        Args:
            files: To be kept with it.
            failed: The run ends with an error.
        """
        if self._is_open and files:
            self._attempt("keeping files", lambda tracker: tracker.add_files(files))
        if self._is_open:
            args, kwargs = self._last
            self._attempt("its end", lambda tracker: tracker.callback.on_train_end(*args, **kwargs))
            self._attempt("its end", lambda tracker: tracker.close(failed=failed))
        self.tracker = None

    def pass_on(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the tracker's callback an event; before its first one the tracker is opened."""
        self._last = (args, state, control), {name: value for name, value in kwargs.items() if name != "logs"}

        def call(tracker: Tracker) -> None:
            getattr(tracker.callback, event)(args, state, control, **kwargs)

        if self._is_open:
            self._attempt(event, call)
            return
        self._attempt("its start", lambda tracker: tracker.open(self.run, state, control, kwargs.get("model")))
        self._is_open = True
        self._attempt(event, call)

    def _attempt(self, what: str, call: Callable[[Tracker], object]) -> None:
        if self.tracker is None:
            return
        try:
            call(self.tracker)
        except Exception as error:  # whatever somebody else's library raises: no log is worth the run
            name, self.tracker = self.tracker.name, None
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            logger.warning("%s fails at %s (%s); the run goes on without it", name, what, reason)
            logger.debug("what %s did", name, exc_info=True)


class Trackers(TrainerCallback):
    """What `report_to` names, for one run; in the main process only.

    `on_train_end` is not passed on, as a run may have several phases and is measured after the last, and the report is
    written after that (`finish`); nor is `on_push_begin`, with which Trackio would publish the log in a Space that nobody
    has asked for.

    Args:
        args: The run's settings.

    Raises:
        InputError: A tracker cannot be had, for example because its package is missing.
    """

    def __init__(self, args: TrainingArguments) -> None:
        """Make the callbacks; nothing is opened before the first figure."""
        self.run = TrackedRun(args)
        names = [name for name in args.report_to or [] if name] if args.process_index == 0 else []
        self.guards = [GuardedTracker(_make(name), self.run) for name in names]

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Pass it on."""
        self._pass_on("on_train_begin", *args, **kwargs)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Pass it on."""
        self._pass_on("on_step_end", *args, **kwargs)

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Pass it on."""
        self._pass_on("on_evaluate", *args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Pass it on."""
        self._pass_on("on_log", *args, **kwargs)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Pass it on."""
        self._pass_on("on_save", *args, **kwargs)

    def on_predict(self, *args: Any, **kwargs: Any) -> None:
        """Pass it on."""
        self._pass_on("on_predict", *args, **kwargs)

    def _pass_on(self, event: str, *args: Any, **kwargs: Any) -> None:
        for guard in self.guards:
            guard.pass_on(event, *args, **kwargs)

    @contextmanager
    def recording(self, configs: Sequence[Any], *, goes_on: bool) -> Iterator[None]:
        """Around the training of a run: what it is, and an end for the trackers if it fails.

        Args:
            configs: The dataclasses of the run, resolved.
            goes_on: Whether it goes on from a checkpoint in its own folder.
        """
        self.run.config, self.run.goes_on = resolved_values(*configs), goes_on
        if self.guards and not goes_on:
            self.run.forget_notes()
        try:
            yield
        except BaseException:
            self._end([], failed=True)
            raise

    def finish(self) -> None:
        """Keep the finished run's card, report, plots, configuration and results with each tracker's run, and end that."""
        folder = self.run.folder
        self._end(sorted({file for name in _FILES for file in folder.glob(name)}), failed=False)

    def _end(self, files: Sequence[Path], *, failed: bool) -> None:
        for guard in self.guards:
            guard.end(files, failed=failed)


def _make(name: str) -> Tracker:
    try:
        if name in TRACKERS:
            return TRACKERS[name]()
        (callback,) = get_reporting_integration_callbacks([name])
        return Tracker(name, callback())
    except (RuntimeError, ImportError, ValueError) as error:
        raise InputError(f"report_to: {name} cannot be used: {error}") from error
