"""What a report is made of, before it is written as Markdown or as a page.

All texts are plain: whoever writes a form of the report escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


# Pieces of a text with what they are: "" plain, "mask" what was hidden, "mark" what it is about, "right", "wrong", "dim"
# what is there and not meant.
RichText = tuple[tuple[str, str], ...]


def plain(text: str) -> RichText:
    """A text with nothing to mark in it."""
    return (("", text),)


@dataclass(frozen=True)
class Paragraph:
    """A text.

    Attributes:
        text: What it says.
        kind: "note" for what explains, "attention" for what must not be overlooked.
    """

    text: str
    kind: str = "note"


@dataclass(frozen=True)
class Tile:
    """One figure, large.

    Attributes:
        name: What it is.
        value: The figure.
        note: What to hold it against.
        share: Where it stands between 0 and 1, for a bar; None: no bar.
        yardstick: Where the yardstick stands on the same bar.
    """

    name: str
    value: str
    note: str = ""
    share: float | None = None
    yardstick: float | None = None


@dataclass(frozen=True)
class Tiles:
    """The figures that a person looks for first."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Table:
    """Rows of texts.

    Attributes:
        heads: Of the columns; all empty: no heads.
        rows: As many cells each as there are heads.
        numbers: Columns (from 0) whose cells are numbers.
        best: (row, column) of the cells to mark.
        fold: Not empty: a page shows this text, and the table when it is asked for.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()
    fold: str = ""


@dataclass(frozen=True)
class HeatTable:
    """A matrix whose cells are coloured by their share of their row: a confusion matrix.

    Attributes:
        labels: Of the rows and of the columns.
        counts: Row -> column -> number.
        rows_are, columns_are: What the two directions are.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    rows_are: str = "right"
    columns_are: str = "predicted"


@dataclass(frozen=True)
class Key:
    """A line of a plot's legend: name, colour (`palette.COLORS`), and "line", "dash" or "dots"."""

    name: str
    color: str
    style: str = "line"


@dataclass(frozen=True)
class Plot:
    """A plot for a page.

    Attributes:
        title: What it shows.
        svg: The drawing (`plots`).
        keys: Its legend.
        note: A line below it.
    """

    title: str
    svg: str
    keys: tuple[Key, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Plots:
    """Plots beside each other.

    Attributes:
        plots: One or more.
        picture: Name of a PNG file beside the report that shows them in Markdown; None: Markdown has none.
    """

    plots: tuple[Plot, ...]
    picture: str | None = None


@dataclass(frozen=True)
class Guess:
    """A piece, its probability (0 to 1), whether it is the right one, and its place where that is not among the first."""

    piece: str
    probability: float
    is_true: bool = False
    rank: int | None = None


@dataclass(frozen=True)
class FilledCard:
    """A sentence with a hidden piece, and what was guessed.

    Attributes:
        text: The sentence, the hidden piece marked "mask".
        guesses: Most likely first; the right one comes last where it is not among them.
        truth: The right piece.
    """

    text: RichText
    guesses: tuple[Guess, ...]
    truth: str


@dataclass(frozen=True)
class Case:
    """An input, what was said of it, and what is right.

    Attributes:
        texts: (what it is, text).
        said: What the model said.
        truth: What is right.
        is_right: Whether they agree; None of numbers.
        share: The probability on a bar, 0 to 1; None: no bar.
    """

    texts: tuple[tuple[str, RichText], ...]
    said: str
    truth: str
    is_right: bool | None = None
    share: float | None = None


@dataclass(frozen=True)
class Cards:
    """Examples beside each other.

    Attributes:
        cards: All of one class.
        said_is, truth_is: What `Case.said` and `Case.truth` are.
    """

    cards: tuple[FilledCard, ...] | tuple[Case, ...]
    said_is: str = "model"
    truth_is: str = "right"


@dataclass(frozen=True)
class Beside:
    """Two blocks that say the same in two ways: a plot and its numbers."""

    left: Plots | Table | HeatTable
    right: Plots | Table | HeatTable


Block = Paragraph | Tiles | Table | HeatTable | Plots | Cards | Beside


@dataclass(frozen=True)
class Section:
    """A part of a report; one without blocks is left out."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        title: First line.
        name: Of the run.
        facts: Short facts under the title.
        head: Before all sections.
        sections: In their order.
        foot: Where it comes from.
    """

    title: str
    name: str
    facts: tuple[str, ...] = ()
    head: Sequence[Block] = ()
    sections: Sequence[Section] = ()
    foot: str = ""
    pictures: dict[str, bytes] = field(default_factory=dict)
