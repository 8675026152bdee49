"""Labels say what they are, and mean the same in every format; slips are refused."""

import pytest

from bert_recipes.errors import InputError


CLASSES = "kind: sequence_classification\ntext_columns: t\nlabel_column: y\n"
BINARY = CLASSES + "labels: [no, yes]\n"
MULTI = CLASSES + "problem_type: multi_label_classification\n"
XYZ = MULTI + "labels: [x, y, z]\n"


def rows_of(*labels) -> list[dict]:
    return [{"t": "a", "y": label} for label in labels]


def labels_of(read, keys: str, content, name: str = "train.jsonl") -> list:
    return [example.label for example in read(keys, content, name)[1]]


SAME = [
    # keys; labels as pandas writes them into a .csv file; as JSON and Parquet have them; classes
    ("labels: [no, yes]", "0.0 1.0 0.0", [0.0, 1.0, 0.0], [0, 1, 0]),
    ("labels: [no, yes]", "False True False", [False, True, False], [0, 1, 0]),
    ("labels: ['false', 'true']", "True False", [True, False], [1, 0]),
    ("labels: {False: ok, True: fault}", "False True False", [False, True, False], [0, 1, 0]),
    ("labels: {0.0: no, 1.0: yes}", "0.0 1.0 0.0", [0.0, 1.0, 0.0], [0, 1, 0]),
    ("labels: {0: no, 1: yes}", "0.0 1.0 0.0", [0, 1, 0], [0, 1, 0]),
    ("labels: {-1: bad, 0: fair, 1: good}", "-1 1 0", [-1, 1, 0], [0, 2, 1]),
    ("labels: [1, 2, 3]", "3.0 1.0 2.0", [3, 1, 2], [2, 0, 1]),
    ("labels: ['1.0', '1']", "1.0 1 1.0", ["1.0", "1", "1.0"], [0, 1, 0]),
    ("labels: [no, yes, None]", "no yes None", ["no", "yes", "None"], [0, 1, 2]),
    ("", "no yes no", ["no", "yes", "no"], [0, 1, 0]),
    ("", "2.0 10.0 2.0", [2, 10, 2], [0, 1, 0]),
    ("problem_type: regression", "0.5 1 -1", [0.5, 1, -1], [0.5, 1.0, -1.0]),
    ("problem_type: regression\nlabel_range: [-1, 2]", "0.5 -1", [0.5, -1], [0.5, -1.0]),
]


@pytest.mark.parametrize(("keys", "texts", "values", "classes"), SAME)
def test_a_label_is_the_same_in_every_format(read, keys, texts, values, classes):
    keys = f"{CLASSES}{keys}\n"
    csv = "t,y\n" + "".join(f"a,{label}\n" for label in texts.split())
    contents = {
        "a.csv": csv,
        "a.tsv": csv.replace(",", "\t"),
        "a.jsonl": rows_of(*values),
        "a.json": rows_of(*values),
        "a.parquet": rows_of(*values),
    }
    for name, content in contents.items():
        assert labels_of(read, keys, content, name) == classes, name


def test_a_column_that_mixes_numbers_and_their_texts_is_read(read):
    """pyarrow refuses it."""
    assert labels_of(read, BINARY, rows_of(0, 1, "0", "1", 1.0)) == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(("labels", "line"), [("yes no 1", 3), ("1 yes no", 1)])
def test_a_number_among_names_is_a_slip(read, labels, line):
    message = (
        rf"line {line}: label '1' is a number, but the column has names \('yes' at .*, line \d\)"
    )
    with pytest.raises(InputError, match=message):
        read(BINARY, rows_of(*labels.split()))


@pytest.mark.parametrize(
    ("labels", "label", "message"),
    [
        ("[1, 2, 3]", 0, "label 0 is not one of the task's; allowed: 1, 2, 3$"),
        ("[world, sport]", "2", "label '2' .*count from 0: .* labels: {1: world, 2: sport, ...}"),
    ],
)
def test_numbers_that_are_no_classes_are_refused_with_the_way_out(read, labels, label, message):
    with pytest.raises(InputError, match=message):
        read(f"{CLASSES}labels: {labels}\n", rows_of(1, label))


# Several labels a row

SETS = [
    ("[x, y, z]", [[1, 0, 0], [0, 1, 1], [0, 0, 0]], [(0,), (1, 2), ()]),
    ("[x, y, z]", [[1.0, 0.0, 0.0], [True, False, True]], [(0,), (0, 2)]),
    ("[x, y, z]", ["1 0 0", "0 1 1"], [(0,), (1, 2)]),
    ("[x, y]\nlabel_separator: ' '", ["1 0", "0 1", "1 1", "0 0"], [(0,), (1,), (0, 1), ()]),
    ("[x, y, z]\nlabel_separator: ';'", ["z; x", "", "y"], [(0, 2), (), (1,)]),
    ("[x, y, z]\nlabel_separator: ', '", ["['x', 'z']", "[]", '["y"]'], [(0, 2), (), (1,)]),
    ("[x, y, z]", ["[1 0 0]", "[0 1 1]"], [(0,), (1, 2)]),
    ("[x, y, z]", [["z", "x"], [], ["y"]], [(0, 2), (), (1,)]),
    ("[x, y, z]", [[2, 0], [], [1]], [(0, 2), (), (1,)]),
    # Not every row has two entries, so these are class numbers.
    ("[x, y]", [[0, 1], [1], []], [(0, 1), (1,), ()]),
    ("[x, y]", [[0, 1], [1, 0]], [(1,), (0,)]),
]


@pytest.mark.parametrize(("labels", "values", "classes"), SETS)
def test_sets_of_labels_are_read_in_every_form(read, labels, values, classes):
    assert labels_of(read, f"{MULTI}labels: {labels}\n", rows_of(*values)) == classes


def test_an_empty_cell_says_that_no_class_fits_and_null_that_nobody_labelled_the_row(read, caplog):
    caplog.set_level("INFO")
    keys = XYZ + "label_separator: ';'\n"
    for name, content in (("a.csv", "t,y\na,x\na,\n"), ("a.jsonl", rows_of("x", ""))):
        assert labels_of(read, keys, content, name) == [(0,), ()]
        assert f"{name}: 1 rows have an empty label, which says that no class fits" in caplog.text
    for name in ("b.jsonl", "b.parquet"):
        assert labels_of(read, keys, rows_of("x", None), name) == [(0,)]
        assert f"{name}: 1 of 2 rows have no label and are left out" in caplog.text


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["x"], r"line 1: a list of labels is expected, 'x' found; .*label_separator"),
        ([["x", "w"]], "line 1: label 'w' is not one"),
        ([["x", "x"]], "line 1: a label is empty, or stands twice, in"),
        ([["x", None]], "line 1: a label is empty, or stands twice, in"),
        ([["x"], [1, 0, 0]], "line 2: label 1 is a number, but the column has names"),
    ],
)
def test_labels_that_are_no_set_are_refused(read, labels, message):
    with pytest.raises(InputError, match=message):
        read(XYZ, rows_of(*labels))


@pytest.mark.parametrize("key", ["label_columns", "label_column"])
def test_a_column_of_0_and_1_for_each_label_is_read(read, key):
    """Kaggle's toxic comments; -1 in all of them is hidden, as in its test labels."""
    keys = f"kind: sequence_classification\ntext_columns: t\n{key}: [x, y, z]\n"
    content = "t,x,y,z\na,0,1,1\na,0.0,0.0,0.0\na,True,False,False\n"
    task, examples = read(keys, content, "a.csv")
    assert task.labels == ("x", "y", "z")
    assert [example.label for example in examples] == [(1, 2), (), (0,)]
    assert labels_of(read, keys, "t,x,y,z\na,-1,-1,-1\n", "a.csv") == [None]
    for cells in ("0,2,0", "0,,1", "0,-1,1"):
        with pytest.raises(InputError, match=r"line 2: .*; allowed: 0 or 1, true or false"):
            read(keys, f"t,x,y,z\na,{cells}\n", "a.csv")


# Texts and ids


def test_a_missing_text_is_an_empty_one_and_a_number_a_text_in_every_format(read, caplog):
    caplog.set_level("INFO")
    rows = [{"t": "1984", "y": 0}, {"t": None, "y": 1}]
    contents = {"a.csv": "t,y\n1984,0\n,1\n", "a.jsonl": rows, "a.parquet": rows}
    contents["b.jsonl"] = [{"t": 1984, "y": 0}, {"t": None, "y": 1}]
    for name, content in contents.items():
        _, examples = read(BINARY, content, name)
        assert [example.text for example in examples] == ["1984", ""]
        assert f"{name}: 1 texts are empty; they are kept" in caplog.text


def test_ids_come_from_their_column(read):
    keys = BINARY + "id_column: n\n"
    _, examples = read(keys, "n,t,y\nx7,a,no\nx8,b,yes\n", "a.csv")
    assert [example.idx for example in examples] == ["x7", "x8"]
    with pytest.raises(InputError, match="line 2: no column 'n'; columns present: t, y"):
        read(keys, "t,y\na,no\n", "a.csv")


# Tables as spreadsheets and pandas write them


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", '\ufefft;y\n"a; b";no\nc;yes\n', ["a; b", "c"]),
        ("a.csv", '\ufefft,y\r\n"a; b",no\r\nc,yes\r\n', ["a; b", "c"]),
        ("a.csv", 't\ty\n"a; b"\tno\nc\tyes\n', ["a; b", "c"]),
        ("a.csv", "t , y\na; b,no\nc,yes\n", ["a; b", "c"]),
        ("a.tsv", "t\ty\na; b\tno\nc\tyes\n", ["a; b", "c"]),
        # pandas quotes cells that hold quotes, and doubles these.
        ("a.tsv", 't\ty\n"She said ""no"""\tno\nc\tyes\n', ['She said "no"', "c"]),
        # Where one cell is not written so, quotes are text.
        (
            "a.tsv",
            't\ty\n"She said ""no"""\tno\n"No", he said\tyes\n',
            ['"She said ""no"""', '"No", he said'],
        ),
    ],
)
def test_tables_of_spreadsheets_are_read(read, name, content, texts):
    _, examples = read(BINARY, content, name)
    assert [example.label for example in examples] == [0, 1]
    assert [example.text for example in examples] == texts
