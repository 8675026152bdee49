"""What the page shows first is the user's own held-out text."""

import json
import shutil

import pytest

from bert_recipes.demo import page
from bert_recipes.demo.model import open_demo_model
from bert_recipes.demo.samples import MADE_UP, read_run_examples


pytest.importorskip("gradio", reason="the extra demo is not installed")

MASKS = [
    {
        "before": "... die f",
        "truth": "##reude",
        "after": "ist gross",
    },
    {
        "before": "... das haus",
        "truth": "ist",
        "after": "neu und ...",
    },
]
VERDICTS = [
    {
        "first": "ein apfel",
        "second": "im regen",
        "truth": False,
    }
]
VERDICTS += [
    {
        "first": "ein haus",
        "second": "es ist neu",
        "truth": True,
    }
]


def values_of(model):
    """Tab -> the values of its fields."""
    from bert_recipes.demo.tabs import make_tabs

    return {tab.name: [field.value for field in tab.fields] for tab in make_tabs(model)}


@pytest.fixture
def first_row_of(tiny_runs):
    """Kind -> the first validation row of its run."""

    def read(kind):
        file = tiny_runs(kind).parent / "data" / "validation.jsonl"
        return json.loads(file.read_text(encoding="utf-8").splitlines()[0])

    return read


@pytest.fixture
def write_facts(tmp_path):
    def write(facts):
        (tmp_path / "report.json").write_text(json.dumps(facts), encoding="utf-8")
        return tmp_path

    return write


def test_a_pretraining_run_shows_its_held_out_text(tiny_checkpoint, write_facts, tmp_path_factory):
    folder = write_facts(
        {"kind": "pretraining", "held_out": {"masks": MASKS, "verdicts": VERDICTS}}
    )
    shutil.copytree(tiny_checkpoint, folder, dirs_exist_ok=True)
    values = values_of(open_demo_model(str(folder), tmp_path_factory.mktemp("work"), use_cpu=True))
    assert values["fill_mask"][0] == "das haus [MASK] neu und"
    assert values["next_sentence"] == ["ein haus", "es ist neu"]
    assert values["attention"][0] == values["pieces"][0] == "das haus ist neu und"


@pytest.mark.parametrize(
    "kind", ["sequence_classification", "token_classification", "question_answering"]
)
def test_a_fine_tuned_run_shows_its_first_validation_example(fine_tuned, first_row_of, kind):
    model = fine_tuned(kind)
    row = first_row_of(kind)
    texts = []
    for name in model.predictor.task.text_columns:
        words = row[name] if isinstance(row[name], list) else row[name].split()
        texts.append(" ".join(words))
    assert next(iter(values_of(model).values())) == texts


def test_choices_are_shown_one_per_line(fine_tuned, first_row_of):
    row = first_row_of("multiple_choice")
    context, *_, choices = values_of(fine_tuned("multiple_choice"))["choose"]
    assert context.split() == row["start"].split()
    assert [line.split() for line in choices.splitlines()] == [row[name].split() for name in "abc"]


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "pretraining", "held_out": None},  # nothing was held out
        {"kind": "finetuning", "splits": []},  # of an older version
        {"kind": "finetuning", "example": "changed by hand"},
        [],
    ],
)
def test_a_report_without_examples_leaves_those_of_the_page(write_facts, facts):
    assert read_run_examples(write_facts(facts)) == {}


def test_a_damaged_report_leaves_those_of_the_page(tmp_path):
    (tmp_path / "report.json").write_text("{", encoding="utf-8")
    assert read_run_examples(tmp_path) == {}


def test_a_checkpoint_that_is_no_run_shows_what_the_page_has(demo_model):
    # Its vocabulary of letters knows no English word.
    assert values_of(demo_model)["fill_mask"][0] == ""
    assert set(MADE_UP) >= {"fill_mask", "next_sentence", "attention", "pieces"}


def test_an_example_that_cannot_be_answered_waits_for_a_text(
    tiny_checkpoint, write_facts, tmp_path_factory
):
    verdicts = [
        {
            "first": "ein haus",
            "second": "",
            "truth": True,
        }
    ]
    folder = write_facts(
        {"kind": "pretraining", "held_out": {"masks": MASKS, "verdicts": verdicts}}
    )
    shutil.copytree(tiny_checkpoint, folder, dirs_exist_ok=True)
    model = open_demo_model(str(folder), tmp_path_factory.mktemp("work"), use_cpu=True)
    assert page.build_page(model) is not None
