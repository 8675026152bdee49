"""Whether a model may be pushed is found out before anything is done, and is one clear line."""

import socket

import pytest

from bert_recipes.errors import InputError
from bert_recipes.hub import PushTarget, open_target
from bert_recipes.hub_access import refuse_token_flags


OTHER = {
    "config.json": b"{}",
    "run_identity.json": b'{"format": "bert-recipes run", "run_id": "another"}',
}


def ask(repo_id: str = "me/my-bert", **values: object) -> PushTarget:
    return open_target(PushTarget(repo_id, **values), later="push it later with PUSH")


def refused(message: str, repo_id: str = "me/my-bert", **values: object) -> str:
    with pytest.raises(InputError, match=message) as caught:
        ask(repo_id, **values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_new_repository_is_made_private_and_named_in_full(hub, caplog):
    assert ask("my-bert").repo_id == "me/my-bert"
    assert hub.repositories["me/my-bert"].private
    assert ask("lab/my-bert").repo_id == "lab/my-bert"  # an organization of the user's
    assert not caplog.text
    for name, private in (("me/a", False), ("me/b", None)):
        ask(name, private=private)
        assert not hub.repositories[name].private
        assert f"everybody will see what is pushed to {name}" in caplog.text


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "no token for the Hub: log in with `hf auth login`, or set HF_TOKEN"),
        ("hf_oldoldoldold", "401 Unauthorized"),
        ("hf_abcdefgh ijkl", "has a blank or another character"),
        ("hf_readerreaderreader", "403 Forbidden"),
    ],
)
def test_a_token_that_does_not_do_is_said_and_not_repeated(
    hub, monkeypatch: pytest.MonkeyPatch, token: str | None, message: str
):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    assert "hf_" not in refused(message)
    assert not hub.repositories


@pytest.mark.parametrize("flag", ["--hub-token", "--token", "--hub_token=hf_abcdefgh"])
def test_a_token_on_the_command_line_is_refused_and_not_repeated(flag: str):
    with pytest.raises(InputError, match="log in with `hf auth login`, or set HF_TOKEN") as caught:
        refuse_token_flags(["--run", "x", flag, "hf_abcdefgh"])
    assert "hf_abcdefgh" not in str(caught.value)
    refuse_token_flags(["--run", "token", "--repo", "me/token", "--tokenizer", "x"])


def test_somebody_elses_place_is_refused(hub):
    refused("my bert cannot be pushed to: Repo id must use", "my bert")
    hub.add_repository("stranger/public", {}, private=False)
    for name in ("stranger/bert", "stranger/public"):
        refused(f"{name} cannot be pushed to: 403.*; give a repository", name, private=False)


def test_another_model_is_refused(hub):
    hub.add_repository("me/my-bert", OTHER)
    refused("me/my-bert holds another model.*--overwrite true", run_ids=frozenset({"mine"}))
    for values in ({"overwrite": True}, {"run_ids": frozenset({"another"})}):
        assert ask(**values).repo_id == "me/my-bert"
    for other_model in ("config.json", "adapter_config.json", "model.gguf"):
        hub.add_repository("me/my-bert", {other_model: b"{}"})
        refused("holds another model")
    hub.add_repository("me/my-bert", {"README.md": b"# to come\n"})
    assert ask().repo_id == "me/my-bert"


def test_a_public_repository_is_refused_unless_that_is_meant(hub):
    hub.add_repository("me/my-bert", {}, private=False)
    refused(r"is a public repository.*--private false")
    assert ask(private=False).repo_id == "me/my-bert"


def test_a_private_repository_stays_so_whatever_is_said(hub, caplog):
    hub.add_repository("me/my-bert", {})
    ask()
    assert not caplog.text
    ask(private=False)
    assert "me/my-bert is private and stays so" in caplog.text
    assert "everybody" not in caplog.text


def test_a_tag_is_no_place_to_push_to(hub):
    repository = hub.add_repository("me/my-bert", {})
    repository.tags["v1"] = repository.branches["main"]
    refused("v1 is a tag of me/my-bert, and nothing can be pushed to a tag", revision="v1")
    assert ask(revision="v2").revision == "v2"


def test_what_cannot_be_reached_is_said(hub, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    refused(
        rf"^the Hub \({url}\) cannot be reached, so nothing was uploaded; push it later with PUSH"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("HF_HUB_OFFLINE is set, so nothing was uploaded; push it later with PUSH")
    assert not hub.requests


@pytest.mark.parametrize("action", [500, "cut"])
def test_a_server_in_trouble_is_one_line_with_the_way_out(hub, action: int | str):
    hub.fail("GET", "auth-check", action, times=9)
    refused("me/my-bert cannot be pushed to: .*or push it later with PUSH")
