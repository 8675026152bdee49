"""Generated data: token ids by Zipf's law in sentences of English lengths, kept in memory; no text, no files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bert_recipes.errors import InputError


# The places of the special pieces in Google's uncased vocabulary.
SPECIAL_PIECES = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
FIRST_WORD_ID = 104
PAD_ID, CLS_ID, SEP_ID = 0, 101, 102
# Word frequencies of English fall about as 1 / rank.
ZIPF_EXPONENT = 1.05
# Log-normal lengths: mean exp(mu + sigma^2 / 2) = 22 pieces, the mean of English prose.
MEAN_SENTENCE, SIGMA_SENTENCE = 22.0, 0.6
# Sentences of a document, least and most. Of "mixed" documents this share aims at a shorter length, each at one drawn evenly:
# pairs of at most 512 tokens then have 256 on average.
MIXED, MIXED_SHORT = "mixed", 0.46
DOCUMENTS = {"long": (40, 80), "paragraphs": (1, 6), MIXED: (40, 80)}


class SyntheticSplit:
    """A split of a store in memory; what `PreTrainingDataset` asks of one (`data.dataset.SentenceTokens`).

    Args:
        num_tokens: About so many token ids.
        vocab_size: Ids are drawn from 104 .. vocab_size - 1.
        documents: "long" and "mixed": 40 to 80 sentences; "paragraphs": 1 to 6.
        seed: The same seed gives the same ids on every machine.

    Raises:
        InputError: Unknown kind of documents, or a vocabulary too small.
    """

    def __init__(self, num_tokens: int, vocab_size: int, *, documents: str = "long", seed: int = 12345) -> None:
        if documents not in DOCUMENTS:
            raise InputError(f"documents is '{documents}'; allowed: {', '.join(DOCUMENTS)}")
        if vocab_size <= FIRST_WORD_ID + 1:
            raise InputError(f"vocab_size is {vocab_size}; allowed: {FIRST_WORD_ID + 2} or more")
        rng = np.random.default_rng(seed)
        mu = np.log(MEAN_SENTENCE) - SIGMA_SENTENCE**2 / 2
        drawn = rng.lognormal(mu, SIGMA_SENTENCE, size=max(4, int(num_tokens / MEAN_SENTENCE)))
        lengths = np.clip(drawn.round().astype(np.int64), 1, 200)
        self._lengths = lengths
        self._token_offsets = np.concatenate([[0], np.cumsum(lengths)])
        low, high = DOCUMENTS[documents]
        counts = rng.integers(low, high + 1, size=max(2, len(lengths) // low))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        inside = offsets[offsets < len(lengths)]
        if len(inside) < 2:  # two documents at least: random next sentences come from another one
            inside = np.array([0, len(lengths) // 2])
        self._sentence_offsets = np.append(inside, len(lengths))
        self._tokens = draw_zipf(rng, int(lengths.sum()), vocab_size).astype(np.uint32)
        self.num_tokens = len(self._tokens)
        self.num_sentences = len(lengths)
        self.num_documents = len(self._sentence_offsets) - 1

    def sentence_offsets(self, begin_document: int, end_document: int) -> np.ndarray:
        """Return int64 (end - begin + 1,): the first sentence of each document, and the end of the last one."""
        return self._sentence_offsets[begin_document : end_document + 1]

    def sentence_lengths(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return int64 (end - begin,): tokens in each sentence, all > 0."""
        return self._lengths[begin_sentence:end_sentence]

    def tokens(self, begin_sentence: int, end_sentence: int) -> np.ndarray:
        """Return uint32: the token ids of consecutive sentences in one array."""
        return self._tokens[self._token_offsets[begin_sentence] : self._token_offsets[end_sentence]]


def draw_zipf(rng: np.random.Generator, size: int, vocab_size: int) -> np.ndarray:
    """int64 (size,): ids of words, the r-th most frequent word with a probability in proportion to r ** -1.05."""
    ranks = np.arange(1, vocab_size - FIRST_WORD_ID + 1, dtype=np.float64)
    cumulative = np.cumsum(ranks**-ZIPF_EXPONENT)
    return FIRST_WORD_ID + np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")


def write_vocabulary(path: Path, vocab_size: int) -> Path:
    """Write a vocab.txt with Google's places for the special pieces; made-up words, every fourth a continuation."""
    if vocab_size <= FIRST_WORD_ID + 1:
        raise InputError(f"vocab_size is {vocab_size}; allowed: {FIRST_WORD_ID + 2} or more")
    pieces = []
    for number in range(vocab_size):
        if number < FIRST_WORD_ID:
            pieces.append(SPECIAL_PIECES.get(number, f"[unused{number}]"))
        else:
            pieces.append(f"##w{number}" if number % 4 == 3 else f"w{number}")
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path
