"""The paper's table, recipes/glue_all.py over a stand-in for finetune.py, and the zip."""

import itertools
import json
import math
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.files import replace_nonfinite
from bert_recipes.sweeps.glue import (
    COLUMNS,
    TASKS,
    format_table,
    make_table,
    table_mean,
    write_submission,
)
from bert_recipes.tasks.catalogue import get_task


# Devlin et al. 2019, Table 1, in its order: MNLI-m, -mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE;
# then "Average".
PAPER = {
    "OpenAI GPT": ((82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0), 75.1),
    "BERT-base": ((84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4), 79.6),
    "BERT-large": ((86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1), 82.1),
}


def results(task, **figures):
    """all_results.json of a run over the published splits."""
    splits = {}
    for name, rows in get_task(task).published_rows.items():
        splits[name] = {
            "examples": rows,
            "published": rows,
            "partial": False,
        }
    metrics = {f"eval_{name}": value for name, value in figures.items()}
    return {
        "task": task,
        "splits": splits,
        **metrics,
    }


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
    assert round(make_table(all_runs(figures))["mean_dev"], 1) == average


def test_the_papers_own_figures_stand_beside_the_dev_figures():
    table = make_table(all_runs([50.0] * 9))
    assert tuple(cell["test_paper"] for cell in table["columns"]) == PAPER["BERT-base"][0]
    assert round(table["mean_test_paper"], 1) == 79.6
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
    assert table["mean_dev"] is None
    assert "No mean without RTE." in format_table(table)
    assert "| **mean** | of the nine |  | | | | | **79.6** |" in format_table(table)


def test_partial_splits_are_marked_with_their_rows():
    runs = all_runs(PAPER["BERT-base"][0])
    runs["qqp"][0]["splits"]["validation"] |= {"examples": 10000, "partial": True}
    runs["qqp"][0]["splits"]["train"] |= {"examples": 3000, "partial": True}
    text = format_table(make_table(runs))
    assert "| QQP | F1 | 71.2* |  | 1 | 10,000 of 40,430 | 3,000 of 363,846 | 71.2 |" in text
    assert "**79.6*** |" in text
    assert "not to be put beside published figures: QQP." in text


def test_of_several_seeds_the_median_counts_and_a_diverged_run_makes_no_mean():
    runs = all_runs([50.0] * 9)
    runs["cola"] = [results("cola", matthews_correlation=math.nan)]
    table = make_table(runs)
    assert "| CoLA | Matthews | diverged |" in format_table(table)
    assert replace_nonfinite(table)["mean_dev"] is None
    runs["mrpc"] = [results("mrpc", f1=value) for value in (0.80, 0.90, 0.88)]
    cell = next(cell for cell in make_table(runs)["columns"] if cell["title"] == "MRPC")
    assert (cell["dev"], cell["seeds"]) == (pytest.approx(88.0), 3)
    assert cell["std"] == pytest.approx(5.2915, abs=1e-4)


@pytest.fixture
def figures():
    """Task -> what all_results.json of its run holds: the paper's figures."""
    figures = {}
    for name, (run,) in all_runs(PAPER["BERT-base"][0]).items():
        figures[name] = run
        del run["task"]
    return figures


def test_glue_all_runs_the_nine_resumes_after_a_failure_and_prints_the_table(bench, figures):
    bench.plan(figures=figures, fail_at=3)
    flags = ("--model_name_or_path", "bert", "--rte", "--num_train_epochs 5 --fp16 true")
    flags += ("--output_dir", bench.output)
    failed = bench.run("glue_all.py", *flags)
    assert failed.returncode == 1
    assert "mrpc/settings/seed-1 failed" in failed.stderr
    bench.plan(figures=figures)
    done = bench.run("glue_all.py", *flags)
    assert done.returncode == 0, done.stderr
    assert [call["task"] for call in bench.calls()] == [*TASKS[:3], *TASKS[2:]]
    calls = {call["task"]: call for call in bench.calls()}
    assert all(call["model_name_or_path"] == "bert" for call in calls.values())
    assert all(call["config"].endswith("glue.yaml") for call in calls.values())
    assert (calls["rte"]["num_train_epochs"], calls["rte"]["fp16"]) == ("5", "true")
    assert "num_train_epochs" not in calls["cola"]
    assert all((bench.output / name / "best" / "model.safetensors").is_file() for name in TASKS)
    assert "**79.6** | | | | | **79.6** |" in done.stdout
    report = json.loads((bench.output / "glue.json").read_text())
    assert round(report["mean_dev"], 1) == round(report["mean_test_paper"], 1) == 79.6
    assert "Model: bert\n" in (bench.output / "glue.md").read_text()
    # Another time nothing is left to run.
    assert bench.run("glue_all.py", *flags).stdout == done.stdout
    assert len(bench.calls()) == 10


def test_all_tasks_start_from_the_checkpoint_that_was_found_first(bench, figures, tmp_path):
    """A newer one may have ended meanwhile."""
    (bench.recipes / "configs" / "finetune" / "glue.yaml").write_text("data_dir: .\n")
    bench.plan(figures=figures, fail_at=2)
    for name, code in (("old", 1), ("new", 0)):
        run = shutil.copytree(tmp_path / "bert", tmp_path / "runs" / name)
        config = {"architectures": ["BertForPreTraining"], "model_type": "bert"}
        (run / "config.json").write_text(json.dumps(config))
        (run / "all_results.json").write_text("{}")
        done = bench.run("glue_all.py", "--output_dir", tmp_path / "glue")
        assert done.returncode == code, done.stderr
        bench.plan(figures=figures)
    assert {call["model_name_or_path"] for call in bench.calls()} == {"runs/old"}


def test_tasks_in_several_calls_are_the_same_runs(bench, figures, tmp_path):
    """Where no model is named, the first task of a call finds it."""
    (bench.recipes / "configs" / "finetune" / "glue.yaml").write_text("data_dir: .\n")
    run = shutil.copytree(tmp_path / "bert", tmp_path / "runs" / "mine")
    config = {"architectures": ["BertForPreTraining"], "model_type": "bert"}
    (run / "config.json").write_text(json.dumps(config))
    (run / "all_results.json").write_text("{}")
    bench.plan(figures=figures)
    output = ("--output_dir", tmp_path / "glue")
    for flags in (("--tasks", "rte"), (), ("--model_name_or_path", "runs/mine")):
        done = bench.run("glue_all.py", *flags, *output)
        assert done.returncode == 0, done.stderr
    assert len(bench.calls()) == 9


def test_other_settings_of_a_later_task_are_refused_before_the_first_run(bench, figures):
    bench.plan(figures=figures)
    flags = ("--output_dir", bench.output)
    assert bench.run("glue_all.py", "--tasks", "rte", *flags).returncode == 0
    refused = bench.run("glue_all.py", "--weight_decay", "0.1", *flags)
    assert "is of runs with other settings (flags: was" in refused.stderr
    assert len(bench.calls()) == 1


def test_a_missing_file_of_a_later_task_is_found_before_the_first_run(bench, tmp_path):
    (tmp_path / get_task("rte").local_name / "validation.jsonl").unlink()
    for flags, split in (((), "validation"), (("--tasks", "cola", "--do_predict", "true"), "test")):
        failed = bench.run("glue_all.py", *flags, "--output_dir", bench.output)
        assert failed.returncode == 1
        assert f"split '{split}': no file in --data_dir" in failed.stderr.splitlines()[-1]
    assert not bench.calls()


def test_the_table_is_that_of_the_seeds_asked_for(bench):
    flags = ("--tasks", "cola", "--output_dir", bench.output)
    for seeds, figure, cells in (("12", 0.5, "50.0 | 0.0 | 2"), ("3", 0.7, "70.0 |  | 1")):
        bench.plan(figures={"cola": {"eval_matthews_correlation": figure}})
        done = bench.run("glue_all.py", *flags, "--seeds", *seeds)
        assert f"| CoLA | Matthews | {cells} |" in done.stdout, done.stderr
        missing = "MNLI-m, MNLI-mm, QQP, QNLI, SST-2, STS-B, MRPC, RTE"
        assert f"No mean without {missing}." in done.stdout
    done = bench.run("glue_all.py", *flags, "--num_seeds", 1)
    assert "| CoLA | Matthews | 50.0 |  | 1 |" in done.stdout
    assert [call["seed"] for call in bench.calls()] == ["1", "2", "3"]


def test_a_changed_configuration_of_one_task_is_refused(bench):
    bench.plan()
    special = bench.recipes / "special.yaml"
    special.write_text("seed: 1\n")
    flags = ("--tasks", "rte", "--rte", f"--run_name {special}", "--output_dir", bench.output)
    assert bench.run("glue_all.py", *flags).returncode == 0
    special.write_text("seed: 2\n")
    assert "(files: was" in bench.run("glue_all.py", *flags).stderr


def test_glue_all_can_sweep_each_task(bench):
    scores = {}
    for rate, score in (("5e-5", 0.5), ("4e-5", 0.5), ("3e-5", 0.9), ("2e-5", 0.5)):
        scores[f"{rate} 1"] = scores[f"{rate} 2"] = score
    bench.plan(scores=scores)
    flags = ("--tasks", "mrpc", "--sweep", "paper", "--num_seeds", 2, "--output_dir", bench.output)
    done = bench.run("glue_all.py", *flags)
    assert done.returncode == 0, done.stderr
    assert "| MRPC | F1 | 90.0 | 0.0 | 2 |" in done.stdout
    assert (bench.output / "mrpc" / "best" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--task", "rte"), "take it out of one"),
        # What follows a task belongs to it, also where it looks like a flag.
        (("--rte", "--learning_rate=3e-5 --seed=1"), "--seed cannot be given here"),
        (
            ("--rte", "--learning_rate '3e-5"),
            '--rte: "--learning_rate \'3e-5" cannot be read (No closing quotation)',
        ),
        (
            ("--rte", "--num_train_epoch 5"),
            "unknown option --num_train_epoch; did you mean --num_train_epochs?",
        ),
        (
            ("--sweep", "paper", "--rte", "--learning-rate 1e-5"),
            "in the sweep and on the command line",
        ),
    ],
)
def test_glue_all_refuses_what_it_decides_itself_and_what_cannot_work(bench, flags, words):
    refused = bench.run("glue_all.py", *flags, "--output_dir", bench.output)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert bench.calls() == []
    assert not bench.output.exists()


# The zip


def write_predictions(file, task, num_rows):
    """Write what a run with --do_predict leaves; the predictions take turns through the labels."""
    values = (-0.2, 1.2346, 5.31, -0.0) if task.name == "stsb" else task.labels
    rows = zip(range(num_rows), itertools.cycle(values), strict=False)
    lines = [json.dumps({"idx": idx, "prediction": value}) for idx, value in rows]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """Best runs of the nine tasks in one folder, as recipes/glue_all.py makes them."""
    folder = tmp_path_factory.mktemp("glue")
    for name in TASKS:
        task = get_task(name)
        for split in task.test_splits:
            file = folder / name / "best" / f"predictions_{split}.jsonl"
            write_predictions(file, task, task.published_rows[split])
    write_predictions(folder / "mnli" / "best" / "predictions_ax.jsonl", get_task("ax"), 1104)
    return folder


def lines_of(archive, name):
    return archive.read(name).decode("ascii").split("\n")


def test_a_complete_set_makes_the_eleven_files(complete, tmp_path):
    rows_of_file = {}
    for task in map(get_task, (*TASKS, "ax")):
        for split, file in task.submission_files.items():
            rows_of_file[file] = task.published_rows[split]
    write_submission(tmp_path / "glue.zip", complete)
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == sorted(rows_of_file)
        for name, rows in rows_of_file.items():
            header, *lines, end = lines_of(archive, name)
            assert (header, end, len(lines)) == ("index\tprediction", "", rows)
            numbers = [line.split("\t")[0] for line in lines]
            assert numbers == [str(number) for number in range(rows)]
        # Names of labels for MNLI, QNLI, RTE and AX, numbers for the rest.
        for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"):
            lines = lines_of(archive, name)[1:4]
            assert lines == ["0\tentailment", "1\tneutral", "2\tcontradiction"]
        for name in ("QNLI.tsv", "RTE.tsv"):
            assert lines_of(archive, name)[1:3] == ["0\tentailment", "1\tnot_entailment"]
        for name in ("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "WNLI.tsv"):
            assert lines_of(archive, name)[1:4] == ["0\t0", "1\t1", "2\t0"]
        # In the range of the labels, as nyu-mll/GLUE-baselines src/evaluate.py writes them.
        scores = lines_of(archive, "STS-B.tsv")[1:5]
        assert scores == ["0\t0.000", "1\t1.235", "2\t5.000", "3\t0.000"]


def test_predictions_that_are_missing_or_cut_are_named_and_nothing_is_written(complete, tmp_path):
    folder = tmp_path / "glue"
    shutil.copytree(complete, folder)
    file = folder / "wnli" / "best" / "predictions_test.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match=r"wnli.* has 145 predictions; .* has 146"):
        write_submission(tmp_path / "glue.zip", folder)
    file.unlink()
    with pytest.raises(InputError, match=r"no predictions .*wnli.*--do_predict true"):
        write_submission(tmp_path / "glue.zip", folder)
    assert not list(tmp_path.glob("*.zip*"))


@pytest.fixture
def with_test_splits(bench):
    for task in map(get_task, (*TASKS, "ax")):
        for split in task.test_splits:
            (bench.recipes.parent / task.local_name / f"{split}.jsonl").touch()


@pytest.mark.usefixtures("with_test_splits")
def test_a_submission_predicts_the_test_splits(bench, figures):
    bench.plan(figures=figures)
    failed = bench.run(
        "glue_all.py",
        "--submission",
        "true",
        "--output_dir",
        bench.output,
    )
    assert "no predictions" in failed.stderr  # the stub has made none
    assert [call["do_predict"] for call in bench.calls()] == ["true"] * len(TASKS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tasks", "wnli"), "the zip needs all nine tasks; .* has no runs of rte, mrpc"),
        (("--qqp", "--max_predict_examples 5"), "the zip needs all test rows of qqp"),
        (("--max_predict_examples=5",), "the zip needs all test rows of wnli"),
        (("--config", "some.yaml"), "the zip needs all test rows of wnli"),
        (("--do_predict", "false"), "the zip needs all test rows of wnli"),
        (("--rte", "--do_predict false"), "the zip needs all test rows of rte"),
    ],
)
@pytest.mark.usefixtures("with_test_splits")
def test_a_submission_that_could_not_be_complete_is_refused_before_any_run(bench, flags, message):
    Path("some.yaml").write_text("model_name_or_path: bert\ndata_dir: .\nmax_predict_examples: 9\n")
    bench.plan()
    refused = bench.run(
        "glue_all.py",
        *flags,
        "--submission",
        "true",
        "--output_dir",
        bench.output,
    )
    assert re.search(message, refused.stderr)
    assert not bench.calls()


@pytest.mark.usefixtures("with_test_splits")
def test_a_submission_needs_the_predictions_of_the_tasks_that_are_not_run_now(bench, figures):
    bench.plan(figures=figures)
    flags = ("--output_dir", bench.output)
    assert bench.run("glue_all.py", *flags).returncode == 0
    refused = bench.run("glue_all.py", *flags, "--submission", "true", "--tasks", "rte")
    assert re.search(r"no predictions .*wnli/best/predictions_test\.jsonl", refused.stderr)
    shutil.rmtree(bench.output)

    (bench.recipes.parent / get_task("ax").local_name / "test.jsonl").unlink()
    refused = bench.run("glue_all.py", *flags, "--submission", "true")
    assert "task ax, split 'test': no file" in refused.stderr
    assert len(bench.calls()) == len(TASKS)


def test_the_flags_under_the_table_are_those_of_each_tasks_runs(bench, figures):
    bench.plan(figures=figures)
    flags = ("--output_dir", bench.output)
    bench.run("glue_all.py", *flags, "--tasks", "rte", "--max_seq_length", "64")
    bench.run("glue_all.py", *flags, "--tasks", "cola", "--cola", "--weight_decay 0.2")
    lines = (bench.output / "glue.md").read_text().splitlines()
    (rte,) = [line for line in lines if line.startswith("- rte: ")]
    (cola,) = [line for line in lines if line.startswith("- cola: ")]
    assert rte.endswith("--max_seq_length 64 --task rte")
    assert cola.endswith("--task cola --weight_decay 0.2")
    settings = json.loads((bench.output / "glue.json").read_text())["settings"]
    assert settings["rte"]["flags"][-4:] == ["--max_seq_length", "64", "--task", "rte"]
    assert list(settings) == ["rte", "cola"]


@pytest.mark.parametrize("name", ["sst2", "mrpc", "stsb"])
def test_the_official_test_files_have_the_rows_and_the_order_that_the_zip_needs(name, shared_data):
    rows = (shared_data / "glue" / name / "test.jsonl").read_text(encoding="utf-8").splitlines()
    num_rows = get_task(name).published_rows["test"]
    assert [json.loads(row)["idx"] for row in rows] == list(range(num_rows))
