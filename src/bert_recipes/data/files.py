"""Which files a corpus consists of: files, folders and globs -> one sorted list without duplicates."""

import glob
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (".txt", ".txt.gz")
JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
PARQUET_SUFFIXES = (".parquet",)
SUFFIXES = (*TEXT_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)


def find_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Resolve files, folders (searched recursively) and globs (``**`` goes into folders) to the corpus files.

    The order is that of the sorted paths, whatever the order they were given in; a file that is reached twice (also
    through a link) is taken once. Hidden files are left out, and in folders and globs also files of other kinds: both
    are logged.

    Args:
        paths: One or more paths; names that exist are taken literally even if they look like a glob.

    Returns:
        At least one file, all with a suffix of ``SUFFIXES``.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise InputError(f"no input: give files, folders or globs ({', '.join(SUFFIXES)})")
    found: list[Path] = []
    skipped: list[Path] = []
    for entry in given:
        files, others = _expand(entry)
        found += files
        skipped += others
    if skipped:
        logger.warning(
            "%d files are not read: hidden, or not of %s (first: %s)", len(skipped), "/".join(SUFFIXES), skipped[0]
        )
    unique: dict[str, Path] = {}
    for path in sorted(found, key=lambda path: path.as_posix()):
        unique.setdefault(os.path.realpath(path), path)
    for path in unique.values():
        if not path.is_file():
            # Opening a pipe would wait for ever.
            raise InputError(f"{path}: no file that can be read, but a broken link, a pipe or a device; take it away")
    return list(unique.values())


def _expand(entry: str | Path) -> tuple[list[Path], list[Path]]:
    """Return the corpus files that one given path stands for, and the files it passes over."""
    path = Path(entry)
    if not str(entry).strip():
        raise InputError("an input path is empty; give files, folders or globs")
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise InputError(f"{path}: unknown kind of file; the name must end in {', '.join(SUFFIXES)}")
        return [path], []
    if path.is_dir():
        files, others = _walk(path)
        if not files:
            raise InputError(f"{path}: this folder holds no file that ends in {', '.join(SUFFIXES)}")
        return files, others
    if not glob.has_magic(str(entry)):
        raise InputError(f"{path}: there is no such file or folder")
    check_pattern(str(entry))
    files, others = [], []
    for match in map(Path, glob.glob(str(entry), recursive=True)):
        if match.is_dir():
            inner = ([], []) if "**" in str(entry) else _walk(match)
            files += inner[0]
            others += inner[1]
        else:
            (files if match.name.lower().endswith(SUFFIXES) else others).append(match)
    if not files:
        raise InputError(f"{entry}: this pattern matches no file that ends in {', '.join(SUFFIXES)}")
    return files, others


def _walk(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the corpus files below a folder, and the other ones."""
    files: list[Path] = []
    others: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not _leads_back(Path(root, name), folder)
        ]
        for name in names:
            wanted = name.lower().endswith(SUFFIXES) and not name.startswith(".")
            (files if wanted else others).append(Path(root, name))
    return files, others


def _refuse(error: OSError) -> NoReturn:
    raise InputError(
        f"{error.filename}: this folder cannot be read ({error.strerror}), and nothing is left out in silence; make it "
        "readable, or name the files to take"
    ) from error


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that looks into a folder that cannot be listed: `glob` passes over it without a word."""
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            above = os.path.join(*parts[: number + (part == "**")], "") if number or part == "**" else os.curdir
            for folder in glob.glob(above, recursive=True):
                try:
                    os.scandir(folder).close()
                except OSError as error:
                    _refuse(error)


def _leads_back(path: Path, top: Path) -> bool:
    """Tell whether a folder is a link to one of those that lead to it, so that going in would never end."""
    if not path.is_symlink():
        return False
    on_the_way = [parent for parent in path.parents if parent == top or top in parent.parents]
    return os.path.realpath(path) in map(os.path.realpath, on_the_way)


def describe_files(files: Sequence[Path]) -> list[dict[str, str | int]]:
    """Return name and size in bytes of each file; names start at the deepest folder that all of them share."""
    if not files:
        return []
    parents = [os.path.realpath(path.parent) for path in files]
    base = os.path.dirname(os.path.commonpath(parents))
    return [
        {"name": Path(os.path.relpath(os.path.join(parent, path.name), base)).as_posix(), "bytes": path.stat().st_size}
        for parent, path in zip(parents, files, strict=True)
    ]
