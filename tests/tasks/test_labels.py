"""Labels say what they are: names, numbers, truth values and vectors mean the same in every format,
and slips are refused.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task_file import read_task_file


def read(
    folder: Path, keys: str, file: str, content: str | list[dict], split: str = "train"
) -> list:
    """Return the labels of a file that is written for a task with these keys."""
    path = folder / file
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif file.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(content), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    head = (
        f"kind: sequence_classification\nfiles: {{train: {file}}}\ntext_columns: "
        "t\nlabel_column: y\n"
    )
    (folder / "own.yaml").write_text(head + keys, encoding="utf-8")
    task = read_task_file(folder / "own.yaml")
    return [example.label for example in load_split(task, split, data_dir=None).examples]


def rows_of(*labels) -> list[dict]:
    return [{"t": "a", "y": label} for label in labels]


SAME = [
    # what pandas writes into a .csv file, and what JSON and Parquet have: labels, their forms,
    # classes
    ("labels: [no, yes]\n", "0.0 1.0 0.0", [0.0, 1.0, 0.0], [0, 1, 0]),
    ("labels: [no, yes]\n", "0 1 0", [0, 1, 0], [0, 1, 0]),
    ("labels: [no, yes]\n", "False True False", [False, True, False], [0, 1, 0]),
    ("labels: {False: ok, True: fault}\n", "False True False", [False, True, False], [0, 1, 0]),
    ("labels: {0.0: no, 1.0: yes}\n", "0.0 1.0 0.0", [0.0, 1.0, 0.0], [0, 1, 0]),
    ("labels: {0: no, 1: yes}\n", "0.0 1.0 0.0", [0, 1, 0], [0, 1, 0]),
    ("labels: [1, 2, 3]\n", "3.0 1.0 2.0", [3, 1, 2], [2, 0, 1]),
    ("labels: ['1.0', '1']\n", "1.0 1 1.0", ["1.0", "1", "1.0"], [0, 1, 0]),
    ("labels: [no, yes]\n", "no yes no", ["no", "yes", "no"], [0, 1, 0]),
    ("", "no yes no", ["no", "yes", "no"], [0, 1, 0]),
    ("", "2.0 10.0 2.0", [2, 10, 2], [0, 1, 0]),
    ("problem_type: regression\n", "0.5 1 -1", [0.5, 1, -1], [0.5, 1.0, -1.0]),
]


@pytest.mark.parametrize(("keys", "written", "values", "classes"), SAME)
def test_a_label_is_the_same_in_every_format(tmp_path, keys, written, values, classes):
    if "regression" in keys:
        keys += "label_range: [-1, 2]\n"
    csv = "t,y\n" + "".join(f"a,{label}\n" for label in written.split())
    assert read(tmp_path, keys, "a.csv", csv) == classes
    assert read(tmp_path, keys, "a.tsv", csv.replace(",", "\t")) == classes
    assert read(tmp_path, keys, "a.jsonl", rows_of(*values)) == classes
    assert read(tmp_path, keys, "a.json", rows_of(*values)) == classes
    assert read(tmp_path, keys, "a.parquet", rows_of(*values)) == classes


def test_a_column_that_mixes_numbers_and_their_texts_is_read(tmp_path):
    """pyarrow refuses it."""
    assert read(tmp_path, "labels: [no, yes]\n", "a.jsonl", rows_of(0, 1, "0", "1", 1.0)) == [
        0,
        1,
        0,
        1,
        1,
    ]


@pytest.mark.parametrize("labels", [["yes", "no", "1"], ["1", "yes", "no"]])
def test_a_number_among_names_is_a_slip(tmp_path, labels):
    line = labels.index("1") + 2
    with pytest.raises(
        InputError,
        match=rf"line {line}: label '1' is a number, but the column has names \('yes' at .*, line "
        r"\d\)",
    ):
        read(
            tmp_path,
            "labels: [yes, no]\n",
            "a.csv",
            "t,y\n" + "".join(f"a,{label}\n" for label in labels),
        )


def test_numbers_that_count_from_one_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(
        InputError,
        match=r"line 5: label '4' .*numbers count from 0: .* write labels: {1: world, 2: sport, "
        r"...}",
    ):
        read(
            tmp_path,
            "labels: [world, sport, business, science]\n",
            "a.csv",
            "t,y\na,1\na,2\na,3\na,4\n",
        )


# Several labels a row

MULTI = "problem_type: multi_label_classification\n"
SETS = [
    ("labels: [x, y, z]\n", [[1, 0, 0], [0, 1, 1], [0, 0, 0]], [(0,), (1, 2), ()]),
    ("labels: [x, y, z]\n", [[1.0, 0.0, 0.0], [True, False, True]], [(0,), (0, 2)]),
    ("labels: [x, y, z]\n", ["1 0 0", "0 1 1"], [(0,), (1, 2)]),
    (
        "labels: [x, y]\nlabel_separator: ' '\n",
        ["1 0", "0 1", "1 1", "0 0"],
        [(0,), (1,), (0, 1), ()],
    ),
    (
        "labels: [x, y, z]\nlabel_separator: ', '\n",
        ["['x', 'z']", "[]", '["y"]'],
        [(0, 2), (), (1,)],
    ),
    ("labels: [x, y, z]\n", ["[1 0 0]", "[0 1 1]"], [(0,), (1, 2)]),
    ("labels: [x, y, z]\n", [["z", "x"], [], ["y"]], [(0, 2), (), (1,)]),
    ("labels: [x, y, z]\n", [[2, 0], [], [1]], [(0, 2), (), (1,)]),
    # two classes: not every row has two entries, so these are class numbers
    ("labels: [x, y]\n", [[0, 1], [1], []], [(0, 1), (1,), ()]),
    ("labels: [x, y]\n", [[0, 1], [1, 0]], [(1,), (0,)]),
]


@pytest.mark.parametrize(("keys", "values", "classes"), SETS)
def test_sets_of_labels_are_read_in_every_form(tmp_path, keys, values, classes):
    assert read(tmp_path, MULTI + keys, "a.jsonl", rows_of(*values)) == classes


def test_a_column_of_0_and_1_for_each_label_is_read(tmp_path):
    """Kaggle's toxic comments; -1 in all of them is hidden, as in its test labels."""
    content = "t,x,y,z\na,0,1,1\na,0.0,0.0,0.0\na,True,False,False\n"
    keys = "label_columns: [x, y, z]\n"
    assert read(tmp_path, keys, "a.csv", content) == [(1, 2), (), (0,)]
    assert read_task_file(tmp_path / "own.yaml").labels == ("x", "y", "z")
    assert read(tmp_path, keys, "b.csv", "t,x,y,z\na,-1,-1,-1\n") == [None]
    for cells in ("0,2,0", "0,,1", "0,-1,1"):
        with pytest.raises(InputError, match=r"line 2: .*; allowed: 0 or 1, true or false"):
            read(tmp_path, keys, "c.csv", f"t,x,y,z\na,{cells}\n")


def test_a_list_of_label_columns_may_stand_under_label_column(tmp_path):
    keys = MULTI + "labels: [x, y, z]\n"
    (tmp_path / "a.csv").write_text("t,x,y,z\na,0,1,1\n")
    (tmp_path / "own.yaml").write_text(
        "kind: sequence_classification\nfiles: {train: a.csv}\ntext_columns: t\nlabel_column: [x, "
        "y, z]\n" + keys
    )
    assert load_split(read_task_file(tmp_path / "own.yaml"), "train", data_dir=None).examples[
        0
    ].label == (1, 2)


def test_a_vector_among_lists_of_names_is_refused(tmp_path):
    with pytest.raises(InputError, match="line 2: label 1 is a number, but the column has names"):
        read(tmp_path, MULTI + "labels: [x, y, z]\n", "a.jsonl", rows_of(["x"], [1, 0, 0]))


# Texts


def test_a_missing_text_is_an_empty_one_in_every_format(tmp_path, caplog):
    caplog.set_level("INFO")
    rows = [{"t": "a", "y": 0}, {"t": None, "y": 1}]
    for file, content in (("a.csv", "t,y\na,0\n,1\n"), ("a.jsonl", rows), ("a.parquet", rows)):
        assert read(tmp_path, "labels: [no, yes]\n", file, content) == [0, 1]
        assert f"{file}: 1 texts are empty; they are kept" in caplog.text


def test_a_number_is_a_text_as_it_is_in_a_csv_file(tmp_path):
    read(tmp_path, "labels: [no, yes]\n", "a.jsonl", [{"t": 1984, "y": 0}, {"t": "x", "y": 1}])
    examples = load_split(read_task_file(tmp_path / "own.yaml"), "train", data_dir=None).examples
    assert [example.text for example in examples] == ["1984", "x"]


# Tables as spreadsheets and pandas write them


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("a.csv", '\ufefft;y\n"a; b";no\nc;yes\n'),
        ("a.csv", '\ufefft,y\r\n"a; b",no\r\nc,yes\r\n'),
        ("a.csv", 't\ty\n"a; b"\tno\nc\tyes\n'),
        ("a.csv", "t , y\na; b,no\nc,yes\n"),
        ("a.tsv", "t\ty\na; b\tno\nc\tyes\n"),
    ],
)
def test_tables_of_spreadsheets_are_read(tmp_path, file, content):
    assert read(tmp_path, "labels: [no, yes]\n", file, content) == [0, 1]
    examples = load_split(read_task_file(tmp_path / "own.yaml"), "train", data_dir=None).examples
    assert [example.text for example in examples] == ["a; b", "c"]


def test_a_tsv_that_pandas_wrote_has_quotes(tmp_path):
    """pandas quotes cells that hold quotes, and doubles these; where one cell is not written so,
    quotes are text.
    """
    keys = "labels: [no, yes]\n"
    read(tmp_path, keys, "a.tsv", 't\ty\n"She said ""no"""\tno\nc\tyes\n')
    texts = [
        each.text
        for each in load_split(
            read_task_file(tmp_path / "own.yaml"), "train", data_dir=None
        ).examples
    ]
    assert texts == ['She said "no"', "c"]
    read(tmp_path, keys, "b.tsv", 't\ty\n"She said ""no"""\tno\n"No", he said\tyes\n')
    texts = [
        each.text
        for each in load_split(
            read_task_file(tmp_path / "own.yaml"), "train", data_dir=None
        ).examples
    ]
    assert texts == ['"She said ""no"""', '"No", he said']
