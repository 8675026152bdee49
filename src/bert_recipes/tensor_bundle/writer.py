"""Write a checkpoint that TensorFlow reads, one variable at a time."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np

from bert_recipes.crc32c import masked_crc32c
from bert_recipes.tensor_bundle.entries import HEADER_KEY, Entry, Header, serialize_entry, serialize_header
from bert_recipes.tensor_bundle.reader import INDEX_SUFFIX, shard_file
from bert_recipes.tensor_bundle.table import write_table


class BundleWriter:
    """A checkpoint that is being written, in one file of data.

    The index is written last, when the block ends well: without it there is no checkpoint.

    Args:
        prefix: Path without ".index"; its folder exists.

    Raises:
        OSError: A file cannot be written.

    Example:
        >>> with BundleWriter(Path("bert_model.ckpt")) as writer:  # doctest: +SKIP
        ...     writer.add("global_step", np.asarray(0))
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._entries: dict[str, Entry] = {}
        self._num_bytes = 0

    def __enter__(self) -> BundleWriter:
        self._file = open(shard_file(self._prefix, 0, 1), "wb")
        return self

    def add(self, name: str, values: np.ndarray) -> None:
        """Write a variable.

        TensorFlow writes them in the order of their names; any order is read.

        Args:
            name: Not one that has been written.
            values: float32, float64, float16, int32 or int64.

        Raises:
            ValueError: The name is empty or has been written, or another type.
            OSError: The file cannot be written.
        """
        if not name or name in self._entries:
            raise ValueError(f"{name!r} is no new name")
        octets = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
        shape = values.shape  # of a scalar, ascontiguousarray makes a vector
        entry = Entry(values.dtype.name, shape, 0, self._num_bytes, octets.nbytes, masked_crc32c(octets))
        if entry.num_bytes is None:
            raise ValueError(f"{name}: {values.dtype.name} is not written")
        self._file.write(octets.data)
        self._num_bytes += octets.nbytes
        self._entries[name] = entry

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file of data; write the index if all went well."""
        self._file.close()
        if error is not None:
            return
        items = sorted((name.encode("utf-8"), serialize_entry(entry)) for name, entry in self._entries.items())
        index_file = self._prefix.with_name(self._prefix.name + INDEX_SUFFIX)
        write_table(index_file, [(HEADER_KEY, serialize_header(Header(num_shards=1))), *items])
