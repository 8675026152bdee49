"""Grids, flags and the choice of the best; recipes/sweep_finetuning.py over a stand-in for
finetune.py, and once for real.
"""

import functools
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser

from bert_recipes.errors import InputError
from bert_recipes.sweeps.processes import SECONDS_TO_END, end_with_children, run_process
from bert_recipes.sweeps.sweep import (
    Combination,
    Run,
    RunLauncher,
    choose_best,
    choose_seeds,
    combination_name,
    expand_grid,
    finetuning_command,
    read_range,
    read_sweep,
    replace_flags,
)


@pytest.fixture
def read(tmp_path):
    """Read a sweep of this text."""

    def read_file(text, **options):
        (tmp_path / "mine.yaml").write_text(text)
        return read_sweep(str(tmp_path / "mine.yaml"), tmp_path, [], **options)

    return read_file


def test_the_papers_sweep_is_four_learning_rates_at_batch_32_and_3_epochs(repository):
    """Devlin et al. 2019, section 4.1: batch 32, 3 epochs, the best of 5e-5, 4e-5, 3e-5 and 2e-5 on
    the Dev set.
    """
    grid = read_sweep("paper", repository / "recipes" / "configs" / "sweep", [])
    assert list(map(float, grid["learning_rate"])) == [5e-5, 4e-5, 3e-5, 2e-5]
    assert grid["global_train_batch_size"] == ["32"]
    assert grid["num_train_epochs"] == ["3"]
    assert len(expand_grid(grid)) == 4


def test_the_appendix_sweep_is_every_combination_of_its_three_ranges(repository):
    """Devlin et al. 2019, appendix A.3: batch 16, 32; learning rate 5e-5, 3e-5, 2e-5; epochs 2, 3,
    4.
    """
    grid = read_sweep("appendix", repository / "recipes" / "configs" / "sweep", [])
    assert set(map(float, grid["global_train_batch_size"])) == {16, 32}
    assert set(map(float, grid["learning_rate"])) == {5e-5, 3e-5, 2e-5}
    assert set(map(float, grid["num_train_epochs"])) == {2, 3, 4}
    assert len({combination_name(settings, grid) for settings in expand_grid(grid)}) == 18


def test_the_last_field_varies_fastest_and_values_stay_as_they_were_written(read):
    text = (
        'precision: [fp32, bf16]\nlearning_rate: [5.0e-5, 3e-5]\n"max_steps": 7\ndo_predict: '
        "true\ndropout: null\n"
    )
    assert expand_grid(read(text))[1] == {
        "precision": "fp32",
        "learning_rate": "3e-5",
        "max_steps": "7",
        "do_predict": "true",
        "dropout": "null",
    }
    assert read("lr_scheduler_type: [cosine, constant, linear]\n") == {
        "lr_scheduler_type": ["cosine", "constant", "linear"]
    }


def test_different_settings_have_different_folders():
    assert combination_name({"max_steps": "7"}, []) == "settings"
    values = ("a/b", "a-b", "a b", "a_b", "1e+5")
    names = [combination_name({"data_dir": value}, ["data_dir"]) for value in values]
    assert len(set(names)) == 5
    assert names[1] == "data_dir-a-b"
    assert names[4] == "data_dir-1e+5"
    assert not any("/" in name for name in names)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lerning_rate: [1e-5]\n", ("line 1", "lerning_rate", "did you mean learning_rate")),
        ("learning_rate: [1e-5, fast]\n", ("learning_rate", "'fast'", "a number")),
        ("seed: [1, 2]\n", ("seed", "--num_seeds")),
        ("learning_rate: [1e-5, 1e-4, log]\n", ("range", "--num_trials")),
        ("learning_rate: [1e-5, [2e-5]]\n", ("learning_rate", "field: [value, value]")),
        ("max_steps: 5\nlearning_rate:\n", ("line 2", "learning_rate", "null")),
    ],
)
def test_a_wrong_sweep_file_is_one_line_that_names_file_and_field(read, text, words):
    with pytest.raises(InputError) as error:
        read(text)
    assert all(word in str(error.value) for word in ("mine.yaml", *words))
    assert "\n" not in str(error.value)


def test_an_unknown_sweep_names_those_that_there_are(repository):
    with pytest.raises(InputError, match=r"appendix\.yaml, paper\.yaml, search_example\.yaml"):
        read_sweep("papr", repository / "recipes" / "configs" / "sweep", [])


@pytest.mark.parametrize(
    ("hint", "values", "drawn"),
    [
        (int, ["1000", "20000", "linear"], 12345),
        (float, ["2", "5", "int"], 3),
        (float, ["10", "20000", "linear"], 12345.6),
        (float, ["1e-5", "1e-4", "log"], 2.3456e-5),
    ],
)
def test_a_range_draws_what_its_field_reads(hint, values, drawn):
    pytest.importorskip("optuna")
    distribution = read_range(values, hint)
    assert distribution._contains(drawn)
    assert isinstance(distribution.to_external_repr(drawn), type(drawn))
    assert distribution.log == (values[2] == "log")


@pytest.mark.parametrize(
    "values",
    ["[1e-4, 1e-5, log]", "[0, 1e-5, log]", "[a, b, linear]", "[1, 2.5, int]"],
)
def test_an_impossible_range_is_refused(read, values):
    pytest.importorskip("optuna")
    with pytest.raises(InputError, match="learning_rate"):
        read(f"learning_rate: {values}\n", is_search=True)


def combination(name, *values):
    runs = [Run(seed, Path(name), value, {}) for seed, value in enumerate(values, 1)]
    return Combination(name, {}, runs)


def test_best_is_the_greatest_median_and_not_the_luckiest_run():
    lucky = combination("lucky", 0.99, 0.50, 0.52)
    steady = combination("steady", 0.80, 0.79, 0.81)
    assert choose_best([lucky, steady]) is steady
    assert steady.best_run.seed == 3
    assert steady.median == 0.80
    # With one seed it is the paper's rule, section 4.1.
    runs = [combination("a", 0.7), combination("b", 0.9), combination("c", 0.8)]
    assert choose_best(runs).name == "b"


def test_of_ties_the_first_combination_and_the_first_seed_win():
    first, second = combination("first", 0.5, 0.7, 0.7), combination("second", 0.7, 0.7, 0.1)
    assert choose_best([first, second]) is first
    assert first.best_run.seed == 2


def test_a_diverged_run_is_worse_than_every_number():
    diverged = combination("diverged", math.nan, 0.9, math.nan)
    poor = combination("poor", -0.2, -0.3, -0.1)
    assert choose_best([diverged, poor]) is poor
    assert diverged.best_run.seed == 2


def test_where_no_median_is_a_number_the_best_run_decides():
    diverged = combination("diverged", math.nan, math.nan)
    half = combination("half", 0.9, math.nan)
    assert choose_best([diverged, half]) is half
    assert half.best_run.seed == 1


def test_seeds_are_a_number_or_a_list():
    assert choose_seeds(3, None) == [1, 2, 3]
    assert choose_seeds(1, [7, 5]) == [7, 5]
    with pytest.raises(InputError, match="holds one twice"):
        choose_seeds(1, [5, 5])


PROGRAM = """
import json, os, sys
folder = sys.argv[sys.argv.index("--output_dir") + 1]
os.makedirs(folder)
json.dump({"group": os.environ["WANDB_RUN_GROUP"]}, open(folder + "/all_results.json", "w"))
open(folder + "/task.yaml", "w").close()
"""


def test_wandb_shows_the_runs_of_a_sweep_as_one_group_unless_the_user_names_one(
    tmp_path, monkeypatch
):
    runs = RunLauncher((sys.executable, "-c", PROGRAM), ("--report_to", "wandb"))
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    assert runs.run(tmp_path / "mrpc_paper" / "lr2e-05" / "seed-1", []) == {"group": "mrpc_paper"}
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    assert runs.run(tmp_path / "mrpc_paper" / "lr2e-05" / "seed-2", []) == {"group": "mine"}


RATES = ("5e-5", "4e-5", "3e-5", "2e-5")
# Medians 0.6, 0.8, 0.7, 0.5; the luckiest run belongs to a combination that is not the best.
VALUES = [0.5, 0.6, 0.95, 0.8, 0.78, 0.85, 0.7, 0.7, 0.7, 0.5, 0.4, 0.6]
SCORES = dict(zip([f"{rate} {seed}" for rate in RATES for seed in (1, 2, 3)], VALUES, strict=True))
TASK = ["--task", "mrpc", "--data_dir", ".", "--model_name_or_path", "bert"]
FLAGS = ["--sweep", "paper", *TASK, "--warmup_steps", "0.1"]


@pytest.fixture
def sweep(bench):
    def run(*arguments, num_seeds=3, flags=FLAGS):
        seeds = ("--num_seeds", num_seeds)
        common = [*map(str, [*flags, *seeds, "--output_dir", bench.output])]
        return bench.run("sweep_finetuning.py", *replace_flags(common, [*map(str, arguments)]))

    bench.plan(scores=SCORES)
    return run


def with_weights(folder):
    return {
        path.parent.relative_to(folder).as_posix()
        for path in folder.glob("*/seed-*/model.safetensors")
    }


def test_a_sweep_runs_every_combination_and_seed_and_keeps_the_best(bench, sweep):
    done = sweep()
    assert done.returncode == 0, done.stderr
    calls = bench.calls()
    order = list(itertools.product(RATES, "123"))
    assert [(call["learning_rate"], call["seed"]) for call in calls] == order

    for call in calls:
        assert (call["global_train_batch_size"], call["num_train_epochs"]) == ("32", "3")
        assert (call["model_name_or_path"], call["warmup_steps"]) == ("bert", "0.1")

    # The task's own figure decides (mrpc: F1), by its median; `best` is the best run of that
    # combination.
    report = json.loads((bench.output / "sweep.json").read_text())
    assert report["metric"] == "f1"
    assert report["best"] == "learning_rate-4e-5"
    best_run = bench.output / "learning_rate-4e-5" / "seed-3"
    assert (bench.output / "best").resolve() == best_run.resolve()
    best = report["combinations"][1]
    assert (best["median"], best["min"], best["max"]) == (0.8, 0.78, 0.85)
    assert best["std"] == pytest.approx(0.0360555)
    assert [run["has_weights"] for run in best["runs"]] == [False, False, True]
    assert report["machine"] == {"cores": 2}
    text = (bench.output / "report.md").read_text()
    assert "| 4e-5 | **0.8000** | 0.7800 | 0.8500 | 0.0361 | 3 |" in text
    assert text in done.stdout
    assert "learning_rate-4e-5 has the greatest median" in text
    assert "| model | bert |" in text
    assert "learning_rate-4e-5" in (bench.output / "report.html").read_text()
    # Only the best run keeps its weights, all keep their results and predictions.
    assert with_weights(bench.output) == {"learning_rate-4e-5/seed-3"}
    assert len(list(bench.output.glob("*/seed-*/all_results.json"))) == 12
    assert len(list(bench.output.glob("*/seed-*/predictions_validation.jsonl"))) == 12
    assert len(list(bench.output.glob("*/seed-*/weights_removed.txt"))) == 11
    assert not list(bench.output.rglob("checkpoint-*"))
    # A finished sweep starts nothing and gives the same report.
    before = (bench.output / "sweep.json").read_bytes()
    assert done.stdout.endswith(sweep().stdout)  # a library prints a line when it is first imported
    assert len(bench.calls()) == 12
    assert (bench.output / "sweep.json").read_bytes() == before


def test_a_failing_run_stops_the_sweep_in_one_line_and_the_same_command_resumes(bench, sweep):
    bench.plan(scores=SCORES, fail_at=5)
    failed = sweep()
    assert failed.returncode == 1
    assert failed.stderr.count("error: ") == 1

    for words in (
        "learning_rate-4e-5/seed-2 failed",
        "learning_rate is -1; allowed: more than 0",
        "same command again",
    ):
        assert words in failed.stderr
    bench.plan(scores=SCORES)
    assert sweep().returncode == 0
    # Four were finished; the fifth is run again.
    assert len(bench.calls()) == 5 + 8
    assert with_weights(bench.output) == {"learning_rate-4e-5/seed-3"}


def test_a_run_that_was_killed_before_its_last_file_resumes(bench, sweep):
    bench.plan(scores=SCORES, die_at=2)
    assert "exit code -9" in sweep().stderr
    half = bench.output / "learning_rate-5e-5" / "seed-2"
    assert (half / "all_results.json").is_file()
    assert not (half / "task.yaml").is_file()
    (half / "extra.json").touch()
    # The first run had ended, and the sweep before it removed this.
    (half.parent / "seed-1" / "checkpoint-9").mkdir()
    bench.plan(scores=SCORES)
    assert sweep().returncode == 0
    assert [call["seed"] for call in bench.calls()[:3]] == ["1", "2", "2"]
    assert (half / "task.yaml").is_file()
    # It had a checkpoint, from which it resumes; those of finished runs are removed, of the best
    # one too.
    assert (half / "extra.json").is_file()
    assert not list(bench.output.rglob("checkpoint-*"))


def test_seeds_can_be_added_and_a_best_run_without_weights_is_run_again(bench, sweep):
    sweep(num_seeds=1)
    assert with_weights(bench.output) == {"learning_rate-4e-5/seed-1"}
    # With seed 2 the first learning rate becomes the best, by its first run, whose weights are
    # gone.
    second = {
        "5e-5 1": 0.5,
        "5e-5 2": 0.4,
        "4e-5 2": -0.9,
        "3e-5 2": -0.9,
        "2e-5 2": -0.9,
    }
    bench.plan(scores={**SCORES, **second})
    done = sweep(num_seeds=2)
    assert done.returncode == 0, done.stderr
    best_run = bench.output / "learning_rate-5e-5" / "seed-1"
    assert (bench.output / "best").resolve() == best_run
    assert (bench.output / "best" / "model.safetensors").is_file()
    assert [call["seed"] for call in bench.calls()] == ["1"] * 4 + ["2"] * 4 + ["1"]


def test_a_best_run_that_ends_elsewhere_when_it_is_run_again_is_chosen_anew(bench, sweep):
    sweep(num_seeds=1)
    second = {"5e-5 1": -0.9, "5e-5 2": 0.4, "4e-5 2": -0.9, "3e-5 2": -0.9, "2e-5 2": -0.9}
    bench.plan(scores={**SCORES, **second})
    done = sweep(num_seeds=2)
    assert done.returncode == 0, done.stderr
    report = json.loads((bench.output / "sweep.json").read_text())
    best = json.loads((bench.output / "best" / "all_results.json").read_text())
    values = {}
    for combination in report["combinations"]:
        for run in combination["runs"]:
            values[combination["name"], run["seed"]] = run["value"]
    assert values["learning_rate-5e-5", 1] == -0.9
    assert with_weights(bench.output) == {report["best_run"]}
    assert report["best_run"] == os.path.relpath((bench.output / "best").resolve(), bench.output)
    assert best["eval_f1"] == values[report["best"], int(report["best_run"][-1])]


def test_other_settings_in_the_same_folder_are_refused(bench, sweep):
    config = bench.recipes / "my.yaml"
    config.write_text("max_seq_length: 64\n")
    flags = [*FLAGS, "--config", config]
    assert sweep(flags=flags, num_seeds=1).returncode == 0

    for changed, words in (
        ([*flags, "--weight_decay", "0.2"], "settings (flags: was ["),
        (["--sweep", "appendix", *flags[2:]], "settings (sweep: was {'global_train_batch_size'"),
    ):
        assert words in sweep(flags=changed).stderr
    config.write_text("max_seq_length: 32\n")
    assert "(files: was" in sweep(flags=flags).stderr
    assert len(bench.calls()) == 4


def test_a_folder_with_other_files_is_refused(bench, sweep):
    bench.output.mkdir()
    (bench.output / "thesis.tex").write_text("")
    assert "is not empty; give a new folder" in sweep().stderr
    assert bench.calls() == []


def test_two_sweeps_of_one_folder_at_once_are_refused(bench, sweep):
    lock = (
        f"import fcntl; file = open({str(bench.output.parent / '.runs.lock')!r}, 'w'); "
        "fcntl.lockf(file, fcntl.LOCK_EX)"
    )
    other = [sys.executable, "-c", f"{lock}; print('held', flush=True); input()"]
    with subprocess.Popen(other, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert "another process runs in it" in sweep(num_seeds=1).stderr
        process.communicate()


def test_another_metric_than_the_tasks_own_may_decide(bench, sweep):
    bench.plan(scores=SCORES)
    assert sweep("--metric", "accuracy").returncode == 0
    assert json.loads((bench.output / "sweep.json").read_text())["metric"] == "accuracy"


def test_a_task_without_validation_rows_is_refused_before_the_first_run(bench):
    Path("train.csv").write_text("text,label\na,yes\nb,no\n")
    keys = "kind: sequence_classification\ntext_columns: text\nfiles: {train: train.csv}\n"
    Path("mine.yaml").write_text(keys)
    flags = ("--task_file", "mine.yaml", "--model_name_or_path", "bert")
    done = bench.run("sweep_finetuning.py", "--output_dir", bench.output, *flags)
    assert "error: task mine has no validation split, on which the best run" in done.stderr
    assert not bench.output.exists()


@pytest.mark.parametrize("changed", ["train", "checkpoint"])
def test_runs_on_other_rows_or_from_other_weights_are_no_sweep(bench, sweep, changed):
    """The training rows were corrected between two runs, or the checkpoint trained anew."""
    assert sweep(num_seeds=1).returncode == 0
    for file in bench.output.glob("*/seed-1/all_results.json"):
        results = json.loads(file.read_text())
        hashes = {"train": "1", "checkpoint": "1", changed: "of before"}
        results["splits"] = {"train": {"sha256": hashes["train"]}}
        # A card that is pushed is a new revision of the same weights.
        results["base_model"] = {"sha256": hashes["checkpoint"], "revision": str(file)}
        file.write_text(json.dumps(results))
    assert sweep(num_seeds=1).returncode == 0
    file = bench.output / "learning_rate-5e-5" / "seed-1" / "all_results.json"
    results = json.loads(file.read_text())
    results["splits"] = {"train": {"sha256": "1"}}
    results["base_model"] = {"sha256": "1"}
    file.write_text(json.dumps(results))
    done = sweep(num_seeds=1)
    assert f"seed-1: its {changed} is not that of" in done.stderr
    assert "give another --output_dir" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--metric", "bleu"], "metric is 'bleu'; allowed: accuracy, f1"),
        (["--metric", "loss"], "metric is 'loss'; allowed: accuracy, f1"),
        (["--model_name_or_path", "no/such/model"], "no folder no/such/model"),
        (["--lerning_rate", "3"], "unknown option --lerning_rate; did you mean --learning_rate?"),
        (["--launch", "gpu"], "launch: no configuration"),
        (["--launch", "ddp_multi_node"], "is started on every machine with its own rank"),
        (["--estimate", "true"], "--estimate cannot be given here: give it to recipes/finetune.py"),
        (["--resume", "no"], "--resume cannot be given here: a sweep resumes by itself"),
        (["--config", "no_such_name"], "--config: there is no file no_such_name"),
        (["--config", "quick.yaml"], "estimate is in the --config file, for every run: give it"),
    ],
)
def test_what_cannot_work_is_refused_before_the_folder_is_claimed(
    bench,
    sweep,
    flags,
    words,
):
    Path("quick.yaml").write_text("estimate: true\n")
    assert words in sweep(*flags).stderr
    assert not bench.output.exists()


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (
            "optimizer: [bert_adam, lion]\n",
            (),
            "optimizer: lion in the sweep: optimizer is 'lion'; allowed: ",
        ),
        (
            "max_seq_length: [128, 4]\n",
            (),
            "max_seq_length: 4 in the sweep: max_seq_length is 4; allowed: ",
        ),
        ("precision: [fp32, fp61]\n", (), "precision: fp61 in the sweep: precision is 'fp61'; "),
        ("model_name_or_path: [bert, brt]\n", (), "model_name_or_path: brt in the sweep: "),
        (
            "warmup_steps: 0\nlabel_smoothing_factor: [0, 1.5, linear]\n",
            ("--num_trials", "4"),
            "label_smoothing_factor: 1.5 in the sweep: ",
        ),
        # No field says that these two cannot be together.
        (
            "eval_strategy: ['no', epoch]\nearly_stopping_patience: [null, 2]\n",
            (),
            "early_stopping_patience: 2 in the sweep: ",
        ),
    ],
)
def test_every_value_of_a_sweep_is_checked_before_the_first_run(bench, text, flags, words):
    if flags:
        pytest.importorskip("optuna")
    Path("mine.yaml").write_text(text)
    task = TASK[:4] if "model_name_or_path" in text else TASK
    common = ("--sweep", "mine.yaml", *task, "--output_dir", bench.output)
    refused = bench.run("sweep_finetuning.py", *common, *flags)
    assert refused.stderr.startswith(f"error: {words}")
    assert not bench.output.exists()


def test_all_runs_of_a_sweep_start_from_the_checkpoint_that_was_found_first(bench, sweep):
    """Without a name it is the newest pre-training run, and there may be a newer one meanwhile."""
    flags = [*FLAGS[:6], *FLAGS[8:]]
    make_pretraining_run("old")
    bench.plan(scores=SCORES, fail_at=2)
    failed = sweep("--output_dir", "swept", num_seeds=1, flags=flags)
    assert "Other settings or another sweep file need another --output_dir" in failed.stderr

    make_pretraining_run("new")
    bench.plan(scores=SCORES)
    done = sweep("--output_dir", "swept", num_seeds=1, flags=flags)
    assert done.returncode == 0, done.stderr
    assert {call["model_name_or_path"] for call in bench.calls()} == {"runs/old"}
    plan = json.loads(Path("swept/sweep_plan.json").read_text())
    assert plan["flags"] == [*flags[2:], "--model_name_or_path", "runs/old"]

    # A plan of an earlier version names none.
    Path("swept/sweep_plan.json").write_text(json.dumps(plan | {"flags": flags[2:]}))
    done = sweep("--output_dir", "swept", num_seeds=1, flags=flags)
    assert done.returncode == 0, done.stderr


def make_pretraining_run(name):
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    config = {"architectures": ["BertForPreTraining"], "model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    (folder / "all_results.json").write_text("{}")


def test_a_configuration_has_a_name_as_for_one_run(bench, sweep):
    done = sweep(num_seeds=1, flags=[*FLAGS, "--config", "glue"])
    assert done.returncode == 0, done.stderr
    assert bench.calls()[0]["config"] == "glue"
    (file,) = json.loads((bench.output / "sweep_plan.json").read_text())["files"]
    assert file.endswith("configs/finetune/glue.yaml")


def test_diverged_runs_are_said_and_never_best(bench, sweep):
    bench.plan(scores={**SCORES, "5e-5 1": math.nan, "4e-5 1": math.nan})
    done = sweep(num_seeds=1)
    assert "| 5e-5 | diverged | diverged | diverged |" in done.stdout
    report = (bench.output / "sweep.json").read_text()
    assert json.loads(report, parse_constant=pytest.fail)["best"] == "learning_rate-3e-5"
    shutil.rmtree(bench.output)
    bench.plan(scores=dict.fromkeys(SCORES, math.nan))
    assert "all are NaN" in sweep(num_seeds=1).stderr
    shutil.rmtree(bench.output)
    bench.plan(scores={**dict.fromkeys(SCORES, math.nan), "3e-5 2": 0.9})
    done = sweep(num_seeds=2)
    assert "learning_rate-3e-5 has the best run; half of the seeds or more" in done.stdout


def test_a_closed_terminal_ends_a_sweep_but_not_under_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    end_with_children()
    for number in (signal.SIGHUP, signal.SIGTERM):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_with_children()
    signal.raise_signal(signal.SIGHUP)


# A run that says its number and sleeps; the first is deaf to SIGTERM, as one that is saving may be.
SLEEPING = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPING}"


def wait_for_number(log):
    for _ in range(600):
        if log.is_file() and log.read_text().endswith("\n"):
            return int(log.read_text())
        time.sleep(0.05)
    pytest.fail("no run was started")


@pytest.mark.parametrize(("run", "num_signals"), [(SLEEPING, 1), (DEAF, 2)])
def test_the_run_in_progress_ends_with_the_sweep(tmp_path, bench, run, num_signals):
    """A second signal does not wait, and leaves no run behind either."""
    log = tmp_path / "log"
    end_with_children()

    def interrupt():
        wait_for_number(log)
        for _ in range(num_signals):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    signaller = threading.Thread(target=interrupt)
    signaller.start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run_process([sys.executable, "-c", run], log, "group")
    signaller.join()
    assert time.perf_counter() - start < SECONDS_TO_END
    with pytest.raises(ProcessLookupError):
        os.kill(wait_for_number(log), 0)


def test_the_children_of_a_launcher_that_fails_end_too(tmp_path):
    log = tmp_path / "log"
    launcher = (
        "import subprocess, sys; "
        f"run = subprocess.Popen([sys.executable, '-c', {SLEEPING!r}], stdout=subprocess.PIPE); "
        "print(int(run.stdout.readline()), flush=True); sys.exit(3)"
    )
    assert run_process([sys.executable, "-c", launcher], log, "group") == 3
    assert not is_running(wait_for_number(log))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_interrupted_says_so(bench, number):
    bench.plan(scores=SCORES, sleep=60)
    script = str(bench.recipes / "sweep_finetuning.py")
    # A shell's background jobs ignore SIGINT, and hand that on.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, script, *FLAGS, "--output_dir", str(bench.output)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
    )
    while not (bench.recipes / "pid").is_file():
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("interrupted\n")


@pytest.mark.skipif(
    sys.platform != "linux", reason="the system tells of a parent's end on Linux alone"
)
def test_a_sweep_that_is_killed_leaves_no_run_behind(tmp_path):
    log = tmp_path / "log"
    sweep = (
        "import sys; from pathlib import Path; "
        "from bert_recipes.sweeps.processes import run_process; "
        f"run_process([sys.executable, '-c', {SLEEPING!r}], Path({str(log)!r}), 'group')"
    )
    process = subprocess.Popen([sys.executable, "-c", sweep])
    run_pid = wait_for_number(log)
    process.kill()
    process.wait()
    # Whoever takes over its children removes the run's entry.
    for _ in range(100):
        if not is_running(run_pid):
            break
        time.sleep(0.1)
    assert not is_running(run_pid)


def is_running(pid):
    """Tell whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_search_tries_settings_within_the_ranges_and_resumes(bench):
    pytest.importorskip("optuna")
    space = bench.recipes / "space.yaml"
    space.write_text(
        "learning_rate: [1e-5, 1e-4, log]\nmax_steps: [1000, 20000, linear]\nnum_train_epochs: "
        "[2, 4, int]\nprecision: [fp32, bf16]\n"
    )
    bench.plan(figures={"mrpc": {"eval_f1": 0.7}}, fail_at=3)
    flags = ("--sweep", space, *TASK, "--output_dir", bench.output)
    assert bench.run("sweep_finetuning.py", *flags, "--num_trials", 5).returncode == 1
    bench.plan(figures={"mrpc": {"eval_f1": 0.7}})
    done = bench.run("sweep_finetuning.py", *flags, "--num_trials", 5)
    assert done.returncode == 0, done.stderr
    calls = bench.calls()
    # The interrupted trial is tried again as it was.
    assert calls[2] == calls[3]
    assert len({call["learning_rate"] for call in calls}) == 5

    for call in calls:
        assert 1000 <= int(call["max_steps"]) <= 20000
        assert 1e-5 <= float(call["learning_rate"]) <= 1e-4
        assert call["num_train_epochs"] in ("2", "3", "4")
        assert call["precision"] in ("fp32", "bf16")
    assert len(json.loads((bench.output / "sweep.json").read_text())["combinations"]) == 5
    # More trials are added to those that there are.
    assert bench.run("sweep_finetuning.py", *flags, "--num_trials", 6).returncode == 0
    assert len(bench.calls()) == 7
    # More seeds would change the medians, and so what is tried.
    refused = bench.run("sweep_finetuning.py", *flags, "--num_trials", 6, "--num_seeds", 2)
    assert "runs with other settings (seeds: was [1], is [1, 2])" in refused.stderr
    assert len(bench.calls()) == 7


@pytest.fixture
def model(tmp_path, shared_data):
    from transformers import BertConfig, BertModel

    from bert_recipes.tokenization.loading import load_tokenizer

    folder = tmp_path / "model"
    vocabulary = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    tokenizer = load_tokenizer(vocabulary, do_lower_case=True)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_launch_on_gpus_has_a_process_for_each(repository, monkeypatch):
    script = repository / "recipes" / "finetune.py"
    for num_gpus, words in ((3, ["--num_processes", "3"]), (0, [])):
        monkeypatch.setattr("torch.cuda.device_count", lambda num_gpus=num_gpus: num_gpus)
        command = list(finetuning_command(script, "ddp"))
        assert command[-1 - len(words) : -1] == words
        assert "--num_processes" not in finetuning_command(script, "ddp_cpu")
        assert ("--num_processes" in command) is bool(words)


def test_deepspeed_finds_its_file_from_any_folder(repository, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    command = finetuning_command(repository / "recipes" / "finetune.py", "deepspeed_zero2")
    parsed = launch_command_parser().parse_args(list(command[3:]))
    file = repository / "accelerate_configs" / "deepspeed_zero2.json"
    assert parsed.deepspeed_config_file == str(file)
    # What is named here wins over the configuration.
    assert "deepspeed_config_file" in parsed.nondefault


@pytest.mark.parametrize(("seen", "gpu"), [(None, "0"), ("3", "3"), ("2,3", "2")])
def test_one_gpu_is_the_first_that_is_seen(repository, monkeypatch, seen, gpu):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    script = repository / "recipes" / "finetune.py"
    file = repository / "accelerate_configs" / "single_gpu.yaml"
    for launch in ("single_gpu", str(file)):
        assert finetuning_command(script, launch)[-3:-1] == ("--gpu_ids", gpu)


@pytest.mark.slow
def test_a_sweep_of_real_runs_reports_what_they_measured(
    repository,
    shared_data,
    model,
    tmp_path,
):
    (tmp_path / "sweep.yaml").write_text("learning_rate: [1e-3, 1e-4]\nnum_train_epochs: 1\n")
    output = tmp_path / "runs"
    settings = {
        "launch": "cpu",
        "sweep": tmp_path / "sweep.yaml",
        "num_seeds": 2,
        "output_dir": output,
        "config": "recipes/configs/finetune/glue.yaml",
        "task": "mrpc",
        "model_name_or_path": model,
        "data_dir": shared_data / "glue",
        "max_train_examples": 100,
        "max_eval_examples": 60,
        "max_predict_examples": 20,
        "do_predict": "true",
        "use_cpu": "true",
    }
    command = [sys.executable, "recipes/sweep_finetuning.py"]

    for name, value in settings.items():
        command += [f"--{name}", str(value)]

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=repository,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((output / "sweep.json").read_text())
    assert report["metric"] == "f1"
    rates = [item["settings"]["learning_rate"] for item in report["combinations"]]
    assert rates == ["1e-3", "1e-4"]
    medians = [item["median"] for item in report["combinations"]]
    assert report["combinations"][medians.index(max(medians))]["name"] == report["best"]
    runs = [run for item in report["combinations"] for run in item["runs"]]

    for run in runs:
        folder = output / run["folder"]
        results = json.loads((folder / "all_results.json").read_text())
        assert run["value"] == results["eval_f1"]
        assert results["splits"]["train"]["examples"] == 100
        assert len((folder / "predictions_test.jsonl").read_text().splitlines()) == 20
    assert sum(run["has_weights"] for run in runs) == 1
    assert (output / "best" / "model.safetensors").is_file()
