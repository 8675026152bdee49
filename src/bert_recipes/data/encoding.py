"""Documents -> token ids, in batches, by any number of processes, in the order of the documents."""

import os
import signal
import threading
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Literal, NamedTuple

import numpy as np

from bert_recipes.data.sentences import is_passage, split_sentences
from bert_recipes.errors import InputError


Sentences = Literal["split", "lines"]
Keep = Literal["all", "passages"]
EncodeIds = Callable[[str], list[int]]

# About 0.2 s of one core: long enough to hide what it costs to send, short enough that few of them weigh nothing.
BATCH_CHARACTERS = 1_000_000


class TextBatch(NamedTuple):
    """Documents (lists of paragraphs) of one split."""

    split: str
    documents: list[list[str]]


class TokenBatch(NamedTuple):
    """The same as token ids.

    Attributes:
        split: ``train`` or ``validation``.
        tokens: uint32 (num_tokens,).
        sentence_lengths: int64 (num_sentences,), tokens in each sentence, all > 0.
        document_lengths: int64 (num_documents,), sentences in each document, all > 0.
        dropped: How many were left out, by reason.
    """

    split: str
    tokens: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    dropped: Counter[str]


@dataclass(frozen=True)
class DocumentEncoder:
    """Encodes batches of documents; can be sent to another process.

    Attributes:
        encode_ids: Text -> token ids, without special tokens; must be picklable for more than one process.
        sentences: ``split`` paragraphs by `split_sentences`, or take every line as a sentence (``lines``).
        keep: ``all`` paragraphs, or only ``passages`` (`is_passage`).
    """

    encode_ids: EncodeIds
    sentences: Sentences = "split"
    keep: Keep = "all"

    def __call__(self, batch: TextBatch) -> TokenBatch:
        """Return the token ids of a batch; what gives none is dropped and counted."""
        tokens, sentence_lengths, document_lengths = array("I"), array("q"), array("q")
        dropped: Counter[str] = Counter()
        for document in batch.documents:
            before = len(sentence_lengths)
            for sentence in self._sentences(document, dropped):
                ids = self.encode_ids(sentence)
                if ids:
                    tokens.extend(ids)
                    sentence_lengths.append(len(ids))
                else:
                    dropped["sentences_without_tokens"] += 1
            if len(sentence_lengths) > before:
                document_lengths.append(len(sentence_lengths) - before)
            else:
                dropped["documents_without_sentences"] += 1
        return TokenBatch(
            batch.split,
            np.array(tokens, dtype=np.uint32),
            np.array(sentence_lengths, dtype=np.int64),
            np.array(document_lengths, dtype=np.int64),
            dropped,
        )

    def _sentences(self, document: list[str], dropped: Counter[str]) -> Iterator[str]:
        for paragraph in document:
            if self.keep == "passages" and not is_passage(paragraph):
                dropped["paragraphs_that_are_no_passages"] += 1
            elif self.sentences == "lines":
                yield paragraph
            else:
                yield from split_sentences(paragraph)


def batch_documents(
    documents: Iterable[tuple[str, list[str]]], batch_characters: int = BATCH_CHARACTERS
) -> Iterator[TextBatch]:
    """Collect (split, document) into batches of one split each; the order inside a split is kept."""
    waiting: dict[str, list[list[str]]] = {}
    sizes: Counter[str] = Counter()
    for split, document in documents:
        waiting.setdefault(split, []).append(document)
        sizes[split] += sum(map(len, document))
        if sizes[split] >= batch_characters:
            yield TextBatch(split, waiting.pop(split))
            del sizes[split]
    for split, rest in waiting.items():
        yield TextBatch(split, rest)


def encode_in_order(
    batches: Iterable[TextBatch], encoder: DocumentEncoder, num_processes: int
) -> Iterator[TokenBatch]:
    """Encode batches in ``num_processes`` processes (1: in this one); results come in the order of the batches.

    At most two batches a process are under way, so memory does not grow with the input.

    Raises:
        InputError: If a process was killed from outside, in most cases for lack of memory.
    """
    if num_processes == 1:
        yield from map(encoder, batches)
        return
    # spawn is the same on every system, and safe beside threads of the libraries that are loaded here.
    pool = ProcessPoolExecutor(
        num_processes, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(encoder,)
    )
    waiting: deque[Future[TokenBatch]] = deque()
    try:
        for batch in batches:
            waiting.append(pool.submit(_encode_in_worker, batch))
            if len(waiting) >= 2 * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise InputError(
            f"one of the {num_processes} processes was killed, probably for lack of memory; "
            "set num_processes lower or free memory, and run again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker_encoder: DocumentEncoder | None = None


def _start_worker(encoder: DocumentEncoder) -> None:
    global _worker_encoder
    _worker_encoder = encoder
    follow_parent()


def follow_parent() -> None:
    """In another process: leave Ctrl-C to the main process, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode_in_worker(batch: TextBatch) -> TokenBatch:
    assert _worker_encoder is not None
    return _worker_encoder(batch)
