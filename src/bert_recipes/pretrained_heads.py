"""A checkpoint as the start of pre-training, or as what is measured: then it must have the head that is measured."""

from __future__ import annotations

from pathlib import Path

from bert_recipes.checkpoint_access import check_checkpoint, opening, warn_once
from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining, open_checkpoint
from bert_recipes.tasks.registry import list_tasks


def open_pretrained(name: str, *, needs_head: bool = False) -> BertForPreTraining:
    """Open a checkpoint, ours or stock; heads that it lacks start anew, with a warning.

    Args:
        name: Folder or Hub name.
        needs_head: It is to be measured as it is: without a masked-LM head there is nothing to measure.

    Raises:
        InputError: It is not there, damaged, no BERT, or has no masked-LM head (with needs_head).
    """
    cached_only = check_checkpoint(name)
    with opening(name):
        network, new_heads = open_checkpoint(name, cached_only=cached_only)
    lost = [key for key in new_heads if key.startswith("cls.predictions.")]
    if needs_head and lost:
        built = (network.config.architectures or ["an unnamed class"])[0]
        raise InputError(
            f"{name} is {built}, without a masked-LM head (no weights for {lost[0]}), so that of pre-training there is nothing "
            f"to measure; {_how_to_measure(Path(name))}"
        )
    if new_heads:
        warn_once("%s has no weights for %s; they start anew", name, ", ".join(new_heads))
    return network


def _how_to_measure(folder: Path) -> str:
    """What measures a checkpoint with another head; a fine-tuned one says for which task it is."""
    file = folder / "task.yaml"
    if not file.is_file():
        return "a fine-tuned checkpoint is measured with --task NAME or --task_file FILE.yaml"
    task = str(read_tree(file)[0].get("name", ""))
    return (
        f"it is fine-tuned: give --task {task}"
        if task in list_tasks()
        else f"it is fine-tuned: give --task_file {file}"
    )
