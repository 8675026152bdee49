"""Each document once: exact and near duplicates found by datatrove, the first of them kept.

Two documents are exact duplicates if their paragraphs are the same, and near ones if MinHash finds
that they share most of their
shingles: runs of ``n_grams`` words, without case, punctuation and accents, all numbers alike. What
is like a third document is alike. Of duplicates the first is kept, in the order of the files and of
the documents in them, so that the result does not depend on how the files are dealt out.
"""

import logging
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from datatrove.data import Document
from datatrove.io import get_datafolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.binaryio import read_tuples_from_file
from datatrove.utils.hashing import HashConfig
from datatrove.utils.stats import PipelineStats
from datatrove.utils.word_tokenizers import WordTokenizer

from bert_recipes.data.cluster import LocalExecutor, messages_in_task_log, total
from bert_recipes.data.corpus import (
    CorpusCounts,
    DocumentBoundary,
    describe_files,
    find_files,
    iter_documents,
)
from bert_recipes.data.prepare import count_cores, plan_shards
from bert_recipes.errors import InputError
from bert_recipes.files import sync_paths, write_json
from bert_recipes.rows import MAX_LINE_BYTES, EncodingErrors
from bert_recipes.settings import SEEDS, check, option, required


logger = logging.getLogger(__name__)

# Those of datatrove, and of FineWeb (Penedo et al. 2024).
N_GRAMS, NUM_BUCKETS, HASHES_PER_BUCKET, SEED = 5, 14, 8, 1
# datatrove keeps the file of every task open while it compares them; systems allow 1024 in most
# cases.
MAX_TASKS = 512


@dataclass(kw_only=True)
class DeduplicationArguments:
    """From text to the same text with each document once."""

    files: list[str] = required(
        "text: files, folders, globs; .txt, .jsonl, .json, .csv, .tsv (each also .gz, .bz2, .xz, "
        ".zst), .parquet"
    )
    output_dir: str = required("folder to write, with one row of JSON Lines a document")
    near: bool = option(True, "also near duplicates (MinHash); false: only exact ones")
    n_grams: int = option(N_GRAMS, "words of a shingle; documents of fewer are never near", least=1)
    num_buckets: int = option(NUM_BUCKETS, "chances to be found alike", least=1)
    hashes_per_bucket: int = option(HASHES_PER_BUCKET, "that must all agree for it", least=1)
    seed: int = option(SEED, "decides the hash functions", **SEEDS)
    text_column: str = option("text", "column of the text in tables, JSON and Parquet rows")
    document_boundary: DocumentBoundary = option(
        "auto",
        "what ends a document: auto is blank_line for .txt, row for rows; a file's end always does",
    )
    wrapped_lines: bool = option(
        False,
        "lines are hard-wrapped: join those of a paragraph by a space; not again in prepare_corpus",
    )
    encoding_errors: EncodingErrors = option(
        "strict", "broken UTF-8 or NUL: stop (strict), or replace and count"
    )
    max_line_bytes: int = option(MAX_LINE_BYTES, "longest line that is taken for text", least=1)
    compression: Literal["none", "gzip"] = option("none", "of the files that are written")
    tasks: int | None = option(
        None,
        f"parts of the input, and number of files written; default: one per file, {MAX_TASKS} at "
        "most",
        least=1,
        most=MAX_TASKS,
    )
    workers: int | None = option(None, "parts at the same time; default: all cores", least=1)
    logging_dir: str | None = option(
        None, "logs of the tasks; default: output_dir with .logs behind it"
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def threshold(self) -> float:
        """Share of their shingles that two documents must have in common for two of three such
        pairs to be found.
        """
        return float((1 / self.num_buckets) ** (1 / self.hashes_per_bucket))


# Thai, Lao, Burmese, Khmer, kana and Han: scripts that put no space between words.
_NO_SPACES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\s{_NO_SPACES}]+")
# datatrove keeps the document of the highest priority, and of these the first in its part.
_HIGHEST_PRIORITY = 2**16 - 1


class ReadCorpus(PipelineStep):
    """Reads the documents of a part of the files as ``recipes/prepare_corpus.py`` does."""

    type, name = "corpus", "read"

    def __init__(self, parts: Sequence[Sequence[Path]], arguments: DeduplicationArguments) -> None:
        super().__init__()
        self.parts, self.arguments = parts, arguments

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield a document's paragraphs, one a line."""
        counts, names = (
            CorpusCounts(),
            ("text_column", "encoding_errors", "wrapped_lines", "max_line_bytes"),
        )
        options: dict[str, Any] = {
            name: getattr(self.arguments, name) for name in ("document_boundary", *names)
        }
        documents = iter_documents(self.parts[rank], counts=counts, **options)
        with messages_in_task_log():
            for number, paragraphs in enumerate(documents):
                yield Document(
                    text="\n".join(paragraphs), id=f"{rank}/{number}", metadata={"part": rank}
                )
        for kind, numbers in (("dropped", counts.dropped), ("repaired", counts.repaired)):
            for reason, number in numbers.items():
                self.stat_update(f"{kind} {reason}", value=number)


class WordsOfAnyLanguage(WordTokenizer):
    """Cuts text at blanks, and scripts without blanks into characters. datatrove's own needs a
    package for each language.
    """

    def word_tokenize(self, text: str) -> list[str]:
        """Words in order."""
        return _WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """The text as one; nothing here asks for sentences."""
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Its span."""
        return [(0, len(text))]


class KeepFirst(PipelineStep):
    """Of each cluster of near duplicates, lists all but the first for `MinhashDedupFilter`.

    `MinhashDedupCluster` lists all but one as well, but which one depends on how the files were
    dealt out.
    """

    type, name = "corpus", "keep the first"

    def __init__(self, input_folder: str, output_folder: str) -> None:
        super().__init__()
        self.input_folder, self.output_folder = (
            get_datafolder(input_folder),
            get_datafolder(output_folder),
        )

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Go through the documents in their order; one task."""
        seen: set[int] = set()
        with self.output_folder.get_output_file_manager(mode="wb") as lists:
            for file in self.input_folder.list_files(glob_pattern="*.clusters"):
                with self.input_folder.open(file, "rb") as stream:
                    for document, cluster in read_tuples_from_file(stream, "2I"):
                        if cluster in seen:
                            lists.write(f"{Path(file).stem}.remove", struct.pack("<I", document))
                        seen.add(cluster)


class WriteRows(JsonlWriter):
    """Writes rows with the column ``text``, which ``recipes/prepare_corpus.py`` reads back to the
    same paragraphs.
    """

    def _default_adapter(self, document: Document) -> dict[str, str]:
        return {"text": document.text}


_HASH = HashConfig(
    precision=64, hash_fc="sha1"
)  # datatrove's default, xxhash, takes no text since its version 4
# Signatures that are read at once; datatrove's 5 make a call of the system for every few of them.
_BUFFER = 1000
# What changes neither which documents are kept nor their text.
_NOT_IN_REPORT = ("files", "output_dir", "compression", "tasks", "workers", "logging_dir")


def content_of(document: Document) -> str:
    """What exact duplicates have in common."""
    return str(document.text)


def priority_of(document: Document) -> int:
    """The earlier a part of the files, the higher."""
    return _HIGHEST_PRIORITY - int(document.metadata["part"])


def deduplicate(arguments: DeduplicationArguments) -> dict[str, Any]:
    """Write the documents of the files, each once, to ``output_dir`` and a report beside it:
    complete or not at all.
    """
    target = Path(os.path.realpath(arguments.output_dir))  # a link stays
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(
            f"{target}: exists already and is left alone; give another output folder or remove it"
        )
    for leftover in sorted(target.parent.glob(f".{target.name}.partial-*")):
        logger.warning(
            "%s: left by a run that was killed (or is still going); delete it if it is not needed",
            leftover,
        )
    files = find_files(arguments.files)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.partial-", dir=target.parent) as folder:
        report = _run_stages(arguments, _deal_out(files, arguments.tasks), Path(folder))
        report["sources"] = describe_files(files)
        written = Path(folder) / "documents"
        sync_paths([*written.iterdir(), written])
        write_json(report_file(arguments.output_dir), report)
        written.rename(target)
        sync_paths([target.parent])
    return report


def report_file(output_dir: str | Path) -> Path:
    """Beside the folder: a JSON file in it would be taken for text."""
    folder = Path(output_dir).absolute()
    return folder.with_name(f"{folder.name}.report.json")


def _run_stages(
    arguments: DeduplicationArguments, parts: Sequence[Sequence[Path]], folder: Path
) -> dict[str, Any]:
    """Run datatrove's steps in their order, each over all documents; returns the report."""
    logs = Path(arguments.logging_dir or f"{Path(arguments.output_dir)}.logs").absolute()
    workers = arguments.workers or count_cores()

    def run(name: str, *steps: PipelineStep, tasks: int = len(parts)) -> PipelineStats:
        own_logs = logs / name.replace(" ", "_")
        return LocalExecutor(
            steps, tasks=tasks, workers=workers, logging_dir=own_logs, name=name
        ).run()

    def place(name: str) -> str:
        return str(folder / name)

    read = ReadCorpus(parts, arguments)
    exact = ExactDedupConfig(
        content_getter=content_of, document_priority=priority_of, hash_config=_HASH
    )
    run("exact signatures", read, ExactDedupSignature(place("exact"), exact))
    find = ExactFindDedups(place("exact"), place("exact_found"), exact, lines_to_buffer=_BUFFER)
    run("exact duplicates", find, tasks=1)
    filters: list[PipelineStep] = [ExactDedupFilter(place("exact_found"), exact)]
    if arguments.near:
        config = MinhashConfig(
            n_grams=arguments.n_grams,
            num_buckets=arguments.num_buckets,
            hashes_per_bucket=arguments.hashes_per_bucket,
            seed=arguments.seed,
            hash_config=_HASH,
        )
        sign = MinhashDedupSignature(place("near"), config, language=WordsOfAnyLanguage())
        run("near signatures", read, *filters, sign)
        compare = MinhashDedupBuckets(
            place("near"), place("pairs"), config=config, lines_to_buffer=_BUFFER
        )
        run("near duplicates", compare, tasks=config.num_buckets)
        join = MinhashDedupCluster(
            place("pairs"), place("clusters"), config, save_cluster_id=True, lines_to_buffer=_BUFFER
        )
        run("clusters", join, KeepFirst(place("clusters"), place("near_found")), tasks=1)
        filters.append(MinhashDedupFilter(place("near_found")))
    compression = None if arguments.compression == "none" else arguments.compression
    stats = run(
        "write documents", read, *filters, WriteRows(place("documents"), compression=compression)
    )
    if not total(stats, 1, "total"):
        raise InputError(f"{', '.join(arguments.files)}: no document with text in these files")
    report: dict[str, Any] = {
        "documents_read": total(stats, 1, "total"),
        "exact_duplicates": total(stats, 1, "dropped"),
        "near_duplicates": total(stats, 2, "dropped") if arguments.near else 0,
        "documents_kept": total(stats, -1, "total"),
    }
    for name in sorted(stats.stats[0].stats):
        kind, reason = name.split(" ", 1)
        report.setdefault(kind, {})[reason] = total(stats, 0, name)
    report["settings"] = {
        name: value for name, value in asdict(arguments).items() if name not in _NOT_IN_REPORT
    }
    if arguments.near:
        report["threshold"] = round(arguments.threshold, 3)
    return {**report, "versions": {"datatrove": version("datatrove")}}


def _deal_out(files: Sequence[Path], tasks: int | None) -> list[list[Path]]:
    """The files in their order, in parts of about the same size; one a file where tasks is None and
    that is not too many.
    """
    if tasks is None and len(files) <= MAX_TASKS:
        return [[path] for path in files]
    part_bytes = sum(path.stat().st_size for path in files) / (tasks or MAX_TASKS)
    return [
        [path for _, path in part]
        for part in plan_shards([("train", path) for path in files], part_bytes)
    ]
