"""The settings of ``recipes/deduplicate_corpus.py``."""

from dataclasses import dataclass, field
from typing import Literal

from bert_recipes.data.corpus import DocumentBoundary, EncodingErrors
from bert_recipes.data.executor_arguments import check_task_counts
from bert_recipes.data.text_lines import MAX_LINE_BYTES
from bert_recipes.errors import InputError


# Those of datatrove, and of FineWeb (Penedo et al. 2024).
N_GRAMS, NUM_BUCKETS, HASHES_PER_BUCKET, SEED = 5, 14, 8, 1
# datatrove keeps the file of every task open while it compares them; systems allow 1024 in most cases.
MAX_TASKS = 512


@dataclass(kw_only=True)
class DeduplicationArguments:
    """From text to the same text with each document once."""

    files: list[str] = field(
        metadata={"help": "text: files, folders, globs; .txt, .jsonl, .json (each also .gz), .parquet"}
    )
    output_dir: str = field(metadata={"help": "folder to write, with one row of JSON Lines a document"})
    near: bool = field(default=True, metadata={"help": "also near duplicates (MinHash); false: only exact ones"})
    n_grams: int = field(default=N_GRAMS, metadata={"help": "words of a shingle; documents of fewer are never near"})
    num_buckets: int = field(default=NUM_BUCKETS, metadata={"help": "chances to be found alike"})
    hashes_per_bucket: int = field(default=HASHES_PER_BUCKET, metadata={"help": "that must all agree for it"})
    seed: int = field(default=SEED, metadata={"help": "decides the hash functions"})
    text_column: str = field(default="text", metadata={"help": "column of the text in JSON and Parquet rows"})
    document_boundary: DocumentBoundary = field(
        default="auto",
        metadata={"help": "what ends a document: auto is blank_line for .txt, row for rows; a file's end always does"},
    )
    wrapped_lines: bool = field(
        default=False,
        metadata={"help": "lines are hard-wrapped: join those of a paragraph by a space; not again in prepare_corpus"},
    )
    encoding_errors: EncodingErrors = field(
        default="strict", metadata={"help": "broken UTF-8 or NUL: stop (strict), or replace and count"}
    )
    max_line_bytes: int = field(default=MAX_LINE_BYTES, metadata={"help": "longest line that is taken for text"})
    compression: Literal["none", "gzip"] = field(default="none", metadata={"help": "of the files that are written"})
    tasks: int | None = field(
        default=None,
        metadata={
            "help": f"parts that the files are dealt into, and files written; default: one a file, {MAX_TASKS} at most"
        },
    )
    workers: int | None = field(default=None, metadata={"help": "parts at the same time; default: all cores"})
    logging_dir: str | None = field(
        default=None, metadata={"help": "logs of the tasks; default: output_dir with .logs behind it"}
    )

    def __post_init__(self) -> None:
        check_task_counts(self.tasks, self.workers)
        if self.tasks is not None and self.tasks > MAX_TASKS:
            raise InputError(f"tasks is {self.tasks}: 1 to {MAX_TASKS} is allowed; workers says how many at a time")
        for name in ("n_grams", "num_buckets", "hashes_per_bucket", "max_line_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: 1 or more is allowed")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is {self.seed}: 0 to {2**32 - 1} is allowed")

    @property
    def threshold(self) -> float:
        """Share of their shingles that two documents must have in common for two of three such pairs to be found."""
        return float((1 / self.num_buckets) ** (1 / self.hashes_per_bucket))
