"""Read rows of a table as examples: columns, labels, words, answers and choices, with one line for
whatever does not fit.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.rows import Rows, column_text, column_value, is_missing
from bert_recipes.tags import OUTSIDE, is_iob
from bert_recipes.tasks.examples import (
    Answer,
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from bert_recipes.tasks.labels import (
    ClassLabels,
    label_sets,
    label_text,
    labels_of_columns,
    number_label,
    parse_literal,
    read_list,
)
from bert_recipes.tasks.questions import AnswerOffsets, answers_by_text, read_answers
from bert_recipes.tasks.tagging import TaggedRows, document_of, places_of_words
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)


def example_id(task: Task, row: Mapping[str, Any], index: int, where: str) -> int | str:
    """Return the id of a row, or its number where the data has no ids."""
    # A row of a benchmark names the column that its published files have; copies of them may lack
    # it.
    if task.id_column is None or (task.id_column not in row and not task.files):
        return index
    return read_id(column_value(row, task.id_column, where), task.id_column, where)


def read_id(value: Any, column: str, where: str) -> int | str:
    """Return an id: a whole number, which databases may export as 7.0, or a text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise InputError(
            f"{where}: the id in column '{column}' is {value!r}; a number or a text is expected"
        )
    return value


# One reader a kind: (task, rows, split, is for training) -> number and example of every row.


def text_examples(task: Task, rows: Rows, split: str) -> Iterator[tuple[int, TextExample]]:
    """Read texts with their label, row by row."""
    table = list(rows.rows)
    labels = _labels_of_table(task, table, rows, is_test=split in task.test_splits)
    num_empty = 0
    for index, ((number, row), label) in enumerate(zip(table, labels, strict=True)):
        where = rows.where(number)
        texts = [column_text(row, column, where) for column in task.text_columns]
        num_empty += sum(not text.strip() for text in texts)
        pair = texts[1] if len(texts) > 1 else None
        idx = example_id(task, row, index, where)
        yield number, TextExample(idx=idx, text=texts[0], text_pair=pair, label=label)
    if num_empty:
        logger.info(
            "%s: %d texts are empty; they are kept, as every row counts", rows.source, num_empty
        )


def _labels_of_table(
    task: Task, table: Sequence[tuple[int, Mapping[str, Any]]], rows: Rows, *, is_test: bool
) -> list[Any]:
    """Return the label of every row: what a label means is decided by the whole column."""
    places = [rows.where(number) for number, _ in table]
    columns = [column for column in (task.label_column, *task.label_columns) if column]
    if is_test and not any(column in row for _, row in table for column in columns):
        return [None] * len(table)
    if task.label_columns:
        return [
            labels_of_columns(task, row, where)
            for (_, row), where in zip(table, places, strict=True)
        ]
    values = [
        column_value(row, task.label_column, where)
        for (_, row), where in zip(table, places, strict=True)
    ]
    if task.problem_type == "multi_label_classification":
        return label_sets(task, list(zip(places, values, strict=True)))
    if task.problem_type == "regression":
        return [
            number_label(task, value, where) for value, where in zip(values, places, strict=True)
        ]
    classes = ClassLabels(task)
    return [classes.class_of(value, where) for value, where in zip(values, places, strict=True)]


# Choices

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def choice_examples(task: Task, rows: Rows, split: str) -> Iterator[tuple[int, ChoiceExample]]:
    """Read contexts with their endings, row by row; in a list column each row may have another
    number of them.
    """
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        texts = [column_text(row, column, where) for column in task.text_columns]
        endings, names = _choices_of(task, row, where)
        if len(endings) < 2:
            raise InputError(f"{where}: {len(endings)} choices; two or more are expected")

        label = None
        if split not in task.test_splits or task.label_column in row:
            label = _choice_number(
                task, column_value(row, task.label_column, where), names, endings, where
            )
        start = texts[1] if len(texts) > 1 else ""
        choices = tuple(f"{start} {ending}" if start else ending for ending in endings)
        idx = example_id(task, row, index, where)
        yield number, ChoiceExample(idx=idx, context=texts[0], choices=choices, label=label)


def _choices_of(task: Task, row: Mapping[str, Any], where: str) -> tuple[list[str], list[str]]:
    """Return the choices of a row and the names that its label may call them by; none where these
    are numbers or letters.

    The list may stand under "text" beside the names under "label", as in ARC and CommonsenseQA.
    """
    if len(task.choice_columns) > 1:
        texts = [column_text(row, column, where) for column in task.choice_columns]
        while (
            texts and not texts[-1].strip()
        ):  # a row may have fewer choices than the table has columns
            texts.pop()
        return texts, list(task.labels)
    column = task.choice_columns[0]
    value = column_value(row, column, where)
    if isinstance(value, str):
        parsed = parse_literal(value) if value.lstrip().startswith("{") else read_list(value)
        value = value if parsed is None else parsed
    if not isinstance(value, dict):
        return _texts_of_list(value, column, where), list(task.labels)
    names = value.get("label")
    if not isinstance(names, list):
        raise InputError(
            f"{where}: column '{column}' holds {value!r:.60}; beside its texts a list of labels "
            "is expected"
        )
    return _texts_of_list(value.get("text"), column, where), [label_text(name) for name in names]


def _texts_of_list(value: Any, column: str, where: str) -> list[str]:
    while (
        isinstance(value, list) and value and is_missing(value[-1])
    ):  # a table of lists may fill the shorter ones up
        value = value[:-1]
    if not isinstance(value, list) or any(map(is_missing, value)):
        raise InputError(
            f"{where}: column '{column}' holds {value!r:.60}; a list of texts is expected"
        )
    return [column_text({column: text}, column, where) for text in value]


def _choice_number(
    task: Task, value: Any, names: Sequence[str], endings: Sequence[str], where: str
) -> int | None:
    """Return which choice a label means: by its name, its number from 0, its letter, or its text;
    None for a hidden one.
    """
    text = label_text(value)
    if names or task.column_labels:
        number = ClassLabels(task, names or None).class_of(value, where)
    elif text in ("", "-1"):
        return None
    elif text.isdecimal():
        number = int(text)
        if text in endings and endings.index(text) != number:
            raise InputError(
                f"{where}: label {value!r} is the text of one choice and the number of another; "
                "write letters: A, B, ..."
            )
    elif len(text) == 1 and text.upper() in _LETTERS:
        number = _LETTERS.index(text.upper())
    elif list(endings).count(str(value)) == 1:
        number = list(endings).index(str(value))
    else:
        number = len(endings)
    if number is not None and number >= len(endings):
        last = len(endings) - 1
        raise InputError(
            f"{where}: label {value!r:.60} is none of the {len(endings)} choices; allowed: 0 to "
            f"{last}, A to {_LETTERS[last]}, "
            "or a choice's text; where numbers count from 1, write labels: [1, 2, ...]"
        )
    return number


# Questions


def question_examples(
    task: Task, rows: Rows, split: str
) -> Iterator[tuple[int, QuestionExample | None]]:
    """Read questions with paragraph and answers, row by row; None for one that training leaves out.

    That is one whose answers are not in its paragraph (`AnswerOffsets`). In an evaluation only the
    texts of answers count.
    """
    offsets = AnswerOffsets() if split == task.train_split else None
    seen: dict[str, int] = {}
    num_questions = 0
    for number, row in rows.rows:
        idx = _question_id(task, row, num_questions, rows.where(number))
        num_questions += 1
        where = f"{rows.where(number)} (id {idx})"
        if idx in seen and offsets is None:
            raise InputError(
                f"{where}: {rows.unit} {seen[idx]} has the same id; ids tell the answers apart"
            )
        seen[idx] = number
        question, context = (column_text(row, column, where) for column in task.text_columns)
        answers: tuple[Answer, ...] | None = None
        if split not in task.test_splits or task.label_column in row:
            written = read_answers(task, row, where)
            if written == [] and "squad_v2" not in task.metrics:
                raise InputError(
                    f"{where}: no answer, but every question of task {task.name} has one; "
                    "questions without answer are for "
                    "squad_v2"
                )
            if written is not None and offsets is not None:
                answers = offsets.locate(written, context, where)
                if answers is None:
                    yield number, None
                    continue
            elif written is not None:
                answers = answers_by_text(written, context)
        title = str(row.get("title") or "")
        yield (
            number,
            QuestionExample(
                idx=idx, question=question, context=context, answers=answers, title=title
            ),
        )
    if offsets is not None:
        offsets.report(rows.source, num_questions)


def _question_id(task: Task, row: Mapping[str, Any], index: int, where: str) -> str:
    """Return the id of a question; the row number where there is none."""
    if is_missing(row.get(task.id_column or "id")):
        return str(index)
    return str(example_id(task, row, index, where))


# Words


def tagged_examples(task: Task, rows: Rows, split: str) -> Iterator[tuple[int, TaggedExample]]:
    """Read words with their labels, sentence by sentence.

    Where the labels are O, B-X and I-X, an I-X that continues nothing begins an entity, as in
    conlleval, and is read as B-X: so are slips in public files (I-creative-work after I-person in
    WNUT17) and all of IOB1. A warning counts them.
    """
    labels = ClassLabels(task)
    sentences = TaggedRows(task, rows, is_test=split in task.test_splits)
    numbers_of = (
        {name: number for number, name in enumerate(task.labels)} if is_iob(task.labels) else {}
    )
    stray: list[str] = []
    for index, sentence in enumerate(sentences):
        where = rows.where(sentence.number)
        tags: tuple[int, ...] | None = None
        if sentence.tags is not None:
            places = places_of_words(rows, sentence)
            numbers = [
                _tag_number(labels, tag, place)
                for tag, place in zip(sentence.tags, places, strict=True)
            ]
            stray += _begin_entities(task.labels, numbers_of, numbers, places)
            tags = tuple(numbers)
        yield (
            sentence.number,
            TaggedExample(
                idx=example_id(task, sentence.row, index, where),
                tokens=tuple(sentence.words),
                labels=tags,
                document=document_of(sentence, index),
                offsets=None if sentence.offsets is None else tuple(sentence.offsets),
            ),
        )
    sentences.warn_of_spans()
    if stray:
        message = (
            "%s: %d tags I-X continue no entity; each begins one, as in conlleval (the first: %s)"
        )
        logger.warning(message, rows.source, len(stray), stray[0])


def _tag_number(labels: ClassLabels, tag: Any, place: str) -> int:
    number = labels.class_of(tag, place)
    if number is None:
        raise InputError(
            f"{place}: a word without a label ({tag!r}); allowed: {', '.join(labels.names)}"
        )
    return number


def _begin_entities(
    names: Sequence[str], numbers_of: Mapping[str, int], numbers: list[int], places: Sequence[str]
) -> list[str]:
    """Change every I-X that continues no entity to B-X, in place, if there is such a label; return
    which they were.
    """
    if not numbers_of:
        return []
    stray = []
    before = OUTSIDE
    for word, number in enumerate(numbers):
        name = names[number]
        if name.startswith("I-") and before[2:] != name[2:]:
            stray.append(f"{places[word]}: {name}")
            numbers[word] = numbers_of.get(f"B-{name[2:]}", number)
        before = name
    return stray


_READERS: dict[str, Callable[[Task, Rows, str], Iterator[tuple[int, Example | None]]]] = {
    "sequence_classification": text_examples,
    "token_classification": tagged_examples,
    "question_answering": question_examples,
    "multiple_choice": choice_examples,
}


@dataclass(frozen=True)
class ReadExamples:
    """The examples of a split, and how many rows were left out, which a warning has counted."""

    examples: list[Example]
    num_left_out: int


def read_examples(task: Task, split: str, rows: Rows, *, need_labels: bool = False) -> ReadExamples:
    """Read all rows of a split, with or without labels, all alike; those of test_splits may lack
    the label column.

    `need_labels` refuses hidden ones.
    """
    examples: list[Example] = []
    num_left_out = 0
    first: dict[bool, int] = {}  # is it hidden -> number of the first such row
    for number, example in _READERS[task.kind](task, rows, split):
        if example is None:
            num_left_out += 1
            continue
        first.setdefault(label_of(example) is None, number)
        examples.append(example)
    if not examples:
        raise InputError(f"{rows.source}: the split '{split}' of task {task.name} has no rows")
    if len(first) == 2:
        raise InputError(
            f"{rows.where(first[True])}: the label is hidden (-1 or empty), but {rows.unit} "
            f"{first[False]} has one: label all or "
            "none; where -1 is a class, write labels: [-1, 0, 1]"
        )
    if need_labels and True in first:
        raise InputError(
            f"{rows.where(first[True])}: the label is hidden (-1 or empty): a test set with "
            "labels -1 can be predicted, not measured"
        )
    return ReadExamples(examples, num_left_out)


def label_of(example: Example) -> Any:
    """Return whatever is the label of an example; None where it is hidden."""
    if isinstance(example, TaggedExample):
        return example.labels
    return example.answers if isinstance(example, QuestionExample) else example.label
