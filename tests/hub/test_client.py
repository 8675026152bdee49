"""The client waits for a while and not for ever, and no message holds a secret."""

import time

import pytest

from bert_recipes.errors import InputError
from bert_recipes.hub import (
    describe,
    hub_errors,
    make_client,
    may_pass,
    own_token,
    refuse_token_flags,
    status_of,
    token_source,
)


def error_of(hub, action: int | str) -> BaseException:
    hub.fail("GET", "whoami", action)
    with pytest.raises(hub_errors()) as caught:
        make_client(0.5).whoami()
    return caught.value


@pytest.mark.parametrize(
    ("action", "status", "passes"),
    [(401, 401, False), (403, 403, False), (404, 404, False), (429, 429, True), (500, 500, True), (503, 503, True)],
)
def test_answers_are_told_apart(hub, action: int, status: int, passes: bool):
    error = error_of(hub, action)
    assert (status_of(error), may_pass(error)) == (status, passes)
    wrapped = RuntimeError("Error while uploading 'model.safetensors' to the Hub.")
    wrapped.__cause__ = error
    assert (status_of(wrapped), may_pass(wrapped)) == (status, passes)
    assert "Error while uploading" in describe(wrapped)
    assert str(status) in describe(wrapped)


@pytest.mark.parametrize("action", ["silence", "cut"])
def test_a_server_that_does_not_answer_is_left_after_the_limit(hub, action: str):
    start = time.monotonic()
    error = error_of(hub, action)
    assert time.monotonic() - start < 3
    assert (status_of(error), may_pass(error)) == (None, True)


def test_what_cannot_get_better_is_not_tried_again():
    assert not may_pass(FileNotFoundError(2, "No such file", "model.safetensors"))
    assert not may_pass(ValueError("Invalid metadata in README.md."))
    assert not may_pass(InputError("me/x holds another model"))
    assert may_pass(ConnectionResetError(104, "Connection reset by peer"))
    wrapped = RuntimeError("Error while uploading 'model.safetensors' to the Hub.")
    wrapped.__cause__ = FileNotFoundError(2, "No such file", "model.safetensors")
    assert not may_pass(wrapped)
    wrapped.__cause__ = OSError(-2, "Name or service not known")
    assert may_pass(wrapped)


def test_messages_hold_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-form")
    error = OSError(
        "PUT https://store.example/a?X-Amz-Signature=topsecret&x=1 'hf_abcdefgh12' a-token-of-another-form failed"
    )
    assert describe(error) == "PUT https://store.example/a '<token>' <token> failed"


def test_requests_bear_the_token_where_they_would_not_by_themselves(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    hub.add_repository("me/hidden", {})
    assert make_client().model_info("me/hidden").private


def test_the_token_of_a_login_is_kept_out_of_messages_and_nobody_is_asked_for_it(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "of-a-login-in-another-form")
    assert own_token() == "of-a-login-in-another-form"
    monkeypatch.setattr("huggingface_hub.get_token", lambda: pytest.fail("asked"))
    assert describe(OSError("Bearer of-a-login-in-another-form")) == "Bearer <token>"


def test_an_error_without_a_text_has_its_name():
    assert describe(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize("flag", ["--hub_token", "--hub-token", "--token", "--hub_token=hf_abcdefgh"])
def test_a_token_on_the_command_line_is_refused_and_not_repeated(flag: str):
    with pytest.raises(InputError, match="log in with `hf auth login`, or set HF_TOKEN") as caught:
        refuse_token_flags(["--run", "x", flag, "hf_abcdefgh"])
    assert "hf_abcdefgh" not in str(caught.value)


def test_flags_without_a_token_pass():
    refuse_token_flags(["--run", "token", "--repo", "me/token", "--tokenizer", "x"])


def test_where_the_token_comes_from_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "x")
    assert token_source() == "the environment (HF_TOKEN)"
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    assert token_source() == "the login of `hf auth login`"
