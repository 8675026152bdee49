"""recipes/evaluate_checkpoint.py --task: the figures that the training run ended with."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments, ScoringArguments, names_a_task
from bert_recipes.finetuning.run import score_checkpoint


TINY = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "tiny_runs.py"))
KINDS = tuple(TINY["TASKS"])


def score(run, folder, *flags, task_file=None):
    task_file = run.parent / "data" / "task.yaml" if task_file is None else task_file
    argv = [
        "--model_name_or_path",
        run,
        "--task_file",
        task_file,
        "--output_dir",
        folder / "trainer",
        *flags,
    ]
    argv += ["--precision", "fp32", "--use_cpu", "true", "--disable_tqdm", "true"]
    return score_checkpoint(
        *parse_arguments(ScoringArguments, FineTuningArguments, argv=list(map(str, argv)))
    )


def figures(results):
    return {
        name: value
        for name, value in results.items()
        if name.startswith("eval_") and name != "eval_seconds"
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_are_those_of_the_run(tiny_runs, tmp_path, kind):
    """Lengths, stride and decoder are the run's, not the defaults."""
    run = tiny_runs(kind)
    expected = json.loads((run / "all_results.json").read_text())
    results = score(run, tmp_path, "--predictions_dir", tmp_path / "predictions")
    assert figures(results) == pytest.approx(figures(expected), abs=1e-5)
    assert figures(results)
    assert results["splits"] == {"validation": expected["splits"]["validation"]}
    assert {"task", "model", "machine", "date"} <= results.keys()
    assert "epoch" not in results
    files = {path.name for path in (tmp_path / "predictions").iterdir()}
    assert files == {path.name for path in run.glob("*predictions*")} | {"task.yaml"}


def test_settings_that_are_given_win_over_those_of_the_run(tiny_runs, tmp_path):
    run = tiny_runs("question_answering")
    windows = score(run, tmp_path)["splits"]["validation"]["features"]
    assert (
        score(run, tmp_path, "--max_seq_length", "100")["splits"]["validation"]["features"]
        < windows
    )


def test_the_recipe_prints_the_figures_and_leaves_no_folder(
    start_recipe, tiny_runs, tmp_path, monkeypatch
):
    run = tiny_runs("token_classification")
    flags = [
        "--task_file",
        run / "task.yaml",
        "--data_dir",
        run.parent / "data",
        "--results_file",
        "out.json",
    ]
    flags += ["--precision", "fp32", "--use_cpu", "true"]
    monkeypatch.chdir(tmp_path)
    done = start_recipe("evaluate_checkpoint", "--model_name_or_path", run, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "out.json").read_text())
    printed = json.loads(done.stdout[done.stdout.index("{") :])
    assert printed == {name: value for name, value in results.items() if name != "jackknife"}
    assert figures(results) == pytest.approx(
        figures(json.loads((run / "all_results.json").read_text())), abs=1e-5
    )
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_results_go_into_a_new_folder_and_are_json(tiny_checkpoint, tmp_path, monkeypatch, capsys):
    recipe = runpy.run_path(str(Path(__file__).parents[2] / "recipes" / "evaluate_checkpoint.py"))
    score = "bert_recipes.finetuning.run.score_checkpoint"
    monkeypatch.setattr(score, lambda *settings: {"eval_f1": float("nan"), "steps": 3})
    argv = [
        "evaluate",
        "--task",
        "mrpc",
        "--model_name_or_path",
        str(tiny_checkpoint),
        "--use_cpu",
        "true",
    ]
    argv += ["--results_file"]
    monkeypatch.setattr(sys, "argv", [*argv, str(tmp_path / "new" / "out.json")])
    recipe["main"]()
    text = (tmp_path / "new" / "out.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"eval_f1": None, "steps": 3}
    assert capsys.readouterr().out == text

    monkeypatch.setattr(score, pytest.fail)  # nothing is measured for a path that cannot be
    for path, words in (
        (tmp_path / "new", "is a folder"),
        (tmp_path / "new" / "out.json" / "x", "cannot be written"),
    ):
        monkeypatch.setattr(sys, "argv", [*argv, str(path)])
        with pytest.raises(InputError, match=words):
            recipe["main"]()


def test_a_task_is_found_on_the_command_line_and_in_the_configuration(tmp_path):
    (tmp_path / "task.yaml").write_text("task: mrpc\nseed: 3\n")
    (tmp_path / "store.yaml").write_text("store: data/task\n")
    for argv in (
        ["--task", "mrpc"],
        ["--task=mrpc"],
        ["--task-file", "x"],
        ["--config", str(tmp_path / "task.yaml")],
    ):
        assert names_a_task(argv), argv
    for argv in (
        [],
        ["--store", "task"],
        [f"--config={tmp_path / 'store.yaml'}"],
        ["--config", "none.yaml"],
    ):
        assert not names_a_task(argv), argv
    assert names_a_task([f"--config={tmp_path / 'task.yaml'}"])


def test_what_cannot_be_measured_is_refused(tiny_runs, tmp_path):
    run = tiny_runs("sequence_classification")
    with pytest.raises(InputError, match="model_name_or_path is missing"):
        parse_arguments(ScoringArguments, argv=["--task", "mrpc"])
    with pytest.raises(InputError, match=r"task .* has no test split to measure on"):
        score(run, tmp_path, "--split", "test")
    with pytest.raises(InputError, match=r"has no config\.json"):
        score(tmp_path, tmp_path, task_file=run / "task.yaml")


def test_a_checkpoint_with_other_labels_is_not_measured(tiny_runs, tmp_path):
    argv = ["--model_name_or_path", tiny_runs("sequence_classification"), "--task", "mrpc"]
    argv += ["--data_dir", write_mrpc(tmp_path / "mrpc"), "--output_dir", tmp_path / "trainer"]
    settings, args = parse_arguments(
        ScoringArguments, FineTuningArguments, argv=list(map(str, argv))
    )
    with pytest.raises(
        InputError, match="labels are yes, no, perhaps; the task's are not_equivalent, equivalent"
    ):
        score_checkpoint(settings, args)


def test_a_task_without_validation_split_is_not_measured(tiny_runs, tmp_path):
    run = tiny_runs("sequence_classification")
    file = run.parent / "data" / "test.yaml"
    columns = "text_columns: [first, second]\nlabels: [yes, no, perhaps]\n"
    file.write_text(f"kind: sequence_classification\n{columns}files: {{test: validation.jsonl}}\n")
    with pytest.raises(InputError, match="has no validation split"):
        score(run, tmp_path, task_file=file)


@pytest.mark.parametrize("kind", KINDS)
def test_a_labelled_test_split_is_measured(tiny_runs, tmp_path, kind):
    """With the same rows as the validation split it has the same figures, with their intervals."""
    run = tiny_runs(kind)
    text = (run.parent / "data" / "task.yaml").read_text()
    file = run.parent / "data" / "with_test.yaml"
    file.write_text(text.replace("validation.jsonl}", "validation.jsonl, test: validation.jsonl}"))
    validation = score(run, tmp_path, task_file=file)
    test = score(run, tmp_path, "--split", "test", task_file=file)
    assert test["splits"].keys() == {"test"}
    assert not figures(test)
    assert figures(
        {name.replace("test_", "eval_", 1): value for name, value in test.items()}
    ) == figures(validation)
    assert test["baselines"] == {
        f"test_{name}": value for name, value in validation["baselines"].items()
    }
    assert test["intervals"] == {
        f"test_{name}": value for name, value in validation["intervals"].items()
    }
    both = score(run, tmp_path, "--do_predict", "true", task_file=file)
    assert {"test", "validation"} == both["splits"].keys()
    assert both["baselines"] == validation["baselines"] | test["baselines"]


def test_a_test_split_without_labels_is_not_measured(tiny_runs, tmp_path):
    run = tiny_runs("sequence_classification")
    data = run.parent / "data"
    rows = [json.loads(line) for line in (data / "validation.jsonl").read_text().splitlines()]
    TINY["write_jsonl"](tmp_path / "test.jsonl", [{**row, "label": -1} for row in rows])
    text = (data / "task.yaml").read_text()
    file = data / "test_alone.yaml"
    file.write_text(
        text.replace("validation: validation.jsonl", f"test: {tmp_path / 'test.jsonl'}")
    )
    with pytest.raises(
        InputError, match=r"the test split of task .* has no labels to measure with"
    ):
        score(run, tmp_path, "--split", "test", task_file=file)
    results = score(
        run, tmp_path, "--split", "test", "--predictions_dir", tmp_path / "out", task_file=file
    )
    assert not [name for name in results if name.startswith("test_")]
    assert len((tmp_path / "out" / "predictions_test.jsonl").read_text().splitlines()) == len(rows)


def write_mrpc(folder):
    rows = [
        {"sentence1": "a", "sentence2": "b", "label": number % 2, "idx": number}
        for number in range(4)
    ]
    folder.mkdir()
    for split in ("train", "validation", "test"):
        TINY["write_jsonl"](folder / f"{split}.jsonl", rows)
    return folder


def test_a_head_without_weights_is_not_measured(tiny_runs, tmp_path):
    from safetensors.torch import load_file, save_file

    run = tiny_runs("sequence_classification")
    copy = shutil.copytree(run, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"classifier\.weight"):
        score(copy, tmp_path, task_file=run.parent / "data" / "task.yaml")
