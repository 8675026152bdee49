"""Pre-training under the launcher: two processes are one run, a stopped run goes on, a replaced one
leaves nothing.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


SETTINGS = """
--max_seq_length 32 --max_steps 4 --warmup_steps 1 --learning_rate 1e-3 --dropout 0
--per_device_train_batch_size 2 --global_train_batch_size 4 --logging_steps 1
--max_eval_pairs 10 --eval_strategy no --precision fp32
"""
SAVING = ["--save_strategy steps --save_steps 2"]


def run(
    repository: Path,
    store: Path,
    output_dir: Path,
    *flags: str,
    launch: str | None = None,
    ok: bool = True,
):
    launcher = ""
    if launch is not None:
        # As the Makefile has it. Port 0: the launcher takes a free one, so that runs beside each
        # other do not collide.
        launcher = "-m accelerate.commands.launch --quiet --main_process_port 0"
        launcher += f" --config_file accelerate_configs/{launch}.yaml"
    recipe = f"recipes/pretrain.py --store {store} --output_dir {output_dir}"
    command = [sys.executable, *launcher.split(), *recipe.split()]
    done = subprocess.run(
        [*command, *SETTINGS.split(), *flags],
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
    history = read(folder / "trainer_state.json")["log_history"]
    return [line["loss"] for line in history if "loss" in line]


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
    for name in ("model.safetensors", "vocab.txt", "run.yaml", "report.html", "losses.png"):
        assert (two_processes / name).is_file()
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
    assert re.search("error: .*holds a finished run", done.stderr), done.stderr
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
    weights = (stopped / "model.safetensors").read_bytes()
    assert weights == (one_process / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_overwrite_run_replaces_the_whole_folder(
    repository, small_store, one_process: Path, tmp_path: Path
):
    folder = tmp_path / "run"
    shutil.copytree(one_process, folder)
    assert (folder / "checkpoint-4").is_dir()
    flags = ["--overwrite_run true --max_steps 1 --save_strategy no"]
    run(repository, small_store, folder, *flags)
    assert not list(folder.glob("checkpoint-*"))
    assert read(folder / "all_results.json")["train_steps"] == 1
    assert len(losses(folder)) == 1
