"""Scripts end with one line and the right exit code; only our own bugs show a traceback."""

import subprocess
import sys

import pytest

from bert_recipes.errors import describe_os_error


def run(body: str, *, shell_tail: str = "") -> subprocess.CompletedProcess[str]:
    code = f"from bert_recipes.errors import InputError, run_cli\ndef main():\n    {body}\nrun_cli(main)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_a_good_run_exits_with_zero_and_says_nothing():
    result = run("pass")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_input_error_is_one_line_without_traceback():
    result = run(r"raise InputError('a.yaml, line 3: no such\n   key')")
    assert (result.returncode, result.stderr) == (1, "error: a.yaml, line 3: no such key\n")


def test_an_operating_system_error_names_the_file():
    result = run("open('/no/such/file')")
    assert (result.returncode, result.stderr) == (1, "error: /no/such/file: No such file or directory\n")


def test_ctrl_c_exits_with_130_and_one_line():
    result = run("raise KeyboardInterrupt")
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_a_bug_of_ours_keeps_its_traceback():
    result = run("raise ValueError('a bug')")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_a_reader_that_goes_away_is_no_mistake():
    code = "from bert_recipes.errors import run_cli\ndef main():\n    [print(i) for i in range(10**6)]\nrun_cli(main)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device", "runs/x/model"), "runs/x/model: No space left on device"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(18, "Invalid cross-device link", "a", None, "b"), "a -> b: Invalid cross-device link"),
        (OSError("there is no file named config.json"), "there is no file named config.json"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_describe_os_error(error: OSError, text: str):
    assert describe_os_error(error) == text
