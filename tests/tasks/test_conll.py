"""Files with a word a line: columns by number or name, comments, separators, and the schemes of
tags.
"""

from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.entities import entity_scores, find_entities
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task_file import read_task_file


LABELS = "labels: [O, B-PER, I-PER, B-LOC, I-LOC]\n"
MARA = [("Mara", "B-PER"), ("Lind", "I-PER"), ("sails", "O"), ("to", "O"), ("Oslo", "B-LOC")]
OLE = [("Ole", "B-PER"), ("waits", "O")]
PLAIN = "Mara B-PER\nLind I-PER\nsails O\nto O\nOslo B-LOC\n\nOle B-PER\nwaits O\n"


def read(
    folder: Path, content: str, keys: str = LABELS, file: str = "train.txt"
) -> list[list[tuple[str, str]]]:
    (folder / file).write_text(content, encoding="utf-8")
    (folder / "own.yaml").write_text(
        f"kind: token_classification\nfiles: {{train: {file}}}\n{keys}", encoding="utf-8"
    )
    task = read_task_file(folder / "own.yaml")
    examples = load_split(task, "train", data_dir=None).examples
    return [
        [(word, task.labels[label]) for word, label in zip(each.tokens, each.labels, strict=True)]
        for each in examples
    ]


def columns(layout: str, separator: str = " ", comments: bool = False) -> str:
    """Write both sentences with these columns, each `w` (word), `t` (tag), `i` (number in the
    sentence), `s` (of the sentence), or itself.
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
def test_the_columns_of_words_and_tags_are_found(tmp_path, layout, separator, comments):
    """CoNLL-2003 (word first, tag last), GermEval (a number in front), files with the number of the
    sentence behind.
    """
    assert read(tmp_path, columns(layout, separator, comments)) == [MARA, OLE]


@pytest.mark.parametrize(
    "numbers", [("1 2", "3", "1", "2 3"), ("01 02", "01", "01", "01 02"), ("0 1", "2", "3", "4 5")]
)
def test_an_index_may_begin_anew_in_each_sentence_or_document_or_never(tmp_path, numbers):
    sentences = []
    for of_sentence in numbers:
        sentences.append("\n".join(f"{number} Mara B-PER" for number in of_sentence.split()))
    content = (
        "-DOCSTART- X O\n\n"
        + "\n\n".join(sentences[:2])
        + "\n\n-DOCSTART- X O\n\n"
        + "\n\n".join(sentences[2:])
    )
    words = [[word for word, _ in sentence] for sentence in read(tmp_path, content + "\n")]
    assert words == [["Mara"] * len(of_sentence.split()) for of_sentence in numbers]


def test_columns_may_be_named_or_counted(tmp_path):
    content = columns("O w _ t B-PER")
    assert read(tmp_path, content, LABELS + "text_columns: 1\nlabel_column: 3\n") == [MARA, OLE]
    assert read(tmp_path, content, LABELS + "text_columns: 1\nlabel_column: -2\n") == [MARA, OLE]
    named = "# global.columns = X FORM Y NER Z\n" + content
    assert read(tmp_path, named, LABELS + "label_column: NER\n") == [MARA, OLE]
    with pytest.raises(
        InputError, match=r"train.txt: no column 5; its 5 columns are counted from 0"
    ):
        read(tmp_path, content, LABELS + "text_columns: 1\nlabel_column: 5\n")
    with pytest.raises(
        InputError, match=r"no column 'ner' \(label_column\); its columns: 0 to 4, without names"
    ):
        read(tmp_path, content, LABELS + "text_columns: 1\nlabel_column: ner\n")
    with pytest.raises(
        InputError, match=r"no column 'ner' \(label_column\); its columns: X, FORM, Y, NER, Z"
    ):
        read(tmp_path, named, LABELS + "label_column: ner\n")


def test_conllu_is_read_by_its_columns(tmp_path):
    """universaldependencies.org/format.html: "1-2" spans words, "2.1" is an empty node, "#" begins
    a comment.
    """
    lines = ["# text = dogs bark", "1-2\tdogsbark" + "\t_" * 8]
    lines += [
        "1\tdogs\tdog\tNOUN" + "\t_" * 6,
        "2\tbark\tbark\tVERB" + "\t_" * 6,
        "2.1\tdo" + "\t_" * 8,
        "",
    ]
    keys = "label_column: UPOS\nlabels: [NOUN, VERB]\n"
    assert read(tmp_path, "\n".join(lines), keys, "train.conllu") == [
        [("dogs", "NOUN"), ("bark", "VERB")]
    ]


def test_a_hash_that_is_a_word_is_no_comment(tmp_path):
    content = "# O\nMara B-PER\n\nin O\n#Oslo B-LOC\n# O\n"
    assert read(tmp_path, content) == [
        [("#", "O"), ("Mara", "B-PER")],
        [("in", "O"), ("#Oslo", "B-LOC"), ("#", "O")],
    ]


def test_words_may_hold_spaces_where_tabs_part_the_columns(tmp_path):
    assert read(tmp_path, "From\tO\nNew York\tB-LOC\n\nOslo\tB-LOC\n") == [
        [("From", "O"), ("New York", "B-LOC")],
        [("Oslo", "B-LOC")],
    ]


def test_numbers_of_sentences_are_no_tags_where_labels_are_not_given(tmp_path):
    assert read(tmp_path, columns("w t s"), "") == [MARA, OLE]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Mara\tB-PER\nferry\t\n", "train.txt, line 2: a word without a label"),
        (
            "Mara B-PER\nferry\n",
            r"train.txt, line 2: 1 columns \('ferry'\), but the first word has 2",
        ),
        (
            "# one\nMara B-PER\n\n# two\nsails 0\n",
            "train.txt, line 5: label '0' is not one of|line 5: label '0' is a number",
        ),
        (
            "Mara B-PER\nsails 0\n",
            "train.txt, line 2: label '0' is a number, but the column has names",
        ),
        (
            "sails 0\nMara B-PER\n",
            "train.txt, line 1: label '0' is a number, but the column has names",
        ),
        ("# one\nMara B-PRE\n", "train.txt, line 2: label 'B-PRE' .* did you mean 'B-PER'"),
        (
            "Mara B-PER\n# two words\nsails O\n",
            r"line 2: 3 columns .*; a comment stands before the first word",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


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
def test_every_scheme_is_read_and_measured_by_entities(tmp_path, scheme, has_labels):
    """conlleval and seqeval (IOBES, BILOU); tags without prefix are entities as long as they are
    the same (IO).
    """
    tags, labels = SCHEMES[scheme]
    content = "".join(f"{word} {tag}\n" for (word, _), tag in zip(MARA, tags.split(), strict=True))
    (sentence,) = read(tmp_path, content, f"labels: [{labels}]\n" if has_labels else "")
    assert find_entities([tag for _, tag in sentence]) == [("PER", 0, 1), ("LOC", 4, 4)]
    task = read_task_file(tmp_path / "own.yaml")
    assert task.metrics == ("entities",)
    assert task.best_metric == "f1"


def test_a_boundary_that_is_wrong_is_a_wrong_entity_in_every_scheme():
    gold = [["B-PER", "I-PER", "E-PER", "O", "S-LOC"]]
    half = [["S-PER", "B-PER", "E-PER", "O", "S-LOC"]]
    assert entity_scores(gold, gold)["f1"] == 1.0
    assert entity_scores(gold, half)["precision"] == pytest.approx(1 / 3)
    assert entity_scores([["PER", "PER", "O"]], [["PER", "O", "O"]])["f1"] == 0.0


def test_parts_of_speech_are_measured_by_words(tmp_path):
    read(tmp_path, "dogs NOUN\nbark VERB\n", "labels: [NOUN, VERB]\n")
    assert read_task_file(tmp_path / "own.yaml").metrics == ("accuracy",)


def test_tags_with_the_type_in_front_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(
        InputError, match=r"line 3: labels: tags like 'PER-B' mark no entities; map them"
    ):
        read(tmp_path, "Mara PER-B\nsails O\n", "labels: [O, PER-B, PER-I]\n")
    renamed = "labels: {O: O, PER-B: B-PER, PER-I: I-PER}\n"
    assert read(tmp_path, "Mara PER-B\nsails O\n", renamed) == [[("Mara", "B-PER"), ("sails", "O")]]
