"""Text to ids for bulk work. Without the libraries behind the tokenizer, so that other processes
start in no time.
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
    """Word to the ids of its pieces. Looking up a word cuts it on the first time and remembers the
    result.

    Natural text repeats its words so much that bulk tokenisation is a dictionary look-up for each
    word.

    Source: google-research/bert tokenization.py `WordpieceTokenizer.tokenize`; Wu et al. 2016,
    section 4.1.
    """

    def __init__(self, vocabulary: Mapping[str, int], *, unk_token: str) -> None:
        super().__init__()
        prefix = len(CONTINUATION)
        self._first = dict(vocabulary)
        self._inner = {
            piece[prefix:]: i for piece, i in vocabulary.items() if piece.startswith(CONTINUATION)
        }
        self._longest = max(map(len, vocabulary), default=0)
        self._unknown = (vocabulary[unk_token],)

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _CACHE_CAPACITY:
            self.clear()
        ids = self._cut(word)
        self[word] = ids
        return ids

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
    """Special ids around one text (prefix, suffix) and between two (middle), and the segment of the
    second.
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    second_segment: int

    @property
    def num_special(self) -> int:
        """Special tokens of a pair."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def start_of_second(self, length: int) -> int:
        """Position of the second text behind a first one of so many tokens."""
        return len(self.prefix) + length + len(self.middle)


@dataclass(frozen=True)
class TextEncoder:
    """The settings that decide about the ids of a text, and nothing else; can be sent to another
    process.
    """

    vocabulary: dict[str, int]  # piece to id
    unk_token: str  # the piece that stands for a word that cannot be cut
    lowercase: bool  # this and the next two: see `normalize_text`
    strip_accents: bool
    split_cjk: bool
    # Finds the tokens that were added beside the vocabulary: tokenizer.AddedTokens, which needs the
    # library. None, and no work, in the usual case that there are none.
    added: Any = None
    # Word to piece ids, filled on first use. A word is what splitting a normalised text gives.
    words: WordCache = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", WordCache(self.vocabulary, unk_token=self.unk_token))

    def __reduce__(self) -> tuple:
        settings = (
            self.vocabulary,
            self.unk_token,
            self.lowercase,
            self.strip_accents,
            self.split_cjk,
            self.added,
        )
        return type(self), settings

    @property
    def settings(self) -> dict[str, bool]:
        """Those of `normalize_text`."""
        return {
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_cjk": self.split_cjk,
        }

    def normalize(self, text: str) -> str:
        """The string whose ``.split()`` are the words."""
        return normalize_text(
            text,
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            split_cjk=self.split_cjk,
        )

    def __call__(self, text: str) -> list[int]:
        """Ids of any string, without [CLS] and [SEP], not truncated; nothing in it is taken for a
        special token.
        """
        if self.added is not None:
            return self._cut_around(self.added, text)
        return list(chain.from_iterable(map(self.words.__getitem__, self.normalize(text).split())))

    def _cut_around(self, added: Any, text: str) -> list[int]:
        ids: list[int] = []
        for part, token_id in added.split(text):
            if token_id is not None:
                ids.append(token_id)
                continue
            for word in self.normalize(part).split():
                ids += self.words[word]
        return ids
