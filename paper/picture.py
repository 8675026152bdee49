"""Draw a table of a paper with matplotlib."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bert_recipes.reports.plots import COLORS, draw_png


BLUE, _ = COLORS["blue"]


def table_png(table: Mapping[str, Any]) -> bytes:
    """Draw a table of a paper: a panel a column, a row a model, a point a seed, a bar a mean."""
    columns = table["columns"]
    rows = table["rows"]

    def draw(figure: Any) -> None:
        (axes,) = figure.subplots(1, len(columns), sharey=True, squeeze=False)
        for axis, column in zip(axes, columns, strict=True):
            _draw_column(axis, column, rows)

        left_axis = axes[0]
        names = [row["name"] for row in rows]
        for tick in left_axis.set_yticks(range(len(rows)), names):
            tick.label1.set_parse_math(False)
        left_axis.set_ylim(len(rows) - 0.5, -0.5)

    return draw_png((2 + 1.9 * len(columns), 1.1 + 0.32 * len(rows)), draw)


def _draw_column(axis: Any, column: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    is_percent = column["unit"] == "percent"
    scale = 100 if is_percent else 1
    for number, row in enumerate(rows):
        figures = row["figures"][column["name"]].values()
        values = [scale * value for value in figures if math.isfinite(value)]
        if values:
            mean = sum(values) / len(values)
            axis.plot(
                values,
                [number] * len(values),
                "o",
                color=BLUE,
                ms=4,
            )
            axis.plot(
                [mean],
                [number],
                "|",
                color=BLUE,
                ms=14,
                mew=2.5,
            )
    axis.set_title(column["name"], fontsize=9, parse_math=False)
    axis.set_xlabel("%" if is_percent else column["unit"], fontsize=8)
