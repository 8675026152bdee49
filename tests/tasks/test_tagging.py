"""Spans of annotation tools, tables with a word a row, and words that stand in one text."""

import json
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.tagging import split_text
from bert_recipes.tasks.task_file import read_task_file


LABELS = "labels: [O, B-PER, I-PER, B-LOC, I-LOC]\n"
TEXT = "Mara Lind sails to Oslo."
WORDS = [
    ("Mara", "B-PER"),
    ("Lind", "I-PER"),
    ("sails", "O"),
    ("to", "O"),
    ("Oslo", "B-LOC"),
    (".", "O"),
]


def load(folder: Path, file: str, content: str, keys: str):
    (folder / file).write_text(content, encoding="utf-8")
    (folder / "own.yaml").write_text(
        f"kind: token_classification\nfiles: {{train: {file}}}\n{keys}", encoding="utf-8"
    )
    task = read_task_file(folder / "own.yaml")
    return task, load_split(task, "train", data_dir=None).examples


def read(folder: Path, file: str, content: str, keys: str) -> list[list[tuple[str, str]]]:
    task, examples = load(folder, file, content, keys)
    return [
        [(word, task.labels[label]) for word, label in zip(each.tokens, each.labels, strict=True)]
        for each in examples
    ]


SPANS = {
    "spans": {"spans": [[0, 9, "PER"], [19, 23, "LOC"]]},
    "doccano": {"id": 1, "label": [[19, 23, "LOC"], [0, 9, "PER"]], "Comments": []},
    "doccano with relations": {
        "entities": [
            {"id": 5, "label": "PER", "start_offset": 0, "end_offset": 9},
            {"id": 6, "label": "LOC", "start_offset": 19, "end_offset": 23},
        ],
    },
    "spaCy and Prodigy": {
        "spans": [{"start": 0, "end": 9, "label": "PER"}, {"start": 19, "end": 23, "label": "LOC"}],
    },
    "Label Studio, JSON_MIN": {
        "label": [
            {"start": 0, "end": 9, "text": "Mara Lind", "labels": ["PER"]},
            {"start": 19, "end": 23, "text": "Oslo", "labels": ["LOC"]},
        ],
    },
    "JSON in a text": {"spans": json.dumps([[0, 9, "PER"], [19, 23, "LOC"]])},
}


@pytest.mark.parametrize("tool", SPANS)
def test_spans_of_annotation_tools_become_tags(tmp_path, tool):
    """The exports that doccano, Label Studio, Prodigy and spaCy document; the end is behind the
    last character.
    """
    row = {"text": TEXT} | SPANS[tool]
    assert read(
        tmp_path, "train.jsonl", json.dumps(row) + "\n", LABELS + "text_columns: text\n"
    ) == [WORDS]
    found = "text_columns: text\n"
    task, _ = load(tmp_path, "train.jsonl", json.dumps(row) + "\n", found)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert task.metrics == ("entities",)


def test_label_studio_and_spacy_pairs_are_rows(tmp_path):
    results = [
        {"type": "labels", "value": {"start": 0, "end": 9, "labels": ["PER"]}},
        {"type": "relation", "value": {}},
        {"type": "labels", "value": {"start": 19, "end": 23, "labels": ["LOC"]}},
    ]
    tasks = [{"id": 7, "data": {"text": TEXT}, "annotations": [{"result": results}]}]
    keys = LABELS + "text_columns: text\n"
    assert read(tmp_path, "train.json", json.dumps(tasks, indent=1), keys) == [WORDS]
    pairs = [[TEXT, {"entities": [[0, 9, "PER"], [19, 23, "LOC"]]}]]
    assert read(tmp_path, "pairs.json", json.dumps(pairs), keys) == [WORDS]
    assert read(tmp_path, "pairs.jsonl", json.dumps(pairs[0]) + "\n", keys) == [WORDS]


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        ("O, B-PER, I-PER, E-PER, S-PER, B-LOC, S-LOC", "B-PER E-PER O O S-LOC O"),
        ("O, B-PER, I-PER, L-PER, U-PER, B-LOC, U-LOC", "B-PER L-PER O O U-LOC O"),
        ("O, PER, LOC", "PER PER O O LOC O"),
    ],
)
def test_spans_are_tagged_in_the_scheme_of_the_labels(tmp_path, labels, tags):
    row = {"text": TEXT, "spans": [[0, 9, "PER"], [19, 23, "LOC"]]}
    keys = f"labels: [{labels}]\ntext_columns: text\n"
    (sentence,) = read(tmp_path, "train.jsonl", json.dumps(row), keys)
    assert [tag for _, tag in sentence] == tags.split()


def test_spans_that_are_a_little_off_are_taken_and_counted(tmp_path, caplog):
    """Blanks at the ends are cut off, of two that overlap the longer is kept, and a word is cut
    where a span ends in it.
    """
    row = {
        "text": "Oslo-based Mara Lind",
        "spans": [[0, 4, "LOC"], [10, 20, "PER"], [11, 15, "LOC"]],
    }
    assert read(tmp_path, "train.jsonl", json.dumps(row), LABELS + "text_columns: text\n") == [
        [("Oslo", "B-LOC"), ("-based", "O"), ("Mara", "B-PER"), ("Lind", "I-PER")]
    ]
    assert "train.jsonl: 1 spans overlap a longer one and are left out" in caplog.text
    assert (
        "train.jsonl: 1 times a span begins or ends inside a word, which is cut there"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (
            [[0, 99, "PER"]],
            "line 1: the span 0 to 99 .PER. does not lie in its text of 24 characters",
        ),
        ([[3, 3, "PER"]], "line 1: the span 3 to 3 .PER. does not lie"),
        ([[4, 5, "PER"]], "line 1: the span .* holds nothing but white space"),
        ([[0, "x", "PER"]], "line 1: a span is .start, end, label., two whole numbers and a text"),
        ([[0, 9]], "line 1: a span is"),
        ([{"begin": 0, "end": 9}], "line 1: a span is"),
        ([[0, 9, "PERS"]], "line 1, word 1: label 'B-PERS' is not one"),
    ],
)
def test_a_span_that_is_none_is_named(tmp_path, spans, message):
    with pytest.raises(InputError, match=message):
        read(
            tmp_path,
            "train.jsonl",
            json.dumps({"text": TEXT, "spans": spans}),
            LABELS + "text_columns: text\n",
        )


def test_scripts_without_spaces_are_cut_into_characters():
    text = "林夏在Oslo工作。 ผมชอบ 3.5"
    assert [text[start:end] for start, end in split_text(text)] == [
        *("林", "夏", "在", "Oslo", "工", "作", "。"),
        *("ผ", "ม", "ช", "อ", "บ", "3.5"),
    ]
    thai = "ดี้น้ำ"  # marks above stay with their letters
    assert [thai[start:end] for start, end in split_text(thai)] == ["ดี้", "น้", "ำ"]
    assert split_text(" \n") == []


# Tables

TABLES = {
    "simpletransformers": (
        "sentence_id,words,labels\n0,Mara,B-PER\n0,sails,O\n1,Oslo,B-LOC\n1,waits,O\n",
        "words",
    ),
    "Kaggle GMB": (
        "Sentence #,Word,POS,Tag\nSentence: 1,Mara,NNP,B-PER\n,sails,V,O\nSentence: "
        "2,Oslo,NNP,B-LOC\n,waits,V,O\n",
        "Word",
    ),
    "named": ("words,labels,n\nMara,B-PER,7\nsails,O,7\nOslo,B-LOC,8\nwaits,O,8\n", "words"),
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_with_a_word_a_row_is_read_by_sentences(tmp_path, table):
    content, column = TABLES[table]
    keys = LABELS + f"text_columns: {column}\n"
    keys += {"Kaggle GMB": "label_column: Tag\n", "named": "sentence_column: n\n"}.get(table, "")
    sentences = [[("Mara", "B-PER"), ("sails", "O")], [("Oslo", "B-LOC"), ("waits", "O")]]
    assert read(tmp_path, "train.csv", content, keys) == sentences
    with pytest.raises(InputError, match="line 3: label 'X' is not one"):
        read(tmp_path, "train.csv", content.replace(",O\n", ",X\n").replace(",O,7", ",X,7"), keys)


def test_a_table_with_a_word_a_row_and_nothing_that_parts_sentences_is_refused(tmp_path):
    content = "words,labels\nMara,B-PER\nsails,O\n"
    with pytest.raises(
        InputError,
        match=r"line 2: column 'words' holds a word and 'labels' its tag.*sentence_column",
    ):
        read(tmp_path, "train.csv", content, LABELS + "text_columns: words\n")


def test_words_and_tags_may_be_lists_that_are_texts(tmp_path):
    """As pandas writes lists, and as texts with spaces between words."""
    keys = LABELS + "text_columns: words\n"
    sentence = [("Mara", "B-PER"), ("sails", "O")]
    listed = "words,labels\n\"['Mara', 'sails']\",\"['B-PER', 'O']\"\n"
    assert read(tmp_path, "train.csv", listed, keys) == [sentence]
    assert read(tmp_path, "train.csv", "words,labels\nMara sails,B-PER O\n", keys) == [sentence]


def test_a_misspelt_label_column_is_no_other_column(tmp_path):
    row = {"tokens": ["Mara", "sails"], "pos_tags": [1, 0], "ner_tags": [0, 1]}
    keys = "label_column: pos_tag\nlabels: [X, NOUN]\n"
    with pytest.raises(
        InputError, match=r"no column 'pos_tag' .*columns present: tokens, pos_tags, ner_tags"
    ):
        read(tmp_path, "train.jsonl", json.dumps(row), keys)
    keys = "label_column: pos_tags\nlabels: [X, NOUN]\n"
    assert read(tmp_path, "train.jsonl", json.dumps(row), keys) == [
        [("Mara", "NOUN"), ("sails", "X")]
    ]
