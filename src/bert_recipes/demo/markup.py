"""Small parts of the page as HTML. Whatever a user or a vocabulary wrote goes through `escape`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


__all__ = ["as_percent", "bars", "card", "error", "escape", "hue_of", "mark", "note", "table"]


def as_percent(share: float) -> str:
    """A probability as plain text: "41.3 %", "< 0.1 %"."""
    return "< 0.1 %" if 0 < share < 0.0005 else f"{share:.1%}".replace("%", " %")


def error(message: str) -> str:
    """A mistake of the user, one line.

    Args:
        message: Plain text.
    """
    return f'<div class="bd-error" role="alert">{escape(message)}</div>'


def note(message: str) -> str:
    """Something worth knowing; "" for an empty message.

    Args:
        message: Plain text.
    """
    return f'<div class="bd-note">{escape(message)}</div>' if message else ""


def card(title: str, content: str) -> str:
    """A part of a result under its title.

    Args:
        title: Plain text.
        content: HTML.
    """
    return f'<section class="bd-card"><h3>{escape(title)}</h3>{content}</section>'


def bars(shares: Iterable[tuple[str, float]], chosen: Iterable[str] = ()) -> str:
    """A bar for each name.

    Args:
        shares: (plain text, probability from 0 to 1), in the order in which they are shown.
        chosen: The names that stand out.
    """
    named = set(chosen)
    rows = [
        f'<div class="bd-bar{" bd-chosen" if name in named else ""}"><span class="bd-name" title="{escape(name)}">'
        f'{escape(name) or "&nbsp;"}</span><span class="bd-track"><span class="bd-fill" style="width:{100 * share:.2f}%">'
        f'</span></span><span class="bd-share">{escape(as_percent(share))}</span></div>'
        for name, share in shares
    ]
    return f'<div class="bd-bars">{"".join(rows)}</div>'


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    Args:
        headers: Plain text.
        rows: Plain text.
    """
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="bd-scroll"><table class="bd-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def mark(text: str, label: str = "", title: str = "", hue: int | None = None) -> str:
    """A stretch of text that stands out.

    Args:
        text: Plain text.
        label: Written small behind it; plain text.
        title: Shown under the mouse; plain text.
        hue: Its colour in degrees; None for the page's own.
    """
    style = "" if hue is None else f' style="--bd-hue:{hue}"'
    small = f"<small>{escape(label)}</small>" if label else ""
    under_mouse = f' title="{escape(title)}"' if title else ""
    return f'<mark class="bd-mark"{style}{under_mouse}>{escape(text)}{small}</mark>'


def hue_of(name: str, names: Sequence[str]) -> int:
    """A colour for a name, in degrees, as far as possible from those of the others.

    Args:
        name: One of `names`.
        names: All that need a colour.
    """
    return (230 + 360 * names.index(name) // max(1, len(names))) % 360
