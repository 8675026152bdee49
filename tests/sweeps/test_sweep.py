"""Grids, flags and the choice of the best; recipes/sweep_finetuning.py over a stand-in for finetune.py, and once for real."""

import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_recipes.config import read_text
from bert_recipes.errors import InputError
from bert_recipes.sweeps.sweep import (
    Combination,
    FineTuning,
    Run,
    Summary,
    check_flags,
    choose_best,
    choose_seeds,
    describe_lead,
    drawn_combination,
    end_with_children,
    expand_grid,
    read_grid,
    read_range,
    read_sweep,
    run_fields,
    split_flags,
)


NAN = float("nan")
FIELDS = {"learning_rate": float, "num_train_epochs": float, "max_steps": int, "precision": str, "seed": int}


@pytest.fixture
def configs(repository):
    return repository / "recipes" / "configs" / "sweep"


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write_file


def summary(name, *values):
    runs = [Run(seed, Path(name) / f"seed-{seed}", value) for seed, value in enumerate(values, 1)]
    return Summary(Combination(name, {}), tuple(runs))


def test_the_papers_sweep_is_four_learning_rates_at_batch_32_and_3_epochs(configs):
    """Devlin et al. 2019, section 4.1: batch 32, 3 epochs, the best of 5e-5, 4e-5, 3e-5 and 2e-5 on the Dev set."""
    combinations = expand_grid(read_sweep("paper", configs, []))
    assert [float(c.settings["learning_rate"]) for c in combinations] == [5e-5, 4e-5, 3e-5, 2e-5]
    assert all(c.settings["global_train_batch_size"] == "32" for c in combinations)
    assert all(c.settings["num_train_epochs"] == "3" for c in combinations)
    assert combinations[0].name == "learning_rate-5e-5"


def test_the_appendix_sweep_is_every_combination_of_its_three_ranges(configs):
    """Devlin et al. 2019, appendix A.3: batch 16, 32; learning rate 5e-5, 3e-5, 2e-5; epochs 2, 3, 4."""
    combinations = expand_grid(read_sweep("appendix", configs, []))
    settings = {
        (
            int(c.settings["global_train_batch_size"]),
            float(c.settings["learning_rate"]),
            int(c.settings["num_train_epochs"]),
        )
        for c in combinations
    }
    assert settings == {(b, r, e) for b in (16, 32) for r in (5e-5, 3e-5, 2e-5) for e in (2, 3, 4)}
    assert len({c.name for c in combinations}) == len(combinations) == 18


def test_the_last_field_varies_fastest_and_values_stay_as_they_were_written(write):
    grid = read_grid(write("precision: [fp32, bf16]\nlearning_rate: [5.0e-5, 3e-5]\nmax_steps: 7\n"), FIELDS)
    combinations = expand_grid(grid)
    assert [c.flags() for c in combinations][1] == [
        "--precision", "fp32", "--learning_rate", "3e-5", "--max_steps", "7",
    ]  # fmt: skip
    assert combinations[2].name == "precision-bf16_learning_rate-5.0e-5"


def test_one_combination_has_a_name_too(write):
    assert [c.name for c in expand_grid(read_grid(write("max_steps: 7\n"), FIELDS))] == ["settings"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lerning_rate: [1e-5]\n", ("line 1", "lerning_rate", "learning_rate")),
        ("learning_rate: [1e-5, fast]\n", ("learning_rate", "'fast'", "a number")),
        ("learning_rate: [1e-5, 1.0e-5]\n", ("same value", "1e-5 and 1.0e-5")),
        ("learning_rate: []\n", ("learning_rate", "no value")),
        ("seed: [1, 2]\n", ("seed", "--num_seeds")),
        ("learning_rate: [1e-5, 1e-4, log]\n", ("range", "--num_trials")),
        ("max_steps: [1.5, 2]\n", ("max_steps", "'1.5'", "whole number")),
        ("# nothing\n", ("no settings",)),
        ("learning_rate: [1e-5, nan]\n", ("line 1", "learning_rate", "nan is no number")),
        ("learning_rate: [1e-5, [2e-5]]\n", ("learning_rate", "field: [value, value]")),
        ("max_steps: 5\nlearning_rate:\n", ("line 2", "learning_rate", "no value")),
    ],
)
def test_a_wrong_sweep_file_is_one_line_that_names_file_and_field(write, text, words):
    with pytest.raises(InputError) as error:
        read_grid(write(text), FIELDS)
    assert all(word in str(error.value) for word in ("mine.yaml", *words))
    assert "\n" not in str(error.value)


def test_values_of_every_type_keep_their_words_and_quotes_are_no_part_of_keys(write):
    text = 'freeze_encoder: [true, false]\n"max_steps": [7, 8]\ndo_predict: true\ndropout: [null, 0.1]\n'
    text += "lr_scheduler_type: [cosine, constant, linear]\n"
    assert read_grid(write(text), run_fields()) == {
        "freeze_encoder": ["true", "false"],
        "max_steps": ["7", "8"],
        "do_predict": ["true"],
        "dropout": ["null", "0.1"],
        "lr_scheduler_type": ["cosine", "constant", "linear"],
    }


def test_different_settings_have_different_folders():
    names = [choice.name for choice in expand_grid({"data_dir": ["a/b", "a-b", "a b", "a_b"]})]
    assert len(set(names)) == 4
    assert names[1] == "data_dir-a-b"
    assert all(re.fullmatch(r"data_dir-a-b(-[0-9a-f]{6})?", name) for name in names)


@pytest.mark.parametrize(
    ("field", "values", "drawn", "text"),
    [
        ("max_steps", ["1000", "20000", "linear"], 12345, "12345"),
        ("num_train_epochs", ["2", "5", "int"], 3, "3"),
        ("num_train_epochs", ["10", "20000", "linear"], 12345.6, "12300"),
        ("learning_rate", ["1e-5", "1e-4", "log"], 2.3456e-5, "2.35e-05"),
    ],
)
def test_a_number_of_a_search_is_written_as_its_field_reads_it(field, values, drawn, text):
    pytest.importorskip("optuna")
    distribution = read_range(values, FIELDS[field])
    assert distribution._contains(drawn)
    assert isinstance(distribution.to_external_repr(drawn), type(drawn))
    assert getattr(distribution, "log", False) == (values[2] == "log")
    assert drawn_combination({field: values}, {field: drawn}).settings == {field: text}
    assert read_text(FIELDS[field], text) == pytest.approx(drawn, rel=0.01)


@pytest.mark.parametrize(
    "values", ["[1e-4, 1e-5, log]", "[0, 1e-5, log]", "[a, b, linear]", "[1, 2.5, int]", "[1, nan, log]"]
)
def test_an_impossible_range_is_refused(write, values):
    with pytest.raises(InputError, match="learning_rate"):
        read_grid(write(f"learning_rate: {values}\n"), FIELDS, with_ranges=True)


def test_an_unknown_sweep_names_those_that_there_are(configs):
    with pytest.raises(InputError, match="appendix, paper, search_example"):
        read_sweep("papr", configs, [])


def test_best_is_the_greatest_median_and_not_the_luckiest_run():
    lucky, steady = summary("lucky", 0.99, 0.50, 0.52), summary("steady", 0.80, 0.79, 0.81)
    assert choose_best([lucky, steady]) is steady
    assert steady.best_run.seed == 3
    assert steady.median == 0.80
    assert steady.deviation == pytest.approx(0.01)


def test_with_one_seed_best_is_the_greatest_figure():
    """The paper's rule, section 4.1."""
    assert choose_best([summary("a", 0.7), summary("b", 0.9), summary("c", 0.8)]).combination.name == "b"
    assert summary("a", 0.7).deviation is None


def test_of_ties_the_first_combination_and_the_first_seed_win():
    first, second = summary("first", 0.5, 0.7, 0.7), summary("second", 0.7, 0.7, 0.1)
    assert choose_best([first, second]) is first
    assert first.best_run.seed == 2


def test_a_diverged_run_is_worse_than_every_number():
    diverged, poor = summary("diverged", math.nan, 0.9, math.nan), summary("poor", -0.2, -0.3, -0.1)
    assert choose_best([diverged, poor]) is poor
    assert diverged.best_run.seed == 2
    assert diverged.deviation is None


def test_flags_are_parted_with_all_their_values():
    argv = ["--seeds", "3", "5", "--task", "rte", "--fp16", "--learning-rate=1e-5", "--rte", "--num_train_epochs 5"]
    own, others = split_flags(argv, ["seeds", "rte"])
    assert own == ["--seeds", "3", "5", "--rte", "--num_train_epochs 5"]
    assert others == ["--task", "rte", "--fp16", "--learning-rate=1e-5"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--seed", "3"], "--num_seeds"),
        (["--resume_from_checkpoint=last"], "resumes by itself"),
        (["--learning-rate", "1e-5"], "in the sweep and on the command line"),
    ],
)
def test_what_the_sweep_decides_cannot_be_given(argv, words):
    with pytest.raises(InputError, match=words):
        check_flags(argv, ["learning_rate"])


def test_seeds_are_a_number_or_a_list():
    assert choose_seeds(3, None) == [1, 2, 3]
    assert choose_seeds(1, [7, 5]) == [7, 5]
    with pytest.raises(InputError, match="num_seeds is 0"):
        choose_seeds(0, None)
    with pytest.raises(InputError, match="holds one twice"):
        choose_seeds(1, [5, 5])


def measured(name, *values, half=None, rows=408):
    """Runs whose intervals of the accuracy reach so far."""
    runs = []
    for seed, value in enumerate(values, 1):
        results = {"eval_accuracy": value, "splits": {"train": {"examples": 9}, "validation": {"examples": rows}}}
        if half is not None:
            results["intervals"] = {"accuracy": [value - half, value + half]}
        runs.append(Run(seed, Path(name) / f"seed-{seed}", value, results))
    return Summary(Combination(name, {}), tuple(runs))


@pytest.mark.parametrize(
    ("summaries", "said"),
    [
        # One example better, as MRPC's 408 rows make it.
        (
            [measured("a", 0.7, half=0.04), measured("b", 0.7 + 1 / 408, half=0.04)],
            "Not resolved: b and a are 0.0025 apart (1 of 408 examples), no more than the 95% intervals of the measured rows.",
        ),
        (
            [measured("a", 0.7, half=0.04), measured("b", 0.8, half=0.04)],
            "b and a are 0.1000 apart (41 of 408 examples), more than the 95% intervals of the measured rows.",
        ),
        (
            [measured("a", 0.7, 0.75, half=0.001), measured("b", 0.74, 0.8, half=0.001)],
            "Not resolved: b and a are 0.0450 apart (18 of 408 examples), and their seeds overlap.",
        ),
        (
            [
                measured("a", 0.7, 0.72, half=0.01),
                measured("b", 0.78, 0.8, half=0.01),
                measured("c", 0.5, 0.5, half=0.01),
            ],
            "b and a are 0.0800 apart (33 of 408 examples), more than the 95% intervals of the measured rows.",
        ),
        # Alike: the first is chosen by order alone.
        (
            [measured("a", 0.7), measured("b", 0.7)],
            "Not resolved: a and b are 0.0000 apart (0 of 408 examples), no more than the 95% intervals of the measured rows.",
        ),
        ([measured("a", 0.7), measured("b", 0.8)], "b and a are 0.1000 apart (41 of 408 examples)."),  # an older run
        ([measured("a", NAN), measured("b", 0.8)], ""),
        ([measured("b", 0.8)], ""),
    ],
)
def test_the_lead_is_held_against_rows_and_seeds(summaries, said):
    assert describe_lead(summaries, choose_best(summaries), "accuracy") == said


def test_examples_are_counted_of_an_accuracy_alone():
    runs = [measured("a", 0.7), measured("b", 0.8)]
    assert describe_lead(runs, runs[1], "f1") == "b and a are 0.1000 apart."


PROGRAM = """
import json, os, sys
folder = sys.argv[sys.argv.index("--output_dir") + 1]
os.makedirs(folder)
json.dump({"group": os.environ["WANDB_RUN_GROUP"]}, open(folder + "/all_results.json", "w"))
open(folder + "/task.yaml", "w").close()
"""


def test_wandb_shows_the_runs_of_a_sweep_as_one_group_unless_the_user_names_one(tmp_path, monkeypatch):
    runs = FineTuning((sys.executable, "-c", PROGRAM), ("--report_to", "wandb"))
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    assert runs.run(tmp_path / "mrpc_paper" / "lr2e-05" / "seed-1", []) == {"group": "mrpc_paper"}
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    assert runs.run(tmp_path / "mrpc_paper" / "lr2e-05" / "seed-2", []) == {"group": "mine"}
    kept = json.loads((tmp_path / "mrpc_paper" / "lr2e-05" / "seed-1" / "all_results.json").read_text())
    assert kept == {"group": "mrpc_paper"}


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
    assert "no metric 'bleu'; give --metric one of: accuracy, f1;" in f"{sweep('--metric', 'bleu').stderr.strip()};"
    assert len(bench.calls()) == 1
    # What it says can be done in the same folder.
    assert sweep("--metric", "accuracy").returncode == 0
    assert json.loads((bench.output / "sweep.json").read_text())["metric"] == "accuracy"


@pytest.mark.parametrize("metric", ["loss", "matched_loss", "seconds", "best_f1_thresh", "PER_number", "total"])
def test_a_figure_of_which_more_is_not_better_is_no_metric(bench, sweep, metric):
    bench.plan(scores=SCORES)
    assert f"metric is '{metric}'; allowed: metrics of which more is better" in sweep("--metric", metric).stderr
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


@pytest.fixture
def model(tmp_path, shared_data):
    from transformers import BertConfig, BertModel

    from bert_recipes.tokenization.loading import load_tokenizer

    folder = tmp_path / "model"
    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt", do_lower_case=True)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(tokenizer), **size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_sweep_of_real_runs_reports_what_they_measured(repository, shared_data, model, tmp_path):
    (tmp_path / "sweep.yaml").write_text("learning_rate: [1e-3, 1e-4]\nnum_train_epochs: 1\n")
    output = tmp_path / "runs"
    command = [
        sys.executable, "recipes/sweep_finetuning.py", "--launch", "cpu",
        "--sweep", str(tmp_path / "sweep.yaml"), "--num_seeds", "2", "--output_dir", str(output),
        "--config", "recipes/configs/finetune/glue.yaml", "--task", "mrpc", "--model_name_or_path", str(model),
        "--data_dir", str(shared_data / "glue"), "--max_train_examples", "100", "--max_eval_examples", "60",
        "--max_predict_examples", "20", "--do_predict", "true", "--use_cpu", "true",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((output / "sweep.json").read_text())
    assert report["metric"] == "f1"
    assert [item["settings"]["learning_rate"] for item in report["combinations"]] == ["1e-3", "1e-4"]
    medians = [item["median"] for item in report["combinations"]]
    assert report["combinations"][medians.index(max(medians))]["name"] == report["best"]
    runs = [run for item in report["combinations"] for run in item["runs"]]
    for run in runs:
        results = json.loads((output / run["folder"] / "all_results.json").read_text())
        assert run["value"] == results["eval_f1"]
        assert results["splits"]["train"]["examples"] == 100
        assert len((output / run["folder"] / "predictions_test.jsonl").read_text().splitlines()) == 20
    assert sum(run["has_weights"] for run in runs) == 1
    from transformers import AutoModelForSequenceClassification

    best = AutoModelForSequenceClassification.from_pretrained(output / "best")
    assert best.config.id2label == {0: "not_equivalent", 1: "equivalent"}
    # Nothing is left to run: the same command gives the same report at once.
    again = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=False)
    assert again.stdout == done.stdout
    assert again.stderr.count("finished before, kept") == 4
