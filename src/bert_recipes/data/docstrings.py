"""The English documentation inside Python source files: docstrings in their order.

Files are parsed, never imported or executed. The result is ordinary text: one paragraph is one line.
"""

import ast
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator


_DOCUMENTING_KEYWORDS = frozenset({"help", "description", "epilog", "custom_intro", "doc"})
_BLANK_LINES = re.compile(r"\n\s*\n")


def iter_docstrings(source: bytes) -> Iterator[str]:
    r"""Yield the documentation strings of a source file in the order in which they stand.

    These are strings that stand alone (docstrings of modules, classes, functions, attributes), strings handed to a
    function that attaches them to code, such as ``add_docstr`` (torch) and ``add_newdoc`` (numpy), and help texts.

    Args:
        source: the file's bytes; the encoding is the one that the file declares.

    Raises:
        SyntaxError: not Python of this interpreter's version.
        ValueError: NUL bytes.

    Example:
        >>> list(iter_docstrings(b'class A:\n    "One."\n    def f(self):\n        "Two."'))
        ['One.', 'Two.']
    """
    with warnings.catch_warnings():
        # Other people's files may hold invalid escapes; that is not for the reader of their prose to hear.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    yield from _strings(tree.body)


def _strings(statements: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        for decorator in getattr(statement, "decorator_list", []):
            yield from _handed_over(decorator)
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
        elif isinstance(value, ast.Call):
            yield from _handed_over(value)
        for block in ("body", "handlers", "orelse", "finalbody"):
            yield from _strings(getattr(statement, block, []))


def _handed_over(value: ast.expr) -> Iterator[str]:
    """Strings that a call hands over as documentation: to a function named after it, or by a keyword for it."""
    for node in ast.walk(value):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call) and "doc" in getattr(node.func, "attr", getattr(node.func, "id", "")):
            parts = [part for argument in node.args for part in getattr(argument, "elts", [argument])]
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


def iter_cython_docstrings(source: str) -> Iterator[str]:
    """Yield what stands in triple double quotes in a Cython file, which `ast` cannot read."""
    for match in re.finditer(r'"""(.*?)"""', source, re.DOTALL):
        yield match[1]


def split_paragraphs(text: str) -> list[str]:
    r"""Turn a docstring, or text in reStructuredText or Markdown, into its paragraphs, each one line.

    A paragraph ends at a blank line; its hard-wrapped lines are joined. Nothing else is changed: parameter lists and
    examples are part of the documentation.

    Args:
        text: as it stands in the file.

    Returns:
        Paragraphs in order; none is empty. Characters that cannot be printed become spaces.

    Example:
        >>> split_paragraphs("Return the axis with\n    the largest sum.\n\n    >>> f([[1], [2]])\n    1")
        ['Return the axis with the largest sum.', '>>> f([[1], [2]]) 1']
    """
    lines = (" ".join(block.split()) for block in _BLANK_LINES.split(inspect.cleandoc(text)))
    printable = ("".join(c if c.isprintable() else " " for c in line).strip() for line in lines)
    return [line for line in printable if line]
