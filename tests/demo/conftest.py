"""Tiny checkpoints as the page opens them."""

import functools
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_model(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory):
    """The tiny checkpoint with both heads of pre-training."""
    from bert_recipes.demo.model import open_demo_model

    return open_demo_model(str(tiny_checkpoint), tmp_path_factory.mktemp("work"), use_cpu=True)


@pytest.fixture(scope="session")
def fine_tuned(tiny_runs, tmp_path_factory: pytest.TempPathFactory):
    """Kind -> its finished run of tests/fixtures/tiny_runs.py as the page opens it."""
    from bert_recipes.demo.model import open_demo_model

    @functools.cache
    def of(kind: str):
        return open_demo_model(str(tiny_runs(kind)), tmp_path_factory.mktemp("work"), use_cpu=True)

    return of
