"""Where the file of a split lies: what the task file says, or one of the usual names under --data_dir."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.tasks.conll_file import read_conll
from bert_recipes.tasks.files import TABLE_SUFFIXES, Rows, read_table
from bert_recipes.tasks.glue_tsv import MSR_DEV_IDS, MSR_FILE, read_glue_tsv
from bert_recipes.tasks.squad_file import read_squad
from bert_recipes.tasks.task import Task


# Folders of a collection in which that of the task may lie.
_COLLECTIONS = ("", "glue", "ner")


def open_local(task: Task, split: str, data_dir: str | None) -> Rows:
    """Open the file of a split.

    Args:
        task: Its `files`, `local_name`, `local_files` and `tsv` say which names the file may have.
        split: Name of the split.
        data_dir: Folder to search; None for a task whose `files` are absolute.

    Raises:
        InputError: No such folder or file; what was looked for is listed.
    """
    return _open(task, split, find_local(task, split, data_dir))


def find_local(task: Task, split: str, data_dir: str | None) -> Path:
    """Where the file of a split lies; arguments and errors are those of `open_local`."""
    path = Path(task.files[split]) if data_dir is None else _find(task, split, Path(data_dir))
    if not path.is_file():
        raise InputError(
            f"task {task.name}, split '{split}': {path}: no such file; mend `files` in the task file, or give the folder of "
            "the data with --data_dir"
        )
    return path


def _open(task: Task, split: str, path: Path) -> Rows:
    suffix = path.suffix.lower()
    if _is_official_tsv(task, split, path):
        return read_glue_tsv(path, task, split)
    if task.kind == "question_answering" and suffix == ".json":
        return read_squad(path, task)
    if task.kind == "token_classification" and suffix not in TABLE_SUFFIXES:
        return read_conll(path, task.text_columns[0], task.label_column)
    return read_table(path)


def _is_official_tsv(task: Task, split: str, path: Path) -> bool:
    return task.tsv is not None and path.name in (task.tsv.files.get(split), MSR_FILE)


def _find(task: Task, split: str, data_dir: Path) -> Path:
    if not data_dir.exists():
        raise InputError(
            f"--data_dir {data_dir}: no such folder; give the one that holds the data of task {task.name}"
        )
    if not data_dir.is_dir():
        raise InputError(f"--data_dir {data_dir}: a file; give the folder in which it lies")
    folders = list(dict.fromkeys(_folders(task)))
    names = list(dict.fromkeys(_names(task, split)))
    for folder in folders:
        for name in names:
            path = data_dir / folder / name
            # Without the list of ids nobody can tell the two splits of that file apart.
            if path.is_file() and (name != MSR_FILE or path.with_name(MSR_DEV_IDS).is_file()):
                return path
    places = ", ".join(folder for folder in folders if folder != ".")
    shown = ", ".join(f"{name} with {MSR_DEV_IDS}" if name == MSR_FILE else name for name in names)
    subfolders = f" and its subfolders {places}" if places else ""
    raise InputError(
        f"task {task.name}, split '{split}': no file in --data_dir {data_dir}{subfolders}; looked for {shown}"
    )


def _folders(task: Task) -> Iterator[str]:
    yield "."
    if task.local_name:
        yield from (Path(collection, task.local_name).as_posix() for collection in _COLLECTIONS)
    if task.tsv is not None:
        yield from (task.tsv.folder, f"glue/{task.tsv.folder}")


def _names(task: Task, split: str) -> Iterator[str]:
    """File names of a split, the surest first."""
    if split in task.files:
        yield task.relative_files[split]
    yield from task.local_files.get(split, ())
    yield f"{split}.jsonl"
    if task.tsv is not None:
        if task.tsv.folder == "MRPC" and split not in task.test_splits:
            yield MSR_FILE
        if split in task.tsv.files:
            yield task.tsv.files[split]
    yield from (f"{split}{suffix}" for suffix in (".csv", ".parquet", ".json"))
    if task.tsv is None:
        yield f"{split}.tsv"
    if task.kind == "token_classification":
        yield from (f"{split}.txt", f"{split}.conll")
