"""Training instances on disk as JSON lines, Parquet or TFRecord.

Their features, with the names of google-research/bert; S = max_seq_length, P =
max_predictions_per_seq:

- `input_ids` (S): masked input, zero-padded.
- `input_mask` (S): 1 = token, 0 = padding.
- `segment_ids` (S): 0 up to and with the first [SEP], then 1; 0 in the padding.
- `masked_lm_positions` (P): predicted positions, ascending, zero-padded.
- `masked_lm_ids` (P): original ids there, zero-padded.
- `masked_lm_weights` (P): 1.0 = predicted, 0.0 = padding.
- `next_sentence_labels` (1): 0 = B follows A, 1 = random.
"""

import bisect
import hashlib
import itertools
import json
import mmap
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write, build_once, sync_paths, usable_cache_dir
from bert_recipes.progress import Progress
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


WEIGHTS = "masked_lm_weights"
FEATURE_NAMES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    WEIGHTS,
    "next_sentence_labels",
)
SUFFIXES = (".jsonl", ".json", ".parquet", ".tfrecord", ".tf_record")

_ROWS_PER_GROUP = 1024
_SCAN_BYTES = 2**24


class Instance(NamedTuple):
    """A training instance before padding."""

    input_ids: Sequence[int]  # masked [CLS] A [SEP] B [SEP]
    boundary: int  # positions up to and with the first [SEP]
    masked_positions: Sequence[int]  # predicted positions, ascending
    masked_ids: Sequence[int]  # original ids there
    is_random: bool


def format_of(path: Path) -> str:
    """Return `jsonl`, `parquet` or `tfrecord` by the suffix.

    Shards (`x.tfrecord-00000-of-00010`) count too.
    """
    if path.suffix.startswith((".tfrecord", ".tf_record")):
        return "tfrecord"
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: the suffix must say the format: {', '.join(SUFFIXES)}")
    return "parquet" if path.suffix == ".parquet" else "jsonl"


def check_instance_outputs(paths: Sequence[Path]) -> None:
    """Refuse, before any work, output paths that could not be written."""
    for path in paths:
        format_of(path)
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is a folder, a device or a pipe; give the name of a file")
        if not os.access(path.parent, os.W_OK):
            raise InputError(
                f"{path}: there is no folder {path.parent}, or it may not be written to"
            )

    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise InputError(f"{', '.join(map(str, paths))}: an output file is given twice")


def write_instances(
    instances: Iterable[Instance],
    paths: Sequence[Path],
    *,
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> int:
    """Write instances round-robin to files whose suffixes name the formats; return their number.

    The files appear, and replace older ones, only when all of them are complete and on the disk.

    Args:
        instances: The instances to write.
        paths: The paths of the files.
        max_seq_length: Numbers of a padded input.
        max_predictions_per_seq: Numbers of its padded predictions.

    Source: google-research/bert create_pretraining_data.py, write_instance_to_example_files.
    """
    check_instance_outputs(paths)
    count = 0
    with ExitStack() as staged:
        partials = [staged.enter_context(atomic_write(path)) for path in paths]
        with ExitStack() as opened:
            writers = []
            for path, partial_path in zip(paths, partials, strict=True):
                file = opened.enter_context(open(partial_path, "wb"))
                writer = _WRITERS[format_of(path)](file)
                # Called with the exception, or None, before the file is closed.
                opened.push(writer.finish)
                writers.append(writer)
            for instance in Progress(instances, desc="write", unit="instance", delay=1):
                writer = writers[count % len(writers)]
                writer.write(_pad_features(instance, max_seq_length, max_predictions_per_seq))
                count += 1
        sync_paths(partials)

    return count


def _pad_features(
    instance: Instance, max_seq_length: int, max_predictions: int
) -> dict[str, list[Any]]:
    """Return the features of an instance, in the order of `FEATURE_NAMES`."""
    length = len(instance.input_ids)
    boundary = instance.boundary
    num_predictions = len(instance.masked_ids)
    padding = [0] * (max_seq_length - length)
    unused = [0] * (max_predictions - num_predictions)
    return {
        "input_ids": [*instance.input_ids, *padding],
        "input_mask": [1] * length + padding,
        "segment_ids": [0] * boundary + [1] * (length - boundary) + padding,
        "masked_lm_positions": [*instance.masked_positions, *unused],
        "masked_lm_ids": [*instance.masked_ids, *unused],
        WEIGHTS: [1.0] * num_predictions + [0.0] * len(unused),
        "next_sentence_labels": [int(instance.is_random)],
    }


class _Writer:
    """A writer of instances to an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def finish(self, failure: object, *_: object) -> None:
        """End the file, which is about to be deleted where there was a failure."""


class _JsonLinesWriter(_Writer):
    """Writer of one JSON object per line.

    The text of a list of numbers is the same in Python and in JSON.
    """

    def write(self, features: dict[str, list[Any]]) -> None:
        entries = [f'"{name}": {values}' for name, values in features.items()]
        line = ", ".join(entries)
        self._file.write(f"{{{line}}}\n".encode("ascii"))


class _TFRecordWriter(_Writer):
    """Writer of `tf.train.Example` records, features sorted by name."""

    def write(self, features: dict[str, list[Any]]) -> None:
        entries = []
        for name in sorted(features):
            encode = encode_float_feature if name == WEIGHTS else encode_int64_feature
            entries.append(encode(name, features[name]))
        write_record(self._file, encode_example(entries))


class _ParquetWriter(_Writer):
    """Writer of lists of int64 and float32, 1,024 rows per group."""

    def __init__(self, file: BinaryIO) -> None:
        self._rows: list[dict[str, list]] = []
        fields = []
        for name in FEATURE_NAMES:
            number = pa.float32() if name == WEIGHTS else pa.int64()
            fields.append((name, pa.list_(number)))
        self._writer = pq.ParquetWriter(file, pa.schema(fields))

    def write(self, features: dict[str, list[Any]]) -> None:
        self._rows.append(features)
        if len(self._rows) == _ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._writer.schema))
        self._rows = []

    def finish(self, failure: object, *_: object) -> None:
        if failure is None:
            if self._rows:
                self._write_group()
            self._writer.close()
        self._writer.is_open = False  # or it would write to the closed file when it is collected


_WRITERS: dict[str, Any] = {
    "jsonl": _JsonLinesWriter,
    "parquet": _ParquetWriter,
    "tfrecord": _TFRecordWriter,
}


class _MappedReader:
    """A memory-mapped file whose record i is the bytes `offsets[i]` to `offsets[i + 1]`."""

    def __init__(
        self,
        path: Path,
        find_offsets: Callable[[mmap.mmap], Iterator[int]],
        decode: Callable[[bytes], Mapping[str, Any]],
    ) -> None:
        self._path = path
        self._decode = decode
        self._open()
        offsets = find_offsets(self._data)
        bar = Progress(offsets, desc=f"open {path.name}", unit="instance", delay=1)
        self._offsets = array("q", bar)

    def _open(self) -> None:
        with open(self._path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def read(self, number: int) -> Mapping[str, Any]:
        begin, end = self._offsets[number : number + 2]
        return self._decode(self._data[begin:end])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_data": None}  # a map does not travel

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _line_offsets(data: mmap.mmap) -> Iterator[int]:
    yield 0
    line_feed = ord("\n")
    for begin in range(0, len(data), _SCAN_BYTES):
        end = begin + _SCAN_BYTES
        block = np.frombuffer(data[begin:end], dtype=np.uint8)
        places = np.flatnonzero(block == line_feed)
        line_begins = begin + places + 1
        yield from line_begins.tolist()
    last_byte = data[len(data) - 1]
    if last_byte != line_feed:
        yield len(data)


def _tfrecord_offsets(data: mmap.mmap) -> Iterator[int]:
    end = 0
    yield end
    while end < len(data):
        end += HEADER_BYTES + read_length(data[end : end + HEADER_BYTES]) + FOOTER_BYTES
        if end > len(data):
            raise ValueError("cut short")
        yield end


def _decode_tfrecord(record: bytes) -> Mapping[str, np.ndarray]:
    data = record[HEADER_BYTES:-FOOTER_BYTES]
    check_record(data, record[-FOOTER_BYTES:])
    return decode_example(data)


class _ParquetReader:
    """A Parquet file, of which the records are kept as an array that is mapped.

    Its compressed pages have no random access.
    """

    def __init__(self, path: Path, cache_dir: Path | None) -> None:
        status = path.stat()
        key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        folder = cache_dir
        if folder is None:
            folder = usable_cache_dir(path.parent / ".cache")
        records_file = folder / f"instances-{digest[:24]}.npy"
        build_once(records_file, partial(_convert_parquet, path))
        self._open(records_file)

    def __len__(self) -> int:
        return len(self._records)

    def read(self, number: int) -> Mapping[str, Any]:
        record = self._records[number]
        return {name: record[name] for name in FEATURE_NAMES}

    def __getstate__(self) -> Path:
        return self._path

    def __setstate__(self, path: Path) -> None:
        self._open(path)

    def _open(self, path: Path) -> None:
        self._path = path
        self._records = np.load(path, mmap_mode="r", allow_pickle=False)


def _convert_parquet(path: Path, output: Path) -> None:
    begin = 0
    with pq.ParquetFile(path) as source:
        num_records = source.metadata.num_rows
        batches = source.iter_batches(batch_size=4096, columns=list(FEATURE_NAMES))
        for batch in Progress(batches, desc=f"open {path.name}", unit="batch", delay=1):
            columns = {name: _to_matrix(name, batch[name]) for name in FEATURE_NAMES}
            if begin == 0:
                fields = [(name, rows.dtype, rows.shape[1:]) for name, rows in columns.items()]
                records = np.lib.format.open_memmap(
                    output, mode="w+", dtype=np.dtype(fields), shape=(num_records,)
                )
            for name, rows in columns.items():
                records[name][begin : begin + len(rows)] = rows
            begin += len(batch)

    if begin == 0:
        raise ValueError("no records")


def _to_matrix(name: str, column: pa.Array) -> np.ndarray:
    """Return (rows, numbers per row) of a column of lists of one length, or of numbers."""
    if not pa.types.is_nested(column.type):
        numbers = column.to_numpy(zero_copy_only=False)
        return _to_array(name, numbers)[:, None]
    lengths = pc.list_value_length(column)
    distinct_lengths = pc.unique(lengths).to_pylist()
    if len(distinct_lengths) > 1 or None in distinct_lengths:
        raise ValueError(f"{name} is not of one length in all rows")
    values = column.flatten().to_numpy(zero_copy_only=False)
    numbers = _to_array(name, values)
    return numbers.reshape(len(column), -1)


def _open_reader(path: Path, cache_dir: Path | None) -> _MappedReader | _ParquetReader:
    kind = format_of(path)
    if not path.is_file():
        raise InputError(
            f"{path}: there is no such file; make it with recipes/create_pretraining_data.py"
        )
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")

    try:
        if kind == "parquet":
            return _ParquetReader(path, cache_dir)
        if kind == "jsonl":
            return _MappedReader(path, _line_offsets, json.loads)
        return _MappedReader(path, _tfrecord_offsets, _decode_tfrecord)
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not a file of instances, or damaged ({error}); make it again"
        ) from error


class InstanceDataset:
    """Instances of `recipes/create_pretraining_data.py` or the original, ready for the collator.

    Every epoch has the same pairs and masks: they were fixed when the file was written.

    Args:
        paths: `.jsonl`, `.parquet` or `.tfrecord` files, in order.
        cache_dir: Where Parquet files are kept in a form with random access; None = `.cache` beside
            the file, or a temporary folder if that cannot be written to.
        vocab_size: Entries of the model's vocabulary; a token id that is not below it is an error
            instead of a crash in the model. None = not checked.

    Example:
        >>> dataset = InstanceDataset(["tf_examples.tfrecord"])  # doctest: +SKIP
        >>> dataset[(0, 17)]["labels"]  # doctest: +SKIP
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        cache_dir: str | Path | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.paths = [Path(path) for path in paths]
        folder = None if cache_dir is None else Path(cache_dir)
        self._readers = [_open_reader(path, folder) for path in self.paths]
        self._ends = list(itertools.accumulate(map(len, self._readers)))
        #: Positions that the inputs of these files are padded to: what the model must offer.
        self.max_seq_length = 0
        for end in self._ends:
            last_of_file = self.record(end - 1)
            size = len(last_of_file["input_ids"])
            self.max_seq_length = max(self.max_seq_length, size)

    def __len__(self) -> int:
        return self._ends[-1]

    def num_pairs(self, epoch: int) -> int:
        """Return the number of instances, the same for every epoch."""
        return len(self)

    def record(self, index: int) -> dict[str, np.ndarray]:
        """Return the seven features of an instance as they stand in the file, padded.

        They are int64 arrays, the weights float64.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"instance {index}: there are {len(self)}")

        file = bisect.bisect_right(self._ends, index)
        reader = self._readers[file]
        number = index - (self._ends[file] - len(reader))

        try:
            features = reader.read(number)
            record = {name: _to_array(name, features[name]) for name in FEATURE_NAMES}
            _check(record, self.vocab_size)
            return record
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.paths[file]}, record {number + 1}: {error}; make the file again"
            ) from error

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        """Return one instance without its padding.

        Args:
            key: (epoch, index), or an index.

        Returns:
            `input_ids` int64 (L,), masked; `token_type_ids` int64 (L,); `labels` int64 (L,), -100
            where nothing is predicted; `next_sentence_label` int, 0 = next, 1 = random; `key`
            (epoch, index).
        """
        if not isinstance(key, tuple):
            key = (0, key)
        epoch, index = map(int, key)
        record = self.record(index)
        length = int(record["input_mask"].sum())
        is_predicted = record[WEIGHTS] != 0
        positions = record["masked_lm_positions"][is_predicted]
        labels = np.full(length, IGNORE_INDEX, dtype=np.int64)
        labels[positions] = record["masked_lm_ids"][is_predicted]
        return {
            "input_ids": record["input_ids"][:length],
            "token_type_ids": record["segment_ids"][:length],
            "labels": labels,
            "next_sentence_label": int(record["next_sentence_labels"][0]),
            "key": (epoch, index),
        }


def _to_array(name: str, values: Any) -> np.ndarray:
    """Return int64 (n,) or, for the weights, float64 (n,).

    Raises TypeError for values that would be rounded.
    """
    dtype = np.float64 if name == WEIGHTS else np.int64
    return np.atleast_1d(np.asarray(values)).astype(dtype, casting="safe")


def _check(record: Mapping[str, np.ndarray], vocab_size: int | None) -> None:
    """Refuse features that the module does not describe, and ids of another vocabulary.

    Raises ValueError.
    """
    if not _is_instance(record):
        raise ValueError("not an instance as create_pretraining_data.py writes it")

    largest = max(record["input_ids"].max(initial=0), record["masked_lm_ids"].max(initial=0))
    if vocab_size is not None and largest >= vocab_size:
        raise ValueError(
            f"token id {largest}, but the vocabulary has {vocab_size} entries: it is another one"
        )


def _is_instance(record: Mapping[str, np.ndarray]) -> bool:
    """Return whether shapes and values of the features are those that the module describes."""
    inputs = ("input_ids", "input_mask", "segment_ids")
    predictions = ("masked_lm_positions", "masked_lm_ids", WEIGHTS)
    for names in (inputs, predictions):
        size = len(record[names[0]])
        if any(record[name].shape != (size,) for name in names):
            return False

    input_mask = record["input_mask"]
    length = int(input_mask.sum())
    is_token = np.arange(len(input_mask)) < length
    if length <= 0 or not np.array_equal(input_mask, is_token):
        return False
    for name in ("segment_ids", WEIGHTS):
        if not np.isin(record[name], (0, 1)).all():
            return False
    if record["next_sentence_labels"].tolist() not in ([0], [1]):
        return False
    for name in ("input_ids", "masked_lm_ids", "masked_lm_positions"):
        if record[name].min(initial=0) < 0:
            return False
    positions = record["masked_lm_positions"][record[WEIGHTS] != 0]
    return bool(positions.max(initial=0) < length)
