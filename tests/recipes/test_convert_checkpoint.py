"""recipes/convert_checkpoint.py, and training that goes on from what it writes."""

from functools import partial

import numpy as np
import pytest
from fixture_parts import CONFIG
from original_model import draw_variables, write_original
from safetensors.numpy import load_file
from tiny_runs import write_jsonl


FLAGS = (
    "--max_seq_length 32 --per_device_train_batch_size 4 --global_train_batch_size 4 --max_steps 2 "
    "--eval_strategy no --precision fp32 --use_cpu true"
)


@pytest.fixture
def convert(call_recipe):
    """Run the recipe, and return its output."""
    return partial(call_recipe, "convert_checkpoint")


def test_a_checkpoint_of_google_is_pre_trained_here(call_recipe, small_store, convert, tmp_path):
    folder = tmp_path / "uncased_L-2_H-8_A-2"
    pieces = (small_store / "tokenizer" / "vocab.txt").read_text().split()
    config = {**CONFIG, "vocab_size": len(pieces)}
    variables, plain = draw_variables(config, with_adam=True), draw_variables(config)
    prefix = write_original(folder, variables, config, pieces=pieces)
    assert convert("--tf_checkpoint", prefix, "--output_dir", tmp_path / "hub").splitlines() == [
        f"read {prefix}: {len(plain)} variables, {sum(array.size for array in plain.values()):,} "
        "parameters",
        f"left out: {2 * len(plain) + 1} variables of the optimizer, which a new run starts from "
        "scratch",
        f"wrote {tmp_path / 'hub'}: BertForPreTraining, do_lower_case true",
    ]
    paths = f"--model_name_or_path {tmp_path}/hub --output_dir {tmp_path}/run --store {small_store}"
    call_recipe("pretrain", paths, FLAGS, "--warmup_steps 1 --save_strategy no")
    kernel = load_file(tmp_path / "run" / "model.safetensors")["bert.pooler.dense.weight"]
    difference = np.abs(kernel.T - variables["bert/pooler/dense/kernel"]).max()
    assert 0 < difference < 0.01  # two steps further


@pytest.mark.slow
def test_a_checkpoint_of_google_is_fine_tuned_here(call_recipe, convert, tmp_path, caplog):
    write_original(tmp_path / "google", draw_variables())
    convert("--tf_checkpoint", tmp_path / "google", "--output_dir", tmp_path / "hub")
    rows = [{"text": "a b c", "label": 0}, {"text": "x y z", "label": 1}] * 4
    write_jsonl(tmp_path / "rows.jsonl", rows)
    files = "files: {train: rows.jsonl, validation: rows.jsonl}"
    kind = "kind: sequence_classification\nlabels: [a, b]\ntext_columns: text"
    (tmp_path / "task.yaml").write_text(f"name: mine\n{kind}\n{files}\n")
    paths = f"--task_file {tmp_path}/task.yaml --model_name_or_path {tmp_path}/hub"
    call_recipe("finetune", paths, FLAGS, "--output_dir", tmp_path / "tuned")
    assert "starts anew" not in caplog.text
    weights = load_file(tmp_path / "tuned" / "model.safetensors")
    assert weights["classifier.weight"].shape == (2, CONFIG["hidden_size"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--to_tensorflow", "it was removed: use the folder in the Hub's form"),
        ("--tf_checkpoint google --output_dir google", "is not empty; give a new"),
        (
            "--tf_checkpoint google --skip_variables cls/x",
            "nothing that is called cls/x",
        ),
    ],
)
def test_mistakes_are_one_line(convert, tmp_path, monkeypatch, flags, message):
    write_original(tmp_path / "google", draw_variables())
    monkeypatch.chdir(tmp_path)
    (line,) = convert("--output_dir new", flags, code=1).splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "new").exists()
