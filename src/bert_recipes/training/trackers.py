"""Trackers of a run (Weights & Biases, TensorBoard, Trackio): callbacks of transformers, guarded so
that none can harm the run.
"""

import contextlib
import copy
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import (
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
    get_reporting_integration_callbacks,
)

from bert_recipes.config import resolved_values
from bert_recipes.errors import InputError
from bert_recipes.files import write_json
from bert_recipes.hub_access import can_connect, why_unreachable
from bert_recipes.training.resume import run_name


logger = logging.getLogger(__name__)

NOTES_FILE = "trackers.json"
# What of a finished run's folder is kept with the tracker's run, and what the finished model is.
_FILES = (
    "README.md",
    "report.md",
    "report.html",
    "*.png",
    "run.yaml",
    "task.yaml",
    "all_results.json",
)
_MODEL = ("*.safetensors", "config.json", "generation_config.json", "tokenizer*.json", "vocab.txt")
# Ours: how long a run waits for wandb's server before it starts, and at its end. wandb itself waits
# 90 seconds and for ever.
_SECONDS = {"init_timeout": 30.0, "finish_timeout": 120.0}


class Trackers(TrainerCallback):
    """What `report_to` names, for one run; in the main process only. A tracker that fails is
    dropped with one warning.

    A tracker is started before its first event. `on_train_end` waits for `finish`, as a run may
    have several phases, is measured after the last, and its report is written after that;
    `on_push_begin`, with which Trackio would publish the log in a Space that nobody has asked for,
    is not passed on. Callbacks may have `start(trackers, state, model)`, `add_files(files)` and
    `close(failed)` beside transformers' events.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.args, self.folder = args, Path(args.output_dir)
        self.name = args.run_name or run_name(self.folder)
        # Every resolved setting by name, without secrets; empty where nothing is trained.
        self.config: dict[str, Any] = {}
        self.resumes = False  # from a checkpoint in its own folder
        self._notes_file = self.folder / NOTES_FILE
        names = [name for name in args.report_to or [] if name] if args.process_index == 0 else []
        self.callbacks = {name: _make(name) for name in names}
        self._started: set[str] = set()
        self._last: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    @property
    def notes(self) -> dict[str, dict[str, str]]:
        """What each tracker noted, to find its own run again, when this run was started."""
        is_there = self.config and self._notes_file.is_file()
        return json.loads(self._notes_file.read_text(encoding="utf-8")) if is_there else {}

    def note(self, tracker: str, values: dict[str, str]) -> None:
        """Keep a tracker's note in the run's folder."""
        if self.config:
            write_json(self._notes_file, self.notes | {tracker: values})

    def _pass_on(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last = (
            (args, state, control),
            {name: value for name, value in kwargs.items() if name != "logs"},
        )
        for name in [*self.callbacks]:
            if name not in self._started:
                self._started.add(name)
                if hasattr(self.callbacks[name], "start"):
                    self._tell(name, "start", self, state, kwargs.get("model"))
                else:
                    self._tell(name, "on_init_end", args, state, control, model=kwargs.get("model"))
            self._tell(name, event, args, state, control, **kwargs)

    def _tell(self, name: str, event: str, *args: Any, **kwargs: Any) -> None:
        try:
            getattr(self.callbacks.get(name), event, lambda *_, **__: None)(*args, **kwargs)
        except (
            Exception
        ) as error:  # whatever somebody else's library raises: no log is worth the run
            del self.callbacks[name]
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            logger.warning("%s fails at %s (%s); the run continues without it", name, event, reason)
            logger.debug("what %s did", name, exc_info=True)

    @contextmanager
    def recording(self, configs: Sequence[Any], *, resumes: bool) -> Iterator[None]:
        """Tell the trackers of the run (its resolved dataclasses), and end them if its training
        fails.
        """
        self.config, self.resumes = resolved_values(*configs), resumes
        if self.callbacks and not resumes:
            self._notes_file.unlink(
                missing_ok=True
            )  # of another run that was started in the folder
        try:
            yield
        except BaseException:
            self._end([], failed=True)
            raise

    def finish(self) -> None:
        """Keep the finished run's card, report, plots, configuration and results with each
        tracker's run, and end that.
        """
        self._end(_find(self.folder, _FILES), failed=False)

    def _end(self, files: Sequence[Path], *, failed: bool) -> None:
        args, kwargs = self._last
        for name in [name for name in self.callbacks if name in self._started]:
            if files:
                self._tell(name, "add_files", files)
            self._tell(name, "on_train_end", *args, **kwargs)
            self._tell(name, "close", failed)
        self.callbacks = {}


for _event in ("on_train_begin", "on_step_end", "on_evaluate", "on_log", "on_save", "on_predict"):
    setattr(Trackers, _event, partialmethod(Trackers._pass_on, _event))


def _make(name: str) -> TrainerCallback:
    try:
        return (OWN.get(name) or get_reporting_integration_callbacks([name])[0])()
    except (RuntimeError, ImportError, ValueError) as error:
        raise InputError(f"report_to: {name} cannot be used: {error}") from error


def _find(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in folder.glob(pattern)})


class _TensorBoard(TensorBoardCallback):
    """Always in the same folder, so that a run that resumes is one run."""

    logging_dir: str | None

    def start(self, run: Trackers, state: Any, model: Any) -> None:
        own = run.folder / "runs"
        folder = Path(self.logging_dir or own)
        # Steps that an interrupted run had made after its last checkpoint are made again: their
        # first figures count no more.
        first_step = (
            state.global_step + 1 if run.resumes else 0 if folder == own and own.is_dir() else None
        )
        self.logging_dir = str(folder)
        self.tb_writer = self._SummaryWriter(log_dir=self.logging_dir, purge_step=first_step)
        if run.config:
            rows = [f"| {name} | {value} |" for name, value in run.config.items()]
            table = "\n".join(["| setting | value |", "| --- | --- |", *rows])
            # At step 0, as texts at a later step would be hidden when the run goes on.
            self.tb_writer.add_text("run.yaml", table, global_step=0)

    def add_files(self, files: Sequence[Path]) -> None:
        from PIL import Image

        for file in files:
            if file.suffix == ".png":
                with Image.open(file) as image:
                    pixels = np.asarray(image.convert("RGB"))
                self.tb_writer.add_image(f"report/{file.stem}", pixels, dataformats="HWC")
            elif file.suffix == ".md":
                self.tb_writer.add_text(
                    f"report/{file.stem}", file.read_text(encoding="utf-8"), global_step=0
                )
            elif file.suffix in (".json", ".yaml"):
                text = f"```\n{file.read_text(encoding='utf-8')}\n```"
                self.tb_writer.add_text(f"files/{file.name}", text, global_step=0)


class _Trackio(TrackioCallback):
    """Its run has a name of its own, which is found again; what trackio prints is no result of the
    recipe.
    """

    def start(self, run: Trackers, state: Any, model: Any) -> None:
        args = run.args
        space = args.trackio_space_id or os.environ.get("TRACKIO_SPACE_ID")
        try:
            if space and (obstacle := why_unreachable()) is not None:
                raise OSError(obstacle)
            self._init(run, model, space)
        except (OSError, ValueError, RuntimeError) as error:
            if not space and "TRACKIO_SERVER_URL" not in os.environ:
                raise
            for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):  # trackio reads them itself
                os.environ.pop(name, None)
            self._init(run, model, None)
            logger.warning(
                "trackio: %s; the run is recorded on this machine. To put it online later: "
                "trackio sync --project %s "
                "--space-id %s",
                *(" ".join(str(error).split()), args.project, space or "NAME"),
            )

    def _init(self, run: Trackers, model: Any, space: str | None) -> None:
        args, kept = run.args, run.notes.get("trackio", {}).get("name")
        config = {**model.config.to_dict(), "model/num_parameters": model.num_parameters()}
        config |= {**args.to_dict(), **run.config}
        with contextlib.redirect_stdout(sys.stderr):
            opened = self._trackio.init(
                project=args.project,
                # Of its own: the next run in a folder of this name is another one.
                name=kept or args.run_name or f"{run.name}-{secrets.token_hex(2)}",
                space_id=space,
                resume="never" if kept is None else "allow",
                private=args.hub_private_repo,
                bucket_id=args.trackio_bucket_id if space else None,
                config={key: value for key, value in config.items() if not key.startswith("_")},
            )
        self._space_id = self._trackio.context_vars.current_space_id.get()
        self._initialized, self._name = True, opened.name
        run.note("trackio", {"name": opened.name})

    def on_train_end(self, args: Any, *others: Any, **kwargs: Any) -> None:
        """As stock, which then publishes a copy of the Space; here only under a name that the user
        has given it.
        """
        if not args.trackio_static_space_id:
            self._space_id = None
        with contextlib.redirect_stdout(sys.stderr):
            super().on_train_end(args, *others, **kwargs)

    def add_files(self, files: Sequence[Path]) -> None:
        """One artifact with all files; plots as images and reports as text in the dashboard."""
        trackio, shown = self._trackio, {}
        artifact = trackio.Artifact(
            f"report-{re.sub(r'[^A-Za-z0-9._-]', '-', self._name)}", type="report"
        )
        for file in files:
            artifact.add_file(str(file), name=file.name)
            if file.suffix == ".png":
                shown[f"report/{file.stem}"] = trackio.Image(str(file))
            elif file.suffix == ".md":
                shown[f"report/{file.stem}"] = trackio.Markdown(file.read_text(encoding="utf-8"))
        with contextlib.redirect_stdout(sys.stderr):
            if shown:
                trackio.log(shown)
            trackio.log_artifact(artifact)


class _Wandb(WandbCallback):
    """Its run lies in the run's folder, and is recorded offline where it cannot be online."""

    def start(self, run: Trackers, state: Any, model: Any) -> None:
        """Start a run of wandb, unless the caller's program has one; with the same id where our run
        goes on.

        A run that goes on offline, or online where the server does not know it, as it was started
        offline, gets the log of all its
        steps: what is put online replaces what was there under its id.
        """
        wandb, self._folder = self._wandb, run.folder
        self._is_ours = wandb.run is None
        if self._is_ours:
            self._init(run)
        with self._copies_in_run():
            self.setup(run.args, state, model)
        wandb.config.update(run.config, allow_val_change=True)
        run.note("wandb", {"id": wandb.run.id})
        if run.resumes and self._is_ours and (wandb.run.offline or not wandb.run.resumed):
            for line in state.log_history:
                past = copy.copy(state)
                past.global_step = line["step"]
                logs = {name: value for name, value in line.items() if name != "step"}
                self.on_log(run.args, past, None, model=model, logs=logs)

    def _init(self, run: Trackers) -> None:
        """`wandb.init`; what wandb's own environment variables say wins over our choices."""
        wandb, given = self._wandb, os.environ
        kept = None if "WANDB_RUN_ID" in given else run.notes.get("wandb", {}).get("id")

        def begin(mode: str) -> None:
            wandb.init(
                project=given.get("WANDB_PROJECT", run.args.project),
                name=None if "WANDB_NAME" in given and run.args.run_name is None else run.name,
                id=kept,
                # Offline nobody knows whether there is such a run.
                resume="allow" if kept is not None and mode not in ("offline", "dryrun") else None,
                # What is only measured may have a folder that does not stay.
                dir=None if "WANDB_DIR" in given or not run.config else str(run.folder.absolute()),
                mode=mode,
                settings={
                    name: value
                    for name, value in _SECONDS.items()
                    if f"WANDB_{name.upper()}" not in given
                },
            )

        settings = wandb.setup().settings
        if settings.mode not in ("online", "shared", "run"):
            begin(settings.mode)
            return
        try:
            # Found out without asking anybody for a key, and within seconds.
            if not wandb.login(prompt=False, verify=False):
                raise OSError("there is no API key")
            if not can_connect(settings.base_url):
                raise OSError(f"{settings.base_url} cannot be reached")
            begin(settings.mode)
        except (wandb.Error, OSError) as error:
            begin("offline")
            logger.warning(
                "wandb: %s; the run is recorded offline. To put it online later: wandb login, "
                "then wandb sync %s; "
                "WANDB_MODE=offline says that this is meant",
                *(" ".join(str(error).split()), Path(wandb.run.dir).parent),
            )

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        with self._copies_in_run():
            super().on_save(*args, **kwargs)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: stock makes a second Trainer to write the model, which lies in the run's folder
        as a whole.
        """

    def add_files(self, files: Sequence[Path]) -> None:
        """One artifact with all files, and the plots as images; with WANDB_LOG_MODEL the model,
        too.
        """
        wandb = self._wandb
        if wandb.run.disabled:
            return
        if images := {
            f"report/{file.stem}": wandb.Image(str(file)) for file in files if file.suffix == ".png"
        }:
            wandb.log(images)
        artifacts = {"report": files} | (
            {"model": _find(self._folder, _MODEL)} if self._log_model.is_enabled else {}
        )
        for name, content in artifacts.items():
            with self._copies_in_run():
                artifact = wandb.Artifact(f"{name}-{wandb.run.id}", type=name)
                for file in content:
                    artifact.add_file(str(file), name=file.name)
                wandb.run.log_artifact(artifact)

    @contextmanager
    def _copies_in_run(self) -> Iterator[None]:
        """Copy an artifact's files into the run's folder, from which `wandb sync` takes them, not
        into the user's home.
        """
        name, run = "WANDB_DATA_DIR", self._wandb.run
        if name in os.environ or run.disabled:
            yield
            return
        os.environ[name] = str(Path(run.dir).parent)
        try:
            yield
        finally:
            del os.environ[name]

    def close(self, failed: bool) -> None:
        """Finish the run of wandb, if it is ours."""
        if self._is_ours:
            self._wandb.finish(exit_code=int(failed))


OWN: dict[str, Callable[[], TrainerCallback]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
}
