"""The quickstart's corpus: the English documentation inside Python and the packages that this project installs.

    python recipes/collect_docstrings.py --output_dir data/quickstart

Needs no network. Writes ``train/documents.txt`` and ``validation/documents.txt``: one paragraph a line, a blank line
after each document; and ``corpus.json`` with the counts. A document is what one source file says in its docstrings, in
their order, one of Python's help topics, or a package's description. Whole modules are held out for validation, and a
paragraph that occurs more than once, up to names and numbers, is kept at its first place only: nothing that is
evaluated on was seen in training.
"""

import importlib
import inspect
import re
import sys
import sysconfig
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path, PurePath
from pydoc_data.topics import topics

from packaging.requirements import Requirement
from tqdm import tqdm

from bert_recipes.config import parse_arguments
from bert_recipes.data.docstrings import iter_cython_docstrings, iter_docstrings, prose_paragraphs
from bert_recipes.errors import InputError


@dataclass
class CollectArguments:
    """What to collect, and where to."""

    output_dir: Path = field(
        default=Path("data/quickstart"), metadata={"help": "gets train/, validation/, corpus.json"}
    )
    validation_fraction: float = field(default=0.04, metadata={"help": "share of the text held out, by whole modules"})
    min_words: int = field(default=50, metadata={"help": "a document with fewer words is dropped"})
    num_workers: int = field(default=cpu_count() or 1, metadata={"help": "processes that parse source files"})

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
class Source:
    """A file, or a text that is no file, and the module that it is held out with."""

    group: str
    name: str
    path: Path | None = None
    text: str = ""


def main() -> None:
    """Collect, clean, remove copies, split, write."""
    (args,) = parse_arguments(CollectArguments)
    # 1. What there is
    sources = [*help_topics(), *builtin_modules(), *standard_library(), *installed_packages()]
    # 2. Prose, in parallel; the order of the sources is kept
    with ProcessPoolExecutor(args.num_workers, mp_context=get_context("spawn")) as pool:
        texts = pool.map(read_prose, sources, chunksize=16)
        bar = tqdm(texts, total=len(sources), desc="Reading documentation", unit="file", mininterval=1)
        found = list(zip(sources, bar, strict=True))
    # 3. Documents without copies
    counts: Counter[str] = Counter(sources=len(sources))
    documents = remove_copies(found, args.min_words, counts)
    if len(documents) < 2:
        raise InputError(
            f"{sysconfig.get_path('stdlib')}: found no documentation; is Python installed without sources?"
        )
    # 4. Whole modules held out
    held_out = choose_held_out(documents, args.validation_fraction)
    write_corpus(args.output_dir, documents, held_out, counts)


def help_topics() -> Iterator[Source]:
    """Python's own help pages, as `help("ASSERTION")` prints them."""
    for name, text in sorted(topics.items()):
        yield Source("pydoc_data", f"pydoc_data.topics/{name}", text=text)


def standard_library() -> Iterator[Source]:
    """The source files of the standard library, without its tests; one group a module or package."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if is_documented(inside) and not {"site-packages", "dist-packages"} & set(inside.parts):
            yield Source(f"python/{inside.parts[0].removesuffix('.py')}", f"python/{inside}", path)


def builtin_modules() -> Iterator[Source]:
    """The docstrings of the modules that are part of the interpreter itself and have no source file."""
    for name in sorted(sys.builtin_module_names):
        module = importlib.import_module(name)
        members = [module, *(member for _, member in sorted(vars(module).items()))]
        parts = [part for member in members if isinstance(member, type) for _, part in sorted(vars(member).items())]
        texts = [inspect.getdoc(member) or "" for member in (*members, *parts) if is_documentable(member)]
        yield Source("python/builtins", f"python/{name}", text="\n\n".join(texts))


def is_documentable(member: object) -> bool:
    """Tell a function, class or module from a mere value, whose docstring is its type's."""
    return (
        inspect.isroutine(member)
        or inspect.isclass(member)
        or inspect.ismodule(member)
        or inspect.isgetsetdescriptor(member)
    )


def installed_packages() -> Iterator[Source]:
    """The source files, descriptions and texts of what this project depends on; one group a package's sub-package."""
    for distribution in dependencies():
        name = distribution.metadata["Name"]
        yield Source(name, f"{name}/description", text=distribution.metadata.get_payload() or "")
        for file in sorted(distribution.files or []):
            path = Path(str(distribution.locate_file(file)))
            if is_documented(file) and path.is_file():
                parts = [part.removesuffix(".py") for part in file.parts]
                yield Source("/".join(parts[:2]), str(file), path)


def dependencies() -> list[metadata.Distribution]:
    """The packages that `make install` installs, and theirs in turn; other extras change nothing."""
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    project = pyproject["project"]
    waiting = [Requirement(line) for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]]
    found: dict[str, metadata.Distribution] = {}
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop().name).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            print(f"{name} is not installed: its documentation is left out")
            continue
        needed = map(Requirement, found[name].requires or [])
        waiting += [need for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    return [found[name] for name in sorted(found)]


def is_documented(path: PurePath) -> bool:
    """Tell Python, Cython and documentation files from the rest. Vendored copies go with the other copies."""
    return path.suffix in (".py", ".pyx", ".pxi", ".rst", ".md")


def read_prose(source: Source) -> list[str] | None:
    """A source's paragraphs; None where the file cannot be parsed."""
    text = source.text if source.path is None else ""
    if source.path is not None and source.path.suffix == ".py":
        try:
            return [
                paragraph for text in iter_docstrings(source.path.read_bytes()) for paragraph in prose_paragraphs(text)
            ]
        except (SyntaxError, ValueError):
            return None
    if source.path is not None:
        text = source.path.read_text(encoding="utf-8", errors="replace")
        if source.path.suffix in (".pyx", ".pxi"):
            return [paragraph for part in iter_cython_docstrings(text) for paragraph in prose_paragraphs(part)]
    return prose_paragraphs(text)
