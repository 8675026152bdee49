"""Intervals: the share's against SciPy's Wilson interval, the others against SciPy's bootstrap and by how often they hold."""

import numpy as np
import pytest
from scipy import stats

from bert_recipes.metrics.certainty import jackknife_intervals, wilson_interval
from bert_recipes.metrics.classification import compute


@pytest.mark.parametrize(("right", "rows"), [(0, 5), (5, 5), (1, 408), (279, 408), (830, 1000), (17269, 17269)])
def test_a_shares_interval_is_scipys(right, rows):
    expected = stats.binomtest(right, rows).proportion_ci(method="wilson")
    assert wilson_interval(right / rows, rows) == pytest.approx((expected.low, expected.high), abs=1e-4)


def classes(rng, rows, share=0.3, noise=0.2):
    gold = rng.random(rows) < share
    return gold.astype(int), (gold ^ (rng.random(rows) < noise)).astype(int)


def numbers(rng, rows):
    gold = rng.normal(size=rows)
    return gold, gold + rng.normal(size=rows)


CASES = [("f1", classes), ("matthews_correlation", classes), ("f1_macro", classes), ("pearson", numbers)]
CASES += [("spearmanr", numbers), ("accuracy", classes)]


@pytest.mark.parametrize(("name", "make"), CASES)
def test_other_intervals_are_as_wide_as_the_bootstraps(name, make):
    gold, said = make(np.random.default_rng(3), 408)

    def score(rows):
        return compute([name], said[list(rows)], gold[list(rows)])

    low, high = jackknife_intervals(score, 408)[name]
    expected = stats.bootstrap(
        (np.arange(408),),
        lambda rows: score(rows)[name],
        vectorized=False,
        n_resamples=600,
        method="percentile",
        rng=1,
    ).confidence_interval
    # 20 groups know their deviation to a sixth; a single draw of rows.
    assert (high - low) / (expected.high - expected.low) == pytest.approx(1, abs=0.45)
    assert (low + high) / 2 == pytest.approx(score(range(408))[name])


@pytest.mark.slow
def test_nineteen_of_twenty_intervals_hold_the_true_figure():
    rng = np.random.default_rng(0)
    truth = compute(["f1"], *reversed(classes(rng, 400_000)))["f1"]
    held = 0
    for _ in range(300):
        gold, said = classes(rng, 200)
        low, high = jackknife_intervals(
            lambda rows, gold=gold, said=said: compute(["f1"], said[list(rows)], gold[list(rows)]), 200
        )["f1"]
        held += low <= truth <= high
    assert 0.91 <= held / 300 <= 0.98


def test_without_spread_or_rows_there_is_no_interval():
    same, gold = np.ones(30, dtype=int), np.ones(30, dtype=int)
    assert jackknife_intervals(lambda rows: compute(["f1"], same[list(rows)], gold[list(rows)]), 30) == {}
    assert jackknife_intervals(lambda rows: compute(["pearson"], same[list(rows)], gold[list(rows)]), 30) == {}
    assert jackknife_intervals(lambda rows: {"f1": float(len(rows))}, 4) == {}
