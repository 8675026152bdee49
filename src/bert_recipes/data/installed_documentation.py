"""Where English documentation lies on any machine with Python: in the interpreter, its library, installed packages."""

import email
import importlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePath
from pydoc_data.topics import topics
from typing import NamedTuple

from packaging.requirements import Requirement

from bert_recipes.data.docstrings import iter_cython_docstrings, iter_docstrings, split_paragraphs


@dataclass(frozen=True)
class Source:
    """A documentation file, or a text that is in no file of its own.

    Attributes:
        name: the module, for example ``torch/nn/functional.py``.
        path: the file; None where `text` holds the documentation.
        text: the documentation; empty where `path` is given.
    """

    name: str
    path: Path | None = None
    text: str = ""


class Documentation(NamedTuple):
    """What was found in a source: its paragraphs in order, and the number of docstrings that they come from."""

    paragraphs: list[str]
    num_texts: int


def help_topics() -> Iterator[Source]:
    """Python's own help pages, as `help("ASSERTION")` prints them."""
    for name, text in sorted(topics.items()):
        yield Source(f"pydoc_data.topics/{name}", text=text)


def builtin_modules() -> Iterator[Source]:
    """The docstrings of the modules that are part of the interpreter itself and have no source file."""
    for name in sorted(sys.builtin_module_names):
        module = importlib.import_module(name)
        members = [module, *(member for _, member in sorted(vars(module).items()))]
        parts = [part for member in members if isinstance(member, type) for _, part in sorted(vars(member).items())]
        texts = [inspect.getdoc(member) or "" for member in (*members, *parts) if _is_documentable(member)]
        yield Source(f"python/{name}", text="\n\n".join(texts))


def _is_documentable(member: object) -> bool:
    """Tell a function, class or module from a mere value, whose docstring is its type's."""
    return (
        inspect.isroutine(member)
        or inspect.isclass(member)
        or inspect.ismodule(member)
        or inspect.isgetsetdescriptor(member)
    )


def standard_library() -> Iterator[Source]:
    """The source files of the standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if _is_documented(inside) and not {"site-packages", "dist-packages"} & set(inside.parts):
            yield Source(f"python/{inside}", path)


def package_documentation(distribution: metadata.Distribution) -> Iterator[Source]:
    """A package's description and its source files and texts."""
    name = distribution.metadata["Name"]
    description = email.message_from_string(distribution.read_text("METADATA") or "").get_payload()
    yield Source(f"{name}/description", text=str(description))
    for file in sorted(distribution.files or []):
        path = Path(str(distribution.locate_file(file)))
        if _is_documented(file) and path.is_file():
            yield Source(str(file), path)


def dependencies(requirements: Iterable[str]) -> tuple[list[metadata.Distribution], list[str]]:
    """Return the installed packages that are asked for, and theirs in turn, by name; and the names of the missing."""
    waiting = [Requirement(line) for line in requirements]
    found: dict[str, metadata.Distribution] = {}
    missing: set[str] = set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop().name).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.add(name)
            continue
        needed = map(Requirement, found[name].requires or [])
        waiting += [need for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    return [found[name] for name in sorted(found)], sorted(missing)


def _is_documented(path: PurePath) -> bool:
    """Tell Python, Cython and documentation files from the rest."""
    return path.suffix in (".py", ".pyx", ".pxi", ".rst", ".md")


def read_documentation(source: Source) -> Documentation | None:
    """Read a source's paragraphs; None where the file cannot be parsed."""
    try:
        texts = _texts(source)
    except (SyntaxError, ValueError):
        return None
    return Documentation([paragraph for text in texts for paragraph in split_paragraphs(text)], len(texts))


def _texts(source: Source) -> list[str]:
    if source.path is None:
        return [source.text]
    if source.path.suffix == ".py":
        return list(iter_docstrings(source.path.read_bytes()))
    text = source.path.read_text(encoding="utf-8", errors="replace")
    return list(iter_cython_docstrings(text)) if source.path.suffix in (".pyx", ".pxi") else [text]
