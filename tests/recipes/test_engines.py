"""Each launch configuration, with both recipes, on two processes over gloo: two steps, a checkpoint, a resume, an evaluation in which
the processes have unequal numbers of batches; all of it as in one process.

`recipes/launch.py` reads the shipped file; only the number of processes and the device differ from a launch on GPUs.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file


ENGINES = ["fsdp", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3", "deepspeed_zero3_offload"]
LAUNCHES = ["ddp", "ddp_cpu", "ddp_multi_node", *ENGINES]
COMMON = [
    "--max_seq_length",
    "32",
    "--max_steps",
    "2",
    "--warmup_steps",
    "0",
    "--learning_rate",
    "1e-3",
    "--dropout",
    "0",
]
COMMON += ["--global_train_batch_size", "8", "--per_device_train_batch_size", "2", "--per_device_eval_batch_size", "4"]
COMMON += [
    "--save_strategy",
    "steps",
    "--save_steps",
    "1",
    "--eval_strategy",
    "steps",
    "--eval_steps",
    "1",
    "--logging_steps",
    "1",
]
COMMON += ["--precision", "fp32", "--use_cpu", "true", "--disable_tqdm", "true"]


@pytest.fixture(scope="module")
def recipes(small_store, tiny_checkpoint, tmp_path_factory):
    """Recipe -> its flags; 9 pairs and 9 rows to evaluate on are 2 batches of 4 and 1 on two processes."""
    folder, rng = tmp_path_factory.mktemp("cola"), random.Random(0)
    for name, number in (("train", 40), ("validation", 9), ("test", 9)):
        rows = [
            {"idx": row, "sentence": "".join(rng.choices("abcdef", k=rng.randint(3, 20))), "label": row % 2}
            for row in range(number)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    finetuning = ["--task", "cola", "--model_name_or_path", str(tiny_checkpoint), "--data_dir", str(folder)]
    finetuning += ["--do_predict", "true", "--load_best_model_at_end", "true", "--metric_for_best_model", "loss"]
    return {
        "pretrain": ["--store", str(small_store), "--size", "tiny", "--max_eval_pairs", "9", *COMMON],
        "finetune": [*finetuning, *COMMON],
    }


def start(repository, launch, recipe, flags, folder):
    """Run it to its end, by one launcher a machine."""
    machines = 2 if launch == "ddp_multi_node" else 1
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "recipes/launch.py", "--config_file", f"accelerate_configs/{launch}.yaml"]
    command += ["--main_process_port", str(port), *([] if launch == "cpu" else ["--num_processes", "2"])]
    started = []
    for machine in range(machines):
        of_the_machine = ["--machine_rank", str(machine)] if machines > 1 else []
        whole = [*command, *of_the_machine, f"recipes/{recipe}.py", *flags, "--output_dir", str(folder)]
        environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        log = folder.with_name(f"{folder.name}-{machine}.log")
        with log.open("w") as file:
            started.append(
                (log, subprocess.Popen(whole, cwd=repository, env=environment, stdout=file, stderr=subprocess.STDOUT))
            )
    for log, process in started:
        # DeepSpeed compiles its collectives for CPUs when they are first used.
        assert process.wait(timeout=600) == 0, log.read_text()[-3000:]


@pytest.fixture(scope="module", params=["pretrain", "finetune"])
def alone(request, repository, recipes, tmp_path_factory):
    """A recipe, and its run in one process."""
    folder = tmp_path_factory.mktemp("alone") / request.param
    start(repository, "cpu", request.param, recipes[request.param], folder)
    return request.param, folder


def figures(folder):
    """What a log says of steps and of evaluations."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    names = (
        "loss",
        "mlm_loss",
        "nsp_loss",
        "grad_norm",
        "eval_loss",
        "eval_mlm_loss",
        "eval_nsp_loss",
        "eval_matthews_correlation",
    )
    return [{name: line[name] for name in names if name in line} for line in history]


def assert_same_run(folder, other, *, clips_alike):
    for ours, theirs in zip(figures(folder), figures(other), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    weights, expected = load_file(folder / "model.safetensors"), load_file(other / "model.safetensors")
    assert expected.keys() <= weights.keys()  # tied weights may be there under both names
    for name, weight in expected.items():
        assert weights[name].dtype == torch.float32
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5 if clips_alike else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launch_is_the_run_of_one_process_and_goes_on(repository, recipes, alone, tmp_path, launch):
    if launch.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    recipe, expected = alone
    # DeepSpeed's norm of the gradients is its own, a little larger.
    clips_alike = not launch.startswith("deepspeed")
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    start(repository, launch, recipe, recipes[recipe], whole)
    assert_same_run(whole, expected, clips_alike=clips_alike)
    if recipe == "finetune":
        ours, theirs = (sorted(path.name for path in folder.glob("predictions*")) for folder in (whole, expected))
        assert ours == theirs
    # As if it had been lost after its first step.
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoint-2")
    for name in ("all_results.json", "model.safetensors"):
        (resumed / name).unlink()
    start(repository, launch, recipe, [*recipes[recipe], "--resume", "last"], resumed)
    assert json.loads((resumed / "all_results.json").read_text())["resumed_at_step"] == 1
    assert_same_run(resumed, whole, clips_alike=True)
