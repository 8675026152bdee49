"""Words and their tags: texts cut into words, annotators' spans, tables with a word a row."""

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
from bert_recipes.rows import (
    NumberedRow,
    NumberedRows,
    Row,
    Rows,
    check_characters,
    column_value,
    is_missing,
    list_columns,
)
from bert_recipes.scripts import are_unspaced_sentences, split_unspaced
from bert_recipes.tags import OUTSIDE, tag_entity
from bert_recipes.tasks.conll import LINES
from bert_recipes.tasks.labels import is_broken_list, label_text, parse_cell
from bert_recipes.tasks.task import DOCUMENT, LABEL_COLUMNS, Task


logger = logging.getLogger(__name__)

Offsets = tuple[int, int]


# Words


def split_text(text: str) -> list[Offsets]:
    """Return where the words of a text start and end.

    White space parts them, and punctuation around them is cut off. In scripts that have no spaces
    between words every character is one.

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
    before: list[Offsets] = []
    while start < end and _is_punctuation(text[start]):
        before.append((start, start + 1))
        start += 1
    behind: list[Offsets] = []
    while start < end and _is_punctuation(text[end - 1]):
        behind.insert(0, (end - 1, end))
        end -= 1
    if start < end:
        before.append((start, end))
    return before + behind


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
    """Return whether the value of a label column is a list of spans."""
    return isinstance(value, list) and all(isinstance(item, list | tuple | dict) for item in value)


def read_spans(value: Sequence[Any], text: str, where: str, counts: Counter[str]) -> list[Span]:
    """Return the spans of a text as annotation tools write them.

    Each is `[start, end, name]` (doccano, spaCy), or an object (doccano, spaCy, Prodigy, Label
    Studio) whose `value` may hold it. The end is the character behind the last. `counts` has how
    many were counted as browsers do.
    """
    spans = []
    for item in value:
        content = item
        if isinstance(item, dict):
            has_offsets = _first_value(item, _START_KEYS) is not None
            if item.get("type") in _OTHER_RESULTS and not has_offsets:
                continue
            value_of_item = item.get("value")
            content = value_of_item if isinstance(value_of_item, list | dict) else item
        if isinstance(content, dict):
            spans.append(_read_object(content, text, where, counts))
        elif isinstance(content, list | tuple) and len(content) == 3:
            start, end, name = content
            first, behind = _whole_numbers(start, end, name, where)
            spans.append(_make_span(first, behind, name, text, where))
        else:
            raise _no_span(item, where)
    return spans


def _no_span(content: Any, where: str) -> InputError:
    return InputError(
        f"{where}: a span is [start, end, label], two whole numbers and a text, not {content!r:.80}"
    )


def _read_object(content: Mapping[str, Any], text: str, where: str, counts: Counter[str]) -> Span:
    """Return the span of an object; where it also holds the span's text, that must stand there."""
    start = _first_value(content, _START_KEYS)
    end = _first_value(content, _END_KEYS)
    name = _first_value(content, _NAME_KEYS)
    length = label_text(content.get("length"))
    if end is None and label_text(start).isdecimal() and length.isdecimal():
        end = int(label_text(start)) + int(length)

    if start is None or end is None or name is None:
        raise _no_span(content, where)

    if isinstance(name, list) and len(name) == 1:
        name = name[0]

    first, behind = _whole_numbers(start, end, name, where)
    quote = content.get("text", content.get("value"))
    covered = text[first:behind]
    is_inside = behind <= len(text)
    # A browser may have counted the offsets.
    if isinstance(quote, str) and not (is_inside and quote.split() == covered.split()):
        first = _count_characters(text, first)
        behind = _count_characters(text, behind)
        if quote.split() != text[first:behind].split():
            raise InputError(
                f"{where}: the span {start} to {end} is {quote!r:.40}, but these characters of the "
                f"text are {covered!r:.40}"
            )
        counts["utf16_offsets"] += 1
    return _make_span(first, behind, name, text, where)


def _count_characters(text: str, num_units: int) -> int:
    """Return how many characters the first units of UTF-16 are: browsers count two an emoji."""
    units = text.encode("utf-16-le")[: 2 * num_units]
    num_pairs = sum(character > "\uffff" for character in units.decode("utf-16-le", "ignore"))
    return num_units - num_pairs


def _whole_numbers(start: Any, end: Any, name: Any, where: str) -> tuple[int, int]:
    """Return the ends of a span, which may be written as 3, 3.0 or "3"."""
    first = label_text(start)
    behind = label_text(end)
    are_numbers = first.isdecimal() and behind.isdecimal()
    if not are_numbers or not isinstance(name, str):
        raise _no_span([start, end, name], where)
    return int(first), int(behind)


def _first_value(content: Mapping[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        if key in content:
            return content[key]
    return None


def _make_span(first: int, behind: int, name: str, text: str, where: str) -> Span:
    """Return a span without white space around it."""
    if name.startswith(("B-", "I-")):
        raise InputError(
            f"{where}: the label {name!r} of a span has the prefix of a word's tag; write "
            f"{name[2:]!r}"
        )
    covered = text[first:behind]
    if len(covered) != behind - first or not covered:
        raise InputError(
            f"{where}: the span {first} to {behind} ({name}) does not lie in its text of "
            f"{len(text)} characters"
        )

    if not covered.strip():
        raise InputError(
            f"{where}: the span {first} to {behind} ({name}) holds nothing but white space"
        )
    num_blanks = len(covered) - len(covered.lstrip())
    place = first + num_blanks
    return Span(place, place + len(covered.strip()), name)


def tag_spans(
    text: str, spans: Sequence[Span], task: Task, counts: Counter[str]
) -> tuple[list[Offsets], list[str]]:
    """Return the words of a text and their tags; of spans that overlap the longest is kept.

    A word in which a span begins or ends is cut there. `counts` has how many spans were left out,
    and how many cut a word.
    """
    longest_first = sorted(spans, key=lambda span: (span.start - span.end, span.start))
    flat: list[Span] = []
    for span in longest_first:
        if any(span.start < longer.end and longer.start < span.end for longer in flat):
            counts["overlap"] += 1
        else:
            flat.append(span)

    borders: set[int] = set()
    for span in flat:
        borders.update((span.start, span.end))
    words = split_text(text)
    pieces: list[Offsets] = []
    for start, end in words:
        cuts = [place for place in range(start + 1, end) if place in borders]
        pieces += itertools.pairwise([start, *cuts, end])
    counts["inside"] += len(pieces) - len(words)

    tags = [OUTSIDE] * len(pieces)
    starts = [start for start, _ in pieces]
    for span in flat:
        first = bisect.bisect_left(starts, span.start)
        behind = bisect.bisect_left(starts, span.end)
        tags[first:behind] = tag_entity(task.known_labels, span.name, behind - first)
    return pieces, tags


# Rows

REJECTED = "%s: %d rows were rejected or ignored by their annotators and are left out"
# What is counted while rows are read, and what a warning says of it.
_WARNINGS = {
    "overlap": "%s: %d spans overlap a longer one and are left out: a word has one tag",
    "rejected": REJECTED,
    "utf16_offsets": "%s: %d spans count an emoji as two, as browsers do, and are taken by their "
    "texts",
    "inside": "%s: %d times a span begins or ends inside a word, which is cut there",
}


def is_rejected(task: Task, row: Row) -> bool:
    """Return whether a row of Prodigy was rejected or ignored by its annotator.

    The answer may also be what the task predicts.
    """
    is_of_prodigy = "spans" in row or "_task_hash" in row
    if not is_of_prodigy or task.label_column == "answer":
        return False
    return row.get("answer") in ("reject", "ignore")


@dataclass
class TaggedRow:
    """A sentence as its row has it: words with their tags, as files write them."""

    index: int  # from 0, among all rows
    number: int
    row: Row
    words: list[str]
    tags: list[Any] | None
    offsets: list[Offsets] | None = None


@dataclass
class TaggedRows:
    """The rows of a split as sentences, whichever way they hold words and tags.

    Words are a list, or a text: then tags are spans of its characters, or as many as there are
    words between spaces. A table may have a word a row. `counts` is filled while rows are read.
    """

    task: Task
    rows: Rows
    is_test: bool
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[TaggedRow]:
        numbered = join_words(self.task, self.rows, self.is_test)
        for index, (number, row) in enumerate(numbered):
            if is_rejected(self.task, row):
                self.counts["rejected"] += 1
            else:
                yield self._read(index, number, row, self.rows.where(number))

    def _read(self, index: int, number: int, row: Row, where: str) -> TaggedRow:
        column = self.task.text_columns[0]
        value = column_value(row, column, where)
        if not self.rows.are_texts:
            value = parse_cell(value)
        tags = self._tags_of(row, where)
        if not isinstance(value, str):
            words = _read_words(value, column, where)
            return TaggedRow(index, number, row, words, _tags_of_words(tags, len(words), where))
        if not self.rows.are_texts:
            _check_text(value, column, where)
        if tags is None and _is_annotated(row):
            tags = []
        offsets, tags = self._cut_text(value, tags, where)
        words = [value[start:end] for start, end in offsets]
        return TaggedRow(index, number, row, words, tags, offsets)

    def _cut_text(self, text: str, tags: Any, where: str) -> tuple[list[Offsets], Any]:
        """Return the words of a text, and their tags."""
        if tags is None:
            return split_text(text), None
        if are_spans(tags):
            spans = read_spans(tags, text, where, self.counts)
            return tag_spans(text, spans, self.task, self.counts)
        words = re.finditer(r"\S+", text)
        offsets = [word.span() for word in words]
        return offsets, _tags_of_words(tags, len(offsets), where)

    def _tags_of(self, row: Row, where: str) -> Any:
        column = label_column_of(self.task, row)
        if column is None and self.is_test:
            return None
        has_labels = any(name in row for name in LABEL_COLUMNS)
        if column is None and _is_annotated(row) and not has_labels:
            return None
        if column is None:
            names = f"of {', '.join(LABEL_COLUMNS)}"
            if self.task.label_column:
                names = repr(self.task.label_column)
            raise InputError(
                f"{where}: no column {names} (label_column); columns present: {list_columns(row)}"
            )
        value = column_value(row, column, where)
        # Tables have an empty cell for a text that nobody annotated.
        is_empty = is_missing(value) or (isinstance(value, str) and not value.strip())
        return None if is_empty else parse_cell(value)

    def warn_of_spans(self) -> None:
        """Warn of the spans that could not be taken as they are."""
        for name, message in _WARNINGS.items():
            if self.counts[name]:
                logger.warning(message, self.rows.source, self.counts[name])


def _is_annotated(row: Row) -> bool:
    """Return whether somebody has looked at a text, which has no entity if it has no label.

    Label Studio then leaves out the label, and Prodigy the spans.
    """
    annotation = row.get("annotation_id")
    is_of_label_studio = not is_missing(annotation) and annotation != ""
    return is_of_label_studio or ("_task_hash" in row and row.get("answer") == "accept")


def _tags_of_words(tags: Any, num_words: int, where: str) -> list[Any] | None:
    """Return a list with a tag a word; of a text those between spaces."""
    if isinstance(tags, str):
        tags = tags.split()
    if tags is None:
        return None
    if not isinstance(tags, list) or len(tags) != num_words:
        labels = f"{len(tags)} labels" if isinstance(tags, list) else f"the label {tags!r:.60}"
        raise InputError(
            f"{where}: {num_words} words, but {labels}; expected is a list with one label a word, "
            "or spans of a text's characters: [start, end, label]"
        )
    return tags


def label_column_of(task: Task, row: Row) -> str | None:
    """Return the column of a row that holds the tags or spans.

    It is the task's, or whichever has one of the usual names.
    """
    names = (task.label_column,) if task.label_column else LABEL_COLUMNS
    for name in names:
        if name in row and name not in task.text_columns:
            return name
    return None


# Tables with a word a row

_NUM_ROWS_OF_A_LOOK = 20
# No sentence has so many words.
MANY_WORDS = 1000
# Names of the column that tells sentences apart, letters alone: simpletransformers' sentence_id,
# "Sentence #" of Kaggle's GMB.
_SENTENCE_COLUMNS = (
    "sentenceid",
    "sentence",
    "sentencenumber",
    "sentenceno",
    "sentid",
    "sentenceidx",
    "sentencenum",
)


def join_words(task: Task, rows: Rows, is_test: bool) -> NumberedRows:
    """Yield rows as they are; those of a table with a word a row joined to sentences.

    An empty cell of the sentence column belongs to the sentence before it.
    """
    numbered = iter(rows.rows)
    start = list(itertools.islice(numbered, _NUM_ROWS_OF_A_LOOK))
    for number, row in start[:1]:
        _check_header(task, row, rows.where(number))
    sentence_column = _sentence_column(task, start, rows, is_test)
    numbered = itertools.chain(start, numbered)
    if sentence_column is None:
        yield from numbered
        return

    columns = [task.text_columns[0]]
    label_column = label_column_of(task, start[0][1])
    if label_column is not None:
        columns.append(label_column)
    sentences: list[dict[str, Any]] = []
    cells_before: set[Any] = set()
    last_cell: Any = ""
    num_repeated = 0
    for number, row in numbered:
        where = rows.where(number)
        cell = column_value(row, sentence_column, where)
        is_next = not is_missing(cell) and cell not in ("", last_cell)
        if is_next:
            num_repeated += cell in cells_before
            cells_before.add(cell)
            last_cell = cell
        if is_next or not sentences:
            sentence: dict[str, Any] = {name: [] for name in (LINES, *columns)}
            # A sentence has the id of its first word.
            if task.id_column is not None and task.id_column in row:
                sentence[task.id_column] = row[task.id_column]
            sentences.append(sentence)
        sentences[-1][LINES].append(number)
        for column in columns:
            value = column_value(row, column, where)
            sentences[-1][column].append("" if is_missing(value) else value)

    if num_repeated:
        message = (
            "%s: %d times '%s' is that of an earlier sentence, as where each document "
            "counts anew; it is taken for a new one"
        )
        logger.warning(message, rows.source, num_repeated, sentence_column)

    if len(sentences) == 1 and len(sentences[0][LINES]) > MANY_WORDS:
        logger.warning(
            "%s: by '%s' all %d words are one sentence; name with sentence_column the column that "
            "is another one in each sentence",
            rows.source,
            sentence_column,
            len(sentences[0][LINES]),
        )
    for sentence in sentences:
        yield sentence[LINES][0], sentence


def _check_text(text: str, column: str, where: str) -> None:
    """Refuse a text that pandas has broken, or without a word."""
    if is_broken_list(text):
        raise InputError(
            f"{where}: column '{column}' holds a list that is broken: {text!r:.60}; a bare nan in "
            "it is a word such as NA that pandas took for missing: read_csv(..., "
            "keep_default_na=False)"
        )
    if not text.strip():
        raise InputError(f"{where}: column '{column}' has no word: {text!r:.60}")
    check_characters(text, column, where)


def _is_written(word: Any) -> bool:
    return isinstance(word, str) or type(word) in (int, float)


def _read_words(value: Any, column: str, where: str) -> list[str]:
    """Return the words of a list; numbers are words too."""
    if not isinstance(value, list) or not all(map(_is_written, value)):
        raise InputError(
            f"{where}: column '{column}' holds {value!r:.60}; a list of words, or a text, is "
            "expected"
        )
    words = list(map(str, value))
    if not any(map(str.strip, words)):
        raise InputError(f"{where}: column '{column}' has no word: {words!r:.60}")
    # A token of white space is one of spaCy's.
    if "" in words:
        number = words.index("") + 1
        raise InputError(
            f"{where}: column '{column}' has an empty word, number {number}: {words!r:.60}"
        )
    check_characters("".join(words), column, where)
    return words


def _check_header(task: Task, row: Row, where: str) -> None:
    """Refuse a file with a word and its tag a line, and no header, that is called a table."""
    has_tag = any(name == OUTSIDE or name.startswith(("B-", "I-")) for name in map(str, row))
    if has_tag and task.text_columns[0] not in row:
        raise InputError(
            f"{where}: the first line is a word and its tag, and no header; name the file .conll, "
            "in which a line has a word and a blank line ends a sentence"
        )


def are_words_in_rows(task: Task, rows: Rows) -> bool:
    """Return whether a table of a tagging task without tags has a word in each row."""
    start = list(itertools.islice(iter(rows.rows), _NUM_ROWS_OF_A_LOOK))
    return _sentence_column(task, start, rows, is_test=True) is not None


def _sentence_column(
    task: Task, start: Sequence[NumberedRow], rows: Rows, is_test: bool
) -> str | None:
    """Return the column that tells the sentences of a table apart, by its first rows.

    None where each row is a sentence.
    """
    if not start:
        return None
    number, first = start[0]
    if LINES in first:
        return None
    text_column = task.text_columns[0]
    texts = [row.get(text_column) for _, row in start]
    are_words = all(map(_is_word, texts))
    may_be_sentences = are_unspaced_sentences([str(text or "") for text in texts])
    if task.sentence_column is not None:
        may_be_texts = is_test and (len(start) == 1 or may_be_sentences)
        is_needed = are_words and not may_be_texts
        if is_needed or task.sentence_column in first:
            column_value(first, task.sentence_column, rows.where(number))  # refuses none, and two
            return task.sentence_column

    if not are_words:
        return None

    label_column = label_column_of(task, first)
    if label_column is None and (may_be_sentences or not is_test):
        return None

    if label_column is not None and not all(_is_word(row[label_column]) for _, row in start):
        return None

    for name in first:
        letters = "".join(filter(str.isalpha, name.lower()))
        if name != text_column and letters in _SENTENCE_COLUMNS:
            return name

    if len(start) == 1 or label_column is None:
        return None
    raise InputError(
        f"{rows.where(number)}: column '{text_column}' holds a word and '{label_column}' its tag, "
        "a word a row; say with sentence_column which column tells the sentences apart, or write "
        "CoNLL (.conll): no header, tabs or blanks between word and tag, a blank line between "
        f"sentences; columns present: {list_columns(first)}"
    )


def _is_word(value: Any) -> bool:
    """Return whether a cell holds one word or tag, or nothing, where a word got lost."""
    if is_missing(value) or isinstance(value, int | float):
        return True
    return isinstance(value, str) and len(value.split()) <= 1 and parse_cell(value) is value


def places_of_words(rows: Rows, row: TaggedRow) -> list[str]:
    """Return where each word stands, for messages.

    It is its line in a file with a word a line, else its number, from 1.
    """
    if LINES in row.row:
        return [rows.where(line) for line in row.row[LINES]]
    return [f"{rows.where(row.number)}, word {number}" for number in range(1, len(row.words) + 1)]


def document_of(row: TaggedRow) -> int:
    """Return the document that a sentence belongs to: its file's mark, else one of its own."""
    return int(row.row.get(DOCUMENT, row.index))
