"""One run folder, one run: a second one that is started by mistake is refused."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

# A run that was told to end may still be about it when the next one starts.
_PATIENCE_SECONDS = 10.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
# Held until the process ends; the system lets go of them however it ends.
_HELD: dict[Path, int] = {}


def lock_run(folder: Path, patience: float = _PATIENCE_SECONDS) -> None:
    """Keep other processes from running in a folder, as long as this one lives.

    POSIX locks: processes that are forked from this one, and may outlive it for seconds, do not hold them, and network file systems
    pass them on from machine to machine. Where a file system has none a warning says so.

    Args:
        folder: output_dir; the lock is a hidden file beside it, as the folder itself may be replaced.
        patience: Seconds to wait for the process that holds it.

    Raises:
        InputError: Another process runs in the folder.
        OSError: The hidden file cannot be made.
    """
    place = folder.absolute()
    if place in _HELD:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place.with_name(f".{place.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    end = time.monotonic() + patience
    while not _lock(descriptor, folder):
        if time.monotonic() > end:
            os.close(descriptor)
            raise InputError(
                f"output_dir {folder}: another process runs in it; wait for its end, or give another --output_dir"
            )
        time.sleep(0.1)
    _HELD[place] = descriptor


def _lock(descriptor: int, folder: Path) -> bool:
    """Whether nobody else holds it, or nobody can know."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: this file system has no locks; see that no second run is started in it", folder)
    return True
