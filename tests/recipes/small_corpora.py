"""What the tests of recipes/prepare_corpus.py share."""

from pathlib import Path


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "red",
    "green",
    "blue",
    "apple",
    "pear",
    "tree",
    "grows",
    "falls",
    "the",
    "a",
    ".",
    "!",
    "mr",
]


def write_vocabulary(path: Path) -> Path:
    path.write_text("".join(f"{piece}\n" for piece in [*SPECIAL, *WORDS]))
    return path


def contents_of(folder: Path) -> dict[Path, bytes]:
    # What an opening keeps of its comparison holds times.
    found = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != ".checked.json"
    )
    return {path.relative_to(folder): path.read_bytes() for path in found}
