"""What a run remembers of the store that it was trained on: enough to know it again when it is gone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_recipes.data.store import read_metadata


# Sources that are named one by one; of more their number and size are said.
MAX_NAMED_SOURCES = 20
_COUNTS = {"num_documents": "documents", "num_sentences": "sentences", "num_tokens": "tokens"}


def describe_store(path: str | Path) -> dict[str, Any]:
    """Hashes, counts and sources of a store; no folder of the machine that it lies on.

    Args:
        path: The store.

    Returns:
        `fingerprint` (SHA-256 of tokenizer and contents), `tokenizer_fingerprint`, `splits` (documents, sentences, tokens of
        each), and as far as the store says so `sources`, `read`, `dropped` and `settings`, by split where they have one.

    Raises:
        InputError: It is no store.
    """
    metadata = read_metadata(Path(path))
    facts: dict[str, Any] = {
        "fingerprint": metadata["fingerprint"],
        "tokenizer_fingerprint": metadata["tokenizer_fingerprint"],
        "splits": {
            split: {name: entry[key] for key, name in _COUNTS.items() if key in entry}
            for split, entry in metadata["splits"].items()
        },
        "sources": {split: _sources(found) for split, found in metadata.get("sources", {}).items()},
        "read": {
            split: {name: counts[name] for name in ("documents", "text_bytes") if name in counts}
            for split, counts in metadata.get("read", {}).items()
        },
        "dropped": metadata.get("dropped"),
        "settings": metadata.get("settings"),
    }
    return {name: value for name, value in facts.items() if value}


def _sources(found: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a split: a data set of the Hub, or its files."""
    if found and "bytes" not in found[0]:
        hub = found[0]
        return {
            "dataset": hub.get("name"),
            "config": hub.get("config"),
            "split": hub.get("split"),
        }
    names = [str(file["name"]) for file in found[:MAX_NAMED_SOURCES]]
    return {"files": len(found), "bytes": sum(int(file["bytes"]) for file in found), "names": names}
