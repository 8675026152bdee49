"""What every training recipe shares: a safe start, the run, and what it leaves behind."""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import Trainer
from transformers.training_args import ParallelMode, TrainingArguments

from bert_recipes.base_trainer import GlobalBatchTrainer
from bert_recipes.config import save_config
from bert_recipes.errors import InputError, saving
from bert_recipes.hub.identity import IDENTITY_FILE, keep_run_id, write_run_id
from bert_recipes.machine import describe_machine
from bert_recipes.memory import peak_memory_mb
from bert_recipes.pushing import check_push
from bert_recipes.run_cost import cost_facts
from bert_recipes.run_folder import CONFIG_FILE, RESULTS_FILE
from bert_recipes.whole_files import written_aside


logger = logging.getLogger(__name__)


# How many tasks of this program a scheduler has started, as its environment says.
_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def check_launch(args: TrainingArguments) -> None:
    """Refuse a launch that would train something else than it seems to.

    Raises:
        InputError: Several processes were started but would train on their own, one process would use several GPUs
            by `DataParallel`, or GPUs are asked for (FSDP, a configuration of Accelerate) where there are none.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and (args.world_size != started or args.parallel_mode != ParallelMode.DISTRIBUTED):
        raise InputError(
            f"{started} processes were started but this one trains alone (world size {args.world_size}): all would write "
            "to the same output_dir; on CPUs give --use_cpu true or use accelerate_configs/ddp_cpu.yaml, and leave "
            "ddp_backend to the default"
        )
    tasks = max(int(os.environ.get(name, "1")) for name in _TASK_COUNTS)
    if started == 1 and args.world_size == 1 and tasks > 1:
        raise InputError(
            f"{tasks} tasks were started (srun, mpirun) and each would train alone, in the same output_dir; start one launcher a "
            "machine, as recipes/cluster/pretrain.slurm does, or one task"
        )
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true") and args.device.type == "cpu":
        raise InputError("FSDP is for GPUs: on CPUs Accelerate would train with DDP instead; LAUNCH=ddp_cpu does that")
    if args.device.type == "cpu" and not getattr(args, "cpu_is_chosen", args.use_cpu) and _launched_for_gpus():
        raise InputError(
            f"{os.environ.get('LOCAL_WORLD_SIZE', '1')} process(es) were started on this machine by a configuration of Accelerate that "
            "is for GPUs, and no GPU is there: all would train on the CPU; LAUNCH=cpu or LAUNCH=ddp_cpu "
            "(accelerate_configs/ddp_cpu.yaml) does that, or give --use_cpu true"
        )
    if args.n_gpu > 1:
        raise InputError(
            f"one process sees {args.n_gpu} GPUs; use LAUNCH=ddp (accelerate_configs/ddp.yaml) for one process a GPU, or "
            "CUDA_VISIBLE_DEVICES=0 for one GPU"
        )


def _launched_for_gpus() -> bool:
    """Whether Accelerate's launcher has started this process for a GPU, as the environment says.

    It tells one process that it is not for the CPU, and which GPU it may see; several it tells neither, and those of
    ddp_cpu.yaml that there is no GPU to see (-1). Other launchers (torchrun) say nothing of it.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.split(",")[0].strip() in ("", "-1"):
        return False
    is_for_cpu = os.environ.get("ACCELERATE_USE_CPU")
    if is_for_cpu is not None:
        return is_for_cpu.lower() in ("0", "false") and visible is not None
    by_accelerate = {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "ACCELERATE_USE_DEEPSPEED"} & os.environ.keys()
    for_gpus = os.environ.get("DS_ACCELERATOR") != "cpu"  # DeepSpeed's own way to ask for CPUs
    return bool(by_accelerate) and for_gpus and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1


def start_logging(args: TrainingArguments) -> None:
    """Log to stderr: everything from the main process, warnings from the others."""
    level = logging.INFO if args.process_index == 0 else logging.WARNING
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=level)
    for library in ("accelerate", "filelock", "fsspec", "httpx", "httpx2", "matplotlib", "torch"):
        logging.getLogger(library).setLevel(logging.WARNING)


def run_training(
    trainer: GlobalBatchTrainer,
    configs: Sequence[Any],
    resume_from: str | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Train, evaluate, save; the same for every recipe.

    Leaves in output_dir: the model in Hub form (safetensors), the tokenizer, run.yaml (the resolved configuration),
    all_results.json, trainer_state.json (with the logged history). `trainer.push_to_hub` pushes them, when the report is
    written too.

    Args:
        trainer: Ready to train; its processing_class is the tokenizer.
        configs: The dataclasses of the run, in the order in which they are to be written to run.yaml.
        resume_from: Checkpoint folder of `claim_output_dir`.
        facts: What else all_results.json is to say, for example about the data.

    Returns:
        The results that all_results.json holds.
    """
    args = trainer.args
    check_push(args)
    folder = Path(args.output_dir)
    if trainer.is_world_process_zero():
        folder.mkdir(parents=True, exist_ok=True)
        save_config(folder / CONFIG_FILE, *configs)
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        # As it was given: training fills in what follows from it, for example the number of steps.
        text = (folder / CONFIG_FILE).read_text(encoding="utf-8")
        trainer.checkpoint_files[CONFIG_FILE] = partial(_write_text, text=text)
        run_id = keep_run_id(folder, None if resume_from is None else Path(resume_from))
        trainer.checkpoint_files[IDENTITY_FILE] = partial(write_run_id, run_id=run_id)
    goes_on = resume_from is not None and Path(resume_from).parent.resolve() == folder.resolve()
    with trainer.trackers.recording(configs, goes_on=goes_on):
        results = {**facts, **_train_and_measure(trainer, resume_from)}
        save_run(trainer, results)
    return results


def _train_and_measure(trainer: GlobalBatchTrainer, resume_from: str | None) -> dict[str, Any]:
    trainer.train(resume_from_checkpoint=resume_from)
    results: dict[str, Any] = {"train_loss": trainer.mean_loss, "train_steps": trainer.state.global_step}
    if trainer.skipped.total:
        results["skipped_steps"] = trainer.skipped.total
    if resume_from is not None:  # the rates are those since then
        results["resumed_at_step"] = trainer.steps_done
    results |= cost_facts(trainer.cost.so_far(), trainer.args.energy)
    if trainer.eval_dataset is not None:
        results |= trainer.evaluate() | trainer.certainty()
    for name, digits in (("tokens_per_second", 1), ("data_wait_share", 4)):
        values = [line[name] for line in trainer.state.log_history if name in line]
        if values:
            results[name] = round(statistics.median(values), digits)
    results["peak_memory_mb"] = round(peak_memory_mb(), 1)
    results["processes"] = trainer.args.world_size
    results["precision"] = trainer.identity["precision"]
    results["machine"] = describe_machine()
    results["date"] = time.strftime("%Y-%m-%d")
    return results


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def results_text(results: Mapping[str, Any]) -> str:
    """Results as JSON, which has no NaN and no infinity: a figure that is not defined is null."""
    defined = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in results.items()
    }
    return json.dumps(defined, indent=2, allow_nan=False) + "\n"


def save_run(trainer: Trainer, results: dict[str, Any]) -> None:
    """Write the model, the tokenizer and the results into output_dir."""
    folder = Path(trainer.args.output_dir)
    with saving(folder):
        trainer.save_model(_internal_call=True)  # pushes nothing yet
        trainer.save_state()
        if trainer.is_world_process_zero():
            # The Trainer pickles its arguments beside the weights; run.yaml says the same and is safe to open.
            (folder / "training_args.bin").unlink(missing_ok=True)
            # Its being there says that the run has come to its end.
            with written_aside(folder / RESULTS_FILE) as aside:
                aside.write_text(results_text(results), encoding="utf-8")
    trainer.accelerator.wait_for_everyone()
