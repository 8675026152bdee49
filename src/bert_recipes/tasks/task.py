"""A task is a row: its data, its columns, its labels, its splits and how it is measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any


KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class TsvLayout:
    """Where a task's columns stand in the files of the official GLUE download.

    Attributes:
        folder: Folder of the task in the download.
        files: Split name -> file name.
        text_columns: Column numbers (from 0) of the texts; those of the test file follow in test_text_columns.
        label_column: Column number of the label.
        has_header: Whether the labelled files start with a line of column names (test files always do).
        test_text_columns: Column numbers of the texts in the test files.
        id_column: Column number of the row's id in the test files.
        drops_short_rows: Whether lines with too few columns are known to be in the published file: lines with another
            number of columns than the header are dropped, counted and logged, as the Hub's data set leaves them out;
            elsewhere such a line is an error.
    """

    folder: str
    files: Mapping[str, str]
    text_columns: tuple[int, ...]
    label_column: int
    has_header: bool = True
    test_text_columns: tuple[int, ...] = (1,)
    id_column: int = 0
    drops_short_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that is special about a task.

    Attributes:
        name: Short name, as `--task` takes it.
        kind: One of `KINDS`.
        text_columns: sequence_classification: one or two columns; token_classification: the column of the words;
            question_answering: question and context; multiple_choice: the context, and optionally the start that the
            choices share.
        choice_columns: multiple_choice: one column for each choice.
        label_column: Column of the label(s); of the answers for question_answering.
        id_column: Column of the example's id; the row number where it is None.
        labels: Names of the classes in the order of their numbers; empty for regression, question answering and
            multiple choice.
        problem_type: One of `PROBLEM_TYPES`; only of meaning for sequence_classification.
        label_range: Least and greatest number of a regression.
        train_split, validation_splits, test_splits: Names of the splits; an empty train_split means that there is none.
        metrics: Names that `bert_recipes.metrics.compute` knows.
        best_metric: The figure by which the best checkpoint is chosen, larger is better; a key of the metrics, with the
            split's suffix where there are several validation splits ("matched_accuracy").
        hub_dataset, hub_subset: Where the data lies on the Hub.
        hub_revision: Only where it was verified.
        local_name: Folder (`mrpc`) or file stem under --data_dir.
        files: Split -> file of a user's task, absolute.
        local_files: Split -> names that its file commonly has, beside `<split>.jsonl` and the other endings.
        column_labels: Label numbers or words as they stand in files -> name in `labels`, where they differ.
        label_separator: Multi-label: what stands between the labels of a row where they are one text; without it the
            column holds a list.
        tsv: Layout of the official GLUE download.
        published_rows: Split -> rows as published.
        submission_files: Test split -> file name in a GLUE submission.
        paper_test: Figure -> value in percent of Devlin et al. 2019, Table 1, BERT-base, on the hidden test set.
        licence: As stated by the data's owner.
        source: Where this row was taken from.
    """

    name: str
    kind: str
    text_columns: tuple[str, ...]
    label_column: str
    choice_columns: tuple[str, ...] = ()
    id_column: str | None = None
    labels: tuple[str, ...] = ()
    problem_type: str = "single_label_classification"
    label_range: tuple[float, float] | None = None
    train_split: str = "train"
    validation_splits: tuple[str, ...] = ("validation",)
    test_splits: tuple[str, ...] = ("test",)
    metrics: tuple[str, ...] = ("accuracy",)
    best_metric: str = "accuracy"
    hub_dataset: str | None = None
    hub_subset: str | None = None
    hub_revision: str | None = None
    local_name: str = ""
    files: Mapping[str, str] = field(default_factory=_empty)
    local_files: Mapping[str, tuple[str, ...]] = field(default_factory=_empty)
    column_labels: Mapping[str, str] = field(default_factory=_empty)
    label_separator: str | None = None
    tsv: TsvLayout | None = None
    published_rows: Mapping[str, int] = field(default_factory=_empty)
    submission_files: Mapping[str, str] = field(default_factory=_empty)
    paper_test: Mapping[str, float] = field(default_factory=_empty)
    licence: str = ""
    source: str = ""

    @property
    def relative_files(self) -> dict[str, str]:
        """`files` without the folder that they have in common, so that they can be found in another one."""
        if not self.files:
            return {}
        folder = os.path.commonpath([os.path.dirname(file) for file in self.files.values()])
        return {split: Path(os.path.relpath(file, folder)).as_posix() for split, file in self.files.items()}
