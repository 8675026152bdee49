"""Each launch configuration starts as many processes as it says, and they find each other; what
cannot run is refused before.
"""

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
import yaml
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands import launch as accelerate_launch
from accelerate.commands.launch import launch_command_parser
from transformers import TrainingArguments

from bert_recipes.errors import InputError, PushError
from bert_recipes.training import launch
from bert_recipes.training.launch import (
    check_machine,
    complete_engine,
    layer_classes,
    run_on_main_process,
)
from bert_recipes.training.run import check_launch


REPOSITORY = Path(__file__).parents[2]
CONFIGS = {path.stem: path for path in sorted((REPOSITORY / "accelerate_configs").glob("*.yaml"))}
ACCELERATE, OURS = ["-m", "accelerate.commands.launch"], ["recipes/launch.py"]
WITHOUT_GPU = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="for machines without a GPU"
)

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


def start(
    tmp_path: Path, name: str, *flags: str, launcher=ACCELERATE, script: str = PROBE
) -> SimpleNamespace:
    """A script by a launcher with a configuration: its pid, exit code, and what it said."""
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, *launcher, "--config_file", f"accelerate_configs/{name}.yaml"]
    command += ["--main_process_port", "0", *flags, str(tmp_path / "script.py")]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "cwd": REPOSITORY,
    }
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **options) as process:
        out, err = process.communicate(timeout=120)
    return SimpleNamespace(pid=process.pid, code=process.returncode, out=out, err=err)


# The configurations

KINDS = {"cpu": "NO", "single_gpu": "NO", "fsdp": "FSDP"}
# Names that stand in a configuration file and are no flags of the launcher.
OF_THE_FILE = {
    "compute_environment",
    "distributed_type",
    "deepspeed_config",
    "fsdp_config",
    "use_cpu",
}
# What DeepSpeed takes at the first level and this project uses; DeepSpeed itself lets unknown names
# pass.
DEEPSPEED_KEYS = {
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
}
DEEPSPEED_KEYS |= {
    "zero_optimization",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configuration_parses_and_avoids_the_silent_single_process(name: str):
    values = yaml.safe_load(CONFIGS[name].read_text())
    kind = "DEEPSPEED" if name.startswith("deepspeed") else KINDS.get(name, "MULTI_GPU")
    # Without an MPI host file MULTI_CPU starts one process and does not say so.
    assert values["distributed_type"] == kind
    assert (values["num_processes"] > 1) == (kind != "NO")
    assert values["use_cpu"] == ("cpu" in name)
    assert values.keys() <= set(vars(launch_command_parser().parse_args(["x.py"]))) | OF_THE_FILE


@pytest.mark.parametrize("stage", ["1", "2", "3", "3_offload"])
def test_deepspeed_has_no_optimiser_and_no_schedule_of_its_own(stage: str):
    """Its AdamW decays LayerNorm and bias too, and it shifts the schedule by a step."""
    values = yaml.safe_load(CONFIGS[f"deepspeed_zero{stage}"].read_text())
    file = REPOSITORY / values["deepspeed_config"]["deepspeed_config_file"]
    content = json.loads(file.read_text())
    assert content.keys() <= DEEPSPEED_KEYS
    assert content["zero_optimization"]["stage"] == int(stage[0])
    assert content["zero_allow_untested_optimizer"] is True
    # Otherwise Accelerate puts DeepSpeed's Adam, with bias correction, in the place of an optimiser
    # that is offloaded.
    assert content["zero_force_ds_cpu_optimizer"] is False
    # Otherwise a checkpoint of stage 3 has no model.safetensors.
    assert content["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False) == (
        stage[0] == "3"
    )
    deepspeed = pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    plain = {name: value for name, value in content.items() if value != "auto"}
    plain |= {"train_micro_batch_size_per_gpu": 8}
    deepspeed.DeepSpeedConfig(plain)


def test_fsdp_names_what_accelerate_knows():
    values = yaml.safe_load(CONFIGS["fsdp"].read_text())["fsdp_config"]
    known = {field.name for field in dataclasses.fields(FullyShardedDataParallelPlugin)}
    names = {name.removeprefix("fsdp_") for name in values} - {"version"}
    assert names <= known | {"offload_params"}
    assert values["fsdp_version"] == 2
    # The layers are those of the model that is trained.
    assert "fsdp_transformer_layer_cls_to_wrap" not in values


# Those of the encoders that are pre-trained or fine-tuned here.
LAYERS = {
    "Bert": "BertLayer",
    "Roberta": "RobertaLayer",
    "Electra": "ElectraLayer",
    "DistilBert": "TransformerBlock",
    "Deberta": "DebertaLayer",
    "DebertaV2": "DebertaV2Layer",
    "ModernBert": "ModernBertEncoderLayer",
    "XLMRoberta": "XLMRobertaLayer",
    "Albert": "AlbertLayer",
}


@pytest.mark.parametrize("kind", LAYERS)
def test_the_layers_of_a_model_are_found_whichever_it_is(kind: str):
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForSequenceClassification")(
            getattr(transformers, f"{kind}Config")()
        )
    classes = set(layer_classes(model))
    assert LAYERS[kind] in classes
    # A group of ALBERT's layers is a list too, and has nothing else to share out.
    assert classes - {LAYERS[kind]} == ({"AlbertLayerGroup"} if kind == "Albert" else set())


def test_the_compilation_of_deepspeed_is_announced_unless_it_was_done_before(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    plugin = SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": 2}})
    with caplog.at_level("INFO", logger=launch.__name__):
        complete_engine(args, {"deepspeed_plugin": plugin})
        assert [record.getMessage() for record in caplog.records] == [
            "DeepSpeed compiles its communication between CPU processes, once a machine: this "
            "takes minutes"
        ]
        caplog.clear()
        compiled = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "deepspeed_shm_comm.so"
        compiled.parent.mkdir(parents=True)
        compiled.touch()
        complete_engine(args, {"deepspeed_plugin": plugin})
        assert not caplog.records


@pytest.mark.parametrize(
    ("name", "processes", "warnings"),
    [
        pytest.param("cpu", 1, 0, marks=pytest.mark.slow),
        ("ddp_cpu", 2, 0),
        # Started for GPUs by Accelerate's own launcher, which starts them whatever the machine has:
        # one run, over gloo.
        pytest.param("ddp", 2, 1, marks=[WITHOUT_GPU, pytest.mark.slow]),
        pytest.param("single_gpu", 1, 1, marks=[WITHOUT_GPU, pytest.mark.slow]),
    ],
)
def test_configurations_start_what_they_say_and_train_together_on_the_cpu(
    tmp_path, name, processes, warnings
):
    done = start(tmp_path, name, *(["--num_processes", str(processes)] if warnings else []))
    assert done.code == 0, done.err
    assert f"processes {processes} sum {processes} device cpu" in done.out
    said = [line for line in done.err.splitlines() if "no GPU" in line]
    assert len(said) == warnings
    assert all(f"{processes} process(es) train on the CPU" in line for line in said)


@pytest.mark.gpu
def test_the_single_gpu_configuration_uses_the_gpu(tmp_path: Path):
    done = start(tmp_path, "single_gpu")
    assert "processes 1 sum 1 device cuda" in done.out, done.err


# Our launcher


@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("sys.exit(143)", 143), ("os.kill(os.getpid(), 9)", -9)]
)
def test_our_launcher_becomes_the_one_process(tmp_path: Path, end: str, code: int):
    """Its signals and its exit code are the process'."""
    script = (
        f"import os, sys\nprint(os.getpid(), os.environ['ACCELERATE_USE_CPU'], flush=True)\n{end}\n"
    )
    done = start(tmp_path, "cpu", launcher=OURS, script=script)
    assert done.code == code, done.err
    assert done.out.lower().split()[-2:] == [str(done.pid), "true"], done.out


@WITHOUT_GPU
@pytest.mark.parametrize("name", [pytest.param("ddp", marks=pytest.mark.slow), "single_gpu"])
def test_our_launcher_starts_one_process_on_the_cpu_where_there_is_no_gpu(
    tmp_path: Path, name: str
):
    done = start(tmp_path, name, launcher=OURS)
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if "sum" in line] == [
        "processes 1 sum 1 device cpu"
    ]
    warnings = [line for line in done.err.splitlines() if "GPU" in line]
    assert warnings == [
        f"accelerate_configs/{name}.yaml: no GPU that torch can use: one process trains on the CPU"
    ]


def completed(name: str):
    """The launcher's arguments as Accelerate completes them."""
    args = launch_command_parser().parse_args(["--config_file", str(CONFIGS[name]), "x.py"])
    return accelerate_launch._validate_launch_command(args)[0]


@pytest.mark.parametrize(
    ("name", "gpus", "words"),
    [
        (
            "ddp_multi_node",
            0,
            r"ddp_multi_node\.yaml starts 8 process\(es\) .* it has no GPU .* LAUNCH=ddp_cpu",
        ),
        (
            "ddp",
            2,
            r"is 8 for 1 machine\(s\), which makes 8 on this one, and it has 2 GPU\(s\); .* "
            r"--num_processes 2$",
        ),
        (
            "ddp_multi_node",
            4,
            r"is 16 for 2 machine\(s\), which makes 8 .* it has 4 GPU\(s\).* --num_processes 8$",
        ),
        ("fsdp", 0, r"fsdp\.yaml starts 8 process"),
        *(
            (name, gpus, None)
            for name, gpus in (("ddp", 8), ("ddp_multi_node", 8), ("single_gpu", 1))
        ),
        *((name, gpus, None) for name, gpus in (("ddp_cpu", 0), ("ddp_cpu", 1), ("cpu", 0))),
    ],
)
def test_gpus_that_are_not_there_are_missed_before_a_process_starts(
    name: str, gpus: int, words: str | None
):
    args = completed(name)
    with nullcontext() if words is None else pytest.raises(InputError, match=words):
        assert check_machine(args, gpus)
    args.training_script_args = ["--use_cpu", "true"]
    check_machine(args, gpus)


def test_deepspeed_needs_its_extra_and_gpus_or_its_own_word_for_cpus(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    args = completed("deepspeed_zero2")
    for is_there, words in (
        (False, r'zero2\.yaml needs DeepSpeed, .*: pip install -e "\.\[deepspeed\]"$'),
        (True, "no GPU"),
    ):
        monkeypatch.setattr(launch, "is_deepspeed_available", lambda is_there=is_there: is_there)
        with pytest.raises(InputError, match=words):
            check_machine(args, 0)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    check_machine(args, 0)


# What a process of a run finds


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "2"}, "2 processes were started but this one trains alone"),
        # `srun -n 8 python recipes/pretrain.py`: nobody tells the eight of each other.
        ({"SLURM_STEP_NUM_TASKS": "8"}, "8 tasks were started .* each would train alone"),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, "8 tasks were started .* each would train alone"),
        ({"PMI_SIZE": "8"}, "8 tasks were started .* each would train alone"),
    ],
)
def test_processes_that_would_each_train_alone_are_refused(
    tmp_path: Path, monkeypatch, environment, words: str
):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert args.world_size == 1
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=words):
        check_launch(args)


def test_fsdp_is_not_mixed_over_cpu_and_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    check_launch(args)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    with pytest.raises(InputError, match="FSDP takes the GPUs of this machine"):
        check_launch(args)


@WITHOUT_GPU
def test_deepspeed_started_for_gpus_does_not_train_on_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    args.cpu_is_chosen = False
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    for name in ("DS_ACCELERATOR", "ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="DeepSpeed is for GPUs, and torch can use none here"):
        check_launch(args)


# What the main process finds out


@pytest.mark.parametrize("processes", [1, 2])
def test_the_answer_comes_and_mistakes_are_raised(monkeypatch: pytest.MonkeyPatch, processes: int):
    """The main process of one, and of two, the other of which is not there to listen."""

    def refuse(error: Exception) -> None:
        raise error

    monkeypatch.setattr(launch, "broadcast_object_list", lambda found: None)
    args = SimpleNamespace(process_index=0, world_size=processes)
    assert run_on_main_process(args, lambda: "found") == "found"
    for error, kind, words in (
        (PushError("not on the Hub"), PushError, "not on the Hub"),
        (FileNotFoundError(2, "No such file", "a.txt"), InputError, r"a\.txt: No such file"),
        (ZeroDivisionError("x"), ZeroDivisionError, "x"),
    ):
        with pytest.raises(kind, match=words):
            run_on_main_process(args, lambda error=error: refuse(error))


def test_another_process_hears_the_answer_and_asks_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        launch, "broadcast_object_list", lambda found: found.__setitem__(0, "heard")
    )
    args = SimpleNamespace(process_index=1, world_size=2)
    assert run_on_main_process(args, lambda: pytest.fail("asked")) == "heard"
