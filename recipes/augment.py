r"""Write more training rows for a task, with TinyBERT's augmentation.

Words are replaced by those that a BERT expects in their places; for tasks of classes or numbers.

    python recipes/augment.py --task sst2 --data_dir DATA --model_name_or_path runs/my_bert \
        --output_dir augmented
    python recipes/finetune.py --task sst2 --data_dir augmented ...

The folder has train.jsonl, each row followed by its copies, and the other splits as they are.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import atomic_dir, check_new_folder
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Split
from bert_recipes.tasks.sources import load_split
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import log_found_labels, read_task_file


logger = logging.getLogger("augment")


@dataclass
class AugmentArguments:
    """Choose task, model and rules (Jiao et al. 2020, Algorithm 1)."""

    model_name_or_path: str = required(
        "BERT with its masked-LM head and tokenizer (folder or Hub name)"
    )
    output_dir: str = required("folder to write; must not exist or be empty")
    task: str | None = option(None, "name of a task")
    task_file: str | None = option(None, "YAML file of your own task")
    data_dir: str | None = option(None, "local folder of the task's data; default: the Hub")
    max_train_examples: int | None = option(None, "augment at most this many examples", least=1)
    num_copies: int = option(20, "copies of a text that are drawn (paper: 20)", least=1)
    num_candidates: int = option(15, "words that may stand for one (paper: 15)", least=1)
    replace_probability: float = option(
        0.4, "that a word is replaced (paper: 0.4)", above=0, most=1
    )
    seed: int = option(12345, "of what is drawn", **SEEDS)
    batch_size: int = option(64, "inputs that the model takes at once", least=1)

    def __post_init__(self) -> None:
        """Check what belongs together."""
        if (self.task is None) == (self.task_file is None):
            raise InputError("give either --task NAME or --task_file FILE.yaml")
        check_new_folder(Path(self.output_dir))


def read_splits(task: Task, args: AugmentArguments) -> dict[str, Split]:
    """Read the splits of a task by name; a test split may be missing, which is logged."""
    splits = {}
    splits[task.train_split] = load_split(
        task, task.train_split, data_dir=args.data_dir, max_examples=args.max_train_examples
    )
    for name in task.validation_splits:
        splits[name] = load_split(task, name, data_dir=args.data_dir)
    for name in task.test_splits:
        try:
            splits[name] = load_split(task, name, data_dir=args.data_dir)
        except InputError as error:
            logger.warning("left out: %s", error)
    return splits


def open_augmenter(args: AugmentArguments) -> Any:
    """Return the `Augmenter` with the model and the rules of the command line."""
    # Imported only now, for it takes seconds.
    import torch

    from bert_recipes.finetuning.augmentation import Augmenter
    from bert_recipes.finetuning.checkpoints import open_tokenizer
    from bert_recipes.models.checkpoints import MASKED_LM_HEADS, open_checkpoint
    from bert_recipes.models.sizes import reads_left_to_right
    from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer

    name = args.model_name_or_path
    tokenizer = open_tokenizer(name)
    cached_only = check_checkpoint(name)
    if not isinstance(tokenizer, OriginalBertTokenizer):
        raise InputError(
            f"{name} has no WordPiece tokenizer; the rules of augmentation are for BERT's words "
            "and pieces"
        )
    with opening(name):
        model, new_weights = open_checkpoint(name, cached_only=cached_only, member="bert_mlm")
    if any(key.startswith(MASKED_LM_HEADS) for key in new_weights):
        raise InputError(f"{name} has no masked-LM head; give a BERT as it was pre-trained")
    if reads_left_to_right(model.config):
        raise InputError(
            f"{name} reads from left to right and fills no masks; give a BERT that was pre-trained "
            "with them"
        )
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    if model.device.type == "cpu":
        model.base_model.use_fast_layers("auto")
    return Augmenter(
        model=model,
        tokenizer=tokenizer,
        num_copies=args.num_copies,
        num_candidates=args.num_candidates,
        replace_probability=args.replace_probability,
        seed=args.seed,
        batch_size=args.batch_size,
    )


def write_rows(path: Path, task: Task, examples: Iterable[Any]) -> int:
    """Write a row for each example; return how many."""
    from bert_recipes.finetuning.augmentation import as_line

    num_rows = 0
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(as_line(task, example))
            num_rows += 1
    return num_rows


def main() -> None:
    """Parse, check, draw, write."""
    (args,) = parse_arguments(AugmentArguments)
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    task = (
        get_task(args.task)
        if args.task is not None
        else read_task_file(args.task_file, args.data_dir)
    )
    log_found_labels(task)
    if task.kind != "sequence_classification":
        raise InputError(
            f"task {task.name} is {task.kind}; texts with a class or a number are augmented"
        )
    splits = read_splits(task, args)
    augmenter = open_augmenter(args)
    with atomic_dir(Path(args.output_dir)) as folder:
        for name, split in splits.items():
            examples: Iterable[Any] = split.examples
            if name == task.train_split:
                examples = augmenter.augment(split.examples)
            num_rows = write_rows(folder / f"{name}.jsonl", task, examples)
            logger.info("%s: %d rows for %d", name, num_rows, len(split.examples))


if __name__ == "__main__":
    run_cli(main)
