"""Pre-training under the launcher: two processes are one run, a stopped run goes on, a replaced one
leaves nothing.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file


SETTINGS = [
    "--max_seq_length",
    "32",
    "--max_steps",
    "4",
    "--warmup_steps",
    "1",
    "--learning_rate",
    "1e-3",
]
SETTINGS += [
    "--per_device_train_batch_size",
    "2",
    "--global_train_batch_size",
    "4",
    "--logging_steps",
    "1",
]
SETTINGS += [
    "--max_eval_pairs",
    "10",
    "--eval_strategy",
    "no",
    "--dropout",
    "0",
    "--precision",
    "fp32",
]
SAVING = ["--save_strategy", "steps", "--save_steps", "2"]


def run(
    repository: Path,
    store: Path,
    output_dir: Path,
    *flags: str,
    launch: str | None = None,
    ok: bool = True,
):
    command = [sys.executable]
    if launch is not None:
        # As the Makefile has it. Port 0: the launcher takes a free one, so that runs beside each
        # other do not collide.
        command += ["-m", "accelerate.commands.launch", "--quiet", "--main_process_port", "0"]
        command += ["--config_file", str(repository / "accelerate_configs" / f"{launch}.yaml")]
    command += [
        str(repository / "recipes" / "pretrain.py"),
        "--store",
        str(store),
        "--output_dir",
        str(output_dir),
    ]
    done = subprocess.run(
        [*command, *SETTINGS, *flags],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=repository,
    )
    assert (done.returncode == 0) == ok, done.stderr[-3000:]
    return done


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def losses(folder: Path) -> list[float]:
    return [
        line["loss"]
        for line in read(folder / "trainer_state.json")["log_history"]
        if "loss" in line
    ]


@pytest.fixture(scope="module")
def one_process(repository, small_store, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cpu") / "run"
    run(repository, small_store, folder, *SAVING, launch="cpu")
    return folder


@pytest.fixture(scope="module")
def two_processes(repository, small_store, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ddp_cpu") / "run"
    run(repository, small_store, folder, launch="ddp_cpu")
    return folder


def test_two_processes_leave_one_run(two_processes: Path):
    assert {path.name for path in two_processes.parent.iterdir()} == {"run", ".run.lock"}
    names = {path.name for path in two_processes.iterdir()}
    assert {
        "model.safetensors",
        "vocab.txt",
        "run.yaml",
        "all_results.json",
        "report.html",
        "losses.png",
    } <= names
    assert read(two_processes / "report.json")["run"]["global_train_batch_size"] == 4
    results = read(two_processes / "all_results.json")
    assert results["processes"] == 2
    assert results["train_steps"] == 4
    assert results["eval_pairs"] == 10


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(one_process: Path, two_processes: Path):
    assert read(one_process / "all_results.json")["processes"] == 1
    one, two = losses(one_process), losses(two_processes)
    assert len(one) == len(two) == 4
    assert two[0] == pytest.approx(one[0], abs=1e-5)


def test_a_mistake_under_two_processes_is_told_and_ends_them(
    repository, small_store, two_processes: Path
):
    before = sorted(path.name for path in two_processes.iterdir())
    done = run(repository, small_store, two_processes, launch="ddp_cpu", ok=False)
    errors = [
        line
        for line in done.stderr.splitlines()
        if "error: " in line and "holds a finished run" in line
    ]
    assert errors, done.stderr
    assert sorted(path.name for path in two_processes.iterdir()) == before


def test_a_stopped_run_goes_on_to_the_weights_of_one_that_was_not(
    repository, small_store, one_process: Path, tmp_path: Path
):
    # What a run leaves that is killed after step 2.
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    shutil.copy(one_process / "run.yaml", stopped)
    shutil.copytree(one_process / "checkpoint-2", stopped / "checkpoint-2")
    written = (stopped / "checkpoint-2" / "trainer_state.json").stat().st_mtime_ns
    run(repository, small_store, stopped, *SAVING)
    # A run from the start would have written the checkpoint again.
    assert (stopped / "checkpoint-2" / "trainer_state.json").stat().st_mtime_ns == written
    assert read(stopped / "all_results.json")["train_steps"] == 4
    assert losses(stopped) == losses(one_process)
    expected, weights = (
        load_file(folder / "model.safetensors") for folder in (one_process, stopped)
    )
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_overwrite_run_replaces_the_whole_folder(
    repository, small_store, one_process: Path, tmp_path: Path
):
    folder = tmp_path / "run"
    shutil.copytree(one_process, folder)
    assert (folder / "checkpoint-4").is_dir()
    run(
        repository,
        small_store,
        folder,
        "--overwrite_run",
        "true",
        "--max_steps",
        "1",
        "--save_strategy",
        "no",
    )
    assert not list(folder.glob("checkpoint-*"))
    assert read(folder / "all_results.json")["train_steps"] == 1
    assert len(losses(folder)) == 1
