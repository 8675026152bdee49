"""Generated data: token ids by Zipf's law in memory, and made-up text in files; the same seed gives
the same data everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write


# The places of the special pieces in Google's uncased vocabulary.
SPECIAL_PIECES = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
PAD_ID, CLS_ID, SEP_ID, FIRST_WORD_ID = 0, 101, 102, 104
# Word frequencies of English fall about as 1 / rank.
ZIPF_EXPONENT = 1.05
# Log-normal lengths: mean exp(mu + sigma^2 / 2) = 22 pieces, the mean of English prose.
MEAN_SENTENCE, SIGMA_SENTENCE = 22.0, 0.6
# Sentences of a document, least and most. Of "mixed" documents this share aims at a shorter length,
# each at one drawn evenly: pairs of at most 512 tokens then have 256 on average.
MIXED_SHORT = 0.46
DOCUMENTS = {"long": (40, 80), "paragraphs": (1, 6), "mixed": (40, 80)}
# Of generated text: words, sentences of a paragraph (or of a short document), paragraphs of a
# document.
NUM_WORDS, SENTENCES, PARAGRAPHS = 50_000, (3, 9), (5, 40)


class GeneratedSplit:
    """A split of a store in memory: what `PreTrainingDataset` asks of one.

    Args:
        num_tokens: About so many token ids, from 104 to vocab_size - 1.
        documents: A key of `DOCUMENTS`.
    """

    path = Path("generated")  # its name; nothing is read from there

    def __init__(
        self, num_tokens: int, vocab_size: int, *, documents: str = "long", seed: int = 12345
    ) -> None:
        rng = np.random.default_rng(seed)
        mu = np.log(MEAN_SENTENCE) - SIGMA_SENTENCE**2 / 2
        drawn = rng.lognormal(mu, SIGMA_SENTENCE, size=max(4, int(num_tokens / MEAN_SENTENCE)))
        self._lengths = np.clip(drawn.round().astype(np.int64), 1, 200)
        self._token_offsets = np.concatenate([[0], np.cumsum(self._lengths)])
        self.num_sentences = len(self._lengths)
        low, high = DOCUMENTS[documents]
        counts = rng.integers(low, high + 1, size=max(2, self.num_sentences // low))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        inside = offsets[offsets < self.num_sentences]
        if len(inside) < 2:  # two documents at least: random next sentences come from another one
            inside = np.array([0, self.num_sentences // 2])
        self._sentence_offsets = np.append(inside, self.num_sentences)
        self._tokens = draw_zipf(rng, int(self._token_offsets[-1]), vocab_size).astype(np.uint32)
        self.num_tokens, self.num_documents = len(self._tokens), len(self._sentence_offsets) - 1

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """int64 (end - begin + 1,): the first sentence of each document, and the end of the last
        one.
        """
        return self._sentence_offsets[begin_document : end_document + 1]

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """int64 (end - begin,): tokens in each sentence, all > 0."""
        return self._lengths[begin_sentence:end_sentence]

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """uint32: the token ids of consecutive sentences in one array."""
        return self._tokens[self._token_offsets[begin_sentence] : self._token_offsets[end_sentence]]


def draw_zipf(rng: np.random.Generator, size: int, vocab_size: int) -> np.ndarray:
    """Draw int64 (size,) ids of words, the r-th most frequent word with a probability in proportion
    to r ** -1.05.
    """
    return FIRST_WORD_ID + _draw_ranks(rng, size, _cumulative(vocab_size - FIRST_WORD_ID))


def _cumulative(count: int) -> np.ndarray:
    return np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -ZIPF_EXPONENT)


def _draw_ranks(rng: np.random.Generator, size: int, cumulative: np.ndarray) -> np.ndarray:
    return np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")


def write_vocabulary(path: Path, vocab_size: int) -> Path:
    """Write a vocab.txt with Google's places for the special pieces; made-up words, every fourth a
    continuation.
    """
    if vocab_size <= FIRST_WORD_ID + 1:
        raise InputError(f"vocab_size is {vocab_size}; allowed: {FIRST_WORD_ID + 2} or more")
    pieces = [SPECIAL_PIECES.get(number, f"[unused{number}]") for number in range(FIRST_WORD_ID)]
    pieces += [
        f"##w{number}" if number % 4 == 3 else f"w{number}"
        for number in range(FIRST_WORD_ID, vocab_size)
    ]
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def _make_words(rng: np.random.Generator) -> np.ndarray:
    """Words of one to four syllables, the more frequent the shorter; str (NUM_WORDS,)."""
    logarithms = np.log10(np.arange(1, NUM_WORDS + 1))
    sizes = np.clip((logarithms * 0.8 + rng.normal(0.3, 0.5, NUM_WORDS)).round(), 1, 4)
    consonants = rng.choice(np.array(list("bcdfghklmnprstvw")), (NUM_WORDS, 4))
    vowels = rng.choice(np.array(list("aeiou")), (NUM_WORDS, 4))
    endings = rng.choice(np.array(["", "n", "s", "r", "ng", "t"]), NUM_WORDS)
    syllables = np.char.add(consonants, vowels)
    return np.array(["".join(syllables[n, : int(sizes[n])]) + endings[n] for n in range(NUM_WORDS)])


def _sentences(
    rng: np.random.Generator, count: int, words: np.ndarray, cumulative: np.ndarray
) -> Iterator[str]:
    sizes = np.clip(rng.lognormal(2.75, 0.55, count), 3, 60).astype(int)
    numbers = np.searchsorted(cumulative, rng.random(int(sizes.sum())) * cumulative[-1])
    return (
        f"{' '.join(part).capitalize()}."
        for part in np.split(words[numbers], np.cumsum(sizes)[:-1])
    )


def write_text(path: Path, megabytes: float, seed: int = 12345) -> Path:
    """Write a text file of at least so many 10^6 bytes, a paragraph a line, a blank line between
    documents; keep one that is there.
    """
    if path.is_file():
        return path
    rng = np.random.default_rng(seed)
    words, cumulative = _make_words(rng), _cumulative(NUM_WORDS)
    with atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            lines = [
                " ".join(_sentences(rng, int(rng.integers(*SENTENCES)), words, cumulative))
                for _ in range(int(rng.integers(*PARAGRAPHS)))
            ]
            file.write("\n".join(lines) + "\n\n")
    return path


def write_documents(folder: Path, documents: int, files: int, seed: int = 12345) -> list[Path]:
    """Write documents of 3 to 8 sentences as files of equal numbers, a sentence a line; keep files
    that are there.
    """
    words, cumulative = _make_words(np.random.default_rng(seed)), _cumulative(NUM_WORDS)
    paths = [folder / f"{number:04}.txt" for number in range(files)]
    for number, path in enumerate(paths):
        if not path.is_file():
            rng = np.random.default_rng([seed, number])
            with atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
                for count in rng.integers(*SENTENCES, documents // files):
                    file.writelines(
                        f"{sentence}\n"
                        for sentence in _sentences(rng, int(count), words, cumulative)
                    )
                    file.write("\n")
    return paths
