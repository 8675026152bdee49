"""Attention as pictures: lines between the pieces, a matrix, and all heads beside each other.

Legend: L layers, A heads, S positions.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np

from bert_recipes.demo.markup import escape


# A line for every pair: beyond this nobody can tell them apart, and the browser grows slow.
MAX_DRAWN = 48
# Weaker lines cannot be seen and are left out.
LEAST_LINE = 0.01
_ROW, _LEFT, _RIGHT, _WIDTH = 22, 150, 350, 500
_CELL = 20
_SPECIAL = ("[CLS]", "[SEP]")
# One colour for little to much attention, and the frame of the chosen head.
_COLOURS = ((255, 255, 255), (49, 46, 129))
_FRAME = (234, 88, 12)


def draw_lines(pieces: Sequence[str], weights: np.ndarray) -> str:
    """Every piece twice, left as the one that looks and right as what is looked at; the stronger, the more opaque.

    Args:
        pieces: S of them.
        weights: float (S, S), row = the piece that looks.

    Returns:
        An SVG; a piece under the mouse on the left shows its own lines alone.
    """
    groups = []
    for row, piece in enumerate(pieces):
        y = _middle(row)
        lines = "".join(
            f'<line x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{_middle(column)}" stroke-opacity="{weight:.3f}">'
            f"<title>{_pair(piece, pieces[column], weight)}</title></line>"
            for column, weight in enumerate(weights[row].tolist())
            if weight >= LEAST_LINE
        )
        hidden = f'<rect x="0" y="{y - _ROW / 2}" width="{_LEFT}" height="{_ROW}" fill-opacity="0"/>'
        groups.append(f'<g class="bd-query">{hidden}{_text(piece, _LEFT - 8, y, "end")}{lines}</g>')
    keys = "".join(_text(piece, _RIGHT + 8, _middle(row), "start") for row, piece in enumerate(pieces))
    height = _ROW * len(pieces) + 8
    return f'<svg class="bd-lines" viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(groups)}<g>{keys}</g></svg>'


def draw_matrix(pieces: Sequence[str], weights: np.ndarray) -> str:
    """A square for every pair, the stronger the more opaque.

    Args:
        pieces: S of them.
        weights: float (S, S), row = the piece that looks.

    Returns:
        An SVG.
    """
    margin = 8 + 8 * max((len(piece) for piece in pieces), default=0)
    size = margin + _CELL * len(pieces) + 4
    parts = []
    for row, piece in enumerate(pieces):
        y = margin + _CELL * row
        parts.append(_text(piece, margin - 6, y + _CELL / 2, "end"))
        x = margin + _CELL * row + _CELL / 2
        parts.append(f'<g transform="translate({x} {margin - 6}) rotate(-90)">{_text(piece, 0, 0, "start")}</g>')
        parts += [
            f'<rect x="{margin + _CELL * column}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" '
            f'fill-opacity="{weight:.3f}"><title>{_pair(piece, pieces[column], weight)}</title></rect>'
            for column, weight in enumerate(weights[row].tolist())
        ]
    return f'<svg class="bd-matrix" viewBox="0 0 {size} {size}" style="max-width:{size}px" role="img">{"".join(parts)}</svg>'


def draw_overview(weights: np.ndarray, layer: int, head: int | None) -> str:
    """The matrices of all heads: a row of them for each layer, from the first on top.

    Args:
        weights: float (L, A, S, S).
        layer: The framed one's layer, from 0.
        head: The framed one, from 0; None frames the whole layer.

    Returns:
        An HTML image that holds its data.
    """
    from matplotlib.image import imsave

    num_layers, num_heads, length, _ = weights.shape
    scale = max(1, 64 // length)
    tile, gap = scale * length, 4
    light, dark = (np.array(colour, np.float32) for colour in _COLOURS)
    rows, columns = ((number * (tile + gap) + gap) for number in (num_layers, num_heads))
    picture = np.full((rows, columns, 3), 200, np.float32)
    for row in range(num_layers):
        for column in range(num_heads):
            top, left = gap + row * (tile + gap), gap + column * (tile + gap)
            if row == layer and head in (None, column):
                picture[top - gap : top + tile + gap, left - gap : left + tile + gap] = _FRAME
            # The root lets weak weights be seen.
            strength = np.sqrt(np.clip(weights[row, column], 0, 1))[..., None]
            square = light + (dark - light) * strength
            picture[top : top + tile, left : left + tile] = square.repeat(scale, axis=0).repeat(scale, axis=1)
    data = io.BytesIO()
    imsave(data, picture.astype(np.uint8), format="png")
    encoded = base64.b64encode(data.getvalue()).decode("ascii")
    words = f"all heads: {num_layers} rows of layers, {num_heads} columns of heads"
    return f'<img class="bd-overview" alt="{words}" src="data:image/png;base64,{encoded}"/>'


def _middle(row: int) -> float:
    return 4 + _ROW * row + _ROW / 2


def _text(piece: str, x: float, y: float, anchor: str) -> str:
    special = ' class="bd-special"' if piece in _SPECIAL else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" dominant-baseline="central"{special}>{escape(piece)}</text>'


def _pair(query: str, key: str, weight: float) -> str:
    return f"{escape(query)} looks at {escape(key)}: {weight:.3f}"
