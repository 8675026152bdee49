"""The rows of GLUE (Wang et al. 2019): nine tasks and the diagnostic set AX.

Sources of every row:
    columns, labels and their order: Hub data set nyu-mll/glue;
    layout of the TSV files: the official download (gluebenchmark.com/tasks), as huggingface/datasets' glue.py reads it;
    rows of the splits: the data set's card; rows of the test files: gluebenchmark.com/submit;
    metrics: GLUE paper, Table 1; results: BERT, Devlin et al. 2019, Table 1, BERT-base.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bert_recipes.tasks.task import Task, TsvLayout


_FILES = MappingProxyType({"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"})
_NLI_LABELS = ("entailment", "not_entailment")
_MNLI_LABELS = ("entailment", "neutral", "contradiction")
_PAIR = ("sentence1", "sentence2")


def _glue(name: str, *, rows: tuple[int, int, int], submission_file: str, **fields: Any) -> Task:
    """A row with the splits train, validation and test."""
    fields.setdefault("published_rows", dict(zip(("train", "validation", "test"), rows, strict=True)))
    fields.setdefault("submission_files", {"test": submission_file})
    for key in ("published_rows", "submission_files", "paper_test"):
        fields[key] = MappingProxyType(dict(fields.get(key, {})))
    return Task(
        name=name,
        kind="sequence_classification",
        label_column="label",
        id_column="idx",
        hub_dataset="nyu-mll/glue",
        hub_subset=name,
        local_name=name,
        source="GLUE, Wang et al. 2019; Hub data set nyu-mll/glue",
        **fields,
    )


_COLA = _glue(
    "cola",
    rows=(8551, 1043, 1063),
    submission_file="CoLA.tsv",
    text_columns=("sentence",),
    labels=("unacceptable", "acceptable"),
    metrics=("matthews_correlation",),
    best_metric="matthews_correlation",
    # source of the sentence, label, the author's mark, sentence; the test file has index, sentence.
    tsv=TsvLayout(folder="CoLA", files=_FILES, text_columns=(3,), label_column=1, has_header=False),
    paper_test={"matthews_correlation": 52.1},
    licence="none stated, research use",
)
_SST2 = _glue(
    "sst2",
    rows=(67349, 872, 1821),
    submission_file="SST-2.tsv",
    text_columns=("sentence",),
    labels=("negative", "positive"),
    tsv=TsvLayout(folder="SST-2", files=_FILES, text_columns=(0,), label_column=1),
    paper_test={"accuracy": 93.5},
    licence="none stated, research use",
)
_MRPC = _glue(
    "mrpc",
    rows=(3668, 408, 1725),
    submission_file="MRPC.tsv",
    text_columns=_PAIR,
    labels=("not_equivalent", "equivalent"),
    metrics=("accuracy", "f1"),
    best_metric="f1",
    # Quality, #1 ID, #2 ID, #1 String, #2 String; the test file has index in the place of Quality.
    tsv=TsvLayout(folder="MRPC", files=_FILES, text_columns=(3, 4), label_column=0, test_text_columns=(3, 4)),
    paper_test={"f1": 88.9},
    licence="Microsoft Research licence",
)
_STSB = _glue(
    "stsb",
    rows=(5749, 1500, 1379),
    submission_file="STS-B.tsv",
    text_columns=_PAIR,
    problem_type="regression",
    label_range=(0.0, 5.0),
    metrics=("pearson", "spearmanr"),
    best_metric="spearmanr",
    # index, genre, filename, year, old_index, source1, source2, sentence1, sentence2, score
    tsv=TsvLayout(folder="STS-B", files=_FILES, text_columns=(7, 8), label_column=9, test_text_columns=(7, 8)),
    paper_test={"spearmanr": 85.8},
    licence="CC BY-SA 4.0",
)
_QQP = _glue(
    "qqp",
    rows=(363846, 40430, 390965),
    submission_file="QQP.tsv",
    text_columns=("question1", "question2"),
    labels=("not_duplicate", "duplicate"),
    metrics=("accuracy", "f1"),
    best_metric="f1",
    # id, qid1, qid2, question1, question2, is_duplicate. A few questions of the published file hold line breaks and so
    # fall apart into short lines, which the Hub's data set leaves out, too.
    tsv=TsvLayout(
        folder="QQP",
        files=_FILES,
        text_columns=(3, 4),
        label_column=5,
        test_text_columns=(1, 2),
        drops_short_rows=True,
    ),
    paper_test={"f1": 71.2},
    licence="Quora's terms, non-commercial",
)
_MNLI = _glue(
    "mnli",
    rows=(392702, 9815, 9796),
    submission_file="",
    text_columns=("premise", "hypothesis"),
    labels=_MNLI_LABELS,
    validation_splits=("validation_matched", "validation_mismatched"),
    test_splits=("test_matched", "test_mismatched"),
    best_metric="matched_accuracy",
    published_rows={
        "train": 392702,
        "validation_matched": 9815,
        "validation_mismatched": 9832,
        "test_matched": 9796,
        "test_mismatched": 9847,
    },
    submission_files={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
    # index, promptID, pairID, genre, four parses, sentence1, sentence2, one label (train) or five (dev), gold_label
    tsv=TsvLayout(
        folder="MNLI",
        files=MappingProxyType(
            {
                "train": "train.tsv",
                "validation_matched": "dev_matched.tsv",
                "validation_mismatched": "dev_mismatched.tsv",
                "test_matched": "test_matched.tsv",
                "test_mismatched": "test_mismatched.tsv",
            }
        ),
        text_columns=(8, 9),
        label_column=-1,
        test_text_columns=(8, 9),
    ),
    paper_test={"matched_accuracy": 84.6, "mismatched_accuracy": 83.4},
    licence="OANC and others, free use",
)
_QNLI = _glue(
    "qnli",
    rows=(104743, 5463, 5463),
    submission_file="QNLI.tsv",
    text_columns=("question", "sentence"),
    labels=_NLI_LABELS,
    tsv=TsvLayout(folder="QNLI", files=_FILES, text_columns=(1, 2), label_column=3, test_text_columns=(1, 2)),
    paper_test={"accuracy": 90.5},
    licence="CC BY-SA 4.0",
)
_RTE = _glue(
    "rte",
    rows=(2490, 277, 3000),
    submission_file="RTE.tsv",
    text_columns=_PAIR,
    labels=_NLI_LABELS,
    tsv=TsvLayout(folder="RTE", files=_FILES, text_columns=(1, 2), label_column=3, test_text_columns=(1, 2)),
    paper_test={"accuracy": 66.4},
    licence="none stated, research use",
)
_WNLI = _glue(
    "wnli",
    rows=(635, 71, 146),
    submission_file="WNLI.tsv",
    text_columns=_PAIR,
    labels=("not_entailment", "entailment"),
    tsv=TsvLayout(folder="WNLI", files=_FILES, text_columns=(1, 2), label_column=3, test_text_columns=(1, 2)),
    licence="CC BY 4.0",
)
# Predicted by the MNLI model; its labels are kept by the leaderboard, which scores them by Matthews correlation.
_AX = _glue(
    "ax",
    rows=(0, 0, 1104),
    submission_file="AX.tsv",
    text_columns=("premise", "hypothesis"),
    labels=_MNLI_LABELS,
    train_split="",
    validation_splits=(),
    metrics=("matthews_correlation",),
    best_metric="matthews_correlation",
    published_rows={"test": 1104},
    tsv=TsvLayout(
        folder="diagnostic",
        files=MappingProxyType({"test": "diagnostic.tsv"}),
        text_columns=(1, 2),
        label_column=3,
        test_text_columns=(1, 2),
    ),
    licence="none stated",
)

GLUE_TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: task for task in (_COLA, _SST2, _MRPC, _STSB, _QQP, _MNLI, _QNLI, _RTE, _WNLI, _AX)}
)
