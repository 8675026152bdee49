"""Generated data: token ids by Zipf's law in memory, and made-up text in files.

The same seed gives the same data everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write


# The places of the special pieces in Google's uncased vocabulary.
SPECIAL_PIECES = {
    0: "[PAD]",
    100: "[UNK]",
    101: "[CLS]",
    102: "[SEP]",
    103: "[MASK]",
}
PAD_ID, CLS_ID, SEP_ID, FIRST_WORD_ID = 0, 101, 102, 104
# Word frequencies of English fall about as 1 / rank.
ZIPF_EXPONENT = 1.05
# Log-normal lengths: mean exp(mu + sigma^2 / 2) = 22 pieces, the mean of English prose.
MEAN_SENTENCE, SIGMA_SENTENCE = 22.0, 0.6
# The share of "mixed" documents that aims at a shorter length, each at one drawn evenly: pairs of
# at most 512 tokens then have 256 on average.
MIXED_SHORT = 0.46
# Sentences of a document, least and most.
DOCUMENTS = {
    "long": (40, 80),
    "paragraphs": (1, 6),
    "mixed": (40, 80),
}
# Of generated text.
NUM_WORDS = 50_000
SENTENCES = (3, 9)  # of a paragraph, or of a short document
PARAGRAPHS = (5, 40)  # of a document


class GeneratedSplit:
    """A split of a store in memory: what `PreTrainingDataset` asks of one.

    Args:
        num_tokens: About so many token ids, from 104 to vocab_size - 1.
        documents: A key of `DOCUMENTS`.
    """

    name = "generated"
    store_path = Path()  # nothing is read from there

    def __init__(
        self, num_tokens: int, vocab_size: int, *, documents: str = "long", seed: int = 12345
    ) -> None:
        rng = np.random.default_rng(seed)
        mu = np.log(MEAN_SENTENCE) - SIGMA_SENTENCE**2 / 2
        num_sentences = max(4, int(num_tokens / MEAN_SENTENCE))
        lengths = rng.lognormal(mu, SIGMA_SENTENCE, size=num_sentences)
        self._lengths = np.clip(
            lengths.round().astype(np.int64),
            1,
            200,
        )
        self._token_offsets = np.concatenate([[0], np.cumsum(self._lengths)])
        self.num_sentences = num_sentences

        low, high = DOCUMENTS[documents]
        counts = rng.integers(
            low,
            high + 1,
            size=max(2, num_sentences // low),
        )
        offsets = np.concatenate([[0], np.cumsum(counts)])
        first_sentences = offsets[offsets < num_sentences]
        if len(first_sentences) < 2:  # random next sentences come from another document
            first_sentences = np.array([0, num_sentences // 2])
        self._sentence_offsets = np.append(first_sentences, num_sentences)
        self.num_documents = len(first_sentences)

        self.num_tokens = int(self._token_offsets[-1])
        self._tokens = draw_zipf(rng, self.num_tokens, vocab_size).astype(np.uint32)

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """Return the first sentence of each document, and the end of the last one.

        int64 (end - begin + 1,).
        """
        return self._sentence_offsets[begin_document : end_document + 1]

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return int64 (end - begin,): tokens in each sentence, all > 0."""
        return self._lengths[begin_sentence:end_sentence]

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return uint32: the token ids of consecutive sentences in one array."""
        begin = self._token_offsets[begin_sentence]
        end = self._token_offsets[end_sentence]
        return self._tokens[begin:end]


def draw_zipf(rng: np.random.Generator, size: int, vocab_size: int) -> np.ndarray:
    """Draw int64 (size,) ids of words.

    The r-th most frequent word has a probability in proportion to r ** -1.05.
    """
    return FIRST_WORD_ID + _draw_ranks(rng, size, _cumulative(vocab_size - FIRST_WORD_ID))


def _cumulative(count: int) -> np.ndarray:
    return np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -ZIPF_EXPONENT)


def _draw_ranks(rng: np.random.Generator, size: int, cumulative: np.ndarray) -> np.ndarray:
    return np.searchsorted(
        cumulative,
        rng.random(size) * cumulative[-1],
        side="right",
    )


def write_vocabulary(path: Path, vocab_size: int) -> Path:
    """Write a vocab.txt with Google's places for the special pieces.

    The words are made up, every fourth a continuation.
    """
    if vocab_size <= FIRST_WORD_ID + 1:
        raise InputError(f"vocab_size is {vocab_size}; allowed: {FIRST_WORD_ID + 2} or more")
    pieces = [SPECIAL_PIECES.get(number, f"[unused{number}]") for number in range(FIRST_WORD_ID)]
    for number in range(FIRST_WORD_ID, vocab_size):
        prefix = "##" if number % 4 == 3 else ""
        pieces.append(f"{prefix}w{number}")
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def _make_words(rng: np.random.Generator) -> list[str]:
    """Return NUM_WORDS words of one to four syllables, the more frequent the shorter."""
    logarithms = np.log10(np.arange(1, NUM_WORDS + 1))
    noise = rng.normal(0.3, 0.5, NUM_WORDS)
    counts = np.clip((logarithms * 0.8 + noise).round(), 1, 4).astype(int)
    consonants = rng.choice(list("bcdfghklmnprstvw"), (NUM_WORDS, 4))
    vowels = rng.choice(list("aeiou"), (NUM_WORDS, 4))
    endings = rng.choice(["", "n", "s", "r", "ng", "t"], NUM_WORDS)
    syllables = np.char.add(consonants, vowels)
    words = []
    for row, count, ending in zip(syllables, counts.tolist(), endings.tolist(), strict=True):
        words.append("".join(row[:count]) + ending)
    return words


def _sentences(
    rng: np.random.Generator, count: int, words: np.ndarray, cumulative: np.ndarray
) -> Iterator[str]:
    """Make sentences of 3 to 60 words."""
    sizes = np.clip(rng.lognormal(2.75, 0.55, count), 3, 60).astype(int)
    numbers = np.searchsorted(cumulative, rng.random(int(sizes.sum())) * cumulative[-1])
    for sentence in np.split(words[numbers], np.cumsum(sizes)[:-1]):
        yield f"{' '.join(sentence).capitalize()}."


def write_text(path: Path, megabytes: float, seed: int = 12345) -> Path:
    """Write a text file of at least so many 10^6 bytes; a file that is there stays.

    A paragraph a line, a blank line between documents.
    """
    if path.is_file():
        return path
    rng = np.random.default_rng(seed)
    words, cumulative = np.array(_make_words(rng)), _cumulative(NUM_WORDS)
    with atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            for _ in range(int(rng.integers(*PARAGRAPHS))):
                num_sentences = int(rng.integers(*SENTENCES))
                file.write(" ".join(_sentences(rng, num_sentences, words, cumulative)) + "\n")
            file.write("\n")

    return path
