"""The bytes arrive as one commit, and what fails is one line."""

import logging
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from transformers import BertForPreTraining

from bert_recipes import shipped
from bert_recipes.checkpointing import may_replace_card, seal_card
from bert_recipes.errors import PushError
from bert_recipes.hub import PushTarget, collect_files, open_target, push, push_command
from bert_recipes.run_folder import CARD_FILE


def send(folder: Path, message: str = "Step 4", **values: Any) -> str:
    run_ids = frozenset({"0123abcd"})
    target = open_target(PushTarget("me/my-bert", run_ids=run_ids, **values), later="")
    return push(target, folder, collect_files(folder), message)


def there(hub: Any, branch: str = "main") -> set[str]:
    return set(hub.repositories["me/my-bert"].branches[branch].files) - {".gitattributes"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sleeps between tries."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)


def test_the_bytes_arrive_as_one_commit_and_are_not_sent_again(
    hub, run_folder: Path, pushed: set[str]
):
    assert send(run_folder) == f"{hub.url}/me/my-bert"
    repository = hub.repositories["me/my-bert"]
    assert there(hub) == pushed
    assert all(repository.read(name) == (run_folder / name).read_bytes() for name in pushed)
    assert [commit.message for commit in repository.history()] == ["Step 4", "initial commit"]
    (run_folder / "report.md").write_text("# Another report\n")
    send(run_folder, "Report")
    assert len(repository.history()) == 3
    assert hub.count("PUT", "/storage/") == 1


def test_a_branch_begins_empty_and_main_is_not_written_to(hub, run_folder: Path):
    repository = hub.add_repository("me/my-bert", {"config.json": b"{}"})
    assert send(run_folder, revision="trial") == f"{hub.url}/me/my-bert/tree/trial"
    assert there(hub) == {"config.json"}
    assert "model.safetensors" in there(hub, "trial")
    assert len(repository.history("trial")) == 2


def test_weights_of_an_earlier_push_in_another_form_do_not_stay(hub, run_folder: Path):
    send(run_folder)
    model = BertForPreTraining.from_pretrained(run_folder)
    (run_folder / "model.safetensors").unlink()
    model.save_pretrained(run_folder, max_shard_size="30KB")
    send(run_folder, "In shards")
    assert "model.safetensors" not in there(hub)
    shards = {path.name for path in run_folder.glob("model-*.safetensors")}
    assert {"model.safetensors.index.json", *shards} <= there(hub)


def test_of_another_model_nothing_stays(hub, run_folder: Path, pushed: set[str]):
    others = {"config.json": b"{}", "added_tokens.json": b"{}", "adapter_config.json": b"{}"}
    hub.add_repository("me/my-bert", others)
    send(run_folder, overwrite=True)
    assert there(hub) == pushed


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (("PUT", "/storage/", "cut"), r"Error while uploading 'model\.safetensors' to the Hub"),
        (("POST", "/commit/", 403), "403 Forbidden"),
    ],
)
def test_a_push_that_fails_is_one_line_without_the_token(
    hub, run_folder: Path, caplog, capsys, fault: tuple[str, str, int | str], reason: str
):
    hub.fail(*fault, times=999)
    with caplog.at_level(logging.DEBUG), pytest.raises(PushError, match=reason) as caught:
        send(run_folder)
    assert str(caught.value).startswith("me/my-bert: ")
    assert "\n" not in str(caught.value)
    assert there(hub) == set()
    assert "hf_writer" not in caplog.text + str(caught.value) + "".join(capsys.readouterr())


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_card_with_more_tags_is_still_a_generated_one_and_an_edited_one_is_not(
    hub, run_folder: Path, is_edited: bool
):
    text = seal_card((run_folder / CARD_FILE).read_text()) + "Mine.\n" * is_edited
    (run_folder / CARD_FILE).write_text(text)
    send(run_folder, tags=("tiny", "own", "tiny"))
    text = (run_folder / CARD_FILE).read_text()
    card = ModelCard(text)
    assert card.data.tags == ["own", "tiny"]
    assert "# My BERT\n" in card.text
    assert may_replace_card(run_folder) is not is_edited
    assert hub.repositories["me/my-bert"].read(CARD_FILE) == text.encode()


def test_tags_without_a_card_are_left_out_with_a_warning(hub, run_folder: Path, caplog):
    (run_folder / CARD_FILE).unlink()
    send(run_folder, tags=("tiny",))
    assert "has no README.md, which would have the tags; they are left out: tiny" in caplog.text
    assert CARD_FILE not in there(hub)


def test_the_command_for_afterwards_says_everything(tmp_path: Path, monkeypatch):
    place = PushTarget("me/x", "trial", private=False, overwrite=True, tags=("a", "b"))
    command = push_command(tmp_path / "my run", place)
    assert command.startswith(
        f"python recipes/push_to_hub.py --run '{tmp_path}/my run' --repo me/x --revision trial"
    )
    assert command.endswith("--private false --overwrite true --tags a b")
    command = push_command(tmp_path, PushTarget("x", private=None))
    assert command.endswith("--repo NAMESPACE/x --private null")
    monkeypatch.setattr(shipped, "IS_CHECKOUT", False)  # as in a wheel
    command = push_command(tmp_path, PushTarget("x"))
    assert command == f"bert-recipes push-to-hub --run {tmp_path} --repo NAMESPACE/x"
