"""Logits of an example's windows -> its answer, as google-research/bert does it, and as today's Hugging Face example does.

Legend: S positions of a model input (padding may follow the text; it then competes for the best positions, as in the
original, whose inputs are all padded to max_seq_length).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import NOT_FINITE


# What the original starts the minimum of the null scores with: all that an example without windows has.
_NO_NULL_SCORE = 1_000_000.0
# Stands for an answer where there is no valid span at all. Source: run_squad.py `write_predictions`.
_NONCE = "empty"
_NULL = -1

# (first piece, last piece) in the paragraph -> text.
SpanText = Callable[[int, int], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSettings:
    """Settings of both decoders; names and defaults of run_squad.py, see `TaskArguments`.

    Attributes:
        n_best_size: Starts, ends and answers that are kept.
        max_answer_length: Pieces of an answer, at most.
        null_score_diff_threshold: Say "no answer" where the null odds are greater.
        allows_no_answer: Whether a question may have no answer (SQuAD 2.0).
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0
    allows_no_answer: bool = False


@dataclass(frozen=True, slots=True)
class WindowLogits:
    """What the model said of one window.

    Attributes:
        start, end: float32 (S,).
        first_position: Position of the window's first piece.
        first_piece: Number of that piece in the paragraph.
        owned: bool (pieces of the window,), whether answers may start at a piece: no other window sees more around it.
    """

    start: np.ndarray
    end: np.ndarray
    first_position: int
    first_piece: int
    owned: np.ndarray


@dataclass(frozen=True, slots=True)
class NBestEntry:
    """An answer among the best: its text, its share of their softmax, and the logits of its ends."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclass(frozen=True, slots=True)
class DecodedAnswer:
    """What a decoder makes of an example.

    Attributes:
        text: The answer; "" where there is none.
        best_text: The best answer that is not "", whatever the threshold; "" where there is none at all.
        nbest: Best first.
        null_odds: Score of "no answer" minus that of best_text; None where every question has an answer.
    """

    text: str
    best_text: str
    nbest: tuple[NBestEntry, ...]
    null_odds: float | None


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Spans in the order in which they were found; float64 logits, int64 pieces (-1: no answer)."""

    first: np.ndarray
    last: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray


_Entry = tuple[str, float, float]


def decode_original(windows: Sequence[WindowLogits], span_text: SpanText, settings: DecoderSettings) -> DecodedAnswer:
    """Decode by the rules of the original.

    1. Of each window the n_best_size best starts and ends; a span is a candidate if it lies in the paragraph, its start
       is owned by the window, and it is no longer than max_answer_length.
    2. SQuAD 2.0: the null score is the least of the windows' logits at [CLS], start + end; it is a candidate too.
    3. By falling sum of the logits, candidates of new text enter the n-best list, until it has n_best_size. "" is added
       where it is not among them (2.0).
    4. No candidate at all: the answer is "empty", with logits 0 (1.1).
    5. 2.0: null odds = null score - score of the best text that is not ""; the answer is "" if they exceed the threshold.

    The original crashes where a question of 2.0 has no candidate but the null one (a list that holds nothing but "" has
    no other cause). Here the answer is then "" whatever the threshold, and the odds are those against rule 4's logits.

    Args:
        windows: Of one example; none if its paragraph has no pieces.
        span_text: Final text of a span.
        settings: See there.

    Source: run_squad.py `write_predictions`; for the crash google-research/bert PR #1106.
    """
    parts = [_candidates(window, window.owned, _best_stable, settings) for window in windows]
    null_start, null_end, null_score = _least_null(windows)
    if settings.allows_no_answer:
        parts.append(_null_candidate(null_start, null_end))
    candidates = _join(parts)
    ranking = np.argsort(-(candidates.start_logit + candidates.end_logit), kind="stable").tolist()
    entries: list[_Entry] = []
    seen: set[str] = set()
    for rank in ranking:
        if len(entries) >= settings.n_best_size:
            break
        entry = _entry(candidates, rank, span_text)
        if entry[0] not in seen:
            seen.add(entry[0])
            entries.append(entry)
    if not settings.allows_no_answer:
        nbest = _with_probabilities(entries or [(_NONCE, 0.0, 0.0)])
        return DecodedAnswer(nbest[0].text, nbest[0].text, nbest, None)
    if "" not in seen:
        entries.append(("", null_start, null_end))
    best = next((entry for entry in entries if entry[0]), ("", 0.0, 0.0))
    odds = null_score - best[1] - best[2]
    text = "" if odds > settings.null_score_diff_threshold else best[0]
    return DecodedAnswer(text, best[0], _with_probabilities(entries), odds)


def decode_offsets(windows: Sequence[WindowLogits], span_text: SpanText, settings: DecoderSettings) -> DecodedAnswer:
    """Decode as today's Hugging Face example does, so that the difference can be seen.

    Unlike `decode_original`: answers may start in any window, the text is the slice of the paragraph between the
    tokenizer's character offsets, equal texts stay in the list, sums are of float32, the order of equal logits is left
    open, and "empty" joins a "" that is alone.

    Args:
        windows: As in `decode_original`.
        span_text: Slice of the paragraph.
        settings: See there.

    Source: transformers examples/pytorch/question-answering/utils_qa.py `postprocess_qa_predictions`.
    """
    everywhere = [np.ones(len(window.owned), bool) for window in windows]
    parts = [_candidates(*pair, _best_unstable, settings) for pair in zip(windows, everywhere, strict=True)]
    null_start, null_end, null_score = _least_null(windows, single_precision=True)
    if settings.allows_no_answer:
        parts.append(_null_candidate(null_start, null_end))
    candidates = _join(parts)
    totals = candidates.start_logit.astype(np.float32) + candidates.end_logit.astype(np.float32)
    ranking = np.argsort(-totals, kind="stable")[: settings.n_best_size].tolist()
    entries = [_entry(candidates, rank, span_text) for rank in ranking]
    if settings.allows_no_answer and not any(candidates.first[rank] == _NULL for rank in ranking):
        entries.append(("", null_start, null_end))
    if not entries or [entry[0] for entry in entries] == [""]:
        entries.insert(0, (_NONCE, 0.0, 0.0))
    nbest = _with_probabilities(entries)
    if not settings.allows_no_answer:
        return DecodedAnswer(nbest[0].text, nbest[0].text, nbest, None)
    best = next((entry for entry in entries if entry[0]), ("", 0.0, 0.0))
    odds = null_score - best[1] - best[2]
    text = "" if odds > settings.null_score_diff_threshold else best[0]
    return DecodedAnswer(text, best[0], nbest, odds)


def check_finite(windows: Sequence[WindowLogits], question_id: str) -> None:
    """Refuse logits that no order can be made of.

    Raises:
        InputError: One is NaN or infinite.
    """
    for window in windows:
        if not (np.isfinite(window.start).all() and np.isfinite(window.end).all()):
            raise InputError(f"question {question_id}: {NOT_FINITE}")


def _best_stable(logits: np.ndarray, number: int) -> np.ndarray:
    return np.argsort(-logits, kind="stable")[:number]


def _best_unstable(logits: np.ndarray, number: int) -> np.ndarray:
    return np.argsort(logits)[: -number - 1 : -1]


def _candidates(
    window: WindowLogits,
    owned: np.ndarray,
    best: Callable[[np.ndarray, int], np.ndarray],
    settings: DecoderSettings,
) -> _Candidates:
    """Valid spans of a window, by rank of the start, then of the end."""
    starts = best(window.start, settings.n_best_size) - window.first_position
    ends = best(window.end, settings.n_best_size) - window.first_position
    starts = starts[(starts >= 0) & (starts < len(owned))]
    starts = starts[owned[starts]]
    ends = ends[(ends >= 0) & (ends < len(owned))]
    lengths = ends[None, :] - starts[:, None] + 1
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= settings.max_answer_length))
    starts, ends = starts[rows], ends[columns]
    return _Candidates(
        starts + window.first_piece,
        ends + window.first_piece,
        window.start[starts + window.first_position].astype(np.float64),
        window.end[ends + window.first_position].astype(np.float64),
    )


def _least_null(windows: Sequence[WindowLogits], *, single_precision: bool = False) -> tuple[float, float, float]:
    """Start logit, end logit and sum at [CLS] of the window where the sum is least, the first of equals."""
    least = (0.0, 0.0, _NO_NULL_SCORE)
    for window in windows:
        start, end = float(window.start[0]), float(window.end[0])
        total = float(window.start[0] + window.end[0]) if single_precision else start + end
        if total < least[2]:
            least = (start, end, total)
    return least


def _null_candidate(start_logit: float, end_logit: float) -> _Candidates:
    return _Candidates(np.array([_NULL]), np.array([_NULL]), np.array([start_logit]), np.array([end_logit]))


def _join(parts: Sequence[_Candidates]) -> _Candidates:
    integers, floats = np.zeros(0, np.int64), np.zeros(0)
    return _Candidates(
        np.concatenate([integers, *(part.first for part in parts)]),
        np.concatenate([integers, *(part.last for part in parts)]),
        np.concatenate([floats, *(part.start_logit for part in parts)]),
        np.concatenate([floats, *(part.end_logit for part in parts)]),
    )


def _entry(candidates: _Candidates, rank: int, span_text: SpanText) -> _Entry:
    first = int(candidates.first[rank])
    text = "" if first == _NULL else span_text(first, int(candidates.last[rank]))
    return text, float(candidates.start_logit[rank]), float(candidates.end_logit[rank])


def _with_probabilities(entries: Sequence[_Entry]) -> tuple[NBestEntry, ...]:
    """Softmax over the sums of the logits, in the original's order of operations."""
    totals = [start + end for _, start, end in entries]
    highest = max(totals)
    shares = [math.exp(total - highest) for total in totals]
    whole = sum(shares)
    return tuple(
        NBestEntry(text, share / whole, start, end) for (text, start, end), share in zip(entries, shares, strict=True)
    )
