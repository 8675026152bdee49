"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Any


def format_number(value: Any) -> str:
    """A figure of a run for a table: counts with commas, fractions with four digits, None and NaN as "n/a"."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) >= 10):
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.4f}" if abs(value) >= 0.001 or value == 0 else f"{value:.2e}"


def format_share(value: float | None) -> str:
    """A share of 0 to 1 in percent."""
    return "n/a" if value is None or math.isnan(value) else f"{value:.1%}"


def format_duration(seconds: float) -> str:
    """Seconds as "48 s", "3.7 min", "5.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def format_figure(name: str, value: Any) -> str:
    """A figure of a run for a table, by its name: seconds with one digit, others as `format_number` has them."""
    if name.endswith("seconds") and isinstance(value, int | float) and math.isfinite(value):
        return f"{value:,.1f}"
    return format_number(value)


def counted(number: int, noun: str) -> str:
    """A number of things: "1 step", "4,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def words_of(name: str) -> str:
    """A key of a results file in words."""
    return name.removeprefix("eval_").replace("_", " ")
