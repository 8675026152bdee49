"""Files with a word a line and its tag in another column: CoNLL-2003, CoNLL-U, and what others
write of the kind.

A blank line ends a sentence, and a `-DOCSTART-` line starts a document; where there is none, every
sentence is a document. Lines that begin with "#" before the first word of a sentence are comments,
unless they hold a word and its tag.

Columns are counted from 0, as in flair, or named: by a line `# global.columns = ID FORM ...`, in
.conllu files by CoNLL-U.

Source: CoNLL-2003, Tjong Kim Sang and De Meulder 2003, section 2.1;
universaldependencies.org/format.html.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.rows import NumberedRows, format_suffix, read_lines
from bert_recipes.tasks.labels import is_number
from bert_recipes.tasks.task import DOCUMENT, LABEL_COLUMNS, Task


logger = logging.getLogger(__name__)

# Column of a row that says on which line each word stands.
LINES = "-LINES-"
_COLUMNS_OF_CONLLU = (
    "ID",
    "FORM",
    "LEMMA",
    "UPOS",
    "XPOS",
    "FEATS",
    "HEAD",
    "DEPREL",
    "DEPS",
    "MISC",
)
# First column of lines that are no words: "3-4", "5.1".
_RANGE = re.compile(r"\d+[-.]\d+")
_TABS, _BLANKS = re.compile(" *\t+ *"), re.compile("[ \t]+")


@dataclass(frozen=True)
class ConllLayout:
    """The layout of a file: the separator of its columns, their number, and those of the words and
    tags.
    """

    separator: re.Pattern[str]
    width: int
    word_column: int
    tag_column: int | None  # None where there are no tags
    tags: frozenset[str]  # that are known
    has_ranges: bool  # lines of CoNLL-U that are no words: "3-4" and "5.1" in the first column

    def split(self, line: str) -> list[str]:
        """Return the columns of a line."""
        return self.separator.split(line)

    def is_comment(self, line: str) -> bool:
        """Tell whether a line before the first word of a sentence is a comment."""
        if not line.startswith("#"):
            return False
        cells = self.split(line)
        if len(cells) != self.width:
            return True
        if not line.startswith("# "):
            return False  # "#bergen" is a word
        return self.tag_column is None or cells[self.tag_column] not in self.tags


def read_conll(path: Path, task: Task) -> NumberedRows:
    """Read sentences under the task's column names, numbered by the lines on which they start."""
    layout = find_layout(path, task)
    words, tags = task.text_columns[0], task.label_column or LABEL_COLUMNS[0]
    has_documents = any(line.startswith(DOCUMENT) for line in read_lines(path))
    document = 0
    for number, (marks, lines) in enumerate(_sentences(path, layout)):
        if has_documents:
            document += marks
        else:
            document = number
        row: dict[str, object] = {
            DOCUMENT: max(document - has_documents, 0),
            LINES: [line for line, _ in lines],
        }
        row[words] = [cells[layout.word_column] for _, cells in lines]
        if layout.tag_column is not None:
            row[tags] = [cells[layout.tag_column] for _, cells in lines]
        yield lines[0][0], row


_Words = list[tuple[int, list[str]]]


def _sentences(path: Path, layout: ConllLayout) -> Iterator[tuple[int, _Words]]:
    """Yield for each sentence how many marks of documents stand before it, and the line and columns
    of each word.
    """
    marks, words = 0, _Words()
    for number, text in enumerate(read_lines(path), start=1):
        line = text.strip(" ")
        is_mark = line.startswith(DOCUMENT)
        if is_mark or not line.strip():
            if words:
                yield marks, words
                marks, words = 0, []
            marks += is_mark
            continue
        if not words and layout.is_comment(line):
            continue
        cells = layout.split(line)
        if layout.has_ranges and not cells[0].isdecimal():
            continue
        if len(cells) != layout.width:
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns ('{line[:60]}'), but the first word "
                f"has {layout.width}" + (_hint_of_comments(line))
            )
        words.append((number, cells))
    if words:
        yield marks, words


def _hint_of_comments(line: str) -> str:
    return (
        "; a comment stands before the first word of its sentence" if line.startswith("#") else ""
    )


# The layout


def find_layout(path: Path, task: Task) -> ConllLayout:
    """Find out how a file is written, from all of its lines."""
    names = _column_names(path)
    has_tabs_alone = all("\t" in line for line in _lines_of_words(path))
    separator = _TABS if has_tabs_alone else _BLANKS
    survey = _Survey(frozenset({*task.labels, *task.column_labels}))
    for line in _lines_of_words(path, with_ends=True):
        survey.add(separator.split(line) if line else [])
    word = _find_words(path, task.text_columns[0], names, survey)
    tag = _find_tags(path, task.label_column, names, survey, behind=word)
    has_ranges = names[:1] == ("ID",) or (survey.has_index and word == 1)
    return ConllLayout(separator, survey.width, word, tag, survey.tags, has_ranges)


def _find_words(path: Path, column: str, names: Sequence[str], survey: "_Survey") -> int:
    """Return the number of the column of the words: the one that the task names, else the first, or
    that behind an index.
    """
    number = _find_column(path, column, names, survey.width)
    if number is not None:
        return number
    if names:
        return names.index("FORM") if "FORM" in names else 0
    if survey.has_index:
        logger.info("%s: the first column counts the words; they are read from the second", path)
        return 1
    if survey.has_no_words_first:
        raise InputError(
            f"{path}: the first column holds no words; give theirs, counted from 0: text_columns: 1"
        )
    return 0


def _find_tags(
    path: Path, column: str, names: Sequence[str], survey: "_Survey", *, behind: int
) -> int | None:
    """Return the number of the column of the tags: the one that the task names, else the last that
    can be; None where there is none.
    """
    number = _find_column(path, column, names, survey.width)
    if number is not None:
        return number
    if column not in ("", *LABEL_COLUMNS):
        columns = ", ".join(names) or f"0 to {survey.width - 1}, without names"
        raise InputError(f"{path}: no column '{column}' (label_column); its columns: {columns}")
    if names:
        return None
    known = survey.columns_of_tags(behind)
    if len(known) > 1:
        logger.warning(
            "%s: several columns hold tags; the last is read: label_column chooses another", path
        )
    candidates = known or survey.columns_without_numbers(behind) or range(behind + 1, survey.width)
    return candidates[-1] if candidates else None


def _lines_of_words(path: Path, *, with_ends: bool = False) -> Iterator[str]:
    """Yield the lines that are words for sure; "" at the end of each sentence where it is asked
    for.
    """
    for text in read_lines(path):
        line = text.strip(" ")
        if not line.strip():
            if with_ends:
                yield ""
        elif not line.startswith((DOCUMENT, "#")):
            yield line


def _column_names(path: Path) -> tuple[str, ...]:
    for line in read_lines(path):
        if not line.startswith("#"):
            break
        key, _, value = line.strip("# ").partition("=")
        if key.strip() == "global.columns":
            return tuple(value.split())
    return _COLUMNS_OF_CONLLU if format_suffix(path) == ".conllu" else ()


def _find_column(path: Path, name: str, names: Sequence[str], width: int) -> int | None:
    """Return the number of the column that a task names, or counts from 0 (-1 is the last); None
    where it does neither.
    """
    if name in names:
        return names.index(name)
    if not re.fullmatch(r"-?\d+", name):
        return None
    number = int(name) + width if name.startswith("-") else int(name)
    if not 0 <= number < width:
        raise InputError(f"{path}: no column {name}; its {width} columns are counted from 0")
    return number


class _Survey:
    """The properties of all lines of a file, compared with the columns of the first word."""

    def __init__(self, tags: frozenset[str]) -> None:
        self.tags = tags
        self.width = 0
        # Whether the first column counts the words, of each sentence, of each document or of the
        # file.
        self.has_index = True
        self._first_words: set[str] = set()
        self._num_words = self._num_in_sentence = self._last_index = 0
        self._are_tags: list[bool] = []
        self._are_numbers: list[bool] = []

    def add(self, cells: list[str]) -> None:
        """Look at the columns of a word; none at the end of a sentence."""
        if not cells:
            self._num_in_sentence = 0
            return
        if not self.width:
            self.width = len(cells)
            self._are_tags = [True] * self.width
            self._are_numbers = [True] * self.width
        if len(cells) != self.width:
            return  # refused when it is read
        if _RANGE.fullmatch(cells[0]):
            return
        # It begins anew in each sentence, in each document, or never.
        counts = {self._num_in_sentence, self._num_in_sentence + 1, self._last_index + 1}
        self.has_index = (
            self.has_index and self.width > 1 and cells[0].isdecimal() and int(cells[0]) in counts
        )
        self._last_index = int(cells[0]) if self.has_index else 0
        self._num_in_sentence += 1
        self._num_words += 1
        if len(self._first_words) < 2:
            self._first_words.add(cells[0])
        for number, cell in enumerate(cells):
            self._are_tags[number] = self._are_tags[number] and cell in self.tags
            self._are_numbers[number] = self._are_numbers[number] and is_number(cell)

    @property
    def has_no_words_first(self) -> bool:
        """Tell whether the first of several columns holds numbers alone, or one and the same text:
        a file, a speaker.
        """
        if self.width < 3 or self._num_words < 5:
            return False
        return self._are_numbers[0] or len(self._first_words) == 1

    def columns_of_tags(self, behind: int) -> list[int]:
        """Return the columns behind another one that hold nothing but known tags."""
        return [number for number in range(behind + 1, self.width) if self._are_tags[number]]

    def columns_without_numbers(self, behind: int) -> list[int]:
        """Return the columns behind another one that hold something else than numbers."""
        return [number for number in range(behind + 1, self.width) if not self._are_numbers[number]]


def has_columns(path: Path, task: Task) -> bool:
    """Tell whether a file has a word a line, and not a sentence: tabs in every line, known tags, or
    one word in each.
    """
    lines = list(_lines_of_words(path))
    if all("\t" in line for line in lines):
        return True
    rows = [_BLANKS.split(line) for line in lines]
    if len({len(cells) for cells in rows}) > 1:
        return False
    if len(rows) > 1 and len(rows[0]) == 1:
        return True
    survey = _Survey(frozenset({*task.labels, *task.column_labels}))
    for cells in rows:
        survey.add(cells)
    return bool(survey.columns_of_tags(behind=0))
