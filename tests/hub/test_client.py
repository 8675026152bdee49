"""The client waits for a while and not for ever."""

import time

import pytest

from bert_recipes.errors import InputError
from bert_recipes.hub import hub_errors, make_client, refuse_token_flags, status_of


@pytest.mark.parametrize(("action", "status"), [(401, 401), (503, 503), ("silence", None), ("cut", None)])
def test_answers_are_told_apart_and_a_server_that_does_not_answer_is_left_after_the_limit(
    hub, action: int | str, status: int | None
):
    hub.fail("GET", "whoami", action)
    start = time.monotonic()
    with pytest.raises(hub_errors()) as caught:
        make_client(0.5).whoami()
    assert time.monotonic() - start < 3
    wrapped = RuntimeError("Error while uploading 'model.safetensors' to the Hub.")
    wrapped.__cause__ = caught.value
    assert status_of(caught.value) == status_of(wrapped) == status


def test_requests_bear_the_token_where_they_would_not_by_themselves(hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    hub.add_repository("me/hidden", {})
    assert make_client().model_info("me/hidden").private


@pytest.mark.parametrize("flag", ["--hub_token", "--hub-token", "--token", "--hub_token=hf_abcdefgh"])
def test_a_token_on_the_command_line_is_refused_and_not_repeated(flag: str):
    with pytest.raises(InputError, match="log in with `hf auth login`, or set HF_TOKEN") as caught:
        refuse_token_flags(["--run", "x", flag, "hf_abcdefgh"])
    assert "hf_abcdefgh" not in str(caught.value)


def test_flags_without_a_token_pass():
    refuse_token_flags(["--run", "token", "--repo", "me/token", "--tokenizer", "x"])
