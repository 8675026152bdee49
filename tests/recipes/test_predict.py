"""recipes/predict.py as a user runs it: what it writes is what the training run wrote."""

import json

import pytest


def assert_as_in_training(text, run):
    expected = (run / "predictions_validation.jsonl").read_text()
    for line, expected_line in zip(text.splitlines(), expected.splitlines(), strict=True):
        expected_line = json.loads(expected_line)
        expected_line["probabilities"] = pytest.approx(expected_line["probabilities"], abs=1e-5)
        assert json.loads(line) == expected_line


def flags_of(run):
    data = run.parent / "data" / "validation.jsonl"
    flags = f"--model_name_or_path {run} --input_file {data} --use_cpu true --precision fp32"
    return flags.split()


@pytest.mark.parametrize("kind", ["sequence_classification", "token_classification"])
def test_the_recipe_writes_the_predictions_of_the_training_run(
    call_recipe, tiny_runs, tmp_path, monkeypatch, kind
):
    run = tiny_runs(kind)
    output = tmp_path / "new" / "out.jsonl"
    before = sorted(run.iterdir())
    monkeypatch.chdir(tmp_path)
    flags = ("--output_file", output, "--batch_size 5")
    assert call_recipe("predict", *flags_of(run), *flags) == ""
    assert_as_in_training(output.read_text(), run)
    columns = output.with_suffix(".conll")
    files = [columns, output] if kind == "token_classification" else [output]
    assert sorted(tmp_path.rglob("*.*")) == files
    assert sorted(run.iterdir()) == before
    if columns in files:
        for line, text in zip(
            output.read_text().splitlines(), columns.read_text().split("\n\n"), strict=False
        ):
            tags = [row.split()[-1] for row in text.splitlines()]
            assert tags == json.loads(line)["prediction"]
        # Without the predictions beside them they may be somebody's own.
        output.unlink()
        error = call_recipe("predict", *flags_of(run), *flags, code=1)
        assert f"the tags would also be written to {columns}" in error


def test_without_an_output_file_predictions_and_nothing_else_go_to_stdout(call_recipe, tiny_runs):
    run = tiny_runs("multiple_choice")
    assert_as_in_training(call_recipe("predict", *flags_of(run)), run)
