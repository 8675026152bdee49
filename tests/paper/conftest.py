"""What the tests of the papers' tables use."""

import runpy
import sys

import pytest


@pytest.fixture
def call_paper(repository, monkeypatch, capfd):
    """Run a script of paper/ in this process to the exit code that is expected.

    Args of what it returns: the script's name, its flags, the code. It returns what was printed on
    stdout, or with another code than 0 on stderr.
    """

    def call(name, *flags, code=0):
        script = repository / "paper" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *" ".join(map(str, flags)).split()])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        printed = capfd.readouterr()
        assert ended.value.code == code, printed.err
        return printed.err if code else printed.out

    return call
