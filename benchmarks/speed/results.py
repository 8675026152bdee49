"""The results file of a machine: records are added, none is ever changed or removed."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError, saving
from bert_recipes.files import written_aside


FORMAT, FORMAT_VERSION = "bert-recipes benchmark", 1
# What must be equal for samples to belong together.
MACHINE_KEYS = ("processor", "processor_model", "gpu", "cores", "threads", "torch", "transformers")


class ResultsFile:
    """JSON with one line a record, written aside and renamed: a reader never sees half of it.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> list[dict[str, Any]]:
        """All records in the order in which they were added."""
        if not self.path.exists():
            return []
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path}: damaged ({error}); mend it or move it away, it is never overwritten"
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{self.path}: no results file of this project; give another --output_dir")
        return list(content["records"])

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        with saving(self.path), _locked(self.path):
            self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        lines = [json.dumps(item, allow_nan=False) for item in (*self.records(), without_nan(record))]
        head = f'{{"format": {json.dumps(FORMAT)}, "format_version": {FORMAT_VERSION}, "records": [\n'
        with written_aside(self.path) as aside:
            aside.write_text(head + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time adds to the files of a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def without_nan(value: Any) -> Any:
    """The same value with None for numbers that JSON does not have."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, Mapping):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def machine_name(machine: Mapping[str, Any]) -> str:
    """A file name for a machine: its GPU, or its processor, the processor's model where it is known, and cores."""
    name = str(
        machine.get("gpu") or f"{machine['processor']} {machine.get('processor_model', '')} {machine['cores']} cores"
    )
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def same_machine(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two samples were taken on one machine with the same versions and threads."""
    return all(first.get(name) == second.get(name) for name in MACHINE_KEYS)


def read_folder(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """File stem -> records of every results file of a folder."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = ResultsFile(path).records()
        except InputError as error:
            if "damaged" in str(error):
                raise
    if not found:
        raise InputError(f"{folder}: no results file there; measure first, without --report_only")
    return found


def of_case(records: Iterable[Mapping[str, Any]], suite: str, case: str) -> list[Mapping[str, Any]]:
    """The records of one case."""
    return [record for record in records if record["suite"] == suite and record["case"] == case]
