"""What is refused, in one line and without a trace of a folder."""

import json
import math
import shutil
from dataclasses import replace

import pytest

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.exporting.arguments import ExportArguments, check_request


def arguments(*argv):
    return parse_arguments(ExportArguments, argv=list(map(str, argv)), check_first=check_request)[0]


def refused(export, run, *flags, folder):
    with pytest.raises(InputError) as caught:
        export(run, *flags, folder=folder)
    assert not folder.exists() or not any(folder.iterdir())
    assert not list(folder.parent.glob(".*"))
    return str(caught.value)


def test_a_model_that_is_not_the_checkpoint_is_not_written(export, runs, tmp_path, known_graphs):
    from safetensors.torch import load_file, save_file

    run = shutil.copytree(runs("sequence_classification"), tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    weights["classifier.bias"] = weights["classifier.bias"] + 2e-4
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})
    message = refused(export, run, folder=tmp_path / "out")
    assert "outputs differ by up to 0.0002, allowed: 0.0001 (--tolerance); nothing was written" in message
    _, report = export(run, "--tolerance", "1e-3", folder=tmp_path / "out")
    assert report["rows"][-1]["largest_difference"] == pytest.approx(2e-4, abs=2e-5)


def test_int8_that_loses_too_much_is_not_written(export, runs, tmp_path, monkeypatch, known_graphs):
    from bert_recipes.exporting import export as way

    def with_a_loss(*arguments):
        own, others = compare(*arguments)
        for name, found in others.items():
            if name not in (way.ONNX, way.CHECKPOINT_BF16):
                others[name] = replace(found, scores=found.scores | {"f1": found.scores["f1"] - 3})
        return own, others

    compare = way.compare
    monkeypatch.setattr(way, "compare", with_a_loss)
    message = refused(export, runs("question_answering"), "--format", "int8", folder=tmp_path / "out")
    assert "int8 loses too much: f1 is" in message
    assert "2 points less (--max_score_drop); nothing was written" in message


def test_a_diverged_checkpoint_is_not_exported(export, runs, tmp_path, known_graphs):
    from safetensors.torch import load_file, save_file

    run = shutil.copytree(runs("sequence_classification"), tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    weights["classifier.bias"] = weights["classifier.bias"] * math.nan
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})
    assert "outputs are not finite" in refused(export, run, folder=tmp_path / "out")


def test_an_interrupted_export_leaves_nothing(export, runs, tmp_path, monkeypatch, known_graphs):
    from bert_recipes.exporting import export as way

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(way, "take_turns", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(runs("sequence_classification"), folder=tmp_path / "deep" / "out")
    assert not list((tmp_path / "deep").iterdir())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--format", "tflite"], "format is 'tflite'; allowed: onnx, int8"),
        (["--batch_size", "0"], "batch_size is 0; allowed: 1 or more"),
        (["--rounds", "-1"], "rounds is -1"),
        (["--threads", "0"], "threads is 0"),
        (["--tolerance", "-1"], "tolerance is -1.0; allowed: 0 or more"),
        (["--tolerance", ".nan"], "tolerance is nan"),
        (["--opset", "17"], "opset is 17; allowed: 18 to 23"),
        (["--store", "s", "--input_file", "t.txt"], "--store and --input_file both name inputs"),
        (["--reduce_range", "true"], "reduce_range is for --format int8"),
        (["--per_channel", "false"], "per_channel is for --format int8"),
        (["--task", "mrpc", "--task_file", "m.yaml"], "--task and --task_file both name"),
    ],
)
def test_settings_out_of_range_are_named(tmp_path, flags, words):
    with pytest.raises(InputError) as caught:
        arguments("--model_name_or_path", tmp_path, *flags)
    assert words in str(caught.value)


def test_what_is_not_there_is_said_at_once(tmp_path, tiny_checkpoint, monkeypatch):
    with pytest.raises(InputError, match=r"no folder .*nothing"):
        arguments("--model_name_or_path", tmp_path / "nothing" / "here" / "deep")
    with pytest.raises(InputError, match=r"has no config\.json"):
        arguments("--model_name_or_path", tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty; give a new folder"):
        arguments("--model_name_or_path", tiny_checkpoint, "--output_dir", tmp_path / "out")
    with pytest.raises(InputError, match="is a file; give a folder"):
        arguments("--model_name_or_path", tiny_checkpoint, "--output_dir", tmp_path / "out" / "thesis.txt")
    from bert_recipes.exporting import arguments as module

    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(InputError, match=r"an export needs onnxscript; pip install 'bert-recipes\[export\]'"):
        arguments("--model_name_or_path", tiny_checkpoint, "--output_dir", tmp_path / "new")


def test_a_checkpoint_that_says_nothing_of_its_data_is_asked_for_it(export, runs, tmp_path):
    for head, words in (
        ("pretraining", "give --store FOLDER"),
        ("multiple_choice", "give --task NAME or --task_file"),
    ):
        run = shutil.copytree(runs(head), tmp_path / head)
        (run / "run.yaml").unlink()
        assert words in refused(export, run, folder=tmp_path / "out")


@pytest.mark.parametrize(
    ("head", "flags", "words"),
    [
        ("pretraining", ["--task", "mrpc"], "--task is not for a pre-trained model"),
        ("sequence_classification", ["--store", "x"], "--store is not for a fine-tuned model"),
        ("pretraining", ["--store", "nowhere"], "nowhere"),
        ("pretraining", ["--input_file", "nowhere.txt"], "nowhere.txt: no such file"),
        ("sequence_classification", ["--input_file", "nowhere.txt"], "nowhere.txt: no such file"),
        ("sequence_classification", ["--data_dir", "nowhere"], "nowhere"),
        ("sequence_classification", ["--task", "mrpc", "--data_dir", "nowhere"], "nowhere"),
        ("sequence_classification", ["--task", "unknown"], "unknown"),
    ],
)
def test_inputs_that_cannot_be_are_refused(export, runs, tmp_path, head, flags, words):
    assert words in refused(export, runs(head), *flags, folder=tmp_path / "out")


def test_a_checkpoint_of_another_kind_or_with_missing_weights_is_refused(export, runs, tmp_path):
    from safetensors.torch import load_file, save_file

    run = shutil.copytree(runs("pretraining"), tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    (run / "run.yaml").write_text("store: nowhere\n")  # no data is looked at before
    kept = {name: weight for name, weight in weights.items() if not name.startswith("cls.seq_relationship")}
    save_file(kept, run / "model.safetensors", metadata={"format": "pt"})
    message = refused(export, run, folder=tmp_path / "out")
    assert "has no weights for cls.seq_relationship.bias" in message
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    assert "is BertModel; allowed: BertForPreTraining" in refused(export, run, folder=tmp_path / "out")
