"""What the tests of recipes/prepare_corpus.py share."""

from pathlib import Path


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["red", "green", "blue", "apple", "pear", "tree", "grows", "falls", "the", "a"]
WORDS += [".", "!", "mr"]


def write_vocabulary(path: Path) -> Path:
    path.write_text("".join(f"{piece}\n" for piece in [*SPECIAL, *WORDS]))
    return path


def write_texts(folder: Path) -> Path:
    """20 files of one document each, none like another, and one that holds nothing."""
    colors, things = WORDS[:3], WORDS[3:6]
    for number in range(20):
        color, other_color = colors[number % 3], colors[number // 9]
        thing = things[number // 3 % 3]
        line = f"The {color} {thing} falls! A {other_color} tree grows.\n"
        (folder / f"{number:02}.txt").write_text(line * (number % 3 + 1))
    (folder / "07a.txt").write_text("\n \n")
    return folder


def contents_of(folder: Path) -> dict[Path, bytes]:
    """The bytes of each file; what an opening keeps of its comparison holds times."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != ".checked.json":
            contents[path.relative_to(folder)] = path.read_bytes()
    return contents
