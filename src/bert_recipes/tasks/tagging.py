"""Words and their tags: texts cut into words, character spans of annotation tools, tables with a
word a row.
"""

import bisect
import itertools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bert_recipes.errors import InputError
from bert_recipes.rows import Rows, check_characters, column_value, is_missing, list_columns
from bert_recipes.scripts import split_unspaced
from bert_recipes.tags import OUTSIDE, tag_entity
from bert_recipes.tasks.conll import LINES
from bert_recipes.tasks.labels import label_text, read_list
from bert_recipes.tasks.task import DOCUMENT, LABEL_COLUMNS, Task


logger = logging.getLogger(__name__)

Offsets = tuple[int, int]


# Words


def split_text(text: str) -> list[Offsets]:
    """Return where the words of a text start and end: white space parts them, and punctuation
    around them is cut off.

    In scripts that have no spaces between words every character is one.

    Example:
        >>> text = "Mara (35) lives in the U.S. now."
        >>> [text[start:end] for start, end in split_text(text)]
        ['Mara', '(', '35', ')', 'lives', 'in', 'the', 'U.S', '.', 'now', '.']
    """
    words: list[Offsets] = []
    for stretch in re.finditer(r"\S+", text):
        for start, end in split_unspaced(stretch.group()):
            words += _cut_punctuation(text, stretch.start() + start, stretch.start() + end)
    return words


def _cut_punctuation(text: str, start: int, end: int) -> list[Offsets]:
    first, last = start, end
    while first < last and _is_punctuation(text[first]):
        first += 1
    while first < last and _is_punctuation(text[last - 1]):
        last -= 1
    before = [(place, place + 1) for place in range(start, first)]
    behind = [(place, place + 1) for place in range(last, end)]
    word = [(first, last)] if first < last else []
    return before + word + behind


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


# Character spans


class Span(NamedTuple):
    """An entity of a text: its first character, the one behind its last, and its type."""

    start: int
    end: int
    name: str


# What Label Studio's results hold beside spans.
_OTHER_RESULTS = ("relation", "choices", "textarea", "rating", "taxonomy", "number", "pairwise")
_START_KEYS = ("start", "start_offset", "begin", "start_char", "from", "offset")
_END_KEYS = ("end", "end_offset", "stop", "end_char", "to")
_NAME_KEYS = ("label", "labels", "type", "tag", "entity", "entity_group", "entity_type")


def are_spans(value: Any) -> bool:
    """Tell whether the value of a label column is a list of spans."""
    return isinstance(value, list) and all(isinstance(item, list | tuple | dict) for item in value)


def read_spans(value: Sequence[Any], text: str, where: str) -> list[Span]:
    """Return the spans of a text as annotation tools write them: end is the character behind the
    last.

    `[start, end, name]` (doccano, spaCy) or an object (doccano, spaCy, Prodigy, Label Studio),
    whose `value` may hold it.
    """
    spans = []
    for item in value:
        content = item
        if isinstance(item, dict):
            if item.get("type") in _OTHER_RESULTS:
                continue
            content = item.get("value", item)
        if isinstance(content, dict):
            spans.append(_read_object(content, text, where))
        elif isinstance(content, list | tuple) and len(content) == 3:
            start, end, name = content
            spans.append(_make_span(start, end, name, text, where))
        else:
            raise _no_span(item, where)
    return spans


def _no_span(content: Any, where: str) -> InputError:
    return InputError(
        f"{where}: a span is [start, end, label], two whole numbers and a text, not {content!r:.80}"
    )


def _read_object(content: Mapping[str, Any], text: str, where: str) -> Span:
    """Return the span of an object; where it also holds the span's text, that must stand there."""
    start, end, name = (
        _first_value(content, keys) for keys in (_START_KEYS, _END_KEYS, _NAME_KEYS)
    )
    first, length = label_text(start), label_text(content.get("length"))
    if end is None and first.isdecimal() and length.isdecimal():
        end = int(first) + int(length)
    if start is None or end is None or name is None:
        raise _no_span(content, where)
    if isinstance(name, list) and len(name) == 1:
        name = name[0]
    span = _make_span(start, end, name, text, where)
    written, found = content.get("text"), text[span.start : span.end]
    if isinstance(written, str) and written.split() != found.split():
        raise InputError(
            f"{where}: the span {start} to {end} is {written!r:.40}, but these characters of the "
            f"text are {found!r:.40}; an emoji "
            "is one character, though browsers count two"
        )
    return span


def _first_value(content: Mapping[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        if key in content:
            return content[key]
    return None


def _make_span(start: Any, end: Any, name: Any, text: str, where: str) -> Span:
    """Return a span without white space around it; its ends may be written as 3, 3.0 or "3"."""
    ends = label_text(start), label_text(end)
    if not all(map(str.isdecimal, ends)) or not isinstance(name, str):
        raise _no_span([start, end, name], where)
    if name.startswith(("B-", "I-")):
        raise InputError(
            f"{where}: the label {name!r} of a span has the prefix of a word's tag; write "
            f"{name[2:]!r}"
        )
    first, behind = map(int, ends)
    if not 0 <= first < behind <= len(text):
        raise InputError(
            f"{where}: the span {first} to {behind} ({name}) does not lie in its text of "
            f"{len(text)} characters"
        )
    written = text[first:behind]
    if not written.strip():
        raise InputError(
            f"{where}: the span {first} to {behind} ({name}) holds nothing but white space"
        )
    first += len(written) - len(written.lstrip())
    return Span(first, first + len(written.strip()), name)


def tag_spans(
    text: str, spans: Sequence[Span], task: Task, counts: Counter[str]
) -> tuple[list[Offsets], list[str]]:
    """Return the words of a text and their tags; of spans that overlap the longest is kept.

    A word in which a span begins or ends is cut there. `counts` has how many spans were left out,
    and how many cut a word.
    """
    flat: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        if any(span.start < other.end and other.start < span.end for other in flat):
            counts["overlap"] += 1
        else:
            flat.append(span)
    flat.sort()
    words = split_text(text)
    ends = sorted({end for span in flat for end in (span.start, span.end)})
    cut = [part for word in words for part in _cut_word(word, ends)]
    counts["inside"] += len(cut) - len(words)
    tags = [OUTSIDE] * len(cut)
    starts = [start for start, _ in cut]
    for span in flat:
        first = bisect.bisect_left(starts, span.start)
        behind = bisect.bisect_left(starts, span.end)
        tags[first:behind] = tag_entity(task.labels, span.name, behind - first)
    return cut, tags


def _cut_word(word: Offsets, ends: Sequence[int]) -> list[Offsets]:
    start, end = word
    inside = ends[bisect.bisect_right(ends, start) : bisect.bisect_left(ends, end)]
    borders = [start, *inside, end]
    return list(itertools.pairwise(borders))


# Rows


@dataclass
class TaggedRow:
    """A sentence as its row has it: words with their tags, as files write them."""

    number: int
    row: Mapping[str, Any]
    words: list[str]
    tags: list[Any] | None
    offsets: list[Offsets] | None = None


@dataclass
class TaggedRows:
    """Read the rows of a split as sentences, whichever way they hold words and tags.

    Words are a list, or a text: then tags are spans of its characters, or as many as there are
    words between spaces. A table may have a word a row. `counts` is filled while rows are read.
    """

    task: Task
    rows: Rows
    is_test: bool
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[TaggedRow]:
        for number, row in join_words(self.task, self.rows, self.is_test):
            if row.get("answer") in ("reject", "ignore") and "spans" in row:  # Prodigy
                self.counts["rejected"] += 1
            else:
                yield self._read(number, _flatten(row), self.rows.where(number))

    def _read(self, number: int, row: Mapping[str, Any], where: str) -> TaggedRow:
        column = self.task.text_columns[0]
        words = _as_list(column_value(row, column, where))
        tags = self._tags_of(row, where)
        if isinstance(words, str):
            return self._read_text(number, row, words, tags, where)
        if isinstance(words, list):
            words = [str(word) if type(word) in (int, float) else word for word in words]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError(
                f"{where}: column '{column}' holds {words!r:.60}; a list of words, or a text, is "
                "expected"
            )
        if not words or not all(map(str.strip, words)):
            raise InputError(
                f"{where}: column '{column}' has no word, or an empty one: {words!r:.60}"
            )
        check_characters("".join(words), column, where)
        return TaggedRow(number, row, words, _tags_of_words(tags, len(words), where))

    def _read_text(
        self, number: int, row: Mapping[str, Any], text: str, tags: Any, where: str
    ) -> TaggedRow:
        check_characters(text, self.task.text_columns[0], where)
        if not text.strip():
            raise InputError(
                f"{where}: column '{self.task.text_columns[0]}' has no word: {text!r:.60}"
            )
        if tags is None:
            offsets = split_text(text)
        elif are_spans(tags):
            offsets, tags = tag_spans(text, read_spans(tags, text, where), self.task, self.counts)
        else:
            offsets = [word.span() for word in re.finditer(r"\S+", text)]
            tags = _tags_of_words(tags, len(offsets), where)
        return TaggedRow(number, row, [text[start:end] for start, end in offsets], tags, offsets)

    def _tags_of(self, row: Mapping[str, Any], where: str) -> Any:
        column = label_column_of(self.task, row)
        if column is None:
            if self.is_test:
                return None
            wanted = (
                f"'{self.task.label_column}'"
                if self.task.label_column
                else f"of {', '.join(LABEL_COLUMNS)}"
            )
            raise InputError(
                f"{where}: no column {wanted} (label_column); columns present: {list_columns(row)}"
            )
        value = column_value(row, column, where)
        return None if is_missing(value) else _as_list(value)

    def warn_of_spans(self) -> None:
        """Warn of the spans that could not be taken as they are."""
        if self.counts["overlap"]:
            message = "%s: %d spans overlap a longer one and are left out: a word has one tag"
            logger.warning(message, self.rows.source, self.counts["overlap"])
        if self.counts["rejected"]:
            message = "%s: %d rows were rejected or ignored by their annotators and are left out"
            logger.warning(message, self.rows.source, self.counts["rejected"])
        if self.counts["inside"]:
            message = "%s: %d times a span begins or ends inside a word, which is cut there"
            logger.warning(message, self.rows.source, self.counts["inside"])


def _tags_of_words(tags: Any, num_words: int, where: str) -> list[Any] | None:
    """Return a list with a tag a word; of a text those between spaces."""
    if isinstance(tags, str):
        tags = tags.split()
    if tags is not None and (not isinstance(tags, list) or len(tags) != num_words):
        found = f"{len(tags)} labels" if isinstance(tags, list) else f"the label {tags!r:.60}"
        raise InputError(
            f"{where}: {num_words} words, but {found}; expected is a list with one label a word, "
            "or spans of a text's "
            "characters: [start, end, label]"
        )
    return tags


def label_column_of(task: Task, row: Mapping[str, Any]) -> str | None:
    """Return the column of a row that holds the tags or spans: the task's, or whichever has one of
    the usual names.
    """
    if task.label_column:
        return task.label_column if task.label_column in row else None
    usual = (name for name in LABEL_COLUMNS if name in row and name not in task.text_columns)
    return next(usual, None)


def _as_list(value: Any) -> Any:
    """Return the list that a text is; any other value as it is."""
    if not isinstance(value, str):
        return value
    as_list = read_list(value)
    return value if as_list is None else as_list


def _flatten(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a task of Label Studio's JSON export as a row: its data, and the results of its first
    annotation, if any.
    """
    data, annotations = row.get("data"), row.get("annotations")
    if not isinstance(data, dict) or not isinstance(annotations, list):
        return row
    for annotation in annotations:
        if isinstance(annotation, dict) and not annotation.get("was_cancelled"):
            return {**data, "labels": annotation.get("result", [])}
    return {**data, "labels": None}


# Tables with a word a row

# Names of the column that tells sentences apart, letters alone: simpletransformers' sentence_id,
# "Sentence #" of Kaggle's GMB.
_NUM_ROWS_OF_A_LOOK = 20
_SENTENCE_COLUMNS = (
    "sentenceid",
    "sentence",
    "sentencenumber",
    "sentenceno",
    "sentid",
    "sentenceidx",
    "sentencenum",
)


def join_words(task: Task, rows: Rows, is_test: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows as they are; those of a table with a word a row joined to sentences, in the order
    of their first words.

    An empty cell of the sentence column belongs to the sentence before it.
    """
    iterator = iter(rows.rows)
    start = list(itertools.islice(iterator, _NUM_ROWS_OF_A_LOOK))
    sentence_column = _sentence_column(task, start, rows, is_test)
    if sentence_column is None:
        yield from start
        yield from iterator
        return
    label_column = label_column_of(task, start[0][1])
    columns = [task.text_columns[0], *([label_column] if label_column else [])]
    sentences: list[dict[str, Any]] = []
    keys: set[Any] = set()
    key: Any = None
    num_again = 0
    for number, row in itertools.chain(start, iterator):
        where = rows.where(number)
        cell = column_value(row, sentence_column, where)
        is_next = not is_missing(cell) and cell not in ("", key)
        if is_next:
            key = cell
            num_again += key in keys
            keys.add(key)
        if is_next or not sentences:
            sentences.append({LINES: [], **{column: [] for column in columns}})
        sentence = sentences[-1]
        sentence[LINES].append(number)
        for column in columns:
            value = column_value(row, column, where)
            sentence[column].append("" if is_missing(value) else value)
    if num_again:
        message = (
            "%s: %d times '%s' is that of an earlier sentence, as where each document "
            "counts anew; it is taken for a new one"
        )
        logger.warning(message, rows.source, num_again, sentence_column)
    for sentence in sentences:
        yield sentence[LINES][0], sentence


def _sentence_column(
    task: Task, start: Sequence[tuple[int, Mapping[str, Any]]], rows: Rows, is_test: bool
) -> str | None:
    """Return the column that tells the sentences of a table apart, by its first rows; None where
    each row is a sentence.
    """
    if not start:
        return None
    number, first = start[0]
    text_column, label_column = task.text_columns[0], label_column_of(task, first)
    if task.sentence_column is not None:
        column_value(first, task.sentence_column, rows.where(number))
        return task.sentence_column
    if not all(_is_word(row.get(text_column)) for _, row in start):
        return None
    has_tags = label_column is not None and all(_is_word(row[label_column]) for _, row in start)
    if not has_tags and not (is_test and label_column is None):
        return None
    for name in first:
        if name != text_column and "".join(filter(str.isalpha, name.lower())) in _SENTENCE_COLUMNS:
            return name
    if len(start) == 1 or not has_tags:
        return None
    raise InputError(
        f"{rows.where(number)}: column '{text_column}' holds a word and '{label_column}' its tag, "
        "a word a row; say with "
        "sentence_column which column tells the sentences apart; columns present: "
        f"{list_columns(first)}"
    )


def _is_word(value: Any) -> bool:
    """Tell whether a cell holds one word or tag, or nothing, as it does where a word got lost."""
    if is_missing(value) or isinstance(value, int | float):
        return True
    return isinstance(value, str) and len(value.split()) <= 1 and read_list(value) is None


def places_of_words(rows: Rows, row: TaggedRow) -> list[str]:
    """Return where each word stands, for messages: its line in a file with a word a line, else its
    number, from 1.
    """
    if LINES in row.row:
        return [rows.where(line) for line in row.row[LINES]]
    return [f"{rows.where(row.number)}, word {number}" for number in range(1, len(row.words) + 1)]


def document_of(row: TaggedRow, index: int) -> int:
    """Return the number of the document that a sentence belongs to: the one its file marks, else
    one of its own.
    """
    return int(row.row.get(DOCUMENT, index))
