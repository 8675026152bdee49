"""The checkpoints in tests/fixtures/google, made once more by the code of google-research/bert.

Needs an interpreter with TensorFlow: this one, or the one that the environment variable
TENSORFLOW_PYTHON names. How to make one: tests/google_checkpoints/tensorflow_side.py.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_recipes.tensorflow_files import BundleReader


SCRIPT = Path(__file__).with_name("tensorflow_side.py")


@pytest.mark.slow
def test_the_fixtures_are_what_the_script_makes(tmp_path, repository):
    """Names, shapes and slices: the last bit of a training step differs between machines."""
    python = os.environ.get("TENSORFLOW_PYTHON")
    if python is None and importlib.util.find_spec("tensorflow"):
        python = sys.executable
    if python is None:
        pytest.skip("no TensorFlow in this interpreter, and TENSORFLOW_PYTHON names no other")
    # Its packages are its own: ours may be of another Python.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, SCRIPT, tmp_path], timeout=600, check=True, env=environment)
    for folder in (repository / "tests" / "fixtures" / "google").iterdir():
        names = {path.name for path in (tmp_path / folder.name).iterdir()}
        assert {path.name for path in folder.iterdir()} == names
        (index,) = folder.glob("*.index")
        again = BundleReader(tmp_path / folder.name / index.stem)
        assert again.variables == BundleReader(index.with_suffix("")).variables
