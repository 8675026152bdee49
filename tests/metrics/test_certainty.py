"""Intervals: the share's against SciPy's Wilson interval, the others against SciPy's bootstrap and
by how often they hold.
"""

import numpy as np
import pytest
from scipy import stats

from bert_recipes.metrics.certainty import (
    jackknife_intervals,
    jackknife_replicates,
    seed_and_row_certainty,
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
    return gold.astype(int), (gold ^ (rng.random(rows) < noise)).astype(int)


def numbers(rng, rows):
    gold = rng.normal(size=rows)
    return gold, gold + rng.normal(size=rows)


def intervals_of(score, rows):
    return jackknife_intervals(score(range(rows)), jackknife_replicates(score, rows))


CASES = [
    ("f1", classes),
    ("matthews_correlation", classes),
    ("f1_macro", classes),
    ("pearson", numbers),
]
CASES += [("spearmanr", numbers), ("accuracy", classes)]


@pytest.mark.parametrize(("name", "make"), CASES)
def test_other_intervals_are_as_wide_as_the_bootstraps(name, make):
    gold, said = make(np.random.default_rng(3), 408)

    def score(rows):
        return compute([name], said[list(rows)], gold[list(rows)])

    low, high = intervals_of(score, 408)[name]
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
        low, high = intervals_of(
            lambda rows, gold=gold, said=said: compute(["f1"], said[list(rows)], gold[list(rows)]),
            200,
        )["f1"]
        held += low <= truth <= high
    assert 0.91 <= held / 300 <= 0.98


def test_without_spread_or_rows_there_is_no_interval():
    same, gold = np.ones(30, dtype=int), np.ones(30, dtype=int)
    assert intervals_of(lambda rows: compute(["f1"], same[list(rows)], gold[list(rows)]), 30) == {}
    assert (
        intervals_of(lambda rows: compute(["pearson"], same[list(rows)], gold[list(rows)]), 30)
        == {}
    )
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
    ends = seed_and_row_certainty([values.mean()] * 2, [replicates["mean"]] * 2).intervals[
        "of_rows"
    ]
    assert ends == pytest.approx(stats.t.interval(0.95, 19, values.mean(), error))


def test_other_models_have_the_same_groups_of_rows():
    seen = []
    jackknife_replicates(lambda rows: seen.append(sorted(rows)) or {"f1": 1.0}, 47)
    jackknife_replicates(lambda rows: seen.append(sorted(rows)) or {"f1": 0.0}, 47)
    assert seen[:20] == seen[20:]
    left_out = [set(range(47)) - set(rows) for rows in seen[:20]]
    assert sorted(row for group in left_out for row in group) == list(range(47))
    assert {len(group) for group in left_out} == {2, 3}


def test_a_figure_that_is_undefined_without_a_group_is_nan_there():
    replicates = jackknife_replicates(lambda rows: {"f1": 1.0} if 3 in rows else {}, 5)
    assert np.isnan(replicates["f1"]).tolist().count(True) == 1
    assert jackknife_intervals({"f1": 1.0}, replicates) == {}


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
    table = (
        rng.normal(size=(seeds, 1))
        + 3 * rng.normal(size=groups)
        + 2 * rng.normal(size=(seeds, groups))
    )
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


def f1_of(gold, said):
    return {"f1": 2 * float((gold & said).sum()) / float(gold.sum() + said.sum())}


@pytest.mark.slow
def test_both_intervals_hold_a_true_difference_of_f1():
    """Five seeds of two classifiers that are equally good, each of which errs on rows that are hard
    for it.
    """
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        gold = (rng.random(300) < 0.4).astype(int)
        tables = []
        for hard in (rng.random(300) < 0.3, rng.random(300) < 0.3):
            for _ in range(5):
                rate = np.where(hard, 0.6, 0.05) + rng.uniform(-0.03, 0.03)
                said = gold ^ (rng.random(300) < rate)
                replicates = jackknife_replicates(
                    lambda rows, said=said, gold=gold: f1_of(gold[list(rows)], said[list(rows)]),
                    300,
                )
                tables.append([f1_of(gold, said)["f1"], *replicates["f1"]])
        differences = np.subtract(tables[:5], tables[5:])
        low, high = seed_and_row_certainty(differences[:, 0], differences[:, 1:]).intervals[
            "of_both"
        ]
        held += low <= 0 <= high
    assert held / 400 >= 0.94
