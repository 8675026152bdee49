"""Settings of a push that cannot be followed, and checkpoints that are pushed while training."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from bert_recipes.checkpointing import write_run_id
from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError
from bert_recipes.hub import PushCheckpoints, _target, check_push, push_run
from bert_recipes.run_folder import RUN_ID_FILE
from bert_recipes.sweeps.sweep import check_flags
from bert_recipes.training.arguments import PreTrainingArguments


def settings(folder: Path, **values: object) -> PreTrainingArguments:
    return PreTrainingArguments(output_dir=str(folder), use_cpu=True, **values)


def test_a_token_among_the_settings_is_refused_and_not_repeated(tmp_path: Path):
    flags = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--hub_token", "hf_abcdefgh"]
    with pytest.raises(InputError, match="hub_token: a token on the command line") as caught:
        parse_arguments(PreTrainingArguments, argv=flags)
    assert "hf_abcdefgh" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hub_strategy": "checkpoint"}, "would upload the optimizer's state, which is a pickle"),
        ({}, "HF_HUB_OFFLINE is set, so .*; train without .*/run --repo NAMESPACE/run$"),
        ({"hub_model_id": "me/x"}, "; train without .*/run --repo me/x$"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(tmp_path: Path, values: dict, message: str):
    with pytest.raises(InputError, match=message):
        check_push(settings(tmp_path / "run", push_to_hub=True, **values))


def test_without_push_to_hub_nobody_is_asked(tmp_path: Path):
    args = settings(tmp_path, hub_model_id="me/x")
    check_push(args)
    assert not args.hub_is_checked
    assert push_run(args, 3) is None


def test_a_push_is_private_unless_one_says_otherwise_and_run_yaml_has_no_launch_settings(
    tmp_path: Path,
):
    args = settings(tmp_path / "run", push_to_hub=True, hub_overwrite=True, hub_tags=["a"])
    assert args.hub_private_repo is True
    save_config(tmp_path / "run.yaml", args)
    text = (tmp_path / "run.yaml").read_text()
    assert "push_to_hub: true" in text
    assert "hub_private_repo: true" in text
    assert "hub_overwrite" not in text
    assert "hub_token" not in text


def test_a_run_may_replace_what_it_pushed_itself(tmp_path: Path):
    folder, checkpoint = tmp_path / "run", tmp_path / "checkpoint-2"
    for path, run_id in ((folder, "of the run"), (checkpoint, "of the checkpoint")):
        path.mkdir()
        write_run_id(path / RUN_ID_FILE, run_id)
    target = _target(settings(folder))
    assert (target.repo_id, target.run_ids) == ("run", {"of the run"})
    assert _target(settings(folder, overwrite_run=True)).run_ids == set()
    resumed = settings(tmp_path / "new", resume=str(checkpoint))
    assert _target(resumed).run_ids == {"of the checkpoint"}


@pytest.fixture
def hub(hub_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from huggingface_hub.utils import close_session

    hub_server.take_over(monkeypatch)
    yield hub_server
    close_session()


@pytest.mark.parametrize("strategy", ["every_save", "all_checkpoints", "end"])
def test_of_another_model_that_a_training_replaces_nothing_stays(
    tiny_checkpoint: Path, tmp_path: Path, hub: Any, strategy: str
):
    """And of what the training itself has pushed everything does."""
    folder = tmp_path / "run"
    others = {"config.json": b"{}", "added_tokens.json": b"{}", "adapter_config.json": b"{}"}
    repository = hub.add_repository("me/run", others)
    args = settings(folder, push_to_hub=True, hub_overwrite=True, hub_strategy=strategy)
    check_push(args)
    shutil.copytree(tiny_checkpoint, folder / "checkpoint-2")
    callback = PushCheckpoints()
    state = TrainerState(global_step=2, is_world_process_zero=True)
    callback.on_save(args, state, TrainerControl())
    shutil.copytree(tiny_checkpoint, folder, dirs_exist_ok=True)
    (folder / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    push_run(args, 4)
    names = {path.name for path in tiny_checkpoint.iterdir()}
    expected = names | {".gitattributes"}
    if strategy == "all_checkpoints":
        expected |= {f"checkpoint-2/{name}" for name in names}
    assert set(repository.branches["main"].files) == expected


def save_and_push(args: PreTrainingArguments, model: Path, step: int) -> None:
    checkpoint = Path(args.output_dir) / f"checkpoint-{step}"
    shutil.copytree(model, checkpoint)
    write_run_id(checkpoint / RUN_ID_FILE, "of the run")
    state = TrainerState(global_step=step, is_world_process_zero=True)
    PushCheckpoints().on_save(args, state, TrainerControl())
    PushCheckpoints.last.result()


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize(
    "old_model",
    [(), ("config.json", "checkpoint-2/model.safetensors", "checkpoint-2/adapter_config.json")],
)
def test_the_final_push_leaves_the_checkpoints_that_the_run_has_pushed(
    tiny_checkpoint: Path, tmp_path: Path, hub: Any, old_model: tuple[str, ...], is_resumed: bool
):
    folder = tmp_path / "run"
    shutil.copytree(tiny_checkpoint, folder)
    write_run_id(folder / RUN_ID_FILE, "of the run")
    repository = hub.add_repository("me/run", dict.fromkeys(old_model, b"{}"))
    values = {"push_to_hub": True, "hub_strategy": "all_checkpoints"}
    args = settings(folder, **values, hub_overwrite=bool(old_model))
    check_push(args)
    save_and_push(args, tiny_checkpoint, 2)
    if is_resumed:
        args = settings(folder, **values, hub_overwrite=bool(old_model))
    push_run(args, 4)
    names = {path.name for path in tiny_checkpoint.iterdir()} | {RUN_ID_FILE}
    expected = names | {f"checkpoint-2/{name}" for name in names} | {".gitattributes"}
    assert set(repository.branches["main"].files) == expected
    weights = (tiny_checkpoint / "model.safetensors").read_bytes()
    assert repository.read("checkpoint-2/model.safetensors") == weights


def test_files_that_are_no_model_or_come_after_the_first_push_stay(
    tiny_checkpoint: Path, tmp_path: Path, hub: Any
):
    texts = dict.fromkeys(["LICENSE", "README.md", "loss.png"], b"of the owner")
    old_model = dict.fromkeys(["adapter_config.json", "merges.txt"], b"{}")
    repository = hub.add_repository("me/run", texts | old_model)
    args = settings(tmp_path / "run", push_to_hub=True, hub_overwrite=True)
    check_push(args)
    save_and_push(args, tiny_checkpoint, 2)
    expected = {path.name for path in tiny_checkpoint.iterdir()}
    expected |= {RUN_ID_FILE, ".gitattributes", *texts}
    assert set(repository.branches["main"].files) == expected
    added = hub.file("adapter_config.json", b"of the owner")
    files = repository.branches["main"].files | {"adapter_config.json": added}
    repository.commit("main", "by the owner", files)
    save_and_push(args, tiny_checkpoint, 4)
    assert set(repository.branches["main"].files) == expected | {"adapter_config.json"}


def test_checkpoints_are_pushed_beside_the_training(
    tiny_checkpoint: Path, tmp_path: Path, hub: Any
):
    folder = tmp_path / "run"
    args = settings(folder, push_to_hub=True, hub_always_push=True)
    check_push(args)
    callback, control = PushCheckpoints(), TrainerControl()
    for step in (2, 4, 6):
        checkpoint = folder / f"checkpoint-{step}"
        shutil.copytree(tiny_checkpoint, checkpoint)
        (checkpoint / "optimizer.pt").write_bytes(b"\x80\x04")
        (checkpoint / "run.yaml").write_text(f"seed: {step}\n")
        state = TrainerState(global_step=step, is_world_process_zero=True)
        control.is_interrupted = step == 6  # a signal ends the run there
        callback.on_save(args, state, control)
        shutil.rmtree(checkpoint)  # as save_total_limit does
    callback.api.run_as_future(int).result()  # those before it are at their end
    assert not list(folder.glob(".aside*"))
    repository = hub.repositories["me/run"]
    messages = [f"Training in progress, step {step}" for step in (4, 2)]
    assert [commit.message for commit in repository.history()] == [*messages, "initial commit"]
    weights = (tiny_checkpoint / "model.safetensors").read_bytes()
    assert repository.read("model.safetensors") == weights
    assert "optimizer.pt" not in repository.branches["main"].files


@pytest.mark.parametrize("is_disk_full", [False, True])
def test_a_checkpoint_that_cannot_be_pushed_is_a_warning(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch, caplog, is_disk_full: bool
):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    checkpoint = tmp_path / "run" / "checkpoint-2"
    shutil.copytree(tiny_checkpoint, checkpoint)
    if is_disk_full:
        monkeypatch.setattr("shutil.copyfile", refuse)
    args = settings(tmp_path / "run", push_to_hub=True, hub_model_id="me/run")
    state = TrainerState(global_step=2, is_world_process_zero=True)
    callback = PushCheckpoints()
    callback.on_save(args, state, TrainerControl())
    callback.api.run_as_future(int).result()  # the one before it is at its end
    reason = "No space left on device" if is_disk_full else "Token is required"
    assert f"{checkpoint} is not on the Hub: " in caplog.text
    assert reason in caplog.text
    command = f"python recipes/push_to_hub.py --run {checkpoint} --repo me/run"
    assert f"training continues. To push it: {command}" in caplog.text


def test_a_sweep_pushes_none_of_its_runs():
    with pytest.raises(
        InputError,
        match="--push_to_hub cannot be given here: push the best run when the sweep is done",
    ):
        check_flags(["--push_to_hub", "true"])
