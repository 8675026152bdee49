"""Trackers of a run (Weights & Biases, TensorBoard, Trackio): what `report_to` names, made so that none can harm the run."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
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


@dataclass
class TrackedRun:
    """A run as its trackers see it."""

    args: TrainingArguments
    # Every resolved setting by name, without secrets; empty where nothing is trained.
    config: Mapping[str, Any] = field(default_factory=dict)
    # It resumes from a checkpoint in its own folder.
    resumes: bool = False

    @property
    def folder(self) -> Path:
        """output_dir."""
        return Path(self.args.output_dir)

    @property
    def name(self) -> str:
        """run_name, or that of the folder."""
        return self.args.run_name or run_name(self.folder)

    def notes(self, tracker: str) -> dict[str, str]:
        """What a tracker noted when this run was begun; nothing for a run that begins."""
        return self._read_notes().get(tracker, {}) if self.resumes else {}

    def note(self, tracker: str, values: dict[str, str]) -> None:
        """Keep, in the run's folder, how a tracker finds its own run again."""
        if self.config:
            write_json(self.folder / NOTES_FILE, self._read_notes() | {tracker: values})

    def _read_notes(self) -> dict[str, dict[str, str]]:
        try:
            return dict(json.loads((self.folder / NOTES_FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read (%s): trackers begin new runs", self.folder / NOTES_FILE, error)
            return {}


class Tracker:
    """A callback of transformers, which logs, and what it lacks: a start that cannot fail for want of a key, the run's files."""

    def __init__(self, name: str, callback: TrainerCallback) -> None:
        self.name, self.callback = name, callback

    def open(self, run: TrackedRun, state: TrainerState, control: TrainerControl, model: Any = None) -> None:
        """Begin the tracker's run, or resume it; called once, before the callback gets its first event.

        `state` has the log of the steps before, where the run resumes.
        """
        # Some begin there.
        self.callback.on_init_end(run.args, state, control, model=model)

    def add_files(self, files: Sequence[Path]) -> None:
        """Keep files of the finished run with the tracker's run: report, plots, configuration, results."""

    def close(self, *, failed: bool) -> None:
        """End what `on_train_end` of the callback does not end."""


class TensorBoardTracker(Tracker):
    """`TensorBoardCallback`, always in the same folder, so that a run that resumes is one run."""

    def __init__(self) -> None:
        super().__init__("tensorboard", TensorBoardCallback())

    def open(self, run: TrackedRun, state: TrainerState, control: TrainerControl, model: Any = None) -> None:
        """Open output_dir/runs, or what TENSORBOARD_LOGGING_DIR says.

        Steps that an interrupted run had made after its last checkpoint are made again: their first figures count no more.
        """
        own = run.folder / "runs"
        folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR", own)).expanduser()
        first_step = state.global_step + 1 if run.resumes else 0 if folder == own and own.is_dir() else None
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(log_dir=str(folder), purge_step=first_step)
        # A later phase of a run opens another writer in this folder.
        self.callback.tb_writer, self.callback.logging_dir = self.writer, str(folder)
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


class _TrackioCallback(TrackioCallback):
    """Begun by `TrackioTracker`."""

    def setup(self, args: Any, state: Any, model: Any, **kwargs: Any) -> None:
        self._space_id = self._trackio.context_vars.current_space_id.get()
        self._initialized = True

    def on_train_end(self, args: Any, *others: Any, **kwargs: Any) -> None:
        """As stock, which then publishes a copy of the Space; here only under a name that the user has given it."""
        if not args.trackio_static_space_id:
            self._space_id = None
        with _on_stderr():
            super().on_train_end(args, *others, **kwargs)


class TrackioTracker(Tracker):
    """`TrackioCallback`, whose run has a name of its own that is found again."""

    def __init__(self) -> None:
        super().__init__("trackio", _TrackioCallback())

    def open(self, run: TrackedRun, state: TrainerState, control: TrainerControl, model: Any = None) -> None:
        """Start a run of trackio, or resume the one that this run has begun."""
        args = run.args
        space = args.trackio_space_id or os.environ.get("TRACKIO_SPACE_ID")
        reason = why_unreachable() if space else None
        if reason is None:
            try:
                self._start(run, model, space)
                return
            except (OSError, ValueError, RuntimeError) as error:
                if not space and "TRACKIO_SERVER_URL" not in os.environ:
                    raise
                reason = " ".join(str(error).split())
        # trackio reads them itself.
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
            os.environ.pop(name, None)
        self._start(run, model, None)
        logger.warning(
            "trackio: %s; the run is recorded on this machine. To put it online later: trackio sync --project %s "
            "--space-id %s",
            *(reason, args.project, space or "NAME"),
        )

    def _start(self, run: TrackedRun, model: Any, space: str | None) -> None:
        import trackio

        args, kept = run.args, run.notes(self.name).get("name")
        # Of its own: the next run in a folder of this name is another one.
        name = kept or args.run_name or f"{run.name}-{secrets.token_hex(2)}"
        config: dict[str, Any] = {}
        if hasattr(model, "config"):
            config = {**model.config.to_dict(), "model/num_parameters": model.num_parameters()}
        config |= {**args.to_dict(), **run.config}
        with _on_stderr():
            opened = trackio.init(
                project=args.project,
                name=name,
                space_id=space,
                resume="never" if kept is None else "allow",
                private=args.hub_private_repo,
                bucket_id=args.trackio_bucket_id if space else None,
                config={key: value for key, value in config.items() if not key.startswith("_")},
            )
        self._name = opened.name
        run.note(self.name, {"name": opened.name})

    def add_files(self, files: Sequence[Path]) -> None:
        """One artifact with all files; plots as images and reports as text in the dashboard."""
        import trackio

        shown: dict[str, Any] = {
            f"report/{file.stem}": trackio.Image(str(file)) for file in files if file.suffix == ".png"
        }
        shown |= {
            f"report/{file.stem}": trackio.Markdown(file.read_text(encoding="utf-8"))
            for file in files
            if file.suffix == ".md"
        }
        artifact = trackio.Artifact(f"report-{re.sub(r'[^A-Za-z0-9._-]', '-', self._name)}", type="report")
        for file in files:
            artifact.add_file(str(file), name=file.name)
        with _on_stderr():
            if shown:
                trackio.log(shown)
            trackio.log_artifact(artifact)


def _on_stderr() -> contextlib.redirect_stdout[Any]:
    """What trackio prints is no result of the recipe."""
    return contextlib.redirect_stdout(sys.stderr)


# Ours: how long a run waits for the server before it starts, and at its end. wandb itself waits 90 seconds and for ever.
_SECONDS = {"init_timeout": 30.0, "finish_timeout": 120.0}


class _WandbCallback(WandbCallback):
    """Its copies of what WANDB_LOG_MODEL names lie in the run's folder, too."""

    def setup(self, *args: Any, **kwargs: Any) -> None:
        with _copies_in_run():
            super().setup(*args, **kwargs)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        with _copies_in_run():
            super().on_save(*args, **kwargs)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: stock makes a second Trainer to write the model, which lies in the run's folder as a whole."""


class WandbTracker(Tracker):
    """`WandbCallback`, whose run lies in the run's folder and is recorded offline where it cannot be online."""

    def __init__(self) -> None:
        super().__init__("wandb", _WandbCallback())
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
        if run.resumes and self._is_ours and (wandb.run.offline or not wandb.run.resumed):
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
        logger.warning(
            "wandb: %s; the run is recorded offline. To put it online later: wandb login, then wandb sync %s; "
            "WANDB_MODE=offline says that this is meant",
            *(reason, Path(wandb.run.dir).parent),
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
        images = {f"report/{file.stem}": wandb.Image(str(file)) for file in files if file.suffix == ".png"}
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


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
}
# What of a finished run's folder is kept with the tracker's run.
_FILES = ("README.md", "report.md", "report.html", "*.png", "run.yaml", "task.yaml", "all_results.json")


class Trackers(TrainerCallback):
    """What `report_to` names, for one run; in the main process only. A tracker that fails is dropped with one warning.

    A tracker is opened before its first event. `on_train_end` waits for `finish`, as a run may have several phases, is measured
    after the last, and its report is written after that; `on_push_begin`, with which Trackio would publish the log in a Space
    that nobody has asked for, is not passed on.
    """

    def __init__(self, args: TrainingArguments) -> None:
        self.run = TrackedRun(args)
        names = [name for name in args.report_to or [] if name] if args.process_index == 0 else []
        self.trackers = [_make(name) for name in names]
        self._opened: set[str] = set()
        self._last: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def _pass_on(
        self, event: str, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._last = (args, state, control), {name: value for name, value in kwargs.items() if name != "logs"}
        for tracker in [*self.trackers]:
            if tracker.name not in self._opened:
                self._attempt(tracker, "its start", tracker.open, self.run, state, control, kwargs.get("model"))
                self._opened.add(tracker.name)
            self._attempt(tracker, event, getattr(tracker.callback, event), args, state, control, **kwargs)

    def _attempt(self, tracker: Tracker, what: str, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        if tracker not in self.trackers:
            return
        try:
            call(*args, **kwargs)
        except Exception as error:  # whatever somebody else's library raises: no log is worth the run
            self.trackers.remove(tracker)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            logger.warning("%s fails at %s (%s); the run goes on without it", tracker.name, what, reason)
            logger.debug("what %s did", tracker.name, exc_info=True)

    @contextmanager
    def recording(self, configs: Sequence[Any], *, resumes: bool) -> Iterator[None]:
        """Tell the trackers of the run (its resolved dataclasses), and end them if its training fails."""
        self.run.config, self.run.resumes = resolved_values(*configs), resumes
        if self.trackers and not resumes:
            (self.run.folder / NOTES_FILE).unlink(missing_ok=True)  # of another run that was begun in the folder
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
        args, kwargs = self._last
        for tracker in [each for each in self.trackers if each.name in self._opened]:
            if files:
                self._attempt(tracker, "keeping files", tracker.add_files, files)
            self._attempt(tracker, "its end", tracker.callback.on_train_end, *args, **kwargs)
            self._attempt(tracker, "its end", tracker.close, failed=failed)
        self.trackers = []


def _passing_on(event: str) -> Callable[..., None]:
    return lambda self, *args, **kwargs: self._pass_on(event, *args, **kwargs)


for _event in ("on_train_begin", "on_step_end", "on_evaluate", "on_log", "on_save", "on_predict"):
    setattr(Trackers, _event, _passing_on(_event))


def _make(name: str) -> Tracker:
    try:
        if name in TRACKERS:
            return TRACKERS[name]()
        (callback,) = get_reporting_integration_callbacks([name])
        return Tracker(name, callback())
    except (RuntimeError, ImportError, ValueError) as error:
        raise InputError(f"report_to: {name} cannot be used: {error}") from error
