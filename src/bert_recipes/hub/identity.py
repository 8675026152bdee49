"""Which run a model comes from: a number that its folder, its checkpoints and its repository share."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from bert_recipes.whole_files import write_json


IDENTITY_FILE = "run_identity.json"
FORMAT = "bert-recipes run"


def parse_run_id(text: str) -> str | None:
    """The run's number out of the text of its file; None where it says nothing of one."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None
    run_id = content.get("run_id")
    return run_id if isinstance(run_id, str) and run_id else None


def read_run_id(folder: Path) -> str | None:
    """The run that a folder's model comes from; None where nobody knows.

    Args:
        folder: A run, a checkpoint, or anything else.
    """
    try:
        return parse_run_id((folder / IDENTITY_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def write_run_id(path: Path, run_id: str) -> None:
    """Write a run's number."""
    write_json(path, {"format": FORMAT, "run_id": run_id})


def keep_run_id(folder: Path, checkpoint: Path | None) -> str:
    """The number of the run in a folder, or of the checkpoint that it goes on from; a new one for a new run.

    Args:
        folder: output_dir; gets the file where it has none.
        checkpoint: What the run goes on from.
    """
    run_id = read_run_id(folder)
    if run_id is None:
        known = None if checkpoint is None else read_run_id(checkpoint)
        run_id = known or uuid.uuid4().hex
        write_run_id(folder / IDENTITY_FILE, run_id)
    return run_id
