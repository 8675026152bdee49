"""What is said, and done, when a process that a run needs has ended: another of the run's, or one that reads the data."""

import multiprocessing
import re
import signal
import traceback


# What torch says of a process that it waits for in vain: gloo, NCCL, the loader of data.
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "socket closed",
    "broken pipe",
    "remote process exited",
)
_LATE_PEER = ("timed out waiting", "watchdog caught collective operation timeout", "timeout after", "wait timeout")
_LATE_WORKER = re.compile(r"DataLoader timed out after")
_LOST_WORKER = re.compile(
    r"DataLoader worker \(pid\S* [\d, ]+\) (exited unexpectedly|is killed by signal)|received 0 items of ancillary data"
)
_GO_ON = "the checkpoints before are whole, the same command goes on"


def describe_lost_process(error: BaseException) -> str | None:
    """Say in one line that another process of the run is gone; None for an error that is about something else.

    Args:
        error: What torch raises where it waits for other processes, or for the workers that read the data.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if _is_of_worker(error) or (isinstance(error, RuntimeError) and _LOST_WORKER.search(text)):
        return (
            f"a data worker has ended ({text[:120]}), most often because memory ran out; {_GO_ON}; with less memory: fewer "
            "--dataloader_num_workers"
        )
    if not isinstance(error, RuntimeError):
        return None
    if _LATE_WORKER.search(text):
        return (
            f"a data worker did not answer within --ddp_timeout seconds ({text[:120]}); what it could not do is above, most "
            f"often that shared memory (/dev/shm) is full: fewer --dataloader_num_workers; {_GO_ON}"
        )
    said = text.lower()
    if any(sign in said for sign in _LOST_PEER):
        return (
            f"another process of the run has ended ({text[:120]}); its own message is above, if it had one; {_GO_ON}"
        )
    if any(sign in said for sign in _LATE_PEER):
        return f"another process of the run did not answer within --ddp_timeout seconds ({text[:120]}); {_GO_ON}"
    return None


def _is_of_worker(error: BaseException) -> bool:
    """Whether a worker ended while it was handing a batch over: the connection breaks before torch knows of the end."""
    if not isinstance(error, ConnectionError | EOFError | FileNotFoundError):
        return False
    # Where `torch.utils.data` takes a batch from a worker; what a worker itself raises comes from elsewhere.
    return any(frame.f_code.co_name == "_try_get_data" for frame, _ in traceback.walk_tb(error.__traceback__))


def stop_watching_workers() -> None:
    """Keep torch's handler from raising for each data worker that ends from now on, wherever the program is."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def end_workers() -> None:
    """Kill the data workers that an exception's frames still hold: they ignore SIGTERM, and Python would wait for them for ever."""
    workers = [child for child in multiprocessing.active_children() if child.daemon]
    if workers:
        stop_watching_workers()
    for worker in workers:
        worker.kill()
