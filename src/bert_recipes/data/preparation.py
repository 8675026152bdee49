"""Text -> token-id store: what ``recipes/prepare_corpus.py`` does, from its settings to a finished folder."""

import hashlib
import logging
import os
import platform
import resource
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from bert_recipes.data.corpus import CorpusCounts, iter_documents, iter_hub_documents
from bert_recipes.data.corpus_arguments import CorpusArguments
from bert_recipes.data.encoding import DocumentEncoder, batch_documents, encode_in_order
from bert_recipes.data.files import describe_files, find_files
from bert_recipes.data.store_writer import StoreWriter
from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

# What changes neither documents nor token ids stays out of the store, so that the same text gives the same bytes.
_NOT_IN_STORE = ("files", "validation_files", "tokenizer", "output_dir", "overwrite", "num_processes")
MIN_DOCUMENTS = 2


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


@dataclass(kw_only=True)
class PreparationReport:
    """What was done.

    Attributes:
        path: The store.
        splits: Per split: documents, sentences, tokens, documents_of_one_sentence.
        dropped: Per split and reason: how many were left out.
        repaired: Per split and kind: what was changed in the text.
        text_bytes: Bytes of text read.
        store_bytes: Size of the store.
        seconds: Wall-clock time.
        main_peak_bytes, worker_peak_bytes: Largest resident memory of this process and of any worker process (0: none).
    """

    path: Path
    splits: dict[str, Counter[str]] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    repaired: dict[str, Counter[str]] = field(default_factory=dict)
    text_bytes: int = 0
    store_bytes: int = 0
    seconds: float = 0.0
    main_peak_bytes: int = 0
    worker_peak_bytes: int = 0


class _Sources:
    """The documents of all splits, and what was read."""

    def __init__(self, arguments: CorpusArguments) -> None:
        self._arguments = arguments
        validation = find_files(arguments.validation_files) if arguments.validation_files else []
        held_out = {os.path.realpath(path) for path in validation}
        found = find_files(arguments.files) if arguments.files else []
        train = [path for path in found if os.path.realpath(path) not in held_out]
        if len(train) < len(found):
            logger.info("%d files of --files are held out: they are in --validation_files", len(found) - len(train))
        if arguments.files and not train:
            raise InputError("every file of --files is in --validation_files too: nothing is left to train on")
        self.files = {"train": train, "validation": validation}
        self.counts = {"train": CorpusCounts(), "validation": CorpusCounts()}

    @property
    def num_bytes(self) -> int | None:
        """Bytes of all files; None where a data set of the Hub does not tell."""
        if self._arguments.dataset_name:
            return None
        return sum(path.stat().st_size for files in self.files.values() for path in files)

    @property
    def source_bytes(self) -> int:
        return sum(counts.source_bytes for counts in self.counts.values())

    def describe(self) -> dict[str, list[dict[str, Any]]]:
        """Return name and size of every source, by split."""
        sources: dict[str, list[dict[str, Any]]] = {
            split: list(describe_files(files)) for split, files in self.files.items() if files
        }
        arguments = self._arguments
        if arguments.dataset_name:
            hub = {"name": arguments.dataset_name, "config": arguments.dataset_config_name}
            sources["train"] = [{**hub, "split": arguments.dataset_split}]
        return sources

    def documents(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (split, document): first those of ``files`` or the Hub, then those of ``validation_files``."""
        arguments = self._arguments
        for number, document in enumerate(self._read("train")):
            is_held_out = (
                arguments.validation_fraction and _draw(arguments.seed, number) < arguments.validation_fraction
            )
            yield "validation" if is_held_out else "train", document
        if self.files["validation"]:
            for document in self._read("validation"):
                yield "validation", document

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
        return iter_documents(
            self.files[split],
            document_boundary=arguments.document_boundary,
            text_column=arguments.text_column,
            encoding_errors=arguments.encoding_errors,
            wrapped_lines=arguments.wrapped_lines,
            max_line_bytes=arguments.max_line_bytes,
            counts=counts,
        )


def _draw(seed: int, number: int) -> float:
    """Return a number in [0, 1) that depends on seed and document number only."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def prepare_store(arguments: CorpusArguments, tokenizer: CorpusTokenizer) -> PreparationReport:
    """Read the text, cut it into documents and sentences, encode them, and write the store as a whole or not at all.

    The store's bytes depend on text, settings and tokenizer only, not on ``num_processes``.

    Raises:
        InputError: For whatever is wrong with the text or the output folder; fewer than two usable documents in a split.
    """
    started = time.perf_counter()
    sources = _Sources(arguments)
    report = PreparationReport(path=Path(arguments.output_dir))
    special_ids = {
        name: tokenizer.convert_tokens_to_ids(f"[{name.upper()}]") for name in ("pad", "unk", "cls", "sep", "mask")
    }
    with StoreWriter(
        arguments.output_dir,
        vocab_size=len(tokenizer),
        special_ids=special_ids,
        tokenizer_fingerprint=tokenizer.fingerprint,
        overwrite=arguments.overwrite,
    ) as writer:
        tokenizer.save_pretrained(writer.tokenizer_folder)
        _write_tokens(arguments, tokenizer, sources, writer, report)
        for split, counts in sources.counts.items():
            report.dropped.setdefault(split, Counter()).update(counts.dropped)
            report.repaired[split] = counts.repaired
        _check_documents(arguments, sources, report)
        writer.finish(
            sources=sources.describe(),
            settings={name: value for name, value in asdict(arguments).items() if name not in _NOT_IN_STORE},
            read={split: counts.as_dict() for split, counts in sources.counts.items() if counts.documents},
            dropped={split: dict(dropped) for split, dropped in report.dropped.items() if dropped},
            versions=_versions(),
        )
    report.text_bytes = sum(counts.text_bytes for counts in sources.counts.values())
    report.store_bytes = sum(path.stat().st_size for path in report.path.rglob("*") if path.is_file())
    report.seconds = time.perf_counter() - started
    report.main_peak_bytes = _peak_bytes(resource.RUSAGE_SELF)
    report.worker_peak_bytes = _peak_bytes(resource.RUSAGE_CHILDREN) if arguments.resolved_num_processes > 1 else 0
    return report


def _write_tokens(
    arguments: CorpusArguments,
    tokenizer: CorpusTokenizer,
    sources: _Sources,
    writer: StoreWriter,
    report: PreparationReport,
) -> None:
    """Draw all documents through the encoder into the writer, with a progress bar over the bytes of the sources."""
    encoder = DocumentEncoder(tokenizer.text_encoder, arguments.sentences, arguments.keep)
    batches = batch_documents(sources.documents())
    with tqdm(total=sources.num_bytes, unit="B", unit_scale=True, desc="prepare corpus") as progress:
        for batch in encode_in_order(batches, encoder, arguments.resolved_num_processes):
            writer.add_batch(batch.split, batch.tokens, batch.sentence_lengths, batch.document_lengths)
            report.dropped.setdefault(batch.split, Counter()).update(batch.dropped)
            report.splits.setdefault(batch.split, Counter()).update(
                documents=len(batch.document_lengths),
                sentences=len(batch.sentence_lengths),
                tokens=len(batch.tokens),
                documents_of_one_sentence=int((batch.document_lengths == 1).sum()),
            )
            progress.update(sources.source_bytes - progress.n)


def _check_documents(arguments: CorpusArguments, sources: _Sources, report: PreparationReport) -> None:
    """Refuse splits without enough documents for next sentence prediction; warn where it could learn nothing."""
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
        found = report.splits.get(split, Counter())["documents"]
        if found < MIN_DOCUMENTS:
            dropped = ", ".join(f"{reason} {count}" for reason, count in report.dropped.get(split, Counter()).items())
            raise InputError(
                f"{found} usable documents for {split} ({sum(c.documents for c in sources.counts.values())} read in all; "
                f"dropped: {dropped or 'none'}): at least {MIN_DOCUMENTS} are needed, because a random next sentence comes "
                f"from another document; {what_to_do}"
            )
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


def _versions() -> dict[str, str]:
    """Return what else decides about the token ids: the libraries' and Unicode's versions."""
    packages = {name: version(name) for name in ("numpy", "pyarrow", "tokenizers", "transformers")}
    return {"python": platform.python_version(), "unicode": unicodedata.unidata_version, **packages}


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
    speed = report.text_bytes / max(report.seconds, 1e-9)
    lines += [
        f"text {report.text_bytes / 1e6:,.1f} MB in {report.seconds:,.1f} s: {speed / 1e6:,.1f} MB/s",
        f"peak memory: {report.main_peak_bytes / 1e6:,.0f} MB main process"
        + (f", {report.worker_peak_bytes / 1e6:,.0f} MB largest worker" if report.worker_peak_bytes else ""),
        f"store: {report.path} ({report.store_bytes / 1e6:,.1f} MB)",
    ]
    return "\n".join(lines)
