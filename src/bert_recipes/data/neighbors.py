"""Vectors of words or pieces from what stands around them, by PPMI and SVD.

Source: Levy, Goldberg and Dagan 2015, "Improving Distributional Similarity with Lessons Learned
from Word Embeddings".

Legend: N tokens of a text, V words or pieces, D size of a vector.
"""

import math
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from bert_recipes.data.store import Split


WINDOW = 5
# A context counts as its frequency to this power: PMI overrates rare ones (section 3.1).
CONTEXT_EXPONENT = 0.75
SEED = 0
# Tokens of a store that are counted, about: 4 million gave as good a start as 12 (docs/speed.md).
MAX_TOKENS = 4_000_000
# Sentences that are read one after the other.
SENTENCES_PER_STRETCH = 1000


def count_neighbors(ids: np.ndarray, size: int, window: int) -> sparse.csr_array:
    """Count how often two ids stand within a window, float64 (V, V).

    Args:
        ids: int64 (N,); -1 is not counted, but has its place.
        size: V.
        window: Tokens on each side.
    """
    counts = sparse.csr_array((size, size))
    for distance in range(1, window + 1):
        first = ids[:-distance]
        second = ids[distance:]
        is_pair = (first >= 0) & (second >= 0)
        pairs = (first[is_pair], second[is_pair])
        ones = np.ones(len(pairs[0]))
        counts += sparse.csr_array((ones, pairs), counts.shape)
    return counts + counts.T


def positive_pmi(counts: sparse.csr_array) -> sparse.csr_array:
    """Return the larger of 0 and log P(w, c) / (P(w) P(c)), with smoothed P(c)."""
    totals = counts.sum(axis=1)
    smoothed = totals**CONTEXT_EXPONENT
    table = counts.tocoo()
    expected = totals[table.row] * smoothed[table.col]
    values = np.log(table.data * smoothed.sum() / expected)
    positive_values = np.maximum(values, 0)
    places = (table.row, table.col)
    return sparse.csr_array((positive_values, places), counts.shape)


def factorize(matrix: sparse.csr_array, size: int, **settings: Any) -> np.ndarray:
    """Return the left singular vectors of a matrix times the roots of its singular values.

    Of the matrix's type, (V, D) with D = `size`, or V where that is less (section 3.3). `settings`
    are those of scikit-learn's `randomized_svd`.
    """
    num_columns = min(size, matrix.shape[0])
    vectors, values, _ = randomized_svd(matrix, num_columns, random_state=SEED, **settings)
    return vectors * np.sqrt(values)


def sample_tokens(split: Split) -> np.ndarray:
    """Return about `MAX_TOKENS` tokens of a store, from all of its parts, int64 (N,)."""
    step = SENTENCES_PER_STRETCH * math.ceil(split.num_tokens / MAX_TOKENS)
    stretches = []
    for begin in range(0, split.num_sentences, step):
        end = min(begin + SENTENCES_PER_STRETCH, split.num_sentences)
        stretches.append(split.tokens(begin, end).astype(np.int64))
    return np.concatenate(stretches)


def piece_vectors(split: Split, vocab_size: int, size: int) -> np.ndarray:
    """Return a vector of norm 1 for each piece of a vocabulary, 0 where it has no typical neighbor.

    Float32 (V, D), of what `sample_tokens` takes.
    """
    counts = count_neighbors(sample_tokens(split), vocab_size, WINDOW)
    matrix = positive_pmi(counts).astype(np.float32)
    # Two rounds find directions that are close to the best, in a third of the time.
    vectors = factorize(matrix, size, n_iter=2)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit_vectors = vectors / np.maximum(norms, 1e-9)
    has_neighbors = matrix.sum(axis=1) > 0
    unit_vectors[~has_neighbors] = 0.0  # rounding errors
    num_missing = size - vectors.shape[1]
    return np.pad(unit_vectors, ((0, 0), (0, num_missing))).astype(np.float32)
