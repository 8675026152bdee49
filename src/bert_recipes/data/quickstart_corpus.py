"""Collect the English documentation inside Python source files: docstrings in their order.

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
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from pydoc_data.topics import topics
from types import ModuleType
from typing import Any, NamedTuple

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
_DOCUMENTATION_SUFFIXES = (".py", ".pyx", ".pxi", ".rst", ".md")
_BLANK_LINES = re.compile(r"\n\s*\n")
_TRIPLE_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)


def iter_docstrings(source: bytes) -> Iterator[str]:
    r"""Yield the documentation strings of a Python file in their order.

    The file is read in its declared encoding.

    Documentation is strings that stand alone (docstrings of modules, classes, functions,
    attributes), strings handed to a function that attaches them to code, such as `add_docstr`
    (torch) and `add_newdoc` (numpy), and help texts.

    Example:
        >>> list(iter_docstrings(b'class A:\n    "One."\n    def f(self):\n        "Two."'))
        ['One.', 'Two.']
    """
    with warnings.catch_warnings():
        # Files of other projects may hold invalid escapes, of which Python warns.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    yield from _strings(tree.body)


def _strings(statements: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        for decorator in getattr(statement, "decorator_list", []):
            yield from _handed_over(decorator)
        value: Any = getattr(statement, "value", None)
        if isinstance(statement, ast.Expr) and _is_string(value):
            yield value.value
        elif isinstance(value, ast.Call):
            yield from _handed_over(value)
        for block in ("body", "handlers", "orelse", "finalbody"):
            yield from _strings(getattr(statement, block, []))


def _is_string(node: Any) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _handed_over(value: ast.expr) -> Iterator[str]:
    """Yield strings that a call hands over as documentation.

    It hands them to a function named after it, or by a keyword for it.
    """
    for node in ast.walk(value):
        for text in _texts_of(node):
            # r"""...""".format(**common_args): the text with its slots open.
            while isinstance(text, ast.Call) and isinstance(text.func, ast.Attribute):
                text = text.func.value
            if _is_string(text):
                yield text.value  # type: ignore[attr-defined]


def _texts_of(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the values of a call's node that are documentation."""
    if isinstance(node, ast.Call):
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if "doc" in function:
            for argument in node.args:
                yield from getattr(argument, "elts", [argument])
    elif isinstance(node, ast.keyword) and node.arg in _DOCUMENTING_KEYWORDS:
        yield node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if getattr(key, "value", None) == "help":
                yield value


def split_paragraphs(text: str) -> list[str]:
    r"""Split a docstring, or text in reStructuredText or Markdown, into its paragraphs.

    Each is one line, none empty. A paragraph ends at a blank line; its hard-wrapped lines are
    joined. Nothing else is changed: parameter lists and examples are documentation too. Characters
    that cannot be printed become spaces.

    Example:
        >>> docstring = "Return the axis with\n    the largest sum.\n\n    >>> f([[1], [2]])\n    1"
        >>> split_paragraphs(docstring)
        ['Return the axis with the largest sum.', '>>> f([[1], [2]]) 1']
    """
    paragraphs = []
    for block in _BLANK_LINES.split(inspect.cleandoc(text)):
        paragraph = " ".join(block.split())
        if not paragraph.isprintable():
            characters = [char if char.isprintable() else " " for char in paragraph]
            paragraph = "".join(characters).strip()
        if paragraph:
            paragraphs.append(paragraph)

    return paragraphs


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
    """Yield Python's help pages, its built-in modules and the standard library."""
    for name, text in sorted(topics.items()):
        yield Source(f"pydoc_data.topics/{name}", text)
    for name in sorted(sys.builtin_module_names):  # which have no file
        yield Source(f"python/{name}", _documentation_of(importlib.import_module(name)))
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name_in_root = path.relative_to(root)
        if not {"site-packages", "dist-packages"}.intersection(name_in_root.parts):
            yield Source(f"python/{name_in_root}", path)


def _documentation_of(module: ModuleType) -> str:
    """Return the docstrings of a module, of its members, and of those of its classes."""
    members = [member for _, member in sorted(vars(module).items())]
    attributes: list[Any] = []
    for member in members:
        if isinstance(member, type):
            attributes += [attribute for _, attribute in sorted(vars(member).items())]
    texts = []
    for value in (module, *members, *attributes):
        # Not of a mere value, whose docstring is its type's.
        if any(has_docstring(value) for has_docstring in _HAVE_DOCSTRINGS):
            texts.append(inspect.getdoc(value) or "")

    return "\n\n".join(texts)


def package_documentation(distribution: metadata.Distribution) -> Iterator[Source]:
    """Yield a package's description, its source files and its texts."""
    name = distribution.metadata["Name"]
    metadata_text = distribution.read_text("METADATA") or ""
    message = email.message_from_string(metadata_text)
    description = message.get_payload()
    yield Source(f"{name}/description", str(description))

    for file in sorted(distribution.files or []):
        if file.suffix not in _DOCUMENTATION_SUFFIXES:
            continue
        path = Path(str(distribution.locate_file(file)))
        if path.is_file():
            yield Source(str(file), path)


def dependencies(requirements: Iterable[str]) -> tuple[list[metadata.Distribution], list[str]]:
    """Return the installed packages of requirements, and of theirs in turn, by name.

    Also the names of the missing packages.
    """
    waiting = _needed_here(requirements)
    packages: dict[str, metadata.Distribution] = {}
    missing: set[str] = set()
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name in packages:
            continue
        try:
            packages[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.add(name)
            continue
        waiting += _needed_here(packages[name].requires or [])

    return [packages[name] for name in sorted(packages)], sorted(missing)


def _needed_here(requirements: Iterable[str]) -> list[Requirement]:
    """Return the requirements of this system, without those of extras."""
    needed = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed.append(requirement)
    return needed


def find_sources(pyproject: Path, counts: Counter[str]) -> tuple[list[Source], list[str]]:
    """List the documentation of Python, and of the packages that a pyproject.toml requires.

    Also the names of the missing packages.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["dev"]
    packages, missing = dependencies(requirements)
    # Not the project itself, to which an extra that names others leads: its README would be in the
    # corpus, and change with every figure in it.
    packages = [package for package in packages if package.metadata["Name"] != project["name"]]
    counts["packages"] = len(packages)
    sources = list(python_documentation())
    for package in Progress(packages, desc="Listing documentation", unit="packages"):
        sources += package_documentation(package)
    return sources, missing


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
            # Cython, which `ast` cannot read: the strings in triple double quotes.
            is_cython = content.suffix in (".pyx", ".pxi")
            texts = _TRIPLE_QUOTED.findall(text) if is_cython else [text]
    except (SyntaxError, ValueError):
        return None

    paragraphs = list(chain.from_iterable(map(split_paragraphs, texts)))
    return Documentation(paragraphs, len(texts))


def read_documents(
    sources: list[Source], min_words: int, num_workers: int, counts: Counter[str]
) -> list[Document]:
    """Read the sources in parallel and keep their order."""
    # No worker inherits the main process's threads.
    with ProcessPoolExecutor(num_workers, mp_context=get_context("spawn")) as pool:
        texts = pool.map(read_documentation, sources, chunksize=32)
        bar = Progress(texts, total=len(sources), desc="Reading documentation", unit=" files")
        return make_documents(zip(sources, bar, strict=True), min_words, counts)


def make_documents(
    sources: Iterable[tuple[Source, Documentation | None]], min_words: int, counts: Counter[str]
) -> list[Document]:
    """Make a document of each source that has words enough."""
    documents = []
    for source, documentation in sources:
        counts["files"] += 1
        if documentation is None:
            counts["dropped files: not this Python's syntax"] += 1
            continue
        counts["docstrings"] += documentation.num_texts
        text = "\n".join(documentation.paragraphs) + "\n"
        if len(text.split()) >= min_words:
            documents.append(Document(source.name, text))
        else:
            counts[f"dropped files: fewer than {min_words} words"] += 1
            counts["dropped paragraphs: of such files"] += len(documentation.paragraphs)

    return documents


def choose_held_out(documents: Iterable[Document], fraction: float) -> set[str]:
    """Choose modules at random, the same every time, until they hold a fraction of the text.

    A module with more than a quarter of that fraction is never chosen: the held-out text shall be
    of many kinds.
    """
    sizes: Counter[str] = Counter()
    for document in documents:
        sizes[document.name] += len(document.text)
    goal = fraction * sizes.total()
    missing = goal
    held_out: set[str] = set()
    for name in sorted(sizes, key=_hash_of_name):
        if missing > 0 and sizes[name] <= 0.25 * goal:
            held_out.add(name)
            missing -= sizes[name]

    return held_out


def _hash_of_name(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def write_corpus(
    output_dir: Path, documents: list[Document], held_out: set[str], counts: Counter[str]
) -> dict[str, object]:
    """Write train/documents.txt, validation/documents.txt and corpus.json.

    The last is written when the texts are complete.

    Returns:
        The counts of corpus.json.
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
    train_lines = set("".join(splits["train"]).splitlines())
    held_out_lines = "".join(splits["validation"]).splitlines()
    report["held-out paragraphs that occur in train too"] = sum(
        line in train_lines for line in held_out_lines
    )

    for split, texts in splits.items():
        data = "\n".join(texts).encode()
        with atomic_write(output_dir / split / "documents.txt") as aside:
            aside.write_bytes(data)
        num_paragraphs = sum(text.count("\n") for text in texts)
        report[split] = {"documents": len(texts), "paragraphs": num_paragraphs, "bytes": len(data)}

    write_json(description, {**report, "held_out": sorted(held_out)})
    return report
