"""The first signal is remembered, the second Ctrl-C leaves at once."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bert_recipes.stopping import StopRequest, ignore_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_the_handlers_are_put_back(number, capfd):
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    request = StopRequest()
    with request.listening():
        assert request.signal is None
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        assert request.signal == number
        os.kill(os.getpid(), signal.SIGTERM)  # launchers send it more than once
        time.sleep(0.01)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.Signals(number).name in capfd.readouterr().err


def test_a_second_interrupt_leaves_at_once():
    code = "import time\nfrom bert_recipes.stopping import StopRequest\nwith StopRequest().listening():\n"
    code += "    print('ready', flush=True)\n    time.sleep(60)\n    time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"stopping in good order" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_in_a_thread_nothing_is_handled():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def look():
        with StopRequest().listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_processes_that_load_data_leave_signals_to_the_one_that_trains():
    code = "import os, signal\nfrom bert_recipes.stopping import ignore_signals\nignore_signals(3)\n"
    code += "os.kill(os.getpid(), signal.SIGINT)\nos.kill(os.getpid(), signal.SIGTERM)\nprint('here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "here\n"
    assert ignore_signals.__doc__
