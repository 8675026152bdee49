"""Docstrings are found in order, without running anything, and come out as paragraphs."""

import pytest

from bert_recipes.data.quickstart_corpus import (
    Source,
    iter_docstrings,
    read_documentation,
    split_paragraphs,
)


SOURCE = b'''
"""The module."""
import nothing_that_exists
LIMIT = 3
"""What LIMIT is."""

class A:
    """The class."""
    x: int = 0
    """The attribute."""

    def f(self):
        """The method."""
        text = "no documentation"
        print("nor this")

        def inner():
            """The inner function."""

if True:
    try:
        def g():
            """In a branch."""
    except ImportError:
        def g():
            """In a handler."""

add_docstr(native, r"""Attached to compiled code.""".format(**common))
add_newdoc("numpy", "zeros", """Attached by name.""")

@auto_docstring(custom_intro="Of a decorator.")
def h():
    """Decorated."""

parser.add_argument("--rate", help="A help text.")
'''


def test_docstrings_come_in_source_order_and_nothing_is_executed():
    assert list(iter_docstrings(SOURCE)) == [
        "The module.",
        "What LIMIT is.",
        "The class.",
        "The attribute.",
        "The method.",
        "The inner function.",
        "In a branch.",
        "In a handler.",
        "Attached to compiled code.",
        "numpy",
        "zeros",
        "Attached by name.",
        "Of a decorator.",
        "Decorated.",
        "A help text.",
    ]


def test_the_declared_encoding_of_a_file_is_used():
    source = '# coding: latin-1\n"""Caf\u00e9."""'.encode("latin-1")
    assert list(iter_docstrings(source)) == ["Caf\u00e9."]


def test_a_file_of_another_syntax_is_an_error_for_the_caller_to_count():
    with pytest.raises(SyntaxError):
        list(iter_docstrings(b"print 'Python 2'"))


def test_cython_docstrings_are_found_between_triple_quotes(tmp_path):
    (tmp_path / "a.pyx").write_text(
        'cdef class A:\n    """One."""\n    x = "no"\n    """Two\nlines."""'
    )

    assert read_documentation(Source("a", tmp_path / "a.pyx")) == (["One.", "Two lines."], 2)


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("Return the axis with\n    the largest sum.", ["Return the axis with the largest sum."]),
        ("One.\n\n    Two\n    lines.\n   \n\n    Three.", ["One.", "Two lines.", "Three."]),
        (
            "Parameters\n    ----------\n    axis : int\n        The axis.",
            ["Parameters ---------- axis : int The axis."],
        ),
        (">>> f(1)\n2", [">>> f(1) 2"]),
        ("A\x00tab\tand\x1b[0m", ["A tab and [0m"]),
        (" \n \n", []),
    ],
)
def test_paragraphs_end_at_blank_lines_and_nothing_is_left_out(text: str, paragraphs: list[str]):
    assert split_paragraphs(text) == paragraphs
