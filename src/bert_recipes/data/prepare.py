"""Make a corpus a store: text -> documents -> sentences -> token ids, shard by shard.

A shard is a store itself (`store.py`), complete or not there. A preparation that is cut off leaves
the shards that are done in a hidden folder beside the store to be; the same command checks them and
makes the missing ones.
"""

import json
import logging
import math
import os
import platform
import resource
import shutil
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from bert_recipes.data.corpus import (
    ID_SUFFIXES,
    SUFFIXES,
    CorpusCounts,
    DocumentBoundary,
    boundary_of,
    check_options,
    describe_files,
    find_files,
    is_text,
    iter_documents,
    iter_hub_documents,
    warn_of_held_out_names,
)
from bert_recipes.data.encoding import (
    LONG_SENTENCE,
    DocumentEncoder,
    ParagraphRule,
    SentenceRule,
    TokenBatch,
    batch_documents,
)
from bert_recipes.data.processes import count_cores, run_in_order
from bert_recipes.data.store import (
    COUNTS,
    SHARDS_FOLDER,
    SPECIAL_ID_NAMES,
    SPLITS,
    StoreWriter,
    join_fingerprints,
    open_store,
    read_metadata,
    write_metadata,
)
from bert_recipes.errors import InputError
from bert_recipes.files import check_place, put_in_place, sync_paths, write_json
from bert_recipes.progress import Progress
from bert_recipes.rows import (
    DEFAULT_MAX_LINE_BYTES,
    MAX_LINE_BYTES_LIMIT,
    EncodingErrors,
    draw_from,
)
from bert_recipes.scripts import describe_unknown
from bert_recipes.settings import SEEDS, check_limits, option, required


logger = logging.getLogger(__name__)

SplitFiles = Sequence[tuple[str, Path]]

MIN_DOCUMENTS = 2
# Our choices. Hold out about this much of a small corpus, but at most a tenth of it: some 50,000
# tokens measure the masked-LM loss to a few hundredths of a nat.
HELD_OUT_BYTES = 250_000
MOST_HELD_OUT = 0.1
# Fewer tokens make the held-out figures unreliable.
FEW_HELD_OUT_TOKENS = 20_000
# A document shorter than an input gives few pairs that follow each other.
FEW_TOKENS_OF_A_DOCUMENT = 128
# The share of the tokens that stand in sentences longer than an input (encoding.LONG_SENTENCE).
MOST_OF_LONG_SENTENCES = 0.2
# The share of lines that go on with the sentence of the line before: none in text whose paragraphs
# are lines, most in text that is wrapped.
MOST_BROKEN_LINES = 0.3
# Files whose bytes say little about the text in them.
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".parquet")
PLAN_FILE = "plan.json"
# For each shard a file with the size and time of each text, as they were before it was read.
FILE_STATES_FOLDER = "file_states"
# Raised with every change of our own rules (documents, sentences, passages, what is held out), so
# that no store mixes the shards of two.
RULES_VERSION = 6
# Settings that change neither documents nor token ids stay out of the store, so that the same text
# gives the same bytes.
_NOT_IN_STORE = (
    "files",
    "validation_files",
    "tokenizer",
    "names",
    "output_dir",
    "overwrite",
    "num_processes",
    "max_line_bytes",  # text that is not refused is the same with any
)


@dataclass(kw_only=True)
class CorpusArguments:
    """Settings for a token-id store of a text.

    The text is either `files` or a data set of the Hub (`dataset_name`). None of the values comes
    from the paper: it names its corpora, not how they were cut.
    """

    output_dir: str = required("folder of the store to write", is_common=True)
    tokenizer: str | None = option(None, "tokenizer folder or vocab.txt", is_common=True)
    names: str | None = option(
        None,
        "for ids that are not text: file with the name of id n in line n; --files hold numbers, a "
        "sentence a line, or lists",
    )
    files: list[str] | None = option(
        None,
        "text to train on: files, folders, globs; .txt (or .train, .raw, .tokens), .jsonl, .json, "
        ".csv, .tsv (each also .gz, .bz2, .xz, .zst), .parquet",
        is_common=True,
    )
    validation_files: list[str] | None = option(
        None,
        "text to hold out; files that are in --files too are taken out there",
        is_common=True,
    )
    validation_fraction: float = option(
        0.0,
        "fraction of the documents of --files to hold out instead, drawn by --seed and their text",
        least=0,
        below=1,
        is_common=True,
    )
    sampling_exponent: float | None = option(
        None,
        "each entry of --files is a language or source: documents are repeated or left out, so "
        "that its share p becomes p to this power "
        "(multilingual BERT: 0.7)",
        above=0,
        most=1,
    )
    dataset_name: str | None = option(
        None, "data set on the Hub, instead of --files", is_common=True
    )
    dataset_config_name: str | None = option(None, "its configuration")
    dataset_split: str = option("train", "its split")
    text_column: str = option(
        "text", "column of the text in tables, JSON, Parquet and Hub rows", is_common=True
    )
    document_boundary: DocumentBoundary = option(
        "auto",
        "what ends a document: auto is blank_line for text, row for rows; heading begins one at "
        "each '= Title ='; a file's end always ends one",
        is_common=True,
    )
    sentences: SentenceRule = option(
        "split",
        "split paragraphs by rules, or lines: every line is a sentence already",
        is_common=True,
    )
    wrapped_lines: bool = option(
        False, "lines are hard-wrapped: join those of a paragraph by a space"
    )
    keep: ParagraphRule = option(
        "all", "all paragraphs, or passages: no headings, lists and tables (our own rule)"
    )
    encoding_errors: EncodingErrors = option(
        "strict", "broken UTF-8 or NUL: stop (strict), or replace and count"
    )
    max_line_bytes: int = option(
        DEFAULT_MAX_LINE_BYTES,
        "longest line that is taken for text",
        least=1,
        most=MAX_LINE_BYTES_LIMIT,
    )
    seed: int = option(12345, "decides which documents validation_fraction holds out", **SEEDS)
    shard_gigabytes: float = option(
        1.0,
        "larger files are prepared in shards of about this much text, each kept once done; "
        "--dataset_name is one shard",
        above=0,
        is_common=True,
    )
    num_processes: int | None = option(
        None, "default: all cores; the store is the same", least=1, is_common=True
    )
    overwrite: bool = option(False, "replace a store that is in output_dir already", is_common=True)

    @classmethod
    def reconcile(
        cls, values: dict[str, Any], typed: Collection[str], in_file: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Raise the validation_fraction of a configuration file where the corpus is small.

        Drop it where --validation_files is on the command line.
        """
        fraction = values.get("validation_fraction") or 0.0
        if fraction == 0 or "validation_fraction" in typed:
            return values
        if "validation_files" in typed:
            return {**values, "validation_fraction": 0.0}
        if not values.get("files"):
            return values

        size = _size_of(_find_text(values["files"], values.get("names")))
        fraction_for_small_corpus = round(min(HELD_OUT_BYTES / max(size, 1), MOST_HELD_OUT), 4)
        if fraction_for_small_corpus <= fraction:
            return values

        logger.warning(
            "the file's validation_fraction %g would hold out little of a small corpus: %g is held "
            "out",
            fraction,
            fraction_for_small_corpus,
        )
        return {**values, "validation_fraction": fraction_for_small_corpus}

    def __post_init__(self) -> None:
        check_limits(self)
        if (self.tokenizer is None) == (self.names is None):
            raise InputError(
                "give --tokenizer for text, or --names for ids that are not text, and not both"
            )
        if self.names is not None:
            self.sentences = "lines"
        if bool(self.files) == bool(self.dataset_name):
            raise InputError("give the text as --files or as --dataset_name, and not both")
        if self.validation_files and self.validation_fraction:
            raise InputError(
                "validation_files and validation_fraction are both given: choose one way to hold "
                "text out"
            )
        if self.sampling_exponent is not None and len(self.files or ()) < 2:
            raise InputError(
                "sampling_exponent weighs the entries of --files against each other; give two or "
                "more"
            )
        if self.wrapped_lines and self.sentences == "lines":
            raise InputError(
                "sentences 'lines' takes every line for a sentence, wrapped_lines joins lines: "
                "choose one"
            )
        if self.dataset_name and self.document_boundary not in ("auto", "row", "heading"):
            raise InputError(
                f"document_boundary is {self.document_boundary!r}; allowed for a Hub data set: "
                "auto, row, heading"
            )

    @property
    def resolved_num_processes(self) -> int:
        """Return the number of processes, all usable cores by default."""
        return count_cores() if self.num_processes is None else self.num_processes


def _size_of(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _find_text(paths: Sequence[str] | None, names: str | None) -> list[Path]:
    """Return the files of --files or --validation_files, which may be ids with `names`."""
    if not paths:
        return []
    return find_files(paths, SUFFIXES if names is None else ID_SUFFIXES)


def _find_held_out(arguments: CorpusArguments) -> tuple[list[Path], set[str]]:
    """Return the files of --validation_files, and their real paths."""
    files = _find_text(arguments.validation_files, arguments.names)
    return files, set(map(os.path.realpath, files))


def find_sources(arguments: CorpusArguments) -> list[tuple[str, Path]]:
    """Return the (split, file) of a corpus: the files to train on, then those that are held out.

    A Hub data set has no file to train on.
    """
    files = _find_text(arguments.files, arguments.names)
    validation, held_out = _find_held_out(arguments)
    train = [path for path in files if os.path.realpath(path) not in held_out]
    if len(train) < len(files):
        logger.info(
            "%d files of --files are held out: they are in --validation_files",
            len(files) - len(train),
        )
    if files and not train:
        raise InputError(
            "every file of --files is in --validation_files too: nothing is left to train on"
        )

    warn_of_held_out_names(train)
    # All of them, before any is read: those that are held out come last, hours later.
    check_options([*train, *validation], arguments.document_boundary, arguments.wrapped_lines)
    are_text = all(is_text(path) for path in validation)
    is_by_file = arguments.document_boundary == "file" and are_text
    if is_by_file and 0 < len(validation) < MIN_DOCUMENTS:
        raise InputError(
            f"{len(validation)} file in validation_files, which is one document: at least "
            f"{MIN_DOCUMENTS} are needed, because a random next sentence comes from another one; "
            "hold out more files"
        )
    return [("train", path) for path in train] + [("validation", path) for path in validation]


def sampling_weights(arguments: CorpusArguments) -> dict[str, float]:
    """Return how often each document of a file to train on is taken, on average.

    The keys are real paths; the weights follow from the bytes of the entries of --files.

    Source: Devlin et al., google-research/bert multilingual.md, "exponentially smoothed weighting":
    p to the power of 0.7, normalized again.
    """
    if arguments.sampling_exponent is None:
        return {}

    entries = arguments.files or []
    _, held_out = _find_held_out(arguments)
    entry_of_file: dict[str, int] = {}
    suffixes: set[str] = set()
    sizes = np.zeros(len(entries))
    for number, entry in enumerate(entries):
        for file in _find_text([entry], arguments.names):
            path = os.path.realpath(file)
            if path in held_out:
                continue
            if path in entry_of_file:
                raise InputError(
                    "sampling_exponent: a file is in two entries of --files; it can belong to one "
                    "source alone"
                )
            entry_of_file[path] = number
            suffixes.add(file.suffix.lower())
            sizes[number] += os.path.getsize(path)
        if sizes[number] == 0:
            raise InputError(
                f"sampling_exponent: nothing to train on is left of {entry}, whose files are empty "
                "or in --validation_files; take it out of --files"
            )

    shares = sizes / sizes.sum()
    smoothed = shares**arguments.sampling_exponent
    weights = smoothed / smoothed.sum() / shares
    for entry, share, weight in zip(entries, shares, weights, strict=True):
        logger.info("%s: %.1f%% of the bytes, taken %.2f times", entry, 100 * share, weight)
    if len(suffixes) > 1 and not suffixes.isdisjoint(PACKED_SUFFIXES):
        logger.warning(
            "sampling_exponent: files end with %s, so the shares of their bytes are not those of "
            "the text; give all in one format",
            ", ".join(sorted(suffixes)),
        )
    # Rounded: a few bytes more or less in one file leave the shards of the others as they are.
    return {path: round(float(weights[number]), 3) for path, number in entry_of_file.items()}


def held_out_threshold(fraction: float, draws_of_documents: Iterable[float]) -> float:
    """Return the draw below which documents are held out.

    These are at least `MIN_DOCUMENTS`, if that is at most half of them: a fraction of a few long
    documents may be none. Documents of the same text have the same draw and count once. Of a large
    corpus only the first documents are read.
    """
    draws: set[float] = set()
    held_out: set[float] = set()
    for draw in draws_of_documents:
        draws.add(draw)
        if draw < fraction:
            held_out.add(draw)
        if len(held_out) == MIN_DOCUMENTS:
            return fraction
    if len(draws) < 2 * MIN_DOCUMENTS:
        return fraction

    logger.warning(
        "a fraction of %g is fewer than %d of the %d different documents: this many are held out, "
        "%.0f %% of them; with more and shorter documents, or --validation_files, more is left to "
        "train on",
        fraction,
        MIN_DOCUMENTS,
        len(draws),
        100 * MIN_DOCUMENTS / len(draws),
    )
    last_draw = sorted(draws)[MIN_DOCUMENTS - 1]
    return math.nextafter(last_draw, 1.0)


def plan_shards(files: SplitFiles, shard_bytes: float) -> list[list[tuple[str, Path]]]:
    """Cut the (split, file), in their order, into shards.

    A shard is full when it has `shard_bytes`; a file is never cut.
    """
    shards: list[list[tuple[str, Path]]] = [[]]
    size = 0
    for split, path in files:
        if size >= shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append((split, path))
        size += path.stat().st_size

    return shards


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse an output folder that is not empty, but for a store that `overwrite` replaces."""
    check_place(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return

    try:
        read_metadata(path)
    except InputError as error:
        raise InputError(
            f"{path}: exists and is not a store of this release, so it is left alone; give another "
            "output folder or remove it"
        ) from error

    if not overwrite:
        raise InputError(
            f"{path}: holds a store already; give another output folder, or --overwrite true to "
            "replace it"
        )


def add_counts(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up mappings of numbers, and of such mappings."""
    total: dict[str, Any] = {}
    for count in counts:
        for name, value in count.items():
            if isinstance(value, Mapping):
                total[name] = add_counts([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total


@dataclass(kw_only=True)
class PreparationReport:
    """The result of a preparation, and what it cost.

    Attributes:
        path: The folder of the store.
        metadata: The content of its `store.json`.
        kept_shards: Shards that were done before.
        new_bytes: Text that was read in this run.
        seconds: The seconds that this run took.
        peak_megabytes: The peak memory of its largest process; None where nobody knows it.
    """

    path: Path
    metadata: Mapping[str, Any]
    kept_shards: int
    new_bytes: int
    seconds: float
    peak_megabytes: float | None = None


def format_report(report: PreparationReport) -> str:
    """Return the report as text, a fact a line."""
    metadata = report.metadata
    splits = metadata["splits"]
    lines = []
    for split, counts in splits.items():
        for name, key in COUNTS.items():
            lines.append(f"{split} {name}: {counts[key]:,}")
    for split, scripts in metadata["unknown_tokens"].items():
        fraction = sum(scripts.values()) / splits[split]["num_tokens"]
        lines.append(f"{split} [UNK] tokens: {fraction:.2%}")
    for split, counts in metadata["dropped"].items():
        lines += _reason_lines(f"{split} dropped", counts)
    for split, counts in metadata["read"].items():
        lines += _reason_lines(f"{split} repaired", counts["repaired"])
    megabytes = report.new_bytes / 1e6
    store_files = [path for path in report.path.rglob("*") if path.is_file()]
    lines += [
        f"shards: {len(metadata[SHARDS_FOLDER])}",
        f"shards done before: {report.kept_shards}",
        f"text: {megabytes:,.1f} MB",
        f"time: {report.seconds:,.1f} s",
        f"rate: {megabytes / max(report.seconds, 1e-9):,.1f} MB/s",
    ]
    if report.peak_megabytes is not None:
        lines.append(f"peak memory of the largest process: {report.peak_megabytes:,.0f} MB")
    lines += [
        f"store: {report.path}",
        f"store size: {_size_of(store_files) / 1e6:,.1f} MB",
    ]
    return "\n".join(lines)


def _reason_lines(title: str, counts: Mapping[str, int]) -> list[str]:
    lines = []
    for reason, count in counts.items():
        lines.append(f"{title}, {reason.replace('_', ' ')}: {count:,}")
    return lines


def _peak_megabytes() -> float:
    """Return the most memory that this process, or one that it started, has taken."""
    processes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    largest = max(resource.getrusage(process).ru_maxrss for process in processes)
    if sys.platform == "darwin":  # which counts in bytes
        return largest / 1e6
    return largest * 1024 / 1e6


def prepare_store(arguments: CorpusArguments, tokenizer: Any) -> PreparationReport:
    """Read a text and write its store, complete or not at all.

    The store's bytes depend on text, settings and tokenizer only, not on `num_processes`. It is
    prepared in shards of about `shard_gigabytes`; a preparation that was cut off goes on with the
    first that is not done.
    """
    start = time.perf_counter()
    preparation = Preparation(arguments, tokenizer)
    kept_shards = 0
    new_bytes = 0
    with preparation.claimed():
        for number in range(len(preparation.shards)):
            num_bytes = preparation.write_shard(number)
            if num_bytes is None:
                kept_shards += 1
            else:
                new_bytes += num_bytes
        metadata = preparation.join_shards()
    return PreparationReport(
        path=Path(arguments.output_dir),
        metadata=metadata,
        kept_shards=kept_shards,
        new_bytes=new_bytes,
        seconds=time.perf_counter() - start,
        peak_megabytes=_peak_megabytes(),
    )


class Preparation:
    """A corpus that becomes a store, shard by shard.

    `tokenizer` is an `OriginalBertTokenizer`.
    """

    def __init__(self, arguments: CorpusArguments, tokenizer: Any) -> None:
        self.arguments = arguments
        self.tokenizer = tokenizer
        self.files = find_sources(arguments)
        self.weights = sampling_weights(arguments)
        self.shards = plan_shards(self.files, arguments.shard_gigabytes * 1e9)
        self.target = Path(os.path.realpath(arguments.output_dir))  # a link stays
        check_output(self.target, overwrite=arguments.overwrite)
        self.folder = self.target.with_name(f".{self.target.name}.shards")

    def plan(self) -> dict[str, Any]:
        """Return the facts that shards of two runs must share to become one store."""
        shards = []
        for shard in self.shards:
            shards.append([[split, str(path), path.stat().st_size] for split, path in shard])
        return {
            **self._origin(),
            "tokenizer": self.tokenizer.fingerprint,
            "shards": shards,
            # They follow from the entries of --files too, which the shards do not have.
            "sampling_weights": self.weights or None,
        }

    def _origin(self) -> dict[str, Any]:
        """Return the settings and versions that decide about the token ids."""
        settings = {**vars(self.arguments)}
        for name in _NOT_IN_STORE:
            del settings[name]
        versions: dict[str, Any] = {
            "rules": RULES_VERSION,
            "python": platform.python_version(),
            "unicode": unicodedata.unidata_version,
        }
        for name in ("numpy", "pyarrow", "tokenizers", "transformers"):
            versions[name] = version(name)
        return {"settings": settings, "versions": versions}

    @contextmanager
    def claimed(self, *, takes_edits: bool = True) -> Iterator[None]:
        """Begin, or resume a preparation of the same plan; one process at a time.

        Leaves nothing if no shard was done.

        Args:
            takes_edits: Files of another size are read again; else they are refused.
        """
        # `self.target` is resolved. A path like new/../store also needs `new` itself.
        Path(self.arguments.output_dir).parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder.with_name(f"{self.folder.name}.lock"))

        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.target}: another process prepares it; wait for its end"
            ) from None
        try:
            is_new = not self._has_shards()
            if is_new or (takes_edits and self._is_plan_of_same_files()):
                write_json(self.folder / PLAN_FILE, self.plan())
            self.check_plan()
            yield
        except BaseException:
            if not self._has_shards():
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        finally:
            if not self.folder.exists():
                Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()

    def _is_plan_of_same_files(self) -> bool:
        """Return whether the written plan is this one, but for the sizes of files.

        The shards of files that were edited are made again (`_is_done`).
        """
        file = self.folder / PLAN_FILE
        if not file.is_file():
            return False
        return _without_sizes(json.loads(file.read_bytes())) == _without_sizes(self.plan())

    def _has_shards(self) -> bool:
        return any((self.folder / SHARDS_FOLDER).glob("[0-9]*"))

    def _shard_folder(self, number: int) -> Path:
        return self.folder / SHARDS_FOLDER / f"{number:05d}"

    def check_plan(self) -> None:
        """Check that the written plan is this one, wherever this process runs."""
        file = self.folder / PLAN_FILE
        if not file.is_file():
            raise InputError(
                f"{file}: missing, so the preparation has ended or was removed; delete "
                f"{self.folder}, if it is there, and give the command again"
            )

        written_plan = json.loads(file.read_bytes())
        plan = self.plan()
        changed = [name for name in sorted(plan) if written_plan.get(name) != plan[name]]
        if changed:
            raise InputError(
                f"{self.folder}: holds shards of an earlier preparation with other "
                f"{', '.join(changed)}; give what it was made with to go on with it, or delete "
                "that folder"
            )

    # A shard

    def write_shard(self, number: int) -> int | None:
        """Write one shard and return the bytes of text that it read; None if it was done before."""
        folder = self._shard_folder(number)
        files = [path for _, path in self.shards[number]]
        if self._is_done(number):
            logger.info("shard %d of %d: done before", number + 1, len(self.shards))
            return None

        logger.info("shard %d of %d: %d files", number + 1, len(self.shards), len(files))
        for leftover in (folder, *folder.parent.glob(f".{folder.name}.*")):
            shutil.rmtree(leftover, ignore_errors=True)
        self._write_file_states(number)
        plan = (self.folder / PLAN_FILE).read_bytes()

        arguments = self.arguments
        counts_by_split = {split: CorpusCounts() for split in SPLITS}
        shard_counts = _ShardCounts()
        batches = batch_documents(self._documents(number, counts_by_split))
        # The size of a data set of the Hub is not known.
        size = None if arguments.dataset_name else _size_of(files)

        with (
            self._shard_writer(folder) as writer,
            Progress(total=size, unit="B", unit_scale=True, desc="prepare corpus") as progress,
        ):
            for batch in run_in_order(self._encoder(), batches, arguments.resolved_num_processes):
                writer.add_batch(
                    batch.split, batch.tokens, batch.sentence_lengths, batch.document_lengths
                )
                shard_counts.add(batch)
                corpus_counts = counts_by_split.values()
                num_bytes = sum(counts.source_bytes for counts in corpus_counts)
                progress.update(num_bytes - progress.n)
            # A second command may have begun anew while a job of the first wrote its first shard.
            if (self.folder / PLAN_FILE).read_bytes() != plan:
                raise InputError(
                    f"{self.folder}: belongs to a later command with other settings now, which "
                    "makes its shards"
                )
            writer.finish(**shard_counts.describe(counts_by_split))

        return sum(counts.text_bytes for counts in counts_by_split.values())

    def _is_done(self, number: int) -> bool:
        """Return whether a shard is complete and its files are as they were; if not, it is logged.

        The cheap check comes first: a store is opened by reading all of it.
        """
        folder = self._shard_folder(number)
        if not folder.exists():
            return False
        changed_file = self._changed_file(number)
        if changed_file is not None:
            logger.warning("%s has changed since; its shard is made again", changed_file)
            return False
        try:
            open_store(folder)
        except InputError as error:
            logger.warning("%s; the shard is made again", error)
            return False
        return True

    def _file_states_file(self, number: int) -> Path:
        return self.folder / FILE_STATES_FOLDER / f"{number:05d}.json"

    def _write_file_states(self, number: int) -> None:
        states = {str(path): _state_of(path) for _, path in self.shards[number]}
        file = self._file_states_file(number)
        file.parent.mkdir(exist_ok=True)
        write_json(file, states)
        sync_paths([file, file.parent])

    def _changed_file(self, number: int) -> Path | None:
        """Return the first file that is no longer what the shard was made of."""
        file = self._file_states_file(number)
        states = json.loads(file.read_bytes())
        for _, path in self.shards[number]:
            if states.get(str(path)) != _state_of(path):
                return path
        return None

    def _encoder(self) -> DocumentEncoder:
        arguments = self.arguments
        unk_id = None if arguments.names is not None else self.tokenizer.unk_token_id
        return DocumentEncoder(
            self.tokenizer.text_encoder,
            self.tokenizer.following_encoder,
            arguments.sentences,
            arguments.keep,
            unk_id,
        )

    def _shard_writer(self, folder: Path) -> StoreWriter:
        tokenizer = self.tokenizer
        return StoreWriter(
            folder,
            vocab_size=len(tokenizer),
            special_ids={name: getattr(tokenizer, f"{name}_token_id") for name in SPECIAL_ID_NAMES},
            tokenizer_fingerprint=tokenizer.fingerprint,
        )

    def _documents(
        self, shard: int, counts_by_split: Mapping[str, CorpusCounts]
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield (split, document), first of the text to train on, of which some may be held out."""
        files: dict[str, list[Path]] = {split: [] for split in SPLITS}
        for split, path in self.shards[shard]:
            files[split].append(path)

        threshold = self._held_out_threshold  # may read everything once
        means = [self._mean_copies(path) for path in files["train"]] or [1.0]
        for copy in range(math.ceil(max(means))):
            # Each copy is read anew: two beside each other would tell each other's masked words.
            counts = counts_by_split["train"] if copy == 0 else CorpusCounts()
            for mean_copies, document in self._training_documents(shard, files["train"], counts):
                split, num_copies = self._split_and_copies(document, mean_copies, threshold)
                if copy < num_copies:
                    yield split, document

        for path in files["validation"]:
            for document in self._documents_of_file(path, counts_by_split["validation"]):
                yield "validation", document

    @cached_property
    def _held_out_threshold(self) -> float:
        """Return the draw below which documents to train on are held out."""
        fraction = self.arguments.validation_fraction
        if fraction == 0:
            return fraction
        return held_out_threshold(fraction, self._draws_of_documents())

    def _draws_of_documents(self) -> Iterator[float]:
        """Yield the draw of each document to train on, shard by shard."""
        for shard, files in enumerate(self.shards):
            train = []
            for split, path in files:
                if split == "train":
                    train.append(path)
            for _, document in self._training_documents(shard, train, CorpusCounts()):
                yield self._draw(document)

    def _draw(self, document: Sequence[str], purpose: str = "held out") -> float:
        """Return a number from 0 to 1 that follows from the text and the seed alone.

        Copies of a text have the same draw, so they are in one split.
        """
        text = "\n".join(document)
        return draw_from(f"{self.arguments.seed}:{purpose}:{text}")

    def _split_and_copies(
        self, document: Sequence[str], mean_copies: float, threshold: float
    ) -> tuple[str, int]:
        """Return the split of a document to train on, and how often it stands there."""
        if self._draw(document) < threshold:
            return "validation", 1
        if mean_copies == 1.0:
            return "train", 1
        # 2.3 is two copies, and a third one with probability 0.3.
        return "train", int(mean_copies + self._draw(document, "copies"))

    def _mean_copies(self, path: Path) -> float:
        # Held-out files have no weight.
        return self.weights.get(os.path.realpath(path), 1.0)

    def _training_documents(
        self, shard: int, files: Sequence[Path], counts: CorpusCounts
    ) -> Iterator[tuple[float, list[str]]]:
        """Yield (mean number of its copies, document) of files, or of the data set of the Hub."""
        for path in files:
            mean_copies = self._mean_copies(path)
            for document in self._documents_of_file(path, counts):
                yield mean_copies, document
        # Other shards have held-out files alone.
        if self.arguments.dataset_name is not None and shard == 0:
            for document in self._documents_of_hub(self.arguments.dataset_name, counts):
                yield 1.0, document

    def _documents_of_file(self, path: Path, counts: CorpusCounts) -> Iterator[list[str]]:
        options = self._reading_options(counts)
        options["max_line_bytes"] = self.arguments.max_line_bytes
        options["document_boundary"] = boundary_of(path, self.arguments.document_boundary)
        return iter_documents(path, **options)

    def _documents_of_hub(self, name: str, counts: CorpusCounts) -> Iterator[list[str]]:
        dataset = (name, self.arguments.dataset_config_name, self.arguments.dataset_split)
        options = self._reading_options(counts)
        options["document_boundary"] = self.arguments.document_boundary
        return iter_hub_documents(dataset, **options)

    def _reading_options(self, counts: CorpusCounts) -> dict[str, Any]:
        return {
            "text_column": self.arguments.text_column,
            "encoding_errors": self.arguments.encoding_errors,
            "wrapped_lines": self.arguments.wrapped_lines,
            "of_ids": self.arguments.names is not None,
            "counts": counts,
        }

    # The store

    def join_shards(self) -> dict[str, Any]:
        """Make the store of all shards, which are done, and return its metadata."""
        metadata = self._join_metadata()
        checks = _CorpusChecks(self.arguments, self.files, metadata)
        try:
            checks.refuse_few_documents()
        except InputError:
            shutil.rmtree(self.folder)  # with this plan there can be no store
            raise

        checks.warn()
        self.tokenizer.save_pretrained(self.folder / "tokenizer")
        write_metadata(self.folder, metadata)
        sync_paths(self.folder.glob("*.json"))
        sync_paths((self.folder / "tokenizer").glob("*"))
        sync_paths([self.folder])
        check_output(self.target, overwrite=self.arguments.overwrite)
        aside = self.target.with_name(f".{self.target.name}.old-{os.getpid()}")
        put_in_place(self.folder, self.target, aside)
        # The last: what was cut off before needs them to go on.
        (self.target / PLAN_FILE).unlink()
        shutil.rmtree(self.target / FILE_STATES_FOLDER, ignore_errors=True)
        return metadata

    def _join_metadata(self) -> dict[str, Any]:
        folders = [self._shard_folder(number) for number in range(len(self.shards))]
        shards = [read_metadata(folder) for folder in folders]
        metadata: dict[str, Any] = {
            "fingerprint": join_fingerprints([shard["fingerprint"] for shard in shards])
        }
        for name in ("tokenizer_fingerprint", "vocab_size", "special_ids", "dtype"):
            metadata[name] = shards[0][name]
        numbers = []
        for shard in shards:
            for split, entry in shard["splits"].items():
                numbers.append({split: {key: entry[key] for key in COUNTS.values()}})
        metadata["splits"] = add_counts(numbers)
        metadata[SHARDS_FOLDER] = [
            {"folder": f"{SHARDS_FOLDER}/{folder.name}"} for folder in folders
        ]
        metadata["sources"] = self._sources()
        metadata.update(self._origin())
        for name in ("read", "dropped", "unknown_tokens", "documents_of_one_sentence", "lines"):
            metadata[name] = add_counts(shard[name] for shard in shards)
        return metadata

    def _sources(self) -> dict[str, list[Any]]:
        """Return name and size of the files of each split, or the data set of the Hub."""
        files: dict[str, list[Path]] = {}
        for split, path in self.files:
            files.setdefault(split, []).append(path)
        sources: dict[str, list[Any]] = {
            split: describe_files(paths) for split, paths in files.items()
        }
        if self.arguments.dataset_name:
            dataset = {
                "name": self.arguments.dataset_name,
                "config": self.arguments.dataset_config_name,
                "split": self.arguments.dataset_split,
            }
            sources["train"] = [dataset]
        return sources


def _without_sizes(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan whose shards are [split, path] of each file, without its size."""
    shards = []
    for shard in plan["shards"]:
        shards.append([[split, path] for split, path, _ in shard])
    return {**plan, "shards": shards}


def _state_of(path: Path) -> list[int]:
    """Return size and time of change of a file, which an edit does not leave both as they were."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


class _ShardCounts:
    """Counts of dropped texts, unknown tokens and short documents of a shard, by split."""

    def __init__(self) -> None:
        self.dropped: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self.unknown: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self.documents_of_one_sentence: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()  # of the text to train on

    def add(self, batch: TokenBatch) -> None:
        """Count a batch."""
        self.dropped[batch.split].update(batch.dropped)
        self.unknown[batch.split].update(batch.unknown)
        num_alone = int((batch.document_lengths == 1).sum())
        self.documents_of_one_sentence[batch.split] += num_alone
        if batch.split == "train":
            self.lines.update(batch.lines)

    def describe(self, counts_by_split: Mapping[str, CorpusCounts]) -> dict[str, Any]:
        """Return the counts of the shard as its metadata has them."""
        nonempty_counts = {}
        dropped = {}
        for split, corpus_counts in counts_by_split.items():
            dropped[split] = dict(self.dropped[split] + corpus_counts.dropped)
            if corpus_counts.files or corpus_counts.documents:
                nonempty_counts[split] = corpus_counts.as_dict()
        return {
            "read": nonempty_counts,
            "dropped": {split: counts for split, counts in dropped.items() if counts},
            "unknown_tokens": {
                split: dict(counts) for split, counts in self.unknown.items() if counts
            },
            "documents_of_one_sentence": dict(self.documents_of_one_sentence),
            "lines": dict(self.lines),
        }


class _CorpusChecks:
    """Say what is wrong with a corpus, by the counts in the metadata of its store."""

    def __init__(
        self,
        arguments: CorpusArguments,
        files: Sequence[tuple[str, Path]],
        metadata: Mapping[str, Any],
    ) -> None:
        self.arguments = arguments
        self.files = files
        self.metadata = metadata

    def refuse_few_documents(self) -> None:
        """Refuse splits without enough documents for next sentence prediction."""
        arguments = self.arguments
        metadata = self.metadata
        advice = {"train": self._boundary_advice("train")}
        if arguments.validation_files:
            advice["validation"] = self._boundary_advice("validation")
        elif arguments.validation_fraction:
            advice["validation"] = (
                "raise validation_fraction, name held-out files with validation_files, or end "
                "documents earlier (document_boundary); documents with the same text are in the "
                "same split"
            )
        else:
            logger.info(
                "no documents are held out: set validation_files or validation_fraction to "
                "evaluate while training"
            )
        for split, split_advice in advice.items():
            num_documents = metadata["splits"].get(split, {}).get("num_documents", 0)
            if num_documents < MIN_DOCUMENTS:
                reasons = metadata["dropped"].get(split, {})
                dropped = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
                num_read = sum(counts["documents"] for counts in metadata["read"].values())
                raise InputError(
                    f"{num_documents} usable documents for {split} ({num_read} read in all; "
                    f"dropped: {dropped or 'none'}): at least {MIN_DOCUMENTS} are needed, because "
                    f"a random next sentence comes from another document; {split_advice}"
                )

    def warn(self) -> None:
        """Warn where next sentence prediction or the held-out figures could learn or say little."""
        self._warn_of_short_documents()
        if self.arguments.sentences == "split":
            self._warn_of_wrapped_lines()
            self._warn_of_long_sentences()
        self._warn_of_lone_sentences()
        self._warn_of_little_held_out()
        self._warn_of_unknown_tokens()

    def _warn_of_short_documents(self) -> None:
        train = self.metadata["splits"]["train"]
        mean_tokens = train["num_tokens"] / train["num_documents"]
        if mean_tokens < FEW_TOKENS_OF_A_DOCUMENT:
            logger.warning(
                "documents have %d tokens on average: most second sentences will be random ones, "
                "and parts of one text may be in training and held out%s",
                mean_tokens,
                self._advice_for_longer_documents(),
            )

    def _warn_of_wrapped_lines(self) -> None:
        num_following = self.metadata["lines"].get("following", 0)
        num_broken = self.metadata["lines"].get("broken", 0)
        if num_broken > MOST_BROKEN_LINES * num_following:
            advice = ""
            if self._has_text_files("train"):
                advice = ", and say what ends a document (--document_boundary file)"
            logger.warning(
                "%d of %d lines go on with the sentence of the line before: give --wrapped_lines "
                "true, which joins them%s",
                num_broken,
                num_following,
                advice,
            )

    def _warn_of_long_sentences(self) -> None:
        num_tokens = self.metadata["splits"]["train"]["num_tokens"]
        share = self.metadata["lines"].get("tokens_of_long", 0) / num_tokens
        if share > MOST_OF_LONG_SENTENCES:
            logger.warning(
                "%.0f%% of the tokens stand in sentences of more than %d tokens: where sentences "
                "end is not seen in this text, and of one that is longer than an input the model "
                "sees a part alone; write one in a line (--sentences lines)",
                100 * share,
                LONG_SENTENCE,
            )

    def _warn_of_lone_sentences(self) -> None:
        num_documents = self.metadata["splits"]["train"]["num_documents"]
        num_alone = self.metadata["documents_of_one_sentence"].get("train", 0)
        if num_alone > 0.9 * num_documents:
            logger.warning(
                "%d of %d documents hold one sentence only: nothing follows it, so nearly all "
                "pairs will be random ones and next sentence prediction learns nothing; train with "
                "--objective mlm, or: %s",
                num_alone,
                num_documents,
                self._boundary_advice("train"),
            )

    def _warn_of_little_held_out(self) -> None:
        held_out = self.metadata["splits"].get("validation")
        if held_out is not None and held_out["num_tokens"] < FEW_HELD_OUT_TOKENS:
            by_fraction = self.arguments.validation_fraction > 0
            logger.warning(
                "only %d tokens in %d documents are held out, so what is measured on them is "
                "uncertain; raise %s",
                held_out["num_tokens"],
                held_out["num_documents"],
                "validation_fraction" if by_fraction else "the number of validation_files",
            )

    def _warn_of_unknown_tokens(self) -> None:
        for split, scripts in self.metadata["unknown_tokens"].items():
            num_tokens = self.metadata["splits"][split]["num_tokens"]
            description = describe_unknown(scripts, num_tokens)
            if description is not None:
                logger.warning(
                    "%s: %s; --tokenizer %s is for other text: give one that was trained on such "
                    "text (tokenizer/train.py)",
                    split,
                    description,
                    self.arguments.tokenizer,
                )

    def _boundary_advice(self, split: str) -> str:
        boundary = self.arguments.document_boundary
        has_text_files = self._has_text_files(split)
        if not has_text_files and boundary == "heading":
            return "a document begins at each line such as '= Title =': without it each row is one"
        if not has_text_files:
            return "every row is a document here: give more rows, each of several sentences"
        advice = {
            "line": "--document_boundary line makes every line a document",
            "blank_line": "--document_boundary blank_line ends one at each blank line",
            "file": "--document_boundary file makes every file one, so give more files",
            "heading": "--document_boundary heading begins one at each line such as '= Title ='",
        }
        # For text auto is blank_line.
        advice.pop("blank_line" if boundary == "auto" else boundary, None)
        return f"document_boundary is {boundary!r}: {', '.join(advice.values())}"

    def _advice_for_longer_documents(self) -> str:
        if self.arguments.document_boundary in ("file", "heading"):
            return ""
        if not self._has_text_files("train"):
            return (
                "; for books and articles give rows that hold a whole one; where rows are lines, "
                "as of WikiText, --document_boundary heading"
            )
        return "; for books and articles give --document_boundary file"

    def _has_text_files(self, split: str) -> bool:
        return any(is_text(path) for name, path in self.files if name == split)
