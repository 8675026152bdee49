"""Examples: rows of data, with a label where it is not hidden."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExample:
    """A text or a pair of texts (sequence_classification).

    `idx` is the id in the file, the row number (from 0) where it has none, here and in the other
    examples.
    """

    idx: int | str
    text: str
    text_pair: str | None = None
    # Index into the task's labels; a float for regression; indices (sorted, may be empty) for
    # multi-label tasks.
    label: int | float | tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedExample:
    """A sentence whose words have labels (token_classification)."""

    idx: int | str
    tokens: tuple[str, ...]
    labels: tuple[int, ...] | None = None  # an index into the task's labels for each word
    # Number from 0; consecutive sentences with one number are one text. Without marks every
    # sentence has its own.
    document: int = 0
    # Where each word stands in the text that was cut into words, start and end; None where the file
    # has words.
    offsets: tuple[tuple[int, int], ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A gold answer."""

    text: str
    # In characters of the context; -1 where nobody knows it, and the text alone matters.
    answer_start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionExample:
    """A question about a paragraph (question_answering)."""

    idx: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None = None  # empty where the question has none
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceExample:
    """A context with several endings of which one fits (multiple_choice)."""

    idx: int | str
    context: str
    choices: tuple[str, ...]  # the start that they share is already put before each
    label: int | None = None


Example = TextExample | TaggedExample | QuestionExample | ChoiceExample


def list_texts(example: Example) -> list[str]:
    """Return the texts of an example of any kind, some of which may be empty.

    The words of a tagged sentence are one text.
    """
    if isinstance(example, TextExample):
        return [example.text, example.text_pair or ""]
    if isinstance(example, TaggedExample):
        return [" ".join(example.tokens)]
    if isinstance(example, QuestionExample):
        return [example.question, example.context]
    return [example.context, *example.choices]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The examples of one split, all of one class, in the order of their file."""

    name: str
    examples: Sequence[Example]
    source: str  # file or Hub data set, for messages
    num_rows: int  # of the file, before any limit
    published_rows: int | None = None  # of the published split, where that is known
    is_labelled: bool = True
    # Rows of the file that training does without, which a warning has counted.
    num_left_out: int = 0

    @property
    def is_partial(self) -> bool:
        """Return whether rows are missing: then scores do not compare with published ones."""
        num_rows = self.num_rows if self.published_rows is None else self.published_rows
        return len(self.examples) != num_rows


def hash_of_examples(examples: Sequence[Example]) -> str:
    """Return the SHA-256 (hex) of texts, labels and ids as they were read, in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
