"""The settings of ``recipes/prepare_corpus.py``."""

import math
import os
from dataclasses import dataclass, field

from bert_recipes.data.corpus import DocumentBoundary, EncodingErrors
from bert_recipes.data.encoding import Keep, Sentences
from bert_recipes.data.text_lines import MAX_LINE_BYTES, MOST_LINE_BYTES
from bert_recipes.errors import InputError


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
