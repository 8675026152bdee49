"""Scripts end with one line and the right exit code; only our own bugs show a traceback."""

import resource
import signal
import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from bert_recipes.errors import InputError, describe_os_error, saving


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = (
        "from bert_recipes.errors import InputError, run_cli\ndef main():\n    "
        f"{body}\nrun_cli(main)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("pass", 0, ""),
        (r"raise InputError('a.yaml:\n   no such\n   key')", 1, "error: a.yaml: no such key\n"),
        ("open('/no/such/file')", 1, "error: /no/such/file: No such file or directory\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
    ],
)
def test_a_script_ends_with_its_code_and_at_most_one_line(body, code, text):
    process = run(body)
    assert (process.returncode, process.stdout, process.stderr) == (code, "", text)


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('a bug')",
        # A data worker, or a tracker's service, is not taken for a reader that is gone.
        "raise BrokenPipeError(32, 'Broken pipe')",
        "raise ConnectionResetError(32, 'Broken pipe')",
    ],
)
def test_what_is_no_mistake_of_the_user_keeps_its_traceback(body):
    process = run(body)
    assert process.returncode == 1
    assert "Traceback" in process.stderr


def test_a_reader_that_goes_away_is_no_mistake():
    code = (
        "from bert_recipes.errors import run_cli\ndef main():\n    [print(i) for i in "
        "range(10**6)]\nrun_cli(main)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(28, "No space left on device", "runs/x/model"),
            "runs/x/model: No space left on device",
        ),
        (OSError(28, "No space left on device"), "No space left on device"),
        (
            OSError(18, "Invalid cross-device link", "a", None, "b"),
            "a -> b: Invalid cross-device link",
        ),
        (OSError("there is no file named config.json"), "there is no file named config.json"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_describe_os_error(error, text):
    assert describe_os_error(error) == text


def test_a_full_gpu_is_one_line_with_what_to_lower():
    body = "import torch\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried 2 GiB')"
    done = run(body)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: CUDA out of memory. Tried 2 GiB; give a smaller --per_device")


def test_another_process_than_the_main_one_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert run("raise InputError('no such key')").stderr == "error: process 3: no such key\n"


IN_A_DATA_WORKER = """
    from torch.utils.data import DataLoader
    def collate(items):
        raise InputError("shard 3 is damaged")
    list(DataLoader([1, 2], collate_fn=collate, num_workers=1))
"""


def test_a_mistake_that_a_data_worker_finds_is_one_line_too():
    process = run(IN_A_DATA_WORKER)
    assert (process.returncode, process.stderr) == (1, "error: shard 3 is damaged\n")


# As torch's handler does for a data worker that ends while the message is being written.
ONE_MORE = """
    import os, signal
    def handler(*_): raise RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed.")
    class Mistake(InputError):
        def __str__(self):
            os.kill(os.getpid(), signal.SIGCHLD)
            return "the one line"
    signal.signal(signal.SIGCHLD, handler)
    raise Mistake
"""


def test_a_worker_that_ends_while_the_line_is_written_adds_nothing():
    process = run(ONE_MORE)
    assert (process.returncode, process.stderr) == (1, "error: the one line\n")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device", "out/model"), "No space left on device"),
        (PermissionError(13, "Permission denied", "out/model/a"), "out/model/a: Permission denied"),
        (SafetensorError("I/O error: No space left"), "I/O error: No space left"),
        (
            RuntimeError("[enforce fail] . unexpected pos 64\nvs 0"),
            "[enforce fail] . unexpected pos 64 vs 0",
        ),
        (RuntimeError("PytorchStreamWriter failed writing"), "PytorchStreamWriter failed writing"),
        (Exception("No space left (os error 28)"), "No space left (os error 28)"),
    ],
)
def test_what_cannot_be_written_is_one_line(error, reason):
    with pytest.raises(InputError) as caught, saving("out/model"):
        raise error
    assert str(caught.value) == f"out/model: cannot be written: {reason}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        SafetensorError("Error while deserializing header"),
        Exception("a bug"),
        ValueError("os error"),
        OSError("no file of that name on the Hub"),
        BrokenPipeError(32, "Broken pipe"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_pass_while_saving(error):
    with pytest.raises(type(error)) as caught, saving("out/model"):
        raise error
    assert caught.value is error


WRITERS = {
    "safetensors": lambda path: save_file({"a": torch.zeros(10**6)}, path),
    "torch": lambda path: torch.save({"a": torch.zeros(10**6)}, path),
    "tokenizers": lambda path: Tokenizer(WordLevel(VOCABULARY, "0")).save(str(path)),
    "text": lambda path: path.write_text("x" * 10**6),
}
VOCABULARY = {str(number): number for number in range(10**4)}


@pytest.mark.parametrize("library", WRITERS)
def test_a_file_that_may_not_grow_is_one_line_from_every_library(tmp_path, library):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError) as caught, saving(tmp_path / "file"):
            WRITERS[library](tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert str(caught.value).startswith(f"{tmp_path / 'file'}: cannot be written: ")
