"""Rows as other tools write them, each with the reading that its author meant; what can be meant in
two ways is refused.
"""

import csv
import json
import logging
import math

import pytest

from bert_recipes.errors import InputError
from bert_recipes.finetuning.prediction import read_chunks
from bert_recipes.rows import read_lines
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import log_found_labels, read_task_file, write_task_file


CLASSES = "kind: sequence_classification\ntext_columns: text\n"
MULTI = CLASSES + "problem_type: multi_label_classification\n"
TAGGING = "kind: token_classification\n"
QUESTIONS = "kind: question_answering\n"


def test_lists_of_numpy_as_pandas_writes_them(read):
    content = "tokens,ner_tags\n\"['John' 'in' 'Bergen']\",\"['B-PER' 'O' 'B-LOC']\"\n"
    task, (example,) = read(TAGGING, content, "train.csv")
    assert example.tokens == ("John", "in", "Bergen")
    assert [task.labels[label] for label in example.labels] == ["B-PER", "O", "B-LOC"]
    task, examples = read(MULTI, "text,label\na,['rain' 'wind']\nb,['sun' 'rain']\n", "train.csv")
    assert task.labels == ("rain", "sun", "wind")
    assert [example.label for example in examples] == [(0, 2), (0, 1)]


def test_answers_of_squad_as_pandas_writes_them(read):
    answers = "{'text': array(['Oslo'], dtype=object), 'answer_start': array([8], dtype=int32)}"
    content = f'id,question,context,answers\n1,Where?,She was Oslo now.,"{answers}"\n'
    _, (example,) = read(QUESTIONS, content, "train.csv")
    assert [(answer.text, answer.answer_start) for answer in example.answers] == [("Oslo", 8)]
    broken = 'id,question,context,answers\n1,Where?,She was Oslo,"{""text"": [""Oslo"", "\n'
    with pytest.raises(InputError, match=r"line 2 .*answers .* expected"):
        read(QUESTIONS, broken, "train.csv")


def test_a_vector_of_another_length_is_refused_and_an_empty_row_does_not_vote(read):
    rows = [{"text": "a", "label": label} for label in ([1, 0], [0, 1], [1])]
    with pytest.raises(
        InputError, match=r"line 3: other rows have a 0 or 1 for each of the 2 classes"
    ):
        read(MULTI + "labels: [anger, joy]\n", rows)
    _, examples = read(
        MULTI + "labels: [anger, joy]\n", "text,label\na,1 0\nb,0 1\nc,\n", "train.csv"
    )
    assert [example.label for example in examples] == [(0,), (1,), ()]


@pytest.mark.parametrize("label", ["[{{1}}]", "[{[]: 1}]"])
def test_a_text_that_is_no_python_value_is_a_label_like_any_other(read, label):
    with pytest.raises(InputError, match=r"line 2: .*label"):
        read(MULTI + "labels: [a, b]\n", f'text,label\na,"{label}"\n', "train.csv")


NAMES = "labels: [O, B-PER, I-PER, B-LOC, I-LOC]\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["1 John B-PER", "2 sails O", "", "3 Mary B-PER", "4 sits O"],
        ["1 John B-PER", "2-3 sailsaway O", "2 sails O", "", "1 Mary B-PER", "2 sits O"],
    ],
)
def test_an_index_that_goes_on_and_ranges_are_no_words(read, lines):
    _, examples = read(TAGGING + NAMES, "\n".join([*lines, ""]), "train.conll")
    assert [example.tokens for example in examples] == [("John", "sails"), ("Mary", "sits")]


@pytest.mark.parametrize("first", ["bc/x", "7"])
def test_a_first_column_that_holds_no_words_is_refused(read, first):
    words = ["John B-PER", "sails O", "to O", "Oslo B-LOC", "now O"]
    content = "".join(f"{first} {word}\n" for word in words)
    with pytest.raises(InputError, match=r"the first column holds no words; .*text_columns: 1"):
        read(TAGGING + NAMES, content, "train.conll")
    _, (example,) = read(TAGGING + NAMES + "text_columns: 1\n", content, "train.conll")
    assert example.tokens == ("John", "sails", "to", "Oslo", "now")


def test_a_word_with_a_hash_is_no_comment(read, tmp_path):
    content = "# a comment here\n#bergen B-LOC\nis O\n\n#oslo B-LOCC\n"
    with pytest.raises(InputError, match=r"line 5: label 'B-LOCC'"):
        read(TAGGING + NAMES, content, "train.conll")
    task, examples = read(TAGGING + NAMES, content.replace("LOCC", "LOC"), "train.conll")
    assert [example.tokens for example in examples] == [("#bergen", "is"), ("#oslo",)]
    (tmp_path / "in.conll").write_text("#bergen NN\nis VB\n")
    (chunk,) = read_chunks(tmp_path / "in.conll", task)
    assert chunk.split.examples[0].tokens == ("#bergen", "is")


def test_predictions_need_no_column_of_labels(read, tmp_path):
    task, _ = read(
        TAGGING + NAMES + "label_column: 3\n", "John x y B-PER\nsails x y O\n", "train.conll"
    )
    (tmp_path / "in.conll").write_text("John\nsails\n\nMary\n")
    (chunk,) = read_chunks(tmp_path / "in.conll", task)
    assert [example.tokens for example in chunk.split.examples] == [("John", "sails"), ("Mary",)]


def test_several_columns_of_tags_are_warned_of(read, caplog):
    read(TAGGING + NAMES, "Nord B-LOC O\nsee O O\n", "train.conll")
    assert (
        "several columns hold tags; the last is read: label_column chooses another" in caplog.text
    )


@pytest.mark.parametrize(("tags", "is_warned"), [("NNP VBZ", True), ("_ _", False), ("1 2", False)])
def test_several_columns_of_tags_are_warned_of_where_no_labels_are_named(
    read, caplog, tags, is_warned
):
    first, second = tags.split()
    read(TAGGING, f"Nord {first} B-LOC\nsays {second} O\n", "train.conll")
    assert ("several columns hold tags; the last is read" in caplog.text) is is_warned


def test_a_list_of_one_label_is_its_label(read):
    """As doccano and Prodigy write the classes of a text."""
    rows = [{"text": "a", "label": ["yes"]}, {"text": "b", "label": ["no"]}]
    for keys in (CLASSES, CLASSES + "labels: [no, yes]\n"):
        _, examples = read(keys, rows)
        assert [example.label for example in examples] == [1, 0]
    with pytest.raises(InputError, match=r"line 1: label \['no', 'yes'\] is not one of"):
        read(CLASSES, [{"text": "a", "label": ["no", "yes"]}])


def test_numbers_of_sentences_that_begin_anew_are_new_sentences(read, caplog):
    rows = ["0,John,B-PER", "0,sails,O", "1,Hi,O", "0,Mary,B-PER", "0,sits,O"]
    content = "\n".join(["sentence_id,word,label", *rows, ""])
    _, examples = read(
        TAGGING + NAMES + "text_columns: word\nlabel_column: label\n", content, "train.csv"
    )
    assert [example.tokens for example in examples] == [
        ("John", "sails"),
        ("Hi",),
        ("Mary", "sits"),
    ]
    assert "1 times 'sentence_id' is that of an earlier sentence" in caplog.text


@pytest.mark.parametrize("tags", ["B:PER I:PER", "PER_B PER_I", "b-PER i-PER", "B_PER I_PER"])
def test_tags_with_another_prefix_are_to_be_mapped(read, tags):
    begin, inside = tags.split()
    with pytest.raises(InputError, match=r"mark no entities; map them"):
        read(TAGGING, f"John {begin}\nLind {inside}\nsails O\n", "train.conll")


@pytest.mark.parametrize("outside", ["o", "_", "OTHER"])
def test_an_outside_tag_of_another_name_is_to_be_mapped(read, outside):
    content = f"John B-PER\nLind I-PER\nsails {outside}\n"
    with pytest.raises(InputError, match=f"no tag is O; .*{{{outside}: O"):
        read(TAGGING, content, "train.conll")


SPANS = TAGGING + "text_columns: text\nlabel_column: spans\nlabels: [O, B-PER, I-PER]\n"
TEXT = "Mara Lind sails"


@pytest.mark.parametrize(
    "span",
    [
        [0, 9, "PER"],
        [0.0, "9", "PER"],
        {"label": "PER", "start_char": 0, "end_char": 9},
        {"label": "PER", "offset": 0, "length": 9},
        {"label": "PER", "offset": "0", "length": 9.0},
        {"value": [0, 9, "PER"]},
        {"label": "PER", "from": 0, "to": 9, "text": "Mara Lind"},
    ],
)
def test_spans_in_the_spellings_of_tools(read, span):
    _, (example,) = read(SPANS, [{"text": TEXT, "spans": [span]}])
    assert example.labels == (1, 2, 0)


def test_spans_as_tuples_in_a_table(read):
    _, (example,) = read(SPANS, f"text,spans\n{TEXT},\"[(0, 9, 'PER')]\"\n", "train.csv")
    assert example.labels == (1, 2, 0)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"strat": 0, "end": 9, "label": "PER"}, "a span is .start, end, label.* not {'strat': 0"),
        (
            {"start": 10, "end": 15, "label": "PER", "text": "Mara Lind"},
            "'Mara Lind', but these .* are 'sails'",
        ),
        ([0, 4, "B-PER"], "'B-PER' of a span has the prefix of a word's tag; write 'PER'"),
    ],
)
def test_a_span_that_is_not_what_it_says_is_refused(read, span, message):
    with pytest.raises(InputError, match=message):
        read(SPANS, [{"text": TEXT, "spans": [span]}])


def test_rows_that_nobody_annotated_or_somebody_rejected_are_no_sentences_without_entities(
    read, caplog
):
    done = {"data": {"text": TEXT}, "annotations": [{"result": []}]}
    for annotations in ([], [{"was_cancelled": True, "result": []}], [None]):
        rows = [done, {"data": {"text": TEXT}, "annotations": annotations}]
        _, examples = read(TAGGING + "text_columns: text\nlabels: [O, B-PER, I-PER]\n", rows)
        assert len(examples) == 1
        assert "1 of 2 rows have no label and are left out (the first: line 2)" in caplog.text
        caplog.clear()
    rejected = {"text": TEXT, "spans": [], "answer": "reject"}
    accepted = {"text": TEXT, "spans": [[0, 9, "PER"]], "answer": "accept"}
    _, examples = read(SPANS, [rejected, accepted])
    # Its number is that of its row.
    assert [example.idx for example in examples] == [1]
    assert "1 rows were rejected or ignored by their annotators" in caplog.text


def test_classes_that_their_annotators_rejected_are_left_out(read, caplog):
    rows = []
    for answer in ("accept", "reject", "ignore", "accept"):
        rows.append({"text": answer, "label": "SPORT", "answer": answer, "_task_hash": 1})
    _, examples = read(CLASSES + "labels: [SPORT, OTHER]\n", rows)
    assert [example.idx for example in examples] == [0, 3]
    assert "2 rows were rejected or ignored by their annotators" in caplog.text
    # The answer may be what is predicted, and a column of that name one's own.
    answers = "label_column: answer\nlabels: [reject, ignore, accept]\n"
    _, examples = read(CLASSES + answers, rows)
    assert [example.label for example in examples] == [2, 0, 1, 2]
    rows = [{"text": "Do you?", "label": "SPORT", "answer": "reject"}]
    _, examples = read(CLASSES + "labels: [SPORT, OTHER]\n", rows)
    assert len(examples) == 1


def test_words_may_be_numbers(read):
    _, (example,) = read(
        TAGGING + "labels: [O, X]\n", [{"tokens": ["In", 1998], "labels": ["O", "X"]}]
    )
    assert example.tokens == ("In", "1998")


def test_a_class_of_minus_one_is_told_how_to_be_written(read):
    rows = [{"text": "a", "label": label} for label in (-1, 0, 1)]
    with pytest.raises(InputError, match=r"write labels: \[-1, 0, 1\]"):
        read(CLASSES, rows)
    _, examples = read(CLASSES + "labels: [-1, 0, 1]\n", rows)
    assert [example.label for example in examples] == [0, 1, 2]


def test_true_is_the_second_class_unless_the_names_say_otherwise(read):
    rows = [{"text": "a", "label": label} for label in (True, False)]
    _, examples = read(CLASSES + "labels: [ok, fault]\n", rows)
    assert [example.label for example in examples] == [1, 0]
    with pytest.raises(
        InputError, match=r"line 1: label True is not one of the task's; allowed: yes, no"
    ):
        read(CLASSES + "labels: [yes, no]\n", rows)
    _, examples = read(CLASSES + "labels: {true: yes, false: no}\n", rows)
    assert [example.label for example in examples] == [0, 1]
    # As docs/tasks.md has it, so that `f1` is that of yes.
    task, examples = read(CLASSES + "labels: {false: no, true: yes}\n", rows)
    assert task.labels == ("no", "yes")
    assert [example.label for example in examples] == [1, 0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.tsv", '"label"\t"text"\n"1"\t"one"\n"0"\t"two"\n'),
        ("train.csv", "sep=;\nlabel;text\n1;one\n0;two\n"),
        ("train.csv", "label,text\n1,one\n0,two\n   \n"),
        ("train.csv", 'label, text\n1, "one"\n0, "two"\n'),
    ],
)
def test_tables_as_excel_and_pandas_write_them(read, name, content):
    task, examples = read(CLASSES, content, name)
    assert [(example.text, task.labels[example.label]) for example in examples] == [
        ("one", "1"),
        ("two", "0"),
    ]


def test_a_quoted_line_break_in_a_tsv_goes_on(read, caplog):
    caplog.set_level(logging.INFO, logger="bert_recipes")
    task, examples = read(
        CLASSES, 'label\ttext\n1\t"one line\nanother line"\n0\tbye\n', "train.tsv"
    )
    assert task.labels == ("0", "1")
    assert [example.text for example in examples] == ["one line\nanother line", "bye"]
    long = "a long cell " * 20_000
    csv.field_size_limit(131_072)  # Python's own
    _, examples = read(CLASSES, f'label\ttext\n1\t"{long}"\n0\t"a ""b"""\n', "train.tsv")
    assert [example.text for example in examples] == [long, 'a "b"']
    # Quotes of a text are text.
    _, examples = read(CLASSES, 'label\ttext\n1\t"No", she said.\n0\t"Yes."\n', "train.tsv")
    assert [example.text for example in examples] == ['"No", she said.', '"Yes."']


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        # Quotes of a text may stand on two lines, and join them by chance.
        (
            ['"I love it.\t1', 'It was great."\t1', "Fine.\t0"],
            ['"I love it.', 'It was great."', "Fine."],
        ),
        # A cell of three lines, of which two have no tab.
        (['"one', "two", 'three"\t1', "Fine.\t0"], ["one\ntwo\nthree", "Fine."]),
    ],
)
def test_quotes_that_join_two_rows_of_a_tsv_are_text(read, lines, texts):
    content = "\n".join(["text\tlabel", *lines, ""])
    _, examples = read(CLASSES, content, "train.tsv")
    assert [example.text for example in examples] == texts
    quoted = '"text"\t"label"\n"one\ttab\ntwo"\t"1"\n"Fine."\t"0"\n'
    _, examples = read(CLASSES, quoted, "train.tsv")
    assert [example.text for example in examples] == ["one\ttab\ntwo", "Fine."]


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl", "train.parquet", "train.json"])
def test_a_pointer_of_git_lfs_is_not_read_as_text(read, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    with pytest.raises(
        InputError, match=r"a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"
    ):
        read(CLASSES + "labels: [a, b]\n", pointer, name)


def test_a_key_that_a_span_has_twice_is_shown_as_such(read):
    rows = (
        '{"text": "Mara Lind sails", "spans": [{"start": 0, "start": 5, "end": 9, "label": '
        '"PER"}]}\n'
    )
    with pytest.raises(InputError, match=r"a span is .*<appears twice>"):
        read(SPANS, rows, "train.jsonl")


# Rows without a label


@pytest.mark.parametrize("missing", [None, ""])
def test_rows_without_a_label_are_left_out_and_counted(read, missing, caplog):
    task = "kind: sequence_classification\ntext_columns: text\nlabels: [no, yes]\n"
    rows = [{"text": str(number), "label": "yes"} for number in range(3)]
    rows[1]["label"] = missing
    _, examples = read(task, rows)
    assert [example.text for example in examples] == ["0", "2"]
    assert "1 of 3 rows have no label and are left out (the first: line 2)" in caplog.text
    # It may be a class.
    rows += [{"text": "3", "label": missing}, {"text": "4", "label": "yes"}]
    rows[1]["label"] = "-1"
    with pytest.raises(InputError, match=r"line 2: the label is hidden .*, but line 1 has one"):
        read(task, rows)


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_a_key_that_json_leaves_out_is_null(read, name, caplog):
    rows = [{"text": "a"}, {"text": "b", "label": "yes"}, {"label": "no"}, {"text": "c"}]
    content = rows if name == "train.jsonl" else json.dumps(rows)
    for keys in (CLASSES, CLASSES + "labels: [no, yes]\n"):
        _, examples = read(keys, content, name)
        assert [(example.text, example.label) for example in examples] == [("b", 1), ("", 0)]
        assert "2 of 4 rows have no label and are left out" in caplog.text
        caplog.clear()
    rows = [{"tokens": ["a", "b"], "tags": ["O", "X"]}, {"tokens": ["c"]}]
    content = rows if name == "train.jsonl" else json.dumps(rows)
    _, examples = read(TAGGING, content, name)
    assert [example.tokens for example in examples] == [("a", "b")]
    # A key that no row has is a mistake.
    with pytest.raises(InputError, match="1: no column 'label'; columns present: text"):
        read(CLASSES, json.dumps([{"text": "a"}, {"text": "b"}]), "train.json")


@pytest.mark.parametrize("missing", [None, "", math.nan])
def test_numbers_that_are_missing_are_left_out_and_counted(read, missing, caplog):
    """pandas writes NaN into JSON, and polars into Parquet."""
    task = "kind: sequence_classification\ntext_columns: text\nproblem_type: regression\n"
    rows = [{"text": str(number), "label": float(number)} for number in range(3)]
    rows[1]["label"] = missing
    _, examples = read(task, rows)
    assert [example.label for example in examples] == [0.0, 2.0]
    assert "1 of 3 rows have no label and are left out (the first: line 2)" in caplog.text


def test_a_task_of_label_studio_has_its_labels_in_the_column_of_the_task(read):
    span = {"value": {"start": 0, "end": 9, "labels": ["PER"]}, "type": "labels"}
    row = {"id": 1, "data": {"text": TEXT}, "annotations": [{"result": [span]}]}
    task = TAGGING + "text_columns: text\nlabel_column: {}\nlabels: [O, B-PER, I-PER]\n"
    for column in ("label", "spans"):
        _, [example] = read(task.format(column), [row])
        assert example.labels[:3] == (1, 2, 0)


def test_predictions_read_label_studio_too(read, tmp_path):
    row = {"id": 7, "data": {"text": TEXT}, "annotations": []}
    task, _ = read(SPANS, [{"text": TEXT, "spans": [[0, 9, "PER"]]}])
    (tmp_path / "in.json").write_text(json.dumps([row]))
    (chunk,) = read_chunks(tmp_path / "in.json", task)
    assert " ".join(chunk.split.examples[0].tokens).startswith("Mara Lind")


# One file for training and validation


HELD_OUT = "kind: sequence_classification\ntext_columns: text\nlabels: [no, yes]\n"
HELD_OUT += "files: {train: all.jsonl}\nvalidation_fraction: 0.2\n"


def write_task(folder, text, rows):
    (folder / "task.yaml").write_text(text)
    lines = [json.dumps(row) for row in rows]
    (folder / "all.jsonl").write_text("\n".join(lines) + "\n")
    return read_task_file(folder / "task.yaml")


def test_a_fraction_of_the_training_file_is_held_out(tmp_path):
    rows = [{"text": f"text {number % 500}", "label": "yes"} for number in range(1000)]
    task = write_task(tmp_path, HELD_OUT, rows)
    texts = {}
    for split in ("train", "validation"):
        examples = load_split(task, split, data_dir=None).examples
        texts[split] = [example.text for example in examples]
    assert sorted(texts["train"] + texts["validation"]) == sorted(row["text"] for row in rows)
    # Each text twice, on one side; the same ones whoever reads them.
    assert not set(texts["train"]) & set(texts["validation"])
    assert len(texts["validation"]) == 200
    write_task_file(tmp_path / "again.yaml", task)
    again = read_task_file(tmp_path / "again.yaml")
    assert again.validation_fraction == 0.2
    assert load_split(again, "validation", data_dir=None).examples[0].text == texts["validation"][0]


def test_few_held_out_rows_are_a_warning(tmp_path, caplog):
    rows = [{"text": f"text {number}", "label": "yes"} for number in range(60)]
    task = write_task(tmp_path, HELD_OUT, rows)
    assert len(load_split(task, "validation", data_dir=None).examples) == 12
    assert "validation_fraction 0.2 holds out 12 rows, which say little" in caplog.text


def test_questions_of_a_paragraph_are_on_one_side(tmp_path):
    rows = []
    for number in range(300):
        context = f"The tower {number // 3} was built in 1889."
        answers = {"text": ["1889"], "answer_start": [context.index("1889")]}
        rows.append({"id": str(number), "question": f"{number}?", "context": context})
        rows[-1]["answers"] = answers
    text = "kind: question_answering\nfiles: {train: all.jsonl}\nvalidation_fraction: 0.3\n"
    task = write_task(tmp_path, text, rows)
    contexts = []
    for split in ("train", "validation"):
        examples = load_split(task, split, data_dir=None).examples
        contexts.append({example.context for example in examples})
    assert not contexts[0] & contexts[1]
    assert len(contexts[0] | contexts[1]) == 100


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.2", "1.5", r"line 5: validation_fraction: 1.5; allowed: more than 0 and less than 1"),
        ("train: all.jsonl", "train: all.jsonl, validation: b.jsonl", "leave the others or it out"),
        (
            "train: all.jsonl",
            "train: all.jsonl, validation_hard: b.jsonl",
            "leave the others or it",
        ),
        ("files: {train: all.jsonl}", "hub_dataset: me/mine", "there is no `train` in `files`"),
        ("train: all", "test: all", "there is no `train` in `files`"),
        ("0.2", "1e-9", "leaves none for the split 'validation'"),
    ],
)
def test_a_fraction_that_cannot_be_held_out_is_refused(tmp_path, old, new, message):
    def load():
        rows = [{"text": "a", "label": "yes"}]
        task = write_task(tmp_path, HELD_OUT.replace(old, new), rows)
        load_split(task, "validation", data_dir=None)

    with pytest.raises(InputError, match=message):
        load()


def test_a_label_of_minus_one_that_is_a_number_or_a_class_is_none_that_is_missing(read, caplog):
    rows = [{"text": "a", "label": 0.5}, {"text": "b", "label": -1.0}, {"text": "c", "label": None}]
    regression = "kind: sequence_classification\ntext_columns: text\nproblem_type: regression\n"
    _, examples = read(regression + "label_range: [-1, 1]\n", rows)
    assert [example.label for example in examples] == [0.5, -1.0]
    rows[0]["label"] = 1
    classes = "kind: sequence_classification\ntext_columns: text\nlabels: [-1, 0, 1]\n"
    _, examples = read(classes, rows)
    assert [example.label for example in examples] == [2, 0]
    assert caplog.text.count("1 of 3 rows have no label and are left out") == 2


def test_a_validation_file_of_its_own_is_taken_rather_than_a_fraction(tmp_path):
    task = write_task(tmp_path, HELD_OUT, [{"text": "a", "label": "yes"}])
    folder = tmp_path / "augmented"
    folder.mkdir()
    for name, texts in (("train", "abcdefgh"), ("validation", "xyz")):
        lines = [json.dumps({"text": text, "label": "no"}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    for name, texts in (("train", "abcdefgh"), ("validation", "xyz")):
        examples = load_split(task, name, data_dir=str(folder)).examples
        assert "".join(example.text for example in examples) == texts


def test_a_document_is_on_one_side(tmp_path):
    sentences = ""
    for document in range(40):
        sentences += "-DOCSTART- O\n\n"
        for number in range(5):
            sentences += f"d{document} O\ns{number} B-X\n\n"
    (tmp_path / "all.txt").write_text(sentences)
    text = "kind: token_classification\nlabels: [O, B-X]\nfiles: {train: all.txt}\n"
    (tmp_path / "task.yaml").write_text(text + "validation_fraction: 0.3\n")
    task = read_task_file(tmp_path / "task.yaml")
    documents = []
    for split in ("train", "validation"):
        examples = load_split(task, split, data_dir=None).examples
        assert len(examples) % 5 == 0
        documents.append({example.tokens[0] for example in examples})
    assert not documents[0] & documents[1]
    assert len(documents[0] | documents[1]) == 40


def test_one_mark_at_the_top_of_a_file_divides_nothing(tmp_path):
    """Sentences that repeat are on one side."""
    sentences = "-DOCSTART- O\n\n"
    for number in range(100):
        sentences += f"s{number % 50} B-X\n\n"
    (tmp_path / "all.txt").write_text(sentences)
    text = "kind: token_classification\nlabels: [O, B-X]\nfiles: {train: all.txt}\n"
    (tmp_path / "task.yaml").write_text(text + "validation_fraction: 0.3\n")
    task = read_task_file(tmp_path / "task.yaml")
    sides = []
    for split in ("train", "validation"):
        examples = load_split(task, split, data_dir=None).examples
        sides.append([example.tokens[0] for example in examples])
    assert len(sides[0]) + len(sides[1]) == 100
    assert len(set(sides[0])) + len(set(sides[1])) == 50


@pytest.mark.parametrize(
    ("line", "is_western"),
    [
        ("Die Größe der Tür".encode("cp1252"), True),
        ("it\u2019s 5 \u20ac \u2013 only".encode("cp1252"), True),
        ("Привет мир".encode("cp1251"), False),
        ("größe schön caf".encode() + b"\xc3", False),  # one broken character
        ("北京在哪里".encode("gbk"), False),
    ],
)
def test_only_a_text_of_western_europe_is_said_to_be_windows_1252(tmp_path, line, is_western):
    (tmp_path / "a.txt").write_bytes(line + b"\n")
    with pytest.raises(InputError, match="not valid UTF-8") as error:
        list(read_lines(tmp_path / "a.txt"))
    assert ("iconv -f cp1252" in str(error.value)) is is_western


BLANKS = {
    "multi-label": (MULTI + "labels: [rain, sun]\nlabel_separator: ';'\n", {"text": "a"}, "label"),
    "squad_v2": (
        QUESTIONS + "metrics: squad_v2\n",
        {"id": "1", "question": "Where?", "context": "She was in Oslo."},
        "answers",
    ),
    "squad": (
        QUESTIONS + "metrics: squad\n",
        {"id": "1", "question": "Where?", "context": "She was in Oslo."},
        "answers",
    ),
    "spans": (SPANS, {"text": TEXT}, "spans"),
}
VALUES = {
    "multi-label": ("", "rain"),
    "squad_v2": ({"text": [], "answer_start": []}, {"text": ["Oslo"], "answer_start": [11]}),
    "squad": ({"text": [], "answer_start": []}, {"text": ["Oslo"], "answer_start": [11]}),
    "spans": ([], [{"start": 0, "end": 4, "label": "PER"}]),
}


@pytest.mark.parametrize("name", BLANKS)
def test_a_test_split_of_blank_labels_is_one_with_hidden_labels(tmp_path, name, caplog):
    """An export writes the column of labels where nothing is annotated. Measuring would give 0."""
    keys, row, column = BLANKS[name]
    blank, label = VALUES[name]
    (tmp_path / "task.yaml").write_text(
        f"name: mine\n{keys}files: {{train: train.jsonl, test: test.jsonl}}\n"
    )
    rows = [{**row, "id": str(number), column: blank} for number in range(2)]
    files = {"train": [{**row, column: label}], "test": rows}

    def load():
        for split, content in files.items():
            lines = "".join(json.dumps(line) + "\n" for line in content)
            (tmp_path / f"{split}.jsonl").write_text(lines)
        return load_split(read_task_file(tmp_path / "task.yaml"), "test", data_dir=None)

    split = load()
    assert not split.is_labelled
    assert len(split.examples) == 2
    if name != "squad":  # where a blank answer can be nothing else
        assert "the labels are taken for hidden" in caplog.text
    rows[1][column] = label
    if name == "squad":
        with pytest.raises(InputError, match="the label is hidden"):
            load()
    else:
        assert load().is_labelled


def test_line_ends_of_windows_inside_a_cell_are_counted_in_the_places_of_its_text(read):
    """As pandas and Label Studio write a text of several lines."""
    text = "Dear Sir,\r\nMara Lind sails"
    rows = [{"text": text, "label": [[11, 20, "PER"]]}]
    content = f'text,label\r\n"{text}","[[11, 20, ""PER""]]"\r\n'
    labels = "labels: [O, B-PER, I-PER]\ntext_columns: text\n"
    _, from_json = read(TAGGING + labels, rows)
    _, from_csv = read(TAGGING + labels, content, "train.csv")
    assert from_csv == from_json
    (example,) = from_csv
    tagged = zip(example.tokens, example.labels, strict=True)
    assert [word for word, label in tagged if label] == ["Mara", "Lind"]


def test_rows_of_separators_alone_are_no_data(read, caplog):
    """Excel writes them for rows that were cleared."""
    _, examples = read(CLASSES, "text;label\na;yes\n;\nb;no\n ; \n", "train.csv")
    assert [example.text for example in examples] == ["a", "b"]
    assert "train.csv: 2 rows whose cells are all empty are skipped" in caplog.text
    _, from_tsv = read(CLASSES, "text\tlabel\na\tyes\n\t\nb\tno\n \t \n", "train.tsv")
    assert from_tsv == examples
    assert "train.tsv: 2 rows whose cells are all empty are skipped" in caplog.text


def test_a_text_that_nobody_annotated_has_an_empty_cell(read, caplog):
    """Of Label Studio's and pandas' tables; an empty list says that it has no entity."""
    content = 'text,label\nNothing here,\nOle,[]\nMara sails,"[[0, 4, ""PER""]]"\n'
    labels = "labels: [O, B-PER, I-PER]\ntext_columns: text\n"
    _, examples = read(TAGGING + labels, content, "train.csv")
    assert [example.tokens for example in examples] == [("Ole",), ("Mara", "sails")]
    assert "1 of 3 rows have no label and are left out" in caplog.text


def test_a_label_in_a_list_is_the_same_in_a_table(read):
    task, examples = read(CLASSES, "text,label\na,['yes']\nb,['no']\n", "train.csv")
    assert task.labels == ("no", "yes")
    assert [example.label for example in examples] == [1, 0]


def test_a_number_in_a_list_is_that_class_in_every_format(read):
    rows = [{"text": "a", "label": [1]}, {"text": "b", "label": [0]}]
    for content, name in (("text,label\na,[1]\nb,[0]\n", "train.csv"), (rows, "train.jsonl")):
        task, examples = read(CLASSES, content, name)
        assert task.labels == ("0", "1")
        assert [example.label for example in examples] == [1, 0]


def test_minus_one_in_a_list_may_be_a_class_too(read):
    rows = [{"text": "a", "label": [label]} for label in (1, -1, 0)]
    with pytest.raises(InputError, match=r"where -1 is a class, write labels: \[-1, 0, 1\]"):
        read(CLASSES, rows)


def test_a_number_in_a_list_is_that_number_of_a_regression(read):
    rows = [{"text": "a", "label": [3.5]}, {"text": "b", "label": [1]}]
    _, examples = read(CLASSES + "problem_type: regression\n", rows)
    assert [example.label for example in examples] == [3.5, 1.0]


def test_a_class_may_have_the_name_of_a_list(read):
    """As in the task files of earlier versions."""
    rows = [{"text": "a", "label": "[1]"}, {"text": "b", "label": "[0]"}]
    labels = "labels: {'[1]': spam, '[0]': ham}\n"
    task, examples = read(CLASSES + labels, rows)
    assert [task.labels[example.label] for example in examples] == ["spam", "ham"]


def test_an_empty_list_is_no_label_yet(read, caplog):
    """Of doccano's and Prodigy's texts that nobody has labelled."""
    rows = [{"text": "a", "label": []}, {"text": "b", "label": ["yes"]}]
    rows.append({"text": "c", "label": ["no"]})
    task, examples = read(CLASSES, rows)
    assert task.labels == ("no", "yes")
    assert [example.text for example in examples] == ["b", "c"]
    assert "1 of 3 rows have no label and are left out" in caplog.text


def _chosen(text, **columns):
    """A text as Label Studio exports it with all its annotations."""
    cancelled = {"was_cancelled": True, "result": []}
    results = []
    for name, (kind, content) in columns.items():
        result = {"from_name": name, "to_name": "text", "type": kind, "value": {kind: content}}
        results.append(result)
    done = {"was_cancelled": False, "result": [*results, {"type": "relation"}]}
    annotations = [cancelled, done] if columns else []
    return {"id": 7, "data": {"text": text}, "annotations": annotations}


def test_what_was_chosen_in_label_studio_is_a_label(read, caplog):
    rows = [
        _chosen("a", label=("choices", ["yes"]), other=("choices", ["x"])),
        _chosen("b"),
        _chosen("c", label=("choices", ["no"])),
    ]
    task, examples = read(CLASSES, json.dumps(rows), "train.json")
    assert task.labels == ("no", "yes")
    assert [(example.text, example.label) for example in examples] == [("a", 1), ("c", 0)]
    assert "1 of 3 rows have no label and are left out" in caplog.text


def test_a_column_that_label_studio_has_not_is_named_beside_skipped_texts(read):
    skipped = {"id": 8, "data": {"text": "b"}, "annotations": [{"was_cancelled": True}]}
    rows = [_chosen("a", sentiment=("choices", ["yes"])), skipped]
    with pytest.raises(InputError, match="no column 'label'; columns present: id, text, sentiment"):
        read(CLASSES, rows)


def test_of_several_annotations_the_first_or_the_ground_truth_is_taken(read, caplog):
    rows = [_chosen("a", label=("choices", ["yes"])), _chosen("b", label=("choices", ["no"]))]
    rows[0]["annotations"] += _chosen("a", label=("choices", ["no"]))["annotations"]
    second = _chosen("b", label=("choices", ["yes"]))["annotations"][1]
    rows[1]["annotations"].append({**second, "ground_truth": True})
    _, examples = read(CLASSES + "labels: [no, yes]\n", rows)
    assert [example.label for example in examples] == [1, 1]
    assert "train.jsonl: 2 texts have several annotations" in caplog.text


def test_what_was_imported_with_a_text_is_no_label_of_label_studio(read):
    rows = [_chosen("a", label=("choices", ["yes"])), _chosen("b")]
    rows[1]["data"]["label"] = "no"
    _, examples = read(CLASSES + "labels: [no, yes]\n", rows)
    assert [example.text for example in examples] == ["a"]


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet"])
def test_what_was_imported_with_a_text_is_no_tag_of_label_studio(read, caplog, name):
    spans = [{"type": "labels", "value": {"start": 0, "end": 4, "labels": ["PER"]}}]
    rows = [
        {"data": {"text": "Mara sails", "tags": "news"}, "annotations": [{"result": spans}]},
        {"data": {"text": "Bergen rains", "tags": "O O"}, "annotations": []},
    ]
    keys = f"{TAGGING}labels: [O, B-PER, I-PER]\ntext_columns: text\n"
    _, examples = read(keys, rows, name)
    assert [example.tokens for example in examples] == [("Mara", "sails")]
    assert "1 of 2 rows have no label and are left out" in caplog.text


def test_annotations_without_results_have_no_label(read):
    rows = [_chosen("a", label=("choices", ["yes"])), _chosen("b"), _chosen("c")]
    rows[1]["annotations"] = [{"result": None}]
    _, examples = read(CLASSES + "labels: [no, yes]\n", rows)
    assert [example.text for example in examples] == ["a"]
    rows[1]["annotations"] = [{"result": 5}]
    with pytest.raises(InputError, match="line 2: the result of an annotation is no list: 5"):
        read(CLASSES + "labels: [no, yes]\n", rows)
    rows[1]["annotations"] = []
    rows[2]["annotations"] = [{"result": ["yes"]}]
    with pytest.raises(InputError, match="line 3: a result of an annotation is no object: 'yes'"):
        read(CLASSES + "labels: [no, yes]\n", rows)


def test_an_export_before_anybody_annotated_has_no_labels(read):
    """What was imported with the texts may be a model's guess; without an export it is theirs."""
    rows = [_chosen("a"), _chosen("b")]
    for row, label in zip(rows, ["yes", "no"], strict=True):
        row["data"]["label"] = label
    _, examples = read(CLASSES + "labels: [no, yes]\n", rows)
    assert [example.label for example in examples] == [None, None]
    imported = [{"data": row["data"], "predictions": []} for row in rows]
    _, examples = read(CLASSES + "labels: [no, yes]\n", imported)
    assert [example.label for example in examples] == [1, 0]


def test_the_text_of_label_studio_may_be_called_as_labels_are(read):
    spans = [{"type": "labels", "value": {"start": 0, "end": 4, "labels": ["PER"]}}]
    rows = [{"data": {"entities": "Mara sails"}, "annotations": [{"result": spans}]}]
    keys = f"{TAGGING}labels: [O, B-PER, I-PER]\ntext_columns: entities\n"
    _, (example,) = read(keys, rows)
    assert example.tokens == ("Mara", "sails")


def test_words_in_rows_whose_first_tags_are_null_are_no_sentences(read):
    rows = [{"sentence_id": k // 10, "text": f"w{k}", "label": None} for k in range(30)]
    rows[25]["label"] = "B-PER"
    with pytest.raises(InputError, match="line 1: a word without a label"):
        read(f"{TAGGING}labels: [O, B-PER, I-PER]\ntext_columns: text\n", rows)


def test_rows_of_one_file_may_have_their_tags_in_columns_of_several_names(read, caplog):
    rows = [{"text": "Mara lives here", "label": None}]
    rows.append({"text": "Mara sails", "entities": [[0, 4, "PER"]]})
    _, examples = read(f"{TAGGING}labels: [O, B-PER, I-PER]\ntext_columns: text\n", rows)
    assert [example.tokens for example in examples] == [("Mara", "sails")]
    assert "1 of 2 rows have no label" in caplog.text


def test_a_set_of_label_studio_in_another_column_is_not_found(read):
    rows = [_chosen("a", topic=("choices", ["yes"])), {"data": {"text": "c"}, "annotations": []}]
    rows[1]["annotations"] = [{"result": []}]
    with pytest.raises(InputError, match="no column 'label'; columns present: id, text, topic"):
        read(MULTI + "labels: [no, yes]\n", rows)


def test_texts_of_label_studio_that_nobody_annotated_can_be_predicted(write):
    """Also those without spaces, and the form in which it imports them."""
    rows = [
        {"id": 1, "data": {"text": "\u6211\u53bb\u5317\u4eac\u3002"}, "annotations": []},
        {"id": 2, "data": {"text": "Oslo"}, "annotations": []},
        {"data": {"text": "Bergen"}},
    ]
    path = write("inputs.jsonl", rows)
    keys = f"{TAGGING}labels: [O, B-X, I-X]\ntext_columns: text\n"
    task = read_task_file(write("own.yaml", keys + "files: {test: inputs.jsonl}\n"))
    (chunk,) = read_chunks(path, task)
    assert ["".join(example.tokens) for example in chunk.split.examples] == [
        row["data"]["text"] for row in rows
    ]
    assert [example.labels for example in load_split(task, "test", data_dir=None).examples] == [
        None
    ] * 3


def test_several_choices_and_ratings_of_label_studio(read):
    rows = [
        _chosen("a", label=("choices", ["rain", "wind"])),
        _chosen("b", label=("choices", ["wind"])),
        {"data": {"text": "c"}, "annotations": [{"result": []}]},
    ]
    several = "problem_type: multi_label_classification\nlabels: [rain, wind]\n"
    _, examples = read(CLASSES + several, rows)
    assert [example.label for example in examples] == [(0, 1), (1,), ()]
    rows = [_chosen("a", label=("rating", 4)), _chosen("b", label=("number", 2.5))]
    _, examples = read(CLASSES + "problem_type: regression\n", rows)
    assert [example.label for example in examples] == [4.0, 2.5]


@pytest.mark.parametrize("labels", ["", "labels: [entailment, neutral]\n"])
def test_a_dash_says_that_the_annotators_did_not_agree(read, labels):
    """SNLI and MultiNLI have it as the gold label."""
    rows = [{"text": "a", "label": "entailment"}, {"text": "b", "label": "-"}]
    rows.append({"text": "c", "label": "neutral"})
    task, examples = read(CLASSES + labels, rows)
    assert task.labels == ("entailment", "neutral")
    assert [example.text for example in examples] == ["a", "c"]


def test_a_class_may_be_a_dash_where_the_task_names_it(read):
    rows = [{"text": "a", "label": "+"}, {"text": "b", "label": "-"}]
    _, examples = read(CLASSES + "labels: ['+', '-']\n", rows)
    assert [example.label for example in examples] == [0, 1]


def test_a_dash_beside_signs_is_a_class(read):
    rows = [{"text": "a", "label": "+"}, {"text": "b", "label": "-"}]
    task, _ = read(CLASSES, rows)
    assert task.labels == ("+", "-")


def test_no_class_has_an_empty_name(read):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    with pytest.raises(InputError, match="has an empty name"):
        read(CLASSES + "labels: {x: x, y: ''}\n", rows)


def test_several_choices_are_no_class(read):
    rows = [{"text": "a", "label": {"choices": ["rain", "wind"]}}, {"text": "b", "label": "rain"}]
    with pytest.raises(InputError, match=r"line 1: .* problem_type: multi_label_classification"):
        read(CLASSES, rows)


def test_spellings_of_one_class_are_warned_of(read, caplog):
    content = "text,label\na,yes\nb,Yes\nc,yes\u200b\nd,nan\n"
    task, _ = read(CLASSES, content, "train.csv")
    log_found_labels(task)
    assert "'Yes' and 'yes' are two classes" in caplog.text
    assert "'yes\\u200b' are two classes" in caplog.text
    assert "'nan' is taken for a class" in caplog.text


def test_a_separator_may_stand_behind_the_last_label(read):
    """Microsoft Forms writes so."""
    content = "text,label\na,rain;wind;\nb,rain;\n"
    _, examples = read(MULTI + "label_separator: ;\n", content, "train.csv")
    assert [example.label for example in examples] == [(0, 1), (0,)]


def test_a_list_with_a_lost_word_is_not_cut_into_words(read):
    """pandas takes the word NA for missing, and writes nan into the list."""
    cells = "\"['Windhoek', nan]\",\"['B-LOC', 'B-LOC']\""
    labels = "labels: [O, B-LOC, I-LOC]\n"
    with pytest.raises(InputError, match=r"a list that is broken: .*keep_default_na=False"):
        read(TAGGING + labels, f"tokens,ner_tags\n{cells}\n", "train.csv")


@pytest.mark.parametrize(
    "span",
    [
        {"start": 5, "end": 8, "type": "number"},
        {"start": 5, "end": 8, "value": "555", "entity": "number"},
    ],
)
def test_a_type_and_a_value_of_a_span_are_its_own(read, span):
    """Not those of a result of Label Studio; Rasa and ai4privacy have the text as the value."""
    labels = "labels: [O, B-number, I-number]\ntext_columns: text\nlabel_column: entities\n"
    _, (example,) = read(TAGGING + labels, [{"text": "Call 555 now", "entities": [span]}])
    assert example.labels == (0, 1, 0)


@pytest.mark.parametrize(
    "seen", [{"annotation_id": 7}, {"_task_hash": 1, "answer": "accept"}, {"label": None}]
)
def test_a_text_in_which_its_annotator_found_nothing_has_no_entity(read, seen):
    """Label Studio leaves out the label then, and Prodigy the spans."""
    rows = [{"text": "Mara sails", "label": [[0, 4, "PER"]]}, {"text": "Ole", **seen}]
    labels = "labels: [O, B-PER, I-PER]\ntext_columns: text\n"
    _, examples = read(TAGGING + labels, rows)
    was_seen = "label" not in seen
    assert [example.labels for example in examples] == [(1, 0), (0,)][: 1 + was_seen]


def test_words_and_tags_without_a_header_are_no_table(read):
    """BioBERT's files are called .tsv."""
    labels = "labels: [O, B-X, I-X]\n"
    with pytest.raises(InputError, match=r"and no header; name the file \.conll"):
        read(TAGGING + labels, "Selegiline\tO\nhelps\tO\n", "train.tsv")


def test_an_answer_without_a_place_is_a_whole_word_where_it_is_one(read):
    rows = [
        {"question": "What?", "context": "The start of art is art.", "answers": "The"},
        {"question": "What?", "context": "The start of it was art.", "answers": "art"},
    ]
    _, examples = read(QUESTIONS, rows)
    starts = [example.answers[0].answer_start for example in examples]
    assert starts == [0, 20]


@pytest.mark.parametrize("cell", ["\"['rain', 'wind']\""])
def test_a_set_of_labels_is_no_class(read, cell):
    with pytest.raises(InputError, match="is not one of the task's"):
        read(CLASSES, f"text,label\na,['rain']\nb,['wind']\nc,{cell}\n", "train.csv")


def test_numbers_with_commas_may_be_fractions_or_sets(read):
    for cells in (("1", "2", "1,5"), ("1", "2", "1,2")):
        content = "text;label\n" + "".join(f"a;{cell}\n" for cell in cells)
        with pytest.raises(InputError, match=r"regression\? Sets of classes, as 1,2, are"):
            read(CLASSES, content, "train.csv")


def test_choices_of_label_studio_are_a_set_of_labels(read):
    rows = [
        {"text": "a", "label": {"choices": ["rain", "wind"]}},
        {"text": "b", "label": {"choices": ["sun"]}},
    ]
    task, examples = read(MULTI, rows)
    assert task.labels == ("rain", "sun", "wind")
    assert [example.label for example in examples] == [(0, 2), (1,)]


def test_one_choice_of_label_studio_is_a_plain_text(read):
    """So do JSON-MIN and CSV write it beside sets of several."""
    rows = [
        {"text": "a", "label": {"choices": ["rain", "very windy"]}},
        {"text": "b", "label": "very windy"},
    ]
    task, examples = read(MULTI, rows)
    assert task.labels == ("rain", "very windy")
    assert [example.label for example in examples] == [(0, 1), (1,)]


def test_decimal_commas_are_numbers_and_are_refused_with_the_way_out(read):
    content = "text;label\na;3,5\nb;4,0\n"
    with pytest.raises(InputError, match=r"numbers with fractions; problem_type: regression\?"):
        read(CLASSES, content, "train.csv")
    with pytest.raises(InputError, match=r"label '3,5'; allowed: a number, written with a point"):
        read(f"{CLASSES}problem_type: regression\n", content, "train.csv")


def test_ids_of_texts_in_front_of_words_are_not_the_words(read):
    lines = ["bc/a\tMara\tB-PER", "bc/a\tsails\tO", "", "bc/b\tOle\tB-PER", "bc/b\trows\tO", ""]
    with pytest.raises(InputError, match="text_columns"):
        read(TAGGING + "labels: [O, B-PER, I-PER]\n", "\n".join(lines * 20), "train.txt")


def test_a_task_of_words_a_row_predicts_texts_and_lists(tmp_path):
    task = Task(
        name="t",
        kind="token_classification",
        text_columns=("word",),
        label_column="label",
        labels=("O", "B-X", "I-X"),
        sentence_column="sentence_id",
    )
    for value, words in (
        (["The", "Ulva", "sails", "."], ("The", "Ulva", "sails", ".")),
        ("The Ulva sails.", ("The", "Ulva", "sails", ".")),
        ("Hello", ("Hello",)),
    ):
        file = tmp_path / "in.jsonl"
        file.write_text(json.dumps({"word": value}))
        (chunk,) = read_chunks(file, task)
        (example,) = chunk.split.examples
        assert example.tokens == words
