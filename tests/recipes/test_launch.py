"""Pre-training under the launcher: two processes are one run."""

import json
import re

import pytest
from python_process import run_python


# Port 0: the launcher takes a free one, so that runs beside each other do not collide.
LAUNCHER = (
    "-m accelerate.commands.launch --quiet --main_process_port 0 "
    "--config_file accelerate_configs/ddp_cpu.yaml"
)
FLAGS = (
    "--max_seq_length 32 --max_steps 4 --warmup_steps 1 --learning_rate 1e-3 --dropout 0 "
    "--per_device_train_batch_size 2 --global_train_batch_size 4 --logging_steps 1 "
    "--max_eval_pairs 10 --eval_strategy no --precision fp32"
)


@pytest.fixture(scope="module")
def launch(small_store, tmp_path_factory):
    """The folder of a run of two processes, and what starts it: exit code -> its errors."""
    folder = tmp_path_factory.mktemp("ddp_cpu") / "run"
    command = f"{LAUNCHER} recipes/pretrain.py --store {small_store} --output_dir {folder} {FLAGS}"

    return folder, lambda code: run_python(command, code=code).stderr


@pytest.fixture(scope="module")
def two_processes(launch):
    folder, start = launch
    start(0)
    return folder


def test_two_processes_leave_one_run(two_processes):
    assert {path.name for path in two_processes.parent.iterdir()} == {"run", ".run.lock"}
    for name in ("model.safetensors", "vocab.txt", "run.yaml", "report.html", "losses.png"):
        assert (two_processes / name).is_file()
    report = json.loads((two_processes / "report.json").read_text())
    assert report["run"]["global_train_batch_size"] == 4
    results = json.loads((two_processes / "all_results.json").read_text())
    assert (results["processes"], results["train_steps"], results["eval_pairs"]) == (2, 4, 10)


@pytest.mark.slow
def test_a_mistake_under_two_processes_is_told_and_ends_them(launch, two_processes):
    before = sorted(path.name for path in two_processes.iterdir())
    errors = launch[1](1)
    assert re.search("error: .*holds a finished run", errors), errors
    assert sorted(path.name for path in two_processes.iterdir()) == before
