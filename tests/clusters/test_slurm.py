"""The Slurm script and the corpus of tasks under a real Slurm of two nodes on this machine.

It needs root, and Debian's slurm-wlm and munge; see slurm.sh.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import torch
from python_process import run_python
from safetensors.torch import load_file
from small_corpora import contents_of

from bert_recipes.checkpointing import last_complete


CLUSTER = Path(__file__).with_name("slurm.sh")
CAN_START = os.geteuid() == 0 and shutil.which("slurmctld") and shutil.which("munged")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CAN_START, reason="needs root, slurm-wlm and munge"),
]

FLAGS = (
    "--max_seq_length 48 --max_steps 300 --warmup_steps 1 --learning_rate 1e-3 --size tiny "
    "--per_device_train_batch_size 2 --global_train_batch_size 4 --logging_steps 100 "
    "--eval_strategy no --save_strategy steps --save_steps 20 --save_total_limit 1 "
    "--use_cpu true --precision fp32 --disable_tqdm true"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Starts the cluster and sets SLURM_CONF; a job's environment is that of this process."""
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([CLUSTER, "start", folder], check=True)
    job = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PYTHON": sys.executable,
        "LAUNCH": "ddp_cpu",
        "PROCESSES": "1",
        "OMP_NUM_THREADS": "1",
        # datatrove's jobs call a script of its own.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]),
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in job.items():
            environment.setenv(name, value)
        yield folder
        subprocess.run([CLUSTER, "stop", folder], check=True)


@pytest.fixture
def train(cluster, repository, small_store):
    """Submits recipes/cluster/pretrain.slurm; returns the number of the job."""

    def submit(folder, nodes=2):
        command = ["sbatch", "--parsable", "--partition", "low", "--nodes", str(nodes)]
        command += ["--gpus-per-node", "0", "--cpus-per-task", "1"]
        command += ["--output", f"{folder}.log", "recipes/cluster/pretrain.slurm"]
        command += [*FLAGS.split(), "--store", str(small_store), "--output_dir", str(folder)]
        return ask(*command, cwd=repository)

    return submit


def ask(*command, **settings):
    done = subprocess.run(command, capture_output=True, text=True, check=True, **settings)
    return done.stdout.strip()


def wait_until(condition, seconds=300):
    """Wait, and fail with what Slurm knows of its jobs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, ask("scontrol", "show", "jobs")
        time.sleep(0.2)


def state(job):
    """The state of a job, and how often it was queued again."""
    facts = ask("scontrol", "--oneliner", "show", "job", job)
    values = dict(word.split("=", 1) for word in facts.split() if "=" in word)
    return values["JobState"], int(values["Restarts"])


def test_a_preempted_job_is_queued_again_and_ends_bit_for_bit_as_one_that_was_not(train, tmp_path):
    whole = train(tmp_path / "whole")
    wait_until(lambda: state(whole)[0] == "COMPLETED")
    results = json.loads((tmp_path / "whole" / "all_results.json").read_text())
    assert (results["processes"], results["train_steps"]) == (2, 300)

    job = train(tmp_path / "run")
    wait_until(lambda: last_complete(tmp_path / "run")[0] is not None)
    urgent = ask("sbatch", "--parsable", "--partition", "high", "--nodes", "2", "--wrap", "sleep 2")
    wait_until(lambda: state(urgent)[0] == "COMPLETED")
    wait_until(lambda: state(job)[0] == "COMPLETED")
    assert state(job)[1] == 1
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert 0 < results["resumed_at_step"] < results["train_steps"] == 300
    weights = load_file(tmp_path / "run" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(weights[name], tensor), name


def test_a_cancelled_job_saves_and_is_not_queued_again(train, tmp_path):
    job = train(tmp_path / "run", nodes=1)
    wait_until(lambda: last_complete(tmp_path / "run")[0] is not None)
    ask("scancel", job)
    wait_until(lambda: state(job)[0] == "CANCELLED")
    time.sleep(2)
    assert state(job) == ("CANCELLED", 0)
    assert last_complete(tmp_path / "run")[0] is not None


def test_a_mistake_ends_a_job_for_good(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("somebody else's")
    job = train(tmp_path / "run")
    wait_until(lambda: state(job)[0] == "FAILED")
    assert state(job)[1] == 0
    assert "error: " in (tmp_path / "run.log").read_text()


def test_tasks_of_slurm_make_the_store_of_one_machine(cluster, corpus, tmp_path):
    tasks = "--executor slurm --partition low --time 00:10:00 --mem_per_cpu_gb 1"
    store = tmp_path / "store"
    run_python(f"recipes/prepare_on_cluster.py {corpus.flags} {tasks} --output_dir {store}")
    wait_until((store / "store.json").is_file)
    assert contents_of(store) == corpus.contents
