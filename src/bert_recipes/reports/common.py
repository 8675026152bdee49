"""What the reports of all kinds of runs have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_recipes.reports.blocks import Block, Paragraph, Table, Tile
from bert_recipes.reports.formatting import counted, format_duration, format_figure, format_number
from bert_recipes.reports.run_files import FACTS_FILE, RunFiles


# The picture of a run's curves.
PLOT_FILE = "losses.png"
_COSTS = ("train_steps", "train_seconds", "tokens_per_second", "data_wait_share", "peak_memory_mb", "skipped_steps")


def run_facts(run: RunFiles) -> tuple[str, ...]:
    """Short facts for the head of a page: machine, date, versions."""
    machine = run.results.get("machine") or {}
    found = [
        run.results.get("date"),
        machine.get("gpu") or machine.get("processor"),
        None if machine.get("gpu") or not machine.get("cores") else f"{machine['cores']} cores",
        *(f"{name} {machine[name]}" for name in ("torch", "transformers") if machine.get(name)),
    ]
    return tuple(str(fact) for fact in found if fact)


def training_tile(results: Mapping[str, Any]) -> tuple[Tile, ...]:
    """How long training took, and how fast it was."""
    tiles: list[Tile] = []
    seconds, steps = results.get("train_seconds"), results.get("train_steps")
    if isinstance(seconds, int | float):
        resumed = results.get("resumed_at_step")
        note = "evaluations included"
        # Older runs kept the seconds of their last part alone.
        if isinstance(resumed, int) and not results.get("train_seconds_is_whole"):
            note = f"since it went on at step {resumed:,}" + (f" of {steps:,}" if isinstance(steps, int) else "")
        elif isinstance(steps, int):
            note = f"{counted(steps, 'step')}, {note}"
        tiles.append(Tile("Training", format_duration(seconds), note))
    speed = results.get("tokens_per_second")
    if isinstance(speed, int | float):
        tiles.append(Tile("Tokens a second", f"{speed:,.0f}", "median of the log, pads not counted"))
    return tuple(tiles)


def training_table(results: Mapping[str, Any], before: Sequence[str] = (), after: Sequence[str] = ()) -> Table:
    """What training cost; without rows where nothing is known.

    Args:
        results: Of the run.
        before: More keys of the results, shown first.
        after: As well, shown last.
    """
    names = [name for name in (*before, *_COSTS, *after) if name in results]
    rows = tuple((name.replace("_", " "), format_figure(name, results[name])) for name in names)
    return Table(("training", ""), rows, numbers=(1,))


def run_table(run: RunFiles) -> list[Block]:
    """Sizes, machine and versions."""
    machine = run.results.get("machine") or {}
    rows = [
        (str(name).replace("_", " "), format_number(value)) for name, value in (run.facts.get("run") or {}).items()
    ]
    rows += [(str(name), str(value)) for name, value in machine.items() if value is not None]
    blocks: list[Block] = [Table(("", ""), tuple(rows))] if rows else []
    said = "The resolved configuration is run.yaml, every logged figure is in trainer_state.json."
    return [*blocks, Paragraph(said)]


def foot_of(run: RunFiles) -> str:
    """Where the report comes from, and what it lacks."""
    own = f", trainer_state.json and {FACTS_FILE}" if run.facts else " and trainer_state.json"
    lack = "" if run.facts else f" The run left no {FACTS_FILE}: what needs its model and data is not in here."
    return f"Written by bert-recipes from all_results.json{own}; `make report RUN=` writes it again.{lack}"
