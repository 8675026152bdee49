"""recipes/predict.py as a user runs it: what it writes is what the training run wrote."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest


KINDS = tuple(runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "tiny_runs.py"))["TASKS"])


def assert_as_in_training(text, run):
    lines = [json.loads(line) for line in text.splitlines()]
    expected = [
        json.loads(line) for line in (run / "predictions_validation.jsonl").read_text().splitlines()
    ]
    assert (
        len({json.dumps(line["probabilities"]) for line in expected}) > 15
    )  # or every order would be right
    for line, wanted in zip(lines, expected, strict=True):
        assert line.pop("probabilities") == pytest.approx(wanted.pop("probabilities"), abs=1e-5)
        assert line == wanted


def flags_of(run):
    return (
        "--model_name_or_path",
        run,
        "--input_file",
        run.parent / "data" / "validation.jsonl",
        "--use_cpu",
        "true",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_recipe_writes_the_predictions_of_the_training_run(
    call_recipe, tiny_runs, tmp_path, monkeypatch, kind
):
    run, output = tiny_runs(kind), tmp_path / "new" / "folder" / "out.jsonl"
    before = sorted(path.name for path in run.iterdir())
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    more = ("--output_file", output, "--batch_size", "5", "--precision", "fp32")
    assert call_recipe("predict", *flags_of(run), *more) == ""
    assert_as_in_training(output.read_text(), run)
    assert not list((tmp_path / "working").iterdir())
    columns = ["out.conll"] if kind == "token_classification" else []
    assert sorted(path.name for path in output.parent.iterdir()) == [*columns, "out.jsonl"]
    if columns:
        words = (output.parent / "out.conll").read_text().split("\n\n")
        tags = [
            [line.split()[-1] for line in sentence.splitlines()] for sentence in words if sentence
        ]
        assert tags == [json.loads(line)["prediction"] for line in output.read_text().splitlines()]
    assert sorted(path.name for path in run.iterdir()) == before


def test_without_an_output_file_predictions_and_nothing_else_go_to_stdout(
    repository, tiny_runs, tmp_path
):
    run = tiny_runs("multiple_choice")
    command = [
        sys.executable,
        repository / "recipes" / "predict.py",
        *flags_of(run),
        "--precision",
        "fp32",
    ]
    # transformers says on stdout that wandb is offline, where it is.
    env = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_as_in_training(done.stdout, run)


def test_a_mistake_is_one_line_and_leaves_no_output(start_recipe, tiny_runs, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"first": "a", "second": "b"}\nno JSON\n')
    flags = ["--input_file", tmp_path / "in.jsonl", "--output_file", tmp_path / "out.jsonl"]
    done = start_recipe(
        "predict", "--model_name_or_path", tiny_runs("sequence_classification"), *flags
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert [
        line for line in done.stderr.splitlines() if line.startswith("error: ")
    ] == done.stderr.splitlines()[-1:]
    assert "in.jsonl, line 2: broken JSON" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
