"""How long the tokenised examples of real tasks are: measured, or as committed. Only lengths, never text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError, saving
from speed.arguments import TASKS, BenchmarkArguments


if TYPE_CHECKING:
    from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


LENGTHS_FILE = Path(__file__).resolve().parents[1] / "lengths.yaml"


@dataclass(frozen=True)
class TaskLimit:
    """How a task is cut and what stock does with it.

    Attributes:
        config: Stem of our file in recipes/configs/finetune.
        max_length: Longest input.
        stock_padding: What today's example of transformers does: "max" pads every input to max_length, "batch" to the
            longest input of its batch.
        num_labels: Classes.
        source: Where stock_padding and max_length stand.
    """

    config: str
    max_length: int
    stock_padding: str
    num_labels: int
    source: str


_GLUE = "transformers examples/pytorch/text-classification/run_glue.py: max_seq_length 128, pad_to_max_length True"
_QA = "transformers examples/pytorch/question-answering/run_qa.py: max_seq_length 384, doc_stride 128, pad_to_max_length True"
_NER = (
    "transformers examples/pytorch/token-classification/run_ner.py: a sentence is an example, pad_to_max_length False"
)
TASK_LIMITS: Mapping[str, TaskLimit] = {
    "sst2": TaskLimit("glue", 128, "max", 2, _GLUE),
    "mnli": TaskLimit("glue", 128, "max", 3, _GLUE),
    "squad": TaskLimit("squad", 384, "max", 2, _QA),
    "conll2003": TaskLimit("ner", 128, "batch", 9, _NER),
}


@dataclass
class LengthTables:
    """Histograms: entry l is the number of training features of l tokens, special tokens included."""

    source: str = field(metadata={"help": "data and vocabulary"})
    command: str = field(metadata={"help": "what made this file"})
    sst2: list[int] = field(default_factory=list, metadata={"help": "features of 0, 1, 2, ... tokens"})
    mnli: list[int] = field(default_factory=list, metadata={"help": "the same"})
    squad: list[int] = field(default_factory=list, metadata={"help": "the same"})
    conll2003: list[int] = field(default_factory=list, metadata={"help": "the same"})


def lengths_of_tasks(args: BenchmarkArguments, committed: Path) -> dict[str, tuple[int, ...]]:
    """Task -> histogram: measured where --data_dir is given, as committed otherwise."""
    if args.data_dir:
        assert args.tokenizer is not None
        wanted = args.tasks or (TASKS if args.suite == "all" else ("sst2",))
        return {task: measure_lengths(task, args.data_dir, args.tokenizer) for task in {*wanted, "sst2"}}
    tables = read_tables(committed)
    return {task: tuple(getattr(tables, task)) for task in TASKS}


def read_tables(path: Path) -> LengthTables:
    """Read the committed histograms."""
    (tables,) = parse_arguments(LengthTables, argv=["--config", str(path)])
    missing = [task for task in TASKS if not sum(getattr(tables, task))]
    if missing:
        raise InputError(f"{path}: no lengths of {', '.join(missing)}; make them with --measure_lengths true")
    return cast(LengthTables, tables)


def write_tables(path: Path, data_dir: str, vocabulary: str) -> LengthTables:
    """Measure all tasks and write the file."""
    histograms = {task: list(measure_lengths(task, data_dir, vocabulary)) for task in TASKS}
    counts = ", ".join(f"{task} {sum(values):,}" for task, values in histograms.items())
    tables = LengthTables(
        source=f"features of the training splits found locally ({counts}), vocabulary {Path(vocabulary).name}",
        command="python benchmarks/benchmark.py --measure_lengths true --data_dir DATA --tokenizer vocab.txt",
        **histograms,
    )
    with saving(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_config(path, tables)
    return tables


def measure_lengths(task_name: str, data_dir: str, vocabulary: str) -> tuple[int, ...]:
    """Histogram of the training features of a task: int counts of the lengths 0, 1, 2, ...

    Args:
        task_name: One of `TASKS`.
        data_dir: As recipes/finetune.py takes it, or a folder above (glue/, squad/, ner/).
        vocabulary: Tokenizer folder or vocab.txt.
    """
    from bert_recipes.finetuning.arguments import TaskArguments
    from bert_recipes.finetuning.run import KIND_CLASSES
    from bert_recipes.tasks.rows import TaggedExample, get_task
    from bert_recipes.tasks.sources import load_split
    from bert_recipes.tokenization.loading import load_tokenizer

    task, limit = get_task(task_name), TASK_LIMITS[task_name]
    tokenizer = load_tokenizer(vocabulary)
    split = load_split(task, task.train_split, data_dir=_folder_of(task_name, data_dir), need_labels=True)
    if task.kind == "token_classification":
        sentences = [cast(TaggedExample, example).tokens for example in split.examples]
        lengths = np.array([_sentence_length(words, tokenizer) for words in sentences])
        return _histogram(np.minimum(lengths, limit.max_length))
    settings = TaskArguments(task=task_name, max_seq_length=limit.max_length)
    label2id = {name: number for number, name in enumerate(task.labels)}
    kind = KIND_CLASSES[task.kind](task, tokenizer, settings, label2id)
    return _histogram(kind.encode(split, for_training=True).lengths)


def _sentence_length(words: Sequence[str], tokenizer: OriginalBertTokenizer) -> int:
    return 2 + sum(len(tokenizer.encode_ids(word)) for word in words)


def _histogram(lengths: np.ndarray) -> tuple[int, ...]:
    return tuple(np.bincount(lengths).tolist())


def _folder_of(task_name: str, data_dir: str) -> str:
    """The folder for `load_split`: data_dir itself, or the part of it where such tasks commonly lie."""
    part = {"squad": "squad", "conll2003": "ner"}.get(task_name, "glue")
    inner = Path(data_dir) / part
    return str(inner) if inner.is_dir() else data_dir


def draw_lengths(histogram: Sequence[int], count: int, seed: int) -> np.ndarray:
    """int64 (count,): lengths drawn from a histogram; the same seed gives the same lengths."""
    weights = np.asarray(histogram, dtype=np.float64)
    return np.random.default_rng(seed).choice(len(weights), size=count, p=weights / weights.sum())
