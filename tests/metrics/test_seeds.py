"""Intervals over seeds and rows, beside SciPy and an analysis of variance."""

import numpy as np
import pytest
from scipy import stats

from bert_recipes.metrics.seeds import seed_and_row_certainty


def test_the_interval_over_seeds_is_students():
    """Three differences of 1, 2 and 3: 2 +- 4.303 / sqrt(3)."""
    intervals = seed_and_row_certainty([1.0, 2.0, 3.0]).intervals
    assert intervals == {
        "of_seeds": pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)
    }


def test_variances_of_seeds_and_rows_are_those_of_a_crossed_design():
    """Beside the mean squares of an analysis of variance; what is of one seed on one group of rows
    counts once.
    """
    rng = np.random.default_rng(2)
    seeds, groups = 4, 20
    seed_effects = rng.normal(size=(seeds, 1))
    row_effects = 3 * rng.normal(size=groups)
    table = seed_effects + row_effects + 2 * rng.normal(size=(seeds, groups))
    figures, means = table.mean(axis=1), table.mean(axis=0)
    replicates = (table.sum(axis=1, keepdims=True) - table) / (groups - 1)
    certainty = seed_and_row_certainty(figures, replicates)
    halves = {name: (high - low) / 2 for name, (low, high) in certainty.intervals.items()}
    of_rows = seeds * means.var(ddof=1)
    of_both = ((table - figures[:, None] - means + table.mean()) ** 2).sum() / (
        (seeds - 1) * (groups - 1)
    )
    t_of_seeds, t_of_rows = stats.t.ppf(0.975, [seeds - 1, groups - 1])
    assert halves["of_seeds"] == pytest.approx(t_of_seeds * (figures.var(ddof=1) / seeds) ** 0.5)
    assert halves["of_rows"] == pytest.approx(t_of_rows * (of_rows / (seeds * groups)) ** 0.5)
    rows_alone = t_of_rows * ((of_rows - of_both) / (seeds * groups)) ** 0.5
    assert halves["of_both"] == pytest.approx(np.hypot(halves["of_seeds"], rows_alone))
    assert halves["of_both"] > max(halves["of_seeds"], halves["of_rows"])
    variance = figures.var(ddof=1) / seeds + (of_rows - of_both) / (seeds * groups)
    assert certainty.error == pytest.approx(variance**0.5)
    assert seed_and_row_certainty(figures).error == pytest.approx(halves["of_seeds"] / t_of_seeds)
    same = seed_and_row_certainty([1.0, 1.0], replicates[:2]).intervals
    assert same["of_both"] == same["of_rows"] != same["of_seeds"]
