"""The comparison with stock transformers: both sides start alike, are measured alike, and the table
says what it found.
"""

import json
import runpy
import shutil
import subprocess
import sys

import pytest
from compare_with_stock import LOSS_STEPS, PLAN, compare_losses, format_table, within_spread
from finetune_stock import evaluate_stock, make_stock_trainer, train_stock
from finetuning_run import TASKS, finetuning_run

from bert_recipes.errors import InputError
from bert_recipes.finetuning.run import FineTuningRun
from bert_recipes.tasks.catalogue import get_task, list_tasks


KINDS = tuple(TASKS)


def prepared(kind, folder, **settings):
    result = finetuning_run(kind, output_dir=str(folder), train=False, **settings)
    trainer = result["trainer"]
    run = FineTuningRun(get_task(TASKS[kind]), str(folder), trainer, {})
    return run, trainer.args, result


def losses(history):
    return [line["loss"] for line in history if "loss" in line]


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_same_batches_stock_has_our_losses(kind, tmp_path):
    ours = losses(finetuning_run(kind, output_dir=str(tmp_path / "ours"), max_steps=8)["history"])
    run, args, _ = prepared(kind, tmp_path / "same", max_steps=8)
    same = make_stock_trainer(run, args, max_steps=8, same_batches=True)
    assert train_stock(same)[1] == 8
    assert losses(same.state.log_history) == pytest.approx(ours, abs=1e-4)
    run, args, _ = prepared(kind, tmp_path / "other", max_steps=8)
    other = make_stock_trainer(run, args, max_steps=8)
    train_stock(other)
    assert losses(other.state.log_history) != pytest.approx(ours, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_stock_is_measured_in_the_order_of_the_rows(kind, tmp_path):
    """Stock predict with batches of like length gives its outputs in another order than the
    rows.
    """
    run, args, result = prepared(kind, tmp_path)
    figures = evaluate_stock(run, make_stock_trainer(run, args, max_steps=3))
    own = {"eval_loss", "eval_seconds", "epoch"}
    ours = {name: value for name, value in result["metrics"].items() if name not in own}
    assert ours
    assert {name: figures[name] for name in ours} == pytest.approx(ours, rel=1e-6)


def test_every_task_with_labels_is_in_the_plan():
    assert set(PLAN) == {name for name in list_tasks() if get_task(name).train_split}


def test_losses_are_compared_step_by_step():
    ours = [0.5] * LOSS_STEPS
    stock = [0.5] * (LOSS_STEPS - 1) + [0.5002]
    found = compare_losses({"ours": ours, "stock": stock})
    assert found["largest_difference"] == pytest.approx(2e-4)
    assert not found["agree"]
    assert compare_losses({"ours": ours, "stock": ours})["agree"]
    with pytest.raises(InputError, match="allowed: 50 on both sides"):
        compare_losses({"ours": ours, "stock": stock[1:]})


@pytest.mark.parametrize(
    ("figure", "ours", "stock", "rows", "expected"),
    [
        ("accuracy", [80, 81, 84], [83, 85, 86], 10**6, True),  # the ranges overlap
        ("accuracy", [80, 81, 82], [83, 85, 86], 10**6, False),
        ("accuracy", [80], [83], 10**6, False),
        ("accuracy", [80], [83], 300, True),  # two standard errors are 6 points
        ("accuracy", [80], [90], 300, False),
        (
            "matthews_correlation",
            [0],
            [5],
            1000,
            True,
        ),  # 9 points; a share of 0 rows would have no error
        ("matthews_correlation", [0], [10], 1000, False),
        ("spearmanr", [88], [87], 1500, True),
        ("pearson", [89], [86], 1500, False),
        ("pearson", [-20], [-12], 1000, True),
    ],
)
def test_two_sides_agree_where_seeds_or_sample_explain_the_difference(
    figure, ours, stock, rows, expected
):
    spreads = [
        {
            "values": values,
            "median": sorted(values)[len(values) // 2],
            "min": min(values),
            "max": max(values),
        }
        for values in (ours, stock)
    ]
    assert within_spread(figure, *spreads, rows) is expected


@pytest.fixture
def bench(tmp_path, repository, monkeypatch, capsys):
    """Runs the recipe beside stand-ins for both scripts; returns what it printed, and what it
    called.
    """
    recipes, benchmarks = tmp_path / "recipes", tmp_path / "benchmarks"
    recipes.mkdir()
    benchmarks.mkdir()
    shutil.copy(repository / "benchmarks" / "compare_with_stock.py", benchmarks)
    for script in (recipes / "finetune.py", benchmarks / "finetune_stock.py"):
        shutil.copy(repository / "tests" / "fixtures" / "stub_comparison.py", script)
    shutil.copytree(
        repository / "recipes" / "configs" / "finetune", recipes / "configs" / "finetune"
    )

    def run(*arguments):
        script = benchmarks / "compare_with_stock.py"
        calls = recipes / "calls.jsonl"
        calls.write_text("")
        flags = [
            "--output_dir",
            str(tmp_path / "out"),
            "--model_name_or_path",
            "models/mini",
            *arguments,
        ]
        monkeypatch.setattr(sys, "argv", [str(script), *flags])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        printed = capsys.readouterr()
        done = subprocess.CompletedProcess(flags, ended.value.code, printed.out, printed.err)
        return done, [json.loads(line) for line in calls.read_text().splitlines()]

    run.folder = tmp_path / "out"
    run.recipes = recipes
    return run


def test_both_sides_get_the_same_settings_and_what_is_finished_is_kept(bench):
    arguments = (
        "--task",
        "squad",
        "--seeds",
        "1",
        "2",
        "--learning_rate",
        "3e-5",
        "--data_dir",
        "DATA",
    )
    (bench.recipes / "broken").touch()
    done, calls = bench(*arguments)
    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert [call["script"] for call in calls] == ["finetune", "finetune_stock", "finetune"]
    (bench.recipes / "broken").unlink()
    done, calls = bench(*arguments)
    assert done.returncode == 0, done.stderr
    assert [call["script"] for call in calls] == ["finetune", "finetune_stock"] * 2
    ours, stock, ours_losses, stock_losses = calls
    varying = {"script", "output_dir", "decoder"}
    assert {k: v for k, v in ours.items() if k not in varying} == {
        k: v for k, v in stock.items() if k not in varying
    }
    assert ours["learning_rate"] == ours_losses["learning_rate"] == "3e-5"
    assert "decoder" not in ours
    assert stock["decoder"] == "offsets"
    assert stock_losses["same_batches"] == "true"
    assert stock_losses["dropout"] == ours_losses["dropout"] == "0"
    assert stock_losses["precision"] == ours_losses["precision"] == "fp32"
    assert not list(bench.folder.rglob("*.safetensors"))
    done, calls = bench(*arguments)
    assert calls == []


def test_the_table_says_what_was_found_and_what_is_partial(bench):
    bench("--task", "squad", "--seeds", "1", "2", "--data_dir", "DATA")
    record = json.loads((bench.folder / "squad.json").read_text())
    assert record["figures"]["f1"]["ours"]["values"] == [51.0, 52.0]
    assert record["losses"]["largest_difference"] == pytest.approx(1e-6)
    assert record["machine"]["cores"] == 2
    done, calls = bench("--table_only", "true")
    assert calls == []
    assert (
        done.stdout.strip()
        == (bench.folder / "table.md").read_text().strip()
        == format_table([record]).strip()
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("| squad"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:5] == ["F1\\*", "51.5 (51.0 to 52.0)", "51.5 (51.0 to 52.0)", "2"]
    assert cells[5:] == ["12", "12", "1e-06", "100", "100"]
    assert "squad validation (100 rows, published 10,570)" in done.stdout
    assert "†" not in done.stdout
    assert "‡" not in done.stdout
    assert "that of entities of the sentences" in done.stdout
    assert "stock calls sdpa" in done.stdout


def test_losses_that_differ_are_marked_and_fail_the_comparison(bench):
    bench("--task", "squad", "--seeds", "1", "--data_dir", "DATA")
    path = bench.folder / "squad.json"
    record = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            record | {"losses": record["losses"] | {"largest_difference": 0.2, "agree": False}}
        )
    )
    done, _ = bench("--table_only", "true")
    assert done.returncode == 1
    assert "| 2e-01 ‡ |" in done.stdout
    assert (
        "‡ losses differ by more than 1e-04, which is no rounding: squad."
        in (bench.folder / "table.md").read_text()
    )
    assert done.stderr.startswith("error: losses of squad differ by more than 1e-04")
    assert done.stderr.count("\n") == 1


def test_a_figure_that_is_not_defined_names_its_run(bench):
    (bench.recipes / "undefined").touch()
    done, _ = bench("--task", "squad", "--seeds", "1", "--data_dir", "DATA")
    assert done.returncode == 1
    assert "eval_f1 is missing or not finite in run 1 of 1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "sqad"), "task is 'sqad'; allowed: all, wnli"),
        (("--task", "squad", "--decoder", "offsets"), "--decoder cannot be given here"),
        (("--task", "squad", "--seed", "4"), "--seed cannot be given here: give --seeds"),
        (
            ("--task", "squad", "--lerning_rate", "1"),
            "unknown option --lerning_rate; did you mean --learning_rate?",
        ),
        (
            ("--task", "squad", "--optimizer", "lamb"),
            "optimizer is lamb, schedule trainer; stock has --optimizer adamw",
        ),
        (
            ("--task", "squad", "--schedule=bert_linear"),
            "schedule bert_linear; stock has --optimizer adamw",
        ),
        (("--table_only", "true"), "holds no comparison"),
    ],
)
def test_mistakes_are_one_line(bench, arguments, message):
    done, calls = bench(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert calls == []
