"""Whether a model may be pushed is found out before anything is done, and is one clear line."""

import json
import socket
import time

import pytest

from bert_recipes.errors import InputError
from bert_recipes.hub import (
    PushTarget,
    check_names,
    collect_files,
    explain,
    make_client,
    open_target,
)
from bert_recipes.hub_access import refuse_token_flags


OTHER = {
    "config.json": json.dumps({"architectures": ["BertForMaskedLM"]}).encode(),
    "model.safetensors": b"x" * 1_500_000,
    "run_identity.json": b'{"format": "bert-recipes run", "run_id": "another"}',
}


def ask(repo_id: str = "me/my-bert", **values: object) -> PushTarget:
    return open_target(PushTarget(repo_id, **values), later="push it later with PUSH")


def refused(message: str, repo_id: str = "me/my-bert", **values: object) -> str:
    with pytest.raises(InputError, match=message) as caught:
        ask(repo_id, **values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_new_repository_is_made_private_and_named_in_full(hub):
    assert ask("my-bert").repo_id == "me/my-bert"
    assert hub.repositories["me/my-bert"].private
    assert ask("lab/my-bert").repo_id == "lab/my-bert"  # an organisation of the user's
    for name, private in (("me/a", False), ("me/b", None)):
        ask(name, private=private)
        assert not hub.repositories[name].private


def test_requests_bear_the_token_where_they_would_not_by_themselves(
    hub, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    hub.add_repository("me/hidden", {})
    assert make_client().model_info("me/hidden").private


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "no token for the Hub: log in with `hf auth login`, or set HF_TOKEN"),
        ("hf_oldoldoldold", r"the token in the environment \(HF_TOKEN\) is not valid \(401\)"),
        ("hf_abcdefgh ijkl", "has a blank or another character"),
        ("hf_abcdéfgh", "has a blank or another character"),
        ("hf_readerreaderreader", "may only read"),
    ],
)
def test_a_token_that_does_not_do_is_said_and_not_repeated(
    hub, monkeypatch: pytest.MonkeyPatch, token: str | None, message: str
):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    assert "hf_" not in refused(message)
    assert not hub.repositories
    assert not hub.requests or "character" not in message


@pytest.mark.parametrize(
    "flag", ["--hub_token", "--hub-token", "--token", "--hub_token=hf_abcdefgh"]
)
def test_a_token_on_the_command_line_is_refused_and_not_repeated(flag: str):
    with pytest.raises(InputError, match="log in with `hf auth login`, or set HF_TOKEN") as caught:
        refuse_token_flags(["--run", "x", flag, "hf_abcdefgh"])
    assert "hf_abcdefgh" not in str(caught.value)
    refuse_token_flags(["--run", "token", "--repo", "me/token", "--tokenizer", "x"])


def test_somebody_elses_place_is_refused(hub):
    refused(
        r"stranger/bert: the token in .* may not write there \(403: .*give a repository under me/",
        "stranger/bert",
    )
    hub.add_repository("stranger/public", {}, private=False)
    refused(
        "stranger/public: the token in .* may not write there", "stranger/public", private=False
    )


def test_another_model_is_refused_and_described(hub):
    hub.add_repository("me/my-bert", OTHER)
    message = r"me/my-bert holds another model \(BertForMaskedLM, 1\.5 MB, of 2026-01-02\)"
    said = refused(message, run_ids=frozenset({"mine"}))
    assert "give another repository or branch, or replace it with --overwrite true" in said
    assert ask(overwrite=True).overwrite
    assert (
        ask(run_ids=frozenset({"another"})).repo_id == "me/my-bert"
    )  # an earlier push of the same run
    for name in ("pytorch_model.bin", "weights/model.gguf", "config.json"):
        hub.add_repository("me/my-bert", {name: b"{}"})
        refused("holds another model")
    hub.add_repository("me/my-bert", {"README.md": b"# to come\n"})
    assert ask().repo_id == "me/my-bert"


def test_the_same_weights_are_ours(hub, tiny_checkpoint):
    model = collect_files(tiny_checkpoint)
    hub.add_repository(
        "me/my-bert", {name: path.read_bytes() for name, path in model.files.items()}
    )
    wanted = PushTarget("me/my-bert")
    assert open_target(wanted, later="", hash_weights=model.hash_weights) == wanted
    with pytest.raises(InputError, match="holds another model"):
        open_target(wanted, later="", hash_weights=lambda: {"model.safetensors": "0" * 64})


def test_a_repository_stays_as_public_as_it_is(hub, caplog: pytest.LogCaptureFixture):
    hub.add_repository("me/my-bert", {}, private=False)
    refused(r"is a public repository.*--private false")
    assert ask(private=False).repo_id == "me/my-bert"
    hub.add_repository("me/hidden", {})
    ask("me/hidden", private=False)
    assert "me/hidden is private and stays so" in caplog.text


def test_a_new_branch_begins_empty_beside_another_model(hub):
    repository = hub.add_repository("me/my-bert", OTHER)
    ask(revision="experiments/2")
    assert set(repository.branches["experiments/2"].files) == {".gitattributes"}
    assert set(repository.branches["main"].files) == {".gitattributes", *OTHER}
    repository.commit("taken", "x", dict(repository.branches["main"].files))
    refused(r"me/my-bert \(branch taken\) holds another model", revision="taken")
    repository.tags["v1"] = repository.branches["main"]
    for name in ("v1", "refs/pr/7"):
        refused(f"{name} is no branch", revision=name)


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("my bert", None, "'my bert' cannot be a repository"),
        ("a/b/c", None, "'a/b/c' cannot be a repository"),
        ("me/x", "0" * 40, "is a commit"),
        ("me/x", "two words", "cannot be a branch"),
    ],
)
def test_impossible_names_are_found_without_the_network(
    name: str, revision: str | None, message: str
):
    with pytest.raises(InputError, match=message):
        check_names(name, revision)


def test_what_cannot_be_reached_is_said_within_seconds(hub, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    start = time.monotonic()
    refused(
        rf"^the Hub \({url}\) cannot be reached, so nothing was uploaded; push it later with PUSH"
    )
    assert time.monotonic() - start < 5
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("HF_HUB_OFFLINE is set, so nothing was uploaded; push it later with PUSH")
    assert not hub.requests


@pytest.mark.parametrize("action", [500, 429, 404, "cut"])
@pytest.mark.parametrize("path", ["whoami", "/api/models/me/my-bert$", "auth-check"])
def test_a_server_in_trouble_is_one_line_with_the_way_out(hub, action: int | str, path: str):
    hub.fail("GET", path, action, times=9)
    said = refused("push it later with PUSH")
    assert str(action) in said or action == "cut"


@pytest.mark.parametrize(
    ("action", "status"), [(401, 401), (503, 503), ("silence", None), ("cut", None)]
)
def test_answers_are_told_apart_and_a_server_that_does_not_answer_is_left_after_the_limit(
    hub, action: int | str, status: int | None
):
    hub.fail("GET", "whoami", action)
    start = time.monotonic()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        make_client(0.5).whoami()
    assert time.monotonic() - start < 3
    wrapped = RuntimeError("Error while uploading 'model.safetensors' to the Hub.")
    wrapped.__cause__ = caught.value
    assert explain(caught.value)[0] == explain(wrapped)[0] == status
