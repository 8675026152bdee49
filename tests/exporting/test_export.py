"""The whole way: what lies in the folder, and on what it was compared."""

import json
import math
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.exporting import arguments as module
from bert_recipes.exporting import export as way
from bert_recipes.exporting.arguments import ExportArguments, check_request
from bert_recipes.exporting.export import (
    Int8Try,
    Side,
    choose_int8,
    format_report,
    format_table,
    measure_speed,
)
from bert_recipes.exporting.onnx import Head
from bert_recipes.training.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.training.pretraining import load_data, load_model, make_trainer


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
    assert json.loads((folder / "config.json").read_text())["architectures"] == [
        report["architecture"]
    ]
    if head != "pretraining":
        # Validation split, lengths, stride, decoder: all as run.yaml and task.yaml say.
        results = json.loads((runs(head) / "all_results.json").read_text())
        assert before["scores"]
        assert before["scores"] == pytest.approx(
            {name: results[f"eval_{name}"] for name in before["scores"]}, abs=1e-5
        )
        assert report["compared_on"]["number"] == 23


def check_scores(report, run, length, **settings):
    """They are those of the Trainer's own evaluation at that length."""
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
    assert (
        report["max_seq_length"]
        == json.loads((folder / "export.json").read_text())["max_seq_length"]
        == 48
    )
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
    assert len(made["tried"]) == 2
    assert made["tried"][0]["bytes"] == int8["bytes"]
    assert (made["tried"][0]["settings"].startswith("a scale a column")) == made["per_channel"]
    text = (folder / "export.md").read_text()
    assert "onnxruntime, int8" in text
    assert all(each["settings"] in text for each in made["tried"])
    assert f"on {made['tried_on']} {report['compared_on']['unit']}:" in text
    assert made["tried_on"] == report["compared_on"]["number"]
    # Each layer multiplies queries by keys and scores by values.
    assert (
        made["float_products"]
        == 2 * json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    )
    assert "MatMul" not in made["float_operators"]
    # Both tables are straight: as many cells in a row as in its header.
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert [len({line.count("|") for line in table}) for table in tables] == [1, 1]
    import onnx

    nodes = onnx.load(str(folder / "model.onnx")).graph.node
    assert {node.domain for node in nodes} <= {"", "ai.onnx"}
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= {node.op_type for node in nodes}


def test_the_best_int8_is_small_as_long_as_that_costs_nothing(tmp_path):
    def best(*rows, margin=0.005):
        tried = []
        for number, (score, size) in enumerate(rows):
            (tmp_path / str(number)).write_bytes(bytes(size))
            tried.append(Int8Try(None, tmp_path / str(number), None, {"scores": {"f1": score}}))
        return tried.index(choose_int8(tried, "f1", margin))

    assert best((0.8, 100), (0.8, 200)) == 0
    assert best((0.796, 100), (0.8, 200)) == 0
    assert best((0.79, 100), (0.8, 200)) == 1
    assert best((None, 100), (0.1, 200)) == 1
    assert best((79.6, 100), (80.0, 200), margin=0.5) == 0


def test_choices_of_int8_can_be_made_by_hand(export, runs, known_graphs):
    flags = [
        "--format",
        "int8",
        "--per_channel",
        "true",
        "--embeddings",
        "false",
        "--reduce_range",
        "true",
    ]
    _, report = export(runs("multiple_choice"), *flags, "--max_score_drop", 100)
    made = report["int8"]
    assert (made["per_channel"], made["embeddings"], made["reduce_range"]) == (True, False, True)
    assert len(made["tried"]) == 1
    assert made["operators"] == ["MatMul"]
    assert "Gather" in made["float_operators"]


def test_inputs_may_be_named_instead(export, runs, tmp_path, known_graphs):
    rows = [
        json.dumps({"first": "abc de", "second": "fgh"}),
        json.dumps({"first": "a", "second": "b c d"}),
    ]
    (tmp_path / "inputs.jsonl").write_text("\n".join(rows) + "\n")
    _, report = export(runs("sequence_classification"), "--input_file", tmp_path / "inputs.jsonl")
    assert report["compared_on"] == {
        "source": "inputs.jsonl (2 of 2)",
        "unit": "examples",
        "number": 2,
    }
    assert report["score"] is None
    assert report["rows"][-1]["scores"] == {}
    assert report["rows"][-1]["same_predictions"] == 1.0
    (tmp_path / "texts.txt").write_text("w1 w2 w3\n\nw4 w5\n")
    _, report = export(
        runs("pretraining"), "--input_file", tmp_path / "texts.txt", "--format", "int8"
    )
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
    assert (
        str(folder_of("google-bert/bert-base-uncased", format="int8"))
        == "runs/bert-base-uncased_int8"
    )
    assert (
        folder_of("runs/sst2/checkpoint-20").resolve()
        == tmp_path / "runs" / "sst2_checkpoint-20_onnx"
    )
    monkeypatch.chdir(tmp_path / "runs" / "sst2")
    assert folder_of(".").resolve() == tmp_path / "runs" / "sst2_onnx"
    assert str(folder_of("x", output_dir="y")) == "y"


def test_a_moved_task_file_is_found_beside_the_weights(export, runs, tmp_path, known_graphs):
    original = runs("sequence_classification")
    run = shutil.copytree(original, tmp_path / "run")
    text = (run / "run.yaml").read_text()
    (run / "run.yaml").write_text(
        text.replace(str(original.parent / "data" / "task.yaml"), "/no/such/task.yaml")
    )
    assert text != (run / "run.yaml").read_text()
    _, report = export(run, "--data_dir", original.parent / "data")
    assert report["compared_on"]["number"] == 23


def test_the_page_shows_the_committed_reports_and_no_other_figures(repository):
    page = (repository / "docs" / "export.md").read_text(encoding="utf-8")
    files = sorted((repository / "docs" / "results").glob("export_*.json"))
    assert set(re.findall(r"\(results/(export_\w+\.json)\)", page)) == {file.name for file in files}
    # A row of a table that no report stands behind.
    assert page.count("| onnxruntime, fp32 |") == len(files)
    for file in files:
        report = json.loads(file.read_text(encoding="utf-8"))
        assert format_table(report) in page, f"{file.name}: the page shows other figures"
        assert file.with_suffix(".md").read_text(encoding="utf-8") == format_report(report)


TAGS = (
    "token_classification",
    "AutoModelForTokenClassification",
    {"logits": ("sequence", "classes")},
)
CLASSES = (
    "sequence_classification",
    "AutoModelForSequenceClassification",
    {"logits": ("classes",)},
)


def side(head, reference=None, shift=0.0):
    """A model whose logits follow from the ids, as `Side` runs it."""

    class Model(torch.nn.Module):
        calls = None

        def forward(self, input_ids, attention_mask):
            if self.calls is not None:
                self.calls.append((shift, tuple(input_ids.shape)))
            return {"logits": input_ids[..., None].float() + torch.tensor([0.5, -3.5]) + shift}

    return Side(Model(), Head(*head), reference)


def test_differences_are_those_of_real_tokens():
    one = side(TAGS)
    expected, output = torch.zeros(2, 3, 2), torch.zeros(2, 3, 2)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    output[1, 2] += 100  # a pad
    output[0, 2, 0] += 0.25
    one.compare({"logits": expected}, {"logits": output}, mask)
    assert (one.largest, one.mean) == (0.25, pytest.approx(0.25 / 10))
    # As many classes as positions: nothing of them is a pad.
    two = side(CLASSES)
    output = torch.tensor([[0, 0, 0.5], [0, -1.0, 0]])
    two.compare(
        {"logits": torch.zeros(2, 3)},
        {"logits": output},
        torch.tensor([[1, 1, 0], [1, 0, 0]]).bool(),
    )
    assert (two.largest, two.mean) == (1.0, 0.25)
    for wrong in (math.nan, math.inf):
        three = side(CLASSES)
        for value in (wrong, 0.0):  # and stays so
            three.compare({"logits": torch.zeros(1, 1)}, {"logits": torch.tensor([[value]])}, mask)
        assert three.largest == math.inf


def test_sides_take_turns_on_the_same_inputs():
    def batches():
        for length in (4, 3):
            ids = torch.arange(3 * length).view(3, length)
            mask = torch.ones_like(ids)
            mask[1:, -1] = 0
            yield {
                "input_ids": ids,
                "attention_mask": mask,
                "token_type_ids": torch.zeros_like(ids),
                "labels": ids,
            }

    sides = {"one": side(TAGS), "two": side(TAGS, shift=1.0)}
    calls = []
    for each in sides.values():
        each.model.calls = calls
    args = ExportArguments("m", batch_size=3, speed_examples=6, rounds=2)
    speed = measure_speed(sides, batches(), args)
    of_one = [shape for shift, shape in calls if shift == 0]
    assert of_one == [shape for shift, shape in calls if shift == 1]
    # A batch that is not counted, both batches, and the same with one input at a time, without its
    # pads.
    singles = [(1, 4), (1, 3), (1, 3), (1, 2), (1, 3), (1, 2)]
    assert of_one == 2 * [(3, 4), (3, 4), (3, 3), (1, 4), *singles]
    order = [
        shift
        for number, (shift, _) in enumerate(calls)
        if number == 0 or calls[number - 1][0] != shift
    ]
    assert order == [0, 1, 0]  # the second round begins with the other one
    assert (speed["examples"], speed["tokens"]) == (6, 10 + 7)
    assert all(
        len(found["rounds"]["examples_per_second"]) == 2 for found in speed["sides"].values()
    )


# What is refused, in one line and without a trace of a folder


def arguments(*argv):
    return parse_arguments(ExportArguments, argv=list(map(str, argv)), check_first=check_request)[0]


def refused(export, run, *flags, folder):
    with pytest.raises(InputError) as caught:
        export(run, *flags, folder=folder)
    assert not folder.exists() or not any(folder.iterdir())
    assert not list(folder.parent.glob(".*"))
    return str(caught.value)


@pytest.fixture
def shifted(runs, tmp_path):
    """A classifier whose weights have another bias than the graph that is known of it."""

    def make(change):
        run = shutil.copytree(runs("sequence_classification"), tmp_path / "run")
        weights = load_file(run / "model.safetensors")
        weights["classifier.bias"] = change(weights["classifier.bias"])
        save_file(weights, run / "model.safetensors", metadata={"format": "pt"})
        return run

    return make


def test_a_model_that_is_not_the_checkpoint_is_not_written(export, shifted, tmp_path, known_graphs):
    run = shifted(lambda bias: bias + 2e-4)
    message = refused(export, run, folder=tmp_path / "out")
    assert (
        "outputs differ by up to 0.0002, allowed: 0.0001 (--tolerance); nothing was written"
        in message
    )
    _, report = export(run, "--tolerance", "1e-3", folder=tmp_path / "out")
    assert report["rows"][-1]["largest_difference"] == pytest.approx(2e-4, abs=2e-5)


def test_a_diverged_checkpoint_is_not_exported(export, shifted, tmp_path, known_graphs):
    run = shifted(lambda bias: bias * math.nan)
    assert "outputs are not finite" in refused(export, run, folder=tmp_path / "out")


def test_int8_that_loses_too_much_is_not_written(export, runs, tmp_path, monkeypatch, known_graphs):
    def with_a_loss(tried, *arguments):
        tried[0].row["scores"]["f1"] -= 3
        return tried[0]

    monkeypatch.setattr(way, "choose_int8", with_a_loss)
    message = refused(
        export, runs("question_answering"), "--format", "int8", folder=tmp_path / "out"
    )
    assert "int8 loses too much: f1 is" in message
    assert "2 points less (--max_score_drop); nothing was written" in message


def test_an_interrupted_export_leaves_nothing(export, runs, tmp_path, monkeypatch, known_graphs):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(way, "measure_speed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(runs("sequence_classification"), folder=tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--format", "tflite"], "format is 'tflite'; allowed: onnx, int8"),
        (["--batch_size", "0"], "batch_size is 0; allowed: 1 or more"),
        (["--tolerance", "-1"], "tolerance is -1.0; allowed: 0 or more"),
        (["--tolerance", ".nan"], "--tolerance: expected a number, got '.nan'"),
        (["--opset", "17"], "opset is 17; allowed: 18 to 23"),
        (["--store", "s", "--input_file", "t.txt"], "--store and --input_file both name inputs"),
        (["--reduce_range", "true"], "reduce_range is for --format int8"),
        (["--model_name_or_path", "nothing/here/deep"], "no folder nothing"),
        (["--model_name_or_path", "out"], "has no config.json"),
        (["--output_dir", "out"], "is not empty; give a new folder"),
        (["--output_dir", "out/thesis.txt"], "is a file; give a folder"),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path, tiny_checkpoint, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    own = [] if flags[0] == "--model_name_or_path" else ["--model_name_or_path", tiny_checkpoint]
    with pytest.raises(InputError) as caught:
        arguments(*own, *flags)
    assert words in str(caught.value)


def test_packages_that_are_missing_are_named(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(
        module, "find_spec", lambda name: None if name == "onnxscript" else object()
    )
    with pytest.raises(
        InputError, match=r"an export needs onnxscript; pip install 'bert-recipes\[export\]'"
    ):
        arguments("--model_name_or_path", tiny_checkpoint, "--output_dir", tmp_path / "new")


@pytest.mark.parametrize(
    ("head", "flags", "words"),
    [
        ("pretraining", ["--task", "mrpc"], "--task is not for a pre-trained model"),
        ("sequence_classification", ["--store", "x"], "--store is not for a fine-tuned model"),
        ("pretraining", ["--store", "nowhere"], "nowhere"),
        ("pretraining", ["--input_file", "nowhere.txt"], "nowhere.txt: no such file"),
        ("sequence_classification", ["--task", "mrpc", "--data_dir", "nowhere"], "nowhere"),
        ("sequence_classification", ["--task", "unknown"], "unknown"),
        ("pretraining", [], "give --store FOLDER"),
        ("multiple_choice", [], "give --task NAME or --task_file"),
    ],
)
def test_inputs_that_cannot_be_are_refused(export, runs, tmp_path, head, flags, words):
    run = runs(head)
    if not flags:  # and the checkpoint says nothing of its data
        run = shutil.copytree(run, tmp_path / head, ignore=shutil.ignore_patterns("run.yaml"))
    assert words in refused(export, run, *flags, folder=tmp_path / "out")


def test_a_checkpoint_of_another_kind_or_with_missing_weights_is_refused(export, runs, tmp_path):
    run = shutil.copytree(runs("pretraining"), tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    (run / "run.yaml").write_text("store: nowhere\n")  # no data is looked at before
    kept = {
        name: weight
        for name, weight in weights.items()
        if not name.startswith("cls.seq_relationship")
    }
    save_file(kept, run / "model.safetensors", metadata={"format": "pt"})
    message = refused(export, run, folder=tmp_path / "out")
    assert "has no weights for cls.seq_relationship.bias" in message
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    assert "is BertModel; allowed: BertForPreTraining" in refused(
        export, run, folder=tmp_path / "out"
    )
