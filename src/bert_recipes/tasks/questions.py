"""Questions about a paragraph and their answers: the forms that files have, and wrong offsets."""

import itertools
import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.rows import NumberedRows, Row, Rows, column_value, is_missing
from bert_recipes.scripts import UNSPACED_CHARACTER
from bert_recipes.tasks.examples import Answer
from bert_recipes.tasks.labels import is_number, label_text, parse_cell, read_truth
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)

# A text that stands in its paragraph more than once is found again within so many characters: an
# emoji counts double in annotation tools that run in a browser, and a cleaned text has lost a few
# spaces.
_NEARBY_CHARACTERS = 20

# The text of an answer, and where it starts in its paragraph, if the file says so.
WrittenAnswer = tuple[str, int | None]


def expand_articles(task: Task, rows: Rows) -> Rows:
    """Return the questions of SQuAD's official form, one a row.

    There articles hold paragraphs, and these hold questions. Rows that are questions already stay
    as they are.

    Source: rajpurkar.github.io/SQuAD-explorer; google-research/bert run_squad.py
    `read_squad_examples`.
    """
    numbered = iter(rows.rows)
    start = list(itertools.islice(numbered, 1))
    numbered = itertools.chain(start, numbered)
    has_articles = any("paragraphs" in row or "qas" in row for _, row in start)
    if not has_articles:
        return Rows(rows.source, rows.unit, numbered)
    articles = (article for _, article in numbered)
    return Rows(rows.source, "question", _questions_of(task, rows.source, articles))


def _questions_of(task: Task, source: str, articles: Iterable[Row]) -> NumberedRows:
    question_column, context_column = task.text_columns
    number = 0
    try:
        for article in articles:
            for paragraph in article.get("paragraphs", [article]):
                for question in paragraph["qas"]:
                    number += 1
                    row = {
                        "title": article.get("title", ""),
                        context_column: paragraph["context"],
                        question_column: question["question"],
                        task.id_column or "id": question.get("id"),
                    }
                    if "answers" in question:
                        row[task.label_column] = question["answers"]
                    if "is_impossible" in question:
                        row["is_impossible"] = question["is_impossible"]
                    yield number, row
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{source}: not the official form of SQuAD after question {number} "
            f"({type(error).__name__}: {error})"
        ) from error


# Answers


def read_answers(
    task: Task, row: Row, where: str, *, may_be_hidden: bool = False
) -> list[WrittenAnswer] | None:
    """Return the answers of a row; an empty list where it has none, None where they are hidden.

    They are {"text": [...], "answer_start": [...]} (the Hub), a list of such pairs (SQuAD's files),
    or texts alone. The start of a single text may stand in a column `answer_start`.
    """
    answers: list[WrittenAnswer] = []
    if not _is_impossible(row, where):
        value = column_value(row, task.label_column, where)
        if is_missing(value):
            return None
        start = row.get("answer_start")
        if not is_number(label_text(start)):
            start = None
        try:
            answers = list(map(_read_answer, _split_answers(value, start)))
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{where}: answers {value!r:.60}; expected are "
                f'{{"text": [...], "answer_start": [...]}}, or a list of such pairs'
            ) from None
    # Exports of tables write a question without answer as an empty text.
    answers = [(text, start) for text, start in answers if text]
    if not answers and "squad_v2" not in task.metrics:
        if may_be_hidden:
            return None
        raise InputError(
            f"{where}: no answer, but every question of task {task.name} has one; "
            "questions without answer are for squad_v2"
        )
    return answers


def _is_impossible(row: Row, where: str) -> bool:
    value = row.get("is_impossible")
    return label_text(value) != "" and read_truth(value, f"{where}, is_impossible")


def _split_answers(value: Any, start: Any) -> list[Any]:
    """Return a list of objects or texts, one for each answer; `start` is that of a text alone."""
    answers = parse_cell(value, (list, dict))
    if isinstance(answers, str) and answers.lstrip().startswith(("{'", '{"', "[{")):
        raise ValueError(answers)  # an object that is cut off is no answer
    if _is_text(answers):
        return [{"text": answers, "answer_start": start}]
    if not isinstance(answers, dict):
        return list(answers)
    texts = answers["text"]
    starts = answers.get("answer_start")
    if isinstance(texts, str):
        texts = [texts]
        starts = [starts]
    if starts is None:
        starts = [None] * len(texts)
    pairs = zip(texts, starts, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def _is_text(value: Any) -> bool:
    """Return whether a value is an answer alone; 1902 is one."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _read_answer(answer: Any) -> WrittenAnswer:
    if _is_text(answer):
        return str(answer), None
    text = answer["text"]
    start = answer.get("answer_start")
    if not isinstance(text, str | int | float):
        raise TypeError(text)
    if is_missing(start) or start == "":
        return str(text), None
    number = float(start)
    if isinstance(start, bool) or not number.is_integer():
        raise ValueError(start)
    return str(text), int(number)


# Where answers stand


def _stands_at(text: str, start: int, context: str) -> bool:
    return start >= 0 and context.startswith(text, start)


def locate_answer(text: str, start: int | None, context: str) -> Answer | None:
    """Return the answer where it stands in its paragraph.

    That is at its start, else where its text stands once nearby, or at all; white space may differ.
    None where it is not there, where nobody can tell which place is meant, or where the start is
    below 0, as annotation tools write it for "not found".
    """
    if start is not None and _stands_at(text, start, context):
        return Answer(text=text, answer_start=start)
    is_not_found = start is not None and start < 0
    words = text.split()
    if is_not_found or not words:
        return None

    pattern = r"\s+".join(map(re.escape, words))
    matches = list(re.finditer(pattern, context))
    if start is None and not UNSPACED_CHARACTER.search(text):
        # "art" is not meant in "start".
        matches = [match for match in matches if _is_whole(match)] or matches
    if start is not None and len(matches) > 1:
        nearby = range(start - _NEARBY_CHARACTERS, start + _NEARBY_CHARACTERS + 1)
        matches = [match for match in matches if match.start() in nearby]
    if len(matches) != 1:
        return None
    (match,) = matches
    return Answer(text=match.group(), answer_start=match.start())


def _is_whole(match: re.Match[str]) -> bool:
    """Return whether a match begins and ends at the ends of words."""
    text = match.string
    begin, end = match.span()
    before = text[begin - 1 : begin]
    after = text[end : end + 1]
    if before.isalnum() and text[begin].isalnum():
        return False
    return not (after.isalnum() and text[end - 1].isalnum())


class AnswerOffsets:
    """Answers for training, which must stand where they say, and how many did not."""

    def __init__(self) -> None:
        self.num_mended = 0
        self.num_lost = 0
        self.num_left_out = 0
        self._first_error = ""

    def locate(
        self, answers: Sequence[WrittenAnswer], context: str, where: str
    ) -> tuple[Answer, ...] | None:
        """Return the answers that stand in their paragraph; None where none of several does."""
        located: list[Answer] = []
        for text, start in answers:
            answer = locate_answer(text, start, context)
            if answer is not None:
                self.num_mended += start is not None and answer.answer_start != start
                located.append(answer)
            elif not self._first_error:
                place = "in its paragraph" if start is None else f"at its answer_start {start}"
                self._first_error = f"{where}: the answer {text!r:.60} is not {place}"
        if answers and not located:
            self.num_left_out += 1
            return None
        self.num_lost += len(answers) - len(located)
        return tuple(located)

    def report(self, source: str, num_questions: int) -> None:
        """Warn of what was mended and left out; InputError where nothing remains."""
        if self.num_left_out and self.num_left_out == num_questions:
            raise InputError(
                f"{self._first_error}, and the text cannot be found there; "
                "no training question has an answer in its paragraph: "
                "answer_start counts the characters before the answer, from 0"
            )

        if self.num_mended:
            message = (
                "%s: %d answers did not stand at their answer_start; "
                "where their text stands once nearby is taken"
            )
            logger.warning(message, source, self.num_mended)

        if self.num_lost:
            message = (
                "%s: %d answers beside others are left out: they are not in their paragraphs "
                "(the first: %s)"
            )
            logger.warning(message, source, self.num_lost, self._first_error)

        if self.num_left_out:
            message = (
                "%s: %d of %d questions are left out: "
                "their answers are not in their paragraphs (the first: %s)"
            )
            logger.warning(message, source, self.num_left_out, num_questions, self._first_error)


def answers_by_text(answers: Sequence[WrittenAnswer], context: str) -> tuple[Answer, ...]:
    """Return answers for an evaluation, where only their texts count; a wrong start is -1."""
    gold = []
    for text, start in answers:
        if start is None or not _stands_at(text, start, context):
            start = -1
        gold.append(Answer(text=text, answer_start=start))
    return tuple(gold)
