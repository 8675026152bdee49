"""What every test needs: no network, a Hugging Face home of its own, one thread per process.

The environment is set before anything is imported, because the libraries read it at import.
Subprocesses inherit it.
"""

import atexit
import functools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


REPOSITORY = Path(__file__).resolve().parents[1]

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# DeepSpeed, which Accelerate imports where it is installed, says on stdout which device it has
# found.
os.environ["DS_ACCELERATOR"] = "cpu"
# Tests run beside each other and start processes of their own: more threads only fight for the
# cores.
os.environ["OMP_NUM_THREADS"] = "1"
# No window system is needed to draw a plot.
os.environ["MPLBACKEND"] = "Agg"
# Scripts run as subprocesses find the sources as pytest itself does (pythonpath in pyproject.toml).
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH")])
)

# pytest-xdist's workers inherit the folder of the process that started them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="bert-recipes-tests-")
    atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes come first: started last, one of them keeps a worker busy while
    the others have nothing to do.
    """
    items.sort(key=lambda item: item.path.parent.name not in ("recipes", "invariants"))


_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Put back what a test that runs a recipe in this process leaves: processes forked later would
    not end on SIGTERM.
    """
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    yield
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def accelerate_precision() -> Iterator[None]:
    """Take back the precision that a test's settings leave in the environment, where stock
    arguments would find it: auto is bfloat16 on some machines.
    """
    yield
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working copy."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data and corpora beside the working copy; the test is skipped where
    there is none.
    """
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no reference data: {folder} is missing")
    return folder


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 40 training and 8 held-out documents over a vocabulary of 120 pieces, with its
    tokenizer.

    Each document repeats a few words of its own, so that both losses can be learned in seconds.
    """
    import numpy as np
    from small_stores import make_tokenizer, write_store

    folder = tmp_path_factory.mktemp("small")
    words = [f"w{number}" for number in range(95)] + [f"##x{number}" for number in range(20)]
    tokenizer = make_tokenizer(folder, words)
    rng = np.random.default_rng(0)
    documents = []
    for number in range(48):
        ids = rng.integers(5, len(tokenizer), 12)
        sentences = [
            rng.choice(ids, rng.integers(3, 15)).tolist() for _ in range(rng.integers(4, 30))
        ]
        documents.append(("train" if number < 40 else "validation", sentences))
    return write_store(folder, tokenizer, documents)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers with both pre-training heads and its tokenizer, whose pieces are
    letters and digits.
    """
    import string

    import torch
    from small_stores import make_tokenizer

    from bert_recipes.models.bert import BertForPreTraining
    from bert_recipes.models.sizes import pretraining_config

    folder = tmp_path_factory.mktemp("tiny-checkpoint")
    letters = [*string.ascii_lowercase, *string.digits]
    inner = [f"##{letter}" for letter in letters]
    tokenizer = make_tokenizer(folder, [*letters, *inner, *string.punctuation, "the", "of", "and"])
    config = pretraining_config("tiny", vocab_size=len(tokenizer), max_position_embeddings=128)
    config.update({"hidden_size": 32, "intermediate_size": 64})
    torch.manual_seed(0)
    BertForPreTraining(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_runs(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Kind -> finished run of tests/fixtures/tiny_runs.py, made when it is first asked for; nobody
    changes it.
    """
    from tiny_runs import make_run

    @functools.cache
    def of(kind: str) -> Path:
        return make_run(kind, tiny_checkpoint, tmp_path_factory.mktemp(kind))

    return of


@pytest.fixture
def hub_server() -> Iterator[Any]:
    """A Hub on loopback (tests/fixtures/hub_server.py)."""
    from hub_server import HubServer

    with HubServer() as server:
        yield server
