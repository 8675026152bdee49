"""Whatever ends a run, it goes on to the weights of a run that was not ended, bit for bit."""

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ended_run import HERE, STEPS, flags_for, wait_for
from logged_history import history_of
from python_process import REPOSITORY, run_python

from bert_recipes.checkpointing import last_complete, read_step


RECIPE = REPOSITORY / "recipes" / "pretrain.py"


@pytest.fixture(scope="module")
def straight(small_store, tmp_path_factory):
    """The run that nothing ends."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run_python(RECIPE, *flags_for(small_store, folder))
    return folder


def begin(argv: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(RECIPE), *argv]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def assert_resumes(argv: list[str], folder: Path, straight: Path) -> str:
    """The same command ends with the weights of a run that was not ended; what it says."""
    done = run_python(RECIPE, *argv)
    assert_same_weights(folder / "model.safetensors", straight)
    return done.stderr


def assert_same_weights(file: Path, straight: Path) -> None:
    assert file.read_bytes() == (straight / "model.safetensors").read_bytes()


def kill_again_and_again(
    store: Path, folder: Path, number: int, kills: int, seed: int, inside_a_save: int = 0
) -> dict:
    settings = {
        "argv": flags_for(store, folder),
        "output_dir": str(folder),
        "kills": kills,
        "signal": int(number),
        # Long enough to start, short enough to end in the middle.
        "between": [0.6, 2.4],
        "inside_a_save": inside_a_save,
        "seed": seed,
    }
    words = json.dumps(settings, separators=(",", ":"))
    done = run_python(HERE / "killed_runs.py", words, timeout=3000)
    return json.loads(done.stdout.splitlines()[-1])


def assert_like(straight: Path, folder: Path, finished: int) -> None:
    """The weights bit for bit, and the log but for what the clock says."""
    assert finished >= 1
    for number in range(1, finished + 1):
        prefix = f"finished-{number}-"
        assert_same_weights(folder.parent / f"{prefix}model.safetensors", straight)
        history = history_of(folder.parent / f"{prefix}trainer_state.json")
        assert history == history_of(straight / "trainer_state.json")


@pytest.mark.slow
def test_fifty_kills_at_random_instants(straight, small_store, tmp_path, capsys):
    folder = tmp_path / "run"
    result = kill_again_and_again(small_store, folder, signal.SIGKILL, 50, seed=1, inside_a_save=10)
    lives, finished = result["lives"], result["finished"]
    assert len(lives) >= 50
    assert all(life["code"] == -signal.SIGKILL for life in lives)
    fell = collections.Counter(life["fell"] for life in lives)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(lives)} kills: {dict(fell)}; {finished} runs came to their end\n")
    assert fell["writing a checkpoint"] >= 10
    assert_like(straight, folder, finished)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_run_in_good_order_again_and_again(
    straight, small_store, tmp_path, capsys, number
):
    result = kill_again_and_again(small_store, tmp_path / "run", number, 12, seed=2)
    codes = collections.Counter(life["code"] for life in result["lives"])
    with capsys.disabled():
        sys.stdout.write(f"\n12 {number.name}: exit codes {dict(codes)}\n")
    # Before the training begins a signal ends the process as it ends any other.
    assert set(codes) <= {128 + number, -number}
    assert codes[128 + number] >= 6
    assert_like(straight, tmp_path / "run", result["finished"])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_step_and_the_same_command_goes_on(
    small_store, straight, tmp_path, number, code
):
    folder = tmp_path / "run"
    argv = [*flags_for(small_store, folder), "--save_strategy", "no"]
    process = begin(argv)
    # The training begins right after it, and takes longer than this.
    assert wait_for((folder / "run.yaml").exists, 120)
    time.sleep(0.5)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr[-2000:]
    assert "Traceback" not in stderr
    checkpoint, incomplete = last_complete(folder)
    assert not incomplete
    step = read_step(checkpoint)
    assert f"stopped by {number.name} after step {step} of {STEPS}" in stderr
    stderr = assert_resumes(argv, folder, straight)
    assert f"is resumed from {checkpoint.name}" in stderr


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_last_checkpoint_is_whole(small_store, straight, tmp_path):
    """No file may have more bytes than the weights: the optimizer's state does not fit."""
    import resource

    folder = tmp_path / "run"
    argv = flags_for(small_store, folder)
    size = (straight / "model.safetensors").stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, size + 1000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = run_python(RECIPE, *argv, code=1, preexec_fn=limit)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr[-2000:]
    assert "cannot be written" in errors[0]
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("checkpoint-*"))
    assert not list(folder.glob(".aside-*"))
    assert_resumes(argv, folder, straight)


@pytest.mark.slow
def test_a_killed_data_worker_is_told_and_the_run_goes_on(small_store, straight, tmp_path):
    folder = tmp_path / "run"
    argv = [*flags_for(small_store, folder), "--dataloader_num_workers", "1"]
    process = begin(argv)
    assert wait_for(lambda: last_complete(folder)[0] is not None, 120)
    workers = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    for worker in workers:
        os.kill(int(worker), signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stderr[-2000:]
    assert "DataLoader worker" in stderr
    assert_resumes(argv, folder, straight)


@pytest.mark.slow
def test_a_store_that_vanishes_stays_open_and_is_missed_by_the_next_start(
    small_store, straight, tmp_path
):
    """Also what is read for the first time in the second phase."""
    store, folder = tmp_path / "store", tmp_path / "run"
    shutil.copytree(small_store, store, ignore=shutil.ignore_patterns(".cache"))
    argv = flags_for(store, folder)
    process = begin(argv)
    assert wait_for(lambda: last_complete(folder)[0] is not None, 120)
    store.rename(tmp_path / "elsewhere")
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr[-2000:]
    assert_same_weights(folder / "model.safetensors", straight)
    done = run_python(RECIPE, *argv, "--resume last", code=1)
    assert f"error: {store}" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
