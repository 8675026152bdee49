"""What an example of each kind of task is, after its file or Hub row was read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExample:
    """One text or a pair of texts (sequence_classification).

    Attributes:
        idx: The example's id in its file; the row number (from 0) where the file has none.
        text: First text.
        text_pair: Second text; None for single texts.
        label: Index into the task's labels; a float for regression; a tuple of indices (sorted, may be empty) for
            multi-label tasks; None where the label is hidden.
    """

    idx: int | str
    text: str
    text_pair: str | None = None
    label: int | float | tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedExample:
    """A sentence whose words have labels (token_classification).

    Attributes:
        idx: Row number of the sentence in its split, from 0.
        tokens: The words.
        labels: An index into the task's labels for each word; None where they are hidden.
        document: Number of the document that the sentence stands in, from 0; consecutive sentences with one number are
            one text. Files without document marks have one document a sentence.
    """

    idx: int | str
    tokens: tuple[str, ...]
    labels: tuple[int, ...] | None = None
    document: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A gold answer.

    Attributes:
        text: The words as they stand in the context.
        answer_start: Character at which they start.
    """

    text: str
    answer_start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionExample:
    """A question about a paragraph (question_answering).

    Attributes:
        idx: The question's id.
        question: Question.
        context: Paragraph.
        answers: Gold answers; empty where the question has none, None where they are hidden.
        title: Title of the article.
    """

    idx: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceExample:
    """A context with several endings of which one fits (multiple_choice).

    Attributes:
        idx: The example's id or row number.
        context: First segment.
        choices: Second segment, one for each choice; the start that they share is already put before each.
        label: Index of the right one; None where it is hidden.
    """

    idx: int | str
    context: str
    choices: tuple[str, ...]
    label: int | None = None


Example = TextExample | TaggedExample | QuestionExample | ChoiceExample


@dataclass(frozen=True, kw_only=True)
class Split:
    """The examples of one split, in the order of their file.

    Attributes:
        name: The split's name, for example "validation_matched".
        examples: All of one class.
        source: File or Hub data set, for messages.
        num_rows: Rows of the file before any limit.
        published_rows: Rows of the published split; None where that is not known.
        is_labelled: Whether the examples carry their labels.
    """

    name: str
    examples: Sequence[Example]
    source: str
    num_rows: int
    published_rows: int | None = None
    is_labelled: bool = True

    @property
    def is_partial(self) -> bool:
        """Whether scores on it cannot be put beside published ones: rows are missing or were left out."""
        return len(self.examples) != (self.num_rows if self.published_rows is None else self.published_rows)
