"""Inputs of a file, and how they are cut."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_recipes.errors import InputError
from bert_recipes.features.inputs import TextInput, encode_input, read_inputs, survey_inputs
from bert_recipes.tokenization import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return load_tokenizer(tiny_checkpoint)


def test_lines_are_read_as_the_original_reads_them(tmp_path):
    """google-research/bert extract_features.py `read_examples`: stripped, and divided at the last ' ||| '."""
    path = tmp_path / "in.txt"
    path.write_text("  one text \n\na ||| b\na ||| b ||| c\na |||b\n||| b\na ||| \n", encoding="utf-8")
    assert list(read_inputs(path)) == [
        TextInput("one text", None),
        TextInput("", None),
        TextInput("a", "b"),
        TextInput("a ||| b", "c"),
        TextInput("a |||b", None),
        TextInput("||| b", None),
        TextInput("a |||", None),
    ]


def test_tables_give_the_named_columns_row_by_row(tmp_path):
    rows = [{"text": "a", "text_pair": "b", "n": 1}, {"text": "c ||| d", "text_pair": None}, {"text": ""}]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # In a table a text is a text: only lines are divided.
    assert list(read_inputs(path)) == [TextInput("a", "b"), TextInput("c ||| d", None), TextInput("", None)]
    other = tmp_path / "in.parquet"
    pq.write_table(pa.table({"q": ["x", "y"], "p": ["z", None]}), other)
    assert list(read_inputs(other, ["q", "p"])) == [TextInput("x", "z"), TextInput("y", None)]
    with pytest.raises(InputError, match="row 2: column 'p' holds None"):
        list(read_inputs(other, ["p"]))


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        ("none.txt", None, None, "no such file"),
        ("a.doc", "x", None, "unknown ending '.doc'; allowed: .txt, .jsonl"),
        ("a.jsonl", '{"sentence": "x"}\n', None, r"a.jsonl, line 1: no column 'text'; .*--text_columns"),
        ("a.jsonl", '{"text": "x"}\n{"text": 3}\n', None, "line 2: column 'text' holds 3; text is expected"),
        ("a.jsonl", '{"a": "x"}\n', ["a", "b"], "line 1: no column 'b'"),
        ("a.jsonl", '{"text": "x"\n', None, "line 1: broken JSON"),
        ("a.txt", "", None, "no input in it"),
        ("a.jsonl", "\n", None, "no input in it"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(tmp_path, name, text, columns, message):
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        survey_inputs(tmp_path / name, columns)


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\nb\xe9d\n")
    with pytest.raises(InputError, match="line 2: not UTF-8"):
        survey_inputs(tmp_path / "a.txt", None)


def test_a_survey_counts_and_tells_inputs_apart(tmp_path):
    texts = {"a": "x\ny\n", "b": "x\nz\n", "c": "x y\n", "d": "x ||| y\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    surveys = [survey_inputs(tmp_path / f"{name}.txt", None) for name in texts]
    assert [survey.num_inputs for survey in surveys] == [2, 2, 1, 1]
    assert len({survey.fingerprint for survey in surveys}) == 4


def test_inputs_are_cut_as_the_original_cuts_them(tokenizer):
    """google-research/bert extract_features.py `convert_examples_to_features`, `_truncate_seq_pair`."""

    def original(text, pair, length):
        first, second = (tokenizer.tokenize(each) if each else [] for each in (text, pair))
        if second:
            while len(first) + len(second) > length - 3:
                (first if len(first) > len(second) else second).pop()
        else:
            first = first[: length - 2]
        tokens = ["[CLS]", *first, "[SEP]"] + ([*second, "[SEP]"] if second else [])
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1 if second else 0)
        return tokens, types

    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        text, pair = ("".join(rng.choice(list("abc d"), rng.integers(0, 14))) for _ in range(2))
        pair = pair if rng.random() < 0.6 else None
        length = int(rng.integers(3, 30))
        found = encode_input(TextInput(text, pair), tokenizer, length)
        tokens, types = original(text, pair, length)
        assert tokenizer.convert_ids_to_tokens(found.input_ids) == tokens
        assert found.token_type_ids == types
        whole = encode_input(TextInput(text, pair), tokenizer, 100)
        assert found.is_truncated == (len(whole.input_ids) > len(found.input_ids))
        assert not whole.is_truncated
        seen.add((found.is_truncated, pair is None))
    assert len(seen) == 4
