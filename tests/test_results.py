"""Committed results: pages show what the files say, and the papers' tables follow from their own
figures.
"""

import json
import math
from pathlib import Path

import pytest
from claims import (
    BY_SEEDS_ONLY,
    CONTRADICTED,
    NOT_RESOLVED,
    REPRODUCED,
    compare_cells,
    markdown,
)
from table_runs import Cell


DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS = DOCS / "results"
TABLES = sorted(RESULTS.glob("paper/*/table.json"))


def folder_name(file):
    return file.parent.name


def read_figures(described):
    """(row, column) -> seed -> cell; null stands for a run that diverged."""
    cells = {}
    for row in described["rows"]:
        for column, figures in row["figures"].items():
            of_seeds = cells[row["name"], column] = {}
            for seed, value in figures.items():
                of_seeds[int(seed)] = Cell({}, math.nan if value is None else value)
    return cells


@pytest.mark.parametrize("file", TABLES, ids=folder_name)
def test_a_papers_table_shows_its_file(file):
    described = json.loads(file.read_text(encoding="utf-8"))
    assert file.with_name("table.md").read_text(encoding="utf-8") == markdown(described)


@pytest.mark.parametrize("file", TABLES, ids=folder_name)
def test_intervals_by_seeds_are_those_of_the_figures(file):
    described = json.loads(file.read_text(encoding="utf-8"))
    cells = read_figures(described)
    less_is_better = {column["name"]: column["unit"] == "nats" for column in described["columns"]}
    assert described["claim_seeds"] == [1, 2, 3]
    for claim in described["claims"]:
        sign = -1 if less_is_better[claim["column"]] else 1
        worse = cells[claim["worse"], claim["worse_column"] or claim["column"]]
        comparison = compare_cells(
            cells[claim["better"], claim["column"]], worse, described["claim_seeds"], sign
        )
        if comparison.difference is None:
            assert claim["because"] == comparison.problem
            assert claim["intervals"] == {}
        else:
            assert claim["difference"] == pytest.approx(comparison.difference)
            assert claim["intervals"]["of_seeds"] == pytest.approx(comparison.intervals["of_seeds"])


@pytest.mark.parametrize("file", TABLES, ids=folder_name)
def test_a_verdict_needs_an_interval_over_seeds_and_rows(file):
    for claim in json.loads(file.read_text(encoding="utf-8"))["claims"]:
        intervals = claim["intervals"]
        verdict = claim["verdict"]
        assert verdict in (REPRODUCED, CONTRADICTED, NOT_RESOLVED, BY_SEEDS_ONLY)
        if verdict in (REPRODUCED, CONTRADICTED):
            low, high = intervals["of_both"]
            assert low <= min(intervals["of_seeds"][0], intervals["of_rows"][0])
            assert high >= max(intervals["of_seeds"][1], intervals["of_rows"][1])
            assert low > 0 if verdict == REPRODUCED else high < 0
        if verdict == BY_SEEDS_ONLY:
            assert "of_both" not in intervals
            low, high = intervals["of_seeds"]
            distance = claim["within"]
            assert low > 0 or high < 0 if distance is None else -distance < low < high < distance


def rows_without(lines, column):
    """Rows of a markdown table as lists of cells, without one column."""
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row[:column] + row[column + 1 :]] for row in rows]


@pytest.mark.parametrize("name", ["minutes", "minutes_family_25"])
def test_what_a_minute_teaches_is_what_was_measured(name):
    """But for the column of what a row changes, which the page has in words."""
    shown = rows_without((DOCS / "speed.md").read_text(encoding="utf-8").splitlines(), 1)
    measured = rows_without(
        (RESULTS / name / "table.md").read_text(encoding="utf-8").splitlines(), 1
    )
    assert len(measured) > 3
    assert [row for row in measured if row not in shown] == []
