"""A run that goes on pushes over its model: what the earlier push said of the older weights does not stay."""

import shutil
from pathlib import Path

import pytest
from transformers import BertForPreTraining

from bert_recipes.checkpointing import CARD_FILE, seal_card
from bert_recipes.hub import DESCRIPTIONS, PushTarget, collect_files, list_files, open_target, push
from bert_recipes.reports.page import PLOT_FILE


def target() -> PushTarget:
    return open_target(PushTarget("me/my-bert", run_ids=frozenset({"0123abcd"})), later="")


DESCRIBED = {
    "README.md",
    "bias_probe.json",
    "all_results.json",
    "report.md",
    "report.html",
    "losses.png",
}


@pytest.fixture
def finished(hub, run_folder: Path) -> Path:
    """The run is pushed with an own card; beside it lie files of the user's."""
    (run_folder / CARD_FILE).write_text(seal_card((run_folder / CARD_FILE).read_text()))
    for name in ("bias_probe.json", "card.yaml", "task.yaml", "LICENSE"):
        (run_folder / name).write_text("{}")
    push(target(), collect_files(run_folder), "Step 4")
    repository = hub.repositories["me/my-bert"]
    files = {name: hub.file(name, b"of the user's") for name in ("logo.png", "notes.md", "checkpoint-2/README.md")}
    repository.commit("main", "by the user", repository.branches["main"].files | files)
    return run_folder


def checkpoint_of(folder: Path, *, has_other_weights: bool = True) -> Path:
    """What a checkpoint of the run has: neither card nor figures."""
    checkpoint = folder.with_name("checkpoint-6")
    shutil.copytree(folder, checkpoint, ignore=shutil.ignore_patterns(*DESCRIBED, "LICENSE", "card.yaml", "task.yaml"))
    if has_other_weights:
        model = BertForPreTraining.from_pretrained(folder)
        model.bert.pooler.dense.bias.data.add_(1.0)
        model.save_pretrained(checkpoint)
    return checkpoint


@pytest.mark.parametrize("tags", [(), ("tiny",)])
def test_what_tells_of_older_weights_does_not_stay_beside_newer_ones(hub, finished: Path, tags: tuple[str, ...]):
    assert PLOT_FILE in DESCRIPTIONS
    repository = hub.repositories["me/my-bert"]
    before = set(repository.branches["main"].files)
    assert before >= DESCRIBED
    model = list_files(checkpoint_of(finished))
    push(target(), model, "Step 6", tags=tags)
    assert repository.read("model.safetensors") == model.files["model.safetensors"].read_bytes()
    assert set(repository.branches["main"].files) == before - DESCRIBED | ({"README.md"} if tags else set())
    assert not tags or repository.read("README.md") == b"---\ntags:\n- tiny\n---\n"
    push(target(), collect_files(finished), "Step 4 again")
    assert set(repository.branches["main"].files) == before


def test_what_tells_of_the_same_weights_stays(hub, finished: Path):
    before = set(hub.repositories["me/my-bert"].branches["main"].files)
    push(target(), list_files(checkpoint_of(finished, has_other_weights=False)), "The same")
    assert set(hub.repositories["me/my-bert"].branches["main"].files) == before


def test_a_card_of_the_users_stays_beside_newer_weights(hub, finished: Path):
    repository = hub.repositories["me/my-bert"]
    files = repository.branches["main"].files | {"README.md": hub.file("README.md", b"# Mine\n")}
    repository.commit("main", "my card", files)
    push(target(), list_files(checkpoint_of(finished)), "Step 6")
    assert repository.read("README.md") == b"# Mine\n"
    assert set(repository.branches["main"].files) == set(files) - DESCRIBED | {"README.md"}
