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

Sentence s is tokens[o[s]:o[s+1]], document d is sentences[o[d]:o[d+1]]. `store.json` is written
last, and a folder gets its name when all of it is on the disk: a store that `open_store` accepts
is complete.
"""

from __future__ import annotations

import errno
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
FORMAT = "bert-recipes token store"
FORMAT_VERSION = 3
METADATA_FILE = "store.json"
CHECKED_FILE = ".checked.json"
SHARDS_FOLDER = "shards"
SPLITS = ("train", "validation")
SPECIAL_ID_NAMES = ("pad", "unk", "cls", "sep", "mask")
COLUMN_OF_FILE = {
    "tokens.arrow": "token_id",
    "sentences.arrow": "token_offset",
    "documents.arrow": "sentence_offset",
    "unigram.arrow": "count",
}
COUNTS = {"documents": "num_documents", "sentences": "num_sentences", "tokens": "num_tokens"}
# Up to this many sources are named one by one.
MAX_NAMED_SOURCES = 20


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest of uint16 and uint32 that holds every id of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def _columns(vocab_size: int) -> Iterator[tuple[str, pa.Schema]]:
    """Yield the name of each file of a split, and the schema of its one column."""
    import pyarrow as pa

    for file, name in COLUMN_OF_FILE.items():
        dtype = np.dtype(np.int64)
        if file == "tokens.arrow":
            dtype = token_dtype(vocab_size)
        field = pa.field(name, pa.from_numpy_dtype(dtype), nullable=False)
        yield file, pa.schema([field])


def _damaged(path: Path, error: Exception | None = None) -> InputError:
    """Return the error of a file that is not what was written, or that the system cannot read."""
    code = None
    if isinstance(error, OSError):
        code = error.errno
    if code is None or code == errno.ENOENT:
        return InputError(f"{path}: damaged or incomplete: prepare the store again")
    reason = os.strerror(code)
    return InputError(f"{path}: cannot be read ({reason}); nothing says that it is damaged")


class ColumnWriter:
    """Hold an Arrow IPC file to which integers are appended.

    Its record batches have exactly `ROWS_PER_BATCH` rows, the last one fewer. Memory: at most one
    record batch plus the array given last.

    Args:
        path: The file to write.
        schema: A schema of `_columns`, with the name and the type of the column.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._path = path
        self._schema = schema
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._hash = hashlib.sha256()
        self._dtype = schema.types[0].to_pandas_dtype()
        # The rows of a batch that is not full, as they were appended.
        self._pieces: list[np.ndarray] = []
        self._num_waiting = 0
        self.num_rows = 0

    def append(self, values: np.ndarray) -> None:
        """Append a one-dimensional integer array; values must fit the column's type."""
        self.num_rows += len(values)
        self._num_waiting += len(values)
        self._pieces.append(values.astype(self._dtype))
        if self._num_waiting < ROWS_PER_BATCH:
            return
        rows = np.concatenate(self._pieces)
        while len(rows) >= ROWS_PER_BATCH:
            self._write_batch(rows[:ROWS_PER_BATCH])
            rows = rows[ROWS_PER_BATCH:]
        self._pieces = [rows]
        self._num_waiting = len(rows)

    def _write_batch(self, values: np.ndarray) -> None:
        import pyarrow as pa

        self._hash.update(values.tobytes())
        try:
            self._writer.write_batch(pa.record_batch([pa.array(values)], schema=self._schema))
        except OSError as error:
            # Arrow does not name the file; a full disk is the usual reason.
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise OSError(error.errno, f"cannot be written: {reason}", str(self._path)) from error

    def close(self) -> dict[str, int | str]:
        """Write the last batch; return `rows`, `bytes` and `sha256` of the values."""
        if self._num_waiting:
            self._write_batch(np.concatenate(self._pieces))
        self._writer.close()
        self._sink.close()
        return {
            "rows": self.num_rows,
            "bytes": self._path.stat().st_size,
            "sha256": self._hash.hexdigest(),
        }


class Column:
    """Read-only, memory-mapped view of a file that `ColumnWriter` wrote.

    Args:
        path: The file.
        schema: The schema that it was written with.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            if reader.schema != schema:
                raise _damaged(path)
            batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
            for batch in batches:
                # A damaged file may claim more rows than it has bytes for: numpy would read beyond
                # its end.
                batch.validate()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(path, error) from error

        chunks = [batch.column(0).to_numpy(zero_copy_only=True) for batch in batches]
        if not chunks:
            chunks = [np.empty(0, dtype=schema.types[0].to_pandas_dtype())]
        for chunk in chunks[:-1]:
            if len(chunk) != ROWS_PER_BATCH:
                raise _damaged(path)
        if len(chunks[-1]) > ROWS_PER_BATCH:
            raise _damaged(path)

        self._chunks = chunks
        self._num_rows = sum(map(len, chunks))

    def __len__(self) -> int:
        return self._num_rows

    def sha256(self) -> str:
        """Return the hash of the values, as `ColumnWriter.close` does; reads all of them."""
        digest = hashlib.sha256()
        for chunk in self._chunks:
            digest.update(np.ascontiguousarray(chunk).data)
        return digest.hexdigest()

    def slice(self, begin: int, end: int) -> np.ndarray:
        """Return some rows of the column.

        Args:
            begin: The number of the first row.
            end: One past the last row.

        Returns:
            The values, (end - begin,): a read-only view, or a copy across batches.
        """
        if not 0 <= begin <= end <= self._num_rows:
            raise IndexError(f"rows {begin}..{end} of a column of {self._num_rows}")

        first_chunk = begin // ROWS_PER_BATCH
        # An empty range may begin after the last chunk.
        first_chunk = min(first_chunk, len(self._chunks) - 1)
        last_row = max(begin, end - 1)
        last_chunk = last_row // ROWS_PER_BATCH
        chunks = self._chunks[first_chunk : last_chunk + 1]
        rows = chunks[0] if len(chunks) <= 1 else np.concatenate(chunks)
        num_rows_before = first_chunk * ROWS_PER_BATCH
        return rows[begin - num_rows_before : end - num_rows_before]


class Split:
    """The documents of one split, in one shard after the other.

    Gives random access to sentences of token ids. The memory maps are opened again when it is
    unpickled. The values are trusted: `open_store` has compared their hashes.

    Args:
        store_path: The folder of the store.
        name: train or validation.
        folders: The folders of the split in the shards.
        vocab_size: The number of vocabulary entries, which decides the type of the ids.
    """

    def __init__(
        self, store_path: Path, name: str, folders: Sequence[Path], vocab_size: int
    ) -> None:
        self.store_path = store_path
        self.name = name
        self._folders = folders
        self._vocab_size = vocab_size
        columns: dict[str, list[Column]] = {}
        for file, schema in _columns(vocab_size):
            columns[file] = [Column(folder / file, schema) for folder in folders]
        self._tokens = columns["tokens.arrow"]
        self._token_offsets = columns["sentences.arrow"]
        self._sentence_offsets = columns["documents.arrow"]
        self._unigram = columns["unigram.arrow"]
        # The number of the first document and sentence of each shard, and the end of the last one.
        self._document_starts = _starts(self._sentence_offsets)
        self._sentence_starts = _starts(self._token_offsets)
        self.num_documents = self._document_starts[-1]
        self.num_sentences = self._sentence_starts[-1]
        self.num_tokens = sum(map(len, self._tokens))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        # A memory map cannot travel.
        arguments = (self.store_path, self.name, self._folders, self._vocab_size)
        return Split, arguments

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """Return the first sentence of each of some documents, and the end of the last one.

        Args:
            begin_document: The number of the first document.
            end_document: One past the last document.

        Returns:
            int64 (end - begin + 1,), counted over the whole split.
        """
        pieces: list[np.ndarray] = []
        for shard, begin, end in _cut(self._document_starts, begin_document, end_document):
            offsets = self._sentence_offsets[shard].slice(begin, end + 1)
            offsets = offsets + self._sentence_starts[shard]
            if pieces:  # the first number is the end of the shard before
                offsets = offsets[1:]
            pieces.append(offsets)
        return _join(pieces)

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return the number of tokens of each of some sentences.

        Args:
            begin_sentence: The number of the first sentence.
            end_sentence: One past the last sentence.

        Returns:
            int64 (end - begin,), all > 0.
        """
        pieces = []
        for shard, begin, end in _cut(self._sentence_starts, begin_sentence, end_sentence):
            offsets = self._token_offsets[shard].slice(begin, end + 1)
            pieces.append(np.diff(offsets))
        return _join(pieces)

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return the token ids of consecutive sentences.

        Args:
            begin_sentence: The number of the first sentence.
            end_sentence: One past the last sentence.

        Returns:
            The ids, (tokens,) of the store's unsigned type, read-only or a copy.
        """
        pieces = []
        for shard, begin, end in _cut(self._sentence_starts, begin_sentence, end_sentence):
            offsets = self._token_offsets[shard]
            begin_token = int(offsets.slice(begin, begin + 1)[0])
            end_token = int(offsets.slice(end, end + 1)[0])
            pieces.append(self._tokens[shard].slice(begin_token, end_token))
        return _join(pieces)

    @property
    def unigram_counts(self) -> np.ndarray:
        """Return int64 (vocab_size,): how often each token id occurs in this split."""
        counts = np.zeros(self._vocab_size, dtype=np.int64)
        for column in self._unigram:
            counts += column.slice(0, len(column))
        return counts


def _starts(offsets: Sequence[Column]) -> list[int]:
    """Return the number of the first item of each shard, and of all items."""
    counts = [len(column) - 1 for column in offsets]
    return [0, *accumulate(counts)]


def _cut(starts: list[int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the part of a range in each shard that it touches.

    An empty range touches one shard, if empty.

    Args:
        starts: The number of the first item of each shard, and of all items.
        begin: The number of the first item.
        end: One past the last item.

    Yields:
        The number of the shard, and begin and end within it.
    """
    if not 0 <= begin <= end <= starts[-1]:
        raise IndexError(f"{begin} to {end}: there are {starts[-1]}")

    shard = min(bisect_right(starts, begin), len(starts) - 1) - 1
    while True:
        stop = min(end, starts[shard + 1])
        yield shard, begin - starts[shard], stop - starts[shard]
        if stop >= end:
            return
        begin = stop
        shard += 1


def _join(pieces: list[np.ndarray]) -> np.ndarray:
    """Return the arrays one after the other; a single one is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces)


@dataclass(frozen=True)
class Store:
    """An opened store: `store.json` and the splits; made by `open_store`."""

    path: Path
    metadata: dict[str, Any]
    splits: dict[str, Split]

    @property
    def fingerprint(self) -> str:
        """Return the sha256 (hex) of tokenizer and contents.

        The same text, settings and tokenizer give the same one.
        """
        return self.metadata["fingerprint"]

    @property
    def train(self) -> Split:
        """Return the training split."""
        if "train" not in self.splits:
            raise InputError(
                f"{self.path}: has no training documents: it is a shard; give the folder of the "
                "store"
            )
        return self.splits["train"]

    @property
    def validation(self) -> Split | None:
        """Return the held-out documents, or None where the store has none."""
        return self.splits.get("validation")

    @property
    def vocab_size(self) -> int:
        """Return the number of vocabulary entries of the tokenizer that made the store."""
        return self.metadata["vocab_size"]

    @property
    def tokenizer_path(self) -> Path:
        """Return the folder of the tokenizer that made the store."""
        return self.path / "tokenizer"

    def check_tokenizer(self, fingerprint: str, vocab_size: int) -> None:
        """Refuse a tokenizer that is not the one that made this store.

        Args:
            fingerprint: The hash of the tokenizer.
            vocab_size: The number of its vocabulary entries.
        """
        if fingerprint == self.metadata["tokenizer_fingerprint"]:
            return

        reason = "other pieces, ids or normalization (lower-casing, accents, CJK)"
        if vocab_size != self.vocab_size:
            reason = f"{vocab_size} vocabulary entries given, the store has {self.vocab_size}"
        raise InputError(
            f"{self.path}: was made with another tokenizer: {reason}; use {self.tokenizer_path} "
            "or prepare the store again"
        )


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def join_fingerprints(fingerprints: Sequence[str]) -> str:
    """Return the fingerprint of a store of shards: that of the one, or the sha256 of all."""
    if len(fingerprints) == 1:
        return fingerprints[0]
    text = "\n".join(fingerprints)
    return hashlib.sha256(text.encode()).hexdigest()


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write `store.json` with the hash of what stands in it.

    Args:
        folder: The folder of a store or a shard.
        metadata: The entries, JSON.
    """
    content: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION}
    content.update(metadata)
    content["sha256"] = _sha256(content)
    write_json(folder / METADATA_FILE, content)


def read_metadata(path: Path) -> dict[str, Any]:
    """Read a store's `store.json`; refuse what is not a store of this release's format."""
    advice = "make a store with recipes/prepare_corpus.py and name it with --store"
    file = path / METADATA_FILE
    if not path.exists():
        raise InputError(f"{path}: there is no such folder; {advice}")
    if not file.is_file():
        raise InputError(f"{path}: not a token store: it has no {METADATA_FILE}; {advice}")

    try:
        metadata = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file) from error

    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(
            f"{file}: not a token store of this project ('format' must be {FORMAT!r}); {advice}"
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
    """Open a store for reading: memory-mapped, and compared once with what was written.

    That reads it to its end; the result is kept as `.checked.json`, with the files' sizes and
    times: the next opening reads `store.json` alone.

    Args:
        path: The folder of a store, or of one of its shards.

    Example:
        >>> store = open_store("runs/quickstart/store")  # doctest: +SKIP
        >>> store.train.tokens(0, 1)  # ids of the first sentence  # doctest: +SKIP
    """
    path = Path(path)
    metadata = read_metadata(path)
    # A shard holds the files itself.
    entries = metadata.get(SHARDS_FOLDER, [{"folder": "."}])
    shards = {}
    for entry in entries:
        folder = path / entry["folder"]
        shards[folder] = read_metadata(folder)
        if SHARDS_FOLDER in shards[folder]:
            raise _damaged(path / METADATA_FILE)

    fingerprint = join_fingerprints([shard["fingerprint"] for shard in shards.values()])
    if fingerprint != metadata["fingerprint"]:
        raise _damaged(path / METADATA_FILE)

    for folder, shard in shards.items():
        _check_values(folder, shard)

    splits = {}
    for split in SPLITS:
        folders = []
        for folder, shard in shards.items():
            if split in shard["splits"]:
                folders.append(folder / split)
        if folders:
            splits[split] = Split(path, split, folders, metadata["vocab_size"])

    return Store(path, metadata, splits)


def _check_values(folder: Path, metadata: dict[str, Any]) -> None:
    """Refuse files with other values than were written.

    Reads all of them unless that was done before.

    Args:
        folder: The folder of a shard.
        metadata: The content of its `store.json`.
    """
    state: dict[str, Any] = {"fingerprint": metadata["fingerprint"]}
    num_bytes = 0
    for split, entry in metadata["splits"].items():
        for file in entry["files"]:
            try:
                status = (folder / split / file).stat()
            except OSError as error:
                raise _damaged(folder, error) from error
            state[f"{split}/{file}"] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            num_bytes += status.st_size

    checked_file = folder / CHECKED_FILE
    try:
        is_checked = json.loads(checked_file.read_bytes()) == state
    except (OSError, ValueError):
        is_checked = False
    if is_checked:
        return

    logger.info("%s: verifying %.0f MB", folder, num_bytes / 1e6)
    for split, entry in metadata["splits"].items():
        for file, schema in _columns(metadata["vocab_size"]):
            column = Column(folder / split / file, schema)
            if column.sha256() != entry["files"][file]["sha256"]:
                raise _damaged(folder / split / file)
    try:
        write_json(checked_file, state)
    except OSError as error:
        logger.info(
            "%s cannot be kept (%s): the store is read to its end at every opening",
            checked_file,
            error.strerror,
        )


def describe_store(path: str | Path) -> dict[str, Any]:
    """Return hashes, counts and sources of a store; no folder of the machine that it is on.

    Returns:
        `fingerprint` (SHA-256 of tokenizer and contents), `tokenizer_fingerprint`, `splits`
        (documents, sentences, tokens of each), and as far as the store has them `sources`, `read`,
        `dropped` and `settings`, by split where they have one.
    """
    metadata = read_metadata(Path(path))
    facts: dict[str, Any] = {
        "fingerprint": metadata["fingerprint"],
        "tokenizer_fingerprint": metadata["tokenizer_fingerprint"],
        "splits": {},
        "sources": {},
        "read": {},
        "dropped": metadata.get("dropped"),
        "settings": metadata.get("settings"),
    }
    for split, entry in metadata["splits"].items():
        facts["splits"][split] = {name: entry[key] for name, key in COUNTS.items()}
    for split, sources in metadata.get("sources", {}).items():
        facts["sources"][split] = _summary(sources)
    for split, counts in metadata.get("read", {}).items():
        facts["read"][split] = {name: counts[name] for name in ("documents", "text_bytes")}
    return {name: value for name, value in facts.items() if value}


def _summary(sources: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data set of the Hub that a split is of, or its number of files and their names."""
    if sources and "bytes" not in sources[0]:
        dataset = sources[0]
        return {
            "dataset": dataset["name"],
            "config": dataset["config"],
            "split": dataset["split"],
        }
    return {
        "files": len(sources),
        "bytes": sum(int(file["bytes"]) for file in sources),
        "names": [str(file["name"]) for file in sources[:MAX_NAMED_SOURCES]],
    }


class _SplitWriter:
    """The four columns of one split.

    Args:
        folder: The folder of the split, which is made.
        vocab_size: The number of vocabulary entries.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        folder.mkdir()
        self._vocab_size = vocab_size
        self._columns: dict[str, ColumnWriter] = {}
        for file, schema in _columns(vocab_size):
            self._columns[file] = ColumnWriter(folder / file, schema)
        self._tokens = self._columns["tokens.arrow"]
        self._sentences = self._columns["sentences.arrow"]
        self._documents = self._columns["documents.arrow"]
        self._unigram = np.zeros(vocab_size, dtype=np.int64)
        for column in (self._sentences, self._documents):
            column.append(np.zeros(1, dtype=np.int64))

    def add(
        self, tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray
    ) -> None:
        """Append documents; the arguments are those of `StoreWriter.add_batch`."""
        self._check(tokens, sentence_lengths, document_lengths)
        self._unigram += np.bincount(tokens, minlength=self._vocab_size)
        # Both columns begin with a 0: the first document, and the first sentence.
        num_sentences = self._sentences.num_rows - 1
        num_tokens = self._tokens.num_rows
        document_ends = np.cumsum(document_lengths, dtype=np.int64)
        sentence_ends = np.cumsum(sentence_lengths, dtype=np.int64)
        self._documents.append(num_sentences + document_ends)
        self._sentences.append(num_tokens + sentence_ends)
        self._tokens.append(tokens)

    def _check(
        self, tokens: np.ndarray, sentence_lengths: np.ndarray, document_lengths: np.ndarray
    ) -> None:
        """Refuse lengths and ids that make no store."""
        num_tokens = int(sentence_lengths.sum())
        num_sentences = int(document_lengths.sum())
        if num_tokens != len(tokens) or num_sentences != len(sentence_lengths):
            raise ValueError("lengths do not add up to the number of tokens and of sentences")
        if (sentence_lengths < 1).any() or (document_lengths < 1).any():
            raise ValueError(
                "a sentence has no token or a document no sentence: drop (and count) it before"
            )
        is_outside = (tokens < 0) | (tokens >= self._vocab_size)
        if is_outside.any():
            raise ValueError(f"a token id is outside 0..{self._vocab_size - 1}")

    def close(self) -> dict[str, Any]:
        """Write the last rows.

        Returns:
            The counts, and the result of `ColumnWriter.close` by the name of each file.
        """
        self._columns["unigram.arrow"].append(self._unigram)
        files = {file: column.close() for file, column in self._columns.items()}
        return {
            "num_documents": self._documents.num_rows - 1,
            "num_sentences": self._sentences.num_rows - 1,
            "num_tokens": self._tokens.num_rows,
            "files": files,
        }


class StoreWriter:
    """Hold a shard that is written: a store without a tokenizer; a context manager.

    Without `finish` nothing is left of it.

    Args:
        path: The folder of the shard.
        vocab_size: The number of vocabulary entries of the tokenizer.
        special_ids: The id of each of `SPECIAL_ID_NAMES`.
        tokenizer_fingerprint: The hash of the tokenizer (`OriginalBertTokenizer.fingerprint`).

    Example:
        >>> ids = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
        >>> settings = {"vocab_size": 30522, "special_ids": ids, "tokenizer_fingerprint": "..."}
        >>> with StoreWriter("store", **settings) as writer:
        ...     tokens = np.array([7592, 2088, 2003])
        ...     writer.add_batch("train", tokens, np.array([2, 1]), np.array([2]))  # doctest: +SKIP
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
        self._tokenizer_fingerprint = tokenizer_fingerprint
        self._vocab_size = vocab_size
        self._special_ids = {name: special_ids[name] for name in SPECIAL_ID_NAMES}
        self._folder = self.path.with_name(f".{self.path.name}.partial-{secrets.token_hex(4)}")
        self._folder.mkdir(parents=True)
        self._splits: dict[str, _SplitWriter] = {}

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
        """Write the metadata, force everything to the disk and give the shard its name.

        Args:
            **description: Further entries of `store.json`, JSON.
        """
        splits: dict[str, Any] = {}
        hashes: dict[str, dict[str, str]] = {}
        for split in SPLITS:
            if split in self._splits:
                splits[split] = self._splits[split].close()
                files = splits[split]["files"]
                hashes[split] = {file: files[file]["sha256"] for file in files}

        identity = {
            "tokenizer": self._tokenizer_fingerprint,
            "vocab_size": self._vocab_size,
            "splits": hashes,
        }
        metadata = {
            "fingerprint": _sha256(identity),
            "tokenizer_fingerprint": self._tokenizer_fingerprint,
            "vocab_size": self._vocab_size,
            "special_ids": self._special_ids,
            "dtype": token_dtype(self._vocab_size).name,
            "splits": splits,
        }
        write_metadata(self._folder, {**metadata, **description})
        sync_paths([*self._folder.rglob("*"), self._folder])
        self._folder.rename(self.path)
        sync_paths([self.path.parent])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
