"""The report of a fine-tuning run, from its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_recipes.reports.blocks import Beside, Block, Paragraph, Report, Section, Table, Tile, Tiles
from bert_recipes.reports.common import PLOT_FILE, foot_of, run_facts, run_table, training_table, training_tile
from bert_recipes.reports.curves import finetuning_panels, plots_of
from bert_recipes.reports.figures import HEADS, figure_rows, is_no_better
from bert_recipes.reports.formatting import format_number, words_of
from bert_recipes.reports.plots import draw_panels_png
from bert_recipes.reports.run_files import RunFiles
from bert_recipes.reports.split_sections import split_sections


_SIGNED = ("pearson", "spearmanr", "correlation")


def finetuning_report(run: RunFiles) -> Report:
    """Join figures, curves, and what is known of each validation split."""
    results = run.results
    task = str(results.get("task") or run.facts.get("task") or (run.task.name if run.task else "task"))
    figures = [name for name, *_ in figure_rows(results)]
    panels = finetuning_panels(run.history, [f"eval_{name}" for name in figures])
    splits = run.facts.get("splits") or []
    attention = [
        Paragraph(f"{split['name']}: the model's outputs are not finite, nothing was predicted.", "attention")
        for split in splits
        if split["examples"] and not split["looked_at"]
    ]
    if run.task is not None and is_no_better(results, run.task.best_metric):
        said = f"{words_of(run.task.best_metric)}: nothing shows that the model does better than one constant answer."
        attention.append(Paragraph(said, "attention"))
    training = training_table(results, before=("train_loss",), after=("resumed_at_step",))
    table = _figures_table(run)
    is_short = bool(table.rows and training.rows and not table.fold)
    sections = [Section("Curves", [plots_of(panels, PLOT_FILE)] if panels else [])]
    for split in splits:
        sections += split_sections(str(run.facts.get("form")), split, is_only=len(splits) == 1)
    return Report(
        title=f"Fine-tuning report: {task}",
        name=run.name,
        facts=(*_model(results), *run_facts(run)),
        head=[_tiles(run, figures), Beside(table, training) if is_short else table, *attention],
        sections=[
            *sections,
            Section("Training", [training] if training.rows and not is_short else []),
            Section("Data", _data(results)),
            Section("The run", run_table(run)),
        ],
        foot=foot_of(run),
        pictures={PLOT_FILE: draw_panels_png(panels[:2])} if panels else {},
    )


def _model(results: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"from {results['model']}",) if results.get("model") else ()


def _figures_table(run: RunFiles) -> Table:
    rows = figure_rows(run.results)
    fold = f"all {len(rows)} figures" if len(rows) > 4 else ""
    return Table(HEADS, tuple(rows), numbers=(1, 2, 3), fold=fold)


def _tiles(run: RunFiles, figures: Sequence[str]) -> Tiles:
    """The figure by which the task is judged first, then the others; at most three."""
    best = run.task.best_metric if run.task is not None else None
    shown = [name for name in figures if not name.endswith(("loss", "_thresh", "total", "_number", "missing"))]
    shown.sort(key=lambda name: name != best)
    tiles = []
    for name in shown[:3]:
        value = run.results.get(f"eval_{name}")
        if not isinstance(value, int | float):
            tiles.append(Tile(words_of(name), "n/a"))
            continue
        is_percent = run.task is not None and run.task.kind == "question_answering"
        scale, style = 100 if is_percent else 1, ".1f" if is_percent else ".3f" if name.endswith(_SIGNED) else ".1%"
        interval = (run.results.get("intervals") or {}).get(name)
        constant = (run.results.get("baselines") or {}).get(name)
        notes = [
            "the figure by which the task is judged" if name == best else "",
            f"95% interval {interval[0]:{style}} to {interval[1]:{style}}" if interval else "",
            "" if constant is None else f"constant answer: {constant:{style}}",
        ]
        share, yardstick = value / scale, None if constant is None else constant / scale
        bar = share if 0 <= share <= 1 else None
        tiles.append(Tile(words_of(name), f"{value:{style}}", "; ".join(filter(None, notes)), bar, yardstick))
    return Tiles((*tiles, *training_tile(run.results)))


def _data(results: Mapping[str, Any]) -> list[Block]:
    """Examples of each split beside those published."""
    splits = results.get("splits")
    if not isinstance(splits, dict):
        return []
    names = ("examples", "features", "left_out", "published")
    rows = tuple(
        (name, *("" if entry.get(key) is None else format_number(entry[key]) for key in names))
        for name, entry in splits.items()
    )
    return [Table(("split", "examples", "model inputs", "left out", "published rows"), rows, numbers=(1, 2, 3, 4))]
