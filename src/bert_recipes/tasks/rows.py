"""The tasks: GLUE (Wang et al. 2019) with its diagnostic set AX, SQuAD, SWAG and CoNLL-2003; and what a row of data becomes.

Sources of the rows of GLUE:
    columns, labels and their order: Hub data set nyu-mll/glue;
    layout of the TSV files: the official download (gluebenchmark.com/tasks), as huggingface/datasets' glue.py reads it;
    rows of the splits: the data set's card; rows of the test files: gluebenchmark.com/submit;
    metrics: GLUE paper, Table 1; results: BERT, Devlin et al. 2019, Table 1, BERT-base.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.task import Task, TsvLayout


_NLI_LABELS = ("entailment", "not_entailment")
_MNLI_LABELS = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")
_SPLITS = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}


def _glue(
    name: str,
    folder: str,
    rows: tuple[int, ...],
    *,
    columns: tuple[tuple[int, ...], int, tuple[int, ...]] = ((1, 2), 3, (1, 2)),
    has_header: bool = True,
    drops_short_rows: bool = False,
    splits: dict[str, str] = _SPLITS,
    metrics: tuple[str, ...] = ("accuracy",),
    **fields: Any,
) -> Task:
    """A row; `splits` names the official files, `columns` their texts, label, and the texts of the test file.

    The last of the metrics chooses the checkpoint.
    """
    return Task(
        name=name,
        kind="sequence_classification",
        label_column="label",
        id_column="idx",
        hub_dataset="nyu-mll/glue",
        hub_subset=name,
        local_name=name,
        source="GLUE, Wang et al. 2019; Hub data set nyu-mll/glue",
        published_rows=dict(zip(splits, rows, strict=True)),
        tsv=TsvLayout(
            folder=folder,
            files=splits,
            text_columns=columns[0],
            label_column=columns[1],
            test_text_columns=columns[2],
            has_header=has_header,
            drops_short_rows=drops_short_rows,
        ),
        metrics=metrics,
        **{"submission_files": {"test": f"{folder}.tsv"}, "best_metric": metrics[-1], **fields},
    )


GLUE_TASKS = (
    _glue(
        "cola",
        "CoLA",
        (8551, 1043, 1063),
        # source of the sentence, label, the author's mark, sentence; the test file has index, sentence.
        columns=((3,), 1, (1,)),
        has_header=False,
        text_columns=("sentence",),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
        paper_test={"matthews_correlation": 52.1},
        licence="none stated, research use",
    ),
    _glue(
        "sst2",
        "SST-2",
        (67349, 872, 1821),
        columns=((0,), 1, (1,)),
        text_columns=("sentence",),
        labels=("negative", "positive"),
        paper_test={"accuracy": 93.5},
        licence="none stated, research use",
    ),
    _glue(
        "mrpc",
        "MRPC",
        (3668, 408, 1725),
        # Quality, #1 ID, #2 ID, #1 String, #2 String; the test file has index in the place of Quality.
        columns=((3, 4), 0, (3, 4)),
        text_columns=_PAIR,
        labels=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
        paper_test={"f1": 88.9},
        licence="Microsoft Research licence",
    ),
    _glue(
        "stsb",
        "STS-B",
        (5749, 1500, 1379),
        # index, genre, filename, year, old_index, source1, source2, sentence1, sentence2, score
        columns=((7, 8), 9, (7, 8)),
        text_columns=_PAIR,
        problem_type="regression",
        label_range=(0.0, 5.0),
        metrics=("pearson", "spearmanr"),
        paper_test={"spearmanr": 85.8},
        licence="CC BY-SA 4.0",
    ),
    _glue(
        "qqp",
        "QQP",
        (363846, 40430, 390965),
        # id, qid1, qid2, question1, question2, is_duplicate. A few questions of the published file hold line breaks and
        # so fall apart into short lines, which the Hub's data set leaves out, too.
        columns=((3, 4), 5, (1, 2)),
        drops_short_rows=True,
        text_columns=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        paper_test={"f1": 71.2},
        licence="Quora's terms, non-commercial",
    ),
    _glue(
        "mnli",
        "MNLI",
        (392702, 9815, 9832, 9796, 9847),
        splits={
            "train": "train.tsv",
            "validation_matched": "dev_matched.tsv",
            "validation_mismatched": "dev_mismatched.tsv",
            "test_matched": "test_matched.tsv",
            "test_mismatched": "test_mismatched.tsv",
        },
        # index, promptID, pairID, genre, four parses, sentence1, sentence2, one label (train) or five (dev), gold_label
        columns=((8, 9), -1, (8, 9)),
        text_columns=("premise", "hypothesis"),
        labels=_MNLI_LABELS,
        validation_splits=("validation_matched", "validation_mismatched"),
        test_splits=("test_matched", "test_mismatched"),
        submission_files={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        best_metric="matched_accuracy",
        paper_test={"matched_accuracy": 84.6, "mismatched_accuracy": 83.4},
        licence="OANC and others, free use",
    ),
    _glue(
        "qnli",
        "QNLI",
        (104743, 5463, 5463),
        text_columns=("question", "sentence"),
        labels=_NLI_LABELS,
        paper_test={"accuracy": 90.5},
        licence="CC BY-SA 4.0",
    ),
    _glue(
        "rte",
        "RTE",
        (2490, 277, 3000),
        text_columns=_PAIR,
        labels=_NLI_LABELS,
        paper_test={"accuracy": 66.4},
        licence="none stated, research use",
    ),
    _glue(
        "wnli",
        "WNLI",
        (635, 71, 146),
        text_columns=_PAIR,
        labels=("not_entailment", "entailment"),
        licence="CC BY 4.0",
    ),
    # Predicted by the MNLI model; its labels are kept by the leaderboard, which scores them by Matthews correlation.
    _glue(
        "ax",
        "diagnostic",
        (1104,),
        splits={"test": "diagnostic.tsv"},
        text_columns=("premise", "hypothesis"),
        labels=_MNLI_LABELS,
        train_split="",
        validation_splits=(),
        submission_files={"test": "AX.tsv"},
        metrics=("matthews_correlation",),
        licence="none stated",
    ),
)


def _squad(name: str, version: str, rows: tuple[int, int], source: str) -> Task:
    files = {"train": (f"train-v{version}.json",), "validation": (f"dev-v{version}.json",)}
    return Task(
        name=name,
        kind="question_answering",
        text_columns=("question", "context"),
        label_column="answers",
        id_column="id",
        # The test set is hidden: nobody but the leaderboard has it.
        test_splits=(),
        metrics=(name,),
        best_metric="f1",
        hub_dataset=f"rajpurkar/{name}",
        local_name="squad",
        local_files=files,
        published_rows=dict(zip(("train", "validation"), rows, strict=True)),
        licence="CC BY-SA 4.0",
        source=f"{source}; Hub data set rajpurkar/{name}",
    )


SQUAD_TASKS = (
    _squad("squad", "1.1", (87599, 10570), "SQuAD 1.1, Rajpurkar et al. 2016"),
    _squad("squad_v2", "2.0", (130319, 11873), "SQuAD 2.0, Rajpurkar et al. 2018"),
)
SWAG_TASK = Task(
    name="swag",
    kind="multiple_choice",
    # BERT, Devlin et al. 2019, 4.4: sentence A is the given sentence, sentence B a possible continuation: the start of
    # the second sentence and an ending.
    text_columns=("sent1", "sent2"),
    choice_columns=("ending0", "ending1", "ending2", "ending3"),
    label_column="label",
    hub_dataset="allenai/swag",
    hub_subset="regular",
    local_name="swag",
    local_files={"train": ("train.csv",), "validation": ("val.csv",), "test": ("test.csv",)},
    published_rows={"train": 73546, "validation": 20006, "test": 20005},
    licence="MIT",
    source="SWAG, Zellers et al. 2018; Hub data set allenai/swag, subset regular",
)


CONLL_TASK = Task(
    name="conll2003",
    kind="token_classification",
    text_columns=("tokens",),
    label_column="ner_tags",
    labels=("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"),
    metrics=("entities",),
    best_metric="f1",
    # Parquet; the older eriktks/conll2003 is a loading script, which `datasets` no longer runs. The Hub's rows bear no
    # document marks: the paper's maximal document context needs the four-column files.
    hub_dataset="lhoestq/conll2003",
    local_name="conll2003",
    local_files={
        "train": ("train.txt",),
        "validation": ("validation.txt", "valid.txt", "dev.txt"),
        "test": ("test.txt",),
    },
    published_rows={"train": 14041, "validation": 3250, "test": 3453},
    licence="Reuters corpus, research only",
    source="CoNLL-2003, Tjong Kim Sang and De Meulder 2003; Hub data set lhoestq/conll2003",
)


# What a row of data becomes. `idx` is the id in the file, the row number (from 0) where it has none; a label that is
# hidden is None.


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExample:
    """One text or a pair of texts (sequence_classification)."""

    idx: int | str
    text: str
    text_pair: str | None = None
    # Index into the task's labels; a float for regression; indices (sorted, may be empty) for multi-label tasks.
    label: int | float | tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedExample:
    """A sentence whose words have labels (token_classification)."""

    idx: int | str
    tokens: tuple[str, ...]
    labels: tuple[int, ...] | None = None  # an index into the task's labels for each word
    # Number from 0; consecutive sentences with one number are one text. Without marks every sentence has its own.
    document: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A gold answer."""

    text: str
    answer_start: int  # in characters of the context


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionExample:
    """A question about a paragraph (question_answering)."""

    idx: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None  # empty where the question has none
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceExample:
    """A context with several endings of which one fits (multiple_choice)."""

    idx: int | str
    context: str
    choices: tuple[str, ...]  # the start that they share is already put before each
    label: int | None = None


Example = TextExample | TaggedExample | QuestionExample | ChoiceExample


@dataclass(frozen=True, kw_only=True)
class Split:
    """The examples of one split, all of one class, in the order of their file."""

    name: str
    examples: Sequence[Example]
    source: str  # file or Hub data set, for messages
    num_rows: int  # of the file, before any limit
    published_rows: int | None = None  # of the published split, where that is known
    is_labelled: bool = True

    @property
    def is_partial(self) -> bool:
        """Whether scores on it cannot be put beside published ones: rows are missing or were left out."""
        return len(self.examples) != (self.num_rows if self.published_rows is None else self.published_rows)


_TASKS = {task.name: task for task in (*GLUE_TASKS, *SQUAD_TASKS, SWAG_TASK, CONLL_TASK)}
# Other names that people give to the same data, letters and digits only.
_ALIASES = {"squad2": "squad_v2", "squad20": "squad_v2", "squadv11": "squad", "conll": "conll2003", "ner": "conll2003"}
_ALIASES |= {"diagnostic": "ax", "glueax": "ax"}


XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")


def _xnli(language: str) -> Task:
    """The training texts of another language than English are machine translations."""
    return Task(
        name=f"xnli_{language}",
        kind="sequence_classification",
        text_columns=("premise", "hypothesis"),
        label_column="label",
        labels=_MNLI_LABELS,
        metrics=("accuracy",),
        best_metric="accuracy",
        hub_dataset="facebook/xnli",
        hub_subset=language,
        local_name=f"xnli/{language}",
        published_rows={"train": 392702, "validation": 2490, "test": 5010},
        licence="CC BY-NC 4.0",
        source="XNLI, Conneau et al. 2018; Hub data set facebook/xnli",
    )


def list_tasks() -> tuple[str, ...]:
    """Return the names of the tasks, GLUE first; XNLI's 15 languages, `xnli_en` and so on, are not among them.

    Example:
        >>> list_tasks()[:3]
        ('cola', 'sst2', 'mrpc')
    """
    return tuple(_TASKS)


def get_task(name: str) -> Task:
    """Return a task by its name; `InputError` with the nearest one where there is none.

    Example:
        >>> get_task("mnli").labels
        ('entailment', 'neutral', 'contradiction')
    """
    if name.removeprefix("xnli_") in XNLI_LANGUAGES and name.startswith("xnli_"):
        return _xnli(name.removeprefix("xnli_"))
    if name not in _TASKS:
        # "SST-2", "sst_2" and "sst2" are one.
        plain = {"".join(filter(str.isalnum, task)): task for task in _TASKS} | _ALIASES
        found = difflib.get_close_matches("".join(filter(str.isalnum, name.lower())), plain, n=1, cutoff=0.5)
        hint = f"did you mean '{plain[found[0]]}'? " if found else ""
        raise InputError(
            f"unknown task '{name}'; {hint}allowed: {', '.join(_TASKS)}, xnli_{' xnli_'.join(XNLI_LANGUAGES)}; a task of your own is given with --task_file"
        )
    return _TASKS[name]
