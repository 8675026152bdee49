"""Each launch configuration starts as many processes as it says, and they find each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
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


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_configuration_parses_and_avoids_the_silent_single_process(config: Path):
    values = yaml.safe_load(config.read_text())
    # Without an MPI host file MULTI_CPU starts one process and does not say so.
    assert values["distributed_type"] in ("NO", "MULTI_GPU")
    assert (values["num_processes"] > 1) == (values["distributed_type"] == "MULTI_GPU")
    assert values["use_cpu"] == ("cpu" in config.stem)


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


@pytest.mark.gpu
def test_the_single_gpu_configuration_uses_the_gpu(tmp_path: Path):
    result = launch(next(path for path in CONFIGS if path.stem == "single_gpu"), tmp_path)
    assert "processes 1 sum 1 device cuda" in result.stdout, result.stderr
