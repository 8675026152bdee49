"""README.md, "Why not stock transformers alone": the script that fails with stock."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("library", "is_one_loss"), [("stock", False), ("here", True)])
def test_a_batch_has_one_loss_however_it_is_split(repository, library, is_one_loss):
    done = subprocess.run(
        [sys.executable, "benchmarks/one_batch_one_loss.py", library],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == is_one_loss
    assert ("AssertionError" in done.stderr) != is_one_loss
    # It got as far as the two losses.
    assert f", {library}: " in done.stdout
