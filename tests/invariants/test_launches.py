"""A run that is killed half way and started again, under the same launch or another, ends as one
that was not.

ZeRO and FSDP: tests/recipes/test_engines.py.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from in_process import keep_last
from logged_history import history_of
from python_process import run_python
from safetensors.torch import load_file


pytestmark = pytest.mark.slow

ALONE = ""
PAIR = (
    "-m accelerate.commands.launch --quiet --num_processes 2 --main_process_port 0 "
    "--config_file accelerate_configs/ddp_cpu.yaml"
)
STEPS, HALF = 8, 4
FLAGS = f"""
    --config recipes/configs/pretrain/bert_tiny.yaml --max_steps {STEPS} --phase2_steps 0
    --max_seq_length 48 --global_train_batch_size 16 --per_device_train_batch_size 8
    --phase2_per_device_train_batch_size 8 --warmup_steps 2 --learning_rate 1e-3 --precision fp32
    --save_strategy steps --save_steps {HALF} --eval_strategy no --dataloader_num_workers 0
    --logging_steps 1 --use_cpu true --disable_tqdm true
"""
PHASES = "--dropout 0.1 --phase2_max_seq_length 64 --phase2_steps"


def pretrain(launcher: str, store: Path, folder: Path, flags: str) -> None:
    words = keep_last([FLAGS, flags, "--store", store, "--output_dir", folder])
    run_python(launcher, "recipes/pretrain.py", *words)


def forget_second_half(folder: Path) -> None:
    """Leave what a run has that was killed right after the checkpoint in its middle."""
    for name in ("all_results.json", "model.safetensors"):
        (folder / name).unlink()
    for checkpoint in folder.glob("checkpoint-*"):
        if int(checkpoint.name.removeprefix("checkpoint-")) > HALF:
            shutil.rmtree(checkpoint)


@pytest.mark.parametrize(
    ("first", "second", "flags", "resumed_at"),
    [
        pytest.param(ALONE, ALONE, "--dropout 0.1 --dataloader_num_workers 2", 4, id="workers"),
        pytest.param(ALONE, ALONE, f"{PHASES} 6", 4, id="in_phase_two"),
        # The second phase begins with step 6.
        pytest.param(ALONE, ALONE, f"{PHASES} 2", 4, id="before_phase_two"),
        pytest.param(PAIR, PAIR, "--dropout 0.1", 4, id="two_processes"),
        # Each process drops elements of its own.
        pytest.param(PAIR, ALONE, "--dropout 0", 4, id="two_processes_then_one"),
        pytest.param(ALONE, PAIR, "--dropout 0", 4, id="one_process_then_two"),
    ],
)
def test_a_run_that_is_resumed_ends_as_one_that_is_not(
    small_store, tmp_path, first, second, flags, resumed_at
):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    pretrain(first, small_store, straight, flags)
    shutil.copytree(straight, resumed)
    forget_second_half(resumed)
    pretrain(second, small_store, resumed, flags)

    results = json.loads((resumed / "all_results.json").read_text())
    assert results["resumed_at_step"] == resumed_at
    weights = load_file(resumed / "model.safetensors")
    expected = load_file(straight / "model.safetensors")
    assert weights.keys() == expected.keys()
    tolerance = 0 if first is second else 1e-6
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=tolerance, msg=name)
    if first is second:
        history = history_of(resumed / "trainer_state.json")
        assert history == history_of(straight / "trainer_state.json")
