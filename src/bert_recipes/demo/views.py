"""From what a user typed to what the page shows: every checkpoint's tabs and those of the pre-training heads.

Each function takes the checkpoint and the values of the tab's fields and returns HTML; `InputError` is a line for the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from bert_recipes.demo.attention import look_at_attention
from bert_recipes.demo.attention_drawing import LEAST_LINE, MAX_DRAWN, draw_lines, draw_matrix, draw_overview
from bert_recipes.demo.markup import bars, card, escape, mark, note, table
from bert_recipes.demo.model import DemoModel
from bert_recipes.demo.pieces import CutText, Piece, cut_text
from bert_recipes.demo.texts import check_number, check_optional_text, check_text
from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import NOT_FINITE
from bert_recipes.inspection import fill_every_mask, judge_next_sentences


# Pieces that are listed; a longer text is counted whole.
MAX_LISTED = 1_000
# Masks that get a list of guesses.
MAX_MASKS = 20
# Guesses in such a list.
MAX_GUESSES = 20


def show_filled_masks(model: DemoModel, text: Any, top_k: Any = 5) -> str:
    """The text with the best guesses, and the guesses for each [MASK]."""
    text = check_text(text, "the text")
    top_k = check_number(top_k, "the number of guesses", 1, MAX_GUESSES)
    if "[MASK]" not in text:
        raise InputError(
            "the text has no [MASK]; put one, in capital letters and square brackets, in the place of a word"
        )
    if text.count("[MASK]") > MAX_MASKS:
        raise InputError(f"the text has {text.count('[MASK]')} [MASK]s; the page fills {MAX_MASKS} at most")
    filled = fill_every_mask(model.network, model.tokenizer, text, top_k=top_k)
    check_finite(share for guesses in filled.guesses for _, share in guesses or [])
    before, *parts = text.split("[MASK]")
    best = [mark("[MASK]") if guesses is None else mark(guesses[0][0]) for guesses in filled.guesses]
    sentence = escape(before) + "".join(word + escape(part) for word, part in zip(best, parts, strict=True))
    lists = "".join(
        card(_mask_title(number, len(best)), note("not read") if guesses is None else bars(guesses))
        for number, guesses in enumerate(filled.guesses, start=1)
    )
    cut = ""
    if filled.num_read < filled.num_pieces:
        cut = (
            f"The text has {filled.num_pieces:,} pieces; the model reads {filled.num_read} of them, those around the first "
            "[MASK]."
        )
    return f'<p class="bd-text">{sentence}</p>{note(cut)}<div class="bd-cards">{lists}</div>'


def _mask_title(number: int, total: int) -> str:
    return "[MASK]" if total == 1 else f"[MASK] {number}"


def show_next_sentence(model: DemoModel, first: Any, second: Any) -> str:
    """Whether the second text follows the first."""
    first, second = check_text(first, "the first text"), check_text(second, "the second text")
    (verdict,) = judge_next_sentences(model.network, model.tokenizer, [(first, second)])
    check_finite([verdict.is_next])
    follows, random = "follows the first", "is from somewhere else"
    shares = [(follows, verdict.is_next), (random, 1 - verdict.is_next)]
    chosen = max(shares, key=lambda item: item[1])[0]
    cut = cut_note(model, (first, second), model.config.max_position_embeddings)
    return card("The second text ...", bars(shares, [chosen])) + note(cut)


def check_finite(numbers: Iterable[float]) -> None:
    """Refuse outputs that mean nothing.

    Raises:
        InputError: One is NaN or infinite.
    """
    if not all(map(math.isfinite, numbers)):
        raise InputError(NOT_FINITE)


def cut_note(model: DemoModel, texts: tuple[str, ...], positions: int) -> str:
    """A sentence where texts do not fit into the positions that are read, else ""."""
    given = [text for text in texts if text]
    total = sum(len(model.tokenizer.encode_ids(text)) for text in given) + len(given) + 1
    if total <= positions:
        return ""
    whose = "The texts together have" if len(given) > 1 else "The text has"
    return f"{whose} {total:,} positions, [CLS] and [SEP] among them; the model reads {positions}: what is too long was cut off."


def show_attention(model: DemoModel, first: Any, second: Any, layer: Any, head: Any) -> str:
    """The attention of one head over the text, and small pictures of all heads.

    Args:
        model: The checkpoint.
        first: Text.
        second: Another one, or "".
        layer: From 1.
        head: From 1; 0 is the mean over the heads of the layer.
    """
    first, second = check_text(first, "the first text"), check_optional_text(second, "the second text")
    num_layers, num_heads = model.config.num_hidden_layers, model.config.num_attention_heads
    layer = check_number(layer, "the layer", 1, num_layers)
    head = check_number(head, "the head (0: mean of all)", 0, num_heads)
    seen = look_at_attention(model.encoder, model.tokenizer, first, second, most=MAX_DRAWN)
    check_finite([float(seen.weights.sum())])
    of_layer = seen.weights[layer - 1]
    weights = of_layer.mean(axis=0) if head == 0 else of_layer[head - 1]
    name = f"Layer {layer}, {'mean of its heads' if head == 0 else f'head {head}'}"
    notes = ""
    if seen.num_read < seen.num_positions:
        notes = f"The texts have {seen.num_positions:,} positions; the model reads {seen.num_read}. "
    if len(seen.pieces) < seen.num_read:
        notes += f"Drawn are the first {len(seen.pieces)} of the {seen.num_read} positions that were read."
    lines = card(f"{name}: what each piece (left) looks at (right)", draw_lines(seen.pieces, weights))
    matrix = card("The same as a matrix: row looks at column", draw_matrix(seen.pieces, weights))
    overview = card(
        f"All heads: layers 1 to {num_layers} from top to bottom, heads 1 to {num_heads} from left to right",
        draw_overview(seen.weights, layer - 1, None if head == 0 else head - 1),
    )
    legend = f"Put the mouse on a piece, a line or a square. Lines below {LEAST_LINE} are left out."
    return f'{note(notes.strip())}<div class="bd-cards bd-wide">{lines}{matrix}</div>{note(legend)}{overview}'


def show_pieces(model: DemoModel, text: Any) -> str:
    """The text in the colours of its pieces, the normalised words, the pieces with their ids, and a table of spans."""
    text = check_text(text, "the text")
    cut = cut_text(model.tokenizer, text)
    if not cut.pieces:
        raise InputError("nothing is left of the text: it holds nothing but control characters or space")
    num_unknown = sum(piece.is_unknown for piece in cut.pieces)
    facts = (
        f"characters: {len(text):,}, words: {len(cut.words):,}, pieces: {len(cut.pieces):,} "
        f"({len(cut.pieces) / len(cut.words):.2f} a word), unknown: {num_unknown:,}"
    )
    shown = cut.pieces[:MAX_LISTED]
    left_out = "" if len(shown) == len(cut.pieces) else f"Shown are the first {MAX_LISTED:,} pieces."
    chips = "".join(_chip(number, piece) for number, piece in enumerate(shown))
    rows = [
        (str(number), piece.piece, str(piece.piece_id), f"{piece.start} to {piece.end}", text[piece.start : piece.end])
        for number, piece in enumerate(shown)
    ]
    words = " ".join(cut.words)
    if len(words) > 4 * MAX_LISTED:
        words = words[: 4 * MAX_LISTED] + " ..."
    details = table(["", "piece", "id", "characters", "of the text"], rows)
    return (
        f"<p class='bd-facts'>{escape(facts)}</p>{note(left_out)}"
        + card("Where the pieces are from", f'<p class="bd-text">{_coloured(cut, shown)}</p>')
        + card("Normalised", f'<p class="bd-text">{escape(words)}</p>{note(_normalisation(model))}')
        + card("Pieces and their ids", f'<div class="bd-chips">{chips}</div>')
        + f"<details class='bd-details'><summary>Table of characters, counted from 0</summary>{details}</details>"
    )


def _piece_class(number: int, piece: Piece) -> str:
    return "bd-unknown" if piece.is_unknown else f"bd-p{number % 4}"


def _chip(number: int, piece: Piece) -> str:
    shape = _piece_class(number, piece)
    return f'<span class="bd-chip {shape}">{escape(piece.piece)}<small>{piece.piece_id}</small></span>'


def _coloured(cut: CutText, pieces: list[Piece]) -> str:
    """The text up to the last piece; a character that gave several pieces has the colour of the first."""
    parts, place = [], 0
    for number, piece in enumerate(pieces):
        if piece.end <= piece.start or piece.start < place:
            continue
        title = escape(f"{piece.piece}, id {piece.piece_id}, characters {piece.start} to {piece.end}")
        parts.append(escape(cut.text[place : piece.start]))
        inside = escape(cut.text[piece.start : piece.end])
        parts.append(f'<span class="bd-span {_piece_class(number, piece)}" title="{title}">{inside}</span>')
        place = piece.end
    rest = cut.text[place:] if len(pieces) == len(cut.pieces) else " ..."
    return "".join(parts) + escape(rest)


def _normalisation(model: DemoModel) -> str:
    tokenizer = model.tokenizer
    lowers = bool(tokenizer.do_lower_case)
    strips = lowers if tokenizer.strip_accents is None else tokenizer.strip_accents
    chinese = "each Chinese character" if tokenizer.tokenize_chinese_chars else "Chinese characters not apart"
    return (
        f"{'Lower-cased' if lowers else 'Case is kept'}; accents are {'dropped' if strips else 'kept'}; control characters are "
        f"dropped; words end at space, before and behind punctuation and {chinese}."
    )


def show_header(model: DemoModel) -> str:
    """What the checkpoint is, and what it lacks."""
    config, tokenizer = model.config, model.tokenizer
    built = (config.architectures or [type(model.network).__name__])[0]
    facts = [
        built,
        f"{config.num_hidden_layers} layers of {config.num_attention_heads} heads",
        f"hidden size {config.hidden_size}",
        f"{model.network.num_parameters():,} parameters",
        f"{len(tokenizer):,} pieces, {'uncased' if tokenizer.do_lower_case else 'cased'}",
        f"{config.max_position_embeddings} positions",
    ]
    lacks = f"Not shown: {'; '.join(model.lacks)}." if model.lacks else ""
    spans = "".join(f"<span>{escape(fact)}</span>" for fact in facts)
    return f'<header class="bd-header"><h1>{escape(model.name)}</h1><div class="bd-facts">{spans}</div>{note(lacks)}</header>'
