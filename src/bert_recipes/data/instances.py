"""Training from instance files: the original's static pairs and masks, by random access."""

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from bert_recipes.data.instance_files import FEATURE_NAMES
from bert_recipes.data.instance_readers import open_reader
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError


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

    Raises:
        InputError: A file is missing, empty, or not of the format its suffix names.
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

        Raises:
            IndexError: There is no such instance.
            InputError: The record is damaged, or its features do not fit together (file and record number).
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
