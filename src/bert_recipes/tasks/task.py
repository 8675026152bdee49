"""The definition of a task: everything that is special about it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.tags import entity_types


KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
# Those with classes, or a number, for each text or word.
CLASSIFICATION_KINDS = ("sequence_classification", "token_classification")
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
# What the Hub's data sets of tagged words, and the exports of annotation tools, call the column of
# tags or spans.
LABEL_COLUMNS = ("labels", "ner_tags", "tags", "spans", "entities", "label")
# Column that says in which document a sentence stands; named after the mark, so that no table
# has it.
DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True, kw_only=True)
class TsvLayout:
    """The places of the columns in the files of the official GLUE download, numbered from 0."""

    folder: str
    files: Mapping[str, str]  # split -> file name
    text_columns: tuple[int, ...]
    label_column: int
    has_header: bool = True  # of the labelled files; test files always have one
    test_text_columns: tuple[int, ...] = (1,)
    id_column: int = 0  # of the test files
    # Lines with another number of columns than the header are known to be in the published file:
    # they are dropped, counted and logged, as the Hub's data set leaves them out. Elsewhere such a
    # line is an error.
    drops_malformed_lines: bool = False


# What `validation_fraction` holds out of the training file.
HELD_OUT_SPLIT = "validation"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that is special about a task."""

    name: str
    kind: str
    # sequence_classification: one or two columns; token_classification: the words;
    # question_answering: question and context; multiple_choice: the context, and optionally the
    # start that the choices share.
    text_columns: tuple[str, ...]
    # Of the answers for question_answering; for token_classification "" is whichever of
    # `LABEL_COLUMNS` a row has.
    label_column: str
    label_columns: tuple[str, ...] = ()  # multi-label: a column of 0 and 1 for each label
    # token_classification: of a table with a word a row, what tells its sentences apart.
    sentence_column: str | None = None
    # multiple_choice: one for each choice, or one that holds a list.
    choice_columns: tuple[str, ...] = ()
    id_column: str | None = None  # the row number where it is None
    labels: tuple[str, ...] = ()  # in the order of their numbers
    labels_source: str = field(default="", compare=False)  # the file that has them, for messages
    labels_are_found: bool = field(default=False, compare=False)  # nobody gave their order
    problem_type: str = PROBLEM_TYPES[0]  # only of meaning for sequence_classification
    label_range: tuple[float, float] | None = None
    train_split: str = "train"  # "" means that there is none
    validation_splits: tuple[str, ...] = ("validation",)
    test_splits: tuple[str, ...] = ("test",)
    # Of the training file, that is the validation split; None where that has a file of its own.
    validation_fraction: float | None = None
    metrics: tuple[str, ...] = ("accuracy",)
    # Chooses the checkpoint, larger is better; with the split's prefix where there are several
    # ("matched_accuracy").
    best_metric: str = "accuracy"
    hub_dataset: str | None = None
    hub_subset: str | None = None
    hub_revision: str | None = None  # only where it was verified
    local_name: str = ""  # folder (`mrpc`) under --data_dir
    # Split -> file of a user's task, absolute.
    files: Mapping[str, str] = field(default_factory=dict)
    # Split -> names that its file commonly has.
    local_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Label as files write it -> name in `labels`. Names that were found in the training file are
    # mapped to themselves: they are sorted, which says nothing of numbers in another file.
    column_labels: Mapping[str, str] = field(default_factory=dict)
    # Multi-label: what stands between the labels of a row where they are one text; without it the
    # column holds a list.
    label_separator: str | None = None
    tsv: TsvLayout | None = None
    published_rows: Mapping[str, int] = field(default_factory=dict)  # split -> rows
    # Test split -> file of a GLUE submission.
    submission_files: Mapping[str, str] = field(default_factory=dict)
    # Percent on the hidden test set: BERT, Table 1, BERT-base.
    paper_test: Mapping[str, float] = field(default_factory=dict)
    licence: str = ""
    source: str = ""  # where this definition was taken from

    @property
    def is_benchmark(self) -> bool:
        """Tell whether this is a published data set of the catalogue, not a user's own."""
        return bool(self.published_rows)

    @property
    def known_labels(self) -> frozenset[str]:
        """Return the labels as files may write them: their names, and what is mapped to these."""
        return frozenset({*self.labels, *self.column_labels})

    @property
    def splits(self) -> list[str]:
        """Return the names of all splits, that of training first."""
        names = (self.train_split, *self.validation_splits, *self.test_splits)
        return [name for name in names if name]

    @property
    def relative_files(self) -> dict[str, str]:
        """Return `files` without the folder that they have in common.

        So they can be found in another folder.
        """
        if not self.files:
            return {}
        folders = [os.path.dirname(file) for file in self.files.values()]
        common = os.path.commonpath(folders)
        return {
            split: Path(file).relative_to(common).as_posix() for split, file in self.files.items()
        }


# Names of metrics


# Metrics that give values of other names than their own; the first is the one to choose a
# checkpoint by.
_FIGURES = {
    "multi_label": ("f1_micro", "f1_macro", "subset_accuracy"),
    "entities": ("f1", "precision", "recall", "accuracy"),
    "squad": ("f1", "exact_match"),
    "squad_v2": (
        "f1",
        "exact",
        "best_f1",
        "best_exact",
        "HasAns_f1",
        "HasAns_exact",
        "NoAns_f1",
        "NoAns_exact",
    ),
}


def metric_prefixes(splits: Sequence[str], role: str = "validation") -> list[str]:
    """Return what tells the metrics of several splits of one role (validation, test) apart.

    It is the split's name without the role; "" for a split that is alone.

    Example:
        >>> metric_prefixes(["validation", "validation_hard"])
        ['', 'hard']
    """
    if len(splits) == 1:
        return [""]
    return [name.removeprefix(role).strip("_") for name in splits]


def with_prefix(prefix: str, figure: str) -> str:
    """Return the name of a metric in the results, without "eval_"."""
    return f"{prefix}_{figure}" if prefix else figure


def figure_names(
    metrics: Sequence[str], splits: Sequence[str], labels: Sequence[str] = ()
) -> list[str]:
    """Return the names of the metrics by which a checkpoint can be chosen.

    Those of the first validation split come first.
    """
    figures: list[str] = []
    for metric in metrics:
        figures += _FIGURES.get(metric, (metric,))
    if "entities" in metrics:
        for name in entity_types(labels):
            figures += [f"{name}_f1", f"{name}_precision", f"{name}_recall"]

    names: list[str] = []
    for prefix in metric_prefixes(splits) or [""]:
        names += [with_prefix(prefix, figure) for figure in figures]
    return names
