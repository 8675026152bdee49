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
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bert_recipes.errors import InputError
from bert_recipes.scripts import is_unspaced, split_unspaced


logger = logging.getLogger(__name__)

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str, *, unspaced: bool = False) -> str:
    """Return the words of a text in lower case, without ASCII punctuation, a, an and the.

    In a text in a script without spaces every character is a word of its own, and all punctuation
    is taken out; `unspaced` says so of a date or a number, which does not show it.

    Source: SQuAD evaluate-v1.1.py and evaluate-v2.0.py, normalize_answer; for scripts without
    spaces facebookresearch/MLQA mlqa_evaluation_v1.py, mixed_segmentation.

    Example:
        >>> normalize_answer("The  quick, brown fox's tail")
        'quick brown foxs tail'
        >>> normalize_answer("《北岛》Vik"), normalize_answer("8月3日", unspaced=True)
        ('北 岛 vik', '8 月 3 日')
    """
    if unspaced or is_unspaced(text):
        return " ".join(_split_unspaced_words(text.lower()))
    plain = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def _split_unspaced_words(text: str) -> Iterator[str]:
    for stretch in text.split():
        for start, end in split_unspaced(stretch):
            word = "".join(filter(_is_no_punctuation, stretch[start:end]))
            if word:
                yield word


def _is_no_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] != "P"


def squad_scores(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    *,
    unspaced: bool | None = None,
) -> dict[str, float]:
    """Return exact match and F1 of SQuAD 1.1: of each question the best over its gold answers.

    A question without a prediction counts 0. Predictions for other questions are left aside.

    Args:
        gold: Question id -> texts of its gold answers, at least one.
        predictions: Question id -> text of the answer.
        unspaced: Of `normalize_answer`; None: `are_unspaced` says it of the gold answers.

    Returns:
        exact_match and f1, each 0 to 100; `missing`, the number of questions without a prediction,
        only if there are.

    Source: SQuAD evaluate-v1.1.py.

    Example:
        >>> gold = {"q1": ["the Eiffel Tower"], "q2": ["in 1889", "1889"]}
        >>> squad_scores(gold, {"q1": "Eiffel tower.", "q2": "May 1889"})
        {'exact_match': 50.0, 'f1': 83.33333333333333}
    """
    num_missing = _count_missing(gold, predictions)
    unspaced = are_unspaced(gold.values()) if unspaced is None else unspaced
    exact = 0.0
    f1 = 0.0
    for question, answers in gold.items():
        if not answers:
            raise InputError(
                f"question {question!r} has no gold answer, as in SQuAD 2.0; take squad_v2 for "
                "data with such questions"
            )
        if question in predictions:
            predicted = normalize_answer(predictions[question], unspaced=unspaced)
            normalized = [normalize_answer(answer, unspaced=unspaced) for answer in answers]
            exact += predicted in normalized
            f1 += max(_token_f1(answer, predicted) for answer in normalized)
    scores = {"exact_match": 100.0 * exact / len(gold), "f1": 100.0 * f1 / len(gold)}
    if num_missing:
        scores["missing"] = num_missing
    return scores


def squad_v2_scores(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 0.0,
    *,
    unspaced: bool | None = None,
) -> dict[str, float]:
    """Return exact match and F1 of SQuAD 2.0, over all questions, and with and without answer.

    A question without a prediction counts 0 (the official script leaves it out of the mean, or
    breaks off).

    Args:
        gold: Question id -> texts of its gold answers; empty where the question has none.
        predictions: Question id -> text of the answer, "" for none. With `null_odds` the best
            answer that is not empty, so that every threshold can be tried.
        null_odds: Question id -> how much more "no answer" is worth than that answer:
            null_odds.json of the original run_squad.py, or a probability. None: the predictions
            are taken as they are.
        threshold: The answer is "" where the odds are greater; --na-prob-thresh of the script.
        unspaced: As of `squad_scores`.

    Returns:
        exact, f1 (0 to 100), total (questions), the same as HasAns_* and NoAns_* where there are
        such questions; with `null_odds` best_exact, best_f1 and the thresholds that give them,
        *_thresh; `missing` as in `squad_scores`.

    Source: SQuAD evaluate-v2.0.py.

    Example:
        >>> squad_v2_scores({"q1": ["1889"], "q2": []}, {"q1": "1889", "q2": ""})["f1"]
        100.0
    """
    num_missing = _count_missing(gold, predictions)
    if null_odds is not None and any(map(math.isnan, (threshold, *null_odds.values()))):
        raise InputError("null odds or threshold: nan is no number to compare with")
    unspaced = are_unspaced(gold.values()) if unspaced is None else unspaced
    raw_scores = _raw_v2_scores(gold, predictions, unspaced=unspaced)
    final_scores = raw_scores
    if null_odds is not None:
        final_scores = {}
        for figure, scores in raw_scores.items():
            final_scores[figure] = _apply_threshold(scores, gold, null_odds, threshold)
    groups = {
        "": list(gold),
        "HasAns_": [question for question in gold if gold[question]],
        "NoAns_": [question for question in gold if not gold[question]],
    }
    result: dict[str, float] = {}
    for prefix, questions in groups.items():
        if not questions:
            continue
        for figure, scores in final_scores.items():
            total = 0.0
            for question in questions:
                total += scores.get(question, 0.0)
            result[prefix + figure] = 100.0 * total / len(questions)
        result[f"{prefix}total"] = len(questions)
    if null_odds is not None:
        for figure, scores in raw_scores.items():
            best, best_threshold = _find_threshold(scores, gold, predictions, null_odds)
            result[f"best_{figure}"] = best
            result[f"best_{figure}_thresh"] = best_threshold
    if num_missing:
        result["missing"] = num_missing
    return result


def _apply_threshold(
    scores: Mapping[str, float],
    gold: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
    threshold: float,
) -> dict[str, float]:
    """Return the scores with "" as the answer where the odds exceed the threshold."""
    final = dict(scores)
    for question in scores:
        if null_odds[question] > threshold:
            final[question] = float(not gold[question])  # "" is right where there is no answer
    return final


def are_unspaced(gold: Iterable[Sequence[str]]) -> bool:
    """Return whether the answers of a file are of a language that is written without spaces.

    All of them together: a date or a number alone does not show it.

    Args:
        gold: The texts of the gold answers of each question.
    """
    return is_unspaced("".join(map("".join, gold)))


def _token_f1(gold: str, predicted: str) -> float:
    """Return the F1 of two bags of words; 0 where they share none, two empty ones too (v1.1)."""
    gold_words = gold.split()
    predicted_words = predicted.split()
    num_common = (Counter(gold_words) & Counter(predicted_words)).total()
    if not num_common:
        return 0.0
    precision = num_common / len(predicted_words)
    recall = num_common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def _raw_v2_scores(
    gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str], *, unspaced: bool
) -> dict[str, dict[str, float]]:
    """Return exact match and F1 of the questions that have a prediction, before any threshold.

    Figure -> question -> score, 0 to 1.
    """
    exact: dict[str, float] = {}
    f1: dict[str, float] = {}
    for question, answers in gold.items():
        if question not in predictions:
            continue
        # Gold answers of which nothing is left do not count; where no other is there, "" is the
        # right answer.
        normalized = [normalize_answer(answer, unspaced=unspaced) for answer in answers]
        normalized = list(filter(None, normalized)) or [""]
        predicted = normalize_answer(predictions[question], unspaced=unspaced)
        exact[question] = float(predicted in normalized)
        f1[question] = max(_token_f1(answer, predicted) for answer in normalized)
        if not predicted:  # right only beside an empty side
            f1[question] = exact[question]
    return {"exact": exact, "f1": f1}


def _find_threshold(
    scores: Mapping[str, float],
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
) -> tuple[float, float]:
    """Return the best score in percent, and the threshold that gives it.

    The search starts from "no answer" everywhere, threshold 0.0 standing for that, and admits one
    answer after the other in the order of their odds; the first of several best is kept. As in the
    script, answers of equal odds are admitted one by one, in the order of `odds`, so that a best
    score between two of them may be higher than its threshold gives.

    Source: find_best_thresh of evaluate-v2.0.py.
    """
    score = float(sum(not gold[question] for question in scores))
    best = score
    threshold = 0.0
    for question in sorted(odds, key=lambda question: odds[question]):
        if question not in scores:
            continue
        if gold[question]:
            score += scores[question]
        elif predictions[question]:
            score -= 1
        if score > best:
            best = score
            threshold = odds[question]
    return 100.0 * best / len(gold), threshold


def _count_missing(gold: Mapping[str, Sequence[str]], predictions: Mapping[str, str]) -> int:
    """Return how many questions have no prediction; refuse where none has one."""
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
    return len(absent)
