import numpy as np

from bert_recipes.data.keyed_random import hash_keys, keyed_uniforms, keyed_uniforms_at


def test_numbers_depend_on_the_key_alone_not_on_the_batch_around_it():
    keys = hash_keys(1, np.arange(50), np.arange(50) * 7)
    together = keyed_uniforms(keys, 0, 128)
    alone = keyed_uniforms(keys[31:32], 0, 40)
    assert np.array_equal(together[31, :40], alone[0])


def test_numbers_are_uniform_and_uncorrelated_between_neighbours_and_streams():
    keys = hash_keys(5, np.zeros(4000, dtype=np.int64), np.arange(4000))
    first, second = keyed_uniforms(keys, 0, 64), keyed_uniforms(keys, 1, 64)
    counts, _ = np.histogram(first, bins=100, range=(0, 1))
    expected = first.size / 100
    assert ((counts - expected) ** 2 / expected).sum() < 150  # chi-square with 99 degrees of freedom: p < 0.001 at 149
    assert first.min() >= 0.0
    assert first.max() < 1.0
    for other in (second, np.roll(first, 1, axis=0), np.roll(first, 1, axis=1)):
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.01


def test_seed_epoch_and_index_all_change_the_key():
    base = hash_keys(1, np.array([0]), np.array([0]))
    others = [
        hash_keys(2, np.array([0]), np.array([0])),
        hash_keys(1, np.array([1]), np.array([0])),
        hash_keys(1, np.array([0]), np.array([1])),
    ]
    assert all(base[0] != other[0] for other in others)
    assert hash_keys(1, np.array([1]), np.array([0])) != hash_keys(1, np.array([0]), np.array([1]))
    grid = np.indices((300, 300)).reshape(2, -1)
    assert len(np.unique(hash_keys(3, grid[0], grid[1]))) == 90_000


def test_single_numbers_are_those_of_the_row():
    keys, places = hash_keys(3, np.arange(5)), np.array([0, 7, 99])
    rows = np.array([4, 0, 2])
    assert np.array_equal(
        keyed_uniforms_at(keys[rows], 2, places), keyed_uniforms(keys, 2, 100)[rows, places]
    )
