"""What lies in the folder of a run or a sweep, read for a report; nothing of it is run or trained."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_recipes.config import read_task_file
from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError
from bert_recipes.run_folder import CONFIG_FILE, RESULTS_FILE, name_of_run
from bert_recipes.tasks.task import Task
from bert_recipes.whole_files import write_json


# What only the run itself can know: examples, counts over its data. `gather_*` make it.
FACTS_FILE = "report.json"
FORMAT = 1
STATE_FILE, TASK_FILE, SWEEP_FILE = "trainer_state.json", "task.yaml", "sweep.json"


@dataclass(frozen=True)
class RunFiles:
    """A run's files.

    Attributes:
        name: Of its folder.
        kind: "pretraining" or "finetuning".
        results: all_results.json.
        history: What trainer_state.json logged.
        facts: report.json; empty where the run left none.
        settings: run.yaml.
        task: task.yaml.
    """

    name: str
    kind: str
    results: Mapping[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    task: Task | None = None


def read_run(folder: Path) -> RunFiles:
    """Read a finished run.

    Raises:
        InputError: No such folder, no run, an unfinished one, or a file of it that is damaged.
    """
    if not folder.is_dir():
        raise InputError(
            f"run: no folder {folder}; give the output_dir of a run of recipes/pretrain.py or finetune.py"
        )
    if not (folder / RESULTS_FILE).is_file():
        what = "is not finished" if (folder / CONFIG_FILE).is_file() else "is no run"
        raise InputError(f"run: {folder} {what}: it has no {RESULTS_FILE}; give the output_dir of a finished run")
    results = _read_object(folder / RESULTS_FILE)
    facts = _read_object(folder / FACTS_FILE) if (folder / FACTS_FILE).is_file() else {}
    if facts and facts.get("format") != FORMAT:
        raise InputError(
            f"{folder / FACTS_FILE}: format {facts.get('format')!r}, this version reads {FORMAT}; move the file away and "
            "the report is written without what is in it"
        )
    task = read_task_file(folder / TASK_FILE) if (folder / TASK_FILE).is_file() else None
    # A run that left no facts, or that another version made, is known by its figures.
    kind = facts.get("kind") or ("finetuning" if task is not None or "task" in results else "pretraining")
    state = _read_object(folder / STATE_FILE) if (folder / STATE_FILE).is_file() else {}
    settings = read_tree(folder / CONFIG_FILE)[0] if (folder / CONFIG_FILE).is_file() else {}
    history = [line for line in state.get("log_history", []) if isinstance(line, dict)]
    return RunFiles(name_of_run(folder), kind, results, history, facts, settings, task)


@contextmanager
def damage_as_one_line(what: object) -> Iterator[None]:
    """Say in one line that files which were read hold something else than a report is made of.

    Args:
        what: Whose files they are.

    Raises:
        InputError: Instead of what the block raised.
    """
    try:
        yield
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{what}: its files cannot be read as a report ({reason}); are they damaged?") from error


def read_sweep_file(folder: Path) -> dict[str, Any]:
    """sweep.json of a sweep's folder.

    Raises:
        InputError: It is damaged.
    """
    return _read_object(folder / SWEEP_FILE)


def write_facts(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write report.json: strict JSON, numbers that are not finite as null."""
    path = folder / FACTS_FILE
    write_json(path, strict({"format": FORMAT, **facts}))
    return path


def strict(value: Any) -> Any:
    """A value as JSON has it: no NaN, no infinity."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); it is damaged") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: no JSON object; it is damaged")
    return content
