"""TinyBERT's stages of a task as a user runs them: augmented rows, the teacher's layers, its
answers.
"""

import json
import shutil

import pytest
import torch
import transformers
from python_process import run_python
from safetensors.torch import load_file
from transformers import AutoModel


def results_of(folder):
    return json.loads((folder / "all_results.json").read_text())


def test_both_stages_as_a_user_runs_them(call_recipe, tiny_runs, tmp_path):
    teacher = tiny_runs("sequence_classification")
    task, start = teacher.parent / "data" / "task.yaml", teacher.parent / "start"
    layers, student = tmp_path / "layers", tmp_path / "student"
    common = f"--task_file {task} --teacher {teacher} --max_seq_length 40 --max_steps 5"
    common += " --use_cpu true --disable_tqdm true --logging_steps 1"
    config = "--config recipes/configs/finetune/tinybert_intermediate.yaml --learning_rate 1e-3"
    paths = f"--model_name_or_path {start} --output_dir {layers}"
    call_recipe("finetune", config, common, paths)
    _, info = transformers.BertForSequenceClassification.from_pretrained(
        layers, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    history = json.loads((layers / "trainer_state.json").read_text())["log_history"]
    losses = [line["loss"] for line in history if "loss" in line]
    assert losses[-1] < losses[0]
    assert not any(name.startswith("eval_") for name in results_of(layers))

    config = "--config recipes/configs/finetune/tinybert_prediction.yaml"
    paths = f"--model_name_or_path {layers} --output_dir {student}"
    call_recipe("finetune", config, common, paths)
    assert "eval_accuracy" in results_of(student)


def test_augmented_rows_are_a_folder_that_fine_tuning_reads(
    call_recipe, tiny_runs, tiny_checkpoint, tmp_path
):
    data = tiny_runs("sequence_classification").parent / "data"
    folder, run = tmp_path / "augmented", tmp_path / "run"
    common = f"--task_file {data}/task.yaml --model_name_or_path {tiny_checkpoint}"
    flags = f"{common} --num_copies 2 --output_dir {folder}".split()
    call_recipe("augment", *flags)
    written = (folder / "train.jsonl").read_text().splitlines()
    before = (data / "train.jsonl").read_text().splitlines()
    assert 3 * len(before) < len(written) <= 5 * len(before)

    settings = "--max_steps 2 --use_cpu true --disable_tqdm true"
    paths = f"--data_dir {folder} --output_dir {run}"
    call_recipe("finetune", f"{common} {settings} {paths}")
    splits = results_of(run)["splits"]
    assert splits["train"]["examples"] == len(written)
    assert splits["validation"]["examples"] == len(before)

    assert "is not empty" in call_recipe("augment", *flags, code=1)
    paths = f"--model_name_or_path {data.parent / 'run'} --output_dir {tmp_path / 'x'}"
    message = call_recipe("augment", *flags, *paths.split(), code=1)
    assert "has no masked-LM head" in message

    reader = shutil.copytree(tiny_checkpoint, tmp_path / "left_to_right")
    config = json.loads((reader / "config.json").read_text())
    (reader / "config.json").write_text(json.dumps({**config, "is_decoder": True}))
    paths = f"--model_name_or_path {reader} --output_dir {tmp_path / 'x'}"
    message = call_recipe("augment", *flags, *paths.split(), code=1)
    assert "reads from left to right and fills no masks" in message


@pytest.mark.slow
def test_two_processes_train_the_student_of_one(call_recipe, small_store, tmp_path):
    """Also where the last layer's values and feed-forward part learn nothing, which DDP waits
    for.
    """
    # Adam and Muon make large steps of gradients that are rounding alone.
    common = f"""
    --store {small_store} --max_seq_length 48 --max_steps 3 --warmup_steps 0 --dropout 0
    --global_train_batch_size 16 --learning_rate 0.1 --optimizer trainer --optim sgd
    --precision fp32 --use_cpu true --disable_tqdm true --eval_strategy no
    """
    teacher = tmp_path / "teacher"
    call_recipe("pretrain", f"{common} --size mini --output_dir {teacher}")
    # An encoder alone will do.
    AutoModel.from_pretrained(teacher).save_pretrained(teacher)
    student = f"{common} --objective tinybert --teacher {teacher} --alpha_hidn 0"
    one = f"{student} --per_device_train_batch_size 16 --output_dir {tmp_path / 'one'}"
    call_recipe("pretrain", one)
    two = f"{student} --per_device_train_batch_size 8 --output_dir {tmp_path / 'two'}"
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 recipes/pretrain.py"
    run_python(launcher, two)
    expected = load_file(tmp_path / "one" / "model.safetensors")
    weights = load_file(tmp_path / "two" / "model.safetensors")
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)
