"""The rows: what they promise is in their sources, and the page about them says the same."""

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
    assert set(task.published_rows) == set(task.splits)
    if task.tsv is not None:
        assert set(task.tsv.files) == set(task.splits)
        assert len(task.tsv.text_columns) == len(task.text_columns)
        assert len(task.tsv.test_text_columns) == len(task.text_columns)


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
    entities = "O B-PER I-PER B-ORG I-ORG B-LOC I-LOC B-MISC I-MISC"
    assert labels["conll2003"] == tuple(entities.split())


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


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("sst-2", "sst2"),
        ("SST_2", "sst2"),
        ("mnil", "mnli"),
        ("squad2", "squad_v2"),
        ("conll", "conll2003"),
    ],
)
def test_an_unknown_task_is_refused_with_the_nearest_name(name, nearest):
    message = rf"unknown task '{name}'; did you mean '{nearest}'\? allowed: cola, "
    with pytest.raises(InputError, match=message):
        get_task(name)


@pytest.mark.parametrize("name", ["xyzzy", "xnli_xx"])
def test_a_name_like_no_task_gets_the_list(name):
    with pytest.raises(InputError, match=f"unknown task '{name}'; .*allowed: cola, sst2.*xnli_zh"):
        get_task(name)


def test_the_table_of_the_page_is_the_rows(repository: Path):
    page = (repository / "docs" / "tasks.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\w+) \| (\w+_\w+) \| (.*) \|$", page, re.MULTILINE)
    assert tuple(name for name, _, _ in lines) == list_tasks()
    for name, kind, cells in lines:
        task = get_task(name)
        counts = []
        for splits in ((task.train_split,), task.validation_splits, task.test_splits):
            rows = [str(task.published_rows[split]) for split in splits if split]
            counts.append(", ".join(rows) or "-")
        numbers = "a number from 0 to 5" if task.label_range else "-"
        assert kind == task.kind
        assert cells.split(" | ") == [
            ", ".join(task.text_columns),
            ", ".join(task.labels) or numbers,
            ", ".join(task.metrics),
            " / ".join(counts),
            task.hub_dataset,
            task.licence,
        ]


@pytest.mark.parametrize("language", ["de", "th"])
def test_xnli_is_a_row_for_each_language(write, tmp_path, language):
    """Conneau et al. 2018, and the folders of the Hub's data set."""
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, 1, 2)]
    write(f"xnli/{language}/validation.jsonl", rows)
    task = get_task(f"xnli_{language}")
    examples = load_split(task, "validation", data_dir=str(tmp_path)).examples
    labels = [task.labels[example.label] for example in examples]
    assert labels == ["entailment", "neutral", "contradiction"]
