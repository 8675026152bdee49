"""Spans of annotation tools, tables with a word a row, and words that stand in one text."""

import json

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.tagging import split_text


LABELS = "labels: [O, B-PER, I-PER, B-LOC, I-LOC]\n"
KEYS = LABELS + "text_columns: text\n"
TEXT = "Mara Lind sails to Oslo."
WORDS = [
    ("Mara", "B-PER"),
    ("Lind", "I-PER"),
    ("sails", "O"),
    ("to", "O"),
    ("Oslo", "B-LOC"),
    (".", "O"),
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
def test_spans_of_annotation_tools_become_tags(read, read_tags, tool):
    """The exports that doccano, Label Studio, Prodigy and spaCy document; ends are exclusive."""
    rows = [{"text": TEXT, **SPANS[tool]}]
    assert read_tags(KEYS, rows, "train.jsonl") == [WORDS]
    task, _ = read("kind: token_classification\ntext_columns: text\n", rows)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert task.metrics == ("entities",)


RESULTS = [
    {"type": "labels", "value": {"start": 0, "end": 9, "labels": ["PER"]}},
    {"type": "relation", "value": {}},
    {"type": "labels", "value": {"start": 19, "end": 23, "labels": ["LOC"]}},
]
LABEL_STUDIO = [{"id": 7, "data": {"text": TEXT}, "annotations": [{"result": RESULTS}]}]
SPACY = [[TEXT, {"entities": [[0, 9, "PER"], [19, 23, "LOC"]]}]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.json", json.dumps(LABEL_STUDIO, indent=1)),
        ("train.json", json.dumps(SPACY)),
        ("train.jsonl", SPACY),
    ],
)
def test_label_studio_and_spacy_pairs_are_rows(read_tags, name, content):
    assert read_tags(KEYS, content, name) == [WORDS]


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        ("O, B-PER, I-PER, E-PER, S-PER, B-LOC, S-LOC", "B-PER E-PER O O S-LOC O"),
        ("O, B-PER, I-PER, L-PER, U-PER, B-LOC, U-LOC", "B-PER L-PER O O U-LOC O"),
        ("O, PER, LOC", "PER PER O O LOC O"),
    ],
)
def test_spans_are_tagged_in_the_scheme_of_the_labels(read_tags, labels, tags):
    keys = f"labels: [{labels}]\ntext_columns: text\n"
    (sentence,) = read_tags(keys, [{"text": TEXT, **SPANS["spans"]}], "train.jsonl")
    assert [tag for _, tag in sentence] == tags.split()


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        ("O: O, PER: person, LOC: place", "person person O O place O"),
        ("O: O, person: person, PER: person, LOC: place", "person person O O place O"),
        ("O: O, B-PER: B-X, I-PER: I-X, L-PER: L-X, U-LOC: U-X", "B-X L-X O O U-X O"),
    ],
)
def test_spans_have_the_names_that_the_task_maps(read, labels, tags):
    keys = f"kind: token_classification\nlabels: {{{labels}}}\ntext_columns: text\n"
    task, (example,) = read(keys, [{"text": TEXT, **SPANS["spans"]}])
    assert [task.labels[number] for number in example.labels] == tags.split()


def test_spans_that_are_a_little_off_are_taken_and_counted(read_tags, caplog):
    """Blanks at ends are cut off, the longer of two that overlap is kept, and words are cut."""
    spans = [[0, 4, "LOC"], [10, 20, "PER"], [11, 15, "LOC"]]
    row = {"text": "Oslo-based Mara Lind", "spans": spans}
    assert read_tags(KEYS, [row], "train.jsonl") == [
        [("Oslo", "B-LOC"), ("-based", "O"), ("Mara", "B-PER"), ("Lind", "I-PER")]
    ]
    assert "train.jsonl: 1 spans overlap a longer one and are left out" in caplog.text
    assert "train.jsonl: 1 times a span begins or ends inside a word" in caplog.text


def test_spans_that_count_an_emoji_as_two_are_taken_by_their_texts(read_tags, caplog):
    """Label Studio counts in its browser, in units of UTF-16."""
    spans = [
        {"start": 0, "end": 4, "text": "Oslo", "labels": ["LOC"]},
        {"start": 10, "end": 19, "text": "Mara Lind", "labels": ["PER"]},
    ]
    row = {"text": "Oslo \U0001f600\U0001f680 Mara Lind", "label": spans}
    assert read_tags(KEYS, [row], "train.jsonl") == [
        [
            ("Oslo", "B-LOC"),
            ("\U0001f600", "O"),
            ("\U0001f680", "O"),
            ("Mara", "B-PER"),
            ("Lind", "I-PER"),
        ]
    ]
    assert "train.jsonl: 1 spans count an emoji as two, as browsers do" in caplog.text
    last = {"start": 5, "end": 9, "text": "\U0001f600\U0001f680", "labels": ["LOC"]}
    row = {"text": "Oslo \U0001f600\U0001f680", "label": [last]}
    (words,) = read_tags(KEYS, [row], "train.jsonl")
    assert [tag for _, tag in words] == ["O", "B-LOC", "I-LOC"]


def test_spans_behind_the_end_of_a_text_without_emoji_are_refused(read_tags):
    span = {"start": 0, "end": 6, "text": "Oslo", "labels": ["LOC"]}
    with pytest.raises(InputError, match=r"the span 0 to 6 \(LOC\) does not lie in its text of 4"):
        read_tags(KEYS, [{"text": "Oslo", "label": [span]}], "train.jsonl")


def test_a_token_of_white_space_beside_words_keeps_its_place(read_tags):
    """spaCy has such tokens: two blanks, the end of a line."""
    row = {"tokens": ["Mara", "  ", "sails", "\n"], "tags": ["B-PER", "O", "O", "O"]}
    keys = "labels: [O, B-PER, I-PER]\nlabel_column: tags\n"
    assert read_tags(keys, [row], "train.jsonl") == [
        [("Mara", "B-PER"), ("  ", "O"), ("sails", "O"), ("\n", "O")]
    ]


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
        (
            [{"start": 1, "end": 10, "text": "Mara Lind", "label": "PER"}],
            "the span 1 to 10 is 'Mara Lind', but these characters of the text are 'ara Lind '",
        ),
        ([[0, 9, "PERS"]], "line 1, word 1: label 'B-PERS' is not one"),
    ],
)
def test_a_span_that_is_none_is_named(read_tags, spans, message):
    with pytest.raises(InputError, match=message):
        read_tags(KEYS, [{"text": TEXT, "spans": spans}], "train.jsonl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("visited the U.N. on Monday.", "visited the U.N . on Monday ."),
        ('He said: "don\'t!"', 'He said : " don\'t ! "'),
        ("  state-of-the-art\n(2020) ...", "state-of-the-art ( 2020 ) . . ."),
        ("\u201cSo?\u201d", "\u201c So ? \u201d"),
    ],
)
def test_words_lose_the_punctuation_at_their_ends(text, words):
    assert [text[start:end] for start, end in split_text(text)] == words.split()


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
        "text_columns: words\n",
    ),
    "Kaggle GMB": (
        "Sentence #,Word,POS,Tag\nSentence: 1,Mara,N,B-PER\n,sails,V,O\n"
        "Sentence: 2,Oslo,N,B-LOC\n,waits,V,O\n",
        "text_columns: Word\nlabel_column: Tag\n",
    ),
    "named": (
        "words,labels,n\nMara,B-PER,7\nsails,O,7\nOslo,B-LOC,8\nwaits,O,8\n",
        "text_columns: words\nsentence_column: n\n",
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_with_a_word_a_row_is_read_by_sentences(read_tags, table):
    content, keys = TABLES[table]
    sentences = [[("Mara", "B-PER"), ("sails", "O")], [("Oslo", "B-LOC"), ("waits", "O")]]
    assert read_tags(LABELS + keys, content, "train.csv") == sentences
    content = content.replace("O", "X").replace("Xslo", "Oslo")
    with pytest.raises(InputError, match="line 3: label 'X' is not one"):
        read_tags(LABELS + keys, content, "train.csv")


def test_a_table_with_a_word_a_row_and_nothing_that_parts_sentences_is_refused(read_tags):
    message = r"line 2: column 'words' holds a word and 'labels' its tag.*sentence_column"
    content = "words,labels\nMara,B-PER\nsails,O\n"
    with pytest.raises(InputError, match=message):
        read_tags(LABELS + "text_columns: words\n", content, "train.csv")


@pytest.mark.parametrize("row", ["\"['Mara', 'sails']\",\"['B-PER', 'O']\"", "Mara sails,B-PER O"])
def test_words_and_tags_may_be_lists_that_are_texts(read_tags, row):
    """As pandas writes lists, and as texts with spaces between words."""
    content = f"words,labels\n{row}\n"
    sentences = read_tags(LABELS + "text_columns: words\n", content, "train.csv")
    assert sentences == [[("Mara", "B-PER"), ("sails", "O")]]


def test_a_misspelt_label_column_is_no_other_column(read_tags):
    rows = [{"tokens": ["Mara", "sails"], "pos_tags": [1, 0], "ner_tags": [0, 1]}]
    message = r"no column 'pos_tag' .*columns present: tokens, pos_tags, ner_tags"
    with pytest.raises(InputError, match=message):
        read_tags("label_column: pos_tag\nlabels: [X, NOUN]\n", rows, "train.jsonl")
    keys = "label_column: pos_tags\nlabels: [X, NOUN]\n"
    assert read_tags(keys, rows, "train.jsonl") == [[("Mara", "NOUN"), ("sails", "X")]]
