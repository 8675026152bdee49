"""Data that cannot be right ends in one line with its file and row; what is left out is counted."""

import logging
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.entities import find_entities
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.sources import load_split


def load(task: str, split: str, folder: Path, **options):
    return load_split(get_task(task), split, data_dir=str(folder), **options)


def refuse(folder: Path, message: str, task: str, split: str = "train", **options) -> None:
    with pytest.raises(InputError, match=message) as error:
        load(task, split, folder, **options)
    assert "\n" not in str(error.value)


def sst2(label, **columns) -> dict:
    return {"sentence": "good", "label": label, **columns}


def stsb(label) -> dict:
    return {"sentence1": "a", "sentence2": "b", "label": label}


def squad(answers) -> dict:
    return {"id": "q1", "question": "What?", "context": "Two bolts.", "answers": answers}


def swag(label) -> dict:
    endings = {"ending0": "a", "ending1": "b", "ending2": "c", "ending3": "d"}
    return {"sent1": "He sits.", "sent2": "He", **endings, "label": label}


def words(tokens, ner_tags) -> dict:
    return {"tokens": tokens, "ner_tags": ner_tags}


NO_LABEL = {"tokens": ["EU"]}
NO_ENDING = {"sent1": "a", "sent2": "b", "ending0": "a", "ending1": "b", "ending2": "c"}

ROWS = [
    # labels
    ("sst2", [sst2(1), sst2(2)], "train.jsonl, line 2: label 2 is not one of .*, or 0 to 1"),
    ("sst2", [sst2("postive")], "line 1: label 'postive' .* did you mean 'positive'"),
    ("sst2", [sst2("positive"), sst2(1)], "line 2: label 1 is a number, .*'positive' at .*line 1"),
    ("sst2", [sst2(1), sst2("positive")], "line 1: label 1 is a number, .*'positive' at .*line 2"),
    ("sst2", [sst2(0.5)], "line 1: label 0.5 is not one"),
    ("sst2", [sst2([1, 0])], r"line 1: label \[1, 0\] is not one"),
    ("sst2", [sst2(1), sst2(-1)], "line 2: the label is hidden .*, but line 1 has one"),
    ("stsb", [stsb(float("inf"))], "line 1: label inf; allowed: a number from 0 to 5"),
    ("stsb", [stsb(5.2)], "line 1: label 5.2; allowed: a number from 0 to 5"),
    ("stsb", [stsb("high")], "line 1: label 'high'; allowed: a number"),
    ("stsb", [stsb(True)], "line 1: label True; allowed: a number"),
    # columns
    ("sst2", [{"text": "good"}], "line 1: no column 'label'; columns present: text"),
    ("sst2", [sst2(1, sentence=True)], "line 1: column 'sentence' holds True; text is expected"),
    ("sst2", [sst2(1, sentence=["good"])], r"line 1: column 'sentence' holds \['good'\]; text"),
    ("sst2", [sst2(1, sentence="\ud800")], "line 1: column 'sentence' holds half of a surrogate"),
    ("sst2", [sst2(1, idx=1.5)], "line 1: the id in column 'idx' is 1.5"),
    # questions
    (
        "squad",
        [squad({"text": ["nuts"], "answer_start": [4]})],
        r"line 1 \(id q1\): the answer 'nuts' is not at its answer_start 4, and the text cannot "
        r"be found there; no training question",
    ),
    ("squad", [squad({"text": ["bolts"], "answer_start": [-1]})], "not at its answer_start -1"),
    ("squad", [squad({"text": ["bolts"], "answer_start": []})], "or a list of such pairs"),
    ("squad", [squad({"text": ["bolts"], "answer_start": ["x"]})], "answers .*; expected are"),
    ("squad", [squad({"text": ["bolts"], "answer_start": [4.5]})], "answers .*; expected are"),
    ("squad", [squad(True)], "answers True; expected are"),
    ("squad", [squad([])], "no answer, but every question of task squad has one; .*squad_v2"),
    ("squad", [{"id": "q1"}], "no column 'question'"),
    # choices
    ("swag", [swag(4)], "line 1: label 4 is none of the 4 choices; allowed: 0 to 3, A to D, "),
    ("swag", [NO_ENDING], "no column 'ending3'"),
    # words
    ("conll2003", [words(["EU", "rejects"], [3])], "line 1: 2 words, but 1 labels"),
    ("conll2003", [words(["EU", "rejects"], [3, 9])], "line 1, word 2: label 9 is not one of"),
    ("conll2003", [words(["EU", "rejects"], [3, -1])], "line 1, word 2: a word without a label"),
    ("conll2003", [words(["\n", " "], [3, 0])], "line 1: column 'tokens' has no word"),
    (
        "conll2003",
        [words(["EU", ""], [3, 0])],
        "line 1: column 'tokens' has an empty word, number 2",
    ),
    ("conll2003", [words("EU rejects it", [3, 0])], "line 1: 3 words, but 2 labels"),
    ("conll2003", [words(3, [3])], "line 1: column 'tokens' holds 3; a list of words, or a text"),
    ("conll2003", [words(" ", [])], "line 1: column 'tokens' has no word"),
    ("conll2003", [words([], [])], "line 1: column 'tokens' has no word"),
    ("conll2003", [NO_LABEL], "line 1: no column of labels, ner_tags, .*; columns present: tokens"),
]


@pytest.mark.parametrize(("task", "rows", "message"), ROWS)
def test_a_row_that_does_not_fit_is_named(write, tmp_path, task, rows, message):
    write("train.jsonl", rows)
    refuse(tmp_path, message, task)


MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
MNLI = "\t".join(f"c{number}" for number in range(12)) + "\n"
QUESTION = '{"data": [{"paragraphs": [{"context": "x", "qas": [%s]}]}]}'
TEXTS = [
    ("sst2", "train.jsonl", "\n\n", "train.jsonl: the split 'train' of task sst2 has no rows"),
    ("sst2", "train.jsonl", '{"sentence": "a", "label": 1}\n{"sentence"', "line 2: broken JSON"),
    (
        "sst2",
        "train.jsonl",
        b'{"sentence": "caf\xe9", "label": 1}\n',
        "train.jsonl, line 1: not valid UTF-8 .byte 0xe9 .*; 'é' in Windows-1252, "
        r"as Excel writes.; convert the file to UTF-8, and see whether it reads right: iconv -f "
        r"cp1252 -t utf-8 OLD > NEW$",
    ),
    (
        "sst2",
        "train.csv",
        "sentence,label\ngood,1\nbad\n",
        r"train.csv, line 3: 1 columns, but the header has 2 \(sentence, label\)",
    ),
    ("sst2", "train.csv", 'sentence,label\n"good,1\n', "train.csv, line 2: broken CSV .*quotes"),
    ("sst2", "train.csv", "sentence,label,label\na,1,1\n", "line 1: the header names label twice"),
    ("sst2", "train.csv", "", "has no rows"),
    ("sst2", "train.csv", "sentence,label\n", "has no rows"),
    ("sst2", "train.json", '{"rows": []}', "line 1: no column 'label'; columns present: rows"),
    ("sst2", "train.json", "[1]", "train.json, row 1: an object like .* int found"),
    ("sst2", "train.json", '[\n{"sentence": }]', "train.json: broken JSON .*line 2"),
    ("sst2", "train.parquet", "not parquet", "train.parquet: damaged or not a Parquet file"),
    (
        "sst2",
        "train.tsv",
        "sentence\tlabel\ngood\n",
        "train.tsv, line 2: 1 columns, .* the official SST-2 file of the split 'train' has 2",
    ),
    ("sst2", "train.tsv", "good\t1\n", r"train.tsv, line 1: the first line is data \('1'\)"),
    ("rte", "train.tsv", "i\ts\tt\tl\n0\ta\tb\tmaybe\n", "train.tsv, line 2: label 'maybe'"),
    ("cola", "train.tsv", "source\tlabel\tstar\tsentence\n", "line 1: label 'label' is not one"),
    ("cola", "train.tsv", "gj04\t1\t\ta\tb\n", "line 1: 5 columns, .* has 4"),
    ("mrpc", "train.tsv", MRPC + "1\t2\t3\ta\n", "line 2: 4 columns, .* has 5"),
    ("mrpc", "train.tsv", MRPC + "1\t2\t3\ta\tb\tc\n", "line 2: 6 columns, .* has 5"),
    ("mnli", "train.tsv", MNLI + "a\t" * 12 + "neutral\n", "line 2: 13 columns, .* has 12"),
    ("squad", "train-v1.1.json", "{", "train-v1.1.json: broken JSON .*line 1"),
    ("squad", "train-v1.1.json", '{"version": "1.1"}', "line 1 .id 0.: no column 'question'"),
    ("squad", "train-v1.1.json", '{"data": []}', "has no rows"),
    (
        "squad",
        "train-v1.1.json",
        '{"data": [{"paragraphs": [{"context": "x"}]}]}',
        "not the official form of SQuAD after question 0 .KeyError: 'qas'",
    ),
    ("squad", "train-v1.1.json", QUESTION % 3, "not the official form of SQuAD after question 1"),
    (
        "squad",
        "train-v1.1.json",
        QUESTION % '{"id": "7", "question": "q"}',
        r"question 1 \(id 7\): no column 'answers'",
    ),
    (
        "conll2003",
        "train.txt",
        "EU NNP B-NP B-ORG\nrejects VBZ O\n",
        r"train.txt, line 2: 3 columns \('rejects VBZ O'\), but the first word has 4",
    ),
    ("conll2003", "train.txt", "EU B-ORGA\n", "line 1: label 'B-ORGA' .* did you mean 'B-ORG'"),
    ("conll2003", "train.txt", "-DOCSTART- -X- O O\n\n", "has no rows"),
    ("conll2003", "train.txt", b"EU B-ORG\nZ\xfcrich B-LOC\n", "line 2: not valid UTF-8"),
]


@pytest.mark.parametrize(("task", "file", "text", "message"), TEXTS)
def test_a_broken_file_is_named_with_its_line(write, tmp_path, task, file, text, message):
    write(file, text)
    refuse(tmp_path, message, task)


IOB1 = "EU I-ORG\nX I-ORG\n\na O\nb I-PER\nc I-LOC\nd B-LOC\ne I-LOC\n"


def test_an_inside_tag_that_continues_nothing_begins_an_entity_and_is_counted(
    write, tmp_path, caplog
):
    """conlleval, startOfChunk; I-creative-work follows I-person in WNUT17's emerging.dev.conll."""
    write("train.txt", IOB1)
    names = get_task("conll2003").labels
    examples = load("conll2003", "train", tmp_path).examples
    tags = [[names[label] for label in example.labels] for example in examples]
    assert tags == [["B-ORG", "I-ORG"], ["O", "B-PER", "B-LOC", "B-LOC", "I-LOC"]]
    file_tags = [[line.split()[1] for line in lines.splitlines()] for lines in IOB1.split("\n\n")]
    assert list(map(find_entities, tags)) == list(map(find_entities, file_tags))
    assert "train.txt: 3 tags I-X continue no entity" in caplog.text
    assert "train.txt, line 1: I-ORG" in caplog.text


def test_hidden_labels_can_be_predicted_but_not_measured(write, tmp_path):
    write("validation.jsonl", [sst2(-1), sst2(-1)])
    split = load("sst2", "validation", tmp_path)
    assert not split.is_labelled
    assert [example.label for example in split.examples] == [None, None]
    message = "line 1: the label is hidden .*a test set with labels -1 can be predicted"
    refuse(tmp_path, message, "sst2", "validation", need_labels=True)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("sst2", {"sentence": "a"}),
        ("stsb", stsb(-1.0)),
        ("swag", {**NO_ENDING, "ending3": "d"}),
        ("swag", swag(-1)),
        ("conll2003", NO_LABEL),
    ],
)
def test_a_test_set_may_lack_labels(write, tmp_path, task, row):
    write("test.jsonl", [row, row])
    assert not load(task, "test", tmp_path).is_labelled


def test_words_without_tags_can_be_predicted(write, tmp_path):
    write("test.txt", "EU\nrejects\n\nPeter\n")
    split = load("conll2003", "test", tmp_path)
    assert not split.is_labelled
    assert [example.tokens for example in split.examples] == [("EU", "rejects"), ("Peter",)]


def test_na_none_and_quotes_stay_text_in_official_files(write, tmp_path):
    header = "index\tsentence1\tsentence2\tlabel\n"
    write("train.tsv", f'{header}0\tNA\t"None\tentailment\n1\t"a" b\tnull\tnot_entailment\n')
    first, second = load("rte", "train", tmp_path).examples
    assert (first.text, first.text_pair) == ("NA", '"None')
    assert (second.text, second.text_pair) == ('"a" b', "null")


def test_broken_lines_of_qqp_are_left_out_and_counted(write, tmp_path, caplog):
    """Questions of the published train.tsv have line breaks; datasets' glue.py filters them too."""
    lines = [
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "1\t1\t2\ta\tb\t0",
        "2\t3\t4\ta",
        "\tc\t1",
        "3\t5\t6\ta\tb\t1",
        "4\t7\t8\ta\tb\tc\t1",
    ]
    write("train.tsv", "\n".join(lines) + "\n")
    assert load("qqp", "train", tmp_path).num_rows == 2
    assert "3 lines with too few or too many columns were left out: 3, 4, 6" in caplog.text


def test_a_class_without_an_example_is_a_warning(write, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, 2, 1)]
    write("train.jsonl", rows)
    load("mnli", "train", tmp_path)
    assert not caplog.text
    write("train.jsonl", rows[:2])
    load("mnli", "train", tmp_path)
    assert "no row has the label neutral" in caplog.text


def test_a_split_or_folder_that_is_not_there_is_refused(write, tmp_path):
    refuse(tmp_path, "task ax has no split 'train'; it has: test", "ax")
    refuse(tmp_path / "nowhere", "nowhere: no such folder", "rte")
    refuse(write("file", ""), "no such folder", "rte")
    message = (
        "subfolders rte, glue/rte, ner/rte, RTE, glue/RTE; looked for train.jsonl, train.tsv, "
    )
    refuse(tmp_path, message, "rte")
