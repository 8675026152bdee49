"""What a user types, checked: every mistake is one clear line in the page."""

from __future__ import annotations

from typing import Any

from bert_recipes.errors import InputError
from bert_recipes.tasks.columns import check_characters


# A page of a book has some 3,000. Longer ones are for recipes/predict.py, which reads files.
MAX_CHARACTERS = 20_000


def check_text(value: Any, what: str) -> str:
    """The text of a field.

    Args:
        value: What the browser sent.
        what: The field's name, for messages.

    Raises:
        InputError: Nothing but space, too long, or not a text.
    """
    text = check_optional_text(value, what)
    if not text:
        raise InputError(f"{what} is empty; type some text")
    return text


def check_number(value: Any, what: str, least: int, most: int) -> int:
    """The whole number of a slider.

    Args:
        value: What the browser sent; None where the field was emptied.
        what: Its name, for messages.
        least: The smallest that is allowed.
        most: The greatest.

    Raises:
        InputError: No number, no whole one, or out of range.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or value % 1:
        given = "empty" if value is None else str(value)[:40]
        raise InputError(f"{what} is {given}; give a whole number from {least} to {most}")
    return int(value)


def check_optional_text(value: Any, what: str) -> str:
    """As `check_text`, but "" where there is nothing or nothing but space."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{what} holds {type(value).__name__}; a text is expected")
    if len(value) > MAX_CHARACTERS:
        raise InputError(
            f"{what} has {len(value):,} characters; the page takes {MAX_CHARACTERS:,} (recipes/predict.py reads files of "
            "any size)"
        )
    check_characters(value, what, "the page")
    return value if value.strip() else ""
