"""The quickstart's corpus: the English documentation inside Python and the packages that this project installs.

    python recipes/collect_docstrings.py --output_dir data/quickstart

Needs no network. Writes ``train/documents.txt`` and ``validation/documents.txt``: one paragraph a line, a blank line
after each document; and ``corpus.json`` with the counts. A document is what one source file says in its docstrings, in
their order, one of Python's help topics, or a package's description. Whole modules are held out for validation, and a
paragraph that occurs more than once, up to class names and numbers, is kept at its first place only: nothing that is
evaluated on was seen in training.
"""

import hashlib
import json
import os
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from bert_recipes.config import parse_arguments
from bert_recipes.data import installed_documentation as documentation
from bert_recipes.data.docstrings import near_key
from bert_recipes.errors import InputError, run_cli


@dataclass
class CollectArguments:
    """What to collect, and where to."""

    output_dir: Path = field(
        default=Path("data/quickstart"), metadata={"help": "gets train/, validation/ and corpus.json"}
    )
    validation_fraction: float = field(default=0.04, metadata={"help": "share of the text held out, in whole modules"})
    min_words: int = field(default=20, metadata={"help": "a document with fewer words is dropped"})
    num_workers: int = field(default=os.cpu_count() or 1, metadata={"help": "processes that read source files"})

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ValueError: a value out of its range.
        """
        if not 0 < self.validation_fraction < 0.5:
            raise ValueError(f"validation_fraction is {self.validation_fraction}; allowed: between 0 and 0.5")
        if self.num_workers < 1:
            raise ValueError(f"num_workers is {self.num_workers}; allowed: 1 or more")


@dataclass(frozen=True)
class Document:
    """Paragraphs, and the module that they are held out with."""

    group: str
    text: str


def main() -> None:
    """Collect, remove copies, hold modules out, write."""
    (args,) = parse_arguments(CollectArguments)
    counts: Counter[str] = Counter()
    # 1. What there is
    sources = find_sources(Path(__file__).parents[1] / "pyproject.toml", counts)
    # 2. Its prose, in parallel; the order of the sources is kept. No worker inherits the main process's threads.
    with ProcessPoolExecutor(args.num_workers, mp_context=get_context("spawn")) as pool:
        prose = pool.map(documentation.read_prose, sources, chunksize=32)
        bar = tqdm(prose, total=len(sources), desc="Reading documentation", unit=" files", mininterval=1)
        documents = remove_copies(zip(sources, bar, strict=True), args.min_words, counts)
    # 3. Whole modules held out
    held_out = choose_held_out(documents, args.validation_fraction)
    splits = {
        "train": [document for document in documents if document.group not in held_out],
        "validation": [document for document in documents if document.group in held_out],
    }
    if min(map(len, splits.values())) < 2:
        raise InputError(f"only {len(documents)} documents were found: is this Python installed without its sources?")
    write_corpus(args.output_dir, splits, sorted(held_out), counts)


def find_sources(pyproject: Path, counts: Counter[str]) -> list[documentation.Source]:
    """List all documentation: Python's, and that of the packages that `make install` installs."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    packages, missing = documentation.dependencies(
        [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    )
    if missing:
        print(f"not installed, so left out: {', '.join(missing)}")
    counts["packages"] = len(packages)
    python = [*documentation.help_topics(), *documentation.builtin_modules(), *documentation.standard_library()]
    return python + [source for package in packages for source in documentation.package_documentation(package)]


def remove_copies(
    found: Iterable[tuple[documentation.Source, documentation.Prose | None]], min_words: int, counts: Counter[str]
) -> list[Document]:
    """Make each source a document of the paragraphs that occur in it for the first time, near copies counting as copies."""
    seen: set[str] = set()
    documents = []
    for source, prose in found:
        counts["files"] += 1
        if prose is None:
            counts["dropped files: not this Python's syntax"] += 1
            continue
        counts["docstrings"] += prose.num_texts
        counts["dropped paragraphs: no prose"] += prose.num_other_paragraphs
        fresh = []
        for paragraph in prose.paragraphs:
            key = near_key(paragraph)
            if key not in seen:
                seen.add(key)
                fresh.append(paragraph)
        counts["dropped paragraphs: copies"] += len(prose.paragraphs) - len(fresh)
        text = "\n".join(fresh) + "\n"
        if len(text.split()) >= min_words:
            documents.append(Document(source.group, text))
        else:
            counts[f"dropped files: fewer than {min_words} words left"] += 1
            counts["dropped paragraphs: of such files"] += len(fresh)
    return documents


def choose_held_out(documents: Iterable[Document], fraction: float) -> set[str]:
    """Choose whole modules at random, the same every time, until they hold the given share of the text.

    A module with more than a quarter of that share is never chosen: the rest shall be of many kinds.
    """
    sizes: Counter[str] = Counter()
    for document in documents:
        sizes[document.group] += len(document.text)
    wanted = fraction * sizes.total()
    held_out: set[str] = set()
    for group in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if wanted > 0 and sizes[group] <= 0.25 * fraction * sizes.total():
            held_out.add(group)
            wanted -= sizes[group]
    return held_out


def write_corpus(
    output_dir: Path, splits: dict[str, list[Document]], held_out: list[str], counts: Counter[str]
) -> None:
    """Write the splits and, when they are whole, the counts; print these."""
    description = output_dir / "corpus.json"
    description.unlink(missing_ok=True)
    report: dict[str, object] = dict(sorted(counts.items()))
    for split, documents in splits.items():
        data = "\n".join(document.text for document in documents).encode()
        write_whole(output_dir / split / "documents.txt", data)
        report[split] = {
            "documents": len(documents),
            "paragraphs": data.count(b"\n") - len(documents) + 1,
            "bytes": len(data),
        }
    for name, value in report.items():
        print(f"{name}: {value}")
    print(f"held-out modules: {len(held_out)}")
    write_whole(description, json.dumps(report | {"held_out": held_out}, indent=2).encode() + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file aside and rename it, so that no half of it is ever taken for the whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(data)
    aside.replace(path)


if __name__ == "__main__":
    run_cli(main)
