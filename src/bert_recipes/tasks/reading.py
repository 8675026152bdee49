"""Read rows of a table as examples: columns, labels, words, answers and choices.

Whatever does not fit is refused in one line.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.rows import (
    NumberedRow,
    Row,
    Rows,
    check_characters,
    column_text,
    column_value,
    is_missing,
)
from bert_recipes.tags import OUTSIDE, is_iob
from bert_recipes.tasks.examples import (
    ChoiceExample,
    Example,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from bert_recipes.tasks.labels import (
    ClassLabels,
    is_hidden,
    label_sets,
    label_text,
    labels_of_columns,
    number_label,
    only_label,
    parse_cell,
)
from bert_recipes.tasks.questions import AnswerOffsets, answers_by_text, read_answers
from bert_recipes.tasks.tagging import (
    REJECTED,
    TaggedRow,
    TaggedRows,
    document_of,
    is_rejected,
    places_of_words,
)
from bert_recipes.tasks.task import Task


logger = logging.getLogger(__name__)


def example_id(task: Task, row: Row, index: int, where: str) -> int | str:
    """Return the id of a row, or its number where the data has no ids."""
    column = task.id_column
    if column is None:
        return index
    # A benchmark names the column of its published files; copies of them may lack it.
    if task.is_benchmark and column not in row:
        return index
    value = column_value(row, column, where)
    return read_id(value, column, where)


def is_id(value: Any) -> bool:
    """Return whether a value can be an id: a text, or a whole number, which may be 7.0."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int | str) and not isinstance(value, bool)


def read_id(value: Any, column: str, where: str) -> int | str:
    """Return an id."""
    if not is_id(value):
        raise InputError(
            f"{where}: the id in column '{column}' is {value!r}; a number or a text is expected"
        )
    if isinstance(value, str):
        check_characters(value, column, where)
        return value
    return int(value)


def _lacks_label_column(task: Task, row: Row, split: str) -> bool:
    """Return whether a row has no column of labels, which only a test split may leave out."""
    is_test = split in task.test_splits
    return is_test and task.label_column not in row


# One reader a kind: task, rows, split -> number and example of every row.


def text_examples(task: Task, rows: Rows, split: str) -> Iterator[tuple[int, TextExample | None]]:
    """Read texts with their labels: first None for each rejected row, then the others in order.

    The whole table is read first: what a label means is decided by its column.
    """
    table: list[NumberedRow] = []
    indices: list[int] = []
    num_rejected = 0
    for index, (number, row) in enumerate(rows.rows):
        if is_rejected(task, row):
            num_rejected += 1
            yield number, None
        else:
            table.append((number, row))
            indices.append(index)

    labels = _labels_of_table(task, table, rows, split)
    num_empty = 0
    for index, (number, row), label in zip(indices, table, labels, strict=True):
        where = rows.where(number)
        texts = [column_text(row, column, where) for column in task.text_columns]
        num_empty += sum(not text.strip() for text in texts)
        text_pair = None
        if len(texts) > 1:
            text_pair = texts[1]
        example = TextExample(
            idx=example_id(task, row, index, where),
            text=texts[0],
            text_pair=text_pair,
            label=label,
        )
        yield number, example

    if num_rejected:
        logger.warning(REJECTED, rows.source, num_rejected)
    if num_empty:
        logger.info(
            "%s: %d texts are empty; they are kept, as every row counts", rows.source, num_empty
        )


def _labels_of_table(
    task: Task, table: Sequence[NumberedRow], rows: Rows, split: str
) -> Sequence[Any]:
    """Return the label of every row: what a label means is decided by the whole column."""
    columns = task.label_columns or (task.label_column,)
    have_labels = any(not row.keys().isdisjoint(columns) for _, row in table)
    if split in task.test_splits and not have_labels:
        return [None] * len(table)

    if task.label_columns:
        return [labels_of_columns(task, row, rows.where(number)) for number, row in table]

    cells = []
    for number, row in table:
        where = rows.where(number)
        cells.append((where, column_value(row, task.label_column, where)))

    if task.problem_type == "multi_label_classification":
        num_empty = sum(isinstance(value, str) and not value.strip() for _, value in cells)
        if num_empty:
            message = "%s: %d rows have an empty label, which says that no class fits them"
            logger.info(message, rows.source, num_empty)
        return label_sets(task, cells)
    if task.problem_type == "regression":
        return [number_label(task, value, where) for where, value in cells]
    classes = ClassLabels(task)
    return [classes.class_of(value, where) for where, value in cells]


# Choices

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def choice_examples(task: Task, rows: Rows, split: str) -> Iterator[tuple[int, ChoiceExample]]:
    """Read contexts with their endings, row by row.

    In a list column each row may have another number of them.
    """
    classes_of_task = ClassLabels(task)  # it knows whether earlier labels were names or numbers
    for index, (number, row) in enumerate(rows.rows):
        where = rows.where(number)
        texts = [column_text(row, column, where) for column in task.text_columns]
        endings, names = _choices_of(task, row, where)
        classes = ClassLabels(task, names) if names else classes_of_task
        if len(endings) < 2:
            raise InputError(f"{where}: {len(endings)} choices; two or more are expected")

        label = None
        if not _lacks_label_column(task, row, split):
            value = column_value(row, task.label_column, where)
            label = _choice_number(classes, value, endings, where)
        choices = endings
        if len(texts) > 1 and texts[1]:
            choices = [f"{texts[1]} {ending}" for ending in endings]
        example = ChoiceExample(
            idx=example_id(task, row, index, where),
            context=texts[0],
            choices=tuple(choices),
            label=label,
        )
        yield number, example


def _choices_of(task: Task, row: Row, where: str) -> tuple[list[str], Sequence[str]]:
    """Return the choices of a row, and its own names for them, if it has any.

    Then the list of choices stands under "text" beside the names under "label", as in ARC and
    CommonsenseQA.
    """
    names: Sequence[str] = ()
    if len(task.choice_columns) > 1:
        texts = [column_text(row, column, where) for column in task.choice_columns]
        while texts and not texts[-1].strip():  # fewer choices than the table has columns
            texts.pop()
        return texts, names

    column = task.choice_columns[0]
    cell = column_value(row, column, where)
    value = parse_cell(cell, (list, dict))
    if isinstance(value, dict):
        if not isinstance(value.get("label"), list):
            raise InputError(
                f"{where}: column '{column}' holds {value!r:.60}; beside its texts a list of "
                "labels is expected"
            )
        names = list(map(label_text, value["label"]))
        value = value.get("text")
    # A table of lists may fill the shorter ones up.
    while isinstance(value, list) and value and is_missing(value[-1]):
        value = value[:-1]

    if not isinstance(value, list) or any(map(is_missing, value)):
        raise InputError(
            f"{where}: column '{column}' holds {value!r:.60}; a list of texts is expected"
        )
    return [column_text({column: text}, column, where) for text in value], names


def _choice_number(classes: ClassLabels, value: Any, endings: list[str], where: str) -> int | None:
    """Return which choice a label means; None for a hidden one.

    It is given by name, by number from 0, by letter, or as the text of the choice.
    """
    if classes.names:
        number = classes.class_of(value, where)
        if number is None:
            return None
    else:
        is_choice = isinstance(value, str) and value.strip() != "" and value in endings
        only = value if is_choice else only_label(value)
        if is_hidden(only) and not is_choice:
            return None
        number = _number_without_names(only, endings, where)
    if number is not None and number < len(endings):
        return number

    last = len(endings) - 1
    letters = ""
    if last < len(_LETTERS):
        letters = f"A to {_LETTERS[last]}, "
    raise InputError(
        f"{where}: label {value!r:.60} is none of the {len(endings)} choices; allowed: 0 to "
        f"{last}, {letters}or a choice's text; where numbers count from 1, write labels: "
        "[1, 2, ...]"
    )


def _number_without_names(value: Any, endings: list[str], where: str) -> int | None:
    """Return the number that a label gives, which may be too large; None where it gives none."""
    text = label_text(value)
    if text.isdecimal():
        number = int(text)
        if text in endings and endings.index(text) != number:
            raise InputError(
                f"{where}: label {value!r} is the text of one choice and the number of another; "
                "write letters: A, B, ..."
            )
        return number

    number_of_letter = None
    if len(text) == 1 and text.upper() in _LETTERS:
        number_of_letter = _LETTERS.index(text.upper())
    if endings.count(str(value)) != 1:
        return number_of_letter

    number_of_text = endings.index(str(value))
    is_letter_of_choice = number_of_letter is not None and number_of_letter < len(endings)
    if is_letter_of_choice and number_of_letter != number_of_text:
        raise InputError(
            f"{where}: label {value!r} is the text of one choice and the letter of another; write "
            "numbers: 0, 1, ..."
        )
    return number_of_text


# Questions


def question_examples(
    task: Task, rows: Rows, split: str
) -> Iterator[tuple[int, QuestionExample | None]]:
    """Read questions with paragraph and answers, row by row; None for one that training leaves out.

    That is one whose answers are not in its paragraph (`AnswerOffsets`). In an evaluation only the
    texts of answers count.
    """
    is_training = split == task.train_split
    offsets = AnswerOffsets()
    row_of_id: dict[str, int] = {}
    num_questions = 0
    for index, (number, row) in enumerate(rows.rows):
        num_questions += 1
        idx = _question_id(task, row, index, rows.where(number))
        where = f"{rows.where(number)} (id {idx})"
        if idx in row_of_id and not is_training:
            raise InputError(
                f"{where}: {rows.unit} {row_of_id[idx]} has the same id; ids tell the answers apart"
            )
        row_of_id[idx] = number

        question, context = (column_text(row, column, where) for column in task.text_columns)
        gold = None
        if not _lacks_label_column(task, row, split):
            gold = read_answers(task, row, where, may_be_hidden=split in task.test_splits)
        if gold is None:
            answers = None
        elif is_training:
            answers = offsets.locate(gold, context, where)
            if answers is None:
                yield number, None
                continue
        else:
            answers = answers_by_text(gold, context)

        title = str(row.get("title") or "")
        example = QuestionExample(
            idx=idx, question=question, context=context, answers=answers, title=title
        )
        yield number, example

    offsets.report(rows.source, num_questions)


def _question_id(task: Task, row: Row, index: int, where: str) -> str:
    """Return the id of a question; the row number where there is none."""
    column = task.id_column or "id"
    if is_missing(row.get(column)):
        return str(index)
    idx = example_id(task, row, index, where)
    return str(idx)


# Words


def tagged_examples(task: Task, rows: Rows, split: str) -> Iterator[tuple[int, TaggedExample]]:
    """Read words with their labels, sentence by sentence.

    Where the labels are O, B-X and I-X, an I-X that continues nothing begins an entity, as in
    conlleval, and is read as B-X: so are slips in public files (I-creative-work after I-person in
    WNUT17) and all of IOB1. A warning counts them.
    """
    labels = ClassLabels(task)
    sentences = TaggedRows(task, rows, is_test=split in task.test_splits)
    stray: list[str] = []
    for sentence in sentences:
        where = rows.where(sentence.number)
        offsets = None
        if sentence.offsets is not None:
            offsets = tuple(sentence.offsets)
        example = TaggedExample(
            idx=example_id(task, sentence.row, sentence.index, where),
            tokens=tuple(sentence.words),
            labels=_tags_of(task, rows, sentence, labels, stray),
            document=document_of(sentence),
            offsets=offsets,
        )
        yield sentence.number, example

    sentences.warn_of_spans()
    if stray:
        message = (
            "%s: %d tags I-X continue no entity; each begins one, as in conlleval (the first: %s)"
        )
        logger.warning(message, rows.source, len(stray), stray[0])


def _tags_of(
    task: Task, rows: Rows, sentence: TaggedRow, labels: ClassLabels, stray: list[str]
) -> tuple[int, ...] | None:
    """Return the class numbers of a sentence's tags, None where they are hidden.

    Each I-X that becomes B-X is added to `stray`.
    """
    if sentence.tags is None:
        return None
    may_be_stray = is_iob(task.labels)
    places = places_of_words(rows, sentence)
    numbers: list[int] = []
    name_before = OUTSIDE
    for tag, place in zip(sentence.tags, places, strict=True):
        number = labels.class_of(tag, place)
        if number is None:
            raise InputError(
                f"{place}: a word without a label ({tag!r}); allowed: {', '.join(labels.names)}"
            )

        name = task.labels[number]
        entity_type = name[2:]
        continues = name_before[2:] == entity_type
        if may_be_stray and name.startswith("I-") and not continues:
            stray.append(f"{place}: {name}")
            beginning = f"B-{entity_type}"
            if beginning in task.labels:
                number = task.labels.index(beginning)
        numbers.append(number)
        name_before = name
    return tuple(numbers)


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
    """Read all rows of a split.

    Those of `test_splits` may lack the label column, and have labels all or none. Elsewhere rows
    without a label are left out and counted. `need_labels` refuses a split without labels.
    """
    minus_ones: set[int] = set()
    rows = replace(rows, rows=_note_minus_ones(task, rows.rows, minus_ones))
    labelled: list[tuple[int, Example]] = []
    hidden: list[tuple[int, Example]] = []
    num_left_out = 0
    for number, example in _READERS[task.kind](task, rows, split):
        if example is None:
            num_left_out += 1
        elif label_of(example) is None:
            hidden.append((number, example))
        else:
            labelled.append((number, example))

    if not labelled and not hidden:
        raise InputError(f"{rows.source}: the split '{split}' of task {task.name} has no rows")
    is_test = split in task.test_splits
    if is_test and not hidden and all(_is_blank(task, example) for _, example in labelled):
        logger.warning(
            "%s: no row has a class, an answer or an entity: the labels are taken for hidden, so "
            "the split can be predicted, not measured",
            rows.source,
        )
        hidden = [(number, _without_label(example)) for number, example in labelled]
        labelled = []
    if labelled and hidden:
        labelled_rows = [number for number, _ in labelled]
        hidden_rows = [number for number, _ in hidden]
        _check_hidden(task, rows, labelled_rows, hidden_rows, minus_ones, is_test=is_test)
        num_left_out += len(hidden)
    elif hidden and need_labels:
        raise InputError(
            f"{rows.where(hidden[0][0])}: the label is hidden (-1, - or empty): a test set with "
            "labels -1 can be predicted, not measured"
        )
    return ReadExamples([example for _, example in labelled or hidden], num_left_out)


def _check_hidden(
    task: Task,
    rows: Rows,
    labelled: Sequence[int],
    hidden: Sequence[int],
    minus_ones: Collection[int],
    *,
    is_test: bool,
) -> None:
    """Warn of hidden labels beside others, or refuse them: -1 may be a class.

    An empty label was forgotten, but a test split has all or none.
    """
    hidden_minus_ones = [number for number in hidden if number in minus_ones]
    first_hidden = (hidden_minus_ones or hidden)[0]
    if is_test or hidden_minus_ones:
        advice = ""
        if hidden_minus_ones:
            advice = "; where -1 is a class, write labels: [-1, 0, 1]"
        elif task.kind == "token_classification":
            advice = "; write [] where a text has no entity"
        raise InputError(
            f"{rows.where(first_hidden)}: the label is hidden (-1, - or empty), but "
            f"{rows.unit} {labelled[0]} has one: label all or none{advice}"
        )
    num_rows = len(labelled) + len(hidden)
    message = "%s: %d of %d rows have no label and are left out (the first: %s %d)"
    logger.warning(message, rows.source, len(hidden), num_rows, rows.unit, first_hidden)


def _note_minus_ones(
    task: Task, rows: Iterable[NumberedRow], numbers: set[int]
) -> Iterator[NumberedRow]:
    """Yield the rows, and note the numbers of those whose label is -1, which may be a class."""
    columns = task.label_columns or (task.label_column,)
    for number, row in rows:  # they can be read only once
        if any(label_text(only_label(row.get(column))) == "-1" for column in columns):
            numbers.add(number)
        yield number, row


def _is_blank(task: Task, example: Example) -> bool:
    """Return whether a label is what a blank one is read as, where it may have none or several."""
    label = label_of(example)
    if isinstance(example, TaggedExample):
        return OUTSIDE in task.labels and set(label) == {task.labels.index(OUTSIDE)}
    return label == ()


def _without_label(example: Example) -> Example:
    if isinstance(example, TaggedExample):
        return replace(example, labels=None)
    if isinstance(example, QuestionExample):
        return replace(example, answers=None)
    return replace(example, label=None)


def label_of(example: Example) -> Any:
    """Return whatever is the label of an example; None where it is hidden."""
    if isinstance(example, TaggedExample):
        return example.labels
    if isinstance(example, QuestionExample):
        return example.answers
    return example.label
