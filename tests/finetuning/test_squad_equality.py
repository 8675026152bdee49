"""Features, decoder and answer texts equal run_squad.py's rules, written out in tests/fixtures/original_squad.py."""

import functools
import random
import runpy
import string
from pathlib import Path

import numpy as np
import pytest

from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.tasks.examples import Answer, QuestionExample, Split
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization import SPECIAL_TOKENS, load_tokenizer


FIXTURES = Path(__file__).parents[1] / "fixtures"
ORIGINAL = runpy.run_path(str(FIXTURES / "original_squad.py"))
RULES = runpy.run_path(str(FIXTURES / "original_rules.py"))
DEV_FILES = ("dev-v1.1.json", "dev-v2.0.json", "squadshifts_amazon-v1.1.json")
TRAIN_FILES = ("train-v1.1.json", "train-v2.0.json")
VOCABULARIES = ("uncased", "cased")
# (max_seq_length, doc_stride, max_query_length, pad_to_max_length): the original's, and many windows
LENGTHS = ((384, 128, 64, False), (48, 16, 12, False), (64, 24, 20, True))


@pytest.fixture(scope="module", params=VOCABULARIES)
def tools(request, shared_data):
    return make_tools(shared_data / "vocab" / f"bert-base-{request.param}-vocab.txt", lower=request.param == "uncased")


@pytest.fixture(scope="module", params=VOCABULARIES)
def made_tools(request, tmp_path_factory):
    """The same with a vocabulary of letters, marks and a few words."""
    letters = [*string.ascii_letters, *string.digits, *"\u00e9\u00df\u03c3\u03a3\u03b1\u0391\u4e2d\u0915"]
    words = ["the", "cafe", "steve", "Steve", "smith", "##mith", "##eill", "##an", "##bul", "##xx"]
    pieces = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), *string.punctuation, *words]
    path = tmp_path_factory.mktemp("made") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return make_tools(path, lower=request.param == "uncased")


def make_tools(path, *, lower):
    """The tokenizer, and the plain one: its `tokenize` and `basic` (texts recur, so results are remembered)."""
    vocabulary = RULES["load_vocab"](path)
    tokenize = functools.cache(lambda text: RULES["tokenize"](text, vocabulary, lower))
    basic = functools.cache(lambda text: RULES["basic_tokens"](text, lower))
    return load_tokenizer(path, do_lower_case=lower), tokenize, basic


def make_kind(tokenizer, lengths, version_2, **settings):
    max_seq, stride, max_query, pad = lengths
    name = "squad_v2" if version_2 else "squad"
    task = Task(
        name=name,
        kind="question_answering",
        text_columns=("question", "context"),
        label_column="answers",
        metrics=(name,),
    )
    lengths = {
        "max_seq_length": max_seq,
        "doc_stride": stride,
        "max_query_length": max_query,
        "pad_to_max_length": pad,
    }
    return QuestionAnswering(task, tokenizer, TaskArguments(task=name, **lengths, **settings), {})


def as_split(questions):
    examples = [
        QuestionExample(
            idx=question["id"],
            question=question["question"],
            context=question["context"],
            answers=tuple(
                Answer(text=item["text"], answer_start=item["answer_start"]) for item in question["answers"]
            ),
        )
        for question in questions
    ]
    return Split(name="validation", examples=examples, source="made", num_rows=len(examples))


def random_logits(rng, features, length=None):
    """float32 (2, S) for each feature: plain noise, noise with many ties, a strong [CLS], flat."""
    outputs = []
    for feature in features:
        size = len(feature["tokens"]) if length is None else length
        logits = rng.normal(0, 3, (2, size))
        style = rng.integers(0, 4)
        if style == 1:
            logits = np.round(logits)
        if style == 2:
            logits[:, 0] += 10
        if style == 3:
            logits *= 0.01
        outputs.append(logits.astype(np.float32))
    return outputs


def check_features(kind, tokenize, lengths, questions, training):
    """Returns the encoded split and the plain features of each question."""
    encoded = kind.encode(as_split(questions), for_training=training)
    plain = [ORIGINAL["make_features"](item, tokenize, *lengths[:3], training) for item in questions]
    flat = [feature for features in plain for feature in features]
    assert len(encoded) == len(flat)
    vocabulary = kind.tokenizer.get_vocab()
    for feature, expected in zip(encoded.features, flat, strict=True):
        assert feature["input_ids"] == [vocabulary[token] for token in expected["tokens"]]
        assert feature["token_type_ids"] == expected["types"]
        assert feature["attention_mask"] == [1] * len(expected["tokens"])
        if training:
            assert (feature["start_positions"], feature["end_positions"]) == (expected["start"], expected["end"])
    assert encoded.lengths.tolist() == [len(feature["tokens"]) for feature in flat]
    if training:
        without = [question["id"] for question in questions if ORIGINAL["training_words"](question) is None]
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
    for prediction, question, features in zip(predictions, questions, plain, strict=True):
        logits = [tuple(map(np.ndarray.tolist, array)) for array in outputs[position : position + len(features)]]
        position += len(features)
        text, n_best, odds = ORIGINAL["decode"](
            question,
            features,
            logits,
            basic,
            settings.n_best_size,
            settings.max_answer_length,
            kind.allows_no_answer,
            settings.null_score_diff_threshold,
        )
        assert prediction.idx == question["id"]
        ours = [(entry.text, entry.start_logit, entry.end_logit) for entry in prediction.nbest]
        assert ours == [(entry["text"], entry["start_logit"], entry["end_logit"]) for entry in n_best]
        shares = [entry["probability"] for entry in n_best]
        assert [entry.probability for entry in prediction.nbest] == pytest.approx(shares, rel=1e-12)
        if text == "CRASH":
            assert (prediction.value, prediction.best_text) == ("", "")
        else:
            assert (prediction.value, prediction.null_odds) == (text, odds)


def read_sample(shared_data, name, every):
    return ORIGINAL["read_questions"](shared_data / "squad" / name)[::every]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", DEV_FILES)
def test_decoder_equals_the_original_on_random_logits(shared_data, tools, name, lengths):
    """Source: google-research/bert run_squad.py `convert_examples_to_features`, `write_predictions`, `get_final_text`."""
    questions = read_sample(shared_data, name, 101)
    kind = make_kind(tools[0], lengths, "v2" in name)
    check_decoding(kind, tools, lengths, questions, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEV_FILES)
def test_decoder_equals_the_original_on_every_question(shared_data, tools, name):
    """Source: google-research/bert run_squad.py, as above."""
    questions = read_sample(shared_data, name, 1)
    for lengths in LENGTHS[:2]:
        for start in range(0, len(questions), 500):
            kind = make_kind(tools[0], lengths, "v2" in name)
            check_decoding(kind, tools, lengths, questions[start : start + 500], seed=start)
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
    """Source: google-research/bert run_squad.py, flags n_best_size, max_answer_length, null_score_diff_threshold."""
    lengths = LENGTHS[1]
    kind = make_kind(tools[0], lengths, "v2" in name, **settings)
    check_decoding(kind, tools, lengths, read_sample(shared_data, name, 151), seed=2)


@pytest.mark.parametrize("lengths", LENGTHS[:2], ids=str)
@pytest.mark.parametrize("name", TRAIN_FILES)
def test_training_features_equal_the_original(shared_data, tools, name, lengths):
    """Source: google-research/bert run_squad.py `read_squad_examples`, `convert_examples_to_features`."""
    kind = make_kind(tools[0], lengths, "v2" in name)
    check_features(kind, tools[1], lengths, read_sample(shared_data, name, 61), training=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAIN_FILES)
def test_training_features_equal_the_original_for_every_question(shared_data, tools, name):
    """Source: google-research/bert run_squad.py, as above."""
    for lengths in LENGTHS[:2]:
        kind = make_kind(tools[0], lengths, "v2" in name)
        check_features(kind, tools[1], lengths, read_sample(shared_data, name, 1), training=True)


# What breaks alignments: accents in two forms, case that changes length, spaces that are none for the original, marks that
# are dropped, characters that are dropped, pieces and special tokens written out, Han characters, unknown ones.
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
        "\x07",
    ),
    *(
        "##ing",
        "[SEP]",
        "[UNK]",
        "#",
        "'s",
        "(1895-1943).",
        "\u4e2d\u6587",
        "\U0001f600",
        "\u0915\u093f",
        "\ufffd",
        "\u2028",
    ),
    *(
        "O\u2019Neill",
        "\u03a3\u0391\u03a3",
        "A.B.C.",
        "--",
        "$5",
        "x" * 210,
        "\t",
        "\n",
        "\r",
        "the",
        "Steve",
        "Smith's",
    ),
]


def odd_question(rng, number):
    """A paragraph of odd words, and an answer that is any part of it."""
    parts = [rng.choice(ODD) + rng.choice(["", "", " ", " ", " ", "\t", "\u00a0"]) for _ in range(rng.randint(1, 70))]
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
    """Source: google-research/bert run_squad.py `read_squad_examples`, `write_predictions`, `get_final_text`."""
    check_odd_texts(made_tools)


def test_features_and_decoder_equal_the_original_on_odd_texts_with_the_published_vocabularies(tools):
    """Source: google-research/bert run_squad.py, as above."""
    check_odd_texts(tools)


@pytest.mark.parametrize("name", ["dev-v1.1.json", "dev-v2.0.json"])
def test_offsets_decoder_equals_the_hugging_face_example(shared_data, tools, name):
    """Source: transformers examples/pytorch/question-answering/utils_qa.py `postprocess_qa_predictions`."""
    tokenizer, tokenize, _ = tools
    lengths = LENGTHS[1]
    kind = make_kind(tokenizer, lengths, "v2" in name, decoder="offsets")
    questions = read_sample(shared_data, name, 41)
    encoded, plain = check_features(kind, tokenize, lengths, questions, training=False)
    rng = np.random.default_rng(5)
    outputs = [rng.normal(0, 3, (2, length)).astype(np.float32) for length in encoded.lengths]
    position, differing = 0, 0
    for prediction, question, features in zip(kind.decode(encoded, outputs), questions, plain, strict=True):
        logits = [tuple(map(np.ndarray.tolist, array)) for array in outputs[position : position + len(features)]]
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
    """For each feature, position -> span of characters, from the tokenizer's view of the whole paragraph."""
    spans = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    pieces = [token for feature in features for token in feature["tokens"]]
    assert pieces
    result, start = [], 0
    for number, feature in enumerate(features):
        first = min(feature["word_at"])
        if number:
            start += min(len(features[number - 1]["word_at"]), 16)
        result.append({position: spans[start + position - first] for position in feature["word_at"]})
    return result
