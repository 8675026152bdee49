"""A report never harms the run that it is about; one that cannot be written says why in one
line.
"""

import re
import runpy
import sys

import pytest

from bert_recipes import shipped
from bert_recipes.errors import InputError
from bert_recipes.reports.compare import check_report_folder
from bert_recipes.reports.finish import report_run, what_next
from bert_recipes.reports.page import write_report
from bert_recipes.training.resume import is_run_file


@pytest.fixture
def recipe(repository, monkeypatch, capsys):
    """Run a recipe as a script in this process."""

    def run(name, *arguments):
        path = repository / "recipes" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


def test_a_failing_report_is_a_warning_and_no_older_one_stays(
    make_run_folder, pretraining_facts, caplog
):
    def break_down():
        raise RuntimeError("the sky\nis falling")

    folder = make_run_folder(results={"eval_mlm_loss": 5.0})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    written = report_run(folder, lambda: pretraining_facts, is_main=True)
    assert all(is_run_file(path) for path in written)
    assert report_run(folder, break_down, is_main=True) == []
    assert "make glue TASK=mrpc MODEL=" in what_next(folder)  # the run is done all the same
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (record,) = caplog.records
    message = record.getMessage()
    assert "no report (RuntimeError: the sky is falling)" in message
    assert f"make report RUN={folder}" in message
    assert "\n" not in message
    (folder / "report.html").mkdir()
    assert report_run(folder, lambda: {"kind": "pretraining"}, is_main=True) == []
    assert "cannot be written" in caplog.text
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("settings", ["bilstm: true", "distil: intermediate"])
def test_a_run_that_cannot_predict_is_told_no_such_command(make_run_folder, settings):
    task = "name: mine\nkind: sequence_classification\ntext_columns: text\nlabels: [a, b]\n"
    folder = make_run_folder(task=f"{task}files: {{train: train.csv}}\n")
    assert "make predict" in what_next(folder)
    with (folder / "run.yaml").open("a") as file:
        file.write(f"{settings}\n")
    text = what_next(folder)
    assert "make predict" not in text
    assert "make push" in text


def test_half_a_letter_is_shown_as_a_question_mark(make_run_folder):
    mask = {
        "before": "a\ud83d",
        "after": "",
        "truth": "b",
        "rank": 1,
        "guesses": [["b", 0.5]],
    }
    facts = {"kind": "pretraining", "held_out": {"masks": [mask]}}
    folder = make_run_folder()
    assert len(report_run(folder, lambda: facts, is_main=True)) == 3
    assert "| a? [MASK] | b | **b** 0.50 |" in (folder / "report.md").read_text().splitlines()
    assert "a? <mark" in (folder / "report.html").read_text()


def test_the_recipe_writes_a_report(recipe, make_run_folder, pretraining_facts):
    folder = make_run_folder(facts=pretraining_facts)
    code, out, err = recipe("write_report", "--runs", folder)
    assert (code, err) == (0, "")
    assert str(folder / "report.html") in out
    assert (folder / "report.md").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: folder.rename(folder.with_name("away")), "run: no folder"),
        (lambda folder: (folder / "all_results.json").unlink(), "is not finished: it has no"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "is no run"),
        (lambda folder: (folder / "report.json").write_text('{"format": 9}'), "format 9, this"),
    ],
)
def test_what_is_no_run_is_refused(make_run_folder, change, message):
    folder = make_run_folder()
    change(folder)
    with pytest.raises(InputError, match=message):
        write_report(folder)


def test_the_recipe_compares_runs_into_a_folder_of_its_own(recipe, make_run_folder, tmp_path):
    history = [{"step": step, "mlm_loss": 1.0 / step} for step in (1, 2)]
    runs = []
    for name, loss in (("a", 5.0), ("b", 4.0)):
        runs.append(make_run_folder(name, results={"eval_mlm_loss": loss}, history=history))
    output = tmp_path / "compared"
    output.mkdir()
    (output / "report.md").write_text("an older comparison")
    code, out, err = recipe("write_report", "--runs", *runs, "--output_dir", output)
    assert (code, err) == (0, "")
    assert "| mlm loss | 5.0000 | 4.0000 |" in out
    assert {path.name for path in output.iterdir()} == {"report.md", "report.html", "curves.png"}
    assert "## Curves\n\n![curves](curves.png)" in (output / "report.md").read_text()


def test_a_comparison_replaces_nothing_but_another_one(tmp_path):
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match=r"holds other files \(mine.txt\)"):
        check_report_folder(tmp_path)
    with pytest.raises(InputError, match=r"mine.txt is a file"):
        check_report_folder(tmp_path / "mine.txt")


def test_a_run_ends_with_answers_and_three_commands(make_run_folder, tiny_runs):
    mask = {
        "before": "the capital of",
        "after": "is",
        "truth": "france",
        "rank": 1,
        "guesses": [["france", 0.5], ["x", 0.25]],
    }
    facts = {"kind": "pretraining", "held_out": {"masks": [mask]}}
    folder = make_run_folder()
    report_run(folder, lambda: facts, is_main=True)
    text = what_next(folder)
    mask_line = r'the capital of \[MASK\?\] is +"france" 50%, "x" 25%; right: "france"\n'
    assert re.search(mask_line, text)
    assert re.findall(r"^  (\w+)", text, re.MULTILINE)[-4:] == ["look", "fine", "your", "share"]
    assert f"make glue TASK=mrpc MODEL={folder}" in text
    assert f"make finetune TASK_FILE=my_task.yaml MODEL={folder}" in text
    lines = what_next(tiny_runs("token_classification")).splitlines()
    assert [line.split()[0] for line in lines] == ["next:", "look", "predict", "share"]
    assert lines[2].endswith("INPUT=texts.txt")
    assert what_next(tiny_runs("multiple_choice")).splitlines()[2].endswith("INPUT=rows.jsonl")


def test_where_there_is_no_checkout_the_hints_are_commands_of_the_wheel(
    make_run_folder, tiny_runs, monkeypatch, caplog
):
    monkeypatch.setattr(shipped, "IS_CHECKOUT", False)
    folder = make_run_folder()
    text = what_next(folder)
    finetune = f"bert-recipes finetune --config glue --task mrpc --model_name_or_path {folder}"
    assert finetune in text
    assert f"bert-recipes push-to-hub --run {folder} --repo owner/name" in text
    finetuned = tiny_runs("token_classification")
    predict = f"bert-recipes predict --model_name_or_path {finetuned} --input_file texts.txt"
    assert predict in what_next(finetuned)

    def fail():
        raise ValueError("no facts")

    report_run(folder, fail, is_main=True)
    assert f"`bert-recipes write-report --runs {folder}` tries again" in caplog.text
    assert "make " not in text + caplog.text
