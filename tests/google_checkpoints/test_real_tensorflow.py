"""TensorFlow's files, and what the code of google-research/bert computes, held to ours.

Needs an interpreter with TensorFlow: this one, or the one that the environment variable
TENSORFLOW_PYTHON names. How to make one: tests/google_checkpoints/tensorflow_side.py.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers
from conversions import check_outputs, read_all, to_hub
from fixture_parts import CONFIG, INPUTS
from original_model import draw_variables, write_original

from bert_recipes.tensorflow_files import BundleReader


pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("tensorflow_side.py")
BASE = {
    **CONFIG,
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
BASE |= {"intermediate_size": 3072, "max_position_embeddings": 512}


def interpreter() -> str | None:
    named = os.environ.get("TENSORFLOW_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("tensorflow") else None)


@pytest.fixture(scope="session")
def tensorflow():
    """Run a command of tensorflow_side.py."""
    python = interpreter()
    if python is None:
        pytest.skip("no TensorFlow in this interpreter, and TENSORFLOW_PYTHON names no other")

    def run(*words):
        # Its packages are its own: ours may be of another Python.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, str(SCRIPT), *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]

    return run


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("config", [CONFIG, BASE], ids=["small", "base"])
def test_what_tensorflow_writes_we_read(tensorflow, tmp_path, config):
    variables = draw_variables(config, with_adam=config is CONFIG)
    variables["half"] = np.asarray([1.5, -2], dtype=np.float16)
    variables["int32"] = np.asarray([-7], dtype=np.int32)
    np.savez(tmp_path / "values.npz", **variables)
    tensorflow("write", tmp_path / "values.npz", tmp_path / "theirs.ckpt")
    assert_same(read_all(tmp_path / "theirs.ckpt"), variables)


@pytest.mark.parametrize(
    "heads", [("masked_lm", "next_sentence"), ("classifier",), ("squad",)], ids="-".join
)
def test_googles_code_computes_the_same(tensorflow, tmp_path, heads):
    write_original(tmp_path / "google", draw_variables(heads=heads))
    done = to_hub(tmp_path / "google", tmp_path / "hub")
    np.savez(tmp_path / "values.npz", **INPUTS)
    tensorflow("outputs", tmp_path / "google", tmp_path / "values.npz")
    model = getattr(transformers, done.architecture).from_pretrained(tmp_path / "hub")
    with np.load(tmp_path / "values.npz") as wanted:
        check_outputs(model, dict(wanted))


def test_the_fixtures_are_what_the_script_makes(tensorflow, tmp_path, repository):
    """Names, shapes and parts; the numbers of a training step may differ in the last bit from
    machine to machine.
    """
    tensorflow("fixtures", tmp_path)
    for folder in (repository / "tests" / "fixtures" / "google").iterdir():
        assert {path.name for path in folder.iterdir()} == {
            path.name for path in (tmp_path / folder.name).iterdir()
        }
        (index,) = folder.glob("*.index")
        again = BundleReader(tmp_path / folder.name / index.stem)
        assert again.variables == BundleReader(index.with_suffix("")).variables
