"""Choices in columns and lists; the right one is a number, a letter, a name, or its text."""

import pytest

from bert_recipes.errors import InputError


LIST = "kind: multiple_choice\ntext_columns: q\nchoice_columns: options\n"
COLUMNS = "kind: multiple_choice\ntext_columns: q\nchoice_columns: [A, B, C]\n"


def row_of(options, label) -> dict:
    return {"q": "?", "options": options, "label": label}


def test_choices_may_be_lists_of_different_numbers(read):
    _, examples = read(LIST, [row_of(["a", "b", "c"], 2), row_of(["a", "b"], 0)])
    assert [example.choices for example in examples] == [("a", "b", "c"), ("a", "b")]
    assert [example.label for example in examples] == [2, 0]


@pytest.mark.parametrize(
    "labels", [["C", "A"], ["2", "0"], ["c", "a"], [2, 0], ["zebra", "ant"], [[2], ["A"]]]
)
def test_the_right_choice_is_a_letter_a_number_or_its_text(read, labels):
    """Letters as in ARC, RACE and AQuA, numbers from 0 as in SWAG, or the text of the choice."""
    options = ["ant", "bee", "zebra", "fly"]
    _, examples = read(LIST, [row_of(options, label) for label in labels])
    assert [example.label for example in examples] == [2, 0]


def test_a_choice_that_looks_like_a_list_is_its_text(read):
    rows = [row_of(["[3]", "[1]", "[2]", "[]"], label) for label in ("[3]", "[]")]
    rows.append(row_of(["+", "-", "*"], "-"))
    _, examples = read(LIST, rows)
    assert [example.label for example in examples] == [0, 3, 1]


def test_a_hidden_label_is_no_choice_of_its_name(read):
    options = ["Yes", "None"]
    _, examples = read(LIST, [row_of(options, None), row_of(options, "A")])
    assert [example.label for example in examples] == [0]


def test_a_choice_of_one_letter_is_its_text_where_the_letter_is_no_choice(read):
    _, (example,) = read(LIST, [row_of(["he", "I"], "I")])
    assert example.label == 1


def test_a_row_may_have_fewer_choices_than_the_task_has_labels(read):
    labels = "labels: {A: A, B: B, C: C}\n"
    row = row_of({"text": ["ant", "bee"], "label": ["A", "B"]}, "B")
    _, (example,) = read(LIST + labels, [row])
    assert (example.choices, example.label) == (("ant", "bee"), 1)


def test_choices_that_count_from_one_say_so(read):
    rows = [row_of(["a", "b"], 1), row_of(["a", "b"], 2)]
    message = r"line 2: label 2 .*allowed: 0 to 1, A to B.*write labels: \[1, 2, \.\.\.\]"
    with pytest.raises(InputError, match=message):
        read(LIST, rows)
    _, examples = read(LIST + "labels: [1, 2]\n", rows)
    assert [example.label for example in examples] == [0, 1]


def test_a_number_among_names_is_refused(read):
    rows = [row_of(["a", "b"], "yes"), row_of(["a", "b"], 1)]
    with pytest.raises(InputError, match="line 2"):
        read(LIST + "labels: [no, yes]\n", rows)


def test_choices_of_arc_are_read_as_they_are_published(read):
    rows = [
        row_of({"text": ["ant", "bee"], "label": ["A", "B"]}, "B"),
        row_of({"text": ["ant", "bee", "fly"], "label": ["1", "2", "3"]}, "3"),
    ]
    _, examples = read(LIST, rows)
    assert [example.choices for example in examples] == [("ant", "bee"), ("ant", "bee", "fly")]
    assert [example.label for example in examples] == [1, 2]


@pytest.mark.parametrize(
    ("keys", "content", "choices", "label"),
    [
        (COLUMNS, "q,A,B,C,label\n?,ant,bee,,1\n", ("ant", "bee"), 1),
        (LIST, [row_of([3, 4.5], 1)], ("3", "4.5"), 1),
        (LIST, [row_of(["u", "v", None], 1)], ("u", "v"), 1),
        (LIST, [row_of(["u", "v", ""], 2)], ("u", "v", ""), 2),
    ],
)
def test_choices_may_be_left_out_or_numbers(read, keys, content, choices, label):
    _, (example,) = read(keys, content, "train.csv" if keys == COLUMNS else "train.jsonl")
    assert (example.choices, example.label) == (choices, label)


@pytest.mark.parametrize(
    ("options", "label", "message"),
    [
        (["u", "v"], 2, "line 1: label 2 is none of the 2 choices"),
        (["u"], 0, "line 1: 1 choices; two or more are expected"),
        (["1", "2", "3"], "1", "label '1' is the text of one choice and the number of another"),
        (["the", "a", "an"], "a", "label 'a' is the text of one choice and the letter of another"),
        (list(map(str, range(100, 130))), 30, "none of the 30 choices; allowed: 0 to 29, or a ch"),
        (["u", None, "v"], 1, "a list of texts is expected"),
        ("a b", 1, "line 1: column 'options' holds 'a b'; a list of texts is expected"),
        ({"text": ["u", "v"], "label": None}, 0, "beside its texts a list of labels is expected"),
        ({"text": ["u", "v"], "label": 3}, 0, "beside its texts a list of labels is expected"),
    ],
)
def test_choices_that_can_be_meant_in_two_ways_or_none_are_refused(read, options, label, message):
    with pytest.raises(InputError, match=message):
        read(LIST, [row_of(options, label)])


def test_a_label_of_a_choice_that_a_row_leaves_out_is_refused(read):
    with pytest.raises(InputError, match=r"line 2: label '2' is none of the 2 choices"):
        read(COLUMNS, "q,A,B,C,label\n?,ant,bee,,2\n", "train.csv")
