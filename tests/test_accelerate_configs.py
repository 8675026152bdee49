"""Each launch configuration starts as many processes as it says, and they find each other."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from transformers import TrainingArguments

from bert_recipes.errors import InputError
from bert_recipes.training import check_launch


CONFIGS = sorted((Path(__file__).parents[1] / "accelerate_configs").glob("*.yaml"))

PROBE = """
import os, torch
from bert_recipes.arguments import PreTrainingArguments
from bert_recipes.training import check_launch
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
DEEPSPEED_KEYS = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "bf16", "fp16"}
DEEPSPEED_KEYS |= {"zero_optimization", "zero_allow_untested_optimizer"}


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
    # Otherwise a checkpoint of stage 3 has no model.safetensors.
    assert content["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False) == (stage[0] == "3")
    deepspeed = pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    plain = {name: value for name, value in content.items() if value != "auto"}
    plain |= {"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": False}, "fp16": {"enabled": False}}
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


def test_fsdp_on_cpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match="FSDP is for GPUs"):
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


@pytest.mark.gpu
def test_the_single_gpu_configuration_uses_the_gpu(tmp_path: Path):
    result = launch(next(path for path in CONFIGS if path.stem == "single_gpu"), tmp_path)
    assert "processes 1 sum 1 device cuda" in result.stdout, result.stderr
