"""The report of a pre-training run: report.md and a plot of its losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_recipes.inspection import FilledMask, NextSentenceVerdict


if TYPE_CHECKING:
    from bert_recipes.pretraining import PreTrainingData
    from bert_recipes.trainer import BertTrainer


PLOT_FILE = "losses.png"
REPORT_FILE = "report.md"


def series(history: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one logged figure."""
    points = [(line["step"], line[name]) for line in history if name in line]
    return [step for step, _ in points], [value for _, value in points]


def plot_losses(history: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the MLM and NSP losses and accuracies with their yardsticks.

    Args:
        history: `trainer.state.log_history`.
        file: PNG to write.
    """
    import matplotlib as mpl  # heavy, and only a report needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    panels = (
        (
            "Masked-LM loss",
            "nats a token",
            ("mlm_loss", "eval_mlm_loss"),
            ("eval_unigram_loss", "word frequencies alone"),
        ),
        ("Next-sentence loss", "nats a pair", ("nsp_loss", "eval_nsp_loss"), None),
        (
            "Held-out accuracy",
            "share right",
            ("eval_mlm_accuracy", "eval_nsp_accuracy"),
            ("eval_majority_accuracy", "NSP: larger class"),
        ),
    )
    labels = {
        "mlm_loss": "training",
        "nsp_loss": "training",
        "eval_mlm_loss": "held out",
        "eval_nsp_loss": "held out",
        "eval_mlm_accuracy": "masked tokens",
        "eval_nsp_accuracy": "next sentence",
    }
    for axis, (title, unit, names, yardstick) in zip(axes, panels, strict=True):
        for name in names:
            steps, values = series(history, name)
            held_out = name.startswith("eval")
            width = 2.0 if held_out else 1.0
            axis.plot(steps, values, label=labels[name], lw=width, marker="o" if held_out else None, ms=3)
        if yardstick and series(history, yardstick[0])[1]:
            axis.axhline(series(history, yardstick[0])[1][-1], color="grey", ls="--", lw=1, label=yardstick[1])
        axis.set(title=title, xlabel="optimiser steps", ylabel=unit)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False)
    axes[2].set_ylim(0, 1)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def write_report(
    folder: Path,
    *,
    results: dict[str, Any],
    description: dict[str, Any],
    history: Sequence[dict[str, Any]],
    masks: Sequence[FilledMask] = (),
    verdicts: Sequence[NextSentenceVerdict] = (),
    remark: str | None = None,
) -> Path:
    """Write report.md and the plot beside the checkpoint.

    Args:
        folder: The run's output_dir.
        results: all_results.json.
        description: Sizes of the run.
        history: `trainer.state.log_history`.
        masks: Filled masks to show.
        verdicts: Next-sentence verdicts to show.
        remark: A sentence on the course of the run (`describe_progress`).

    Returns:
        The report's path.
    """
    plot_losses(history, folder / PLOT_FILE)
    lines = ["# Pre-training report", "", *_results_table(results), ""]
    if remark:
        lines += [f"**Attention:** {remark}.", ""]
    lines += [f"![losses]({PLOT_FILE})", "", "## The run", "", "| | |", "| --- | --- |"]
    lines += [f"| {name.replace('_', ' ')} | {_number(value)} |" for name, value in description.items()]
    machine = results.get("machine", {})
    lines += [f"| {name} | {value} |" for name, value in machine.items() if value is not None]
    lines += ["", "The resolved configuration is `run.yaml`, every logged figure is in `trainer_state.json`.", ""]
    if masks:
        lines += ["## Filled masks", "", "| sentence | guesses |", "| --- | --- |"]
        lines += [f"| {_cell(mask.text)} | {_cell(format_guesses(mask))} |" for mask in masks]
        lines.append("")
    if verdicts:
        lines += ["## Does the second sentence follow?", "", "| first | second | P(next) |", "| --- | --- | --- |"]
        lines += [f"| {_cell(v.first)} | {_cell(v.second)} | {v.is_next:.2f} |" for v in verdicts]
        lines.append("")
    path = folder / REPORT_FILE
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def describe_run(trainer: BertTrainer, data: PreTrainingData) -> dict[str, Any]:
    """Sizes of a run, for the log and the report."""
    args = trainer.args
    return {
        "parameters": trainer.model.num_parameters(),
        "vocabulary": len(data.tokenizer),
        "pairs_in_epoch_0": data.train.num_pairs(0),
        "global_train_batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    }


def format_figures(results: dict[str, Any]) -> str:
    """The figures of a fine-tuning run as a Markdown table.

    Args:
        results: all_results.json; its `eval_` figures are shown.
    """
    lines = ["| figure | value |", "| --- | --- |"]
    for name, value in results.items():
        if name.startswith("eval_") and not name.endswith("_seconds"):
            shown = str(value) if isinstance(value, int) else "n/a" if math.isnan(value) else f"{value:.4f}"
            lines.append(f"| {name.removeprefix('eval_')} | {shown} |")
    return "\n".join(lines)


def _results_table(results: dict[str, Any]) -> list[str]:
    """Held-out figures beside their yardsticks, as Markdown."""
    lines = ["| held-out documents | model | without a model |", "| --- | --- | --- |"]
    if "eval_mlm_loss" in results:
        unigram = f"{results['eval_unigram_loss']:.3f}" if "eval_unigram_loss" in results else ""
        lines.append(
            f"| masked-LM loss, nats (yardstick: word frequencies) | {results['eval_mlm_loss']:.3f} | {unigram} |"
        )
        lines.append(f"| masked-LM perplexity | {results['eval_perplexity']:.1f} | |")
        lines.append(f"| masked-LM accuracy | {results['eval_mlm_accuracy']:.1%} | |")
    if "eval_nsp_accuracy" in results:
        lines.append(f"| next-sentence loss, nats | {results['eval_nsp_loss']:.3f} | |")
        majority = f"{results['eval_majority_accuracy']:.1%}"
        lines.append(
            f"| next-sentence accuracy (yardstick: larger class) | {results['eval_nsp_accuracy']:.1%} | {majority} |"
        )
    lines += ["", "| training | |", "| --- | --- |"]
    names = ["train_steps", "train_seconds", "tokens_per_second", "data_wait_share", "peak_memory_mb"]
    names += ["eval_pairs", "eval_masked_tokens"]
    lines += [f"| {name.replace('_', ' ')} | {_number(results[name])} |" for name in names if name in results]
    return lines


def format_guesses(mask: FilledMask) -> str:
    """`piece 0.42, piece 0.10, ...`."""
    return ", ".join(f"{piece} {probability:.2f}" for piece, probability in mask.guesses)


def _number(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) and abs(value) >= 10 else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
