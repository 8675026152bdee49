"""The comparison with stock transformers: both sides start alike, are measured alike, and the table
says what it found.
"""

import json
import runpy
import shutil
import sys

import pytest
from compare_with_stock import LOSS_STEPS, PLAN, compare_losses, within_spread
from finetune_stock import evaluate_stock, make_stock_trainer, train_stock
from finetuning_run import TASKS, finetuning_run

from bert_recipes.errors import InputError
from bert_recipes.finetuning.run import FineTuningRun
from bert_recipes.tasks.catalogue import get_task, list_tasks


KIND = pytest.mark.parametrize("kind", TASKS)


def prepared(kind, folder, **settings):
    """A run that is ready to train, and what our evaluation says of it."""
    result = finetuning_run(kind, output_dir=str(folder), train=False, **settings)
    run = FineTuningRun(get_task(TASKS[kind]), str(folder), result["trainer"], {})
    return run, result["metrics"]


def losses(history):
    return [line["loss"] for line in history if "loss" in line]


@KIND
def test_on_the_same_batches_stock_has_our_losses(kind, tmp_path):
    ours = finetuning_run(
        kind,
        output_dir=str(tmp_path / "ours"),
        max_steps=8,
    )
    expected = pytest.approx(losses(ours["history"]), abs=1e-4)
    for same_batches in (True, False):
        run, _ = prepared(kind, tmp_path / str(same_batches), max_steps=8)
        args = run.trainer.args
        stock = make_stock_trainer(run, args, max_steps=8, same_batches=same_batches)
        _, num_steps = train_stock(stock)
        assert num_steps == 8
        assert (losses(stock.state.log_history) == expected) is same_batches


@KIND
def test_stock_is_measured_in_the_order_of_the_rows(kind, tmp_path):
    """Stock predict with batches of like length gives its outputs in another order than the
    rows.
    """
    run, metrics = prepared(kind, tmp_path)
    figures = evaluate_stock(run, make_stock_trainer(run, run.trainer.args, max_steps=3))
    names = metrics.keys() - {"eval_loss", "eval_seconds", "epoch"}
    assert names
    for name in names:
        assert figures[name] == pytest.approx(metrics[name], rel=1e-6), name


def test_every_task_with_labels_is_in_the_plan():
    assert set(PLAN) == {name for name in list_tasks() if get_task(name).train_split}


def test_losses_are_compared_step_by_step():
    ours = [0.5] * LOSS_STEPS
    stock = [0.5] * (LOSS_STEPS - 1) + [0.5002]
    comparison = compare_losses({"ours": ours, "stock": stock})
    assert comparison["largest_difference"] == pytest.approx(2e-4)
    assert not comparison["agree"]
    assert compare_losses({"ours": ours, "stock": ours})["agree"]
    with pytest.raises(InputError, match="allowed: 50 on both sides"):
        compare_losses({"ours": ours, "stock": stock[1:]})


def spread(values):
    median = sorted(values)[len(values) // 2]
    return {"values": values, "median": median, "min": min(values), "max": max(values)}


@pytest.mark.parametrize(
    ("figure", "ours", "stock", "rows", "expected"),
    [
        ("accuracy", [80, 81, 84], [83, 85, 86], 10**6, True),  # the ranges overlap
        ("accuracy", [80, 81, 82], [83, 85, 86], 10**6, False),
        ("accuracy", [80], [83], 300, True),  # two standard errors are 6 points
        ("accuracy", [80], [83], 10**6, False),
        ("accuracy", [80], [90], 300, False),
        # 9 points; a share of 0 rows would have no error
        ("matthews_correlation", [0], [5], 1000, True),
        ("matthews_correlation", [0], [10], 1000, False),
        ("pearson", [-20], [-12], 1000, True),
        ("spearmanr", [88], [87], 1500, True),
        ("pearson", [89], [86], 1500, False),
    ],
)
def test_two_sides_agree_where_seeds_or_sample_explain_the_difference(
    figure, ours, stock, rows, expected
):
    assert within_spread(figure, spread(ours), spread(stock), rows) is expected


class Comparison:
    """The script beside stand-ins for both sides, which are processes."""

    def __init__(self, repository, folder, monkeypatch, capsys):
        self.recipes, self.benchmarks = folder / "recipes", folder / "benchmarks"
        self.output = folder / "out"
        self.monkeypatch, self.capsys = monkeypatch, capsys
        configs = repository / "recipes" / "configs" / "finetune"
        shutil.copytree(configs, self.recipes / "configs" / "finetune")
        self.benchmarks.mkdir()
        shutil.copy(repository / "benchmarks" / "compare_with_stock.py", self.benchmarks)
        stub = repository / "tests" / "fixtures" / "stub_comparison.py"
        shutil.copy(stub, self.recipes / "finetune.py")
        shutil.copy(stub, self.benchmarks / "finetune_stock.py")

    def run(self, flags):
        """Return the exit code, what was printed, and the calls of both sides."""
        script, calls = self.benchmarks / "compare_with_stock.py", self.recipes / "calls.jsonl"
        calls.write_text("")
        argv = f"{script} --output_dir {self.output} --model_name_or_path mini {flags}"
        self.monkeypatch.setattr(sys, "argv", argv.split())
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        printed = self.capsys.readouterr()
        lines = [json.loads(line) for line in calls.read_text().splitlines()]
        return ended.value.code, printed.out + printed.err, lines


@pytest.fixture
def comparison(repository, tmp_path, monkeypatch, capsys):
    return Comparison(repository, tmp_path, monkeypatch, capsys)


SQUAD = "--task squad --data_dir DATA --seeds 1"


def test_both_sides_get_the_same_settings_and_what_is_finished_stays(comparison):
    flags = f"{SQUAD} 2 --learning_rate 3e-5"
    (comparison.recipes / "broken").touch()
    code, printed, calls = comparison.run(flags)
    assert code == 1
    assert "the disk is full" in printed
    assert [call["script"] for call in calls] == ["finetune", "finetune_stock", "finetune"]
    (comparison.recipes / "broken").unlink()
    code, printed, calls = comparison.run(flags)
    assert code in (None, 0), printed
    assert [call["script"] for call in calls] == ["finetune", "finetune_stock"] * 2
    ours, stock, our_losses, stock_losses = calls
    own = {"script": stock["script"], "output_dir": stock["output_dir"], "decoder": "offsets"}
    assert stock == ours | own
    assert ours["learning_rate"] == our_losses["learning_rate"] == "3e-5"
    assert stock_losses["same_batches"] == "true"
    for call in (our_losses, stock_losses):
        assert (call["dropout"], call["precision"]) == ("0", "fp32")
    assert not list(comparison.output.rglob("*.safetensors"))
    assert comparison.run(flags)[2] == []


def test_the_table_says_what_was_found_and_what_is_partial(comparison):
    comparison.run(f"{SQUAD} 2")
    file = comparison.output / "squad.json"
    record = json.loads(file.read_text())
    assert record["figures"]["f1"]["ours"]["values"] == [51.0, 52.0]
    assert record["losses"]["largest_difference"] == pytest.approx(1e-6)
    assert record["machine"]["cores"] == 2
    _, printed, calls = comparison.run("--table_only true")
    assert calls == []
    table = (comparison.output / "table.md").read_text()
    assert printed.strip() == table.strip()
    row = (
        "| squad | F1\\* | 51.5 (51.0 to 52.0) | 51.5 (51.0 to 52.0) | 2 | 12 | 12 | 1e-06 | 100 | "
        "100 |"
    )
    assert row in table.splitlines()
    assert "squad validation (100 rows, published 10,570)" in table
    assert "stock calls sdpa" in table
    assert "‡" not in table

    record["losses"] |= {"largest_difference": 0.2, "agree": False}
    file.write_text(json.dumps(record))
    code, printed, _ = comparison.run("--table_only true")
    assert code == 1
    assert "| 2e-01 ‡ |" in printed
    assert "‡ losses differ by more than 1e-04, which is no rounding: squad." in printed
    assert "error: losses of squad differ by more than 1e-04" in printed


def test_a_figure_that_is_not_defined_names_its_run(comparison):
    (comparison.recipes / "undefined").touch()
    code, printed, _ = comparison.run(SQUAD)
    assert code == 1
    assert "eval_f1 is missing or not finite in run 1 of 1" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--task sqad", "task is 'sqad'; allowed: all, wnli"),
        ("--task squad --seed 4", "--seed cannot be given here: give --seeds"),
        ("--task squad --lerning_rate 1", "--lerning_rate; did you mean --learning_rate?"),
        ("--task squad --optimizer lamb", "optimizer is lamb, schedule trainer; stock has"),
        ("--task squad --schedule=bert_linear", "schedule bert_linear; stock has"),
        ("--table_only true", "holds no comparison"),
    ],
)
def test_mistakes_are_one_line(comparison, flags, message):
    code, printed, calls = comparison.run(flags)
    assert (code, calls) == (1, [])
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert message in printed
