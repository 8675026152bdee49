"""benchmarks/compare_ner.py beside a stand-in for both scripts: which runs it starts, what it
keeps, what the table says.
"""

import json
import runpy
import shutil
import sys

import pytest

from bert_recipes.finetuning.token_classification import write_columns
from bert_recipes.metrics.entities import entity_scores
from bert_recipes.tasks.examples import TaggedExample


STUB = """
import json, sys
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with (Path(__file__).parents[1] / "recipes" / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(flags | {"script": Path(__file__).stem}) + "\\n")
folder = Path(flags["--output_dir"])
folder.mkdir(parents=True)
(folder / "model.safetensors").write_bytes(b"weights")
words = "a B-PER B-PER\\nb I-PER I-PER\\n\\nc B-LOC O\\n\\n"
(folder / "predictions_test.txt").write_text("-DOCSTART- O O\\n\\n" + words)
results = {"eval_f1": int(flags["--seed"]) / 10, "train_steps": 7, "train_seconds": 1.0}
results |= {"machine": {}, "date": "a day"}
(folder / "all_results.json").write_text(json.dumps(results))
(folder / "task.yaml").write_text("name: conll2003")
"""


@pytest.fixture
def compare(tmp_path, repository, monkeypatch, capsys):
    """Runs the recipe; returns its exit code, what it printed, and the runs that it started."""
    recipes, benchmarks = tmp_path / "recipes", tmp_path / "benchmarks"
    shutil.copytree(
        repository / "recipes" / "configs" / "finetune", recipes / "configs" / "finetune"
    )
    benchmarks.mkdir()
    shutil.copy(repository / "benchmarks" / "compare_ner.py", benchmarks)
    for script in (recipes / "finetune.py", benchmarks / "finetune_stock.py"):
        script.write_text(STUB)

    def run(*arguments):
        (recipes / "calls.jsonl").write_text("")
        flags = ["--model_name_or_path", "models/mini", "--data_dir", "DATA", *arguments]
        monkeypatch.setattr(sys, "argv", ["compare_ner.py", *flags])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(benchmarks / "compare_ner.py"), run_name="__main__")
        printed = capsys.readouterr()
        calls = [json.loads(line) for line in (recipes / "calls.jsonl").read_text().splitlines()]
        return ended.value.code, printed.out + printed.err, calls

    return run


def test_both_sides_get_the_same_sentences_and_what_is_finished_is_kept(compare, tmp_path):
    results = tmp_path / "kept" / "results.json"
    flags = ("--results_file", str(results), "--sizes", "1000", "--seeds", "1", "2")
    code, printed, calls = compare("--output_dir", str(tmp_path / "out"), *flags)
    assert code in (None, 0), printed
    assert [(call["script"], call["--seed"]) for call in calls] == [
        (script, seed) for seed in "12" for script in ("finetune", "finetune_stock")
    ]
    assert {call["--max_train_examples"] for call in calls} == {"1000"}
    assert {call["--do_predict"] for call in calls} == {"true"}
    # One entity of two: precision 1, recall 1/2.
    assert "| 1,000 | stock | 2 | 7 | 15.0 (10.0 to 20.0) | 66.7 (66.7 to 66.7) |" in printed
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    # Also where the runs are gone, as in a fresh clone.
    _, printed, calls = compare("--output_dir", str(tmp_path / "other"), *flags, "3")
    assert [call["--seed"] for call in calls] == ["3", "3"]
    assert "| 1,000 | sentences | 3 |" in printed
    assert len(json.loads(results.read_text())["runs"]) == 6
    assert "| 1,000 | stock | 3 |" in results.with_name("table.md").read_text()


def test_an_unknown_side_is_named(compare, tmp_path):
    code, printed, calls = compare("--output_dir", str(tmp_path / "out"), "--sides", "sentence")
    assert (code, calls) == (1, [])
    assert "sides has 'sentence'; allowed: sentences, stock" in printed


def test_the_plain_side_has_the_settings_of_the_configuration(repository):
    """Both sides take the same batches, epochs and rate; the flags of `stock` change nothing in
    ner.yaml but the layers.
    """
    script = runpy.run_path(str(repository / "benchmarks" / "compare_ner.py"))
    flags = script["SIDES"]["stock"][1].split()
    lines = (repository / "recipes" / "configs" / "finetune" / "ner.yaml").read_text().splitlines()
    config = dict(
        line.split("#")[0].strip().split(": ") for line in lines if line and line[0] not in "# "
    )
    changed = {
        name.removeprefix("--"): value
        for name, value in zip(flags[::2], flags[1::2], strict=True)
        if config[name.removeprefix("--")].strip() != value
    }
    assert changed == {"fast_layers": "off"}


def test_figures_of_the_columns_are_those_of_the_predictions(repository, tmp_path):
    script = runpy.run_path(str(repository / "benchmarks" / "compare_ner.py"))
    labels = ("O", "B-PER", "I-PER")
    gold = [(1, 2, 0), (0, 1), (1, 1)]
    predicted = [["B-PER", "I-PER", "O"], ["I-PER", "O"], ["B-PER", "I-PER"]]
    examples = [
        TaggedExample(idx=number, tokens=("a",) * len(row), labels=row, document=number // 2)
        for number, row in enumerate(gold)
    ]
    with (tmp_path / "columns.txt").open("w") as file:
        write_columns(file, examples, labels, predicted)
    expected = entity_scores([[labels[label] for label in row] for row in gold], predicted)["f1"]
    assert 0 < expected < 1
    assert script["f1_of_columns"](tmp_path / "columns.txt") == pytest.approx(100 * expected)
