"""The colours of a report by the part that they play, in light and in dark.

Plots are drawn in the light ones, and on a page each stands for a variable of the style sheet (`--name`), so that one
plot is readable in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Color(NamedTuple):
    """A colour on a light ground, and on a dark one."""

    light: str
    dark: str


COLORS: Mapping[str, Color] = MappingProxyType(
    {
        "ground": Color("#f4f5f7", "#0e1116"),
        "card": Color("#ffffff", "#161b22"),
        "ink": Color("#18212b", "#e7ebf0"),
        "muted": Color("#5c6978", "#97a3b1"),
        "line": Color("#e1e5ea", "#2a323c"),
        "blue": Color("#2563c9", "#79aefc"),
        "sky": Color("#8fb4e8", "#47699c"),
        "orange": Color("#c65a1e", "#f29a5c"),
        "green": Color("#16835f", "#53cfa4"),
        "violet": Color("#7a4fc4", "#b699f2"),
        "pink": Color("#b83a74", "#f086b5"),
        "ochre": Color("#94751a", "#dcbc55"),
        "teal": Color("#17809c", "#5cc8e6"),
        "red": Color("#c03038", "#ff8087"),
        "grey": Color("#7b8794", "#8b97a5"),
    }
)
# The colours of curves that lie over each other, in their order.
SERIES = ("blue", "orange", "green", "violet", "pink", "ochre", "teal", "grey")


def css_variables() -> str:
    """The style sheet's variables, for both grounds."""
    light = "".join(f"--{name}:{color.light};" for name, color in COLORS.items())
    dark = "".join(f"--{name}:{color.dark};" for name, color in COLORS.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
