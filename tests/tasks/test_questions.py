"""Answers in every form, offsets that are a little wrong, ids, and questions without answer."""

import json
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.examples import Answer
from bert_recipes.tasks.questions import locate_answer
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task_file import read_task_file


CONTEXT = "The harbour of Vik was built in 1902 by Anna Dahl. Before 1902 there was only a pier."


def question(idx: str, text: str | None = None, start: object = None, **more: object) -> dict:
    answers = [] if text is None else [{"text": text, "answer_start": start}]
    return {"id": idx, "question": "Which?", "answers": answers} | more


def write(folder: Path, *questions: dict, metrics: str = "squad", file: str = "train.json") -> Path:
    data = {"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}]}
    (folder / file).write_text(json.dumps(data), encoding="utf-8")
    split = file.split(".")[0]
    text = f"kind: question_answering\nfiles: {{{split}: {file}}}\nmetrics: {metrics}\n"
    (folder / "own.yaml").write_text(text, encoding="utf-8")
    return folder / "own.yaml"


def load(path: Path, split: str = "train"):
    return load_split(read_task_file(path), split, data_dir=None)


def answers_of(path: Path, split: str = "train") -> list:
    return [example.answers for example in load(path, split).examples]


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("Anna Dahl", 40, 40),
        ("Anna Dahl", 46, 40),  # the text is there once
        ("Anna  Dahl", 40, 40),  # folded blanks
        ("Anna\nDahl", 39, 40),
        ("1902", 33, 32),  # there twice, once nearby
        ("1902", 59, 58),
        ("1902", 45, None),  # both are nearby
        ("1902", 200, None),  # none is
        ("1902", None, None),
        ("Anna Dahl", None, 40),
        ("Anna Dahl", -1, None),  # "not found" of an annotation tool
        ("Anna Lund", 40, None),
        (" ", 3, 3),
    ],
)
def test_an_answer_is_found_where_its_text_stands_once_nearby(text, start, found):
    answer = locate_answer(text, start, CONTEXT)
    if found is None:
        assert answer is None
    else:
        assert answer.answer_start == found
        assert CONTEXT.startswith(answer.text, found)
        assert answer.text.split() == text.split()


def test_offsets_in_utf16_units_are_mended(tmp_path, caplog):
    """Tools that run in a browser count an emoji twice."""
    context = "Great trip \U0001f600\U0001f389! The boat to Vik was built by Anna Dahl in 1902."
    assert locate_answer("Anna Dahl", 46, context) == Answer(text="Anna Dahl", answer_start=44)


def test_wrong_offsets_are_mended_or_left_out_and_counted(tmp_path, caplog):
    """google-research/bert run_squad.py leaves an answer out that it cannot find, with a
    warning.
    """
    path = write(
        tmp_path,
        question("a", "Anna Dahl", 40),
        question("b", "Anna Dahl", 41),
        question("c", "1902", 45),
        question("d", "1911", 32),
    )
    split = load(path)
    assert [example.idx for example in split.examples] == ["a", "b"]
    assert split.examples[1].answers == (Answer(text="Anna Dahl", answer_start=40),)
    assert (split.num_rows, split.num_left_out) == (2, 2)
    assert "train.json: 1 answers did not stand at their answer_start" in caplog.text
    assert "2 of 4 questions are left out" in caplog.text
    assert "question 3 (id c): the answer '1902' is not at its answer_start 45" in caplog.text


def test_training_in_which_no_answer_is_found_is_refused(tmp_path):
    path = write(tmp_path, question("a", "Anna  Dahl", -1))
    with pytest.raises(
        InputError,
        match=r"question 1 \(id a\): the answer 'Anna  Dahl' is not at its answer_start -1, "
        r".*counts the char",
    ):
        load(path)


def test_an_evaluation_looks_at_the_texts_of_answers_alone(tmp_path):
    """Neither the official scorer nor run_squad.py reads answer_start there."""
    path = write(
        tmp_path, question("a", "Anna Dahl", 7), question("b", "1911", -1), file="validation.json"
    )
    assert answers_of(path, "validation") == [
        (Answer(text="Anna Dahl", answer_start=-1),),
        (Answer(text="1911", answer_start=-1),),
    ]


def test_ids_matter_in_an_evaluation_alone(tmp_path):
    same = (question("a", "Anna Dahl", 40), question("a", "1902", 32), question(None, "1902", 32))
    assert len(answers_of(write(tmp_path, *same))) == 3
    with pytest.raises(InputError, match=r"question 2 \(id a\): question 1 has the same id"):
        answers_of(write(tmp_path, *same, file="validation.json"), "validation")


@pytest.mark.parametrize("word", ["False", "false", "0", 0, False, None, ""])
def test_is_impossible_that_says_no_keeps_the_answer(tmp_path, word):
    path = write(tmp_path, question("a", "Anna Dahl", 40, is_impossible=word), metrics="squad_v2")
    assert answers_of(path) == [(Answer(text="Anna Dahl", answer_start=40),)]


@pytest.mark.parametrize("word", ["True", "true", "1", 1, True])
def test_is_impossible_that_says_yes_is_a_question_without_answer(tmp_path, word):
    """run_squad.py `read_squad_examples`: is_impossible means no answer."""
    path = write(tmp_path, question("a", "Anna Dahl", 40, is_impossible=word), metrics="squad_v2")
    assert answers_of(path) == [()]


def test_is_impossible_that_says_neither_is_refused(tmp_path):
    path = write(
        tmp_path, question("a", "Anna Dahl", 40, is_impossible="maybe"), metrics="squad_v2"
    )
    with pytest.raises(
        InputError,
        match=r"question 1 \(id a\), is_impossible: 'maybe'; allowed: 0 or 1, true or false",
    ):
        answers_of(path)


FLAT = {"id": "a", "question": "Which?", "context": CONTEXT}
ANSWER = (Answer(text="Anna Dahl", answer_start=40),)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"text": ["Anna Dahl"], "answer_start": [40]}, ANSWER),
        ({"text": ["Anna Dahl"], "answer_start": ["40"]}, ANSWER),
        ({"text": ["Anna Dahl"], "answer_start": [40.0]}, ANSWER),
        ({"text": "Anna Dahl", "answer_start": 40}, ANSWER),
        ({"text": ["Anna Dahl"]}, ANSWER),
        ([{"text": "Anna Dahl", "answer_start": 40}], ANSWER),
        ("{'text': ['Anna Dahl'], 'answer_start': [40]}", ANSWER),
        ('[{"text": "Anna Dahl", "answer_start": 40}]', ANSWER),
        ("Anna Dahl", ANSWER),
        (["Anna Dahl"], ANSWER),
        ({"text": [], "answer_start": []}, ()),
        ({"text": [""], "answer_start": [0]}, ()),
        ([], ()),
    ],
)
def test_answers_are_read_in_every_form(tmp_path, answers, expected):
    (tmp_path / "train.jsonl").write_text(json.dumps(FLAT | {"answers": answers}) + "\n")
    (tmp_path / "own.yaml").write_text(
        "kind: question_answering\nfiles: {train: train.jsonl}\nmetrics: squad_v2\n"
    )
    assert answers_of(tmp_path / "own.yaml") == [expected]


def test_articles_may_stand_one_a_line_and_paragraphs_may_have_no_questions(tmp_path):
    article = {
        "title": "t",
        "paragraphs": [
            {"context": "x", "qas": []},
            {"context": CONTEXT, "qas": [question("a", "Anna Dahl", 40)]},
        ],
    }
    (tmp_path / "own.yaml").write_text(
        "kind: question_answering\nfiles: {train: train.jsonl}\nmetrics: squad\n"
    )
    for rows in ([article], article["paragraphs"]):
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert answers_of(tmp_path / "own.yaml") == [ANSWER]
