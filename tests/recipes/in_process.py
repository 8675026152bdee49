"""Call recipes in this process, which saves the seconds that the libraries take to load."""

import contextlib
import io
import os
import re
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest


RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def keep_last(flags: Iterable[object]) -> list[str]:
    """Cut flags into words, and leave out every flag, with its values, that comes again.

    A recipe refuses a flag that is given twice.
    """
    groups: list[list[str]] = [[]]
    for word in " ".join(map(str, flags)).split():
        if re.match(r"--[A-Za-z]", word):
            groups.append([])
        groups[-1].append(word)
    of_name = {}
    for group in groups:
        name = group[0].split("=")[0].replace("-", "_") if group else ""
        of_name.pop(name, None)
        of_name[name] = group
    return [word for group in of_name.values() for word in group]


def run_recipe(name: str, *flags: object) -> str:
    """Run a recipe to its end, for a fixture of a module; return what it printed."""
    before, output = dict(os.environ), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", [name, *keep_last(flags)])
        runpy.run_path(str(RECIPES / f"{name}.py"))["main"]()
    # Settings of a run are handed to libraries through it.
    os.environ.clear()
    os.environ.update(before)
    return output.getvalue()
