"""Docstrings are found in order, without running anything, and come out as English prose."""

import pytest

from bert_recipes.data.docstrings import (
    clean_paragraphs,
    is_prose,
    iter_cython_docstrings,
    iter_docstrings,
    near_key,
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


def test_cython_docstrings_are_found_between_triple_quotes():
    assert list(iter_cython_docstrings('cdef class A:\n    """One."""\n    x = "no"\n    """Two\nlines."""')) == [
        "One.",
        "Two\nlines.",
    ]


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        # Hard-wrapped lines are joined, blank lines separate.
        ("One line\n    and the next.\n\n    Another one.", ["One line and the next.", "Another one."]),
        # Doctests go up to the blank line, the text after them stays.
        ("Before.\n\n>>> f(1)\n2\n\nAfter it.", ["Before.", "After it."]),
        ("Example::\n\n    x = 1\n\n    y = 2\n\nAfter it.", ["Example:", "After it."]),
        ("Look here.\n\n```python\nx = 1\n```\n\nAfter it.", ["Look here.", "After it."]),
        ("    Args:\n        x: A.\n        ```py\n        x\n        ```\n    After.", ["x: A.", "After."]),
        (".. code-block:: python\n\n    x = 1\n\nAfter it.", ["After it."]),
        (".. note::\n    Mind the gap.", ["Mind the gap."]),
        (".. versionadded:: 1.2\n    It came late.", ["1.2 It came late."]),
        # Headings, rules and tables are no sentences.
        ("Parameters\n----------\naxis : int, optional\n    The axis.", ["axis: The axis."]),
        ("# Title\n\nText.", ["Text."]),
        ("=====  =====\nA      B\n=====  =====\n| a | b |", ["A B"]),
        # Parameter lists: the name and the words, not the type.
        ("Args:\n    x (`int`, *optional*): The x.\n        It is long.", ["x: The x. It is long."]),
        ("Args:\n    x (`Tensor` of shape `(b, (s))`):\n        The x.", ["x: The x."]),
        (":param int x: The x.\n:returns: The y.", ["x: The x.", "The y."]),
        ("- one thing\n- another\n  thing\n1. a third", ["one thing", "another thing", "a third"]),
        # Marks and addresses.
        ("See :func:`~torch.add` and ``x`` or *y* and **z**.", ["See torch.add and x or y and z."]),
        ("Read [the paper](https://a.b/c), `docs <http://d>`_ [1]_.", ["Read the paper, docs ."]),
        ("Call __init__ at https://a.b/c.", ["Call __init__ at ."]),
        ("<Tip>\n\nText.\n\n</Tip>", ["Text."]),
        ("NUL \x00 and \x1b are gone.", ["NUL and are gone."]),
        ("", []),
    ],
)
def test_clean_paragraphs(text: str, paragraphs: list[str]):
    assert clean_paragraphs(text) == paragraphs


@pytest.mark.parametrize(
    ("paragraph", "prose"),
    [
        ("Return the axis with the largest sum.", True),
        ("Alias for the function.", True),
        ("nan_to_num(input, nan=0.0, posinf=None, neginf=None, *, out=None) -> Tensor", False),
        ("bool -> uint8, int8 -> int16 -> int32", False),
        ("numpy.ptp", False),
        ("Le chat noir dort sur le tapis rouge.", False),
        ("self.x = [self._y[0] for y in z]; return {z: 1, w: 2}", False),
    ],
)
def test_is_prose(paragraph: str, prose: bool):
    assert is_prose(paragraph) is prose


def test_near_copies_that_differ_in_class_names_and_numbers_share_a_key():
    assert near_key("The BertModel has 12 layers.") == near_key("The GPT2Model  has 24 layers.")
    assert near_key("The model has layers.") != near_key("The model has heads.")
