"""The whole way: what lies in the folder, and on what it was compared."""

import functools
import json
import math
import os
import shutil
import subprocess
import sys

import pytest

from bert_recipes.exporting.arguments import ExportArguments


HEADS = (
    "pretraining",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
)
FILES = {"config.json", "example.py", "export.json", "export.md", "model.onnx"}
FILES |= {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}


@pytest.mark.parametrize("head", HEADS)
def test_the_folder_is_whole_and_the_model_is_the_checkpoint(exported, runs, head):
    folder, report = exported(head)
    assert {path.name for path in folder.iterdir()} == FILES
    assert json.loads((folder / "export.json").read_text(), parse_constant=pytest.fail) == report
    assert not list(folder.parent.glob(".*"))
    names = [row["name"] for row in report["rows"]]
    assert names[0] == "checkpoint, fp32"
    assert names[-1] == "onnxruntime, fp32"
    before, after = report["rows"][0], report["rows"][-1]
    assert after["largest_difference"] < 1e-5
    assert after["same_predictions"] == 1.0
    assert after["scores"] == pytest.approx(before["scores"], abs=1e-5)
    assert after["bytes"] == (folder / "model.onnx").stat().st_size
    assert before["bytes"] == (runs(head) / "model.safetensors").stat().st_size
    assert json.loads((folder / "config.json").read_text())["architectures"] == [report["architecture"]]


@pytest.mark.parametrize("head", HEADS[1:])
def test_the_score_before_is_that_of_the_run(exported, runs, head):
    """Validation split, lengths, stride, decoder: all as run.yaml and task.yaml say."""
    results = json.loads((runs(head) / "all_results.json").read_text())
    expected = {name.removeprefix("eval_"): value for name, value in results.items() if name.startswith("eval_")}
    scores = exported(head)[1]["rows"][0]["scores"]
    assert scores
    assert scores == pytest.approx({name: expected[name] for name in scores}, abs=1e-5)
    assert exported(head)[1]["compared_on"]["number"] == 23


def check_scores(report, run, length, **settings):
    """They are those of the Trainer's own evaluation at that length."""
    from bert_recipes.arguments import DataArguments, ModelArguments, PreTrainingArguments
    from bert_recipes.pretraining import load_data, load_model, make_trainer

    data = load_data(DataArguments(max_seq_length=length, **settings), seed=1)
    model = load_model(ModelArguments(model_name_or_path=str(run)), data.tokenizer, length, seed=0)
    args = PreTrainingArguments(output_dir=str(run.parent / "t"), precision="fp32", use_cpu=True)
    expected = make_trainer(model, args, data, 1000).evaluate()
    scores = report["rows"][0]["scores"]
    assert scores == pytest.approx({name: expected[f"eval_{name}"] for name in scores}, abs=1e-5)
    assert set(scores) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    assert report["compared_on"]["number"] == expected["eval_pairs"]
    assert report["max_seq_length"] == length


def test_a_pretrained_model_is_compared_on_held_out_pairs(exported, pretrained_run, small_store):
    check_scores(exported("pretraining")[1], pretrained_run, 32, store=str(small_store))


def test_a_run_of_two_phases_is_compared_as_the_second_was_measured(
    export, pretrained_run, small_store, tmp_path, known_graphs
):
    run = shutil.copytree(pretrained_run, tmp_path / "run")
    first = (run / "run.yaml").read_text() + "max_predictions_per_seq: 1\n"
    (run / "run.yaml").write_text(
        first + "phase2_steps: 2\nphase2_max_seq_length: 48\nphase2_max_predictions_per_seq: 4\n"
    )
    check_scores(export(run)[1], run, 48, store=str(small_store), max_predictions_per_seq=4)
    (tmp_path / "texts.txt").write_text("w1 w2 w3\n")
    folder, report = export(run, "--input_file", tmp_path / "texts.txt")
    assert report["max_seq_length"] == json.loads((folder / "export.json").read_text())["max_seq_length"] == 48
    (run / "run.yaml").write_text(first + "phase2_steps: 0\nphase2_max_seq_length: 48\n")
    assert export(run, "--input_file", tmp_path / "texts.txt")[1]["max_seq_length"] == 32


@pytest.mark.parametrize("head", ["pretraining", "sequence_classification"])
def test_int8_is_smaller_and_says_what_it_is(exported, head):
    folder, report = exported(head, "int8")
    assert {path.name for path in folder.iterdir()} == FILES
    plain, int8 = report["rows"][-2:]
    assert (plain["name"], int8["name"]) == ("onnxruntime, fp32", "onnxruntime, int8")
    assert int8["bytes"] == (folder / "model.onnx").stat().st_size < plain["bytes"]
    assert 1e-4 < int8["largest_difference"] < 10
    assert 0 < int8["mean_difference"] < int8["largest_difference"]
    made = report["int8"]
    assert made["int8_weights"] > made["float_weights"]
    assert len(made["tried"]) == 4
    assert made["tried"][0]["bytes"] == int8["bytes"]
    assert (made["tried"][0]["settings"].startswith("a scale a column")) == made["per_channel"]
    text = (folder / "export.md").read_text()
    assert "onnxruntime, int8" in text
    assert all(each["settings"] in text for each in made["tried"])
    assert f"on {made['tried_on']} {report['compared_on']['unit']}:" in text
    assert made["tried_on"] == min(256, report["compared_on"]["number"])
    # Each layer multiplies queries by keys and scores by values.
    assert made["float_products"] == 2 * json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    assert "MatMul" not in made["float_operators"]
    # Both tables are straight: as many cells in a row as in its header.
    for table in (part.splitlines() for part in text.split("\n\n") if part.startswith("|")):
        assert len(table) >= 5
        assert {line.count("|") for line in table} == {table[0].count("|")}
    assert sum(line.startswith("| ---") for line in text.splitlines()) == 2
    import onnx

    nodes = onnx.load(str(folder / "model.onnx")).graph.node
    assert {node.domain for node in nodes} <= {"", "ai.onnx"}
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= {node.op_type for node in nodes}


def test_the_best_int8_is_small_as_long_as_that_costs_nothing(tmp_path):
    from types import SimpleNamespace

    from bert_recipes.exporting.comparison import Comparison
    from bert_recipes.exporting.export import Candidate, _by_merit
    from bert_recipes.exporting.quantization import list_candidates

    def best(*rows, score="f1", points=0.01):
        tried = []
        for settings, (value, size, mean) in zip(list_candidates(None, None, reduce_range=False), rows, strict=True):
            file = tmp_path / settings.name
            file.write_bytes(bytes(size))
            tried.append(Candidate(settings, file, Comparison({"f1": value} if score else {}, 1.0, mean, 1.0)))
        ranked = _by_merit(tried, SimpleNamespace(score=score, points=points))
        assert len(ranked) == 4
        return tried.index(ranked[0])

    assert best((0.8, 100, 0.2), (0.8, 101, 0.1), (0.8, 200, 0.01), (0.8, 202, 0.01)) == 1
    assert best((0.8, 100, 0.1), (0.7, 101, 0.05), (0.802, 200, 0.01), (0.8, 202, 0.01)) == 0
    assert best((0.7, 100, 0.1), (0.7, 101, 0.05), (0.8, 200, 0.02), (0.8, 202, 0.01)) == 3
    assert best((0.7, 100, 0.1), (math.nan, 101, 0.05), (math.nan, 200, 0.02), (0.1, 202, 0.01)) == 0
    assert best((79.8, 100, 0.2), (79.4, 101, 0.1), (80.0, 200, 0.02), (80.1, 202, 0.01), points=1.0) == 0
    assert best((0.1, 100, 0.2), (0.1, 101, 0.1), (0.9, 200, 0.02), (0.9, 202, 0.01), score=None) == 1


def test_choices_of_int8_can_be_made_by_hand(export, runs, known_graphs):
    flags = ["--format", "int8", "--per_channel", "true", "--embeddings", "false", "--reduce_range", "true"]
    _, report = export(runs("multiple_choice"), *flags, "--max_score_drop", 100)
    made = report["int8"]
    assert (made["per_channel"], made["embeddings"], made["reduce_range"]) == (True, False, True)
    assert len(made["tried"]) == 1
    assert made["operators"] == ["MatMul"]
    assert "Gather" in made["float_operators"]


def test_inputs_may_be_named_instead(export, runs, tmp_path, known_graphs):
    rows = [json.dumps({"first": "abc de", "second": "fgh"}), json.dumps({"first": "a", "second": "b c d"})]
    (tmp_path / "inputs.jsonl").write_text("\n".join(rows) + "\n")
    _, report = export(runs("sequence_classification"), "--input_file", tmp_path / "inputs.jsonl")
    assert report["compared_on"] == {"source": "inputs.jsonl (2 of 2)", "unit": "examples", "number": 2}
    assert report["score"] is None
    assert report["rows"][-1]["scores"] == {}
    assert report["rows"][-1]["same_predictions"] == 1.0
    (tmp_path / "texts.txt").write_text("w1 w2 w3\n\nw4 w5\n")
    _, report = export(runs("pretraining"), "--input_file", tmp_path / "texts.txt", "--format", "int8")
    assert report["compared_on"] == {"source": "texts.txt (2 texts)", "unit": "texts", "number": 2}
    assert set(report["rows"][0]["scores"]) == {"mlm_loss", "mlm_accuracy"}


def test_the_folder_lies_beside_the_run(tmp_path, tiny_checkpoint, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def folder_of(name, **values):
        return ExportArguments(name, **values).folder

    for name in ("runs/sst2", "runs/sst2/checkpoint-20"):
        (tmp_path / name).mkdir(parents=True)
    assert str(folder_of("runs/sst2")) == "runs/sst2_onnx"
    assert str(folder_of("runs/sst2/", format="int8")) == "runs/sst2_int8"
    assert str(folder_of("google-bert/bert-base-uncased", format="int8")) == "runs/bert-base-uncased_int8"
    assert folder_of("runs/sst2/checkpoint-20").resolve() == tmp_path / "runs" / "sst2_checkpoint-20_onnx"
    monkeypatch.chdir(tmp_path / "runs" / "sst2")
    assert folder_of(".").resolve() == tmp_path / "runs" / "sst2_onnx"
    assert str(folder_of("x", output_dir="y")) == "y"


def test_a_moved_task_file_is_found_beside_the_weights(export, runs, tmp_path, known_graphs):
    original = runs("sequence_classification")
    run = shutil.copytree(original, tmp_path / "run")
    text = (run / "run.yaml").read_text()
    (run / "run.yaml").write_text(text.replace(str(original.parent / "data" / "task.yaml"), "/no/such/task.yaml"))
    assert text != (run / "run.yaml").read_text()
    _, report = export(run, "--data_dir", original.parent / "data")
    assert report["compared_on"]["number"] == 23


@pytest.mark.slow
def test_the_recipe_is_quiet_and_prints_the_table(repository, runs, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (the extra `export`)")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (the extra `export`)")
    run = shutil.copytree(runs("sequence_classification"), tmp_path / "mine")
    command = [sys.executable, repository / "recipes" / "export.py", "--model_name_or_path", "mine"]
    command += ["--format", "int8", "--rounds", "1", "--max_score_drop", "100"]
    environment = {
        name: value for name, value in os.environ.items() if name != "WANDB_MODE"
    }  # stock prints a line for it
    start = functools.partial(
        subprocess.run,
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    done = start()
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "model.onnx, export.md, example.py: mine_int8"
    table = [line for line in (tmp_path / "mine_int8" / "export.md").read_text().splitlines() if line[:1] == "|"]
    assert done.stdout.splitlines()[:-1] == table[: len(done.stdout.splitlines()) - 1]
    # Lines of our own only, each with its time, and transformers' progress bars.
    lines = [line.rpartition("\r")[2] for line in done.stderr.splitlines()]
    others = [line for line in lines if line and not line.startswith("Loading weights")]
    assert all(line[2:3] == ":" and " bert_recipes." in line for line in others), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine_int8"]
    assert sorted(path.name for path in run.iterdir()) == sorted(
        path.name for path in runs("sequence_classification").iterdir()
    )
    done = start()
    assert done.returncode == 1
    assert done.stderr == "error: output_dir: mine_int8 is not empty; give a new folder\n"
