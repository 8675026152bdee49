"""Markdown of sections and tables, in which nothing that is not known leaves a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bert_recipes.model_card.facts import Fact


Cell = Fact | str | None
Lines = list[str]


def section(title: str, *blocks: Lines) -> Lines:
    """A heading over blocks with a blank line between; nothing where all of them are empty."""
    filled = [block for block in blocks if block]
    if not filled:
        return []
    return [f"## {title}", "", *(line for block in filled for line in (*block, ""))]


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Lines:
    """A table of the rows all of whose cells are known; nothing where there is none."""
    known = [row for row in rows if all(cell is not None for cell in row)]
    if not known:
        return []
    lines = [_row(head), _row(["---"] * len(head))]
    return lines + [_row([str(cell) for cell in row]) for row in known]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def facts_table(rows: Iterable[tuple[str, Cell]]) -> Lines:
    """A table of names and values without heading."""
    return table(("", ""), rows)


def bullets(*items: str | None) -> Lines:
    """A list of those that are known."""
    return [f"- {item}" for item in items if item is not None]


def block_of_code(language: str, *lines: str) -> Lines:
    """Code on lines of its own."""
    return [f"```{language}", *lines, "```"]
