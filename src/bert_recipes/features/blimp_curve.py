"""BLiMP at each checkpoint of a run: what its text had taught by then."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bert_recipes.checkpointing import list_checkpoints, read_step, why_incomplete
from bert_recipes.data.collator import find_continuations
from bert_recipes.data.store import Store, open_store
from bert_recipes.errors import InputError
from bert_recipes.features.arguments import SentenceArguments
from bert_recipes.features.likelihood import measure_blimp
from bert_recipes.run_folder import CONFIG_FILE, PROGRESS_FILE
from bert_recipes.tokenization.loading import load_tokenizer


logger = logging.getLogger(__name__)


def measure_checkpoints(args: SentenceArguments) -> list[dict[str, Any]]:
    """Measure BLiMP with every checkpoint of the run in `model_name_or_path`, by step.

    A point has `step`, `epochs` (passes over the text), `words` seen (None without the store),
    `accuracy`, its `interval`, `pairs`, and the accuracies of the `phenomena`.
    """
    run = Path(args.model_name_or_path)
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        raise InputError(
            f"{run}: no checkpoint-N in it; train with --save_at_epochs 0.1 0.2 0.5 1 2"
        )
    num_words = count_words_of_run(run)
    # Read before any is measured, which takes long: a damaged checkpoint is refused at once.
    epochs_of_checkpoints = [read_epochs(checkpoint) for checkpoint in checkpoints]
    points = []
    for checkpoint, epochs in zip(checkpoints, epochs_of_checkpoints, strict=True):
        results = measure_blimp(replace(args, model_name_or_path=str(checkpoint)))
        point = {
            "step": read_step(checkpoint),
            "epochs": epochs,
            "words": None if num_words is None else epochs * num_words,
            **results["overall"],
            "phenomena": {name: row["accuracy"] for name, row in results["phenomena"].items()},
        }
        logger.info("%s: %.1f %%", checkpoint.name, 100 * point["accuracy"])
        points.append(point)
    return points


def read_epochs(checkpoint: Path) -> float:
    """Return the passes over the text up to a checkpoint."""
    reason = why_incomplete(checkpoint)
    if reason is not None:
        raise InputError(f"{checkpoint}: {reason}; remove it, and the others are a curve")
    state = json.loads((checkpoint / PROGRESS_FILE).read_text(encoding="utf-8"))
    if "epochs" not in state:
        raise InputError(
            f"{checkpoint}: of an earlier version, which wrote no passes over the text"
        )
    return state["epochs"]


def count_words_of_run(run: Path) -> int | None:
    """Return the words of the training text of a run; None where its store is gone."""
    folder = None
    if (run / CONFIG_FILE).is_file():
        settings = yaml.safe_load((run / CONFIG_FILE).read_text(encoding="utf-8"))
        folder = settings.get("store")
    if folder is None:
        logger.warning("%s: the run has no store: words seen are left out", run)
        return None
    if not Path(folder).is_dir():
        logger.warning("%s: the store %s is not there: words seen are left out", run, folder)
        return None
    return count_words(open_store(folder))


def count_words(store: Store) -> int:
    """Return the words of a store's training text: pieces that begin one, punctuation left out."""
    tokenizer = load_tokenizer(store.tokenizer_path)
    vocabulary = tokenizer.get_vocab()
    begins_word = ~find_continuations(vocabulary, len(tokenizer))
    for piece, number in vocabulary.items():
        # A byte-level piece is not spelled as its text.
        text = tokenizer.convert_tokens_to_string([piece])
        # A part of a character decodes to U+FFFD; it counts as a letter, as most of them are.
        if not any(char.isalnum() or char == "\ufffd" for char in text):
            begins_word[number] = False
    return int(np.sum(store.train.unigram_counts[begins_word]))


def curve_table(points: Sequence[Mapping[str, Any]]) -> str:
    """Return the points as a table in Markdown."""
    lines = ["| steps | passes | million words | BLiMP | 95 % interval |"]
    lines.append("| --: | --: | --: | --: | --: |")
    for point in points:
        words = "" if point["words"] is None else f"{point['words'] / 1e6:,.1f}"
        low, high = point["interval"]
        cells = (
            f"{point['step']:,}",
            f"{point['epochs']:.2f}",
            words,
            f"{point['accuracy']:.1%}",
            f"{low:.1%} to {high:.1%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
