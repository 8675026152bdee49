"""The figures of a fine-tuning run as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


HEADS = ("figure", "value", "95% interval", "constant answer")


def figure_rows(results: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """`HEADS` of the `eval_` figures; what is not defined is "n/a", and what is not known is empty.

    Args:
        results: all_results.json, or what it is written from.
    """
    rows = []
    intervals, baselines = results.get("intervals") or {}, results.get("baselines") or {}
    for key, value in results.items():
        if key.startswith("eval_") and not key.endswith("_seconds"):
            name = key.removeprefix("eval_")
            is_undefined = value is None or (isinstance(value, float) and math.isnan(value))
            shown = "n/a" if is_undefined else _digits(value) if isinstance(value, float) else str(value)
            interval = " to ".join(map(_digits, intervals.get(name, ())))
            rows.append((name, shown, interval, _digits(baselines[name]) if name in baselines else ""))
    return rows


def is_no_better(results: Mapping[str, Any], name: str) -> bool:
    """Whether a figure, or the low end of its interval, is not above the constant answer; not where that is unknown."""
    constant, value = (results.get("baselines") or {}).get(name), results.get(f"eval_{name}")
    if constant is None or value is None:
        return False
    low = ((results.get("intervals") or {}).get(name) or [value])[0]
    # An interval that ends at 0 was cut there: whatever is right is more than nothing.
    return not (low > constant or value > low == constant == 0)


def _digits(value: float) -> str:
    return f"{value:.4f}"


def format_figures(results: Mapping[str, Any]) -> str:
    """The figures of a fine-tuning run as a Markdown table, for a terminal.

    Args:
        results: all_results.json; its `eval_` figures are shown.
    """
    rows = [HEADS, ("---",) * len(HEADS), *figure_rows(results)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
