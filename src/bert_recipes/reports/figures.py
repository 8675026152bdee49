"""The figures of a fine-tuning run as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def figure_rows(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(figure, value) of the `eval_` figures; what is not defined is "n/a".

    Args:
        results: all_results.json, or what it is written from.
    """
    rows = []
    for name, value in results.items():
        if name.startswith("eval_") and not name.endswith("_seconds"):
            is_undefined = value is None or (isinstance(value, float) and math.isnan(value))
            shown = "n/a" if is_undefined else f"{value:.4f}" if isinstance(value, float) else str(value)
            rows.append((name.removeprefix("eval_"), shown))
    return rows


def format_figures(results: Mapping[str, Any]) -> str:
    """The figures of a fine-tuning run as a Markdown table, for a terminal.

    Args:
        results: all_results.json; its `eval_` figures are shown.
    """
    return "\n".join(
        ["| figure | value |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in figure_rows(results))]
    )
