"""Runs under DeepSpeed: two phases, checkpoints as plain folders in Hub form, and what cannot go on from them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file


FLAGS = [
    "--max_seq_length",
    "32",
    "--max_steps",
    "4",
    "--warmup_steps",
    "1",
    "--learning_rate",
    "1e-3",
    "--size",
    "tiny",
]
FLAGS += ["--per_device_train_batch_size", "2", "--global_train_batch_size", "4", "--logging_steps", "1"]
FLAGS += [
    "--eval_strategy",
    "no",
    "--dropout",
    "0",
    "--precision",
    "fp32",
    "--use_cpu",
    "true",
    "--disable_tqdm",
    "true",
]
FLAGS += ["--save_strategy", "steps", "--save_steps", "4"]


def pretrain(repository: Path, store: Path, folder: Path, *flags: str, launch: str | None, ok: bool = True) -> str:
    command = [sys.executable]
    if launch is not None:
        command += [str(repository / "recipes" / "launch.py"), "--main_process_port", "0", "--num_processes", "2"]
        command += ["--config_file", str(repository / "accelerate_configs" / f"{launch}.yaml")]
    command += [str(repository / "recipes" / "pretrain.py"), "--store", str(store), "--output_dir", str(folder)]
    done = subprocess.run(
        [*command, *FLAGS, *flags],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=repository,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )
    assert (done.returncode == 0) == ok, done.stderr[-3000:]
    return done.stderr


@pytest.fixture(scope="module")
def english_store(repository, tiny_checkpoint, tmp_path_factory) -> Path:
    """One whose tokenizer knows the sentences that a run shows at its end: all processes must take part in that."""
    folder = tmp_path_factory.mktemp("english")
    text = "The heart of the matter is the art of the run. And the rest of the day is the end of it.\n\n"
    (folder / "text.txt").write_text(text * 40)
    command = [
        sys.executable,
        "recipes/prepare_corpus.py",
        "--files",
        str(folder / "text.txt"),
        "--num_processes",
        "1",
    ]
    command += ["--tokenizer", str(tiny_checkpoint), "--output_dir", str(folder / "store")]
    subprocess.run(command, check=True, timeout=120, cwd=repository, capture_output=True)
    return folder / "store"


def consolidate(repository: Path, checkpoint: Path, output_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "recipes/consolidate_checkpoint.py", "--checkpoint", str(checkpoint)]
    return subprocess.run(
        [*command, "--output_dir", str(output_dir)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=repository,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_folder_holds_the_weights_of_the_run(repository, english_store, tmp_path, stage):
    pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    run = tmp_path / "run"
    pretrain(repository, english_store, run, launch=f"deepspeed_zero{stage}")
    done = consolidate(repository, run / "checkpoint-4", tmp_path / "model")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("\n") == 1
    model = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model")
    assert type(model) is transformers.BertForPreTraining
    trained = load_file(run / "model.safetensors")
    ours = model.state_dict()
    for name, weight in trained.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6)
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "model")) == model.config.vocab_size
    # Neither one process nor another stage nor no DeepSpeed at all can go on with its optimiser.
    (run / "all_results.json").unlink()
    for launch in (None, "ddp_cpu", f"deepspeed_zero{stage % 3 + 1}"):
        said = pretrain(repository, english_store, run, "--resume", "last", launch=launch, ok=False)
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, said[-2000:]
        assert f"was written by 2 processes under DeepSpeed ZeRO {stage}, this run has" in errors[0]
    # Its weights can, as a new run.
    pretrain(repository, english_store, tmp_path / "new", "--model_name_or_path", str(tmp_path / "model"), launch=None)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_phases_are_those_of_two_processes_without_deepspeed(repository, small_store, tmp_path, stage):
    pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    flags = [
        "--phase2_steps",
        "2",
        "--phase2_max_seq_length",
        "48",
        "--max_steps",
        "5",
        "--global_train_batch_size",
        "8",
    ]
    flags += ["--phase2_per_device_train_batch_size", "2"]
    for launch in (f"deepspeed_zero{stage}", "ddp_cpu"):
        pretrain(repository, small_store, tmp_path / launch, *flags, launch=launch)
    ours, others = (load_file(tmp_path / name / "model.safetensors") for name in (f"deepspeed_zero{stage}", "ddp_cpu"))
    for name, weight in others.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_phases_of_other_numbers_of_micro_batches_are_refused_at_the_start(repository, small_store, tmp_path):
    pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    flags = [
        "--phase2_steps",
        "2",
        "--phase2_max_seq_length",
        "48",
        "--max_steps",
        "5",
        "--global_train_batch_size",
        "8",
    ]
    flags += ["--per_device_train_batch_size", "4", "--phase2_per_device_train_batch_size", "1"]
    said = pretrain(repository, small_store, tmp_path / "run", *flags, launch="deepspeed_zero2", ok=False)
    advice = "here it would be 1 and then 4; give --global_train_batch_size 8, --per_device_train_batch_size 1 and "
    advice += "--phase2_per_device_train_batch_size 1"
    assert advice in said
    assert "Traceback" not in said
    assert not list((tmp_path / "run").glob("*"))


@pytest.mark.slow
def test_checkpoints_that_are_refused(repository, small_store, tmp_path):
    pretrain(repository, small_store, tmp_path / "run", launch=None)
    cases = {
        "is not DeepSpeed's: it is in Hub form already": tmp_path / "run" / "checkpoint-4",
        "is no complete checkpoint: there is no such folder": tmp_path / "nowhere",
        "is no complete checkpoint: it has no manifest.json": tmp_path / "run",
    }
    for message, checkpoint in cases.items():
        done = consolidate(repository, checkpoint, tmp_path / "model")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "model").exists()
