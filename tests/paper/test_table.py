"""Tables of a paper: what they may say, what is a run, and which runs are shared and kept."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml
from table import Column, Row, read_table
from table_runs import Runs, regular_checkpoint

from bert_recipes.errors import InputError


ACCURACY = Column("accuracy", "accuracy", task="sst2")
LOSS = Column("loss", "mlm_loss", unit="nats")


@pytest.fixture
def read(tmp_path, repository):
    """Read a table of this text."""
    shutil.copy(repository / "paper" / "tables" / "profiles.yaml", tmp_path)

    def read_text(text, profile="smoke"):
        (tmp_path / "mine.yaml").write_text(f"title: T\nsource: S\n{text}\n")
        return read_table(tmp_path / "mine.yaml", profile)

    return read_text


def test_every_table_of_the_project_can_be_read_with_every_profile(repository):
    folder = repository / "paper" / "tables"
    files = [file for file in folder.glob("*.yaml") if file.stem != "profiles"]
    assert files
    for file in files:
        for profile in yaml.safe_load((folder / "profiles.yaml").read_text(encoding="utf-8")):
            assert read_table(file, profile).rows


def test_eighths_of_a_run_are_found_by_their_steps(tmp_path):
    """A signal leaves a checkpoint beside them, as the end of a first phase does."""
    state = {"save_steps": 125, "max_steps": 999}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    for step in (125, 137, 250, 375, 500, 625, 750, 875, 900, 999):
        (tmp_path / f"checkpoint-{step}").mkdir()
    steps = [regular_checkpoint(tmp_path, eighth).name for eighth in (1, 2, 4, 8)]
    assert steps == ["checkpoint-125", "checkpoint-250", "checkpoint-500", "checkpoint-999"]


COLUMN = "columns: {c: {metric: x}}"
CLAIM = "better: a, worse: a, column: c, expected: must"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: {a: {}}\ncolumns: {c: {metrik: x}}", "column c: .*'metrik'"),
        ("rows: {a: {pretrian: {}}}\n" + COLUMN, "row a: .*'pretrian'"),
        ("rows: {a: {}}", "mine.yaml: .*'columns'"),
        ("rows: [a]\n" + COLUMN, "rows and columns are mappings"),
        ("rows: {a: {published: {c: high}}}\n" + COLUMN, "row a: .*'high'"),
        ("rows: {a: {}}\ncolumns: {c: {mean_of: [d]}}", "column c: no column d before it"),
        ("rows: {a: {profiles: [cpu]}}\n" + COLUMN, "no row has the profile 'smoke'"),
        ("seeds: 0\nrows: {a: {}}\n" + COLUMN, "seeds is '0'; give the number of pre-training"),
        (f"rows: {{a: {{}}}}\n{COLUMN}\nclaims: [{{better: a}}]", "claims: .*'expected'"),
        (f"rows: {{a: {{}}}}\n{COLUMN}\nclaims: [{{{CLAIM}, within: few}}]", "claims: .*'few'"),
        (
            f"rows: {{a: {{}}}}\n{COLUMN}\nclaims: [{{{CLAIM}, worse_column: d}}]",
            "a claim names d, which the table does not have",
        ),
        (
            f"rows: {{a: {{}}}}\n{COLUMN}\nclaims: [{{{CLAIM.replace('must', 'may')}}}]",
            "expected 'may'; allowed: must, should, report",
        ),
    ],
)
def test_a_mistake_in_a_table_is_one_line(read, text, message):
    with pytest.raises(InputError, match=message):
        read(text)


def test_runs_are_shared_by_what_they_set_and_by_nothing_else(tmp_path):
    runs = Runs(tmp_path, "", "store")
    row, same = Row("a", {"size": "tiny"}), Row("b", {"size": "tiny"})
    other = Row("c", {"size": "mini"})
    key = runs.figure_key(row, LOSS, 1)
    assert key == runs.checkpoint_key(same, 1)
    assert len({key, runs.figure_key(row, LOSS, 2), runs.figure_key(other, LOSS, 1)}) == 3
    key = runs.figure_key(row, ACCURACY, 1)
    assert key == runs.figure_key(same, ACCURACY, 1) != runs.figure_key(other, ACCURACY, 1)


def test_rows_of_a_table_may_differ_in_what_they_are_trained_on(tmp_path):
    """Otherwise other training rows are a change of the files between two runs."""
    runs = Runs(tmp_path, "", "store")
    rows = Row("all", {}), Row("few", {}, finetune={"max_train_examples": "1000"})
    for row in rows:
        run = {"figures": {"eval_accuracy": 0.9}, "train_sha256": row.name}
        runs.records[runs.figure_key(row, ACCURACY, 1)] = run
    assert [runs.cell(row, ACCURACY, 1).trained_on for row in rows] == ["all", None]


@pytest.mark.parametrize(
    ("name", "row", "column", "key"),
    [
        ("table2", "tiny, ensemble", "F1", "302a87050b6f791a"),
        ("table7", "8/128/2", "sum of all", "a1064a5fd207e471"),
        ("table8", "80/10/10", "loss at random tokens", "e796c717e08c2467"),
        ("figure5", "masked LM, 1/8", "SST-2", "62028f7e74f0bb59"),
        ("distilbert4", "all three losses", "held-out masked-LM loss", "c285011fd42b8015"),
    ],
)
def test_finished_runs_are_found_again_by_their_keys(
    tmp_path,
    repository,
    name,
    row,
    column,
    key,
):
    table = read_table(repository / "paper" / "tables" / f"{name}.yaml", "cpu")
    rows = {row.name: row for row in table.rows}
    columns = {column.name: column for column in table.columns}
    assert Runs(tmp_path, "", "the store").figure_key(rows[row], columns[column], 1) == key


def test_a_student_is_known_by_its_teacher_and_an_ensemble_by_all_its_members(tmp_path, read):
    table = read(
        "seeds: 2\ncolumns: {accuracy: {task: sst2, metric: accuracy}}\n"
        "rows: {alone: {}, taught: {teacher: true}, all: {ensemble: true}}"
    )
    alone, taught, all_seeds = table.rows
    assert taught.pretrain == {**alone.pretrain, "max_steps": "4"}
    assert taught.teacher is not None
    assert taught.teacher.pretrain == alone.pretrain
    assert all_seeds.ensemble == [1, 2]
    runs = Runs(tmp_path, "", "store")
    assert runs.checkpoint_key(taught.teacher, 2) == runs.checkpoint_key(alone, 2)
    rows = (taught, replace(taught, teacher=None), alone)
    keys = {runs.checkpoint_key(row, seed) for row in rows for seed in (1, 2)}
    assert len(keys) == 6
    key = runs.figure_key(all_seeds, ACCURACY, 1)
    assert key == runs.figure_key(all_seeds, ACCURACY, 2) != runs.figure_key(alone, ACCURACY, 1)
    assert key != runs.figure_key(replace(all_seeds, ensemble=[1, 2, 3]), ACCURACY, 1)


def test_a_table_has_as_many_seeds_as_it_or_its_profile_says(read):
    text = f"rows: {{a: {{}}}}\n{COLUMN}\n"
    table = read(text, "cpu")
    assert table.claim_seeds == table.seeds == [1, 2, 3]
    assert read(text).claim_seeds == [1]
    assert read(f"{text}seeds: 4\n", "cpu").claim_seeds == [1, 2, 3, 4]
