"""torchrun on two machines: two network namespaces with names and addresses of their own.

It needs root and iproute2; see machines.sh.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bert_recipes.checkpointing import last_complete


MACHINES = Path(__file__).with_name("machines.sh")
CAN_START = os.geteuid() == 0 and shutil.which("ip") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_START, reason="needs root and iproute2"),
]

FLAGS = (
    "--max_seq_length 48 --max_steps 150 --warmup_steps 1 --learning_rate 1e-3 --size tiny "
    "--per_device_train_batch_size 2 --global_train_batch_size 4 --logging_steps 100 "
    "--eval_strategy no --save_strategy steps --save_steps 20 --save_total_limit 1 "
    "--use_cpu true --precision fp32 --disable_tqdm true"
)


@pytest.fixture
def machines():
    subprocess.run([MACHINES, "start"], check=True)
    yield
    subprocess.run([MACHINES, "stop"], check=True)


@pytest.fixture
def start(machines, repository, small_store, tmp_path):
    """A function that starts the script on a machine; its log is a file of tmp_path."""
    job = {
        "MACHINES": "2",
        "PROCESSES": "1",
        "FIRST": "10.77.0.1",
        "RESTARTS": "3",
        "PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "20",
    }

    def start_script(machine, folder):
        command = [MACHINES, "on", machine, "recipes/cluster/pretrain_torchrun.sh"]
        command += [*FLAGS.split(), "--store", str(small_store), "--output_dir", str(folder)]
        # Not a pipe: nobody reads it while the test waits for the other machine.
        with (tmp_path / f"{folder.name}_{machine}.log").open("a") as log:
            return subprocess.Popen(
                command,
                cwd=repository,
                env=os.environ | job,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    return start_script


def finish(*launchers):
    for launcher in launchers:
        assert launcher.wait(timeout=600) == 0, launcher.args


def test_a_machine_is_lost_and_comes_back_and_the_run_is_that_of_two_that_stayed(start, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    finish(start("bert-one", whole), start("bert-two", whole))

    first = start("bert-one", folder)
    lost = start("bert-two", folder)
    end = time.monotonic() + 300
    while last_complete(folder)[0] is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    subprocess.run([MACHINES, "lose", "bert-two"], check=True)
    lost.wait(timeout=60)
    subprocess.run([MACHINES, "find", "bert-two"], check=True)
    finish(first, start("bert-two", folder))

    results = json.loads((folder / "all_results.json").read_text())
    assert results["processes"] == 2
    assert 0 < results["resumed_at_step"] < results["train_steps"] == 150
    weights = load_file(folder / "model.safetensors")
    for name, tensor in load_file(whole / "model.safetensors").items():
        assert torch.equal(weights[name], tensor), name
