"""Folders of runs as files alone: what a report is written from; and finished runs with their
cards, which nobody changes.
"""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import english_runs
import pytest

from bert_recipes.reports.card import write_card
from bert_recipes.reports.card_arguments import CardArguments
from bert_recipes.reports.facts import write_facts


MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "gpu": None,
    "torch": "2.13.0",
    "transformers": "5.23.0",
}


@pytest.fixture
def make_run_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write the files of a run; what is not given is empty, and report.json is left out where there
    are no facts.
    """
    return functools.partial(_make_run_folder, tmp_path)


@pytest.fixture(scope="session")
def make_lasting_run_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The same for a folder that several tests look at."""
    return functools.partial(_make_run_folder, tmp_path_factory.mktemp("runs"))


def _make_run_folder(
    parent: Path,
    name: str = "run",
    *,
    results: dict[str, Any] | None = None,
    history: list[Any] | None = None,
    facts: dict[str, Any] | None = None,
    settings: str = "seed: 1\n",
    task: str | None = None,
) -> Path:
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(settings, encoding="utf-8")
    (folder / "all_results.json").write_text(json.dumps({"machine": MACHINE, **(results or {})}))
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history or []}))
    if facts is not None:
        write_facts(folder, facts)
    if task is not None:
        (folder / "task.yaml").write_text(task, encoding="utf-8")
    return folder


EVIL = (
    '<script>alert(1)</script><img src="http://elsewhere.example/x.png">|$x_{$ '
    "![p](http://elsewhere.example/p.png)"
)


@pytest.fixture(scope="session")
def evil() -> str:
    """A text that is a script, a picture from elsewhere, a table's bar, a broken formula and a
    Markdown picture.
    """
    return EVIL


@pytest.fixture(scope="session")
def pretraining_facts(evil: str) -> dict[str, Any]:
    """What a pre-training run leaves in report.json, every text of it evil."""
    mask = {
        "before": evil,
        "after": evil,
        "guesses": [[evil, 0.5], ["b", 0.25]],
    }
    right = {
        "truth": "c",
        "probability": 0.01,
        "rank": 37,
    }
    verdict = {
        "first": evil,
        "second": evil,
        "is_next": 0.9,
        "truth": False,
    }
    return {
        "kind": "pretraining",
        "run": {"parameters": 4_000_000, evil: evil},
        "held_out": {
            "masks": [{**mask, **right}],
            "verdicts": [verdict],
        },
        "remark": evil,
        "measured_on": "a hash",
        "corpus": {
            "training": {"documents": 1000, "inputs in epoch 0": 5000},
            "held out": {"documents": 10},
        },
    }


@pytest.fixture(scope="session")
def finetuning_facts(evil: str) -> dict[str, Any]:
    """What a fine-tuning run on two classes leaves in report.json, every text of it evil."""
    score = {
        "precision": 0.5,
        "recall": 0.75,
        "f1": 0.6,
        "support": 8,
    }
    bins = [
        {
            "count": 4,
            "confidence": 0.4,
            "accuracy": 0.5,
        },
        {
            "count": 12,
            "confidence": 0.9,
            "accuracy": 0.75,
        },
    ]
    worst = {
        "texts": [[evil, evil], ["b", "c"]],
        "said": evil,
        "truth": "no",
        "probability": 0.98,
    }
    split = {
        "name": evil,
        "examples": 16,
        "labels": [evil, "no"],
        "classes": [score, score],
        "confusion": [[6, 2], [4, 4]],
        "calibration": {"bins": bins, "expected_calibration_error": 0.1375},
        "worst": [worst],
    }
    return {
        "kind": "finetuning",
        "task": evil,
        "run": {"parameters": 4_000_000},
        "splits": [split],
    }


# Cards

GIVEN = CardArguments(
    license="cc-by-sa-4.0",
    language=["en"],
    data_description="Sentences | of a test,\nmade up",
    data_license="public domain",
)


@pytest.fixture(scope="session")
def english_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return english_runs.make_store(tmp_path_factory.mktemp("english"))


@pytest.fixture(scope="session")
def pretraining_run(english_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of recipes/pretrain.py, as it leaves its folder."""
    run = tmp_path_factory.mktemp("run") / "storyteller"
    return english_runs.pretrain(
        english_store,
        run,
        "--power_watts",
        250,
        "--carbon_intensity",
        400,
    )


@pytest.fixture(scope="session")
def two_phase_run(english_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with longer pairs and smaller batches in its last two steps."""
    flags = (
        "--phase2_steps",
        2,
        "--phase2_max_seq_length",
        48,
        "--phase2_global_train_batch_size",
        4,
    )
    return english_runs.pretrain(
        english_store,
        tmp_path_factory.mktemp("run") / "phases",
        "--max_steps",
        6,
        *flags,
    )


@pytest.fixture(scope="session")
def carded(
    request: pytest.FixtureRequest,
    tiny_runs: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
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
