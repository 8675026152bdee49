"""Rows of a task of one's own: labels in every form, choices, ids; what is no label is refused with
its row.
"""

import json
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import read_task_file
from bert_recipes.tasks.sources import load_split


@pytest.fixture
def read(tmp_path: Path):
    """Read a task file and one training file, given as texts."""

    def read_one(yaml_text: str, data: str, file: str = "train.csv", split: str = "train"):
        (tmp_path / file).write_text(data, encoding="utf-8")
        (tmp_path / "own.yaml").write_text(yaml_text.replace("FILE", file), encoding="utf-8")
        return load_split(read_task_file(tmp_path / "own.yaml"), split, data_dir=None)

    return read_one


SEQUENCE = "kind: sequence_classification\nfiles: {train: FILE}\ntext_columns: t\nlabel_column: y\n"


def test_a_sample_of_ones_own_rows_is_marked_partial(read):
    split = read(SEQUENCE + "labels: [a, b]\n", "t,y\nx,a\ny,b\nz,a\n")
    task = read_task_file(Path(split.source).with_name("own.yaml"))
    assert not split.is_partial
    assert load_split(task, "train", data_dir=None, max_examples=2).is_partial
    assert not load_split(task, "train", data_dir=None, max_examples=3).is_partial


def labels_of(split) -> list:
    return [example.label for example in split.examples]


def test_labels_that_are_numbers_are_names_and_not_places(read):
    assert labels_of(read(SEQUENCE + "labels: [1, 2, 3]\n", "t,y\na,1\nb,3\nc,2\n")) == [0, 2, 1]
    with pytest.raises(
        InputError, match=r"line 2: label '0' is not one of the task's; allowed: 1, 2, 3$"
    ):
        read(SEQUENCE + "labels: [1, 2, 3]\n", "t,y\na,0\n")


def test_words_that_yaml_takes_for_something_else_stay_words(read):
    assert labels_of(
        read(SEQUENCE + "labels: [no, yes, None]\n", "t,y\na,yes\nb,no\nc,None\n")
    ) == [1, 0, 2]


def test_truth_values_of_json_are_words(read):
    rows = '{"t": "a", "y": true}\n{"t": "b", "y": false}\n'
    assert labels_of(read(SEQUENCE + "labels: ['false', 'true']\n", rows, "train.jsonl")) == [1, 0]


def test_minus_one_may_be_a_class(read):
    labels = "labels: {-1: negative, 0: neutral, 1: positive}\n"
    assert labels_of(read(SEQUENCE + labels, "t,y\na,-1\nb,1\nc,0\n")) == [0, 2, 1]


def test_a_regression_may_go_below_zero(read):
    text = SEQUENCE + "problem_type: regression\nlabel_range: [-1, 1]\n"
    assert labels_of(read(text, "t,y\na,-1\nb,0.5\n")) == [-1.0, 0.5]
    with pytest.raises(InputError, match=r"line 2: label '1\.5'; allowed: a number from -1 to 1"):
        read(text, "t,y\na,1.5\n")
    assert labels_of(read(SEQUENCE + "problem_type: regression\n", "t,y\na,-1\nb,1e3\n")) == [
        -1.0,
        1000.0,
    ]


MULTI = SEQUENCE + "problem_type: multi_label_classification\nlabels: [x, y, z]\n"


def test_multi_label_text_is_split_at_the_separator(read):
    assert labels_of(read(MULTI + "label_separator: ';'\n", "t,y\na,z; x\nb,\nc,y\n")) == [
        (0, 2),
        (),
        (1,),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            '{"t": "a", "y": "x"}',
            r"line 1: a list of labels is expected, 'x' found; .*label_separator",
        ),
        ('{"t": "a", "y": 3}', "line 1: a list of labels is expected, 3 found"),
        ('{"t": "a", "y": ["x", "w"]}', "line 1: label 'w' is not one"),
        ('{"t": "a", "y": ["x", "x"]}', "line 1: a label is empty, or stands twice, in"),
        ('{"t": "a", "y": ["x", null]}', "line 1: a label is empty, or stands twice, in"),
        ('{"t": "a", "y": ["x"]}\n{"t": "a", "y": null}', "line 2: the label is hidden"),
    ],
)
def test_labels_that_are_no_set_are_refused(read, rows: str, message: str):
    with pytest.raises(InputError, match=message):
        read(MULTI, rows + "\n", "train.jsonl")


CHOICES = "kind: multiple_choice\nfiles: {train: FILE}\ntext_columns: q\nchoice_columns: options\n"


def test_choices_may_be_lists_of_different_numbers(read):
    row = {"q": "?", "options": ["a", "b", "c"], "label": 2}
    other = row | {"options": ["a", "b"], "label": 0}
    split = read(CHOICES, json.dumps(row) + "\n" + json.dumps(other) + "\n", "train.jsonl")
    assert [(example.choices, example.label) for example in split.examples] == [
        (("a", "b", "c"), 2),
        (("a", "b"), 0),
    ]
    with pytest.raises(
        InputError, match="line 1: column 'options' holds 'a b'; a list of texts is expected"
    ):
        read(CHOICES, json.dumps(row | {"options": "a b"}) + "\n", "train.jsonl")


@pytest.mark.parametrize("labels", [["C", "A"], ["2", "0"], ["c", "a"], [2, 0], ["zebra", "ant"]])
def test_the_right_choice_is_a_letter_a_number_or_its_text(read, labels):
    """Letters as in ARC, RACE and AQuA, numbers from 0 as in SWAG, or the text of the choice."""
    options = ["ant", "bee", "zebra", "fly"]
    rows = [{"q": "?", "options": options, "label": label} for label in labels]
    split = read(CHOICES, "".join(json.dumps(row) + "\n" for row in rows), "train.jsonl")
    assert [example.label for example in split.examples] == [2, 0]


def test_choices_that_count_from_one_say_so(read):
    rows = "".join(
        json.dumps({"q": "?", "options": ["a", "b"], "label": label}) + "\n" for label in (1, 2)
    )
    with pytest.raises(
        InputError,
        match=r"line 2: label 2 .*allowed: 0 to 1, A to B.*write labels: \[1, 2, \.\.\.\]",
    ):
        read(CHOICES, rows, "train.jsonl")
    split = read(CHOICES + "labels: [1, 2]\n", rows, "train.jsonl")
    assert [example.label for example in split.examples] == [0, 1]


def test_choices_of_arc_are_read_as_they_are_published(read):
    rows = [
        {"q": "?", "options": {"text": ["ant", "bee"], "label": ["A", "B"]}, "answerKey": "B"},
        {
            "q": "?",
            "options": {"text": ["ant", "bee", "fly"], "label": ["1", "2", "3"]},
            "answerKey": "3",
        },
    ]
    text = CHOICES + "label_column: answerKey\n"
    split = read(text, "".join(json.dumps(row) + "\n" for row in rows), "train.jsonl")
    assert [(example.choices, example.label) for example in split.examples] == [
        (("ant", "bee"), 1),
        (("ant", "bee", "fly"), 2),
    ]


def test_tags_that_are_no_entities_are_not_held_to_iob2(read):
    text = "kind: token_classification\nfiles: {train: FILE}\nlabels: [NOUN, VERB]\n"
    split = read(text, "dogs NOUN\nbark VERB\n", "train.conll")
    assert split.examples[0].labels == (0, 1)
    assert read_task_file(Path(split.source).with_name("own.yaml")).best_metric == "accuracy"


def test_ids_come_from_their_column(read):
    split = read(SEQUENCE + "labels: [a, b]\nid_column: n\n", "n,t,y\nx7,a,a\nx8,b,b\n")
    assert [example.idx for example in split.examples] == ["x7", "x8"]
    with pytest.raises(InputError, match="line 2: no column 'n'; columns present: t, y"):
        read(SEQUENCE + "labels: [a, b]\nid_column: n\n", "t,y\na,a\n")


def test_a_tsv_of_ones_own_has_no_quotes(read):
    split = read(SEQUENCE + "labels: [a, b]\n", 't\ty\n"x" y\ta\n', "train.tsv")
    assert split.examples[0].text == '"x" y'
