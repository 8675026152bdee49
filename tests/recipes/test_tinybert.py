"""TinyBERT's stages of a task as a user runs them: augmented rows, the teacher's layers, its
answers.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModel


def test_both_stages_as_a_user_runs_them(call_recipe, tiny_runs, tmp_path):
    teacher = tiny_runs("sequence_classification")
    data, start = teacher.parent / "data", teacher.parent / "start"
    common = [
        "--task_file",
        data / "task.yaml",
        "--teacher",
        teacher,
        "--max_seq_length",
        40,
        "--max_steps",
        5,
    ]
    common += ["--use_cpu", "true", "--disable_tqdm", "true", "--logging_steps", 1]
    configs, layers = Path("recipes/configs/finetune"), tmp_path / "layers"
    first = ["--config", configs / "tinybert_intermediate.yaml", "--learning_rate", 1e-3, *common]
    call_recipe("finetune", *first, "--model_name_or_path", start, "--output_dir", layers)
    _, info = transformers.BertForSequenceClassification.from_pretrained(
        layers, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    history = json.loads((layers / "trainer_state.json").read_text())["log_history"]
    losses = [line["loss"] for line in history if "loss" in line]
    assert losses[-1] < losses[0]
    assert not any(
        name.startswith("eval_") for name in json.loads((layers / "all_results.json").read_text())
    )
    second = ["--config", configs / "tinybert_prediction.yaml", *common]
    call_recipe(
        "finetune", *second, "--model_name_or_path", layers, "--output_dir", tmp_path / "tiny"
    )
    assert "eval_accuracy" in json.loads((tmp_path / "tiny" / "all_results.json").read_text())


def test_augmented_rows_are_a_folder_that_fine_tuning_reads(
    call_recipe, tiny_runs, tiny_checkpoint, tmp_path
):
    data = tiny_runs("sequence_classification").parent / "data"
    flags = [
        "--task_file",
        data / "task.yaml",
        "--model_name_or_path",
        tiny_checkpoint,
        "--num_copies",
        2,
    ]
    call_recipe("augment", *flags, "--output_dir", tmp_path / "more")
    written = (tmp_path / "more" / "train.jsonl").read_text().splitlines()
    before = (data / "train.jsonl").read_text().splitlines()
    assert 3 * len(before) < len(written) <= 5 * len(before)
    train = [
        "--task_file",
        data / "task.yaml",
        "--data_dir",
        tmp_path / "more",
        "--model_name_or_path",
        tiny_checkpoint,
    ]
    train += [
        "--max_steps",
        2,
        "--use_cpu",
        "true",
        "--disable_tqdm",
        "true",
        "--output_dir",
        tmp_path / "run",
    ]
    call_recipe("finetune", *train)
    splits = json.loads((tmp_path / "run" / "all_results.json").read_text())["splits"]
    assert (splits["train"]["examples"], splits["validation"]["examples"]) == (
        len(written),
        len(before),
    )
    message = call_recipe("augment", *flags, "--output_dir", tmp_path / "more", code=1)
    assert "is not empty" in message
    message = call_recipe(
        "augment",
        *flags,
        "--model_name_or_path",
        data.parent / "run",
        "--output_dir",
        tmp_path / "x",
        code=1,
    )
    assert "has no masked-LM head" in message


@pytest.mark.slow
def test_two_processes_train_the_student_of_one(call_recipe, repository, small_store, tmp_path):
    """Also where the last layer's values and feed-forward part learn nothing, which DDP waits
    for.
    """
    common = [
        "--store",
        small_store,
        "--max_seq_length",
        48,
        "--max_steps",
        3,
        "--warmup_steps",
        0,
        "--dropout",
        0,
    ]
    common += [
        "--global_train_batch_size",
        16,
        "--precision",
        "fp32",
        "--use_cpu",
        "true",
        "--disable_tqdm",
        "true",
    ]
    common += ["--eval_strategy", "no", "--learning_rate", 0.1]
    # Adam and Muon make large steps of gradients that are rounding alone.
    common += ["--optimizer", "trainer", "--optim", "sgd"]
    call_recipe("pretrain", *common, "--size", "mini", "--output_dir", tmp_path / "teacher")
    # An encoder alone will do.
    AutoModel.from_pretrained(tmp_path / "teacher").save_pretrained(tmp_path / "teacher")
    flags = [
        *common,
        "--objective",
        "tinybert",
        "--teacher",
        tmp_path / "teacher",
        "--alpha_hidn",
        0,
    ]
    call_recipe(
        "pretrain", *flags, "--per_device_train_batch_size", 16, "--output_dir", tmp_path / "1"
    )
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        2,
        "recipes/pretrain.py",
    ]
    two = [*start, *flags, "--per_device_train_batch_size", 8, "--output_dir", tmp_path / "2"]
    done = subprocess.run(
        list(map(str, two)),
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in "12")
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6)
