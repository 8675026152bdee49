"""The English prose inside Python source files: docstrings in their order, cleaned of code and marks.

Files are parsed, never imported or executed. The result is ordinary text: one paragraph is one line.
"""

import ast
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator


# Words that English prose can hardly do without, and code, tables and other languages can.
_FUNCTION_WORDS = frozenset(
    "a an and are as at be been but by can do does for from has have if in into is it its may must no not of on or "  # noqa: SIM905
    "should so such than that the their then there these they this to used was we when where which will with you".split()
)
_DOCUMENTING_KEYWORDS = frozenset({"help", "description", "epilog", "custom_intro", "doc"})
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?(^ *\1|\Z)", re.MULTILINE | re.DOTALL)
_HTML_TAG = re.compile(r"</?[A-Za-z][\w-]*( [^<>]*)?/?>")
_DIRECTIVE = re.compile(r"^\.\. ?(?P<name>[\w:-]+)::(?P<text>.*)$")
_PROSE_DIRECTIVES = frozenset(
    "note warning caution tip hint important attention seealso admonition versionadded versionchanged deprecated".split()  # noqa: SIM905
)
_RULE = re.compile(r"^([=\-~^\"'`#*+_.])\1{2,}$")
_TABLE = re.compile(r"^[|+].*[|+]$|^(=+ +)+=+$")
_SECTION = re.compile(r"^(#+ .*|[A-Z][\w ]{0,30}:)$")
_BULLET = re.compile(r"^([-*+\u2022]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+")
# "axis : int, optional" (numpy), "axis (int, optional): The axis." (Google), ":param axis: The axis." (Sphinx) all become
# "axis: The axis."; the types say nothing in English.
_NUMPY_FIELD = re.compile(r"^(?P<names>[*\w.`]+(, ?[*\w.`]+)*) : ?[^.]{0,90}$")
_GOOGLE_FIELD = re.compile(r"^[*`]*(?P<name>[\w.]+)[*`]* ?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\) ?:(?:\s+|$)")
_SPHINX_FIELD = re.compile(
    r"^[:@](?P<kind>param|parameter|arg|keyword|raises?|returns?|ivar|cvar)\b ?(?P<name>[^:]*):\s+"
)
_PLAIN_FIELD = re.compile(r"^[*`]*[\w.]+[*`]* ?:(?:\s+|$)")
_OPENINGS = (_BULLET, _GOOGLE_FIELD, _PLAIN_FIELD, _SPHINX_FIELD, _DIRECTIVE)
_INLINE = [
    (re.compile(r":[a-z:+]+:`[~!]?([^`<]*?)(?: ?<[^`]*>)?`"), r"\1"),
    (re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)"), r"\1"),
    (re.compile(r"`([^`<]*?) ?<[^`>]*>`_{1,2}"), r"\1"),
    (re.compile(r"\[[#*\w.-]+\]_"), ""),
    (re.compile(r"`{1,2}~?([^`]*)`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"(?<!\w)(\*{1,3})(?=\S)([^*]+?)(?<=\S)\1(?!\w)"), r"\2"),
    (re.compile(r"<?\b(?:https?|ftp)://[^\s<>]*[^\s<>.,;:)\]]>?"), ""),
]
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_NAME = re.compile(r"\w*(?:[a-z][A-Z]|\d)\w*|\b[A-Z]{2,}\w*")


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


def clean_paragraphs(text: str) -> list[str]:
    r"""Turn a docstring, or text in reStructuredText or Markdown, into its paragraphs, each one line.

    Dropped: code (doctests, fenced and literal blocks, directives that hold any), tables, rules, headings, the types
    in parameter lists. Marks and addresses are taken out of the rest, and hard-wrapped lines are joined.

    Args:
        text: as it stands in the file.

    Returns:
        Paragraphs in order; none is empty, but not every one is prose (`is_prose`).

    Example:
        >>> clean_paragraphs("Return the ``axis`` with\nthe largest sum.\n\n>>> largest([[1], [2]])\n1")
        ['Return the axis with the largest sum.']
        >>> clean_paragraphs("Parameters\n----------\naxis : int, optional\n    The axis.")
        ['axis: The axis.']
    """
    text = _HTML_TAG.sub("", _FENCE.sub("", inspect.cleandoc(text)))
    paragraphs = (_without_marks(_name_first(" ".join(lines))) for lines in _blocks(text.splitlines()))
    return [paragraph for paragraph in paragraphs if paragraph]


def is_prose(paragraph: str) -> bool:
    """Tell English sentences from what is left of code, tables, signatures and other languages.

    Example:
        >>> is_prose("Return the axis with the largest sum."), is_prose("nan_to_num(input, nan=0.0) -> Tensor")
        (True, False)
    """
    words = _WORD.findall(paragraph)
    letters = sum(map(len, words)) + paragraph.count(" ")
    return (
        len(words) >= 4
        and letters >= 0.75 * len(paragraph)
        and sum(word.lower() in _FUNCTION_WORDS for word in words) >= max(1, len(words) // 12)
    )


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """The lines of each paragraph. A paragraph ends at a blank line, a bullet, a label, a dedent, a dropped line."""
    block: list[str] = []
    start = 0
    # Lines indented deeper than this belong to a dropped directive or literal block.
    dropped_beyond: int | None = None
    in_doctest = False
    for number, line in enumerate(lines):
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if not content:
            yield block
            block, in_doctest = [], False
            continue
        if dropped_beyond is not None and indent > dropped_beyond:
            continue
        dropped_beyond = None
        following = lines[number + 1] if number + 1 < len(lines) else ""
        in_doctest = in_doctest or content.startswith((">>>", "...", "$ ", "In ["))
        is_code = content.startswith(".. ") and not _is_prose_directive(content)
        if in_doctest or is_code:
            yield block
            block, dropped_beyond = [], indent if is_code else None
            continue
        field = _NUMPY_FIELD.match(content)
        if field or _is_furniture(content, following.strip()):
            yield block
            block = []
            if field and following.startswith(" " * (indent + 1)):
                block, start = [field["names"] + ":"], indent
            continue
        opens = any(mark.match(content) for mark in _OPENINGS)
        if block and (opens or indent < start):
            yield block
            block = []
        start = indent if not block else start
        block.append(_unmarked(content) if not block else content)
        if content.endswith("::"):
            dropped_beyond = indent
    yield block


def _is_prose_directive(content: str) -> bool:
    directive = _DIRECTIVE.match(content)
    return directive is not None and directive["name"] in _PROSE_DIRECTIVES


def _is_furniture(content: str, following: str) -> bool:
    if _RULE.match(content) or _TABLE.match(content) or _SECTION.match(content):
        return True
    return len(following) >= 3 and _RULE.match(following) is not None


def _name_first(text: str) -> str:
    """A parameter's description, in whatever style, as "name: description"."""
    text = _GOOGLE_FIELD.sub(r"\g<name>: ", text, count=1)
    return _SPHINX_FIELD.sub(
        lambda field: f"{field['name'].split()[-1]}: " if field["name"].strip() else "", text, count=1
    )


def _unmarked(content: str) -> str:
    directive = _DIRECTIVE.match(content)
    if directive:
        return directive["text"].strip()
    return _BULLET.sub("", content)


def _without_marks(text: str) -> str:
    for mark, replacement in _INLINE:
        text = mark.sub(replacement, text)
    text = text.replace("\\", "").replace("::", ":")
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(text.split())


def near_key(paragraph: str) -> str:
    """Return what a paragraph shares with its near copies: the text without case, digits and programmers' names.

    Libraries repeat a docstring for each of hundreds of classes and change nothing but the class name.

    Example:
        >>> near_key("The BertModel has 12 layers.") == near_key("The RobertaModel has 24 layers.")
        True
    """
    return " ".join(_WORD.findall(_NAME.sub("", paragraph).lower()))
