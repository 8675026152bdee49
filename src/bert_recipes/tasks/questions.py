"""Questions about a paragraph and their answers: the forms in which files have them, and offsets
that are a little wrong.
"""

import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.rows import NumberedRows, Rows, column_value, is_missing
from bert_recipes.tasks.examples import Answer
from bert_recipes.tasks.labels import label_text, parse_literal, read_truth
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)

# A text that stands in its paragraph more than once is found again within so many characters: an
# emoji counts double in annotation tools that run in a browser, and a cleaned text has lost a few
# spaces.
_NEARBY_CHARACTERS = 20


def expand_articles(task: Task, rows: Rows) -> Rows:
    """Return the questions of SQuAD's official form, one a row: articles hold paragraphs, these
    hold questions.

    Rows that are questions already stay as they are.

    Source: rajpurkar.github.io/SQuAD-explorer; google-research/bert run_squad.py
    `read_squad_examples`.
    """
    iterator = iter(rows.rows)
    start = list(itertools.islice(iterator, 1))
    every = itertools.chain(start, iterator)
    if not start or not {"paragraphs", "qas"} & start[0][1].keys():
        return Rows(rows.source, rows.unit, every)
    return Rows(
        rows.source, "question", _questions_of(task, rows.source, (row for _, row in every))
    )


def _questions_of(task: Task, source: str, articles: Iterator[Mapping[str, Any]]) -> NumberedRows:
    question_column, context_column = task.text_columns
    number = 0
    try:
        for article in articles:
            for paragraph in article.get("paragraphs", [article]):
                for question in paragraph["qas"]:
                    number += 1
                    row = {"title": article.get("title", ""), context_column: paragraph["context"]}
                    row[question_column] = question["question"]
                    row[task.id_column or "id"] = question.get("id")
                    for key in ("answers", "is_impossible"):
                        if key in question:
                            row[task.label_column if key == "answers" else key] = question[key]
                    yield number, row
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{source}: not the official form of SQuAD after question {number} "
            f"({type(error).__name__}: {error})"
        ) from error


def read_answers(task: Task, row: Mapping[str, Any], where: str) -> list[tuple[str, Any]] | None:
    """Return the text and start of each answer of a row; none where `is_impossible` says so, None
    where they are hidden.

    They are {"text": [...], "answer_start": [...]} (the Hub), a list of such pairs (SQuAD's files),
    or texts alone.
    """
    impossible = row.get("is_impossible")
    if (
        not is_missing(impossible)
        and label_text(impossible) != ""
        and read_truth(impossible, f"{where}, is_impossible")
    ):
        return []
    value = column_value(row, task.label_column, where)
    if is_missing(value):
        return None
    try:
        answers = [_read_answer(item) for item in _split_answers(_parse_text(value))]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{where}: answers {value!r:.60}; expected are "
            f'{{"text": [...], "answer_start": [...]}}, or a list of such pairs'
        ) from None
    # Exports of tables write a question without answer as an empty text.
    return [(text, start) for text, start in answers if text]


def _parse_text(value: Any) -> Any:
    """Return the object or list that a text is, as JSON and Python write it; any other text is an
    answer.
    """
    if not isinstance(value, str):
        return value
    parsed = parse_literal(value)
    if isinstance(parsed, list | dict):
        return parsed
    if value.lstrip().startswith(("{'", '{"', "[{")):
        raise ValueError(value)  # an object that is cut off is no answer
    return [value]


def _split_answers(value: Any) -> list[Any]:
    if not isinstance(value, dict):
        return list(value)
    texts, starts = value["text"], value.get("answer_start")
    if isinstance(texts, str):
        texts, starts = [texts], [starts]
    starts = [None] * len(texts) if starts is None else starts
    return [
        {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
    ]


def _read_answer(item: Any) -> tuple[str, int | None]:
    if isinstance(item, str | int | float) and not isinstance(item, bool):
        return str(item), None
    text, start = item["text"], item.get("answer_start")
    if not isinstance(text, str | int | float):
        raise TypeError(text)
    text = str(text)
    if is_missing(start) or start == "":
        return text, None
    number = float(start)
    if isinstance(start, bool) or not number.is_integer():
        raise ValueError(start)
    return text, int(number)


def locate_answer(text: str, start: int | None, context: str) -> Answer | None:
    """Return the answer where it stands in its paragraph: at its start, else where its text stands
    once nearby, or at all.

    White space may differ. None where it is not there, where nobody can tell which place is meant,
    or where the start is below 0, as annotation tools write it for "not found".
    """
    if start is not None and start >= 0 and context.startswith(text, start):
        return Answer(text=text, answer_start=start)
    if start is not None and start < 0:
        return None
    words = [re.escape(word) for word in text.split()]
    places = [match.span() for match in re.finditer(r"\s+".join(words), context)] if words else []
    if len(places) > 1 and start is not None:
        places = [place for place in places if abs(place[0] - start) <= _NEARBY_CHARACTERS]
    if len(places) != 1:
        return None
    first, end = places[0]
    return Answer(text=context[first:end], answer_start=first)


class AnswerOffsets:
    """Answers for training, which must stand where they say, and how many did not."""

    def __init__(self) -> None:
        self.num_mended = 0
        self.num_left_out = 0
        self._first = ""

    def locate(
        self, answers: Sequence[tuple[str, Any]], context: str, where: str
    ) -> tuple[Answer, ...] | None:
        """Return the answers that stand in their paragraph; None where there are some, and none
        does.
        """
        located: list[Answer] = []
        for text, start in answers:
            answer = locate_answer(text, start, context)
            if answer is None:
                self._first = (
                    self._first
                    or f"{where}: the answer {text!r:.60} is not at its answer_start {start}"
                )
                continue
            self.num_mended += answer.answer_start != start
            located.append(answer)
        if answers and not located:
            self.num_left_out += 1
            return None
        return tuple(located)

    def report(self, source: str, num_questions: int) -> None:
        """Warn of what was mended and left out; InputError where nothing remains."""
        if self.num_left_out and self.num_left_out == num_questions:
            raise InputError(
                f"{self._first}, and the text cannot be found there; "
                "no training question has an answer in its paragraph: "
                "answer_start counts the characters before the answer, from 0"
            )
        if self.num_mended:
            message = (
                "%s: %d answers did not stand at their answer_start; "
                "where their text stands once nearby is taken"
            )
            logger.warning(message, source, self.num_mended)
        if self.num_left_out:
            message = (
                "%s: %d of %d questions are left out: "
                "their answers are not in their paragraphs (the first: %s)"
            )
            logger.warning(message, source, self.num_left_out, num_questions, self._first)


def answers_by_text(answers: Sequence[tuple[str, Any]], context: str) -> tuple[Answer, ...]:
    """Return answers for an evaluation, where only their texts count; a start that is wrong is
    -1.
    """
    known = []
    for text, start in answers:
        is_right = start is not None and start >= 0 and context.startswith(text, start)
        known.append(Answer(text=text, answer_start=start if is_right else -1))
    return tuple(known)
