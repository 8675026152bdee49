"""From the rows of a table to examples, every value checked; one reader for each kind of task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.choice_rows import choice_examples
from bert_recipes.tasks.examples import Example, QuestionExample, TaggedExample
from bert_recipes.tasks.files import Rows
from bert_recipes.tasks.question_rows import question_examples
from bert_recipes.tasks.tagged_rows import tagged_examples
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.text_rows import text_examples


# (task, rows, is_test) -> number and example of every row. is_test: a row may lack the label column, then its label is hidden.
# Raises InputError for a row that does not fit.
RowReader = Callable[[Task, Rows, bool], Iterator[tuple[int, Example]]]

_READERS: Mapping[str, RowReader] = {
    "sequence_classification": text_examples,
    "token_classification": tagged_examples,
    "question_answering": question_examples,
    "multiple_choice": choice_examples,
}


def read_examples(task: Task, split: str, rows: Rows, *, need_labels: bool = False) -> list[Example]:
    """Read all rows of a split.

    Args:
        task: What the columns are.
        split: Name of the split; those of the task's test_splits may lack the label column.
        rows: The table.
        need_labels: Refuse hidden labels.

    Returns:
        One example a row, in its order; with or without labels, all alike.

    Raises:
        InputError: No row, or a row that does not fit: file and line, what was found and what is allowed.
    """
    reader = _READERS[task.kind](task, rows, split in task.test_splits)
    examples: list[Example] = []
    first_hidden: int | None = None
    first_labelled: int | None = None
    for number, example in reader:
        if label_of(example) is None:
            first_hidden = number if first_hidden is None else first_hidden
        else:
            first_labelled = number if first_labelled is None else first_labelled
        examples.append(example)
    if not examples:
        raise InputError(f"{rows.source}: the split '{split}' of task {task.name} has no rows")
    if first_hidden is not None and first_labelled is not None:
        raise InputError(
            f"{rows.where(first_hidden)}: the label is hidden (-1 or empty), but {rows.unit} {first_labelled} has one; "
            "a split is labelled as a whole or not at all"
        )
    if need_labels and first_hidden is not None:
        raise InputError(
            f"{rows.where(first_hidden)}: the label is hidden (-1 or empty): a test set with labels -1 can be predicted, "
            "but neither trained on nor measured; choose a labelled split"
        )
    return examples


def label_of(example: Example) -> Any:
    """Whatever is the label of an example; None where it is hidden."""
    if isinstance(example, TaggedExample):
        return example.labels
    return example.answers if isinstance(example, QuestionExample) else example.label
