import json
import math

import numpy as np
import official_squad_eval
import pytest

from bert_recipes.errors import InputError
from bert_recipes.metrics.squad import normalize_answer, squad_scores, squad_v2_scores


# Articles, their look-alikes, punctuation of ASCII and of other scripts, spaces of all sorts,
# letters whose lower case is longer, an accent that stands alone.
WORDS = (
    *(
        "the",
        "The",
        "a",
        "A",
        "an",
        "AN",
        "theatre",
        "ana",
        "a-the",
        "the\u0301",
        "th\u00e9",
        "a\u0300n",
    ),
    *("in", "1889", "1,889", "$5", "u.s.", "o'clock", "snow_man", "fox", "Fox", "fox's", "fox."),
    *(
        "\u0130stanbul",
        "stra\u00dfe",
        "\uff0c",
        "\u201cfox\u201d",
        "caf\u00e9",
        "cafe\u0301",
        "x\u00b2",
    ),
    *("-", ".", "...", "\u2014", "'", "\u2019"),
)
SPACES = (" ", " ", "  ", "\t", "\n", "\u00a0", "\u202f", "\u3000", "-", "")


def random_text(rng, longest=6):
    words = rng.choice(WORDS, rng.integers(0, longest))
    return "".join(str(word) + str(rng.choice(SPACES)) for word in words)


def test_answers_without_spaces_are_compared_by_characters():
    """facebookresearch/MLQA mlqa_evaluation_v1.py, mixed_segmentation; the official script of SQuAD
    takes them for one word.
    """
    gold = {"q": ["\u5317\u5c9b\u7684\u6e2f\u53e3"]}
    assert squad_scores(gold, {"q": "\u5317\u5c9b\uff0c\u7684\u6e2f\u53e3\u3002"}) == {
        "exact_match": 100.0,
        "f1": 100.0,
    }
    scores = squad_scores(gold, {"q": "\u5317\u5c9b\u7684"})
    assert scores["exact_match"] == 0.0
    assert scores["f1"] == pytest.approx(75.0)


@pytest.mark.parametrize(
    ("gold", "answer", "f1"),
    [
        ("1945\u5e748\u670815\u65e5", "8\u670815\u65e5", 80.0),
        ("\u4e8c\u670828\u65e5", "28\u65e5", 200 / 3),
        ("12\u4e2a\u6708", "12\u4e2a\u6708\u3002", 100.0),
    ],
)
@pytest.mark.parametrize("score", [squad_scores, squad_v2_scores])
def test_dates_and_numbers_of_such_a_language_are_compared_by_characters_too(
    score, gold, answer, f1
):
    """What a language is written like is seen in all answers of a file, not in "8\u6708" alone."""
    others = {f"q{n}": ["\u5317\u5c9b\u7684\u6e2f\u53e3"] for n in range(3)}
    answers = {name: texts[0] for name, texts in others.items()}
    scores = score({**others, "q": [gold]}, {**answers, "q": answer})
    assert scores["f1"] == pytest.approx((300 + f1) / 4)
    # The same date in an English file is one word.
    english = {f"q{n}": ["the port of an island far away from here"] for n in range(3)}
    answers = {name: texts[0] for name, texts in english.items()}
    scores = score({**english, "q": ["2\u5e74"]}, {**answers, "q": "\u5e74"})
    assert scores["f1"] == pytest.approx(75.0)


def changed(rng, text):
    """A text that shares words with another: words dropped, repeated, added."""
    words = [word for word in text.split(" ") for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    return " ".join([*words, random_text(rng, 3)] if rng.random() < 0.5 else words)


def as_dataset(gold):
    """Answers by question in the official nesting, a few questions a paragraph."""
    questions = [
        {"id": q, "answers": [{"text": t, "answer_start": 0} for t in texts]}
        for q, texts in gold.items()
    ]
    return [{"paragraphs": [{"qas": questions[i : i + 3]}]} for i in range(0, len(questions), 3)]


def random_gold(rng, *, with_unanswerable):
    gold = {}
    for number in range(rng.integers(1, 15)):
        count = rng.integers(0, 4) if with_unanswerable else rng.integers(1, 4)
        gold[f"q{number}"] = [random_text(rng) for _ in range(count)]
    return gold


def random_predictions(rng, gold):
    """Right answers, nearly right ones, empty ones, and others."""
    predictions = {}
    for question, answers in gold.items():
        start = str(rng.choice(answers)) if answers and rng.random() < 0.7 else random_text(rng)
        predictions[question] = str(rng.choice(["", start, changed(rng, start), start.upper()]))
    return predictions


def read_gold(path):
    """Answers by question of an official file."""
    dataset = json.loads(path.read_text(encoding="utf-8"))["data"]
    return dataset, dict(official_squad_eval.questions_of(dataset))


def test_v1_scores_equal_the_plain_implementation_on_random_answers():
    rng = np.random.default_rng(1)
    for _ in range(150):
        gold = random_gold(rng, with_unanswerable=False)
        predictions = random_predictions(rng, gold)
        expected = official_squad_eval.evaluate_v1(as_dataset(gold), predictions)
        assert squad_scores(gold, predictions) == pytest.approx(expected, abs=1e-9), (
            gold,
            predictions,
        )


def test_v2_scores_equal_the_plain_implementation_on_random_answers_and_odds():
    """Odds from few values, so that many are equal; a probability's threshold and others."""
    rng = np.random.default_rng(2)
    for _ in range(150):
        gold = random_gold(rng, with_unanswerable=True)
        predictions = random_predictions(rng, gold)
        assert squad_v2_scores(gold, predictions) == pytest.approx(
            official_squad_eval.evaluate_v2(as_dataset(gold), predictions), abs=1e-9
        )
        odds = {
            q: float(rng.integers(-3, 4)) if rng.random() < 0.5 else float(rng.normal())
            for q in predictions
        }
        threshold = float(rng.choice([-1.0, 0.0, 1.0, 0.3]))
        expected = official_squad_eval.evaluate_v2(as_dataset(gold), predictions, odds, threshold)
        scores = squad_v2_scores(gold, predictions, odds, threshold)
        assert list(scores) == list(expected)
        assert scores == pytest.approx(expected, abs=1e-9), (gold, predictions, odds)


def test_best_threshold_is_the_best_of_all_thresholds():
    """Against brute force over every threshold; odds without ties."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        gold = random_gold(rng, with_unanswerable=True)
        predictions = random_predictions(rng, gold)
        # Answers of punctuation only count as answers in the search, but as empty in the score.
        predictions = {q: text if normalize_answer(text) else "" for q, text in predictions.items()}
        odds = {q: float(rng.normal()) for q in predictions}
        best = squad_v2_scores(gold, predictions, odds)
        tried = [squad_v2_scores(gold, predictions, odds, t) for t in (-math.inf, *odds.values())]
        for name in ("exact", "f1"):
            assert best[f"best_{name}"] == pytest.approx(max(scores[name] for scores in tried))
            at_best = squad_v2_scores(gold, predictions, odds, best[f"best_{name}_thresh"])
            # The threshold 0.0 stands for "no answer" where nothing is better.
            if best[f"best_{name}_thresh"] != 0.0:
                assert at_best[name] == pytest.approx(best[f"best_{name}"])


def test_questions_without_a_prediction_count_0_and_are_reported(caplog):
    """evaluate-v1.1.py: "Unanswered question ... will receive score 0."; evaluate-v2.0.py leaves
    them out or fails. Predictions for other questions are left aside.
    """
    scores = squad_scores({"a": ["x"], "b": ["y"]}, {"a": "x", "other": "z"})
    assert scores == {"exact_match": 50.0, "f1": 50.0, "missing": 1}
    assert "1 of 2 questions have no prediction and count 0; the first is b" in caplog.text
    gold = {"a": ["x"], "b": [], "c": [], "d": ["y"]}
    odds = {"a": -1.0, "b": 5.0, "c": 1.0, "other": -9.0}
    scores = squad_v2_scores(gold, {"a": "x", "c": "wrong", "other": "x"}, odds)
    assert (scores["exact"], scores["HasAns_exact"], scores["NoAns_exact"]) == (50.0, 50.0, 50.0)
    assert (scores["total"], scores["missing"]) == (4, 2)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, -1.0)


@pytest.mark.parametrize(
    ("score", "gold", "arguments", "message"),
    [
        (squad_scores, {}, [{}], "none of the 0 questions"),
        (squad_scores, {"a": []}, [{"a": "x"}], "'a' has no gold answer, as in SQuAD 2.0; take"),
        (squad_scores, {"a": ["x"]}, [{"b": "x"}], "none of the 1 questions has a prediction"),
        (squad_v2_scores, {"a": ["x"]}, [{"b": "x"}], "none of the 1 questions"),
        (squad_scores, {"a": ["x"], "b": []}, [{"a": "x"}], "question 'b' has no gold .* squad_v2"),
        (squad_v2_scores, {"a": ["x"]}, [{"a": "x"}, {"a": math.nan}], "nan is no number"),
        (squad_v2_scores, {"a": ["x"]}, [{"a": "x"}, {"a": 1.0}, math.nan], "nan is no number"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_line(score, gold, arguments, message):
    with pytest.raises(InputError, match=message) as error:
        score(gold, *arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["dev-v1.1.json", "squadshifts_amazon-v1.1.json"])
def test_real_v1_answers_are_scored_as_the_plain_implementation_does(shared_data, name):
    """The gold answers themselves, one of them each, whole or spoilt."""
    dataset, gold = read_gold(shared_data / "squad" / name)
    assert (
        squad_scores(gold, {q: answers[-1] for q, answers in gold.items()})["exact_match"] == 100.0
    )
    rng = np.random.default_rng(4)
    predictions = {}
    for question, answers in gold.items():
        text = str(rng.choice(answers))
        predictions[question] = text if rng.random() < 0.5 else changed(rng, text)
    scores = squad_scores(gold, predictions)
    assert scores == pytest.approx(official_squad_eval.evaluate_v1(dataset, predictions), abs=1e-9)
    assert 50 < scores["exact_match"] < scores["f1"] < 95


def test_real_v2_answers_are_scored_as_the_plain_implementation_does(shared_data):
    """Gold answers, whole or spoilt, and made answers where there is none, with odds that know it
    mostly.
    """
    dataset, gold = read_gold(shared_data / "squad" / "dev-v2.0.json")
    rng = np.random.default_rng(5)
    predictions, odds = {}, {}
    for question, answers in gold.items():
        text = str(rng.choice(answers)) if answers else "fox " + random_text(rng)
        predictions[question] = text if rng.random() < 0.5 else changed(rng, text)
        odds[question] = round(float(rng.normal(-1.0 if answers else 1.0, 1.5)), 2)
    plain = official_squad_eval.evaluate_v2
    # The search of the plain implementation takes the square of the questions.
    sixth = dict(list(gold.items())[::6])
    texts = {question: predictions[question] for question in sixth}
    some_odds = {question: odds[question] for question in sixth}
    expected = plain(as_dataset(sixth), texts, some_odds, 0.0)
    assert squad_v2_scores(sixth, texts, some_odds) == pytest.approx(expected, abs=1e-9)
    scores = squad_v2_scores(gold, predictions)
    assert scores == pytest.approx(plain(dataset, predictions), abs=1e-9)
    assert (scores["total"], scores["HasAns_total"], scores["NoAns_total"]) == (3046, 1506, 1540)
    at_zero = squad_v2_scores(gold, predictions, odds)
    assert scores["f1"] < at_zero["f1"] <= at_zero["best_f1"]
