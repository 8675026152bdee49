"""Checkpoints that cannot lie: written aside, described by a manifest, and only then given their name.

A folder `checkpoint-N` exists when all of it is on the disk, or not at all: a process may be killed, a machine may lose its
power at any instant. What its files hold is written down with sizes and hashes, so that a damaged one is seen before it is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from bert_recipes.errors import InputError
from bert_recipes.files import hash_of, sync_paths, write_json
from bert_recipes.hub_access import is_hub_name, why_unreachable


logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
FORMAT, FORMAT_VERSION = "bert-recipes checkpoint", 1
# What a run goes on from, beside weights and optimiser in the form of its engine: the Trainer's state, and what it forgets.
STATE_FILE, PROGRESS_FILE = "trainer_state.json", "progress.json"
_REQUIRED = (STATE_FILE, PROGRESS_FILE, "scheduler.pt")
_NAME = re.compile(r"checkpoint-(\d+)")
# Begins the names of folders that are being written or deleted: nothing in them counts.
ASIDE_PREFIX = ".aside-"
ABANDONED_PREFIX = "abandoned-"


@dataclass(frozen=True)
class PassedOver:
    """A folder that is no complete checkpoint.

    Attributes:
        path: The folder.
        reason: What is wrong with it.
    """

    path: Path
    reason: str


def aside_of(run_folder: Path) -> Path:
    """The folder in which a run's next checkpoint is written."""
    return run_folder / f"{ASIDE_PREFIX}saving"


def seal(folder: Path) -> None:
    """Write everything in a folder down to the disk, and a manifest of it.

    Args:
        folder: A checkpoint that is not yet called so.
    """
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": hash_of(path)}
        for path in _files_of(folder)
    }
    write_json(folder / MANIFEST_FILE, {"format": FORMAT, "format_version": FORMAT_VERSION, "files": files})
    sync_paths([*folder.rglob("*"), folder])


def put_in_place(aside: Path, target: Path) -> None:
    """Give a sealed folder its name; one of that name is deleted.

    Args:
        aside: The sealed folder.
        target: `checkpoint-N` in the same run folder.
    """
    old = target.with_name(f"{ASIDE_PREFIX}old-{target.name}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    aside.rename(target)
    sync_paths([target.parent])
    shutil.rmtree(old, ignore_errors=True)


def why_incomplete(folder: Path) -> str | None:
    """Why a folder is no complete checkpoint; None if it is. Reads all of it.

    Args:
        folder: Any path.
    """
    reason = _why_not_sound(folder)
    if reason is not None:
        return reason
    for name, facts in _read_manifest(folder).items():
        if hash_of(folder / name) != facts["sha256"]:
            return f"{name} is not what was written (its hash differs)"
    return None


def _why_not_sound(folder: Path) -> str | None:
    """Why a folder cannot be complete, as far as names and sizes say."""
    if not folder.is_dir():
        return "there is no such folder"
    try:
        files = _read_manifest(folder)
    except FileNotFoundError:
        return f"it has no {MANIFEST_FILE}: its writing was interrupted, or it was not written by this project"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST_FILE} is damaged or of another format ({type(error).__name__})"
    for name in (*_REQUIRED, *files):
        if name not in files:
            return f"it has no {name}: a model alone, which no run goes on from"
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != files[name]["size"]:
            return f"{name} has {path.stat().st_size:,} bytes instead of {files[name]['size']:,}"
    return None


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """File -> size and hash."""
    content = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    if (content["format"], content["format_version"]) != (FORMAT, FORMAT_VERSION):
        raise ValueError("another format")
    return {
        name: {"size": int(facts["size"]), "sha256": str(facts["sha256"])} for name, facts in content["files"].items()
    }


def list_checkpoints(run_folder: Path) -> list[Path]:
    """The folders `checkpoint-N` of a run by step, complete or not."""
    found = {}
    for path in run_folder.glob("checkpoint-*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found[int(match[1])] = path
    return [path for _, path in sorted(found.items())]


def last_complete(run_folder: Path) -> tuple[Path | None, list[PassedOver]]:
    """The newest complete checkpoint of a run, and the newer ones that are not.

    Args:
        run_folder: output_dir.
    """
    passed: list[PassedOver] = []
    for path in reversed(list_checkpoints(run_folder)):
        reason = why_incomplete(path)
        if reason is None:
            return path, passed
        passed.append(PassedOver(path, reason))
    return None, passed


def rotate(run_folder: Path, limit: int | None, keep: Collection[Path] = ()) -> None:
    """Delete the oldest checkpoints.

    Args:
        run_folder: output_dir.
        limit: How many to leave; None or 0: all. Damaged ones do not count: the newest that is whole always stays.
        keep: Never deleted: the best one.
    """
    if not limit or limit < 0:
        return
    kept = {path.resolve() for path in keep}
    # By what can be seen without reading all of it: this is done at every save.
    sound = [path for path in list_checkpoints(run_folder) if _why_not_sound(path) is None]
    kept |= {path.resolve() for path in sound[-1:]}
    spare = [path for path in sound if path.resolve() not in kept]
    for path in spare[: max(0, len(sound) - max(limit, len(kept)))]:
        # First its name goes: what is half deleted is not called a checkpoint.
        doomed = path.with_name(f"{ASIDE_PREFIX}old-{path.name}")
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def set_aside_later(run_folder: Path, checkpoint: Path) -> list[Path]:
    """Take the name from the checkpoints after one that a run goes on from: they are another future of it, or damaged.

    Otherwise they would count as the newest ones, and those that the run writes now as old ones to be deleted.

    Args:
        run_folder: output_dir.
        checkpoint: Of the same folder.

    Returns:
        Where they are now: `abandoned-checkpoint-N`; one that was abandoned before them at the same step is deleted.
    """
    moved = []
    checkpoints = list_checkpoints(run_folder)
    for path in checkpoints[checkpoints.index(run_folder / checkpoint.name) + 1 :]:
        target = path.with_name(f"{ABANDONED_PREFIX}{path.name}")
        shutil.rmtree(target, ignore_errors=True)
        path.rename(target)
        moved.append(target)
    return moved


def remove_leftovers(run_folder: Path) -> None:
    """Delete what a killed process left while it wrote or deleted a checkpoint; put back one that it was about to replace."""
    for old in run_folder.glob(f"{ASIDE_PREFIX}old-checkpoint-*"):
        target = run_folder / old.name.removeprefix(f"{ASIDE_PREFIX}old-")
        if not target.exists() and why_incomplete(old) is None:
            old.rename(target)
    for path in run_folder.glob(f"{ASIDE_PREFIX}*"):
        logger.info("%s: left by an interrupted save, deleted", path)
        shutil.rmtree(path, ignore_errors=True)


def read_step(checkpoint: Path) -> int:
    """Optimiser steps that a complete checkpoint's model has done."""
    try:
        return int(json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{checkpoint / STATE_FILE}: no global_step in it; it is no state of a Trainer") from error


def _files_of(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)


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


CARD_FILE = "README.md"
_SEAL = re.compile(r"\n*<!-- bert-recipes: SHA-256 of the text above [0-9a-f]{64} -->\s*$")


def seal_card(text: str) -> str:
    """Put the hash of a card's text at its end, by which `is_generated_card` knows one that nobody has edited."""
    text = _SEAL.sub("", text).rstrip()
    return f"{text}\n\n<!-- bert-recipes: SHA-256 of the text above {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def is_generated_card(folder: Path) -> bool:
    """Whether a card may be written there: there is none, or one that is as this project wrote it."""
    if not (folder / CARD_FILE).exists():
        return True
    try:
        text = (folder / CARD_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return text == seal_card(text)


def check_checkpoint(name: str) -> bool:
    """See that a checkpoint is there, before anything heavy is done.

    Args:
        name: Folder or Hub name.

    Returns:
        Whether only the local Hub cache can be asked for it.
    """
    if not name.strip():
        raise InputError("model_name_or_path is empty; give a checkpoint folder or a Hub name")
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"model_name_or_path: {name} {_why_no_model(folder)}")
        if not any((folder / file).is_file() for file in ("model.safetensors", "model.safetensors.index.json")):
            raise InputError(f"model_name_or_path: {name} has no model.safetensors; no other weights are opened")
        return False
    if not is_hub_name(name):
        raise InputError(f"model_name_or_path: no folder {name}; give a checkpoint folder or a Hub name")
    reason = why_unreachable()
    if reason is not None and not isinstance(try_to_load_from_cache(name, "config.json"), str):
        where = f"no folder {name}, no model of that name in the local Hub cache"
        raise InputError(f"model_name_or_path: {where}, and {reason}; give a checkpoint folder")
    return reason is not None


def _why_no_model(folder: Path) -> str:
    """What is said of a folder without config.json: a run writes its model at its end."""
    # A finished run has results; a checkpoint of one has a state.
    if not (folder / "run.yaml").is_file() or any(
        (folder / file).is_file() for file in ("all_results.json", STATE_FILE)
    ):
        return "has no config.json; give a checkpoint folder"
    newest, _ = last_complete(folder)
    instead = "it has no complete checkpoint yet" if newest is None else f"its newest complete checkpoint is {newest}"
    return f"holds a run that has not come to its end, and has no config.json yet; {instead}"


@contextmanager
def opening(name: str) -> Iterator[None]:
    """Report in one line that a checkpoint cannot be opened, whatever the library raises for it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError, StrictDataclassError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InputError(f"model_name_or_path: {name} cannot be opened: {reason}") from error


def warn_once(message: str, *values: object) -> None:
    """Warn in the main process only: the others have the same settings."""
    logger.log(logging.WARNING if os.environ.get("RANK", "0") == "0" else logging.DEBUG, message, *values)


TASK_FILE, SWEEP_FILE = "task.yaml", "sweep.json"
