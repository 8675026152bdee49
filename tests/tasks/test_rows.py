"""The rows: what they promise is in their sources, and the page about them says the same."""

import json
import re
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks import catalogue
from bert_recipes.tasks.catalogue import get_task, list_tasks
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import KINDS


GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


def test_all_tasks_are_there():
    assert list_tasks() == (*GLUE, "squad", "squad_v2", "swag", "conll2003")
    files = Path(catalogue.__file__).with_name("rows").glob("*.yaml")
    assert {file.stem for file in files} == {*list_tasks(), "xnli"}


@pytest.mark.parametrize("name", list_tasks())
def test_a_row_is_complete(name: str):
    task = get_task(name)
    assert task.name == name
    assert task.kind in KINDS
    assert task.hub_dataset
    assert task.licence
    assert task.source
    splits = {
        split for split in (task.train_split, *task.validation_splits, *task.test_splits) if split
    }
    assert set(task.published_rows) == splits
    if task.tsv is not None:
        assert set(task.tsv.files) == splits
        assert (
            len(task.tsv.text_columns) == len(task.tsv.test_text_columns) == len(task.text_columns)
        )


def test_label_order_is_the_hubs():
    """Source: features of nyu-mll/glue and lhoestq/conll2003."""
    labels = {name: get_task(name).labels for name in list_tasks()}
    assert labels["cola"] == ("unacceptable", "acceptable")
    assert labels["sst2"] == ("negative", "positive")
    assert labels["mrpc"] == ("not_equivalent", "equivalent")
    assert labels["qqp"] == ("not_duplicate", "duplicate")
    assert labels["mnli"] == labels["ax"] == ("entailment", "neutral", "contradiction")
    assert labels["qnli"] == labels["rte"] == ("entailment", "not_entailment")
    assert labels["wnli"] == ("not_entailment", "entailment")
    assert labels["conll2003"] == (
        "O",
        "B-PER",
        "I-PER",
        "B-ORG",
        "I-ORG",
        "B-LOC",
        "I-LOC",
        "B-MISC",
        "I-MISC",
    )


def test_submission_files_and_rows_are_the_leaderboards():
    """Source: gluebenchmark.com/submit."""
    files = {}
    for name in GLUE:
        task = get_task(name)
        files |= {file: task.published_rows[split] for split, file in task.submission_files.items()}
    assert files == {
        "CoLA.tsv": 1063,
        "SST-2.tsv": 1821,
        "MRPC.tsv": 1725,
        "STS-B.tsv": 1379,
        "QQP.tsv": 390965,
        "MNLI-m.tsv": 9796,
        "MNLI-mm.tsv": 9847,
        "QNLI.tsv": 5463,
        "RTE.tsv": 3000,
        "WNLI.tsv": 146,
        "AX.tsv": 1104,
    }


def test_paper_results_average_to_the_papers_average():
    """BERT, Devlin et al. 2019, Table 1: BERT-base 79.6 over its nine columns, without WNLI."""
    values = [value for name in GLUE for value in get_task(name).paper_test.values()]
    assert len(values) == 9
    assert sum(values) / 9 == pytest.approx(79.6, abs=0.05)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("sst-2", "sst2"),
        ("SST_2", "sst2"),
        ("mnil", "mnli"),
        ("squad2", "squad_v2"),
        ("MRPC", "mrpc"),
        ("conll", "conll2003"),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest_name(given: str, nearest: str):
    with pytest.raises(
        InputError, match=rf"unknown task '{given}'; did you mean '{nearest}'\? allowed: cola, "
    ):
        get_task(given)


def test_a_name_like_no_task_gets_the_list_only():
    with pytest.raises(InputError, match="unknown task 'xyzzy'; allowed: cola, sst2"):
        get_task("xyzzy")


def test_the_table_of_the_page_is_the_rows(repository: Path):
    page = (repository / "docs" / "tasks.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\w+) \| (\w+_\w+) \| (.*) \|$", page, re.MULTILINE)
    assert tuple(name for name, _, _ in lines) == list_tasks()
    for name, kind, rest in lines:
        task = get_task(name)
        text, classes, metrics, rows, hub, licence = rest.split(" | ")
        assert kind == task.kind
        assert text == ", ".join(task.text_columns)
        assert classes == (
            ", ".join(task.labels) or ("a number from 0 to 5" if task.label_range else "-")
        )
        assert metrics == ", ".join(task.metrics)
        groups = (
            (task.train_split,) if task.train_split else (),
            task.validation_splits,
            task.test_splits,
        )
        counts = [
            ", ".join(str(task.published_rows[split]) for split in group) or "-" for group in groups
        ]
        assert rows == " / ".join(counts)
        assert hub == task.hub_dataset
        assert licence == task.licence


def test_xnli_is_a_row_for_each_language(tmp_path):
    """Conneau et al. 2018, and the folders of the Hub's data set."""
    for language in ("de", "th"):
        folder = tmp_path / "xnli" / language
        folder.mkdir(parents=True)
        rows = [
            {"premise": f"{language} a", "hypothesis": "b", "label": label} for label in (0, 1, 2)
        ]
        (folder / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = get_task(f"xnli_{language}")
        examples = load_split(task, "validation", data_dir=str(tmp_path)).examples
        assert [(example.text, task.labels[example.label]) for example in examples] == [
            (f"{language} a", label) for label in ("entailment", "neutral", "contradiction")
        ]
    with pytest.raises(InputError, match="xnli_zh"):
        get_task("xnli_xx")
