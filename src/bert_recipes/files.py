"""Files and folders that appear complete or not at all, whichever process writes them first."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from bert_recipes.errors import InputError, saving


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

_STAGED = re.compile(r"\.(?P<name>.+)\.\d+\.tmp")
_END_BYTES = 1 << 20
# A run that was told to end may still be about it when the next one starts.
_PATIENCE_SECONDS = 10.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
# Held until the process ends; the system lets go of them however it ends.
_HELD: dict[Path, int] = {}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path beside a file to write to, which becomes that file when the block ends well.

    Whatever goes wrong, the file stays as it was. A link stays, and what it leads to is replaced;
    to a device or a pipe is written straight, as it could not be put back.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield staged
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def final_name(name: str) -> str:
    """Return the name that a file of `atomic_write` was to bear, if a killed process left it.

    Any other name is returned as it is.
    """
    staged = _STAGED.fullmatch(name)
    return name if staged is None else staged["name"]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, indented."""
    with atomic_write(path) as staged:
        staged.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file of a user that holds an object."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: broken JSON ({error}); fetch or write the file again") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is wanted, not a {type(content).__name__}")
    return content


def replace_nonfinite(value: Any) -> Any:
    """Return a value in which NaN and infinity are None, as strict JSON asks for."""
    if isinstance(value, Mapping):
        return {str(key): replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def sync_paths(paths: Iterable[Path]) -> None:
    """Force files and folders to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def hash_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, of any size."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint_files(paths: Iterable[Path]) -> str:
    """Return a SHA-256 (hex) of files, wherever they lie: of sizes, first and last megabytes."""
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{size}\n".encode())
        with open(path, "rb") as file:
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


def lock_run(folder: Path, patience: float = _PATIENCE_SECONDS) -> None:
    """Keep other processes from running in a folder, as long as this one lives.

    POSIX locks: processes that are forked from this one, and may outlive it for seconds, do not
    hold them, and network file systems pass them on from machine to machine. Where a file system
    has none a warning says so.

    The lock is a hidden file beside the folder, which may be replaced; `patience` is in seconds.
    """
    path = Path(os.path.realpath(folder))  # links to it are the same folder
    if path.parent.exists() and not os.access(path.parent, os.W_OK):
        path = folder.absolute()  # beside the link: the user's place is the target alone
    if path in _HELD:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_file = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    end = time.monotonic() + patience
    while not _try_lock(descriptor, folder):
        if time.monotonic() > end:
            os.close(descriptor)
            raise InputError(
                f"output_dir {folder}: another process runs in it; wait for its end, or give "
                "another --output_dir"
            )
        time.sleep(0.1)
    _HELD[path] = descriptor


def unlock_run(folder: Path) -> None:
    """Let other processes run in a folder that this one has locked."""
    for path in (Path(os.path.realpath(folder)), folder.absolute()):
        if path in _HELD:
            os.close(_HELD.pop(path))


def _try_lock(descriptor: int, folder: Path) -> bool:
    """Return whether a run may start: the lock is held, or the file system has none."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: this file system has no locks; do not start a second run in it", folder)
    return True


def check_empty(folder: Path) -> None:
    """Refuse, before any work, a folder that holds something."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"output_dir: {folder} is not empty; give a new folder")


def check_place(folder: Path) -> None:
    """Refuse, before any work, a place where no complete folder can be put."""
    folder = Path(os.path.realpath(folder))
    if os.path.ismount(folder):
        raise InputError(
            f"output_dir: {folder} is a mount point, which no new folder can replace; give a "
            f"folder in it, such as {folder / 'new'}"
        )
    parent = folder.parent
    with saving(folder):
        while not parent.exists():
            parent = parent.parent
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=parent):
            pass


def check_new_folder(folder: Path) -> None:
    """Refuse, before any work, a folder that `atomic_dir` cannot make."""
    check_empty(folder)
    check_place(folder)


def put_in_place(new: Path, target: Path, aside: Path) -> None:
    """Rename a folder; one that has the name already steps `aside`, and is deleted then.

    It comes back where the renaming fails.
    """
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    try:
        new.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    sync_paths([target.parent])
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def atomic_dir(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a folder to write to, which becomes a new one when the block ends well.

    `check_new_folder` has passed that one.
    """
    folder = Path(os.path.realpath(folder))  # a link stays
    with saving(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as aside:
            staged = Path(aside) / "staged"
            staged.mkdir()
            yield staged
            if folder.is_dir() and not replace:  # an empty one
                folder.rmdir()
            put_in_place(staged, folder, Path(aside) / "replaced")


def write_model_folder(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    reports: Mapping[str, Any] | None = None,
) -> None:
    """Write a model to a new folder: weights as safetensors, configuration, tokenizer, reports.

    Args:
        reports: File name -> content, for JSON.
    """
    with atomic_dir(folder) as staged:
        model.save_pretrained(staged)
        tokenizer.save_pretrained(staged)
        for name, report in (reports or {}).items():
            write_json(staged / name, report)


def build_once(path: Path, build: Callable[[Path], None]) -> None:
    """Build a file unless it is there, complete and on the disk.

    Of several processes that ask at once, one builds.
    """
    path = Path(os.path.realpath(path))  # a link stays
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if path.exists():  # another process has made it while this one waited for the lock
            return
        for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of a builder that was killed
            leftover.unlink(missing_ok=True)
        with atomic_write(path) as staged:
            build(staged)
            sync_paths([staged])


def remove_cached(path: Path) -> None:
    """Delete a cached file and its lock file; not being there is fine."""
    for file in (path, path.with_name(f".{path.name}.lock")):
        file.unlink(missing_ok=True)


def usable_cache_dir(preferred: Path | None) -> Path:
    """Return ``preferred`` if files can be made there, otherwise a temporary folder of this user.

    The answer is the same in every process of a machine, so that one builds for all.
    """
    fallback = Path(tempfile.gettempdir()) / f"bert-recipes-{os.getuid()}"
    if preferred is not None:
        with contextlib.suppress(OSError):
            preferred.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=preferred):
                return preferred
        message = (
            "%s: cannot be written to, so what can be made again is kept in %s; name "
            "another folder with --data_cache_dir"
        )
        logger.warning(message, preferred, fallback)
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():
        raise PermissionError(
            13, "belongs to another user; name another folder with --data_cache_dir", str(fallback)
        )
    return fallback
