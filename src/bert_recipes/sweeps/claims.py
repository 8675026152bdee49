"""What the runs of a table say: the figures of its rows, and whether its claims are reproduced."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy.stats import t as student

from bert_recipes.metrics.certainty import half_interval
from bert_recipes.sweeps.tables import Cell, Claim, Column, Row, Runs, Table


REPRODUCED, CONTRADICTED, NOT_RESOLVED = "reproduced", "contradicted", "not resolved"
# Pairs of runs, the better row's first; the figure -> the 95 % interval of their mean difference over resampled rows, or None.
Bootstrap = Callable[[Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], str], tuple[float, float] | None]
# Standard errors by which a row has to beat the untrained one.
LEARNT = 3.0


def describe(table: Table, runs: Runs, seeds: Sequence[int], bootstrap: Bootstrap) -> dict[str, Any]:
    """The table as JSON values: figures by row, column and seed, and a verdict for each claim."""
    cells = {
        (row.name, column.name): {seed: cell for seed in seeds if (cell := runs.cell(row, column, seed)) is not None}
        for row in table.rows
        for column in table.columns
    }
    rows = []
    for row in table.rows:
        own = {column.name: _figures(cells[row.name, column.name]) for column in table.columns}
        rows.append({"name": row.name, "published": dict(row.published), "figures": own})
    claims = [claim._asdict() | judge(claim, table, cells, bootstrap) for claim in table.claims]
    used = {cell.run["key"]: cell.run for of_seeds in cells.values() for cell in of_seeds.values() if cell.run}
    return {
        **{"table": table.name, "title": table.title, "source": table.source, "note": table.note},
        "columns": [{"name": column.name, "unit": column.unit, "metric": column.metric} for column in table.columns],
        **{"seeds": list(seeds), "rows": rows, "claims": claims, "runs": list(used.values())},
    }


def _figures(cells: Mapping[int, Cell]) -> dict[str, float]:
    return {str(seed): cell.value for seed, cell in cells.items()}


def judge(
    claim: Claim, table: Table, cells: Mapping[tuple[str, str], Mapping[int, Cell]], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Whether a claim is reproduced, with the mean difference on its side and its intervals.

    Reproduced: the interval of the differences by seed (Student's t) and, of a task, that over resampled rows of its validation data are
    above 0. Contradicted: both are below. A task that no row has learnt says nothing. That two are alike is reproduced where the intervals lie
    within the distance that the claim allows, and contradicted where they lie outside.
    """
    column = next(column for column in table.columns if column.name == claim.column)
    better, worse = cells[claim.better, claim.column], cells[claim.worse, claim.worse_column or claim.column]
    seeds = [seed for seed in better if seed in worse]
    sign = -1.0 if column.less_is_better else 1.0
    differences = [sign * (better[seed].value - worse[seed].value) for seed in seeds]
    found: dict[str, Any] = {"seeds": len(seeds), "verdict": NOT_RESOLVED, "because": ""}
    if len(seeds) < 2 or not all(map(math.isfinite, differences)):
        return found | {"because": "fewer than two seeds" if len(seeds) < 2 else "training diverged"}
    mean, error = statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(seeds))
    half = float(student.ppf(0.975, len(seeds) - 1)) * error
    intervals = {"of_seeds": (mean - half, mean + half)}
    if column.task is not None and claim.worse_column is None:
        rows = bootstrap([(better[seed].run, worse[seed].run) for seed in seeds], column.metric)
        if rows is not None:
            intervals["of_rows"] = rows if sign > 0 else (-rows[1], -rows[0])
    found |= {"difference": mean, "intervals": intervals}
    if (edge := claim.within) is not None:
        if all(-edge < low and high < edge for low, high in intervals.values()):
            return found | {"verdict": REPRODUCED}
        if all(low > edge or high < -edge for low, high in intervals.values()):
            return found | {"verdict": CONTRADICTED}
        return found | {"because": "the intervals reach beyond that"}
    if column.task is not None and (reason := _why_not_learnt(table.rows, column, cells)):
        return found | {"because": reason}
    if all(low > 0 for low, _ in intervals.values()):
        return found | {"verdict": REPRODUCED}
    if all(high < 0 for _, high in intervals.values()):
        return found | {"verdict": CONTRADICTED}
    names = {"of_seeds": "seeds", "of_rows": "rows"}
    open_ones = [names[name] for name, (low, high) in intervals.items() if low <= 0 <= high]
    return found | {
        "because": f"the interval of the {' and of the '.join(open_ones) or 'rows differs from that of the seeds'} holds 0"
    }


def _why_not_learnt(rows: Sequence[Row], column: Column, cells: Mapping[tuple[str, str], Mapping[int, Cell]]) -> str:
    """Why no row is known to have learnt a column's task; "" where one has, or no row is untrained."""
    sign = -1.0 if column.less_is_better else 1.0
    means = {
        row.name: statistics.fmean(sign * cell.value for cell in own.values())
        for row in rows
        if (own := cells[row.name, column.name]) and all(math.isfinite(cell.value) for cell in own.values())
    }
    untrained = [means.pop(row.name) for row in rows if row.untrained and row.name in means]
    if not untrained or not means:
        return ""
    best = max(means, key=lambda name: means[name])
    run = next(iter(cells[best, column.name].values())).run
    error = half_interval(column.metric, run["figures"]) / 1.96
    return "" if means[best] - max(untrained) > LEARNT * error else "no row has learnt this task"


# Markdown


# Unit -> what a figure is multiplied by, and its digits.
_UNITS = {"percent": (100, 1), "points": (1, 1), "nats": (1, 3)}


def _shown(value: float, unit: str) -> str:
    factor, digits = _UNITS[unit]
    return "diverged" if math.isnan(value) else f"{factor * value:.{digits}f}"


def markdown(described: Mapping[str, Any]) -> str:
    """The table, with the paper's figures in brackets, and a line a claim."""
    columns = described["columns"]
    lines = [f"# {described['title']}", "", f"Source: {described['source']}.", "", described["note"], ""]
    lines += ["| | " + " | ".join(column["name"] for column in columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for row in described["rows"]:
        texts = []
        for column in columns:
            values, published = [*row["figures"][column["name"]].values()], row["published"].get(column["name"])
            text = _shown(statistics.fmean(values), column["unit"]) if values else ""
            if len(values) > 1 and all(map(math.isfinite, values)):
                text += f" ± {_shown(statistics.stdev(values), column['unit'])}"
            texts.append(text + ("" if published is None else f" ({published:g})"))
        lines.append(f"| {row['name']} | " + " | ".join(texts) + " |")
    seeds = len(described["seeds"])
    lines += [
        "",
        f"Mean{' ± deviation' if seeds > 1 else ''} of {seeds} pre-training seeds where all are done. In brackets the paper's figures, ",
    ]
    lines[-1] += "which are not comparable: other sizes and other data."
    if described["claims"]:
        lines += ["", "| claim | in | expected | difference | interval by seeds | by rows | verdict |"]
        lines += ["| --- | --- | --- | ---: | ---: | ---: | --- |"]
    units = {column["name"]: column["unit"] for column in columns}
    for claim in described["claims"]:
        unit, intervals = units[claim["column"]], claim.get("intervals", {})
        ends = [
            " to ".join(_shown(end, unit) for end in intervals[name]) if name in intervals else ""
            for name in ("of_seeds", "of_rows")
        ]
        difference = _shown(claim["difference"], unit) if "difference" in claim else ""
        verdict = f"**{claim['verdict']}**" + (f": {claim['because']}" if claim["because"] else "")
        relation = "better than" if claim["within"] is None else f"within {_shown(claim['within'], unit)} of"
        worse = " ".join(filter(None, (claim["worse"], claim["worse_column"] and f"in {claim['worse_column']}")))
        cells = [
            f"{claim['better']} {relation} {worse}",
            claim["column"],
            claim["expected"],
            difference,
            *ends,
            verdict,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
