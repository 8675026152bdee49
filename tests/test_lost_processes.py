"""The end of a process that a run needs is one line, wherever it shows itself first."""

import subprocess
import sys

import pytest
from torch.utils.data import DataLoader

from bert_recipes.errors import describe_lost_process


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import os, signal\nfrom bert_recipes.errors import InputError, "
        f"run_cli\n{body}\nrun_cli(main)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        # torch/utils/data/dataloader.py and _utils/signal_handling.py
        ("DataLoader worker (pid(s) 17, 18) exited unexpectedly", "a data worker has ended"),
        ("DataLoader worker (pid 17) is killed by signal: Killed. ", "a data worker has ended"),
        ("DataLoader timed out after 1800 seconds", "a data worker did not answer"),
        # gloo
        (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
            "[127.0.0.1]:1",
            "another process",
        ),
        (
            "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
            "operation",
            "did not answer",
        ),
        ("Application timeout caused pair closure", "did not answer"),
        # NCCL
        (
            "NCCL Error 6: remote process exited or there was a network error",
            "another process of the run has ended",
        ),
        (
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 600000 ms",
            "did not answer",
        ),
        ("mat1 and mat2 shapes cannot be multiplied", None),
    ],
)
def test_a_lost_process_is_one_line(said, told):
    line = describe_lost_process(RuntimeError(said))
    assert (line is None) == (told is None)
    assert told is None or told in line


def test_a_lost_process_ends_a_script_without_traceback():
    result = run(
        "def main(): raise RuntimeError('DataLoader worker (pid 17) is killed by signal: Killed.')"
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: a data worker has ended")
    assert result.stderr.count("\n") == 1


class BrokenQueue:
    """What a worker that is killed while it hands a tensor over leaves of its queue."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def get(self, timeout: float) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        EOFError(),
        FileNotFoundError(2, "No such file"),
    ],
)
def test_a_worker_whose_connection_breaks_before_torch_knows_of_its_end_is_lost(error):
    batches = iter(DataLoader(range(4), num_workers=1))
    queue, batches._data_queue = batches._data_queue, BrokenQueue(error)
    with pytest.raises(type(error)) as caught:
        next(batches)
    batches._data_queue = queue
    line = describe_lost_process(caught.value)
    assert line is not None
    assert line.startswith("a data worker has ended")
    assert "()" not in line


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset by peer"), FileNotFoundError(2, "x")]
)
def test_the_same_error_of_something_else_is_not_a_worker(error):
    with pytest.raises(type(error)) as caught:
        raise error
    assert describe_lost_process(caught.value) is None


BROKEN_PIPE = """
def _try_get_data(): raise BrokenPipeError(32, "Broken pipe")
def main(): _try_get_data()
"""


def test_a_broken_pipe_to_a_worker_is_not_taken_for_a_reader_that_is_gone():
    result = run(BROKEN_PIPE)
    assert result.returncode == 1
    assert result.stderr.startswith("error: a data worker has ended")


# As torch's handler does for a worker that ends while the message is being written.
ONE_MORE = """
def handler(*_): raise RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed.")
class Mistake(InputError):
    def __str__(self):
        os.kill(os.getpid(), signal.SIGCHLD)
        return "the one line"
def main():
    signal.signal(signal.SIGCHLD, handler)
    raise Mistake
"""


def test_a_worker_that_ends_while_the_line_is_written_adds_nothing():
    result = run(ONE_MORE)
    assert (result.returncode, result.stderr) == (1, "error: the one line\n")
