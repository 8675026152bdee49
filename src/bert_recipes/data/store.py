"""The token-id store on disk, reading side: documents of sentences of token ids, memory-mapped.

A store is a folder::

    store.json        what it is: format, vocabulary, settings, sources, counts, what was dropped and why, versions
    tokenizer/        the tokenizer that made it, as a stock folder
    train/            one folder a split; ``validation/`` only where held-out documents were asked for
      tokens.arrow    column token_id         uint16, or uint32 above 65,536 pieces     one row a token
      sentences.arrow column token_offset     int64, number of sentences + 1 rows       sentence s = tokens[o[s]:o[s+1]]
      documents.arrow column sentence_offset  int64, number of documents + 1 rows       document d = sentences[o[d]:o[d+1]]
      unigram.arrow   column count            int64, one row a vocabulary entry         how often each id occurs in the split

A corpus of more than one shard (``sharding.py``) is a folder of such stores under ``shards/``, joined by a ``store.json`` that names
them; they have no tokenizer of their own.

``store.json`` is written last and the folder gets its name only when all of it is on the disk (``store_writer.py``), so a
folder that `open_store` accepts is whole.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from bert_recipes.errors import InputError
from bert_recipes.files import sync_paths, write_json


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


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: damaged or incomplete: prepare the store again")


def _map_batch(reader: Any, index: int) -> np.ndarray:
    """Return the values of one record batch without copying them."""
    batch = reader.get_batch(index)
    # A damaged file may claim more rows than it has bytes for: numpy would read beyond its end.
    batch.validate()
    return batch.column(0).to_numpy(zero_copy_only=True)


class Column:
    """Read-only, memory-mapped view of a file that `ColumnWriter` wrote, whose only column is ``name``."""

    def __init__(self, path: Path, name: str) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
            kind = reader.schema.field(0).type if reader.schema.names == [name] else None
            if kind is None or not pa.types.is_integer(kind):
                raise _damaged(path)
            self.dtype = np.dtype(kind.to_pandas_dtype())
            self._chunks = [_map_batch(reader, index) for index in range(reader.num_record_batches)]
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(path) from error
        lengths = [len(chunk) for chunk in self._chunks]
        if any(length != ROWS_PER_BATCH for length in lengths[:-1]) or (lengths and lengths[-1] > ROWS_PER_BATCH):
            raise _damaged(path)
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
        """Return rows ``begin`` to ``end`` (excluded), shape (end - begin,): a read-only view, or a copy across batches."""
        if not 0 <= begin <= end <= self._num_rows:
            raise IndexError(f"rows {begin}..{end} of a column of {self._num_rows}")
        if begin == end:
            return np.empty(0, dtype=self.dtype)
        first, last = begin // ROWS_PER_BATCH, (end - 1) // ROWS_PER_BATCH
        if first == last:
            return self._chunks[first][begin - first * ROWS_PER_BATCH : end - first * ROWS_PER_BATCH]
        parts = [self._chunks[first][begin - first * ROWS_PER_BATCH :], *self._chunks[first + 1 : last]]
        return np.concatenate([*parts, self._chunks[last][: end - last * ROWS_PER_BATCH]])


COLUMN_OF_FILE = {
    "tokens.arrow": "token_id",
    "sentences.arrow": "token_offset",
    "documents.arrow": "sentence_offset",
    "unigram.arrow": "count",
}


class TokenStore:
    """One split of a store or a shard, at ``path``: random access to sentences of token ids.

    Its memory maps are opened again when it is unpickled. The values are trusted: `open_store` has compared their hashes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        columns = {file: Column(self.path / file, name) for file, name in COLUMN_OF_FILE.items()}
        self._tokens = columns["tokens.arrow"]
        self._token_offsets = columns["sentences.arrow"]
        self._sentence_offsets = columns["documents.arrow"]
        self._unigram = columns["unigram.arrow"]
        for file, column in columns.items():
            # The hash is of the bytes: it does not tell their type.
            if column.dtype not in ((np.uint16, np.uint32) if file == "tokens.arrow" else (np.int64,)):
                raise _damaged(self.path / file)
        self.num_tokens = len(self._tokens)
        self.num_sentences = len(self._token_offsets) - 1
        self.num_documents = len(self._sentence_offsets) - 1

    def __getstate__(self) -> dict[str, Path]:
        """Only the path travels to a worker: a memory map cannot."""
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """Return int64 (end - begin + 1,): the first sentence of each document, and the end of the last one."""
        return self._sentence_offsets.slice(begin_document, end_document + 1)

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return int64 (end - begin,): tokens in each sentence, all > 0."""
        offsets = self._token_offsets.slice(begin_sentence, end_sentence + 1)
        return offsets[1:] - offsets[:-1]

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return the token ids of consecutive sentences in one array of the store's unsigned type; read-only or a copy."""
        begin = int(self._token_offsets.slice(begin_sentence, begin_sentence + 1)[0])
        end = int(self._token_offsets.slice(end_sentence, end_sentence + 1)[0])
        return self._tokens.slice(begin, end)

    @property
    def unigram_counts(self) -> np.ndarray:
        """int64 (vocab_size,): how often each token id occurs in this split."""
        return self._unigram.slice(0, len(self._unigram))


class ShardedTokens:
    """A split whose documents lie in several stores; the same methods as `TokenStore`."""

    def __init__(self, path: Path, parts: Sequence[TokenStore]) -> None:
        self.path = path
        self._parts = list(parts)
        self._documents = np.cumsum([0, *(part.num_documents for part in parts)])
        self._sentences = np.cumsum([0, *(part.num_sentences for part in parts)])
        self.num_documents, self.num_sentences = int(self._documents[-1]), int(self._sentences[-1])
        self.num_tokens = sum(part.num_tokens for part in parts)

    def _cut(self, bounds: np.ndarray, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (part, begin, end) within each part that a range touches; one part, if empty, for an empty range."""
        if not 0 <= begin <= end <= bounds[-1]:
            raise IndexError(f"{begin} to {end}: there are {bounds[-1]}")
        part = min(int(np.searchsorted(bounds, begin, side="right")) - 1, len(self._parts) - 1)
        while True:
            stop = min(end, int(bounds[part + 1]))
            yield part, begin - int(bounds[part]), stop - int(bounds[part])
            if stop >= end:
                return
            begin, part = stop, part + 1

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """As `TokenStore.sentence_offsets`."""
        pieces: list[np.ndarray] = []
        for part, begin, end in self._cut(self._documents, begin_document, end_document):
            offsets = self._parts[part].sentence_offsets(begin, end) + self._sentences[part]
            pieces.append(offsets if not pieces else offsets[1:])
        return np.concatenate(pieces)

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """As `TokenStore.sentence_lengths`."""
        cuts = self._cut(self._sentences, begin_sentence, end_sentence)
        return np.concatenate([self._parts[part].sentence_lengths(begin, end) for part, begin, end in cuts])

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """As `TokenStore.tokens`."""
        cuts = self._cut(self._sentences, begin_sentence, end_sentence)
        pieces = [self._parts[part].tokens(begin, end) for part, begin, end in cuts]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    @property
    def unigram_counts(self) -> np.ndarray:
        """int64 (vocab_size,): how often each token id occurs in this split."""
        return np.sum([part.unigram_counts for part in self._parts], axis=0)


# What a split of a store is.
Split = TokenStore | ShardedTokens


logger = logging.getLogger(__name__)

FORMAT = "bert-recipes token store"
# Of a store that is one folder of files, and of one that joins several such stores.
FORMAT_VERSION, SHARDED_FORMAT_VERSION = 1, 2
SHARDS_FOLDER = "shards"
METADATA_FILE, CHECKED_FILE = "store.json", ".checked.json"
SPLITS = ("train", "validation")
SPECIAL_ID_NAMES = ("pad", "unk", "cls", "sep", "mask")


class Store:
    """An opened store: its metadata and its splits. Made by `open_store`.

    Attributes:
        path: The store's folder.
        metadata: ``store.json`` as a dict.
        fingerprint: sha256 (hex) of tokenizer and contents; the same text, settings and tokenizer give the same one.
    """

    def __init__(self, path: Path, metadata: dict[str, Any], splits: dict[str, Split]) -> None:
        self.path = path
        self.metadata = metadata
        self.fingerprint: str = metadata["fingerprint"]
        self._splits = splits

    @property
    def train(self) -> Split:
        """The training split."""
        if "train" not in self._splits:
            raise InputError(f"{self.path}: has no training documents; it is a part of a store: give the whole one")
        return self._splits["train"]

    @property
    def validation(self) -> Split | None:
        """The held-out documents, or None where the store has none."""
        return self._splits.get("validation")

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
            reason = "same vocabulary size, but other pieces, ids or normalisation (lower-casing, accents, CJK)"
        else:
            return
        raise InputError(
            f"{self.path}: was made with another tokenizer: {reason}; use {self.tokenizer_path} or prepare the store again"
        )


def compute_fingerprint(tokenizer_fingerprint: str, vocab_size: int, splits: dict[str, Any]) -> str:
    """Return the sha256 (hex) of what a store holds: tokenizer, vocabulary size, and the values of every file."""
    contents = {split: {file: entry["sha256"] for file, entry in splits[split]["files"].items()} for split in splits}
    identity = {"tokenizer": tokenizer_fingerprint, "vocab_size": vocab_size, "splits": contents}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode("ascii")).hexdigest()


def read_metadata(path: Path) -> dict[str, Any]:
    """Read a store's ``store.json``; refuse what is no store of a format that this release reads."""
    make = "make a store with recipes/prepare_corpus.py"
    if not path.exists():
        raise InputError(f"{path}: there is no such folder; {make}")
    file = path / METADATA_FILE
    if not file.is_file():
        raise InputError(f"{path}: not a token store: it has no {METADATA_FILE}; {make}")
    try:
        metadata = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(file) from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(f"{file}: not a token store of this project ('format' must be {FORMAT!r}); {make}")
    version = metadata.get("format_version")
    if version not in (FORMAT_VERSION, SHARDED_FORMAT_VERSION):
        raise InputError(
            f"{file}: format version {version!r}, this release reads up to version {SHARDED_FORMAT_VERSION}; "
            "update bert-recipes or prepare the store again"
        )
    try:
        ids, size = metadata["special_ids"], metadata["vocab_size"]
        is_sound = all(isinstance(ids[name], int) and 0 <= ids[name] < size for name in SPECIAL_ID_NAMES) and {
            *metadata["splits"]
        } <= {*SPLITS}
        is_sound = is_sound and metadata["fingerprint"] == _fingerprint_of(metadata) and "dtype" in metadata
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise _damaged(file) from error
    if not is_sound:
        raise _damaged(file)
    return metadata


def _fingerprint_of(metadata: dict[str, Any]) -> str:
    if metadata["format_version"] == SHARDED_FORMAT_VERSION:
        return compute_sharded_fingerprint([shard["fingerprint"] for shard in metadata[SHARDS_FOLDER]])
    return compute_fingerprint(metadata["tokenizer_fingerprint"], metadata["vocab_size"], metadata["splits"])


def open_store(path: str | Path) -> Store:
    """Open a store for reading: memory-mapped, and read once to the end to compare it with what was written.

    What was found is kept as ``.checked.json``, by the files' sizes and times: the next opening reads ``store.json`` alone.

    Example:
        >>> store = open_store("runs/quickstart/store")  # doctest: +SKIP
        >>> store.train.tokens(0, 1)  # ids of the first sentence  # doctest: +SKIP
    """
    path = Path(path)
    metadata = read_metadata(path)
    is_sharded = metadata["format_version"] == SHARDED_FORMAT_VERSION
    parts: dict[str, list[TokenStore]] = {split: [] for split in metadata["splits"]}
    alone = [{"folder": ".", "fingerprint": metadata["fingerprint"]}]
    try:
        for entry in metadata[SHARDS_FOLDER] if is_sharded else alone:
            folder = path / entry["folder"]
            shard = read_metadata(folder)
            identity = ("vocab_size", "tokenizer_fingerprint", "special_ids")
            if shard["fingerprint"] != entry["fingerprint"] or any(shard[name] != metadata[name] for name in identity):
                raise _damaged(folder)
            _check_values(folder, shard)
            for split in shard["splits"]:
                parts[split].append(TokenStore(folder / split))
        splits: dict[str, Split] = {
            split: ShardedTokens(path / split, found) if is_sharded else found[0] for split, found in parts.items()
        }
        for split, entry in metadata["splits"].items():
            counts = {name: getattr(splits[split], name) for name in _COUNTS}
            if {name: entry[name] for name in counts} != counts:
                raise _damaged(path / METADATA_FILE)
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path / METADATA_FILE) from error
    return Store(path, metadata, splits)


def _check_values(path: Path, metadata: dict[str, Any]) -> None:
    """Refuse files with other values than were written; reads all of them unless that was done before."""
    files = {
        (split, file): metadata["splits"][split]["files"][file]
        for split in metadata["splits"]
        for file in COLUMN_OF_FILE
    }
    try:
        status = {f"{split}/{file}": (path / split / file).stat() for split, file in files}
    except OSError as error:
        raise _damaged(path) from error
    state: dict[str, Any] = {name: [each.st_size, each.st_mtime_ns, each.st_ctime_ns] for name, each in status.items()}
    state["fingerprint"] = metadata["fingerprint"]
    kept = path / CHECKED_FILE
    try:
        if json.loads(kept.read_bytes()) == state:
            return
    except (OSError, ValueError):
        logger.info(
            "%s: %.0f MB are compared with what was written", path, sum(each.st_size for each in status.values()) / 1e6
        )
    for (split, file), facts in files.items():
        if Column(path / split / file, COLUMN_OF_FILE[file]).sha256() != facts["sha256"]:
            raise _damaged(path / split / file)
    try:
        write_json(kept, state)
    except OSError as error:
        logger.info("%s cannot be kept (%s): the store is read to its end at every opening", kept, error.strerror)


def compute_sharded_fingerprint(fingerprints: Sequence[str]) -> str:
    """Return the sha256 (hex) of what the shards hold, in their order."""
    return hashlib.sha256("\n".join(fingerprints).encode("ascii")).hexdigest()


# Sources that are named one by one; of more their number and size are said.
MAX_NAMED_SOURCES = 20
_COUNTS = {"num_documents": "documents", "num_sentences": "sentences", "num_tokens": "tokens"}


def describe_store(path: str | Path) -> dict[str, Any]:
    """Hashes, counts and sources of a store; no folder of the machine that it lies on.

    Returns:
        `fingerprint` (SHA-256 of tokenizer and contents), `tokenizer_fingerprint`, `splits` (documents, sentences, tokens of
        each), and as far as the store says so `sources`, `read`, `dropped` and `settings`, by split where they have one.
    """
    metadata = read_metadata(Path(path))
    facts: dict[str, Any] = {
        "fingerprint": metadata["fingerprint"],
        "tokenizer_fingerprint": metadata["tokenizer_fingerprint"],
        "splits": {
            split: {name: entry[key] for key, name in _COUNTS.items() if key in entry}
            for split, entry in metadata["splits"].items()
        },
        "sources": {split: _sources(found) for split, found in metadata.get("sources", {}).items()},
        "read": {
            split: {name: counts[name] for name in ("documents", "text_bytes") if name in counts}
            for split, counts in metadata.get("read", {}).items()
        },
        "dropped": metadata.get("dropped"),
        "settings": metadata.get("settings"),
    }
    return {name: value for name, value in facts.items() if value}


def _sources(found: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a split: a data set of the Hub, or its files."""
    if found and "bytes" not in found[0]:
        hub = found[0]
        return {
            "dataset": hub.get("name"),
            "config": hub.get("config"),
            "split": hub.get("split"),
        }
    names = [str(file["name"]) for file in found[:MAX_NAMED_SOURCES]]
    return {"files": len(found), "bytes": sum(int(file["bytes"]) for file in found), "names": names}


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
        """Write the metadata, force everything to the disk and give the store its name."""
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
