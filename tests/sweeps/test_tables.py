"""Tables of a paper: what they may say, what is a run, and which runs are shared and kept."""

import shutil
from dataclasses import replace

import pytest
import yaml

from bert_recipes.errors import InputError
from bert_recipes.sweeps.tables import Column, Row, Runs, read_table


ACCURACY = Column("accuracy", "accuracy", task="sst2")
LOSS = Column("loss", "mlm_loss", unit="nats")


@pytest.mark.parametrize(
    "text", ["[]", "null", "{", '{"key": 3}', '{"key": {"figures": []}}', "\xff"]
)
def test_a_file_of_runs_that_holds_something_else_is_one_line(tmp_path, text):
    (tmp_path / "runs.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"runs\.json: ") as caught:
        Runs(tmp_path, tmp_path, {}, "store")
    assert "\n" not in str(caught.value)


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
        (
            "rows: {a: {}}\ncolumns: {c: {metrik: x}}",
            "column c: unknown key 'metrik'; did you mean metric?",
        ),
        ("rows: {a: {}}", "columns missing"),
        (
            "rows: {a: {}}\ncolumns: {c: {metric: x}}\nclaims: [{better: a, worse: a}]",
            "claims: column, expected missing",
        ),
        ("rows: {a: {}}\ncolumns: {c: {mean_of: [d]}}", "column c: no column d before it"),
        (
            "rows: {a: {profiles: [cpu]}}\ncolumns: {c: {metric: x}}",
            "no row has the profile 'smoke'",
        ),
        (
            "rows: {a: {not_profiles: [smoke]}}\ncolumns: {c: {metric: x}}",
            "no row has the profile 'smoke'",
        ),
        (
            "seeds: 0\nrows: {a: {}}\ncolumns: {c: {metric: x}}",
            "seeds is '0'; give the number of pre-training seeds",
        ),
        (
            "seeds: [1, 2]\nrows: {a: {}}\ncolumns: {c: {metric: x}}",
            r"seeds is \['1', '2'\]; give the number",
        ),
        (
            "seeds: 1000000000000\nrows: {a: {}}\ncolumns: {c: {metric: x}}",
            "give the number of .* 1 to 100",
        ),
        (
            "seeds: three\nrows: {a: {}}\ncolumns: {c: {metric: x}}",
            "seeds is 'three'; give the number",
        ),
        ("rows: [a]\ncolumns: {c: {metric: x}}", "rows: a mapping is expected"),
        (
            "rows: {a: {published: {c: high}}}\ncolumns: {c: {metric: x}}",
            "row a: 'high' is not a number",
        ),
        (
            "rows: {a: {}}\ncolumns: {c: {metric: x}}\n"
            "claims: [{better: a, worse: a, column: c, expected: must, within: few}]",
            "claims: 'few' is not a number",
        ),
        ("rows: {a: {pretrian: {}}}\ncolumns: {c: {metric: x}}", "row a: unknown key 'pretrian'"),
        (
            "rows: {a: {}}\ncolumns: {c: {metric: x}}\nclaims: [{better: a, worse: b, column: c, "
            "expected: must}]",
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
    row, same, other = (
        Row(name, {"size": size}) for name, size in (("a", "tiny"), ("b", "tiny"), ("c", "mini"))
    )
    assert runs.figure_key(row, LOSS, 1) == runs.checkpoint_key(same, 1)
    assert (
        len(
            {
                runs.figure_key(row, LOSS, 1),
                runs.figure_key(row, LOSS, 2),
                runs.figure_key(other, LOSS, 1),
            }
        )
        == 3
    )
    assert (
        runs.figure_key(row, ACCURACY, 1)
        == runs.figure_key(same, ACCURACY, 1)
        != runs.figure_key(other, ACCURACY, 1)
    )
    assert runs.figure_key(Row("d", {}, model="bert"), LOSS, 1) is None


def test_a_student_is_known_by_its_teacher_and_an_ensemble_by_all_its_members(tmp_path, repository):
    shutil.copy(repository / "recipes" / "configs" / "paper" / "profiles.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "title: T\nsource: S\nseeds: 2\ncolumns: {accuracy: {task: sst2, metric: accuracy}}\n"
        "rows: {alone: {}, taught: {teacher: true}, all: {ensemble: true}}\n"
    )
    alone, taught, all_seeds = read_table(tmp_path / "mine.yaml", "smoke").rows
    assert taught.pretrain == {**alone.pretrain, "max_steps": "4"}
    assert taught.teacher is not None
    assert taught.teacher.pretrain == alone.pretrain
    assert all_seeds.ensemble == [1, 2]
    runs = Runs(tmp_path, tmp_path, {}, "store")
    assert runs.checkpoint_key(taught.teacher, 2) == runs.checkpoint_key(alone, 2)
    without = replace(taught, teacher=None)
    assert (
        len({runs.checkpoint_key(row, seed) for row in (taught, without, alone) for seed in (1, 2)})
        == 6
    )
    assert (
        runs.figure_key(all_seeds, ACCURACY, 1)
        == runs.figure_key(all_seeds, ACCURACY, 2)
        != runs.figure_key(alone, ACCURACY, 1)
    )
    assert runs.figure_key(replace(all_seeds, ensemble=[1, 2, 3]), ACCURACY, 1) != runs.figure_key(
        all_seeds, ACCURACY, 1
    )


def test_a_table_has_as_many_seeds_as_it_or_its_profile_says(tmp_path, repository):
    shutil.copy(repository / "recipes" / "configs" / "paper" / "profiles.yaml", tmp_path)
    file = tmp_path / "mine.yaml"
    text = "title: T\nsource: S\nrows: {a: {}}\ncolumns: {c: {metric: x}}\n"
    file.write_text(text)
    table = read_table(file, "cpu")
    assert table.claim_seeds == table.seeds == [1, 2, 3]
    assert read_table(file, "smoke").claim_seeds == [1]
    file.write_text(text + "seeds: 4\n")
    assert read_table(file, "cpu").claim_seeds == [1, 2, 3, 4]
