"""Intervals: the share's against SciPy's Wilson interval, the others against SciPy's bootstrap and
by how often they hold.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

from bert_recipes.metrics.certainty import (
    jackknife_intervals,
    jackknife_replicates,
    wilson_interval,
)
from bert_recipes.metrics.classification import compute


@pytest.mark.parametrize(
    ("right", "rows"), [(0, 5), (5, 5), (1, 408), (279, 408), (830, 1000), (17269, 17269)]
)
def test_a_shares_interval_is_scipys(right, rows):
    expected = stats.binomtest(right, rows).proportion_ci(method="wilson")
    assert wilson_interval(right / rows, rows) == pytest.approx(
        (expected.low, expected.high), abs=1e-4
    )


def classes(rng, rows, share=0.3, noise=0.2):
    gold = rng.random(rows) < share
    is_noisy = rng.random(rows) < noise
    return gold.astype(int), (gold ^ is_noisy).astype(int)


def numbers(rng, rows):
    gold = rng.normal(size=rows)
    return gold, gold + rng.normal(size=rows)


def score_of(name, gold, predictions):
    return lambda rows: compute([name], predictions[list(rows)], gold[list(rows)])


def intervals_of(score, rows):
    return jackknife_intervals(score(range(rows)), jackknife_replicates(score, rows))


@pytest.mark.parametrize(
    ("name", "draw"),
    [("f1", classes), ("matthews_correlation", classes), ("spearmanr", numbers)],
)
def test_other_intervals_are_as_wide_as_the_bootstraps(name, draw):
    score = score_of(name, *draw(np.random.default_rng(3), 408))
    low, high = intervals_of(score, 408)[name]
    bootstrap = stats.bootstrap(
        (np.arange(408),),
        lambda rows: score(rows)[name],
        vectorized=False,
        n_resamples=400,
        method="percentile",
        rng=1,
    )
    width = bootstrap.confidence_interval.high - bootstrap.confidence_interval.low
    # 20 groups know their deviation to a sixth; a single draw of rows.
    assert (high - low) / width == pytest.approx(1, abs=0.45)
    assert (low + high) / 2 == pytest.approx(score(range(408))[name])


@pytest.mark.slow
def test_nineteen_of_twenty_intervals_hold_the_true_figure():
    rng = np.random.default_rng(0)
    truth = score_of("f1", *classes(rng, 400_000))(range(400_000))["f1"]
    num_right = 0
    for _ in range(300):
        low, high = intervals_of(score_of("f1", *classes(rng, 200)), 200)["f1"]
        num_right += low <= truth <= high
    assert 0.91 <= num_right / 300 <= 0.98


def test_without_spread_or_rows_there_is_no_interval():
    same = np.ones(30, dtype=int)
    for name in ("f1", "pearson"):
        assert intervals_of(score_of(name, same, same), 30) == {}
    assert intervals_of(lambda rows: {"f1": float(len(rows))}, 4) == {}


def test_the_interval_of_a_mean_is_students_of_its_groups():
    """Without any approximation for a mean over groups of one size: t of 19 is 2.093, to first
    order 2.083.
    """
    values = np.random.default_rng(5).normal(size=400)
    replicates = jackknife_replicates(lambda rows: {"mean": float(values[list(rows)].mean())}, 400)
    ((low, high),) = jackknife_intervals({"mean": float(values.mean())}, replicates).values()
    groups = 20 * values.mean() - 19 * np.array(replicates["mean"])
    assert groups.mean() == pytest.approx(values.mean())
    error = groups.std(ddof=1) / 20**0.5
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 19) * error, rel=0.01)


def test_groups_of_rows_are_the_same_for_every_model():
    groups = []

    def score(rows):
        groups.append(sorted(set(range(47)) - set(rows)))
        return {"f1": float(len(groups))}

    jackknife_replicates(score, 47)
    jackknife_replicates(score, 47)
    assert groups[:20] == groups[20:]
    assert sorted(itertools.chain.from_iterable(groups[:20])) == list(range(47))
    assert set(map(len, groups)) == {2, 3}


def test_a_figure_that_is_undefined_without_a_group_is_nan_there():
    replicates = jackknife_replicates(lambda rows: {"f1": 1.0} if 3 in rows else {}, 5)
    assert np.isnan(replicates["f1"]).sum() == 1
    assert jackknife_intervals({"f1": 1.0}, replicates) == {}
