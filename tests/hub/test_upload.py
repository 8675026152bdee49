"""The bytes arrive; what breaks is tried again, what has arrived is not sent again, and what fails for good is said."""

import json
import logging
from pathlib import Path

import pytest
from transformers import BertForPreTraining

from bert_recipes.checkpointing import CARD_FILE, is_generated_card, seal_card
from bert_recipes.errors import InputError, PushError
from bert_recipes.hub import BackgroundPushes, ModelFiles, PushTarget, collect_files, open_target, push, push_command


def target(**values: object) -> PushTarget:
    return open_target(PushTarget("me/my-bert", run_ids=frozenset({"0123abcd"}), **values), later="")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody sleeps; what the library would have slept is kept."""
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    return slept


def test_the_bytes_arrive_as_one_commit(hub, run_folder: Path, pushed: set[str]):
    url = push(target(), collect_files(run_folder), "Step 4")
    repository = hub.repositories["me/my-bert"]
    assert set(repository.branches["main"].files) == pushed | {".gitattributes"}
    assert all(repository.read(name) == (run_folder / name).read_bytes() for name in pushed)
    assert [commit.message for commit in repository.history()] == ["Step 4", "initial commit"]
    assert url == f"{hub.url}/me/my-bert"


def test_a_branch_is_written_to_and_main_is_not(hub, run_folder: Path):
    url = push(target(revision="trial"), collect_files(run_folder), "Step 4")
    repository = hub.repositories["me/my-bert"]
    assert set(repository.branches["main"].files) == {".gitattributes"}
    assert "model.safetensors" in repository.branches["trial"].files
    assert url == f"{hub.url}/me/my-bert/tree/trial"


def test_what_is_there_is_not_sent_again(hub, run_folder: Path):
    model = collect_files(run_folder)
    push(target(), model, "Step 4")
    push(target(), model, "Step 4 again")
    assert hub.count("PUT", "/storage/") == 1
    assert len(hub.repositories["me/my-bert"].history()) == 2
    (run_folder / "report.md").write_text("# Another report\n")
    push(target(), collect_files(run_folder), "Report")
    assert len(hub.repositories["me/my-bert"].history()) == 3
    assert hub.count("PUT", "/storage/") == 1


def test_a_connection_that_breaks_in_the_middle_is_tried_again(hub, run_folder: Path, quick: list[float]):
    hub.fail("PUT", "/storage/", "cut", times=2)
    push(target(), collect_files(run_folder), "Step 4")
    assert hub.repositories["me/my-bert"].read("model.safetensors") == (run_folder / "model.safetensors").read_bytes()
    assert hub.count("PUT", "/storage/") == 3
    assert quick == [1, 2]


def test_a_network_that_stays_broken_is_reported_after_bounded_tries(
    hub, run_folder: Path, quick: list[float], caplog: pytest.LogCaptureFixture
):
    place = target()
    hub.fail("PUT", "/storage/", "cut", times=999)
    with pytest.raises(
        PushError, match=r"me/my-bert: Error while uploading 'model\.safetensors' to the Hub"
    ) as caught:
        push(place, collect_files(run_folder), "Step 4")
    assert [seconds for seconds in quick if seconds in (5, 30)] == [5, 30]
    assert hub.count("PUT", "/storage/") == 18
    assert "tried again in 30 seconds" in caplog.text
    assert set(hub.repositories["me/my-bert"].branches["main"].files) == {".gitattributes"}
    assert caught.value.exit_code == 3


def test_an_interrupted_upload_goes_on_with_what_is_missing(
    hub, tiny_checkpoint: Path, tmp_path: Path, quick: list[float]
):
    folder = tmp_path / "shards"
    BertForPreTraining.from_pretrained(tiny_checkpoint).save_pretrained(folder, max_shard_size="30KB")
    model = collect_files(folder)
    place = open_target(PushTarget("me/my-bert"), later="")
    hub.fail("PUT", "/storage/", "cut", times=999, skip=1)
    with pytest.raises(PushError):
        push(place, model, "Step 4")
    arrived = dict(hub.stored)
    assert len(arrived) == 1
    hub.faults.clear()
    hub.requests.clear()
    push(place, model, "Step 4")
    sent = {path.removeprefix("/storage/") for method, path in hub.requests if method == "PUT"}
    assert sent == set(model.hash_weights().values()) - set(arrived)
    repository = hub.repositories["me/my-bert"]
    assert all(repository.read(name) == path.read_bytes() for name, path in model.files.items())


@pytest.mark.parametrize("action", [500, 429, "cut"])
def test_a_commit_that_fails_is_tried_again(hub, run_folder: Path, quick: list[float], action: int | str):
    place = target()
    hub.fail("POST", "/commit/", action)
    push(place, collect_files(run_folder), "Step 4")
    assert quick == [5]
    assert hub.count("PUT", "/storage/") == 1


@pytest.mark.parametrize("status", [400, 401, 403, 413])
def test_a_refusal_is_not_tried_again(hub, run_folder: Path, quick: list[float], status: int):
    place = target()
    hub.fail("POST", "/commit/", status)
    with pytest.raises(PushError, match=rf"me/my-bert: .*{status}"):
        push(place, collect_files(run_folder), "Step 4")
    assert not quick


def test_a_card_that_the_hub_does_not_take_is_said(hub, run_folder: Path, quick: list[float]):
    (run_folder / "README.md").write_text("---\nlicense: none-of-them\n---\n")
    with pytest.raises(PushError, match=r"Invalid metadata in README\.md"):
        push(target(), collect_files(run_folder), "Step 4")
    assert set(hub.repositories["me/my-bert"].branches["main"].files) == {".gitattributes"}
    assert not quick


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            b"---\nlicense:\tmit\n---\n",
            r"README\.md: the metadata at its head cannot be read: .* cannot start any token",
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


def test_whoever_commits_during_the_upload_is_not_written_over(
    hub, run_folder: Path, quick: list[float], monkeypatch: pytest.MonkeyPatch
):
    from huggingface_hub import HfApi

    place = target()
    repository = hub.repositories["me/my-bert"]
    send = HfApi.preupload_lfs_files

    def commit_meanwhile(*args: object, **values: object) -> None:
        monkeypatch.setattr(HfApi, "preupload_lfs_files", send)
        files = repository.branches["main"].files | {"config.json": hub.file("config.json", b"{}")}
        repository.commit("main", "by somebody", files)
        send(*args, **values)

    monkeypatch.setattr(HfApi, "preupload_lfs_files", commit_meanwhile)
    with pytest.raises(InputError, match="me/my-bert holds another model"):
        push(place, collect_files(run_folder), "Step 4")
    assert quick == [5]
    assert repository.history()[0].message == "by somebody"


def test_weights_of_an_earlier_push_in_another_form_do_not_stay(hub, run_folder: Path):
    place = target()
    push(place, collect_files(run_folder), "Step 4")
    repository = hub.repositories["me/my-bert"]
    files = repository.branches["main"].files | {"export.onnx": hub.file("export.onnx", b"of the user's")}
    repository.commit("main", "an export", files)
    model = BertForPreTraining.from_pretrained(run_folder)
    (run_folder / "model.safetensors").unlink()
    model.save_pretrained(run_folder, max_shard_size="30KB")
    shards = collect_files(run_folder)
    push(place, shards, "In shards")
    there = set(repository.branches["main"].files)
    assert "model.safetensors" not in there
    assert {"export.onnx", "model.safetensors.index.json", *shards.hash_weights()} <= there


def test_a_card_with_more_tags_is_still_a_generated_one_there(hub, run_folder: Path, tmp_path: Path):
    (run_folder / CARD_FILE).write_text(seal_card((run_folder / CARD_FILE).read_text()))
    push(target(), collect_files(run_folder), "Step 4", tags=("tiny",))
    assert is_generated_card(run_folder)
    (tmp_path / CARD_FILE).write_bytes(hub.repositories["me/my-bert"].read(CARD_FILE))
    assert "- own\n- tiny\n" in (tmp_path / CARD_FILE).read_text()
    assert is_generated_card(tmp_path)
    # A card that somebody has edited does not become a generated one.
    (run_folder / CARD_FILE).write_text("Mine.\n" + (run_folder / CARD_FILE).read_text())
    push(target(), collect_files(run_folder), "Edited", tags=("tiny",))
    (tmp_path / CARD_FILE).write_bytes(hub.repositories["me/my-bert"].read(CARD_FILE))
    assert not is_generated_card(tmp_path)


def test_the_same_bytes_under_two_names_are_sent_once(hub, run_folder: Path):
    model = collect_files(run_folder)
    second = {f"checkpoint-4/{name}": model.files[name] for name in ("config.json", "model.safetensors")}
    push(target(), ModelFiles(model.folder, {**model.files, **second}), "Step 4")
    repository = hub.repositories["me/my-bert"]
    assert repository.read("checkpoint-4/model.safetensors") == repository.read("model.safetensors")
    assert hub.count("PUT", "/storage/") == 1


def test_what_has_come_to_lie_there_meanwhile_is_not_replaced(hub, run_folder: Path):
    place = target()
    repository = hub.repositories["me/my-bert"]
    files = {"config.json": hub.file("config.json", b"{}")}
    repository.commit("main", "by somebody", repository.branches["main"].files | files)
    with pytest.raises(InputError, match="me/my-bert holds another model"):
        push(place, collect_files(run_folder), "Step 4")
    assert repository.history()[0].message == "by somebody"


def test_a_replaced_model_leaves_nothing_but_its_history(hub, run_folder: Path, pushed: set[str]):
    (run_folder / "README.md").unlink()
    former = {"config.json": b"{}", "pytorch_model.bin": b"old", "README.md": b"# Another", "merges.txt": b"a b"}
    repository = hub.add_repository("me/my-bert", former)
    push(target(overwrite=True), collect_files(run_folder), "Step 4")
    assert set(repository.branches["main"].files) == (pushed - {"README.md"}) | {".gitattributes"}
    assert set(repository.history()[1].files) == {*former, ".gitattributes"}


def tags_of(text: bytes) -> list[str]:
    from huggingface_hub import ModelCard

    return ModelCard(text.decode()).data.tags


def test_tags_are_added_to_the_card_and_the_file_stays(hub, run_folder: Path):
    before = (run_folder / "README.md").read_bytes()
    push(target(), collect_files(run_folder), "Step 4", tags=["bert", "own", "bert"])
    card = hub.repositories["me/my-bert"].read("README.md")
    assert tags_of(card) == ["own", "bert"]
    assert card.endswith(b"# My BERT\n")
    assert (run_folder / "README.md").read_bytes() == before


def test_without_a_card_tags_stand_alone_and_no_card_is_made_without_tags(hub, run_folder: Path):
    (run_folder / "README.md").unlink()
    model = collect_files(run_folder)
    push(target(), model, "Step 4")
    repository = hub.repositories["me/my-bert"]
    assert "README.md" not in repository.branches["main"].files
    push(target(), model, "Tags", tags=["bert"])
    assert repository.read("README.md") == b"---\ntags:\n- bert\n---\n"
    push(target(), model, "More tags", tags=["tiny"])  # the card that is there is kept
    assert tags_of(repository.read("README.md")) == ["bert"]


def test_logs_and_messages_hold_no_secret(
    hub, run_folder: Path, quick: list[float], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    place = target()
    hub.fail("PUT", "/storage/", 500, times=999)
    with caplog.at_level(logging.DEBUG), pytest.raises(PushError) as caught:
        push(place, collect_files(run_folder), "Step 4")
    said = caplog.text + str(caught.value) + "".join(capsys.readouterr())
    assert "hf_writer" not in said


def test_the_command_for_afterwards_says_everything(tmp_path: Path):
    place = PushTarget("me/x", "trial", private=False, overwrite=True)
    command = push_command(tmp_path / "my run", place, ["a", "b"])
    assert command.startswith(f"python recipes/push_to_hub.py --run '{tmp_path}/my run' --repo me/x --revision trial")
    assert command.endswith("--private false --overwrite true --tags a b")
    assert push_command(Path("runs/x"), PushTarget("me/x")) == "python recipes/push_to_hub.py --run runs/x --repo me/x"


def test_pushes_in_the_background_keep_their_order_and_a_bug_ends_none(caplog: pytest.LogCaptureFixture):
    pushes, done = BackgroundPushes(), []
    assert not pushes.is_busy
    pushes.wait()
    pushes.add(lambda: done.append(1))
    pushes.add(lambda: json.loads("{"))
    pushes.add(lambda: done.append(2))
    pushes.wait()
    assert done == [1, 2]
    assert not pushes.is_busy
    assert "a push failed" in caplog.text
