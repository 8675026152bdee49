"""Runs that go to a Hub, by the commands that a user types; the Hub is on loopback."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import close_session
from in_process import keep_last


SMALL = shlex.split(
    "--max_seq_length 32 --max_steps 4 --warmup_steps 1 --per_device_train_batch_size 4 "
    "--global_train_batch_size 4 --max_eval_pairs 10 --eval_strategy no --logging_steps 2 "
    "--save_strategy steps --use_cpu true --precision fp32 --push_to_hub true"
)
TOKEN = "hf_writerwriterwriter"


@pytest.fixture
def hub(hub_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The Hub, asked by this process."""
    hub_server.take_over(monkeypatch)
    yield hub_server
    close_session()


def run(repository: Path, hub: Any, script: str, *flags: object, code: int = 0):
    environment = dict(os.environ)
    for name in os.environ:
        if name.upper().endswith(("_PROXY", "_TOKEN")):
            del environment[name]
    command = [script] if script[0] == "-" else [f"recipes/{script}.py"]
    process = subprocess.run(
        [sys.executable, *command, *keep_last(flags)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=repository,
        env={**environment, **hub.environment()},
    )
    assert process.returncode == code, process.stderr[-3000:]
    assert TOKEN not in process.stdout + process.stderr
    return process


def pretrain(repository: Path, hub: Any, store: Path, folder: Path, *flags: object, code: int = 0):
    place = ["--store", store, "--output_dir", folder]
    return run(repository, hub, "pretrain", *place, *SMALL, *flags, code=code)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_run_is_pushed_while_it_trains_and_whole_at_its_end(
    repository: Path, hub_server: Any, small_store: Path, tmp_path: Path
):
    hub_server.fail("PUT", "/storage/", "cut")  # the first upload breaks in its middle
    folder = tmp_path / "my-bert"
    flags = ["--save_steps 2 --hub_always_push true --save_total_limit 1"]
    flags += ["--hub_tags bert tiny"]
    process = pretrain(repository, hub_server, small_store, folder, *flags)

    hub = hub_server.repositories["me/my-bert"]
    messages = [commit.message for commit in hub.history()]
    steps = ["Training in progress, step 4", "Training in progress, step 2", "initial commit"]
    assert messages == ["End of training, step 4", *steps]
    assert hub.private
    assert f"on the Hub: {hub_server.url}/me/my-bert" in process.stdout
    local = files_of(folder)
    remote = {name: file.content for name, file in hub.branches["main"].files.items()}
    del remote[".gitattributes"]
    assert b"\n- bert-recipes\n- tiny\n" in remote["README.md"]
    assert {name: local[name] for name in remote} == remote
    expected = "config.json model.safetensors tokenizer.json vocab.txt run.yaml all_results.json"
    others = "trainer_state.json report.md losses.png run_identity.json"
    assert {*expected.split(), *others.split()} <= set(remote)
    assert not [name for name in remote if name.endswith((".pt", ".bin", ".pth")) or "/" in name]
    # Step 2 is another model than step 4, with the same identity, and its checkpoint is long
    # deleted.
    second = hub.history()[2].files
    assert second["model.safetensors"].content != remote["model.safetensors"]
    assert second["run_identity.json"].content == remote["run_identity.json"]
    assert json.loads(second["trainer_state.json"].content)["global_step"] == 2

    assert TOKEN.encode() not in b"".join(local.values())
    assert not [name for name in local if ".aside" in name or name.endswith(".tmp")]
    assert b"hub_model_id: me/my-bert" in local["run.yaml"]


@pytest.mark.slow
def test_a_push_that_fails_loses_no_run_and_the_command_it_names_ends_it(
    repository: Path, hub_server: Any, small_store: Path, tmp_path: Path
):
    hub_server.fail("POST", "/commit/", 403, times=999)
    folder = tmp_path / "run"
    flags = ["--save_steps 2 --hub_model_id lab/bert --hub_private_repo false"]
    process = pretrain(repository, hub_server, small_store, folder, *flags, code=3)
    assert "checkpoint-2 is not on the Hub: 403" in process.stderr
    assert "training continues" in process.stderr
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"error: the run is finished and complete in {folder}, but not on the Hub: lab/bert: 403"
    )
    assert "Traceback" not in process.stderr
    results = json.loads((folder / "all_results.json").read_text())
    assert results["train_steps"] == 4
    assert (folder / "report.md").is_file()

    hub_server.faults.clear()
    command = last.split("push it with python recipes/push_to_hub.py ")[1].split()
    process = run(repository, hub_server, "push_to_hub", *command)
    hub = hub_server.repositories["lab/bert"]
    assert not hub.private
    assert [commit.message for commit in hub.history()] == ["Upload of step 4", "initial commit"]
    assert hub.read("model.safetensors") == (folder / "model.safetensors").read_bytes()
    assert process.stdout.strip().splitlines()[-1] == f"{hub_server.url}/lab/bert"
    assert "everybody will see what is pushed to lab/bert" in process.stderr


def test_a_push_of_a_folder_lists_it_and_knows_it_again(hub, call_recipe, tiny_checkpoint: Path):
    flags = ["push_to_hub", "--run", tiny_checkpoint, "--repo me/bert"]
    listed = call_recipe(*flags, "--dry_run true")
    assert not hub.requests
    size = (tiny_checkpoint / "model.safetensors").stat().st_size
    assert f"{size:,}  model.safetensors\n" in listed
    assert f"bytes in 5 files of {tiny_checkpoint}\n" in listed

    output = call_recipe(*flags)
    assert output.startswith(listed)
    assert output.splitlines()[-1] == f"{hub.url}/me/bert"
    assert "holds another model" in call_recipe(*flags, code=1)
    output = call_recipe(*flags, "--overwrite true")
    assert output.splitlines()[-1] == f"{hub.url}/me/bert"
    assert hub.count("PUT", "/storage/") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--repo bert"], "error: --repo 'bert' is not NAMESPACE/NAME: give your name on the"),
        (["--token hf_abcdefgh"], "error: --token: a token on the command line"),
    ],
)
def test_a_mistake_is_one_line(hub, call_recipe, tiny_checkpoint, flags, message):
    command = ["push_to_hub", "--run", tiny_checkpoint, "--repo me/bert", *flags]
    error = call_recipe(*command, code=1)
    assert error.splitlines()[-1].startswith(message)
    assert "hf_abcdefgh" not in error
    assert not hub.requests


@pytest.mark.slow
def test_another_runs_place_is_refused_before_anything_is_loaded_and_an_evaluation_pushes_nothing(
    repository: Path, hub_server: Any, tiny_checkpoint: Path, tmp_path: Path
):
    hub_server.add_repository(
        "lab/bert", {"config.json": b'{"architectures": ["BertForPreTraining"]}'}
    )
    flags = ["--hub_model_id lab/bert"]
    store, folder = tmp_path / "no-store", tmp_path / "run"
    process = pretrain(repository, hub_server, store, folder, *flags, code=1)
    assert "error: lab/bert holds another model; " in process.stderr
    assert not folder.exists()
    hub_server.requests.clear()
    flags = ["--model_name_or_path", tiny_checkpoint, "--store", store, "--push_to_hub true"]
    process = run(repository, hub_server, "evaluate_checkpoint", *flags, code=1)
    assert "error: push_to_hub has no effect here" in process.stderr
    assert not hub_server.requests


@pytest.mark.slow
def test_a_run_that_goes_on_pushes_over_its_own_model(
    repository: Path, hub_server: Any, small_store: Path, tmp_path: Path
):
    folder = tmp_path / "run"
    flags = ["--save_steps 2 --hub_strategy all_checkpoints --hub_always_push true"]
    pretrain(repository, hub_server, small_store, folder, *flags)
    hub = hub_server.repositories["me/run"]
    inside = {name.split("/")[0] for name in hub.branches["main"].files if "/" in name}
    assert inside == {"checkpoint-2", "checkpoint-4"}
    before = hub.read("model.safetensors")
    pretrain(
        repository, hub_server, small_store, folder, *flags, "--resume", folder / "checkpoint-2"
    )
    assert hub.read("model.safetensors") == before  # the same run, always
    # A new run in its place is another one.
    process = pretrain(
        repository, hub_server, small_store, folder, *flags, "--overwrite_run true", code=1
    )
    assert "error: me/run holds another model" in process.stderr
    assert (folder / "all_results.json").is_file()
    flags = ["--overwrite_run true --hub_overwrite true --seed 7"]
    flags += ["--save_steps 2 --hub_strategy end"]
    pretrain(repository, hub_server, small_store, folder, *flags)
    assert hub.read("model.safetensors") != before


@pytest.mark.slow
def test_two_processes_ask_once_push_once_and_stop_together(
    repository: Path, hub_server: Any, small_store: Path, tmp_path: Path
):
    config = repository / "accelerate_configs" / "ddp_cpu.yaml"
    flags = ["accelerate.commands.launch", "--config_file", config, "--main_process_port 0"]
    flags += [repository / "recipes" / "pretrain.py", "--store", small_store, *SMALL]
    flags += ["--save_steps 2 --per_device_train_batch_size 2"]
    flags += ["--output_dir", tmp_path / "run"]
    run(repository, hub_server, "-m", *flags)
    assert hub_server.count("POST", "/repos/create") == 1
    assert hub_server.repositories["me/run"].history()[0].message == "End of training, step 4"
    hub_server.add_repository("me/taken", {"config.json": b"{}"})
    flags += ["--hub_model_id me/taken --output_dir", tmp_path / "b"]
    process = run(repository, hub_server, "-m", *flags, code=1)
    assert process.stderr.count("error: me/taken holds another model") == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_fine_tuning_run_is_pushed_with_its_task(
    repository: Path, hub_server: Any, tiny_runs: Any, tmp_path: Path
):
    data = tiny_runs("sequence_classification").parent
    flags = ["--task_file", data / "data" / "task.yaml", "--model_name_or_path", data / "start"]
    flags += ["--output_dir", tmp_path / "mine", "--max_steps 2 --max_seq_length 40"]
    flags += ["--use_cpu true --precision fp32 --push_to_hub true"]
    process = run(repository, hub_server, "finetune", *flags)
    assert f"on the Hub: {hub_server.url}/me/mine" in process.stdout
    names = set(hub_server.repositories["me/mine"].branches["main"].files)
    assert {"task.yaml", "run.yaml", "all_results.json", "model.safetensors"} <= names
    assert not [name for name in names if name.startswith("predictions")]
