"""A store held to the files that it was made from, by a second and simpler reading of them."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bert_recipes.data.prepare import (
    CorpusArguments,
    PreparationReport,
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
    kept = Counter(num_documents=0, num_sentences=0, num_tokens=0)
    for entry in metadata["splits"].values():
        kept.update({name: entry[name] for name in kept})
    dropped: Counter[str] = sum(
        (Counter(counts) for counts in metadata["dropped"].values()), Counter()
    )
    read = metadata["read"]
    num_read = sum(counts["documents"] for counts in read.values())
    assert num_read == kept["num_documents"] + dropped["documents_without_sentences"]
    table = format_report(report)
    assert all(reason.replace("_", " ") in table for reason in dropped)
    files = find_sources(arguments)
    for split in dict.fromkeys(split for split, _ in files):
        check_reading(read[split], [path for own, path in files if own == split], arguments)
    if arguments.sentences == "lines":
        gone = dropped["sentences_without_tokens"] + dropped["paragraphs_that_are_no_passages"]
        found = [reading_of(path, arguments) for _, path in files]
        if None not in found:
            assert sum(part["paragraphs"] for part in found) == kept["num_sentences"] + gone


def check_reading(read: dict[str, Any], paths: Sequence[Path], arguments: CorpusArguments) -> None:
    """Files, bytes, documents and what was left out are those that the files hold."""
    assert read["files"] == len(paths)
    assert read["source_bytes"] == sum(path.stat().st_size for path in paths)
    found = [reading_of(path, arguments) for path in paths]
    if None in found:
        return
    assert read["documents"] == sum(part["documents"] for part in found)
    expected = {
        name: sum(part[name] for part in found)
        for name in ("rows_without_text", "files_without_text")
    }
    assert read["dropped"] == {name: number for name, number in expected.items() if number}
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
        text = unpacked(path).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
        if name.endswith(".txt"):
            return count(documents_of(text.replace("\0", ""), arguments), 0)
        try:
            values = [
                json.loads(line) for line in text.replace("\0", "").split("\n") if line.strip()
            ]
        except ValueError:
            return None
        rows = [value[arguments.text_column] for value in values]
    texts = [row.replace("\0", "") for row in rows if row is not None]
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
    paragraphs = [
        [block.replace("\n", " ")] if arguments.wrapped_lines else block.split("\n")
        for block in blocks
        if block
    ]
    if boundary == "file":
        return [[line for block in paragraphs for line in block]] if paragraphs else []
    return paragraphs


def check_contents(store: Store) -> None:
    """Every number of a store fits every other one."""
    for name, entry in store.metadata["splits"].items():
        split = store.train if name == "train" else store.validation
        offsets = split.sentence_offsets(0, split.num_documents)
        lengths = split.sentence_lengths(0, split.num_sentences)
        tokens = split.tokens(0, split.num_sentences)
        assert (split.num_documents, split.num_sentences, split.num_tokens) == (
            entry["num_documents"],
            entry["num_sentences"],
            entry["num_tokens"],
        )
        assert (np.diff(offsets) > 0).all()
        assert (lengths > 0).all()
        assert (offsets[0], offsets[-1]) == (0, len(lengths))
        assert lengths.sum() == len(tokens)
        assert np.array_equal(np.bincount(tokens, minlength=store.vocab_size), split.unigram_counts)
