"""What the tests of several recipes use."""

import os
import runpy
import sys

import pytest


@pytest.fixture
def call_recipe(repository, monkeypatch, capfd):
    """Run a recipe in this process, which saves the seconds that the libraries take to load.

    Args of what it returns: the recipe's name, its flags, the exit code it is to end with. It returns what was said on stdout, or
    with another code than 0 on stderr.
    """
    before = dict(os.environ)

    def call(name, *flags, code=0):
        script = repository / "recipes" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, flags)])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(script), run_name="__main__")
        said = capfd.readouterr()
        assert caught.value.code == code, said.err
        return said.err if code else said.out

    yield call
    # Settings of a run are handed to libraries through it.
    os.environ.clear()
    os.environ.update(before)
