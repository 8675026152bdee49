"""A folder of features: what is in it, whose it is, and where an extraction in it goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError, saving
from bert_recipes.features.parts import PartRecord, read_record
from bert_recipes.run_lock import lock_run
from bert_recipes.whole_files import write_json


logger = logging.getLogger(__name__)

INDEX_FILE = "features.json"
GOOGLE_FILE = "features.jsonl"
# Nothing else is deleted: "features-train.parquet" is the user's.
_PART = re.compile(r"features-\d{5,}\.(parquet|safetensors)")
_LEFTOVER = re.compile(r"\.features(\.json|\.jsonl|-\d{5,}\.(parquet|safetensors))\.\d+\.tmp")


class FeatureFolder:
    """Where the vectors of one extraction lie.

    Args:
        folder: output_dir.
        suffix: Of the parts: ".parquet" or ".safetensors", or ".jsonl" for the one file of the original's form.
        settings: What the vectors follow from, as JSON.

    Attributes:
        key: SHA-256 (hex) of the settings.
        records: Of the parts that are there, in order.
    """

    def __init__(self, folder: Path, suffix: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.suffix, self.settings = folder, suffix, dict(settings)
        self.key = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()
        self.records: list[PartRecord] = []
        self._counts = (0, 0)

    def claim(self, *, overwrite: bool) -> bool:
        """Make the folder this extraction's own, and see what of it is there.

        Args:
            overwrite: Delete features of other settings.

        Returns:
            Whether everything is there.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"output_dir {self.folder} is a file; give a folder")
        # Nothing is left beside a folder of somebody else's.
        self._check_ours()
        with saving(self.folder):
            lock_run(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        index = self._check_ours()
        if index is not None and (overwrite or index.get("settings") != self.settings):
            if not overwrite:
                raise InputError(self._what_differs(index.get("settings")))
            # The index last: without it a folder that a killed process has left half empty would be nobody's.
            self._delete([*self._files(_PART), self.folder / GOOGLE_FILE, self.folder / INDEX_FILE])
            index = None
        self._delete(self._files(_LEFTOVER))
        self._find_parts()
        if index is None or not index.get("is_complete"):
            return False
        if self.suffix == ".jsonl":
            self._counts = index["num_tokens"], index["num_truncated"]
            return (self.folder / GOOGLE_FILE).is_file()
        return len(self.records) == len(index["parts"])

    def _check_ours(self) -> dict[str, Any] | None:
        """The index, where there is one; an InputError where there are other files and none."""
        index = self._read_index()
        if (
            index is None
            and self.folder.is_dir()
            and any(_LEFTOVER.fullmatch(path.name) is None for path in self.folder.iterdir())
        ):
            raise InputError(f"output_dir {self.folder} holds files that are no features; give another --output_dir")
        return index

    def _find_parts(self) -> None:
        self.records = []
        while self.suffix != ".jsonl":
            path = self.path_of(len(self.records))
            if not path.is_file():
                break
            record = read_record(path)
            if record is None or record.key != self.key:
                logger.warning("%s is damaged or of other features; it and what follows is computed anew", path)
                break
            self.records.append(record)
        kept = {self.path_of(number) for number in range(len(self.records))}
        self._delete([path for path in self._files(_PART) if path.suffix == self.suffix and path not in kept])

    def path_of(self, number: int) -> Path:
        """File of a part."""
        return self.folder / f"features-{number:05d}{self.suffix}"

    @property
    def counts(self) -> tuple[int, int]:
        """Tokens, and inputs that were cut, of the vectors that are there."""
        if self.suffix == ".jsonl":
            return self._counts
        return sum(each.num_tokens for each in self.records), sum(each.num_truncated for each in self.records)

    @property
    def next_row(self) -> int:
        """Number of the first input whose vectors are not there."""
        return self.records[-1].first_row + self.records[-1].num_inputs if self.records else 0

    def write_index(self, facts: Mapping[str, Any], *, is_complete: bool) -> None:
        """Write features.json.

        Args:
            facts: What else it says.
            is_complete: Whether the vectors of all inputs are there.
        """
        parts = [
            {"file": self.path_of(number).name, "first_row": record.first_row, "num_inputs": record.num_inputs}
            for number, record in enumerate(self.records)
        ]
        if self.suffix == ".jsonl" and is_complete:
            parts = [{"file": GOOGLE_FILE, "first_row": 0, "num_inputs": facts["num_inputs"]}]
        with saving(self.folder):
            write_json(
                self.folder / INDEX_FILE,
                {"is_complete": is_complete, **facts, "parts": parts, "settings": self.settings},
            )

    def _read_index(self) -> dict[str, Any] | None:
        path = self.folder / INDEX_FILE
        if not path.is_file():
            return None
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}: not the index of features ({error}); give another --output_dir") from error

    def _what_differs(self, before: Any) -> str:
        names = {"model": "another model", "tokenizer": "another tokenizer", "inputs": "other inputs"}
        other = next(
            (
                name
                for name in self.settings
                if not isinstance(before, dict) or before.get(name) != self.settings[name]
            ),
            "settings",
        )
        what = names.get(other, f"{other} {before.get(other) if isinstance(before, dict) else None}")
        return (
            f"output_dir {self.folder} holds features of {what}; give another --output_dir, or replace them with "
            "--overwrite true"
        )

    def _files(self, names: re.Pattern[str]) -> list[Path]:
        return [path for path in self.folder.iterdir() if names.fullmatch(path.name)]

    def _delete(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
