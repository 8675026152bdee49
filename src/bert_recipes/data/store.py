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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_recipes.data.columns import Column
from bert_recipes.data.splits import COLUMN_OF_FILE, ShardedTokens, Split, TokenStore
from bert_recipes.errors import InputError
from bert_recipes.whole_files import write_json


logger = logging.getLogger(__name__)

FORMAT = "bert-recipes token store"
# Of a store that is one folder of files, and of one that joins several such stores.
FORMAT_VERSION, SHARDED_FORMAT_VERSION = 1, 2
SHARDS_FOLDER = "shards"
METADATA_FILE, CHECKED_FILE = "store.json", ".checked.json"
SPLITS = ("train", "validation")
SPECIAL_ID_NAMES = ("pad", "unk", "cls", "sep", "mask")
_AGAIN = "prepare the store again"
REQUIRED_KEYS = ("fingerprint", "tokenizer_fingerprint", "vocab_size", "special_ids", "dtype", "splits")


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
    """Read and check a store's ``store.json``."""
    make = "make a store with recipes/prepare_corpus.py"
    if not path.exists():
        raise InputError(f"{path}: there is no such folder; {make}")
    file = path / METADATA_FILE
    if not file.is_file():
        raise InputError(f"{path}: not a token store: it has no {METADATA_FILE}; {make}")
    try:
        metadata = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged: {error}; prepare the store again") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(f"{file}: not a token store of this project ('format' must be {FORMAT!r}); {make}")
    version = metadata.get("format_version")
    if version not in (FORMAT_VERSION, SHARDED_FORMAT_VERSION):
        raise InputError(
            f"{file}: format version {version!r}, this release reads up to version {SHARDED_FORMAT_VERSION}; "
            "update bert-recipes or prepare the store again"
        )
    missing = [key for key in REQUIRED_KEYS if key not in metadata]
    if missing or not isinstance(metadata["splits"], dict):
        raise InputError(f"{file}: damaged: {', '.join(missing) or 'splits'} missing; prepare the store again")
    return metadata


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
    return _open_shards(path, metadata) if is_sharded else _open_one(path, metadata)


def _open_one(path: Path, metadata: dict[str, Any]) -> Store:
    """Open a store that is one folder of files, a shard as well."""
    _check_metadata(path, metadata)
    try:
        for split, entry in metadata["splits"].items():
            for file in COLUMN_OF_FILE:
                part, expected = path / split / file, entry["files"][file]["bytes"]
                if not part.is_file():
                    raise InputError(f"{part}: this file of the store is missing; prepare the store again")
                if part.stat().st_size != expected:
                    raise InputError(
                        f"{part}: cut short or changed: {part.stat().st_size} bytes, {expected} were written; "
                        "prepare the store again"
                    )
        fingerprint = compute_fingerprint(
            metadata["tokenizer_fingerprint"], metadata["vocab_size"], metadata["splits"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path / METADATA_FILE}: damaged: {error} missing or of the wrong type") from error
    if fingerprint != metadata["fingerprint"]:
        raise InputError(f"{path / METADATA_FILE}: changed by hand or damaged: fingerprint differs; prepare it again")
    splits = {split: TokenStore(path / split) for split in metadata["splits"]}
    for split, store in splits.items():
        _check_counts(path, metadata, split, store)
        if len(store.unigram_counts) != metadata["vocab_size"]:
            raise InputError(f"{path / split / 'unigram.arrow'}: damaged: not one row a vocabulary entry; {_AGAIN}")
    _check_values(path, metadata)
    return Store(path, metadata, dict(splits))


def _check_values(path: Path, metadata: dict[str, Any]) -> None:
    """Refuse files of the right size with other values than were written; reads all of them unless that was done before."""
    files = {(split, file): facts for split in metadata["splits"] for file, facts in metadata["splits"][split]["files"].items()}
    status = {f"{split}/{file}": (path / split / file).stat() for split, file in files}
    state: dict[str, Any] = {name: [each.st_size, each.st_mtime_ns, each.st_ctime_ns] for name, each in status.items()}
    state["fingerprint"] = metadata["fingerprint"]
    kept = path / CHECKED_FILE
    try:
        if json.loads(kept.read_bytes()) == state:
            return
    except (OSError, ValueError):
        logger.info("%s: %.0f MB are compared with what was written", path, sum(each.st_size for each in status.values()) / 1e6)
    for (split, file), facts in files.items():
        if Column(path / split / file, COLUMN_OF_FILE[file]).sha256() != facts["sha256"]:
            raise InputError(f"{path / split / file}: damaged: other values than were written; {_AGAIN}")
    try:
        write_json(kept, state)
    except OSError as error:
        logger.info("%s cannot be kept (%s): the store is read to its end at every opening", kept, error.strerror)


def _check_metadata(path: Path, metadata: dict[str, Any]) -> None:
    """Refuse values that no writer has written."""
    ids, size = metadata["special_ids"], metadata["vocab_size"]
    if not isinstance(ids, dict) or not all(isinstance(ids.get(name), int) for name in SPECIAL_ID_NAMES):
        raise InputError(
            f"{path / METADATA_FILE}: damaged: 'special_ids' must name {', '.join(SPECIAL_ID_NAMES)}; {_AGAIN}"
        )
    if not isinstance(size, int) or not all(0 <= ids[name] < size for name in SPECIAL_ID_NAMES):
        raise InputError(f"{path / METADATA_FILE}: damaged: 'special_ids' lie outside the vocabulary; {_AGAIN}")
    if others := sorted(set(metadata["splits"]) - set(SPLITS)):
        raise InputError(f"{path / METADATA_FILE}: damaged: no split is called {others[0]!r}; {_AGAIN}")


def _check_counts(path: Path, metadata: dict[str, Any], split: str, store: Split) -> None:
    """Refuse a split that has other numbers of documents, sentences or tokens than ``store.json`` says."""
    entry = metadata["splits"][split]
    for name in ("num_documents", "num_sentences", "num_tokens"):
        if not isinstance(entry, dict) or entry.get(name) != getattr(store, name):
            raise InputError(
                f"{path / METADATA_FILE}: damaged: {name} of {split} is not what its files hold; {_AGAIN}"
            )


def compute_sharded_fingerprint(fingerprints: Sequence[str]) -> str:
    """Return the sha256 (hex) of what the shards hold, in their order."""
    return hashlib.sha256("\n".join(fingerprints).encode("ascii")).hexdigest()


def _open_shards(path: Path, metadata: dict[str, Any]) -> Store:
    """Open every shard and join their splits."""
    try:
        entries = [(str(entry["folder"]), str(entry["fingerprint"])) for entry in metadata[SHARDS_FOLDER]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path / METADATA_FILE}: damaged: {error} missing or of the wrong type") from error
    _check_metadata(path, metadata)
    shards = []
    for folder, fingerprint in entries:
        part = read_metadata(path / folder)
        identity = ("vocab_size", "tokenizer_fingerprint", "special_ids")
        if part["format_version"] != FORMAT_VERSION or any(part[name] != metadata[name] for name in identity):
            raise InputError(f"{path / folder}: is not the shard that belongs here; prepare the store again")
        shard = _open_one(path / folder, part)
        if shard.fingerprint != fingerprint:
            raise InputError(f"{path / folder}: is not the shard that belongs here; prepare the store again")
        shards.append(shard)
    if compute_sharded_fingerprint([fingerprint for _, fingerprint in entries]) != metadata["fingerprint"]:
        raise InputError(f"{path / METADATA_FILE}: changed by hand or damaged: fingerprint differs; prepare it again")
    splits: dict[str, Split] = {}
    for split in metadata["splits"]:
        found = (shard._splits.get(split) for shard in shards)
        parts = [part for part in found if isinstance(part, TokenStore)]
        splits[split] = ShardedTokens(path / split, parts)
        _check_counts(path, metadata, split, splits[split])
    return Store(path, metadata, splits)
