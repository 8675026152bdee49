"""Files with a word a line and its tag in another column: CoNLL-2003, CoNLL-U, and their like.

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
from bert_recipes.scripts import are_unspaced_sentences
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
# First column of lines that are not words: "3-4", "5.1".
_RANGE = re.compile(r"\d+[-.]\d+")
_TABS = re.compile(" *\t+ *")
_BLANKS = re.compile("[ \t]+")
# A first column of fewer words may hold one text, or numbers, by chance.
_MIN_WORDS = 5


@dataclass(frozen=True)
class ConllLayout:
    """The layout of a file: what separates its columns, and where words and tags are."""

    separator: re.Pattern[str]
    width: int  # number of columns
    word_column: int
    tag_column: int | None  # None where there are no tags
    tags: frozenset[str]  # of the task
    has_ranges: bool  # lines of CoNLL-U that are no words: "3-4" and "5.1" in the first column

    def split(self, line: str) -> list[str]:
        """Return the columns of a line."""
        return self.separator.split(line)

    def is_comment(self, line: str) -> bool:
        """Return whether a line before the first word of a sentence is a comment."""
        if not line.startswith("#"):
            return False
        cells = self.split(line)
        if len(cells) != self.width:
            return True
        if not line.startswith("# "):
            return False  # "#bergen" is a word
        return self.tag_column is None or cells[self.tag_column] not in self.tags


# The line number and the columns of each word of a sentence.
_Words = list[tuple[int, list[str]]]


def read_conll(path: Path, task: Task) -> NumberedRows:
    """Read sentences under the task's column names, numbered by the lines on which they start."""
    layout = find_layout(path, task)
    has_documents = any(line.strip(" ").startswith(DOCUMENT) for line in read_lines(path))
    for index, (document, words) in enumerate(_sentences(path, layout)):
        row: dict[str, object] = {
            DOCUMENT: document if has_documents else index,
            LINES: [line for line, _ in words],
            task.text_columns[0]: [cells[layout.word_column] for _, cells in words],
        }
        if layout.tag_column is not None:
            tags = [cells[layout.tag_column] for _, cells in words]
            row[task.label_column or LABEL_COLUMNS[0]] = tags
        yield words[0][0], row


def _sentences(path: Path, layout: ConllLayout) -> Iterator[tuple[int, _Words]]:
    """Yield the number of each sentence's document, and its words.

    Documents are numbered from 0; sentences before the first mark belong to the first one.
    """
    num_marks = 0
    words: _Words = []
    for number, text in enumerate(read_lines(path), start=1):
        line = text.strip(" ")
        is_mark = line.startswith(DOCUMENT)
        if is_mark or not line.strip():
            if words:
                yield max(num_marks - 1, 0), words
                words = []
            num_marks += is_mark
            continue
        if not words and layout.is_comment(line):
            continue
        cells = layout.split(line)
        if layout.has_ranges and (_RANGE.fullmatch(cells[0]) or line.startswith("#")):
            continue
        if len(cells) != layout.width:
            hint = "; a comment stands before the first word of its sentence"
            raise InputError(
                f"{path}, line {number}: {len(cells)} columns ('{line[:60]}'), but the first word "
                f"has {layout.width}{hint if line.startswith('#') else ''}"
            )
        if layout.has_ranges and not cells[0].isdecimal():
            raise InputError(
                f"{path}, line {number}: '{cells[0]}' ('{line[:60]}'); the first column of the "
                "other words counts them"
            )
        words.append((number, cells))

    if words:
        yield max(num_marks - 1, 0), words


# The layout


class _Survey:
    """The properties of all lines of a file, compared with the columns of the first word."""

    def __init__(self, tags: frozenset[str]) -> None:
        self.tags = tags
        self.columns: list[set[str]] = []  # the different texts in each
        # Whether the first column counts the words, of each sentence, of each document or of the
        # file.
        self.has_index = True
        self._num_words = 0
        self._num_in_sentence = 0
        self._last_index = 0
        self._first_of_sentence = ""
        # Whether the first column is not the same in all words of a sentence, and one has several.
        self._first_varies = False
        self._has_long_sentence = False

    @property
    def width(self) -> int:
        """Return the number of columns of the first word."""
        return len(self.columns)

    def end_sentence(self) -> None:
        """Note that the next word is the first of its sentence."""
        self._num_in_sentence = 0

    def add(self, cells: list[str]) -> None:
        """Look at the columns of a word."""
        if not self.columns:
            self.columns = [set() for _ in cells]
        # A word with other columns is refused when it is read.
        if len(cells) != self.width or _RANGE.fullmatch(cells[0]):
            return
        self._look_at_index(cells[0])
        self._num_in_sentence += 1
        self._num_words += 1
        if self._num_in_sentence == 1:
            self._first_of_sentence = cells[0]
        else:
            self._has_long_sentence = True
            self._first_varies = self._first_varies or cells[0] != self._first_of_sentence
        for texts, cell in zip(self.columns, cells, strict=True):
            texts.add(cell)

    def _look_at_index(self, text: str) -> None:
        if not self.has_index:
            return
        # It begins anew in each sentence, in each document, or never.
        counts = (self._num_in_sentence, self._num_in_sentence + 1, self._last_index + 1)
        self.has_index = self.width > 1 and text.isdecimal() and int(text) in counts
        self._last_index = int(text) if self.has_index else 0

    @property
    def has_no_words_first(self) -> bool:
        """Return whether the first of several columns holds numbers, or one text a sentence.

        It names a speaker or a document.
        """
        if self.width < 3 or self._num_words < _MIN_WORDS:
            return False
        is_constant = self._has_long_sentence and not self._first_varies
        return is_constant or self._holds_numbers(0)

    def columns_of_tags(self, behind: int) -> list[int]:
        """Return the columns behind another one that hold nothing but the task's tags."""
        return [
            number for number in range(behind + 1, self.width) if self.columns[number] <= self.tags
        ]

    def columns_without_numbers(self, behind: int) -> list[int]:
        """Return the columns behind another one that hold something else than numbers."""
        return [
            number for number in range(behind + 1, self.width) if not self._holds_numbers(number)
        ]

    def _holds_numbers(self, number: int) -> bool:
        return all(map(is_number, self.columns[number]))


def find_layout(path: Path, task: Task) -> ConllLayout:
    """Find out how a file is written, from all of its lines."""
    names = _column_names(path)
    separator = _TABS if all("\t" in line for line in _lines_of_words(path)) else _BLANKS
    survey = _Survey(task.known_labels)
    for line in _lines_of_words(path, with_ends=True):
        if line:
            survey.add(separator.split(line))
        else:
            survey.end_sentence()
    word_column = _find_words(path, task.text_columns[0], names, survey)
    return ConllLayout(
        separator=separator,
        width=survey.width,
        word_column=word_column,
        tag_column=_find_tags(path, task.label_column, names, survey, word_column),
        tags=survey.tags,
        has_ranges=names[:1] == ("ID",) or (survey.has_index and word_column == 1),
    )


def _find_words(path: Path, column: str, names: Sequence[str], survey: _Survey) -> int:
    """Return the number of the column of the words.

    It is the one that the task names, else the first, or that behind an index.
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
    path: Path, column: str, names: Sequence[str], survey: _Survey, word_column: int
) -> int | None:
    """Return the number of the column of the tags; None where there is none.

    It is the one that the task names, else the last behind the words that can be.
    """
    if survey.width == 1:
        return None
    number = _find_column(path, column, names, survey.width)
    if number is not None:
        return number

    if column not in ("", *LABEL_COLUMNS):
        columns = ", ".join(names) or f"0 to {survey.width - 1}, without names"
        raise InputError(f"{path}: no column '{column}' (label_column); its columns: {columns}")

    if names:
        return None
    tag_columns = survey.columns_of_tags(word_column)
    candidates = tag_columns or survey.columns_without_numbers(word_column)
    if not survey.tags:
        # The task names no labels: any column with more than one text may hold the tags.
        tag_columns = [number for number in candidates if len(survey.columns[number]) > 1]
    if len(tag_columns) > 1:
        logger.warning(
            "%s: several columns hold tags; the last is read: label_column chooses another", path
        )

    if candidates:
        return candidates[-1]
    return survey.width - 1 if word_column + 1 < survey.width else None


def _has_text_cell(line: str) -> bool:
    """Return whether a cell between tabs has several words."""
    return any(len(cell.split()) > 1 for cell in line.split("\t"))


def _lines_of_words(path: Path, *, with_ends: bool = False) -> Iterator[str]:
    """Yield the lines that are words for sure, and "" at each end of a sentence where asked for."""
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
    """Return the number of the column that a task names, or counts from 0 (-1 is the last).

    None where it does neither.
    """
    if name in names:
        return names.index(name)
    if not re.fullmatch(r"-?\d+", name):
        return None
    number = int(name)
    if name.startswith("-"):
        number += width
    if not 0 <= number < width:
        raise InputError(f"{path}: no column {name}; its {width} columns are counted from 0")
    return number


def has_columns(path: Path, task: Task) -> bool:
    """Return whether a file has a word a line, and not a sentence.

    Then it has tabs in every line, known tags, or one word in each. A sentence of a script without
    spaces is no word.
    """
    lines = list(_lines_of_words(path))
    if not lines:
        return False
    if all("\t" in line for line in lines):
        num_texts = sum(_has_text_cell(line) for line in lines)
        if 2 * num_texts > len(lines):
            raise InputError(
                f"{path}: its lines have tabs and texts of several words; give a table with a "
                "header (.tsv), a text a line without tabs, or a word a line"
            )
        return True
    rows = [_BLANKS.split(line) for line in lines]
    width = len(rows[0])
    if any(len(cells) != width for cells in rows):
        return False

    if len(rows) > 1 and width == 1:
        return not are_unspaced_sentences(lines)
    survey = _Survey(task.known_labels)
    for cells in rows:
        survey.add(cells)
    return bool(survey.columns_of_tags(behind=0))
