"""Flags of a test beside those that several tests share: of a flag that stands twice the last one
counts.
"""

import re
from collections.abc import Iterable


def keep_last(flags: Iterable[object]) -> list[str]:
    """Leave out every flag, with its values, that comes again; a recipe refuses one that is given
    twice.
    """
    groups: list[list[str]] = [[]]
    for word in map(str, flags):
        if re.match(r"--[A-Za-z]", word):
            groups.append([])
        groups[-1].append(word)
    of_name = {}
    for group in groups:
        name = group[0].split("=")[0].replace("-", "_") if group else ""
        of_name.pop(name, None)
        of_name[name] = group
    return [word for group in of_name.values() for word in group]
