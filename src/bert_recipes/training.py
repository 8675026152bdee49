"""What every training recipe shares: a safe start, the run, and what it leaves behind."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from transformers import Trainer, TrainerState
from transformers.training_args import ParallelMode, TrainingArguments

from bert_recipes.config import save_config
from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError, saving
from bert_recipes.memory import peak_memory_mb


logger = logging.getLogger(__name__)

CONFIG_FILE = "run.yaml"
RESULTS_FILE = "all_results.json"
# What a checkpoint must have to be resumed from; the last one is written last.
CHECKPOINT_FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state*.pth", "trainer_state.json")
# What a run may leave in its folder; nothing else is ever deleted.
RUN_FILES = (
    *(
        "run.yaml",
        "task.yaml",
        "*.json",
        "predictions_*",
        "*.safetensors",
        "vocab.txt",
        "training_args.bin",
        "report.md",
        "losses.png",
    ),
    *("checkpoint-*", "runs", "README.md", ".gitattributes"),
)


def check_launch(args: TrainingArguments) -> None:
    """Refuse a launch that would train something else than it seems to.

    Raises:
        InputError: Several processes were started but would train on their own, or one process would use several GPUs
            by `DataParallel`.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started > 1 and (args.world_size != started or args.parallel_mode != ParallelMode.DISTRIBUTED):
        raise InputError(
            f"{started} processes were started but this one trains alone (world size {args.world_size}): all would write "
            "to the same output_dir; on CPUs give --use_cpu true or use accelerate_configs/ddp_cpu.yaml, and leave "
            "ddp_backend to the default"
        )
    if args.n_gpu > 1:
        raise InputError(
            f"one process sees {args.n_gpu} GPUs; use LAUNCH=ddp (accelerate_configs/ddp.yaml) for one process a GPU, or "
            "CUDA_VISIBLE_DEVICES=0 for one GPU"
        )


def claim_output_dir(
    args: TrainingArguments,
    *,
    overwrite: bool,
    sources: Mapping[str, str | None] = MappingProxyType({}),
    lasting: Mapping[str, Any] = MappingProxyType({}),
) -> str | None:
    """Make the output folder this run's own.

    Args:
        args: Its output_dir and resume_from_checkpoint ("last" or a checkpoint folder) decide.
        overwrite: Delete the run that lies there.
        sources: Setting -> file or folder that the run reads, which is not deleted with an old run.
        lasting: Setting -> value that must be that of the run that is resumed.

    Returns:
        The checkpoint folder to resume from, or None.

    Raises:
        InputError: The folder holds another run, foreign files or what this run reads, or there is nothing to resume
            from, or it was trained with other settings.
    """
    folder = Path(args.output_dir)
    try:
        resume_from = _find_checkpoint(args.resume_from_checkpoint, folder)
        goes_on = resume_from is not None and resume_from.parent.resolve() == folder.resolve()
        if resume_from is not None:
            _check_same_settings(resume_from.parent / CONFIG_FILE, lasting)
        if not goes_on:
            _check_free(folder, overwrite=overwrite)
            _check_sources(folder, sources)
    finally:
        # No process writes before all have looked.
        args.distributed_state.wait_for_everyone()
    if not goes_on and overwrite and args.process_index == 0 and folder.is_dir():
        shutil.rmtree(folder)
    args.distributed_state.wait_for_everyone()
    return None if resume_from is None else str(resume_from)


def _find_checkpoint(wanted: str | bool | None, folder: Path) -> Path | None:
    """The checkpoint that resume_from_checkpoint names; None when the run starts anew."""
    name = str(wanted or "").lower()
    if name in ("", "false", "no"):
        return None
    if name not in ("last", "true"):
        missing = _what_is_missing(Path(str(wanted)))
        if missing:
            raise InputError(f"resume_from_checkpoint: {wanted} is no complete checkpoint ({missing})")
        return Path(str(wanted))
    steps = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*") if _has_step(path)}
    for _, path in sorted(steps.items(), reverse=True):
        missing = _what_is_missing(path)
        if not missing:
            return path
        logger.warning("%s is passed over: %s", path, missing)
    raise InputError(f"{folder} holds no complete checkpoint to resume from; start anew with --overwrite_run true")


def _has_step(path: Path) -> bool:
    return path.is_dir() and path.name.rpartition("-")[2].isdigit()


def _what_is_missing(checkpoint: Path) -> str | None:
    """Why a folder is no complete checkpoint, or None. The Trainer writes trainer_state.json last."""
    missing = [name for name in CHECKPOINT_FILES if not any(checkpoint.glob(name))]
    if missing:
        return f"it has no {', '.join(missing)}"
    try:
        json.loads((checkpoint / CHECKPOINT_FILES[-1]).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return f"{CHECKPOINT_FILES[-1]} is cut short"
    return None


def _check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something that may not be deleted."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(f"output_dir {folder} holds files that are no run of this project; give another --output_dir")
    if not overwrite:
        can_go_on = any(_what_is_missing(path) is None for path in folder.glob("checkpoint-*"))
        go_on = "; continue it with --resume_from_checkpoint last," if can_go_on else " without a checkpoint;"
        raise InputError(
            f"output_dir {folder} holds another run{go_on} replace it with --overwrite_run true, or give another --output_dir"
        )
    foreign = sorted(path.name for path in folder.iterdir() if not any(path.match(name) for name in RUN_FILES))
    if foreign:
        raise InputError(
            f"output_dir {folder} holds more than a run ({', '.join(foreign[:3])}), so it is not replaced; move that away "
            "or give another --output_dir"
        )


def _check_same_settings(file: Path, lasting: Mapping[str, Any]) -> None:
    """Refuse to go on with settings that change which examples the remaining steps see."""
    if not lasting or not file.is_file():
        return
    values, _ = read_tree(file)
    for name, value in lasting.items():
        was = values.get(name)  # what is None is not written
        if was != (None if value is None else str(value)):
            mend = f"leave --{name} out" if was is None else f"give --{name} {was}"
            raise InputError(
                f"resume_from_checkpoint: {name} is {value}, but in {file} {was or 'not given'}; a resumed run goes on with "
                f"the same data: {mend}, or start anew without --resume_from_checkpoint"
            )


def _check_sources(folder: Path, sources: Mapping[str, str | None]) -> None:
    """Refuse to replace a folder out of which the run reads."""
    if not folder.is_dir():
        return
    for name, path in sources.items():
        # A Hub name is no path that is there.
        if path is not None and Path(path).exists() and Path(path).resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{name} {path} lies in output_dir {folder}, which --overwrite_run true would delete; give another "
                "--output_dir"
            )


def start_logging(args: TrainingArguments) -> None:
    """Log to stderr: everything from the main process, warnings from the others."""
    level = logging.INFO if args.process_index == 0 else logging.WARNING
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=level)
    for library in ("accelerate", "filelock", "fsspec", "httpx", "matplotlib", "torch"):
        logging.getLogger(library).setLevel(logging.WARNING)


def describe_machine() -> dict[str, Any]:
    """Machine and versions, for results files."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
    except OSError:
        logger.debug("no /proc/cpuinfo: the processor's name is %s", processor)
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def run_training(
    trainer: Trainer,
    configs: Sequence[Any],
    resume_from: str | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Train, evaluate, save; the same for every recipe.

    Leaves in output_dir: the model in Hub form (safetensors), the tokenizer, run.yaml (the resolved configuration),
    all_results.json, trainer_state.json (with the logged history).

    Args:
        trainer: Ready to train; its processing_class is the tokenizer.
        configs: The dataclasses of the run, in the order in which they are to be written to run.yaml.
        resume_from: Checkpoint folder of `claim_output_dir`.
        facts: What else all_results.json is to say, for example about the data.

    Returns:
        The results that all_results.json holds.
    """
    args = trainer.args
    folder = Path(args.output_dir)
    if trainer.is_world_process_zero():
        folder.mkdir(parents=True, exist_ok=True)
        save_config(folder / CONFIG_FILE, *configs)
    trainer.accelerator.wait_for_everyone()
    start = time.perf_counter()
    output = trainer.train(resume_from_checkpoint=resume_from)
    results: dict[str, Any] = {**facts, "train_loss": _mean_over_processes(trainer, output.training_loss)}
    results["train_steps"] = trainer.state.global_step
    if resume_from is not None:  # the mean is over the steps since then
        resumed = TrainerState.load_from_json(str(Path(resume_from) / CHECKPOINT_FILES[-1]))
        results["train_loss_since_step"] = resumed.global_step
    results["train_seconds"] = round(time.perf_counter() - start, 1)
    if trainer.eval_dataset is not None:
        results |= trainer.evaluate()
    for name, digits in (("tokens_per_second", 1), ("data_wait_share", 4)):
        values = [line[name] for line in trainer.state.log_history if name in line]
        if values:
            results[name] = round(statistics.median(values), digits)
    results["peak_memory_mb"] = round(peak_memory_mb(), 1)
    results["processes"] = args.world_size
    results["machine"] = describe_machine()
    results["date"] = time.strftime("%Y-%m-%d")
    save_run(trainer, results)
    return results


def _mean_over_processes(trainer: Trainer, value: float) -> float:
    """The mean of a number; the Trainer's loss after the last line of its log is that of each process alone."""
    own = torch.tensor([value], dtype=torch.float64, device=trainer.args.device)
    return trainer.accelerator.gather(own).mean().item()


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
        trainer.save_model()
        trainer.save_state()
        if trainer.is_world_process_zero():
            # The Trainer pickles its arguments beside the weights; run.yaml says the same and is safe to open.
            (folder / "training_args.bin").unlink(missing_ok=True)
            (folder / RESULTS_FILE).write_text(results_text(results), encoding="utf-8")
    trainer.accelerator.wait_for_everyone()
