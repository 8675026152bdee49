"""Collect the quickstart's corpus: the English documentation inside the installed packages.

    python recipes/collect_docstrings.py --output_dir data/quickstart

Needs no network. Writes ``train/documents.txt`` and ``validation/documents.txt``: one paragraph a
line, a blank line after each document; and ``corpus.json`` with the counts. A document is what one
source file says in its docstrings, in their order, one of Python's help topics, or a package's
description. Some modules are held out for validation. The text is taken as it is, and documentation
repeats itself: how many held-out paragraphs stand in a training document too is counted and
printed.
"""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.config import parse_arguments
from bert_recipes.data.quickstart_corpus import (
    choose_held_out,
    find_sources,
    read_documents,
    write_corpus,
)
from bert_recipes.errors import run_cli
from bert_recipes.settings import option


PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


@dataclass
class CollectArguments:
    """Choose what is collected, and where to."""

    output_dir: Path = option(Path("data/quickstart"), "gets train/, validation/ and corpus.json")
    validation_fraction: float = option(
        0.04, "fraction of the text held out, in whole modules", above=0, below=0.5
    )
    min_words: int = option(20, "a document with fewer words is dropped", least=0)
    num_workers: int = option(os.cpu_count() or 1, "processes that read source files", least=1)


def main() -> None:
    """Collect, hold modules out, write."""
    (args,) = parse_arguments(CollectArguments)
    counts: Counter[str] = Counter()
    # 1. What there is: Python's documentation, and that of the packages that `make install`
    #    installs
    sources, missing = find_sources(PYPROJECT, counts)
    if missing:
        print(f"not installed, so left out: {', '.join(missing)}")
    print(
        f"reading {len(sources):,} files and texts of Python and {counts['packages']} packages",
        flush=True,
    )
    # 2. Its paragraphs
    documents = read_documents(sources, args.min_words, args.num_workers, counts)
    # 3. Whole modules held out
    held_out = choose_held_out(documents, args.validation_fraction)
    # 4. The files
    report = write_corpus(args.output_dir, documents, held_out, counts)
    for name, value in report.items():
        print(f"{name}: {value}")
    print(f"held-out modules: {len(held_out)}")


if __name__ == "__main__":
    run_cli(main)
