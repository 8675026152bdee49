"""Each rule of the decoders and of the re-alignment, worked out by hand."""

import math

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.finetuning.answer_text import AnswerTexts, OffsetTexts, join_pieces, realign
from bert_recipes.finetuning.squad_decoding import (
    DecoderSettings,
    WindowLogits,
    check_finite,
    decode_offsets,
    decode_original,
)
from bert_recipes.finetuning.squad_windows import encode_context


V1 = DecoderSettings()
V2 = DecoderSettings(allows_no_answer=True)
LOW = -50.0


def window(size, starts, ends, *, first_piece=0, owned=None, null=(LOW, LOW), first_position=2, length=None):
    """A window of `size` pieces after [CLS] and [SEP]; starts and ends: piece of the window -> logit, all else is LOW."""
    total = first_position + size + 1 if length is None else length
    start, end = np.full(total, LOW, np.float32), np.full(total, LOW, np.float32)
    start[0], end[0] = null
    for logits, given in ((start, starts), (end, ends)):
        for piece, logit in given.items():
            logits[first_position + piece] = logit
    return WindowLogits(start, end, first_position, first_piece, np.ones(size, bool) if owned is None else owned)


def span_name(first, last):
    return f"{first}-{last}"


def texts(answer):
    return [entry.text for entry in answer.nbest]


# Candidates


def test_the_best_sum_of_start_and_end_is_the_answer():
    """Source: run_squad.py `write_predictions`. Sums: 2-3 5+4, 4-4 6+2, 2-4 5+2; 4-3 ends before it starts."""
    answer = decode_original([window(6, {2: 5, 4: 6}, {3: 4, 4: 2})], span_name, DecoderSettings(n_best_size=2))
    assert texts(answer) == ["2-3", "4-4"]
    assert (answer.text, answer.best_text, answer.null_odds) == ("2-3", "2-3", None)
    assert [(entry.start_logit, entry.end_logit) for entry in answer.nbest] == [(5.0, 4.0), (6.0, 2.0)]
    # Softmax of 9 and 8.
    assert answer.nbest[0].probability == pytest.approx(1 / (1 + math.exp(-1)))
    assert sum(entry.probability for entry in answer.nbest) == pytest.approx(1)


def test_an_answer_of_30_pieces_is_allowed_and_one_of_31_is_not():
    """Source: run_squad.py max_answer_length."""
    settings = DecoderSettings(n_best_size=1)
    assert decode_original([window(40, {1: 9}, {30: 9})], span_name, settings).text == "1-30"
    assert decode_original([window(40, {1: 9}, {31: 9})], span_name, settings).text == "empty"


def test_only_the_n_best_starts_and_ends_are_looked_at():
    """Starts 0 and 1 are the two best; their sum with end 2 is beaten by none of the others, which are not considered."""
    starts, ends = {0: 9, 1: 8, 2: 7}, {2: 9, 3: 8, 4: 7}
    answer = decode_original([window(8, starts, ends)], span_name, DecoderSettings(n_best_size=2))
    assert texts(answer) == ["0-2", "0-3"]
    # All four are valid, and the n-best list holds two.
    answer = decode_original([window(8, starts, ends)], lambda first, last: "same", DecoderSettings(n_best_size=2))
    assert texts(answer) == ["same"]


def test_positions_outside_the_paragraph_use_up_places_but_are_no_answers():
    """Source: run_squad.py, token_to_orig_map. The question at position 1, the last [SEP] and padding are best here."""
    logits = window(4, {1: 5}, {2: 5}, length=12)
    for outside in (1, 6, 9):
        logits.start[outside] = logits.end[outside] = 10
    assert decode_original([logits], span_name, DecoderSettings(n_best_size=4)).text == "1-2"
    assert decode_original([logits], span_name, DecoderSettings(n_best_size=3)).text == "empty"


def test_answers_start_only_where_the_window_sees_most():
    """Source: run_squad.py, token_is_max_context. The end may lie where another window sees more."""
    owned = np.array([True, True, False, False])
    answer = decode_original([window(4, {1: 1, 2: 9}, {3: 5}, owned=owned)], span_name, DecoderSettings(n_best_size=2))
    assert answer.text == "1-3"
    assert "2-3" not in texts(answer)
    assert decode_offsets([window(4, {1: 1, 2: 9}, {3: 5}, owned=owned)], span_name, V1).text == "2-3"


def test_pieces_are_numbered_in_the_paragraph_whatever_the_window():
    windows = [window(4, {0: 1}, {1: 1}), window(4, {0: 2}, {1: 2}, first_piece=3)]
    assert decode_original(windows, span_name, V1).text == "3-4"


def test_of_equal_sums_the_earlier_window_then_the_better_start_comes_first():
    """Python's sort is stable in both directions. 1-2: 4+3, 0-2: 3+3 and 0-3: 3+4."""
    answer = decode_original([window(5, {1: 4, 0: 3}, {3: 3, 2: 3})], span_name, DecoderSettings(n_best_size=4))
    assert texts(answer) == ["1-2", "1-3", "0-2", "0-3"]
    windows = [window(3, {0: 1}, {1: 1}), window(3, {0: 1}, {1: 1}, first_piece=7)]
    assert texts(decode_original(windows, span_name, V1))[:2] == ["0-1", "7-8"]


def test_logits_are_added_in_double_precision():
    """2**24 + 1 is no float32: in single precision both sums would be equal, and the first would win."""
    windows = [window(2, {0: 2**24}, {0: 0.0}), window(2, {0: 2**24}, {0: 1.0}, first_piece=5)]
    assert decode_original(windows, span_name, V1).text == "5-5"
    assert decode_offsets(windows, span_name, V1).text == "0-0"


# The n-best list


def test_a_text_enters_once_and_the_next_candidate_takes_its_place():
    """Source: run_squad.py, seen_predictions."""
    names = {(0, 1): "Tesla", (1, 1): "Tesla", (0, 2): "Tesla,", (1, 2): "x", (2, 2): "y"}
    logits = [window(3, {0: 5, 1: 4, 2: 1}, {1: 5, 2: 3})]
    settings = DecoderSettings(n_best_size=3)
    answer = decode_original(logits, lambda *span: names[span], settings)
    assert texts(answer) == ["Tesla", "Tesla,", "x"]
    assert answer.nbest[0].start_logit == 5
    assert texts(decode_offsets(logits, lambda *span: names[span], settings)) == ["Tesla", "Tesla", "Tesla,"]


def test_without_any_candidate_the_answer_is_empty_with_logits_0():
    """Source: run_squad.py, "In very rare edge cases we could have no valid predictions"."""
    for windows in ([], [window(40, {35: 9}, {2: 9}, owned=np.zeros(40, bool))]):
        answer = decode_original(windows, span_name, V1)
        assert [(entry.text, entry.probability, entry.start_logit, entry.end_logit) for entry in answer.nbest] == [
            ("empty", 1.0, 0.0, 0.0)
        ]
        assert answer.text == "empty"


# SQuAD 2.0


def test_the_null_score_is_the_least_of_all_windows():
    """Source: run_squad.py, score_null. Windows 3+1 and 0+2; the best span has 4+5, so the odds are 2 - 9."""
    windows = [
        window(3, {0: 4}, {1: 5}, null=(3, 1)),
        window(3, {0: 1}, {1: 1}, first_piece=3, null=(0, 2)),
    ]
    answer = decode_original(windows, span_name, V2)
    assert answer.null_odds == -7.0
    null = next(entry for entry in answer.nbest if entry.text == "")
    assert (null.start_logit, null.end_logit) == (0.0, 2.0)
    # Of equal null scores the first window's logits are kept.
    windows[1].start[0], windows[1].end[0] = 1, 3
    null = next(entry for entry in decode_original(windows, span_name, V2).nbest if entry.text == "")
    assert (null.start_logit, null.end_logit) == (3.0, 1.0)


@pytest.mark.parametrize(("threshold", "expected"), [(-7.5, ""), (-7.0, "0-1"), (-6.5, "0-1"), (0.0, "0-1")])
def test_the_answer_is_null_only_where_the_odds_exceed_the_threshold(threshold, expected):
    """Source: run_squad.py null_score_diff_threshold: odds of -7 are not greater than a threshold of -7."""
    settings = DecoderSettings(allows_no_answer=True, null_score_diff_threshold=threshold)
    for decoder in (decode_original, decode_offsets):
        answer = decoder([window(3, {0: 4}, {1: 5}, null=(0, 2))], span_name, settings)
        assert (answer.text, answer.best_text, answer.null_odds) == (expected, "0-1", -7.0)


def test_null_is_added_where_the_list_is_full_without_it():
    """Source: run_squad.py, "if we didn't inlude the empty option": the list then has one entry more."""
    settings = DecoderSettings(allows_no_answer=True, n_best_size=2)
    answer = decode_original([window(4, {0: 9, 1: 8}, {2: 9, 3: 8}, null=(1, 1))], span_name, settings)
    assert texts(answer) == ["0-2", "0-3", ""]
    assert answer.nbest[-1].start_logit == 1.0


def test_null_stands_in_the_list_at_its_rank():
    answer = decode_original([window(2, {0: 9, 1: 3}, {1: 9}, null=(7, 7))], span_name, V2)
    assert texts(answer)[:3] == ["0-1", "", "1-1"]
    assert (answer.text, answer.null_odds) == ("0-1", -4.0)


@pytest.mark.parametrize("threshold", [-1e9, 0.0, 1e9])
def test_a_question_without_a_single_span_has_no_answer_whatever_the_threshold(threshold):
    """The original crashes here (google-research/bert PR #1106): nothing but "" in the list, so no best_non_null_entry.

    The odds are those against logits of 0, which the original gives to "empty" in SQuAD 1.1.
    """
    settings = DecoderSettings(allows_no_answer=True, n_best_size=1, null_score_diff_threshold=threshold)
    none_owned = window(3, {1: 9}, {1: 9}, owned=np.zeros(3, bool), null=(1, 2))
    # The best start and the best end are those of [CLS].
    null_on_top = window(3, {1: 3}, {2: 4}, null=(10, 10))
    for windows, odds in (([none_owned], 3.0), ([null_on_top], 20.0), ([], 1e6)):
        answer = decode_original(windows, span_name, settings)
        assert (texts(answer), answer.text, answer.best_text, answer.null_odds) == ([""], "", "", odds)
        assert answer.nbest[0].probability == 1.0


@pytest.mark.parametrize("n_best_size", [1, 2, 3])
def test_a_list_holds_a_text_wherever_there_is_a_span(n_best_size):
    """So that the case above is the only one without: random logits with a strong [CLS], against all valid spans."""
    rng = np.random.default_rng(6)
    settings = DecoderSettings(allows_no_answer=True, n_best_size=n_best_size)
    without = 0
    for _ in range(300):
        windows = []
        for number in range(rng.integers(1, 4)):
            logits = rng.integers(-3, 4, (2, 7)).astype(np.float32)
            logits[:, 0] += rng.integers(0, 4)
            windows.append(WindowLogits(*logits, 2, 4 * number, rng.random(4) < 0.7))
        first_version = decode_original(windows, span_name, DecoderSettings(n_best_size=n_best_size))
        has_span = first_version.text != "empty"
        answer = decode_original(windows, span_name, settings)
        assert bool(answer.best_text) == has_span
        assert (texts(answer) != [""]) == has_span
        without += not has_span
    assert 0 < without < 300


def test_the_offsets_decoder_answers_empty_there():
    """Source: utils_qa.py, "we create a fake prediction to avoid failure"."""
    windows = [window(40, {39: 9}, {0: 9}, null=(10, 10))]
    settings = DecoderSettings(allows_no_answer=True, n_best_size=1)
    answer = decode_offsets(windows, span_name, settings)
    assert texts(answer) == ["empty", ""]
    assert (answer.text, answer.null_odds) == ("", 20.0)
    assert decode_offsets([], span_name, V1).text == "empty"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad):
    windows = [window(3, {}, {}), window(3, {}, {1: bad}, first_piece=3)]
    check_finite(windows[:1], "q1")
    with pytest.raises(InputError, match="question q1: the model's outputs are not finite"):
        check_finite(windows, "q1")


# Texts


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["steve", "sm", "##ith"], "steve smith"),
        (["##ith", "'", "s"], "ith ' s"),
        (["##ith"], "ith"),
        (["a", "[UNK]", "##b"], "a [UNK]b"),
    ],
)
def test_pieces_are_joined_to_words(pieces, expected):
    """Source: run_squad.py, "De-tokenize WordPieces that have been split off"."""
    assert join_pieces(pieces) == expected


@pytest.mark.parametrize(
    ("predicted", "original", "normalized", "expected"),
    [
        # The example of the original's comment.
        ("steve smith", "Steve Smith's", "steve smith ' s", "Steve Smith"),
        ("1895", "(1895-1943).", "( 1895 - 1943 ) .", "1895"),
        # Accents are dropped, one character for one.
        ("beyonce", "Beyonc\u00e9,", "beyonce ,", "Beyonc\u00e9"),
        # In decomposed form the accent is a character of its own: the lengths differ.
        ("beyonce", "Beyonce\u0301,", "beyonce ,", "Beyonce\u0301,"),
        # A no-break space is no space for the alignment, and the tokenizer drops it.
        ("b", "a\u00a0b,", "a b ,", "a\u00a0b,"),
        # A control character is dropped: one character too few.
        ("b", "a\x07 b", "a b", "a\x07 b"),
        # Not there at all.
        ("[UNK]", "\U0001f600", "\U0001f600", "\U0001f600"),
        # The first of several places.
        ("a", "b A a", "b a a", "A"),
        # Also inside a word: the piece "s" after the apostrophe was meant.
        ("s", "Smith's", "smith ' s", "S"),
        ("' s", "Smith's", "smith ' s", "'s"),
    ],
)
def test_answers_are_aligned_to_the_original_characters(predicted, original, normalized, expected):
    """Source: run_squad.py `get_final_text`."""
    assert realign(predicted, original, normalized) == expected


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(["steve", "sm", "##ith", "'", "s", "the", "caf", "##e", ",", "(", ")", "1895", "-"])


def test_span_texts_come_from_the_words_of_the_paragraph(tokenizer):
    """Pieces: the, steve, sm, ##ith, ', s, (, 1895, -, caf, ##e, ). Spaces of the paragraph become single ones."""
    paragraph = "The  Steve\n Smith's (1895-Caf\u00e9)"
    context = encode_context(paragraph, tokenizer.encode_ids)
    assert len(context.piece_ids) == 12
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    original = AnswerTexts(paragraph, context, pieces, tokenizer.normalize)
    offsets = OffsetTexts(paragraph, context, tokenizer)
    spans = {(1, 3): "Steve Smith", (0, 1): "The Steve", (7, 7): "1895", (9, 10): "Caf\u00e9", (4, 5): "'s"}
    assert {span: original(*span) for span in spans} == spans
    assert original(3, 3) == "ith"
    spans |= {(1, 3): "Steve\n Smith", (0, 1): "The  Steve"}
    assert {span: offsets(*span) for span in spans} == spans
