"""Finished runs with their cards; nobody changes them."""

import functools
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_recipes.model_card import CardArguments, write_card


ENGLISH = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "english_runs.py")))
GIVEN = CardArguments(
    license="cc-by-sa-4.0",
    language=["en"],
    data_description="Sentences | of a test,\nmade up",
    data_license="public domain",
)


@pytest.fixture(scope="session")
def english_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ENGLISH.make_store(tmp_path_factory.mktemp("english"))


@pytest.fixture(scope="session")
def pretraining_run(english_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of recipes/pretrain.py, as it leaves its folder."""
    run = tmp_path_factory.mktemp("run") / "storyteller"
    return ENGLISH.pretrain(english_store, run, "--power_watts", 250, "--carbon_intensity", 400)


@pytest.fixture(scope="session")
def two_phase_run(english_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with longer pairs and smaller batches in its last two steps."""
    flags = ("--phase2_steps", 2, "--phase2_max_seq_length", 48, "--phase2_global_train_batch_size", 4)
    return ENGLISH.pretrain(english_store, tmp_path_factory.mktemp("run") / "phases", "--max_steps", 6, *flags)


@pytest.fixture(scope="session")
def carded(
    request: pytest.FixtureRequest, tiny_runs: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Kind of run -> copy of its folder with a card for which the user has said a few things."""

    @functools.cache
    def of(kind: str) -> Path:
        own = {"pretraining": "pretraining_run", "two_phases": "two_phase_run"}
        source = request.getfixturevalue(own[kind]) if kind in own else tiny_runs(kind)
        folder = tmp_path_factory.mktemp("card") / f"model_of_{kind}"
        shutil.copytree(source, folder)
        write_card(folder, GIVEN)
        return folder

    return of


@pytest.fixture
def copy_of(carded: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy that a test may change, under the same name: it is a fact of the card."""

    def copied(kind: str) -> Path:
        folder = tmp_path / carded(kind).name
        shutil.copytree(carded(kind), folder)
        return folder

    return copied
