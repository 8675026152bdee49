"""Where the rows of a task come from: tables, CoNLL and SQuAD files, GLUE's official download, the Hub or its cache."""

import csv
import json
import logging
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.hub_access import why_unreachable
from bert_recipes.tasks.reading import label_of, read_examples
from bert_recipes.tasks.rows import Example, Split, TaggedExample, TextExample
from bert_recipes.tasks.task import DOCUMENT, TABLE_SUFFIXES, Rows, Task


logger = logging.getLogger(__name__)

# Number of a row and its columns.
_Numbered = Iterator[tuple[int, Mapping[str, Any]]]


# Tables


def read_table(path: Path) -> Rows:
    """Open a table by the ending of its file, one of `TABLE_SUFFIXES`; text is UTF-8, with or without a byte-order mark.

    `.csv` is read with quotes; `.tsv` without any, as the files of GLUE are written: a tab always starts a new column.
    """
    match path.suffix.lower():
        case ".jsonl":
            return Rows(str(path), "line", _json_lines(path))
        case ".json":
            return Rows(str(path), "row", _objects(path, read_json(path)))
        case ".csv":
            return Rows(str(path), "line", _with_header(path, _split_csv(path)))
        case ".tsv":
            return Rows(str(path), "line", _with_header(path, split_tabs(path)))
        case ".parquet":
            return Rows(str(path), "row", _parquet_rows(path))
    raise InputError(f"{path}: unknown ending '{path.suffix}'; allowed: {', '.join(TABLE_SUFFIXES)}")


def read_text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line ends; only a line feed ends a line."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file to UTF-8"
                ) from error


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return json.loads("".join(read_text_lines(path)))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: broken JSON ({error.msg}, column {error.colno})") from error
    except RecursionError as error:
        raise InputError(f"{path}: broken JSON (nested too deeply)") from error


def split_tabs(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of a file of tab-separated columns without quoting, without its blank lines."""
    # What csv.reader does with QUOTE_NONE, but for a lone carriage return, which it takes for the end of a row.
    for number, line in enumerate(read_text_lines(path), start=1):
        line = line.rstrip("\r\n")
        if line:
            yield number, line.split("\t")


def _split_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    # The limit is there for damaged files and would refuse long documents; strict quoting finds the damage itself.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(read_text_lines(path), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: broken CSV ({error}); check the quotes") from error


def _with_header(path: Path, lines: Iterator[tuple[int, list[str]]]) -> _Numbered:
    number, header = next(lines, (0, []))
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise InputError(f"{path}, line {number}: the header names {', '.join(twice)} twice; rename one")
    for number, cells in lines:
        if len(cells) != len(header):
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns, but the header has {len(header)} ({', '.join(header)})"
            )
        yield number, dict(zip(header, cells, strict=True))


def _json_lines(path: Path) -> _Numbered:
    for number, line in enumerate(read_text_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: broken JSON ({error}); one object a line is expected") from error
        if not isinstance(row, dict):
            found = type(row).__name__
            raise InputError(
                f'{path}, line {number}: {found} found; one object a line is expected, like {{"text": ...}}'
            )
        yield number, row


def _objects(path: Path, content: Any) -> _Numbered:
    """Rows of a JSON array of objects, which may stand under "data"."""
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise InputError(f'{path}: a list of objects is expected, or one under "data"; one object a line is .jsonl')
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number}: {type(row).__name__} found; an object is expected")
        yield number, row


def _parquet_rows(path: Path) -> _Numbered:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        detail = str(error).splitlines()[0]
        raise InputError(f"{path}: damaged or not a Parquet file (after row {number}: {detail})") from error


# CoNLL and SQuAD


def read_conll(path: Path, words: str, tags: str) -> Rows:
    """Read sentences; the numbers of the rows are the lines on which they start.

    The first column is the word and the last its tag; what stands between is passed over. A file of one column has no
    tags. A `-DOCSTART-` line starts a document; where there is none, every sentence is a document.

    Args:
        path: The file.
        words: Name that the words get as a column.
        tags: Name that the tags get.

    Source: CoNLL-2003, Tjong Kim Sang and De Meulder 2003, section 2.1.
    """
    return Rows(str(path), "line", _sentences(path, words, tags))


def _sentences(path: Path, words: str, tags: str) -> _Numbered:
    has_documents = any(line.startswith(DOCUMENT) for line in read_text_lines(path))
    document, num_sentences, start = -1, 0, 0
    first: tuple[int, int] | None = None  # line and columns of the first word
    sentence: list[list[str]] = []

    def row() -> tuple[int, dict[str, Any]]:
        columns: dict[str, Any] = {words: [cells[0] for cells in sentence]}
        columns[DOCUMENT] = max(document, 0) if has_documents else num_sentences
        if len(sentence[0]) > 1:
            columns[tags] = [cells[-1] for cells in sentence]
        return start, columns

    for number, line in enumerate(read_text_lines(path), start=1):
        line = line.strip(" \t\r\n")
        is_mark = line.startswith(DOCUMENT)
        if line and not is_mark:
            cells = re.split(r"[ \t]+", line)
            first = first or (number, len(cells))
            if len(cells) != first[1]:
                raise InputError(
                    f"{path}, line {number}: {len(cells)} columns ('{line[:60]}'), but line {first[0]} has {first[1]}; "
                    "every word needs the same columns, separated by spaces or tabs, the tag last"
                )
            start = start if sentence else number
            sentence.append(cells)
            continue
        if sentence:
            yield row()
            num_sentences += 1
            sentence = []
        document += is_mark
    if sentence:
        yield row()


def read_squad(path: Path, task: Task) -> Rows:
    """Read the questions of a .json file: the official form, or a list of the Hub's flat rows.

    Source: rajpurkar.github.io/SQuAD-explorer; google-research/bert run_squad.py `read_squad_examples`
    (`is_impossible` means no answer).
    """
    content = read_json(path)
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise InputError(
            f'{path}: not SQuAD; expected {{"data": [{{"paragraphs": [{{"context", "qas"}}]}}]}}, or flat rows'
        )
    if isinstance(content, dict) and any(isinstance(article, dict) and "paragraphs" in article for article in rows):
        return Rows(str(path), "question", _questions(path, rows, task))
    return Rows(str(path), "row", _objects(path, rows))


def _questions(path: Path, articles: list[Any], task: Task) -> _Numbered:
    def listed(holder: Any, key: str, where: str) -> list[Any]:
        if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
            raise InputError(f'{path}, {where}: no list "{key}"; the official form of SQuAD has one')
        return list(holder[key])

    number = 0
    for article_number, article in enumerate(articles, start=1):
        where = f"article {article_number}"
        for paragraph_number, paragraph in enumerate(listed(article, "paragraphs", where), start=1):
            where = f"article {article_number}, paragraph {paragraph_number}"
            for question in listed(paragraph, "qas", where):
                number += 1
                if not isinstance(question, dict):
                    found = type(question).__name__
                    raise InputError(f"{path}, {where}: a question is {found}; an object is expected")
                given = {key: question[key] for key in ("question", "id", "answers") if key in question}
                given |= {"context": paragraph["context"]} if "context" in paragraph else {}
                names = {"question": task.text_columns[0], "context": task.text_columns[1]}
                names |= {"id": task.id_column or "id", "answers": task.label_column}
                row = {"title": article.get("title", "")} | {names[key]: value for key, value in given.items()}
                if question.get("is_impossible"):
                    row[task.label_column] = []
                yield number, row


# GLUE's official download


# Microsoft's own file of MRPC, and GLUE's list of the pairs in it that are the development set.
MSR_FILE = "msr_paraphrase_train.txt"
MSR_DEV_IDS = "dev_ids.tsv"


def read_glue_tsv(path: Path, task: Task, split: str) -> Rows:
    """Read one file of the download: rows with the task's column names; test files have an id and no label.

    Source: huggingface/datasets glue.py; CoLA's labelled files have no header.
    """
    rows = _msr_rows(path, task, split) if path.name == MSR_FILE else _glue_rows(path, task, split)
    return Rows(str(path), "line", rows)


def _glue_rows(path: Path, task: Task, split: str) -> _Numbered:
    layout = task.tsv
    assert layout is not None
    is_test = split in task.test_splits
    columns = layout.test_text_columns if is_test else layout.text_columns
    name, column = (task.id_column or "idx", layout.id_column) if is_test else (task.label_column, layout.label_column)
    # A last column is counted from the end: MNLI's files differ in their number of labels.
    least = max(*columns, column) + 1 + (column < 0)
    most: float = float("inf")
    broken: dict[int, str] = {}
    for index, (number, cells) in enumerate(split_tabs(path)):
        if index == 0 and (is_test or layout.has_header):
            # Were it no line of names, it would be lost.
            cell = cells[column] if -len(cells) <= column < len(cells) else ""
            if cell.replace(".", "", 1).isdecimal() or (not is_test and cell in task.labels):
                raise InputError(
                    f"{path}, line {number}: the first line is data ('{cell}'), but the official file starts with a line "
                    "of column names; put it back"
                )
            least, most = max(least, len(cells)), len(cells)
        elif least <= len(cells) <= most:
            row: dict[str, Any] = dict(zip(task.text_columns, (cells[place] for place in columns), strict=True))
            row[name] = int(cells[column]) if is_test and cells[column].isdecimal() else cells[column]
            yield number, row
        elif layout.drops_short_rows:
            broken[number] = "few" if len(cells) < least else "many"
        else:
            allowed = f"at least {least} are" if len(cells) < least else f"{most}, as in the header, are"
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns, {allowed} expected in the official "
                f"{layout.folder} file of the split '{split}', separated by tabs"
            )
    if broken:
        first = ", ".join(map(str, list(broken)[:10])) + (", ..." if len(broken) > 10 else "")
        what = " or too ".join(sorted(set(broken.values())))
        logger.warning("%s: %d broken lines (too %s columns) were left out: %s", path, len(broken), what, first)


def _msr_rows(path: Path, task: Task, split: str) -> _Numbered:
    """GLUE's own rule: the pairs named in dev_ids.tsv are the development set, all others the training set.

    Source: GLUE-baselines download_glue_data.py `format_mrpc`.
    """
    ids_file = path.with_name(MSR_DEV_IDS)
    dev_ids = {tuple(cells[:2]) for _, cells in split_tabs(ids_file)}
    wants_dev = split != task.train_split
    for index, (number, cells) in enumerate(split_tabs(path)):
        if len(cells) != 5:
            raise InputError(f"{path}, line {number}: {len(cells)} columns; 5 are expected, separated by tabs")
        if index > 0 and ((cells[1], cells[2]) in dev_ids) == wants_dev:
            first, second = task.text_columns
            yield number, {task.label_column: cells[0], first: cells[3], second: cells[4]}


# The Hub

_ADVICE = '--data_dir FOLDER (make: ARGS="--data_dir FOLDER")'


def open_hub(task: Task, split: str, expected_files: str) -> Rows:
    """Open a split of the task's Hub data set, `expected_files` being what --data_dir may hold instead.

    Without a connection the copy in the cache of `datasets` is read, where there is one; otherwise the error comes at
    once and not after the client's many tries.
    """
    reason = check_reach(task, expected_files)
    name = f"Hub data set {task.hub_dataset}" + (f" ({task.hub_subset})" if task.hub_subset else "")
    open_errors: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, *_http_errors())
    try:
        dataset = _from_cache(task, split) if reason is not None else _from_hub(task, split)
    except open_errors as error:
        detail = (str(error) or type(error).__name__).splitlines()[0] + (f"; {reason}" if reason is not None else "")
        raise InputError(
            f"task {task.name}: {name}, split '{split}': cannot be opened ({detail}); check the name, or give local files: "
            f"{_ADVICE}, which may hold {expected_files}"
        ) from error
    return Rows(f"{name}, split {split}", "row", _hub_rows(dataset, task))


def check_reach(task: Task, expected_files: str) -> str | None:
    """Return why only the copy in the cache can be read, None where the Hub can be reached; refuse where there is no copy."""
    assert task.hub_dataset is not None
    reason = why_unreachable()
    if reason is not None and not _is_cached(task.hub_dataset):
        raise InputError(
            f"task {task.name}: {reason}, and {task.hub_dataset} is not in the local cache; give "
            f"the data as local files: {_ADVICE}, which may hold {expected_files}"
        )
    return reason


def _from_hub(task: Task, split: str) -> Any:
    from datasets import load_dataset

    return load_dataset(task.hub_dataset, task.hub_subset, split=split, revision=task.hub_revision)


def _from_cache(task: Task, split: str) -> Any:
    from datasets.packaged_modules.cache.cache import Cache

    owner_and_name = str(task.hub_dataset)
    builder = Cache(
        repo_id=owner_and_name,
        dataset_name=owner_and_name.split("/")[-1],
        config_name=task.hub_subset,
        version="auto",
        hash="auto",
    )
    return builder.as_dataset(split=split)


def _is_cached(name: str) -> bool:
    """Whether `datasets` keeps a copy; found out without importing it, which takes seconds."""
    from huggingface_hub import constants

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(constants.HF_HOME, "datasets")).expanduser()
    # Folders are called owner___name, the name in snake_case.
    plain = name.replace("/", "").replace("_", "").lower()
    return cache.is_dir() and any(folder.name.replace("_", "").lower() == plain for folder in cache.iterdir())


def _http_errors() -> tuple[type[Exception], ...]:
    # The HTTP client below the Hub's differs by version (httpx, httpx2): its errors are known by their common base class.
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(kind for kind in HfHubHTTPError.__bases__ if issubclass(kind, Exception))


def _hub_rows(dataset: Any, task: Task) -> _Numbered:
    """Rows as dicts; class numbers become the Hub's names where the task knows these, so that order cannot matter."""
    names = _class_names(dataset, task)
    number = 0
    for batch in dataset.iter(batch_size=1000):
        columns = list(batch)
        for values in zip(*batch.values(), strict=True):
            number += 1
            row = dict(zip(columns, values, strict=True))
            if names is not None:
                row[task.label_column] = _hub_named(row[task.label_column], names)
            yield number, row


def _class_names(dataset: Any, task: Task) -> list[str] | None:
    feature = dataset.features.get(task.label_column)
    feature = getattr(feature, "feature", feature)  # of a list, its elements
    names = getattr(feature, "names", None)
    return list(names) if names and set(names) <= {*task.labels, *task.column_labels} else None


def _hub_named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_hub_named(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


# Local files

# Folders of a collection in which that of the task may lie.
_COLLECTIONS = ("", "glue", "ner")


def open_local(task: Task, split: str, data_dir: str | None) -> Rows:
    """Open the file of a split, found in `data_dir`, or where the task's own `files` say."""
    path = find_local(task, split, data_dir)
    if task.tsv is not None and path.name in (task.tsv.files.get(split), MSR_FILE):
        return read_glue_tsv(path, task, split)
    if task.kind == "question_answering" and path.suffix.lower() == ".json":
        return read_squad(path, task)
    if task.kind == "token_classification" and path.suffix.lower() not in TABLE_SUFFIXES:
        return read_conll(path, task.text_columns[0], task.label_column)
    return read_table(path)


def find_local(task: Task, split: str, data_dir: str | None) -> Path:
    """Return where the file of a split lies."""
    path = Path(task.files[split]) if data_dir is None else _find(task, split, Path(data_dir))
    if not path.is_file():
        raise InputError(
            f"task {task.name}, split '{split}': {path}: no such file; mend `files` in the task file, or give the folder of "
            "the data with --data_dir"
        )
    return path


def _find(task: Task, split: str, data_dir: Path) -> Path:
    if not data_dir.exists():
        raise InputError(
            f"--data_dir {data_dir}: no such folder; give the one that holds the data of task {task.name}"
        )
    if not data_dir.is_dir():
        raise InputError(f"--data_dir {data_dir}: a file; give the folder in which it lies")
    folders = list(dict.fromkeys(_folders(task)))
    names = list(dict.fromkeys(_names(task, split)))
    for folder in folders:
        for name in names:
            path = data_dir / folder / name
            # Without the list of ids nobody can tell the two splits of that file apart.
            if path.is_file() and (name != MSR_FILE or path.with_name(MSR_DEV_IDS).is_file()):
                return path
    places = ", ".join(folder for folder in folders if folder != ".")
    shown = ", ".join(f"{name} with {MSR_DEV_IDS}" if name == MSR_FILE else name for name in names)
    subfolders = f" and its subfolders {places}" if places else ""
    raise InputError(
        f"task {task.name}, split '{split}': no file in --data_dir {data_dir}{subfolders}; looked for {shown}"
    )


def _folders(task: Task) -> Iterator[str]:
    yield "."
    if task.local_name:
        yield from (Path(collection, task.local_name).as_posix() for collection in _COLLECTIONS)
    if task.tsv is not None:
        yield from (task.tsv.folder, f"glue/{task.tsv.folder}")


def _names(task: Task, split: str) -> Iterator[str]:
    """File names of a split, the surest first."""
    if split in task.files:
        yield task.relative_files[split]
    yield from task.local_files.get(split, ())
    yield f"{split}.jsonl"
    if task.tsv is not None:
        if task.tsv.folder == "MRPC" and split not in task.test_splits:
            yield MSR_FILE
        if split in task.tsv.files:
            yield task.tsv.files[split]
    yield from (f"{split}{suffix}" for suffix in (".csv", ".parquet", ".json"))
    if task.tsv is None:
        yield f"{split}.tsv"
    if task.kind == "token_classification":
        yield from (f"{split}.txt", f"{split}.conll")


# Splits

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
    """See at once whether local files are there, or else the Hub within reach; nothing is read."""
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


def labels_in_data(task: Task) -> list[str]:
    """What stands in the label column of a user's training file; nothing where it cannot be read, or holds more than 100."""
    path = Path(task.files.get(task.train_split, ""))
    is_conll = task.kind == "token_classification" and path.suffix.lower() not in TABLE_SUFFIXES
    found: set[str] = set()
    try:
        for _, row in (read_conll(path, "", task.label_column) if is_conll else read_table(path)).rows:
            value = row.get(task.label_column)
            parts = value.split(task.label_separator) if task.label_separator and isinstance(value, str) else value
            found |= {str(part).strip() for part in (parts if isinstance(parts, list) else [parts])}
    except (InputError, OSError):
        return []  # the message comes when the data is read
    found -= {"", "None", "-1"}
    return sorted(found) if len(found) <= 100 else []
