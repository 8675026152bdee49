r"""Write the training texts of a task as a corpus, to pre-train on them before fine-tuning (TAPT).

    python recipes/task_texts.py --task sst2 --data_dir DATA --output_file sst2_texts.jsonl
    python recipes/prepare_corpus.py --files sst2_texts.jsonl --tokenizer runs/my_bert \
        --validation_fraction 0.05 --output_dir sst2_store
    make pretrain CONFIG=tapt \
        ARGS="--model_name_or_path runs/my_bert --store sst2_store --old_store my_store"

Source: Gururangan et al. 2020, section 4.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli, saving
from bert_recipes.files import atomic_write
from bert_recipes.settings import option, required
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import list_texts
from bert_recipes.tasks.sources import find_local, load_split
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import log_found_labels, read_task_file


@dataclass
class TaskTextArguments:
    """Choose the texts, and where they go."""

    output_file: str = required("JSON Lines with a document a row: the texts of an example")
    task: str | None = option(None, "name of a task")
    task_file: str | None = option(None, "YAML file of your own task")
    data_dir: str | None = option(None, "local folder of the task's data; default: the Hub")
    splits: list[str] | None = option(None, "default: the training split")
    include_held_out: bool = option(
        False, "take validation or test texts too: the model has then read what it is measured on"
    )

    def __post_init__(self) -> None:
        """Check what belongs together."""
        if (self.task is None) == (self.task_file is None):
            raise InputError("give either --task NAME or --task_file FILE.yaml")
        output = Path(self.output_file)
        if output.suffix != ".jsonl":
            raise InputError(f"output_file {output}: texts are JSON Lines; name it .jsonl")


def files_of(task: Task, data_dir: str | None) -> set[Path]:
    """Return the local files of a task; some may be missing, and a task of the Hub has none."""
    files = set()
    for name in task.splits:
        with suppress(InputError, KeyError):
            files.add(find_local(task, name, data_dir).resolve())
    return files


def main() -> None:
    """Read, check, write; a text that several examples share is written once."""
    (args,) = parse_arguments(TaskTextArguments)
    task = (
        get_task(args.task)
        if args.task is not None
        else read_task_file(str(args.task_file), args.data_dir)
    )
    log_found_labels(task)
    splits = args.splits or [task.train_split]
    held_out_splits = [name for name in splits if name != task.train_split]
    if held_out_splits and not args.include_held_out:
        raise InputError(
            f"splits: {', '.join(held_out_splits)} of {task.name} is what a model is measured on, "
            "and its texts would be known; leave it out, or give --include_held_out true"
        )
    output = Path(args.output_file)
    loaded = {name: load_split(task, name, data_dir=args.data_dir) for name in splits}
    if output.resolve() in files_of(task, args.data_dir):
        raise InputError(f"output_file {output}: it is a file of the task; give another name")
    written_texts: set[str] = set()
    with (
        saving(args.output_file),
        atomic_write(output) as aside,
        aside.open("w", encoding="utf-8") as file,
    ):
        for split in loaded.values():
            for example in split.examples:
                texts = []
                for text in list_texts(example):
                    if text and text not in written_texts:
                        texts.append(text)
                written_texts.update(texts)
                if texts:
                    file.write(json.dumps({"text": "\n".join(texts)}, ensure_ascii=False) + "\n")
    print(f"{args.output_file}: {len(written_texts):,} texts of {', '.join(splits)} of {task.name}")


if __name__ == "__main__":
    run_cli(main)
