"""Figures of a table's runs, and whether its claims are reproduced."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from table import UNITS, Claim, Table
from table_runs import Cell, Runs

from bert_recipes.errors import InputError
from bert_recipes.files import read_json_object
from bert_recipes.metrics.seeds import seed_and_row_certainty, subtract_replicates


REPRODUCED, CONTRADICTED, NOT_RESOLVED = "reproduced", "contradicted", "not resolved"
# The seeds agree, and how far other rows would move the figures is not known.
BY_SEEDS_ONLY = "by seeds only"
# Standard errors by which a row has to be better than the untrained one, to have learned something.
LEARNED = 3.0

# (row, column) -> seed -> cell
Cells = Mapping[tuple[str, str], Mapping[int, Cell]]


def describe(table: Table, runs: Runs) -> dict[str, Any]:
    """Return the figures of a table by row, column and seed, and its verdicts, as JSON values."""
    cells = _read_cells(table, runs)
    seeds: set[int] = set()
    used_runs: dict[str, Mapping[str, Any]] = {}
    for of_seeds in cells.values():
        seeds.update(of_seeds)
        for cell in of_seeds.values():
            if cell.run:
                used_runs[cell.run["key"]] = cell.run
    columns = []
    for column in table.columns:
        columns.append({"name": column.name, "unit": column.unit, "metric": column.metric})
    rows = []
    for row in table.rows:
        figures = {}
        for column in table.columns:
            of_seeds = cells[row.name, column.name]
            figures[column.name] = {str(seed): cell.value for seed, cell in of_seeds.items()}
        rows.append({"name": row.name, "published": dict(row.published), "figures": figures})
    return {
        "table": table.name,
        "profile": table.profile,
        "title": table.title,
        "source": table.source,
        "note": table.note,
        "columns": columns,
        "seeds": sorted(seeds),
        "rows": rows,
        "claim_seeds": list(table.claim_seeds),
        "claims": [claim._asdict() | judge(claim, table, cells) for claim in table.claims],
        "runs": list(used_runs.values()),
    }


def _read_cells(table: Table, runs: Runs) -> dict[tuple[str, str], dict[int, Cell]]:
    cells: dict[tuple[str, str], dict[int, Cell]] = {}
    for row in table.rows:
        for column in table.columns:
            of_seeds = cells[row.name, column.name] = {}
            for seed in sorted({*table.seeds, *table.claim_seeds}):
                cell = runs.cell(row, column, seed)
                if cell is not None:
                    of_seeds[seed] = cell
    return cells


def check_claim_seeds(table: Table, path: Path) -> None:
    """Refuse another number of seeds for claims that the table.json of an earlier call judged."""
    if not path.is_file():
        return
    earlier = read_json_object(path)
    has_verdicts = any(claim["intervals"] for claim in earlier["claims"])
    if earlier["profile"] != table.profile or not has_verdicts:
        return
    if earlier["claim_seeds"] != list(table.claim_seeds):
        raise InputError(
            f"{path} has verdicts by {len(earlier['claim_seeds'])} seeds, and now seeds is "
            f"{len(table.claim_seeds)}: a number that is chosen after a look makes false verdicts "
            "likelier; set it back, or start in another --output_dir"
        )


class Comparison(NamedTuple):
    """The difference between two rows with its intervals, or the problem why there is none."""

    difference: float | None = None  # mean over seeds
    error: float = math.inf  # of that mean
    intervals: Mapping[str, tuple[float, float]] = {}
    problem: str = ""

    @property
    def is_ahead(self) -> bool:
        """Return True where the first row has surely learned more than an untrained other one."""
        return self.difference is not None and self.difference > LEARNED * self.error


def compare_cells(
    better: Mapping[int, Cell], worse: Mapping[int, Cell], seeds: Sequence[int], sign: int
) -> Comparison:
    """Compare the figures of two rows seed by seed; `sign` is -1 where less is better."""
    pairs = [(better[seed], worse[seed]) for seed in seeds if seed in better and seed in worse]
    if len(seeds) < 2:
        return Comparison(problem="one seed has no interval")
    if len(pairs) < len(seeds):
        return Comparison(problem=f"{len(pairs)} of {len(seeds)} seeds")
    differences = [sign * (first.value - second.value) for first, second in pairs]
    if not np.isfinite(differences).all():
        return Comparison(problem="training diverged")
    replicates = subtract_replicates(
        [(first.replicates, second.replicates) for first, second in pairs]
    )
    if replicates is not None:
        replicates = sign * replicates
    certainty = seed_and_row_certainty(differences, replicates)
    return Comparison(statistics.fmean(differences), certainty.error, certainty.intervals)


def judge(claim: Claim, table: Table, cells: Cells) -> dict[str, Any]:
    """Return a claim's verdict, the mean difference on its side and its intervals.

    Reproduced: the interval over seeds and rows is above 0. Contradicted: it is below 0. Neither
    where the better row is not `LEARNED` standard errors ahead of the untrained one. That two rows
    are alike is reproduced where the interval lies within the distance that the claim allows, and
    contradicted where it lies outside. Where it is not known how far other rows would move the
    figures, what would be a verdict by the seeds is `BY_SEEDS_ONLY`, which is none.
    """
    column = next(column for column in table.columns if column.name == claim.column)
    sign = -1 if column.less_is_better else 1
    better = cells[claim.better, claim.column]
    worse = cells[claim.worse, claim.worse_column or claim.column]
    comparison = compare_cells(better, worse, table.claim_seeds, sign)
    guards = _compare_with_untrained(claim, table, cells, sign)
    verdict = _verdict(comparison, claim.within)
    because = ""
    if claim.worse_column is None and not _have_same_rows([*better.values(), *worse.values()]):
        verdict = NOT_RESOLVED
        because = "the runs were trained or measured on different rows"
    elif verdict == NOT_RESOLVED:
        overlap = "holds 0" if claim.within is None else "reaches beyond that"
        because = comparison.problem or f"the interval {overlap}"
    elif not all(guard.is_ahead for guard in guards):
        verdict = NOT_RESOLVED
        because = f"{claim.better} is not known to have learned this"
    elif not all("of_both" in other.intervals for other in (comparison, *guards)):
        because = f"they say {verdict}"
        verdict = BY_SEEDS_ONLY
    return {
        "verdict": verdict,
        "because": because,
        "difference": comparison.difference,
        "intervals": dict(comparison.intervals),
    }


def _have_same_rows(cells: Sequence[Cell]) -> bool:
    """Return False for cells that are known to be trained or measured on different rows."""
    rows = {tuple(cell.rows) for cell in cells if cell.rows}
    training_rows = {cell.trained_on for cell in cells} - {None}
    return len(rows) <= 1 and len(training_rows) <= 1


def _verdict(comparison: Comparison, within: float | None = None) -> str:
    """Return what the interval over seeds and rows says, or without rows that over seeds."""
    intervals = comparison.intervals
    low, high = intervals.get("of_both") or intervals.get("of_seeds") or (-math.inf, math.inf)
    if within is not None:
        # What is left of the distance at worst and at best.
        low, high = within - max(-low, high), within - max(low, -high)
    if low > 0:
        return REPRODUCED
    return CONTRADICTED if high < 0 else NOT_RESOLVED


def _compare_with_untrained(
    claim: Claim, table: Table, cells: Cells, sign: int
) -> list[Comparison]:
    """Compare the better row of a claim with each untrained row that the claim does not name.

    That two rows are alike may be said of rows that have learned nothing.
    """
    if claim.within is not None:
        return []
    better = cells[claim.better, claim.column]
    named_rows = {claim.better}
    if claim.worse_column is None:
        named_rows.add(claim.worse)
    comparisons = []
    for row in table.rows:
        if row.untrained and row.name not in named_rows:
            untrained = cells[row.name, claim.column]
            comparisons.append(compare_cells(better, untrained, table.claim_seeds, sign))
    return comparisons


# Markdown


def _format(value: float, unit: str) -> str:
    factor, digits = UNITS[unit]
    return "diverged" if math.isnan(value) else f"{factor * value:.{digits}f}"


def markdown(described: Mapping[str, Any]) -> str:
    """Return the table, with the paper's figures in brackets, and a line a claim."""
    units = {column["name"]: column["unit"] for column in described["columns"]}
    num_seeds = len(described["seeds"])
    mean = "Mean ± deviation" if num_seeds > 1 else "Mean"
    lines = [
        f"# {described['title']}\n",
        f"Source: {described['source']}.\n",
        f"{described['note']}\n",
        f"| | {' | '.join(units)} |",
        "| --- |" + " ---: |" * len(units),
    ]
    for row in described["rows"]:
        figures = [_format_figures(row, name, unit) for name, unit in units.items()]
        lines.append(f"| {row['name']} | {' | '.join(figures)} |")
    lines.append(
        f"\n{mean} of {num_seeds} pre-training seeds where all are done. In brackets the paper's "
        "figures, which are not comparable: other sizes and other data."
    )
    if described["claims"]:
        heads = "claim | in | expected | difference | by seeds | by rows | by both | verdict"
        lines.append(f"\n{_count_verdicts(described)}\n")
        lines.append(f"| {heads} |")
        lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | --- |")
    for claim in described["claims"]:
        lines.append(_format_claim(claim, units[claim["column"]]))
    return "\n".join(lines) + "\n"


def _format_figures(row: Mapping[str, Any], column: str, unit: str) -> str:
    """Return the mean of a row's figures in a column, their deviation and the paper's figure."""
    values = list(row["figures"][column].values())
    text = _format(statistics.fmean(values), unit) if values else ""
    if len(values) > 1 and math.isfinite(sum(values)):
        text += f" ± {_format(statistics.stdev(values), unit)}"
    if column in row["published"]:
        text += f" ({row['published'][column]:g})"
    return text


def _count_verdicts(described: Mapping[str, Any]) -> str:
    """Return how many claims have which verdict, and by which seeds."""
    counts = Counter(claim["verdict"] for claim in described["claims"])
    text = (
        f"Claims, by seeds 1 to {described['claim_seeds'][-1]} as fixed before: "
        f"{counts[REPRODUCED]} {REPRODUCED}, {counts[CONTRADICTED]} {CONTRADICTED}, "
        f"{counts[NOT_RESOLVED]} {NOT_RESOLVED}."
    )
    if counts[BY_SEEDS_ONLY]:
        text += (
            f" {counts[BY_SEEDS_ONLY]} by seeds only, which is no verdict: how far other rows "
            "would move them is not known."
        )
    return text


def _format_claim(claim: Mapping[str, Any], unit: str) -> str:
    """Return a claim, its 95 % intervals and its verdict as a row of a table."""
    relation = "better than"
    if claim["within"] is not None:
        relation = f"within {_format(claim['within'], unit)} of"
    text = f"{claim['better']} {relation} {claim['worse']}"
    if claim["worse_column"] is not None:
        text += f" in {claim['worse_column']}"
    difference = claim["difference"]
    cells = [
        text,
        claim["column"],
        claim["expected"],
        "" if difference is None else _format(difference, unit),
    ]
    for name in ("of_seeds", "of_rows", "of_both"):
        ends = [_format(end, unit) for end in claim["intervals"].get(name, ())]
        cells.append(" to ".join(ends))
    reason = f": {claim['because']}" if claim["because"] else ""
    cells.append(f"**{claim['verdict']}**{reason}")
    return f"| {' | '.join(cells)} |"
