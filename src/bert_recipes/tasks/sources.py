"""Find the rows of a task: in tables, CoNLL and SQuAD files, GLUE's download, or the Hub."""

import itertools
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError, first_line, shorten
from bert_recipes.hub_access import network_errors, why_unreachable
from bert_recipes.rows import (
    TABLE_SUFFIXES,
    NumberedRows,
    Reader,
    Rows,
    class_names,
    column_value,
    draw_from,
    format_suffix,
    read_table,
)
from bert_recipes.tasks.conll import read_conll
from bert_recipes.tasks.examples import (
    Example,
    QuestionExample,
    Split,
    TaggedExample,
    TextExample,
)
from bert_recipes.tasks.label_studio import flatten_label_studio
from bert_recipes.tasks.labels import find_labels
from bert_recipes.tasks.questions import expand_articles
from bert_recipes.tasks.reading import label_of, read_examples
from bert_recipes.tasks.tagging import TaggedRows, is_rejected, label_column_of
from bert_recipes.tasks.task import CLASSIFICATION_KINDS, HELD_OUT_SPLIT, Task, TsvLayout


logger = logging.getLogger(__name__)

# Our choice. A limit always draws the same examples, so that runs with it can be compared.
SAMPLE_SEED = 12345
# Fewer held-out rows than these are a warning.
FEW_HELD_OUT = 20


# Splits


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
        task: A task of the catalogue, or of a file.
        split: One of its splits.
        data_dir: Local folder: it, its subfolders named like the task (`mrpc`, `glue/mrpc`, `MRPC`,
            `squad`, `swag`, `ner/conll2003`) are searched in this order. None: the task's own
            `files`, or the Hub.
        max_examples: Draw this many with a fixed seed and keep them in the order of the file.
            Sentences of a document are drawn together: whole documents, of the last one the
            beginning.
        need_labels: Refuse a split with hidden labels.

    Example:
        >>> load_split(get_task("rte"), "train", data_dir="data/glue").num_rows  # doctest: +SKIP
        2490
    """
    if split not in task.splits:
        raise InputError(
            f"task {task.name} has no split '{split}'; it has: {', '.join(task.splits)}"
        )

    if data_dir is None and not task.files:
        rows = open_hub(task, split)
    else:
        rows = open_local(task, split, data_dir)
    table = read_examples(task, split, rows, need_labels=need_labels)
    examples = table.examples
    num_left_out = table.num_left_out
    if split not in task.test_splits and _is_shared(task, data_dir):
        examples = _part_of_file(task, split, examples, rows.source)
        # Both splits read the file: what is left out of it counts once.
        if split != task.train_split:
            num_left_out = 0
    is_labelled = label_of(examples[0]) is not None
    if split == task.train_split and is_labelled:
        _warn_of_unused_labels(task, examples, rows.source)
    return Split(
        name=split,
        examples=_sample(examples, max_examples),
        source=rows.source,
        num_rows=len(examples) + num_left_out,
        published_rows=task.published_rows.get(split),
        is_labelled=is_labelled,
        num_left_out=num_left_out,
    )


def _is_shared(task: Task, data_dir: str | None) -> bool:
    """Tell whether the validation split is a fraction of the training file."""
    if task.validation_fraction is None:
        return False
    held_out = find_local(task, HELD_OUT_SPLIT, data_dir)
    return held_out == find_local(task, task.train_split, data_dir)


def _part_of_file(
    task: Task, split: str, examples: Sequence[Example], source: str
) -> list[Example]:
    """Return the training examples of a file, or those of its `validation_fraction`."""
    assert task.validation_fraction is not None
    words_of_documents: dict[int, list[str]] = {}
    for example in examples:
        if isinstance(example, TaggedExample):
            words_of_documents.setdefault(example.document, []).extend(example.tokens)

    keys = []
    for example in examples:
        key = _repeated_text(example)
        # A single -DOCSTART-, at the top, makes one document, which cannot be divided: then each
        # sentence is drawn for.
        if isinstance(example, TaggedExample) and len(words_of_documents) > 1:
            key = " ".join(words_of_documents[example.document])
        keys.append(key)
    in_order = sorted(set(keys), key=draw_from)
    num_held_out = round(task.validation_fraction * len(in_order))
    held_out = set(in_order[:num_held_out])

    part = []
    for key, example in zip(keys, examples, strict=True):
        split_of_example = HELD_OUT_SPLIT if key in held_out else task.train_split
        if split_of_example == split:
            part.append(example)
    if split == HELD_OUT_SPLIT and 0 < len(part) < FEW_HELD_OUT:
        logger.warning(
            "%s: validation_fraction %g holds out %d rows, which say little of a model; raise it, "
            "or give more rows",
            source,
            task.validation_fraction,
            len(part),
        )
    if not part:
        raise InputError(
            f"{source}: validation_fraction {task.validation_fraction:g} of {len(examples)} rows "
            f"leaves none for the split '{split}'; set another one, or give more rows"
        )
    return part


def _repeated_text(example: Example) -> str:
    """Return the text that stands in several rows: a paragraph, a premise, a context, or a text."""
    if isinstance(example, TaggedExample):
        return " ".join(example.tokens)
    if isinstance(example, TextExample):
        return example.text
    if isinstance(example, QuestionExample) or example.context:
        return example.context
    return " ".join(example.choices)


def check_source(task: Task, data_dir: str | None, splits: Sequence[str]) -> None:
    """See at once whether local files are there, or the Hub is within reach; nothing is read."""
    is_of_hub = data_dir is None and not task.files
    if is_of_hub:
        check_reach(task)
        return
    for split in splits:
        find_local(task, split, data_dir)


def find_labels_in_data(task: Task, data_dir: str | None) -> list[str]:
    """Return the labels in a user's training file."""
    rows = open_local(task, task.train_split, data_dir)
    return find_labels(task, _label_cells(task, rows))


def find_class_names(task: Task, data_dir: str | None) -> Sequence[str]:
    """Return the names that a user's training file has for class numbers; none in most formats."""
    path = find_local(task, task.train_split, data_dir)
    if format_suffix(path) != ".parquet":
        return ()
    names = class_names(path)
    column = label_column_of(task, names) or task.label_column
    return names.get(column, ())


def _label_cells(task: Task, rows: Rows) -> Iterator[tuple[str, Any]]:
    """Yield the place and the labels of each row: a cell, or the tags of a sentence."""
    if task.kind == "token_classification":
        for sentence in TaggedRows(task, rows, is_test=False):
            yield rows.where(sentence.number), sentence.tags
        return
    for number, row in rows.rows:
        if not is_rejected(task, row):
            where = rows.where(number)
            yield where, column_value(row, task.label_column, where)


def _sample(examples: list[Example], max_examples: int | None) -> Sequence[Example]:
    """Return a sample in the order of the file, of tagged sentences whole documents."""
    if max_examples is None or max_examples >= len(examples):
        return examples
    rng = random.Random(SAMPLE_SEED)
    documents: dict[int, list[int]] = {}
    for index, example in enumerate(examples):
        if isinstance(example, TaggedExample):
            documents.setdefault(example.document, []).append(index)

    if documents:
        shuffled = list(documents.values())
        rng.shuffle(shuffled)
        indices = list(itertools.chain.from_iterable(shuffled))[:max_examples]
    else:
        indices = rng.sample(range(len(examples)), max_examples)
    return [examples[index] for index in sorted(indices)]


def _warn_of_unused_labels(task: Task, examples: Sequence[Example], source: str) -> None:
    """Warn of labels that no training row has."""
    if task.kind not in CLASSIFICATION_KINDS:
        return
    used: set[Any] = set()
    for example in examples:
        label = label_of(example)
        if isinstance(label, tuple):
            used.update(label)
        else:
            used.add(label)
    unused = [name for number, name in enumerate(task.labels) if number not in used]
    if unused:
        message = (
            "%s: no row has the label %s; the model cannot learn it: check `labels` of task %s"
        )
        logger.warning(message, source, ", ".join(unused), task.name)


# Local files


def open_local(task: Task, split: str, data_dir: str | None) -> Rows:
    """Open the file of a split, found in `data_dir`, or where the task's own `files` say."""
    path = find_local(task, split, data_dir)
    layout = task.tsv
    if layout is None:
        return _open_rows(task, path)
    if path.name == MSR_FILE:
        rows = _msr_rows(path, task, split)
        return Rows(str(path), "line", rows)
    if path.name == layout.files.get(split):
        rows = _glue_rows(path, task, layout, split)
        return Rows(str(path), "line", rows)
    return _open_rows(task, path)


def _open_rows(task: Task, path: Path) -> Rows:
    """Open a file of a split, with names for class numbers, and null for keys left out of a row.

    The names are those that the file itself has.
    """
    rows = open_file(task, path)
    match format_suffix(path):
        case ".parquet":
            return _name_classes(task, rows, class_names(path))
        case ".jsonl" | ".json":
            return replace(rows, rows=_fill_columns(task, rows))
    return rows


def _fill_columns(task: Task, rows: Rows) -> NumberedRows:
    """Yield rows of JSON; a column of the task that only other rows have is null."""
    table = list(rows.rows)
    keys: dict[str, Any] = {}  # of all rows, as one row that `label_column_of` can read
    for _, row in table:
        keys.update(row)
    label_column = label_column_of(task, keys)
    columns = [*task.text_columns, *task.choice_columns, *task.label_columns]
    for number, row in table:
        absent = [column for column in columns if column in keys and column not in row]
        if label_column is not None and label_column_of(task, row) is None:
            absent.append(label_column)
        yield number, {**row, **dict.fromkeys(absent)}


def open_file(task: Task, path: Path, *, are_inputs: bool = False) -> Rows:
    """Open a file with rows of a task: a table, words in columns, or SQuAD's questions.

    `are_inputs` is that of `read_table`.
    """
    is_table = format_suffix(path) in TABLE_SUFFIXES
    if task.kind == "token_classification" and not is_table:
        return Rows(str(path), "line", read_conll(path, task))
    rows = flatten_label_studio(task, read_table(path, are_inputs=are_inputs))
    if task.kind == "question_answering":
        return expand_articles(task, rows)
    return rows


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
    folders = _folder_names(task)
    names = _file_names(task, split)
    for folder, name in itertools.product(folders, names):
        path = Path(data_dir, folder, name)
        # Without the list of ids nobody can tell the two splits of that file apart.
        if path.is_file() and (name != MSR_FILE or path.with_name(MSR_DEV_IDS).is_file()):
            return path
    subfolders = ", ".join(folders[1:])
    if subfolders:
        subfolders = f" and its subfolders {subfolders}"
    looked_for = ", ".join(names).replace(MSR_FILE, f"{MSR_FILE} with {MSR_DEV_IDS}")
    raise InputError(
        f"task {task.name}, split '{split}': no file in --data_dir {data_dir}{subfolders}; looked "
        f"for {looked_for}"
    )


def _folder_names(task: Task) -> list[str]:
    """Return the folders under --data_dir in which a task's files may lie."""
    folders = ["."]
    name = task.local_name
    if name:
        folders += [name, f"glue/{name}", f"ner/{name}"]
    if task.tsv is not None:
        folder = task.tsv.folder
        folders += [folder, f"glue/{folder}"]
    return list(dict.fromkeys(folders))


def _file_names(task: Task, split: str) -> list[str]:
    """Return the file names of a split, the surest first."""
    layout = task.tsv
    names: list[str] = []
    is_held_out = task.validation_fraction is not None and split == HELD_OUT_SPLIT
    if split in task.files and not is_held_out:
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
    if is_held_out:  # a file of its own comes first: of `augment.py`, say
        names += _file_names(task, task.train_split)
    return list(dict.fromkeys(names))


# GLUE's official download

# Microsoft's own file of MRPC, and GLUE's list of the pairs in it that are the development set.
MSR_FILE = "msr_paraphrase_train.txt"
MSR_DEV_IDS = "dev_ids.tsv"
_MSR_WIDTH = 5


def _glue_rows(path: Path, task: Task, layout: TsvLayout, split: str) -> NumberedRows:
    """Yield the rows of one file of the download under the task's column names.

    Test files have an id and no label.

    Source: huggingface/datasets glue.py; CoLA's labelled files have no header.
    """
    is_test = split in task.test_splits
    text_places = layout.text_columns
    key_column = task.label_column
    key_place = layout.label_column
    if is_test:
        text_places = layout.test_text_columns
        key_column = task.id_column or "idx"
        key_place = layout.id_column
    places = dict(zip(task.text_columns, text_places, strict=True))
    places[key_column] = key_place
    num_columns = max(places.values()) + 1
    if key_place < 0:  # counted from the end, as MNLI's files differ in their number of columns
        num_columns += 1

    # Without a header the width is exact: one more column is a tab in a sentence.
    width = num_columns
    lines = Reader().split_at_tabs(path)
    if is_test or layout.has_header:
        number, header = next(lines, (0, []))
        width = len(header)
        has_key = -width <= key_place < width
        name = header[key_place] if has_key else ""
        _check_header(name, () if is_test else task.labels, f"{path}, line {number}")
    is_complete = width >= num_columns
    left_out: list[int] = []
    for number, cells in lines:
        if is_complete and len(cells) == width:
            row: dict[str, Any] = {column: cells[place] for column, place in places.items()}
            if is_test and row[key_column].isdecimal():
                row[key_column] = int(row[key_column])
            yield number, row
        elif layout.drops_malformed_lines:
            left_out.append(number)
        else:
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns, separated by tabs; the official "
                f"{layout.folder} file of the split '{split}' has {max(width, num_columns)}"
            )

    if left_out:
        message = "%s: %d lines with too few or too many columns were left out: %s"
        logger.warning(message, path, len(left_out), shorten(left_out))


def _check_header(name: str, labels: Sequence[str], where: str) -> None:
    """Refuse a first line of data, which would be lost as the names of columns."""
    if name.replace(".", "", 1).isdecimal() or name in labels:
        raise InputError(
            f"{where}: the first line is data ('{name}'); put the official line of column names "
            "back"
        )


def _msr_rows(path: Path, task: Task, split: str) -> NumberedRows:
    """Yield the pairs of MRPC that are in a split.

    Those named in dev_ids.tsv are the development set, all others the training set.

    Source: GLUE-baselines download_glue_data.py `format_mrpc`.
    """
    id_lines = Reader().split_at_tabs(path.with_name(MSR_DEV_IDS))
    dev_ids = {tuple(cells[:2]) for _, cells in id_lines}
    is_dev = split != task.train_split
    lines = Reader().split_at_tabs(path)
    next(lines, None)  # the names of the columns
    for number, cells in lines:
        if len(cells) != _MSR_WIDTH:
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns; 5 are expected, separated by tabs"
            )
        label, first_id, second_id, *texts = cells
        is_in_dev = (first_id, second_id) in dev_ids
        if is_in_dev == is_dev:
            row = dict(zip(task.text_columns, texts, strict=True))
            row[task.label_column] = label
            yield number, row


# The Hub


def open_hub(task: Task, split: str) -> Rows:
    """Open a split of the task's Hub data set.

    Without a connection the copy in the cache of `datasets` is read, or an error comes at once.
    """
    reason = check_reach(task)
    from datasets import load_dataset
    from datasets.packaged_modules.cache.cache import Cache

    repository = str(task.hub_dataset)
    name = f"Hub data set {repository}"
    if task.hub_subset:
        name += f" ({task.hub_subset})"
    try:
        if reason is None:
            revision = task.hub_revision
            dataset = load_dataset(repository, task.hub_subset, split=split, revision=revision)
        else:
            cache = Cache(
                repo_id=repository,
                dataset_name=repository.split("/")[-1],
                config_name=task.hub_subset,
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
    rows = Rows(f"{name}, split {split}", "row", _hub_rows(dataset))
    rows = flatten_label_studio(task, rows)
    return _name_classes(task, rows, _hub_class_names(dataset.features))


def check_reach(task: Task) -> str | None:
    """Return why only the copy in the cache can be read, None where the Hub can be reached.

    Refuse a task of which there is no copy then.
    """
    reason = why_unreachable()
    if reason is not None and not _is_cached(str(task.hub_dataset)):
        raise InputError(
            f"task {task.name}: {reason}, and {task.hub_dataset} is not in the local cache; "
            f"{_advice(task)}"
        )
    return reason


def _advice(task: Task) -> str:
    """Return how to give the data of a task as files."""
    files = [_file_names(task, split)[0] for split in task.splits]
    official = ""
    if task.tsv is not None:
        official = f", or the official TSV files of {task.tsv.folder}"
    return (
        'give the data as local files: --data_dir FOLDER (make: ARGS="--data_dir FOLDER"), which '
        f"may hold {', '.join(files)}{official}"
    )


def _is_cached(name: str) -> bool:
    """Return whether `datasets` keeps a copy, without importing it, which takes seconds."""
    from huggingface_hub import constants

    usual_cache = os.path.join(constants.HF_HOME, "datasets")
    cache = os.environ.get("HF_DATASETS_CACHE") or usual_cache
    # Folders are called owner___name, the name in snake_case.
    plain_name = name.replace("/", "").replace("_", "").lower()
    for folder in Path(cache).expanduser().glob("*"):
        plain_folder = folder.name.replace("_", "").lower()
        if plain_folder == plain_name:
            return True
    return False


def _hub_rows(dataset: Any) -> NumberedRows:
    """Yield rows as dicts."""
    number = 0
    for batch in dataset.iter(batch_size=1000):
        columns = batch.values()
        for values in zip(*columns, strict=True):
            number += 1
            yield number, dict(zip(dataset.column_names, values, strict=True))


def _hub_class_names(features: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the columns of a Hub data set, each with the names of its class numbers."""
    names = {}
    for column, feature in features.items():
        feature = getattr(feature, "feature", feature)  # of a list, that of its elements
        names[column] = getattr(feature, "names", None) or []
    return names


# Class numbers that the data has names for


def _name_classes(task: Task, rows: Rows, names_of_columns: Mapping[str, Sequence[str]]) -> Rows:
    """Return rows whose class numbers are the data's names, so that order cannot matter.

    They stay numbers where the task does not know the names. A -1 is no class and becomes None.
    """
    column = label_column_of(task, names_of_columns) or task.label_column
    names = names_of_columns.get(column, ())
    if not names or task.label_columns:
        return rows
    unknown = [name for name in names if name not in task.known_labels]
    if 0 < len(unknown) < len(names) and not task.column_labels:
        raise InputError(
            f"{rows.source}: its classes are {shorten(names)}, but task {task.name} has no "
            f"{shorten(unknown)}: write `labels` with the names of the data, or map its numbers: "
            f"labels: {{0: {names[0]}, 1: ...}}"
        )
    # Without names the numbers stay, and a -1 still becomes None.
    used_names = () if unknown else names
    return replace(rows, rows=_named_rows(rows, column, used_names))


def _named_rows(rows: Rows, column: str, names: Sequence[str]) -> NumberedRows:
    for number, row in rows.rows:
        value = row.get(column)
        if value is not None:
            name = None if value == -1 else _name_of_class(value, names)
            row = {**row, column: name}
        yield number, row


def _name_of_class(value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class number; a list has the names of its items."""
    if isinstance(value, list):
        return [_name_of_class(item, names) for item in value]
    is_class = isinstance(value, int) and 0 <= value < len(names)
    return names[value] if is_class else value
