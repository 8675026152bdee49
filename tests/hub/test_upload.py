"""The bytes arrive; what breaks is tried again, what has arrived is not sent again, and what fails
for good is said.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard
from transformers import BertForPreTraining

from bert_recipes.checkpointing import CARD_FILE, is_generated_card, seal_card
from bert_recipes.errors import InputError, PushError
from bert_recipes.hub import (
    DESCRIPTIONS,
    ModelFiles,
    PushTarget,
    collect_files,
    list_files,
    open_target,
    push,
    push_command,
)
from bert_recipes.reports.page import PLOT_FILE


def target(**values: object) -> PushTarget:
    return open_target(
        PushTarget("me/my-bert", run_ids=frozenset({"0123abcd"}), **values), later=""
    )


def send(
    model: Path | ModelFiles, message: str = "Step 4", tags: tuple[str, ...] = (), **values: object
) -> str:
    files = collect_files(model) if isinstance(model, Path) else model
    return push(target(**values), files, message, tags=tags)


def there(hub: Any, branch: str = "main") -> set[str]:
    return set(hub.repositories["me/my-bert"].branches[branch].files)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody sleeps; what would have been slept is kept."""
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    return slept


def test_the_bytes_arrive_as_one_commit_and_are_not_sent_again(
    hub, run_folder: Path, pushed: set[str]
):
    assert send(run_folder) == f"{hub.url}/me/my-bert"
    repository = hub.repositories["me/my-bert"]
    assert there(hub) == pushed | {".gitattributes"}
    assert all(repository.read(name) == (run_folder / name).read_bytes() for name in pushed)
    assert [commit.message for commit in repository.history()] == ["Step 4", "initial commit"]
    send(run_folder, "Step 4 again")
    assert len(repository.history()) == 2
    (run_folder / "report.md").write_text("# Another report\n")
    send(run_folder, "Report")
    assert len(repository.history()) == 3
    assert hub.count("PUT", "/storage/") == 1


def test_a_branch_is_written_to_and_main_is_not(hub, run_folder: Path):
    assert send(run_folder, revision="trial") == f"{hub.url}/me/my-bert/tree/trial"
    assert there(hub) == {".gitattributes"}
    assert "model.safetensors" in there(hub, "trial")


def test_the_same_bytes_under_two_names_are_sent_once(hub, run_folder: Path):
    model = collect_files(run_folder)
    second = {
        f"checkpoint-4/{name}": model.files[name] for name in ("config.json", "model.safetensors")
    }
    send(ModelFiles(model.folder, {**model.files, **second}))
    repository = hub.repositories["me/my-bert"]
    assert repository.read("checkpoint-4/model.safetensors") == repository.read("model.safetensors")
    assert hub.count("PUT", "/storage/") == 1


# What breaks


def test_a_connection_that_breaks_in_the_middle_is_tried_again(
    hub, run_folder: Path, quick: list[float]
):
    hub.fail("PUT", "/storage/", "cut", times=2)
    send(run_folder)
    assert (
        hub.repositories["me/my-bert"].read("model.safetensors")
        == (run_folder / "model.safetensors").read_bytes()
    )
    assert hub.count("PUT", "/storage/") == 3
    assert quick == [1, 2]


@pytest.mark.parametrize("action", ["cut", 500])
def test_a_network_that_stays_broken_is_reported_after_bounded_tries(
    hub,
    run_folder: Path,
    quick: list[float],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    action: int | str,
):
    hub.fail("PUT", "/storage/", action, times=999)
    words = r"me/my-bert: .*Error while uploading 'model\.safetensors' to the Hub"
    with caplog.at_level(logging.DEBUG), pytest.raises(PushError, match=words) as caught:
        send(run_folder)
    assert [seconds for seconds in quick if seconds in (5, 30)] == [5, 30]
    assert hub.count("PUT", "/storage/") == 18
    assert "tried again in 30 seconds" in caplog.text
    assert there(hub) == {".gitattributes"}
    assert caught.value.exit_code == 3
    assert "hf_writer" not in caplog.text + str(caught.value) + "".join(capsys.readouterr())


def test_an_interrupted_upload_goes_on_with_what_is_missing(
    hub, tiny_checkpoint: Path, tmp_path: Path, quick: list[float]
):
    folder = tmp_path / "shards"
    BertForPreTraining.from_pretrained(tiny_checkpoint).save_pretrained(
        folder, max_shard_size="30KB"
    )
    model = collect_files(folder)
    hub.fail("PUT", "/storage/", "cut", times=999, skip=1)
    with pytest.raises(PushError):
        send(model)
    arrived = dict(hub.stored)
    assert len(arrived) == 1
    hub.faults.clear()
    hub.requests.clear()
    send(model)
    sent = {path.removeprefix("/storage/") for method, path in hub.requests if method == "PUT"}
    assert sent == set(model.hash_weights().values()) - set(arrived)
    repository = hub.repositories["me/my-bert"]
    assert all(repository.read(name) == path.read_bytes() for name, path in model.files.items())


@pytest.mark.parametrize("action", [500, 429, "cut"])
def test_a_commit_that_fails_is_tried_again(
    hub, run_folder: Path, quick: list[float], action: int | str
):
    hub.fail("POST", "/commit/", action)
    send(run_folder)
    assert quick == [5]
    assert hub.count("PUT", "/storage/") == 1


@pytest.mark.parametrize("status", [400, 401, 403, 413])
def test_a_refusal_is_not_tried_again(hub, run_folder: Path, quick: list[float], status: int):
    hub.fail("POST", "/commit/", status)
    with pytest.raises(PushError, match=rf"me/my-bert: .*{status}"):
        send(run_folder)
    assert not quick


@pytest.mark.parametrize("is_during_the_upload", [True, False])
def test_whoever_commits_meanwhile_is_not_written_over(
    hub,
    run_folder: Path,
    quick: list[float],
    monkeypatch: pytest.MonkeyPatch,
    is_during_the_upload: bool,
):
    place = target()
    repository = hub.repositories["me/my-bert"]
    upload = HfApi.preupload_lfs_files

    def commit_meanwhile(*args: object, **values: object) -> None:
        monkeypatch.setattr(HfApi, "preupload_lfs_files", upload)
        files = repository.branches["main"].files | {"config.json": hub.file("config.json", b"{}")}
        repository.commit("main", "by somebody", files)
        if is_during_the_upload:
            upload(*args, **values)

    if is_during_the_upload:
        monkeypatch.setattr(HfApi, "preupload_lfs_files", commit_meanwhile)
    else:
        commit_meanwhile()
    with pytest.raises(InputError, match="me/my-bert holds another model"):
        push(place, collect_files(run_folder), "Step 4")
    assert quick == [5] * is_during_the_upload
    assert repository.history()[0].message == "by somebody"


# What lies there


def test_a_replaced_model_leaves_nothing_but_its_history(hub, run_folder: Path, pushed: set[str]):
    (run_folder / "README.md").unlink()
    former = {
        "config.json": b"{}",
        "pytorch_model.bin": b"old",
        "README.md": b"# Another",
        "merges.txt": b"a b",
    }
    repository = hub.add_repository("me/my-bert", former)
    send(run_folder, overwrite=True)
    assert there(hub) == (pushed - {"README.md"}) | {".gitattributes"}
    assert set(repository.history()[1].files) == {*former, ".gitattributes"}


def test_weights_of_an_earlier_push_in_another_form_do_not_stay(hub, run_folder: Path):
    send(run_folder)
    repository = hub.repositories["me/my-bert"]
    files = repository.branches["main"].files | {
        "export.onnx": hub.file("export.onnx", b"of the user's")
    }
    repository.commit("main", "an export", files)
    model = BertForPreTraining.from_pretrained(run_folder)
    (run_folder / "model.safetensors").unlink()
    model.save_pretrained(run_folder, max_shard_size="30KB")
    send(run_folder, "In shards")
    assert "model.safetensors" not in there(hub)
    shards = collect_files(run_folder).hash_weights()
    assert {"export.onnx", "model.safetensors.index.json", *shards} <= there(hub)


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
    send(run_folder)
    repository = hub.repositories["me/my-bert"]
    files = {
        name: hub.file(name, b"of the user's")
        for name in ("logo.png", "notes.md", "checkpoint-2/README.md")
    }
    repository.commit("main", "by the user", repository.branches["main"].files | files)
    return run_folder


def checkpoint_of(folder: Path, *, has_other_weights: bool = True) -> ModelFiles:
    """What a checkpoint of the run has: neither card nor figures."""
    checkpoint = folder.with_name("checkpoint-6")
    left = shutil.ignore_patterns(*DESCRIBED, "LICENSE", "card.yaml", "task.yaml")
    shutil.copytree(folder, checkpoint, ignore=left)
    if has_other_weights:
        model = BertForPreTraining.from_pretrained(folder)
        model.bert.pooler.dense.bias.data.add_(1.0)
        model.save_pretrained(checkpoint)
    return list_files(checkpoint)


@pytest.mark.parametrize("tags", [(), ("tiny",)])
def test_what_tells_of_older_weights_does_not_stay_beside_newer_ones(
    hub, finished: Path, tags: tuple[str, ...]
):
    assert PLOT_FILE in DESCRIPTIONS
    repository, before = hub.repositories["me/my-bert"], there(hub)
    assert before >= DESCRIBED
    model = checkpoint_of(finished)
    send(model, "Step 6", tags)
    assert repository.read("model.safetensors") == model.files["model.safetensors"].read_bytes()
    assert there(hub) == before - DESCRIBED | ({"README.md"} if tags else set())
    assert not tags or repository.read("README.md") == b"---\ntags:\n- tiny\n---\n"
    send(finished, "Step 4 again")
    assert there(hub) == before


def test_what_tells_of_the_same_weights_stays_and_so_does_a_card_of_the_users(hub, finished: Path):
    repository, before = hub.repositories["me/my-bert"], there(hub)
    send(checkpoint_of(finished, has_other_weights=False), "The same")
    assert there(hub) == before
    shutil.rmtree(finished.with_name("checkpoint-6"))
    files = repository.branches["main"].files | {"README.md": hub.file("README.md", b"# Mine\n")}
    repository.commit("main", "my card", files)
    send(checkpoint_of(finished), "Step 6")
    assert repository.read("README.md") == b"# Mine\n"
    assert there(hub) == before - DESCRIBED | {"README.md"}


# The card


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            b"---\nlicense:\tmit\n---\n",
            r"README\.md: the metadata at its head cannot be read: .* start any token",
        ),
        (b"---\n- a\n- b\n---\n", "metadata block should be a dict"),
        (b"---\nlicense: mit\n---\n\xff", "codec can.t decode byte 0xff"),
    ],
    ids=["yaml", "list", "bytes"],
)
@pytest.mark.parametrize("tags", [(), ("bert",)])
def test_a_card_that_cannot_be_read_is_found_before_anything_is_sent(
    hub, run_folder: Path, head: bytes, message: str, tags: tuple[str, ...]
):
    place = target()
    (run_folder / "README.md").write_bytes(head)
    hub.requests.clear()
    with pytest.raises(InputError, match=message):
        push(place, collect_files(run_folder), "Step 4", tags=tags)
    assert not hub.requests


def test_a_card_that_the_hub_does_not_take_is_said(hub, run_folder: Path, quick: list[float]):
    (run_folder / "README.md").write_text("---\nlicense: none-of-them\n---\n")
    with pytest.raises(PushError, match=r"Invalid metadata in README\.md"):
        send(run_folder)
    assert there(hub) == {".gitattributes"}
    assert not quick


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_card_with_more_tags_is_still_a_generated_one_and_an_edited_one_is_not(
    hub, run_folder: Path, tmp_path: Path, is_edited: bool
):
    text = seal_card((run_folder / CARD_FILE).read_text()) + "Mine.\n" * is_edited
    (run_folder / CARD_FILE).write_text(text)
    send(run_folder, tags=("tiny", "own", "tiny"))
    (tmp_path / CARD_FILE).write_bytes(hub.repositories["me/my-bert"].read(CARD_FILE))
    card = ModelCard((tmp_path / CARD_FILE).read_text())
    assert card.data.tags == ["own", "tiny"]
    assert "# My BERT\n" in card.text
    assert is_generated_card(tmp_path) is not is_edited
    assert (run_folder / CARD_FILE).read_text() == text


def test_without_a_card_tags_stand_alone_and_no_card_is_made_without_tags(hub, run_folder: Path):
    (run_folder / "README.md").unlink()
    send(run_folder)
    assert "README.md" not in there(hub)
    for tag in ("bert", "tiny"):  # the card that is there is kept
        send(run_folder, "Tags", (tag,))
        assert hub.repositories["me/my-bert"].read("README.md") == b"---\ntags:\n- bert\n---\n"


def test_the_command_for_afterwards_says_everything(tmp_path: Path):
    place = PushTarget("me/x", "trial", private=False, overwrite=True)
    command = push_command(tmp_path / "my run", place, ["a", "b"])
    assert command.startswith(
        f"python recipes/push_to_hub.py --run '{tmp_path}/my run' --repo me/x --revision trial"
    )
    assert command.endswith("--private false --overwrite true --tags a b")
    assert (
        push_command(Path("runs/x"), PushTarget("me/x"))
        == "python recipes/push_to_hub.py --run runs/x --repo me/x"
    )
