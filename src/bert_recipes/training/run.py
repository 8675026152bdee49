"""A run from its start to its results: launch checks, log, training, evaluation, files."""

import ctypes
import json
import logging
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import patch_environment
from huggingface_hub import try_to_load_from_cache
from transformers import Trainer
from transformers.trainer_utils import SaveStrategy
from transformers.training_args import ParallelMode, TrainingArguments

from bert_recipes.checkpointing import keep_run_id, read_step, write_run_id
from bert_recipes.config import save_config
from bert_recipes.data.store import MAX_NAMED_SOURCES, describe_store
from bert_recipes.errors import InputError, PushError, saving
from bert_recipes.files import (
    atomic_write,
    fingerprint_files,
    hash_of,
    replace_nonfinite,
    sync_paths,
)
from bert_recipes.hub_access import OLD_WEIGHTS
from bert_recipes.models.electra import GENERATOR_FOLDER
from bert_recipes.run_folder import (
    CONFIG_FILE,
    RESULTS_FILE,
    RUN_ID_FILE,
    UNFINISHED_FILE,
    WEIGHTS_FILE,
)
from bert_recipes.training.cost import cost_facts
from bert_recipes.training.engines import asks_for_fsdp
from bert_recipes.training.launch import take_one_gpu
from bert_recipes.training.speed import describe_machine, peak_memory_mb
from bert_recipes.training.trackers import name_run
from bert_recipes.training.trainer import RecipeTrainer


logger = logging.getLogger(__name__)


# The data and the checkpoint that a run begins with


def describe_pretraining_data(settings: Any, data: Any) -> dict[str, Any]:
    """Describe the data of a run: `describe_store`, or the instance files of each split."""
    if settings.store is not None:
        return describe_store(settings.store)
    files = {}
    for split in ("train", "validation"):
        dataset = getattr(data, split)
        if dataset is not None:
            files[split] = {
                "files": len(dataset.paths),
                "bytes": sum(path.stat().st_size for path in dataset.paths),
                "names": [path.name for path in dataset.paths[:MAX_NAMED_SOURCES]],
                "instances": len(dataset),
                "fingerprint": fingerprint_files(dataset.paths),
            }
    return {"tokenizer_fingerprint": data.tokenizer.fingerprint, "instance_files": files}


def describe_checkpoint(name: str, config: Any = None) -> dict[str, Any]:
    """Describe the checkpoint that a run began with.

    It has its name and, of weights in one file, their hash; a checkpoint of the Hub also the
    revision that its config.json was opened from.
    """
    folder = Path(name)
    facts: dict[str, Any] = {"name": name, "is_local": False}
    revision = getattr(config, "_commit_hash", None)
    if folder.is_dir():
        facts = {"name": folder.resolve().name, "is_local": True}
    elif revision is not None:
        facts["revision"] = revision
    for file in (WEIGHTS_FILE, OLD_WEIGHTS[0]):
        path: Any = folder / file
        if not folder.is_dir():
            path = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(path, str | Path) and Path(path).is_file():
            facts["sha256"] = hash_of(Path(path))
            break
    return facts


# Launch and log

# Variables in which a scheduler gives the number of tasks that it started.
_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def check_launch(args: TrainingArguments, *, trains: bool = True) -> None:
    """Refuse a launch that would train something else than it seems to.

    Args:
        args: Of the run.
        trains: The script trains; another one takes the first GPU of several.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    is_alone = args.world_size != processes or args.parallel_mode != ParallelMode.DISTRIBUTED
    if processes > 1 and is_alone:
        raise InputError(
            f"{processes} processes were started but this one trains alone (world size "
            f"{args.world_size}): all would write to the same output_dir; on CPUs give --use_cpu "
            "true or use accelerate_configs/ddp_cpu.yaml, and leave ddp_backend to the default"
        )
    tasks = max(int(os.environ.get(name, "1")) for name in _TASK_COUNTS)
    if processes == 1 and args.world_size == 1 and tasks > 1:
        raise InputError(
            f"{tasks} tasks were started (srun, mpirun) and each would train alone, in the same "
            "output_dir; start one launcher a machine, as recipes/cluster/pretrain.slurm does, or "
            "one task"
        )
    has_engine = asks_for_fsdp(args) or "ACCELERATE_USE_DEEPSPEED" in os.environ
    if has_engine and not trains:
        raise InputError(
            "FSDP and DeepSpeed are for training; measure and predict in one process, with python, "
            "or in several with accelerate_configs/ddp.yaml"
        )
    take_one_gpu(args, trains=trains)
    if args.device.type == "cpu":
        _check_cpu(args, processes)
    _end_with_launcher()


def _end_with_launcher() -> None:
    """Let Linux send SIGTERM when the launcher dies.

    Accelerate's passes no signal to a process that it starts alone; torch's may be killed.
    """
    has_launcher = "ACCELERATE_DYNAMO_BACKEND" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ
    if has_launcher and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG


def _check_cpu(args: TrainingArguments, processes: int) -> None:
    """Refuse an engine, which is for GPUs; warn of a run on CPUs that did not ask for them."""
    has_fsdp = asks_for_fsdp(args)
    has_deepspeed = "ACCELERATE_USE_DEEPSPEED" in os.environ
    if has_fsdp and torch.accelerator.is_available():
        raise InputError(
            "FSDP takes the GPUs of this machine, --use_cpu true asks for the CPU: LAUNCH=ddp_cpu "
            "is for that"
        )
    # ddp_cpu.yaml hides the GPUs (-1); DS_ACCELERATOR asks DeepSpeed for CPUs.
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    is_deepspeed_on_cpu = has_deepspeed and os.environ.get("DS_ACCELERATOR") == "cpu"
    is_chosen = getattr(args, "cpu_is_chosen", args.use_cpu)
    # make sets it, also by itself where it finds no nvidia-smi.
    is_launched_on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    if is_launched_on_cpu and torch.cuda.is_available() and processes == 1:
        logger.warning(
            "on the CPU, as the launch asks; torch sees a GPU, which LAUNCH=single_gpu takes"
        )
    if is_chosen or first_gpu in ("", "-1") or is_deepspeed_on_cpu:
        return
    if has_deepspeed or has_fsdp:
        raise InputError(
            f"{'DeepSpeed' if has_deepspeed else 'FSDP'} is for GPUs, and torch can use none here; "
            "on CPUs: LAUNCH=ddp_cpu, or give --use_cpu true"
        )
    if args.process_index == 0:
        threads = torch.get_num_threads()
        cores = (os.cpu_count() or 1) // processes
        logger.warning(
            "no GPU that torch can use: %d process(es) compute on the CPU, in %d thread(s) each "
            "(OMP_NUM_THREADS)",
            processes,
            threads,
        )
        if threads < cores:
            logger.warning("OMP_NUM_THREADS=%d lets each process use %d cores", cores, cores)


def start_logging(args: TrainingArguments) -> None:
    """Log to stderr: everything from the main process, warnings from the others."""
    level = logging.INFO if args.process_index == 0 else logging.WARNING
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=level)
    if args.process_index > 0:
        # What these packages say of files and models is the same in every process.
        for package in ("finetuning", "tasks", "tokenization"):
            logging.getLogger(f"bert_recipes.{package}").setLevel(logging.ERROR)
    for library in ("accelerate", "filelock", "fsspec", "httpx", "httpx2", "matplotlib", "torch"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if args.disable_tqdm or not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()


# The run


def run_training(
    trainer: RecipeTrainer,
    configs: Sequence[Any],
    resume_from: str | None = None,
    facts: Mapping[str, Any] | None = None,
    finish: Callable[[dict[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Train, evaluate, save; the same for every recipe.

    Leaves in output_dir: the model in Hub form (safetensors), the tokenizer, run.yaml (the resolved
    configuration), all_results.json, trainer_state.json (with the logged history). The training
    ends with a checkpoint. A run that is stopped later is resumed from it: it trains nothing and
    repeats the steps after training.

    Args:
        trainer: Ready to train; its processing_class is the tokenizer.
        configs: The dataclasses of the run, in the order of run.yaml.
        resume_from: The result of `find_resume_checkpoint`.
        facts: Further entries of all_results.json, for example about the data.
        finish: Called with the results in all processes: predictions, report, card, push.

    Returns:
        The results that all_results.json holds.
    """
    args = trainer.args
    folder = Path(args.output_dir)
    tracking: dict[str, str] = {}
    if trainer.is_world_process_zero():
        tracking = _write_run_files(trainer, configs, resume_from)
    trainer.accelerator.wait_for_everyone()
    trainer.ends_with_checkpoint = True
    with patch_environment(**tracking), trainer.stoppable():
        results = {**(facts or {}), **_train_and_measure(trainer, resume_from)}
        save_run(trainer, results)
    failure = None
    try:
        if finish is not None:
            finish(results)
    except PushError as error:
        failure = error
    # A failed push is no reason to train again: finish the run, then raise.
    if trainer.is_world_process_zero():
        # Weights and results reach the disk before the mark and the last checkpoint are deleted: a
        # power cut must not lose both.
        for model_folder in (folder, folder / GENERATOR_FOLDER):
            if model_folder.is_dir():
                files = [path for path in model_folder.iterdir() if path.is_file()]
                sync_paths([*files, model_folder])
        (folder / UNFINISHED_FILE).unlink(missing_ok=True)
        # With --save_strategy no the checkpoint at the end was only for a resume.
        last_step = trainer.state.global_step
        if args.save_strategy == SaveStrategy.NO and last_step not in trainer.kept_steps:
            shutil.rmtree(folder / f"checkpoint-{last_step}", ignore_errors=True)
    if failure is not None:
        raise failure
    return results


def _write_run_files(
    trainer: RecipeTrainer, configs: Sequence[Any], resume_from: str | None
) -> dict[str, str]:
    """Write run.yaml and the run's id, also into each checkpoint; return variables of trackers."""
    folder = Path(trainer.args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    save_config(folder / CONFIG_FILE, *configs)
    # The configuration before training, which fills in values such as the number of steps.
    config = (folder / CONFIG_FILE).read_bytes()
    trainer.checkpoint_files[CONFIG_FILE] = lambda path: path.write_bytes(config)
    run_id = keep_run_id(folder, None if resume_from is None else Path(resume_from))
    trainer.checkpoint_files[RUN_ID_FILE] = partial(write_run_id, run_id=run_id)
    return name_run(trainer.args, run_id)


def _train_and_measure(trainer: RecipeTrainer, resume_from: str | None) -> dict[str, Any]:
    # Read before training, which may delete the checkpoint for newer ones.
    resumed_at_step = None if resume_from is None else read_step(Path(resume_from))
    trainer.train(resume_from_checkpoint=resume_from)
    results: dict[str, Any] = {
        "train_loss": trainer.mean_loss,
        "train_steps": trainer.state.global_step,
    }
    if trainer.skipped_steps:
        results["skipped_steps"] = trainer.skipped_steps
    if resumed_at_step is not None:
        results["resumed_at_step"] = resumed_at_step
    results.update(cost_facts(trainer.run_time, trainer.args.energy))
    results.update(trainer.measure_all())
    results.update(speed_of(trainer.state.log_history))
    results["peak_memory_mb"] = round(peak_memory_mb(trainer.args.device), 1)
    results["processes"] = trainer.args.world_size
    results["precision"] = trainer.precision
    results["machine"] = describe_machine(trainer.args.device)
    results["date"] = time.strftime("%Y-%m-%d")
    return results


def speed_of(log_history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median rate of the log lines, and the mean of their waits for data.

    Most lines of a run that waits at each new epoch show no wait: their median would be none.
    """
    rates = []
    wait_shares = []
    num_steps = []
    last_step = 0
    for line in log_history:
        if "tokens_per_second" in line:
            rates.append(line["tokens_per_second"])
            wait_shares.append(line["data_wait_share"])
            num_steps.append(line["step"] - last_step)
            last_step = line["step"]
    if not rates:
        return {}
    mean_share = statistics.fmean(wait_shares, weights=num_steps)
    return {
        "tokens_per_second": round(statistics.median(rates), 1),
        "data_wait_share": round(mean_share, 4),
    }


def results_text(results: Mapping[str, Any]) -> str:
    """Return results as JSON without NaN and infinity: a value that is not defined is null."""
    return json.dumps(replace_nonfinite(results), indent=2) + "\n"


def save_run(trainer: Trainer, results: dict[str, Any]) -> None:
    """Write the model, the tokenizer and the results into output_dir."""
    folder = Path(trainer.args.output_dir)
    with saving(folder):
        trainer.save_model(_internal_call=True)  # pushes nothing yet
        trainer.save_state()
        if trainer.is_world_process_zero():
            # Stock pickles its arguments beside the weights; run.yaml has the same and is safe to
            # open.
            (folder / "training_args.bin").unlink(missing_ok=True)
            # A run is finished where there are results and no file "unfinished".
            (folder / UNFINISHED_FILE).touch()
            with atomic_write(folder / RESULTS_FILE) as aside:
                aside.write_text(results_text(results), encoding="utf-8")
    trainer.accelerator.wait_for_everyone()
