"""A run from its start to its results: training, evaluation, files."""

import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import patch_environment
from huggingface_hub import try_to_load_from_cache
from transformers import Trainer
from transformers.trainer_utils import SaveStrategy

from bert_recipes.checkpointing import keep_run_id, read_step, write_run_id
from bert_recipes.config import save_config
from bert_recipes.data.store import MAX_NAMED_SOURCES, describe_store
from bert_recipes.errors import PushError, saving
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
from bert_recipes.training.speed import describe_machine, peak_memory_mb
from bert_recipes.training.trackers import name_run
from bert_recipes.training.trainer import RecipeTrainer


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
    tracking: dict[str, str] = {}
    if trainer.is_world_process_zero():
        tracking = _write_run_files(trainer, configs, resume_from)
    trainer.accelerator.wait_for_everyone()
    trainer.ends_with_checkpoint = True
    with patch_environment(**tracking), trainer.stoppable():
        results = {**(facts or {}), **_train_and_measure(trainer, resume_from)}
        save_run(trainer, results)
    try:
        if finish is not None:
            finish(results)
    except PushError:
        # A failed push is no reason to train again.
        _mark_as_finished(trainer)
        raise
    _mark_as_finished(trainer)
    return results


def _mark_as_finished(trainer: RecipeTrainer) -> None:
    """Delete the mark of an unfinished run, and the checkpoint that was only for a resume."""
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    # Weights and results reach the disk first: a power cut must not lose them and the checkpoint.
    for model_folder in (folder, folder / GENERATOR_FOLDER):
        if model_folder.is_dir():
            files = [path for path in model_folder.iterdir() if path.is_file()]
            sync_paths([*files, model_folder])
    (folder / UNFINISHED_FILE).unlink(missing_ok=True)
    last_step = trainer.state.global_step
    if trainer.args.save_strategy == SaveStrategy.NO and last_step not in trainer.kept_steps:
        shutil.rmtree(folder / f"checkpoint-{last_step}", ignore_errors=True)


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
