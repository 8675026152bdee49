"""The documents of a corpus, with the split that each belongs to."""

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.data.corpus import CorpusCounts, check_options, iter_documents, iter_hub_documents
from bert_recipes.data.corpus_arguments import CorpusArguments
from bert_recipes.data.files import describe_files, find_files
from bert_recipes.errors import InputError


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
