"""Random access to the records of an instance file: JSON lines, Parquet or TFRecord.

Only where each record lies is kept in memory (8 bytes a record). Readers travel to workers: they open their file again.
"""

import bisect
import hashlib
import json
import mmap
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from bert_recipes.data.cached_file import build_once, usable_cache_dir
from bert_recipes.data.instance_files import FEATURE_NAMES, format_of
from bert_recipes.data.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_record, decode_example, read_length
from bert_recipes.errors import InputError


_SCAN_BYTES = 2**24


class RecordReader(Protocol):
    """The records of one file."""

    def __len__(self) -> int:
        """Number of records."""

    def read(self, number: int) -> dict[str, Any]:
        """Return the features of a record, lists or arrays.

        Raises:
            ValueError: The record is damaged.
        """


def open_reader(path: Path, cache_dir: Path | None = None) -> RecordReader:
    """Open an instance file by its suffix.

    Raises:
        InputError: Missing, empty, of an unknown suffix, or not a file of that format.
    """
    kind = format_of(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; make it with recipes/create_pretraining_data.py")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    reader: RecordReader
    if kind == "parquet":
        reader = _ParquetReader(path, cache_dir)
    else:
        reader = _JsonLinesReader(path) if kind == "jsonl" else _TFRecordReader(path)
    if len(reader) == 0:
        raise InputError(f"{path}: the file holds no records")
    return reader


class _MappedFile:
    """A memory-mapped file and the places of its records: record i is bytes ``places[i]`` to ``places[i + 1]``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()
        self._places = array("q", self._find_places())

    def _open(self) -> None:
        with open(self.path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _find_places(self) -> Iterator[int]:
        raise NotImplementedError

    def _progress(self) -> tqdm:
        return tqdm(total=len(self._data), desc=f"open {self.path.name}", unit="B", unit_scale=True, delay=1)

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_data"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


class _JsonLinesReader(_MappedFile):
    def _find_places(self) -> Iterator[int]:
        size = len(self._data)
        yield 0
        with self._progress() as progress:
            for begin in range(0, size, _SCAN_BYTES):
                block = np.frombuffer(self._data[begin : begin + _SCAN_BYTES], dtype=np.uint8)
                yield from (np.flatnonzero(block == ord("\n")) + begin + 1).tolist()
                progress.update(len(block))
        if self._data[size - 1] != ord("\n"):
            yield size

    def read(self, number: int) -> dict[str, Any]:
        record = json.loads(self._data[self._places[number] : self._places[number + 1]])
        if not isinstance(record, dict):
            raise ValueError("a JSON object is expected")
        return record


class _TFRecordReader(_MappedFile):
    def _find_places(self) -> Iterator[int]:
        place, size, number = 0, len(self._data), 0
        yield place
        with self._progress() as progress:
            while place < size:
                try:
                    length = read_length(self._data[place : place + HEADER_BYTES])
                    if place + HEADER_BYTES + length + FOOTER_BYTES > size:
                        raise ValueError("cut short")
                except ValueError as error:
                    raise InputError(
                        f"{self.path}, record {number + 1}: {error}; not a TFRecord file, or damaged: make it again"
                    ) from error
                place += HEADER_BYTES + length + FOOTER_BYTES
                number += 1
                progress.update(HEADER_BYTES + length + FOOTER_BYTES)
                yield place

    def read(self, number: int) -> dict[str, Any]:
        begin, end = self._places[number] + HEADER_BYTES, self._places[number + 1] - FOOTER_BYTES
        data = self._data[begin:end]
        check_record(data, self._data[end : end + FOOTER_BYTES])
        return dict(decode_example(data))


class _ParquetReader:
    """Parquet can only be decoded a row group at a time, so it is turned once into a memory-mapped Arrow file."""

    def __init__(self, path: Path, cache_dir: Path | None) -> None:
        status = path.stat()
        key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
        name = f"instances-{hashlib.sha256(key.encode()).hexdigest()[:24]}.arrow"
        self._source = path
        folder = usable_cache_dir(path.parent / ".cache") if cache_dir is None else cache_dir
        self._path = folder / name
        try:
            build_once(self._path, self._convert)
            self._open()
        except pa.ArrowException as error:
            detail = str(error).splitlines()[0]
            raise InputError(f"{path}: not a Parquet file, or damaged ({detail}); make it again") from error

    def _convert(self, partial: Path) -> None:
        with pq.ParquetFile(self._source) as source:
            missing = [name for name in FEATURE_NAMES if name not in source.schema_arrow.names]
            if missing:
                raise InputError(f"{self._source}: column {missing[0]} is missing; it has {source.schema_arrow.names}")
            schema = pa.schema([source.schema_arrow.field(name) for name in FEATURE_NAMES])
            with (
                pa.OSFile(str(partial), "wb") as sink,
                pa.ipc.new_file(sink, schema) as target,
                tqdm(
                    total=source.metadata.num_rows, desc=f"open {self._source.name}", unit="row", delay=1
                ) as progress,
            ):
                for batch in source.iter_batches(batch_size=4096, columns=list(FEATURE_NAMES)):
                    target.write_batch(batch.select(list(FEATURE_NAMES)))
                    progress.update(len(batch))

    def _open(self) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(self._path), "r"))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._ends = np.cumsum([len(batch) for batch in self._batches]).tolist()

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def read(self, number: int) -> dict[str, Any]:
        place = bisect.bisect_right(self._ends, number)
        batch = self._batches[place]
        row = number - (self._ends[place] - len(batch))
        record = {}
        for name in FEATURE_NAMES:
            value = batch.column(name)[row]
            values = value.values if hasattr(value, "values") else pa.array([value])
            if values is None or values.null_count:
                raise ValueError(f"{name} is null")
            record[name] = values.to_numpy(zero_copy_only=False)
        return record
