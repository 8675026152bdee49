"""A run of two processes of which one is told to stop, is killed, or cannot write."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ended_run import flags_for, wait_for
from logged_history import history_of

from bert_recipes.checkpointing import last_complete, read_step


def launched(
    repository: Path,
    store: Path,
    folder: Path,
    script: Path | None = None,
    flags: tuple[str, ...] = (),
    launch: str = "ddp_cpu",
) -> subprocess.Popen[str]:
    """A run by `accelerate launch`, by default of two processes."""
    script = script or repository / "recipes" / "pretrain.py"
    config = repository / "accelerate_configs" / f"{launch}.yaml"
    launcher = f"-m accelerate.commands.launch --main_process_port 0 --config_file {config}"
    return subprocess.Popen(
        [sys.executable, *launcher.split(), script, *flags_for(store, folder), *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What a run said up to its end, which has that exit code."""
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == code, stderr[-2000:]
    return stderr


def assert_resumes(
    repository: Path, store: Path, folder: Path, straight: Path, flags: tuple[str, ...] = ()
) -> None:
    """The same command ends with the weights and the log of a run that was not ended."""
    ended(launched(repository, store, folder, flags=flags))
    assert (folder / "model.safetensors").read_bytes() == (
        straight / "model.safetensors"
    ).read_bytes()
    history = history_of(folder / "trainer_state.json")
    expected = history_of(straight / "trainer_state.json")
    assert [line["step"] for line in history] == [line["step"] for line in expected]
    assert lines_of_training(history) == lines_of_training(expected)


def lines_of_training(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a history without evaluations, whose batches may be others."""
    return [line for line in history if "eval_loss" not in line]


def with_preamble(file: Path, script: Path, preamble: str) -> Path:
    """A program that does something before it runs a script."""
    path = f"sys.path.insert(0, {str(script.parent)!r})\nsys.argv[0] = {str(script)!r}\n"
    file.write_text(
        f"import os, resource, runpy, signal, sys\n{preamble}\n{path}runpy.run_path(sys.argv[0], "
        "run_name='__main__')"
    )
    return file


@pytest.fixture(scope="module")
def straight_pair(repository, small_store, tmp_path_factory):
    """The run of two processes that nothing ends."""
    folder = tmp_path_factory.mktemp("pair") / "run"
    ended(launched(repository, small_store, folder))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_ends_both_processes_at_one_step(
    repository, small_store, straight_pair, tmp_path, number
):
    folder = tmp_path / "run"
    process = launched(repository, small_store, folder)
    assert wait_for(lambda: last_complete(folder)[0] is not None, 120)
    process.send_signal(number)
    stderr = ended(process, 1)
    checkpoint, incomplete = last_complete(folder)
    assert not incomplete
    # Torch's launcher passes Ctrl-C on as it came, or as SIGTERM.
    words = rf"stopped by SIG(TERM|INT) after step {read_step(checkpoint)} of"
    assert re.search(words, stderr), stderr[-2000:]
    assert_resumes(repository, small_store, folder, straight_pair)


def children(process):
    return subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.slow
def test_a_killed_peer_ends_the_other_process_and_the_run_goes_on(
    repository, small_store, straight_pair, tmp_path
):
    folder = tmp_path / "run"
    process = launched(repository, small_store, folder)
    assert wait_for(lambda: last_complete(folder)[0] is not None, 120)
    begin = time.monotonic()
    os.kill(int(children(process)[-1]), signal.SIGKILL)
    ended(process, 1)
    assert time.monotonic() - begin < 60
    assert last_complete(folder)[0] is not None
    assert_resumes(repository, small_store, folder, straight_pair)


# The second process may write no file of more than 1,000 bytes: less than its part of a checkpoint.
ONE_CANNOT_WRITE = """if os.environ["LOCAL_RANK"] == "1":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""


@pytest.mark.slow
def test_a_checkpoint_that_one_of_two_processes_cannot_write_ends_both(
    repository, small_store, straight_pair, tmp_path
):
    folder, script = tmp_path / "run", repository / "recipes" / "pretrain.py"
    limited = with_preamble(tmp_path / "limited.py", script, ONE_CANNOT_WRITE)
    begin = time.monotonic()
    process = launched(
        repository, small_store, folder, limited, flags=("--dataloader_num_workers", "0")
    )
    stderr = ended(process, 1)
    assert time.monotonic() - begin < 120
    # A bar of the other process may stand before it in the line.
    errors = re.findall("error: .*cannot be written", stderr)
    assert len(errors) == 1, stderr[-2000:]
    assert not list(folder.glob("checkpoint-*"))
    assert_resumes(repository, small_store, folder, straight_pair)


# What the data workers put into shared memory may have 1,000 bytes: less than a batch.
WORKERS_CANNOT_SHARE = """signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
os.register_at_fork(after_in_child=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
"""


@pytest.mark.slow
def test_a_batch_that_never_comes_ends_the_run(repository, small_store, tmp_path):
    script = repository / "recipes" / "pretrain.py"
    limited = with_preamble(tmp_path / "limited.py", script, WORKERS_CANNOT_SHARE)
    flags = flags_for(small_store, tmp_path / "run")
    flags += ["--dataloader_num_workers", "1", "--ddp_timeout", "5"]
    done = subprocess.run(
        [sys.executable, str(limited), *flags],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "DataLoader timed out after 5 seconds" in done.stderr


# The first process gets a signal at a batch of an evaluation.
SIGNAL_AT = """
from bert_recipes.training.bert_trainer import PreTrainingSums
real, calls = PreTrainingSums.add, []
def called(*args, **kwargs):
    calls.append(None)
    if len(calls) == {call} and os.environ["LOCAL_RANK"] == "0":
        os.kill(os.getpid(), signal.SIGTERM)
    return real(*args, **kwargs)
PreTrainingSums.add = called
"""


@pytest.mark.slow
# Of two batches each: after step 50, 100 (where the second phase begins), 150 and 160.
@pytest.mark.parametrize(
    "call", [1, 3, 7], ids=["in the training", "at the end of a phase", "last evaluation"]
)
def test_a_signal_to_one_process_ends_the_evaluation_of_both(
    repository, small_store, straight_pair, tmp_path, call
):
    """The other one learns of it between two batches."""
    folder, script = tmp_path / "run", repository / "recipes" / "pretrain.py"
    program = with_preamble(tmp_path / "told_to_stop.py", script, SIGNAL_AT.format(call=call))
    flags = ("--per_device_eval_batch_size", "2")
    process = launched(repository, small_store, folder, program, flags)
    stderr = ended(process, 1)
    assert "stopped by SIGTERM" in stderr
    assert_resumes(repository, small_store, folder, straight_pair, flags)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process that its parent has ended"
)
@pytest.mark.parametrize(
    ("launch", "number"), [("ddp_cpu", signal.SIGKILL), ("cpu", signal.SIGTERM)]
)
def test_a_killed_launcher_leaves_no_process(repository, small_store, tmp_path, launch, number):
    folder = tmp_path / "run"
    process = launched(repository, small_store, folder, launch=launch)
    assert wait_for(lambda: last_complete(folder)[0] is not None, 120)
    pids = children(process)
    process.send_signal(number)
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)
    stderr = process.communicate()[1]
    assert "stopped by SIGTERM" in stderr, stderr[-2000:]
    assert not (folder / "all_results.json").exists()


@pytest.mark.slow
def test_a_frozen_peer_ends_the_other_process_within_ddp_timeout(repository, small_store, tmp_path):
    """As SIGSTOP, a hung disk or a machine that swaps leave it: alive, connected and silent."""
    folder, timeout = tmp_path / "run", 10
    process = launched(repository, small_store, folder, flags=("--ddp_timeout", str(timeout)))
    assert wait_for(lambda: last_complete(folder)[0] is not None, 120)
    frozen = children(process)[-1]
    os.kill(int(frozen), signal.SIGSTOP)
    begin = time.monotonic()
    # The launcher then gives the frozen one 30 seconds to end by itself.
    stderr = ended(process, 1)
    assert time.monotonic() - begin < timeout + 60
    assert f"Timed out waiting {1000 * timeout}ms" in stderr
    assert not Path(f"/proc/{frozen}").exists()
