"""Weights & Biases: online where there is a key and a network, else offline, to be put online later."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState
from transformers.integrations import WandbCallback

from bert_recipes.hub_access import can_connect
from bert_recipes.trackers.tracker import TrackedRun, Tracker


logger = logging.getLogger(__name__)

# Ours: how long a run waits for the server before it starts, and at its end. wandb itself waits 90 seconds and for ever.
_SECONDS = {"init_timeout": 30.0, "finish_timeout": 120.0}
_IMAGES = (".png",)


class _Callback(WandbCallback):
    """Its copies of what WANDB_LOG_MODEL names lie in the run's folder, too."""

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """As stock."""
        with _copies_in_run():
            super().setup(*args, **kwargs)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """As stock."""
        with _copies_in_run():
            super().on_save(*args, **kwargs)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: stock makes a second Trainer to write the model, which lies in the run's folder as a whole."""


class WandbTracker(Tracker):
    """`WandbCallback`, whose run lies in the run's folder and is recorded offline where it cannot be online."""

    def __init__(self) -> None:
        super().__init__("wandb", _Callback())
        self._is_ours = False

    def open(self, run: TrackedRun, state: TrainerState, control: TrainerControl, model: Any = None) -> None:
        """Start a run of wandb, unless the caller's program has one; with the same id where our run goes on.

        A run that goes on offline, or online where the server does not know it, as it was begun offline, gets the log of all its
        steps: what is put online replaces what was there under its id.
        """
        import wandb

        self._run, self._is_ours = run, wandb.run is None
        if self._is_ours:
            self._init()
        self.callback.setup(run.args, state, model)
        wandb.config.update(dict(run.config), allow_val_change=True)
        run.note(self.name, {"id": wandb.run.id})
        if run.goes_on and self._is_ours and (wandb.run.offline or not wandb.run.resumed):
            for line in state.log_history:
                past = copy.copy(state)
                past.global_step = line["step"]
                logs = {name: value for name, value in line.items() if name != "step"}
                self.callback.on_log(run.args, past, control, model=model, logs=logs)

    def _init(self) -> None:
        import wandb

        mode = wandb.setup().settings.mode
        if mode not in ("online", "shared", "run"):
            self._start(mode)
            return
        reason = _why_not_online()
        if reason is None:
            try:
                self._start(mode)
                return
            except (wandb.Error, OSError) as error:
                reason = " ".join(str(error).split())
        self._start("offline")
        place = Path(wandb.run.dir).parent
        logger.warning(
            "wandb: %s; the run is recorded offline. To put it online later: wandb login, then wandb sync %s; "
            "WANDB_MODE=offline says that this is meant",
            *(reason, place),
        )

    def _start(self, mode: str) -> None:
        """`wandb.init`; what wandb's own environment variables say wins over our choices."""
        import wandb

        run, given = self._run, os.environ
        kept = None if "WANDB_RUN_ID" in given else run.notes(self.name).get("id")
        wandb.init(
            project=given.get("WANDB_PROJECT", run.args.project),
            name=None if "WANDB_NAME" in given and run.args.run_name is None else run.name,
            id=kept,
            # Offline nobody knows whether there is such a run.
            resume="allow" if kept is not None and mode not in ("offline", "dryrun") else None,
            # What is only measured may have a folder that does not stay.
            dir=None if "WANDB_DIR" in given or not run.config else str(run.folder.absolute()),
            mode=mode,
            settings=wandb.Settings(
                **{name: value for name, value in _SECONDS.items() if f"WANDB_{name.upper()}" not in given}
            ),
        )

    def add_files(self, files: Sequence[Path]) -> None:
        """One artifact with all files, and the plots as images; with WANDB_LOG_MODEL the model, too."""
        import wandb

        if wandb.run.disabled:
            return
        images = {f"report/{file.stem}": wandb.Image(str(file)) for file in files if file.suffix in _IMAGES}
        if images:
            wandb.log(images)
        self._log_artifact("report", "report", files)
        if os.environ.get("WANDB_LOG_MODEL", "false").lower() in ("end", "checkpoint"):
            self._log_artifact("model", "model", _model_files(self._run.folder))

    def _log_artifact(self, name: str, kind: str, files: Sequence[Path]) -> None:
        import wandb

        with _copies_in_run():
            artifact = wandb.Artifact(f"{name}-{wandb.run.id}", type=kind)
            for file in files:
                artifact.add_file(str(file), name=file.name)
            wandb.run.log_artifact(artifact)

    def close(self, *, failed: bool) -> None:
        """Finish the run of wandb, if it is ours."""
        if self._is_ours:
            import wandb

            wandb.finish(exit_code=int(failed))


def _why_not_online() -> str | None:
    """Why a run cannot be online, found out without asking anybody for a key and within seconds; None if it can."""
    import wandb

    settings = wandb.setup().settings
    try:
        if not wandb.login(prompt=False, verify=False):
            return "there is no API key"
    except wandb.Error as error:
        return " ".join(str(error).split())
    return None if can_connect(settings.base_url) else f"{settings.base_url} cannot be reached"


def _model_files(folder: Path) -> list[Path]:
    """The finished model in Hub form: weights, configuration, tokenizer."""
    names = ("*.safetensors", "config.json", "generation_config.json", "tokenizer*.json", "vocab.txt")
    return sorted(file for name in names for file in folder.glob(name))


@contextmanager
def _copies_in_run() -> Iterator[None]:
    """Let wandb copy an artifact's files into the run's folder, from which `wandb sync` takes them, not into the user's home."""
    import wandb

    name = "WANDB_DATA_DIR"
    if name in os.environ or wandb.run is None or wandb.run.disabled:
        yield
        return
    os.environ[name] = str(Path(wandb.run.dir).parent)
    try:
        yield
    finally:
        del os.environ[name]
