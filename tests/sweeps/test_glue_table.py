"""The table of the paper, and recipes/glue_all.py over a stand-in for finetune.py."""

import json
import math

import pytest

from bert_recipes.glue_table import COLUMNS, TASKS, format_table, make_table, table_as_json, table_mean
from bert_recipes.tasks.registry import get_task


# Devlin et al. 2019, Table 1, in its order: MNLI-m, -mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE; then "Average".
PAPER = {
    "OpenAI GPT": ((82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0), 75.1),
    "BERT-base": ((84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4), 79.6),
    "BERT-large": ((86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1), 82.1),
}


def results(task, **figures):
    """all_results.json of a run over the published splits."""
    row = get_task(task)
    splits = {
        name: {"examples": rows, "published": rows, "partial": False} for name, rows in row.published_rows.items()
    }
    return {"task": task, "splits": splits, **{f"eval_{name}": value for name, value in figures.items()}}


def all_runs(figures):
    runs = {name: {} for name in TASKS}
    for (_, task, figure, _), value in zip(COLUMNS, figures, strict=True):
        runs[task][figure] = value / 100
    runs["wnli"]["accuracy"] = 0.01
    return {name: [results(name, **given)] for name, given in runs.items()}


@pytest.mark.parametrize("system", PAPER)
def test_the_mean_is_the_papers_average(system):
    """Devlin et al. 2019, Table 1: MNLI-m and -mm are two columns, WNLI is none."""
    figures, average = PAPER[system]
    assert round(table_mean(figures), 1) == average
    assert round(make_table(all_runs(figures)).mean, 1) == average


def test_the_papers_own_figures_stand_beside_the_dev_figures():
    table = make_table(all_runs([50.0] * 9))
    assert tuple(cell.paper for cell in table.cells) == PAPER["BERT-base"][0]
    assert round(table.paper_mean, 1) == 79.6
    text = format_table(table)
    assert "| MNLI-m | accuracy | 50.0 |  | 1 | 9,815 | 392,702 | 84.6 |" in text
    assert "| QQP | F1 | 50.0 |" in text
    assert "| **mean** | of the nine | **50.0** | | | | | **79.6** |" in text
    assert "| WNLI | accuracy | 1.0 |" in text
    assert "| dev | std | seeds | dev rows | train rows | test (paper) |" in text


def test_a_missing_task_leaves_the_mean_out():
    runs = all_runs(PAPER["BERT-base"][0])
    del runs["rte"]
    table = make_table(runs)
    assert table.mean is None
    assert "No mean: RTE is missing." in format_table(table)
    assert "| mean | | | | | | | 79.6 |" in format_table(table)
    assert table_as_json(table)["mean_dev"] is None


def test_partial_splits_are_marked_with_their_rows():
    runs = all_runs(PAPER["BERT-base"][0])
    runs["qqp"][0]["splits"]["validation"] |= {"examples": 10000, "partial": True}
    runs["qqp"][0]["splits"]["train"] |= {"examples": 3000, "partial": True}
    text = format_table(make_table(runs))
    assert "| QQP | F1 | 71.2* |  | 1 | 10,000 of 40,430 | 3,000 of 363,846 | 71.2 |" in text
    assert "**79.6*** |" in text
    assert "QQP (10,000 rows, published 40,430)." in text
    assert "MRPC (" not in text


def test_of_several_seeds_the_median_counts():
    runs = all_runs([50.0] * 9)
    runs["mrpc"] = [results("mrpc", f1=value) for value in (0.80, 0.90, 0.88)]
    cell = next(cell for cell in make_table(runs).cells if cell.title == "MRPC")
    assert (cell.dev, cell.num_runs) == (pytest.approx(88.0), 3)
    assert cell.deviation == pytest.approx(5.2915, abs=1e-4)


def test_a_diverged_run_is_said_and_makes_no_mean():
    runs = all_runs([50.0] * 9)
    runs["cola"] = [results("cola", matthews_correlation=math.nan)]
    table = make_table(runs)
    assert "| CoLA | Matthews | diverged |" in format_table(table)
    assert table_as_json(table)["mean_dev"] is None


@pytest.fixture
def figures():
    return {
        name: {k: v for k, v in run[0].items() if k != "task"} for name, run in all_runs(PAPER["BERT-base"][0]).items()
    }


def test_glue_all_runs_the_nine_and_prints_the_table(bench, figures):
    bench.plan(figures=figures)
    flags = ("--model_name_or_path", "bert", "--rte", "--num_train_epochs 5 --fp16 true")
    done = bench.run("glue_all.py", *flags, "--output_dir", bench.output)
    assert done.returncode == 0, done.stderr
    calls = {call["task"]: call for call in bench.calls()}
    assert list(calls) == list(TASKS)
    assert all(
        call["model_name_or_path"] == "bert" and call["config"].endswith("glue.yaml") for call in calls.values()
    )
    assert (calls["rte"]["num_train_epochs"], calls["rte"]["fp16"]) == ("5", "true")
    assert "num_train_epochs" not in calls["cola"]
    assert all((bench.output / name / "seed-1" / "model.safetensors").is_file() for name in TASKS)
    assert "**79.6** | | | | | **79.6** |" in done.stdout
    report = json.loads((bench.output / "glue.json").read_text())
    assert round(report["mean_dev"], 1) == round(report["mean_test_paper"], 1) == 79.6
    assert "Model: bert\n" in (bench.output / "glue.md").read_text()
    # A second time nothing is left to run.
    assert bench.run("glue_all.py", *flags, "--output_dir", bench.output).stdout == done.stdout
    assert len(bench.calls()) == 9


def test_glue_all_goes_on_after_a_failure(bench, figures):
    bench.plan(figures=figures, fail_at=3)
    failed = bench.run("glue_all.py", "--output_dir", bench.output)
    assert failed.returncode == 1
    assert "mrpc/seed-1 failed" in failed.stderr
    bench.plan(figures=figures)
    assert bench.run("glue_all.py", "--output_dir", bench.output).returncode == 0
    assert [call["task"] for call in bench.calls()] == [*TASKS[:3], *TASKS[2:]]


def test_a_missing_file_of_a_later_task_is_found_before_the_first_run(bench, figures, tmp_path):
    bench.plan(figures=figures)
    (tmp_path / get_task("rte").local_name / "validation.jsonl").unlink()
    for flags, split in (((), "validation"), (("--tasks", "cola", "--do_predict", "true"), "test")):
        failed = bench.run("glue_all.py", *flags, "--output_dir", bench.output)
        assert failed.returncode == 1
        assert f"split '{split}': no file in --data_dir" in failed.stderr.splitlines()[-1]
    assert not bench.calls()


def test_glue_all_with_seeds_has_a_folder_for_each(bench, figures):
    bench.plan(figures=figures)
    flags = ("--tasks", "cola", "rte", "--output_dir", bench.output)
    done = bench.run("glue_all.py", *flags, "--num_seeds", 2)
    assert done.returncode == 0, done.stderr
    assert [(call["task"], call["seed"]) for call in bench.calls()] == [
        (task, seed) for task in ("cola", "rte") for seed in "12"
    ]
    assert "| CoLA | Matthews | 52.1 | 0.0 | 2 |" in done.stdout
    assert "No mean: MNLI-m, MNLI-mm, QQP, QNLI, SST-2, STS-B, MRPC are missing." in done.stdout


def test_the_table_is_that_of_the_seeds_asked_for(bench):
    flags = ("--tasks", "cola", "--output_dir", bench.output)
    for seeds, figure, cells in (
        (("1", "2"), 0.5, "50.0 | 0.0 | 2"),
        (("3", "4"), 0.6, "60.0 | 0.0 | 2"),
        ("5", 0.7, "70.0 |  | 1"),
    ):
        bench.plan(figures={"cola": {"eval_matthews_correlation": figure}})
        done = bench.run("glue_all.py", *flags, "--seeds", *seeds)
        assert f"| CoLA | Matthews | {cells} |" in done.stdout, done.stderr
    assert [call["seed"] for call in bench.calls()] == ["1", "2", "3", "4", "5"]
    assert "| CoLA | Matthews | 50.0 |  | 1 |" in bench.run("glue_all.py", *flags, "--num_seeds", 1).stdout
    assert len(bench.calls()) == 5


def test_a_changed_configuration_of_one_task_is_refused(bench):
    bench.plan()
    special = bench.recipes / "special.yaml"
    special.write_text("seed: 1\n")
    flags = ("--tasks", "rte", "--rte", f"--run_name {special}", "--output_dir", bench.output)
    assert bench.run("glue_all.py", *flags).returncode == 0
    special.write_text("seed: 2\n")
    assert "(files: was" in bench.run("glue_all.py", *flags).stderr


def test_what_follows_a_task_belongs_to_it_also_where_it_looks_like_a_flag(bench):
    bench.plan()
    done = bench.run(
        "glue_all.py", "--tasks", "rte", "--rte", "--learning_rate=3e-5 --seed=1", "--output_dir", bench.output
    )
    assert "--seed cannot be given here" in done.stderr
    command = ("--tasks", "rte", "--rte", "--learning_rate=-1", "--output_dir", bench.output)
    assert "learning_rate is -1.0" in bench.run("glue_all.py", *command).stderr
    assert not bench.output.exists()


def test_glue_all_can_sweep_each_task(bench):
    rates = ("5e-5", "4e-5", "3e-5", "2e-5")
    bench.plan(scores={f"{rate} {seed}": 0.9 if rate == "3e-5" else 0.5 for rate in rates for seed in (1, 2)})
    done = bench.run(
        "glue_all.py", "--tasks", "mrpc", "--sweep", "paper", "--num_seeds", 2, "--output_dir", bench.output
    )
    assert done.returncode == 0, done.stderr
    assert "| MRPC | F1 | 90.0 | 0.0 | 2 |" in done.stdout
    assert (bench.output / "mrpc" / "best" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tasks", "mrcp"), "'mrcp' is none of GLUE's nine"),
        (("--task", "rte"), "take it out of one"),
        (("--rte", "--seed 3"), "--num_seeds"),
        (("--rte", "--learning_rate '3e-5"), '--rte: "--learning_rate \'3e-5" cannot be read (No closing quotation)'),
        (("--rte", "--model_name_or_path nowhere/at/all"), "no folder nowhere/at/all"),
        (("--rte", "--num_train_epoch 5"), "unknown option --num_train_epoch; did you mean --num_train_epochs?"),
        (("--sweep", "paper", "--rte", "--learning_rate 1e-5"), "in the sweep and on the command line"),
    ],
)
def test_glue_all_refuses_what_it_decides_itself(bench, flags, words):
    refused = bench.run("glue_all.py", *flags, "--output_dir", bench.output)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert bench.calls() == []
