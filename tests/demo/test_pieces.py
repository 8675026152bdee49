"""How the page shows a text's pieces."""

import dataclasses
import re
from html import unescape

import pytest

from bert_recipes.demo.pieces import cut_text
from bert_recipes.demo.views import MAX_LISTED, show_header, show_pieces
from bert_recipes.demo.words import split_words
from bert_recipes.errors import InputError
from bert_recipes.tokenization import SPECIAL_TOKENS, load_tokenizer


def test_pieces_know_their_ids_and_where_they_are_from(demo_model):
    tokenizer = demo_model.tokenizer
    text = "The  caf\u00e9\t\u4e2d, 7!"
    cut = cut_text(tokenizer, text)
    assert cut.words == ["the", "cafe", "\u4e2d", ",", "7", "!"]
    assert [piece.piece for piece in cut.pieces] == ["the", "c", "##a", "##f", "##e", "[UNK]", ",", "7", "!"]
    assert [piece.piece_id for piece in cut.pieces] == tokenizer.encode_ids(text)
    assert [text[piece.start : piece.end] for piece in cut.pieces] == [
        "The", "c", "a", "f", "\u00e9", "\u4e2d", ",", "7", "!",
    ]  # fmt: skip
    assert [piece.is_unknown for piece in cut.pieces].index(True) == 5


def test_a_special_token_in_a_text_is_text(demo_model):
    assert [piece.piece for piece in cut_text(demo_model.tokenizer, "[SEP]").pieces] == [
        "[", "s", "##e", "##p", "]",
    ]  # fmt: skip


def test_the_view_counts_marks_and_lists(demo_model, words_of):
    html = show_pieces(demo_model, "The caf\u00e9 \u4e2d")
    words = words_of(html)
    assert "characters: 10, words: 3, pieces: 6 (2.00 a word), unknown: 1" in words
    assert "Lower-cased; accents are dropped" in words
    assert "the cafe \u4e2d" in words
    assert html.count('class="bd-chip ') == 6
    assert html.count('class="bd-chip bd-unknown"') == 1
    assert "##e 45 7 to 8 \u00e9" in words


def test_a_cased_model_keeps_case_and_accents(demo_model, tmp_path, words_of):
    pieces = [*SPECIAL_TOKENS, "The", "the", "caf", "##\u00e9"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", do_lower_case=False)
    model = dataclasses.replace(demo_model, tokenizer=tokenizer)
    words = words_of(show_pieces(model, "The caf\u00e9 the"))
    assert "Case is kept; accents are kept" in words
    assert "0 The 5 0 to 3 The 1 caf 7 4 to 7 caf 2 ##\u00e9 8 7 to 8 \u00e9 3 the 6 9 to 12 the" in words
    assert "9 pieces, cased" in words_of(show_header(model))
    assert "pieces, uncased" in words_of(show_header(demo_model))


def test_the_coloured_text_is_the_text(demo_model, words_of):
    text = "a <b>&amp; \u0130 \ufb01x\n\n\u200b\u0301 end"
    html = show_pieces(demo_model, text)
    words_of(html)  # fails at any tag that is not ours
    coloured = html.split("Where the pieces are from</h3>")[1].split("</section>")[0]
    assert unescape(re.sub(r"<[^>]*>", "", coloured)) == text


def test_a_text_of_many_pieces_is_counted_whole_and_shown_in_part(demo_model, words_of):
    html = show_pieces(demo_model, "a b " * 1_000)
    assert "pieces: 2,000 (1.00 a word)" in words_of(html)
    assert f"the first {MAX_LISTED:,} pieces" in words_of(html)
    assert html.count('class="bd-chip ') == MAX_LISTED


@pytest.mark.parametrize("text", ["\u200b\u200b", "\x00\x01"])
def test_a_text_of_which_nothing_is_left_is_one_line(demo_model, text):
    with pytest.raises(InputError, match="nothing is left"):
        show_pieces(demo_model, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Angela Merkel visited the U.N. on Monday.", "Angela Merkel visited the U.N . on Monday ."),
        ('He said: "don\'t!"', 'He said : " don\'t ! "'),
        ("  state-of-the-art\n(2020) ...", "state-of-the-art ( 2020 ) . . ."),
        ("\u201cSo?\u201d", "\u201c So ? \u201d"),
        ("", ""),
    ],
)
def test_words_lose_the_punctuation_at_their_ends(text, words):
    assert [text[start:end] for start, end in split_words(text)] == words.split()
