"""What a checkpoint remembers of its run beside weights and optimiser: written, read, and whether another run may take it up."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_recipes.checkpointing import PROGRESS_FILE
from bert_recipes.errors import InputError


logger = logging.getLogger(__name__)

NO_ENGINE = "none"


def write_progress(folder: Path, run: Mapping[str, Any], processes: Sequence[Mapping[str, Any]]) -> None:
    """Write what `read_progress` reads.

    Args:
        folder: Of the checkpoint.
        run: What all processes must remember, JSON.
        processes: What each must remember by itself, JSON.
    """
    text = json.dumps({**run, "processes": processes}, indent=1)
    (folder / PROGRESS_FILE).write_text(text + "\n", encoding="utf-8")


def read_progress(
    checkpoint: Path, *, identity: Mapping[str, Any], engine: str, processes: int, allow_changes: bool
) -> dict[str, Any]:
    """What a checkpoint remembers.

    Args:
        checkpoint: A complete one.
        identity: Name -> value: what must be the same where a run goes on.
        engine: Of this run (`ResumableTrainer.engine`).
        processes: Of this run.
        allow_changes: Go on with another identity, and warn.

    Raises:
        InputError: It is another run's, or its optimiser's state is in a form that this launch does not open.
    """
    content: dict[str, Any] = json.loads((checkpoint / PROGRESS_FILE).read_text(encoding="utf-8"))
    _check_engine(checkpoint, content, engine, processes)
    changed = [name for name, value in identity.items() if content["identity"].get(name) != value]
    for name in changed:
        said = f"{name} is {identity[name]}, {checkpoint} was made with {content['identity'].get(name)}"
        if not allow_changes:
            raise InputError(f"{said}; give back what it was, start anew, or go on with --allow_changes true")
        logger.warning("%s; the run goes on with it, as allow_changes is true", said)
    return content


def _check_engine(checkpoint: Path, content: Mapping[str, Any], engine: str, processes: int) -> None:
    """DeepSpeed opens parts of its own stage from as many processes only; nobody else opens them."""
    before, parts = content["engine"], len(content["processes"])
    if before == engine and (parts == processes or not engine.startswith("DeepSpeed")):
        return
    raise InputError(
        f"{checkpoint} was written by {_processes(parts)} {_under(before)}, this run has {_processes(processes)} {_under(engine)} and "
        "cannot take its optimiser up; launch it as before, or start a new run from its weights with --model_name_or_path "
        "(of DeepSpeed's checkpoints recipes/consolidate_checkpoint.py makes a model)"
    )


def _processes(number: int) -> str:
    return f"{number} process{'es' if number > 1 else ''}"


def _under(engine: str) -> str:
    return "without DeepSpeed or FSDP" if engine == NO_ENGINE else f"under {engine}"


def share_of_process(everyone: Sequence[dict[str, Any]], index: int, processes: int) -> dict[str, Any]:
    """What one process takes up of what all of them remembered; where there were more or fewer, each gets an equal part of the whole.

    Args:
        everyone: Of a checkpoint, by the processes that wrote it.
        index: The process.
        processes: How many there are now.
    """
    if len(everyone) == processes:
        return everyone[index]
    return {name: _mean([each[name] for each in everyone]) for name in everyone[0]}


def _mean(values: list[Any]) -> Any:
    """Of numbers, or of lists of them element by element; of truths, whether any holds."""
    if isinstance(values[0], bool):
        return any(values)
    if isinstance(values[0], list):
        return [_mean(list(column)) for column in zip(*values, strict=True)]
    return sum(values) / len(values)
