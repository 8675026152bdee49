"""What the figures of a task are called, in a task file and in the results of a run."""

from __future__ import annotations

from collections.abc import Sequence


# Metrics that give figures of other names than their own; the first is the one to choose a checkpoint by.
_FIGURES = {
    "multi_label": ("f1_micro", "f1_macro", "subset_accuracy"),
    "entities": ("f1", "precision", "recall", "accuracy"),
    "squad": ("f1", "exact_match"),
    "squad_v2": ("f1", "exact", "best_f1", "best_exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact"),
}


def split_suffixes(splits: Sequence[str]) -> list[str]:
    """What tells the figures of several validation splits apart: the split's name without "validation_".

    Args:
        splits: Names of all validation splits of a task.

    Returns:
        A text for each, in their order; "" where there is only one, and for a split called "validation".

    Example:
        >>> split_suffixes(["validation", "validation_hard"])
        ['', 'hard']
    """
    return [name.removeprefix("validation").strip("_") if len(splits) > 1 else "" for name in splits]


def with_suffix(suffix: str, figure: str) -> str:
    """A figure's name in the results, without "eval_"."""
    return f"{suffix}_{figure}" if suffix else figure


def figure_names(metrics: Sequence[str], splits: Sequence[str], labels: Sequence[str] = ()) -> list[str]:
    """The figures by which a checkpoint can be chosen, those of the first validation split first.

    Args:
        metrics: The task's.
        splits: Its validation splits.
        labels: Its classes; the types of entities among them have figures of their own.
    """
    figures = [figure for name in metrics for figure in _FIGURES.get(name, (name,))]
    if "entities" in metrics:
        types = dict.fromkeys(label[2:] for label in labels if label[:2] in ("B-", "I-"))
        figures += [f"{name}_{figure}" for name in types for figure in ("f1", "precision", "recall")]
    return [with_suffix(suffix, figure) for suffix in split_suffixes(splits) or [""] for figure in figures]
