"""The token-id store on disk: documents of sentences of token ids, memory-mapped, in shards.

A store is a folder::

    store.json                  format, vocabulary, settings, sources, counts, versions, shards
    tokenizer/                  the tokenizer that made it, as a stock folder
    shards/00000/store.json     a shard can be opened alone
    shards/00000/train/         one folder a split: train, and validation where text is held out
        tokens.arrow            token_id: uint16, or uint32 above 65,536 pieces, one row a token
        sentences.arrow         token_offset: int64, number of sentences + 1 rows
        documents.arrow         sentence_offset: int64, number of documents + 1 rows
        unigram.arrow           count: int64, how often each id occurs in the split

Sentence s is tokens[o[s]:o[s+1]], document d is sentences[o[d]:o[d+1]]. ``store.json`` is written
last, and a folder gets its name when all of it is on the disk: what `open_store` accepts is
complete.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.files import sync_paths, write_json


# pyarrow is imported where a store is read or written: a machine that only trains on other data may
# lack it
if TYPE_CHECKING:
    import pyarrow as pa


logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 2**20
FORMAT, FORMAT_VERSION = "bert-recipes token store", 3
METADATA_FILE, CHECKED_FILE, SHARDS_FOLDER = "store.json", ".checked.json", "shards"
SPLITS = ("train", "validation")
SPECIAL_ID_NAMES = ("pad", "unk", "cls", "sep", "mask")
COLUMN_OF_FILE = {
    "tokens.arrow": "token_id",
    "sentences.arrow": "token_offset",
    "documents.arrow": "sentence_offset",
    "unigram.arrow": "count",
}
COUNTS = {"documents": "num_documents", "sentences": "num_sentences", "tokens": "num_tokens"}
# Sources that are named one by one; of more their number and size are said.
MAX_NAMED_SOURCES = 20


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest of uint16 and uint32 that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def _columns(vocab_size: int) -> Iterator[tuple[str, pa.Schema]]:
    import pyarrow as pa

    for file, name in COLUMN_OF_FILE.items():
        dtype = token_dtype(vocab_size) if file == "tokens.arrow" else np.dtype(np.int64)
        yield file, pa.schema([pa.field(name, pa.from_numpy_dtype(dtype), nullable=False)])


def _damaged(path: Path, error: Exception | None = None) -> InputError:
    """Say that a file is not what was written, or where the system refuses to read it, that."""
    if (
        isinstance(error, OSError)
        and error.errno is not None
        and not isinstance(error, FileNotFoundError)
    ):
        return InputError(
            f"{path}: cannot be read ({os.strerror(error.errno)}); nothing says that it is damaged"
        )
    return InputError(f"{path}: damaged or incomplete: prepare the store again")


class ColumnWriter:
    """Appends integers to an Arrow IPC file in record batches of exactly ``ROWS_PER_BATCH`` rows
    (the last one shorter).

    Memory: at most one record batch plus the array given last.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._path, self._schema = path, schema
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._hash = hashlib.sha256()
        self._buffer = np.empty(ROWS_PER_BATCH, dtype=schema.types[0].to_pandas_dtype())
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
        import pyarrow as pa

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
        """Write what is left and describe the file: ``rows``, ``bytes``, ``sha256`` of the
        values.
        """
        if self._filled:
            self._write_batch()
        self._writer.close()
        self._sink.close()
        return {
            "rows": self.num_rows,
            "bytes": self._path.stat().st_size,
            "sha256": self._hash.hexdigest(),
        }


class Column:
    """Read-only, memory-mapped view of a file that `ColumnWriter` wrote."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            if reader.schema != schema:
                raise _damaged(path)
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            for batch in batches:
                # a damaged file may claim more rows than it has bytes for: numpy would read beyond
                # its end
                batch.validate()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(path, error) from error
        sizes = [batch.num_rows for batch in batches]
        if any(size != ROWS_PER_BATCH for size in sizes[:-1]) or any(
            size > ROWS_PER_BATCH for size in sizes
        ):
            raise _damaged(path)
        chunks = [batch.column(0).to_numpy(zero_copy_only=True) for batch in batches]
        self._chunks = chunks or [np.empty(0, dtype=schema.types[0].to_pandas_dtype())]
        self._num_rows = sum(sizes)

    def __len__(self) -> int:
        return self._num_rows

    def sha256(self) -> str:
        """The hash of the values, as `ColumnWriter.close` gives it; reads all of them."""
        digest = hashlib.sha256()
        for chunk in self._chunks:
            digest.update(np.ascontiguousarray(chunk).data)
        return digest.hexdigest()

    def slice(self, begin: int, end: int) -> np.ndarray:
        """Return rows ``begin`` to ``end`` (excluded), shape (end - begin,): a read-only view, or a
        copy across batches.
        """
        if not 0 <= begin <= end <= self._num_rows:
            raise IndexError(f"rows {begin}..{end} of a column of {self._num_rows}")
        first, last = begin // ROWS_PER_BATCH, max(begin, end - 1) // ROWS_PER_BATCH
        if first == last or begin == end:
            chunk = self._chunks[min(first, len(self._chunks) - 1)]
            return chunk[begin - first * ROWS_PER_BATCH : end - first * ROWS_PER_BATCH]
        parts = [
            self._chunks[first][begin - first * ROWS_PER_BATCH :],
            *self._chunks[first + 1 : last],
        ]
        return np.concatenate([*parts, self._chunks[last][: end - last * ROWS_PER_BATCH]])


class Split:
    """The documents of one split, in one shard after the other: random access to sentences of token
    ids.

    The memory maps are opened again when it is unpickled. The values are trusted: `open_store` has
    compared their hashes.
    """

    def __init__(self, path: Path, folders: Sequence[Path], vocab_size: int) -> None:
        self.path, self._folders, self._vocab_size = path, folders, vocab_size
        shards = [
            {file: Column(folder / file, schema) for file, schema in _columns(vocab_size)}
            for folder in folders
        ]
        self._tokens = [shard["tokens.arrow"] for shard in shards]
        self._token_offsets = [shard["sentences.arrow"] for shard in shards]
        self._sentence_offsets = [shard["documents.arrow"] for shard in shards]
        self._unigram = [shard["unigram.arrow"] for shard in shards]
        # The number of the first document and sentence of each shard, and the end of the last one.
        self._documents = [0, *accumulate(len(column) - 1 for column in self._sentence_offsets)]
        self._sentences = [0, *accumulate(len(column) - 1 for column in self._token_offsets)]
        self.num_documents, self.num_sentences = self._documents[-1], self._sentences[-1]
        self.num_tokens = sum(map(len, self._tokens))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return Split, (self.path, self._folders, self._vocab_size)  # a memory map cannot travel

    def _cut(self, starts: list[int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (shard, begin, end) within each shard that a range touches; one shard, if empty,
        for an empty range.
        """
        if not 0 <= begin <= end <= starts[-1]:
            raise IndexError(f"{begin} to {end}: there are {starts[-1]}")
        shard = min(bisect_right(starts, begin), len(starts) - 1) - 1
        while True:
            stop = min(end, starts[shard + 1])
            yield shard, begin - starts[shard], stop - starts[shard]
            if stop >= end:
                return
            begin, shard = stop, shard + 1

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """Return int64 (end - begin + 1,): the first sentence of each document, and the end of the
        last one.
        """
        pieces: list[np.ndarray] = []
        for shard, begin, end in self._cut(self._documents, begin_document, end_document):
            offsets = self._sentence_offsets[shard].slice(begin, end + 1) + self._sentences[shard]
            pieces.append(offsets[1:] if pieces else offsets)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return int64 (end - begin,): tokens in each sentence, all > 0."""
        cuts = self._cut(self._sentences, begin_sentence, end_sentence)
        pieces = [
            np.diff(self._token_offsets[shard].slice(begin, end + 1)) for shard, begin, end in cuts
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return the token ids of consecutive sentences in one array of the store's unsigned type;
        read-only or a copy.
        """
        pieces = []
        for shard, begin, end in self._cut(self._sentences, begin_sentence, end_sentence):
            offsets = self._token_offsets[shard]
            pieces.append(
                self._tokens[shard].slice(
                    int(offsets.slice(begin, begin + 1)[0]), int(offsets.slice(end, end + 1)[0])
                )
            )
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    @property
    def unigram_counts(self) -> np.ndarray:
        """int64 (vocab_size,): how often each token id occurs in this split."""
        return np.sum([column.slice(0, len(column)) for column in self._unigram], axis=0)


@dataclass(frozen=True)
class Store:
    """An opened store: ``store.json`` and the splits. Made by `open_store`."""

    path: Path
    metadata: dict[str, Any]
    splits: dict[str, Split]

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of tokenizer and contents; the same text, settings and tokenizer give the
        same one.
        """
        return self.metadata["fingerprint"]

    @property
    def train(self) -> Split:
        """The training split."""
        if "train" not in self.splits:
            raise InputError(
                f"{self.path}: has no training documents; it is a part of a store: give the whole "
                "one"
            )
        return self.splits["train"]

    @property
    def validation(self) -> Split | None:
        """The held-out documents, or None where the store has none."""
        return self.splits.get("validation")

    @property
    def vocab_size(self) -> int:
        """Number of vocabulary entries of the tokenizer that made the store."""
        return self.metadata["vocab_size"]

    @property
    def tokenizer_path(self) -> Path:
        """Folder of the tokenizer that made the store."""
        return self.path / "tokenizer"

    def check_tokenizer(self, fingerprint: str, vocab_size: int) -> None:
        """Refuse a tokenizer that is not the one that made this store."""
        if vocab_size != self.vocab_size:
            reason = f"{vocab_size} vocabulary entries given, the store has {self.vocab_size}"
        elif fingerprint != self.metadata["tokenizer_fingerprint"]:
            reason = (
                "same vocabulary size, but other pieces, ids or normalisation (lower-casing, "
                "accents, CJK)"
            )
        else:
            return
        raise InputError(
            f"{self.path}: was made with another tokenizer: {reason}; use {self.tokenizer_path} "
            "or prepare the store again"
        )


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()


def join_fingerprints(fingerprints: Sequence[str]) -> str:
    """Return the fingerprint of a store of shards: that of the one, or the sha256 of all."""
    return (
        fingerprints[0]
        if len(fingerprints) == 1
        else hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()
    )


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write ``store.json`` with the hash of what stands in it."""
    whole = {"format": FORMAT, "format_version": FORMAT_VERSION, **metadata}
    write_json(folder / METADATA_FILE, {**whole, "sha256": _sha256(whole)})


def read_metadata(path: Path) -> dict[str, Any]:
    """Read a store's ``store.json``; refuse what is no store of this release's format."""
    make = "make a store with recipes/prepare_corpus.py and name it with --store"
    file = path / METADATA_FILE
    if not file.is_file():
        reason = (
            f"not a token store: it has no {METADATA_FILE}"
            if path.exists()
            else "there is no such folder"
        )
        raise InputError(f"{path}: {reason}; {make}")
    try:
        metadata = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file) from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(
            f"{file}: not a token store of this project ('format' must be {FORMAT!r}); {make}"
        )
    version = metadata.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{file}: format version {version!r}, this release reads version {FORMAT_VERSION}; "
            "make the store anew with recipes/prepare_corpus.py"
        )
    if metadata.pop("sha256", None) != _sha256(metadata):
        raise _damaged(file)
    return metadata


def open_store(path: str | Path) -> Store:
    """Open a store for reading: memory-mapped, and read once to the end to compare it with what was
    written.

    What was found is kept as ``.checked.json``, by the files' sizes and times: the next opening
    reads ``store.json`` alone.

    Example:
        >>> store = open_store("runs/quickstart/store")  # doctest: +SKIP
        >>> store.train.tokens(0, 1)  # ids of the first sentence  # doctest: +SKIP
    """
    path = Path(path)
    metadata = read_metadata(path)
    folders = [path / entry["folder"] for entry in metadata.get(SHARDS_FOLDER, [{"folder": "."}])]
    shards = {folder: read_metadata(folder) for folder in folders}
    fingerprint = join_fingerprints([shard["fingerprint"] for shard in shards.values()])
    # A shard holds the files itself.
    if fingerprint != metadata["fingerprint"] or any(
        SHARDS_FOLDER in shard for shard in shards.values()
    ):
        raise _damaged(path / METADATA_FILE)
    for folder, shard in shards.items():
        _check_values(folder, shard)
    splits = {}
    for split in SPLITS:
        parts = [folder / split for folder in folders if split in shards[folder]["splits"]]
        if parts:
            splits[split] = Split(path / split, parts, metadata["vocab_size"])
    return Store(path, metadata, splits)


def _check_values(folder: Path, metadata: dict[str, Any]) -> None:
    """Refuse files with other values than were written; reads all of them unless that was done
    before.
    """
    files = [
        (split, *column)
        for split in metadata["splits"]
        for column in _columns(metadata["vocab_size"])
    ]
    try:
        status = {f"{split}/{file}": (folder / split / file).stat() for split, file, _ in files}
    except OSError as error:
        raise _damaged(folder, error) from error
    state: dict[str, Any] = {
        name: [each.st_size, each.st_mtime_ns, each.st_ctime_ns] for name, each in status.items()
    }
    state["fingerprint"] = metadata["fingerprint"]
    kept = folder / CHECKED_FILE
    try:
        if json.loads(kept.read_bytes()) == state:
            return
    except (OSError, ValueError):
        megabytes = sum(each.st_size for each in status.values()) / 1e6
        logger.info("%s: verifying %.0f MB", folder, megabytes)
    for split, file, schema in files:
        if (
            Column(folder / split / file, schema).sha256()
            != metadata["splits"][split]["files"][file]["sha256"]
        ):
            raise _damaged(folder / split / file)
    try:
        write_json(kept, state)
    except OSError as error:
        logger.info(
            "%s cannot be kept (%s): the store is read to its end at every opening",
            kept,
            error.strerror,
        )


def describe_store(path: str | Path) -> dict[str, Any]:
    """Hashes, counts and sources of a store; no folder of the machine that it lies on.

    Returns:
        `fingerprint` (SHA-256 of tokenizer and contents), `tokenizer_fingerprint`, `splits`
        (documents, sentences, tokens of each), and as far as the store says so `sources`, `read`,
        `dropped` and `settings`, by split where they have one.
    """
    metadata = read_metadata(Path(path))
    read = metadata.get("read", {})
    facts: dict[str, Any] = {
        "fingerprint": metadata["fingerprint"],
        "tokenizer_fingerprint": metadata["tokenizer_fingerprint"],
        "splits": {
            split: {name: entry[key] for name, key in COUNTS.items()}
            for split, entry in metadata["splits"].items()
        },
        "sources": {split: _sources(found) for split, found in metadata.get("sources", {}).items()},
        "read": {
            split: {name: counts[name] for name in ("documents", "text_bytes")}
            for split, counts in read.items()
        },
        "dropped": metadata.get("dropped"),
        "settings": metadata.get("settings"),
    }
    return {name: value for name, value in facts.items() if value}


def _sources(found: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a split: a data set of the Hub, or its files."""
    if found and "bytes" not in found[0]:
        return {
            "dataset": found[0]["name"],
            "config": found[0]["config"],
            "split": found[0]["split"],
        }
    names = [str(file["name"]) for file in found[:MAX_NAMED_SOURCES]]
    return {"files": len(found), "bytes": sum(int(file["bytes"]) for file in found), "names": names}


class _SplitWriter:
    """The four columns of one split."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        folder.mkdir()
        self._vocab_size = vocab_size
        self._columns = {
            file: ColumnWriter(folder / file, schema) for file, schema in _columns(vocab_size)
        }
        self._tokens, self._sentences, self._documents, _ = self._columns.values()
        self._unigram = np.zeros(vocab_size, dtype=np.int64)
        for column in (self._sentences, self._documents):
            column.append(np.zeros(1, dtype=np.int64))

    def add(
        self, tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray
    ) -> None:
        if int(sentence_lengths.sum()) != len(tokens) or int(document_lengths.sum()) != len(
            sentence_lengths
        ):
            raise ValueError("lengths do not add up to the number of tokens and of sentences")
        if (sentence_lengths < 1).any() or (document_lengths < 1).any():
            raise ValueError(
                "a sentence has no token or a document no sentence: drop (and count) it before"
            )
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocab_size:
            raise ValueError(f"a token id is outside 0..{self._vocab_size - 1}")
        self._unigram += np.bincount(tokens, minlength=self._vocab_size)
        self._documents.append(
            np.cumsum(document_lengths, dtype=np.int64) + self._sentences.num_rows - 1
        )
        self._sentences.append(np.cumsum(sentence_lengths, dtype=np.int64) + self._tokens.num_rows)
        self._tokens.append(tokens)

    def close(self) -> dict[str, Any]:
        self._columns["unigram.arrow"].append(self._unigram)
        return {
            "num_documents": self._documents.num_rows - 1,
            "num_sentences": self._sentences.num_rows - 1,
            "num_tokens": self._tokens.num_rows,
            "files": {file: column.close() for file, column in self._columns.items()},
        }


class StoreWriter:
    """Writes a shard, which is a store without a tokenizer; a context manager. Without `finish`
    nothing is left behind.

    Example:
        >>> ids = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
        >>> settings = {"vocab_size": 30522, "special_ids": ids, "tokenizer_fingerprint": "..."}
        >>> with StoreWriter("store", **settings) as writer:
        ...     writer.add_document("train", [[7592, 2088], [2003]])  # doctest: +SKIP
        ...     writer.finish()  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | Path,
        *,
        vocab_size: int,
        special_ids: Mapping[str, int],
        tokenizer_fingerprint: str,
    ) -> None:
        self.path = Path(path)
        self._tokenizer_fingerprint, self._vocab_size = tokenizer_fingerprint, vocab_size
        self._special_ids = {name: special_ids[name] for name in SPECIAL_ID_NAMES}
        self._folder = self.path.with_name(f".{self.path.name}.partial-{secrets.token_hex(4)}")
        self._folder.mkdir(parents=True)
        self._splits: dict[str, _SplitWriter] = {}

    def add_document(self, split: str, sentences: Sequence[Sequence[int]]) -> None:
        """Append one document: its sentences as lists of token ids, none of them empty."""
        tokens = np.fromiter(
            (token for sentence in sentences for token in sentence), dtype=np.int64
        )
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        self.add_batch(split, tokens, lengths, np.array([len(sentences)], dtype=np.int64))

    def add_batch(
        self,
        split: str,
        tokens: np.ndarray,
        sentence_lengths: np.ndarray,
        document_lengths: np.ndarray,
    ) -> None:
        """Append many documents at once.

        Args:
            split: ``train`` or ``validation``.
            tokens: Token ids of all sentences, integer (num_tokens,).
            sentence_lengths: Tokens in each sentence, integer (num_sentences,), all > 0.
            document_lengths: Sentences in each document, integer (num_documents,), all > 0.
        """
        if split not in self._splits:
            self._splits[split] = _SplitWriter(self._folder / split, self._vocab_size)
        self._splits[split].add(tokens, sentence_lengths, document_lengths)

    def finish(self, **description: Any) -> None:
        """Write the metadata, force everything to the disk and give the shard its name."""
        splits = {split: self._splits[split].close() for split in SPLITS if split in self._splits}
        hashes = {
            split: {file: facts["sha256"] for file, facts in entry["files"].items()}
            for split, entry in splits.items()
        }
        identity = {
            "tokenizer": self._tokenizer_fingerprint,
            "vocab_size": self._vocab_size,
            "splits": hashes,
        }
        write_metadata(
            self._folder,
            {
                "fingerprint": _sha256(identity),
                "tokenizer_fingerprint": self._tokenizer_fingerprint,
                "vocab_size": self._vocab_size,
                "special_ids": self._special_ids,
                "dtype": token_dtype(self._vocab_size).name,
                "splits": splits,
                **description,
            },
        )
        sync_paths([*self._folder.rglob("*"), self._folder])
        self._folder.rename(self.path)
        sync_paths([self.path.parent])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
