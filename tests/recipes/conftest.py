"""What the tests of several recipes use."""

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import english_runs
import pytest
from hub_server import HubServer
from huggingface_hub import snapshot_download
from huggingface_hub.utils import close_session
from in_process import RECIPES, keep_last
from small_corpora import write_texts, write_vocabulary


SHARED = (
    "--push_to_hub true --hub_model_id teller --hub_tags bert english --hub_always_push true "
    "--save_strategy steps --save_steps 2 --save_total_limit 1 --report_to tensorboard"
)


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


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("tokenizer") / "vocab.txt")


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A tiny run of recipes/pretrain.py on English, pushed while it trains.

    Its store and folder, what it printed, its repository on the Hub with its url, and a copy of
    that. The first upload breaks in its middle.
    """
    pytest.importorskip("tensorboard", reason="the extra `tracking` is not installed")
    folder = tmp_path_factory.mktemp("shared")
    store, run, output = english_runs.make_store(folder), folder / "storyteller", io.StringIO()
    with HubServer() as hub, pytest.MonkeyPatch.context() as patch:
        hub.take_over(patch)
        hub.fail("PUT", "/storage/", "cut")
        try:
            with contextlib.redirect_stdout(output):
                english_runs.pretrain(store, run, *SHARED.split())
            copy = Path(snapshot_download("me/teller", cache_dir=folder / "cache"))
        finally:
            close_session()
    repository, printed = hub.repositories["me/teller"], output.getvalue()
    return SimpleNamespace(
        store=store, run=run, printed=printed, url=hub.url, repository=repository, copy=copy
    )


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
