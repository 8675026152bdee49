"""Words, windows, max-context owners and answer positions, worked out by hand."""

import logging
import runpy
from pathlib import Path

import pytest

from bert_recipes.errors import InputError
from bert_recipes.finetuning.squad_answers import NO_ANSWER, improve_answer_span, positions_in_window
from bert_recipes.finetuning.squad_features import WindowSettings, encode_questions
from bert_recipes.finetuning.squad_windows import cut_windows, encode_context, split_words, window_owners
from bert_recipes.tasks.examples import Answer, QuestionExample


ORIGINAL = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "original_squad.py"))
PIECES = [
    *"abcdefghij",
    "born",
    "when",
    "was",
    "john",
    "smith",
    "japan",
    "##ese",
    "(",
    ")",
    "-",
    ".",
    "1895",
    "1943",
    "?",
]


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(PIECES)


def question(context, *answers, text="when?", idx="q"):
    """Answers as texts that stand in the context, or (text, start)."""
    pairs = [(item, context.index(item)) if isinstance(item, str) else item for item in answers]
    gold = tuple(Answer(text=answer, answer_start=start) for answer, start in pairs)
    return QuestionExample(idx=idx, question=text, context=context, answers=gold)


def encode(tokenizer, *questions, max_seq=32, max_query=8, stride=4, v2=False, training=True):
    settings = WindowSettings(max_seq_length=max_seq, max_query_length=max_query, doc_stride=stride)
    return encode_questions(questions, tokenizer, settings, allows_no_answer=v2, for_training=training)


def tokens_at_answer(tokenizer, feature):
    ids = feature["input_ids"][feature["start_positions"] : feature["end_positions"] + 1]
    return tokenizer.convert_ids_to_tokens(ids)


# Words and windows


def test_words_end_at_five_characters_only():
    """Source: run_squad.py `is_whitespace`; U+00A0, U+3000 and the form feed do not separate."""
    assert split_words(" a\tb\rc\nd\u202fe  f") == ["a", "b", "c", "d", "e", "f"]
    assert split_words("a\u00a0b\u3000c\x0cd") == ["a\u00a0b\u3000c\x0cd"]
    assert split_words(" \n\t") == []


def test_every_piece_knows_its_word_and_every_word_its_first_piece(tokenizer):
    context = encode_context("John  \x07 (1895-1943).", tokenizer.encode_ids)
    pieces = tokenizer.convert_ids_to_tokens(context.piece_ids.tolist())
    assert pieces == ["john", "(", "1895", "-", "1943", ")", "."]
    assert context.word_of_piece.tolist() == [0, 2, 2, 2, 2, 2, 2]
    # The control character is a word without pieces.
    assert context.first_piece.tolist() == [0, 1, 1, 7]
    assert context.word_starts.tolist() == [0, 6, 8]


@pytest.mark.parametrize(
    ("pieces", "room", "stride", "expected"),
    [
        (0, 5, 2, []),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (2, 4)]),
        (9, 5, 2, [(0, 5), (2, 5), (4, 5)]),
        (10, 5, 2, [(0, 5), (2, 5), (4, 5), (6, 4)]),
        # A stride longer than the window leaves nothing out.
        (12, 5, 9, [(0, 5), (5, 5), (10, 2)]),
    ],
)
def test_windows_start_a_stride_apart_until_the_end_is_reached(pieces, room, stride, expected):
    """Source: run_squad.py `convert_examples_to_features`, doc_spans."""
    assert cut_windows(pieces, room, stride) == expected


def test_a_piece_belongs_to_the_window_that_sees_most_around_it():
    """Source: run_squad.py `_check_is_max_context`.

    Windows 0-4 and 2-6 over seven pieces, both of length 5. Piece 2: min(2, 2) = 2 against min(0, 4) = 0. Piece 3: 1
    against 1, a tie, the first has it. Piece 4: 0 against 2.
    """
    assert window_owners([(0, 5), (2, 5)], 7).tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_of_windows_with_equal_context_the_longer_one_has_the_piece():
    """Windows 0-3 (length 4) and 1-6 (length 6). Piece 2: min(2, 1) + 0.04 = 1.04 against min(1, 4) + 0.06 = 1.06.

    With a first window of length 6 as well, the tie would go to the first.
    """
    assert window_owners([(0, 4), (1, 6)], 7).tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert window_owners([(0, 6), (3, 6)], 9).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert window_owners([(0, 6), (2, 5)], 7).tolist()[:5] == [0, 0, 0, 0, 1]


def test_questions_are_cut_and_the_window_takes_what_is_left(tokenizer):
    """Source: run_squad.py max_query_length. Of a question of 70 pieces 64 are kept; 80 - 64 - 3 = 13 are left."""
    features = encode(
        tokenizer, question(" ".join("abcdefghij" * 2), "a", text="when " * 70), max_seq=80, max_query=64, stride=10
    )
    first = features[0]
    when, sep = tokenizer.convert_tokens_to_ids(["when", "[SEP]"])
    assert first["input_ids"].count(when) == 64
    assert first["input_ids"][:2] == [tokenizer.cls_token_id, when]
    assert (first["input_ids"][65], first["input_ids"][-1]) == (sep, sep)
    assert first["token_type_ids"] == [0] * 66 + [1] * 14
    assert features.windows_of(0) == [(0, 13), (10, 10)]
    assert features.lengths.tolist() == [80, 77]
    assert [len(feature["input_ids"]) for feature in features[:]] == [80, 77]


def test_a_question_that_leaves_no_room_is_refused():
    """Source: run_squad.py `validate_flags_or_throw`."""
    with pytest.raises(InputError, match=r"max_seq_length is 67 and max_query_length 64; allowed"):
        WindowSettings(max_seq_length=67, max_query_length=64, doc_stride=16)
    assert WindowSettings(max_seq_length=68, max_query_length=64, doc_stride=16)


def test_paragraphs_are_tokenised_once_for_all_their_questions(tokenizer):
    first, second = "John was born (1895-1943).", "a b c"
    questions = [question(context, idx=str(i)) for i, context in enumerate([first, first, second, first])]
    features = encode(tokenizer, *questions, v2=True)
    assert len(features.contexts) == 2
    assert features.context_of_example.tolist() == [0, 0, 1, 0]


# Answers


def test_an_answer_inside_a_word_is_narrowed_to_its_pieces(tokenizer):
    """Source: run_squad.py `_improve_answer_span`: "1895" in "(1895-1943)."."""
    features = encode(tokenizer, question("John Smith (1895-1943).", "1895"))
    assert tokens_at_answer(tokenizer, features[0]) == ["1895"]
    # [CLS] when ? [SEP] john smith ( 1895
    assert features[0]["start_positions"] == features[0]["end_positions"] == 7


def test_an_answer_that_is_part_of_a_piece_takes_the_whole_word(tokenizer):
    """Source: run_squad.py `_improve_answer_span`: "Japan" in "Japanese" would be a piece here, "Japane" is none."""
    features = encode(tokenizer, question("a Japanese b", "Japane"))
    assert tokens_at_answer(tokenizer, features[0]) == ["japan", "##ese"]
    features = encode(tokenizer, question("a Japanese b", "Japan"))
    assert tokens_at_answer(tokenizer, features[0]) == ["japan"]


def test_the_first_span_that_equals_the_answer_is_taken():
    assert improve_answer_span([7, 8, 9, 8, 9], 10, 14, [8, 9]) == (11, 12)
    assert improve_answer_span([7, 8], 10, 11, [8, 9]) == (10, 11)
    assert improve_answer_span([7, 8], 10, 11, []) == (10, 11)
    assert ORIGINAL["improve"](list("xabcbc"), 1, 5, list("bc")) == (2, 3)


def test_a_window_without_the_whole_answer_points_at_cls(tokenizer):
    """Source: run_squad.py, out_of_span. Windows of 5 over ten pieces: 0-4, 4-8, 8-9; the answer is pieces 3-5."""
    features = encode(tokenizer, question("a b c d e f g h i j", "d e f"), max_seq=10, max_query=2, stride=4)
    assert features.windows_of(0) == [(0, 5), (4, 5), (8, 2)]
    assert features.positions.tolist() == [[0, 0], [0, 0], [0, 0]]
    features = encode(tokenizer, question("a b c d e f g h i j", "e f"), max_seq=10, max_query=2, stride=4)
    # [CLS] when ? [SEP] e f
    assert features.positions.tolist() == [[0, 0], [4, 5], [0, 0]]


def test_positions_are_counted_from_the_window():
    assert positions_in_window((4, 6), (4, 3), 10) == (10, 12)
    assert positions_in_window((4, 6), (4, 2), 10) == (0, 0)
    assert positions_in_window((4, 6), (5, 9), 10) == (0, 0)
    assert positions_in_window(NO_ANSWER, (0, 9), 10) == (0, 0)


def test_a_question_without_an_answer_points_at_cls(tokenizer):
    """Source: run_squad.py, is_impossible."""
    features = encode(tokenizer, question("a b c"), v2=True)
    assert features.positions.tolist() == [[0, 0]]


def test_training_answers_that_the_words_do_not_hold_are_left_out_counted_and_named(tokenizer, caplog):
    """Source: run_squad.py `read_squad_examples`, "Could not find answer".

    A no-break space is part of a word for the paragraph and a space for the answer.
    """
    bad = [question("a b\u00a0c d", "b\u00a0c", idx=f"bad{number}") for number in range(5)]
    good = question("a b d", "b", idx="good")
    with caplog.at_level(logging.INFO):
        features = encode(tokenizer, bad[0], good, *bad[1:])
    assert features.dropped == ["bad0", "bad1", "bad2", "bad3", "bad4"]
    assert len(features) == 1
    assert features.example_of_feature.tolist() == [1]
    assert tokens_at_answer(tokenizer, features[0]) == ["b"]
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "5 of 6 training questions are left out: the words of their paragraphs do not hold their answers "
        "(bad0, bad1, bad2, ...)"
    )


def test_prediction_keeps_such_a_question_without_a_label(tokenizer):
    features = encode(tokenizer, question("a b\u00a0c d", "b\u00a0c"), question("a b d", "b"), training=False)
    assert features.positions.tolist() == [[-100, -100], [5, 5]]
    assert features.dropped == []


def test_hidden_answers_give_features_without_labels(tokenizer):
    hidden = QuestionExample(idx="q7", question="when", context="a b", answers=None)
    features = encode(tokenizer, question("a b", "a"), hidden, training=False)
    assert features.positions is None
    assert "start_positions" not in features[0]
    with pytest.raises(InputError, match="question q7: its answers are hidden"):
        encode(tokenizer, hidden)


def test_of_several_training_answers_the_first_is_taken_and_that_is_logged(tokenizer, caplog):
    with caplog.at_level(logging.INFO):
        features = encode(tokenizer, question("a b c", "c", "a"))
    assert tokens_at_answer(tokenizer, features[0]) == ["c"]
    assert "1 of 1 training questions have several answers" in caplog.text


@pytest.mark.parametrize("training", [True, False])
def test_a_question_without_an_answer_is_refused_in_squad_1(tokenizer, training):
    with pytest.raises(
        InputError, match=r"question q3 has no answer, but the task is SQuAD 1\.1; take --task squad_v2"
    ):
        encode(tokenizer, question("a b", "a"), question("a b", idx="q3"), training=training)


@pytest.mark.parametrize("answer", [("c", 99), ("b c d", 2), ("a", -1)])
def test_an_answer_outside_its_paragraph_is_refused(tokenizer, answer):
    with pytest.raises(InputError, match=r"question q: the answer .* does not lie in its paragraph of 5 characters"):
        encode(tokenizer, question("a b c", answer))


def test_a_paragraph_without_words_has_no_windows(tokenizer):
    features = encode(tokenizer, question(" \n", idx="x"), question("a", idx="y"), v2=True)
    assert features.first_feature.tolist() == [0, 0, 1]
    assert len(features) == 1
