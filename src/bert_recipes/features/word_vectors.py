"""Word vectors of a text by PPMI and SVD: one vector per word, whatever stands around it.

Source: Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned
from Word Embeddings".

Legend: N texts, V words of the vocabulary, D size of a vector.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.utils.extmath import randomized_svd

from bert_recipes.data.corpus import iter_paragraphs
from bert_recipes.errors import InputError
from bert_recipes.features.arguments import StaticArguments


WORD_PATTERN = r"\w+"
WINDOW = 5
# Of the contexts' frequencies: PMI is too large where they are rare (section 3.1).
SMOOTHING = 0.75
SEED = 0


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
    """Factorise the PPMI of --files, or else of `texts`.

    Vectors are left singular vectors times the roots of the singular values (section 3.3).
    """
    if args.files is not None:
        texts = iter_paragraphs(args.files)
    numbers, counts = count_neighbors(texts, WINDOW, args.min_count)
    if counts.nnz == 0:
        raise InputError(
            f"no two words that occur {args.min_count} times stand together; lower --min_count, "
            "or other --files"
        )

    size = min(args.vector_size, len(numbers))
    matrix = positive_pmi(counts)
    left_vectors, values, _ = randomized_svd(matrix, n_components=size, random_state=SEED)
    return WordVectors(numbers, left_vectors * np.sqrt(values))


def count_neighbors(
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
    is_frequent = np.bincount(ids, minlength=len(all_numbers)) >= min_count
    is_frequent[0] = False
    words = [word for word, number in all_numbers.items() if is_frequent[number]]
    new_numbers = np.where(is_frequent, np.cumsum(is_frequent) - 1, -1)
    ids = new_numbers[ids]

    counts = sparse.csr_array((len(words), len(words)))
    for distance in range(1, window + 1):
        first = ids[:-distance]
        second = ids[distance:]
        is_pair = (first >= 0) & (second >= 0)
        pairs = (first[is_pair], second[is_pair])
        counts += sparse.csr_array((np.ones(is_pair.sum()), pairs), counts.shape)

    numbers = {word: number for number, word in enumerate(words)}
    return numbers, counts + counts.T


def positive_pmi(counts: sparse.csr_array) -> sparse.csr_array:
    """Return the larger of 0 and log P(w, c) / (P(w) P(c)), with smoothed P(c)."""
    totals = counts.sum(axis=1)
    smoothed = totals**SMOOTHING
    table = counts.tocoo()
    expected = totals[table.row] * smoothed[table.col]
    values = np.log(table.data * smoothed.sum() / expected)
    positive_values = np.maximum(values, 0)
    places = (table.row, table.col)
    return sparse.csr_array((positive_values, places), counts.shape)
