"""Trackio: a local database, or a Space of the Hub where one is named and within reach."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState
from transformers.integrations import TrackioCallback

from bert_recipes.hub_access import why_unreachable
from bert_recipes.trackers.tracker import TrackedRun, Tracker


logger = logging.getLogger(__name__)


class _Callback(TrackioCallback):
    """Begun by `TrackioTracker`."""

    def setup(self, args: Any, state: Any, model: Any, **kwargs: Any) -> None:
        """Take the run that is open."""
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
        super().__init__("trackio", _Callback())

    def open(self, run: TrackedRun, state: TrainerState, control: TrainerControl, model: Any = None) -> None:
        """Start a run of trackio, or go on with the one that this run has begun."""
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
