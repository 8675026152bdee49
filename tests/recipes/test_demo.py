"""recipes/demo.py: the page as a person starts, uses and ends it."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from python_process import run_python


pytest.importorskip("gradio", reason="the extra demo is not installed")

# Written by the process itself, whatever library does it: connections and look-ups that leave the
# machine.
WATCHER = """
import os, sys
def watch(event, values):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        address = values[0] if event == "socket.getaddrinfo" else values[1]
        host = address[0] if isinstance(address, tuple) else address
        if host not in ("127.0.0.1", "::1", "localhost", None):
            with open(os.environ["WATCHER_FILE"], "a") as file:
                file.write(f"{event} {address}\\n")
sys.addaudithook(watch)
"""


class Page:
    """recipes/demo.py as a process of its own, on a free port."""

    def __init__(self, repository: Path, folder: Path, model: Path, *flags: str) -> None:
        (folder / "sitecustomize.py").write_text(WATCHER)
        self.outside = folder / "outside.txt"
        environment = dict(os.environ, WATCHER_FILE=str(self.outside))
        # As on a machine of a user who has said nothing about the network.
        environment.pop("HF_HUB_OFFLINE", None)
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
        command = [sys.executable, "recipes/demo.py", "--port", "0", *flags]
        command += ["--model_name_or_path", str(model)]
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=repository, env=environment, stderr=log, stdout=log
            )
        self.url = self._wait_for_address()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            match = re.search(r"the page is at (http://\S+)", self.log.read_text())
            if match:
                return match[1]
            time.sleep(0.1)
        pytest.fail(self.log.read_text())

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=30)


@pytest.mark.slow
def test_ctrl_c_ends_the_page_in_good_order(repository, tiny_checkpoint, tmp_path):
    page = Page(repository, tmp_path, tiny_checkpoint)
    # As an open page does: a stream that has no end of its own.
    with urllib.request.urlopen(f"{page.url}/gradio_api/heartbeat/somebody", timeout=30) as stream:
        assert b"ALIVE" in stream.readline()
        start = time.monotonic()
        assert page.end() == 0
    assert time.monotonic() - start < 20
    log = page.log.read_text()
    assert log.rstrip().endswith("the page is closed")
    assert "Traceback" not in log
    assert "rror" not in log
    assert not page.outside.exists(), page.outside.read_text()


@pytest.mark.slow
def test_another_host_is_served_with_a_warning(repository, tiny_checkpoint, tmp_path):
    page = Page(repository, tmp_path, tiny_checkpoint, "--host", "0.0.0.0")
    assert page.end(signal.SIGTERM) == 0
    log = page.log.read_text()
    assert log.rstrip().endswith("the page is closed")
    assert "whoever reaches this machine can use the page" in log


def test_an_address_that_is_not_served_is_refused_before_the_model_is_opened(call_recipe):
    message = call_recipe("demo", "--model_name_or_path no/model --host ::1 --port 0", code=1)
    assert message.startswith("error: host ::1, port 0: ")
    assert "give an IPv4 address or a name of this machine (--host)" in message
    assert message.count("\n") == 1


@pytest.mark.slow
def test_a_mistake_is_one_line():
    done = run_python("recipes/demo.py --model_name_or_path tests --port 0", code=1)
    assert done.stderr.startswith("error: model_name_or_path: tests has no config.json")
    assert done.stderr.count("\n") == 1
