"""Word vectors of a text by PPMI and SVD: one vector per word, whatever stands around it.

Legend: N texts, V words of the vocabulary, D size of a vector.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from bert_recipes.data.corpus import iter_paragraphs
from bert_recipes.data.neighbors import WINDOW, count_neighbors, factorize, positive_pmi
from bert_recipes.errors import InputError
from bert_recipes.features.arguments import StaticArguments


WORD_PATTERN = r"\w+"


@dataclass(frozen=True)
class WordVectors:
    """Hold the vectors of words in lower case."""

    numbers: Mapping[str, int]  # word -> row
    vectors: np.ndarray  # float64 (V, D)

    def mean(self, texts: Iterable[str]) -> np.ndarray:
        """Return the mean over the words of each text that have a vector, 0 where none has.

        Float64 (N, D).
        """
        counter = CountVectorizer(token_pattern=WORD_PATTERN, vocabulary=self.numbers)
        counts = sparse.csr_array(counter.transform(texts))
        num_words = np.maximum(counts.sum(axis=1), 1)
        return (counts @ self.vectors) / num_words[:, None]


def train_word_vectors(texts: Iterable[str], args: StaticArguments) -> WordVectors:
    """Factorize the PPMI of --files, or else of `texts`."""
    if args.files is not None:
        texts = iter_paragraphs(args.files)
    numbers, counts = count_cooccurrences(texts, WINDOW, args.min_count)
    if counts.nnz == 0:
        raise InputError(
            f"no two words that occur {args.min_count} times stand together; lower --min_count, "
            "or other --files"
        )

    return WordVectors(numbers, factorize(positive_pmi(counts), args.vector_size))


def count_cooccurrences(
    texts: Iterable[str], window: int, min_count: int
) -> tuple[dict[str, int], sparse.csr_array]:
    """Count how often two words stand within a window.

    Args:
        texts: No window reaches from one into the next.
        window: Words on each side.
        min_count: Rarer words are not counted, but keep their places in the text.

    Returns:
        Word -> its number, in the order of the text; and counts float64 (V, V).
    """
    analyze = CountVectorizer(token_pattern=WORD_PATTERN).build_analyzer()
    gap = [""] * window

    all_numbers = {"": 0}
    text_ids = array("q")
    for text in texts:
        for word in analyze(text) + gap:
            text_ids.append(all_numbers.setdefault(word, len(all_numbers)))

    ids = np.asarray(text_ids)
    frequencies = np.bincount(ids, minlength=len(all_numbers))
    numbers: dict[str, int] = {}
    new_ids = np.full(len(all_numbers), -1)
    for word, number in all_numbers.items():
        if word and frequencies[number] >= min_count:
            new_ids[number] = len(numbers)
            numbers[word] = len(numbers)
    return numbers, count_neighbors(new_ids[ids], len(numbers), window)
