"""Tables of a paper: what is a run, which runs are shared and kept, and when a claim is reproduced."""

import shutil
from dataclasses import replace

import pytest
import yaml

from bert_recipes.errors import InputError
from bert_recipes.sweeps.claims import CONTRADICTED, NOT_RESOLVED, REPRODUCED, describe, judge, markdown
from bert_recipes.sweeps.tables import Cell, Claim, Column, Row, Runs, Table, read_table


ACCURACY = Column("accuracy", "accuracy", task="sst2")
LOSS = Column("loss", "mlm_loss", unit="nats")
CLAIM = Claim("a", "b", "accuracy", "must")


def cells(column, **values):
    """Row -> a figure for each seed, from 1; a run has 1,000 rows, so an accuracy of half is known to 1.6 points."""
    half = {"intervals": {"accuracy": [0.469, 0.531]}}
    return {
        (name, column.name): {
            seed: Cell({"key": f"{name}{seed}", "figures": half}, value) for seed, value in enumerate(figures, start=1)
        }
        for name, figures in values.items()
    }


def table_of(column, claim, rows=("a", "b")):
    made = [Row(name, {}, untrained=name == "untrained") for name in rows]
    return Table("table", "Title", "Source", "", [column], made, [claim])


@pytest.mark.parametrize(
    ("a", "b", "of_rows", "verdict", "because"),
    [
        ([0.9, 0.91, 0.92], [0.8, 0.81, 0.8], (0.05, 0.15), REPRODUCED, ""),
        ([0.8, 0.81, 0.8], [0.9, 0.91, 0.92], (-0.15, -0.05), CONTRADICTED, ""),
        ([0.9, 0.91, 0.92], [0.8, 0.81, 0.8], (-0.01, 0.15), NOT_RESOLVED, "the interval of the rows holds 0"),
        ([0.9, 0.7, 0.92], [0.8, 0.81, 0.8], (0.01, 0.15), NOT_RESOLVED, "the interval of the seeds holds 0"),
        ([0.9], [0.8], (0.05, 0.15), NOT_RESOLVED, "fewer than two seeds"),
        ([0.9, float("nan")], [0.8, 0.8], (0.05, 0.15), NOT_RESOLVED, "training diverged"),
        ([0.9, 0.91, 0.92], [0.8, 0.81, 0.8], None, REPRODUCED, ""),  # predictions are gone: by seeds alone
    ],
)
def test_a_claim_holds_where_both_intervals_exclude_0(a, b, of_rows, verdict, because):
    found = judge(CLAIM, table_of(ACCURACY, CLAIM), cells(ACCURACY, a=a, b=b), lambda pairs, figure: of_rows)
    assert (found["verdict"], found["because"]) == (verdict, because)


def test_the_interval_of_seeds_is_students():
    """Three differences of 1, 2 and 3: 2 +- 4.303 / sqrt(3)."""
    of_rows = cells(LOSS, a=[1.0, 1.0, 1.0], b=[2.0, 3.0, 4.0])
    claim = Claim("a", "b", "loss", "must")
    found = judge(claim, table_of(LOSS, claim), of_rows, lambda pairs, figure: pytest.fail("a loss has no rows"))
    assert found["difference"] == 2.0  # a loss is better where it is less
    assert found["intervals"]["of_seeds"] == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)
    assert found["verdict"] == NOT_RESOLVED


@pytest.mark.parametrize(("untrained", "because"), [(0.86, "no row has learnt this task"), (0.5, "")])
def test_a_task_that_no_row_has_learnt_says_nothing(untrained, because):
    """Three standard errors of 1.6 points above the untrained row."""
    own = cells(ACCURACY, a=[0.9, 0.9, 0.9], b=[0.8, 0.81, 0.8], untrained=[untrained] * 3)
    table = table_of(ACCURACY, CLAIM, ("a", "b", "untrained"))
    assert judge(CLAIM, table, own, lambda pairs, figure: (0.05, 0.15))["because"] == because


@pytest.mark.parametrize(
    ("a", "of_rows", "verdict"),
    [
        ([0.51, 0.52, 0.51], (-0.01, 0.03), REPRODUCED),
        ([0.51, 0.52, 0.51], (-0.01, 0.06), NOT_RESOLVED),
        ([0.42, 0.41, 0.42], (-0.09, -0.055), CONTRADICTED),
    ],
)
def test_two_rows_are_alike_where_both_intervals_lie_within_the_distance(a, of_rows, verdict):
    claim = CLAIM._replace(within=0.05)
    own = cells(ACCURACY, a=a, b=[0.5, 0.5, 0.5])
    found = judge(claim, table_of(ACCURACY, claim), own, lambda pairs, figure: of_rows)
    assert found["verdict"] == verdict


def test_columns_of_one_row_are_compared_by_seeds_and_a_mean_needs_all_its_columns(tmp_path, repository):
    shutil.copy(repository / "recipes" / "configs" / "paper" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "title: T\nsource: S\nrows: {a: {}}\n"
        "columns: {x: {task: sst2, metric: accuracy}, y: {task: mrpc, metric: accuracy}, mean: {mean_of: [x, y]}}\n"
        "claims: [{better: a, worse: a, column: x, worse_column: y, expected: must}]\n"
    )
    table = read_table(tmp_path / "mine.yaml", "smoke")
    (row,), (x, y, mean) = table.rows, table.columns
    runs = Runs(tmp_path, tmp_path, {}, "store")
    runs.known = {runs.key(row, x, seed): {"figures": {"eval_accuracy": 0.8 + seed / 100}} for seed in (1, 2, 3)}
    assert runs.cell(row, mean, 1) is None
    runs.known |= {runs.key(row, y, seed): {"figures": {"eval_accuracy": 0.6}} for seed in (1, 2, 3)}
    assert runs.cell(row, mean, 1).value == pytest.approx(0.705)
    assert list(runs.missing(table, [1, 2, 3])) == []
    described = describe(table, runs, [1, 2, 3], lambda pairs, figure: pytest.fail("rows of two tasks are no pairs"))
    assert described["claims"][0]["verdict"] == REPRODUCED
    assert described["claims"][0]["difference"] == pytest.approx(0.22)
    assert "| a better than a in y | x | must | 22.0 |" in markdown(described)


@pytest.mark.parametrize("text", ["[]", "null", "{", '{"key": 3}', '{"key": {"figures": []}}', "\xff"])
def test_a_file_of_runs_that_holds_something_else_is_one_line(tmp_path, text):
    (tmp_path / "runs.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"runs\.json: ") as caught:
        Runs(tmp_path, tmp_path, {}, "store")
    assert "\n" not in str(caught.value)


def test_a_run_that_diverged_is_kept_as_one_and_says_nothing_of_others(tmp_path):
    runs = Runs(tmp_path, tmp_path, {}, "store")
    rows = [Row(name, {"size": name}, untrained=name == "untrained") for name in ("a", "b", "lost", "untrained")]
    for row, value in zip(rows, (0.9, 0.8, None, 0.5), strict=True):
        for seed in (1, 2):
            figures = {"eval_accuracy": value, "intervals": {"accuracy": [0.49, 0.51]}}
            runs._keep("finetune", str(runs.key(row, ACCURACY, seed)), {}, figures, 0.0)
    table = Table("t", "Title", "Source", "", [ACCURACY], rows, [CLAIM, CLAIM._replace(worse="lost")])
    described = describe(table, runs, [1, 2], lambda pairs, figure: (0.05, 0.15))
    assert [claim["verdict"] for claim in described["claims"]] == [REPRODUCED, NOT_RESOLVED]
    assert described["claims"][1]["because"] == "training diverged"
    assert "| lost | diverged |" in markdown(described)


def test_every_table_of_the_project_can_be_read_with_every_profile(repository):
    folder = repository / "recipes" / "configs" / "paper"
    files = [file for file in folder.glob("*.yaml") if file.stem != "profiles"]
    assert files
    for file in files:
        for profile in yaml.safe_load((folder / "profiles.yaml").read_text(encoding="utf-8")):
            assert read_table(file, profile).rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: {a: {}}\ncolumns: {c: {metrik: x}}", "column c: unknown key 'metrik'; did you mean metric?"),
        ("rows: {a: {}}", "columns missing"),
        (
            "rows: {a: {}}\ncolumns: {c: {metric: x}}\nclaims: [{better: a, worse: a}]",
            "claims: column, expected missing",
        ),
        ("rows: {a: {}}\ncolumns: {c: {mean_of: [d]}}", "column c: no column d before it"),
        ("rows: {a: {profiles: [cpu]}}\ncolumns: {c: {metric: x}}", "no row has the profile 'smoke'"),
        ("rows: {a: {not_profiles: [smoke]}}\ncolumns: {c: {metric: x}}", "no row has the profile 'smoke'"),
        ("rows: {a: {pretrian: {}}}\ncolumns: {c: {metric: x}}", "row a: unknown key 'pretrian'"),
        (
            "rows: {a: {}}\ncolumns: {c: {metric: x}}\nclaims: [{better: a, worse: b, column: c, expected: must}]",
            "a claim names the row 'b'; there are: a",
        ),
    ],
)
def test_a_mistake_in_a_table_is_one_line(tmp_path, repository, text, message):
    shutil.copy(repository / "recipes" / "configs" / "paper" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(f"title: T\nsource: S\n{text}\n")
    with pytest.raises(InputError, match=message):
        read_table(tmp_path / "mine.yaml", "smoke")


def test_runs_are_shared_by_what_they_set_and_by_nothing_else(tmp_path):
    runs = Runs(tmp_path, tmp_path, {}, "store")
    row, same, other = (Row(name, {"size": size}) for name, size in (("a", "tiny"), ("b", "tiny"), ("c", "mini")))
    assert runs.key(row, LOSS, 1) == runs.key(same, None, 1)
    assert len({runs.key(row, LOSS, 1), runs.key(row, LOSS, 2), runs.key(other, LOSS, 1)}) == 3
    assert runs.key(row, ACCURACY, 1) == runs.key(same, ACCURACY, 1) != runs.key(other, ACCURACY, 1)
    assert runs.key(Row("d", {}, model="bert"), LOSS, 1) is None


def test_a_student_is_known_by_its_teacher_and_an_ensemble_by_all_its_members(tmp_path, repository):
    shutil.copy(repository / "recipes" / "configs" / "paper" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "title: T\nsource: S\ncolumns: {accuracy: {task: sst2, metric: accuracy}}\n"
        "rows: {alone: {}, taught: {teacher: true}, all: {ensemble: true}}\n"
    )
    alone, taught, all_seeds = read_table(tmp_path / "mine.yaml", "smoke").rows
    assert taught.pretrain == {**alone.pretrain, "max_steps": "4"}
    assert taught.teacher is not None
    assert taught.teacher.pretrain == alone.pretrain
    runs = Runs(tmp_path, tmp_path, {}, "store", [1, 2])
    assert runs.key(taught.teacher, None, 2) == runs.key(alone, None, 2)
    without = replace(taught, teacher=None)
    assert len({runs.key(row, None, seed) for row in (taught, without, alone) for seed in (1, 2)}) == 6
    assert runs.key(all_seeds, ACCURACY, 1) == runs.key(all_seeds, ACCURACY, 2) != runs.key(alone, ACCURACY, 1)
    others = Runs(tmp_path / "others", tmp_path, {}, "store", [1, 2, 3])
    assert others.key(all_seeds, ACCURACY, 1) != runs.key(all_seeds, ACCURACY, 1)


def test_the_markdown_has_the_papers_figures_in_brackets(tmp_path):
    runs = Runs(tmp_path, tmp_path, {}, "store")
    row = Row("a", {}, {}, {"accuracy": 92.7})
    runs.known = {runs.key(row, ACCURACY, seed): {"figures": {"eval_accuracy": 0.8 + seed / 100}} for seed in (1, 2)}
    table = Table("t", "Title", "Source", "Note", [ACCURACY], [row], [])
    text = markdown(describe(table, runs, [1, 2], lambda pairs, figure: None))
    assert "| a | 81.5 ± 0.7 (92.7) |" in text
