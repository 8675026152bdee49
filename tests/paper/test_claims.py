"""When a claim is reproduced: by the seeds and the rows together, by seeds that were fixed before,
and never by chance alone.
"""

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from claims import (
    BY_SEEDS_ONLY,
    CONTRADICTED,
    NOT_RESOLVED,
    REPRODUCED,
    check_claim_seeds,
    describe,
    judge,
    markdown,
)
from table import Claim, Column, Row, Table
from table_runs import Cell, Runs

from bert_recipes.errors import InputError


ACCURACY = Column("accuracy", "accuracy", task="sst2")
LOSS = Column("loss", "mlm_loss", unit="nats")
CLAIM = Claim("a", "b", "accuracy", "must")
GROUPS = 20


def cells_of(column, rows_known=True, **effects):
    """Row -> a figure for each seed from 1, whose rows are nearly all alike: other rows would move
    it by a thousandth.
    """
    cells = {}
    for name, figures in effects.items():
        replicates = 1e-3 * np.random.default_rng(len(name)).normal(size=GROUPS) / GROUPS**1.5
        of_seeds = {}
        for seed, value in enumerate(figures, start=1):
            of_seeds[seed] = Cell({}, value, (value + replicates).tolist() if rows_known else [])
        cells[name, column.name] = of_seeds
    return cells


def table_of(
    columns,
    claims,
    rows=("a", "b"),
    seeds=3,
):
    table_rows = [Row(name, {}, untrained=name == "untrained") for name in rows]
    numbers = list(range(1, seeds + 1))
    texts = ("table", "cpu", "Title", "Source", "")
    return Table(
        *texts,
        columns,
        table_rows,
        claims,
        numbers,
        numbers,
    )


def verdict_of(
    claim,
    column,
    cells,
    rows=("a", "b"),
    seeds=3,
):
    judged = judge(claim, table_of([column], [claim], rows, seeds), cells)
    return judged["verdict"], judged["because"]


@pytest.mark.parametrize(
    ("a", "b", "verdict", "because"),
    [
        ([0.9, 0.91, 0.92], [0.8, 0.81, 0.8], REPRODUCED, ""),
        ([0.8, 0.81, 0.8], [0.9, 0.91, 0.92], CONTRADICTED, ""),
        ([0.9, 0.7, 0.92], [0.8, 0.81, 0.8], NOT_RESOLVED, "the interval holds 0"),
        ([0.9, 0.91], [0.8, 0.81], NOT_RESOLVED, "2 of 3 seeds"),
        ([0.9, 0.91, float("nan")], [0.8, 0.8, 0.8], NOT_RESOLVED, "training diverged"),
    ],
)
def test_a_verdict_is_by_the_interval_over_seeds_and_rows(
    a,
    b,
    verdict,
    because,
):
    assert verdict_of(CLAIM, ACCURACY, cells_of(ACCURACY, a=a, b=b)) == (verdict, because)


def test_a_loss_is_better_where_it_is_less_and_one_seed_has_no_interval():
    cells = cells_of(LOSS, a=[1.0, 1.1, 1.0], b=[2.0, 2.1, 2.1])
    claim = CLAIM._replace(column="loss")
    judged = judge(claim, table_of([LOSS], [claim]), cells)
    assert judged["difference"] == pytest.approx(3.1 / 3)
    assert judged["verdict"] == REPRODUCED
    assert verdict_of(claim, LOSS, cells, seeds=1) == (NOT_RESOLVED, "one seed has no interval")


def test_rows_that_disagree_leave_open_what_the_seeds_say():
    """Three seeds with the same difference of a point, nearly all of it from one group of rows."""
    cells = cells_of(ACCURACY, a=[0.81, 0.811, 0.81], b=[0.8, 0.8, 0.8])
    assert judge(CLAIM, table_of([ACCURACY], [CLAIM]), cells)["verdict"] == REPRODUCED
    for cell in cells["a", "accuracy"].values():
        cell.replicates[0] = cell.value - 0.01
    judged = judge(CLAIM, table_of([ACCURACY], [CLAIM]), cells)
    assert judged["verdict"] == NOT_RESOLVED
    low, high = judged["intervals"]["of_seeds"]
    assert 0 < low < high
    assert judged["intervals"]["of_both"][0] < judged["intervals"]["of_rows"][0] < 0


@pytest.mark.parametrize(
    ("a", "b", "within", "verdict", "because"),
    [
        ([0.9, 0.91, 0.92], [0.8, 0.81, 0.8], None, BY_SEEDS_ONLY, "they say reproduced"),
        ([0.8, 0.81, 0.8], [0.9, 0.91, 0.92], None, BY_SEEDS_ONLY, "they say contradicted"),
        ([0.9, 0.7, 0.92], [0.8, 0.81, 0.8], None, NOT_RESOLVED, "the interval holds 0"),
        ([0.51, 0.52, 0.51], [0.5, 0.5, 0.5], 0.05, BY_SEEDS_ONLY, "they say reproduced"),
    ],
)
@pytest.mark.parametrize("missing", [(1, 2, 3), (2,)])
def test_a_claim_without_rows_has_no_verdict_but_by_seeds(
    a,
    b,
    within,
    verdict,
    because,
    missing,
):
    cells = cells_of(ACCURACY, a=a, b=b)
    for seed in missing:
        cells["b", "accuracy"][seed] = cells["b", "accuracy"][seed]._replace(replicates=[])
    assert verdict_of(CLAIM._replace(within=within), ACCURACY, cells) == (verdict, because)


@pytest.mark.parametrize(
    ("a", "verdict", "because"),
    [
        ([0.51, 0.52, 0.51], REPRODUCED, ""),
        ([0.51, 0.56, 0.51], NOT_RESOLVED, "the interval reaches beyond that"),
        ([0.42, 0.41, 0.42], CONTRADICTED, ""),
        ([0.58, 0.59, 0.58], CONTRADICTED, ""),
    ],
)
def test_two_rows_are_alike_where_the_interval_lies_within_the_distance(a, verdict, because):
    claim = CLAIM._replace(within=0.05)
    cells = cells_of(ACCURACY, a=a, b=[0.5, 0.5, 0.5])
    assert verdict_of(claim, ACCURACY, cells) == (verdict, because)


def test_a_row_has_to_have_learned_the_task_itself():
    """Another row's having learned it is not enough; the claim that it is better than the untrained
    row says so itself.
    """
    rows = ("a", "b", "c", "untrained")
    values = {
        "b": [0.7, 0.71, 0.7],
        "c": [0.95, 0.95, 0.95],
        "untrained": [0.76, 0.75, 0.76],
    }
    unlearned = cells_of(ACCURACY, a=[0.75, 0.76, 0.75], **values)
    learned = cells_of(ACCURACY, a=[0.8, 0.81, 0.8], **values)
    not_learned = (NOT_RESOLVED, "a is not known to have learned this")
    assert verdict_of(CLAIM, ACCURACY, unlearned, rows) == not_learned
    assert verdict_of(CLAIM, ACCURACY, learned, rows) == (REPRODUCED, "")
    over_untrained = CLAIM._replace(worse="untrained")
    holds_0 = (NOT_RESOLVED, "the interval holds 0")
    assert verdict_of(over_untrained, ACCURACY, unlearned, rows) == holds_0
    assert verdict_of(over_untrained, ACCURACY, learned, rows) == (REPRODUCED, "")
    del learned["untrained", "accuracy"][2]
    assert verdict_of(CLAIM, ACCURACY, learned, rows) == not_learned
    untrained = cells_of(ACCURACY, rows_known=False, untrained=values["untrained"])
    no_rows = {**learned, **untrained}
    assert verdict_of(CLAIM, ACCURACY, no_rows, rows) == (BY_SEEDS_ONLY, "they say reproduced")


@pytest.mark.parametrize(("errors", "verdict"), [(2.8, NOT_RESOLVED), (3.2, REPRODUCED)])
def test_learned_is_three_standard_errors_over_the_untrained_row(errors, verdict):
    """Over seeds that differ by 0.01, 0.02 and 0.03, a standard error of 0.01 / sqrt(3); rows
    matter a hundred times less.
    """
    ahead = errors * 0.01 / 3**0.5 - 0.02
    untrained = [0.5, 0.5, 0.5]
    better = [0.5 + ahead + difference for difference in (0.01, 0.02, 0.03)]
    cells = cells_of(
        ACCURACY,
        a=better,
        b=[value - 0.1 for value in better],
        untrained=untrained,
    )
    for (name, _), of_seeds in cells.items():
        for seed, cell in of_seeds.items():
            same = np.random.default_rng(len(name)).normal(size=GROUPS) * 1e-7
            of_seeds[seed] = cell._replace(replicates=(cell.value + same).tolist())
    assert verdict_of(CLAIM, ACCURACY, cells, ("a", "b", "untrained"))[0] == verdict


def test_runs_over_different_rows_are_not_compared():
    cells = cells_of(ACCURACY, a=[0.9, 0.91, 0.92], b=[0.8, 0.81, 0.8])
    for name, rows in (("a", "same"), ("b", "other")):
        for seed, cell in cells[name, "accuracy"].items():
            cells[name, "accuracy"][seed] = cell._replace(rows=[rows])
    expected = (NOT_RESOLVED, "the runs were trained or measured on different rows")
    assert verdict_of(CLAIM, ACCURACY, cells) == expected
    # Or trained on them.
    cells = cells_of(ACCURACY, a=[0.9, 0.91, 0.92], b=[0.8, 0.81, 0.8])
    for name, rows in (("a", "same"), ("b", "other")):
        for seed, cell in cells[name, "accuracy"].items():
            cells[name, "accuracy"][seed] = cell._replace(trained_on=rows)
    assert verdict_of(CLAIM, ACCURACY, cells) == expected


# By chance

# Deviations in points: of a row by its seed; of a difference by the validation rows, for all seeds
# alike; of one seed's figure by them.
DEVIATIONS = [
    (0.4, 0.8, 0.0),
    (0.4, 0.4, 0.4),
    (0.4, 0.0, 0.0),
    (0.0, 0.8, 0.0),
    (0.1, 0.3, 1.0),
]


def draw_cells(
    rng,
    seeds,
    deviations,
    difference=0.0,
    rows_known=True,
):
    """Two rows of a table; the figure of a seed is the mean over groups of validation rows."""
    of_seed, of_rows, of_seed_on_rows = deviations
    shared = of_rows * GROUPS**0.5 * rng.normal(size=GROUPS)
    cells = {}
    for name, effect in (("a", difference + shared), ("b", 0.0)):
        seed_effects = of_seed * rng.normal(size=(seeds, 1))
        row_effects = of_seed_on_rows * GROUPS**0.5 * rng.normal(size=(seeds, GROUPS))
        groups = effect + seed_effects + row_effects
        replicates = (groups.sum(axis=1, keepdims=True) - groups) / (GROUPS - 1)
        cells[name, "accuracy"] = {}
        for seed in range(seeds):
            rows = replicates[seed].tolist() if rows_known else []
            cells[name, "accuracy"][seed + 1] = Cell({}, float(groups[seed].mean()), rows)
    return cells


def share_of(verdicts, draws, seeds, deviations, claim=CLAIM, **settings):
    rng = np.random.default_rng(seeds)
    table = table_of([ACCURACY], [claim], seeds=seeds)
    count = 0
    for _ in range(draws):
        cells = draw_cells(rng, seeds, deviations, **settings)
        count += judge(claim, table, cells)["verdict"] in verdicts
    return count / draws


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("deviations", DEVIATIONS)
def test_two_equal_rows_get_a_verdict_in_one_of_twenty_draws(deviations, seeds):
    assert share_of({REPRODUCED, CONTRADICTED}, 800, seeds, deviations) <= 0.06


@pytest.mark.parametrize(("seeds", "share"), [(3, 0.25), (5, 0.45)])
def test_by_seeds_alone_it_would_be_a_quarter_to_a_half_and_is_no_verdict(seeds, share):
    drawn = share_of({BY_SEEDS_ONLY}, 1000, seeds, DEVIATIONS[0], rows_known=False)
    assert drawn == pytest.approx(share, abs=0.04)
    verdicts = {REPRODUCED, CONTRADICTED}
    assert share_of(verdicts, 200, seeds, DEVIATIONS[0], rows_known=False) == 0


@pytest.mark.parametrize(("seeds", "power"), [(3, 0.85), (5, 0.95)])
def test_what_is_four_deviations_apart_is_found(seeds, power):
    deviation = (2 * 0.4**2 / seeds + 0.8**2) ** 0.5
    for verdict, difference in ((REPRODUCED, 4 * deviation), (CONTRADICTED, -4 * deviation)):
        found = share_of({verdict}, 500, seeds, DEVIATIONS[0], difference=difference)
        assert found >= power


def test_two_rows_that_are_as_far_apart_as_allowed_are_rarely_called_alike():
    claim = CLAIM._replace(within=3.0)
    verdicts = {REPRODUCED, CONTRADICTED}
    assert share_of(verdicts, 800, 3, DEVIATIONS[1], claim, difference=3.0) <= 0.06


X, Y = Column("x", "accuracy", task="sst2"), Column("y", "f1", task="mrpc")
MEAN = Column("mean", mean_of=[X, Y])


def drawn_runs(
    folder,
    rng,
    table,
    seeds,
):
    """Runs of two tasks whose rows and columns are all equal."""
    runs = Runs(folder, "", "store")
    for column in (X, Y):
        shared_effects = (0.8 * GROUPS**0.5 * rng.normal(size=GROUPS), np.zeros(GROUPS))
        for row, shared in zip(table.rows, shared_effects, strict=True):
            for seed in range(1, seeds + 1):
                groups = shared + 0.4 * rng.normal() + 0.2 * GROUPS**0.5 * rng.normal(size=GROUPS)
                replicates = (groups.sum() - groups) / (GROUPS - 1)
                figures = {
                    f"eval_{column.metric}": groups.mean(),
                    "jackknife": {column.metric: replicates.tolist()},
                }
                runs.records[str(runs.figure_key(row, column, seed))] = {"figures": figures}
    return runs


def test_means_of_columns_and_claims_between_columns_have_their_rows_too(tmp_path):
    claims = [
        Claim("a", "b", "mean", "must"),
        Claim(
            "a",
            "a",
            "x",
            "must",
            worse_column="y",
        ),
    ]
    table = replace(
        table_of([X, Y, MEAN], claims),
        rows=[Row("a", {"size": "a"}), Row("b", {"size": "b"})],
    )
    rng, seeds = np.random.default_rng(0), 3

    counts = np.zeros(2)
    for _ in range(300):
        described = describe(table, drawn_runs(tmp_path, rng, table, seeds))
        for number, claim in enumerate(described["claims"]):
            counts[number] += claim["verdict"] in (REPRODUCED, CONTRADICTED)
            assert "of_both" in claim["intervals"]
    assert max(counts / 300) <= 0.06


def test_a_mean_needs_all_its_columns_and_a_column_is_named_where_it_is_compared_with(tmp_path):
    claims = [
        Claim(
            "a",
            "a",
            "x",
            "must",
            worse_column="y",
        )
    ]
    table = replace(table_of([X, Y, MEAN], claims), rows=[Row("a", {})])
    (row,) = table.rows
    runs = Runs(tmp_path, "", "store")

    for seed in (1, 2, 3):
        figures = {"eval_accuracy": 0.8 + seed / 100}
        runs.records[runs.figure_key(row, X, seed)] = {"figures": figures}
    assert runs.cell(row, MEAN, 1) is None

    for seed in (1, 2, 3):
        runs.records[runs.figure_key(row, Y, seed)] = {"figures": {"eval_f1": 0.6}}
    assert runs.cell(row, MEAN, 1).value == pytest.approx(0.705)
    assert list(runs.missing(table)) == []
    assert "| a better than a in y | x | must | 22.0 |" in markdown(describe(table, runs))


def test_more_seeds_than_were_fixed_change_no_verdict(tmp_path):
    """What three seeds leave open is not decided by five: a second look makes false verdicts of 5 %
    into 9 %.
    """
    table = table_of([ACCURACY], [CLAIM], seeds=3)
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(60):
        cells = draw_cells(rng, 5, (0.4, 0.0, 0.0))
        first = {key: dict(list(of_seeds.items())[:3]) for key, of_seeds in cells.items()}
        more = judge(CLAIM, replace(table, seeds=[1, 2, 3, 4, 5]), cells)
        assert more == judge(CLAIM, table, first)
        later = judge(CLAIM, replace(table, claim_seeds=[1, 2, 3, 4, 5]), cells)
        changed += later["verdict"] != more["verdict"]
    assert changed > 0


@pytest.mark.parametrize(
    ("intervals", "profile", "claim_seeds", "is_refused"),
    [
        ({"of_both": [0.1, 0.2]}, "cpu", [1, 2], True),
        ({"of_both": [0.1, 0.2]}, "cpu", [1, 2, 3], False),
        ({"of_both": [0.1, 0.2]}, "gpu", [1, 2], False),  # of another profile
        ({}, "cpu", [1, 2], False),  # nothing was judged
    ],
)
def test_claims_that_were_judged_keep_their_number_of_seeds(
    tmp_path,
    intervals,
    profile,
    claim_seeds,
    is_refused,
):
    path = tmp_path / "table.json"
    table = table_of([ACCURACY], [CLAIM], seeds=3)
    check_claim_seeds(table, path)  # the first call
    earlier = {
        "profile": profile,
        "claim_seeds": claim_seeds,
        "claims": [{"intervals": intervals}],
    }
    path.write_text(json.dumps(earlier))
    message = "has verdicts by 2 seeds, and now seeds is 3: a number that is chosen after a look"
    with pytest.raises(InputError, match=message) if is_refused else nullcontext():
        check_claim_seeds(table, path)


# Tables


def known_runs(folder, values, metric="accuracy"):
    """A row a name, with a figure for each seed, whose rows are known."""
    runs = Runs(folder, "", "store")
    rows = [Row(name, {"size": name}, untrained=name == "untrained") for name in values]
    rng = np.random.default_rng(0)
    for row in rows:
        for seed, value in enumerate(values[row.name], start=1):
            replicates = (
                None if value is None else [value + 1e-5 * rng.normal() for _ in range(GROUPS)]
            )
            figures = {f"eval_{metric}": value, "jackknife": {metric: replicates}}
            runs.record(
                runs.figure_key(row, ACCURACY, seed),
                "finetune",
                {},
                figures,
                0.0,
            )
    return runs, rows


def test_a_run_that_diverged_is_kept_as_one_and_says_nothing_of_others(tmp_path):
    values = {
        "a": [0.9, 0.91],
        "b": [0.8, 0.8],
        "lost": [None, None],
        "untrained": [0.5, 0.51],
    }
    runs, rows = known_runs(tmp_path, values)
    claims = [CLAIM, CLAIM._replace(worse="lost")]
    table = replace(table_of([ACCURACY], claims, seeds=2), rows=rows)
    described = describe(table, runs)
    assert [claim["verdict"] for claim in described["claims"]] == [REPRODUCED, NOT_RESOLVED]
    assert described["claims"][1]["because"] == "training diverged"
    assert "| lost | diverged |" in markdown(described)


def test_a_figure_that_is_undefined_without_some_rows_is_one_without_rows(tmp_path):
    runs, rows = known_runs(tmp_path, {"a": [0.9, 0.91], "b": [0.8, 0.8]})
    next(iter(runs.records.values()))["figures"]["jackknife"]["accuracy"][3] = None
    table = replace(table_of([ACCURACY], [CLAIM], seeds=2), rows=rows)
    assert describe(table, runs)["claims"][0]["verdict"] == BY_SEEDS_ONLY
