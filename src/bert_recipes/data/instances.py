"""Training instances on disk, with the feature names of google-research/bert: JSON lines, Parquet or TFRecord.

=======================  =======  ===================================================================
feature                  numbers  meaning
=======================  =======  ===================================================================
input_ids                S        masked input, zero-padded to max_seq_length
input_mask               S        1 = token, 0 = padding
segment_ids              S        0 up to and with the first [SEP], then 1; 0 in the padding
masked_lm_positions      P        predicted positions, ascending, zero-padded to max_predictions_per_seq
masked_lm_ids            P        original ids there, zero-padded
masked_lm_weights        P        1.0 = predicted, 0.0 = padding
next_sentence_labels     1        0 = B follows A, 1 = random
=======================  =======  ===================================================================
"""

import bisect
import hashlib
import itertools
import json
import mmap
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import Dataset
from tqdm import tqdm

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.files import build_once, usable_cache_dir
from bert_recipes.tensorflow_files import (
    FOOTER_BYTES,
    HEADER_BYTES,
    check_record,
    decode_example,
    encode_example,
    encode_float_feature,
    encode_int64_feature,
    read_length,
    write_record,
)


FEATURE_NAMES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_weights",
    "next_sentence_labels",
)
FORMATS = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".tfrecord": "tfrecord",
    ".tf_record": "tfrecord",
}

_ROWS_PER_GROUP = 1024


class Instance(NamedTuple):
    """One training instance before padding.

    Attributes:
        input_ids: Masked [CLS] A [SEP] B [SEP].
        boundary: Number of positions up to and with the first [SEP].
        masked_positions: Predicted positions, ascending.
        masked_ids: Original ids there.
        is_random: Whether B was drawn at random.
    """

    input_ids: list[int]
    boundary: int
    masked_positions: list[int]
    masked_ids: list[int]
    is_random: bool


class _Shape(NamedTuple):
    max_seq_length: int
    max_predictions_per_seq: int


def format_of(path: Path) -> str:
    """Return ``jsonl``, ``parquet`` or ``tfrecord`` by the suffix; shards (``x.tfrecord-00000-of-00010``) count too."""
    for suffix, name in FORMATS.items():
        if path.suffix == suffix or (name == "tfrecord" and path.suffix.startswith(suffix)):
            return name
    raise InputError(f"{path}: the suffix must say the format: {', '.join(FORMATS)}")


def check_instance_outputs(paths: Sequence[Path]) -> None:
    """Refuse, before any work, output paths that could not be written."""
    for path in paths:
        format_of(path)
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is a folder, a device or a pipe; give the name of a file")
        if not path.parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent}; make it first")
        if not os.access(path.parent, os.W_OK):
            raise InputError(f"{path}: the folder {path.parent} may not be written to")
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise InputError(f"{', '.join(map(str, paths))}: an output file is given twice")


def write_instances(
    instances: Iterable[Instance], paths: Sequence[Path], *, max_seq_length: int, max_predictions_per_seq: int
) -> int:
    """Write instances round-robin to files whose suffixes name the formats; return how many there were.

    The files appear, and replace older ones, only when all of them are whole and on the disk.

    Source: google-research/bert create_pretraining_data.py, write_instance_to_example_files.
    """
    check_instance_outputs(paths)
    places = [Path(os.path.realpath(path)) for path in paths]  # a link stays
    shape = _Shape(max_seq_length, max_predictions_per_seq)
    with ExitStack() as stack:
        partials, files, writers = [], [], []
        for path in places:
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
            partials.append(Path(name))
            stack.callback(partials[-1].unlink, missing_ok=True)
            files.append(stack.enter_context(open(descriptor, "wb")))
            writers.append(_WRITERS[format_of(path)](files[-1], shape))
            stack.callback(writers[-1].abandon)
        count = 0
        for instance in tqdm(instances, desc="write", unit="instance", delay=1):
            writers[count % len(writers)].write(instance)
            count += 1
        for writer, file in zip(writers, files, strict=True):
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        for partial, path in zip(partials, places, strict=True):
            partial.chmod(0o644)
            os.replace(partial, path)
    return count


# A few thousand shapes of input make up a whole file: what does not depend on the tokens is made once for each.
@lru_cache(maxsize=2**14)
def _input_mask(length: int, size: int) -> list[int]:
    return [1] * length + [0] * (size - length)


@lru_cache(maxsize=2**14)
def _segment_ids(boundary: int, length: int, size: int) -> list[int]:
    return [0] * boundary + [1] * (length - boundary) + [0] * (size - length)


@lru_cache(maxsize=2**10)
def _weights(count: int, size: int) -> list[float]:
    return [1.0] * count + [0.0] * (size - count)


def _padded(values: list[int], size: int) -> list[int]:
    return values + [0] * (size - len(values))


class _Writer:
    """Writes instances to an open file, which stays open."""

    def __init__(self, file: BinaryIO, shape: _Shape) -> None:
        self._file, self._shape = file, shape

    def write(self, instance: Instance) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Write what is held back."""

    def abandon(self) -> None:
        """Forget what is held back: the file is about to be deleted."""


class _JsonLinesWriter(_Writer):
    """One JSON object a line. The text of a list of numbers is the same in Python and in JSON."""

    def write(self, instance: Instance) -> None:
        input_ids, boundary, positions, labels, is_random = instance
        size, limit = self._shape
        line = (
            f'{{"input_ids": {_padded(input_ids, size)}, "input_mask": {_input_mask_text(len(input_ids), size)}, '
            f'"segment_ids": {_segment_ids_text(boundary, len(input_ids), size)}, '
            f'"masked_lm_positions": {_padded(positions, limit)}, "masked_lm_ids": {_padded(labels, limit)}, '
            f'"masked_lm_weights": {_weights(len(labels), limit)}, "next_sentence_labels": [{int(is_random)}]}}\n'
        )
        self._file.write(line.encode("ascii"))


@lru_cache(maxsize=2**14)
def _input_mask_text(length: int, size: int) -> str:
    return str(_input_mask(length, size))


@lru_cache(maxsize=2**14)
def _segment_ids_text(boundary: int, length: int, size: int) -> str:
    return str(_segment_ids(boundary, length, size))


class _TFRecordWriter(_Writer):
    """``tf.train.Example`` records, features sorted by name."""

    def write(self, instance: Instance) -> None:
        input_ids, boundary, positions, labels, is_random = instance
        size, limit = self._shape
        entries = (
            encode_int64_feature("input_ids", _padded(input_ids, size)),
            _input_mask_entry(len(input_ids), size),
            encode_int64_feature("masked_lm_ids", _padded(labels, limit)),
            encode_int64_feature("masked_lm_positions", _padded(positions, limit)),
            _weights_entry(len(labels), limit),
            encode_int64_feature("next_sentence_labels", (int(is_random),)),
            _segment_ids_entry(boundary, len(input_ids), size),
        )
        write_record(self._file, encode_example(entries))


@lru_cache(maxsize=2**14)
def _input_mask_entry(length: int, size: int) -> bytes:
    return encode_int64_feature("input_mask", _input_mask(length, size))


@lru_cache(maxsize=2**14)
def _segment_ids_entry(boundary: int, length: int, size: int) -> bytes:
    return encode_int64_feature("segment_ids", _segment_ids(boundary, length, size))


@lru_cache(maxsize=2**10)
def _weights_entry(count: int, size: int) -> bytes:
    return encode_float_feature("masked_lm_weights", _weights(count, size))


class _ParquetWriter(_Writer):
    """Lists of int64 and float32, 1,024 rows a group."""

    def __init__(self, file: BinaryIO, shape: _Shape) -> None:
        super().__init__(file, shape)
        self._rows: list[tuple[list, ...]] = []
        types = [pa.list_(pa.float32() if name == "masked_lm_weights" else pa.int64()) for name in FEATURE_NAMES]
        self._schema = pa.schema(list(zip(FEATURE_NAMES, types, strict=True)))
        self._writer = pq.ParquetWriter(file, self._schema)

    def write(self, instance: Instance) -> None:
        input_ids, boundary, positions, labels, is_random = instance
        size, limit = self._shape
        self._rows.append(
            (
                _padded(input_ids, size),
                _input_mask(len(input_ids), size),
                _segment_ids(boundary, len(input_ids), size),
                _padded(positions, limit),
                _padded(labels, limit),
                _weights(len(labels), limit),
                [int(is_random)],
            )
        )
        if len(self._rows) == _ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        columns = []
        for rows, field in zip(zip(*self._rows, strict=True), self._schema, strict=True):
            values = np.array(rows, dtype=field.type.value_type.to_pandas_dtype())
            offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
            columns.append(pa.ListArray.from_arrays(offsets, values.ravel()))
        self._writer.write_table(pa.table(columns, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        # Or it would write a footer to the closed file when it is collected.
        self._writer.is_open = False


_WRITERS: dict[str, type[_Writer]] = {
    "jsonl": _JsonLinesWriter,
    "parquet": _ParquetWriter,
    "tfrecord": _TFRecordWriter,
}


_SCAN_BYTES = 2**24


class RecordReader(Protocol):
    """The records of one file."""

    def __len__(self) -> int:
        """Number of records."""

    def read(self, number: int) -> dict[str, Any]:
        """Return the features of a record, lists or arrays."""


def open_reader(path: Path, cache_dir: Path | None = None) -> RecordReader:
    """Open an instance file by its suffix."""
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


class InstanceDataset(Dataset[dict[str, Any]]):
    """What ``recipes/create_pretraining_data.py`` or the original script wrote, ready for the collator.

    Every epoch has the same pairs and masks: they were fixed when the file was written.

    Args:
        paths: ``.jsonl``, ``.parquet`` or ``.tfrecord`` files, in order.
        cache_dir: Where Parquet files are kept in a form with random access; None = ``.cache`` beside the file, or a
            temporary folder if that cannot be written to.
        vocab_size: Entries of the model's vocabulary; a token id that is not below it is an error instead of a crash
            in the model. None = not checked.

    Example:
        >>> dataset = InstanceDataset(["tf_examples.tfrecord"])  # doctest: +SKIP
        >>> dataset[(0, 17)]["labels"]  # doctest: +SKIP
    """

    def __init__(
        self, paths: Sequence[str | Path], *, cache_dir: str | Path | None = None, vocab_size: int | None = None
    ) -> None:
        if not paths:
            raise InputError("no instance file given")
        self.vocab_size = vocab_size
        self.paths = [Path(path) for path in paths]
        folder = None if cache_dir is None else Path(cache_dir)
        self._readers = [open_reader(path, folder) for path in self.paths]
        self._ends = list(itertools.accumulate(len(reader) for reader in self._readers))
        #: Positions that the inputs of these files are padded to: what the model must offer.
        self.max_seq_length = max(self._padded_length(end - 1) for end in self._ends)

    def __len__(self) -> int:
        return self._ends[-1]

    def num_pairs(self, epoch: int) -> int:
        """Return the number of instances, the same for every epoch."""
        return len(self)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        """Return one instance without its padding.

        Args:
            key: (epoch, index), or an index.

        Returns:
            ``input_ids`` int64 (L,), masked; ``token_type_ids`` int64 (L,); ``labels`` int64 (L,), -100 where nothing
            is predicted; ``next_sentence_label`` int, 0 = next, 1 = random; ``key`` (epoch, index).
        """
        epoch, index = key if isinstance(key, tuple) else (0, key)
        epoch, index = int(epoch), int(index)
        return {**_to_item(self.record(index), self._where(index)), "key": (epoch, index)}

    def _locate(self, index: int) -> tuple[int, int]:
        """Return which file, and which record in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"instance {index}: there are {len(self)}")
        file = bisect.bisect_right(self._ends, index)
        return file, index - (self._ends[file] - len(self._readers[file]))

    def _where(self, index: int) -> str:
        file, record = self._locate(index)
        return f"{self.paths[file]}, record {record + 1}"

    def record(self, index: int) -> dict[str, np.ndarray]:
        """Return the seven features of an instance as they stand in the file, padded: int64 arrays, float64 weights."""
        file, number = self._locate(index)
        try:
            features = self._readers[file].read(number)
            missing = [name for name in FEATURE_NAMES if name not in features]
            if missing:
                raise ValueError(f"{missing[0]} is missing")
            record = {name: _to_array(name, features[name]) for name in FEATURE_NAMES}
            self._check_ids(record)
            return record
        except ValueError as error:
            raise InputError(f"{self._where(index)}: {error}; make the file again") from error

    def _check_ids(self, record: dict[str, np.ndarray]) -> None:
        largest = max(record[name].max(initial=0) for name in ("input_ids", "masked_lm_ids"))
        if self.vocab_size is not None and largest >= self.vocab_size:
            raise ValueError(
                f"token id {largest}, but the vocabulary has {self.vocab_size} entries: it is another one"
            )

    def _padded_length(self, index: int) -> int:
        return len(self.record(index)["input_ids"])


def _to_array(name: str, values: Any) -> np.ndarray:
    """Return int64 (n,) or, for the weights, float64 (n,)."""
    array = np.atleast_1d(np.asarray(values))
    kinds = "iuf" if name == "masked_lm_weights" else "iu"
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise ValueError(f"{name} must be a list of {'numbers' if 'f' in kinds else 'whole numbers'}")
    return array.astype(np.float64 if "f" in kinds else np.int64)


def _to_item(record: dict[str, np.ndarray], where: str) -> dict[str, Any]:
    """Turn the seven features into the collator's."""
    input_ids, input_mask, segment_ids, positions, ids, weights, label = (record[name] for name in FEATURE_NAMES)
    length = int(input_mask.sum())
    is_predicted = weights != 0
    checks = {
        "input_ids, input_mask and segment_ids differ in length": len(input_ids)
        == len(input_mask)
        == len(segment_ids),
        "input_mask must be ones, then zeros": 0 < length <= len(input_mask)
        and bool((input_mask[:length] == 1).all())
        and not input_mask[length:].any(),
        "segment_ids must be 0 or 1": bool(np.isin(segment_ids, (0, 1)).all()),
        "the three masked_lm lists differ in length": len(positions) == len(ids) == len(weights),
        "masked_lm_weights must be 0 or 1": bool(np.isin(weights, (0, 1)).all()),
        "next_sentence_labels must be one number, 0 or 1": len(label) == 1 and label[0] in (0, 1),
        "a token id is negative": not (input_ids < 0).any() and not (ids < 0).any(),
    }
    for problem, holds in checks.items():
        if not holds:
            raise InputError(f"{where}: {problem}; make the file again")
    positions = positions[is_predicted]
    if len(positions) and not 0 <= positions.min() <= positions.max() < length:
        raise InputError(f"{where}: a masked_lm_position is outside the input's {length} tokens; make the file again")
    labels = np.full(length, IGNORE_INDEX, dtype=np.int64)
    labels[positions] = ids[is_predicted]
    return {
        "input_ids": input_ids[:length],
        "token_type_ids": segment_ids[:length],
        "labels": labels,
        "next_sentence_label": int(label[0]),
    }
