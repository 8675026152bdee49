"""What a tracker is told of its run, and what one has beside the callback that transformers brings."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bert_recipes.run_folder import name_of_run
from bert_recipes.whole_files import write_json


logger = logging.getLogger(__name__)

NOTES_FILE = "trackers.json"


@dataclass
class TrackedRun:
    """A run as its trackers see it.

    Attributes:
        args: Its settings.
        config: Every resolved setting of all its dataclasses, by name; no secrets. Empty where nothing is trained.
        goes_on: Whether it goes on from a checkpoint in its own folder.
    """

    args: TrainingArguments
    config: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False

    @property
    def folder(self) -> Path:
        """output_dir."""
        return Path(self.args.output_dir)

    @property
    def name(self) -> str:
        """run_name, or that of the folder."""
        return self.args.run_name or name_of_run(self.folder)

    def notes(self, tracker: str) -> dict[str, str]:
        """What a tracker noted when this run was begun; nothing for a run that begins."""
        return self._read_notes().get(tracker, {}) if self.goes_on else {}

    def note(self, tracker: str, values: dict[str, str]) -> None:
        """Keep, in the run's folder, how a tracker finds its own run again."""
        if self.config:
            write_json(self.folder / NOTES_FILE, self._read_notes() | {tracker: values})

    def forget_notes(self) -> None:
        """Those of another run that was begun in the folder."""
        (self.folder / NOTES_FILE).unlink(missing_ok=True)

    def _read_notes(self) -> dict[str, dict[str, str]]:
        try:
            return dict(json.loads((self.folder / NOTES_FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read (%s): trackers begin new runs", self.folder / NOTES_FILE, error)
            return {}


class Tracker:
    """A callback of transformers, which logs, and what it lacks: a start that cannot fail for want of a key, the run's files.

    Args:
        name: As `report_to` names it.
        callback: Of transformers.
    """

    def __init__(self, name: str, callback: TrainerCallback) -> None:
        self.name, self.callback = name, callback

    def open(self, run: TrackedRun, state: TrainerState, control: TrainerControl, model: Any = None) -> None:
        """Begin the tracker's run, or go on with it; called once, before the callback gets its first event.

        Args:
            run: What there is to say of it.
            state: Of the Trainer; its log is that of the steps before, where the run goes on.
            control: Of the Trainer.
            model: What is trained.
        """
        # Some begin there.
        self.callback.on_init_end(run.args, state, control, model=model)

    def add_files(self, files: Sequence[Path]) -> None:
        """Keep files of the finished run with the tracker's run: report, plots, configuration, results."""

    def close(self, *, failed: bool) -> None:
        """End what `on_train_end` of the callback does not end.

        Args:
            failed: The run ends with an error.
        """
