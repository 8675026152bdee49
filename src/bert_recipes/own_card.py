"""Whether a README.md beside a model is still as this project wrote it: what somebody has edited is not written over."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bert_recipes.file_hash import hash_of


CARD_FILE = "README.md"
# Where each fact of the card comes from, and the hash of the card.
TRACE_FILE = "card_facts.json"
HASH_KEY = "card_sha256"


def hash_of_card(folder: Path) -> str:
    """SHA-256 (hex) of README.md.

    Raises:
        OSError: There is none.
    """
    return hash_of(folder / CARD_FILE)


def trace_of(card: bytes, trace: bytes) -> bytes:
    """The trace of an own card that got more tags on its way to the Hub: whoever gets it from there has an own one, too.

    Args:
        card: README.md, as it is there.
        trace: card_facts.json of the card as it was.
    """
    facts = json.loads(trace) | {HASH_KEY: hashlib.sha256(card).hexdigest()}
    return (json.dumps(facts, indent=2) + "\n").encode()


def is_own_card(folder: Path) -> bool:
    """Whether a card may be written there: there is none, or one whose hash is the one that was written down with it."""
    if not (folder / CARD_FILE).exists():
        return True
    try:
        trace = json.loads((folder / TRACE_FILE).read_text(encoding="utf-8"))
        return bool(trace[HASH_KEY] == hash_of_card(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False
