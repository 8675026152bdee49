"""What the tabs of the pre-training heads show, and what they refuse."""

import re

import pytest
import torch

from bert_recipes.demo.model import DemoModel
from bert_recipes.demo.tabs import Field, answer, first_answer, tabs_of
from bert_recipes.demo.texts import MAX_CHARACTERS, check_text
from bert_recipes.demo.views import show_filled_masks, show_header, show_next_sentence
from bert_recipes.errors import InputError
from bert_recipes.inspection import fill_every_mask, judge_next_sentences


EVIL = "<script>alert(1)</script> \"><img src=x onerror='alert(2)'> ${alert(3)} {{7*7}} & </textarea>"


def shares_in(html):
    """(name, percent) of every bar."""
    bar = r'title="[^"]*">([^<]+)</span>.*?width:([\d.]+)%.*?bd-share">([^<]+)<'
    return [(name, float(width)) for name, width, _ in re.findall(bar, html)]


def test_every_mask_gets_its_own_guesses(demo_model, words_of):
    text = "the [MASK] of [MASK] a"
    html = show_filled_masks(demo_model, text, 3)
    tokenizer, network = demo_model.tokenizer, demo_model.network
    ids = [
        tokenizer.convert_tokens_to_ids(piece) for piece in ("[CLS]", "the", "[MASK]", "of", "[MASK]", "a", "[SEP]")
    ]
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([ids])).prediction_logits[0].softmax(-1)
    expected = []
    for place in (2, 4):
        values, indices = logits[place].topk(3)
        expected += zip(tokenizer.convert_ids_to_tokens(indices.tolist()), (100 * values).tolist(), strict=True)
    shown = shares_in(html)
    assert len(shown) == 6
    for (name, share), (wanted, probability) in zip(shown, expected, strict=True):
        assert name == wanted.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace(
            '"', "&quot;"
        ).replace("'", "&#x27;")
        assert share == pytest.approx(probability, abs=0.006)
    assert words_of(html).startswith(f"the {expected[0][0]} of {expected[3][0]} a")


def test_masks_behind_what_is_read_are_named(demo_model, words_of):
    html = show_filled_masks(demo_model, "[MASK] " + "a " * 200 + "[MASK]", 2)
    assert "202 pieces; the model reads 126" in words_of(html)
    assert "[MASK] 2 not read" in words_of(html)
    assert len(shares_in(html)) == 2


def test_the_part_around_the_first_mask_is_read(demo_model):
    filled = fill_every_mask(demo_model.network, demo_model.tokenizer, "a " * 200 + "[MASK] b [MASK]", 2)
    assert [guesses is None for guesses in filled.guesses] == [False, False]
    assert (filled.num_pieces, filled.num_read) == (203, 126)


def test_a_next_sentence_verdict_is_the_models(demo_model, words_of):
    html = show_next_sentence(demo_model, "the a b.", "c of d.")
    (verdict,) = judge_next_sentences(demo_model.network, demo_model.tokenizer, [("the a b.", "c of d.")])
    shown = dict(shares_in(html))
    assert shown["follows the first"] == pytest.approx(100 * verdict.is_next, abs=0.006)
    assert sum(shown.values()) == pytest.approx(100, abs=0.02)
    assert "cut off" not in words_of(html)
    assert "403 positions" in words_of(show_next_sentence(demo_model, "a " * 200, "b " * 200))


MISTAKES = {
    "no mask": ("fill_mask", ("the a", 5), "the text has no [MASK]"),
    "small mask": ("fill_mask", ("the [mask]", 5), "in capital letters"),
    "many masks": ("fill_mask", ("[MASK] " * 21, 5), "has 21 [MASK]s; the page fills 20"),
    "no guesses": ("fill_mask", ("the [MASK]", 0), "the number of guesses is 0; give a whole number from 1 to 20"),
    "an empty number": ("fill_mask", ("the [MASK]", None), "the number of guesses is empty"),
    "empty": ("fill_mask", ("  \n", 5), "the text is empty"),
    "nothing": ("pieces", (None,), "the text is empty"),
    "a number": ("pieces", (7,), "holds int"),
    "too long": ("pieces", ("a" * (MAX_CHARACTERS + 1),), "20,001 characters; the page takes 20,000"),
    "half a pair": ("pieces", ("a\ud800",), "half of a surrogate pair"),
    "one text": ("next_sentence", ("the a", ""), "the second text is empty"),
    "no text to look at": ("attention", ("", "b", 1, 1), "the first text is empty"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_in_the_page(demo_model, words_of, name):
    tab_name, values, message = MISTAKES[name]
    tab = next(tab for tab in tabs_of(demo_model) if tab.name == tab_name)
    html = answer(demo_model, tab, *values)
    assert html.startswith('<div class="bd-error"')
    assert message in words_of(html)


def test_nothing_that_is_typed_becomes_part_of_the_page(demo_model, words_of):
    for tab in tabs_of(demo_model):
        text = f"{EVIL} [MASK]" if tab.name == "fill_mask" else EVIL
        values = [text if isinstance(field.value, str) else field.value for field in tab.fields]
        html = answer(demo_model, tab, *values)
        assert "bd-error" not in html
        words_of(html)  # fails at any tag or attribute that is not ours
        assert "<script" not in html
    mistake = answer(demo_model, tabs_of(demo_model)[0], EVIL, 5)
    assert "bd-error" in mistake
    words_of(mistake)


def test_the_name_of_a_folder_becomes_no_part_of_the_page(demo_model, words_of):
    named = DemoModel("<script>x</script>", demo_model.tokenizer, demo_model.network, ())
    assert "<script>x</script>" in words_of(show_header(named))
    assert "<script" not in show_header(named)


def test_outputs_that_are_not_finite_are_one_line(demo_model, words_of):
    weight = demo_model.network.bert.embeddings.word_embeddings.weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(float("nan"))
        for tab in tabs_of(demo_model)[:3]:
            values = ["a [MASK]" if isinstance(field.value, str) else field.value for field in tab.fields]
            assert "outputs are not finite" in words_of(answer(demo_model, tab, *values))
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def test_an_example_in_an_unknown_language_is_left_out(tmp_path, small_store, words_of):
    from bert_recipes.models.bert import BertForPreTraining
    from bert_recipes.models.sizes import pretraining_config
    from bert_recipes.tokenization import load_tokenizer

    tokenizer = load_tokenizer(small_store / "tokenizer")
    network = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer)))
    model = DemoModel("m", tokenizer, network, ("fill_mask",))
    tab = tabs_of(model)[0]
    assert tab.fields[0].value == ""
    assert "Type a text" in words_of(first_answer(model, tab))


def test_the_examples_are_answered(shared_data, tmp_path):
    from bert_recipes.demo.model import open_demo_model
    from bert_recipes.models.bert import BertForPreTraining
    from bert_recipes.models.sizes import pretraining_config
    from bert_recipes.tokenization import load_tokenizer

    tokenizer = load_tokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt", do_lower_case=True)
    BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer))).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    model = open_demo_model(str(tmp_path / "model"), tmp_path / "work", use_cpu=True)
    for tab in tabs_of(model):
        assert all(isinstance(field, Field) for field in tab.fields)
        html = first_answer(model, tab)
        assert "bd-error" not in html
        assert "bd-card" in html


def test_texts_are_kept_as_they_were_typed():
    assert check_text("  a\n", "the text") == "  a\n"
    with pytest.raises(InputError, match="the text is empty"):
        check_text("\u3000", "the text")
