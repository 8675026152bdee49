"""What the values of a task file must be together: splits, columns, labels and metrics of each kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from bert_recipes.errors import InputError
from bert_recipes.tasks.conll_file import read_conll
from bert_recipes.tasks.figures import figure_names, split_suffixes
from bert_recipes.tasks.files import TABLE_SUFFIXES, read_table
from bert_recipes.tasks.labels import is_bio
from bert_recipes.tasks.task import PROBLEM_TYPES


Place = Callable[[str | None], str]

_METRICS = {
    "single_label_classification": ("accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"),
    "multi_label_classification": ("multi_label", "accuracy", "f1_macro", "f1_micro"),
    "regression": ("pearson", "spearmanr"),
    "token_classification": ("entities", "accuracy", "f1_macro", "f1_micro", "matthews_correlation"),
    "question_answering": ("squad", "squad_v2"),
    "multiple_choice": ("accuracy", "f1_macro", "f1_micro", "matthews_correlation"),
}
_NUM_TEXTS = {"sequence_classification": (1, 2), "token_classification": (1, 1), "question_answering": (2, 2)}
_NUM_TEXTS["multiple_choice"] = (1, 2)


def _refuse(place: Place, key: str, given: Mapping[str, Any], message: str) -> NoReturn:
    raise InputError(f"{place(key if key in given else None)}: {message}")


def fill_splits(fields: dict[str, Any], place: Place) -> None:
    """Take the splits from the names of the files, where the task file does not name them."""
    files = fields.get("files", {})
    if not files and "hub_dataset" not in fields:
        _refuse(place, "files", fields, "give `files` ({train: train.csv, validation: dev.csv}), or hub_dataset")
    if files:
        fields.setdefault("train_split", "train" if "train" in files else "")
        fields.setdefault("validation_splits", tuple(name for name in files if name.startswith("validation")))
        fields.setdefault("test_splits", tuple(name for name in files if name.startswith("test")))
    named = {fields.get("train_split", "train"), *fields.get("validation_splits", ()), *fields.get("test_splits", ())}
    for split in files:
        if split not in named:
            message = (
                f"files: '{split}' is no split; splits are called train, validation..., test..., or as train_split, "
            )
            _refuse(place, "files", fields, message + "validation_splits and test_splits say")
    for split in named - {""} if files else ():
        if split not in files:
            _refuse(place, "files", fields, f"files: no file for the split '{split}'; it has {', '.join(files)}")
    _check_split_names(fields, place)


def _check_split_names(fields: dict[str, Any], place: Place) -> None:
    """Refuse two splits, or the figures of two validation splits, of one name."""
    validation = fields.get("validation_splits", ("validation",))
    splits = [fields.get("train_split", "train"), *validation, *fields.get("test_splits", ("test",))]
    twice = next((split for split in splits if splits.count(split) > 1), None)
    if twice is not None:
        key = "validation_splits" if twice in validation else "test_splits"
        _refuse(place, key, fields, f"{key}: the split '{twice}' is named twice; name each split once")
    suffixes = split_suffixes(validation)
    equal = [split for split, suffix in zip(validation, suffixes, strict=True) if suffixes.count(suffix) > 1]
    if equal:
        message = f"validation_splits: the figures of {' and '.join(equal)} would have one name; rename one"
        _refuse(place, "validation_splits", fields, message)


def check_columns(fields: dict[str, Any], place: Place) -> None:
    """Refuse columns that the kind of task does not have, or not so many of."""
    kind = fields["kind"]
    least, most = _NUM_TEXTS[kind]
    given = len(fields.get("text_columns", ()))
    if not least <= given <= most:
        allowed = f"{least}" if least == most else f"{least} or {most}"
        _refuse(place, "text_columns", fields, f"text_columns: {kind} takes {allowed}, {given} given")
    if (kind == "multiple_choice") != bool(fields.get("choice_columns")):
        message = (
            "choice_columns: the columns of the choices are missing"
            if kind == "multiple_choice"
            else (f"choice_columns belong to multiple_choice, not to {kind}")
        )
        _refuse(place, "choice_columns", fields, message)
    if fields.get("problem_type", PROBLEM_TYPES[0]) not in PROBLEM_TYPES:
        _refuse(
            place,
            "problem_type",
            fields,
            f"problem_type is '{fields['problem_type']}'; allowed: {', '.join(PROBLEM_TYPES)}",
        )
    if kind != "sequence_classification" and fields.get("problem_type", PROBLEM_TYPES[0]) != PROBLEM_TYPES[0]:
        _refuse(place, "problem_type", fields, f"problem_type belongs to sequence_classification, not to {kind}")


def check_labels(fields: dict[str, Any], place: Place) -> None:
    """Refuse class names where there are no classes, or too few, and settings of another type of problem."""
    kind, problem = fields["kind"], fields.get("problem_type", PROBLEM_TYPES[0])
    labels = fields.get("labels", ())
    if kind == "question_answering" or problem == "regression":
        if labels:
            _refuse(place, "labels", fields, f"labels: {problem if problem == 'regression' else kind} has none")
    elif kind == "multiple_choice":
        if labels and len(labels) != len(fields["choice_columns"]):
            _refuse(
                place,
                "labels",
                fields,
                f"labels: {len(labels)} names for {len(fields['choice_columns'])} choice_columns",
            )
    elif len(labels) < (1 if problem == "multi_label_classification" else 2):
        found = _labels_in_data(fields)
        hint = f"the training data has {found}, to be copied" if found else "like [negative, positive]"
        _refuse(place, "labels", fields, f"labels: {len(labels)} given; name the classes, {hint}")
    if problem != "regression" and "label_range" in fields:
        _refuse(place, "label_range", fields, "label_range belongs to problem_type: regression")
    if fields.get("label_separator") == "":
        message = "label_separator: empty; give what stands between two labels, like ';', or leave it out for lists"
        _refuse(place, "label_separator", fields, message)
    if problem != "multi_label_classification" and "label_separator" in fields:
        _refuse(
            place, "label_separator", fields, "label_separator belongs to problem_type: multi_label_classification"
        )


def _labels_in_data(fields: Mapping[str, Any]) -> str:
    """What stands in the label column of the training file, as a list in YAML; "" where it cannot be read or is too long."""
    path = Path(fields.get("files", {}).get(fields.get("train_split"), ""))
    column, separator = fields["label_column"], fields.get("label_separator")
    is_conll = fields["kind"] == "token_classification" and path.suffix.lower() not in TABLE_SUFFIXES
    found: set[str] = set()
    try:
        for _, row in (read_conll(path, "", column) if is_conll else read_table(path)).rows:
            value = row.get(column)
            parts = value.split(separator) if separator and isinstance(value, str) else value
            found |= {str(part).strip() for part in (parts if isinstance(parts, list) else [parts])}
    except (InputError, OSError):
        return ""  # said when the data is read
    found -= {"", "None", "-1"}
    return json.dumps(sorted(found), ensure_ascii=False) if 0 < len(found) <= 100 else ""


def fill_metrics(fields: dict[str, Any], place: Place) -> None:
    """Take the usual metric where none is given, and refuse those that do not measure the task."""
    kind = fields["kind"]
    allowed = _METRICS[fields.get("problem_type", PROBLEM_TYPES[0]) if kind == "sequence_classification" else kind]
    if kind == "token_classification" and not is_bio(fields["labels"]):
        allowed = allowed[1:]
    metrics = fields.setdefault("metrics", allowed if "pearson" in allowed else allowed[:1])
    for name in metrics:
        if name not in allowed:
            _refuse(
                place,
                "metrics",
                fields,
                f"metrics: '{name}' does not measure this task; allowed: {', '.join(allowed)}",
            )
    if set(metrics) == {"squad", "squad_v2"}:
        _refuse(place, "metrics", fields, "metrics: squad and squad_v2 exclude each other; squad_v2 knows 'no answer'")
    if not metrics:
        _refuse(place, "metrics", fields, f"metrics: none given; allowed: {', '.join(allowed)}")
    if "f1" in metrics and len(fields.get("labels", ())) != 2:
        _refuse(
            place,
            "metrics",
            fields,
            "metrics: 'f1' is for two classes, the second being positive; take f1_macro or f1_micro",
        )
    figures = figure_names(metrics, fields.get("validation_splits", ("validation",)), fields.get("labels", ()))
    if fields.setdefault("best_metric", figures[0]) not in figures:
        _refuse(
            place,
            "best_metric",
            fields,
            f"best_metric: '{fields['best_metric']}' is no figure of this task; allowed: {', '.join(figures)}",
        )
