"""The report of a sweep, from its sweep.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bert_recipes.reports.blocks import Key, Paragraph, Plot, Plots, Report, Section, Table, Tile, Tiles
from bert_recipes.reports.formatting import counted, format_number
from bert_recipes.reports.label_facts import clip
from bert_recipes.reports.plots import Dots, draw_dots, draw_dots_png


PLOT_FILE = "sweep.png"
# Letters beside the plot, which they would push away.
LONGEST_NAME = 40


def sweep_report(sweep: Mapping[str, Any], name: str) -> Report:
    """Join table and plot of a sweep.

    Args:
        sweep: sweep.json.
        name: Of its folder.
    """
    metric, combinations = str(sweep["metric"]), sweep["combinations"]
    varying = varying_settings(combinations)
    rows = dots_of(combinations, varying, sweep["best"])
    label = f"{metric}, development set"
    best_place = next(place for place, each in enumerate(combinations) if each["name"] == sweep["best"])
    best = combinations[best_place]
    keys = (
        Key("run", "blue", "dots"),
        Key("greatest median", "orange", "dots"),
        Key("median: upright bar", "grey"),
    )
    title = ", ".join(varying).replace("_", " ") or "settings"
    plot = Plot(f"{metric} by {title}", draw_dots(rows, label), keys)
    machine, lead = sweep.get("machine") or {}, str(sweep.get("lead") or "")
    return Report(
        title=f"Sweep: {metric} on the development set",
        name=name,
        facts=tuple(str(fact) for fact in (sweep.get("date"), machine.get("gpu") or machine.get("processor")) if fact),
        head=[
            Tiles(
                (
                    Tile("Greatest median", ", ".join(_values(best, varying)) or sweep["best"], title),
                    Tile(f"Its median {metric}", format_number(best["median"]), _spread(best)),
                    Tile(
                        "Combinations",
                        f"{len(combinations)}",
                        counted(sum(len(c["runs"]) for c in combinations), "run"),
                    ),
                )
            ),
            *([Paragraph(lead, "attention" if lead.startswith("Not") else "note")] if lead else []),
            Paragraph(
                f"{sweep.get('how_chosen', '')} `best` is {sweep['best_run']}, with a report of its own.".strip()
            ),
        ],
        sections=[
            Section("Runs", [Plots((plot,), PLOT_FILE)]),
            Section("Combinations", [_table(combinations, varying, best_place)]),
            Section("Settings", [_settings(sweep)]),
        ],
        foot="Written by bert-recipes from sweep.json; `make report RUN=` writes it again.",
        pictures={
            PLOT_FILE: draw_dots_png(rows, f"{label} (points: runs, bars: medians, orange: the greatest)", title)
        },
    )


def _spread(combination: Mapping[str, Any]) -> str:
    runs = counted(len(combination["runs"]), "run")
    if len(combination["runs"]) == 1 or combination["min"] is None:
        return runs
    return f"{runs}, {format_number(combination['min'])} to {format_number(combination['max'])}"


def varying_settings(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same in all combinations."""
    settings = [each["settings"] for each in combinations]
    return [name for name in settings[0] if len({chosen[name] for chosen in settings}) > 1]


def dots_of(combinations: Sequence[Mapping[str, Any]], varying: Sequence[str], best: str) -> list[Dots]:
    """The rows of the plot; a figure that is null is a run that diverged."""
    return [
        Dots(
            clip(", ".join(_values(each, varying)) or str(each["name"]), LONGEST_NAME),
            tuple(_number(run["value"]) for run in each["runs"]),
            _number(each["median"]),
            is_best=each["name"] == best,
        )
        for each in combinations
    ]


def _values(combination: Mapping[str, Any], varying: Sequence[str]) -> list[str]:
    return [str(combination["settings"][name]) for name in varying]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _table(combinations: Sequence[Mapping[str, Any]], varying: Sequence[str], best: int) -> Table:
    heads = ([name.replace("_", " ") for name in varying] or ["settings"]) + ["median", "min", "max", "std", "runs"]
    rows = []
    for each in combinations:
        figures = [
            "diverged" if each[name] is None else format_number(each[name]) for name in ("median", "min", "max")
        ]
        deviation = "" if each.get("std") is None else format_number(each["std"])
        rows.append((*(_values(each, varying) or [str(each["name"])]), *figures, deviation, str(len(each["runs"]))))
    first = len(heads) - 5
    return Table(tuple(heads), tuple(rows), numbers=tuple(range(first, len(heads))), best=frozenset({(best, first)}))


def _settings(sweep: Mapping[str, Any]) -> Table:
    settings = sweep.get("settings") or {}
    rows = [("flags of every run", " ".join(map(str, settings.get("flags", []))) or "none")]
    rows += [(name, ", ".join(map(str, values))) for name, values in (settings.get("sweep") or {}).items()]
    # Several only where a default changed while the sweep ran.
    runs = [run.get("results") or {} for each in sweep["combinations"] for run in each["runs"]]
    rows += [("model", model) for model in sorted({str(results["model"]) for results in runs if "model" in results})]
    return Table(("", ""), tuple(rows))
