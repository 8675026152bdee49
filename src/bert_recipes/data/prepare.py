"""A corpus in shards: which files each has, where they are while they are made, and how they become one store.

A shard is a store of its own (``store_writer.py``), whole or not there. A preparation that is cut off leaves the shards that are
done in a hidden folder beside the store to be; the same command checks them and makes the rest.
"""

import hashlib
import json
import logging
import math
import os
import platform
import resource
import shutil
import signal
import sys
import threading
import time
import unicodedata
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from tqdm import tqdm

from bert_recipes.data.corpus import (
    MAX_LINE_BYTES,
    MOST_LINE_BYTES,
    CorpusCounts,
    DocumentBoundary,
    EncodingErrors,
    check_options,
    describe_files,
    find_files,
    iter_documents,
    iter_hub_documents,
)
from bert_recipes.data.sentences import is_passage, split_sentences
from bert_recipes.data.store import (
    FORMAT,
    METADATA_FILE,
    SHARDED_FORMAT_VERSION,
    SHARDS_FOLDER,
    StoreWriter,
    check_output,
    compute_sharded_fingerprint,
    find_place,
    move_into_place,
    open_store,
    read_metadata,
)
from bert_recipes.errors import InputError
from bert_recipes.files import sync_paths, write_json


Sentences = Literal["split", "lines"]
Keep = Literal["all", "passages"]
EncodeIds = Callable[[str], list[int]]

# About 0.2 s of one core: long enough to hide what it costs to send, short enough that few of them weigh nothing.
BATCH_CHARACTERS = 1_000_000


class TextBatch(NamedTuple):
    """Documents (lists of paragraphs) of one split."""

    split: str
    documents: list[list[str]]


class TokenBatch(NamedTuple):
    """The same as token ids.

    Attributes:
        split: ``train`` or ``validation``.
        tokens: uint32 (num_tokens,).
        sentence_lengths: int64 (num_sentences,), tokens in each sentence, all > 0.
        document_lengths: int64 (num_documents,), sentences in each document, all > 0.
        dropped: How many were left out, by reason.
    """

    split: str
    tokens: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    dropped: Counter[str]


@dataclass(frozen=True)
class DocumentEncoder:
    """Encodes batches of documents; can be sent to another process.

    Attributes:
        encode_ids: Text -> token ids, without special tokens; must be picklable for more than one process.
        sentences: ``split`` paragraphs by `split_sentences`, or take every line as a sentence (``lines``).
        keep: ``all`` paragraphs, or only ``passages`` (`is_passage`).
    """

    encode_ids: EncodeIds
    sentences: Sentences = "split"
    keep: Keep = "all"

    def __call__(self, batch: TextBatch) -> TokenBatch:
        """Return the token ids of a batch; what gives none is dropped and counted."""
        tokens, sentence_lengths, document_lengths = array("I"), array("q"), array("q")
        dropped: Counter[str] = Counter()
        for document in batch.documents:
            before = len(sentence_lengths)
            for sentence in self._sentences(document, dropped):
                ids = self.encode_ids(sentence)
                if ids:
                    tokens.extend(ids)
                    sentence_lengths.append(len(ids))
                else:
                    dropped["sentences_without_tokens"] += 1
            if len(sentence_lengths) > before:
                document_lengths.append(len(sentence_lengths) - before)
            else:
                dropped["documents_without_sentences"] += 1
        return TokenBatch(
            batch.split,
            np.array(tokens, dtype=np.uint32),
            np.array(sentence_lengths, dtype=np.int64),
            np.array(document_lengths, dtype=np.int64),
            dropped,
        )

    def _sentences(self, document: list[str], dropped: Counter[str]) -> Iterator[str]:
        for paragraph in document:
            if self.keep == "passages" and not is_passage(paragraph):
                dropped["paragraphs_that_are_no_passages"] += 1
            elif self.sentences == "lines":
                yield paragraph
            else:
                yield from split_sentences(paragraph)


def batch_documents(
    documents: Iterable[tuple[str, list[str]]], batch_characters: int = BATCH_CHARACTERS
) -> Iterator[TextBatch]:
    """Collect (split, document) into batches of one split each; the order inside a split is kept."""
    waiting: dict[str, list[list[str]]] = {}
    sizes: Counter[str] = Counter()
    for split, document in documents:
        waiting.setdefault(split, []).append(document)
        sizes[split] += sum(map(len, document))
        if sizes[split] >= batch_characters:
            yield TextBatch(split, waiting.pop(split))
            del sizes[split]
    for split, rest in waiting.items():
        yield TextBatch(split, rest)


def encode_in_order(
    batches: Iterable[TextBatch], encoder: DocumentEncoder, num_processes: int
) -> Iterator[TokenBatch]:
    """Encode batches in ``num_processes`` processes (1: in this one); results come in the order of the batches.

    At most two batches a process are under way, so memory does not grow with the input.
    """
    if num_processes == 1:
        yield from map(encoder, batches)
        return
    # spawn is the same on every system, and safe beside threads of the libraries that are loaded here.
    pool = ProcessPoolExecutor(
        num_processes, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(encoder,)
    )
    waiting: deque[Future[TokenBatch]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(_encode_in_worker, batch))
            if len(waiting) >= 2 * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise InputError(
            f"one of the {num_processes} processes was killed, probably for lack of memory; "
            "set num_processes lower or free memory, and run again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker_encoder: DocumentEncoder | None = None


def _start_worker(encoder: DocumentEncoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder
    follow_parent()


def follow_parent() -> None:
    """In another process: leave Ctrl-C to the main process, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode_in_worker(batch: TextBatch) -> TokenBatch:
    assert _worker_encoder is not None
    return _worker_encoder(batch)


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(kw_only=True)
class CorpusArguments:
    """From text to a token-id store.

    The text is either ``files`` or a data set of the Hub (``dataset_name``). None of the values comes from the paper: it
    names its corpora, not how they were cut.
    """

    tokenizer: str = field(metadata={"help": "tokenizer folder or vocab.txt"})
    output_dir: str = field(metadata={"help": "folder of the store to write"})
    files: list[str] | None = field(
        default=None,
        metadata={"help": "text to train on: files, folders, globs; .txt, .jsonl, .json (each also .gz), .parquet"},
    )
    validation_files: list[str] | None = field(
        default=None, metadata={"help": "text to hold out; files that are in --files too are taken out there"}
    )
    validation_fraction: float = field(
        default=0.0, metadata={"help": "share of the documents of --files to hold out instead, drawn by --seed"}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "data set on the Hub, instead of --files"})
    dataset_config_name: str | None = field(default=None, metadata={"help": "its configuration"})
    dataset_split: str = field(default="train", metadata={"help": "its split"})
    text_column: str = field(default="text", metadata={"help": "column of the text in JSON, Parquet and Hub rows"})
    document_boundary: DocumentBoundary = field(
        default="auto",
        metadata={"help": "what ends a document: auto is blank_line for .txt, row for rows; a file's end always does"},
    )
    sentences: Sentences = field(
        default="split", metadata={"help": "split paragraphs by rules, or lines: every line is a sentence already"}
    )
    wrapped_lines: bool = field(
        default=False, metadata={"help": "lines are hard-wrapped: join those of a paragraph by a space"}
    )
    keep: Keep = field(
        default="all", metadata={"help": "all paragraphs, or passages: no headings, lists and tables (our own rule)"}
    )
    encoding_errors: EncodingErrors = field(
        default="strict", metadata={"help": "broken UTF-8 or NUL: stop (strict), or replace and count"}
    )
    max_line_bytes: int = field(default=MAX_LINE_BYTES, metadata={"help": "longest line that is taken for text"})
    seed: int = field(default=12345, metadata={"help": "decides which documents validation_fraction holds out"})
    shard_gigabytes: float = field(
        default=1.0,
        metadata={"help": "a larger corpus is prepared in shards of about so much text, each kept once done"},
    )
    num_processes: int | None = field(default=None, metadata={"help": "default: all cores; the store is the same"})
    overwrite: bool = field(default=False, metadata={"help": "replace a store that is in output_dir already"})

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.dataset_name):
            given = "both are" if self.files else "neither is"
            raise InputError(f"give the text as files or as dataset_name: {given} given")
        if self.validation_files and self.validation_fraction:
            raise InputError(
                "validation_files and validation_fraction are both given: choose one way to hold text out"
            )
        if not 0 <= self.validation_fraction < 1:
            raise InputError(
                f"validation_fraction is {self.validation_fraction}: a share from 0 to less than 1 is allowed"
            )
        if self.num_processes is not None and self.num_processes < 1:
            raise InputError(f"num_processes is {self.num_processes}: 1 or more is allowed")
        if not 0 < self.shard_gigabytes < math.inf:
            raise InputError(f"shard_gigabytes is {self.shard_gigabytes}: a number of more than 0 is allowed")
        if not 1 <= self.max_line_bytes <= MOST_LINE_BYTES:
            raise InputError(f"max_line_bytes is {self.max_line_bytes}: 1 or more is allowed, up to {MOST_LINE_BYTES}")
        if self.wrapped_lines and self.sentences == "lines":
            raise InputError(
                "sentences 'lines' takes every line for a sentence, wrapped_lines joins lines: choose one"
            )
        if self.dataset_name and self.document_boundary not in ("auto", "row"):
            raise InputError(
                f"document_boundary is {self.document_boundary!r}: for a Hub data set auto or row is allowed"
            )

    @property
    def resolved_num_processes(self) -> int:
        """Number of processes, all usable cores by default."""
        return count_cores() if self.num_processes is None else self.num_processes


logger = logging.getLogger(__name__)

SplitFiles = Sequence[tuple[str, Path]]


def find_sources(arguments: CorpusArguments) -> list[tuple[str, Path]]:
    """The (split, file) of a corpus: first the files to train on, then those that are held out. None for a Hub data set."""
    validation = find_files(arguments.validation_files) if arguments.validation_files else []
    held_out = {os.path.realpath(path) for path in validation}
    found = find_files(arguments.files) if arguments.files else []
    train = [path for path in found if os.path.realpath(path) not in held_out]
    if len(train) < len(found):
        logger.info("%d files of --files are held out: they are in --validation_files", len(found) - len(train))
    if arguments.files and not train:
        raise InputError("every file of --files is in --validation_files too: nothing is left to train on")
    # All of them, before any is read: those that are held out come last, hours later.
    check_options([*train, *validation], arguments.document_boundary, arguments.wrapped_lines)
    return [("train", path) for path in train] + [("validation", path) for path in validation]


def describe_sources(arguments: CorpusArguments, files: SplitFiles) -> dict[str, list[dict[str, Any]]]:
    """Name and size of every source, by split."""
    sources: dict[str, list[dict[str, Any]]] = {}
    for split in dict.fromkeys(split for split, _ in files):
        sources[split] = list(describe_files([path for own, path in files if own == split]))
    if arguments.dataset_name:
        hub = {"name": arguments.dataset_name, "config": arguments.dataset_config_name}
        sources["train"] = [{**hub, "split": arguments.dataset_split}]
    return sources


class CorpusSources:
    """Reads some of the files of a corpus, or a data set of the Hub.

    Args:
        arguments: How.
        files: (split, file) of those to read.
        shard: Number of the shard that they are; None where the corpus is one.
    """

    def __init__(self, arguments: CorpusArguments, files: SplitFiles, shard: int | None = None) -> None:
        self._arguments, self._files = arguments, files
        self._prefix = f"{arguments.seed}" if shard is None else f"{arguments.seed}:{shard}"
        self.counts = {"train": CorpusCounts(), "validation": CorpusCounts()}

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all files; None where a data set of the Hub does not tell."""
        return None if self._arguments.dataset_name else sum(path.stat().st_size for _, path in self._files)

    @property
    def source_bytes(self) -> int:
        """Bytes read up to now."""
        return sum(counts.source_bytes for counts in self.counts.values())

    def documents(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (split, document); of the text to train on the documents that ``validation_fraction`` holds out as such."""
        fraction = self._arguments.validation_fraction
        for number, document in enumerate(self._read("train")):
            is_held_out = fraction > 0 and self._draw(number) < fraction
            yield "validation" if is_held_out else "train", document
        for document in self._read("validation"):
            yield "validation", document

    def _draw(self, number: int) -> float:
        """A number in [0, 1) that depends on the seed and the document's number (in its shard) only."""
        digest = hashlib.blake2b(f"{self._prefix}:{number}".encode("ascii"), digest_size=8).digest()
        return int.from_bytes(digest, "little") / 2**64

    def _read(self, split: str) -> Iterator[list[str]]:
        arguments, counts = self._arguments, self.counts[split]
        if split == "train" and arguments.dataset_name:
            return iter_hub_documents(
                arguments.dataset_name,
                arguments.dataset_config_name,
                arguments.dataset_split,
                text_column=arguments.text_column,
                encoding_errors=arguments.encoding_errors,
                wrapped_lines=arguments.wrapped_lines,
                counts=counts,
            )
        files = [path for own, path in self._files if own == split]
        if not files:
            return iter(())
        return iter_documents(
            files,
            document_boundary=arguments.document_boundary,
            text_column=arguments.text_column,
            encoding_errors=arguments.encoding_errors,
            wrapped_lines=arguments.wrapped_lines,
            max_line_bytes=arguments.max_line_bytes,
            counts=counts,
        )


@dataclass(kw_only=True)
class PreparationReport:
    """What was done.

    Attributes:
        path: The store.
        splits: Per split: documents, sentences, tokens, documents_of_one_sentence.
        dropped: Per split and reason: how many were left out.
        repaired: Per split and kind: what was changed in the text.
        read_documents: Documents read, whether or not anything is left of them.
        text_bytes: Bytes of text read.
        num_shards, kept_shards: Shards of the store, and those that were done before.
        store_bytes: Size of the store.
        seconds: Wall-clock time.
        new_bytes: Bytes of text read in that time: less than text_bytes where shards were kept.
        main_peak_bytes, worker_peak_bytes: Largest resident memory of this process and of any worker process (0: none).
    """

    path: Path
    splits: dict[str, Counter[str]] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    repaired: dict[str, Counter[str]] = field(default_factory=dict)
    read_documents: int = 0
    text_bytes: int = 0
    num_shards: int = 1
    kept_shards: int = 0
    store_bytes: int = 0
    seconds: float = 0.0
    new_bytes: int = 0
    main_peak_bytes: int = 0
    worker_peak_bytes: int = 0

    def add(self, metadata: Mapping[str, Any]) -> None:
        """Add what the ``store.json`` of a store, or of a shard, says."""
        for split, entry in metadata["splits"].items():
            self.splits.setdefault(split, Counter()).update(
                documents=entry["num_documents"],
                sentences=entry["num_sentences"],
                tokens=entry["num_tokens"],
                documents_of_one_sentence=metadata["documents_of_one_sentence"].get(split, 0),
            )
        for split, counts in metadata["read"].items():
            self.read_documents += counts["documents"]
            self.text_bytes += counts["text_bytes"]
            self.repaired.setdefault(split, Counter()).update(counts["repaired"])
        for split, dropped in metadata["dropped"].items():
            self.dropped.setdefault(split, Counter()).update(dropped)

    def measure(self, seconds: float, *, has_workers: bool) -> None:
        """Note size, time and the largest resident memory up to now."""
        self.store_bytes = sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())
        self.seconds = seconds
        self.main_peak_bytes = _peak_bytes(resource.RUSAGE_SELF)
        self.worker_peak_bytes = _peak_bytes(resource.RUSAGE_CHILDREN) if has_workers else 0


def add_counts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up mappings of numbers, and of such mappings, name by name."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Mapping):
                total[name] = add_counts([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total


def _peak_bytes(who: int) -> int:
    """Return the largest resident memory so far (of the largest child, for children); macOS counts in bytes."""
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def format_report(report: PreparationReport) -> str:
    """Return the report as a short text table."""
    lines = [f"{'':24}" + "".join(f"{split:>16}" for split in report.splits)]
    for name in ("documents", "sentences", "tokens"):
        lines.append(f"{name:24}" + "".join(f"{counts[name]:>16,}" for counts in report.splits.values()))
    for title, groups in (("dropped", report.dropped), ("repaired", report.repaired)):
        for split, counts in groups.items():
            lines += [f"{title} ({split}): {reason.replace('_', ' ')}: {count:,}" for reason, count in counts.items()]
    speed = report.new_bytes / max(report.seconds, 1e-9)
    if report.num_shards > 1:
        lines.append(f"shards: {report.num_shards}, of which {report.kept_shards} were done before")
    lines += [
        f"text {report.new_bytes / 1e6:,.1f} MB in {report.seconds:,.1f} s: {speed / 1e6:,.1f} MB/s",
        f"peak memory: {report.main_peak_bytes / 1e6:,.0f} MB main process"
        + (f", {report.worker_peak_bytes / 1e6:,.0f} MB largest worker" if report.worker_peak_bytes else ""),
        f"store: {report.path} ({report.store_bytes / 1e6:,.1f} MB)",
    ]
    return "\n".join(lines)


PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class Shard:
    """A part of the files.

    Attributes:
        number: Its place, from 0.
        files: (split, file) in their order.
    """

    number: int
    files: tuple[tuple[str, Path], ...]


def plan_shards(files: Sequence[tuple[str, Path]], shard_bytes: float) -> list[Shard]:
    """Cut the files, in their order, into shards of about so many bytes; a file is never cut.

    Args:
        files: (split, file).
        shard_bytes: A shard is full when it has so many.
    """
    shards: list[Shard] = []
    part: list[tuple[str, Path]] = []
    size = 0
    for split, path in files:
        part.append((split, path))
        size += path.stat().st_size
        if size >= shard_bytes:
            shards.append(Shard(len(shards), tuple(part)))
            part, size = [], 0
    if part:
        shards.append(Shard(len(shards), tuple(part)))
    return shards


class ShardFolder:
    """Where the shards of a store are while they are made."""

    def __init__(self, output_dir: str | Path, *, overwrite: bool) -> None:
        self.target = find_place(output_dir, overwrite=overwrite)
        self.overwrite = overwrite
        self.path = self.target.with_name(f".{self.target.name}.shards")

    @contextmanager
    def claimed(self, plan: Mapping[str, Any]) -> Iterator[None]:
        """Begin, or go on with a preparation of the same plan; one process at a time."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"{self.target}: another process prepares it; wait for its end") from None
        try:
            self.check_plan(plan)
            yield
        finally:
            lock.release()

    def check_plan(self, plan: Mapping[str, Any], *, is_begun: bool = False) -> None:
        """Write the plan down, or see that it is the one of before.

        Args:
            plan: What decides about the result, JSON values.
            is_begun: There must be one: it was written before the work was dealt out to several processes or machines.
        """
        file = self.path / PLAN_FILE
        if not file.is_file():
            if is_begun:
                raise InputError(
                    f"{file}: missing, so the preparation has ended or was removed; give its command again"
                )
            write_json(file, plan)
            return
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            before = {}
        now = json.loads(json.dumps(plan))  # as it is read: lists, no tuples
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if changed:
            raise InputError(
                f"{self.path}: holds shards of an earlier preparation with other {', '.join(changed)}; give what it was made "
                "with to go on with it, or delete that folder"
            )

    def place(self, shard: Shard) -> Path:
        """The folder of a shard."""
        return self.path / SHARDS_FOLDER / f"{shard.number:05d}"

    def is_done(self, shard: Shard) -> bool:
        """Whether a shard is there and holds what was written (`open_store`). A damaged one is made anew."""
        place = self.place(shard)
        if not place.exists():
            return False
        try:
            open_store(place)
        except InputError as error:
            logger.warning("%s; the shard is made anew", error)
            return False
        return True

    def clear(self, shard: Shard) -> None:
        """Remove what a process that was killed has left of a shard."""
        place = self.place(shard)
        place.parent.mkdir(parents=True, exist_ok=True)
        for leftover in (place, *place.parent.glob(f".{place.name}.*")):
            if leftover.exists():
                shutil.rmtree(leftover)

    def metadata(self, shards: Sequence[Shard]) -> list[dict[str, Any]]:
        """``store.json`` of each shard."""
        return [read_metadata(self.place(shard)) for shard in shards]

    def finish(self, shards: Sequence[Shard], **description: Any) -> None:
        """Write what joins the shards, and give the store its name."""
        parts = self.metadata(shards)
        first = parts[0]
        identity = {name: first[name] for name in ("tokenizer_fingerprint", "vocab_size")}
        metadata = {
            "format": FORMAT,
            "format_version": SHARDED_FORMAT_VERSION,
            "fingerprint": compute_sharded_fingerprint([part["fingerprint"] for part in parts]),
            **identity,
            "special_ids": first["special_ids"],
            "dtype": first["dtype"],
            "splits": add_up([part["splits"] for part in parts]),
            SHARDS_FOLDER: [
                {"folder": f"{SHARDS_FOLDER}/{shard.number:05d}", "fingerprint": part["fingerprint"]}
                for shard, part in zip(shards, parts, strict=True)
            ],
            **description,
        }
        write_json(self.path / METADATA_FILE, metadata)
        (self.path / PLAN_FILE).unlink()
        sync_paths([self.path / METADATA_FILE, *(self.path / "tokenizer").glob("*"), self.path])
        check_output(self.target, overwrite=self.overwrite)
        move_into_place(self.path, self.target)
        sync_paths([self.target.parent])
        self.path.with_name(f"{self.path.name}.lock").unlink(missing_ok=True)


def add_up(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    """Sums of the numbers of equal names, by split."""
    totals: dict[str, Counter[str]] = {}
    for part in parts:
        for split, values in part.items():
            numbers = {name: value for name, value in values.items() if isinstance(value, int)}
            totals.setdefault(split, Counter()).update(numbers)
    return {split: dict(counts) for split, counts in totals.items()}


# What changes neither documents nor token ids stays out of the store, so that the same text gives the same bytes.
_NOT_IN_STORE = ("files", "validation_files", "tokenizer", "output_dir", "overwrite", "num_processes")
MIN_DOCUMENTS = 2
_SPECIAL = ("pad", "unk", "cls", "sep", "mask")


def prepare_store(arguments: CorpusArguments, tokenizer: Any) -> PreparationReport:
    """Read the text, cut it into documents and sentences, encode them, and write the store as a whole or not at all.

    The store's bytes depend on text, settings and tokenizer only, not on ``num_processes``. A corpus of more than
    ``shard_gigabytes`` is prepared shard by shard; a preparation that was cut off goes on with the first that is not done.
    """
    started = time.perf_counter()
    preparation = Preparation(arguments, tokenizer)
    report = PreparationReport(path=Path(arguments.output_dir), num_shards=len(preparation.shards))
    if len(preparation.shards) == 1:
        preparation.write_store(report)
    else:
        with preparation.folder.claimed(preparation.plan()):
            for shard in preparation.shards:
                preparation.write_shard(shard, report)
            preparation.join_shards(report)
    report.measure(time.perf_counter() - started, has_workers=arguments.resolved_num_processes > 1)
    return report


class Preparation:
    """A corpus that becomes a store, in one go or in shards.

    Args:
        arguments: Settings.
        tokenizer: `tokenization.OriginalBertTokenizer`, which is of this floor too and not imported.
    """

    def __init__(self, arguments: CorpusArguments, tokenizer: Any) -> None:
        self.arguments, self.tokenizer = arguments, tokenizer
        self.files = find_sources(arguments)
        self.shards = plan_shards(self.files, arguments.shard_gigabytes * 1e9) or [Shard(0, ())]

    @property
    def folder(self) -> ShardFolder:
        """Where shards are made."""
        return ShardFolder(self.arguments.output_dir, overwrite=self.arguments.overwrite)

    def settings(self) -> dict[str, Any]:
        """What decides about the token ids."""
        return {name: value for name, value in asdict(self.arguments).items() if name not in _NOT_IN_STORE}

    def plan(self) -> dict[str, Any]:
        """What must be the same for shards of two runs to become one store."""
        return {
            "settings": self.settings(),
            "tokenizer": self.tokenizer.fingerprint,
            "versions": _versions(),
            "shards": [
                [[split, str(path), path.stat().st_size] for split, path in shard.files] for shard in self.shards
            ],
        }

    def write_store(self, report: PreparationReport) -> None:
        """All of it as one store."""
        self._write(self.arguments.output_dir, self.shards[0], report, is_whole=True)
        report.new_bytes = report.text_bytes

    def write_shard(self, shard: Shard, report: PreparationReport | None = None) -> None:
        """One shard, unless it is done."""
        folder = self.folder
        report = report or PreparationReport(path=folder.place(shard))
        if folder.is_done(shard):
            report.kept_shards += 1
            logger.info("shard %d of %d: done before", shard.number + 1, len(self.shards))
            return
        logger.info("shard %d of %d: %d files", shard.number + 1, len(self.shards), len(shard.files))
        folder.clear(shard)
        self._write(folder.place(shard), shard, report, is_whole=False)

    def join_shards(self, report: PreparationReport) -> None:
        """All shards, which are done, as one store."""
        folder = self.folder
        parts = folder.metadata(self.shards)
        new = report.new_bytes
        for part in parts:
            report.add(part)
        report.new_bytes = new
        self._check_documents(report)
        self.tokenizer.save_pretrained(folder.path / "tokenizer")
        folder.finish(
            self.shards,
            sources=describe_sources(self.arguments, self.files),
            settings=self.settings(),
            versions=_versions(),
            **{
                name: add_counts([part[name] for part in parts])
                for name in ("read", "dropped", "documents_of_one_sentence")
            },
        )

    def _write(self, path: str | Path, shard: Shard, report: PreparationReport, *, is_whole: bool) -> None:
        arguments, tokenizer = self.arguments, self.tokenizer
        sources = CorpusSources(arguments, shard.files, None if is_whole else shard.number)
        with StoreWriter(
            path,
            vocab_size=len(tokenizer),
            special_ids={name: tokenizer.convert_tokens_to_ids(f"[{name.upper()}]") for name in _SPECIAL},
            tokenizer_fingerprint=tokenizer.fingerprint,
            # A shard that is there is damaged: it would not be made otherwise.
            overwrite=arguments.overwrite if is_whole else True,
            needs_training=is_whole,
        ) as writer:
            if is_whole:
                tokenizer.save_pretrained(writer.tokenizer_folder)
            dropped, alone = self._encode(sources, writer)
            for split, counts in sources.counts.items():
                dropped.setdefault(split, Counter()).update(counts.dropped)
            description = {
                "read": {
                    split: counts.as_dict()
                    for split, counts in sources.counts.items()
                    if counts.files or counts.documents
                },
                "dropped": {split: dict(counts) for split, counts in dropped.items() if counts},
                "documents_of_one_sentence": dict(alone),
            }
            if is_whole:
                report.add({"splits": writer.counts(), **description})
                self._check_documents(report)
            else:
                report.new_bytes += sum(counts.text_bytes for counts in sources.counts.values())
            writer.finish(
                sources=describe_sources(arguments, shard.files),
                settings=self.settings(),
                versions=_versions(),
                **description,
            )

    def _encode(self, sources: CorpusSources, writer: StoreWriter) -> tuple[dict[str, Counter[str]], Counter[str]]:
        """Draw all documents through the encoder into the writer, with a progress bar over the bytes of the sources."""
        arguments = self.arguments
        encoder = DocumentEncoder(self.tokenizer.text_encoder, arguments.sentences, arguments.keep)
        dropped: dict[str, Counter[str]] = {}
        alone: Counter[str] = Counter()
        with tqdm(total=sources.num_bytes, unit="B", unit_scale=True, desc="prepare corpus") as progress:
            batches = batch_documents(sources.documents())
            for batch in encode_in_order(batches, encoder, arguments.resolved_num_processes):
                writer.add_batch(batch.split, batch.tokens, batch.sentence_lengths, batch.document_lengths)
                dropped.setdefault(batch.split, Counter()).update(batch.dropped)
                alone[batch.split] += int((batch.document_lengths == 1).sum())
                progress.update(sources.source_bytes - progress.n)
        return dropped, alone

    def _check_documents(self, report: PreparationReport) -> None:
        """Refuse splits without enough documents for next sentence prediction; warn where it could learn nothing."""
        arguments = self.arguments
        advice = (
            f"document_boundary is {arguments.document_boundary!r}: if every line, file or row is a document, or a blank line "
            "ends one, set it to line, file, row or blank_line"
        )
        wanted = {"train": advice}
        if arguments.validation_files:
            wanted["validation"] = advice
        elif arguments.validation_fraction:
            wanted["validation"] = "raise validation_fraction, or name held-out files with validation_files"
        for split, what_to_do in wanted.items():
            _check_split(split, what_to_do, report)
        train = report.splits["train"]
        if train["documents_of_one_sentence"] > 0.9 * train["documents"]:
            logger.warning(
                "%d of %d documents hold one sentence only: nothing follows it, so nearly all pairs will be random ones and next "
                "sentence prediction learns nothing; %s",
                train["documents_of_one_sentence"],
                train["documents"],
                advice,
            )
        if "validation" not in wanted:
            logger.info(
                "no documents are held out: set validation_files or validation_fraction to evaluate while training"
            )


def _check_split(split: str, what_to_do: str, report: PreparationReport) -> None:
    found = report.splits.get(split, Counter())["documents"]
    if found >= MIN_DOCUMENTS:
        return
    dropped = ", ".join(f"{reason} {count}" for reason, count in report.dropped.get(split, Counter()).items())
    raise InputError(
        f"{found} usable documents for {split} ({report.read_documents} read in all; dropped: {dropped or 'none'}): at least "
        f"{MIN_DOCUMENTS} are needed, because a random next sentence comes from another document; {what_to_do}"
    )


def _versions() -> Mapping[str, str]:
    """Return what else decides about the token ids: the libraries' and Unicode's versions."""
    packages = {name: version(name) for name in ("numpy", "pyarrow", "tokenizers", "transformers")}
    return {"python": platform.python_version(), "unicode": unicodedata.unidata_version, **packages}
