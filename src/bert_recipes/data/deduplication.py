"""Each document once: exact and near duplicates found by datatrove, the first of them kept.

Two documents are exact duplicates if their paragraphs are the same, and near ones if MinHash finds that they share most of their
shingles: runs of ``n_grams`` words, without case, punctuation and accents, all numbers alike. What is like a third document is
alike. Of duplicates the first is kept, in the order of the files and of the documents in them, so that the result does not depend
on how the files are dealt out.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
from datatrove.utils.hashing import HashConfig
from datatrove.utils.stats import PipelineStats

from bert_recipes.data.corpus_arguments import count_cores
from bert_recipes.data.deduplication_arguments import MAX_TASKS, DeduplicationArguments
from bert_recipes.data.deduplication_steps import (
    KeepFirst,
    ReadCorpus,
    WordsOfAnyLanguage,
    WriteRows,
    content_of,
    priority_of,
)
from bert_recipes.data.executors import LocalExecutor, total
from bert_recipes.data.files import describe_files, find_files
from bert_recipes.data.sharding import plan_shards
from bert_recipes.errors import InputError
from bert_recipes.whole_files import sync_paths, write_json


logger = logging.getLogger(__name__)

# What changes neither which documents are kept nor their text.
_NOT_IN_REPORT = ("files", "output_dir", "compression", "tasks", "workers", "logging_dir")
# 64 bits. datatrove's default, xxhash, takes no text since its version 4.
_HASH = HashConfig(precision=64, hash_fc="sha1")
# Signatures that are read at once; datatrove's 5 make a call of the system for every few of them.
_BUFFER = 1000


def deduplicate(arguments: DeduplicationArguments) -> dict[str, Any]:
    """Write the documents of the files, each once, to ``output_dir`` and a report beside it, as a whole or not at all.

    Returns:
        The report: ``documents_read``, ``exact_duplicates``, ``near_duplicates`` (both: how many were removed),
        ``documents_kept`` and how they were found.
    """
    target = Path(os.path.realpath(arguments.output_dir))  # a link stays
    _check_target(target)
    files = find_files(arguments.files)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.partial-", dir=target.parent) as folder:
        stages = _Stages(arguments, _deal_out(files, arguments.tasks), Path(folder))
        report = stages.run()
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


class _Stages:
    """The steps of datatrove in their order, each over all documents.

    Args:
        arguments: Settings.
        parts: The files of each task; the ranks are in the order of the files.
        folder: For what one stage leaves to the next, and for ``documents``.
    """

    def __init__(self, arguments: DeduplicationArguments, parts: Sequence[Sequence[Path]], folder: Path) -> None:
        self.arguments, self.parts, self.folder = arguments, parts, folder
        self.exact = ExactDedupConfig(content_getter=content_of, document_priority=priority_of, hash_config=_HASH)
        self.minhash = MinhashConfig(
            n_grams=arguments.n_grams,
            num_buckets=arguments.num_buckets,
            hashes_per_bucket=arguments.hashes_per_bucket,
            seed=arguments.seed,
            hash_config=_HASH,
        )

    def run(self) -> dict[str, Any]:
        """All of them; returns the report."""
        self._find_exact()
        if self.arguments.near:
            self._find_near()
        return self._describe(self._write())

    def _find_exact(self) -> None:
        self._tasks("exact signatures", [self._read(), ExactDedupSignature(self._place("exact"), self.exact)])
        found = ExactFindDedups(self._place("exact"), self._place("exact_found"), self.exact, lines_to_buffer=_BUFFER)
        self._tasks("exact duplicates", [found], tasks=1)

    def _find_near(self) -> None:
        """Among what is left of the exact ones."""
        config, places = self.minhash, [self._place(name) for name in ("near", "pairs", "clusters", "near_found")]
        sign = MinhashDedupSignature(places[0], config, language=WordsOfAnyLanguage())
        self._tasks("near signatures", [self._read(), self._without_exact(), sign])
        compare = MinhashDedupBuckets(places[0], places[1], config=config, lines_to_buffer=_BUFFER)
        self._tasks("near duplicates", [compare], tasks=config.num_buckets)
        join = MinhashDedupCluster(places[1], places[2], config, save_cluster_id=True, lines_to_buffer=_BUFFER)
        self._tasks("clusters", [join, KeepFirst(places[2], places[3])], tasks=1)

    def _write(self) -> PipelineStats:
        compression = None if self.arguments.compression == "none" else self.arguments.compression
        near = [MinhashDedupFilter(self._place("near_found"))] if self.arguments.near else []
        write = WriteRows(self._place("documents"), compression=compression)
        return self._tasks("write documents", [self._read(), self._without_exact(), *near, write])

    def _describe(self, stats: PipelineStats) -> dict[str, Any]:
        """The report, of what the steps of `_write` counted."""
        read = total(stats, 1, "total")
        if not read:
            raise InputError(f"{', '.join(self.arguments.files)}: no document with text in these files")
        report: dict[str, Any] = {
            "documents_read": read,
            "exact_duplicates": total(stats, 1, "dropped"),
            "near_duplicates": total(stats, 2, "dropped") if self.arguments.near else 0,
            "documents_kept": total(stats, -1, "total"),
        }
        for name in sorted(stats.stats[0].stats):
            kind, reason = name.split(" ", 1)
            report.setdefault(kind, {})[reason] = total(stats, 0, name)
        settings = {name: value for name, value in asdict(self.arguments).items() if name not in _NOT_IN_REPORT}
        report["settings"] = settings
        if self.arguments.near:
            report["threshold"] = round(self.arguments.threshold, 3)
        report["versions"] = {"datatrove": version("datatrove")}
        return report

    def _tasks(self, name: str, steps: Sequence[PipelineStep], tasks: int | None = None) -> PipelineStats:
        """Run steps as a stage; by default over the parts of the files."""
        arguments = self.arguments
        logs = Path(arguments.logging_dir or f"{Path(arguments.output_dir)}.logs").absolute()
        return LocalExecutor(
            steps,
            tasks=tasks or len(self.parts),
            workers=arguments.workers or count_cores(),
            logging_dir=logs / name.replace(" ", "_"),
            name=name,
        ).run()

    def _read(self) -> PipelineStep:
        return ReadCorpus(self.parts, self.arguments)

    def _without_exact(self) -> PipelineStep:
        return ExactDedupFilter(self._place("exact_found"), self.exact)

    def _place(self, name: str) -> str:
        return str(self.folder / name)


def _deal_out(files: Sequence[Path], tasks: int | None) -> list[list[Path]]:
    """The files in their order, in parts of about the same size; one a file where tasks is None and that is not too many."""
    if tasks is None and len(files) <= MAX_TASKS:
        return [[path] for path in files]
    part_bytes = sum(path.stat().st_size for path in files) / (tasks or MAX_TASKS)
    shards = plan_shards([("train", path) for path in files], part_bytes)
    return [[path for _, path in shard.files] for shard in shards]


def _check_target(target: Path) -> None:
    """Refuse a folder that holds something; warn of what a run that was killed has left."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: exists already and is left alone; give another output folder or remove it")
    for leftover in sorted(target.parent.glob(f".{target.name}.partial-*")):
        logger.warning(
            "%s: left by a run that was cut off (or is still going); delete it if it is not needed", leftover
        )
