"""Predicted labels of words in the columns that CoNLL scorers read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from bert_recipes.errors import saving
from bert_recipes.tasks.examples import TaggedExample


DOCUMENT_START = "-DOCSTART-"


def write_columns(
    path: Path, examples: Sequence[TaggedExample], labels: Sequence[str], predictions: Sequence[Sequence[str]]
) -> None:
    """Write a word a line, `word gold predicted` or, where the gold labels are hidden, `word predicted`.

    A blank line ends a sentence, and a line -DOCSTART- with O in the other columns opens each document where documents
    have more than one sentence. The official scorer conlleval reads the file as it is. White space inside a word
    becomes "_", so that the columns stay.

    Args:
        path: File to write.
        examples: The sentences.
        labels: Names of the gold labels by their numbers.
        predictions: One label for each word of each sentence.

    Raises:
        InputError: The file cannot be written.
    """
    has_documents = any(first.document == second.document for first, second in pairwise(examples))
    document: int | None = None
    with saving(path), path.open("w", encoding="utf-8", newline="\n") as file:
        for example, predicted in zip(examples, predictions, strict=True):
            if has_documents and example.document != document:
                document = example.document
                file.write(f"{DOCUMENT_START} O{'' if example.labels is None else ' O'}\n\n")
            gold = None if example.labels is None else [labels[label] for label in example.labels]
            for number, (word, guess) in enumerate(zip(example.tokens, predicted, strict=True)):
                row = ["_".join(word.split()) or "_", *([] if gold is None else [gold[number]]), guess]
                file.write(" ".join(row) + "\n")
            file.write("\n")
