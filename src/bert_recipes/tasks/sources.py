"""Find the rows of a task: tables, CoNLL and SQuAD files, GLUE's official download, the Hub or its
cache.
"""

import itertools
import logging
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError, first_line, shorten
from bert_recipes.hub_access import network_errors, why_unreachable
from bert_recipes.rows import (
    TABLE_SUFFIXES,
    NumberedRows,
    Reader,
    Rows,
    column_value,
    format_suffix,
    read_table,
)
from bert_recipes.tasks.conll import read_conll
from bert_recipes.tasks.examples import Example, Split, TaggedExample
from bert_recipes.tasks.labels import FoundLabels, find_labels
from bert_recipes.tasks.questions import expand_articles
from bert_recipes.tasks.reading import label_of, read_examples
from bert_recipes.tasks.tagging import TaggedRows, label_column_of
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)


# GLUE's official download


# Microsoft's own file of MRPC, and GLUE's list of the pairs in it that are the development set.
MSR_FILE = "msr_paraphrase_train.txt"
MSR_DEV_IDS = "dev_ids.tsv"


def _glue_rows(path: Path, task: Task, split: str) -> NumberedRows:
    """Yield the rows of one file of the download under the task's column names; test files have an
    id and no label.

    Source: huggingface/datasets glue.py; CoLA's labelled files have no header.
    """
    layout = task.tsv
    assert layout is not None
    is_test = split in task.test_splits
    text_places = layout.test_text_columns if is_test else layout.text_columns
    last_name = task.id_column or "idx" if is_test else task.label_column
    last_place = layout.id_column if is_test else layout.label_column
    # A last column is counted from the end: MNLI's files differ in their number of labels.
    least = max(*text_places, last_place) + 1 + (last_place < 0)
    most: int | None = None
    lines = Reader().split_at_tabs(path)
    if is_test or layout.has_header:
        number, header = next(lines, (0, []))
        name = header[last_place] if -len(header) <= last_place < len(header) else ""
        _check_header(name, () if is_test else task.labels, f"{path}, line {number}")
        most = len(header)
        least = max(least, most)
    left_out: list[int] = []
    for number, cells in lines:
        if least <= len(cells) <= (most or len(cells)):
            row: dict[str, Any] = {}
            for column, place in zip(task.text_columns, text_places, strict=True):
                row[column] = cells[place]
            last = cells[last_place]
            row[last_name] = int(last) if is_test and last.isdecimal() else last
            yield number, row
        elif layout.drops_short_rows:
            left_out.append(number)
        else:
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns, separated by tabs; the official "
                f"{layout.folder} file of "
                f"the split '{split}' has {'at least ' if most is None else ''}{least}"
            )
    if left_out:
        message = "%s: %d lines with too few or too many columns were left out: %s"
        logger.warning(message, path, len(left_out), shorten(left_out))


def _check_header(name: str, labels: Sequence[str], where: str) -> None:
    """Refuse a first line of data, which would be lost if it were taken for the names of
    columns.
    """
    if name.replace(".", "", 1).isdecimal() or name in labels:
        raise InputError(
            f"{where}: the first line is data ('{name}'); put the official line of column names "
            "back"
        )


def _msr_rows(path: Path, task: Task, split: str) -> NumberedRows:
    """GLUE's own rule: the pairs named in dev_ids.tsv are the development set, all others the
    training set.

    Source: GLUE-baselines download_glue_data.py `format_mrpc`.
    """
    dev_ids = {tuple(cells[:2]) for _, cells in Reader().split_at_tabs(path.with_name(MSR_DEV_IDS))}
    wants_dev = split != task.train_split
    for index, (number, cells) in enumerate(Reader().split_at_tabs(path)):
        if len(cells) != 5:
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns; 5 are expected, separated by tabs"
            )
        if index > 0 and ((cells[1], cells[2]) in dev_ids) == wants_dev:
            yield (
                number,
                dict(
                    zip(
                        (task.label_column, *task.text_columns), (cells[0], *cells[3:]), strict=True
                    )
                ),
            )


# The Hub


def open_hub(task: Task, split: str) -> Rows:
    """Open a split of the task's Hub data set; without a connection the copy in the cache of
    `datasets`, or an error at once.
    """
    reason = check_reach(task)
    from datasets import load_dataset
    from datasets.packaged_modules.cache.cache import Cache

    repository = str(task.hub_dataset)
    name = f"Hub data set {repository}" + (f" ({task.hub_subset})" if task.hub_subset else "")
    try:
        if reason is None:
            dataset = load_dataset(
                repository, task.hub_subset, split=split, revision=task.hub_revision
            )
        else:
            name_only, subset = repository.split("/")[-1], task.hub_subset
            cache = Cache(
                repo_id=repository,
                dataset_name=name_only,
                config_name=subset,
                version="auto",
                hash="auto",
            )
            dataset = cache.as_dataset(split=split)
    except network_errors(ValueError, RuntimeError) as error:
        detail = first_line(error) if reason is None else f"{first_line(error)}; {reason}"
        raise InputError(
            f"task {task.name}: {name}, split '{split}': cannot be opened ({detail}); check the "
            f"name, or {_advice(task)}"
        ) from error
    return Rows(f"{name}, split {split}", "row", _hub_rows(dataset, task))


def check_reach(task: Task) -> str | None:
    """Return why only the copy in the cache can be read, None where the Hub can be reached; refuse
    where there is no copy.
    """
    reason = why_unreachable()
    if reason is not None and not _is_cached(str(task.hub_dataset)):
        raise InputError(
            f"task {task.name}: {reason}, and {task.hub_dataset} is not in the local cache; "
            f"{_advice(task)}"
        )
    return reason


def _advice(task: Task) -> str:
    files = [next(iter(task.local_files.get(split, ())), f"{split}.jsonl") for split in task.splits]
    official = f", or the official TSV files of {task.tsv.folder}" if task.tsv is not None else ""
    return (
        'give the data as local files: --data_dir FOLDER (make: ARGS="--data_dir FOLDER"), which '
        "may hold "
        f"{', '.join(files)}{official}"
    )


def _is_cached(name: str) -> bool:
    """Tell whether `datasets` keeps a copy, without importing it, which takes seconds."""
    from huggingface_hub import constants

    cache = Path(
        os.environ.get("HF_DATASETS_CACHE") or os.path.join(constants.HF_HOME, "datasets")
    ).expanduser()
    # Folders are called owner___name, the name in snake_case.
    plain = name.replace("/", "").replace("_", "").lower()
    return cache.is_dir() and any(
        folder.name.replace("_", "").lower() == plain for folder in cache.iterdir()
    )


def _hub_rows(dataset: Any, task: Task) -> NumberedRows:
    """Rows as dicts; class numbers become the Hub's names where the task knows these, so that order
    cannot matter.
    """
    column = label_column_of(task, dataset.features) or task.label_column
    feature = dataset.features.get(column)
    names = (
        getattr(getattr(feature, "feature", feature), "names", None) or []
    )  # of a list, its elements'
    is_known = set(names) <= {*task.labels, *task.column_labels}

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(item) for item in value]
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else value

    batches = dataset.iter(batch_size=1000)
    rows = (values for batch in batches for values in zip(*batch.values(), strict=True))
    for number, values in enumerate(rows, start=1):
        row = dict(zip(dataset.column_names, values, strict=True))
        if names and is_known:
            row[column] = named(row[column])
        yield number, row


# Local files


def open_local(task: Task, split: str, data_dir: str | None) -> Rows:
    """Open the file of a split, found in `data_dir`, or where the task's own `files` say."""
    path = find_local(task, split, data_dir)
    if path.name == MSR_FILE and task.tsv is not None:
        return Rows(str(path), "line", _msr_rows(path, task, split))
    if task.tsv is not None and path.name == task.tsv.files.get(split):
        return Rows(str(path), "line", _glue_rows(path, task, split))
    return open_file(task, path)


def open_file(task: Task, path: Path) -> Rows:
    """Open a file with rows of a task: a table, words in columns, or the questions of SQuAD's
    form.
    """
    if task.kind == "token_classification" and format_suffix(path) not in TABLE_SUFFIXES:
        return Rows(str(path), "line", read_conll(path, task))
    rows = read_table(path)
    return expand_articles(task, rows) if task.kind == "question_answering" else rows


def find_local(task: Task, split: str, data_dir: str | None) -> Path:
    """Return where the file of a split lies."""
    if data_dir is None:
        path = Path(task.files[split])
        if not path.is_file():
            raise InputError(
                f"task {task.name}, split '{split}': {path}: no such file; fix `files` in the "
                "task file, or give --data_dir"
            )
        return path
    if not Path(data_dir).is_dir():
        raise InputError(
            f"--data_dir {data_dir}: no such folder; give the one with the data of task {task.name}"
        )
    local = (
        [task.local_name, f"glue/{task.local_name}", f"ner/{task.local_name}"]
        if task.local_name
        else []
    )
    official = [task.tsv.folder, f"glue/{task.tsv.folder}"] if task.tsv is not None else []
    folders = list(dict.fromkeys([".", *local, *official]))
    names = _file_names(task, split)
    for folder in folders:
        for name in names:
            path = Path(data_dir, folder, name)
            # Without the list of ids nobody can tell the two splits of that file apart.
            if path.is_file() and (name != MSR_FILE or path.with_name(MSR_DEV_IDS).is_file()):
                return path
    subfolders = f" and its subfolders {', '.join(folders[1:])}" if folders[1:] else ""
    shown = ", ".join(f"{name} with {MSR_DEV_IDS}" if name == MSR_FILE else name for name in names)
    raise InputError(
        f"task {task.name}, split '{split}': no file in --data_dir {data_dir}{subfolders}; looked "
        f"for {shown}"
    )


def _file_names(task: Task, split: str) -> list[str]:
    """Return the file names of a split, the surest first."""
    layout = task.tsv
    names: list[str] = []
    if split in task.files:
        names.append(task.relative_files[split])
    names += task.local_files.get(split, ())
    names.append(f"{split}.jsonl")
    if layout is not None and layout.folder == "MRPC" and split not in task.test_splits:
        names.append(MSR_FILE)
    if layout is not None and split in layout.files:
        names.append(layout.files[split])
    # The second parquet is as the Hub has it (`hf download`).
    endings = [".csv", ".parquet", "-00000-of-00001.parquet", ".json"]
    if layout is None:
        endings.append(".tsv")
    if task.kind == "token_classification":
        endings += [".txt", ".conll"]
    names += [split + ending for ending in endings]
    return list(dict.fromkeys(names))


# Splits

# Our choice. A limit always draws the same examples, so that runs with it can be compared.
SAMPLE_SEED = 12345


def load_split(
    task: Task,
    split: str,
    *,
    data_dir: str | None,
    max_examples: int | None = None,
    need_labels: bool = False,
) -> Split:
    """Read a split, check every row of it, and draw a sample where there is a limit.

    Args:
        data_dir: Local folder: it, its subfolders named like the task (`mrpc`, `glue/mrpc`, `MRPC`,
            `squad`, `swag`, `ner/conll2003`) are searched in this order. None: the task's own
            `files`, or the Hub.
        max_examples: Draw this many with a fixed seed and keep them in the order of the file.
            Sentences of a document
            are drawn together: whole documents, of the last one the beginning.
        need_labels: Refuse a split with hidden labels.

    Example:
        >>> load_split(get_task("rte"), "train", data_dir="data/glue").num_rows  # doctest: +SKIP
        2490
    """
    if split not in task.splits:
        raise InputError(
            f"task {task.name} has no split '{split}'; it has: {', '.join(task.splits)}"
        )
    is_local = data_dir is not None or bool(task.files)
    rows = open_local(task, split, data_dir) if is_local else open_hub(task, split)
    read = read_examples(task, split, rows, need_labels=need_labels)
    examples = read.examples
    if split == task.train_split:
        _warn_of_unused_labels(task, examples, rows.source)
    return Split(
        name=split,
        examples=_sample(examples, max_examples),
        source=rows.source,
        num_rows=len(examples),
        published_rows=task.published_rows.get(split),
        is_labelled=label_of(examples[0]) is not None,
        num_left_out=read.num_left_out,
    )


def check_source(task: Task, data_dir: str | None, splits: Sequence[str]) -> None:
    """See at once whether local files are there, or else the Hub within reach; nothing is read."""
    if data_dir is None and not task.files:
        check_reach(task)
        return
    for split in splits:
        find_local(task, split, data_dir)


def _sample(examples: list[Example], max_examples: int | None) -> Sequence[Example]:
    if max_examples is None or max_examples >= len(examples):
        return examples
    rng = random.Random(SAMPLE_SEED)
    rows = range(len(examples))
    document_of = [example.document for example in examples if isinstance(example, TaggedExample)]
    if not document_of:
        return [examples[index] for index in sorted(rng.sample(rows, max_examples))]
    documents = [list(group) for _, group in itertools.groupby(rows, key=document_of.__getitem__)]
    rng.shuffle(documents)
    return [
        examples[index]
        for index in sorted(list(itertools.chain.from_iterable(documents))[:max_examples])
    ]


def _warn_of_unused_labels(task: Task, examples: Sequence[Example], source: str) -> None:
    if (
        task.kind not in ("sequence_classification", "token_classification")
        or label_of(examples[0]) is None
    ):
        return
    labels = map(label_of, examples)
    used = {
        number for label in labels for number in (label if isinstance(label, tuple) else (label,))
    }
    unused = [name for number, name in enumerate(task.labels) if number not in used]
    if unused:
        logger.warning(
            "%s: no row has the label %s; the model cannot learn it: check `labels` of task %s",
            source,
            ", ".join(unused),
            task.name,
        )


def find_labels_in_data(task: Task) -> FoundLabels:
    """Return the labels in a user's training file."""
    rows = open_local(task, task.train_split, None)
    if task.kind == "token_classification":
        return find_labels(
            task, (sentence.tags for sentence in TaggedRows(task, rows, is_test=False))
        )
    values = (column_value(row, task.label_column, rows.where(number)) for number, row in rows.rows)
    return find_labels(task, values)
