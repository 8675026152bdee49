"""The documents of a split: random access to sentences of token ids, in one store or in several.

The files of a split are described in ``store.py``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bert_recipes.data.columns import Column
from bert_recipes.errors import InputError


COLUMN_OF_FILE = {
    "tokens.arrow": "token_id",
    "sentences.arrow": "token_offset",
    "documents.arrow": "sentence_offset",
    "unigram.arrow": "count",
}
_TOKEN_DTYPES = (np.uint16, np.uint32)
_DAMAGED = "damaged: its offsets do not grow; prepare the store again"


class TokenStore:
    """One split of a store: random access to sentences of token ids. Opens its memory maps again when unpickled.

    Args:
        path: Folder of the split.

    Raises:
        InputError: If a file is missing, cut short or does not fit the others.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        columns = {file: Column(self.path / file, name) for file, name in COLUMN_OF_FILE.items()}
        self._tokens = columns["tokens.arrow"]
        self._token_offsets = columns["sentences.arrow"]
        self._sentence_offsets = columns["documents.arrow"]
        self._unigram = columns["unigram.arrow"]
        for file, column in columns.items():
            if column.dtype not in (_TOKEN_DTYPES if file == "tokens.arrow" else (np.int64,)):
                raise InputError(f"{self.path / file}: damaged: holds {column.dtype}; prepare the store again")
        self.num_tokens = len(self._tokens)
        self.num_sentences = self._check_offsets(self._token_offsets, "sentences.arrow", self.num_tokens)
        self.num_documents = self._check_offsets(self._sentence_offsets, "documents.arrow", self.num_sentences)

    def _check_offsets(self, column: Column, file: str, num_members: int) -> int:
        """Return the number of groups; the offsets must run from 0 to ``num_members``."""
        num_groups = len(column) - 1
        if num_groups < 0 or column.slice(0, 1)[0] != 0 or column.slice(num_groups, num_groups + 1)[0] != num_members:
            raise InputError(f"{self.path / file}: damaged: does not fit the other files; prepare the store again")
        return num_groups

    def _check_growth(self, offsets: np.ndarray, steps: np.ndarray, file: str, num_members: int) -> None:
        """Refuse offsets that do not grow up to ``num_members``: those of a damaged file would lead anywhere.

        Args:
            offsets: Some of the file's.
            steps: Their differences.
            file: For the message.
            num_members: What the last one of the file is.
        """
        # The fastest way to the smallest of a few numbers.
        if len(steps) and (np.minimum.reduce(steps) < 1 or offsets[-1] > num_members or offsets[0] < 0):
            raise InputError(f"{self.path / file}: {_DAMAGED}")

    def __getstate__(self) -> dict[str, Path]:
        """Only the path travels to a worker: a memory map cannot."""
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """Return int64 (end - begin + 1,): the first sentence of each document, and the end of the last one."""
        offsets = self._sentence_offsets.slice(begin_document, end_document + 1)
        # Looking up a single document is frequent and shall cost nothing; whoever does it has read all of them in blocks.
        if len(offsets) > 2:
            self._check_growth(offsets, offsets[1:] - offsets[:-1], "documents.arrow", self.num_sentences)
        return offsets

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return int64 (end - begin,): tokens in each sentence, all > 0."""
        offsets = self._token_offsets.slice(begin_sentence, end_sentence + 1)
        lengths = offsets[1:] - offsets[:-1]
        self._check_growth(offsets, lengths, "sentences.arrow", self.num_tokens)
        return lengths

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return the token ids of consecutive sentences in one array of the store's unsigned type; read-only or a copy."""
        begin = int(self._token_offsets.slice(begin_sentence, begin_sentence + 1)[0])
        end = int(self._token_offsets.slice(end_sentence, end_sentence + 1)[0])
        if not 0 <= begin <= end <= self.num_tokens:
            raise InputError(f"{self.path / 'sentences.arrow'}: {_DAMAGED}")
        return self._tokens.slice(begin, end)

    @property
    def unigram_counts(self) -> np.ndarray:
        """int64 (vocab_size,): how often each token id occurs in this split."""
        return self._unigram.slice(0, len(self._unigram))


class ShardedTokens:
    """A split whose documents lie in several stores; the same methods as `TokenStore`.

    Args:
        path: What it is called in messages and in the names of cached files.
        parts: The split in each shard, in order.
    """

    def __init__(self, path: Path, parts: Sequence[TokenStore]) -> None:
        self.path = path
        self._parts = list(parts)
        self._documents = np.cumsum([0, *(part.num_documents for part in parts)])
        self._sentences = np.cumsum([0, *(part.num_sentences for part in parts)])
        self.num_documents, self.num_sentences = int(self._documents[-1]), int(self._sentences[-1])
        self.num_tokens = sum(part.num_tokens for part in parts)

    def _cut(self, bounds: np.ndarray, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (part, begin, end) within each part that a range touches; one part, if empty, for an empty range."""
        if not 0 <= begin <= end <= bounds[-1]:
            raise IndexError(f"{begin} to {end}: there are {bounds[-1]}")
        part = min(int(np.searchsorted(bounds, begin, side="right")) - 1, len(self._parts) - 1)
        while True:
            stop = min(end, int(bounds[part + 1]))
            yield part, begin - int(bounds[part]), stop - int(bounds[part])
            if stop >= end:
                return
            begin, part = stop, part + 1

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """As `TokenStore.sentence_offsets`."""
        pieces: list[np.ndarray] = []
        for part, begin, end in self._cut(self._documents, begin_document, end_document):
            offsets = self._parts[part].sentence_offsets(begin, end) + self._sentences[part]
            pieces.append(offsets if not pieces else offsets[1:])
        return np.concatenate(pieces)

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """As `TokenStore.sentence_lengths`."""
        cuts = self._cut(self._sentences, begin_sentence, end_sentence)
        return np.concatenate([self._parts[part].sentence_lengths(begin, end) for part, begin, end in cuts])

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """As `TokenStore.tokens`."""
        cuts = self._cut(self._sentences, begin_sentence, end_sentence)
        pieces = [self._parts[part].tokens(begin, end) for part, begin, end in cuts]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    @property
    def unigram_counts(self) -> np.ndarray:
        """int64 (vocab_size,): how often each token id occurs in this split."""
        return np.sum([part.unigram_counts for part in self._parts], axis=0)


# What a split of a store is.
Split = TokenStore | ShardedTokens
