"""Text sources -> documents: files, folders, globs and Hub data sets; where a document ends is
named, never guessed.

A document is a list of paragraphs (lines of the text, without blank ones). What ends it
(``document_boundary``):

=======================
===============================================================================================
``blank_line``          a blank line, as in google-research/bert; default for ``.txt`` ``line``
every line is a document ``file``                every file is a document; blank lines only separate
paragraphs ``row``                 every row is a document; default and only choice for tables and
Hub data sets =======================
===============================================================================================

The end of a file always ends a document. google-research/bert's create_pretraining_data.py lets a
document go on in the next input file unless a blank line stands between;
``recipes/create_pretraining_data.py`` keeps to that, this reader does not: here the result must not
depend on which file happens to be read before.
"""

import fnmatch
import glob
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from bert_recipes.errors import InputError, first_line
from bert_recipes.hub_access import network_errors
from bert_recipes.rows import (
    COMPRESSION_SUFFIXES,
    MAX_LINE_BYTES,
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

SUFFIXES = (".txt", *TABLE_SUFFIXES)
ID_SUFFIXES = (*SUFFIXES, ".npy")  # of ids that are no text

DocumentBoundary = Literal["auto", "blank_line", "line", "file", "row"]
# A terabyte: no machine holds such a line, and larger numbers do not fit what the system counts
# bytes in.
MOST_LINE_BYTES = 2**40


def find_files(
    paths: str | Path | Sequence[str | Path], suffixes: tuple[str, ...] = SUFFIXES
) -> list[Path]:
    """Resolve files, folders (searched recursively) and globs (``**`` goes into folders) to the
    corpus files, at least one.

    The order is that of the sorted paths, whatever the order they were given in; a file that is
    reached twice (also through a link) is taken once. Hidden files are left out, and in folders and
    globs also files of other kinds: both are logged.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise InputError(f"no input: give files, folders or globs ({', '.join(suffixes)})")
    found: list[Path] = []
    skipped: list[Path] = []
    for entry in given:
        path = Path(entry)
        if not str(entry).strip():
            raise InputError("an input path is empty; give files, folders or globs")
        if path.is_file():
            if not _has_suffix(path, suffixes):
                raise InputError(
                    f"{path}: unknown kind of file; the name must end in {', '.join(suffixes)}"
                )
            found.append(path)
            continue
        if path.is_dir():
            what, below = "folder holds", list(_walk(path, suffixes))
        elif glob.has_magic(str(entry)):
            check_pattern(str(entry))
            what, below = "pattern matches", list(_match(str(entry), suffixes))
        else:
            raise InputError(f"{path}: there is no such file or folder")
        if not any(is_wanted for _, is_wanted in below):
            raise InputError(f"{entry}: this {what} no file that ends in {', '.join(suffixes)}")
        for file, is_wanted in below:
            (found if is_wanted else skipped).append(file)
    if skipped:
        logger.warning(
            "%d files are not read: hidden, or not of %s (first: %s)",
            len(skipped),
            "/".join(suffixes),
            skipped[0],
        )
    unique: dict[str, Path] = {}
    for path in sorted(found, key=lambda path: path.as_posix()):
        # Opening a pipe would wait for ever.
        if not path.is_file():
            raise InputError(
                f"{path}: no file that can be read, but a broken link, a pipe or a device; remove "
                "it"
            )
        unique.setdefault(os.path.realpath(path), path)
    return list(unique.values())


def _has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    suffix = format_suffix(path)
    is_compressed = path.suffix.lower() in COMPRESSION_SUFFIXES
    return suffix in suffixes and not (is_compressed and suffix in (".parquet", ".npy"))


def _is_text(path: Path) -> bool:
    return format_suffix(path) == ".txt"


def _walk(
    folder: Path, suffixes: tuple[str, ...], *, hidden_folders: bool = False
) -> Iterator[tuple[Path, bool]]:
    """Yield the files below a folder, and whether each is of the corpus.

    Each folder is entered once, however many links lead to it: folders that link each other would
    lead round and round.
    """
    entered = {os.path.realpath(folder)}
    for root, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        here = Path(os.path.realpath(root))
        new_folders = []
        for name in sorted(folders):
            target = os.path.realpath(Path(root, name))
            is_around = here.is_relative_to(target)
            if (
                target not in entered
                and not is_around
                and (hidden_folders or not name.startswith("."))
            ):
                entered.add(target)
                new_folders.append(name)
        folders[:] = new_folders
        for name in names:
            yield Path(root, name), _has_suffix(Path(name), suffixes) and not name.startswith(".")


def _match(pattern: str, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, bool]]:
    """Yield the files that a pattern matches, and those in matched folders; with whether each is of
    the corpus.

    Python's own ``**`` follows links round and round: below it the folders are walked as `_walk`
    does.
    """
    parts = Path(pattern).parts
    start = parts.index("**") if "**" in parts else len(parts)
    for match in map(Path, glob.glob(os.path.join("", *parts[:start]) or os.curdir)):
        if start == len(parts):
            yield from (
                _walk(match, suffixes)
                if match.is_dir()
                else [(match, _has_suffix(match, suffixes))]
            )
        elif match.is_dir():
            names_hidden = any(part.startswith(".") for part in parts[start:])
            for file, _ in _walk(match, suffixes, hidden_folders=names_hidden):
                if _fits(file.relative_to(match).parts, parts[start:]):
                    yield file, _has_suffix(file, suffixes)


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether the names of a path fit a pattern's parts as for the shell: only a dot that is
    written matches a hidden name.
    """
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    name, part = names[0], pattern[0]
    if name.startswith(".") and not part.startswith("."):
        return part == "**" and _fits(names, pattern[1:])
    if part == "**":
        return _fits(names, pattern[1:]) or _fits(names[1:], pattern)
    return fnmatch.fnmatchcase(name, part) and _fits(names[1:], pattern[1:])


def _refuse(error: OSError) -> NoReturn:
    raise InputError(
        f"{error.filename}: this folder cannot be read ({error.strerror}), and nothing is left "
        "out in silence; make it "
        "readable, or name the files to take"
    ) from error


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that looks into a folder that cannot be listed: `glob` passes over it
    without a word.
    """
    parts = Path(pattern).parts
    # Below ** the folders are walked, which refuses those.
    for number, part in enumerate(parts[: parts.index("**") + 1] if "**" in parts else parts):
        if glob.has_magic(part):
            above = os.path.join(*parts[:number], "") if number else os.curdir
            for folder in glob.glob(above):
                try:
                    os.scandir(folder).close()
                except OSError as error:
                    _refuse(error)


def describe_files(files: Sequence[Path]) -> list[dict[str, str | int]]:
    """Return name and size in bytes of each file; names start at the deepest folder that all of
    them share.
    """
    if not files:
        return []
    parents = [os.path.realpath(path.parent) for path in files]
    base = os.path.dirname(os.path.commonpath(parents))
    return [
        {
            "name": Path(os.path.relpath(os.path.join(parent, path.name), base)).as_posix(),
            "bytes": path.stat().st_size,
        }
        for parent, path in zip(parents, files, strict=True)
    ]


@dataclass(kw_only=True)
class CorpusCounts(ReadCounts):
    """Counts of what was read, filled while the documents are drawn.

    ``source_bytes`` are those of the files passed so far as they lie on the disk, ``text_bytes``
    are unpacked. ``repaired``: ``byte_order_marks_removed``, ``characters_replaced``,
    ``nul_characters_removed``. ``dropped``: ``rows_without_text``, ``files_without_text``.
    """

    files: int = 0
    documents: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """Return all counts as JSON values."""
        return {**vars(self), "repaired": dict(self.repaired), "dropped": dict(self.dropped)}


@dataclass(kw_only=True)
class _Texts:
    """Read the text of each row of tables, arrays and Hub data sets."""

    reader: Reader
    text_column: str
    counts: CorpusCounts
    of_ids: bool = (
        False  # a row may hold a list of numbers, or of sentences of them, instead of text
    )

    def of_file(self, path: Path) -> Iterator[str]:
        """Yield the text of every row of a table or an array; rows whose text is missing are
        dropped and counted.
        """
        bytes_before = self.counts.source_bytes
        rows = self._array_rows(path) if path.suffix.lower() == ".npy" else self._table_rows(path)
        for where, row in rows:
            text = self._text_of(row, where)
            if text is not None:
                yield text
        self.counts.source_bytes = bytes_before + path.stat().st_size

    def _table_rows(self, path: Path) -> Iterator[tuple[str, Any]]:
        is_parquet = path.suffix.lower() == ".parquet"
        if is_parquet:
            self._check_schema(path)
        table = self.reader.table(path, [self.text_column] if is_parquet else None)
        for number, row in table.rows:
            if is_parquet and isinstance(row[self.text_column], str):
                self.counts.text_bytes += len(row[self.text_column].encode("utf-8"))
            yield table.where(number), row

    def _array_rows(self, path: Path) -> Iterator[tuple[str, Any]]:
        """Yield each row of an array of ids, which is a document; numbers below 0 fill rows up."""
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"{path}: no array of numbers ({first_line(error)})") from error
        if array.ndim != 2 or array.dtype.kind not in "iu":
            raise InputError(
                f"{path}: {array.ndim} dimensions of {array.dtype}; whole numbers in 2 are read: "
                "documents, ids"
            )
        for number, row in enumerate(array, start=1):
            self.counts.text_bytes += row.nbytes
            yield f"{path}, row {number}", {self.text_column: row[row >= 0].tolist() or None}

    def _check_schema(self, path: Path) -> None:
        """Refuse a Parquet file that has no column of text under this name, or more than one."""
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
            raise InputError(f"{path}: column '{column}' is there more than once; keep one")
        kind = schema.field(column).type
        values = getattr(kind, "storage_type", kind)
        values = values.value_type if kinds.is_dictionary(values) else values
        # Values of some other types cannot even be turned into Python's; a column of nulls has no
        # type of its own.
        text_kinds = (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_null)
        if not any(is_kind(values) for is_kind in text_kinds):
            raise InputError(
                f"{path}: column '{column}' holds {list_columns([kind])}, text expected"
            )

    def of_hub(self, name: str, config_name: str | None, split: str) -> Iterator[str]:
        """Yield the text of every row of a data set on the Hugging Face Hub, streamed in the order
        of its files.
        """
        from huggingface_hub import HfApi

        where = f"Hub data set {name!r}"
        try:
            # One request with a short limit, so that a machine without network learns it at once:
            # `datasets` tries for minutes.
            HfApi().dataset_info(name, timeout=10)
            from datasets import load_dataset

            rows = iter(load_dataset(name, config_name, split=split, streaming=True))
        except network_errors(ValueError, RuntimeError) as error:
            raise InputError(
                f"{where}: cannot be opened ({first_line(error)}); check name and network, or "
                "give local text with --files"
            ) from error
        for number in count(1):
            try:
                row = next(rows, None)
            except network_errors() as error:
                raise InputError(
                    f"{where}: the connection broke after row {number - 1} ({error})"
                ) from error
            if row is None:
                return
            text = self._text_of(row, f"{where}, row {number}")
            if text is not None:
                size = len(text.encode("utf-8"))
                self.counts.text_bytes += size
                self.counts.source_bytes += size
                yield text

    def _no_column(self, names: Iterable[str], where: str) -> InputError:
        return InputError(
            f"{where}: no column '{self.text_column}'; columns present: {list_columns(names)}; "
            "set text_column to one of them"
        )

    def _text_of(self, row: Any, where: str) -> str | None:
        """Return the text of a row, or None (counted) where it is missing."""
        column = self.text_column
        if column not in row:
            raise self._no_column(row, where)
        text = column_value(row, column, where)
        if is_missing(text):
            self.counts.dropped["rows_without_text"] += 1
            return None
        if self.of_ids and isinstance(text, list) and text:
            return _lines_of_ids(text, f"{where}: column '{column}'")
        if not isinstance(text, str):
            raise InputError(
                f"{where}: column '{column}' holds {type(text).__name__}, text expected"
            )
        # A JSON escape can spell half of a surrogate pair: no encoder accepts it further on.
        if not text.isascii() and SURROGATES.search(text):
            if self.reader.encoding_errors == "strict":
                raise InputError(
                    f"{where}: lone surrogate in '{column}'; fix it{self.reader.advice}"
                )
            text, replaced = SURROGATES.subn("\ufffd", text)
            self.counts.repaired["characters_replaced"] += replaced
        return self.reader.without_nul(text, where)


def _lines_of_ids(values: list[Any], where: str) -> str:
    """Return the sentences of a document as lines of numbers; the document is one list of ids, or a
    list of such lists.
    """
    is_nested = isinstance(values[0], list)
    lines = []
    for ids in values if is_nested else [values]:
        if not isinstance(ids, list) or any(isinstance(number, list | dict) for number in ids):
            raise InputError(
                f"{where} nests its ids unevenly; a list of ids is expected, or a list of such "
                "lists"
            )
        lines.append(" ".join(map(str, ids)))
    return "\n".join(lines)


def _make_reader(
    encoding_errors: EncodingErrors, counts: CorpusCounts, max_line_bytes: int = MAX_LINE_BYTES
) -> Reader:
    return Reader(
        encoding_errors=encoding_errors,
        max_line_bytes=max_line_bytes,
        counts=counts,
        advice=", or set encoding_errors to 'replace'",
    )


def iter_documents(
    files: str | Path | Sequence[str | Path],
    *,
    document_boundary: DocumentBoundary = "auto",
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    wrapped_lines: bool = False,
    max_line_bytes: int = MAX_LINE_BYTES,
    of_ids: bool = False,
    counts: CorpusCounts | None = None,
) -> Iterator[list[str]]:
    """Read documents from text files and tables (`rows`), one by one.

    Each is its paragraphs in order, stripped, none of them blank, at least one. Broken UTF-8 or a
    NUL character stops (``strict``), or becomes U+FFFD or nothing and is counted (``replace``).

    Args:
        files: Files, folders (searched recursively) or globs; read in the order of the sorted
            paths, each once.
        document_boundary: What ends a document (see the module); ``auto`` is ``blank_line`` for
            text, ``row`` for rows.
        wrapped_lines: The lines of a paragraph are hard-wrapped: they are joined by a space; a
            blank line ends it.
        of_ids: Rows may hold lists of numbers, and ``.npy`` files are read; a document's sentences
            are numbers and spaces.
        counts: Filled with what was read, repaired and dropped.

    Example:
        >>> documents = list(iter_documents("books/", document_boundary="file"))  # doctest: +SKIP

    Source: google-research/bert README, "Pre-training with BERT" (one sentence a line, blank line
    between documents).
    """
    counts = counts if counts is not None else CorpusCounts()
    paths = find_files(files, ID_SUFFIXES if of_ids else SUFFIXES)
    check_options(paths, document_boundary, wrapped_lines)
    reader = _make_reader(encoding_errors, counts, max_line_bytes)
    texts = _Texts(reader=reader, text_column=text_column, of_ids=of_ids, counts=counts)
    for path in paths:
        if _is_text(path):
            documents = _cut_documents(
                (text for _, text in reader.lines(path)), document_boundary, wrapped_lines
            )
        else:
            documents = _documents_of_rows(texts.of_file(path), wrapped_lines, counts)
        counts.files += 1
        before = counts.documents
        for document in documents:
            counts.documents += 1
            yield document
        if counts.documents == before:
            counts.dropped["files_without_text"] += 1


def iter_hub_documents(
    name: str,
    config_name: str | None = None,
    split: str = "train",
    *,
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    wrapped_lines: bool = False,
    of_ids: bool = False,
    counts: CorpusCounts | None = None,
) -> Iterator[list[str]]:
    """Stream documents, as `iter_documents` has them, from a data set on the Hugging Face Hub: one
    row, one document.
    """
    counts = counts if counts is not None else CorpusCounts()
    reader = _make_reader(encoding_errors, counts)
    texts = _Texts(reader=reader, text_column=text_column, of_ids=of_ids, counts=counts)
    for document in _documents_of_rows(
        texts.of_hub(name, config_name, split), wrapped_lines, counts
    ):
        counts.documents += 1
        yield document


def iter_paragraphs(
    files: Sequence[str | Path] | None,
    *,
    dataset: tuple[str | None, str | None, str] = (None, None, "train"),
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    counts: CorpusCounts | None = None,
) -> Iterator[str]:
    """Yield paragraphs, stripped, none of them blank, where it does not matter where documents end:
    for a vocabulary.

    The options are those of `iter_documents`; `dataset` is the name, configuration and split of one
    on the Hub, instead of files.
    """
    reading: dict[str, Any] = {
        "text_column": text_column,
        "encoding_errors": encoding_errors,
        "counts": counts,
    }
    name, config_name, split = dataset
    if name is not None:
        yield from chain.from_iterable(iter_hub_documents(name, config_name, split, **reading))
        return
    for path in find_files(files or []):
        # Line by line where that is possible: a text file without blank lines would be one document
        # in memory.
        boundary: DocumentBoundary = "line" if _is_text(path) else "row"
        yield from chain.from_iterable(iter_documents(path, document_boundary=boundary, **reading))


def check_options(
    paths: Sequence[Path], document_boundary: DocumentBoundary, wrapped_lines: bool
) -> None:
    """Refuse combinations that have no meaning."""
    if wrapped_lines and document_boundary == "line":
        raise InputError(
            "wrapped_lines joins lines, document_boundary 'line' makes each a document: choose one"
        )
    for path in paths:
        is_text = _is_text(path)
        if document_boundary != "auto" and is_text == (document_boundary == "row"):
            allowed = "auto, blank_line, line or file" if is_text else "auto or row"
            raise InputError(
                f"{path}: document_boundary {document_boundary!r} does not go with this kind of "
                f"file; allowed: {allowed}"
            )


def _cut_documents(lines: Iterable[str], boundary: str, wrapped_lines: bool) -> Iterator[list[str]]:
    """Cut lines into documents of paragraphs; ``auto`` is ``blank_line`` here."""
    document: list[str] = []
    wrapped: list[str] = []
    for line in lines:
        text = line.strip()
        if text and not wrapped_lines:
            document.append(text)
        elif text:
            wrapped.append(text)
        elif wrapped:
            document.append(" ".join(wrapped))
            wrapped = []
        if document and (boundary == "line" or (boundary in ("auto", "blank_line") and not text)):
            yield document
            document = []
    if wrapped:
        document.append(" ".join(wrapped))
    if document:
        yield document


def _documents_of_rows(
    texts: Iterable[str], wrapped_lines: bool, counts: CorpusCounts
) -> Iterator[list[str]]:
    """Make a document of each row; a row of blanks is dropped and counted."""
    for text in texts:
        documents = list(_cut_documents(text.split("\n"), "row", wrapped_lines))
        if not documents:
            counts.dropped["rows_without_text"] += 1
        yield from documents
