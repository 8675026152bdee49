import pytest

from bert_recipes.scripts import MOST_UNKNOWN, describe_unknown, name_script


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("The quick fox, 12", "Latin"),
        ("Швидка лисиця and a dog", "Cyrillic"),
        ("北京在哪里", "Han"),
        ("ไม่มีช่องว่าง", "Thai"),
        ("هذا المطعم", "Arabic"),
        ("", "no letters"),
        ("12 + 3 😀", "no letters"),
    ],
)
def test_the_script_of_a_text_is_that_of_most_letters(text, script):
    assert name_script(text) == script


def test_few_unknown_words_are_not_spoken_of():
    assert describe_unknown({}, 0) is None
    assert describe_unknown({"Latin": 5}, 100) is None
    assert MOST_UNKNOWN == 5 / 100
    said = describe_unknown({"Latin": 5, "Thai": 20}, 100)
    assert said is not None
    assert said.startswith("25.0% of the tokens are [UNK]")
    assert said.endswith("most are in text with script Thai")
