"""One column of integers on disk: an Arrow IPC file in record batches of a fixed number of rows, read by memory map.

Fixed batches make every row's place known by arithmetic (batch ``i // ROWS``, row ``i % ROWS``), so reading never copies
more than what is asked for and the operating system's page cache is shared by all workers and processes of a machine.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert_recipes.errors import InputError


ROWS_PER_BATCH = 2**20


class ColumnWriter:
    """Appends integers to an Arrow IPC file in record batches of exactly ``ROWS_PER_BATCH`` rows (the last one shorter).

    Args:
        path: File to write; must not exist yet.
        name: Column name in the file's schema.
        dtype: Little-endian integer type of the column, e.g. ``np.uint16``.

    Memory: at most one record batch plus the array given last.
    """

    def __init__(self, path: Path, name: str, dtype: np.dtype | type) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._schema = pa.schema([pa.field(name, pa.from_numpy_dtype(self._dtype), nullable=False)])
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._hash = hashlib.sha256()
        self._buffer = np.empty(ROWS_PER_BATCH, dtype=self._dtype)
        self._filled = 0
        self.num_rows = 0

    def append(self, values: np.ndarray) -> None:
        """Append a one-dimensional integer array; values must fit the column's type."""
        begin = 0
        while begin < len(values):
            count = min(len(values) - begin, ROWS_PER_BATCH - self._filled)
            self._buffer[self._filled : self._filled + count] = values[begin : begin + count]
            self._filled += count
            begin += count
            if self._filled == ROWS_PER_BATCH:
                self._write_batch()
        self.num_rows += len(values)

    def _write_batch(self) -> None:
        values = self._buffer[: self._filled]
        self._hash.update(values.tobytes())
        try:
            self._writer.write_batch(pa.record_batch([pa.array(values)], schema=self._schema))
        except OSError as error:
            # Arrow does not name the file; a full disk is the usual reason.
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(error.errno, f"cannot be written: {reason}", str(self._path)) from error
        self._filled = 0

    def close(self) -> dict[str, int | str]:
        """Write what is left and describe the file: ``rows``, ``bytes``, ``sha256`` of the values."""
        if self._filled:
            self._write_batch()
        self._writer.close()
        self._sink.close()
        return {"rows": self.num_rows, "bytes": self._path.stat().st_size, "sha256": self._hash.hexdigest()}

    def abandon(self) -> None:
        """Close the file handle without caring for what is in the file (it is about to be deleted)."""
        self._sink.close()


def _map_batch(reader: Any, index: int) -> np.ndarray:
    """Return the values of one record batch without copying them."""
    batch = reader.get_batch(index)
    # A damaged file may claim more rows than it has bytes for: numpy would read beyond its end.
    batch.validate()
    return batch.column(0).to_numpy(zero_copy_only=True)


class Column:
    """Read-only, memory-mapped view of a file that `ColumnWriter` wrote.

    Args:
        path: The Arrow IPC file.
        name: Expected name of its only column.

    Raises:
        InputError: If the file is missing, cut short, or not such a file.
    """

    def __init__(self, path: Path, name: str) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            if reader.schema.names != [name]:
                raise InputError(f"{path}: damaged store: column {name!r} expected, {reader.schema.names} found")
            kind = reader.schema.field(0).type
            if not pa.types.is_integer(kind):
                raise InputError(f"{path}: damaged store: its values are no integers; prepare the store again")
            self.dtype = np.dtype(kind.to_pandas_dtype())
            self._chunks = [_map_batch(reader, index) for index in range(reader.num_record_batches)]
        except FileNotFoundError as error:
            raise InputError(f"{path}: this file of the store is missing; prepare the store again") from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            detail = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(f"{path}: damaged or cut short ({detail}); prepare the store again") from error
        lengths = [len(chunk) for chunk in self._chunks]
        if any(length != ROWS_PER_BATCH for length in lengths[:-1]) or (lengths and lengths[-1] > ROWS_PER_BATCH):
            raise InputError(f"{path}: damaged store: record batches are not of {ROWS_PER_BATCH} rows")
        self._num_rows = sum(lengths)

    def __len__(self) -> int:
        return self._num_rows

    def sha256(self) -> str:
        """The hash of the values, as `ColumnWriter.close` gives it; reads all of them."""
        digest = hashlib.sha256()
        for chunk in self._chunks:
            digest.update(np.ascontiguousarray(chunk).data)
        return digest.hexdigest()

    def slice(self, begin: int, end: int) -> np.ndarray:
        """Return rows ``begin`` to ``end`` (excluded), shape (end - begin,): a read-only view, or a copy across batches.

        Raises:
            IndexError: Unless ``0 <= begin <= end <= len(self)``.
        """
        if not 0 <= begin <= end <= self._num_rows:
            raise IndexError(f"rows {begin}..{end} of a column of {self._num_rows}")
        if begin == end:
            return np.empty(0, dtype=self.dtype)
        first, last = begin // ROWS_PER_BATCH, (end - 1) // ROWS_PER_BATCH
        if first == last:
            return self._chunks[first][begin - first * ROWS_PER_BATCH : end - first * ROWS_PER_BATCH]
        parts = [self._chunks[first][begin - first * ROWS_PER_BATCH :], *self._chunks[first + 1 : last]]
        return np.concatenate([*parts, self._chunks[last][: end - last * ROWS_PER_BATCH]])
