"""What the tests of several recipes use."""

import os
import runpy
import subprocess
import sys

import pytest
from in_process import RECIPES, keep_last


@pytest.fixture
def start_recipe(monkeypatch, capfd):
    """Run a recipe in this process.

    Args of what it returns: the recipe's name and its flags, of which the last one counts where
    several are the same; a string may hold several words. It returns what `subprocess.run` would.
    """
    before = dict(os.environ)
    # transformers says on stdout that wandb is offline, where it is.
    os.environ.pop("WANDB_MODE", None)

    def start(name, *flags):
        script = str(RECIPES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [script, *keep_last(flags)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(script, run_name="__main__")
        output = capfd.readouterr()
        return subprocess.CompletedProcess(sys.argv, caught.value.code, output.out, output.err)

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
