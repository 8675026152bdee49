"""What every test needs: no network, a Hugging Face home of its own, one thread per process.

The environment is set before anything is imported, because the libraries read it at import. Subprocesses inherit it.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest


REPOSITORY = Path(__file__).resolve().parents[1]

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tests run beside each other and start processes of their own: more threads only fight for the cores.
os.environ["OMP_NUM_THREADS"] = "1"
# No window system is needed to draw a plot.
os.environ["MPLBACKEND"] = "Agg"
# Scripts run as subprocesses find the sources as pytest itself does (pythonpath in pyproject.toml).
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH")]))

# pytest-xdist's workers inherit the folder of the process that started them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="bert-recipes-tests-")
    atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working copy."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data and corpora beside the working copy; the test is skipped where there is none."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no reference data: {folder} is missing")
    return folder
