"""Files that can always be made again: built once by whichever process comes first, written aside, renamed when whole."""

import contextlib
import getpass
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


logger = logging.getLogger(__name__)


def build_once(path: Path, build: Callable[[Path], None], *, rebuild: bool = False) -> None:
    """Make ``path`` unless it is there; of several processes that ask at once, one builds and the others wait.

    Args:
        path: The file to have. It appears only when it is whole and on the disk.
        build: Writes the contents to the (empty, existing) file it is given.
        rebuild: Make it again even if it is there.

    Raises:
        OSError: If the folder cannot be written to or is full; nothing is left behind.
    """
    path = Path(os.path.realpath(path))  # a link stays
    if path.exists() and not rebuild:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    before = _identity(path)
    with FileLock(path.with_name(f".{path.name}.lock")):
        # Another process may have made it, or made it again, while this one waited for the lock.
        if path.exists() and not (rebuild and _identity(path) == before):
            return
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
        os.close(descriptor)
        partial = Path(name)
        try:
            build(partial)
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            partial.chmod(0o644)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def remove_cached(path: Path) -> None:
    """Delete a cached file and its lock file; not being there is fine."""
    for file in (path, path.with_name(f".{path.name}.lock")):
        file.unlink(missing_ok=True)


def usable_cache_dir(preferred: Path | None) -> Path:
    """Return ``preferred`` if files can be made there, otherwise this user's folder under the system's temporary one.

    The answer is the same in every process of a machine, so that one builds for all.

    Args:
        preferred: Folder to use if possible; None = there is none.
    """
    if preferred is not None and _can_write(preferred):
        return preferred
    fallback = Path(tempfile.gettempdir()) / f"bert-recipes-{_user_name()}"
    if preferred is not None:
        logger.warning(
            "%s: cannot be written to, so what can be made again is kept in %s; name another folder with --data_cache_dir",
            preferred,
            fallback,
        )
    fallback.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and fallback.stat().st_uid != os.getuid():
        raise PermissionError(13, "belongs to another user; name another folder with --data_cache_dir", str(fallback))
    return fallback


def _can_write(folder: Path) -> bool:
    """Return whether a file can be made in ``folder``, making the folder if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced, None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _user_name() -> str:
    """Return a name for this user; containers may run under a number that has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
