"""Each launch configuration starts as many processes as it says, and they find each other; what
cannot run is refused before.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import transformers
import yaml
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.launch import launch_command_parser
from transformers import TrainingArguments

from bert_recipes import shipped
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError, PushError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training import launch
from bert_recipes.training.arguments import PreTrainingArguments
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.engines import layer_classes
from bert_recipes.training.launch import check_gpus, check_launch, run_on_main_process


REPOSITORY = Path(__file__).parents[2]
CONFIGS = {path.stem: path for path in sorted((REPOSITORY / "accelerate_configs").glob("*.yaml"))}
WITHOUT_GPU = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="for machines without a GPU"
)

PROBE = """
import os, torch
from bert_recipes.training.arguments import PreTrainingArguments
from bert_recipes.training.launch import check_launch
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


def start(tmp_path: Path, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """The probe with a configuration."""
    (tmp_path / "probe.py").write_text(PROBE)
    launcher = "-m accelerate.commands.launch --main_process_port 0"
    launcher += f" --config_file accelerate_configs/{name}.yaml"
    return subprocess.run(
        [sys.executable, *launcher.split(), *flags, str(tmp_path / "probe.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


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
    # It would replace a user's CUDA_VISIBLE_DEVICES.
    assert values["use_cpu"] or "gpu_ids" not in values
    assert values.keys() <= set(vars(launch_command_parser().parse_args(["x.py"]))) | OF_THE_FILE


@pytest.mark.parametrize("stage", ["1", "2", "3", "3_offload"])
def test_deepspeed_has_no_optimizer_and_no_schedule_of_its_own(stage: str):
    """Its AdamW decays LayerNorm and bias too, and it shifts the schedule by a step."""
    values = yaml.safe_load(CONFIGS[f"deepspeed_zero{stage}"].read_text())
    file = REPOSITORY / values["deepspeed_config"]["deepspeed_config_file"]
    content = json.loads(file.read_text())
    zero = content["zero_optimization"]
    assert content.keys() <= DEEPSPEED_KEYS
    assert zero["stage"] == int(stage[0])
    assert content["zero_allow_untested_optimizer"] is True
    # Otherwise Accelerate puts DeepSpeed's Adam, with bias correction, in the place of an optimizer
    # that is offloaded.
    assert content["zero_force_ds_cpu_optimizer"] is False
    # Otherwise a checkpoint of stage 3 has no model.safetensors.
    assert zero.get("stage3_gather_16bit_weights_on_model_save", False) == (stage[0] == "3")


def test_fsdp_names_what_accelerate_knows():
    values = yaml.safe_load(CONFIGS["fsdp"].read_text())["fsdp_config"]
    fields = {field.name for field in dataclasses.fields(FullyShardedDataParallelPlugin)}
    names = {name.removeprefix("fsdp_") for name in values} - {"version"}
    assert names <= fields | {"offload_params"}
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
    config = getattr(transformers, f"{kind}Config")()
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    # A group of ALBERT's layers is a list too, and has nothing else to share out.
    groups = ["AlbertLayerGroup"] if kind == "Albert" else []
    assert layer_classes(model) == [LAYERS[kind], *groups]


@pytest.mark.parametrize(
    ("name", "processes", "warnings"),
    [
        pytest.param("cpu", 1, 0, marks=pytest.mark.slow),
        # tests/recipes/test_launch.py starts it in the fast suite.
        pytest.param("ddp_cpu", 2, 0, marks=pytest.mark.slow),
        # Started for GPUs, whatever the machine has: one run, over gloo.
        pytest.param("ddp", 2, 1, marks=[WITHOUT_GPU, pytest.mark.slow]),
        pytest.param("single_gpu", 1, 1, marks=[WITHOUT_GPU, pytest.mark.slow]),
    ],
)
def test_configurations_start_what_they_say_and_train_together_on_the_cpu(
    tmp_path, name, processes, warnings
):
    done = start(tmp_path, name, *(["--num_processes", str(processes)] if warnings else []))
    assert done.returncode == 0, done.stderr
    assert f"processes {processes} sum {processes} device cpu" in done.stdout
    lines = [line for line in done.stderr.splitlines() if "no GPU" in line]
    assert len(lines) == warnings
    assert all(f"{processes} process(es) compute on the CPU" in line for line in lines)


@pytest.mark.gpu
def test_the_single_gpu_configuration_uses_the_gpu(tmp_path: Path):
    done = start(tmp_path, "single_gpu")
    assert "processes 1 sum 1 device cuda" in done.stdout, done.stderr


# What a process of a run finds


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "2"}, "2 processes were started but this one trains alone"),
        # `srun -n 8 python recipes/pretrain.py`: nobody tells the eight of each other.
        ({"SLURM_STEP_NUM_TASKS": "8"}, "8 tasks were started .* each would train alone"),
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


def test_one_process_does_not_train_on_several_gpus_and_measures_on_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    args._n_gpu = 8
    with pytest.raises(InputError, match=r"sees 8 GPUs; to use all, .*: LAUNCH=ddp with make"):
        check_launch(args)
    monkeypatch.setattr(shipped, "IS_CHECKOUT", False)
    with pytest.raises(InputError, match="each: accelerate launch --multi_gpu -m bert_recipes;"):
        check_launch(args)
    check_launch(args, trains=False)
    assert args.n_gpu == 1


@pytest.mark.parametrize("trains", [True, False])
def test_a_trainer_of_somebodys_own_script_takes_no_data_parallel(small_store, tmp_path, trains):
    store = open_store(small_store)
    data = PreTrainingDataset.from_store(store, max_seq_length=48)
    collator = DataCollatorForPreTraining(load_tokenizer(store.tokenizer_path))
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=store.vocab_size))
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1)
    args._n_gpu = 2
    if trains:
        with pytest.raises(InputError, match="one process sees 2 GPUs"):
            BertTrainer(model, args, collator, train_dataset=data)
    else:
        assert BertTrainer(model, args, collator, eval_dataset=data).args.n_gpu == 1


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    for gpus in (0, 8):
        monkeypatch.setattr("torch.accelerator.device_count", lambda gpus=gpus: gpus)
        check_gpus()
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    with pytest.raises(InputError, match=r"8 processes were started .* it has 2 GPU"):
        check_gpus()


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


def test_a_launch_on_the_cpu_beside_a_gpu_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    check_launch(args)
    assert "LAUNCH=single_gpu takes" in caplog.text
    caplog.clear()
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    check_launch(args)
    assert not caplog.text


# What the main process finds out


@pytest.mark.parametrize("processes", [1, 2])
def test_the_answer_comes_and_mistakes_are_raised(monkeypatch: pytest.MonkeyPatch, processes: int):
    """The main process of one, and of two, the other of which is not there to listen."""

    monkeypatch.setattr(launch, "broadcast_object_list", lambda objects: None)
    args = SimpleNamespace(process_index=0, world_size=processes)
    assert run_on_main_process(args, lambda: "answer") == "answer"
    for error, kind, words in (
        (PushError("not on the Hub"), PushError, "not on the Hub"),
        (FileNotFoundError(2, "No such file", "a.txt"), InputError, r"a\.txt: No such file"),
        (ZeroDivisionError("x"), ZeroDivisionError, "x"),
    ):
        with pytest.raises(kind, match=words):
            run_on_main_process(args, Mock(side_effect=error))


def test_another_process_hears_the_answer_and_asks_nobody(monkeypatch: pytest.MonkeyPatch):
    def hear(objects: list) -> None:
        objects[0] = "heard"

    monkeypatch.setattr(launch, "broadcast_object_list", hear)
    args = SimpleNamespace(process_index=1, world_size=2)
    assert run_on_main_process(args, lambda: pytest.fail("asked")) == "heard"


def test_machines_that_chose_otherwise_are_refused(monkeypatch):
    """Gradients of float16, which are scaled, would be added to those of bfloat16."""
    args = SimpleNamespace(world_size=2)
    choices = ["bf16", "bf16"]
    monkeypatch.setattr(launch, "gather_object", lambda values: choices)
    launch.check_processes_agree(args, "precision", "bf16", "--precision")
    choices[1] = "fp16"
    with pytest.raises(InputError, match=r"precision: bf16, fp16; .* give --precision"):
        launch.check_processes_agree(args, "precision", "bf16", "--precision")


def test_an_engine_is_refused_where_nothing_is_trained(monkeypatch, tmp_path):
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(InputError, match="FSDP and DeepSpeed are for training"):
        check_launch(args, trains=False)
