"""Lengths of the tokenized examples of real tasks: as committed in lengths.yaml, or measured.

Only lengths, never text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bert_recipes.errors import saving


LENGTHS_FILE = Path(__file__).resolve().parent / "lengths.yaml"


@dataclass(frozen=True)
class TaskLimit:
    """Limits of a task, and the padding of the stock example: "max" or "batch".

    "batch" is the longest input of the batch.
    """

    config: str  # stem of our file in recipes/configs/finetune
    max_length: int
    stock_padding: str
    num_labels: int


# transformers examples/pytorch: text-classification/run_glue.py has max_seq_length 128 and
# pad_to_max_length True, question-answering/ run_qa.py 384, doc_stride 128 and True,
# token-classification/run_ner.py takes a sentence for an example and has False.
TASK_LIMITS: Mapping[str, TaskLimit] = {
    "sst2": TaskLimit("glue", 128, "max", 2),
    "mnli": TaskLimit("glue", 128, "max", 3),
    "squad": TaskLimit("squad", 384, "max", 2),
    "conll2003": TaskLimit("ner", 128, "batch", 9),
}


def read_lengths(path: Path = LENGTHS_FILE) -> dict[str, tuple[int, ...]]:
    """Return task -> number of training features of 0, 1, 2, ... tokens, special ones included."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {task: tuple(values[task]) for task in TASK_LIMITS}


def write_lengths(path: Path, data_dir: str, vocabulary: str) -> str:
    """Measure all tasks and write the file; return what it says of its source."""
    counts, rows = [], []
    for task in TASK_LIMITS:
        histogram = measure_lengths(task, data_dir, vocabulary)
        counts.append(f"{task} {sum(histogram):,}")
        rows.append(f"{task}: {list(histogram)}")
    source = (
        f"features of the training splits found locally ({', '.join(counts)}), vocabulary "
        f"{Path(vocabulary).name}"
    )
    command = (
        "python benchmarks/benchmark.py --measure_lengths true --data_dir DATA --tokenizer "
        "vocab.txt"
    )
    lines = [
        f"source: {source}",
        f"command: {command}",
        *rows,
    ]
    with saving(path):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return source


def measure_lengths(task_name: str, data_dir: str, vocabulary: str) -> tuple[int, ...]:
    """Count the training features of 0, 1, 2, ... tokens of a task.

    Its data is in data_dir, or in its glue/, squad/ or ner/.
    """
    from bert_recipes.finetuning.arguments import TaskArguments
    from bert_recipes.finetuning.run import make_kind
    from bert_recipes.tasks.catalogue import get_task
    from bert_recipes.tasks.sources import load_split
    from bert_recipes.tokenization.loading import load_tokenizer

    task, limit = get_task(task_name), TASK_LIMITS[task_name]
    tokenizer = load_tokenizer(vocabulary)
    folder = Path(data_dir) / {"squad": "squad", "conll2003": "ner"}.get(task_name, "glue")
    data_dir = str(folder) if folder.is_dir() else data_dir
    split = load_split(
        task,
        task.train_split,
        data_dir=data_dir,
        need_labels=True,
    )
    if task.kind == "token_classification":  # a sentence is an example on both sides
        lengths = np.array([_count_pieces(tokenizer, example) for example in split.examples])
        return tuple(np.bincount(np.minimum(lengths, limit.max_length)).tolist())
    settings = TaskArguments(task=task_name, max_seq_length=limit.max_length)
    kind = make_kind(task, tokenizer, settings)
    encoded = kind.encode(split, for_training=True)
    return tuple(np.bincount(encoded.lengths).tolist())


def _count_pieces(tokenizer: Any, example: Any) -> int:
    """Return the tokens of a tagged sentence, with [CLS] and [SEP]."""
    return 2 + sum(len(tokenizer.encode_ids(word)) for word in example.tokens)


def draw_lengths(histogram: Sequence[int], count: int, seed: int) -> np.ndarray:
    """Draw int64 (count,) lengths from a histogram."""
    weights = np.asarray(histogram, dtype=np.float64)
    return np.random.default_rng(seed).choice(
        len(weights),
        size=count,
        p=weights / weights.sum(),
    )
