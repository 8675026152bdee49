"""Files that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


_ASIDE = re.compile(r"\.(?P<name>.+)\.\d+\.tmp")


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Give a path beside a file to write to, which becomes that file when the block ends well.

    Args:
        path: The file; its folder is made. Whatever goes wrong, it stays as it was. A link stays, and what it leads to is
            replaced; to a device or a pipe is written straight, as it could not be put back.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def final_name(name: str) -> str:
    """The name that a file of `written_aside` was to bear, for one that a killed process left; any other name as it is."""
    aside = _ASIDE.fullmatch(name)
    return name if aside is None else aside["name"]


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, indented."""
    with written_aside(path) as aside:
        aside.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def sync_paths(paths: Iterable[Path]) -> None:
    """Force files and folders to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
