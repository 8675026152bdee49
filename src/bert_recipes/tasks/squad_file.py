"""The official nested JSON of SQuAD 1.1 and 2.0 as flat rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.files import Rows, read_json
from bert_recipes.tasks.task import Task


def is_nested(content: Any) -> bool:
    """Tell whether JSON is of the official form: {"data": [{"title", "paragraphs": [...]}]}."""
    data = content.get("data") if isinstance(content, dict) else None
    return isinstance(data, list) and any(isinstance(article, dict) and "paragraphs" in article for article in data)


def read_squad(path: Path, task: Task) -> Rows:
    """Read the questions of a .json file: the official form, or a list of the Hub's flat rows.

    Args:
        path: The file.
        task: Its text_columns, label_column and id_column name the columns of the rows.

    Raises:
        InputError: Broken JSON, or another form.

    Source: rajpurkar.github.io/SQuAD-explorer; google-research/bert run_squad.py `read_squad_examples`
    (`is_impossible` means no answer).
    """
    content = read_json(path)
    if is_nested(content):
        return Rows(str(path), "question", _questions(path, content["data"], task))
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            f'{path}: not SQuAD; expected {{"data": [{{"paragraphs": [{{"context", "qas"}}]}}]}}, or flat rows'
        )
    return Rows(str(path), "row", enumerate(rows, start=1))


def _questions(path: Path, articles: list[Any], task: Task) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    for article_number, article in enumerate(articles, start=1):
        for paragraph_number, paragraph in enumerate(
            _list(path, article, "paragraphs", f"article {article_number}"), 1
        ):
            where = f"article {article_number}, paragraph {paragraph_number}"
            for question in _list(path, paragraph, "qas", where):
                number += 1
                if not isinstance(question, dict):
                    raise InputError(
                        f"{path}, {where}: a question is {type(question).__name__}; an object is expected"
                    )
                yield number, _row(article, paragraph, question, task)


def _row(article: dict[str, Any], paragraph: dict[str, Any], question: dict[str, Any], task: Task) -> dict[str, Any]:
    row = {"title": article.get("title", "")}
    values = (
        (task.text_columns[0], question, "question"),
        (task.text_columns[1], paragraph, "context"),
        (task.id_column or "id", question, "id"),
        (task.label_column, question, "answers"),
    )
    row |= {column: place[key] for column, place, key in values if key in place}
    if question.get("is_impossible"):
        row[task.label_column] = []
    return row


def _list(path: Path, holder: Any, key: str, where: str) -> list[Any]:
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        raise InputError(f'{path}, {where}: no list "{key}"; the official form of SQuAD has one')
    items: list[Any] = holder[key]
    return items
