"""Documents -> sentences -> token ids, batch by batch."""

import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bert_recipes.data.sentences import begins_small, is_passage, split_sentences
from bert_recipes.scripts import name_script


SentenceRule = Literal["split", "lines"]
ParagraphRule = Literal["all", "passages"]

# About 0.2 s of one core: long enough to hide the cost of sending it, short enough that few of them
# weigh nothing.
BATCH_CHARACTERS = 1_000_000
# Tokens: of a sentence that is longer than an input the model sees a part.
LONG_SENTENCE = 128


class TextBatch(NamedTuple):
    """Documents (lists of paragraphs) of one split."""

    split: str
    documents: list[list[str]]


class TokenBatch(NamedTuple):
    """Documents of one split as token ids; all lengths > 0."""

    split: str
    tokens: np.ndarray  # uint32
    sentence_lengths: np.ndarray  # int64, tokens a sentence
    document_lengths: np.ndarray  # int64, sentences a document
    dropped: Counter[str]  # by reason
    unknown: Counter[str]  # tokens that are [UNK], by the script of their sentence
    # Paragraphs after the first of their document, "following" and "broken", and the tokens of
    # sentences longer than LONG_SENTENCE, "tokens_of_long".
    lines: Counter[str]


@dataclass(frozen=True)
class DocumentEncoder:
    """Encode batches of documents; can be sent to another process if its encoders can.

    Attributes:
        encode_ids: Encodes the first sentence of a document.
        encode_following: Encodes the others, before which the text has a space.
    """

    encode_ids: Callable[[str], list[int]]
    encode_following: Callable[[str], list[int]]
    sentences: SentenceRule = "split"
    keep: ParagraphRule = "all"
    unk_id: int | None = None  # None: unknown tokens are not counted

    def __call__(self, batch: TextBatch) -> TokenBatch:
        """Return the token ids of a batch; texts without any are dropped and counted."""
        tokens = array("I")
        sentence_lengths = array("q")
        document_lengths = array("q")
        dropped: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        lines: Counter[str] = Counter()
        for document in batch.documents:
            lines["following"] += len(document) - 1
            lines["broken"] += count_broken_lines(document)
            num_sentences_before = len(sentence_lengths)
            encode = self.encode_ids
            for sentence in self._split(document, dropped):
                ids = encode(sentence)
                encode = self.encode_following
                if not ids:
                    dropped["sentences_without_tokens"] += 1
                    continue
                if len(ids) > LONG_SENTENCE:
                    lines["tokens_of_long"] += len(ids)
                tokens.extend(ids)
                sentence_lengths.append(len(ids))
                if self.unk_id in ids:
                    unknown[name_script(sentence)] += ids.count(self.unk_id)
            num_sentences = len(sentence_lengths) - num_sentences_before
            if num_sentences:
                document_lengths.append(num_sentences)
            else:
                dropped["documents_without_sentences"] += 1

        return TokenBatch(
            batch.split,
            np.array(tokens, dtype=np.uint32),
            np.array(sentence_lengths, dtype=np.int64),
            np.array(document_lengths, dtype=np.int64),
            dropped,
            unknown,
            lines,
        )

    def _split(self, document: list[str], dropped: Counter[str]) -> Iterator[str]:
        """Yield the sentences of a document."""
        for paragraph in document:
            if self.keep == "passages" and not is_passage(paragraph):
                dropped["paragraphs_that_are_no_passages"] += 1
            elif self.sentences == "lines":
                yield paragraph
            else:
                yield from split_sentences(paragraph)


def count_broken_lines(document: Sequence[str]) -> int:
    """Return how many paragraphs go on with the sentence of the one before: lines were wrapped.

    They begin in lower case, after a letter, a digit or a comma.
    """
    num_broken = 0
    for before, paragraph in itertools.pairwise(document):
        last = before[-1:]
        goes_on = last.isalnum() or last == ","
        if goes_on and begins_small(paragraph):
            num_broken += 1
    return num_broken


def batch_documents(documents: Iterable[tuple[str, list[str]]]) -> Iterator[TextBatch]:
    """Collect (split, document) into batches of one split each, in the order of each split."""
    waiting: dict[str, list[list[str]]] = {}
    sizes: Counter[str] = Counter()
    for split, document in documents:
        waiting.setdefault(split, []).append(document)
        sizes[split] += sum(map(len, document))
        if sizes[split] >= BATCH_CHARACTERS:
            yield TextBatch(split, waiting.pop(split))
            del sizes[split]
    for split, last_documents in waiting.items():
        yield TextBatch(split, last_documents)
