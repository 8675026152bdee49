"""Whether a model may be pushed is found out before anything is done, and is one clear line."""

import json
import socket
import time

import pytest

from bert_recipes.errors import InputError
from bert_recipes.hub import PushTarget, check_full_name, check_names, collect_files, open_target


OTHER = {
    "config.json": json.dumps({"architectures": ["BertForMaskedLM"]}).encode(),
    "model.safetensors": b"x" * 1_500_000,
    "run_identity.json": b'{"format": "bert-recipes run", "run_id": "another"}',
}


def ask(repo_id: str, **values: object) -> PushTarget:
    return open_target(PushTarget(repo_id, **values), later="push it later with PUSH")


def test_a_new_repository_is_made_private_and_named_in_full(hub):
    assert ask("my-bert").repo_id == "me/my-bert"
    assert hub.repositories["me/my-bert"].private
    assert ask("lab/my-bert").repo_id == "lab/my-bert"  # an organisation of the user's


@pytest.mark.parametrize(("private", "is_private"), [(False, False), (None, False), (True, True)])
def test_the_private_flag_is_sent(hub, private: bool | None, is_private: bool):
    ask("me/my-bert", private=private)
    assert hub.repositories["me/my-bert"].private is is_private


def test_an_empty_repository_is_free(hub):
    hub.add_repository("me/my-bert", {"README.md": b"# to come\n"})
    assert ask("me/my-bert").repo_id == "me/my-bert"


def test_no_token_is_said_with_the_way_to_one(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match="no token for the Hub: log in with `hf auth login`, or set HF_TOKEN"):
        ask("me/my-bert")
    assert not hub.requests


def test_a_wrong_token_is_said_with_where_it_comes_from(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_oldoldoldold")
    with pytest.raises(InputError, match=r"the token in the environment \(HF_TOKEN\) is not valid \(401\)") as caught:
        ask("me/my-bert")
    assert "hf_old" not in str(caught.value)


@pytest.mark.parametrize("token", ["hf_abcdefgh ijkl", "hf_abcdéfgh", "hf_abcdefgh\tx"])
def test_a_token_that_is_none_is_refused_and_not_repeated(hub, monkeypatch: pytest.MonkeyPatch, token: str):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(InputError, match="has a blank or another character") as caught:
        ask("me/my-bert")
    assert "hf_abcd" not in str(caught.value)
    assert not hub.requests


def test_a_token_that_may_only_read_is_refused(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_readerreaderreader")
    with pytest.raises(InputError, match="may only read"):
        ask("me/my-bert")
    assert not hub.repositories


def test_somebody_elses_namespace_is_refused(hub):
    with pytest.raises(
        InputError, match=r"stranger/bert cannot be made on the Hub \(403\): me may not write there; .* under me/"
    ):
        ask("stranger/bert")


def test_somebody_elses_public_repository_is_refused(hub):
    hub.add_repository("stranger/bert", {}, private=False)
    with pytest.raises(InputError, match=r"may not write to this repository"):
        ask("stranger/bert", private=False)


def test_another_model_is_refused_and_described(hub):
    hub.add_repository("me/my-bert", OTHER)
    with pytest.raises(
        InputError, match=r"me/my-bert holds another model \(BertForMaskedLM, 1\.5 MB, of 2026-01-02\)"
    ) as caught:
        ask("me/my-bert", run_ids=frozenset({"mine"}))
    assert "give another repository or branch, or replace it with --overwrite true" in str(caught.value)
    assert ask("me/my-bert", overwrite=True).overwrite


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights/model.gguf", "config.json"])
def test_a_model_of_any_kind_counts(hub, name: str):
    hub.add_repository("me/my-bert", {name: b"{}"})
    with pytest.raises(InputError, match="holds another model"):
        ask("me/my-bert")


def test_an_earlier_push_of_the_same_run_is_ours(hub):
    hub.add_repository("me/my-bert", OTHER)
    assert ask("me/my-bert", run_ids=frozenset({"another"})).repo_id == "me/my-bert"


def test_the_same_weights_are_ours(hub, tiny_checkpoint):
    model = collect_files(tiny_checkpoint)
    hub.add_repository("me/my-bert", {name: path.read_bytes() for name, path in model.files.items()})
    wanted = PushTarget("me/my-bert")
    assert open_target(wanted, later="", hash_weights=model.hash_weights) == wanted
    with pytest.raises(InputError, match="holds another model"):
        open_target(wanted, later="", hash_weights=lambda: {"model.safetensors": "0" * 64})


def test_a_public_repository_is_no_place_for_a_private_model(hub):
    hub.add_repository("me/my-bert", {}, private=False)
    with pytest.raises(InputError, match=r"is a public repository.*--private false"):
        ask("me/my-bert")
    assert ask("me/my-bert", private=False).repo_id == "me/my-bert"


def test_a_private_repository_stays_private_and_says_so(hub, caplog: pytest.LogCaptureFixture):
    hub.add_repository("me/my-bert", {})
    ask("me/my-bert", private=False)
    assert "me/my-bert is private and stays so" in caplog.text


def test_a_new_branch_begins_empty_beside_another_model(hub):
    repository = hub.add_repository("me/my-bert", OTHER)
    ask("me/my-bert", revision="experiments/2")
    assert set(repository.branches["experiments/2"].files) == {".gitattributes"}
    assert set(repository.branches["main"].files) == {".gitattributes", *OTHER}
    repository.commit("taken", "x", dict(repository.branches["main"].files))
    with pytest.raises(InputError, match=r"me/my-bert \(branch taken\) holds another model"):
        ask("me/my-bert", revision="taken")


def test_tags_and_missing_requests_are_no_branches(hub):
    repository = hub.add_repository("me/my-bert", {})
    repository.tags["v1"] = repository.branches["main"]
    with pytest.raises(InputError, match="v1 is a tag"):
        ask("me/my-bert", revision="v1")
    with pytest.raises(InputError, match="has no refs/pr/7"):
        ask("me/my-bert", revision="refs/pr/7")


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("my bert", None, "'my bert' cannot be a repository"),
        ("a/b/c", None, "'a/b/c' cannot be a repository"),
        ("me/x", "0" * 40, "is a commit"),
        ("me/x", "two words", "cannot be a branch"),
    ],
)
def test_impossible_names_are_found_without_the_network(name: str, revision: str | None, message: str):
    with pytest.raises(InputError, match=message):
        check_names(name, revision)


@pytest.mark.parametrize("name", ["bert", "me/", "/bert", "a/b/c", "me/my bert", "", "https://huggingface.co/me/bert"])
def test_a_name_that_does_not_say_whose_it_is_is_found_without_the_network(name: str):
    with pytest.raises(InputError, match=r"is not NAMESPACE/NAME: .* for example me/my-bert$"):
        check_full_name(name, "--repo")
    check_full_name("me/my-bert", "--repo")


def test_offline_is_said_at_once(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set, so nothing was uploaded; push it later with PUSH"):
        ask("me/my-bert")
    assert not hub.requests


def test_no_network_is_said_within_seconds(hub, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
    start = time.monotonic()
    with pytest.raises(
        InputError,
        match=rf"^the Hub \(http://127.0.0.1:{port}\) cannot be reached, so nothing was uploaded; push it later with PUSH",
    ):
        ask("me/my-bert")
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("action", [500, 429, "cut"])
@pytest.mark.parametrize("path", ["whoami", "/api/models/me/my-bert$", "auth-check"])
def test_a_server_in_trouble_is_one_line_with_the_way_out(hub, action: int | str, path: str):
    hub.fail("GET", path, action, times=9)
    with pytest.raises(InputError, match="push it later with PUSH") as caught:
        ask("me/my-bert")
    assert "\n" not in str(caught.value)


def test_an_endpoint_that_is_no_hub_is_one_line(hub):
    hub.fail("GET", "whoami", 404)
    with pytest.raises(InputError, match="404"):
        ask("me/my-bert")
