import pytest

from bert_recipes.tags import OUTSIDE, complete_tags, tag_entity


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
