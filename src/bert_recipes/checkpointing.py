"""Checkpoints that cannot lie: written aside, described by a manifest, and only then given their name.

A folder `checkpoint-N` exists when all of it is on the disk, or not at all: a process may be killed, a machine may lose its
power at any instant. What its files hold is written down with sizes and hashes, so that a damaged one is seen before it is read.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.file_hash import hash_of
from bert_recipes.whole_files import sync_paths, write_json


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

    Raises:
        OSError: What the file system says.
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
    """Optimiser steps that a complete checkpoint's model has done.

    Raises:
        InputError: Its state says nothing of them.
    """
    try:
        return int(json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{checkpoint / STATE_FILE}: no global_step in it; it is no state of a Trainer") from error


def _files_of(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_FILE)
