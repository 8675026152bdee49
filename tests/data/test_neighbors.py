"""Vectors of pieces by their neighbors, against NumPy's SVD of the plain formula.

The formula itself is held in tests/features/test_static.py.
"""

import numpy as np
import pytest

from bert_recipes.data import neighbors
from bert_recipes.data.neighbors import count_neighbors, factorize, piece_vectors, positive_pmi
from bert_recipes.data.store import open_store


def test_a_piece_that_is_not_counted_keeps_its_place():
    counts = count_neighbors(np.array([0, -1, 1, 0]), 3, window=2).toarray()
    assert counts.tolist() == [[0, 2, 0], [2, 0, 0], [0, 0, 0]]


def test_factors_of_all_directions_give_the_matrix_back():
    """Levy, Goldberg and Dagan 2015, section 3.3, with p = 0.5."""
    ids = np.random.default_rng(0).integers(0, 12, 300)
    matrix = positive_pmi(count_neighbors(ids, 12, window=2))
    vectors = factorize(matrix, 20)
    left, values, _ = np.linalg.svd(matrix.toarray())
    np.testing.assert_allclose(vectors @ vectors.T, (left * values) @ left.T, atol=1e-9)


def test_pieces_of_one_document_have_like_vectors(small_store):
    """Each document of the store repeats a few words of its own."""
    train = open_store(small_store).train
    vectors = piece_vectors(train, 120, 16)
    is_seen = train.unigram_counts > 0
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), is_seen, atol=1e-5)
    likeness = vectors @ vectors.T
    counts = count_neighbors(train.tokens(0, train.num_sentences).astype(int), 120, 5).toarray()
    np.fill_diagonal(likeness, np.nan)
    are_neighbors = counts > np.quantile(counts, 0.95)
    are_strangers = (counts == 0) & np.outer(is_seen, is_seen)
    assert np.nanmean(likeness[are_neighbors]) > np.nanmean(likeness[are_strangers]) + 0.2


def test_vectors_may_have_more_numbers_than_there_are_pieces(small_store):
    vectors = piece_vectors(open_store(small_store).train, 120, 128)
    assert vectors.shape == (120, 128)
    assert not vectors[:, 120:].any()


def test_of_a_large_store_stretches_of_all_parts_are_counted(small_store, monkeypatch):
    train = open_store(small_store).train
    read = []
    monkeypatch.setattr(neighbors, "MAX_TOKENS", train.num_tokens // 4)
    monkeypatch.setattr(neighbors, "SENTENCES_PER_STRETCH", 10)
    real = type(train).tokens

    def tokens(self, begin, end):
        read.append((begin, end))
        return real(self, begin, end)

    monkeypatch.setattr(type(train), "tokens", tokens)
    piece_vectors(train, 120, 16)
    begins = [begin for begin, _ in read]
    assert np.diff(begins).tolist() == pytest.approx([50] * (len(begins) - 1))
    assert {end - begin for begin, end in read[:-1]} == {10}
    assert begins[-1] > train.num_sentences - 60
