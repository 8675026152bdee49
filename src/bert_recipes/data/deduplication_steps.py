"""What datatrove needs of us to deduplicate: our documents, words of any language, which of duplicates stays, rows to write."""

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.io import get_datafolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils.binaryio import read_tuples_from_file
from datatrove.utils.word_tokenizers import WordTokenizer

from bert_recipes.data.corpus import CorpusCounts, iter_documents
from bert_recipes.data.deduplication_arguments import DeduplicationArguments
from bert_recipes.data.executors import messages_in_task_log


# Thai, Lao, Burmese, Khmer, kana and Han: scripts that put no space between words.
_NO_SPACES = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\s{_NO_SPACES}]+")
# datatrove keeps the document of the highest priority, and of these the first in its part.
_HIGHEST_PRIORITY = 2**16 - 1


class ReadCorpus(PipelineStep):
    """Reads the documents of a part of the files as ``recipes/prepare_corpus.py`` does.

    Args:
        parts: The files of each rank.
        arguments: How to read them.
    """

    type, name = "corpus", "read"

    def __init__(self, parts: Sequence[Sequence[Path]], arguments: DeduplicationArguments) -> None:
        super().__init__()
        self.parts, self.arguments = parts, arguments

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield a document's paragraphs, one a line."""
        arguments, counts = self.arguments, CorpusCounts()
        documents = iter_documents(
            self.parts[rank],
            document_boundary=arguments.document_boundary,
            text_column=arguments.text_column,
            encoding_errors=arguments.encoding_errors,
            wrapped_lines=arguments.wrapped_lines,
            max_line_bytes=arguments.max_line_bytes,
            counts=counts,
        )
        with messages_in_task_log():
            for number, paragraphs in enumerate(documents):
                yield Document(text="\n".join(paragraphs), id=f"{rank}/{number}", metadata={"part": rank})
        for kind, numbers in (("dropped", counts.dropped), ("repaired", counts.repaired)):
            for reason, number in numbers.items():
                self.stat_update(f"{kind} {reason}", value=number)


class WordsOfAnyLanguage(WordTokenizer):
    """Cuts text at blanks, and scripts without blanks into characters. datatrove's own needs a package for each language."""

    def word_tokenize(self, text: str) -> list[str]:
        """Words in order."""
        return _WORD.findall(text)

    def sent_tokenize(self, text: str) -> list[str]:
        """The text as one; nothing here asks for sentences."""
        return [text]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Its span."""
        return [(0, len(text))]


class KeepFirst(PipelineStep):
    """Of each cluster of near duplicates, lists all but the first for `MinhashDedupFilter`.

    `MinhashDedupCluster` lists all but one as well, but which one depends on how the files were dealt out.

    Args:
        input_folder: Its output, with cluster ids.
        output_folder: Where the lists go.
    """

    type, name = "corpus", "keep the first"

    def __init__(self, input_folder: str, output_folder: str) -> None:
        super().__init__()
        self.input_folder, self.output_folder = get_datafolder(input_folder), get_datafolder(output_folder)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Go through the documents in their order; one task."""
        seen: set[int] = set()
        with self.output_folder.get_output_file_manager(mode="wb") as lists:
            for file in self.input_folder.list_files(glob_pattern="*.clusters"):
                with self.input_folder.open(file, "rb") as stream:
                    for document, cluster in read_tuples_from_file(stream, "2I"):
                        if cluster in seen:
                            lists.write(f"{Path(file).stem}.remove", struct.pack("<I", document))
                        seen.add(cluster)


class WriteRows(JsonlWriter):
    """Writes rows with the column ``text``, which ``recipes/prepare_corpus.py`` reads back to the same paragraphs."""

    def _default_adapter(self, document: Document) -> dict[str, str]:
        return {"text": document.text}


def content_of(document: Document) -> str:
    """What exact duplicates have in common."""
    return str(document.text)


def priority_of(document: Document) -> int:
    """The earlier a part of the files, the higher."""
    return _HIGHEST_PRIORITY - int(document.metadata["part"])
