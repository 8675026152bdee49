"""Trackers are offline unless asked, and refused before training where they could not record it."""

import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainingArguments

from bert_recipes.config import resolved_values
from bert_recipes.errors import InputError
from bert_recipes.training import trackers
from bert_recipes.training.arguments import PreTrainingArguments
from bert_recipes.training.trackers import name_run, prepare_trackers


def settings(*report_to: str, **values: object) -> SimpleNamespace:
    spaces = {"trackio_space_id": None, "trackio_static_space_id": None}
    return SimpleNamespace(report_to=[*report_to], **{**spaces, "process_index": 0, **values})


def test_trackers_are_offline_unless_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("SWANLAB_MODE", "cloud")
    prepare_trackers(settings())
    assert "WANDB_MODE" not in os.environ  # another program of the process may want it
    pytest.importorskip("wandb")
    prepare_trackers(settings("wandb"))
    assert (os.environ["WANDB_MODE"], os.environ["SWANLAB_MODE"]) == ("offline", "cloud")


@pytest.mark.parametrize(
    ("report_to", "named", "used"),
    [
        ("trackio", None, False),
        ("trackio", "me/losses", "me/losses"),
        ("none", None, None),
        ("none", "me/losses", "me/losses"),
    ],
)
def test_no_static_space_is_made_or_saved_that_nobody_has_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report_to: str, named: str | None, used: Any
):
    monkeypatch.setattr(trackers, "get_reporting_integration_callbacks", lambda names: [dict])
    values = {"report_to": report_to, "trackio_static_space_id": named}
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **values)
    prepare_trackers(args)
    assert args.trackio_static_space_id == used
    assert resolved_values(args).get("trackio_static_space_id") == named


@pytest.mark.parametrize("name", ["wanbd", "clearml"])
def test_a_tracker_that_cannot_be_had_is_one_line(name: str):
    if find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(InputError, match=f"report_to: {name} cannot be used: .*{name}"):
        prepare_trackers(settings(name))


@pytest.mark.parametrize(
    ("has_login", "words"), [(False, "there is no login"), (True, r"http\S+ cannot be reached")]
)
def test_wandb_does_not_go_online_without_login_and_server(monkeypatch, has_login, words):
    pytest.importorskip("wandb", reason="the extra `tracking` is not installed")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr("wandb.login", lambda **_: has_login)
    monkeypatch.setattr(trackers, "can_connect", lambda url: False)
    with pytest.raises(InputError, match=f"wandb cannot go online: {words}.*; WANDB_MODE=offline"):
        prepare_trackers(settings("wandb"))
    prepare_trackers(settings("wandb", process_index=1))


@pytest.mark.parametrize("obstacle", ["HF_HUB_OFFLINE is set", None])
def test_a_space_needs_the_hub_and_a_token(monkeypatch: pytest.MonkeyPatch, obstacle: str | None):
    pytest.importorskip("trackio", reason="the extra `tracking` is not installed")
    monkeypatch.setattr(trackers, "why_unreachable", lambda: obstacle)
    monkeypatch.setattr(trackers, "get_token", lambda: None)
    words = obstacle or "there is no token"
    with pytest.raises(InputError, match=f"trackio cannot use the Space me/losses: {words}"):
        prepare_trackers(settings("trackio", trackio_space_id="me/losses"))
    prepare_trackers(settings("trackio"))


@pytest.mark.parametrize(
    ("folder", "run_name", "name"),
    [
        ("my_bert", None, "my_bert-01234567"),
        ("my bert", "other", "my-bert-01234567"),
        ("mrpc_paper/lr2e-05/seed-1", None, "lr2e-05-seed-1-01234567"),
    ],
)
def test_a_run_has_a_name_by_which_it_is_found_again(monkeypatch, tmp_path, folder, run_name, name):
    monkeypatch.setenv("WANDB_RESUME", "must")
    args = SimpleNamespace(output_dir=str(tmp_path / folder), run_name=run_name)
    variables = name_run(args, "0123456789abcdef")
    assert variables == {"WANDB_RUN_ID": name, "WANDB_DIR": str(tmp_path / folder)}
    assert args.run_name == (run_name or name)


def test_secrets_are_no_settings():
    args = TrainingArguments(output_dir="x", hub_token="hf_secret", use_cpu=True)
    assert "hf_secret" not in str(resolved_values(args))
