"""Files in the columns of the CoNLL shared tasks: a word a line, its tag last, a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.files import Rows, read_text_lines


# Column of a row that says which document the sentence stands in; named after the mark, so that no table has it.
DOCUMENT = "-DOCSTART-"
_BLANKS = re.compile(r"[ \t]+")


def read_conll(path: Path, words: str, tags: str) -> Rows:
    """Read sentences; the numbers of the rows are the lines on which they start.

    The first column is the word and the last its tag; what stands between is passed over. A file of one column has no
    tags. A `-DOCSTART-` line starts a document; where there is none, every sentence is a document.

    Args:
        path: The file.
        words: Name that the words get as a column.
        tags: Name that the tags get.

    Raises:
        InputError: While the rows are read: a line with another number of columns than the first, or not UTF-8.

    Source: CoNLL-2003, Tjong Kim Sang and De Meulder 2003, section 2.1.
    """
    return Rows(str(path), "line", _sentences(path, words, tags))


def _sentences(path: Path, words: str, tags: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    has_documents = any(line.startswith("-DOCSTART-") for line in read_text_lines(path))
    document, num_sentences, start = -1, 0, 0
    first: tuple[int, int] | None = None  # line and columns of the first word
    sentence: list[list[str]] = []
    for number, line in enumerate(read_text_lines(path), start=1):
        line = line.strip(" \t\r\n")
        is_mark = line.startswith("-DOCSTART-")
        if line and not is_mark:
            cells = _BLANKS.split(line)
            first = (number, len(cells)) if first is None else first
            if len(cells) != first[1]:
                raise InputError(
                    f"{path}, line {number}: {len(cells)} columns ('{line[:60]}'), but line {first[0]} has {first[1]}; "
                    "every word needs the same columns, separated by spaces or tabs, the tag last"
                )
            start = number if not sentence else start
            sentence.append(cells)
            continue
        if sentence:
            yield start, _row(sentence, words, tags, max(document, 0) if has_documents else num_sentences)
            num_sentences += 1
            sentence = []
        document += is_mark
    if sentence:
        yield start, _row(sentence, words, tags, max(document, 0) if has_documents else num_sentences)


def _row(sentence: list[list[str]], words: str, tags: str, document: int) -> Mapping[str, Any]:
    row: dict[str, Any] = {words: [cells[0] for cells in sentence], DOCUMENT: document}
    if len(sentence[0]) > 1:
        row[tags] = [cells[-1] for cells in sentence]
    return row
