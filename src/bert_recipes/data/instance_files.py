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

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from bert_recipes.data.tfrecord import encode_example, encode_float_feature, encode_int64_feature, write_record
from bert_recipes.errors import InputError


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

    Args:
        instances: What to write, in order.
        paths: One file or more.
        max_seq_length: Positions that the inputs are padded to.
        max_predictions_per_seq: Entries that the predictions are padded to.

    Raises:
        InputError: See :func:`check_instance_outputs`.
        OSError: No space, for instance; nothing is left behind.

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
