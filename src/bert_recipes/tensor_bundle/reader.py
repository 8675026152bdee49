"""Read a checkpoint: what it holds at once, the values one variable at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from bert_recipes.crc32c import masked_crc32c
from bert_recipes.errors import InputError
from bert_recipes.tensor_bundle.entries import (
    BFLOAT16,
    HEADER_KEY,
    SLICE_PREFIX,
    Entry,
    Extent,
    Header,
    parse_entry,
    parse_header,
    shown,
    slice_key,
)
from bert_recipes.tensor_bundle.table import read_table


INDEX_SUFFIX = ".index"
_MOST_SLICES = 100_000


@dataclass(frozen=True)
class Variable:
    """What a checkpoint says of a variable.

    Attributes:
        name: For example "bert/pooler/dense/kernel".
        dtype: float32, float64, float16, bfloat16, int32, int64, or "type N" for one that is not read.
        shape: Its dimensions.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class BundleReader:
    """A checkpoint of TensorFlow, open for reading.

    Opening reads the index and looks at the sizes of the files: each variable's bytes lie within its file and are as many as its
    type and shape take. Checksums of values are compared when they are read.

    Args:
        prefix: Path without ".index".

    Attributes:
        prefix: As given.
        variables: Name -> what it is, in the order of the names. A partitioned variable is one.

    Raises:
        InputError: Not a checkpoint, damaged, or files of it missing.

    Example:
        >>> reader = BundleReader(Path("uncased_L-12_H-768_A-12/bert_model.ckpt"))  # doctest: +SKIP
        >>> reader.read("bert/embeddings/word_embeddings").shape  # doctest: +SKIP
        (30522, 768)
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._index_file = prefix.with_name(prefix.name + INDEX_SUFFIX)
        table = read_table(self._index_file)
        try:
            if HEADER_KEY not in table:
                raise ValueError("no header")
            self._header: Header = parse_header(table.pop(HEADER_KEY))
            self._entries = {key: parse_entry(value) for key, value in table.items()}
            if sum(len(entry.slices) for entry in self._entries.values()) > _MOST_SLICES:
                raise ValueError("more slices than a checkpoint has")
            self._names = {_decode(key): key for key in self._entries if not key.startswith(SLICE_PREFIX)}
        except ValueError as error:
            raise self._damaged(str(error)) from error
        self._shard_bytes: dict[int, int] = {}
        self._check_places()
        self.variables = {name: self._describe(name) for name in self._names}

    def read(self, name: str) -> np.ndarray:
        """Read a variable.

        Args:
            name: One of `variables`.

        Returns:
            Its values in this machine's byte order; those of bfloat16, which numpy does not have, as the same numbers in float32.

        Raises:
            InputError: Of a type that is not read, without values, or its bytes are not those that were written.
            OSError: The file cannot be read.
        """
        key = self._names[name]
        entry = self._entries[key]
        if not entry.slices:
            return self._read_entry(name, entry)
        whole: np.ndarray | None = None
        seen: np.ndarray | None = None
        for extents in entry.slices:
            part = self._read_entry(name, self._entries[slice_key(key, extents)])
            if whole is None or seen is None:
                whole, seen = np.empty(entry.shape, part.dtype), np.zeros(entry.shape, dtype=bool)
            place = tuple(slice(start, start + size) for (start, _), size in zip(extents, part.shape, strict=True))
            whole[place], seen[place] = part, True
        if whole is None or seen is None or not seen.all():
            raise self._damaged(f"the slices of {shown(name)} do not cover it")
        return whole

    def _read_entry(self, name: str, entry: Entry) -> np.ndarray:
        """Read the bytes of an entry whose place has been checked, compare their checksum, take them for its type."""
        path = self._shard_file(entry.shard)
        if entry.num_bytes is None:
            raise InputError(f"{self._index_file}: {shown(name)} is of {entry.dtype}, which is no weight of a network")
        if not entry.size:
            raise InputError(f"{self._index_file}: {shown(name)} has no values: its shape is {list(entry.shape)}")
        octets = np.empty(entry.size, dtype=np.uint8)
        with open(path, "rb", buffering=0) as file:
            file.seek(entry.offset)
            view, done = octets.data, 0
            while done < entry.size:
                count = file.readinto(view[done:])
                if not count:
                    raise InputError(f"{path}: cut short while it was read")
                done += count
        if masked_crc32c(octets) != entry.crc:
            raise InputError(f"{path}: damaged (wrong checksum of {shown(name)}); copy it again")
        order: Literal["big", "little"] = "big" if self._header.is_big_endian else "little"
        kind = np.dtype(np.uint16 if entry.dtype == BFLOAT16 else entry.dtype)
        values = octets.view(kind.newbyteorder(order)).astype(kind, copy=False)
        if entry.dtype == BFLOAT16:
            # Its bits are the upper half of a float32's.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(entry.shape)

    def _describe(self, name: str) -> Variable:
        entry = self._entries[self._names[name]]
        return Variable(name, entry.dtype, entry.shape)

    # Checks

    def _check_places(self) -> None:
        """See that every entry lies within its file, and that the slices of each partitioned variable are there."""
        slices = {key for key in self._entries if key.startswith(SLICE_PREFIX)}
        for name, key in self._names.items():
            entry = self._entries[key]
            if not entry.slices:
                self._check_place(name, entry)
                continue
            used = [slice_key(key, extents) for extents in entry.slices]
            for extents, part_key in zip(entry.slices, used, strict=True):
                if part_key not in slices:
                    raise self._damaged(f"a slice of {shown(name)} is missing")
                self._check_slice(name, entry, extents, self._entries[part_key])
            slices -= set(used)
            parts = [self._entries[key] for key in used]
            if sum(part.size for part in parts) != (entry.num_bytes or 0):
                raise self._damaged(f"the slices of {shown(name)} are more or less than it")
            # Several may name the same bytes, but a variable is no larger than the files.
            if (entry.num_bytes or 0) > sum(map(self._size_of, {part.shard for part in parts})):
                raise self._damaged(f"{shown(name)} is larger than the files")
        if slices:
            raise self._damaged(f"{len(slices)} slices of no variable")

    def _check_slice(self, name: str, entry: Entry, extents: tuple[Extent, ...], part: Entry) -> None:
        """See that a slice lies within its variable, and is of its type and of the size that its name says."""
        fits = len(extents) == len(entry.shape) and part.dtype == entry.dtype and not part.slices
        sizes = tuple(
            whole - start if length == -1 else length
            for (start, length), whole in zip(extents, entry.shape, strict=False)
        )
        within = all(
            start >= 0 and 0 <= size <= whole - start
            for (start, _), size, whole in zip(extents, sizes, entry.shape, strict=False)
        )
        if not fits or not within or part.shape != sizes:
            raise self._damaged(f"a slice of {shown(name)} does not fit into it")
        self._check_place(name, part)

    def _check_place(self, name: str, entry: Entry) -> None:
        """See that an entry's bytes are as many as it needs, and lie within its file."""
        if entry.num_bytes is not None and entry.num_bytes != entry.size:
            shape = list(entry.shape)
            raise self._damaged(f"{shown(name)}, {entry.dtype} {shape}, is said to have {entry.size:,} bytes")
        if entry.shard >= self._header.num_shards:
            raise self._damaged(f"{shown(name)} lies in file {entry.shard} of {self._header.num_shards}")
        if entry.offset + entry.size > self._size_of(entry.shard):
            raise InputError(
                f"{self._shard_file(entry.shard)}: {self._size_of(entry.shard):,} bytes, but {shown(name)} ends at "
                f"{entry.offset + entry.size:,}: it is cut short, or belongs to another {self._index_file.name}; copy both again"
            )

    def _size_of(self, shard: int) -> int:
        if shard not in self._shard_bytes:
            path = self._shard_file(shard)
            if not path.is_file():
                raise InputError(f"{path}: missing; it belongs to {self._index_file.name}, copy it there")
            self._shard_bytes[shard] = path.stat().st_size
        return self._shard_bytes[shard]

    def _shard_file(self, shard: int) -> Path:
        return shard_file(self.prefix, shard, self._header.num_shards)

    def _damaged(self, reason: str) -> InputError:
        return InputError(f"{self._index_file}: damaged ({reason}); copy it again")


def shard_file(prefix: Path, shard: int, num_shards: int) -> Path:
    """Where a checkpoint's data lies."""
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")


def _decode(key: bytes) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"a name that is no text: {shown(key)}") from error
