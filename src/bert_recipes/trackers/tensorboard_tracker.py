"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerControl, TrainerState
from transformers.integrations import TensorBoardCallback

from bert_recipes.trackers.tracker import TrackedRun, Tracker


FOLDER = "runs"


class TensorBoardTracker(Tracker):
    """`TensorBoardCallback`, always in the same folder, so that a run that goes on is one run."""

    def __init__(self) -> None:
        """Make the callback; it gets its writer later."""
        super().__init__("tensorboard", TensorBoardCallback())

    def open(self, run: TrackedRun, state: TrainerState, control: TrainerControl, model: Any = None) -> None:
        """Open output_dir/runs, or what TENSORBOARD_LOGGING_DIR says.

        Steps that an interrupted run had made after its last checkpoint are made again: their first figures count no more.
        """
        own = run.folder / FOLDER
        place = Path(os.environ.get("TENSORBOARD_LOGGING_DIR", own)).expanduser()
        first_step = state.global_step + 1 if run.goes_on else 0 if place == own and own.is_dir() else None
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(log_dir=str(place), purge_step=first_step)
        # A later phase of a run opens another writer in this folder.
        self.callback.tb_writer, self.callback.logging_dir = self.writer, str(place)
        if run.config:
            rows = [f"| {name} | {value} |" for name, value in run.config.items()]
            self._add_text("run.yaml", "\n".join(["| setting | value |", "| --- | --- |", *rows]))

    def _add_text(self, name: str, text: str) -> None:
        # Beside the figures of the last step, as a step of its own would be hidden when the run goes on.
        self.writer.add_text(name, text, global_step=0)

    def add_files(self, files: Sequence[Path]) -> None:
        """Plots as images, reports as text, other files as they are."""
        from PIL import Image

        for file in files:
            if file.suffix == ".png":
                with Image.open(file) as image:
                    self.writer.add_image(f"report/{file.stem}", np.asarray(image.convert("RGB")), dataformats="HWC")
            elif file.suffix == ".md":
                self._add_text(f"report/{file.stem}", file.read_text(encoding="utf-8"))
            elif file.suffix in (".json", ".yaml"):
                self._add_text(f"files/{file.name}", f"```\n{file.read_text(encoding='utf-8')}\n```")
        self.writer.flush()
