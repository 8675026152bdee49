"""SQuAD: features, decoders and answer texts, worked out by hand and held to run_squad.py's rules
(original_squad.py).
"""

import functools
import logging
import random
import runpy
import string
from pathlib import Path

import numpy as np
import pytest

from bert_recipes.finetuning.arguments import DECODERS, TaskArguments
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.finetuning.squad import (
    WindowLogits,
    cut_windows,
    decode_answer,
    encode_context,
    encode_questions,
    offset_texts,
    original_texts,
    realign,
    split_words,
    window_owners,
)
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Answer, QuestionExample, Split
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS


FIXTURES = Path(__file__).parents[1] / "fixtures"
ORIGINAL, RULES = (
    runpy.run_path(str(FIXTURES / name)) for name in ("original_squad.py", "original_rules.py")
)
DEV_FILES = ("dev-v1.1.json", "dev-v2.0.json", "squadshifts_amazon-v1.1.json")
TRAIN_FILES = ("train-v1.1.json", "train-v2.0.json")
VOCABULARIES = ("uncased", "cased")
# (max_seq_length, doc_stride, max_query_length, pad_to_max_length): the original's, and many
# windows
LENGTHS = ((384, 128, 64, False), (48, 16, 12, False), (64, 24, 20, True))
PIECES = [
    *"abcdefghij",
    *[
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
    ],
]


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(PIECES)


def question(context, *answers, text="when?", idx="q"):
    """Answers as texts that stand in the context, or (text, start)."""
    pairs = [(item, context.index(item)) if isinstance(item, str) else item for item in answers]
    gold = tuple(Answer(text=answer, answer_start=start) for answer, start in pairs)
    return QuestionExample(idx=idx, question=text, context=context, answers=gold)


def encode(tokenizer, *questions, training=True):
    settings = TaskArguments(task="squad", max_seq_length=32, max_query_length=8, doc_stride=4)
    split = Split(name="train", examples=questions, source="made", num_rows=len(questions))
    return encode_questions(split, tokenizer, settings, for_training=training)


def tokens_at_answer(tokenizer, feature):
    ids = feature["input_ids"][feature["start_positions"] : feature["end_positions"] + 1]
    return tokenizer.convert_ids_to_tokens(ids)


def test_words_end_at_five_characters_only():
    """Source: run_squad.py `is_whitespace`; U+00A0, U+3000 and the form feed do not separate."""
    assert split_words(" a\tb\rc\nd\u202fe  f") == ["a", "b", "c", "d", "e", "f"]
    assert split_words("a\u00a0b\u3000c\x0cd") == ["a\u00a0b\u3000c\x0cd"]
    assert split_words(" \n\t") == []


@pytest.mark.parametrize(
    ("pieces", "room", "stride", "expected"),
    [
        (0, 5, 2, []),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (2, 6)]),
        (9, 5, 2, [(0, 5), (2, 7), (4, 9)]),
        (10, 5, 2, [(0, 5), (2, 7), (4, 9), (6, 10)]),
        # A stride longer than the window leaves nothing out.
        (12, 5, 9, [(0, 5), (5, 10), (10, 12)]),
    ],
)
def test_windows_start_a_stride_apart_until_the_end_is_reached(pieces, room, stride, expected):
    """Source: run_squad.py `convert_examples_to_features`, doc_spans."""
    assert cut_windows(pieces, room, stride) == expected


def test_a_piece_belongs_to_the_window_that_sees_most_around_it():
    """Source: run_squad.py `_check_is_max_context`.

    Windows 0-4 and 2-6 over seven pieces, both of length 5. Piece 2: min(2, 2) = 2 against min(0,
    4) = 0. Piece 3: 1 against 1, a tie, the first has it. Piece 4: 0 against 2.
    """
    assert window_owners([(0, 5), (2, 7)], np.ones(7, int)).tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_an_answer_inside_a_word_is_narrowed_to_its_pieces(tokenizer):
    """Source: run_squad.py `_improve_answer_span`: "1895" in "(1895-1943)."."""
    features = encode(tokenizer, question("John Smith (1895-1943).", "1895"))
    assert tokens_at_answer(tokenizer, features[0]) == ["1895"]
    # [CLS] when ? [SEP] john smith ( 1895
    assert features[0]["start_positions"] == features[0]["end_positions"] == 7


def test_training_answers_that_the_words_do_not_hold_are_left_out_counted_and_named(
    tokenizer, caplog
):
    """Source: run_squad.py `read_squad_examples`, "Could not find answer".

    A no-break space is part of a word for the paragraph and a space for the answer.
    """
    bad = [question("a b\u00a0c d", "b\u00a0c", idx=f"bad{number}") for number in range(5)]
    good = question("a b d", "b", "a", idx="good")
    with caplog.at_level(logging.INFO):
        features = encode(tokenizer, bad[0], good, *bad[1:])
    assert features.dropped == ["bad0", "bad1", "bad2", "bad3", "bad4"]
    assert features.windows.tolist() == [[1, 0, 3]]
    assert tokens_at_answer(tokenizer, features[0]) == ["b"]
    assert [record.getMessage() for record in caplog.records] == [
        "5 of 6 training questions are left out: the words of their paragraphs do not hold their "
        "answers "
        "(bad0, bad1, bad2, ...)",
        "1 of 6 training questions have several answers: the first of each is trained on",
    ]
    # For a prediction they are kept, without a label.
    features = encode(tokenizer, bad[0], good, training=False)
    assert features.positions.tolist() == [[-100, -100], [5, 5]]
    assert features.dropped == []


# Letters of scripts that part no words by spaces; Japanese and Thai words are cut into ## pieces,
# Chinese into characters.
UNSPACED = {
    "Chinese": "北岛林夏港口工作早上送信午",
    "Japanese": "あいうえおカキクケコ東京駅",
    "Thai": "กขคงจฉชซฌญฐดต",
}


def ask_for_later_occurrences(letters, number=60):
    """Make questions about paragraphs in which the answer stands two to four times; a later one
    than the first is annotated.
    """
    draw = random.Random(1)
    questions = []
    for index in range(number):
        answer = "".join(draw.sample(letters, 2))
        parts = [
            "".join(draw.choices(letters, k=draw.randint(1, 15))) for _ in range(draw.randint(3, 5))
        ]
        which = draw.randrange(1, len(parts) - 1)
        start = len(answer.join(parts[: which + 1]))
        questions.append(question(answer.join(parts), (answer, start), text="a", idx=str(index)))
    return questions


@pytest.mark.parametrize("script", UNSPACED)
def test_the_annotated_occurrence_is_trained_on_in_scripts_without_spaces(make_tokenizer, script):
    """run_squad.py takes the paragraph for one word, and trains on the first place where the
    answer's pieces stand in it.
    """
    letters = UNSPACED[script]
    tokenizer = make_tokenizer([*letters, *(f"##{letter}" for letter in letters), "a"])
    questions = ask_for_later_occurrences(letters)
    features = encode(tokenizer, *questions)
    num_trained = 0
    for feature, (number, first_piece, _) in zip(features, features.windows.tolist(), strict=True):
        context, asked = features.contexts[number], questions[number]
        assert context.piece_ids.tolist() == tokenizer.encode_ids(asked.context)
        if feature["start_positions"] == 0:
            continue  # another window holds it
        before = tokenizer.layout.start_of_second(len(features.queries[number]))
        first, last = (
            feature[name] - before + first_piece for name in ("start_positions", "end_positions")
        )
        start, end = context.offsets[first][0], context.offsets[last][1]
        assert (asked.context[start:end], start) == (
            asked.answers[0].text,
            asked.answers[0].answer_start,
        )
        num_trained += 1
    assert num_trained >= len(questions)
    assert features.dropped == []


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("script", UNSPACED)
def test_right_logits_give_the_answers_of_scripts_without_spaces(make_tokenizer, script, decoder):
    letters = UNSPACED[script]
    tokenizer = make_tokenizer([*letters, *(f"##{letter}" for letter in letters), "a"])
    questions = ask_for_later_occurrences(letters)
    settings = TaskArguments(
        task="squad", max_seq_length=32, max_query_length=8, doc_stride=4, decoder=decoder
    )
    kind = QuestionAnswering(get_task("squad"), tokenizer, settings, {})
    encoded = kind.encode(
        Split(name="train", examples=questions, source="made", num_rows=len(questions))
    )
    outputs = []
    for feature in encoded.features:
        logits = np.full((2, len(feature["input_ids"])), -20, np.float32)
        logits[0, feature["start_positions"]] = logits[1, feature["end_positions"]] = 5
        outputs.append(logits)
    predictions = kind.decode(encoded, outputs)
    assert [prediction.value for prediction in predictions] == [
        asked.answers[0].text for asked in questions
    ]
    assert kind.score(questions, predictions)["exact_match"] == 100.0


def test_hidden_answers_give_features_without_labels_and_no_words_no_windows(tokenizer):
    hidden = QuestionExample(idx="q7", question="when", context=" \n", answers=None)
    features = encode(tokenizer, question("a b", "a"), hidden, training=False)
    assert features.positions is None
    assert "start_positions" not in features[0]
    assert features.windows.tolist() == [[0, 0, 2]]
    assert features.windows_of(1, [np.zeros((2, 4))]) == []


# Decoding


def window(starts, ends, *, size=3, first_piece=0, owned=True, null=(-50, -50)):
    """A window of `size` pieces after [CLS] and [SEP]; starts and ends: piece of the window ->
    logit, all else is -50.
    """
    logits = np.full((2, size + 3), -50, np.float32)
    logits[:, 0] = null
    for row, given in zip(logits, (starts, ends), strict=True):
        for piece, logit in given.items():
            row[2 + piece] = logit
    return WindowLogits(logits, 2, first_piece, np.full(size, owned))


def decode(*windows, v2=False, **settings):
    settings = TaskArguments(task="squad", **settings)
    return decode_answer(
        "q", windows, lambda first, last: f"{first}-{last}", settings, allows_no_answer=v2
    )


def test_an_answer_of_30_pieces_is_allowed_and_one_of_31_is_not():
    """Source: run_squad.py max_answer_length."""
    assert decode(window({1: 9}, {30: 9}, size=40), n_best_size=1).value == "1-30"
    assert decode(window({1: 9}, {31: 9}, size=40), n_best_size=1).value == "empty"


def test_logits_are_added_in_double_precision():
    """2**24 + 1 is no float32: in single precision both sums would be equal, and the first would
    win.
    """
    windows = [
        window({0: 2**24}, {0: 0.0}, size=2),
        window({0: 2**24}, {0: 1.0}, size=2, first_piece=5),
    ]
    assert decode(*windows).value == "5-5"
    assert decode(*windows, decoder="offsets").value == "0-0"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("threshold", "expected"), [(-7.5, ""), (-7.0, "0-1"), (-6.5, "0-1"), (0.0, "0-1")]
)
def test_the_answer_is_null_only_where_the_odds_exceed_the_threshold(threshold, expected, decoder):
    """Source: run_squad.py null_score_diff_threshold: odds of -7 are not greater than a threshold
    of -7.
    """
    windows = [
        window({0: 4}, {1: 5}, null=(0, 2)),
        window({0: 1}, {1: 1}, first_piece=3, null=(3, 1)),
    ]
    answer = decode(*windows, v2=True, decoder=decoder, null_score_diff_threshold=threshold)
    assert (answer.value, answer.best_text, answer.null_odds) == (expected, "0-1", -7.0)


@pytest.mark.parametrize("threshold", [-1e9, 0.0, 1e9])
def test_a_question_without_a_single_span_has_no_answer_whatever_the_threshold(threshold):
    """The original crashes here (google-research/bert PR #1106): nothing but "" in the list, so no
    best_non_null_entry.

    The odds are those against logits of 0, which the original gives to "empty" in SQuAD 1.1.
    """
    none_owned = window({1: 9}, {1: 9}, owned=False, null=(1, 2))
    # The best start and the best end are those of [CLS].
    null_on_top = window({1: 3}, {2: 4}, null=(10, 10))
    for windows, odds in (([none_owned], 3.0), ([null_on_top], 20.0), ([], 1e6)):
        answer = decode(*windows, v2=True, n_best_size=1, null_score_diff_threshold=threshold)
        assert (answer.value, answer.best_text, answer.null_odds, answer.probabilities) == (
            "",
            "",
            odds,
            1.0,
        )
        assert [entry.text for entry in answer.nbest] == [""]


def test_the_offsets_decoder_answers_empty_there():
    """Source: utils_qa.py, "we create a fake prediction to avoid failure"."""
    answer = decode(
        window({2: 9}, {0: 9}, null=(10, 10)), v2=True, n_best_size=1, decoder="offsets"
    )
    assert [entry.text for entry in answer.nbest] == ["empty", ""]
    assert (answer.value, answer.null_odds) == ("", 20.0)
    assert decode(decoder="offsets").value == "empty"


# Texts


@pytest.mark.parametrize(
    ("predicted", "original", "normalized", "expected"),
    [
        # The example of the original's comment.
        ("steve smith", "Steve Smith's", "steve smith ' s", "Steve Smith"),
        # Accents are dropped, one character for one; in decomposed form the lengths differ.
        ("beyonce", "Beyonc\u00e9,", "beyonce ,", "Beyonc\u00e9"),
        ("beyonce", "Beyonce\u0301,", "beyonce ,", "Beyonce\u0301,"),
        # Not there at all.
        ("[UNK]", "\U0001f600", "\U0001f600", "\U0001f600"),
        # The first of several places, also inside a word: the piece "s" after the apostrophe was
        # meant.
        ("s", "Smith's", "smith ' s", "S"),
    ],
)
def test_answers_are_aligned_to_the_original_characters(predicted, original, normalized, expected):
    """Source: run_squad.py `get_final_text`."""
    assert realign(predicted, original, normalized) == expected


def test_span_texts_come_from_the_words_of_the_paragraph(make_tokenizer):
    """Pieces: the, steve, sm, ##ith, ', s, (, 1895, -, caf, ##e, ). Spaces of the paragraph become
    single ones.
    """
    steve = make_tokenizer(
        ["steve", "sm", "##ith", "'", "s", "the", "caf", "##e", ",", "(", ")", "1895", "-"]
    )
    paragraph = "The  Steve\n Smith's (1895-Caf\u00e9)"
    context = encode_context(paragraph, steve.encode_ids)
    assert len(context.piece_ids) == 12
    pieces = steve.convert_ids_to_tokens(list(range(len(steve))))
    original = original_texts(context, pieces, steve.normalize)
    offsets = offset_texts(context, steve)
    spans = {
        (1, 3): "Steve Smith",
        (0, 1): "The Steve",
        (7, 7): "1895",
        (9, 10): "Caf\u00e9",
        (4, 5): "'s",
    }
    assert {span: original(*span) for span in spans} == spans
    assert original(3, 3) == "ith"
    spans |= {(1, 3): "Steve\n Smith", (0, 1): "The  Steve"}
    assert {span: offsets(*span) for span in spans} == spans


# Against the original


@pytest.fixture(scope="module", params=VOCABULARIES)
def tools(request, shared_data):
    return make_tools(
        shared_data / "vocab" / f"bert-base-{request.param}-vocab.txt",
        lower=request.param == "uncased",
    )


@pytest.fixture(scope="module", params=VOCABULARIES)
def made_tools(request, tmp_path_factory):
    """The same with a vocabulary of letters, marks and a few words."""
    letters = [
        *string.ascii_letters,
        *string.digits,
        *"\u00e9\u00df\u03c3\u03a3\u03b1\u0391\u4e2d\u0915",
    ]
    words = ["the", "cafe", "steve", "Steve", "smith", "##mith", "##eill", "##an", "##bul", "##xx"]
    pieces = [
        *SPECIAL_TOKENS,
        *letters,
        *(f"##{letter}" for letter in letters),
        *string.punctuation,
        *words,
    ]
    path = tmp_path_factory.mktemp("made") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return make_tools(path, lower=request.param == "uncased")


def make_tools(path, *, lower):
    """The tokenizer, and the plain one: its `tokenize` and `basic` (texts recur, so results are
    remembered).
    """
    vocabulary = RULES["load_vocab"](path)
    tokenize = functools.cache(lambda text: RULES["tokenize"](text, vocabulary, lower))
    basic = functools.cache(lambda text: RULES["basic_tokens"](text, lower))
    return load_tokenizer(path, do_lower_case=lower), tokenize, basic


def make_kind(tokenizer, lengths, version_2, **settings):
    name = "squad_v2" if version_2 else "squad"
    names = ("max_seq_length", "doc_stride", "max_query_length", "pad_to_max_length")
    settings |= dict(zip(names, lengths, strict=True))
    return QuestionAnswering(get_task(name), tokenizer, TaskArguments(task=name, **settings), {})


def as_split(questions):
    examples = [
        QuestionExample(
            idx=each["id"],
            question=each["question"],
            context=each["context"],
            answers=tuple(
                Answer(text=item["text"], answer_start=item["answer_start"])
                for item in each["answers"]
            ),
        )
        for each in questions
    ]
    return Split(name="validation", examples=examples, source="made", num_rows=len(examples))


def random_logits(rng, features, length=None):
    """float32 (2, S) for each feature: plain noise, noise with many ties, a strong [CLS], flat."""
    outputs = []
    for feature in features:
        logits = rng.normal(0, 3, (2, len(feature["tokens"]) if length is None else length))
        style = rng.integers(0, 4)
        if style == 1:
            logits = np.round(logits)
        logits[:, 0] += 10 * (style == 2)
        logits *= 0.01 if style == 3 else 1
        outputs.append(logits.astype(np.float32))
    return outputs


def check_features(kind, tokenize, lengths, questions, training):
    """Returns the encoded split and the plain features of each question."""
    encoded = kind.encode(as_split(questions), for_training=training)
    plain = [
        ORIGINAL["make_features"](item, tokenize, *lengths[:3], training) for item in questions
    ]
    flat = [feature for features in plain for feature in features]
    assert len(encoded) == len(flat)
    vocabulary = kind.tokenizer.get_vocab()
    for feature, expected in zip(encoded.features, flat, strict=True):
        assert feature["input_ids"] == [vocabulary[token] for token in expected["tokens"]]
        assert feature["token_type_ids"] == expected["types"]
        assert feature["attention_mask"] == [1] * len(expected["tokens"])
        if training:
            assert (feature["start_positions"], feature["end_positions"]) == (
                expected["start"],
                expected["end"],
            )
    assert encoded.lengths.tolist() == [len(feature["tokens"]) for feature in flat]
    if training:
        without = [
            question["id"] for question in questions if ORIGINAL["training_words"](question) is None
        ]
        assert encoded.details.dropped == without
    return encoded, plain


def check_decoding(kind, tools, lengths, questions, seed):
    _, tokenize, basic = tools
    encoded, plain = check_features(kind, tokenize, lengths, questions, training=False)
    flat = [feature for features in plain for feature in features]
    outputs = random_logits(np.random.default_rng(seed), flat, lengths[0] if lengths[3] else None)
    predictions = kind.decode(encoded, outputs)
    assert len(predictions) == len(questions)
    settings, position = kind.settings, 0
    limits = (settings.n_best_size, settings.max_answer_length, kind.allows_no_answer)
    for prediction, question, features in zip(predictions, questions, plain, strict=True):
        logits = [
            tuple(map(np.ndarray.tolist, array))
            for array in outputs[position : position + len(features)]
        ]
        position += len(features)
        text, n_best, odds = ORIGINAL["decode"](
            question, features, logits, basic, *limits, settings.null_score_diff_threshold
        )
        assert prediction.idx == question["id"]
        ours = [(entry.text, entry.start_logit, entry.end_logit) for entry in prediction.nbest]
        assert ours == [
            (entry["text"], entry["start_logit"], entry["end_logit"]) for entry in n_best
        ]
        shares = [entry["probability"] for entry in n_best]
        assert [entry.probability for entry in prediction.nbest] == pytest.approx(shares, rel=1e-12)
        if text == "CRASH":
            assert (prediction.value, prediction.best_text) == ("", "")
        else:
            assert (prediction.value, prediction.null_odds) == (text, odds)


def read_sample(shared_data, name, every):
    return ORIGINAL["read_questions"](shared_data / "squad" / name)[::every]


@pytest.mark.parametrize("every", [101, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", DEV_FILES)
def test_decoder_equals_the_original_on_random_logits(shared_data, tools, name, lengths, every):
    """Source: google-research/bert run_squad.py `convert_examples_to_features`,
    `write_predictions`, `get_final_text`.
    """
    questions = read_sample(shared_data, name, every)
    for start in range(0, len(questions), 500):
        kind = make_kind(tools[0], lengths, "v2" in name)
        check_decoding(kind, tools, lengths, questions[start : start + 500], seed=1 + start)
        tools[1].cache_clear()
        tools[2].cache_clear()


@pytest.mark.parametrize("name", ["dev-v1.1.json", "dev-v2.0.json"])
@pytest.mark.parametrize(
    "settings",
    [
        {"n_best_size": 3, "max_answer_length": 4, "null_score_diff_threshold": -3.0},
        {"n_best_size": 1, "max_answer_length": 1, "null_score_diff_threshold": 2.5},
        {"n_best_size": 60, "max_answer_length": 200},
    ],
    ids=str,
)
def test_decoder_equals_the_original_with_other_settings(shared_data, tools, name, settings):
    """Source: google-research/bert run_squad.py, flags n_best_size, max_answer_length,
    null_score_diff_threshold.
    """
    lengths = LENGTHS[1]
    kind = make_kind(tools[0], lengths, "v2" in name, **settings)
    check_decoding(kind, tools, lengths, read_sample(shared_data, name, 151), seed=2)


@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lengths", LENGTHS[:2], ids=str)
@pytest.mark.parametrize("name", TRAIN_FILES)
def test_training_features_equal_the_original(shared_data, tools, name, lengths, every):
    """Source: google-research/bert run_squad.py `read_squad_examples`,
    `convert_examples_to_features`.
    """
    kind = make_kind(tools[0], lengths, "v2" in name)
    check_features(kind, tools[1], lengths, read_sample(shared_data, name, every), training=True)


# What breaks alignments: accents in two forms, case that changes length, spaces that are none for
# the original, marks that are dropped, characters that are dropped, pieces and special tokens
# written out, Han characters, unknown ones.
ODD = [
    *(
        "caf\u00e9",
        "cafe\u0301",
        "\u0130stanbul",
        "Stra\u00dfe",
        "\ufb01ne",
        "\u00a0",
        "\u3000",
        "\u202f",
        "\u200b",
    ),
    *(
        "\x07",
        "##ing",
        "[SEP]",
        "[UNK]",
        "#",
        "'s",
        "(1895-1943).",
        "\u4e2d\u6587",
        "\U0001f600",
        "\u0915\u093f",
    ),
    *(
        "\ufffd",
        "\u2028",
        "O\u2019Neill",
        "\u03a3\u0391\u03a3",
        "A.B.C.",
        "--",
        "$5",
        "x" * 210,
        "\t",
        "\n",
        "\r",
    ),
    *("the", "Steve", "Smith's"),
]


def odd_question(rng, number):
    """A paragraph of odd words, and an answer that is any part of it."""
    parts = [
        rng.choice(ODD) + rng.choice(["", "", " ", " ", " ", "\t", "\u00a0"])
        for _ in range(rng.randint(1, 70))
    ]
    context = "".join(parts)
    start = rng.randrange(len(context))
    text = context[start : start + rng.choice([1, 2, 5, 20])]
    question = " ".join(rng.choices(ODD, k=rng.randint(0, 15)))
    return {
        "id": f"q{number}",
        "question": question,
        "context": context,
        "answers": [{"text": text, "answer_start": start}] if text.strip() else [],
    }


def check_odd_texts(tools):
    rng = random.Random(3)
    questions = [odd_question(rng, number) for number in range(150)]
    for lengths in LENGTHS[1:]:
        kind = make_kind(tools[0], lengths, version_2=True)
        encoded, _ = check_features(kind, tools[1], lengths, questions, training=True)
        assert encoded.details.dropped
        check_decoding(kind, tools, lengths, questions, seed=4)


def test_features_and_decoder_equal_the_original_on_odd_texts(made_tools):
    """Source: google-research/bert run_squad.py `read_squad_examples`, `write_predictions`,
    `get_final_text`.
    """
    check_odd_texts(made_tools)


def test_features_and_decoder_equal_the_original_on_odd_texts_with_the_published_vocabularies(
    tools,
):
    """Source: google-research/bert run_squad.py, as above."""
    check_odd_texts(tools)


@pytest.mark.parametrize("name", ["dev-v1.1.json", "dev-v2.0.json"])
def test_offsets_decoder_equals_the_hugging_face_example(shared_data, tools, name):
    """Source: transformers examples/pytorch/question-answering/utils_qa.py
    `postprocess_qa_predictions`.
    """
    tokenizer, tokenize, _ = tools
    lengths = LENGTHS[1]
    kind = make_kind(tokenizer, lengths, "v2" in name, decoder="offsets")
    questions = read_sample(shared_data, name, 41)
    encoded, plain = check_features(kind, tokenize, lengths, questions, training=False)
    rng = np.random.default_rng(5)
    outputs = [rng.normal(0, 3, (2, length)).astype(np.float32) for length in encoded.lengths]
    position, differing = 0, 0
    for prediction, question, features in zip(
        kind.decode(encoded, outputs), questions, plain, strict=True
    ):
        logits = [
            tuple(map(np.ndarray.tolist, array))
            for array in outputs[position : position + len(features)]
        ]
        position += len(features)
        offsets = position_offsets(tokenizer, question["context"], features)
        text, n_best, odds = ORIGINAL["decode_offsets"](
            question["context"], features, offsets, logits, 20, 30, kind.allows_no_answer, 0.0
        )
        assert prediction.value == text
        assert prediction.null_odds == (None if odds is None else pytest.approx(odds, abs=1e-5))
        scores = [entry.start_logit + entry.end_logit for entry in prediction.nbest]
        assert scores == pytest.approx([entry["score"] for entry in n_best], abs=1e-5)
        texts = [entry.text for entry in prediction.nbest]
        assert sorted(texts) == sorted(entry["text"] for entry in n_best)
        differing += len(set(texts)) < len(texts)
    assert differing  # equal texts stay, unlike in the original


def position_offsets(tokenizer, context, features):
    """For each feature, position -> span of characters, from the tokenizer's view of the whole
    paragraph.
    """
    spans = tokenizer(
        context, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )["offset_mapping"]
    pieces = [token for feature in features for token in feature["tokens"]]
    assert pieces
    result, start = [], 0
    for number, feature in enumerate(features):
        first = min(feature["word_at"])
        if number:
            start += min(len(features[number - 1]["word_at"]), 16)
        result.append(
            {position: spans[start + position - first] for position in feature["word_at"]}
        )
    return result
