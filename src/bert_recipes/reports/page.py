"""A report as one HTML file that needs nothing else: no script, no font, no picture from anywhere.

The page forbids itself to load anything (Content-Security-Policy), every text is escaped, and plots are SVG inside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from bert_recipes.reports.blocks import (
    Beside,
    Block,
    Cards,
    Case,
    FilledCard,
    Guess,
    HeatTable,
    Paragraph,
    Plot,
    Plots,
    Report,
    RichText,
    Section,
    Table,
    Tile,
    Tiles,
)
from bert_recipes.reports.palette import css_variables


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_HIT, _TRUE = ' class="hit"', ' class="true"'
_ID = re.compile(r'\bid="|\bhref="#|url\(#')


def to_html(report: Report) -> str:
    """The whole page."""
    sections = [section for section in report.sections if section.blocks]
    writer = _Writer()
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in report.facts)
    links = "".join(f'<a href="#{_anchor(section)}">{escape(section.title)}</a>' for section in sections)
    body = [
        f'<header><p class="over">{escape(report.title)}</p><h1>{escape(report.name)}</h1>',
        f'<ul class="facts">{facts}</ul>' if facts else "",
        f"<nav>{links}</nav></header>" if links else "</header>",
        *map(writer.block, report.head),
    ]
    for section in sections:
        body.append(f'<section id="{_anchor(section)}"><h2>{escape(section.title)}</h2>')
        body += [*map(writer.block, section.blocks), "</section>"]
    body.append(f"<footer>{escape(report.foot)}</footer>" if report.foot else "")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">\n'
        f"<title>{escape(report.name)}: {escape(report.title)}</title>\n"
        f"<style>\n{css_variables()}{_style()}</style></head>\n<body><main>\n"
        + "\n".join(filter(None, body))
        + "\n</main></body></html>\n"
    )


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def _anchor(section: Section) -> str:
    return re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"


class _Writer:
    """Writes blocks; counts the plots, so that no two have ids in common."""

    def __init__(self) -> None:
        self._num_plots = 0
        self._writers: dict[type, Callable[[Any], str]] = {
            Paragraph: _paragraph,
            Tiles: lambda block: f'<div class="tiles">{"".join(map(_tile, block.tiles))}</div>',
            Table: _table,
            HeatTable: _heat_table,
            Plots: self._plots,
            Cards: _cards,
            Beside: lambda block: f'<div class="beside">{self.block(block.left)}{self.block(block.right)}</div>',
        }

    def block(self, block: Block) -> str:
        """One block as HTML."""
        return self._writers[type(block)](block)

    def _plots(self, block: Plots) -> str:
        return f'<div class="plots">{"".join(map(self._plot, block.plots))}</div>'

    def _plot(self, plot: Plot) -> str:
        self._num_plots += 1
        prefix = f"p{self._num_plots}-"
        svg = _ID.sub(lambda match: match[0] + prefix, plot.svg)
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.title)}"', 1)
        keys = "".join(
            f'<span class="{key.style}" style="--c:var(--{key.color})">{escape(key.name)}</span>' for key in plot.keys
        )
        keys = f'<div class="keys">{keys}</div>' if keys else ""
        note = f"<small>{escape(plot.note)}</small>" if plot.note else ""
        return f'<figure class="plot"><figcaption>{escape(plot.title)}{keys}</figcaption>{svg}{note}</figure>'


def _paragraph(block: Paragraph) -> str:
    return f'<p class="{block.kind}">{escape(block.text)}</p>'


def _tile(tile: Tile) -> str:
    bar = "" if tile.share is None else _bar(tile.share, yardstick=tile.yardstick)
    note = f"<small>{escape(tile.note)}</small>" if tile.note else ""
    return f'<div class="tile"><span>{escape(tile.name)}</span><b>{escape(tile.value)}</b>{note}{bar}</div>'


def _bar(share: float, *, yardstick: float | None = None, kind: str = "") -> str:
    width = 100 * min(max(share, 0.0), 1.0)
    mark = "" if yardstick is None else f'<u style="left:{100 * min(max(yardstick, 0.0), 1.0):.1f}%"></u>'
    return f'<span class="bar {kind}"><i style="width:{width:.1f}%"></i>{mark}</span>'


def _table(block: Table) -> str:
    if not block.rows:
        return ""

    def kind(row: int, column: int) -> str:
        names = ["n"] * (column in block.numbers) + ["best"] * ((row, column) in block.best)
        return f' class="{" ".join(names)}"' if names else ""

    heads = "".join(f"<th{kind(-1, place)}>{escape(head)}</th>" for place, head in enumerate(block.heads))
    rows = "".join(
        f"<tr>{''.join(f'<td{kind(row, place)}>{escape(cell)}</td>' for place, cell in enumerate(cells))}</tr>"
        for row, cells in enumerate(block.rows)
    )
    head = f"<thead><tr>{heads}</tr></thead>" if any(block.heads) else ""
    narrow = " narrow" if len(block.heads) <= 3 else ""
    table = f'<div class="sheet{narrow}"><table>{head}<tbody>{rows}</tbody></table></div>'
    return f"<details><summary>{escape(block.fold)}</summary>{table}</details>" if block.fold else table


def _heat_table(block: HeatTable) -> str:
    heads = "".join(f'<th title="{escape(name)}">{escape(name)}</th>' for name in block.labels)
    rows = []
    for place, (name, counts) in enumerate(zip(block.labels, block.counts, strict=True)):
        total = max(sum(counts), 1)
        cells = "".join(
            f'<td{_HIT if column == place else ""} style="--s:{count / total:.3f}">{count:,}</td>'
            for column, count in enumerate(counts)
        )
        rows.append(f'<tr><th title="{escape(name)}">{escape(name)}</th>{cells}</tr>')
    caption = f"rows: {block.rows_are}; columns: {block.columns_are}; the deeper the colour, the greater its share of the row"
    return (
        f'<div class="sheet heat"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _rich(text: RichText) -> str:
    return "".join(f'<mark class="{kind}">{escape(part)}</mark>' if kind else escape(part) for kind, part in text)


def _cards(block: Cards) -> str:
    cards = "".join(_filled(card) if isinstance(card, FilledCard) else _case(card, block) for card in block.cards)
    return f'<div class="cards">{cards}</div>'


def _filled(card: FilledCard) -> str:
    guesses = "".join(map(_guess, card.guesses))
    return f'<article class="card"><p>{_rich(card.text)}</p><ul class="guesses">{guesses}</ul></article>'


def _what(name: str) -> str:
    return f'<span class="what">{escape(name)}</span>' if name else ""


def _case(case: Case, block: Cards) -> str:
    texts = "".join(f"<p>{_what(name)}{_rich(text)}</p>" for name, text in case.texts)
    kind = "" if case.is_right is None else "right" if case.is_right else "wrong"
    bar = "" if case.share is None else _bar(case.share, kind=kind)
    said = f'<span class="chip {kind}">{escape(block.said_is)}: {escape(case.said)}</span>'
    truth = f'<span class="chip">{escape(block.truth_is)}: {escape(case.truth)}</span>'
    return f'<article class="card">{texts}<div class="verdict">{said}{truth}</div>{bar}</article>'


def _guess(guess: Guess) -> str:
    place = f"rank {guess.rank:,}, " if guess.rank is not None else ""
    tick = "\N{CHECK MARK} " if guess.is_true else ""
    return (
        f"<li{_TRUE if guess.is_true else ''}><b>{tick}{escape(guess.piece)}</b>"
        f"{_bar(guess.probability)}<em>{place}{100 * guess.probability:.1f}%</em></li>"
    )
