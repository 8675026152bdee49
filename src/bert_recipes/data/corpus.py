"""Text sources -> documents: files, folders, globs and Hub data sets; where a document ends is named, never guessed.

A document is a list of paragraphs (lines of the text, without blank ones). What ends it (``document_boundary``):

======================= ===============================================================================================
``blank_line``          a blank line, as in google-research/bert; default for ``.txt``
``line``                every line is a document
``file``                every file is a document; blank lines only separate paragraphs
``row``                 every row is a document; default and only choice for JSON, Parquet and Hub data sets
======================= ===============================================================================================

The end of a file always ends a document. google-research/bert's create_pretraining_data.py lets a document go on in the next
input file unless a blank line stands between; ``recipes/create_pretraining_data.py`` keeps to that, this reader does not:
here the result must not depend on which file happens to be read before.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from bert_recipes.data.files import TEXT_SUFFIXES, find_files
from bert_recipes.data.rows import iter_file_texts, iter_hub_texts
from bert_recipes.data.text_lines import MAX_LINE_BYTES, CorpusCounts, EncodingErrors, read_lines
from bert_recipes.errors import InputError


__all__ = ["CorpusCounts", "DocumentBoundary", "EncodingErrors", "iter_documents", "iter_hub_documents", "iter_paragraphs"]

DocumentBoundary = Literal["auto", "blank_line", "line", "file", "row"]


def iter_documents(
    files: str | Path | Sequence[str | Path],
    *,
    document_boundary: DocumentBoundary = "auto",
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    wrapped_lines: bool = False,
    max_line_bytes: int = MAX_LINE_BYTES,
    counts: CorpusCounts | None = None,
) -> Iterator[list[str]]:
    """Read documents from ``.txt``, ``.jsonl``, ``.json`` (each also ``.gz``) and ``.parquet`` files, one by one.

    Args:
        files: Files, folders (searched recursively) or globs; read in the order of the sorted paths, each once.
        document_boundary: What ends a document (see the module); ``auto`` is ``blank_line`` for text, ``row`` for rows.
        text_column: Column of the text in JSON and Parquet rows.
        encoding_errors: ``strict`` stops at broken UTF-8 or a NUL character and names file and line; ``replace`` puts
            U+FFFD, drops NULs and counts both.
        wrapped_lines: The lines of a paragraph are hard-wrapped: they are joined by a space; a blank line ends it.
        max_line_bytes: Longest line accepted (also of JSON Lines).
        counts: Filled with what was read, repaired and dropped.

    Yields:
        A document: its paragraphs in order, stripped, none of them blank; at least one.

    Example:
        >>> documents = list(iter_documents("books/", document_boundary="file"))  # doctest: +SKIP

    Raises:
        InputError: With file and line or row, for whatever cannot be read.

    Source: google-research/bert README, "Pre-training with BERT" (one sentence a line, blank line between documents).
    """
    counts = counts if counts is not None else CorpusCounts()
    paths = find_files(files)
    check_options(paths, document_boundary, wrapped_lines)
    for path in paths:
        if path.name.lower().endswith(TEXT_SUFFIXES):
            lines = read_lines(path, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, counts=counts)
            documents = _cut_documents((text for _, text in lines), document_boundary, wrapped_lines)
        else:
            texts = iter_file_texts(
                path,
                text_column=text_column,
                encoding_errors=encoding_errors,
                max_line_bytes=max_line_bytes,
                counts=counts,
            )
            documents = _documents_of_rows(texts, wrapped_lines, counts)
        yield from _count_documents(documents, counts)


def iter_hub_documents(
    name: str,
    config_name: str | None = None,
    split: str = "train",
    *,
    text_column: str = "text",
    encoding_errors: EncodingErrors = "strict",
    wrapped_lines: bool = False,
    counts: CorpusCounts | None = None,
) -> Iterator[list[str]]:
    """Stream documents from a data set on the Hugging Face Hub: one row, one document. Needs the network.

    Args, yields and counts are those of `iter_documents`.

    Raises:
        InputError: If the Hub cannot be reached, or has no such data set, configuration, split or column.
    """
    counts = counts if counts is not None else CorpusCounts()
    texts = iter_hub_texts(
        name, config_name, split, text_column=text_column, encoding_errors=encoding_errors, counts=counts
    )
    for document in _documents_of_rows(texts, wrapped_lines, counts):
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
    """Read text where it does not matter where documents end: for a vocabulary.

    Args:
        files: As for `iter_documents`; or None, for a data set on the Hub.
        dataset: Its name, configuration and split.
        text_column, encoding_errors, counts: As for `iter_documents`; a line counts as a document.

    Yields:
        Paragraphs, stripped, none of them blank.

    Raises:
        InputError: As `iter_documents` and `iter_hub_documents`.
    """
    reading: dict[str, Any] = {"text_column": text_column, "encoding_errors": encoding_errors, "counts": counts}
    name, config_name, split = dataset
    if name is not None:
        yield from chain.from_iterable(iter_hub_documents(name, config_name, split, **reading))
        return
    for path in find_files(files or []):
        # Line by line where that is possible: a text file without blank lines would be one document in memory.
        boundary: DocumentBoundary = "line" if path.name.lower().endswith(TEXT_SUFFIXES) else "row"
        yield from chain.from_iterable(iter_documents(path, document_boundary=boundary, **reading))


def _count_documents(documents: Iterable[list[str]], counts: CorpusCounts) -> Iterator[list[str]]:
    """Pass the documents of a file on and count them."""
    counts.files += 1
    before = counts.documents
    for document in documents:
        counts.documents += 1
        yield document
    if counts.documents == before:
        counts.dropped["files_without_text"] += 1


def check_options(paths: Sequence[Path], document_boundary: DocumentBoundary, wrapped_lines: bool) -> None:
    """Refuse combinations that have no meaning.

    Args:
        paths: Files that shall be read.
        document_boundary: As for `iter_documents`.
        wrapped_lines: As for `iter_documents`.

    Raises:
        InputError: With the file that the boundary does not go with.
    """
    if wrapped_lines and document_boundary == "line":
        raise InputError("wrapped_lines joins lines, document_boundary 'line' makes each a document: choose one")
    if document_boundary == "auto":
        return
    for path in paths:
        is_text = path.name.lower().endswith(TEXT_SUFFIXES)
        if is_text == (document_boundary == "row"):
            allowed = "auto, blank_line, line or file" if is_text else "auto or row"
            raise InputError(
                f"{path}: document_boundary {document_boundary!r} does not go with this kind of file; allowed: {allowed}"
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


def _documents_of_rows(texts: Iterable[str], wrapped_lines: bool, counts: CorpusCounts) -> Iterator[list[str]]:
    """Make a document of each row; a row of blanks is dropped and counted."""
    for text in texts:
        documents = list(_cut_documents(text.split("\n"), "row", wrapped_lines))
        if not documents:
            counts.dropped["rows_without_text"] += 1
        yield from documents
