"""A row from plain values, as a task file gives them, and back; every slip is one line that names the key."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.definition_checks import check_columns, check_labels, fill_metrics, fill_splits
from bert_recipes.tasks.task import KINDS, Task, TsvLayout


# What a text, a list of texts or a mapping in the file has to become; every key that a task file may have.
_TEXTS: tuple[str, ...] = (
    "name",
    "kind",
    "label_column",
    "id_column",
    "problem_type",
    "train_split",
    "best_metric",
    "hub_dataset",
)
_TEXTS += ("hub_subset", "hub_revision", "local_name", "label_separator", "licence", "source")
_LISTS = ("text_columns", "choice_columns", "validation_splits", "test_splits", "metrics")
_NUMBERS = {"published_rows": int, "paper_test": float}
_MAPPINGS = ("files", "local_files", "submission_files")
KEYS = (*_TEXTS, *_LISTS, *_NUMBERS, *_MAPPINGS, "labels", "label_range", "tsv")

# What is not there would be guessed when the file is read.
_ALWAYS_WRITTEN = ("train_split", "validation_splits", "test_splits", "id_column")
_COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "sequence_classification": {"label_column": "label"},
    "token_classification": {"text_columns": ("tokens",), "label_column": "labels"},
    "question_answering": {"text_columns": ("question", "context"), "label_column": "answers", "id_column": "id"},
    "multiple_choice": {"label_column": "label"},
}


def build_task(values: Mapping[str, Any], place: Callable[[str | None], str], folder: Path, default_name: str) -> Task:
    """Make a row from the values of a task file and check that it makes sense.

    Args:
        values: Key -> text, list of texts, mapping of texts, or None. All numbers are still texts.
        place: Where a key stands ("task.yaml, line 3"; the file alone for None), for messages.
        folder: What relative `files` are relative to.
        default_name: Name of a task without one.

    Raises:
        InputError: An unknown or missing key, or a value that is not allowed.
    """
    for key in values:
        if key not in KEYS:
            nearest = difflib.get_close_matches(key.replace("-", "_"), KEYS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}? " if nearest else ""
            raise InputError(f"{place(key)}: unknown key '{key}'; {hint}Keys of a task file: {', '.join(KEYS)}")
    if values.get("kind") not in KINDS:
        given = f"kind is '{values['kind']}'" if values.get("kind") is not None else "kind is missing"
        raise InputError(f"{place('kind' if 'kind' in values else None)}: {given}; allowed: {', '.join(KINDS)}")
    fields = dict(_COLUMNS[values["kind"]]) | {"name": default_name}
    fields |= {key: _converted(key, value, place, folder) for key, value in values.items() if key != "labels"}
    if values.get("labels") is not None:
        fields["labels"], fields["column_labels"] = _labels(values["labels"], place)
    fields = {key: value for key, value in fields.items() if value is not None or key == "id_column"}
    fill_splits(fields, place)
    check_columns(fields, place)
    check_labels(fields, place)
    fill_metrics(fields, place)
    return Task(**fields)


def task_values(task: Task) -> dict[str, Any]:
    """Return what `build_task` makes the same row of, in plain types; files without their folder."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(task):
        value = getattr(task, field.name)
        if field.name == "files":
            value = task.relative_files
        elif field.name == "labels" and task.column_labels:
            value = _with_every_name(task)
        elif field.name == "tsv" and value is not None:
            value = {part.name: _plain(getattr(value, part.name)) for part in dataclasses.fields(value)}
        elif field.name == "column_labels":
            continue
        value = _plain(value)
        if value not in (None, "", [], {}) or field.name in _ALWAYS_WRITTEN:
            values[field.name] = value
    return values


def _with_every_name(task: Task) -> dict[str, str]:
    """{value: name} in which the names come in the order of their numbers."""
    order = {name: number for number, name in enumerate(task.labels)}
    return dict(sorted(task.column_labels.items(), key=lambda item: order[item[1]]))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


# Values


def _converted(key: str, value: Any, place: Callable[[str | None], str], folder: Path) -> Any:
    if value is None:
        return None
    where = f"{place(key)}: {key}"
    if key in _LISTS:
        return _texts(value, where)
    if key == "label_range":
        return _range(value, where)
    if key == "tsv":
        return _tsv(_mapping(value, where), where)
    if key in _NUMBERS:
        convert = _NUMBERS[key]
        return MappingProxyType({name: _number(item, convert, where) for name, item in _mapping(value, where).items()})
    if key == "local_files":
        return MappingProxyType({name: _texts(item, where) for name, item in _mapping(value, where).items()})
    if key in _MAPPINGS:
        texts = {name: _one_text(item, f"{where}: {name}") for name, item in _mapping(value, where).items()}
        if key == "files":
            texts = {name: str((folder / file).resolve()) for name, file in texts.items()}
        return MappingProxyType(texts)
    return _one_text(value, where)


def _one_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        found = "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
        raise InputError(f"{where}: one text is expected, {found} found")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_one_text(item, where) for item in (value if isinstance(value, list) else [value]))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: a mapping is expected, like {{train: train.csv}}")
    return value


def _number(value: Any, convert: Callable[[str], Any], where: str) -> Any:
    text = _one_text(value, where)
    try:
        return convert(text)
    except ValueError:
        raise InputError(f"{where}: a number is expected, got '{text}'") from None


def _range(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{where}: two numbers are expected, like [0, 5]")
    least, greatest = (_number(item, float, where) for item in value)
    if not least < greatest:
        raise InputError(f"{where}: {least:g} is not less than {greatest:g}")
    return least, greatest


def _tsv(values: Mapping[str, Any], where: str) -> TsvLayout:
    names = [field.name for field in dataclasses.fields(TsvLayout)]
    unknown = [name for name in values if name not in names]
    missing = [name for name in ("folder", "files", "text_columns", "label_column") if name not in values]
    if unknown or missing:
        raise InputError(
            f"{where}: {', '.join(unknown or missing)} is {'unknown' if unknown else 'missing'}; keys: {', '.join(names)}"
        )
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name == "folder":
            fields[name] = _one_text(value, where)
        elif name == "files":
            fields[name] = MappingProxyType(
                {key: _one_text(item, where) for key, item in _mapping(value, where).items()}
            )
        elif name in ("text_columns", "test_text_columns"):
            fields[name] = tuple(_number(item, int, where) for item in _texts(value, where))
        elif name in ("label_column", "id_column"):
            fields[name] = _number(value, int, where)
        else:
            if value not in ("true", "false"):
                raise InputError(f"{where}: {name} is '{value}'; allowed: true, false")
            fields[name] = value == "true"
    return TsvLayout(**fields)


def _labels(value: Any, place: Callable[[str | None], str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """A list of names, or {value in the files: name}, in which several values may have one name."""
    where = f"{place('labels')}: labels"
    if isinstance(value, dict):
        names = {key: _one_text(item, f"{where}: {key}") for key, item in value.items()}
        return tuple(dict.fromkeys(names.values())), MappingProxyType(names)
    labels = _texts(value, where)
    twice = sorted({name for name in labels if labels.count(name) > 1})
    if twice or "" in labels:
        raise InputError(
            f"{where}: {', '.join(twice)} twice; name each class once" if twice else f"{where}: an empty name"
        )
    return labels, MappingProxyType({})
