"""A task as a YAML file: a user's own, and ours in rows/; read, checked, and written back."""

import dataclasses
import json
import logging
import math
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from bert_recipes.errors import InputError, did_you_mean, shorten
from bert_recipes.files import atomic_write
from bert_recipes.tags import OUTSIDE, are_entities, odd_tags
from bert_recipes.tasks.labels import MAX_FOUND_LABELS, are_fractions, have_order
from bert_recipes.tasks.sources import find_class_names, find_labels_in_data, find_local
from bert_recipes.tasks.task import (
    HELD_OUT_SPLIT,
    KINDS,
    PROBLEM_TYPES,
    Task,
    TsvLayout,
    figure_names,
    metric_prefixes,
)
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)

# Fields of `Task` that a file does not name as such.
_INNER_FIELDS = ("column_labels", "labels_source", "labels_are_found")
KEYS = tuple(field.name for field in dataclasses.fields(Task) if field.name not in _INNER_FIELDS)

_DEFAULTS: dict[str, dict[str, Any]] = {
    "sequence_classification": {"text_columns": (), "label_column": "label"},
    "token_classification": {"text_columns": ("tokens",), "label_column": ""},
    "question_answering": {
        "text_columns": ("question", "context"),
        "label_column": "answers",
        "id_column": "id",
    },
    "multiple_choice": {"text_columns": (), "label_column": "label"},
}
_METRICS = {
    "single_label_classification": (
        "accuracy",
        "f1",
        "f1_macro",
        "f1_micro",
        "matthews_correlation",
    ),
    "multi_label_classification": ("multi_label", "accuracy", "f1_macro", "f1_micro"),
    "regression": ("pearson", "spearmanr"),
    "token_classification": (
        "entities",
        "accuracy",
        "f1_macro",
        "f1_micro",
        "matthews_correlation",
    ),
    "question_answering": ("squad", "squad_v2"),
    "multiple_choice": ("accuracy", "f1_macro", "f1_micro", "matthews_correlation"),
}
_NUM_TEXTS = {
    "sequence_classification": (1, 2),
    "token_classification": (1,),
    "question_answering": (2,),
    "multiple_choice": (1, 2),
}
# Keys of some tasks alone: the field of `Task` that decides, and its value.
_ONLY_FOR = {
    "choice_columns": ("kind", "multiple_choice"),
    "sentence_column": ("kind", "token_classification"),
    "label_columns": ("problem_type", "multi_label_classification"),
    "label_separator": ("problem_type", "multi_label_classification"),
    "label_range": ("problem_type", "regression"),
}


class _Slip(ValueError):
    """A mistake in a task file, under a key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


def read_task_file(path: str | Path, data_dir: str | None = None) -> Task:
    """Read a task's definition in YAML (docs/tasks.md); its `files` are relative to its folder.

    Labels that it does not name are those of the training file, in `data_dir` where that is given.

    Example:
        >>> read_task_file("tickets.yaml").labels  # doctest: +SKIP
        ('bug', 'question')
    """
    path = Path(path)
    values, lines = read_tree(path)
    try:
        return _make_task(path, values, data_dir)
    except _Slip as slip:
        place = f"{path}, line {lines[slip.key]}" if slip.key in lines else str(path)
        raise InputError(f"{place}: {slip}") from None


def _make_task(path: Path, values: Mapping[str, Any], data_dir: str | None) -> Task:
    """Return the task of a file's values, with all that they leave out."""
    file_fields = _read_fields(values)
    kind = file_fields.get("kind")
    if kind not in KINDS:
        raise _Slip("kind", f"{repr(kind) if kind else 'missing'}; allowed: {', '.join(KINDS)}")
    fields = {"name": path.stem, "labels_source": path.name, **_DEFAULTS[kind], **file_fields}
    if "id_column" in values and not values["id_column"]:
        fields["id_column"] = None
    _complete_labels(fields)
    _complete_splits(fields, path.parent)

    task = Task(**fields)
    _check_splits(task)
    _check_columns(task)
    if _has_classes(task) and not task.labels and task.train_split in task.files:
        task = _with_labels_of_data(task, data_dir)
    task = _with_metrics(task, file_fields)
    _check_labels(task)
    _check_metrics(task)
    return task


def log_found_labels(task: Task) -> None:
    """Log the labels of a task whose file names none: they are those of the training file."""
    if task.labels_are_found:
        message = "labels: not given; the %d of %s are taken: %s"
        logger.info(message, len(task.labels), task.labels_source, shorten(task.labels))
        _warn_of_spellings(task)


def _warn_of_spellings(task: Task) -> None:
    """Warn of found labels that are one label in two spellings, or say that there is none."""
    spellings: dict[str, str] = {}
    for name in task.labels:
        seen = "".join(char for char in name if unicodedata.category(char) != "Cf")
        plain = " ".join(seen.casefold().split())
        twin = spellings.setdefault(plain, name)
        if twin != name:
            logger.warning(
                "%s: %s and %s are two classes, though they differ in case, blanks or invisible "
                "characters alone; to join them write labels: {%s: %s, %s: %s, ...}",
                *(task.labels_source, ascii(twin), ascii(name)),
                *(ascii(twin), ascii(twin), ascii(name), ascii(twin)),
            )
        if plain in ("nan", "none", "null", "n/a", "#n/a"):
            logger.warning(
                "%s: %r is taken for a class; where it says that a row has no label, leave the "
                "cell empty",
                task.labels_source,
                name,
            )


# From values to fields


def _read_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file in the types of their fields."""
    fields = {}
    for key, value in values.items():
        if key not in KEYS:
            hint = did_you_mean(key.replace("-", "_"), KEYS)
            raise _Slip(key, f"unknown key; {hint}Keys of a task file: {', '.join(KEYS)}")
        if value is None:
            continue
        try:
            fields[key] = _convert(_hint_of(key, value), value)
        except ValueError as error:
            raise _Slip(key, str(error)) from None
    return fields


def _hint_of(key: str, value: Any) -> Any:
    """Return the type of a key: `labels` may be a mapping, and `label_column` a list."""
    hints = get_type_hints(Task)
    if key == "labels" and isinstance(value, dict):
        return hints["column_labels"]
    if key == "label_column" and isinstance(value, list):
        return hints["label_columns"]
    return hints[key]


def _convert(hint: Any, value: Any) -> Any:
    """Return texts, and lists and mappings of texts, in a field's type; ValueError if none fits."""
    origin = get_origin(hint)
    types = get_args(hint)
    if hint is TsvLayout:
        return _read_layout(value)
    if origin is UnionType:  # or None, of which a file is silent
        return _convert(types[0], value)
    if origin is Mapping:
        return {name: _convert(types[1], item) for name, item in _mapping(value).items()}
    if origin is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(_convert(types[0], item) for item in items)
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


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a mapping is expected, like {train: train.csv}")
    return value


def _read_layout(value: Any) -> TsvLayout:
    hints = get_type_hints(TsvLayout)
    try:
        fields = {name: _convert(hints[name], item) for name, item in _mapping(value).items()}
        return TsvLayout(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{error}; keys: {', '.join(hints)}") from None


# What a file leaves out


def _complete_labels(fields: dict[str, Any]) -> None:
    """Take labels that are a mapping, and a `label_column` that is a list, apart."""
    if isinstance(fields.get("labels"), dict):
        fields["column_labels"] = fields["labels"]
        fields["labels"] = tuple(dict.fromkeys(fields["labels"].values()))
    if isinstance(fields["label_column"], tuple):
        fields["label_columns"] = fields["label_column"]
        fields["label_column"] = ""
    if "label_columns" in fields:
        fields.setdefault("problem_type", "multi_label_classification")
        fields.setdefault("labels", fields["label_columns"])


def _complete_splits(fields: dict[str, Any], folder: Path) -> None:
    """Resolve a user's files, whose names say what the splits are."""
    if fields.get("validation_fraction") is not None:
        _complete_held_out(fields)
    if "files" not in fields:
        return
    names = list(fields["files"])
    fields["files"] = {
        name: str((folder / file).resolve()) for name, file in fields["files"].items()
    }
    fields.setdefault("train_split", "train" if "train" in names else "")
    for role in ("validation", "test"):
        splits = tuple(name for name in names if name.startswith(role))
        fields.setdefault(f"{role}_splits", splits)


def _complete_held_out(fields: dict[str, Any]) -> None:
    """Let the training file be that of the validation split too."""
    fraction = fields["validation_fraction"]
    files = fields.get("files", {})
    if not 0 < fraction < 1:
        raise _Slip("validation_fraction", f"{fraction}; allowed: more than 0 and less than 1")
    if "train" not in files:
        raise _Slip("validation_fraction", "there is no `train` in `files` to take it of")
    files.setdefault(HELD_OUT_SPLIT, files["train"])
    others = [name for name in files if name != "train" and not name.startswith("test")]
    if others != [HELD_OUT_SPLIT] or files[HELD_OUT_SPLIT] != files["train"]:
        raise _Slip(
            "validation_fraction",
            "`files` may have `train` and test splits beside it; leave the others or it out",
        )


def _has_classes(task: Task) -> bool:
    if task.kind == "sequence_classification":
        return task.problem_type != "regression"
    return task.kind == "token_classification"


def _with_labels_of_data(task: Task, data_dir: str | None) -> Task:
    """Return the task with the labels of its training file; refuse them if they look like none."""
    path = find_local(task, task.train_split, data_dir)
    names = find_class_names(task, data_dir)
    if names:
        source = f"the class names of {path.name}"
        return dataclasses.replace(task, labels=tuple(names), labels_source=source)
    labels = find_labels_in_data(task, data_dir)
    if are_fractions(labels):
        raise InputError(
            f"{path}: its labels are numbers with fractions; problem_type: regression? Sets of "
            "classes, as 1,2, are multi_label_classification with a label_separator; classes of "
            "such names are listed as `labels`"
        )

    if len(labels) > MAX_FOUND_LABELS:
        raise InputError(
            f"{path}: {len(labels)} different labels in the label_column; "
            "if that is the right one, list them as `labels`"
        )
    column_labels = {}
    if not have_order(labels):
        # They are sorted, which need not be the order of the numbers in another file.
        column_labels = {label: label for label in labels}
    return dataclasses.replace(
        task,
        labels=tuple(labels),
        labels_source=path.name,
        labels_are_found=True,
        column_labels=column_labels,
    )


def _with_metrics(task: Task, file_fields: Mapping[str, Any]) -> Task:
    """Return the task with the metrics that its labels allow, where its file names none."""
    if "metrics" not in file_fields:
        metrics = _allowed_metrics(task)
        if task.problem_type != "regression":
            metrics = metrics[:1]
        task = dataclasses.replace(task, metrics=metrics)
    if "best_metric" not in file_fields:
        figures = figure_names(task.metrics, task.validation_splits, task.labels)
        task = dataclasses.replace(task, best_metric=figures[0] if figures else "")
    return task


def _allowed_metrics(task: Task) -> tuple[str, ...]:
    if task.kind == "sequence_classification":
        return _METRICS[task.problem_type]
    metrics = _METRICS[task.kind]
    if task.kind == "token_classification" and not are_entities(task.labels):
        return metrics[1:]
    return metrics


# What makes no sense in a task, the gravest first


def _check_splits(task: Task) -> None:
    splits = task.splits
    if not task.files and task.hub_dataset is None:
        raise _Slip("files", "give `files` ({train: train.csv}), or hub_dataset")

    if task.files and set(task.files) != set(splits):
        raise _Slip(
            "files",
            f"there are {', '.join(task.files)}, but the splits are {', '.join(splits) or 'none'} "
            "(train, validation..., test..., or as *_splits say)",
        )

    for name in splits:
        if re.search(r"[/\\\0]", name):  # predictions_NAME.jsonl
            raise _Slip(
                "files",
                f"{name!r} is not the name of a split, "
                "of which files of predictions are named; leave / and \\ out",
            )

    for role in ("validation", "test"):
        key = f"{role}_splits"
        names = getattr(task, key)
        if any(splits.count(name) > 1 for name in names):
            raise _Slip(key, f"{', '.join(names)}: name each split once")
        prefixes = metric_prefixes(names, role)
        if len(set(prefixes)) < len(prefixes):
            raise _Slip(key, f"metrics of {' and '.join(names)} would have one name; rename one")
        if role == "validation" and "test" in prefixes and task.test_splits:
            name = names[prefixes.index("test")]
            raise _Slip(key, f"metrics of {name} have the names of a test split's; rename it")


def _check_columns(task: Task) -> None:
    kind = task.kind
    num_texts = _NUM_TEXTS[kind]
    if len(task.text_columns) not in num_texts:
        allowed = " or ".join(map(str, num_texts))
        raise _Slip("text_columns", f"{kind} takes {allowed}, {len(task.text_columns)} given")

    if kind == "multiple_choice" and not task.choice_columns:
        raise _Slip("choice_columns", "the columns of the choices are missing")

    if task.problem_type not in PROBLEM_TYPES:
        allowed = ", ".join(PROBLEM_TYPES)
        raise _Slip("problem_type", f"'{task.problem_type}'; allowed: {allowed}")

    if kind != "sequence_classification" and task.problem_type != PROBLEM_TYPES[0]:
        raise _Slip("problem_type", f"belongs to sequence_classification, not to {kind}")

    for key, (field, value) in _ONLY_FOR.items():
        if getattr(task, key) not in (None, ()) and getattr(task, field) != value:
            raise _Slip(key, f"only for {field}: {value}")

    if task.label_columns and task.label_columns != task.labels:
        columns = ", ".join(task.label_columns)
        raise _Slip("labels", f"with label_columns they are the columns in their order: {columns}")


def _check_labels(task: Task) -> None:
    labels = task.labels
    names = shorten(labels)
    has_twice = not task.column_labels and len(set(labels)) < len(labels)
    if has_twice or "" in labels:
        raise _Slip("labels", f"[{names}] has an empty name, or one twice; name each class once")

    if labels and task.kind == "question_answering":
        raise _Slip("labels", "question_answering has none")

    if labels and task.problem_type == "regression":
        raise _Slip("labels", "regression has none")

    if labels and len(task.choice_columns) > 1 and len(labels) != len(task.choice_columns):
        raise _Slip("labels", f"{len(labels)} names for {len(task.choice_columns)} choice_columns")

    if task.kind == "token_classification":
        _check_tags(labels)
    least = 1 if task.problem_type == "multi_label_classification" else 2
    if _has_classes(task) and len(labels) < least:
        raise _Slip(
            "labels",
            f"{len(labels)} given, [{names}]; name the classes, like [negative, positive]",
        )
    ends = task.label_range
    if ends is not None and not (len(ends) == 2 and -math.inf < ends[0] < ends[1] < math.inf):
        raise _Slip("label_range", "two numbers are expected, the lesser first, like [0, 5]")

    if task.label_separator == "":
        message = "empty; give what stands between two labels, like ';', or leave it out"
        raise _Slip("label_separator", message)


def _check_tags(labels: Sequence[str]) -> None:
    odd = odd_tags(labels)
    if odd:
        raise _Slip(
            "labels",
            f"tags like {odd[0]!r} mark no entities; "
            f"map them: labels: {{O: O, {odd[0]!r}: B-TYPE, ...}}",
        )
    marked = [tag for tag in labels if tag.startswith(("B-", "I-"))]
    plain = [tag for tag in labels if tag not in marked]
    if marked and plain and OUTSIDE not in labels:
        raise _Slip(
            "labels",
            f"{marked[0]} marks entities, but no tag is O; which is outside of them? "
            f"map it: labels: {{{plain[0]}: O, ...}}",
        )


def _check_metrics(task: Task) -> None:
    metrics = task.metrics
    allowed = _allowed_metrics(task)
    if not metrics or not set(metrics) <= set(allowed):
        raise _Slip(
            "metrics",
            f"[{', '.join(metrics)}] does not measure this task; allowed: {', '.join(allowed)}",
        )

    if "squad" in metrics and "squad_v2" in metrics:
        raise _Slip("metrics", "squad and squad_v2 exclude each other")

    if "f1" in metrics and len(task.labels) != 2:
        raise _Slip(
            "metrics",
            "'f1' is for two classes, the second being positive; take f1_macro or f1_micro",
        )
    figures = figure_names(metrics, task.validation_splits, task.labels)
    if task.best_metric not in figures:
        raise _Slip(
            "best_metric",
            f"'{task.best_metric}' is no metric of this task; allowed: {', '.join(figures)}",
        )


# Writing

_HEADER = (
    "# The task of a run. Its data: --data_dir FOLDER, or files of these names beside this one.\n"
)
# What is not there would be guessed when the file is read.
_ALWAYS_WRITTEN = ("train_split", "validation_splits", "test_splits", "id_column")


def write_task_file(path: str | Path, task: Task) -> None:
    """Write a task as YAML that `read_task_file` reads back.

    Of its files only the names are written, as machines differ.
    """
    values = _values_of(task)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=sys.maxsize)
    with atomic_write(Path(path)) as aside:
        aside.write_text(_HEADER + str(text), encoding="utf-8")


def _values_of(task: Task) -> dict[str, Any]:
    """Return the values of a task's file, in plain types."""
    fields = dataclasses.asdict(task)
    fields["files"] = task.relative_files
    values = json.loads(json.dumps(fields))  # tuples become lists
    del values["labels_source"], values["labels_are_found"]
    name_of_value = values.pop("column_labels")
    if name_of_value:  # in the order of the classes' numbers
        in_order = sorted(name_of_value, key=lambda value: task.labels.index(name_of_value[value]))
        values["labels"] = {value: name_of_value[value] for value in in_order}
    return {
        key: value
        for key, value in values.items()
        if value not in (None, "", [], {}) or key in _ALWAYS_WRITTEN
    }
