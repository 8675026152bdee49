"""GLUE as the paper's Table 1 shows it: nine columns and their mean, from the results of runs."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_recipes.reports.run_files import SWEEP_FILE
from bert_recipes.sweeps.subruns import read_results
from bert_recipes.tasks.registry import get_task
from bert_recipes.whole_files import write_json


# GLUE's nine tasks in the order in which they are run: the quick ones first.
TASKS = ("wnli", "rte", "mrpc", "stsb", "cola", "sst2", "qnli", "mnli", "qqp")
# Title, task, figure, split. Source: Devlin et al. 2019, Table 1 and its caption: F1 for QQP and MRPC, Spearman for STS-B,
# accuracy for the rest (Matthews correlation for CoLA, as GLUE defines it); no WNLI.
COLUMNS = (
    ("MNLI-m", "mnli", "matched_accuracy", "validation_matched"),
    ("MNLI-mm", "mnli", "mismatched_accuracy", "validation_mismatched"),
    ("QQP", "qqp", "f1", "validation"),
    ("QNLI", "qnli", "accuracy", "validation"),
    ("SST-2", "sst2", "accuracy", "validation"),
    ("CoLA", "cola", "matthews_correlation", "validation"),
    ("STS-B", "stsb", "spearmanr", "validation"),
    ("MRPC", "mrpc", "f1", "validation"),
    ("RTE", "rte", "accuracy", "validation"),
)
# Measured and shown, but not in the mean.
EXTRA_COLUMNS = (("WNLI", "wnli", "accuracy", "validation"),)


@dataclass(frozen=True)
class Cell:
    """One column of the table.

    Attributes:
        title: As in the paper.
        figure: Name of the figure.
        dev: Median over the seeds in percent; None where the task was not run, NaN where its runs diverged.
        deviation: Sample standard deviation over the seeds in percent; None for one seed.
        num_runs: Seeds.
        rows: Validation examples.
        published: Those of the published split.
        train_rows: Training examples.
        train_published: Those of the published split.
        paper: The paper's test figure in percent, BERT-base; None for WNLI.
    """

    title: str
    figure: str
    dev: float | None
    deviation: float | None
    num_runs: int
    rows: int | None
    published: int | None
    train_rows: int | None
    train_published: int | None
    paper: float | None

    @property
    def is_partial(self) -> bool:
        """Whether the figure was measured on other rows than the published split's."""
        return self.rows is not None and self.published is not None and self.rows != self.published


@dataclass(frozen=True)
class GlueTable:
    """The table.

    Attributes:
        cells: The paper's nine columns in its order.
        extra: Columns that are not in the mean.
    """

    cells: tuple[Cell, ...]
    extra: tuple[Cell, ...]

    @property
    def mean(self) -> float | None:
        """Mean of the nine columns, MNLI-m and -mm apart; None while one is missing."""
        return table_mean([cell.dev for cell in self.cells])

    @property
    def paper_mean(self) -> float | None:
        """The same of the paper's figures: 79.6."""
        return table_mean([cell.paper for cell in self.cells])


def table_mean(figures: Sequence[float | None]) -> float | None:
    """Mean of the columns; None where one is missing.

    Source: Devlin et al. 2019, Table 1, "Average": the nine columns weigh the same, so that MNLI counts twice, other than on
    the leaderboard, which also counts WNLI.
    """
    known = [figure for figure in figures if figure is not None]
    return statistics.fmean(known) if known and len(known) == len(figures) else None


def read_runs(folder: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Results of the finished runs of a task with these seeds, those of a sweep's best setting where it is one.

    Args:
        folder: A folder with seed-<s> in it, or a finished sweep.
        seeds: Which runs; others that lie there are left out.
    """
    if (folder / SWEEP_FILE).is_file():
        sweep = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
        best = next(item for item in sweep["combinations"] if item["name"] == sweep["best"])
        return [run["results"] for run in best["runs"] if run["seed"] in seeds]
    found = [read_results(folder / f"seed-{seed}") for seed in seeds]
    return [results for results in found if results is not None]


def make_table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> GlueTable:
    """Put the results of runs into the columns.

    Args:
        runs: Task -> all_results.json of each seed; missing tasks leave their cell and the mean empty.
    """
    cells = [_make_cell(*column, runs.get(column[1], ())) for column in COLUMNS]
    extra = [_make_cell(*column, runs.get(column[1], ())) for column in EXTRA_COLUMNS]
    return GlueTable(tuple(cells), tuple(extra))


def format_table(table: GlueTable) -> str:
    """The table as Markdown, with what is partial said under it."""
    lines = [
        "| task | figure | dev | std | seeds | dev rows | train rows | test (paper) |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_format_cell(cell) for cell in table.cells),
    ]
    mark = "*" if any(cell.is_partial for cell in table.cells) else ""
    mean = "" if table.mean is None else "diverged" if math.isnan(table.mean) else f"{table.mean:.1f}{mark}"
    paper = "" if table.paper_mean is None else f"{table.paper_mean:.1f}"
    lines.append(
        f"| **mean** | of the nine | **{mean}** | | | | | **{paper}** |" if mean else f"| mean | | | | | | | {paper} |"
    )
    lines += [_format_cell(cell) for cell in table.extra]
    lines += [
        "",
        "dev: development set, percent, the median where there are several seeds. test (paper): hidden test set, ",
    ]
    lines[-1] += "BERT-base, Devlin et al. 2019, Table 1. WNLI is not in the mean, as in the paper."
    partial = [cell for cell in (*table.cells, *table.extra) if cell.is_partial]
    if partial:
        lines += ["", "\\* not the published development set, so not to be put beside published figures: "]
        lines[-1] += (
            ", ".join(f"{cell.title} ({cell.rows:,} rows, published {cell.published:,})" for cell in partial) + "."
        )
    missing = [cell.title for cell in table.cells if cell.dev is None]
    if missing:
        lines += ["", f"No mean: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing."]
    return "\n".join(lines) + "\n"


def write_table(folder: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], settings: Mapping[str, Any]) -> str:
    """Write glue.md and glue.json.

    Args:
        folder: Existing folder.
        runs: Task -> all_results.json of each seed.
        settings: What the runs have in common, for the record.

    Returns:
        The table as Markdown.
    """
    table = make_table(runs)
    text = format_table(table)
    machine = next((run.get("machine") for found in runs.values() for run in found), None)
    write_json(folder / "glue.json", table_as_json(table) | {"settings": dict(settings), "machine": machine})
    flags = shlex.join(settings.get("flags", ())) or "none"
    # Several only where a default changed between the runs.
    models = sorted({str(run["model"]) for found in runs.values() for run in found if "model" in run})
    lines = [f"# GLUE\n\n{text}", f"Model: {', '.join(models)}\n", f"Flags of every run: {flags}\n"]
    (folder / "glue.md").write_text("\n".join(lines), encoding="utf-8")
    return text


def table_as_json(table: GlueTable) -> dict[str, Any]:
    """The table as strict JSON; what is missing or not finite is null."""
    return {
        "columns": [_cell_as_json(cell) for cell in table.cells],
        "mean_dev": _finite(table.mean),
        "mean_test_paper": _finite(table.paper_mean),
        "not_in_the_mean": [_cell_as_json(cell) for cell in table.extra],
    }


def _make_cell(title: str, task_name: str, figure: str, split: str, runs: Sequence[Mapping[str, Any]]) -> Cell:
    task = get_task(task_name)
    found = [run[f"eval_{figure}"] for run in runs if f"eval_{figure}" in run]
    # Null: a figure that is not defined.
    values = [math.nan if value is None else float(value) * 100 for value in found]
    splits = runs[0].get("splits", {}) if runs else {}
    rows, train = splits.get(split, {}), splits.get(task.train_split, {})
    diverged = any(map(math.isnan, values))
    return Cell(
        title=title,
        figure=figure,
        dev=(math.nan if diverged else statistics.median(values)) if values else None,
        deviation=statistics.stdev(values) if len(values) > 1 and not diverged else None,
        num_runs=len(values),
        rows=rows.get("examples"),
        published=rows.get("published", task.published_rows.get(split)),
        train_rows=train.get("examples"),
        train_published=train.get("published", task.published_rows.get(task.train_split)),
        paper=task.paper_test.get(figure),
    )


def _format_cell(cell: Cell) -> str:
    if cell.dev is None:
        return f"| {cell.title} | {_words(cell.figure)} | | | | | | {_one(cell.paper)} |"
    dev = "diverged" if math.isnan(cell.dev) else f"{cell.dev:.1f}" + ("*" if cell.is_partial else "")
    train = _rows(cell.train_rows, cell.train_published)
    return (
        f"| {cell.title} | {_words(cell.figure)} | {dev} | {_one(cell.deviation)} | {cell.num_runs} | "
        f"{_rows(cell.rows, cell.published)} | {train} | {_one(cell.paper)} |"
    )


def _words(figure: str) -> str:
    return {"f1": "F1", "matthews_correlation": "Matthews", "spearmanr": "Spearman"}.get(figure, "accuracy")


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _rows(rows: int | None, published: int | None) -> str:
    if rows is None:
        return ""
    return f"{rows:,}" if published in (None, rows) else f"{rows:,} of {published:,}"


def _cell_as_json(cell: Cell) -> dict[str, Any]:
    return {
        "title": cell.title,
        "figure": cell.figure,
        "dev": _finite(cell.dev),
        "std": cell.deviation,
        "seeds": cell.num_runs,
        "dev_rows": cell.rows,
        "dev_rows_published": cell.published,
        "is_partial": cell.is_partial,
        "train_rows": cell.train_rows,
        "train_rows_published": cell.train_published,
        "test_paper": cell.paper,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
