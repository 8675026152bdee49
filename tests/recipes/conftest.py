"""What the tests of several recipes use."""

import os
import runpy
import subprocess
import sys

import pytest
from repeated_flags import keep_last


@pytest.fixture
def start_recipe(repository, monkeypatch, capfd):
    """Run a recipe in this process, which saves the seconds that the libraries take to load.

    Args of what it returns: the recipe's name and its flags. It returns what `subprocess.run`
    would.
    """
    before = dict(os.environ)
    # transformers says on stdout that wandb is offline, where it is.
    os.environ.pop("WANDB_MODE", None)

    def start(name, *flags):
        script = repository / "recipes" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *keep_last(flags)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(script), run_name="__main__")
        said = capfd.readouterr()
        return subprocess.CompletedProcess(sys.argv, caught.value.code, said.out, said.err)

    yield start
    # Settings of a run are handed to libraries through it.
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def call_recipe(start_recipe):
    """Run a recipe in this process to the exit code that is expected.

    Args of what it returns: the recipe's name, its flags, the code. It returns what was said on
    stdout, or with another code than 0 on stderr.
    """

    def call(name, *flags, code=0):
        done = start_recipe(name, *flags)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    return call
