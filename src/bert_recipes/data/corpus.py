"""Text sources -> documents: files, folders, globs and Hub data sets.

A document is a list of paragraphs: lines of the text, none of them blank. Where it ends is named
(`document_boundary`), never guessed:

- `blank_line`: at a blank line, as in google-research/bert; the default of text files.
- `line`: every line is a document.
- `file`: every file is a document; blank lines only separate paragraphs.
- `heading`: a document begins at each line such as `= Title =` or `= = = Title = = =`: articles of
  WikiText, books and articles of BabyLM. Lines with more signs are headings within it. A file
  without one is a document.
- `row`: every row is a document. Tables keep to it beside text files, which another one is for; but
  with `heading` rows are lines, as of WikiText on the Hub, if a title is among the first.

The end of a file always ends a document, so that the result does not depend on which file happens
to be read before. google-research/bert's create_pretraining_data.py lets a document go on in the
next input file unless a blank line stands between; `recipes/create_pretraining_data.py` keeps to
that.
"""

import fnmatch
import glob
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from bert_recipes.errors import InputError, first_line
from bert_recipes.hub_access import network_errors
from bert_recipes.rows import (
    COMPRESSION_SUFFIXES,
    DEFAULT_MAX_LINE_BYTES,
    SURROGATES,
    TABLE_SUFFIXES,
    EncodingErrors,
    ReadCounts,
    Reader,
    column_value,
    format_suffix,
    is_missing,
    list_columns,
)


logger = logging.getLogger(__name__)

# Lines of text. BabyLM's files end in .train, .dev and .test, WikiText's in .raw and .tokens.
TEXT_SUFFIXES = (".txt", ".train", ".dev", ".test", ".raw", ".tokens")
SUFFIXES = (*TEXT_SUFFIXES, *TABLE_SUFFIXES)
ID_SUFFIXES = (*SUFFIXES, ".npy")  # of ids that are not text

DocumentBoundary = Literal["auto", "blank_line", "line", "file", "heading", "row"]
# A document is held in memory as a whole.
MAX_DOCUMENT_CHARACTERS = 2**28
# The first lines of a file, if all of them are so, say that it has a number before each text.
NUMBERED_LINES = 20
# Where titles are looked for: rows of a table that may be lines, and headings of a file.
FIRST_ROWS = 1000
FIRST_HEADINGS = 50
_NUMBERED = re.compile(r"\d+\t")
# Words in the names of files that others are measured on: wiki.test.raw, childes.dev.
_HELD_OUT_WORDS = frozenset(("dev", "eval", "heldout", "test", "val", "valid", "validation"))
GUTENBERG_ADVICE = (
    "Project Gutenberg's header and licence are read as text, in training and held out; cut off "
    "what is before '*** START OF' and after '*** END OF'"
)
HEADINGS_ADVICE = (
    "lines such as '= Title =' begin articles, but each is a document of its own: give "
    "--document_boundary heading"
)
NUMBERS_ADVICE = (
    "lines begin with a number and a tab, which are read as text; keep the text alone: "
    "cut -f2- OLD > NEW"
)
_HEADING = re.compile(r"(=(?: =)*) [^=](?:.*[^=])? \1")


# Files


def find_files(
    paths: str | Path | Sequence[str | Path], suffixes: tuple[str, ...] = SUFFIXES
) -> list[Path]:
    """Return the corpus files of files, folders and globs, at least one.

    Folders are searched recursively, and `**` goes into folders. The order is that of the sorted
    paths, whatever the order they were given in; a file that is reached twice (also through a
    link) is taken once. Hidden files are left out, and in folders and globs also files of unknown
    kinds: both are logged, as are hidden folders below a folder.
    """
    entries = [paths] if isinstance(paths, str | Path) else list(paths)
    if not entries:
        raise InputError(f"no input: give files, folders or globs ({', '.join(suffixes)})")

    corpus_files: list[Path] = []
    skipped_files: list[Path] = []
    for entry in entries:
        files = dict(_list_files(entry, suffixes))
        if not any(files.values()):
            raise InputError(f"{entry}: leads to no file that ends in {', '.join(suffixes)}")
        for file, is_read in files.items():
            if is_read:
                corpus_files.append(file)
            else:
                skipped_files.append(file)

    if skipped_files:
        logger.warning(
            "%d files or folders are not read: hidden, or not of %s (first: %s)",
            len(skipped_files),
            "/".join(suffixes),
            skipped_files[0],
        )
    return _unique_files(corpus_files)


def _list_files(entry: str | Path, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, bool]]:
    """Yield the files that an entry leads to, and whether each is read."""
    path = Path(entry)
    if not str(entry).strip():
        raise InputError("an input path is empty; give files, folders or globs")
    if path.is_file():
        if not _has_suffix(path, suffixes):
            raise InputError(
                f"{path}: unknown kind of file; the name must end in {', '.join(suffixes)}"
            )
        yield path, True
    elif path.is_dir():
        yield from _walk(path, suffixes)
    elif glob.has_magic(str(entry)):
        check_pattern(str(entry))
        yield from _match(str(entry), suffixes)
    elif path.exists() or path.is_symlink():
        yield path, True  # refused with those of folders
    else:
        raise InputError(f"{path}: there is no such file or folder")


def _unique_files(files: list[Path]) -> list[Path]:
    """Return the files in the order of their paths, each once."""
    unique: dict[str, Path] = {}
    for path in sorted(files, key=Path.as_posix):
        # Opening a pipe would wait for ever.
        if not path.is_file():
            raise InputError(
                f"{path}: not a file that can be read, but a broken link, a pipe or a device; "
                "leave it out"
            )
        unique.setdefault(os.path.realpath(path), path)

    return list(unique.values())


def warn_of_held_out_names(files: Iterable[Path]) -> None:
    """Warn of files to train on that a corpus seems to have for measuring."""
    suspects = []
    for path in files:
        name = re.sub(r"-\d+-of-\d+", "", path.name.lower())  # the Hub's parts of a file
        for suffix in COMPRESSION_SUFFIXES:
            name = name.removesuffix(suffix)
        # The last ones alone: "the_test_of_time.txt" is a book.
        words = re.split(r"[._-]", name)[-2:]
        if not _HELD_OUT_WORDS.isdisjoint(words):
            suspects.append(path)
    if suspects:
        logger.warning(
            "%d files to train on are named as if they were for measuring (first: %s): name the "
            "others alone in --files",
            len(suspects),
            suspects[0],
        )


def _has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    suffix = format_suffix(path)
    if suffix in (".parquet", ".npy") and path.suffix.lower() in COMPRESSION_SUFFIXES:
        return False
    return suffix in suffixes


def is_text(path: Path) -> bool:
    """Return whether a file of a corpus has lines of text, not rows."""
    return format_suffix(path) in TEXT_SUFFIXES


def _walk(
    folder: Path, suffixes: tuple[str, ...], *, hidden_folders: bool = False
) -> Iterator[tuple[Path, bool]]:
    """Yield the files below a folder, and whether each is of the corpus.

    Each folder is entered once, however many links lead to it: folders that link each other would
    lead round and round.
    """
    entered = {os.path.realpath(folder)}
    for root, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        entered_folders = []
        for name in sorted(folders):
            is_visible = hidden_folders or not name.startswith(".")
            if not is_visible:
                yield Path(root, name), False
            elif _is_new_folder(Path(root, name), entered):
                entered.add(os.path.realpath(Path(root, name)))
                entered_folders.append(name)
        folders[:] = entered_folders
        for name in names:
            is_read = _has_suffix(Path(name), suffixes) and not name.startswith(".")
            yield Path(root, name), is_read


def _is_new_folder(folder: Path, entered: set[str]) -> bool:
    """Return whether a folder was not entered yet and is no link to one of its parents."""
    target = os.path.realpath(folder)
    parent = Path(os.path.realpath(folder.parent))
    return target not in entered and not parent.is_relative_to(target)


def _match(pattern: str, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, bool]]:
    """Yield the files that a pattern matches, and those in matched folders.

    With each stands whether it is of the corpus.
    """
    names = Path(pattern).parts
    if "**" in names:
        start = names.index("**")
        yield from _match_below(Path(*names[:start]), names[start:], suffixes)
        return
    for match in map(Path, glob.glob(str(Path(pattern)))):
        if match.is_dir():
            yield from _walk(match, suffixes)
        else:
            yield match, _has_suffix(match, suffixes)


def _match_below(
    folders: Path, names: Sequence[str], suffixes: tuple[str, ...]
) -> Iterator[tuple[Path, bool]]:
    """Yield the files below folders whose path from there fits `names`, which begin with `**`.

    A folder that fits gives all of its files. Python's own `**` follows links round and round: the
    folders are walked as `_walk` does.
    """
    hidden_folders = any(name.startswith(".") for name in names)
    for folder in map(Path, glob.glob(str(folders))):
        if not folder.is_dir():
            continue
        for file, is_read in _walk(folder, suffixes, hidden_folders=hidden_folders):
            path = file.relative_to(folder)
            if _fits(path.parts, names):
                yield file, _has_suffix(file, suffixes)
            elif any(_fits(parent.parts, names) for parent in path.parents):
                yield file, is_read


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the names of a path fit those of a pattern, as for the shell.

    Only a dot that is written matches a hidden name.
    """
    if not pattern or not names:
        return not names and all(name == "**" for name in pattern)

    name, *names_below = names
    name_pattern, *pattern_below = pattern
    if name_pattern == "**" and _fits(names, pattern_below):
        return True
    if name.startswith(".") and not name_pattern.startswith("."):
        return False
    if name_pattern == "**":
        return _fits(names_below, pattern)
    return fnmatch.fnmatchcase(name, name_pattern) and _fits(names_below, pattern_below)


def _refuse(error: OSError) -> NoReturn:
    raise InputError(
        f"{error.filename}: this folder cannot be read ({error.strerror}), and nothing is left "
        "out in silence; make it readable, or name the files to take"
    ) from error


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that looks into a folder that cannot be listed.

    `glob` passes over it without a word.
    """
    names = Path(pattern).parts
    for number, name in enumerate(names):
        if glob.has_magic(name):
            parent = os.path.join(*names[:number], "") if number else os.curdir
            for folder in glob.glob(parent):
                try:
                    os.scandir(folder).close()
                except OSError as error:
                    _refuse(error)
        if name == "**":  # below it the folders are walked, which refuses those
            return


def describe_files(files: Sequence[Path]) -> list[dict[str, str | int]]:
    """Return name and size in bytes of each file.

    Names start at the deepest folder that all of them share, as it was given: where a link leads to
    is nobody's business. Files that share no folder are named with their own alone.
    """
    if not files:
        return []

    folders = [os.path.abspath(path.parent) for path in files]
    shared = os.path.commonpath(folders)
    descriptions: list[dict[str, str | int]] = []
    for folder, path in zip(folders, files, strict=True):
        base = os.path.dirname(folder if shared == os.sep else shared)
        name = Path(folder, path.name).relative_to(base).as_posix()
        descriptions.append({"name": name, "bytes": path.stat().st_size})
    return descriptions


# Rows


@dataclass(kw_only=True)
class CorpusCounts(ReadCounts):
    """Counts of what was read, filled while the documents are drawn.

    `source_bytes` are those of the files passed so far, as stored; `text_bytes` are unpacked.
    `repaired`: `byte_order_marks_removed`, `characters_replaced`, `nul_characters_removed`.
    `dropped`: `rows_without_text`, `files_without_text`.
    """

    files: int = 0
    documents: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """Return all counts as JSON values."""
        return {**vars(self), "repaired": dict(self.repaired), "dropped": dict(self.dropped)}


@dataclass(kw_only=True)
class _RowReader:
    """Read the text of each row of tables, arrays and Hub data sets."""

    reader: Reader
    text_column: str
    counts: CorpusCounts
    # A row may hold a list of numbers, or of sentences of them, instead of text.
    of_ids: bool = False
    # Whether a row of this file had the column: JSON may leave it out where it is empty.
    has_column: bool = False

    def read_file(self, path: Path) -> Iterator[str]:
        """Yield the text of every row of a table or an array.

        Rows whose text is missing are dropped and counted.
        """
        self.has_column = False
        bytes_before = self.counts.source_bytes
        suffix = path.suffix.lower()
        is_parquet = suffix == ".parquet"
        if suffix == ".npy":
            rows = self._array_rows(path)
        else:
            rows = self._table_rows(path, is_parquet=is_parquet)
        for place, row in rows:
            text = self._text_of(row, place)
            if text is None:
                continue
            # The bytes of other tables are counted by what reads their lines.
            if is_parquet:
                self.counts.text_bytes += len(text.encode("utf-8"))
            yield text
        self.counts.source_bytes = bytes_before + path.stat().st_size

    def _table_rows(self, path: Path, *, is_parquet: bool) -> Iterator[tuple[str, Any]]:
        if is_parquet:
            self._check_schema(path)
        table = self.reader.table(path, [self.text_column] if is_parquet else None)
        for number, row in table.rows:
            yield table.where(number), row

    def _array_rows(self, path: Path) -> Iterator[tuple[str, Any]]:
        """Yield each row of an array of ids, which is a document; numbers below 0 fill rows up."""
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"{path}: not an array of numbers ({first_line(error)})") from error

        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise InputError(
                f"{path}: {array.ndim} dimensions of {array.dtype}; whole numbers in 2 are read: "
                "documents, ids"
            )

        for number, row in enumerate(array, start=1):
            self.counts.text_bytes += row.nbytes
            yield f"{path}, row {number}", {self.text_column: row[row >= 0].tolist() or None}

    def _check_schema(self, path: Path) -> None:
        """Refuse a Parquet file that has no column of text under this name, or several."""
        import pyarrow
        import pyarrow.types as kinds
        from pyarrow import parquet

        try:
            schema = parquet.read_schema(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise InputError(
                f"{path}: damaged or not a Parquet file ({first_line(error)})"
            ) from error

        column = self.text_column
        num_columns = schema.names.count(column)
        if num_columns == 0:
            raise self._no_column(schema.names, str(path))
        if num_columns > 1:
            raise InputError(f"{path}: column '{column}' appears more than once; keep one")

        kind = schema.field(column).type
        values = getattr(kind, "storage_type", kind)
        if kinds.is_dictionary(values):
            values = values.value_type
        if self.of_ids and _holds_lists_of_ids(values):
            return
        # Values of some other types cannot even be turned into Python's; a column of nulls has no
        # type of its own.
        text_kinds = (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_null)
        if not any(is_kind(values) for is_kind in text_kinds):
            expected = "whole numbers or text" if self.of_ids else "text"
            raise InputError(
                f"{path}: column '{column}' holds {list_columns([kind])}, {expected} expected"
            )

    def read_hub(self, name: str, config_name: str | None, split: str) -> Iterator[str]:
        """Yield the text of every row of a data set on the Hugging Face Hub.

        The rows are streamed in the order of the data set's files.
        """
        self.has_column = False
        place = f"Hub data set {name!r}"
        rows = _open_hub(name, config_name, split, place)

        for number in count(1):
            try:
                row = next(rows, None)
            except network_errors() as error:
                raise InputError(
                    f"{place}: the connection broke after row {number - 1} ({error})"
                ) from error
            if row is None:
                return
            text = self._text_of(row, f"{place}, row {number}")
            if text is not None:
                size = len(text.encode("utf-8"))
                self.counts.text_bytes += size
                self.counts.source_bytes += size
                yield text

    def _no_column(self, names: Iterable[str], place: str) -> InputError:
        return InputError(
            f"{place}: no column '{self.text_column}'; columns present: {list_columns(names)}; "
            "set text_column to one of them"
        )

    def _text_of(self, row: Any, place: str) -> str | None:
        """Return the text of a row, or None (counted) where it is missing."""
        column = self.text_column
        if column not in row and not self.has_column:
            raise self._no_column(row, place)

        text = column_value(row, column, place) if column in row else None
        self.has_column = True
        if is_missing(text):
            self.counts.dropped["rows_without_text"] += 1
            return None
        if self.of_ids and isinstance(text, list):
            return _lines_of_ids(text, f"{place}: column '{column}'")
        if not isinstance(text, str):
            raise InputError(
                f"{place}: column '{column}' holds {type(text).__name__}, text expected"
            )
        # A JSON escape can spell half of a surrogate pair: no encoder accepts it further on.
        if not text.isascii() and SURROGATES.search(text):
            if self.reader.encoding_errors == "strict":
                raise InputError(
                    f"{place}: lone surrogate in '{column}'; fix it{self.reader.advice}"
                )
            text, num_replaced = SURROGATES.subn("\ufffd", text)
            self.counts.repaired["characters_replaced"] += num_replaced
        return self.reader.without_nul(text, place)


def _holds_lists_of_ids(kind: Any) -> bool:
    """Return whether a type of Arrow is a list of whole numbers, or a list of such lists."""
    import pyarrow.types as kinds

    depth = 0
    while depth < 2 and (
        kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)
    ):
        kind = kind.value_type
        depth += 1
    # Lists that are all empty have values of no type.
    return depth > 0 and (kinds.is_integer(kind) or kinds.is_null(kind))


def _open_hub(name: str, config_name: str | None, split: str, place: str) -> Iterator[Any]:
    from huggingface_hub import HfApi

    try:
        # One request with a short limit, so that a machine without network learns it at once:
        # `datasets` tries for minutes.
        HfApi().dataset_info(name, timeout=10)
        from datasets import load_dataset

        return iter(load_dataset(name, config_name, split=split, streaming=True))
    except network_errors(ValueError, RuntimeError) as error:
        raise InputError(
            f"{place}: cannot be opened ({first_line(error)}); check name and network, or give "
            "local text with --files"
        ) from error


def _lines_of_ids(values: list[Any], place: str) -> str:
    """Return the sentences of a document as lines of numbers.

    The document is one list of ids, or a list of such lists. An empty one is a blank text.
    """
    sentences = values if values and isinstance(values[0], list) else [values]
    lines = []
    for ids in sentences:
        if not isinstance(ids, list) or any(isinstance(number, list | dict) for number in ids):
            raise InputError(
                f"{place} nests its ids unevenly; a list of ids is expected, or a list of such "
                "lists"
            )
        for number in ids:
            if type(number) is not int:  # a truth value is an int too
                raise InputError(
                    f"{place} has {type(number).__name__} in a list; its ids are whole numbers"
                )
        lines.append(" ".join(map(str, ids)))

    return "\n".join(lines)


# Documents


def _make_reader(
    encoding_errors: EncodingErrors,
    counts: CorpusCounts,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
) -> Reader:
    return Reader(
        encoding_errors=encoding_errors,
        max_line_bytes=max_line_bytes,
        counts=counts,
        advice=", or set encoding_errors to 'replace'",
        line_advice=" If so, raise max_line_bytes",
    )


def iter_documents(  # noqa: PLR0913  # the public signature
    files: str | Path | Sequence[str | Path],
    *,
    document_boundary: DocumentBoundary = "auto",
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    wrapped_lines: bool = False,
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    of_ids: bool = False,
    counts: CorpusCounts | None = None,
) -> Iterator[list[str]]:
    """Read documents from text files and tables (`rows`), one by one.

    Each is its paragraphs in order, stripped, none of them blank, at least one. Broken UTF-8 or a
    NUL character stops (`strict`), or becomes U+FFFD or nothing and is counted (`replace`).

    Args:
        files: Files, folders (searched recursively) or globs; read in the order of the sorted
            paths, each once.
        document_boundary: What ends a document (see the module); `auto` is `blank_line` for text,
            `row` for rows.
        text_column: The column of the text in tables.
        encoding_errors: `strict` or `replace`.
        wrapped_lines: The lines of a paragraph are hard-wrapped: they are joined by a space; a
            blank line ends it.
        max_line_bytes: A longer line is refused.
        of_ids: Rows may hold lists of numbers, and `.npy` files are read; a document's sentences
            are numbers and spaces.
        counts: Filled with what was read, repaired and dropped.

    Example:
        >>> documents = list(iter_documents("books/", document_boundary="file"))  # doctest: +SKIP

    Source: google-research/bert README, "Pre-training with BERT" (one sentence a line, blank line
    between documents).
    """
    if counts is None:
        counts = CorpusCounts()
    paths = find_files(files, ID_SUFFIXES if of_ids else SUFFIXES)
    check_options(paths, document_boundary, wrapped_lines)
    reader = _make_reader(encoding_errors, counts, max_line_bytes)
    row_reader = _RowReader(reader=reader, text_column=text_column, of_ids=of_ids, counts=counts)
    for path in paths:
        if is_text(path):
            lines = _check_lines(path, document_boundary, (line for _, line in reader.lines(path)))
            documents = _cut_documents(lines, document_boundary, wrapped_lines, path)
        else:
            texts = row_reader.read_file(path)
            documents = _documents_of_rows(texts, document_boundary, wrapped_lines, counts, path)
        counts.files += 1
        num_documents_before = counts.documents
        for document in documents:
            counts.documents += 1
            yield document
        if counts.documents == num_documents_before:
            counts.dropped["files_without_text"] += 1


def iter_hub_documents(
    dataset: tuple[str, str | None, str],
    *,
    document_boundary: DocumentBoundary = "row",
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    wrapped_lines: bool = False,
    of_ids: bool = False,
    counts: CorpusCounts | None = None,
) -> Iterator[list[str]]:
    """Stream documents from a data set on the Hugging Face Hub.

    A row is a document, or with the boundary `heading` a line, as of WikiText, if a title is among
    the first. `dataset` is its name, configuration and split; the other options are those of
    `iter_documents`.
    """
    if counts is None:
        counts = CorpusCounts()
    reader = _make_reader(encoding_errors, counts)
    row_reader = _RowReader(reader=reader, text_column=text_column, of_ids=of_ids, counts=counts)
    texts = row_reader.read_hub(*dataset)
    place = f"Hub data set {dataset[0]!r}"
    for document in _documents_of_rows(texts, document_boundary, wrapped_lines, counts, place):
        counts.documents += 1
        yield document


def iter_paragraphs(
    files: Sequence[str | Path] | None,
    *,
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
    counts: CorpusCounts | None = None,
) -> Iterator[str]:
    """Yield paragraphs where it does not matter where documents end: for a vocabulary.

    They are stripped, none of them blank. The options are those of `iter_documents`.
    """
    for path in find_files(files or []):
        documents = iter_documents(
            path,
            # Line by line where that is possible: a text file without blank lines would be one
            # document in memory.
            document_boundary="line" if is_text(path) else "row",
            text_column=text_column,
            encoding_errors=encoding_errors,
            max_line_bytes=max_line_bytes,
            counts=counts,
        )
        yield from chain.from_iterable(documents)


def boundary_of(path: Path, document_boundary: DocumentBoundary) -> DocumentBoundary:
    """Return the boundary for one file: tables have `row`, unless `heading` was asked for."""
    return document_boundary if is_text(path) or document_boundary == "heading" else "row"


def check_options(
    paths: Sequence[Path], document_boundary: DocumentBoundary, wrapped_lines: bool
) -> None:
    """Refuse combinations that have no meaning."""
    if wrapped_lines and document_boundary == "line":
        raise InputError(
            "wrapped_lines joins lines, document_boundary 'line' makes each a document: choose one"
        )

    of_text: tuple[str, ...] = ("auto", "blank_line", "line", "file", "heading")
    of_rows: tuple[str, ...] = ("auto", "row", "heading")
    if any(map(is_text, paths)):  # a boundary of lines may be meant for these
        of_rows = (*of_text, "row")
    for path in paths:
        choices = of_text if is_text(path) else of_rows
        if wrapped_lines and document_boundary == "auto" and is_text(path):
            raise InputError(
                f"{path}: with wrapped_lines a blank line ends a paragraph; say what ends a "
                "document: --document_boundary file, or blank_line where each has one paragraph"
            )
        if document_boundary not in choices:
            raise InputError(
                f"{path}: document_boundary {document_boundary!r} does not go with this kind of "
                f"file; allowed: {', '.join(choices)}"
            )


def _check_lines(
    path: Path, document_boundary: DocumentBoundary, lines: Iterable[str]
) -> Iterator[str]:
    """Yield the lines of a text, and see that what is around the text is not read as text.

    Tags of WikiExtractor are refused. Project Gutenberg's licence, numbers of sentences as in the
    Leipzig corpora, and headings that are documents of their own are warned of.
    """
    is_by_blank_line = document_boundary in ("auto", "blank_line")
    last_text = ""
    num_numbered = 0
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith("<doc id="):
            raise InputError(
                f"{path}: tags of WikiExtractor; run it with --json, and give its files the ending "
                ".jsonl"
            )
        if line.startswith("*** START OF"):
            _warn_of_folder(path.parent, GUTENBERG_ADVICE)
        # A title between blank lines would be a document.
        text = line.strip()
        if is_by_blank_line and not text and _level_of_heading(last_text):
            _warn_of_folder(path.parent, HEADINGS_ADVICE)
        last_text = text
        if number <= NUMBERED_LINES and _NUMBERED.match(line):
            num_numbered += 1
            if num_numbered == NUMBERED_LINES:
                _warn_of_folder(path.parent, NUMBERS_ADVICE)
        yield line


@cache
def _warn_of_folder(folder: Path, advice: str) -> None:
    """Warn once of a folder, whose files may be many and are read several times."""
    logger.warning("%s: %s", folder, advice)


def _cut_documents(
    lines: Iterable[str], boundary: str, wrapped_lines: bool, place: str | Path
) -> Iterator[list[str]]:
    """Cut lines into documents of paragraphs; `auto` is `blank_line` here."""
    paragraphs: Iterable[str] = map(str.strip, lines)
    if wrapped_lines:
        paragraphs = _join_wrapped(paragraphs, keep_headings=boundary == "heading")
    document: list[str] = []
    num_characters = 0
    title_level = _TitleLevel()
    for paragraph in paragraphs:
        is_title = boundary == "heading" and title_level.starts_document(paragraph)
        if document and is_title:
            yield document
            document = []
            num_characters = 0
        if paragraph:
            document.append(paragraph)
        num_characters += len(paragraph)
        is_end = boundary == "line" or (not paragraph and boundary in ("auto", "blank_line"))
        if document and is_end:
            yield document
            document = []
            num_characters = 0
        if num_characters > MAX_DOCUMENT_CHARACTERS:
            raise InputError(
                f"{place}: a document of more than {MAX_DOCUMENT_CHARACTERS:,} characters, which "
                f"is held in memory as a whole; it begins {document[0]!r:.60}; split the row, or "
                "end documents of lines at blank lines, at titles such as '= Title =' "
                "(--document_boundary heading), or say that each line is one: --document_boundary "
                "line"
            )

    if document:
        yield document


class _TitleLevel:
    """Tell the headings of documents from those of their parts.

    A document's title has as many signs as the first heading of the file. If three headings with
    fewer signs follow among the first 50, the file began within an article: titles have that many
    from then on. Single ones are lines of text that look like a heading.
    """

    def __init__(self) -> None:
        self._level = 0
        self._counts: Counter[int] = Counter()

    def starts_document(self, line: str) -> bool:
        """Return whether a line is the heading of a document; asked once a line, in their order."""
        level = _level_of_heading(line)
        if level == 0:
            return False
        self._counts[level] += 1
        is_usual = self._counts.total() <= FIRST_HEADINGS and self._counts[level] > 2
        if self._level == 0 or (level < self._level and is_usual):
            self._level = level
        return level == self._level


def _level_of_heading(line: str) -> int:
    """Return how many signs a heading has on each side; 0 for a line that is none.

    Example:
        >>> [_level_of_heading(line) for line in ("= Title =", "= = Part = =", "a = b =")]
        [1, 2, 0]
    """
    if not line.startswith("= "):
        return 0
    heading = _HEADING.fullmatch(line)
    return 0 if heading is None else heading[1].count("=")


def _join_wrapped(lines: Iterable[str], *, keep_headings: bool) -> Iterator[str]:
    """Yield paragraphs of hard-wrapped lines, and "" for each blank line.

    A heading may be kept as a paragraph of its own.
    """
    paragraph: list[str] = []
    for line in lines:
        is_heading = keep_headings and _level_of_heading(line) > 0
        if line and not is_heading:
            paragraph.append(line)
            continue
        if paragraph:
            yield " ".join(paragraph)
            paragraph = []
        yield line

    if paragraph:
        yield " ".join(paragraph)


def _documents_of_rows(
    texts: Iterable[str],
    document_boundary: DocumentBoundary,
    wrapped_lines: bool,
    counts: CorpusCounts,
    place: str | Path,
) -> Iterator[list[str]]:
    """Make a document of each row, where a row of blanks is dropped and counted.

    With `heading` rows are lines, if there is a heading in the first ones.
    """
    texts = iter(texts)
    start = list(islice(texts, FIRST_ROWS)) if document_boundary == "heading" else []
    texts = chain(start, texts)
    if _has_heading(start):
        lines = chain.from_iterable(map(_split_lines, texts))
        yield from _cut_documents(lines, "heading", wrapped_lines, place)
        return
    for text in texts:
        documents = list(_cut_documents(_split_lines(text), "row", wrapped_lines, place))
        if not documents:
            counts.dropped["rows_without_text"] += 1
        yield from documents


def _has_heading(texts: Iterable[str]) -> bool:
    for text in texts:
        if any(_level_of_heading(line.strip()) for line in _split_lines(text)):
            return True
    return False


def _split_lines(text: str) -> list[str]:
    return re.split(r"\r\n?|\n", text)
