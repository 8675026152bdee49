"""recipes/export.py on real data and at real size."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from repeated_flags import keep_last


pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def packages():
    """Skip without the extra."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed (the extra `export`)")


def start(recipe, *flags, cwd):
    command = [sys.executable, Path(__file__).parents[2] / "recipes" / recipe, *keep_last(flags)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1800, check=False, cwd=cwd
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


# So tiny a model learns nothing of STS-B: all its outputs are alike, and rounding decides about
# their order, which is not held to anything.
@pytest.mark.parametrize(
    ("task", "score", "has_learned"), [("mrpc", "f1", True), ("stsb", "spearmanr", False)]
)
def test_a_task_of_glue(shared_data, tiny_checkpoint, tmp_path, task, score, has_learned):
    flags = [
        "--task",
        task,
        "--data_dir",
        shared_data / "glue",
        "--model_name_or_path",
        tiny_checkpoint,
    ]
    flags += [
        "--max_train_examples",
        1000,
        "--num_train_epochs",
        2,
        "--learning_rate",
        1e-3,
        "--precision",
        "fp32",
    ]
    start("finetune.py", *flags, "--output_dir", "run", "--use_cpu", "true", cwd=tmp_path)
    flags = [
        "--format",
        "int8",
        "--max_eval_examples",
        5000,
        "--max_score_drop",
        2 if has_learned else 100,
    ]
    start("export.py", "--model_name_or_path", "run", *flags, cwd=tmp_path)
    report = json.loads((tmp_path / "run_int8" / "export.json").read_text())
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    before, plain, int8 = report["rows"][0], *report["rows"][-2:]
    assert report["score"] == score
    assert before["scores"][score] == pytest.approx(results[f"eval_{score}"], abs=1e-5)
    assert plain["largest_difference"] < 1e-4
    if has_learned:
        assert plain["scores"] == pytest.approx(before["scores"], abs=1e-4)
        assert int8["scores"][score] > before["scores"][score] - 0.02
    assert 0 < int8["mean_difference"] < 0.5
    assert report["compared_on"]["number"] == results["splits"]["validation"]["examples"]


def test_bert_base(tmp_path):
    import torch
    import transformers

    from bert_recipes.models.sizes import pretraining_config
    from bert_recipes.tokenization.loading import load_tokenizer
    from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS

    pieces = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(30_517))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", do_lower_case=True)
    config = pretraining_config("base", vocab_size=len(tokenizer))
    config.num_labels = 3
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    texts = [
        " ".join(f"w{(7 * row + word * word) % 30_517}" for word in range(1 + 5 * row))
        for row in range(40)
    ]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    flags = ["--input_file", "texts.txt", "--rounds", 1, "--speed_examples", 16, "--format", "int8"]
    start("export.py", "--model_name_or_path", "model", *flags, cwd=tmp_path)
    report = json.loads((tmp_path / "model_int8" / "export.json").read_text())
    plain, int8 = report["rows"][-2:]
    assert plain["largest_difference"] < 1e-5
    assert plain["bytes"] > 4 * 109_000_000
    assert int8["bytes"] < plain["bytes"] / 3.9
    assert report["int8"]["int8_weights"] > 0.99 * 109_000_000
    assert int8["mean_difference"] < 0.1


def test_every_opset_that_is_allowed_is_written_and_read(tiny_runs, tmp_path):
    from bert_recipes.exporting.arguments import OPSETS

    run = tiny_runs("sequence_classification")
    for opset in range(OPSETS[0], OPSETS[1] + 1):
        flags = [
            "--opset",
            opset,
            "--output_dir",
            tmp_path / str(opset),
            "--rounds",
            1,
            "--format",
            "int8",
        ]
        start(
            "export.py", "--model_name_or_path", run, *flags, "--max_score_drop", 100, cwd=tmp_path
        )
        report = json.loads((tmp_path / str(opset) / "export.json").read_text())
        assert report["opset"]["ai.onnx"] == opset
        assert report["rows"][-2]["largest_difference"] < 1e-5


def test_a_polite_end_leaves_nothing(tiny_runs, tmp_path):
    run = shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "runs" / "mine")
    command = [
        sys.executable,
        Path(__file__).parents[2] / "recipes" / "export.py",
        "--model_name_or_path",
        run,
    ]
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


def test_the_recipe_is_quiet_and_prints_the_table(repository, tiny_runs, tmp_path):
    run = shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "mine")
    command = [sys.executable, repository / "recipes" / "export.py", "--model_name_or_path", "mine"]
    command += ["--format", "int8", "--rounds", "1", "--max_score_drop", "100"]
    environment = {
        name: value for name, value in os.environ.items() if name != "WANDB_MODE"
    }  # stock prints a line for it
    start = partial(
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
    table = [
        line
        for line in (tmp_path / "mine_int8" / "export.md").read_text().splitlines()
        if line[:1] == "|"
    ]
    assert done.stdout.splitlines()[:-1] == table[: len(done.stdout.splitlines()) - 1]
    # Lines of our own only, each with its time, and transformers' progress bars.
    lines = [line.rpartition("\r")[2] for line in done.stderr.splitlines()]
    others = [line for line in lines if line and not line.startswith("Loading weights")]
    assert all(line[2:3] == ":" and " bert_recipes." in line for line in others), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine_int8"]
    assert sorted(path.name for path in run.iterdir()) == sorted(
        path.name for path in tiny_runs("sequence_classification").iterdir()
    )
    done = start()
    assert done.returncode == 1
    assert done.stderr == "error: output_dir: mine_int8 is not empty; give a new folder\n"
