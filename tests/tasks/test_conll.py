"""Files with a word a line: columns by number or name, comments, separators, and the schemes of
tags.
"""

import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.entities import entity_scores, find_entities
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task_file import read_task_file


LABELS = "labels: [O, B-PER, I-PER, B-LOC, I-LOC]\n"
MARA = [("Mara", "B-PER"), ("Lind", "I-PER"), ("sails", "O"), ("to", "O"), ("Oslo", "B-LOC")]
OLE = [("Ole", "B-PER"), ("waits", "O")]


def columns(layout: str, separator: str = " ", comments: bool = False) -> str:
    """Write both sentences with columns `w` (word), `t` (tag), `i` (number in the sentence), `s`
    (number of the sentence), or whatever else they are called.
    """
    lines = []
    for number, sentence in enumerate((MARA, OLE)):
        if comments:
            lines.append(f"# id 4b8{number}\tdomain=en")
        for index, (word, tag) in enumerate(sentence, start=1):
            cells = {"w": word, "t": tag, "i": str(index), "s": str(number)}
            lines.append(separator.join(cells.get(cell, cell) for cell in layout.split()))
        lines.append("")
    return "\n".join(lines)


@pytest.mark.parametrize("comments", [False, True])
@pytest.mark.parametrize("separator", [" ", "\t", "  \t"])
@pytest.mark.parametrize("layout", ["w t", "w _ _ t", "w NNP t s", "i w t", "i w _ t s"])
def test_the_columns_of_words_and_tags_are_found(read_tags, layout, separator, comments):
    """CoNLL-2003 (word first, tag last), GermEval (a number in front), files with the number of the
    sentence behind.
    """
    assert read_tags(LABELS, columns(layout, separator, comments)) == [MARA, OLE]


@pytest.mark.parametrize(
    "numbers", [("1 2", "3", "1", "2 3"), ("01 02", "01", "01", "01 02"), ("0 1", "2", "3", "4 5")]
)
def test_an_index_may_begin_anew_in_each_sentence_or_document_or_never(read_tags, numbers):
    blocks = []
    for sentence in numbers:
        lines = [f"{number} Mara B-PER" for number in sentence.split()]
        blocks.append("\n".join(lines))
    mark = "-DOCSTART- X O"
    content = "\n\n".join([mark, *blocks[:2], mark, *blocks[2:]]) + "\n"
    sizes = [len(sentence) for sentence in read_tags(LABELS, content)]
    assert sizes == [len(sentence.split()) for sentence in numbers]


def test_marks_of_documents_may_be_indented(read):
    mark = " -DOCSTART- X O"
    content = "\n\n".join([mark, "Mara 1 B-PER", "Ole 1 B-PER", mark, "sails 1 O"]) + "\n"
    _, examples = read(f"kind: token_classification\n{LABELS}", content, "train.txt")
    assert [example.document for example in examples] == [0, 0, 1]


NAMED = "# global.columns = X FORM Y NER Z\n"


@pytest.mark.parametrize(
    ("keys", "head"),
    [
        ("text_columns: 1\nlabel_column: 3\n", ""),
        ("text_columns: 1\nlabel_column: -2\n", ""),
        ("label_column: NER\n", NAMED),
    ],
)
def test_columns_may_be_named_or_counted(read_tags, keys, head):
    assert read_tags(LABELS + keys, head + columns("O w _ t B-PER")) == [MARA, OLE]


@pytest.mark.parametrize(
    ("keys", "head", "message"),
    [
        ("label_column: 5\n", "", "train.txt: no column 5; its 5 columns are counted from 0"),
        ("label_column: ner\n", "", r"no column 'ner' .*; its columns: 0 to 4, without names"),
        ("label_column: ner\n", NAMED, r"no column 'ner' .*; its columns: X, FORM, Y, NER, Z"),
    ],
)
def test_a_column_that_is_not_there_is_refused(read_tags, keys, head, message):
    with pytest.raises(InputError, match=message):
        read_tags(LABELS + "text_columns: 1\n" + keys, head + columns("O w _ t B-PER"))


def test_conllu_is_read_by_its_columns(read_tags):
    """universaldependencies.org/format.html: ranges of words, empty nodes and comments."""
    lines = [
        "# text = dogs bark",
        "1-2\tdogsbark" + "\t_" * 8,
        "1\tdogs\tdog\tNOUN" + "\t_" * 6,
        "2\tbark\tbark\tVERB" + "\t_" * 6,
        "2.1\tdo" + "\t_" * 8,
    ]
    keys = "label_column: UPOS\nlabels: [NOUN, VERB]\n"
    sentences = read_tags(keys, "\n".join(lines) + "\n", "train.conllu")
    assert sentences == [[("dogs", "NOUN"), ("bark", "VERB")]]


def test_a_hash_that_is_a_word_is_no_comment(read_tags):
    assert read_tags(LABELS, "# O\nMara B-PER\n\nin O\n#Oslo B-LOC\n# O\n") == [
        [("#", "O"), ("Mara", "B-PER")],
        [("in", "O"), ("#Oslo", "B-LOC"), ("#", "O")],
    ]


def test_words_may_hold_spaces_where_tabs_part_the_columns(read_tags):
    assert read_tags(LABELS, "From\tO\nNew York\tB-LOC\n\nOslo\tB-LOC\n") == [
        [("From", "O"), ("New York", "B-LOC")],
        [("Oslo", "B-LOC")],
    ]


def test_numbers_of_sentences_are_no_tags_where_labels_are_not_named(read_tags):
    assert read_tags("", columns("w t s")) == [MARA, OLE]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Mara\tB-PER\nferry\t\n", "train.txt, line 2: a word without a label"),
        ("Mara B-PER\nferry\n", r"line 2: 1 columns \('ferry'\), but the first word has 2"),
        ("# one\nMara B-PER\n\n# two\nsails 0\n", "train.txt, line 5: label '0' is a number"),
        ("sails 0\nMara B-PER\n", "line 1: label '0' is a number, but the column has names"),
        ("# one\nMara B-PRE\n", "train.txt, line 2: label 'B-PRE' .* did you mean 'B-PER'"),
        (
            "Mara B-PER\n# two words\nsails O\n",
            r"line 2: 3 columns .*; a comment stands before the first word",
        ),
        ("# global.columns = ID FORM NER\n1 Mara B-PER\n_ sails O\n", "line 3: '_' .* counts them"),
        ("1 Mara B-PER\n2 sails O\nOslo B-LOC\n", "line 3: 2 columns .*, but the first word has 3"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(read_tags, content, message):
    with pytest.raises(InputError, match=message):
        read_tags(LABELS, content)


@pytest.mark.parametrize("column", ["tags", "1", "3", "-1"])
def test_a_test_file_may_have_words_alone(write, column):
    keys = f"kind: token_classification\n{LABELS}label_column: {column}\n"
    write("test.txt", "Mara\nsails\n\nOle\n")
    task = read_task_file(write("own.yaml", f"{keys}files: {{test: test.txt}}\n"))
    examples = load_split(task, "test", data_dir=None).examples
    assert [example.tokens for example in examples] == [("Mara", "sails"), ("Ole",)]
    assert [example.labels for example in examples] == [None, None]


# Schemes: the entities of MARA and OLE in each

SCHEMES = {
    "IOB2": ("B-PER I-PER O O B-LOC", "O, B-PER, I-PER, B-LOC, I-LOC"),
    "IOB1": ("I-PER I-PER O O I-LOC", "O, B-PER, I-PER, B-LOC, I-LOC"),
    "IOBES": ("B-PER E-PER O O S-LOC", "O, B-PER, I-PER, E-PER, S-PER, B-LOC, I-LOC, E-LOC, S-LOC"),
    "BILOU": ("B-PER L-PER O O U-LOC", "O, B-PER, I-PER, L-PER, U-PER, B-LOC, I-LOC, L-LOC, U-LOC"),
    "BMEWO": ("B-PER E-PER O O W-LOC", "O, B-PER, M-PER, E-PER, W-PER, B-LOC, M-LOC, E-LOC, W-LOC"),
    "IO": ("PER PER O O LOC", "O, PER, LOC"),
}


@pytest.mark.parametrize("has_labels", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_read_and_measured_by_entities(read, scheme, has_labels):
    """conlleval and seqeval (IOBES, BILOU); equal tags without prefix are one entity (IO)."""
    tags, labels = SCHEMES[scheme]
    content = "".join(f"{word} {tag}\n" for (word, _), tag in zip(MARA, tags.split(), strict=True))
    keys = f"labels: [{labels}]\n" if has_labels else ""
    task, (example,) = read(f"kind: token_classification\n{keys}", content, "train.txt")
    tags = [task.labels[label] for label in example.labels]
    assert find_entities(tags) == [("PER", 0, 1), ("LOC", 4, 4)]
    assert (task.metrics, task.best_metric) == (("entities",), "f1")


def test_a_boundary_that_is_wrong_is_a_wrong_entity_in_every_scheme():
    gold = [["B-PER", "I-PER", "E-PER", "O", "S-LOC"]]
    half = [["S-PER", "B-PER", "E-PER", "O", "S-LOC"]]
    assert entity_scores(gold, gold)["f1"] == 1.0
    assert entity_scores(gold, half)["precision"] == pytest.approx(1 / 3)
    assert entity_scores([["PER", "PER", "O"]], [["PER", "O", "O"]])["f1"] == 0.0


def test_parts_of_speech_are_measured_by_words(read):
    keys = "kind: token_classification\nlabels: [NOUN, VERB]\n"
    task, (example,) = read(keys, "dogs NOUN\nbark VERB\n", "train.txt")
    assert example.labels == (0, 1)
    assert (task.metrics, task.best_metric) == (("accuracy",), "accuracy")


def test_tags_with_the_type_in_front_are_refused_with_the_way_out(read_tags):
    message = r"line 2: labels: tags like 'PER-B' mark no entities; map them"
    with pytest.raises(InputError, match=message):
        read_tags("labels: [O, PER-B, PER-I]\n", "Mara PER-B\nsails O\n")
    mapped = "labels: {O: O, PER-B: B-PER, PER-I: I-PER}\n"
    sentences = read_tags(mapped, "Mara PER-B\nsails O\n")
    assert sentences == [[("Mara", "B-PER"), ("sails", "O")]]
