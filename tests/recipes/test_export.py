"""recipes/export.py on real data and at real size."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from in_process import RECIPES
from python_process import run_python
from small_stores import make_tokenizer


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def packages():
    """Skip without the extra."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed (the extra `export`)")


def start(recipe, *flags, cwd):
    return run_python(RECIPES / f"{recipe}.py", *flags, cwd=cwd, timeout=1800)


def test_a_task_of_glue(shared_data, tiny_checkpoint, tmp_path):
    flags = "--task mrpc --max_train_examples 1000 --num_train_epochs 2 --learning_rate 1e-3"
    flags += f" --precision fp32 --use_cpu true --data_dir {shared_data}/glue --output_dir run"
    start("finetune", flags, "--model_name_or_path", tiny_checkpoint, cwd=tmp_path)
    flags = f"--format int8 --data_dir {shared_data}/glue --max_eval_examples 5000"
    start("export", flags, "--model_name_or_path run", cwd=tmp_path)
    scores = json.loads((tmp_path / "run_int8" / "export.json").read_text())["scores"]
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert scores["checkpoint"]["f1"] == pytest.approx(results["eval_f1"], abs=1e-5)
    assert scores["lost"]["f1"] < 0.02
    num_examples = results["splits"]["validation"]["examples"]
    assert scores["examples"] == dict.fromkeys(scores["checkpoint"], num_examples)


def test_bert_base(tmp_path):
    import torch
    import transformers

    from bert_recipes.models.sizes import pretraining_config

    tokenizer = make_tokenizer(tmp_path, [f"w{number}" for number in range(30_517)])
    config = pretraining_config("base", vocab_size=len(tokenizer))
    config.num_labels = 3
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    start("export", "--model_name_or_path model --format int8", cwd=tmp_path)
    report = json.loads((tmp_path / "model_int8" / "export.json").read_text())
    assert 109_000_000 < report["bytes"] < 4 * 109_000_000 / 3.9
    assert 0 < report["largest_difference"] < 1


def test_every_opset_that_is_allowed_is_written_and_read(tiny_runs, tmp_path):
    from bert_recipes.exporting.arguments import OPSETS

    run = tiny_runs("sequence_classification")
    for opset in range(OPSETS[0], OPSETS[1] + 1):
        flags = f"--model_name_or_path {run} --opset {opset} --output_dir {opset} --format int8"
        start("export", flags, cwd=tmp_path)
        report = json.loads((tmp_path / str(opset) / "export.json").read_text())
        assert report["opset"] == opset


def test_a_polite_end_leaves_nothing(tiny_runs, tmp_path):
    run = shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "runs" / "mine")
    command = [sys.executable, RECIPES / "export.py", "--model_name_or_path", run]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while not list(run.parent.glob(".mine_onnx.*")):  # it has started to write
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    assert [path.name for path in run.parent.iterdir()] == ["mine"]


def test_the_recipe_is_quiet_and_prints_what_it_measured(tiny_runs, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)  # stock prints a line for it
    run = shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "mine")
    done = start("export", "--model_name_or_path mine", cwd=tmp_path)
    first, last = done.stdout.splitlines()
    assert first.startswith("model.onnx (onnx): 0.1 MB; its outputs differ")
    assert last == "model.onnx, export.json, example.py: mine_onnx"
    # transformers' progress bars only.
    lines = [line.rpartition("\r")[2] for line in done.stderr.splitlines()]
    assert all(line.startswith("Loading weights") for line in lines if line), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine_onnx"]
    assert sorted(path.name for path in run.iterdir()) == sorted(
        path.name for path in tiny_runs("sequence_classification").iterdir()
    )
