"""recipes/sweep_finetuning.py over a stand-in for finetune.py."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bert_recipes.sweeps.subruns import end_with_children


RATES = ("5e-5", "4e-5", "3e-5", "2e-5")
# Medians 0.6, 0.8, 0.7, 0.5; the luckiest run belongs to a combination that is not the best.
SCORES = dict(
    zip(
        [f"{rate} {seed}" for rate in RATES for seed in (1, 2, 3)],
        [0.5, 0.6, 0.95, 0.8, 0.78, 0.85, 0.7, 0.7, 0.7, 0.5, 0.4, 0.6],
        strict=True,
    )
)
FLAGS = (
    "--sweep",
    "paper",
    "--task",
    "mrpc",
    "--data_dir",
    ".",
    "--model_name_or_path",
    "bert",
    "--warmup_steps",
    "0.1",
)


@pytest.fixture
def sweep(bench):
    def run(*arguments, num_seeds=3, flags=FLAGS):
        seeds = ("--num_seeds", num_seeds) if num_seeds else ()
        return bench.run("sweep_finetuning.py", *flags, *seeds, "--output_dir", bench.output, *arguments)

    return run


def with_weights(folder):
    return {path.parent.relative_to(folder).as_posix() for path in folder.glob("*/seed-*/model.safetensors")}


def test_a_sweep_runs_every_combination_and_seed_and_keeps_the_best(bench, sweep):
    bench.plan(scores=SCORES)
    done = sweep()
    assert done.returncode == 0, done.stderr
    calls = bench.calls()
    assert [(call["learning_rate"], call["seed"]) for call in calls] == [(r, s) for r in RATES for s in "123"]
    assert all(call["global_train_batch_size"] == "32" and call["num_train_epochs"] == "3" for call in calls)
    assert all(call["model_name_or_path"] == "bert" and call["warmup_steps"] == "0.1" for call in calls)
    # The task's own figure decides (mrpc: F1), by its median; `best` is the best run of that combination.
    report = json.loads((bench.output / "sweep.json").read_text())
    assert report["metric"] == "f1"
    assert report["best"] == "learning_rate-4e-5"
    assert (bench.output / "best").resolve() == (bench.output / "learning_rate-4e-5" / "seed-3").resolve()
    best = report["combinations"][1]
    assert (best["median"], best["min"], best["max"]) == (0.8, 0.78, 0.85)
    assert best["std"] == pytest.approx(0.0360555)
    assert [run["has_weights"] for run in best["runs"]] == [False, False, True]
    assert report["machine"] == {"cores": 2}
    text = (bench.output / "report.md").read_text()
    assert "| 4e-5 | **0.8000** | 0.7800 | 0.8500 | 0.0361 | 3 |" in text
    assert text in done.stdout
    assert "greatest median of 3 seeds" in text
    # The seeds of 4e-5 are all above those of 3e-5.
    assert "learning_rate-4e-5 and learning_rate-3e-5 are 0.1000 apart.\n" in text
    assert "| model | bert |" in text
    assert (bench.output / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (bench.output / "report.html").read_text()


def test_only_the_best_run_keeps_its_weights_and_all_keep_results_and_predictions(bench, sweep):
    bench.plan(scores=SCORES)
    sweep()
    assert with_weights(bench.output) == {"learning_rate-4e-5/seed-3"}
    runs = list(bench.output.glob("*/seed-*/all_results.json"))
    assert len(runs) == len(list(bench.output.glob("*/seed-*/predictions_validation.jsonl"))) == 12
    others = [run.parent for run in runs if run.parent.name != "seed-3" or "4e-5" not in run.parent.parent.name]
    assert all((folder / "weights_removed.txt").is_file() for folder in others)
    assert not [folder for folder in others if list(folder.glob("checkpoint-*"))]


def test_a_failing_run_stops_the_sweep_in_one_line_and_the_same_command_goes_on(bench, sweep):
    bench.plan(scores=SCORES, fail_at=5)
    failed = sweep()
    assert failed.returncode == 1
    assert failed.stderr.count("error: ") == 1
    assert "learning_rate-4e-5/seed-2 failed" in failed.stderr
    assert "learning_rate is -1; allowed: more than 0" in failed.stderr
    assert "same command again" in failed.stderr
    bench.plan(scores=SCORES)
    assert sweep().returncode == 0
    # Four were finished; the fifth is run again.
    assert len(bench.calls()) == 5 + 8
    assert json.loads((bench.output / "sweep.json").read_text())["best"] == "learning_rate-4e-5"
    assert with_weights(bench.output) == {"learning_rate-4e-5/seed-3"}


def test_a_run_that_was_killed_before_its_last_file_goes_on(bench, sweep):
    bench.plan(scores=SCORES, die_at=2)
    assert "exit code -9" in sweep().stderr
    half = bench.output / "learning_rate-5e-5" / "seed-2"
    assert (half / "all_results.json").is_file()
    assert not (half / "task.yaml").is_file()
    (half / "kept.json").touch()
    bench.plan(scores=SCORES)
    assert sweep().returncode == 0
    assert [call["seed"] for call in bench.calls()[:3]] == ["1", "2", "2"]
    assert (half / "task.yaml").is_file()
    # It had a checkpoint, from which it goes on; those of finished runs are removed, of the best one too.
    assert (half / "kept.json").is_file()
    assert not list(bench.output.rglob("checkpoint-*"))


def test_a_finished_sweep_starts_nothing_and_gives_the_same_report(bench, sweep):
    bench.plan(scores=SCORES)
    first = sweep()
    before = (bench.output / "sweep.json").read_bytes()
    assert sweep().stdout == first.stdout
    assert len(bench.calls()) == 12
    assert (bench.output / "sweep.json").read_bytes() == before


def test_seeds_can_be_added_and_a_best_run_without_weights_is_run_again(bench, sweep):
    bench.plan(scores=SCORES)
    sweep(num_seeds=1)
    assert with_weights(bench.output) == {"learning_rate-4e-5/seed-1"}
    # With seed 2 the first learning rate becomes the best, by its first run, whose weights are gone.
    bench.plan(scores=SCORES | {"5e-5 1": 0.5, "5e-5 2": 0.4, "4e-5 2": -0.9, "3e-5 2": -0.9, "2e-5 2": -0.9})
    done = sweep(num_seeds=2)
    assert done.returncode == 0, done.stderr
    assert (bench.output / "best").resolve().relative_to(bench.output).as_posix() == "learning_rate-5e-5/seed-1"
    assert (bench.output / "best" / "model.safetensors").is_file()
    assert [call["seed"] for call in bench.calls()] == ["1"] * 4 + ["2"] * 4 + ["1"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"flags": (*FLAGS[:-1], "0.2")},
            "flags: was --task mrpc --data_dir . --model_name_or_path bert --warmup_steps 0.1, is",
        ),
        ({"flags": ("--sweep", "appendix", *FLAGS[2:])}, 'sweep: was global_train_batch_size ["32"], is'),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(bench, sweep, changed, words):
    bench.plan(scores=SCORES)
    sweep()
    refused = sweep(**changed)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert "other settings" in refused.stderr
    assert "another --output_dir" in refused.stderr
    assert len(bench.calls()) == 12


def test_a_changed_configuration_file_is_refused(bench, sweep):
    config = bench.recipes / "my.yaml"
    config.write_text("max_seq_length: 64\n")
    bench.plan(scores=SCORES)
    flags = (*FLAGS, "--config", config)
    assert sweep(num_seeds=1, flags=flags).returncode == 0
    config.write_text("max_seq_length: 32\n")
    assert "files: was" in sweep(num_seeds=1, flags=flags).stderr


def test_a_folder_with_other_files_is_refused(bench, sweep):
    bench.plan(scores=SCORES)
    bench.output.mkdir()
    (bench.output / "thesis.tex").write_text("")
    assert "holds files and no sweep_plan.json" in sweep().stderr
    assert bench.calls() == []


def test_a_figure_that_is_not_there_names_those_that_are(bench, sweep):
    bench.plan(scores=SCORES, figures={"mrpc": {"eval_loss": 0.3, "eval_seconds": 1.0, "eval_best_f1_thresh": 0.1}})
    assert "no figure 'bleu'; give --metric one of: accuracy, f1;" in f"{sweep('--metric', 'bleu').stderr.strip()};"
    assert len(bench.calls()) == 1
    # What it says can be done in the same folder.
    assert sweep("--metric", "accuracy").returncode == 0
    assert json.loads((bench.output / "sweep.json").read_text())["metric"] == "accuracy"


@pytest.mark.parametrize("metric", ["loss", "matched_loss", "seconds", "best_f1_thresh", "PER_number", "total"])
def test_a_figure_of_which_more_is_not_better_is_no_metric(bench, sweep, metric):
    bench.plan(scores=SCORES)
    assert f"metric is '{metric}'; allowed: figures of which more is better" in sweep("--metric", metric).stderr
    assert bench.calls() == []


def test_flags_that_cannot_work_are_refused_before_the_folder_is_claimed(bench, sweep):
    bench.plan(scores=SCORES)
    assert "max_seq_length is 2; allowed: 8 or more" in sweep("--max_seq_length", "2").stderr
    assert "no folder no/such/model" in sweep(flags=("--task", "mrpc", "--model_name_or_path", "no/such/model")).stderr
    assert not bench.output.exists()


def test_a_sweep_without_a_finished_run_takes_other_settings(bench, sweep):
    bench.plan(scores=SCORES, fail_at=1)
    assert sweep("--weight_decay", "0.1").returncode == 1
    bench.plan(scores=SCORES)
    assert sweep("--weight_decay", "0.2").returncode == 0
    assert {call["weight_decay"] for call in bench.calls()[1:]} == {"0.2"}
    assert "weight_decay 0.2" in sweep("--weight_decay", "0.1").stderr


def test_diverged_runs_are_said_and_never_best(bench, sweep):
    bench.plan(scores={key: float("nan") if key.startswith(("5", "4")) else value for key, value in SCORES.items()})
    done = sweep()
    assert "| 5e-5 | diverged | diverged | diverged |" in done.stdout
    report = (bench.output / "sweep.json").read_text()
    assert json.loads(report, parse_constant=lambda word: pytest.fail(word))["best"] == "learning_rate-3e-5"


def test_where_all_diverged_nothing_is_best(bench, sweep):
    bench.plan(scores=dict.fromkeys(SCORES, float("nan")))
    done = sweep()
    assert done.returncode == 1
    assert "all are NaN" in done.stderr


@pytest.mark.parametrize(("flag", "meant"), [("--lerning_rate", "learning_rate"), ("--num_seed", "num_seeds")])
def test_a_misspelt_flag_is_refused_before_anything_runs(bench, sweep, flag, meant):
    bench.plan(scores=SCORES)
    assert f"unknown option {flag}; did you mean --{meant}?" in sweep(flag, "3").stderr
    assert bench.calls() == []


def test_two_sweeps_of_one_folder_at_once_are_refused(bench, sweep):
    from filelock import FileLock

    bench.plan(scores=SCORES)
    sweep(num_seeds=1)
    with FileLock(bench.output / ".lock"):
        assert "another process works in it" in sweep(num_seeds=1).stderr


def test_a_closed_terminal_ends_a_sweep_once_and_not_under_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    end_with_children()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    end_with_children()
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_run_in_progress_ends_with_the_sweep(bench, number):
    bench.plan(scores=SCORES, sleep=60)
    command = [sys.executable, str(bench.recipes / "sweep_finetuning.py"), *FLAGS, "--output_dir", str(bench.output)]
    # A shell's background jobs ignore SIGINT, and hand that on.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen)
    pid_file = bench.recipes / "pid"
    for _ in range(600):
        if pid_file.is_file() and pid_file.read_text():
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_search_tries_settings_within_the_ranges_and_goes_on(bench):
    pytest.importorskip("optuna")
    space = bench.recipes / "space.yaml"
    space.write_text(
        "learning_rate: [1e-5, 1e-4, log]\nmax_steps: [1000, 20000, linear]\nnum_train_epochs: [2, 4, int]\nprecision: [fp32, bf16]\n"
    )
    bench.plan(figures={"mrpc": {"eval_f1": 0.7}}, fail_at=3)
    flags = ("--sweep", space, "--task", "mrpc", "--model_name_or_path", "bert", "--data_dir", ".")
    flags += ("--output_dir", bench.output)
    assert bench.run("sweep_finetuning.py", *flags, "--num_trials", 5).returncode == 1
    bench.plan(figures={"mrpc": {"eval_f1": 0.7}})
    done = bench.run("sweep_finetuning.py", *flags, "--num_trials", 5)
    assert done.returncode == 0, done.stderr
    calls = bench.calls()
    # The interrupted trial is tried again as it was.
    assert {**calls[2], "output_dir": 0} == {**calls[3], "output_dir": 0}
    assert all(1000 <= int(call["max_steps"]) <= 20000 for call in calls)
    assert all(1e-5 <= float(call["learning_rate"]) <= 1e-4 for call in calls)
    assert all(call["num_train_epochs"] in "234" and call["precision"] in ("fp32", "bf16") for call in calls)
    assert len(json.loads((bench.output / "sweep.json").read_text())["combinations"]) == 5
    # More trials are added to those that there are.
    assert bench.run("sweep_finetuning.py", *flags, "--num_trials", 6).returncode == 0
    assert len(bench.calls()) == 7


def test_an_unknown_launch_configuration_names_those_that_there_are(bench, sweep):
    bench.plan(scores=SCORES)
    assert "launch: no configuration" in sweep("--launch", "gpu").stderr
