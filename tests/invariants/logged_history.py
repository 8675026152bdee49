"""The logged history of a run, without what the clock says."""

import json
from pathlib import Path
from typing import Any


# Figures of the clock, which no two runs share, by the end of their name.
CLOCK_FIGURES = (
    "tokens_per_second",
    "data_wait_share",
    "mfu",
    "hours_left",
    "runtime",
    "per_second",
    "_seconds",
)


def history_of(state_file: Path) -> list[dict[str, Any]]:
    """Return the history of a trainer_state.json."""
    state = json.loads(state_file.read_text(encoding="utf-8"))
    return without_times(state["log_history"])


def without_times(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a history of a Trainer; its last line, which sums up the time, is left out."""
    lines = []
    for line in history:
        if "train_runtime" in line:
            continue
        lines.append({name: line[name] for name in line if not name.endswith(CLOCK_FIGURES)})
    return lines
