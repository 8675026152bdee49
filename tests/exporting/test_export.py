"""The whole way: what lies in the folder, how it was compared, and what is refused."""

import json
import math
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig
from transformers.utils import ModelOutput

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.exporting import arguments as module
from bert_recipes.exporting import export as way
from bert_recipes.exporting.arguments import ExportArguments, check_request
from bert_recipes.exporting.onnx import Head, OnnxModel, head_of, open_stock
from bert_recipes.finetuning.arguments import read_model_config
from bert_recipes.models.sizes import inputs_of
from bert_recipes.tokenization.loading import load_tokenizer


onnx = pytest.importorskip("onnx", reason="onnx is not installed (the extra `export`)")

HEADS = (
    "pretraining",
    pytest.param("sequence_classification", marks=pytest.mark.slow),
    pytest.param("token_classification", marks=pytest.mark.slow),
    pytest.param("question_answering", marks=pytest.mark.slow),
    pytest.param("multiple_choice", marks=pytest.mark.slow),
)
FILES = {"config.json", "example.py", "export.json", "model.onnx"}
FILES |= {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
# Whoever imports one of these gets an error.
FORBIDDEN = ("torch", "transformers", "bert_recipes", "datasets")


@pytest.mark.parametrize("head", HEADS)
def test_the_folder_is_whole_and_the_model_is_the_checkpoint(exported, runs, head):
    folder, report = exported(head)
    assert {path.name for path in folder.iterdir()} == FILES
    assert json.loads((folder / "export.json").read_text(), parse_constant=pytest.fail) == report
    assert not list(folder.parent.glob(".*"))
    assert report["largest_difference"] < 1e-5
    assert report["bytes"] == (folder / "model.onnx").stat().st_size
    written = json.loads((folder / "config.json").read_text())["architectures"]
    assert written == [report["architecture"]]
    if head == "pretraining":
        assert report["scores"] is None
        assert report["max_seq_length"] == 128
        assert "give --data_dir DATA" in way.summarize(report)
        return
    # Validation split, lengths, stride, decoder: all as run.yaml and task.yaml say.
    scores = report["scores"]
    results = json.loads((runs(head) / "all_results.json").read_text())
    expected = {name: results[f"eval_{name}"] for name in scores["checkpoint"]}
    assert scores["examples"] == dict.fromkeys(scores["checkpoint"], 23)
    assert scores["checkpoint"] == pytest.approx(expected, abs=1e-5)
    assert scores["exported"] == pytest.approx(expected, abs=1e-5)
    assert report["max_seq_length"] == 40


@pytest.mark.slow
def test_int8_is_smaller_and_says_what_it_loses(exported, runs):
    plain = exported("sequence_classification")[0] / "model.onnx"
    folder, report = exported("sequence_classification", "int8")
    assert {path.name for path in folder.iterdir()} == FILES
    assert report["bytes"] == (folder / "model.onnx").stat().st_size < plain.stat().st_size
    spread = spread_of_logits(runs("sequence_classification"))
    # A fifth of it on a processor without VNNI; of a graph of zeros it would be nearly twice it.
    assert 1e-4 < report["largest_difference"] < 0.5 * spread
    before, after = report["scores"]["checkpoint"], report["scores"]["exported"]
    assert report["scores"]["lost"] == {name: before[name] - after[name] for name in before}
    assert f"accuracy {after['accuracy']:.4f}, the checkpoint's" in way.summarize(report)
    nodes = onnx.load(str(folder / "model.onnx")).graph.node
    assert {node.domain for node in nodes} <= {"", "ai.onnx"}
    assert {"MatMulInteger", "DynamicQuantizeLinear"} <= {node.op_type for node in nodes}


def spread_of_logits(run):
    """The standard deviation of a classifier's logits over the inputs that are compared."""
    head = head_of(read_model_config(str(run)), str(run))
    model = open_stock(str(run), head)
    logits = []
    for batch in way.random_batches(model.config, head):
        logits.append(model(**{name: batch[name] for name in inputs_of(model)}).logits)
    return torch.cat(logits).std().item()


class OneLabel(torch.nn.Module):
    """A classifier of three labels that always says the same one."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def forward(self, input_ids, **others):
        logits = torch.zeros(len(input_ids), 3)
        logits[:, self.label] = 1.0
        return ModelOutput(logits=logits)


def test_the_score_of_the_exported_model_is_its_own(runs, tmp_path):
    run = runs("sequence_classification")
    data = run.parent / "data"
    rows = (data / "validation.jsonl").read_text().splitlines()
    labels = [json.loads(row)["label"] for row in rows]
    rarest = min(range(3), key=labels.count)
    trainer = way.open_task(ExportArguments(str(run), data_dir=str(data)), str(tmp_path))
    scores = way.compare_scores(trainer, OneLabel(rarest))
    results = json.loads((run / "all_results.json").read_text())
    before, after = scores["checkpoint"]["accuracy"], scores["exported"]["accuracy"]
    assert before == pytest.approx(results["eval_accuracy"], abs=1e-5)
    assert after == pytest.approx(labels.count(rarest) / len(labels))
    assert before != after
    assert scores["lost"]["accuracy"] == before - after


def shifted_model(run, tmp_path, shift):
    """A classifier in stock's class whose weights have another bias than those of a run."""
    other = shutil.copytree(run, tmp_path / f"shifted-{shift}")
    weights = load_file(other / "model.safetensors")
    weights["classifier.bias"] += shift
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    return open_stock(str(other), head_of(read_model_config(str(other)), str(other)))


def test_inputs_have_every_piece_but_the_pad_wherever_that_stands():
    """Of a vocabulary whose last piece is the pad, too."""
    config = BertConfig(vocab_size=8, max_position_embeddings=64, pad_token_id=7)
    head = Head("token_classification", "", {})
    pieces = set()
    for batch in way.random_batches(config, head):
        is_text = batch["attention_mask"] == 1
        pieces.update(batch["input_ids"][is_text].tolist())
        assert (batch["input_ids"][~is_text] == 7).all()
    assert pieces == set(range(7))


def test_inputs_of_a_long_model_are_as_long_as_memory_allows():
    config = BertConfig(vocab_size=8, max_position_embeddings=8192)
    head = Head("token_classification", "", {})
    lengths = [batch["input_ids"].shape[-1] for batch in way.random_batches(config, head)]
    assert lengths == [1, 8, 64, 2048]


def test_the_example_goes_on_after_a_line_that_is_no_input(exported):
    folder, _ = exported("pretraining")
    done = subprocess.run(
        [sys.executable, str(folder / "example.py")],
        input="a\tb\tc\nab\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr == "line 1 is skipped: it has 3 texts, not 1 or 2\n"
    assert done.stdout.startswith("ab\n")


def test_the_largest_difference_is_that_of_the_outputs(exported, runs, tmp_path):
    run = runs("sequence_classification")
    session = OnnxModel(exported("sequence_classification")[0] / "model.onnx")
    head = head_of(read_model_config(str(run)), str(run))
    model = shifted_model(run, tmp_path, 0.25)
    assert way.largest_difference(model, session, head) == pytest.approx(0.25, abs=1e-5)
    diverged = shifted_model(run, tmp_path, math.nan)
    assert math.isnan(way.largest_difference(diverged, session, head))


@pytest.mark.parametrize(
    ("head", "line", "names"),
    [
        ("pretraining", "ab [MASK]", ["prediction_logits, [CLS]", "prediction_logits, a"]),
        ("sequence_classification", "ab [SEP]\tef", ["logits"]),
        pytest.param(
            "question_answering",
            "ab\tcd ef",
            ["start_logits", "end_logits"],
            marks=pytest.mark.slow,
        ),
        ("multiple_choice", "ab\tcd\tef gh", ["logits"]),
    ],
)
def test_the_example_prints_the_outputs_by_name(
    exported,
    runs,
    tmp_path,
    head,
    line,
    names,
):
    """It runs where neither torch nor transformers nor this project is."""
    folder, run = exported(head)[0], str(runs(head))
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({FORBIDDEN!r}))\n"
        f"import runpy; runpy.run_path({str(folder / 'example.py')!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=line,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    text, *lines = done.stdout.splitlines()
    assert text == line
    assert [row.strip().partition(":")[0] for row in lines[: len(names)]] == names

    columns = line.split("\t")
    rows = [columns]
    if head == "multiple_choice":
        rows = [[columns[0], ending] for ending in columns[1:]]
    batch = load_tokenizer(run)(
        *zip(*rows, strict=True),
        padding=True,
        return_tensors="pt",
        split_special_tokens=head != "pretraining",
    )
    if head == "multiple_choice":
        batch = {name: values[None] for name, values in batch.items()}
    run_head = head_of(read_model_config(run), run)
    outputs = open_stock(run, run_head)(**batch)

    logits = []
    for name in run_head.outputs:
        logits.extend(outputs[name][0].reshape(-1, outputs[name].shape[-1]))

    for row, values in zip(lines, logits, strict=True):
        numbers = [float(number) for number in re.findall(r" (-?\d+\.\d+)(?:,|$)", row)]
        assert numbers == pytest.approx(values.topk(len(numbers)).values.tolist(), abs=1e-3)


def test_the_folder_lies_beside_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def folder_of(name, **values):
        return ExportArguments(name, **values).folder

    checkpoint = tmp_path / "runs" / "sst2" / "checkpoint-20"
    checkpoint.mkdir(parents=True)
    assert str(folder_of("runs/sst2")) == "runs/sst2_onnx"
    assert str(folder_of("runs/sst2/", format="int8")) == "runs/sst2_int8"
    assert str(folder_of("google-bert/bert", format="int8")) == "runs/bert_int8"
    assert folder_of(str(checkpoint)) == tmp_path / "runs" / "sst2_checkpoint-20_onnx"
    abandoned = checkpoint.rename(checkpoint.with_name("abandoned-checkpoint-20"))
    assert folder_of(str(abandoned)) == tmp_path / "runs" / "sst2_abandoned-checkpoint-20_onnx"
    monkeypatch.chdir(tmp_path / "runs" / "sst2")
    assert folder_of(".").resolve() == tmp_path / "runs" / "sst2_onnx"
    assert str(folder_of("x", output_dir="y")) == "y"


# What is refused, in one line and without a trace of a folder


def arguments(*argv):
    return parse_arguments(ExportArguments, argv=list(map(str, argv)), check_first=check_request)[0]


def refused(export, run, *flags, folder):
    with pytest.raises(InputError) as caught:
        export(run, *flags, folder=folder)
    assert not list(folder.parent.glob(f"*{folder.name}*"))
    return str(caught.value)


@pytest.mark.parametrize(("difference", "words"), [(2e-4, "0.0002"), (math.nan, "nan")])
def test_a_model_that_is_not_the_checkpoint_is_not_written(
    export,
    exported,
    runs,
    tmp_path,
    monkeypatch,
    difference,
    words,
):
    graph = exported("sequence_classification")[0] / "model.onnx"
    monkeypatch.setattr(
        way, "export_graph", lambda _, __, folder, ___: shutil.copy(graph, folder / "model.onnx")
    )
    monkeypatch.setattr(way, "largest_difference", lambda *_: difference)
    message = refused(export, runs("sequence_classification"), folder=tmp_path / "out")
    assert f"outputs differ by up to {words}, allowed: 0.0001 (--tolerance)" in message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task", "mrpc", "--task_file", "t.yaml"], "--task and --task_file both name a task"),
        (["--output_dir", "out"], "is not empty; give a new folder"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    tmp_path,
    tiny_checkpoint,
    monkeypatch,
    flags,
    words,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match=words):
        arguments("--model_name_or_path", tiny_checkpoint, *flags)


def test_packages_that_are_missing_are_named(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: name != "onnxscript" or None)
    with pytest.raises(InputError, match="an export needs onnxscript; pip install"):
        arguments("--model_name_or_path", tiny_checkpoint, "--output_dir", tmp_path / "new")


@pytest.mark.parametrize(
    ("head", "flags", "words"),
    [
        ("pretraining", ["--data_dir", "data"], "has no task.yaml; give --task NAME"),
        ("sequence_classification", ["--task", "ax"], "has no validation split"),
    ],
)
def test_tasks_that_cannot_be_are_refused(
    export,
    runs,
    tmp_path,
    head,
    flags,
    words,
):
    assert words in refused(export, runs(head), *flags, folder=tmp_path / "out")


def test_a_checkpoint_of_another_kind_or_with_missing_weights_is_refused(export, runs, tmp_path):
    run = shutil.copytree(runs("pretraining"), tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    del weights["cls.seq_relationship.bias"]
    save_file(weights, run / "model.safetensors", metadata={"format": "pt"})
    message = refused(export, run, folder=tmp_path / "out")
    assert "has no weights for cls.seq_relationship.bias" in message
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    message = refused(export, run, folder=tmp_path / "out")
    assert "is BertModel; allowed: BertForPreTraining" in message
    decoder = {"architectures": ["BertForSequenceClassification"], "is_decoder": True}
    (run / "config.json").write_text(json.dumps({**config, **decoder}))
    assert "reads from left to right" in refused(export, run, folder=tmp_path / "out")
