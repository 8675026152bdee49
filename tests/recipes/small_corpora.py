"""What the tests of recipes/prepare_corpus.py share."""

from pathlib import Path


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["red", "green", "blue", "apple", "pear", "tree", "grows", "falls", "the", "a", ".", "!", "mr"]


def write_vocabulary(path: Path) -> Path:
    path.write_text("".join(f"{piece}\n" for piece in [*SPECIAL, *WORDS]))
    return path


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
