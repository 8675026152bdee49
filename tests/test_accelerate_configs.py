"""Each launch configuration starts as many processes as it says, and they find each other."""

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands import launch as accelerate_launch
from accelerate.commands.launch import launch_command_parser
from transformers import TrainingArguments

from bert_recipes.errors import InputError
from bert_recipes.training.launch import check_machine
from bert_recipes.training.run import check_launch


CONFIGS = sorted((Path(__file__).parents[1] / "accelerate_configs").glob("*.yaml"))

PROBE = """
import os, torch
from bert_recipes.training.arguments import PreTrainingArguments
from bert_recipes.training.run import check_launch
args = PreTrainingArguments(output_dir="unused")
check_launch(args)
total = torch.ones(1, device=args.device)
if args.world_size > 1:
    torch.distributed.all_reduce(total)
if args.process_index == 0:
    print("processes", args.world_size, "sum", int(total), "device", args.device.type, flush=True)
if args.world_size > 1:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def launch(config: Path, tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(config),
        "--main_process_port",
        "0",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *flags, str(probe)], capture_output=True, text=True, timeout=120, check=False, env=environment
    )


KINDS = {"cpu": "NO", "single_gpu": "NO", "fsdp": "FSDP"}
# What DeepSpeed takes at the first level and this project uses; DeepSpeed itself lets unknown names pass.
DEEPSPEED_KEYS = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"}
DEEPSPEED_KEYS |= {"zero_optimization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_configuration_parses_and_avoids_the_silent_single_process(config: Path):
    values = yaml.safe_load(config.read_text())
    kind = "DEEPSPEED" if config.stem.startswith("deepspeed") else KINDS.get(config.stem, "MULTI_GPU")
    # Without an MPI host file MULTI_CPU starts one process and does not say so.
    assert values["distributed_type"] == kind
    assert (values["num_processes"] > 1) == (kind != "NO")
    assert values["use_cpu"] == ("cpu" in config.stem)
    assert values.keys() <= set(vars(launch_command_parser().parse_args(["x.py"]))) | OF_THE_FILE


# Names that stand in a configuration file and are no flags of the launcher.
OF_THE_FILE = {"compute_environment", "distributed_type", "deepspeed_config", "fsdp_config", "use_cpu"}


@pytest.mark.parametrize("stage", ["1", "2", "3", "3_offload"])
def test_deepspeed_has_no_optimiser_and_no_schedule_of_its_own(repository: Path, stage: str):
    """Its AdamW decays LayerNorm and bias too, and it shifts the schedule by a step."""
    values = yaml.safe_load((repository / f"accelerate_configs/deepspeed_zero{stage}.yaml").read_text())
    file = repository / values["deepspeed_config"]["deepspeed_config_file"]
    content = json.loads(file.read_text())
    assert content.keys() <= DEEPSPEED_KEYS
    assert content["zero_optimization"]["stage"] == int(stage[0])
    assert content["zero_allow_untested_optimizer"] is True
    # Otherwise Accelerate puts DeepSpeed's Adam, with bias correction, in the place of an optimiser that is offloaded.
    assert content["zero_force_ds_cpu_optimizer"] is False
    # Otherwise a checkpoint of stage 3 has no model.safetensors.
    assert content["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False) == (stage[0] == "3")
    deepspeed = pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    plain = {name: value for name, value in content.items() if value != "auto"}
    plain |= {"train_micro_batch_size_per_gpu": 8}
    deepspeed.DeepSpeedConfig(plain)


def test_fsdp_names_what_accelerate_knows(repository: Path):
    from accelerate import FullyShardedDataParallelPlugin

    values = yaml.safe_load((repository / "accelerate_configs/fsdp.yaml").read_text())["fsdp_config"]
    known = {field.name for field in dataclasses.fields(FullyShardedDataParallelPlugin)}
    names = {name.removeprefix("fsdp_") for name in values} - {"version", "transformer_layer_cls_to_wrap"}
    assert names <= known | {"offload_params"}
    assert values["fsdp_version"] == 2
    assert values["fsdp_transformer_layer_cls_to_wrap"] == "BertLayer"


@pytest.mark.parametrize(("name", "processes"), [("cpu", 1), ("ddp_cpu", 2)])
def test_cpu_configurations_start_what_they_say(tmp_path: Path, name: str, processes: int):
    result = launch(next(path for path in CONFIGS if path.stem == name), tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"processes {processes} sum {processes} device cpu" in result.stdout


def test_a_launch_that_is_not_really_distributed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes were started but this one trains alone"):
        check_launch(args)


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_tasks_that_would_each_train_alone_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """`srun -n 8 python recipes/pretrain.py`: nobody tells the eight of each other."""
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert args.world_size == 1
    monkeypatch.setenv(name, "8")
    with pytest.raises(InputError, match=r"8 tasks were started .* each would train alone"):
        check_launch(args)


def test_fsdp_is_not_mixed_over_cpu_and_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    check_launch(args)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    with pytest.raises(InputError, match="FSDP takes the GPUs of this machine"):
        check_launch(args)


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("sys.exit(143)", 143), ("os.kill(os.getpid(), 9)", -9)])
def test_our_launcher_becomes_the_one_process(repository: Path, tmp_path: Path, end: str, code: int):
    """Its signals and its exit code are the process'."""
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\nprint(os.getpid(), os.environ['ACCELERATE_USE_CPU'], flush=True)\n{end}\n")
    command = [sys.executable, str(repository / "recipes" / "launch.py"), "--config_file"]
    command += [str(repository / "accelerate_configs" / "cpu.yaml"), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        told, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert told.lower().split()[-2:] == [str(process.pid), "true"], told


def completed(repository: Path, config: str, *flags: str):
    """The launcher's arguments as Accelerate completes them."""
    file = repository / "accelerate_configs" / f"{config}.yaml"
    parser = launch_command_parser()
    return accelerate_launch._validate_launch_command(parser.parse_args(["--config_file", str(file), *flags, "x.py"]))[
        0
    ]


@pytest.mark.parametrize(
    ("config", "gpus", "words"),
    [
        ("ddp_multi_node", 0, r"ddp_multi_node\.yaml starts 8 processes .* it has no GPU .* LAUNCH=ddp_cpu"),
        (
            "ddp",
            2,
            r"ddp\.yaml: num_processes is 8, which makes 8 on this one, and it has 2 GPUs; .* --num_processes 2$",
        ),
        (
            "ddp_multi_node",
            4,
            r"is 16 for 2 machines, which makes 8 on this one, and it has 4 GPUs.* --num_processes 8$",
        ),
        ("fsdp", 0, r"fsdp\.yaml starts 8 processes"),
        ("ddp", 8, None),
        ("ddp_multi_node", 8, None),
        ("single_gpu", 1, None),
        ("ddp_cpu", 0, None),
        ("ddp_cpu", 1, None),
        ("cpu", 0, None),
    ],
)
def test_gpus_that_are_not_there_are_missed_before_a_process_starts(
    repository: Path, config: str, gpus: int, words: str | None
):
    args = completed(repository, config)
    with nullcontext() if words is None else pytest.raises(InputError, match=words):
        assert check_machine(args, gpus)
    args.training_script_args = ["--use_cpu", "true"]
    check_machine(args, gpus)


def test_deepspeed_that_is_not_installed_is_named_with_its_extra(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    args = completed(repository, "deepspeed_zero2")
    monkeypatch.setattr("bert_recipes.training.launch.is_deepspeed_available", lambda: False)
    with pytest.raises(InputError, match=r'zero2\.yaml needs DeepSpeed, .*: pip install -e "\.\[deepspeed\]"$'):
        check_machine(args, 8)
    monkeypatch.setattr("bert_recipes.training.launch.is_deepspeed_available", lambda: True)
    with pytest.raises(InputError, match="no GPU"):
        check_machine(args, 0)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    check_machine(args, 0)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize("name", ["ddp", "single_gpu"])
def test_our_launcher_starts_one_process_on_the_cpu_where_there_is_no_gpu(repository: Path, tmp_path: Path, name: str):
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    command = [sys.executable, "recipes/launch.py", "--config_file", f"accelerate_configs/{name}.yaml", str(probe)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=repository)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "sum" in line] == ["processes 1 sum 1 device cpu"]
    warnings = [line for line in done.stderr.splitlines() if "GPU" in line]
    what = "no GPU that torch can use: one process trains on the CPU"
    assert warnings == [f"accelerate_configs/{name}.yaml: {what}"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for machines without a GPU")
@pytest.mark.parametrize(("name", "processes"), [pytest.param("ddp", 2, marks=pytest.mark.slow), ("single_gpu", 1)])
def test_processes_started_for_gpus_train_together_on_the_cpu(tmp_path: Path, name: str, processes: int):
    """By Accelerate's own launcher, which starts them whatever the machine has: one run, over gloo, and one warning."""
    result = launch(next(path for path in CONFIGS if path.stem == name), tmp_path, "--num_processes", str(processes))
    assert result.returncode == 0, result.stderr
    assert f"processes {processes} sum {processes} device cpu" in result.stdout
    warnings = [line for line in result.stderr.splitlines() if "no GPU" in line]
    assert len(warnings) == 1
    assert f"{processes} process(es) train on the CPU" in warnings[0]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for machines without a GPU")
def test_deepspeed_started_for_gpus_does_not_train_on_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    args.cpu_is_chosen = False
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(InputError, match="DeepSpeed is for GPUs, and torch can use none here"):
        check_launch(args)


@pytest.mark.gpu
def test_the_single_gpu_configuration_uses_the_gpu(tmp_path: Path):
    result = launch(next(path for path in CONFIGS if path.stem == "single_gpu"), tmp_path)
    assert "processes 1 sum 1 device cuda" in result.stdout, result.stderr
