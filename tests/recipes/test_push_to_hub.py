"""Runs that go to a Hub, by the commands that a user types; the Hub is on loopback."""

import json
import os
import subprocess
import sys

import pytest
from huggingface_hub.utils import close_session
from in_process import keep_last

from bert_recipes import shipped


SMALL = (
    "--max_seq_length 32 --max_steps 4 --warmup_steps 1 --per_device_train_batch_size 4 "
    "--global_train_batch_size 4 --max_eval_pairs 10 --eval_strategy no --logging_steps 2 "
    "--save_strategy steps --save_steps 2 --use_cpu true --precision fp32 --push_to_hub true"
)
TOKEN = "hf_writerwriterwriter"


@pytest.fixture
def hub(hub_server, monkeypatch):
    """The Hub, asked by this process."""
    hub_server.take_over(monkeypatch)
    yield hub_server
    close_session()


@pytest.fixture
def pretrain(call_recipe, small_store, tmp_path):
    """Train and push in this process."""
    paths = ("--store", small_store, "--output_dir", tmp_path / "run")

    def run(flags, code=0):
        return call_recipe("pretrain", *paths, SMALL, flags, code=code)

    return run


@pytest.mark.slow
def test_a_push_that_fails_loses_no_run_and_the_command_it_names_ends_it(
    hub, pretrain, call_recipe, tmp_path, caplog
):
    hub.fail("POST", "/commit/", 403, times=999)
    folder = tmp_path / "run"
    output = pretrain("--hub_model_id lab/bert --hub_private_repo false", code=3)
    assert "checkpoint-2 is not on the Hub: 403" in caplog.text
    assert "training continues" in caplog.text
    last = output.strip().splitlines()[-1]
    assert last.startswith(
        f"error: the run is finished and complete in {folder}, but not on the Hub: lab/bert: 403"
    )
    assert "Traceback" not in output
    assert json.loads((folder / "all_results.json").read_text())["train_steps"] == 4
    assert (folder / "report.md").is_file()

    hub.faults.clear()
    output = call_recipe("push_to_hub", last.split("recipes/push_to_hub.py ")[1])
    repository = hub.repositories["lab/bert"]
    assert not repository.private
    messages = [commit.message for commit in repository.history()]
    assert messages == ["Upload of step 4", "initial commit"]
    assert repository.read("model.safetensors") == (folder / "model.safetensors").read_bytes()
    assert output.strip().splitlines()[-1] == f"{hub.url}/lab/bert"


def test_a_push_of_a_folder_lists_it_and_knows_it_again(hub, call_recipe, tiny_checkpoint, caplog):
    flags = ["push_to_hub", "--run", tiny_checkpoint, "--repo me/bert"]
    listed = call_recipe(*flags, "--dry_run true")
    assert "everybody will see" not in caplog.text
    call_recipe(*flags, "--dry_run true --private false")
    assert "everybody will see what is pushed to me/bert" in caplog.text
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


def test_the_command_after_a_push_that_failed_is_the_one_that_was_given(
    hub, call_recipe, tiny_checkpoint, monkeypatch
):
    hub.fail("POST", "/commit/", 403, times=999)
    flags = f"--run {tiny_checkpoint} --repo me/bert --checkpoints true --message mine"
    error = call_recipe("push_to_hub", flags, code=3)
    assert error.endswith(f"not sent again: python recipes/push_to_hub.py {flags}\n")
    monkeypatch.setattr(shipped, "IS_CHECKOUT", False)  # as in a wheel
    error = call_recipe("push_to_hub", flags, code=3)
    assert error.endswith(f"not sent again: bert-recipes push-to-hub {flags}\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--repo bert", "error: --repo 'bert' is not NAMESPACE/NAME: give your name on the"),
        ("--token hf_abcdefgh", "error: --token: a token on the command line"),
    ],
)
def test_a_mistake_is_one_line(hub, call_recipe, tiny_checkpoint, flags, message):
    paths = ("--run", tiny_checkpoint, "--repo me/bert")
    error = call_recipe("push_to_hub", *paths, flags, code=1)
    assert error.splitlines()[-1].startswith(message)
    assert "hf_abcdefgh" not in error
    assert not hub.requests


def test_another_runs_place_is_refused_before_anything_is_loaded_and_an_evaluation_pushes_nothing(
    hub, pretrain, call_recipe, tiny_checkpoint, tmp_path
):
    hub.add_repository("lab/bert", {"config.json": b'{"architectures": ["BertForPreTraining"]}'})
    error = pretrain("--store no-store --hub_model_id lab/bert", code=1)
    assert "error: lab/bert holds another model; " in error
    assert not (tmp_path / "run").exists()
    hub.requests.clear()
    flags = ("--model_name_or_path", tiny_checkpoint, "--store no-store --push_to_hub true")
    error = call_recipe("evaluate_checkpoint", *flags, code=1)
    assert "error: push_to_hub has no effect here" in error
    assert not hub.requests


@pytest.mark.slow
def test_a_run_that_goes_on_pushes_over_its_own_model(hub, pretrain, tmp_path):
    folder = tmp_path / "run"
    flags = "--hub_strategy all_checkpoints --hub_always_push true"
    pretrain(flags)
    repository = hub.repositories["me/run"]
    names = repository.branches["main"].files
    assert {name.split("/")[0] for name in names if "/" in name} == {"checkpoint-2", "checkpoint-4"}
    before = repository.read("model.safetensors")
    pretrain(f"{flags} --resume {folder}/checkpoint-2")
    assert repository.read("model.safetensors") == before  # the same run, always
    # A new run in its place is another one.
    error = pretrain(f"{flags} --overwrite_run true", code=1)
    assert "error: me/run holds another model" in error
    assert (folder / "all_results.json").is_file()
    pretrain("--overwrite_run true --hub_overwrite true --seed 7 --hub_strategy end")
    assert repository.read("model.safetensors") != before


@pytest.mark.slow
def test_two_processes_ask_once_push_once_and_stop_together(
    repository, hub_server, small_store, tmp_path
):
    def launch(*flags, code):
        launcher = "-m accelerate.commands.launch --config_file accelerate_configs/ddp_cpu.yaml"
        words = keep_last(
            [*flags, "--store", small_store, SMALL, "--per_device_train_batch_size 2"]
        )
        command = [*launcher.split(), "--main_process_port=0", "recipes/pretrain.py", *words]
        environment = os.environ | hub_server.environment()
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=repository,
            env=environment | {"no_proxy": "127.0.0.1"},
        )
        assert done.returncode == code, done.stderr[-3000:]
        assert TOKEN not in done.stdout + done.stderr
        return done.stderr

    launch("--output_dir", tmp_path / "run", code=0)
    assert hub_server.count("POST", "/repos/create") == 1
    assert hub_server.repositories["me/run"].history()[0].message == "End of training, step 4"
    hub_server.add_repository("me/taken", {"config.json": b"{}"})
    error = launch("--hub_model_id me/taken --output_dir", tmp_path / "b", code=1)
    assert error.count("error: me/taken holds another model") == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_fine_tuning_run_is_pushed_with_its_task(hub, call_recipe, tiny_runs, tmp_path):
    data = tiny_runs("sequence_classification").parent
    paths = f"--task_file {data}/data/task.yaml --model_name_or_path {data}/start"
    flags = "--max_steps 2 --max_seq_length 40 --use_cpu true --precision fp32 --push_to_hub true"
    output = call_recipe("finetune", paths, flags, "--output_dir", tmp_path / "mine")
    assert f"on the Hub: {hub.url}/me/mine" in output
    names = set(hub.repositories["me/mine"].branches["main"].files)
    assert {"task.yaml", "run.yaml", "all_results.json", "model.safetensors"} <= names
    assert not [name for name in names if name.startswith("predictions")]
