"""Where the rows of a task come from: tables, CoNLL and SQuAD files, GLUE's official download, the Hub or its cache."""

import csv
import itertools
import json
import logging
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.files import read_text_lines
from bert_recipes.hub_access import why_unreachable
from bert_recipes.tasks.reading import label_of, read_examples
from bert_recipes.tasks.rows import Example, Split, TaggedExample
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
            return Rows(str(path), "line", _objects(path, "line", _json_lines(path)))
        case ".json":
            return _json_array(path, _parse(path.read_bytes(), path))
        case ".csv":
            return Rows(str(path), "line", _with_header(path, _split_csv(path)))
        case ".tsv":
            return Rows(str(path), "line", _with_header(path, _split_tabs(path)))
        case ".parquet":
            return Rows(str(path), "row", _parquet_rows(path))
    raise InputError(f"{path}: unknown ending '{path.suffix}'; allowed: {', '.join(TABLE_SUFFIXES)}")


def _parse(text: str | bytes, where: object) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: broken JSON ({error})") from error


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(read_text_lines(path), start=1):
        if line.strip():
            yield number, _parse(line, f"{path}, line {number}")


def _json_array(path: Path, content: Any) -> Rows:
    """Rows of an array of objects, which may stand under "data"."""
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise InputError(f'{path}: a list of objects is expected, or one under "data"; one object a line is .jsonl')
    return Rows(str(path), "row", _objects(path, "row", enumerate(rows, start=1)))


def _objects(path: Path, unit: str, values: Iterable[tuple[int, Any]]) -> _Numbered:
    for number, row in values:
        if not isinstance(row, dict):
            raise InputError(f"{path}, {unit} {number}: {type(row).__name__} found; an object is expected")
        yield number, row


def _split_tabs(path: Path) -> Iterator[tuple[int, list[str]]]:
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


def _parquet_rows(path: Path) -> _Numbered:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1000))
            yield from enumerate(itertools.chain.from_iterable(batches), start=1)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged or not a Parquet file ({error})") from error


# CoNLL and SQuAD


def read_conll(path: Path, words: str, tags: str) -> _Numbered:
    """Read sentences under these column names, numbered by the lines on which they start.

    The first column is the word and the last its tag; what stands between is passed over. A file of one column has no
    tags. A `-DOCSTART-` line starts a document; where there is none, every sentence is a document.

    Source: CoNLL-2003, Tjong Kim Sang and De Meulder 2003, section 2.1.
    """
    has_documents = any(line.startswith(DOCUMENT) for line in read_text_lines(path))
    document, start, width = -1 if has_documents else 0, 0, 0
    sentence: list[list[str]] = []
    for number, line in enumerate(itertools.chain(read_text_lines(path), [""]), start=1):
        line = line.strip(" \t\r\n")
        is_mark = line.startswith(DOCUMENT)
        if line and not is_mark:
            cells = re.split(r"[ \t]+", line)
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(
                    f"{path}, line {number}: {len(cells)} columns ('{line[:60]}'), but the first word has {width}; the tag is the last"
                )
            start = start if sentence else number
            sentence.append(cells)
            continue
        if sentence:
            row = {words: [cells[0] for cells in sentence], DOCUMENT: max(document, 0)}
            yield start, row | ({tags: [cells[-1] for cells in sentence]} if width > 1 else {})
            document += not has_documents
            sentence = []
        document += is_mark


def read_squad(path: Path, task: Task) -> Rows:
    """Read the questions of a .json file: the official form, or a list of the Hub's flat rows.

    Source: rajpurkar.github.io/SQuAD-explorer; google-research/bert run_squad.py `read_squad_examples`
    (`is_impossible` means no answer).
    """
    content = _parse(path.read_bytes(), path)
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not any(isinstance(item, dict) and "paragraphs" in item for item in articles):
        return _json_array(path, content)
    columns = (*task.text_columns, task.id_column or "id", task.label_column)
    names = dict(zip(("question", "context", "id", "answers"), columns, strict=True))
    rows: list[dict[str, Any]] = []
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    given = {**question, "context": paragraph["context"]}
                    if question.get("is_impossible"):
                        given["answers"] = []
                    row = {names[key]: value for key, value in given.items() if key in names}
                    rows.append({"title": article.get("title", ""), **row})
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not the official form of SQuAD after question {len(rows)} ({type(error).__name__}: {error})"
        ) from error
    return Rows(str(path), "question", enumerate(rows, start=1))


# GLUE's official download


# Microsoft's own file of MRPC, and GLUE's list of the pairs in it that are the development set.
MSR_FILE = "msr_paraphrase_train.txt"
MSR_DEV_IDS = "dev_ids.tsv"


def _glue_rows(path: Path, task: Task, split: str) -> _Numbered:
    """One file of the download: rows with the task's column names; test files have an id and no label.

    Source: huggingface/datasets glue.py; CoLA's labelled files have no header.
    """
    layout = task.tsv
    assert layout is not None
    is_test = split in task.test_splits
    columns = layout.test_text_columns if is_test else layout.text_columns
    name, column = (task.id_column or "idx", layout.id_column) if is_test else (task.label_column, layout.label_column)
    # A last column is counted from the end: MNLI's files differ in their number of labels.
    least = max(*columns, column) + 1 + (column < 0)
    most: int | None = None  # as many as the header has
    broken: list[int] = []
    for index, (number, cells) in enumerate(_split_tabs(path)):
        if index == 0 and (is_test or layout.has_header):
            # Were it no line of names, it would be lost.
            cell = cells[column] if -len(cells) <= column < len(cells) else ""
            if cell.replace(".", "", 1).isdecimal() or (not is_test and cell in task.labels):
                raise InputError(
                    f"{path}, line {number}: the first line is data ('{cell}'); put the official line of column names back"
                )
            least, most = max(least, len(cells)), len(cells)
        elif least <= len(cells) <= (most or len(cells)):
            row: dict[str, Any] = dict(zip(task.text_columns, (cells[place] for place in columns), strict=True))
            row[name] = int(cells[column]) if is_test and cells[column].isdecimal() else cells[column]
            yield number, row
        elif layout.drops_short_rows:
            broken.append(number)
        else:
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns, separated by tabs; the official {layout.folder} file of "
                f"the split '{split}' has {'at least ' if most is None else ''}{least}"
            )
    if broken:
        first = ", ".join(map(str, broken[:10])) + (", ..." if len(broken) > 10 else "")
        logger.warning("%s: %d lines with too few or too many columns were left out: %s", path, len(broken), first)


def _msr_rows(path: Path, task: Task, split: str) -> _Numbered:
    """GLUE's own rule: the pairs named in dev_ids.tsv are the development set, all others the training set.

    Source: GLUE-baselines download_glue_data.py `format_mrpc`.
    """
    dev_ids = {tuple(cells[:2]) for _, cells in _split_tabs(path.with_name(MSR_DEV_IDS))}
    wants_dev = split != task.train_split
    for index, (number, cells) in enumerate(_split_tabs(path)):
        if len(cells) != 5:
            raise InputError(f"{path}, line {number}: {len(cells)} columns; 5 are expected, separated by tabs")
        if index > 0 and ((cells[1], cells[2]) in dev_ids) == wants_dev:
            yield number, dict(zip((task.label_column, *task.text_columns), (cells[0], *cells[3:]), strict=True))


# The Hub


def open_hub(task: Task, split: str) -> Rows:
    """Open a split of the task's Hub data set; without a connection the copy in the cache of `datasets`, or an error at once."""
    reason = check_reach(task)
    from datasets import load_dataset
    from datasets.packaged_modules.cache.cache import Cache
    from huggingface_hub.errors import HfHubHTTPError

    # The HTTP client below the Hub's differs by version (httpx, httpx2): its errors are known by their common base class.
    bases = (kind for kind in HfHubHTTPError.__bases__ if issubclass(kind, Exception))
    errors: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, *bases)
    repository = str(task.hub_dataset)
    name = f"Hub data set {repository}" + (f" ({task.hub_subset})" if task.hub_subset else "")
    try:
        if reason is None:
            dataset = load_dataset(repository, task.hub_subset, split=split, revision=task.hub_revision)
        else:
            name_only, subset = repository.split("/")[-1], task.hub_subset
            cache = Cache(repo_id=repository, dataset_name=name_only, config_name=subset, version="auto", hash="auto")
            dataset = cache.as_dataset(split=split)
    except errors as error:
        detail = (str(error) or type(error).__name__).splitlines()[0] + (f"; {reason}" if reason is not None else "")
        raise InputError(
            f"task {task.name}: {name}, split '{split}': cannot be opened ({detail}); check the name, or {_advice(task)}"
        ) from error
    return Rows(f"{name}, split {split}", "row", _hub_rows(dataset, task))


def check_reach(task: Task) -> str | None:
    """Return why only the copy in the cache can be read, None where the Hub can be reached; refuse where there is no copy."""
    reason = why_unreachable()
    if reason is not None and not _is_cached(str(task.hub_dataset)):
        raise InputError(
            f"task {task.name}: {reason}, and {task.hub_dataset} is not in the local cache; {_advice(task)}"
        )
    return reason


def _advice(task: Task) -> str:
    files = [next(iter(task.local_files.get(split, ())), f"{split}.jsonl") for split in task.splits]
    official = f", or the official TSV files of {task.tsv.folder}" if task.tsv is not None else ""
    return (
        'give the data as local files: --data_dir FOLDER (make: ARGS="--data_dir FOLDER"), which may hold '
        f"{', '.join(files)}{official}"
    )


def _is_cached(name: str) -> bool:
    """Whether `datasets` keeps a copy; found out without importing it, which takes seconds."""
    from huggingface_hub import constants

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(constants.HF_HOME, "datasets")).expanduser()
    # Folders are called owner___name, the name in snake_case.
    plain = name.replace("/", "").replace("_", "").lower()
    return cache.is_dir() and any(folder.name.replace("_", "").lower() == plain for folder in cache.iterdir())


def _hub_rows(dataset: Any, task: Task) -> _Numbered:
    """Rows as dicts; class numbers become the Hub's names where the task knows these, so that order cannot matter."""
    feature = dataset.features.get(task.label_column)
    names = getattr(getattr(feature, "feature", feature), "names", None) or []  # of a list, its elements'
    is_known = set(names) <= {*task.labels, *task.column_labels}

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(item) for item in value]
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else value

    batches = dataset.iter(batch_size=1000)
    rows = (values for batch in batches for values in zip(*batch.values(), strict=True))
    for number, values in enumerate(rows, start=1):
        row = dict(zip(dataset.column_names, values, strict=True))
        yield number, row | ({task.label_column: named(row[task.label_column])} if names and is_known else {})


# Local files


def open_local(task: Task, split: str, data_dir: str | None) -> Rows:
    """Open the file of a split, found in `data_dir`, or where the task's own `files` say."""
    path = find_local(task, split, data_dir)
    if path.name == MSR_FILE and task.tsv is not None:
        return Rows(str(path), "line", _msr_rows(path, task, split))
    if task.tsv is not None and path.name == task.tsv.files.get(split):
        return Rows(str(path), "line", _glue_rows(path, task, split))
    if task.kind == "question_answering" and path.suffix.lower() == ".json":
        return read_squad(path, task)
    if task.kind == "token_classification" and path.suffix.lower() not in TABLE_SUFFIXES:
        return Rows(str(path), "line", read_conll(path, task.text_columns[0], task.label_column))
    return read_table(path)


def find_local(task: Task, split: str, data_dir: str | None) -> Path:
    """Return where the file of a split lies."""
    if data_dir is None:
        path = Path(task.files[split])
        if not path.is_file():
            raise InputError(
                f"task {task.name}, split '{split}': {path}: no such file; mend `files` in the task file, or give --data_dir"
            )
        return path
    if not Path(data_dir).is_dir():
        raise InputError(f"--data_dir {data_dir}: no such folder; give the one with the data of task {task.name}")
    local = [task.local_name, f"glue/{task.local_name}", f"ner/{task.local_name}"] if task.local_name else []
    official = [task.tsv.folder, f"glue/{task.tsv.folder}"] if task.tsv is not None else []
    folders, names = list(dict.fromkeys([".", *local, *official])), _file_names(task, split)
    for folder in folders:
        for name in names:
            path = Path(data_dir, folder, name)
            # Without the list of ids nobody can tell the two splits of that file apart.
            if path.is_file() and (name != MSR_FILE or path.with_name(MSR_DEV_IDS).is_file()):
                return path
    subfolders = f" and its subfolders {', '.join(folders[1:])}" if folders[1:] else ""
    shown = ", ".join(f"{name} with {MSR_DEV_IDS}" if name == MSR_FILE else name for name in names)
    raise InputError(
        f"task {task.name}, split '{split}': no file in --data_dir {data_dir}{subfolders}; looked for {shown}"
    )


def _file_names(task: Task, split: str) -> list[str]:
    """File names of a split, the surest first."""
    names = [task.relative_files[split]] if split in task.files else []
    names += [*task.local_files.get(split, ()), f"{split}.jsonl"]
    if task.tsv is not None:
        names += [MSR_FILE] if task.tsv.folder == "MRPC" and split not in task.test_splits else []
        names += [task.tsv.files[split]] if split in task.tsv.files else []
    # The second parquet is as the Hub has it (`hf download`).
    names += [f"{split}.csv", f"{split}.parquet", f"{split}-00000-of-00001.parquet", f"{split}.json"]
    names += [f"{split}.tsv"] if task.tsv is None else []
    names += [f"{split}.txt", f"{split}.conll"] if task.kind == "token_classification" else []
    return list(dict.fromkeys(names))


# Splits

# Our choice. A limit always draws the same examples, so that runs with it can be compared.
SAMPLE_SEED = 12345


def load_split(
    task: Task, split: str, *, data_dir: str | None, max_examples: int | None = None, need_labels: bool = False
) -> Split:
    """Read a split, check every row of it, and draw a sample where there is a limit.

    Args:
        data_dir: Local folder: it, its subfolders named like the task (`mrpc`, `glue/mrpc`, `MRPC`, `squad`, `swag`,
            `ner/conll2003`) are searched in this order. None: the task's own `files`, or the Hub.
        max_examples: Draw this many with a fixed seed and keep them in the order of the file. Sentences of a document
            are drawn together: whole documents, of the last one the beginning.
        need_labels: Refuse a split with hidden labels.

    Example:
        >>> load_split(get_task("rte"), "train", data_dir="data/glue").num_rows  # doctest: +SKIP
        2490
    """
    if split not in task.splits:
        raise InputError(f"task {task.name} has no split '{split}'; it has: {', '.join(task.splits)}")
    is_local = data_dir is not None or bool(task.files)
    rows = open_local(task, split, data_dir) if is_local else open_hub(task, split)
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
    return [examples[index] for index in sorted(list(itertools.chain.from_iterable(documents))[:max_examples])]


def _warn_of_unused_labels(task: Task, examples: Sequence[Example], source: str) -> None:
    if task.kind not in ("sequence_classification", "token_classification") or label_of(examples[0]) is None:
        return
    labels = map(label_of, examples)
    used = {number for label in labels for number in (label if isinstance(label, tuple) else (label,))}
    unused = [name for number, name in enumerate(task.labels) if number not in used]
    if unused:
        logger.warning(
            "%s: no row has the label %s; the model cannot learn it: check `labels` of task %s",
            source,
            ", ".join(unused),
            task.name,
        )


def labels_in_data(task: Task) -> list[str]:
    """What stands in the label column of a user's training file; nothing where it cannot be read, or holds more than 100."""
    found: set[str] = set()
    try:
        for _, row in open_local(task, task.train_split, None).rows:
            value = row.get(task.label_column)
            parts = value.split(task.label_separator) if task.label_separator and isinstance(value, str) else value
            found |= {str(part).strip() for part in (parts if isinstance(parts, list) else [parts])}
    except (InputError, OSError, KeyError):
        return []  # the message comes when the data is read
    found -= {"", "None", "-1"}
    return sorted(found) if len(found) <= 100 else []
