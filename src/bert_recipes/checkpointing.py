"""A run's folder: checkpoints that are complete or absent, the run's id, its generated card.

A folder `checkpoint-N` is written under another name, described by a manifest of sizes and hashes,
and only then renamed: a process may be killed, a machine may lose its power at any instant.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import transformers
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import cached_file

from bert_recipes.errors import InputError
from bert_recipes.files import hash_of, put_in_place, read_json_object, sync_paths, write_json
from bert_recipes.hub_access import OLD_WEIGHTS, SAFE_WEIGHTS, is_hub_name, why_unreachable
from bert_recipes.rows import check_no_lfs_pointer
from bert_recipes.run_folder import (
    CARD_FILE,
    MANIFEST_FILE,
    PROGRESS_FILE,
    RUN_ID_FILE,
    STATE_FILE,
)


logger = logging.getLogger(__name__)

_MANIFEST = {"format": "bert-recipes checkpoint", "format_version": 1}
_IDENTITY = {"format": "bert-recipes run"}
# A run is resumed from these, beside weights and optimizer in the form of its engine.
_REQUIRED = (STATE_FILE, PROGRESS_FILE, "scheduler.pt")
# Begins the names of folders that are being written or deleted: nothing in them counts.
ASIDE_PREFIX = ".aside-"
_DAMAGED_MANIFEST = f"{MANIFEST_FILE} is damaged or of another format"
_CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
_SEAL = re.compile(r"\n*<!-- bert-recipes: SHA-256 of the text above [0-9a-f]{64} -->\s*$")


# Checkpoints


def staging_dir(run_folder: Path) -> Path:
    """Return the folder in which a run's next checkpoint is written."""
    return run_folder / f"{ASIDE_PREFIX}saving"


def write_manifest(folder: Path) -> None:
    """Write everything in a folder down to the disk, and a manifest of it."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST_FILE:
            name = path.relative_to(folder).as_posix()
            files[name] = {"size": path.stat().st_size, "sha256": hash_of(path)}
    write_json(folder / MANIFEST_FILE, {**_MANIFEST, "files": files})
    sync_paths([*folder.rglob("*"), folder])


def commit(staged: Path, target: Path) -> None:
    """Give a folder with a manifest its name, `checkpoint-N` in the run's folder.

    One of that name is deleted.
    """
    put_in_place(staged, target, target.with_name(f"{ASIDE_PREFIX}old-{target.name}"))


def why_incomplete(folder: Path, *, reads_all: bool = True) -> str | None:
    """Return why a folder is no complete checkpoint; None if it is.

    Args:
        reads_all: False: as far as names and sizes say.
    """
    if not folder.is_dir():
        return "there is no such folder"
    try:
        files = _read_manifest(folder)
    except FileNotFoundError:
        return (
            f"it has no {MANIFEST_FILE}: its writing was interrupted, or it was not written by "
            "this project"
        )
    except OSError as error:
        return f"{MANIFEST_FILE} cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _DAMAGED_MANIFEST
    for name in _REQUIRED:
        if name not in files:
            return f"it has no {name}: a model alone, from which no run is resumed"
    for name, (size, sha256) in files.items():
        try:
            reason = _why_differs(folder / name, size, sha256 if reads_all else None)
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        except ValueError:  # a name that no file can have
            return _DAMAGED_MANIFEST
        if reason is not None:
            return f"{name} {reason}"
    return None


def _read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and hash of the files that a manifest names; it may raise anything."""
    content = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    if not _MANIFEST.items() <= content.items():
        raise ValueError("another format")
    return {name: (facts["size"], facts["sha256"]) for name, facts in content["files"].items()}


def _why_differs(file: Path, size: int, sha256: str | None) -> str | None:
    """Return why a file is not the one of the manifest; None if it is.

    Without a hash the size is compared alone.
    """
    if not file.is_file():
        return "is missing"
    actual_size = file.stat().st_size
    if actual_size != size:
        return f"has {actual_size} bytes instead of {size}"
    if sha256 is not None and hash_of(file) != sha256:
        return "is not what was written (its hash differs)"
    return None


def list_checkpoints(run_folder: Path) -> list[Path]:
    """Return the folders `checkpoint-N` of a run by step, complete or not."""
    steps = {}
    for path in run_folder.glob("checkpoint-*"):
        match = _CHECKPOINT_NAME.fullmatch(path.name)
        if match is not None and path.is_dir():
            steps[path] = int(match[1])
    return sorted(steps, key=steps.__getitem__)


def last_complete(run_folder: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the newest complete checkpoint of a run, and newer ones that are not, with reasons."""
    incomplete: list[tuple[Path, str]] = []
    for path in reversed(list_checkpoints(run_folder)):
        reason = why_incomplete(path)
        if reason is None:
            return path, incomplete
        incomplete.append((path, reason))
    return None, incomplete


def rotate(run_folder: Path, limit: int | None, keep: Collection[Path] = ()) -> None:
    """Delete the oldest complete checkpoints until `limit` are left; None or 0: all stay.

    The newest complete one and those to `keep` that are there stay; damaged ones do not count.
    """
    if not limit or limit < 0:
        return
    # Without reading all of them: this is done at every save.
    checkpoints = list_checkpoints(run_folder)
    complete = [path for path in checkpoints if why_incomplete(path, reads_all=False) is None]
    protected = {path.resolve() for path in (*keep, *complete[-1:]) if path.is_dir()}
    unprotected = [path for path in complete if path.resolve() not in protected]
    num_excess = max(0, len(complete) - max(limit, len(protected)))
    for path in unprotected[:num_excess]:
        # First its name goes: what is half deleted is not called a checkpoint.
        renamed = path.with_name(f"{ASIDE_PREFIX}old-{path.name}")
        path.rename(renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def retire_later_checkpoints(run_folder: Path, checkpoint: Path) -> list[Path]:
    """Rename the checkpoints after the one from which a run is resumed, and return the new paths.

    They are another future of it, or damaged. Otherwise they would count as the newest ones, and
    those that the run writes now as old ones to be deleted. Their names become
    `abandoned-checkpoint-N`; one that was abandoned before them at the same step is deleted.
    """
    moved = []
    checkpoints = list_checkpoints(run_folder)
    number = checkpoints.index(run_folder / checkpoint.name)
    for path in checkpoints[number + 1 :]:
        target = path.with_name(f"abandoned-{path.name}")
        shutil.rmtree(target, ignore_errors=True)
        moved.append(path.rename(target))
    return moved


def restore_replaced(run_folder: Path) -> None:
    """Give a checkpoint its name again that a killed process was about to replace."""
    for old in run_folder.glob(f"{ASIDE_PREFIX}old-checkpoint-*"):
        target = run_folder / old.name.removeprefix(f"{ASIDE_PREFIX}old-")
        if not target.exists() and why_incomplete(old) is None:
            old.rename(target)


def remove_leftovers(run_folder: Path) -> None:
    """Delete what a killed process left while it wrote or deleted a checkpoint.

    Call `restore_replaced` first.
    """
    for path in run_folder.glob(f"{ASIDE_PREFIX}*"):
        logger.info("%s: left by an interrupted save, deleted", path)
        shutil.rmtree(path, ignore_errors=True)


def read_step(checkpoint: Path) -> int:
    """Return the optimizer steps that a checkpoint's model has done."""
    try:
        return int(json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{checkpoint / STATE_FILE}: no global_step in it; it is no state of a Trainer"
        ) from error


# The run's id and its card


def parse_run_id(text: str) -> str | None:
    """Return the run's id out of the text of its file; None where it holds none."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict) or not _IDENTITY.items() <= content.items():
        return None
    run_id = content.get("run_id")
    return run_id if isinstance(run_id, str) and run_id else None


def read_run_id(folder: Path) -> str | None:
    """Return the id of the run that a folder's model comes from; None where nobody knows.

    The folder may be a run, a checkpoint or anything else.
    """
    try:
        return parse_run_id((folder / RUN_ID_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def write_run_id(path: Path, run_id: str) -> None:
    """Write a run's id."""
    write_json(path, {**_IDENTITY, "run_id": run_id})


def read_run_ids(folders: Iterable[Path]) -> frozenset[str]:
    """Return the ids of the runs that folders come from, as far as they are known."""
    run_ids = map(read_run_id, folders)
    return frozenset(run_id for run_id in run_ids if run_id is not None)


def keep_run_id(folder: Path, checkpoint: Path | None) -> str:
    """Return the id of the run in a folder, which is written where there is none.

    It is that of the checkpoint from which it is resumed, or a new one.
    """
    run_id = read_run_id(folder)
    if run_id is not None:
        return run_id
    if checkpoint is not None:
        run_id = read_run_id(checkpoint)
    run_id = run_id or uuid.uuid4().hex
    write_run_id(folder / RUN_ID_FILE, run_id)
    return run_id


def seal_card(text: str) -> str:
    """Put the hash of a card's text at its end.

    By it `may_replace_card` knows one that nobody has edited.
    """
    text = _SEAL.sub("", text).rstrip()
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text}\n\n<!-- bert-recipes: SHA-256 of the text above {digest} -->\n"


def may_replace_card(folder: Path) -> bool:
    """Return whether a folder has no card, or one that nobody has edited since it was written."""
    if not (folder / CARD_FILE).exists():
        return True
    try:
        text = (folder / CARD_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return text == seal_card(text)


# A checkpoint that a user names


def check_checkpoint(name: str) -> bool:
    """See that a folder or a Hub name is a checkpoint, before anything heavy.

    Returns:
        Whether only the Hub's cache can be asked.
    """
    if not name.strip():
        raise InputError("model_name_or_path is empty; give a checkpoint folder or a Hub name")
    if Path(name).is_dir():
        _check_checkpoint_folder(Path(name))
        return False
    if not is_hub_name(name):
        raise InputError(
            f"model_name_or_path: no folder {name}; give a checkpoint folder or a Hub name"
        )
    reason = why_unreachable()
    if reason is not None and not isinstance(try_to_load_from_cache(name, "config.json"), str):
        raise InputError(
            f"model_name_or_path: no folder {name}, no model of that name in the local Hub cache, "
            f"and {reason}; give a checkpoint folder"
        )
    return reason is not None


def find_file(name: str, file: str) -> Path | None:
    """Return a file beside a checkpoint's weights, None where there is none.

    Args:
        name: The checkpoint's folder or Hub name.
        file: The name of the file.
    """
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    cached_only = check_checkpoint(name)
    with opening(name):
        found = cached_file(
            name,
            file,
            local_files_only=cached_only,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=not cached_only,
        )
    # None of the cache: nobody asked the Hub for it yet.
    if found is None and cached_only and try_to_load_from_cache(name, file) is None:
        logger.warning("%s: the Hub may have a %s, the local cache has none", name, file)
    return None if found is None else Path(found)


def _check_checkpoint_folder(folder: Path) -> None:
    where = f"model_name_or_path: {folder}"
    if not (folder / "config.json").is_file():
        raise InputError(f"{where} {_why_no_model(folder)}")
    read_json_object(folder / "config.json")
    files = [folder / name for name in (*SAFE_WEIGHTS, *OLD_WEIGHTS)]
    weights = [file for file in files if file.is_file()]
    if not weights:
        raise InputError(
            f"{where} has neither {SAFE_WEIGHTS[0]} nor {OLD_WEIGHTS[0]}; no other weights are "
            "opened"
        )
    for file in weights:
        check_no_lfs_pointer(file)


def _why_no_model(folder: Path) -> str:
    # A run writes its model at its end; a finished run has results, a checkpoint of one has a
    # state.
    is_ended = any((folder / file).is_file() for file in ("all_results.json", STATE_FILE))
    if is_ended or not (folder / "run.yaml").is_file():
        return "has no config.json; give a checkpoint folder"
    newest, _ = last_complete(folder)
    advice = "it has no complete checkpoint yet"
    if newest is not None:
        advice = f"its newest complete checkpoint is {newest}"
    return f"holds a run that has not come to its end, and has no config.json yet; {advice}"


# Libraries check little of what stands in a config.json: a null in the place of a number is any of
# these.
_OPENING_ERRORS = (
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
)


@contextmanager
def opening(name: str) -> Iterator[None]:
    """Report in one line that a checkpoint cannot be opened, whatever the library raises for it.

    The library's own table of missing and unexpected weights is not printed: callers say what
    matters of them.
    """
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    except InputError:
        raise
    except (UnpicklingError, EOFError):
        raise InputError(
            f"model_name_or_path: {name}: its {OLD_WEIGHTS[0]} is damaged or holds other things "
            "than tensors, which may be code; nothing of it is run: give safetensors weights"
        ) from None
    except (*_OPENING_ERRORS, SafetensorError, StrictDataclassError) as error:
        text = " ".join(str(error).split())
        if "trust_remote_code" in text:
            raise InputError(
                f"model_name_or_path: {name} is a model with code of its own, which is never run "
                "here; give one of an architecture that transformers has"
            ) from error
        reason = f"{type(error).__name__}: {text[:300]}"
        raise InputError(f"model_name_or_path: {name} cannot be opened: {reason}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
