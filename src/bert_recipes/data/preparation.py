"""Text -> token-id store: what ``recipes/prepare_corpus.py`` does, from its settings to a finished folder."""

import logging
import platform
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from bert_recipes.data.corpus_arguments import CorpusArguments
from bert_recipes.data.corpus_sources import CorpusSources, describe_sources, find_sources
from bert_recipes.data.encoding import DocumentEncoder, batch_documents, encode_in_order
from bert_recipes.data.preparation_report import PreparationReport, add_counts
from bert_recipes.data.sharding import Shard, ShardFolder, plan_shards
from bert_recipes.data.store_writer import StoreWriter
from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

# What changes neither documents nor token ids stays out of the store, so that the same text gives the same bytes.
_NOT_IN_STORE = ("files", "validation_files", "tokenizer", "output_dir", "overwrite", "num_processes")
MIN_DOCUMENTS = 2
_SPECIAL = ("pad", "unk", "cls", "sep", "mask")


class CorpusTokenizer(Protocol):
    """What this module needs of a tokenizer (``tokenization.OriginalBertTokenizer``)."""

    @property
    def fingerprint(self) -> str:
        """Identity of vocabulary and normalisation."""

    @property
    def text_encoder(self) -> Callable[[str], list[int]]:
        """Text to token ids without special tokens; it goes to other processes."""

    def convert_tokens_to_ids(self, tokens: str) -> Any:
        """Return the id of a token."""

    def save_pretrained(self, save_directory: Path) -> Any:
        """Write a stock folder."""

    def __len__(self) -> int:
        """Return the number of vocabulary entries."""


def prepare_store(arguments: CorpusArguments, tokenizer: CorpusTokenizer) -> PreparationReport:
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
        tokenizer: Encodes.
    """

    def __init__(self, arguments: CorpusArguments, tokenizer: CorpusTokenizer) -> None:
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
            "shards": [[[split, str(path), path.stat().st_size] for split, path in shard.files] for shard in self.shards],
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
            **{name: add_counts([part[name] for part in parts]) for name in ("read", "dropped", "documents_of_one_sentence")},
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
                "read": {split: counts.as_dict() for split, counts in sources.counts.items() if counts.files or counts.documents},
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
        """Draw all documents through the encoder into the writer, with a progress bar over the bytes of the sources.

        Returns:
            By split what was left out, and the number of documents of one sentence.
        """
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
