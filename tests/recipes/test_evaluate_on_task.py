"""recipes/evaluate_checkpoint.py --task: the figures that the training run ended with."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tiny_runs import TASKS, make_rows, write_jsonl

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments, ScoringArguments, names_a_task
from bert_recipes.finetuning.run import DIAGNOSTICS, score_checkpoint
from bert_recipes.tasks.catalogue import get_task


@pytest.fixture
def score(tmp_path):
    """A run, flags and a task -> the results of measuring its checkpoint."""

    def measure(run, flags="", task_file=None):
        task_file = task_file or run.parent / "data" / "task.yaml"
        argv = (
            f"--model_name_or_path {run} --task_file {task_file} --output_dir {tmp_path}/trainer "
            f"--precision fp32 --use_cpu true --disable_tqdm true {flags}"
        )
        settings = parse_arguments(ScoringArguments, FineTuningArguments, argv=argv.split())
        return score_checkpoint(*settings)

    return measure


def figures(results, prefix="eval_"):
    names = [name for name in results if name.startswith(prefix) and not name.endswith("seconds")]
    return {name.removeprefix(prefix): results[name] for name in names}


@pytest.mark.parametrize("kind", TASKS)
def test_the_figures_are_those_of_the_run(score, tiny_runs, tmp_path, kind):
    """Lengths, stride and decoder are the run's, not the defaults."""
    run = tiny_runs(kind)
    expected = json.loads((run / "all_results.json").read_text())
    results = score(run, f"--predictions_dir {tmp_path}/predictions")
    assert figures(results) == pytest.approx(figures(expected), abs=1e-5)
    assert figures(results)
    assert results["splits"] == {"validation": expected["splits"]["validation"]}
    assert {"task", "model", "machine", "date"} <= results.keys()
    assert "epoch" not in results
    files = {path.name for path in (tmp_path / "predictions").iterdir()}
    assert files == {path.name for path in run.glob("*predictions*")} | {"task.yaml"}


def test_settings_that_are_given_win_over_those_of_the_run(score, tiny_runs):
    run = tiny_runs("question_answering")
    num_windows = score(run)["splits"]["validation"]["features"]
    assert score(run, "--max_seq_length 100")["splits"]["validation"]["features"] < num_windows


def test_the_recipe_prints_the_figures_and_leaves_no_folder(
    call_recipe, tiny_runs, tmp_path, monkeypatch
):
    run = tiny_runs("token_classification")
    monkeypatch.chdir(tmp_path)
    flags = (
        f"--model_name_or_path {run} --task_file {run}/task.yaml --data_dir {run.parent}/data "
        "--results_file new/out.json --precision fp32 --use_cpu true"
    )
    stdout = call_recipe("evaluate_checkpoint", flags)
    results = json.loads((tmp_path / "new" / "out.json").read_text())
    printed = json.loads(stdout[stdout.index("{") :])
    assert printed == {name: value for name, value in results.items() if name != "jackknife"}
    expected = json.loads((run / "all_results.json").read_text())
    assert figures(results) == pytest.approx(figures(expected), abs=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize(("name", "message"), [("", "is a folder"), ("a/x", "cannot be written")])
def test_results_that_cannot_be_written_are_not_measured(
    call_recipe, tiny_checkpoint, tmp_path, monkeypatch, name, message
):
    monkeypatch.setattr("bert_recipes.finetuning.run.score_checkpoint", pytest.fail)
    (tmp_path / "a").touch()
    flags = f"--task mrpc --model_name_or_path {tiny_checkpoint} --use_cpu true"
    path = f"--results_file {tmp_path}/{name}"
    assert message in call_recipe("evaluate_checkpoint", flags, path, code=1)


@pytest.mark.parametrize(
    ("argv", "is_named"),
    [
        ("--task mrpc", True),
        ("--task=mrpc", True),
        ("--task-file x", True),
        ("--config task.yaml", True),
        ("--store task", False),
        ("--config=store.yaml", False),
        ("--config none.yaml", False),
    ],
)
def test_a_task_is_named_on_the_command_line_or_in_the_configuration(
    tmp_path, monkeypatch, argv, is_named
):
    monkeypatch.chdir(tmp_path)
    Path("task.yaml").write_text("task: mrpc\nseed: 3\n")
    Path("store.yaml").write_text("store: data/task\n")
    assert names_a_task(argv.split()) == is_named


@pytest.mark.parametrize(
    "flags", ["--probe_bias", "--probe_bias=true", "--probe-bias Yes", "--config {folder}/a.yaml"]
)
def test_a_probe_needs_no_data_however_it_is_asked_for(call_recipe, tmp_path, flags):
    (tmp_path / "a.yaml").write_text("probe_bias: on\n")
    said = call_recipe("evaluate_checkpoint", flags.format(folder=tmp_path), code=1)
    assert "give the checkpoint to probe" in said


def test_what_cannot_be_measured_is_refused(score, tiny_runs, tmp_path):
    run = tiny_runs("sequence_classification")
    with pytest.raises(InputError, match="model_name_or_path is missing"):
        parse_arguments(ScoringArguments, argv=["--task", "mrpc"])
    with pytest.raises(InputError, match=r"task .* has no test split to measure on"):
        score(run, "--split test")
    data = run.parent / "data"
    other = data / "other_labels.yaml"
    other.write_text((data / "task.yaml").read_text().replace("perhaps", "maybe"))
    with pytest.raises(InputError, match="labels are yes, no, perhaps; the task's are yes, no, ma"):
        score(run, task_file=other)
    copy = shutil.copytree(run, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"classifier\.weight"):
        score(copy, task_file=data / "task.yaml")


@pytest.mark.parametrize("name", ["config.json", "run_identity.json"])
def test_predictions_do_not_replace_those_of_a_run(score, tiny_runs, tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"folder of a run or checkpoint \(it has {name}\)"):
        score(tiny_runs("sequence_classification"), f"--predictions_dir {tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_bilstm_that_nobody_has_trained_is_not_measured(score, tiny_runs):
    run = tiny_runs("sequence_classification")
    expected = json.loads((run / "all_results.json").read_text())
    results = score(run, "--bilstm true")
    assert figures(results) == pytest.approx(figures(expected), abs=1e-5)


@pytest.mark.parametrize("kind", ["sequence_classification", "question_answering"])
def test_a_labelled_test_split_is_measured(score, tiny_runs, monkeypatch, kind):
    """With the same rows as the validation split it has the same figures, with their intervals."""
    run = tiny_runs(kind)
    text = (run.parent / "data" / "task.yaml").read_text()
    file = run.parent / "data" / "with_test.yaml"
    text = text.replace("validation.jsonl}", "validation.jsonl, test: validation.jsonl}")
    has_diagnostics = kind == "sequence_classification"
    if has_diagnostics:
        text += "published_rows: {train: 8}\n"  # only a benchmark has a diagnostic set
    file.write_text(text)
    results = score(run, "--do_predict true", file)
    if has_diagnostics:
        # As GLUE's diagnostic set for MNLI: it has no labels, and is no split of the task.
        rows = [row | {"label": -1} for row in make_rows(kind, 2)]
        write_jsonl(run.parent / "data" / "test.jsonl", rows)
        diagnostic = replace(
            get_task("rte"), text_columns=("first", "second"), labels=("yes", "no", "perhaps")
        )
        monkeypatch.setitem(DIAGNOSTICS, "mine", "ax")
        unlabelled = {"test": str(run.parent / "data" / "test.jsonl")}
        diagnostic = replace(diagnostic, name="ax", files=unlabelled, id_column=None)
        monkeypatch.setattr("bert_recipes.finetuning.run.get_task", lambda name: diagnostic)
    # A shipped configuration evaluates while it trains, which has no effect here.
    test = score(run, "--split test --eval_strategy epoch --load_best_model_at_end true", file)
    assert list(test["splits"]) == ["test", "ax"][: 1 + has_diagnostics]
    assert not figures(test)
    assert figures(test, "test_") == figures(results)
    assert list(results["splits"]) == ["validation", "test"]
    for name in ("baselines", "intervals"):
        values = {metric.removeprefix("test_"): value for metric, value in test[name].items()}
        assert results[name] == values | test[name]


def test_a_test_split_without_labels_is_not_measured(score, tiny_runs, tmp_path):
    run = tiny_runs("sequence_classification")
    data = run.parent / "data"
    rows = make_rows("sequence_classification", 1)
    write_jsonl(tmp_path / "test.jsonl", [row | {"label": -1} for row in rows])
    text = (data / "task.yaml").read_text()
    file = data / "test_alone.yaml"
    file.write_text(text.replace("validation: validation.jsonl", f"test: {tmp_path}/test.jsonl"))
    with pytest.raises(InputError, match="has no validation split"):
        score(run, task_file=file)
    with pytest.raises(InputError, match=r"the test split of task .* has no labels"):
        score(run, "--split test", file)
    results = score(run, f"--split test --predictions_dir {tmp_path}/out", file)
    assert not [name for name in results if name.startswith("test_")]
    assert len((tmp_path / "out" / "predictions_test.jsonl").read_text().splitlines()) == len(rows)
