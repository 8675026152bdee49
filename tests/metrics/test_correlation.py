import math
import warnings

import numpy as np
import pytest

from bert_recipes.metrics.classification import compute


def pearson(predictions, references):
    return compute(["pearson"], predictions, references)["pearson"]


def spearmanr(predictions, references):
    return compute(["spearmanr"], predictions, references)["spearmanr"]


@pytest.fixture(scope="module")
def expected():
    """Both figures of SciPy."""
    stats = pytest.importorskip("scipy.stats")

    def figures(predictions, references):
        with warnings.catch_warnings():
            # It warns of constant inputs, and returns nan.
            warnings.simplefilter("ignore")
            return [
                float(stats.pearsonr(predictions, references)[0]),
                float(stats.spearmanr(predictions, references)[0]),
            ]

    return figures


def both(predictions, references):
    return [pearson(predictions, references), spearmanr(predictions, references)]


def test_random_scores_are_correlated_as_scipy_does(expected):
    rng = np.random.default_rng(0)
    for _ in range(60):
        rows = rng.integers(2, 60)
        references = rng.normal(2.5, 1.0, rows)
        predictions = rng.normal() * references + rng.normal(0.0, 1.0, rows)
        assert both(predictions, references) == pytest.approx(expected(predictions, references), abs=1e-12)


def test_scores_with_many_ties_are_correlated_as_scipy_does(expected):
    """Constant sides among them: SciPy returns nan."""
    rng = np.random.default_rng(1)
    constants = 0
    for _ in range(60):
        rows = rng.integers(2, 12)
        predictions, references = (rng.integers(0, rng.integers(1, 5), rows) / 2 for _ in range(2))
        values = expected(predictions, references)
        constants += math.isnan(values[0])
        assert both(predictions, references) == pytest.approx(values, abs=1e-12, nan_ok=True)
    assert constants > 1


@pytest.mark.parametrize("scale", [1e-200, 1e-8, 1.0, 1e8, 1e200])
def test_the_size_of_scores_does_not_matter(expected, scale):
    rng = np.random.default_rng(2)
    references = rng.normal(size=50)
    predictions = references + rng.normal(size=50)
    assert both(predictions * scale, references) == pytest.approx(expected(predictions, references), abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 2.5, 3.7, 1 / 3, 1e300])
def test_a_constant_side_has_no_correlation(expected, constant):
    """3.7: the mean of equal numbers is not always that number, and what is left over is not to be correlated."""
    varied = np.arange(10.0)
    for sides in ((np.full(10, constant), varied), (varied, np.full(10, constant)), (np.full(10, constant),) * 2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert all(math.isnan(value) for value in both(*sides))
        assert all(math.isnan(value) for value in expected(*sides))


def test_a_single_row_has_no_correlation():
    assert all(math.isnan(value) for value in both([1.0], [2.0]))


def test_two_rows_are_wholly_correlated(expected):
    assert both([1.0, 2.0], [5.0, 3.0]) == pytest.approx([-1.0, -1.0])
    assert expected([1.0, 2.0], [5.0, 3.0]) == pytest.approx([-1.0, -1.0])


def test_no_correlation_passes_1():
    rng = np.random.default_rng(3)
    for _ in range(40):
        values = rng.normal(size=rng.integers(2, 20)) * 10.0 ** rng.integers(-5, 5)
        assert -1.0 <= pearson(values, -3 * values) <= pearson(values, 7 * values) <= 1.0


def test_equal_scores_share_the_mean_of_their_ranks():
    """Worked out by hand: ranks 1, 2.5, 2.5, 4 beside 1, 2, 3, 4 give 4.5 / sqrt(4.5 * 5)."""
    assert spearmanr([0.1, 0.5, 0.5, 0.9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_single_precision_scores_are_measured_in_double_precision():
    predictions = np.array([1.1, 2.2, 3.3], dtype=np.float32)
    references = [1.0, 2.0, 3.5]
    assert pearson(predictions, references) == pearson(predictions.astype(np.float64), references)
