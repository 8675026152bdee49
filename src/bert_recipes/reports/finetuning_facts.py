"""What a fine-tuning run knows and its files do not: which labels were mistaken for which, and the worst errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_recipes.reports.answer_facts import answer_facts
from bert_recipes.reports.label_facts import choice_facts, label_facts, labels_facts, number_facts
from bert_recipes.reports.tag_facts import tag_facts


if TYPE_CHECKING:
    from bert_recipes.finetuning.kind import Prediction
    from bert_recipes.finetuning.run import FineTuningRun
    from bert_recipes.tasks.examples import Example
    from bert_recipes.tasks.task import Task


# Of a larger split so many examples are looked at, at equal distances: a second or two, and shares to half a percent.
MOST_EXAMPLES = 50_000
Gather = Callable[["Task", Sequence[Any], Sequence[Any]], dict[str, Any]]
_OF_KIND: Mapping[str, Gather] = {
    "single_label_classification": label_facts,
    "multi_label_classification": labels_facts,
    "regression": number_facts,
    "token_classification": tag_facts,
    "question_answering": answer_facts,
    "multiple_choice": choice_facts,
}


def gather_finetuning(run: FineTuningRun) -> dict[str, Any]:
    """Everything that report.json holds; the predictions are those of the last evaluation, no model is run.

    Args:
        run: After `run_training`.

    Returns:
        JSON values.
    """
    trainer, task = run.trainer, run.task
    args = trainer.args
    return {
        "kind": "finetuning",
        "task": task.name,
        "form": form_of(task),
        "run": {
            "checkpoint": run.checkpoint,
            "parameters": trainer.model.num_parameters(),
            "global_train_batch_size": trainer.global_batch_size,
            "processes": args.world_size,
            "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        },
        "splits": [
            split_facts(task, name, encoded.split.name, encoded.split.examples, trainer.predictions)
            for name, encoded in trainer.eval_splits.items()
        ],
    }


def form_of(task: Task) -> str:
    """The task's problem type where it classifies texts, its kind elsewhere."""
    return task.problem_type if task.kind == "sequence_classification" else task.kind


def split_facts(
    task: Task,
    suffix: str,
    name: str,
    examples: Sequence[Example],
    all_predictions: Mapping[str, Sequence[Prediction]],
) -> dict[str, Any]:
    """What is to be said of a validation split.

    Args:
        task: Its row.
        suffix: What stands before the split's figures; "" where there is only one split.
        name: Of the split.
        examples: Labelled.
        all_predictions: Split -> prediction of each example; a split whose outputs were not finite has none.
    """
    facts: dict[str, Any] = {"name": name, "suffix": suffix, "examples": len(examples)}
    if name not in all_predictions or not examples:
        return facts | {"looked_at": 0}
    chosen = np.linspace(0, len(examples) - 1, min(len(examples), MOST_EXAMPLES)).round().astype(np.int64).tolist()
    predictions = all_predictions[name]
    gather = _OF_KIND[form_of(task)]
    found = gather(task, [examples[number] for number in chosen], [predictions[number] for number in chosen])
    return facts | {"looked_at": len(chosen), **found}
