"""A corpus of the installed documentation: a module (a source file) is a document, some are held out, written whole or not at all."""

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from bert_recipes.data import installed_documentation as documentation
from bert_recipes.errors import InputError
from bert_recipes.whole_files import write_json, written_aside


@dataclass(frozen=True)
class Document:
    """What one module says.

    Attributes:
        name: the module, as `installed_documentation.Source` names it.
        text: one paragraph a line, each line ended.
    """

    name: str
    text: str


def find_sources(pyproject: Path, counts: Counter[str]) -> tuple[list[documentation.Source], list[str]]:
    """List all documentation: Python's, and that of the packages that a project's pyproject.toml asks for.

    Args:
        pyproject: the file; its dependencies and those of its extra "dev" count, and theirs in turn; the project does not.
        counts: gets the number of packages.

    Returns:
        The sources, and the names of the packages that are not installed.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    packages, missing = documentation.dependencies(
        [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    )
    # Not its own, which an extra that names others leads to: its README would be in the corpus, and change with every figure in it.
    packages = [package for package in packages if package.metadata["Name"] != project["name"]]
    counts["packages"] = len(packages)
    python = [*documentation.help_topics(), *documentation.builtin_modules(), *documentation.standard_library()]
    return python + [
        source for package in packages for source in documentation.package_documentation(package)
    ], missing


def read_documents(
    sources: list[documentation.Source], min_words: int, num_workers: int, counts: Counter[str]
) -> list[Document]:
    """Read the sources in parallel and keep their order.

    Args:
        sources: what `find_sources` listed.
        min_words: a document with fewer words is dropped.
        num_workers: processes that read. The result does not depend on it.
        counts: gets what was read and dropped.
    """
    # No worker inherits the main process's threads.
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(documentation.read_documentation, sources, chunksize=32)
        bar = tqdm(found, total=len(sources), desc="Reading documentation", unit=" files", mininterval=1)
        return make_documents(zip(sources, bar, strict=True), min_words, counts)


def make_documents(
    found: Iterable[tuple[documentation.Source, documentation.Documentation | None]],
    min_words: int,
    counts: Counter[str],
) -> list[Document]:
    """Make a document of each source that has words enough."""
    documents = []
    for source, read in found:
        counts["files"] += 1
        if read is None:
            counts["dropped files: not this Python's syntax"] += 1
            continue
        counts["docstrings"] += read.num_texts
        text = "\n".join(read.paragraphs) + "\n"
        if len(text.split()) >= min_words:
            documents.append(Document(source.name, text))
        else:
            counts[f"dropped files: fewer than {min_words} words"] += 1
            counts["dropped paragraphs: of such files"] += len(read.paragraphs)
    return documents


def choose_held_out(documents: Iterable[Document], fraction: float) -> set[str]:
    """Choose modules at random, the same every time, until they hold the given share of the text.

    A module with more than a quarter of that share is never chosen: the rest shall be of many kinds.
    """
    sizes: Counter[str] = Counter()
    for document in documents:
        sizes[document.name] += len(document.text)
    wanted = fraction * sizes.total()
    held_out: set[str] = set()
    for name in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if wanted > 0 and sizes[name] <= 0.25 * fraction * sizes.total():
            held_out.add(name)
            wanted -= sizes[name]
    return held_out


def write_corpus(
    output_dir: Path, documents: list[Document], held_out: set[str], counts: Counter[str]
) -> dict[str, object]:
    """Write train/documents.txt, validation/documents.txt and, when they are whole, corpus.json with the counts.

    Args:
        output_dir: the folder; made where it is missing.
        documents: all of them, in order.
        held_out: the names of the modules that make the validation part.
        counts: what was read and dropped.

    Returns:
        The counts, and documents, paragraphs and bytes of each part.

    Raises:
        InputError: a part would hold fewer than two documents.
    """
    splits = {
        "train": [document for document in documents if document.name not in held_out],
        "validation": [document for document in documents if document.name in held_out],
    }
    if min(map(len, splits.values())) < 2:
        raise InputError(f"only {len(documents)} documents were found: is this Python installed without its sources?")
    description = output_dir / "corpus.json"
    description.unlink(missing_ok=True)
    report: dict[str, object] = dict(sorted(counts.items()))
    trained_on = {line for document in splits["train"] for line in document.text.splitlines()}
    held_out_lines = [line for document in splits["validation"] for line in document.text.splitlines()]
    report["held-out paragraphs that occur in train too"] = sum(line in trained_on for line in held_out_lines)
    for split, members in splits.items():
        data = "\n".join(document.text for document in members).encode()
        with written_aside(output_dir / split / "documents.txt") as aside:
            aside.write_bytes(data)
        report[split] = {
            "documents": len(members),
            "paragraphs": data.count(b"\n") - len(members) + 1,
            "bytes": len(data),
        }
    write_json(description, report | {"held_out": sorted(held_out)})
    return report
