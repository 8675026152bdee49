"""A report as Markdown: what a terminal, a review and the Hub show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

from bert_recipes.reports.blocks import (
    Beside,
    Block,
    Cards,
    Case,
    FilledCard,
    HeatTable,
    Paragraph,
    Plots,
    Report,
    RichText,
    Table,
    Tiles,
)


def to_markdown(report: Report) -> str:
    """The whole report; pictures are files beside it."""
    lines = [f"# {escape(report.title)}", ""]
    for block in report.head:
        lines += [*block_lines(block), ""]
    for section in report.sections:
        body = [line for block in section.blocks for line in [*block_lines(block), ""]]
        if any(body):
            lines += [f"## {escape(section.title)}", "", *body]
    if report.foot:
        lines += [escape(report.foot), ""]
    return _single_blanks(lines)


def to_text(report: Report) -> str:
    """The report for a terminal: as Markdown, without pictures, sections of pictures alone, and where it comes from."""
    sections = [
        replace(section, blocks=[block for block in section.blocks if not isinstance(block, Plots)])
        for section in report.sections
    ]
    return to_markdown(replace(report, sections=sections, foot=""))


def escape(text: str) -> str:
    """A text on one line in which nothing is a table's bar, a tag, a link or a picture."""
    # A backslash of the text first: it would take away the one that is put before a bar or a tag.
    one_line = " ".join(text.split()).replace("\\", "\\\\")
    return one_line.replace("|", "\\|").replace("<", "\\<").replace("](", "]\\(")


@singledispatch
def block_lines(block: Block) -> list[str]:
    """A block as lines."""
    raise TypeError(type(block).__name__)


@block_lines.register
def _(block: Paragraph) -> list[str]:
    return [f"**Attention:** {escape(block.text)}" if block.kind == "attention" else escape(block.text)]


@block_lines.register
def _(block: Tiles) -> list[str]:
    return []  # a page's; the tables say the same


@block_lines.register
def _(block: Table) -> list[str]:
    if not block.rows:
        return []
    rules = ["---:" if place in block.numbers else "---" for place in range(len(block.heads))]
    rows = [
        [f"**{escape(cell)}**" if (row, place) in block.best else escape(cell) for place, cell in enumerate(cells)]
        for row, cells in enumerate(block.rows)
    ]
    return [_row([escape(head) for head in block.heads]), _row(rules), *map(_row, rows)]


@block_lines.register
def _(block: HeatTable) -> list[str]:
    heads = [f"{block.rows_are} \\ {block.columns_are}", *block.labels]
    rows = [
        [escape(name), *(f"{count:,}" for count in counts)]
        for name, counts in zip(block.labels, block.counts, strict=True)
    ]
    return [_row([escape(head) for head in heads]), _row(["---", *["---:"] * (len(heads) - 1)]), *map(_row, rows)]


@block_lines.register
def _(block: Plots) -> list[str]:
    return [] if block.picture is None else [f"![{block.picture.rpartition('.')[0]}]({block.picture})"]


@block_lines.register
def _(block: Beside) -> list[str]:
    return [*block_lines(block.left), "", *block_lines(block.right)]


@block_lines.register
def _(block: Cards) -> list[str]:
    if not block.cards:
        return []
    if isinstance(block.cards[0], FilledCard):
        return _filled([card for card in block.cards if isinstance(card, FilledCard)])
    return _cases([card for card in block.cards if isinstance(card, Case)], block)


def _filled(cards: Sequence[FilledCard]) -> list[str]:
    lines = ["| sentence | right | guesses |", "| --- | --- | --- |"]
    for card in cards:
        guesses = ", ".join(
            f"{'**' if each.is_true else ''}{escape(each.piece)}{'**' if each.is_true else ''} {each.probability:.2f}"
            + (f" (rank {each.rank:,})" if each.rank is not None else "")
            for each in card.guesses
        )
        lines.append(_row([_rich(card.text), escape(card.truth), guesses]))
    return lines


def _cases(cases: Sequence[Case], block: Cards) -> list[str]:
    names = [name for name, _ in cases[0].texts]
    heads = [*(escape(name) or "text" for name in names), block.said_is, block.truth_is]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for case in cases:
        texts = [_rich(text) for _, text in case.texts]
        texts += [""] * (len(names) - len(texts))
        lines.append(_row([*texts, escape(case.said), escape(case.truth)]))
    return lines


def _rich(text: RichText) -> str:
    parts = [f"**{escape(part)}**" if kind in ("mark", "right", "wrong") else _keep_ends(part) for kind, part in text]
    return " ".join("".join(parts).split())


def _keep_ends(text: str) -> str:
    """Escaped, with the spaces at its ends."""
    before, after = " " * text[:1].isspace(), " " * text[-1:].isspace()
    return f"{before}{escape(text)}{after}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _single_blanks(lines: Sequence[str]) -> str:
    kept = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]
    return "\n".join(kept).rstrip() + "\n"
