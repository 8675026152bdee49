"""Answers in every form, offsets that are a little wrong, ids, and questions without answer."""

import json

import pytest

from bert_recipes.errors import InputError
from bert_recipes.tasks.examples import Answer
from bert_recipes.tasks.questions import locate_answer
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task_file import read_task_file


ANSWER = (Answer(text="Anna Dahl", answer_start=40),)
CONTEXT = "The harbour of Vik was built in 1902 by Anna Dahl. Before 1902 there was only a pier."


def question(idx: str | None, text: str, start: object = None, **columns: object) -> dict:
    answers = [{"text": text, "answer_start": start}]
    return {"id": idx, "question": "Which?", "answers": answers, **columns}


@pytest.fixture
def load(write):
    """Read a split of questions in SQuAD's form."""

    def load_questions(*questions: dict, metrics: str = "squad", split: str = "train"):
        paragraphs = [{"context": CONTEXT, "qas": list(questions)}]
        write(f"{split}.json", json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
        files = f"files: {{{split}: {split}.json}}\n"
        path = write("own.yaml", f"kind: question_answering\n{files}metrics: {metrics}\n")
        return load_split(read_task_file(path), split, data_dir=None)

    return load_questions


def answers_of(split) -> list:
    return [example.answers for example in split.examples]


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


def test_offsets_in_utf16_units_are_mended():
    """Tools that run in a browser count an emoji twice."""
    context = "Great trip \U0001f600\U0001f389! The boat to Vik was built by Anna Dahl in 1902."
    assert locate_answer("Anna Dahl", 46, context) == Answer(text="Anna Dahl", answer_start=44)


def test_wrong_offsets_are_mended_or_left_out_and_counted(load, caplog):
    """google-research/bert run_squad.py warns of an answer that it cannot find, and goes on."""
    split = load(
        question("a", "Anna Dahl", 40),
        question("b", "Anna Dahl", 41),
        question("c", "1902", 45),
        question("d", "1911", 32),
    )
    assert [example.idx for example in split.examples] == ["a", "b"]
    assert answers_of(split) == [ANSWER, ANSWER]
    assert (split.num_rows, split.num_left_out) == (4, 2)
    assert split.is_partial
    assert "train.json: 1 answers did not stand at their answer_start" in caplog.text
    assert "2 of 4 questions are left out" in caplog.text
    assert "question 3 (id c): the answer '1902' is not at its answer_start 45" in caplog.text


def test_a_lost_answer_beside_others_is_counted_and_one_without_a_start_is_not_wrong(load, caplog):
    row = question("a", "1911", 32)
    row["answers"].append({"text": "Anna Dahl", "answer_start": 40})
    split = load(row, question("b", "Anna Dahl"))
    assert answers_of(split) == [ANSWER, ANSWER]
    (warning,) = caplog.messages
    assert "1 answers beside others are left out: they are not in their paragraphs" in warning
    assert "question 1 (id a): the answer '1911' is not at its answer_start 32" in warning


def test_training_in_which_no_answer_is_found_is_refused(load):
    message = r"question 1 \(id a\): the answer 'Anna  Dahl' is not at its .* -1, .*counts the char"
    with pytest.raises(InputError, match=message):
        load(question("a", "Anna  Dahl", -1))


def test_an_evaluation_looks_at_the_texts_of_answers_alone(load):
    """Neither the official scorer nor run_squad.py reads answer_start there."""
    split = load(question("a", "Anna Dahl", 7), question("b", "1911", -1), split="validation")
    assert answers_of(split) == [
        (Answer(text="Anna Dahl", answer_start=-1),),
        (Answer(text="1911", answer_start=-1),),
    ]


def test_ids_matter_in_an_evaluation_alone(load):
    questions = [question("a", "Anna Dahl", 40), question("a", "1902", 32)]
    assert len(load(*questions, question(None, "1902", 32)).examples) == 3
    with pytest.raises(InputError, match=r"question 2 \(id a\): question 1 has the same id"):
        load(*questions, split="validation")


@pytest.mark.parametrize(
    ("word", "has_answer"),
    [
        *((word, True) for word in ("False", "false", "0", 0, False, None, "")),
        *((word, False) for word in ("True", "true", "1", 1, True)),
    ],
)
def test_is_impossible_means_no_answer_in_any_spelling(load, word, has_answer):
    """run_squad.py `read_squad_examples`: is_impossible means no answer."""
    split = load(question("a", "Anna Dahl", 40, is_impossible=word), metrics="squad_v2")
    assert answers_of(split) == [ANSWER if has_answer else ()]


def test_is_impossible_that_says_neither_is_refused(load):
    message = r"question 1 \(id a\), is_impossible: 'maybe'; allowed: 0 or 1, true or false"
    with pytest.raises(InputError, match=message):
        load(question("a", "Anna Dahl", 40, is_impossible="maybe"), metrics="squad_v2")


KEYS = "kind: question_answering\nmetrics: squad_v2\n"
FLAT = {"id": "a", "question": "Which?", "context": CONTEXT}


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
        ("array(['Anna Dahl'], dtype=object)", ANSWER),  # as pandas writes the Hub's
        ({"text": [], "answer_start": []}, ()),
        ({"text": [""], "answer_start": [0]}, ()),
        ([], ()),
    ],
)
def test_answers_are_read_in_every_form(read, answers, expected):
    _, (example,) = read(KEYS, [{**FLAT, "answers": answers}])
    assert example.answers == expected


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("1902", "32", 32),
        ("1902", 58.0, 58),
        (1902, 58, 58),
        ("Anna Dahl", "", 40),
        ("Anna Dahl", "[7]", 40),
    ],
)
def test_a_flat_table_may_have_a_column_of_starts(read, text, start, found):
    row = {"question": "?", "context": CONTEXT, "answer_text": text, "answer_start": start}
    _, (example,) = read(KEYS + "label_column: answer_text\n", [row])
    assert example.answers == (Answer(text=str(text), answer_start=found),)


def test_articles_may_stand_one_a_line_and_paragraphs_may_have_no_questions(read):
    paragraphs = [
        {"context": "x", "qas": []},
        {"context": CONTEXT, "qas": [question("a", "Anna Dahl", 40)]},
    ]
    for rows in ([{"title": "t", "paragraphs": paragraphs}], paragraphs):
        _, (example,) = read(KEYS, rows)
        assert example.answers == ANSWER


def test_questions_without_ids_are_numbered(read):
    row = {"question": "?", "context": "a b", "answers": ["a"]}
    _, examples = read(KEYS, [row, row])
    assert [example.idx for example in examples] == ["0", "1"]
