"""Runs that go to a Hub, by the commands that a user types; the Hub is on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repeated_flags import keep_last


SMALL = [
    "--max_seq_length",
    "32",
    "--max_steps",
    "4",
    "--warmup_steps",
    "1",
    "--per_device_train_batch_size",
    "4",
]
SMALL += [
    "--global_train_batch_size",
    "4",
    "--max_eval_pairs",
    "10",
    "--eval_strategy",
    "no",
    "--logging_steps",
    "2",
]
SMALL += ["--save_strategy", "steps", "--use_cpu", "true", "--precision", "fp32"]
TOKEN = "hf_writerwriterwriter"

EQUAL_LOGITS = """
import sys, torch
from transformers import AutoModelForPreTraining, AutoTokenizer
texts = ["w1 w2 w3 [MASK] w5", "w7 [SEP] w9"]
outputs = []
for name in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForPreTraining.from_pretrained(name).eval()
    with torch.no_grad():
        outputs.append(model(**tokenizer(texts, padding=True, return_tensors="pt")))
first, second = outputs
assert torch.equal(first.prediction_logits, second.prediction_logits)
assert torch.equal(first.seq_relationship_logits, second.seq_relationship_logits)
print(tuple(first.prediction_logits.shape))
"""


def run(
    repository: Path,
    hub: Any,
    script: str,
    *flags: object,
    code: int = 0,
    token: str | None = TOKEN,
    **more: str,
):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith(("_PROXY", "_TOKEN"))
    }
    environment |= hub.environment(token) | more
    command = [sys.executable, *([script] if script[0] == "-" else [f"recipes/{script}.py"])]
    command += map(str, flags) if script == "-c" else keep_last(flags)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=repository,
        env=environment,
    )
    assert done.returncode == code, done.stderr[-3000:]
    assert TOKEN not in done.stdout + done.stderr
    return done


def pretrain(repository: Path, hub: Any, store: Path, folder: Path, *flags: object, **values: Any):
    own = ["--store", store, "--output_dir", folder, "--push_to_hub", "true", *SMALL, *flags]
    return run(repository, hub, "pretrain", *own, **values)


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
    flags = [
        "--save_steps",
        2,
        "--hub_always_push",
        "true",
        "--save_total_limit",
        1,
        "--hub_tags",
        "bert",
        "tiny",
    ]
    done = pretrain(repository, hub_server, small_store, folder, *flags)

    hub = hub_server.repositories["me/my-bert"]
    messages = [commit.message for commit in hub.history()]
    steps = ["Training in progress, step 4", "Training in progress, step 2", "initial commit"]
    assert messages == ["End of training, step 4", *steps]
    assert hub.private
    assert f"on the Hub: {hub_server.url}/me/my-bert" in done.stdout
    own = files_of(folder)
    remote = {name: file.content for name, file in hub.branches["main"].files.items()}
    del remote[".gitattributes"]
    assert b"\n- bert-recipes\n- tiny\n" in remote["README.md"]
    assert {name: own[name] for name in remote} == remote
    wanted = {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "vocab.txt",
        "run.yaml",
        "all_results.json",
    }
    assert wanted | {"trainer_state.json", "report.md", "losses.png", "run_identity.json"} <= set(
        remote
    )
    assert not [name for name in remote if name.endswith((".pt", ".bin", ".pth")) or "/" in name]
    # Step 2 is another model than step 4, with the same identity, and its checkpoint is long
    # deleted.
    second = hub.history()[2].files
    assert second["model.safetensors"].content != remote["model.safetensors"]
    assert second["run_identity.json"].content == remote["run_identity.json"]
    assert json.loads(second["trainer_state.json"].content)["global_step"] == 2

    everything = b"".join(own.values())
    assert TOKEN.encode() not in everything
    assert not [name for name in own if ".aside" in name or name.endswith(".tmp")]
    assert b"hub_model_id: me/my-bert" in own["run.yaml"]
    opened = run(
        repository,
        hub_server,
        "-c",
        EQUAL_LOGITS,
        folder,
        "me/my-bert",
        HF_HOME=str(tmp_path / "home"),
    )
    assert opened.stdout.startswith("(2, ")


@pytest.mark.slow
def test_a_push_that_fails_loses_no_run_and_the_command_it_names_ends_it(
    repository: Path, hub_server: Any, small_store: Path, tmp_path: Path
):
    hub_server.fail("POST", "/commit/", 403, times=999)
    folder = tmp_path / "run"
    flags = ["--save_steps", 2, "--hub_model_id", "lab/bert", "--hub_private_repo", "false"]
    done = pretrain(repository, hub_server, small_store, folder, *flags, code=3)
    assert "checkpoint-2 is not on the Hub: 403" in done.stderr
    assert "training continues" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"error: the run is finished and complete in {folder}, but not on the Hub: lab/bert: 403"
    )
    assert "Traceback" not in done.stderr
    results = json.loads((folder / "all_results.json").read_text())
    assert results["train_steps"] == 4
    assert (folder / "report.md").is_file()

    hub_server.faults.clear()
    command = last.split("push it with python recipes/push_to_hub.py ")[1].split()
    done = run(repository, hub_server, "push_to_hub", *command)
    hub = hub_server.repositories["lab/bert"]
    assert not hub.private
    assert [commit.message for commit in hub.history()] == ["Upload of step 4", "initial commit"]
    assert hub.read("model.safetensors") == (folder / "model.safetensors").read_bytes()
    assert done.stdout.strip().splitlines()[-1] == f"{hub_server.url}/lab/bert"
    assert "everybody will see what is pushed to lab/bert" in done.stderr


def test_a_push_of_a_folder_lists_it_and_knows_it_again(
    repository: Path, hub_server: Any, tiny_checkpoint: Path, tmp_path: Path
):
    flags = ["--run", tiny_checkpoint, "--repo", "me/bert"]
    listed = run(
        repository, hub_server, "push_to_hub", *flags, "--dry_run", "true", token=None
    ).stdout
    assert not hub_server.requests
    size = (tiny_checkpoint / "model.safetensors").stat().st_size
    assert f"{size:,}  model.safetensors\n" in listed
    assert f"bytes in 5 files of {tiny_checkpoint}\n" in listed

    first = run(repository, hub_server, "push_to_hub", *flags).stdout
    assert first.startswith(listed)
    assert first.strip().splitlines()[-1] == f"{hub_server.url}/me/bert"
    refused = run(repository, hub_server, "push_to_hub", *flags, code=1)
    assert "holds another model" in refused.stderr
    again = run(repository, hub_server, "push_to_hub", *flags, "--overwrite", "true").stdout
    assert again.strip().splitlines()[-1] == f"{hub_server.url}/me/bert"
    assert hub_server.count("PUT", "/storage/") == 1


@pytest.mark.parametrize(
    ("flags", "values", "message"),
    [
        ([], {"token": None}, "error: no token for the Hub: log in with `hf auth login`"),
        (
            [],
            {"HF_HUB_OFFLINE": "1"},
            "error: HF_HUB_OFFLINE is set, so nothing was uploaded; try again later",
        ),
        (
            ["--repo", "bert"],
            {"token": None},
            "error: --repo 'bert' is not NAMESPACE/NAME: give your name on the Hub",
        ),
        (["--token", "hf_abcdefgh"], {}, "error: --token: a token on the command line"),
        (["--run", "no/such/run"], {}, "error: no folder no/such/run"),
    ],
    ids=["no-token", "offline", "no-owner", "token-flag", "no-folder"],
)
def test_a_mistake_is_one_line(
    repository: Path,
    hub_server: Any,
    tiny_checkpoint: Path,
    flags: list[str],
    values: dict[str, Any],
    message: str,
):
    own = ["--run", tiny_checkpoint] if "--run" not in flags else []
    own += ["--repo", "me/bert"] if "--repo" not in flags else []
    done = run(repository, hub_server, "push_to_hub", *own, *flags, code=1, **values)
    assert done.stderr.strip().splitlines()[-1].startswith(message)
    assert "hf_abcdefgh" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not hub_server.repositories


@pytest.mark.slow
def test_another_runs_place_is_refused_before_anything_is_loaded_and_an_evaluation_pushes_nothing(
    repository: Path, hub_server: Any, tiny_checkpoint: Path, tmp_path: Path
):
    hub_server.add_repository(
        "lab/bert", {"config.json": b'{"architectures": ["BertForPreTraining"]}'}
    )
    flags = ["--hub_model_id", "lab/bert"]
    done = pretrain(repository, hub_server, tmp_path / "no-store", tmp_path / "run", *flags, code=1)
    assert done.stderr.strip().splitlines()[-1].startswith("error: lab/bert holds another model; ")
    assert not (tmp_path / "run").exists()
    hub_server.requests.clear()
    flags = [
        "--model_name_or_path",
        tiny_checkpoint,
        "--store",
        tmp_path / "no-store",
        "--push_to_hub",
        "true",
    ]
    done = run(repository, hub_server, "evaluate_checkpoint", *flags, code=1)
    assert done.stderr.strip().splitlines()[-1].startswith("error: push_to_hub has no effect here")
    assert not hub_server.requests


@pytest.mark.slow
def test_a_run_that_goes_on_pushes_over_its_own_model(
    repository: Path, hub_server: Any, small_store: Path, tmp_path: Path
):
    folder = tmp_path / "run"
    flags = ["--save_steps", 2, "--hub_strategy", "all_checkpoints", "--hub_always_push", "true"]
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
    done = pretrain(
        repository, hub_server, small_store, folder, *flags, "--overwrite_run", "true", code=1
    )
    assert "error: me/run holds another model" in done.stderr
    assert (folder / "all_results.json").is_file()
    more = [
        "--overwrite_run",
        "true",
        "--hub_overwrite",
        "true",
        "--seed",
        "7",
        "--hub_strategy",
        "end",
    ]
    pretrain(repository, hub_server, small_store, folder, "--save_steps", 2, *more)
    assert hub.read("model.safetensors") != before


@pytest.mark.slow
def test_two_processes_ask_once_push_once_and_stop_together(
    repository: Path, hub_server: Any, small_store: Path, tmp_path: Path
):
    launch = [
        "accelerate.commands.launch",
        "--config_file",
        repository / "accelerate_configs" / "ddp_cpu.yaml",
        "--main_process_port",
        "0",
    ]
    launch += [repository / "recipes" / "pretrain.py"]
    flags = [*launch, "--store", small_store, "--push_to_hub", "true", *SMALL, "--save_steps", 2]
    flags += ["--output_dir", tmp_path / "run", "--per_device_train_batch_size", 2]
    run(repository, hub_server, "-m", *flags)
    assert hub_server.count("POST", "/repos/create") == 1
    assert hub_server.repositories["me/run"].history()[0].message == "End of training, step 4"
    hub_server.add_repository("me/taken", {"config.json": b"{}"})
    done = run(
        repository,
        hub_server,
        "-m",
        *flags,
        "--hub_model_id",
        "me/taken",
        "--output_dir",
        tmp_path / "b",
        code=1,
    )
    assert done.stderr.count("error: me/taken holds another model") == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_fine_tuning_run_is_pushed_with_its_task(
    repository: Path, hub_server: Any, tiny_runs: Any, tmp_path: Path
):
    data = tiny_runs("sequence_classification").parent
    flags = [
        "--task_file",
        data / "data" / "task.yaml",
        "--model_name_or_path",
        data / "start",
        "--max_steps",
        2,
    ]
    flags += [
        "--max_seq_length",
        40,
        "--output_dir",
        tmp_path / "mine",
        "--use_cpu",
        "true",
        "--precision",
        "fp32",
    ]
    done = run(repository, hub_server, "finetune", *flags, "--push_to_hub", "true")
    assert f"on the Hub: {hub_server.url}/me/mine" in done.stdout
    names = set(hub_server.repositories["me/mine"].branches["main"].files)
    assert {"task.yaml", "run.yaml", "all_results.json", "model.safetensors"} <= names
    assert not [name for name in names if name.startswith("predictions")]
