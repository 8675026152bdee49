"""The English documentation inside Python source files: docstrings in their order.

Files are parsed, never imported or executed. The result is ordinary text: one paragraph is one
line.
"""

import ast
import email
import hashlib
import importlib
import inspect
import re
import sys
import sysconfig
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_write, write_json
from bert_recipes.progress import Progress


_HAVE_DOCSTRINGS = (
    inspect.isroutine,
    inspect.isclass,
    inspect.ismodule,
    inspect.isgetsetdescriptor,
)
_DOCUMENTING_KEYWORDS = frozenset({"help", "description", "epilog", "custom_intro", "doc"})
_BLANK_LINES = re.compile(r"\n\s*\n")
_TRIPLE_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)


def iter_docstrings(source: bytes) -> Iterator[str]:
    r"""Yield the documentation strings of a Python file, in its declared encoding, in the order in
    which they stand.

    These are strings that stand alone (docstrings of modules, classes, functions, attributes),
    strings handed to a function that attaches them to code, such as ``add_docstr`` (torch) and
    ``add_newdoc`` (numpy), and help texts.

    Example:
        >>> list(iter_docstrings(b'class A:\n    "One."\n    def f(self):\n        "Two."'))
        ['One.', 'Two.']
    """
    with warnings.catch_warnings():
        # Other people's files may hold invalid escapes; that is not for the reader of their prose
        # to hear.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    yield from _strings(tree.body)


def _strings(statements: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        for decorator in getattr(statement, "decorator_list", []):
            yield from _handed_over(decorator)
        value = getattr(statement, "value", None)
        if (
            isinstance(statement, ast.Expr)
            and isinstance(value, ast.Constant)
            and isinstance(value.value, str)
        ):
            yield value.value
        elif isinstance(value, ast.Call):
            yield from _handed_over(value)
        for block in ("body", "handlers", "orelse", "finalbody"):
            yield from _strings(getattr(statement, block, []))


def _handed_over(value: ast.expr) -> Iterator[str]:
    """Strings that a call hands over as documentation: to a function named after it, or by a
    keyword for it.
    """
    for node in ast.walk(value):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call) and "doc" in getattr(
            node.func, "attr", getattr(node.func, "id", "")
        ):
            parts = [
                part for argument in node.args for part in getattr(argument, "elts", [argument])
            ]
        elif isinstance(node, ast.keyword) and node.arg in _DOCUMENTING_KEYWORDS:
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
            parts = [part for key, part in zip(keys, node.values, strict=True) if key == "help"]
        for part in parts:
            # r"""...""".format(**common_args): the text with its slots open.
            while isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                part = part.func.value
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def split_paragraphs(text: str) -> list[str]:
    r"""Turn a docstring, or text in reStructuredText or Markdown, into its paragraphs, each one
    line, none empty.

    A paragraph ends at a blank line; its hard-wrapped lines are joined. Nothing else is changed:
    parameter lists and examples are part of the documentation. Characters that cannot be printed
    become spaces.

    Example:
        >>> docstring = "Return the axis with\n    the largest sum.\n\n    >>> f([[1], [2]])\n    1"
        >>> split_paragraphs(docstring)
        ['Return the axis with the largest sum.', '>>> f([[1], [2]]) 1']
    """
    lines = (" ".join(block.split()) for block in _BLANK_LINES.split(inspect.cleandoc(text)))
    printable = ("".join(c if c.isprintable() else " " for c in line).strip() for line in lines)
    return [line for line in printable if line]


class Source(NamedTuple):
    """A documentation file, or a text that is in no file of its own."""

    name: str  # the module, for example ``torch/nn/functional.py``
    content: Path | str


class Documentation(NamedTuple):
    """The paragraphs of a source in order, and the number of docstrings that they come from."""

    paragraphs: list[str]
    num_texts: int


class Document(NamedTuple):
    """The documentation of one module."""

    name: str
    text: str


def python_documentation() -> Iterator[Source]:
    """Python's help pages, its built-in modules, which have no file, and the standard library
    without its tests.
    """
    for name, text in sorted(topics.items()):
        yield Source(f"pydoc_data.topics/{name}", text)
    for name in sorted(sys.builtin_module_names):
        module = importlib.import_module(name)
        members = [module, *(member for _, member in sorted(vars(module).items()))]
        parts = [
            part
            for member in members
            if isinstance(member, type)
            for _, part in sorted(vars(member).items())
        ]
        # Not of a mere value, whose docstring is its type's.
        texts = [
            inspect.getdoc(member) or ""
            for member in (*members, *parts)
            if any(is_it(member) for is_it in _HAVE_DOCSTRINGS)
        ]
        yield Source(f"python/{name}", "\n\n".join(texts))
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not {"site-packages", "dist-packages"} & set(inside.parts):
            yield Source(f"python/{inside}", path)


def package_documentation(distribution: metadata.Distribution) -> Iterator[Source]:
    """A package's description and its source files and texts."""
    description = email.message_from_string(distribution.read_text("METADATA") or "").get_payload()
    yield Source(f"{distribution.metadata['Name']}/description", str(description))
    for file in sorted(distribution.files or []):
        path = Path(str(distribution.locate_file(file)))
        if file.suffix in (".py", ".pyx", ".pxi", ".rst", ".md") and path.is_file():
            yield Source(str(file), path)


def dependencies(requirements: Iterable[str]) -> tuple[list[metadata.Distribution], list[str]]:
    """Return the installed packages that are asked for, and theirs in turn, by name; and the names
    of the missing.
    """
    waiting = [Requirement(line) for line in requirements]
    found: dict[str, metadata.Distribution] = {}
    missing: set[str] = set()
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.add(name)
            continue
        needed = map(Requirement, found[name].requires or [])
        waiting += [
            need for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})
        ]
    return [found[name] for name in sorted(found)], sorted(missing)


def find_sources(pyproject: Path, counts: Counter[str]) -> tuple[list[Source], list[str]]:
    """List all documentation: Python's, and that of the packages that a project's pyproject.toml
    asks for.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    packages, missing = dependencies(
        [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    )
    # Not its own, which an extra that names others leads to: its README would be in the corpus, and
    # change with every figure in it.
    packages = [package for package in packages if package.metadata["Name"] != project["name"]]
    counts["packages"] = len(packages)
    sources: list[Source] = []
    for package in Progress(packages, desc="Listing documentation", unit="packages"):
        sources += package_documentation(package)
    return [*python_documentation(), *sources], missing


def read_documentation(source: Source) -> Documentation | None:
    """Read a source's paragraphs; None where the file cannot be parsed."""
    content = source.content
    try:
        if isinstance(content, str):
            texts = [content]
        elif content.suffix == ".py":
            texts = list(iter_docstrings(content.read_bytes()))
        else:
            text = content.read_text(encoding="utf-8", errors="replace")
            # Cython, which `ast` cannot read: what stands in triple double quotes.
            texts = _TRIPLE_QUOTED.findall(text) if content.suffix in (".pyx", ".pxi") else [text]
    except (SyntaxError, ValueError):
        return None
    return Documentation(
        [paragraph for text in texts for paragraph in split_paragraphs(text)], len(texts)
    )


def read_documents(
    sources: list[Source], min_words: int, num_workers: int, counts: Counter[str]
) -> list[Document]:
    """Read the sources in parallel and keep their order."""
    # No worker inherits the main process's threads.
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(read_documentation, sources, chunksize=32)
        bar = Progress(found, total=len(sources), desc="Reading documentation", unit=" files")
        return make_documents(zip(sources, bar, strict=True), min_words, counts)


def make_documents(
    found: Iterable[tuple[Source, Documentation | None]], min_words: int, counts: Counter[str]
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
    """Choose modules at random, the same every time, until they hold the given fraction of the
    text.

    A module with more than a quarter of that fraction is never chosen: the rest shall be of many
    kinds.
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
    """Write train/documents.txt, validation/documents.txt and, when they are complete, corpus.json
    with the counts it returns.
    """
    splits: dict[str, list[str]] = {"train": [], "validation": []}
    for name, text in documents:
        splits["validation" if name in held_out else "train"].append(text)
    if min(map(len, splits.values())) < 2:
        raise InputError(
            f"only {len(documents)} documents were found: is this Python installed without its "
            "sources?"
        )
    description = output_dir / "corpus.json"
    description.unlink(missing_ok=True)
    report: dict[str, object] = dict(sorted(counts.items()))
    trained_on = {line for text in splits["train"] for line in text.splitlines()}
    report["held-out paragraphs that occur in train too"] = sum(
        line in trained_on for text in splits["validation"] for line in text.splitlines()
    )
    for split, texts in splits.items():
        data = "\n".join(texts).encode()
        with atomic_write(output_dir / split / "documents.txt") as aside:
            aside.write_bytes(data)
        num_paragraphs = sum(text.count("\n") for text in texts)
        report[split] = {"documents": len(texts), "paragraphs": num_paragraphs, "bytes": len(data)}
    write_json(description, report | {"held_out": sorted(held_out)})
    return report
