"""Exact match and F1 of SQuAD by the rules of the official scripts, v1.1 and v2.0.

Figures are percentages, as the scripts print them. The two scripts are not alike: v2.0 drops gold
answers of which normalization leaves nothing, and says what an empty answer is worth.
"""

from __future__ import annotations

import logging
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from bert_recipes.errors import InputError
from bert_recipes.scripts import is_unspaced, split_unspaced


logger = logging.getLogger(__name__)

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower a text, take out ASCII punctuation, then the words a, an, the, and join the rest by
    single spaces.

    In a text in a script without spaces every character is a word of its own, and all punctuation
    is taken out.

    Source: SQuAD evaluate-v1.1.py and evaluate-v2.0.py, normalize_answer; for scripts without
    spaces facebookresearch/MLQA mlqa_evaluation_v1.py, mixed_segmentation.

    Example:
        >>> normalize_answer("The  quick, brown fox's tail"), normalize_answer("《北岛》Vik")
        ('quick brown foxs tail', '北 岛 vik')
    """
    if is_unspaced(text):
        words = [
            word[start:end] for word in text.lower().split() for start, end in split_unspaced(word)
        ]
        without_punctuation = " ".join("".join(filter(_is_no_punctuation, word)) for word in words)
        return " ".join(without_punctuation.split())
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _is_no_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] != "P"


def squad_scores(
    gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Exact match and F1 of SQuAD 1.1: of each question the best over its gold answers.

    A question without a prediction counts 0. Predictions for other questions are left aside.

    Args:
        gold: Question id -> texts of its gold answers, at least one.
        predictions: Question id -> text of the answer.

    Returns:
        exact_match and f1, each 0 to 100; `missing`, the number of questions without a prediction,
        only if there are.

    Source: SQuAD evaluate-v1.1.py.

    Example:
        >>> gold = {"q1": ["the Eiffel Tower"], "q2": ["in 1889", "1889"]}
        >>> squad_scores(gold, {"q1": "Eiffel tower.", "q2": "May 1889"})
        {'exact_match': 50.0, 'f1': 83.33333333333333}
    """
    missing = _missing(gold, predictions)
    exact = f1 = 0.0
    for question, answers in gold.items():
        if not answers:
            raise InputError(
                f"question {question!r} has no gold answer, as in SQuAD 2.0; take squad_v2 for "
                "data with such questions"
            )
        if question in predictions:
            predicted = normalize_answer(predictions[question])
            normalized = [normalize_answer(answer) for answer in answers]
            exact += predicted in normalized
            f1 += max(_token_f1(answer.split(), predicted.split()) for answer in normalized)
    return {"exact_match": 100.0 * exact / len(gold), "f1": 100.0 * f1 / len(gold)} | missing


def squad_v2_scores(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Exact match and F1 of SQuAD 2.0, over all questions, and over those with and those without an
    answer.

    A question without a prediction counts 0 (the official script leaves it out of the mean, or
    breaks off).

    Args:
        gold: Question id -> texts of its gold answers; empty where the question has none.
        predictions: Question id -> text of the answer, "" for none. With `null_odds` the best
            answer that is not empty, so that every threshold can be tried.
        null_odds: Question id -> how much more "no answer" is worth than that answer:
            null_odds.json of the original
            run_squad.py, or a probability. None: the predictions are taken as they are.
        threshold: The answer is "" where the odds are greater; --na-prob-thresh of the script.

    Returns:
        exact, f1 (0 to 100), total (questions), the same as HasAns_* and NoAns_* where there are
        such questions; with `null_odds` best_exact, best_f1 and the thresholds that give them,
        *_thresh; `missing` as in `squad_scores`.

    Source: SQuAD evaluate-v2.0.py.

    Example:
        >>> squad_v2_scores({"q1": ["1889"], "q2": []}, {"q1": "1889", "q2": ""})["f1"]
        100.0
    """
    missing = _missing(gold, predictions)
    if null_odds is not None and any(map(math.isnan, (threshold, *null_odds.values()))):
        raise InputError("null odds or threshold: nan is no number to compare with")
    raw = dict(zip(("exact", "f1"), _raw_v2_scores(gold, predictions), strict=True))
    silent = {
        question
        for question in raw["f1"]
        if null_odds is not None and null_odds[question] > threshold
    }
    result: dict[str, float] = {}
    answerable = [question for question in gold if gold[question]]
    rest = [question for question in gold if not gold[question]]
    for prefix, questions in (("", list(gold)), ("HasAns_", answerable), ("NoAns_", rest)):
        if questions:
            for name, scores in raw.items():
                # "" is right where there is no answer.
                values = (not gold[q] if q in silent else scores.get(q, 0.0) for q in questions)
                result[prefix + name] = 100.0 * sum(values) / len(questions)
            result[f"{prefix}total"] = len(questions)
    if null_odds is not None:
        for name, scores in raw.items():
            best = _best_threshold(scores, gold, predictions, null_odds)
            result[f"best_{name}"], result[f"best_{name}_thresh"] = best
    return result | missing


def _token_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """F1 of two bags of words; 0 where they share none, two empty ones included (v1.1)."""
    same = (Counter(gold) & Counter(predicted)).total()
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def _raw_v2_scores(
    gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Exact match and F1, each 0 to 1, of the questions that have a prediction, before any
    threshold.
    """
    exact, f1 = {}, {}
    for question, answers in gold.items():
        if question not in predictions:
            continue
        # Gold answers of which nothing is left do not count; where no other is there, "" is the
        # right answer.
        normalized = [text for text in map(normalize_answer, answers) if text] or [""]
        predicted = normalize_answer(predictions[question])
        exact[question] = float(predicted in normalized)
        # An empty side is right only beside an empty side.
        f1[question] = max(
            _token_f1(text.split(), predicted.split())
            if text and predicted
            else float(text == predicted)
            for text in normalized
        )
    return exact, f1


def _best_threshold(
    scores: Mapping[str, float],
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
) -> tuple[float, float]:
    """Best score in percent and the threshold that gives it: find_best_thresh of evaluate-v2.0.py.

    It starts from "no answer" everywhere, threshold 0.0 standing for that, and admits one answer
    after the other in the order of their odds; the first of several best is kept. As in the script,
    answers of equal odds are admitted one by one, in the order of `odds`, so that a best score
    between two of them may be higher than its threshold gives.
    """
    score = best = float(sum(not gold[question] for question in scores))
    threshold = 0.0
    for question in sorted(odds, key=lambda question: odds[question]):
        if question not in scores:
            continue
        if gold[question]:
            score += scores[question]
        elif predictions[question]:
            score -= 1
        if score > best:
            best, threshold = score, odds[question]
    return 100.0 * best / len(gold), threshold


def _missing(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> dict[str, float]:
    absent = [question for question in gold if question not in predictions]
    if len(absent) == len(gold):
        raise InputError(
            f"none of the {len(gold)} questions has a prediction; give the predictions that "
            "belong to this file"
        )
    if absent:
        logger.warning(
            "%d of %d questions have no prediction and count 0; the first is %s",
            len(absent),
            len(gold),
            absent[0],
        )
    return {"missing": len(absent)} if absent else {}
