"""A store held to the files that it was made from, by a second and simpler reading of them."""

import gzip
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bert_recipes.data.corpus import iter_documents, iter_paragraphs
from bert_recipes.data.prepare import (
    CorpusArguments,
    PreparationReport,
    add_counts,
    find_sources,
    format_report,
)
from bert_recipes.data.store import Store, open_store
from bert_recipes.tokenization.loading import load_tokenizer


def check_prepared(arguments: CorpusArguments, report: PreparationReport) -> None:
    """Everything that was read is in the store or counted, and the store is sound."""
    store = open_store(arguments.output_dir)
    check_contents(store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    store.check_tokenizer(tokenizer.fingerprint, len(tokenizer))
    metadata = store.metadata
    entries = metadata["splits"].values()
    dropped = add_counts(metadata["dropped"].values())
    num_read = sum(counts["documents"] for counts in metadata["read"].values())
    num_documents = sum(entry["num_documents"] for entry in entries)
    assert num_read == num_documents + dropped.get("documents_without_sentences", 0)
    table = format_report(report)
    assert all(reason.replace("_", " ") in table for reason in dropped)
    files: dict[str, list[Path]] = {}
    for split, path in find_sources(arguments):
        files.setdefault(split, []).append(path)
    for split, paths in files.items():
        check_reading(metadata["read"][split], paths, arguments)
    readings = [reading_of(path, arguments) for paths in files.values() for path in paths]
    if not arguments.wrapped_lines:
        check_paragraphs(arguments)
    if arguments.sentences == "lines" and None not in readings:
        reasons = ("sentences_without_tokens", "paragraphs_that_are_no_passages")
        num_dropped = sum(dropped.get(reason, 0) for reason in reasons)
        num_sentences = sum(entry["num_sentences"] for entry in entries)
        assert total(readings)["paragraphs"] == num_sentences + num_dropped


def check_paragraphs(arguments: CorpusArguments) -> None:
    """A vocabulary is trained on the same paragraphs."""
    options: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("text_column", "encoding_errors", "max_line_bytes")
    }
    files = arguments.files or []
    documents = iter_documents(files, document_boundary=arguments.document_boundary, **options)
    paragraphs = itertools.chain.from_iterable(documents)
    assert list(iter_paragraphs(files, **options)) == list(paragraphs)


def total(readings: Sequence[Counter[str]]) -> Counter[str]:
    return sum(readings, Counter())


def check_reading(read: dict[str, Any], paths: Sequence[Path], arguments: CorpusArguments) -> None:
    """Files, bytes, documents and empty texts are those that the files hold."""
    assert read["files"] == len(paths)
    assert read["source_bytes"] == sum(path.stat().st_size for path in paths)
    readings = [reading_of(path, arguments) for path in paths]
    if None in readings:
        return
    reading = total(readings)
    assert read["documents"] == reading["documents"]
    for name in ("rows_without_text", "files_without_text"):
        assert read["dropped"].get(name, 0) == reading[name]
    if not any(path.name.lower().endswith(".parquet") for path in paths):
        assert read["text_bytes"] == sum(len(unpacked(path)) for path in paths)


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.name.lower().endswith(".gz") else data


def reading_of(path: Path, arguments: CorpusArguments) -> Counter[str] | None:
    """Documents, paragraphs, rows and files without text of a file; None for JSON that only we
    read.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        rows = pq.read_table(path, columns=[arguments.text_column]).column(0).to_pylist()
    else:
        data = unpacked(path).removeprefix(b"\xef\xbb\xbf")
        if b"\n" not in data:  # line ends of old Macs
            data = data.replace(b"\r", b"\n")
        text = data.decode("utf-8", "replace")
        if name.endswith(".txt"):
            return count(documents_of(text.replace("\0", ""), arguments), 0)
        lines = text.replace("\0", "").split("\n")
        try:
            values = [json.loads(line) for line in lines if line.strip()]
        except ValueError:
            return None
        rows = [value[arguments.text_column] for value in values]
    texts = [re.sub("\r\n?", "\n", row.replace("\0", "")) for row in rows if row is not None]
    documents = [document for text in texts for document in documents_of(text, arguments, "file")]
    return count(documents, len(rows) - len(documents))


def count(documents: list[list[str]], num_empty_rows: int) -> Counter[str]:
    return Counter(
        documents=len(documents),
        paragraphs=sum(map(len, documents)),
        rows_without_text=num_empty_rows,
        files_without_text=int(not documents),
    )


def documents_of(
    text: str, arguments: CorpusArguments, boundary: str | None = None
) -> list[list[str]]:
    """The paragraphs of each document, by regular expressions instead of line by line."""
    boundary = boundary or arguments.document_boundary
    lines = [line.strip() for line in text.split("\n")]
    if boundary == "line":
        return [[line] for line in lines if line]
    blocks = [block.strip("\n") for block in re.split("\n\n+", "\n".join(lines))]
    documents = [block.split("\n") for block in blocks if block]
    if arguments.wrapped_lines:
        documents = [[" ".join(paragraphs)] for paragraphs in documents]
    if boundary == "file" and documents:
        return [list(itertools.chain(*documents))]
    return documents


def check_contents(store: Store) -> None:
    """Every number of a store fits every other one."""
    for name, entry in store.metadata["splits"].items():
        split = store.train if name == "train" else store.validation
        offsets = split.sentence_offsets(0, split.num_documents)
        lengths = split.sentence_lengths(0, split.num_sentences)
        tokens = split.tokens(0, split.num_sentences)
        for number in ("num_documents", "num_sentences", "num_tokens"):
            assert getattr(split, number) == entry[number]
        assert (np.diff(offsets) > 0).all()
        assert (lengths > 0).all()
        assert (offsets[0], offsets[-1]) == (0, len(lengths))
        assert lengths.sum() == len(tokens)
        assert np.array_equal(np.bincount(tokens, minlength=store.vocab_size), split.unigram_counts)
