"""A task's split as checked examples, from local files or from the Hub."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from bert_recipes.errors import InputError
from bert_recipes.tasks.examples import Example, Split, TaggedExample, TextExample
from bert_recipes.tasks.hub_rows import check_reach, open_hub
from bert_recipes.tasks.local_files import find_local, open_local
from bert_recipes.tasks.reading import label_of, read_examples
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)

# Our choice. A limit always draws the same examples, so that runs with it can be compared.
SAMPLE_SEED = 12345


def load_split(
    task: Task, split: str, *, data_dir: str | None, max_examples: int | None = None, need_labels: bool = False
) -> Split:
    """Read a split, check every row of it, and draw a sample where there is a limit.

    Args:
        task: The row.
        split: One of its splits.
        data_dir: Local folder: it, its subfolders named like the task (`mrpc`, `glue/mrpc`, `MRPC`, `squad`, `swag`,
            `ner/conll2003`) are searched in this order. None: the task's own `files`, or the Hub.
        max_examples: Draw this many with a fixed seed and keep them in the order of the file. Sentences of a document
            are drawn together: whole documents, of the last one the beginning.
        need_labels: Refuse a split with hidden labels.

    Raises:
        InputError: Whatever is wrong with the user's data: one line with the file and the row.

    Example:
        >>> load_split(get_task("rte"), "train", data_dir="data/glue").num_rows  # doctest: +SKIP
        2490
    """
    splits = _split_names(task)
    if split not in splits:
        raise InputError(f"task {task.name} has no split '{split}'; it has: {', '.join(splits)}")
    if data_dir is not None or split in task.files:
        rows = open_local(task, split, data_dir)
    elif task.hub_dataset is not None:
        rows = open_hub(task, split, _expected_files(task, splits))
    else:
        raise InputError(
            f"task {task.name}: the row names no file for the split '{split}'; give `files` in the task file, or --data_dir"
        )
    examples = read_examples(task, split, rows, need_labels=need_labels)
    if split == task.train_split:
        _warn_of_unused_labels(task, examples, rows.source)
    return Split(
        name=split,
        examples=_sample(examples, max_examples),
        source=rows.source,
        num_rows=len(examples),
        published_rows=task.published_rows.get(split),
        is_labelled=label_of(examples[0]) is not None,
    )


def check_source(task: Task, data_dir: str | None, splits: Sequence[str]) -> None:
    """See at once whether local files are there, or else the Hub within reach; nothing is read.

    Args:
        task: The row.
        data_dir: As for `load_split`.
        splits: Those that will be read.

    Raises:
        InputError: A file is missing, or the Hub is out of reach.
    """
    if data_dir is None and not task.files and task.hub_dataset is not None:
        check_reach(task, _expected_files(task, _split_names(task)))
        return
    for split in splits:
        if data_dir is not None or split in task.files:
            find_local(task, split, data_dir)


def _split_names(task: Task) -> list[str]:
    return [name for name in (task.train_split, *task.validation_splits, *task.test_splits) if name]


def _expected_files(task: Task, splits: Sequence[str]) -> str:
    names: list[str] = []
    for split in splits:
        names += task.local_files.get(split, ())[:1] or (f"{split}.jsonl",)
    official = f", or the official TSV files of {task.tsv.folder}" if task.tsv is not None else ""
    return ", ".join(names) + official


def _sample(examples: list[Example], max_examples: int | None) -> Sequence[Example]:
    if max_examples is None or max_examples >= len(examples):
        return examples
    rng = random.Random(SAMPLE_SEED)
    if not isinstance(examples[0], TaggedExample):
        return [examples[index] for index in sorted(rng.sample(range(len(examples)), max_examples))]
    documents: list[list[int]] = []
    before: int | None = None
    for index, example in enumerate(examples):
        assert isinstance(example, TaggedExample)
        if example.document != before:
            documents.append([])
        documents[-1].append(index)
        before = example.document
    rng.shuffle(documents)
    chosen = [index for document in documents for index in document][:max_examples]
    return [examples[index] for index in sorted(chosen)]


def _warn_of_unused_labels(task: Task, examples: Sequence[Example], source: str) -> None:
    used: set[object] = set()
    for example in examples:
        if isinstance(example, TaggedExample):
            used.update(example.labels or ())
        elif isinstance(example, TextExample) and task.labels:
            used.update(example.label if isinstance(example.label, tuple) else (example.label,))
    unused = [name for number, name in enumerate(task.labels) if number not in used]
    has_classes = task.kind in ("sequence_classification", "token_classification") and task.labels
    if has_classes and unused and label_of(examples[0]) is not None:
        logger.warning(
            "%s: no row has the label %s; the model cannot learn it: check `labels` of task %s",
            source,
            ", ".join(unused),
            task.name,
        )
