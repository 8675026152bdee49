"""A corpus in shards: which files each has, where they are while they are made, and how they become one store.

A shard is a store of its own (``store_writer.py``), whole or not there. A preparation that is cut off leaves the shards that are
done in a hidden folder beside the store to be; the same command checks them and makes the rest.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bert_recipes.data.store import (
    FORMAT,
    METADATA_FILE,
    SHARDED_FORMAT_VERSION,
    SHARDS_FOLDER,
    compute_sharded_fingerprint,
    open_store,
    read_metadata,
)
from bert_recipes.data.store_writer import check_output, find_place, move_into_place
from bert_recipes.errors import InputError
from bert_recipes.whole_files import sync_paths, write_json


logger = logging.getLogger(__name__)

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Shard:
    """A part of the files.

    Attributes:
        number: Its place, from 0.
        files: (split, file) in their order.
    """

    number: int
    files: tuple[tuple[str, Path], ...]


def plan_shards(files: Sequence[tuple[str, Path]], shard_bytes: float) -> list[Shard]:
    """Cut the files, in their order, into shards of about so many bytes; a file is never cut.

    Args:
        files: (split, file).
        shard_bytes: A shard is full when it has so many.
    """
    shards: list[Shard] = []
    part: list[tuple[str, Path]] = []
    size = 0
    for split, path in files:
        part.append((split, path))
        size += path.stat().st_size
        if size >= shard_bytes:
            shards.append(Shard(len(shards), tuple(part)))
            part, size = [], 0
    if part:
        shards.append(Shard(len(shards), tuple(part)))
    return shards


class ShardFolder:
    """Where the shards of a store are while they are made.

    Args:
        output_dir: The store to be.
        overwrite: Replace a store that is there.

    Raises:
        InputError: ``output_dir`` may not be written.
    """

    def __init__(self, output_dir: str | Path, *, overwrite: bool) -> None:
        self.target = find_place(output_dir, overwrite=overwrite)
        self.overwrite = overwrite
        self.path = self.target.with_name(f".{self.target.name}.shards")

    @contextmanager
    def claimed(self, plan: Mapping[str, Any]) -> Iterator[None]:
        """Begin, or go on with a preparation of the same plan; one process at a time.

        Args:
            plan: What decides about the result, JSON values.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"{self.target}: another process prepares it; wait for its end") from None
        try:
            self.check_plan(plan)
            yield
        finally:
            lock.release()

    def check_plan(self, plan: Mapping[str, Any], *, is_begun: bool = False) -> None:
        """Write the plan down, or see that it is the one of before.

        Args:
            plan: What decides about the result, JSON values.
            is_begun: There must be one: it was written before the work was dealt out to several processes or machines.
        """
        file = self.path / PLAN_FILE
        if not file.is_file():
            if is_begun:
                raise InputError(
                    f"{file}: missing, so the preparation has ended or was removed; give its command again"
                )
            write_json(file, plan)
            return
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            before = {}
        now = json.loads(json.dumps(plan))  # as it is read: lists, no tuples
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if changed:
            raise InputError(
                f"{self.path}: holds shards of an earlier preparation with other {', '.join(changed)}; give what it was made "
                "with to go on with it, or delete that folder"
            )

    def place(self, shard: Shard) -> Path:
        """The folder of a shard."""
        return self.path / SHARDS_FOLDER / f"{shard.number:05d}"

    def is_done(self, shard: Shard) -> bool:
        """Whether a shard is there and holds what was written (`open_store`). A damaged one is made anew."""
        place = self.place(shard)
        if not place.exists():
            return False
        try:
            open_store(place)
        except InputError as error:
            logger.warning("%s; the shard is made anew", error)
            return False
        return True

    def clear(self, shard: Shard) -> None:
        """Remove what a process that was killed has left of a shard."""
        place = self.place(shard)
        place.parent.mkdir(parents=True, exist_ok=True)
        for leftover in (place, *place.parent.glob(f".{place.name}.*")):
            if leftover.exists():
                shutil.rmtree(leftover)

    def metadata(self, shards: Sequence[Shard]) -> list[dict[str, Any]]:
        """``store.json`` of each shard."""
        return [read_metadata(self.place(shard)) for shard in shards]

    def finish(self, shards: Sequence[Shard], **description: Any) -> None:
        """Write what joins the shards, and give the store its name.

        Args:
            shards: All of them, done.
            **description: What else ``store.json`` tells.
        """
        parts = self.metadata(shards)
        first = parts[0]
        identity = {name: first[name] for name in ("tokenizer_fingerprint", "vocab_size")}
        metadata = {
            "format": FORMAT,
            "format_version": SHARDED_FORMAT_VERSION,
            "fingerprint": compute_sharded_fingerprint([part["fingerprint"] for part in parts]),
            **identity,
            "special_ids": first["special_ids"],
            "dtype": first["dtype"],
            "splits": add_up([part["splits"] for part in parts]),
            SHARDS_FOLDER: [
                {"folder": f"{SHARDS_FOLDER}/{shard.number:05d}", "fingerprint": part["fingerprint"]}
                for shard, part in zip(shards, parts, strict=True)
            ],
            **description,
        }
        write_json(self.path / METADATA_FILE, metadata)
        (self.path / PLAN_FILE).unlink()
        sync_paths([self.path / METADATA_FILE, *(self.path / "tokenizer").glob("*"), self.path])
        check_output(self.target, overwrite=self.overwrite)
        move_into_place(self.path, self.target)
        sync_paths([self.target.parent])
        self.path.with_name(f"{self.path.name}.lock").unlink(missing_ok=True)


def add_up(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    """Sums of the numbers of equal names, by split."""
    totals: dict[str, Counter[str]] = {}
    for part in parts:
        for split, values in part.items():
            numbers = {name: value for name, value in values.items() if isinstance(value, int)}
            totals.setdefault(split, Counter()).update(numbers)
    return {split: dict(counts) for split, counts in totals.items()}
