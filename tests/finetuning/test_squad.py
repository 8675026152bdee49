"""SQuAD's features, decoders and answer texts: by hand, and as run_squad.py (original_squad.py)."""

import dataclasses
import functools
import itertools
import random
import string

import numpy as np
import original_rules
import original_squad
import pytest

from bert_recipes.finetuning.arguments import DECODERS, TaskArguments
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.finetuning.squad import (
    WindowLogits,
    cut_windows,
    decode_answer,
    encode_context,
    encode_questions,
    make_offset_text,
    make_original_text,
    realign,
    window_owners,
)
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Answer, QuestionExample, Split
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS


DEV_FILES = ("dev-v1.1.json", "dev-v2.0.json", "squadshifts_amazon-v1.1.json")
TRAIN_FILES = ("train-v1.1.json", "train-v2.0.json")
VOCABULARIES = ("uncased", "cased")
# (max_seq_length, doc_stride, max_query_length, pad_to_max_length): the original's, and many
# windows
LENGTHS = ((384, 128, 64, False), (48, 16, 12, False), (64, 24, 20, True))
WORDS = "born when was john smith japan ##ese ( ) - . 1895 1943 ?"
PIECES = [*"abcdefghij", *WORDS.split()]


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
    return encode_questions(as_split(questions), tokenizer, settings, for_training=training)


def as_split(questions):
    return Split(name="validation", examples=questions, source="made", num_rows=len(questions))


def tokens_at_answer(tokenizer, feature):
    ids = feature["input_ids"][feature["start_positions"] : feature["end_positions"] + 1]
    return tokenizer.convert_ids_to_tokens(ids)


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
    caplog.set_level("INFO")
    features = encode(tokenizer, bad[0], good, *bad[1:])
    assert features.dropped == ["bad0", "bad1", "bad2", "bad3", "bad4"]
    assert features.windows.tolist() == [[1, 0, 3]]
    assert tokens_at_answer(tokenizer, features[0]) == ["b"]
    assert "5 of 6 training questions are left out" in caplog.text
    assert "(bad0, bad1, bad2, ...)" in caplog.text
    assert "1 of 6 training questions have several answers: the first of each" in caplog.text
    # A prediction has them, without a label.
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


@pytest.fixture(scope="module", params=UNSPACED)
def unspaced(request, make_tokenizer):
    """A tokenizer, and questions whose answer stands two to four times in the paragraph.

    A later one than the first is annotated.
    """
    letters = UNSPACED[request.param]
    tokenizer = make_tokenizer([*letters, *(f"##{letter}" for letter in letters), "a"])
    draw = random.Random(1)
    questions = []
    for index in range(60):
        answer = "".join(draw.sample(letters, 2))
        lengths = [draw.randint(1, 15) for _ in range(draw.randint(3, 5))]
        stretches = ["".join(draw.choices(letters, k=length)) for length in lengths]
        annotated = draw.randrange(1, len(stretches) - 1)
        start = len(answer.join(stretches[: annotated + 1]))
        context = answer.join(stretches)
        questions.append(question(context, (answer, start), text="a", idx=str(index)))
    return tokenizer, questions


def test_the_annotated_occurrence_is_trained_on_in_scripts_without_spaces(unspaced):
    """run_squad.py takes the paragraph for one word, and trains on the first occurrence."""
    tokenizer, questions = unspaced
    features = encode(tokenizer, *questions)
    trained = set()
    for feature, (number, first_piece, _) in zip(features, features.windows.tolist(), strict=True):
        if feature["start_positions"] == 0:
            continue  # another window holds it
        offset = first_piece - tokenizer.layout.start_of_second(len(features.queries[number]))
        context = features.contexts[number]
        start = context.offsets[feature["start_positions"] + offset][0]
        end = context.offsets[feature["end_positions"] + offset][1]
        answer = Answer(text=context.text[start:end], answer_start=start)
        assert questions[number].answers == (answer,)
        trained.add(number)
    assert len(trained) == len(questions)


@pytest.mark.parametrize("decoder", DECODERS)
def test_right_logits_give_the_answers_of_scripts_without_spaces(unspaced, decoder):
    tokenizer, questions = unspaced
    settings = {"max_seq_length": 32, "max_query_length": 8, "doc_stride": 4, "decoder": decoder}
    arguments = TaskArguments(task="squad", **settings)
    kind = QuestionAnswering(get_task("squad"), tokenizer, arguments, {})
    encoded = kind.encode(as_split(questions))
    outputs = []
    for feature in encoded.features:
        logits = np.full((2, len(feature["input_ids"])), -20, np.float32)
        logits[0, feature["start_positions"]] = 5
        logits[1, feature["end_positions"]] = 5
        outputs.append(logits)
    predictions = kind.decode(encoded, outputs)
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
    """A window of `size` pieces after [CLS] and [SEP]; logits of starts and ends by piece."""
    logits = np.full((2, size + 3), -50, np.float32)
    logits[:, 0] = null
    for row, logits_by_piece in zip(logits, (starts, ends), strict=True):
        for piece, logit in logits_by_piece.items():
            row[2 + piece] = logit
    return WindowLogits(logits, 2, first_piece, np.full(size, owned))


def decode(*windows, v2=False, **settings):
    settings = TaskArguments(task="squad", **settings)
    return decode_answer(
        "q", windows, lambda first, last: f"{first}-{last}", settings, allows_no_answer=v2
    )


def test_logits_are_added_in_double_precision():
    """2**24 + 1 is no float32: in single precision both sums are equal, and the first wins."""
    first = window({0: 2**24}, {0: 0.0}, size=2)
    second = window({0: 2**24}, {0: 1.0}, size=2, first_piece=5)
    windows = [first, second]
    assert decode(*windows).value == "5-5"
    assert decode(*windows, decoder="offsets").value == "0-0"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("threshold", "expected"), [(-7.5, ""), (-7.0, "0-1"), (-6.5, "0-1"), (0.0, "0-1")]
)
def test_the_answer_is_null_only_where_the_odds_exceed_the_threshold(threshold, expected, decoder):
    """Source: run_squad.py null_score_diff_threshold: -7 is not greater than a threshold of -7."""
    first = window({0: 4}, {1: 5}, null=(0, 2))
    second = window({0: 1}, {1: 1}, first_piece=3, null=(3, 1))
    settings = {"decoder": decoder, "null_score_diff_threshold": threshold}
    answer = decode(first, second, v2=True, **settings)
    assert (answer.value, answer.best_text, answer.null_odds) == (expected, "0-1", -7.0)


NOT_OWNED = window({1: 9}, {1: 9}, owned=False, null=(1, 2))
# The best start and the best end are those of [CLS].
NULL_ON_TOP = window({1: 3}, {2: 4}, null=(10, 10))


@pytest.mark.parametrize("threshold", [-1e9, 1e9])
@pytest.mark.parametrize(
    ("windows", "odds"), [([NOT_OWNED], 3.0), ([NULL_ON_TOP], 20.0), ([], 1e6)]
)
def test_a_question_without_a_span_has_no_answer_whatever_the_threshold(windows, odds, threshold):
    """The original crashes here (google-research/bert PR #1106): it has no best_non_null_entry.

    The odds are those against logits of 0, which the original gives to "empty" in SQuAD 1.1.
    """
    answer = decode(*windows, v2=True, n_best_size=1, null_score_diff_threshold=threshold)
    assert (answer.value, answer.best_text) == ("", "")
    assert (answer.null_odds, answer.probabilities) == (odds, 1.0)
    assert [entry.text for entry in answer.nbest] == [""]


def test_the_offsets_decoder_answers_empty_there():
    """Source: utils_qa.py, "we create a fake prediction to avoid failure"."""
    answer = decode(NULL_ON_TOP, v2=True, n_best_size=1, decoder="offsets")
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
    """Pieces: the, steve, sm, ##ith, ', s, (, 1895, -, caf, ##e, ).

    Spaces of the paragraph become single ones.
    """
    words = "steve sm ##ith ' s the caf ##e , ( ) 1895 -"
    steve = make_tokenizer(words.split())
    paragraph = "The  Steve\n Smith's (1895-Caf\u00e9)"
    context = encode_context(paragraph, steve.encode_ids)
    pieces = steve.convert_ids_to_tokens(list(range(len(steve))))
    by_words = make_original_text(context, pieces, steve.normalize)
    by_offsets = make_offset_text(context, steve)
    spans = [(1, 3), (0, 1), (7, 7), (9, 10), (4, 5), (3, 3)]
    ends = ["1895", "Caf\u00e9", "'s", "ith"]
    assert [by_words(*span) for span in spans] == ["Steve Smith", "The Steve", *ends]
    assert [by_offsets(*span) for span in spans] == ["Steve\n Smith", "The  Steve", *ends]


# Against the original


@pytest.fixture(scope="module", params=VOCABULARIES)
def tools(request, shared_data):
    vocabulary = shared_data / "vocab" / f"bert-base-{request.param}-vocab.txt"
    return make_tools(vocabulary, lower=request.param == "uncased")


@pytest.fixture(scope="module", params=VOCABULARIES)
def made_tools(request, tmp_path_factory):
    """The same with a vocabulary of letters, marks and a few words."""
    letters = (
        string.ascii_letters + string.digits + "\u00e9\u00df\u03c3\u03a3\u03b1\u0391\u4e2d\u0915"
    )
    continued = [f"##{letter}" for letter in letters]
    words = ["the", "cafe", "steve", "Steve", "smith", "##mith", "##eill", "##an", "##bul", "##xx"]
    pieces = [*SPECIAL_TOKENS, *letters, *continued, *string.punctuation, *words]
    path = tmp_path_factory.mktemp("made") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return make_tools(path, lower=request.param == "uncased")


def make_tools(path, *, lower):
    """The tokenizer, and the plain one's `tokenize` and `basic`, which remember their results."""
    vocabulary = original_rules.load_vocab(path)
    tokenize = functools.cache(lambda text: original_rules.tokenize(text, vocabulary, lower))
    basic = functools.cache(lambda text: original_rules.basic_tokens(text, lower))
    return load_tokenizer(path, do_lower_case=lower), tokenize, basic


def make_kind(tokenizer, lengths, version_2, **settings):
    name = "squad_v2" if version_2 else "squad"
    names = ("max_seq_length", "doc_stride", "max_query_length", "pad_to_max_length")
    settings |= dict(zip(names, lengths, strict=True))
    return QuestionAnswering(get_task(name), tokenizer, TaskArguments(task=name, **settings), {})


def split_of(questions):
    examples = []
    for row in questions:
        answers = [(answer["text"], answer["answer_start"]) for answer in row["answers"]]
        example = question(row["context"], *answers, text=row["question"], idx=row["id"])
        examples.append(example)
    return as_split(examples)


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
    encoded = kind.encode(split_of(questions), for_training=training)
    make_features = original_squad.make_features
    plain = [make_features(row, tokenize, *lengths[:3], training) for row in questions]
    flat = list(itertools.chain.from_iterable(plain))
    vocabulary = kind.tokenizer.get_vocab()
    for feature, expected in zip(encoded.features, flat, strict=True):
        assert feature["input_ids"] == [vocabulary[token] for token in expected["tokens"]]
        assert feature["token_type_ids"] == expected["types"]
        if training:
            assert feature["start_positions"] == expected["start"]
            assert feature["end_positions"] == expected["end"]
    assert encoded.lengths.tolist() == [len(feature["tokens"]) for feature in flat]
    if training:
        training_words = original_squad.training_words
        lost = [row["id"] for row in questions if training_words(row) is None]
        assert encoded.details.dropped == lost
    return encoded, plain


def as_lists(outputs):
    return [tuple(map(np.ndarray.tolist, array)) for array in outputs]


def check_decoding(kind, tools, lengths, questions, seed):
    _, tokenize, basic = tools
    encoded, plain = check_features(kind, tokenize, lengths, questions, training=False)
    flat = list(itertools.chain.from_iterable(plain))
    outputs = random_logits(np.random.default_rng(seed), flat, lengths[0] if lengths[3] else None)
    settings = kind.settings
    limits = (settings.n_best_size, settings.max_answer_length, kind.allows_no_answer)
    logits = iter(as_lists(outputs))
    for prediction, row, features in zip(
        kind.decode(encoded, outputs), questions, plain, strict=True
    ):
        logits_of_row = list(itertools.islice(logits, len(features)))
        text, n_best, odds = original_squad.decode(
            row, features, logits_of_row, basic, *limits, settings.null_score_diff_threshold
        )
        assert prediction.idx == row["id"]
        assert len(prediction.nbest) == len(n_best)
        for entry, expected in zip(prediction.nbest, n_best, strict=True):
            share = expected.pop("probability")
            assert entry.probability == pytest.approx(share, rel=1e-12)
            assert dataclasses.asdict(entry) == {**expected, "probability": entry.probability}
        if text == "CRASH":
            assert (prediction.value, prediction.best_text) == ("", "")
        else:
            assert (prediction.value, prediction.null_odds) == (text, odds)


def read_sample(shared_data, name, every):
    return original_squad.read_questions(shared_data / "squad" / name)[::every]


@pytest.mark.parametrize("every", [211, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", DEV_FILES)
def test_decoder_equals_the_original_on_random_logits(shared_data, tools, name, lengths, every):
    """Source: run_squad.py `write_predictions`, `get_final_text`."""
    questions = read_sample(shared_data, name, every)
    for start in range(0, len(questions), 500):
        kind = make_kind(tools[0], lengths, "v2" in name)
        check_decoding(kind, tools, lengths, questions[start : start + 500], seed=1 + start)
        tools[1].cache_clear()
        tools[2].cache_clear()


OTHER_SETTINGS = (
    {"n_best_size": 3, "max_answer_length": 4, "null_score_diff_threshold": -3.0},
    {"n_best_size": 1, "max_answer_length": 1, "null_score_diff_threshold": 2.5},
    {"n_best_size": 60, "max_answer_length": 200},
)


@pytest.mark.parametrize("name", ["dev-v1.1.json", "dev-v2.0.json"])
@pytest.mark.parametrize("settings", OTHER_SETTINGS, ids=str)
def test_decoder_equals_the_original_with_other_settings(shared_data, tools, name, settings):
    """Source: run_squad.py, flags n_best_size, max_answer_length, null_score_diff_threshold."""
    lengths = LENGTHS[1]
    kind = make_kind(tools[0], lengths, "v2" in name, **settings)
    check_decoding(kind, tools, lengths, read_sample(shared_data, name, 151), seed=2)


@pytest.mark.parametrize("every", [127, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lengths", LENGTHS[:2], ids=str)
@pytest.mark.parametrize("name", TRAIN_FILES)
def test_training_features_equal_the_original(shared_data, tools, name, lengths, every):
    """Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`."""
    kind = make_kind(tools[0], lengths, "v2" in name)
    check_features(kind, tools[1], lengths, read_sample(shared_data, name, every), training=True)


# What breaks alignments: accents in two forms, case that changes length, spaces that are none for
# the original, marks that are dropped, characters that are dropped, pieces and special tokens
# written out, Han characters, unknown ones.
ODD_WORDS = (
    "caf\u00e9|cafe\u0301|\u0130stanbul|Stra\u00dfe|\ufb01ne|\u00a0|\u3000|\u202f|\u200b|\x07|##ing|"
    "[SEP]|[UNK]|#|'s|(1895-1943).|\u4e2d\u6587|\U0001f600|\u0915\u093f|\ufffd|\u2028|O\u2019Neill|"
    "\u03a3\u0391\u03a3|A.B.C.|--|$5|\t|\n|\r|the|Steve|Smith's"
)
ODD = [*ODD_WORDS.split("|"), "x" * 210]


def odd_question(rng, number):
    """A paragraph of odd words, and an answer that is any stretch of it."""
    words = rng.choices(ODD, k=rng.randint(1, 70))
    context = "".join(word + rng.choice(["", "", " ", " ", " ", "\t", "\u00a0"]) for word in words)
    start = rng.randrange(len(context))
    text = context[start : start + rng.choice([1, 2, 5, 20])]
    return {
        "id": f"q{number}",
        "question": " ".join(rng.choices(ODD, k=rng.randint(0, 15))),
        "context": context,
        "answers": [{"text": text, "answer_start": start}] if text.strip() else [],
    }


def test_features_and_decoder_equal_the_original_on_odd_texts(made_tools):
    """Source: run_squad.py `read_squad_examples`, `write_predictions`, `get_final_text`."""
    rng = random.Random(3)
    questions = [odd_question(rng, number) for number in range(100)]
    for lengths in LENGTHS[1:]:
        kind = make_kind(made_tools[0], lengths, version_2=True)
        encoded, _ = check_features(kind, made_tools[1], lengths, questions, training=True)
        assert encoded.details.dropped
        check_decoding(kind, made_tools, lengths, questions, seed=4)


@pytest.mark.parametrize("name", ["dev-v1.1.json", "dev-v2.0.json"])
def test_offsets_decoder_equals_the_hugging_face_example(shared_data, tools, name):
    """Source: transformers run_qa's utils_qa.py `postprocess_qa_predictions`."""
    tokenizer, tokenize, _ = tools
    lengths = LENGTHS[1]
    kind = make_kind(tokenizer, lengths, "v2" in name, decoder="offsets")
    questions = read_sample(shared_data, name, 41)
    encoded, plain = check_features(kind, tokenize, lengths, questions, training=False)
    rng = np.random.default_rng(5)
    outputs = [rng.normal(0, 3, (2, length)).astype(np.float32) for length in encoded.lengths]
    logits = iter(as_lists(outputs))
    num_repeated = 0
    for prediction, row, features in zip(
        kind.decode(encoded, outputs), questions, plain, strict=True
    ):
        logits_of_row = list(itertools.islice(logits, len(features)))
        context = row["context"]
        offsets = position_offsets(tokenizer, context, features)
        text, n_best, odds = original_squad.decode_offsets(
            context, features, offsets, logits_of_row, 20, 30, kind.allows_no_answer, 0.0
        )
        assert prediction.value == text
        assert prediction.null_odds == (None if odds is None else pytest.approx(odds, abs=1e-5))
        scores = [entry.start_logit + entry.end_logit for entry in prediction.nbest]
        assert scores == pytest.approx([entry["score"] for entry in n_best], abs=1e-5)
        texts = [entry.text for entry in prediction.nbest]
        assert sorted(texts) == sorted(entry["text"] for entry in n_best)
        num_repeated += len(set(texts)) < len(texts)
    assert num_repeated  # equal texts stay, unlike in the original


def position_offsets(tokenizer, context, features):
    """For each feature, position -> span of characters, from the tokens of the whole paragraph."""
    encoded = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    spans = encoded["offset_mapping"]
    offsets = []
    start = 0
    for feature in features:
        first = min(feature["word_at"])
        offsets.append({place: spans[start + place - first] for place in feature["word_at"]})
        start += min(len(feature["word_at"]), 16)
    return offsets
