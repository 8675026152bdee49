"""Each launch configuration, with both recipes, on two processes over gloo: all of it as in one
process; and what engines leave and refuse.

`accelerate launch` reads the shipped file; only the number of processes and the device differ from
a launch on GPUs.
"""

import json
import random
import re
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from in_process import keep_last
from python_process import run_python
from safetensors.torch import load_file
from tiny_runs import write_jsonl


pytestmark = pytest.mark.slow

ENGINES = ["fsdp", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3"]
LAUNCHES = ["ddp", "ddp_cpu", "ddp_multi_node", *ENGINES, "deepspeed_zero3_offload"]
RUN = (
    "--max_seq_length 32 --learning_rate 1e-3 --dropout 0 --precision fp32 --use_cpu true "
    "--per_device_train_batch_size 2 --logging_steps 1 --save_strategy steps --disable_tqdm true"
)
# The quickstart's optimizer needs whole tensors; its softmax is for fast layers, not FSDP's.
PRETRAINING = "--size tiny --optimizer bert_adam --sampled_softmax false"


def start(
    launch: str | None, recipe: str, flags: str, folder: Path, code: int = 0, processes: int = 2
) -> list[str]:
    """Run it to its end, by one launcher a machine (None: by none); return their errors."""
    launcher, machines = "", [""]
    if launch is not None:
        if launch.startswith("deepspeed"):
            pytest.importorskip("deepspeed", reason="deepspeed is an extra")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            _, port = free.getsockname()
        launcher = f"-m accelerate.commands.launch --quiet --main_process_port {port}"
        launcher += f" --config_file accelerate_configs/{launch}.yaml"
    if launch not in (None, "cpu"):
        launcher += f" --num_processes {processes}"
    if launch == "ddp_multi_node":
        machines = ["--machine_rank 0", "--machine_rank 1"]
    words = [f"recipes/{recipe}.py", *keep_last([flags, "--output_dir", folder])]
    with ThreadPoolExecutor() as pool:
        # DeepSpeed compiles its collectives for CPUs when they are first used.
        ended = [
            pool.submit(run_python, launcher, machine, *words, code=code) for machine in machines
        ]
    return [run.result().stderr for run in ended]


def fail(launch: str | None, recipe: str, flags: str, folder: Path) -> str:
    """The one line of a run that is refused, by one process or by both."""
    (output,) = start(launch, recipe, flags, folder, code=1)
    errors = set(re.findall(r"^error: (?:process \d+: )?(.*)", output, re.MULTILINE))
    assert len(errors) == 1, output[-3000:]
    return errors.pop()


# The run of one process

SHORT = (
    f"{RUN} --max_steps 2 --warmup_steps 0 --global_train_batch_size 8 --save_steps 1 "
    "--per_device_eval_batch_size 4 --eval_strategy steps --eval_steps 1"
)


@pytest.fixture(scope="module")
def recipes(small_store, tiny_checkpoint, tmp_path_factory):
    """Recipe -> its flags; 9 pairs and 9 rows to evaluate on are 2 batches of 4 and 1 on two
    processes.
    """
    folder = tmp_path_factory.mktemp("cola")
    rng = random.Random(0)
    for name, number in (("train", 40), ("validation", 9), ("test", 9)):
        rows = []
        for index in range(number):
            sentence = "".join(rng.choices("abcdef", k=rng.randint(3, 20)))
            rows.append({"idx": index, "sentence": sentence, "label": index % 2})
        write_jsonl(folder / f"{name}.jsonl", rows)
    finetuning = (
        f"{SHORT} --task cola --model_name_or_path {tiny_checkpoint} --data_dir {folder} "
        "--do_predict true --load_best_model_at_end true --metric_for_best_model loss"
    )
    pretraining = f"{SHORT} {PRETRAINING} --store {small_store} --max_eval_pairs 9"
    return {"pretrain": pretraining, "finetune": finetuning}


@pytest.fixture(scope="module", params=["pretrain", "finetune"])
def alone(request, recipes, tmp_path_factory):
    """A recipe, its flags, and its run in one process."""
    folder = tmp_path_factory.mktemp("alone") / request.param
    start("cpu", request.param, recipes[request.param], folder)
    return request.param, recipes[request.param], folder


METRICS = ("loss", "mlm_loss", "nsp_loss", "grad_norm")
METRICS += ("eval_loss", "eval_mlm_loss", "eval_nsp_loss", "eval_matthews_correlation")


def metrics(folder):
    """What a log says of steps and of evaluations."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [{name: line[name] for name in METRICS if name in line} for line in history]


def assert_same_run(folder, other, *, clips_alike):
    for ours, theirs in zip(metrics(folder), metrics(other), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    weights = load_file(folder / "model.safetensors")
    # Tied weights may have both of their names.
    for name, weight in load_file(other / "model.safetensors").items():
        assert weights[name].dtype == torch.float32
        atol = 1e-5 if clips_alike else 1e-4
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launch_is_the_run_of_one_process_and_is_resumed(alone, tmp_path, launch):
    """Two steps, a checkpoint, a resume, an evaluation in which the processes have unequal numbers
    of batches.
    """
    recipe, flags, expected = alone
    complete, resumed = tmp_path / "complete", tmp_path / "resumed"
    start(launch, recipe, flags, complete)
    # DeepSpeed's norm of the gradients is its own, a little larger.
    assert_same_run(complete, expected, clips_alike=not launch.startswith("deepspeed"))
    assert names_of_predictions(complete) == names_of_predictions(expected)
    resume_after_step_1(launch, recipe, flags, complete, resumed)
    assert_same_run(resumed, complete, clips_alike=True)


def resume_after_step_1(launch, recipe, flags, complete, resumed):
    """Copy a run of two steps as if it had been lost after its first one, and resume it."""
    shutil.copytree(complete, resumed)
    shutil.rmtree(resumed / "checkpoint-2")
    for name in ("all_results.json", "model.safetensors"):
        (resumed / name).unlink()
    start(launch, recipe, f"{flags} --resume last", resumed)
    assert json.loads((resumed / "all_results.json").read_text())["resumed_at_step"] == 1


def names_of_predictions(folder):
    return {path.name for path in folder.glob("predictions*")}


@pytest.mark.parametrize("launch", ["fsdp", "deepspeed_zero2"])
def test_a_resume_under_an_engine_goes_on_with_the_dropout_of_each_process(
    recipes, tmp_path, launch
):
    complete, resumed = tmp_path / "complete", tmp_path / "resumed"
    flags = f"{recipes['pretrain']} --dropout 0.3 --eval_strategy no"
    start(launch, "pretrain", flags, complete)
    resume_after_step_1(launch, "pretrain", flags, complete, resumed)
    assert metrics(resumed) == metrics(complete)


# Phases, checkpoints and refusals

LONG = (
    f"{RUN} {PRETRAINING} --max_steps 4 --warmup_steps 1 --global_train_batch_size 4 "
    "--save_steps 4 --eval_strategy no"
)
PHASES = (
    "--phase2_steps 2 --phase2_max_seq_length 48 --max_steps 5 --global_train_batch_size 8 "
    "--phase2_per_device_train_batch_size"
)


@pytest.fixture(scope="module")
def english_store(tiny_checkpoint, tmp_path_factory):
    """One whose tokenizer knows the sentences that a run shows at its end: all processes must take
    part in that.
    """
    folder = tmp_path_factory.mktemp("english")
    text = "The heart of the matter is the art of the run. And the day is the end of it.\n\n"
    (folder / "text.txt").write_text(text * 40)
    flags = f"--files {folder}/text.txt --num_processes 1 --tokenizer {tiny_checkpoint}"
    start(None, "prepare_corpus", flags, folder / "store")
    return folder / "store"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_folder_holds_the_weights_of_the_run(english_store, tmp_path, stage):
    run, model, flags = tmp_path / "run", tmp_path / "model", f"{LONG} --store {english_store}"
    start(f"deepspeed_zero{stage}", "pretrain", flags, run)
    start(None, "convert_checkpoint", f"--deepspeed_checkpoint {run}/checkpoint-4", model)
    opened = transformers.AutoModelForPreTraining.from_pretrained(model)
    assert type(opened) is transformers.BertForPreTraining
    ours = opened.state_dict()
    for name, weight in load_file(run / "model.safetensors").items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6)
    assert len(transformers.AutoTokenizer.from_pretrained(model)) == opened.config.vocab_size
    # Neither one process nor another stage nor no DeepSpeed at all can take its optimizer up.
    (run / "all_results.json").unlink()
    words = f"was written by 2 process(es) with engine DeepSpeed ZeRO {stage}, this run has"
    for launch in (None, "ddp_cpu", f"deepspeed_zero{stage % 3 + 1}"):
        assert words in fail(launch, "pretrain", f"{flags} --resume last", run)
    # Its weights can begin a new run.
    start(None, "pretrain", f"{flags} --model_name_or_path {model}", tmp_path / "new")


@pytest.mark.parametrize(
    ("engine", "processes"),
    # Of three processes under FSDP one has an empty shard of three parameters.
    [*((engine, 2) for engine in ENGINES), ("fsdp", 3)],
)
def test_two_phases_are_those_of_processes_without_an_engine(
    small_store, tmp_path, engine, processes
):
    flags = f"{LONG} {PHASES} 2 --global_train_batch_size {4 * processes} --store {small_store}"
    for launch in (engine, "ddp_cpu"):
        start(launch, "pretrain", flags, tmp_path / launch, processes=processes)
    weights = load_file(tmp_path / engine / "model.safetensors")
    for name, expected in load_file(tmp_path / "ddp_cpu" / "model.safetensors").items():
        torch.testing.assert_close(weights[name], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            f"{PHASES} 1 --per_device_train_batch_size 4 --optimizer adamw",
            "here it would be 1 and then 4; give --global_train_batch_size 8 "
            "--per_device_train_batch_size 1 --phase2_per_device_train_batch_size 1",
        ),
        # No process has whole tensors.
        (
            "--optimizer lamb",
            "optimizer is lamb; DeepSpeed ZeRO 2 splits tensors over the processes",
        ),
    ],
)
def test_what_deepspeed_cannot_do_is_refused_at_the_start(small_store, tmp_path, flags, words):
    flags = f"{LONG} {flags} --store {small_store}"
    assert words in fail("deepspeed_zero2", "pretrain", flags, tmp_path / "run")
    assert not list((tmp_path / "run").glob("*"))


def test_checkpoints_that_are_refused(small_store, tmp_path):
    start(None, "pretrain", f"{LONG} --store {small_store}", tmp_path / "run")
    for words, name in {
        "is not DeepSpeed's: it is in Hub form already": "run/checkpoint-4",
        "is no complete checkpoint: there is no such folder": "nowhere",
        "is no complete checkpoint: it has no manifest.json": "run",
    }.items():
        model, flags = tmp_path / "model", f"--deepspeed_checkpoint {tmp_path}/{name}"
        assert words in fail(None, "convert_checkpoint", flags, model)
        assert not model.exists()
