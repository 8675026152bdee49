"""A task as a YAML file: a user's own, and ours in rows/; read, checked, and written back."""

import dataclasses
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from bert_recipes.errors import InputError, did_you_mean, shorten
from bert_recipes.files import atomic_write
from bert_recipes.tags import OUTSIDE, are_entities, odd_tags
from bert_recipes.tasks.labels import MAX_FOUND_LABELS
from bert_recipes.tasks.sources import find_labels_in_data
from bert_recipes.tasks.task import (
    KINDS,
    PROBLEM_TYPES,
    Task,
    TsvLayout,
    figure_names,
    split_suffixes,
)
from bert_recipes.yaml_files import read_tree


logger = logging.getLogger(__name__)

# Fields of `Task` that a file does not name as such.
_INNER_FIELDS = ("column_labels", "labels_source")
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


def read_task_file(path: str | Path) -> Task:
    """Read a task (docs/tasks.md): a row in YAML, whose `files` are relative to its folder.

    Labels that it does not name are those of the training file.

    Example:
        >>> read_task_file("tickets.yaml").labels  # doctest: +SKIP
        ('bug', 'question')
    """
    path = Path(path)
    values, lines = read_tree(path)

    def refuse(key: str, message: str) -> InputError:
        place = f"{path}, line {lines[key]}" if key in lines else str(path)
        return InputError(f"{place}: {message}")

    fields: dict[str, Any] = {}
    for key, value in values.items():
        if key not in KEYS:
            hint = did_you_mean(key.replace("-", "_"), KEYS)
            raise refuse(key, f"unknown key '{key}'; {hint}Keys of a task file: {', '.join(KEYS)}")
        try:
            if value is not None:
                fields[key] = _convert(_hint_of(key, value), value)
        except ValueError as error:
            raise refuse(key, f"{key}: {error}") from None
    kind = fields.get("kind")
    if kind not in KINDS:
        raise refuse(
            "kind", f"kind is {repr(kind) if kind else 'missing'}; allowed: {', '.join(KINDS)}"
        )
    if "id_column" in values and not values["id_column"]:
        fields["id_column"] = None
    task = _fill_in({"name": path.stem, **_DEFAULTS[kind], **fields}, path.parent)
    for key, message in (*_slips_of_splits(task), *_slips_of_columns(task)):
        raise refuse(key, f"{key}: {message}")
    task = dataclasses.replace(task, labels_source=path.name)
    if _needs_labels(task) and not task.labels and task.train_split in task.files:
        task = _with_found_labels(task)
    task = _choose_metrics(task, fields)
    for key, message in (
        *_slips_of_labels(task),
        *_slips_of_label_values(task),
        *_slips_of_metrics(task),
    ):
        raise refuse(key, f"{key}: {message}")
    return task


# From values to fields


def _hint_of(key: str, value: Any) -> Any:
    """Return the type of a key: `labels` may be a mapping, and `label_column` a list."""
    hints = get_type_hints(Task)
    if key == "labels" and isinstance(value, dict):
        return hints["column_labels"]
    if key == "label_column" and isinstance(value, list):
        return hints["label_columns"]
    return hints[key]


def _convert(hint: Any, value: Any) -> Any:
    """Make what a field's type says of texts, lists and mappings of texts; ValueError where that
    cannot be.
    """
    if hint is TsvLayout:
        return _read_layout(value)
    origin, types = get_origin(hint), get_args(hint)
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
        return TsvLayout(
            **{name: _convert(hints[name], item) for name, item in _mapping(value).items()}
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{error}; keys: {', '.join(hints)}") from None


def _fill_in(fields: dict[str, Any], folder: Path) -> Task:
    """Make the row of a file's fields: what they do not say follows from what they say."""
    if isinstance(fields.get("labels"), dict):
        fields["column_labels"] = fields["labels"]
        fields["labels"] = tuple(dict.fromkeys(fields["labels"].values()))
    if isinstance(fields["label_column"], tuple):
        fields["label_columns"] = fields["label_column"]
        fields["label_column"] = ""
    if "label_columns" in fields:
        fields.setdefault("problem_type", "multi_label_classification")
        fields.setdefault("labels", fields["label_columns"])
    if "files" in fields:
        files = {name: str((folder / file).resolve()) for name, file in fields["files"].items()}
        fields["files"] = files
        fields.setdefault("train_split", "train" if "train" in files else "")
        fields.setdefault(
            "validation_splits", tuple(name for name in files if name.startswith("validation"))
        )
        fields.setdefault("test_splits", tuple(name for name in files if name.startswith("test")))
    return Task(**fields)


def _choose_metrics(task: Task, fields: Mapping[str, Any]) -> Task:
    if "metrics" not in fields:
        metrics = _allowed_metrics(task)
        task = dataclasses.replace(
            task, metrics=metrics if task.problem_type == "regression" else metrics[:1]
        )
    if "best_metric" not in fields:
        names = figure_names(task.metrics, task.validation_splits, task.labels)
        task = dataclasses.replace(task, best_metric=names[0] if names else "")
    return task


def _needs_labels(task: Task) -> bool:
    is_classification = task.kind == "sequence_classification" and task.problem_type != "regression"
    return is_classification or task.kind == "token_classification"


def _with_found_labels(task: Task) -> Task:
    """Return the row with the labels of its training file; InputError where they look like no
    classes.
    """
    found = find_labels_in_data(task)
    path = Path(task.files[task.train_split])
    if found.are_fractions:
        raise InputError(
            f"{path}: its labels are numbers with fractions; problem_type: regression?"
        )
    if len(found.names) > MAX_FOUND_LABELS:
        raise InputError(
            f"{path}: {len(found.names)} different labels in the label_column; "
            "if that is the right one, list them as `labels`"
        )
    message = "labels: not given; the %d of %s are taken: %s"
    logger.info(message, len(found.names), path.name, shorten(found.names))
    return dataclasses.replace(task, labels=tuple(found.names), labels_source=path.name)


def _allowed_metrics(task: Task) -> tuple[str, ...]:
    measure = task.problem_type if task.kind == "sequence_classification" else task.kind
    metrics = _METRICS.get(measure, ())
    has_entities = task.kind != "token_classification" or are_entities(task.labels)
    return metrics if has_entities else metrics[1:]


# What makes no sense in a row: key and message, the gravest first


def _slips_of_splits(task: Task) -> Iterator[tuple[str, str]]:
    splits = task.splits
    if not task.files and task.hub_dataset is None:
        yield "files", "give `files` ({train: train.csv}), or hub_dataset"
    if task.files and set(task.files) != set(splits):
        allowed = "train, validation..., test..., or as *_splits say"
        yield (
            "files",
            f"there are {', '.join(task.files)}, "
            f"but the splits are {', '.join(splits) or 'none'} ({allowed})",
        )
    for name in splits:  # predictions_NAME.jsonl
        if re.search(r"[/\\\0]", name):
            yield (
                "files",
                f"{name!r} is no name of a split, "
                "of which files of predictions are named; leave / and \\ out",
            )
    for key, names in (
        ("validation_splits", task.validation_splits),
        ("test_splits", task.test_splits),
    ):
        if any(splits.count(name) > 1 for name in names):
            yield key, f"{', '.join(names)}: name each split once"
    if len(set(split_suffixes(task.validation_splits))) < len(task.validation_splits):
        both = " and ".join(task.validation_splits)
        yield "validation_splits", f"metrics of {both} would have one name; rename one"


def _slips_of_columns(task: Task) -> Iterator[tuple[str, str]]:
    kind = task.kind
    num_texts = {"token_classification": (1,), "question_answering": (2,)}.get(kind, (1, 2))
    if len(task.text_columns) not in num_texts:
        allowed = " or ".join(map(str, num_texts))
        yield "text_columns", f"{kind} takes {allowed}, {len(task.text_columns)} given"
    if kind == "multiple_choice" and not task.choice_columns:
        yield "choice_columns", "the columns of the choices are missing"
    if kind != "multiple_choice" and task.choice_columns:
        yield "choice_columns", "only for multiple_choice"
    if task.problem_type not in PROBLEM_TYPES:
        yield "problem_type", f"'{task.problem_type}'; allowed: {', '.join(PROBLEM_TYPES)}"
    if kind != "sequence_classification" and task.problem_type != PROBLEM_TYPES[0]:
        yield "problem_type", f"belongs to sequence_classification, not to {kind}"
    if task.sentence_column is not None and kind != "token_classification":
        yield "sentence_column", "only for token_classification"
    if task.label_columns and task.problem_type != "multi_label_classification":
        yield (
            "label_columns",
            "only for problem_type: multi_label_classification; label_column names one column",
        )
    if task.label_columns and task.label_columns != task.labels:
        yield (
            "labels",
            f"with label_columns they are the columns in their order: "
            f"{', '.join(task.label_columns)}",
        )


def _slips_of_labels(task: Task) -> Iterator[tuple[str, str]]:
    labels = task.labels
    if not task.column_labels and (len(set(labels)) < len(labels) or "" in labels):
        yield (
            "labels",
            f"[{', '.join(labels)}] has an empty name, or one twice; name each class once",
        )
    for without_labels in ("question_answering", "regression"):
        if labels and without_labels in (task.kind, task.problem_type):
            yield "labels", f"{without_labels} has none"
    if labels and len(task.choice_columns) > 1 and len(labels) != len(task.choice_columns):
        yield "labels", f"{len(labels)} names for {len(task.choice_columns)} choice_columns"
    if task.kind == "token_classification":
        yield from _slips_of_tags(labels)
    least = 1 if task.problem_type == "multi_label_classification" else 2
    if _needs_labels(task) and len(labels) < least:
        yield (
            "labels",
            f"{len(labels)} given, [{', '.join(labels)}]; "
            "name the classes, like [negative, positive]",
        )


def _slips_of_label_values(task: Task) -> Iterator[tuple[str, str]]:
    ends = task.label_range
    if ends is not None and (len(ends) != 2 or ends[0] >= ends[1]):
        yield "label_range", "two numbers are expected, the lesser first, like [0, 5]"
    if ends is not None and task.problem_type != "regression":
        yield "label_range", "only for problem_type: regression"
    if task.label_separator is not None and task.problem_type != "multi_label_classification":
        yield "label_separator", "only for problem_type: multi_label_classification"
    if task.label_separator == "":
        yield (
            "label_separator",
            "empty; give what stands between two labels, like ';', or leave it out",
        )


def _slips_of_tags(labels: Sequence[str]) -> Iterator[tuple[str, str]]:
    odd = odd_tags(labels)
    if odd:
        yield (
            "labels",
            f"tags like {odd[0]!r} mark no entities; "
            f"map them: labels: {{O: O, {odd[0]!r}: B-TYPE, ...}}",
        )
    marked = [tag for tag in labels if tag.startswith(("B-", "I-"))]
    others = [tag for tag in labels if tag not in marked]
    if marked and others and OUTSIDE not in labels:
        yield (
            "labels",
            f"{marked[0]} marks entities, but no tag is O; which is outside of them? "
            f"map it: labels: {{{others[0]}: O, ...}}",
        )


def _slips_of_metrics(task: Task) -> Iterator[tuple[str, str]]:
    metrics, allowed = task.metrics, _allowed_metrics(task)
    if not metrics or not set(metrics) <= set(allowed):
        yield (
            "metrics",
            f"[{', '.join(metrics)}] does not measure this task; allowed: {', '.join(allowed)}",
        )
    if {"squad", "squad_v2"} <= set(metrics):
        yield "metrics", "squad and squad_v2 exclude each other"
    if "f1" in metrics and len(task.labels) != 2:
        yield (
            "metrics",
            "'f1' is for two classes, the second being positive; take f1_macro or f1_micro",
        )
    names = figure_names(metrics, task.validation_splits, task.labels)
    if task.best_metric not in names:
        yield (
            "best_metric",
            f"'{task.best_metric}' is no metric of this task; allowed: {', '.join(names)}",
        )


# Writing


def write_task_file(path: str | Path, task: Task) -> None:
    """Write a row as YAML that `read_task_file` reads back; of its files only the names, as
    machines differ.
    """
    header = (
        "# The task of a run. "
        "Its data: --data_dir FOLDER, or files of these names beside this one.\n"
    )
    text = yaml.safe_dump(task_values(task), sort_keys=False, allow_unicode=True, width=sys.maxsize)
    with atomic_write(Path(path)) as aside:
        aside.write_text(header + str(text), encoding="utf-8")


def task_values(task: Task) -> dict[str, Any]:
    """Return what `read_task_file` makes the same row of, in plain types; files without their
    folder.
    """
    values = json.loads(
        json.dumps(dataclasses.asdict(task) | {"files": task.relative_files})
    )  # tuples become lists
    del values["labels_source"]
    names = values.pop("column_labels")
    if names:  # in the order of the classes' numbers
        values["labels"] = dict(sorted(names.items(), key=lambda item: task.labels.index(item[1])))
    # What is not there would be guessed when the file is read.
    always = ("train_split", "validation_splits", "test_splits", "id_column")
    return {
        key: value
        for key, value in values.items()
        if value not in (None, "", [], {}) or key in always
    }
