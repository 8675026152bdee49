r"""Write more training rows for a task, with TinyBERT's augmentation.

Words are replaced by those that a BERT expects in their places; for tasks of classes or numbers.

    python recipes/augment.py --task sst2 --data_dir DATA --model_name_or_path runs/my_bert \
        --output_dir augmented
    python recipes/finetune.py --task sst2 --data_dir augmented ...

The folder has train.jsonl, each row followed by its copies, and the other splits as they are.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, run_cli
from bert_recipes.files import atomic_dir, check_new_folder
from bert_recipes.settings import SEEDS, option, required
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.sources import load_split
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


def main() -> None:
    """Parse, check, draw, write."""
    (args,) = parse_arguments(AugmentArguments)
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=logging.INFO
    )
    task = get_task(args.task) if args.task is not None else read_task_file(args.task_file)
    log_found_labels(task)
    if task.kind != "sequence_classification":
        raise InputError(
            f"task {task.name} is {task.kind}; texts with a class or a number are augmented"
        )
    limits = {task.train_split: args.max_train_examples} | dict.fromkeys(task.validation_splits)
    splits = {
        name: load_split(task, name, data_dir=args.data_dir, max_examples=most)
        for name, most in limits.items()
    }
    for name in task.test_splits:
        with suppress(InputError):  # may be missing
            splits[name] = load_split(task, name, data_dir=args.data_dir)
    # Imported only now, for it takes seconds.
    import torch

    from bert_recipes.finetuning.augmentation import Augmenter, as_line
    from bert_recipes.finetuning.checkpoints import open_tokenizer
    from bert_recipes.models.checkpoints import MASKED_LM_HEADS, open_checkpoint
    from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer

    name = args.model_name_or_path
    tokenizer, cached_only = open_tokenizer(name), check_checkpoint(name)
    if not isinstance(tokenizer, OriginalBertTokenizer):
        raise InputError(
            f"{name} has no WordPiece tokenizer; the rules of augmentation are for BERT's words "
            "and pieces"
        )
    with opening(name):
        model, new = open_checkpoint(name, cached_only=cached_only, member="bert_mlm")
    if any(key.startswith(MASKED_LM_HEADS) for key in new):
        raise InputError(f"{name} has no masked-LM head; give a BERT as it was pre-trained")
    model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    if model.device.type == "cpu":
        model.base_model.use_fast_layers("auto")
    rules = ("num_copies", "num_candidates", "replace_probability", "seed", "batch_size")
    augmenter = Augmenter(
        model=model, tokenizer=tokenizer, **{rule: getattr(args, rule) for rule in rules}
    )
    with atomic_dir(Path(args.output_dir)) as folder:
        for name, split in splits.items():
            examples = (
                augmenter.augment(split.examples) if name == task.train_split else split.examples
            )
            with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                number = sum(file.write(as_line(task, example)) > 0 for example in examples)
            logger.info("%s: %d rows for %d", name, number, len(split.examples))


if __name__ == "__main__":
    run_cli(main)
