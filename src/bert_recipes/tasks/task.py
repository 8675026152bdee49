"""The row of a task: everything that is special about it, and a user's own made from the values of a task file."""

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from bert_recipes.errors import InputError


TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
# Column of a row that says which document the sentence stands in; named after the mark, so that no table has it.
DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True, kw_only=True)
class TsvLayout:
    """Where a task's columns stand in the files of the official GLUE download; columns are numbered from 0."""

    folder: str
    files: Mapping[str, str]  # split -> file name
    text_columns: tuple[int, ...]
    label_column: int
    has_header: bool = True  # of the labelled files; test files always have one
    test_text_columns: tuple[int, ...] = (1,)
    id_column: int = 0  # of the test files
    # Lines with another number of columns than the header are known to be in the published file: they are dropped,
    # counted and logged, as the Hub's data set leaves them out. Elsewhere such a line is an error.
    drops_short_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that is special about a task."""

    name: str
    kind: str
    # sequence_classification: one or two columns; token_classification: the words; question_answering: question and
    # context; multiple_choice: the context, and optionally the start that the choices share.
    text_columns: tuple[str, ...]
    label_column: str  # of the answers for question_answering
    choice_columns: tuple[str, ...] = ()  # multiple_choice: one for each choice, or one that holds a list
    id_column: str | None = None  # the row number where it is None
    labels: tuple[str, ...] = ()  # in the order of their numbers
    problem_type: str = PROBLEM_TYPES[0]  # only of meaning for sequence_classification
    label_range: tuple[float, float] | None = None
    train_split: str = "train"  # "" means that there is none
    validation_splits: tuple[str, ...] = ("validation",)
    test_splits: tuple[str, ...] = ("test",)
    metrics: tuple[str, ...] = ("accuracy",)
    # Chooses the checkpoint, larger is better; with the split's suffix where there are several ("matched_accuracy").
    best_metric: str = "accuracy"
    hub_dataset: str | None = None
    hub_subset: str | None = None
    hub_revision: str | None = None  # only where it was verified
    local_name: str = ""  # folder (`mrpc`) under --data_dir
    files: Mapping[str, str] = field(default_factory=dict)  # split -> file of a user's task, absolute
    local_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # split -> names its file commonly has
    column_labels: Mapping[str, str] = field(default_factory=dict)  # label as files write it -> name in `labels`
    # Multi-label: what stands between the labels of a row where they are one text; without it the column holds a list.
    label_separator: str | None = None
    tsv: TsvLayout | None = None
    published_rows: Mapping[str, int] = field(default_factory=dict)  # split -> rows
    submission_files: Mapping[str, str] = field(default_factory=dict)  # test split -> file of a GLUE submission
    paper_test: Mapping[str, float] = field(default_factory=dict)  # percent, hidden test set: BERT, Table 1, BERT-base
    licence: str = ""
    source: str = ""  # where this row was taken from

    @property
    def splits(self) -> list[str]:
        """Names of all splits, that of training first."""
        return [name for name in (self.train_split, *self.validation_splits, *self.test_splits) if name]

    @property
    def relative_files(self) -> dict[str, str]:
        """`files` without the folder that they have in common, so that they can be found in another one."""
        if not self.files:
            return {}
        folder = os.path.commonpath([os.path.dirname(file) for file in self.files.values()])
        return {split: Path(os.path.relpath(file, folder)).as_posix() for split, file in self.files.items()}


# Names of metrics


def is_bio(names: Iterable[str]) -> bool:
    """Tell whether labels are O, B-X and I-X and nothing else."""
    names = tuple(names)
    return "O" in names and len(names) > 1 and all(name == "O" or name[:2] in ("B-", "I-") for name in names)


# Metrics that give values of other names than their own; the first is the one to choose a checkpoint by.
_FIGURES = {
    "multi_label": ("f1_micro", "f1_macro", "subset_accuracy"),
    "entities": ("f1", "precision", "recall", "accuracy"),
    "squad": ("f1", "exact_match"),
    "squad_v2": ("f1", "exact", "best_f1", "best_exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact"),
}


def split_suffixes(splits: Sequence[str]) -> list[str]:
    """Tell the metrics of several validation splits apart: by the split's name without "validation_".

    Example:
        >>> split_suffixes(["validation", "validation_hard"])
        ['', 'hard']
    """
    return [name.removeprefix("validation").strip("_") if len(splits) > 1 else "" for name in splits]


def with_suffix(suffix: str, figure: str) -> str:
    """Name a metric in the results, without "eval_"."""
    return f"{suffix}_{figure}" if suffix else figure


def figure_names(metrics: Sequence[str], splits: Sequence[str], labels: Sequence[str] = ()) -> list[str]:
    """List the values by which a checkpoint can be chosen, those of the first validation split first."""
    figures = [figure for name in metrics for figure in _FIGURES.get(name, (name,))]
    if "entities" in metrics:
        types = dict.fromkeys(label[2:] for label in labels if label[:2] in ("B-", "I-"))
        figures += [f"{name}_{figure}" for name in types for figure in ("f1", "precision", "recall")]
    return [with_suffix(suffix, figure) for suffix in split_suffixes(splits) or [""] for figure in figures]


# A task file


def _convert(hint: Any, value: Any) -> Any:
    """Make what a field's type says of texts, lists and mappings of texts; ValueError where that cannot be."""
    origin, of = get_origin(hint), get_args(hint)
    if origin is UnionType:  # or None, of which a file is silent
        return _convert(of[0], value)
    if (origin is Mapping or hint is TsvLayout) and not isinstance(value, dict):
        raise ValueError("a mapping is expected, like {train: train.csv}")
    if hint is TsvLayout:
        hints = get_type_hints(TsvLayout)
        try:
            return TsvLayout(**{name: _convert(hints[name], item) for name, item in value.items()})
        except (KeyError, TypeError) as error:
            raise ValueError(f"{error}; keys: {', '.join(hints)}") from None
    if origin is Mapping:
        return {name: _convert(of[1], item) for name, item in value.items()}
    if origin is tuple:
        return tuple(_convert(of[0], item) for item in (value if isinstance(value, list) else [value]))
    if not isinstance(value, str):
        raise ValueError(f"one text is expected, {value!r} found")
    if hint is bool:
        if value not in ("true", "false"):
            raise ValueError(f"{value!r}; allowed: true, false")
        return value == "true"
    try:
        return hint(value)
    except ValueError:
        raise ValueError(f"a number is expected, got {value!r}") from None


KEYS = tuple(field.name for field in dataclasses.fields(Task) if field.name != "column_labels")

_COLUMNS: dict[str, dict[str, Any]] = {
    "sequence_classification": {"text_columns": (), "label_column": "label"},
    "token_classification": {"text_columns": ("tokens",), "label_column": "labels"},
    "question_answering": {"text_columns": ("question", "context"), "label_column": "answers", "id_column": "id"},
    "multiple_choice": {"text_columns": (), "label_column": "label"},
}
_METRICS = {
    "single_label_classification": ("accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"),
    "multi_label_classification": ("multi_label", "accuracy", "f1_macro", "f1_micro"),
    "regression": ("pearson", "spearmanr"),
    "token_classification": ("entities", "accuracy", "f1_macro", "f1_micro", "matthews_correlation"),
    "question_answering": ("squad", "squad_v2"),
    "multiple_choice": ("accuracy", "f1_macro", "f1_micro", "matthews_correlation"),
}


def build_task(
    values: Mapping[str, Any],
    place: Callable[[str | None], str],
    folder: Path,
    default_name: str,
    labels_in_data: Callable[[Task], list[str]],
) -> Task:
    """Make a row from the values of a task file and check that it makes sense.

    Args:
        values: Key -> text, list of texts, mapping of texts, or None. All numbers are still texts.
        place: Where a key stands ("task.yaml, line 3"; the file alone for None), for messages.
        folder: What relative `files` are relative to.
        labels_in_data: Lists the labels of the training file, where the row has none.
    """

    def refuse(key: str, message: str) -> InputError:
        return InputError(f"{place(key if key in values else None)}: {message}")

    hints = get_type_hints(Task)
    fields: dict[str, Any] = {}
    for key, value in values.items():
        if key not in KEYS:
            nearest = difflib.get_close_matches(key.replace("-", "_"), KEYS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}? " if nearest else ""
            raise refuse(key, f"unknown key '{key}'; {hint}Keys of a task file: {', '.join(KEYS)}")
        # Labels are a list of names, or {value in the files: name}, in which several values may have one name.
        is_mapping = key == "labels" and isinstance(value, dict)
        try:
            if value is not None:
                fields[key] = _convert(hints["column_labels" if is_mapping else key], value)
        except ValueError as error:
            raise refuse(key, f"{key}: {error}") from None
    kind = fields.get("kind")
    if kind not in KINDS:
        raise refuse("kind", f"kind is {f'{kind!r}' if kind else 'missing'}; allowed: {', '.join(KINDS)}")
    fields = {"name": default_name, **_COLUMNS[kind], **fields}
    if "id_column" in values and not values["id_column"]:
        fields["id_column"] = None
    if isinstance(fields.get("labels"), dict):
        fields["column_labels"] = fields["labels"]
        fields["labels"] = tuple(dict.fromkeys(fields["labels"].values()))
    if "files" in fields:
        files = fields["files"] = {name: str((folder / file).resolve()) for name, file in fields["files"].items()}
        fields.setdefault("train_split", "train" if "train" in files else "")
        fields.setdefault("validation_splits", tuple(name for name in files if name.startswith("validation")))
        fields.setdefault("test_splits", tuple(name for name in files if name.startswith("test")))
    task = Task(**fields)
    if "metrics" not in fields:
        allowed = _allowed_metrics(task)
        task = dataclasses.replace(task, metrics=allowed if "pearson" in allowed else allowed[:1])
    if "best_metric" not in fields:
        figures = figure_names(task.metrics, task.validation_splits, task.labels)
        task = dataclasses.replace(task, best_metric=figures[0] if figures else "")
    for is_wrong, key, message in _slips(task):
        if is_wrong:
            if key == "labels" and not task.labels and (found := labels_in_data(task)):
                message += f"; the training data has {json.dumps(found, ensure_ascii=False)}, to be copied"
            raise refuse(key, f"{key}: {message}")
    return task


def _allowed_metrics(task: Task) -> tuple[str, ...]:
    allowed = _METRICS.get(task.problem_type if task.kind == "sequence_classification" else task.kind, ())
    return allowed[1:] if task.kind == "token_classification" and not is_bio(task.labels) else allowed


def _slips(task: Task) -> Iterator[tuple[bool, str, str]]:
    """What makes no sense in a row, the gravest first: whether it is so, key and message."""
    yield not task.files and task.hub_dataset is None, "files", "give `files` ({train: train.csv}), or hub_dataset"
    strange = set(task.files).symmetric_difference(task.splits) if task.files else ()
    message = f"there are {', '.join(task.files)}, but the splits are {', '.join(task.splits) or 'none'} (train, validation..., test..., or as *_splits say)"
    yield bool(strange), "files", message
    for key, names in (("validation_splits", task.validation_splits), ("test_splits", task.test_splits)):
        yield any(task.splits.count(name) > 1 for name in names), key, f"{', '.join(names)}: name each split once"
    is_twice = len(set(split_suffixes(task.validation_splits))) < len(task.validation_splits)
    message = f"metrics of {' and '.join(task.validation_splits)} would have one name; rename one"
    yield is_twice, "validation_splits", message

    kind, problem, labels, metrics = task.kind, task.problem_type, task.labels, task.metrics
    is_choice, is_multi_label = kind == "multiple_choice", problem == "multi_label_classification"
    has_none = kind == "question_answering" or problem == "regression"
    num_texts = {"token_classification": (1,), "question_answering": (2,)}.get(kind, (1, 2))
    takes = f"{kind} takes {' or '.join(map(str, num_texts))}, {len(task.text_columns)} given"
    yield len(task.text_columns) not in num_texts, "text_columns", takes
    choices = "the columns of the choices are missing" if is_choice else "only for multiple_choice"
    yield is_choice != bool(task.choice_columns), "choice_columns", choices
    yield problem not in PROBLEM_TYPES, "problem_type", f"'{problem}'; allowed: {', '.join(PROBLEM_TYPES)}"
    is_foreign = kind != "sequence_classification" and problem != PROBLEM_TYPES[0]
    yield is_foreign, "problem_type", f"belongs to sequence_classification, not to {kind}"

    is_twice = not task.column_labels and (len(set(labels)) < len(labels) or "" in labels)
    yield is_twice, "labels", f"[{', '.join(labels)}] has an empty name, or one twice; name each class once"
    yield has_none and bool(labels), "labels", f"{kind if kind == 'question_answering' else problem} has none"
    is_other = is_choice and len(labels) not in (0, len(task.choice_columns))
    yield is_other, "labels", f"{len(labels)} names for {len(task.choice_columns)} choice_columns"
    too_few = not has_none and not is_choice and len(labels) < (1 if is_multi_label else 2)
    yield too_few, "labels", f"{len(labels)} given; name the classes, like [negative, positive]"
    ends = task.label_range
    is_range = ends is None or (len(ends) == 2 and ends[0] < ends[1])
    yield not is_range, "label_range", "two numbers are expected, the lesser first, like [0, 5]"
    yield ends is not None and problem != "regression", "label_range", "only for problem_type: regression"
    separator = task.label_separator
    yield separator is not None and not is_multi_label, "label_separator", f"only for problem_type: {PROBLEM_TYPES[1]}"
    yield separator == "", "label_separator", "empty; give what stands between two labels, like ';', or leave it out"

    allowed = _allowed_metrics(task)
    is_unfit = not metrics or not set(metrics) <= set(allowed)
    yield is_unfit, "metrics", f"[{', '.join(metrics)}] does not measure this task; allowed: {', '.join(allowed)}"
    yield {"squad", "squad_v2"} <= set(metrics), "metrics", "squad and squad_v2 exclude each other"
    is_binary = "f1" not in metrics or len(labels) == 2
    yield not is_binary, "metrics", "'f1' is for two classes, the second being positive; take f1_macro or f1_micro"
    figures = figure_names(metrics, task.validation_splits, labels)
    message = f"'{task.best_metric}' is no metric of this task; allowed: {', '.join(figures)}"
    yield task.best_metric not in figures, "best_metric", message


def task_values(task: Task) -> dict[str, Any]:
    """Return what `build_task` makes the same row of, in plain types; files without their folder."""
    values = json.loads(json.dumps(dataclasses.asdict(task) | {"files": task.relative_files}))  # tuples become lists
    names = values.pop("column_labels")
    if names:  # in the order of the classes' numbers
        values["labels"] = dict(sorted(names.items(), key=lambda item: task.labels.index(item[1])))
    # What is not there would be guessed when the file is read.
    always = ("train_split", "validation_splits", "test_splits", "id_column")
    return {key: value for key, value in values.items() if value not in (None, "", [], {}) or key in always}


# A row of data


@dataclass(frozen=True)
class Rows:
    """A table that is read row by row."""

    source: str  # file or Hub data set, for messages
    unit: str  # what the numbers count: "line" (of the file) or "row" (of data), from 1
    rows: Iterable[tuple[int, Mapping[str, Any]]]

    def where(self, number: int) -> str:
        """Name the place of a row, for messages."""
        return f"{self.source}, {self.unit} {number}"


def column_value(row: Mapping[str, Any], column: str, where: str) -> Any:
    """Return the value of a column, whatever it is; InputError where the row has none."""
    if column not in row:
        present = ", ".join(name for name in row if name != DOCUMENT) or "none"
        raise InputError(f"{where}: no column '{column}'; columns present: {present}")
    return row[column]


def column_text(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return the text of a column; InputError where the row has none."""
    text = column_value(row, column, where)
    if not isinstance(text, str):
        raise InputError(f"{where}: column '{column}' holds {text!r:.60}; text is expected")
    check_characters(text, column, where)
    return text


_SURROGATES = re.compile("[\ud800-\udfff]")


def check_characters(text: str, column: str, where: str) -> None:
    """Refuse half of a surrogate pair: a JSON escape can spell it, and no tokenizer accepts it."""
    if not text.isascii() and _SURROGATES.search(text):
        raise InputError(f"{where}: column '{column}' holds half of a surrogate pair (\\ud800 to \\udfff)")


def example_id(task: Task, row: Mapping[str, Any], index: int, where: str) -> int | str:
    """Return the id of a row, or its number where the data has no ids."""
    # A row of a benchmark names the column that its published files have; copies of them may lack it.
    if task.id_column is None or (task.id_column not in row and not task.files):
        return index
    idx = column_value(row, task.id_column, where)
    if not isinstance(idx, (int, str)) or isinstance(idx, bool):
        raise InputError(f"{where}: the id in column '{task.id_column}' is {idx!r}; a number or a text is expected")
    return idx
