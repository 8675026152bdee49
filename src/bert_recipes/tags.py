"""The tags of words: what stands before the type of an entity, and the type."""

import re
from collections.abc import Iterable
from functools import lru_cache

from bert_recipes.errors import InputError


OUTSIDE = "O"
# "B:PER", "b-per", "B_PER", "PER-B", "PER_B".
_ODD_PREFIX = re.compile(r"(?![BIESLUMW]-)(?:[BIbi][:_].+|[bi]-.+|.+[-:_][BIbi])")
# What seqeval calls the type of a bare "B" or "I".
_NO_TYPE = "_"
# The letters of the schemes -> those of IOBES: BILOU has L and U, BMES has M, BMEWO has W.
_PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I", "W": "S"}
# The letters that begin, go on with and end an entity, and mark one of a single word: IOB2, IOBES,
# BILOU, BMES, BMEWO.
_SCHEMES = ("BIIB", "BIES", "BILU", "BMES", "BMEW")


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> tuple[str, str]:
    """Return the prefix of a tag (B, I, E, S or O) and its type; a tag without prefix is one of I.

    Example:
        >>> [split_tag(tag) for tag in ("B-PER", "L-PER", "PER", "O")]
        [('B', 'PER'), ('E', 'PER'), ('I', 'PER'), ('O', '')]
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if not isinstance(tag, str) or not tag or tag.startswith("O-"):
        raise InputError(
            f'tag {tag!r}; allowed are "O" and B-TYPE, I-TYPE, E-TYPE, S-TYPE, like "B-PER", or '
            "TYPE alone"
        )
    prefix, dash, name = tag.partition("-")
    if prefix in _PREFIXES and (dash or prefix in "BIES"):
        return _PREFIXES[prefix], name or _NO_TYPE
    return "I", tag


def are_entities(tags: Iterable[str]) -> bool:
    """Return whether tags mark entities: O is one of them, and not the only one."""
    tags = tuple(tags)
    return OUTSIDE in tags and len(tags) > 1


def odd_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags of a task whose prefix is written in another way than B-TYPE.

    They are sure to be odd where every tag but O has a prefix, or where one begins and another goes
    on with the same type.

    Example:
        >>> odd_tags(["O", "B:PER", "I:PER"]), odd_tags(["O", "HEPATITIS_B", "HEPATITIS_C"])
        (['B:PER', 'I:PER'], [])
    """
    odd = []
    have_prefixes = True
    for tag in tags:
        if _ODD_PREFIX.fullmatch(tag):
            odd.append(tag)
        elif tag != OUTSIDE and not _has_prefix(tag):
            have_prefixes = False
    return odd if have_prefixes else odd_pairs(odd)


def _has_prefix(tag: str) -> bool:
    return tag[:1] in _PREFIXES and tag[1:2] == "-"


def odd_pairs(tags: Iterable[str]) -> list[str]:
    """Return the tags that begin and go on with the same type in another way than B-X and I-X.

    Example:
        >>> odd_pairs(["O", "B_PER", "I_PER", "HEPATITIS_B"])
        ['B_PER', 'I_PER']
    """
    letters_of_type: dict[str, set[str]] = {}
    type_of: dict[str, str] = {}
    for tag in tags:
        if not _ODD_PREFIX.fullmatch(tag):
            continue
        letter = tag[0]
        name = tag[1:]
        if tag[-2] in "-:_" and tag[-1] in "BIbi":
            letter = tag[-1]
            name = tag[:-1]
        type_of[tag] = name
        letters_of_type.setdefault(name, set()).add(letter.upper())
    return [tag for tag, name in type_of.items() if letters_of_type[name] == {"B", "I"}]


def is_iob(tags: Iterable[str]) -> bool:
    """Return whether tags are O, B-X and I-X and nothing else."""
    tags = tuple(tags)
    return are_entities(tags) and all(tag == OUTSIDE or tag[:2] in ("B-", "I-") for tag in tags)


def entity_types(tags: Iterable[str]) -> list[str]:
    """Return the types of entities that tags name, in their order."""
    types = [split_tag(tag)[1] for tag in tags if tag != OUTSIDE]
    return list(dict.fromkeys(types))


def tag_entity(tags: Iterable[str], name: str, num_words: int) -> list[str]:
    """Return the tags of an entity's words, in the scheme of a task's tags.

    It may be IOB2, IOBES, BILOU, BMES, BMEWO, or the type alone.

    Example:
        >>> tag_entity(["O", "B-PER", "I-PER"], "PER", 2), tag_entity(["O", "PER"], "PER", 2)
        (['B-PER', 'I-PER'], ['PER', 'PER'])
    """
    task_tags = set(tags)
    if name in task_tags:
        return [name] * num_words

    letters = {tag[0] for tag in task_tags if tag[1:] == f"-{name}"}
    scheme = _find_scheme(letters) or _SCHEMES[0]
    begin, inside, end, single = tuple(scheme)
    if num_words == 1:
        return [f"{single}-{name}"]
    prefixes = begin + inside * (num_words - 2) + end
    return [f"{prefix}-{name}" for prefix in prefixes]


def _find_scheme(letters: set[str]) -> str | None:
    for scheme in _SCHEMES:
        if letters and letters <= set(scheme):
            return scheme
    return None


def complete_tags(tags: Iterable[str]) -> list[str]:
    """Return tags with O first, then every letter of their scheme for each type.

    Types are in the order of the alphabet.

    Example:
        >>> complete_tags(["I-PER", "O", "B-LOC"])
        ['O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER']
    """
    plain: set[str] = set()  # types that stand alone
    letters: set[str] = set()
    names: set[str] = set()
    for tag in set(tags) - {OUTSIDE}:
        if _has_prefix(tag):
            letters.add(tag[0])
            names.add(tag[2:])
        else:
            plain.add(tag)
    scheme = _find_scheme(letters)
    if scheme is not None:
        letters = set(scheme)
    completed = [OUTSIDE]
    for name in sorted(names | plain):
        if name in plain:
            completed.append(name)
        else:
            completed += [f"{letter}-{name}" for letter in sorted(letters)]
    return completed
