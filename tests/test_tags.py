import pytest

from bert_recipes.tags import OUTSIDE, complete_tags, odd_pairs, odd_tags, tag_entity


SCHEMES = {
    "IOB2": ("B-X", "B-X I-X I-X"),
    "IOBES": ("S-X", "B-X I-X E-X"),
    "BILOU": ("U-X", "B-X I-X L-X"),
    "BMES": ("S-X", "B-X M-X E-X"),
    "BMEWO": ("W-X", "B-X M-X E-X"),
    "plain": ("X", "X X X"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_entity_is_tagged_in_the_scheme_of_the_labels(scheme):
    single, several = SCHEMES[scheme]
    tags = [OUTSIDE, single, *several.split(), "B-Y"]
    assert tag_entity(tags, "X", 1) == [single]
    assert tag_entity(tags, "X", 3) == several.split()
    assert set(tag_entity(complete_tags([single, *several.split()]), "X", 2)) <= set(tags)


@pytest.mark.parametrize(
    ("tags", "odd"),
    [
        ("O B_PER I_PER", "B_PER I_PER"),
        ("O B_PER B_LOC", "B_PER B_LOC"),
        ("O B_PER I_PER MISC", "B_PER I_PER"),
        ("O B-PER I-PER B_LOC", "B_LOC"),
        ("O PER-B PER-I", "PER-B PER-I"),
        ("O HEPATITIS_B HEPATITIS_C", ""),
        ("O B-HEPATITIS_B I-HEPATITIS_B", ""),
        ("O B_cell T_cell", ""),
    ],
)
def test_tags_are_odd_where_they_are_sure_to_have_another_prefix(tags, odd):
    assert odd_tags(tags.split()) == odd.split()


def test_a_part_of_the_tags_is_odd_only_in_pairs():
    """What a few rows hold says nothing of a task's other tags."""
    assert odd_pairs(["O", "HEPATITIS_B"]) == []
    assert odd_pairs(["B:PER", "I:PER", "HEPATITIS_B"]) == ["B:PER", "I:PER"]
