"""Rows of questions, their paragraphs and answers (question_answering)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.columns import column_text, column_value, example_id
from bert_recipes.tasks.examples import Answer, QuestionExample
from bert_recipes.tasks.files import Rows
from bert_recipes.tasks.task import Task


def question_examples(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, QuestionExample]]:
    """Questions with paragraph and answers, row by row; a `reading.RowReader`."""
    may_lack_answer = "squad_v2" in task.metrics
    seen: dict[str, int] = {}
    for index, (number, row) in enumerate(rows.rows):
        idx = str(example_id(task, row, index, rows.where(number)))
        where = f"{rows.where(number)} (id {idx})"
        if idx in seen:
            raise InputError(f"{where}: {rows.unit} {seen[idx]} has the same id; ids tell the answers apart")
        seen[idx] = number
        question, context = (column_text(row, column, where) for column in task.text_columns)
        given = None if is_test and task.label_column not in row else column_value(row, task.label_column, where)
        answers = None if given is None else _answers(given, context, where)
        if answers == () and not may_lack_answer:
            raise InputError(
                f"{where}: no answer, but every question of task {task.name} has one; questions without answer are "
                "measured by the metric squad_v2 (--task squad_v2)"
            )
        title = row.get("title")
        yield (
            number,
            QuestionExample(
                idx=idx,
                question=question,
                context=context,
                answers=answers,
                title=title if isinstance(title, str) else "",
            ),
        )


def _answers(given: Any, context: str, where: str) -> tuple[Answer, ...]:
    """Read {"text": [...], "answer_start": [...]} (the Hub) or [{"text": ..., "answer_start": ...}] (official)."""
    form = '{"text": [...], "answer_start": [...]}'
    if isinstance(given, dict):
        texts, starts = given.get("text"), given.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise InputError(f"{where}: the answers are not {form} with two lists of one length")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(given, list) and all(isinstance(item, dict) for item in given):
        pairs = [(item.get("text"), item.get("answer_start")) for item in given]
    else:
        raise InputError(f"{where}: answers are {type(given).__name__}; {form} or a list of such is expected")
    return tuple(_answer(text, start, context, where) for text, start in pairs)


def _answer(text: Any, start: Any, context: str, where: str) -> Answer:
    if not isinstance(text, str) or not text or not isinstance(start, int) or isinstance(start, bool):
        raise InputError(f"{where}: an answer needs a text and a whole answer_start, got {text!r} and {start!r}")
    if start < 0 or context[start : start + len(text)] != text:
        there = context[start : start + len(text)] if start >= 0 else ""
        place = context.find(text)
        hint = f"; the context has it at {place}" if place >= 0 else "; the context does not have it at all"
        raise InputError(
            f"{where}: the answer {text!r} is not at its answer_start {start}, where {there!r} stands{hint}"
        )
    return Answer(text=text, answer_start=start)
