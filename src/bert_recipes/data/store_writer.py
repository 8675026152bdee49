"""The token-id store on disk, writing side: written aside, forced to the disk, renamed when whole."""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from bert_recipes.data.columns import ColumnWriter
from bert_recipes.data.splits import COLUMN_OF_FILE
from bert_recipes.data.store import (
    FORMAT,
    FORMAT_VERSION,
    METADATA_FILE,
    SPECIAL_ID_NAMES,
    SPLITS,
    compute_fingerprint,
    read_metadata,
)
from bert_recipes.errors import InputError
from bert_recipes.whole_files import sync_paths


logger = logging.getLogger(__name__)


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest of uint16 and uint32 that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse an output path that holds something already.

    A complete store is replaced if ``overwrite`` says so; an empty folder is used; anything else is never touched.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        if not path.is_dir():
            raise InputError("not a folder")
        read_metadata(path)
    except InputError as error:
        raise InputError(
            f"{path}: exists and is not a token store, so it is left alone; give another output folder or remove it"
        ) from error
    if not overwrite:
        raise InputError(
            f"{path}: holds a store already; give another output folder, or --overwrite true to replace it"
        )


def find_place(path: str | Path, *, overwrite: bool) -> Path:
    """Check where a store shall go, and make the folders that it will lie in.

    Returns:
        The place without links, which a folder cannot replace.
    """
    place = Path(os.path.realpath(path))
    check_output(place, overwrite=overwrite)
    for parent in (place.parent, Path(path).parent):
        parent.mkdir(parents=True, exist_ok=True)
    return place


class _SplitWriter:
    """The four columns of one split."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        folder.mkdir()
        self._vocab_size = vocab_size
        dtypes = (token_dtype(vocab_size), *3 * (np.dtype(np.int64),))
        names = COLUMN_OF_FILE.items()
        self._columns = {
            file: ColumnWriter(folder / file, name, t) for (file, name), t in zip(names, dtypes, strict=True)
        }
        self._unigram = np.zeros(vocab_size, dtype=np.int64)
        for file in ("sentences.arrow", "documents.arrow"):
            self._columns[file].append(np.zeros(1, dtype=np.int64))

    @property
    def num_documents(self) -> int:
        return self._columns["documents.arrow"].num_rows - 1

    def add(self, tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray) -> None:
        num_tokens, num_sentences = (
            self._columns["tokens.arrow"].num_rows,
            self._columns["sentences.arrow"].num_rows - 1,
        )
        if int(sentence_lengths.sum()) != len(tokens) or int(document_lengths.sum()) != len(sentence_lengths):
            raise ValueError("lengths do not add up to the number of tokens and of sentences")
        if (sentence_lengths < 1).any() or (document_lengths < 1).any():
            raise ValueError("a sentence has no token or a document no sentence: drop (and count) it before")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocab_size:
            raise ValueError(f"a token id is outside 0..{self._vocab_size - 1}")
        self._unigram += np.bincount(tokens, minlength=self._vocab_size)
        self._columns["tokens.arrow"].append(tokens)
        self._columns["sentences.arrow"].append(np.cumsum(sentence_lengths, dtype=np.int64) + num_tokens)
        self._columns["documents.arrow"].append(np.cumsum(document_lengths, dtype=np.int64) + num_sentences)

    def close(self) -> dict[str, Any]:
        self._columns["unigram.arrow"].append(self._unigram)
        files = {file: column.close() for file, column in self._columns.items()}
        return {**self.counts(), "files": files}

    def counts(self) -> dict[str, int]:
        return {
            "num_documents": self.num_documents,
            "num_sentences": self._columns["sentences.arrow"].num_rows - 1,
            "num_tokens": self._columns["tokens.arrow"].num_rows,
        }

    def abandon(self) -> None:
        for column in self._columns.values():
            column.abandon()


class StoreWriter:
    """Writes a store; use as a context manager and call `finish`. Without it nothing is left behind.

    Args:
        path: Folder of the store to be.
        vocab_size: Entries of the tokenizer's vocabulary; every id must be smaller.
        special_ids: Ids of ``pad, unk, cls, sep, mask``.
        tokenizer_fingerprint: Identity of the tokenizer (its ``fingerprint``).
        overwrite: Replace a complete store at ``path``.
        needs_training: Refuse to finish without a training document; False for a shard.

    Example:
        >>> with StoreWriter("store", vocab_size=30522, special_ids=ids, tokenizer_fingerprint="...") as writer:
        ...     writer.add_document("train", [[7592, 2088], [2003]])  # doctest: +SKIP
        ...     writer.finish()  # doctest: +SKIP

    Raises:
        InputError: If ``path`` holds something that may not be replaced.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        vocab_size: int,
        special_ids: Mapping[str, int],
        tokenizer_fingerprint: str,
        overwrite: bool = False,
        needs_training: bool = True,
    ) -> None:
        if sorted(special_ids) != sorted(SPECIAL_ID_NAMES):
            raise ValueError(f"special_ids must name {SPECIAL_ID_NAMES}, got {sorted(special_ids)}")
        self.path = find_place(path, overwrite=overwrite)
        self._needs_training = needs_training
        self._identity = {"tokenizer_fingerprint": tokenizer_fingerprint, "vocab_size": vocab_size}
        self._special_ids = {name: special_ids[name] for name in SPECIAL_ID_NAMES}
        self._vocab_size = vocab_size
        self._overwrite = overwrite
        prefix = f".{self.path.name}.partial-"
        for leftover in sorted(self.path.parent.glob(f"{prefix}*")):
            logger.warning(
                "%s: left by a run that was cut off (or is still going); delete it if it is not needed", leftover
            )
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.path.parent))
        self._folder.chmod(0o777 & ~_umask())
        self._splits: dict[str, _SplitWriter] = {}
        self._finished = False

    @property
    def tokenizer_folder(self) -> Path:
        """Where the caller saves the tokenizer, before `finish`."""
        folder = self._folder / "tokenizer"
        folder.mkdir(exist_ok=True)
        return folder

    def num_documents(self, split: str) -> int:
        """Return the number of documents added to a split so far."""
        return self._splits[split].num_documents if split in self._splits else 0

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by split what was added so far: ``num_documents``, ``num_sentences``, ``num_tokens``."""
        return {split: writer.counts() for split, writer in self._splits.items()}

    def add_document(self, split: str, sentences: Sequence[Sequence[int]]) -> None:
        """Append one document: its sentences as lists of token ids, none of them empty."""
        tokens = np.fromiter((token for sentence in sentences for token in sentence), dtype=np.int64)
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        self.add_batch(split, tokens, lengths, np.array([len(sentences)], dtype=np.int64))

    def add_batch(
        self, split: str, tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray
    ) -> None:
        """Append many documents at once.

        Args:
            split: ``train`` or ``validation``.
            tokens: Token ids of all sentences, integer (num_tokens,).
            sentence_lengths: Tokens in each sentence, integer (num_sentences,), all > 0.
            document_lengths: Sentences in each document, integer (num_documents,), all > 0.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        if split not in self._splits:
            self._splits[split] = _SplitWriter(self._folder / split, self._vocab_size)
        self._splits[split].add(tokens, sentence_lengths, document_lengths)

    def finish(self, **description: Any) -> None:
        """Write the metadata, force everything to the disk and give the store its name.

        Args:
            **description: What else ``store.json`` should tell (JSON values): sources, settings, dropped, versions.
        """
        if "train" not in self._splits and self._needs_training:
            raise InputError(f"{self.path}: there is no training document to write")
        splits = {split: self._splits[split].close() for split in SPLITS if split in self._splits}
        metadata = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "fingerprint": compute_fingerprint(**self._identity, splits=splits),  # type: ignore[arg-type]
            **self._identity,
            "special_ids": self._special_ids,
            "dtype": token_dtype(self._vocab_size).name,
            "splits": splits,
            **description,
        }
        text = json.dumps(metadata, indent=2, ensure_ascii=True) + "\n"
        (self._folder / METADATA_FILE).write_text(text, encoding="ascii")
        sync_paths([*self._folder.rglob("*"), self._folder])
        check_output(self.path, overwrite=self._overwrite)
        move_into_place(self._folder, self.path)
        sync_paths([self.path.parent])
        self._finished = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._finished:
            return
        for split in self._splits.values():
            split.abandon()
        shutil.rmtree(self._folder, ignore_errors=True)


def _umask() -> int:
    """Return the process's file mode mask (it can only be read by setting it)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def move_into_place(folder: Path, target: Path) -> None:
    """Rename ``folder`` to ``target``; an old store there steps aside first and is deleted only afterwards."""
    if not target.exists():
        os.rename(folder, target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    try:
        os.rename(target, old)
    except OSError:
        old.rmdir()
        raise
    try:
        os.rename(folder, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old)
