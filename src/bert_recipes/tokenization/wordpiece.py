"""Text to ids for bulk work.

It needs none of the libraries behind the tokenizer, so that other processes start in no time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from bert_recipes.tokenization.normalization import normalize_text


# google-research/bert tokenization.py `WordpieceTokenizer`, max_input_chars_per_word. The
# `tokenizers` library's default is 100.
MAX_WORD_CHARACTERS = 200
CONTINUATION = "##"

# Words remembered before starting afresh; some 100 MB. English text needs about 200,000 for its
# first 100 MB.
_CACHE_CAPACITY = 500_000


class WordCache(dict[str, tuple[int, ...]]):
    """Hold the ids of the pieces of words: a look-up cuts a word the first time, and remembers it.

    Natural text repeats its words: bulk tokenization is mostly a dictionary look-up for each word.

    Source: google-research/bert tokenization.py `WordpieceTokenizer.tokenize`; Wu et al. 2016,
    section 4.1.
    """

    def __init__(self, vocabulary: Mapping[str, int], *, unk_token: str) -> None:
        super().__init__()
        self._first = dict(vocabulary)
        self._inner: dict[str, int] = {}
        for piece, piece_id in vocabulary.items():
            if piece.startswith(CONTINUATION):
                self._inner[piece.removeprefix(CONTINUATION)] = piece_id
        self._longest = max(map(len, vocabulary), default=0)
        self._unknown = (vocabulary[unk_token],)

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _CACHE_CAPACITY:
            self.clear()
        self[word] = self._cut(word)
        return self[word]

    def _cut(self, word: str) -> tuple[int, ...]:
        """Cut one word, greedily from the left, longest piece first."""
        if len(word) > MAX_WORD_CHARACTERS:
            return self._unknown
        ids: list[int] = []
        start = 0
        while start < len(word):
            pieces = self._inner if start else self._first
            for end in range(min(len(word), start + self._longest), start, -1):
                piece_id = pieces.get(word[start:end])
                if piece_id is not None:
                    ids.append(piece_id)
                    start = end
                    break
            else:
                return self._unknown
        return tuple(ids)


@dataclass(frozen=True)
class PairLayout:
    """Hold the special ids around one text (prefix, suffix) and between two (middle).

    The second text has its segment; the first one's is 0.
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    second_segment: int

    @property
    def num_special(self) -> int:
        """Return the number of special tokens of a pair."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def start_of_second(self, length: int) -> int:
        """Return the position of the second text after a first one of `length` tokens."""
        return len(self.prefix) + length + len(self.middle)


@dataclass(frozen=True)
class TextEncoder:
    """Hold the settings that decide about the ids of a text, and nothing else.

    It can be sent to another process.
    """

    vocabulary: dict[str, int]  # piece to id
    unk_token: str  # the piece that stands for a word that cannot be cut
    lowercase: bool  # this and the next two: see `normalize_text`
    strip_accents: bool
    split_cjk: bool
    # Finds the tokens that were added beside the vocabulary: `AddedTokens`, which needs the
    # library. None, and no work, in the usual case that there are none.
    added: Any = None
    # Word to piece ids, filled on first use. A word is what splitting a normalized text gives.
    words: WordCache = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", WordCache(self.vocabulary, unk_token=self.unk_token))

    def __reduce__(self) -> tuple:
        arguments = (
            self.vocabulary,
            self.unk_token,
            self.lowercase,
            self.strip_accents,
            self.split_cjk,
            self.added,
        )
        return type(self), arguments

    @property
    def settings(self) -> dict[str, bool]:
        """Return the settings of `normalize_text`."""
        return {
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_cjk": self.split_cjk,
        }

    def normalize(self, text: str) -> str:
        """Return the string whose ``.split()`` are the words."""
        return normalize_text(text, **self.settings)

    def __call__(self, text: str) -> list[int]:
        """Return the ids of any string, without [CLS] and [SEP], not truncated.

        Nothing in it is taken for a special token.
        """
        if self.added is None:
            return self._cut(text)
        ids: list[int] = []
        for segment, token_id in self.added.split(text):
            if token_id is None:
                ids += self._cut(segment)
            else:
                ids.append(token_id)
        return ids

    def _cut(self, text: str) -> list[int]:
        words = self.normalize(text).split()
        # Not a loop: this is where bulk work spends its time.
        return list(chain.from_iterable(map(self.words.__getitem__, words)))
