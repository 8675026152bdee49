"""Rows of a data set of the Hugging Face Hub, or of its copy in the cache; the one place here that needs `datasets`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.hub_access import why_unreachable
from bert_recipes.tasks.files import Rows
from bert_recipes.tasks.task import Task


_ADVICE = '--data_dir FOLDER (make: ARGS="--data_dir FOLDER")'


def open_hub(task: Task, split: str, expected_files: str) -> Rows:
    """Open a split of the task's Hub data set.

    Without a connection the copy in the cache of `datasets` is read, where there is one; otherwise the error comes at
    once and not after the client's many tries.

    Args:
        task: Its hub_dataset, hub_subset and hub_revision.
        split: Name of the split.
        expected_files: What --data_dir may hold instead, for the message.

    Raises:
        InputError: The Hub cannot be reached, or has no such data set, subset or split.
    """
    reason = check_reach(task, expected_files)
    name = f"Hub data set {task.hub_dataset}" + (f" ({task.hub_subset})" if task.hub_subset else "")
    open_errors: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, *_http_errors())
    try:
        dataset = _from_cache(task, split) if reason is not None else _from_hub(task, split)
    except open_errors as error:
        detail = (str(error) or type(error).__name__).splitlines()[0] + (f"; {reason}" if reason is not None else "")
        raise InputError(
            f"task {task.name}: {name}, split '{split}': cannot be opened ({detail}); check the name, or give local files: "
            f"{_ADVICE}, which may hold {expected_files}"
        ) from error
    return Rows(f"{name}, split {split}", "row", _rows(dataset, task))


def check_reach(task: Task, expected_files: str) -> str | None:
    """See, in a moment, whether the data can be had.

    Args:
        task: Its hub_dataset.
        expected_files: What --data_dir may hold instead, for the message.

    Returns:
        Why only the copy in the cache can be read; None where the Hub can be reached.

    Raises:
        InputError: The Hub cannot be reached, and there is no copy.
    """
    assert task.hub_dataset is not None
    reason = why_unreachable()
    if reason is not None and not _is_cached(task.hub_dataset):
        raise InputError(
            f"task {task.name}: {reason}, and {task.hub_dataset} is not in the local cache; give "
            f"the data as local files: {_ADVICE}, which may hold {expected_files}"
        )
    return reason


def _from_hub(task: Task, split: str) -> Any:
    from datasets import load_dataset

    return load_dataset(task.hub_dataset, task.hub_subset, split=split, revision=task.hub_revision)


def _from_cache(task: Task, split: str) -> Any:
    from datasets.packaged_modules.cache.cache import Cache

    owner_and_name = str(task.hub_dataset)
    builder = Cache(
        repo_id=owner_and_name,
        dataset_name=owner_and_name.split("/")[-1],
        config_name=task.hub_subset,
        version="auto",
        hash="auto",
    )
    return builder.as_dataset(split=split)


def _is_cached(name: str) -> bool:
    """Whether `datasets` keeps a copy; found out without importing it, which takes seconds."""
    from huggingface_hub import constants

    cache = Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(constants.HF_HOME, "datasets")).expanduser()
    # Folders are called owner___name, the name in snake_case.
    plain = name.replace("/", "").replace("_", "").lower()
    return cache.is_dir() and any(folder.name.replace("_", "").lower() == plain for folder in cache.iterdir())


def _http_errors() -> tuple[type[Exception], ...]:
    # The HTTP client below the Hub's differs by version (httpx, httpx2): its errors are known by their common base class.
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(kind for kind in HfHubHTTPError.__bases__ if issubclass(kind, Exception))


def _rows(dataset: Any, task: Task) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows as dicts; class numbers become the Hub's names where the task knows these, so that order cannot matter."""
    names = _class_names(dataset, task)
    number = 0
    for batch in dataset.iter(batch_size=1000):
        columns = list(batch)
        for values in zip(*batch.values(), strict=True):
            number += 1
            row = dict(zip(columns, values, strict=True))
            if names is not None:
                row[task.label_column] = _named(row[task.label_column], names)
            yield number, row


def _class_names(dataset: Any, task: Task) -> list[str] | None:
    feature = dataset.features.get(task.label_column)
    feature = getattr(feature, "feature", feature)  # of a list, its elements
    names = getattr(feature, "names", None)
    return list(names) if names and set(names) <= {*task.labels, *task.column_labels} else None


def _named(value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
