"""The tasks that are known by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from bert_recipes.errors import InputError
from bert_recipes.tasks.conll import CONLL_TASK
from bert_recipes.tasks.glue import GLUE_TASKS
from bert_recipes.tasks.squad import SQUAD_TASKS
from bert_recipes.tasks.swag import SWAG_TASK
from bert_recipes.tasks.task import Task


_TASKS: Mapping[str, Task] = MappingProxyType(
    {**GLUE_TASKS, **SQUAD_TASKS, SWAG_TASK.name: SWAG_TASK, CONLL_TASK.name: CONLL_TASK}
)


def list_tasks() -> tuple[str, ...]:
    """Return the names of the tasks, GLUE first.

    Example:
        >>> list_tasks()[:3]
        ('cola', 'sst2', 'mrpc')
    """
    return tuple(_TASKS)


def get_task(name: str) -> Task:
    """Return a task by its name.

    Args:
        name: One of `list_tasks`.

    Raises:
        InputError: An unknown name; the nearest one and all of them are given.

    Example:
        >>> get_task("mnli").labels
        ('entailment', 'neutral', 'contradiction')
    """
    if name not in _TASKS:
        nearest = _nearest(name)
        hint = f"did you mean '{nearest}'? " if nearest else ""
        raise InputError(
            f"unknown task '{name}'; {hint}allowed: {', '.join(_TASKS)}; a task of your own is given with --task_file"
        )
    return _TASKS[name]


def _nearest(name: str) -> str | None:
    """The task whose name comes closest; "SST-2", "sst_2" and "sst2" are one."""
    plain = {"".join(filter(str.isalnum, task)): task for task in _TASKS}
    # Names that people give to the same data.
    plain |= {
        "squad2": "squad_v2",
        "squad20": "squad_v2",
        "squadv11": "squad",
        "conll": "conll2003",
        "ner": "conll2003",
    }
    plain |= {"diagnostic": "ax", "glueax": "ax"}
    found = difflib.get_close_matches("".join(filter(str.isalnum, name.lower())), plain, n=1, cutoff=0.5)
    return plain[found[0]] if found else None
