"""Read the files of a finished run, and keep in report.json what only the run itself can know."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.files import read_json_object, replace_nonfinite, write_json
from bert_recipes.run_folder import (
    CONFIG_FILE,
    FACTS_FILE,
    RESULTS_FILE,
    STATE_FILE,
    SWEEP_FILE,
    TASK_FILE,
    UNFINISHED_FILE,
)
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.training.resume import run_name
from bert_recipes.yaml_files import read_tree


# Of report.json: examples, counts over the data.
FORMAT = 1
# That a report, a card and the end of a run show first.
NUM_EXAMPLES = 3

Facts = dict[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """A finished run: its folder and name, and its files."""

    folder: Path
    name: str
    stage: str  # "pretraining" or "finetuning"
    results: Facts
    history: list[Facts]
    facts: Facts  # empty where the run left none
    settings: Facts
    task: Task | None


def check_finished(folder: Path) -> None:
    """Refuse a run that was stopped while its predictions, report or card were written.

    `read_run` does not check this: the run itself reads its folder before it is finished.
    """
    if (folder / UNFINISHED_FILE).is_file():
        raise InputError(
            f"run: {folder} is not finished: its predictions, report or card are not complete; "
            "give the command of the run again, which goes on with them"
        )


def read_run(folder: Path) -> RunFiles:
    """Read a finished run."""
    if not folder.is_dir():
        raise InputError(f"run: no folder {folder}; give the output_dir of a finished run")

    config_file = folder / CONFIG_FILE
    if not (folder / RESULTS_FILE).is_file():
        if (folder / SWEEP_FILE).is_file():
            raise InputError(
                f"run: {folder} is a sweep of many runs; give one of them, for example "
                f"{folder}/best"
            )
        state = "is not finished" if config_file.is_file() else "is no run"
        raise InputError(
            f"run: {folder} {state}: it has no {RESULTS_FILE}; give the output_dir of a finished "
            "run"
        )

    results = read_object(folder / RESULTS_FILE)
    facts = read_object(folder / FACTS_FILE)
    if facts and facts.get("format") != FORMAT:
        raise InputError(
            f"{folder / FACTS_FILE}: format {facts.get('format')!r}, this version reads {FORMAT}; "
            "move the file away and the report is written without its facts"
        )

    task_file = folder / TASK_FILE
    task = read_task_file(task_file) if task_file.is_file() else None
    is_finetuning = task is not None or "task" in results
    return RunFiles(
        folder=folder,
        name=run_name(folder),
        stage="finetuning" if is_finetuning else "pretraining",
        results=results,
        history=read_object(folder / STATE_FILE).get("log_history", []),
        facts=facts,
        settings=read_tree(config_file)[0] if config_file.is_file() else {},
        task=task,
    )


def read_object(path: Path) -> Facts:
    """Read a JSON object; an empty one where there is no file."""
    return read_json_object(path) if path.is_file() else {}


def write_facts(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write report.json: strict JSON, numbers that are not finite as null."""
    write_json(folder / FACTS_FILE, replace_nonfinite({"format": FORMAT, **facts}))
    return folder / FACTS_FILE


def describe_sizes(trainer: Any) -> Facts:
    """Return the sizes that report.json holds of a run of either kind."""
    # Needs torch, which reading a report does not.
    from bert_recipes.models.electra import GENERATOR_PREFIX

    unsaved = trainer.model._keys_to_ignore_on_save or ()
    num_parameters = 0
    for name, parameter in trainer.model.named_parameters():
        # ELECTRA's generator is beside the model that the folder holds.
        if name not in unsaved and not name.startswith(GENERATOR_PREFIX):
            # Under ZeRO 3 a process has a part of each.
            num_parameters += getattr(parameter, "ds_numel", parameter.numel())

    return {
        "parameters": num_parameters,
        "global_train_batch_size": trainer.global_batch_size,
        "processes": trainer.args.world_size,
        "precision": trainer.precision,
    }
