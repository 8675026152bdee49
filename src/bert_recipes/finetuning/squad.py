"""SQuAD by the rules of google-research/bert run_squad.py: paragraph -> windows -> features, logits -> n-best -> answer.

Legend: S positions of a model input (padding may follow the text; it then competes for the best positions, as in the
original, whose inputs are all padded to max_seq_length).
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, overload

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Feature
from bert_recipes.tasks.rows import Answer, QuestionExample
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


# Words are separated by these five characters and by nothing else. Source: run_squad.py `is_whitespace`.
_WORD = re.compile("[^ \t\r\n\u202f]+")

Encoder = Callable[[str], list[int]]
Window = tuple[int, int]


def split_words(text: str) -> list[str]:
    """Split at spaces, tabs, carriage returns, line feeds and U+202F; other Unicode spaces stay inside words."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class EncodedContext:
    """A paragraph, tokenised once for all its questions.

    Attributes:
        piece_ids: int32 (T,).
        word_of_piece: int32 (T,), number of the word of `split_words` that a piece belongs to.
        first_piece: int32 (words + 1,), number of the first piece of each word; T at the end.
        word_starts: int32 (words,), the character at which each word starts.
    """

    piece_ids: np.ndarray
    word_of_piece: np.ndarray
    first_piece: np.ndarray
    word_starts: np.ndarray


def encode_context(text: str, encode_word: Encoder) -> EncodedContext:
    """Cut every word of a paragraph into pieces; a word of control characters has none."""
    words = list(_WORD.finditer(text))
    pieces = [encode_word(word.group()) for word in words]
    counts = np.fromiter(map(len, pieces), np.int32, len(pieces))
    first_piece = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum(counts, out=first_piece[1:])
    return EncodedContext(
        piece_ids=np.fromiter(chain.from_iterable(pieces), np.int32, int(first_piece[-1])),
        word_of_piece=np.repeat(np.arange(len(pieces), dtype=np.int32), counts),
        first_piece=first_piece,
        word_starts=np.fromiter((word.start() for word in words), np.int32, len(words)),
    )


def cut_windows(num_pieces: int, max_pieces: int, doc_stride: int) -> list[Window]:
    """Cover a paragraph with windows (first piece, number of pieces) of max_pieces at most; an empty one has none.

    Example:
        >>> cut_windows(10, 6, 3)
        [(0, 6), (3, 6), (6, 4)]

    Source: run_squad.py `convert_examples_to_features`.
    """
    windows = []
    start = 0
    while start < num_pieces:
        length = min(num_pieces - start, max_pieces)
        windows.append((start, length))
        if start + length == num_pieces:
            break
        start += min(length, doc_stride)
    return windows


def window_owners(windows: Sequence[Window], num_pieces: int) -> np.ndarray:
    """Say which window, int32 (T,), sees most around each piece: answers may start there only.

    A window's score for a piece is min(pieces to its left, pieces to its right) + 0.01 * length of the window; of equal
    scores the first window has it.

    Source: run_squad.py `_check_is_max_context`.
    """
    owners = np.zeros(num_pieces, np.int32)
    best = np.full(num_pieces, -1.0)
    for index, (start, length) in enumerate(windows):
        left = np.arange(length)
        score = np.minimum(left, left[::-1]) + 0.01 * length
        inside = slice(start, start + length)
        better = score > best[inside]
        best[inside][better] = score[better]
        owners[inside][better] = index
    return owners


def join_pieces(pieces: Sequence[str]) -> str:
    """Pieces -> words in the tokenizer's normal form: ["steve", "sm", "##ith"] -> "steve smith".

    Source: google-research/bert run_squad.py `write_predictions`.
    """
    return " ".join(" ".join(pieces).replace(" ##", "").replace("##", "").split())


def realign(predicted: str, original: str, normalized: str) -> str:
    """Find the characters of the original text that a predicted text was made of.

    Case and accents are gone from the prediction, and the original's words may hold more than was predicted: for
    "steve smith" in "Steve Smith's" the answer is "Steve Smith". Without their spaces the original and its normal form
    are laid side by side, character by character; where their lengths differ, or the prediction is not in the normal
    form (it holds [UNK], for example), the complete original is the answer. Words have one space between them.

    Source: google-research/bert run_squad.py `get_final_text`.
    """
    start = normalized.find(predicted)
    if start == -1 or not predicted:
        return original
    characters = [index for index, character in enumerate(original) if character != " "]
    if len(characters) != len(normalized) - normalized.count(" "):
        return original
    # Neither end of the prediction is a space, so both have a partner.
    first = start - normalized.count(" ", 0, start)
    length = len(predicted) - predicted.count(" ")
    return original[characters[first] : characters[first + length - 1] + 1]


class AnswerTexts:
    """The final texts of a paragraph's spans; what candidates have in common is computed once.

    `pieces` has the piece of each id, `normalize` gives the string whose words the tokenizer cuts into pieces.
    """

    def __init__(
        self, text: str, context: EncodedContext, pieces: Sequence[str], normalize: Callable[[str], str]
    ) -> None:
        self._words = split_words(text)
        self._context = context
        self._pieces = pieces
        self._normalize = normalize
        self._originals: dict[tuple[int, int], tuple[str, str]] = {}

    def __call__(self, start: int, end: int) -> str:
        """The text of the pieces from start to end of the paragraph, as it stands there."""
        predicted = join_pieces([self._pieces[i] for i in self._context.piece_ids[start : end + 1].tolist()])
        words = (int(self._context.word_of_piece[start]), int(self._context.word_of_piece[end]))
        if words not in self._originals:
            original = " ".join(self._words[words[0] : words[1] + 1])
            self._originals[words] = original, " ".join(self._normalize(original).split())
        return realign(predicted, *self._originals[words])


class OffsetTexts:
    """A paragraph's spans as slices between the tokenizer's character offsets, as today's Hugging Face example takes them."""

    def __init__(self, text: str, context: EncodedContext, tokenizer: OriginalBertTokenizer) -> None:
        self._text = text
        encoded = tokenizer(split_words(text), add_special_tokens=False, return_offsets_mapping=True)
        starts = context.word_starts.tolist()
        self._offsets = [
            (start + first, start + last)
            for start, offsets in zip(starts, encoded["offset_mapping"], strict=True)
            for first, last in offsets
        ]
        assert len(self._offsets) == len(context.piece_ids)

    def __call__(self, start: int, end: int) -> str:
        """The text from the first character of one piece to the last of the other."""
        return self._text[self._offsets[start][0] : self._offsets[end][1]]


logger = logging.getLogger(__name__)

# First and last piece of an answer in the paragraph.
Span = tuple[int, int]
# The question has none: [CLS] is the answer of every window.
NO_ANSWER: Span = (-1, -1)
# There is one, but not in the words as they were cut: its windows take no part in the loss.
NOT_LOCATED: Span = (-100, -100)


def locate_answer(context: EncodedContext, text: str, answer: Answer, encode: Encoder) -> Span | None:
    """Find the first and last piece of an answer: its characters lead to words, the words to pieces.

    None where the words do not hold the answer: it has other spaces than they, such as U+00A0, or is nothing but spaces.

    Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`.
    """
    last_character = answer.answer_start + len(answer.text) - 1
    if not 0 <= answer.answer_start <= last_character < len(text):
        raise InputError(
            f"the answer {answer.text!r} at character {answer.answer_start} does not lie in its paragraph of "
            f"{len(text)} characters; give the answer's words and the character at which they start"
        )
    cleaned = " ".join(answer.text.split())
    if not cleaned:
        return None
    # A character between two words belongs to the word before it. -1, before the first word, is the last word for
    # Python and so for the original, which then hardly ever finds the answer: the same is done here.
    start_word, end_word = (
        int(np.searchsorted(context.word_starts, character, side="right")) - 1
        for character in (answer.answer_start, last_character)
    )
    if cleaned not in " ".join(split_words(text)[start_word : end_word + 1]):
        return None
    start, end = int(context.first_piece[:-1][start_word]), int(context.first_piece[end_word + 1]) - 1
    return improve_answer_span(context.piece_ids[start : end + 1].tolist(), start, end, encode(answer.text))


def improve_answer_span(pieces: list[int], start: int, end: int, answer: list[int]) -> Span:
    """Narrow a span of complete words to the first span of the answer's pieces: "(1895-1943)." to "1895".

    It stays as it was where there is none ("Japan" in "Japanese"). Source: run_squad.py `_improve_answer_span`.
    """
    if answer:
        for offset in range(len(pieces) - len(answer) + 1):
            if pieces[offset : offset + len(answer)] == answer:
                return start + offset, start + offset + len(answer) - 1
    return start, end


def positions_in_window(answer: Span, window: Window, first_position: int) -> Span:
    """Start and end of an answer in the model's input; 0, that of [CLS], where the window does not hold all of it.

    Source: run_squad.py `convert_examples_to_features`.
    """
    if answer == NOT_LOCATED:
        return NOT_LOCATED
    start, length = window
    if answer[0] < start or answer[1] >= start + length:
        return 0, 0
    shift = first_position - start
    return answer[0] + shift, answer[1] + shift


# What the original starts the minimum of the null scores with: all that an example without windows has.
_NO_NULL_SCORE = 1_000_000.0
# Stands for an answer where there is no valid span at all. Source: run_squad.py `write_predictions`.
_NONCE = "empty"
_NULL = -1

# (first piece, last piece) in the paragraph -> text.
SpanText = Callable[[int, int], str]


@dataclass(frozen=True, slots=True)
class WindowLogits:
    """What the model predicted for one window.

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
    """An answer among the best; the probability is that of their softmax."""

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


# float64 (candidates, 4) in the order in which they were found: first and last piece (-1: no answer), their two logits.
_Candidates = np.ndarray
_NO_CANDIDATE = np.zeros((0, 4))
_Entry = tuple[str, float, float]


def decode_original(
    windows: Sequence[WindowLogits], span_text: SpanText, settings: TaskArguments, *, allows_no_answer: bool = False
) -> DecodedAnswer:
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

    Source: run_squad.py `write_predictions`; for the crash google-research/bert PR #1106.
    """
    parts = [_candidates(window, window.owned, _best_stable, settings) for window in windows]
    null_start, null_end, null_score = _least_null(windows)
    if allows_no_answer:
        parts.append(np.array([[_NULL, _NULL, null_start, null_end]]))
    candidates = np.concatenate([_NO_CANDIDATE, *parts])
    entries: list[_Entry] = []
    seen: set[str] = set()
    for rank in np.argsort(-(candidates[:, 2] + candidates[:, 3]), kind="stable").tolist():
        if len(entries) >= settings.n_best_size:
            break
        entry = _entry(candidates[rank], span_text)
        if entry[0] not in seen:
            seen.add(entry[0])
            entries.append(entry)
    if allows_no_answer and "" not in seen:
        entries.append(("", null_start, null_end))
    elif not entries:
        entries.append((_NONCE, 0.0, 0.0))
    return _decide(entries, null_score if allows_no_answer else None, settings)


def decode_offsets(
    windows: Sequence[WindowLogits], span_text: SpanText, settings: TaskArguments, *, allows_no_answer: bool = False
) -> DecodedAnswer:
    """Decode as today's Hugging Face example does, so that the difference can be seen.

    Unlike `decode_original`: answers may start in any window, the text is the slice of the paragraph between the
    tokenizer's character offsets, equal texts stay in the list, sums are of float32, the order of equal logits is left
    open, and "empty" joins a "" that is alone.

    Source: transformers examples/pytorch/question-answering/utils_qa.py `postprocess_qa_predictions`.
    """
    parts = [_candidates(window, np.ones_like(window.owned), _best_unstable, settings) for window in windows]
    null_start, null_end, null_score = _least_null(windows, single_precision=True)
    if allows_no_answer:
        parts.append(np.array([[_NULL, _NULL, null_start, null_end]]))
    candidates = np.concatenate([_NO_CANDIDATE, *parts])
    totals = candidates[:, 2].astype(np.float32) + candidates[:, 3].astype(np.float32)
    best_rows = candidates[np.argsort(-totals, kind="stable")[: settings.n_best_size]]
    entries = [_entry(row, span_text) for row in best_rows]
    if allows_no_answer and _NULL not in best_rows[:, 0]:
        entries.append(("", null_start, null_end))
    if not entries or [entry[0] for entry in entries] == [""]:
        entries.insert(0, (_NONCE, 0.0, 0.0))
    return _decide(entries, null_score if allows_no_answer else None, settings)


def _best_stable(logits: np.ndarray, number: int) -> np.ndarray:
    return np.argsort(-logits, kind="stable")[:number]


def _best_unstable(logits: np.ndarray, number: int) -> np.ndarray:
    return np.argsort(logits)[: -number - 1 : -1]


def _candidates(
    window: WindowLogits,
    owned: np.ndarray,
    best: Callable[[np.ndarray, int], np.ndarray],
    settings: TaskArguments,
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
    logits = window.start[starts + window.first_position], window.end[ends + window.first_position]
    return np.column_stack([starts + window.first_piece, ends + window.first_piece, *logits]).astype(np.float64)


def _least_null(windows: Sequence[WindowLogits], *, single_precision: bool = False) -> tuple[float, float, float]:
    """Start logit, end logit and sum at [CLS] of the window where the sum is least, the first of equals."""
    least = (0.0, 0.0, _NO_NULL_SCORE)
    for window in windows:
        start, end = float(window.start[0]), float(window.end[0])
        total = float(window.start[0] + window.end[0]) if single_precision else start + end
        if total < least[2]:
            least = (start, end, total)
    return least


def _entry(candidate: np.ndarray, span_text: SpanText) -> _Entry:
    first, last, start, end = candidate.tolist()
    return "" if first == _NULL else span_text(int(first), int(last)), start, end


def _decide(entries: Sequence[_Entry], null_score: float | None, settings: TaskArguments) -> DecodedAnswer:
    """The best entry or, in SQuAD 2.0, none; probabilities are a softmax in the original's order of operations."""
    totals = [start + end for _, start, end in entries]
    highest = max(totals)
    powers = [math.exp(total - highest) for total in totals]
    total_power = sum(powers)
    nbest = tuple(
        NBestEntry(text, power / total_power, *ends) for (text, *ends), power in zip(entries, powers, strict=True)
    )
    if null_score is None:
        return DecodedAnswer(nbest[0].text, nbest[0].text, nbest, None)
    best = next((entry for entry in entries if entry[0]), ("", 0.0, 0.0))
    odds = null_score - best[1] - best[2]
    return DecodedAnswer("" if odds > settings.null_score_diff_threshold else best[0], best[0], nbest, odds)


# Distinct words whose ids are remembered while a split is encoded; some 50 MB.
_REMEMBERED_WORDS = 200_000
# [CLS], and [SEP] twice.
NUM_SPECIAL_PIECES = 3


@dataclass(frozen=True, kw_only=True)
class SquadFeatures(Sequence[Feature]):
    """The windows of a split; a model input is put together when it is asked for, from arrays that share the text.

    A feature is [CLS] question [SEP] window [SEP], types 0 up to the first [SEP] and 1 after it, and, where the split
    has answers, start_positions and end_positions: positions in input_ids; 0, that of [CLS], where the window lacks the
    answer or the question has none; -100 where the answer is not in the words (never in training).

    Attributes:
        contexts: The distinct paragraphs.
        context_of_example: int32 (examples,), index into contexts.
        query_ids: int32 (Q,), the questions' ids, one after the other.
        query_starts: int64 (examples + 1,), where each question starts in query_ids.
        first_feature: int64 (examples + 1,), number of the first feature of each example.
        window_starts, window_lengths: int32 (W,), in pieces of the paragraph.
        positions: int32 (W, 2), start and end; None without labels.
        dropped: Ids of the training examples left out, because their words do not hold their answer.
    """

    cls_id: int
    sep_id: int
    contexts: list[EncodedContext]
    context_of_example: np.ndarray
    query_ids: np.ndarray
    query_starts: np.ndarray
    first_feature: np.ndarray
    window_starts: np.ndarray
    window_lengths: np.ndarray
    positions: np.ndarray | None = None
    dropped: list[str] = field(default_factory=list)

    @cached_property
    def example_of_feature(self) -> np.ndarray:
        """int32 (W,), the example that a window belongs to."""
        return np.repeat(np.arange(len(self.first_feature) - 1, dtype=np.int32), np.diff(self.first_feature))

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 (W,), positions of each feature."""
        return np.diff(self.query_starts)[self.example_of_feature] + self.window_lengths + NUM_SPECIAL_PIECES

    def __len__(self) -> int:
        return len(self.window_starts)

    @overload
    def __getitem__(self, index: int) -> Feature: ...

    @overload
    def __getitem__(self, index: slice) -> list[Feature]: ...

    def __getitem__(self, index: int | slice) -> Feature | list[Feature]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        example = int(self.example_of_feature[index])
        context = self.contexts[self.context_of_example[example]]
        query = self.query_ids[self.query_starts[example] : self.query_starts[example + 1]].tolist()
        start, length = int(self.window_starts[index]), int(self.window_lengths[index])
        window = context.piece_ids[start : start + length].tolist()
        ids = [self.cls_id, *query, self.sep_id, *window, self.sep_id]
        first = self.first_position(example)
        feature: dict[str, Any] = {
            "input_ids": ids,
            "token_type_ids": [0] * first + [1] * (len(ids) - first),
            "attention_mask": [1] * len(ids),
        }
        if self.positions is not None:
            feature["start_positions"], feature["end_positions"] = self.positions[index].tolist()
        return feature

    def context_of(self, example: int) -> EncodedContext:
        """The paragraph of an example."""
        return self.contexts[self.context_of_example[example]]

    def features_of(self, example: int) -> range:
        """Numbers of an example's features."""
        return range(int(self.first_feature[example]), int(self.first_feature[example + 1]))

    def windows_of(self, example: int) -> list[Window]:
        """First piece and number of pieces of each of an example's windows."""
        return [(int(self.window_starts[i]), int(self.window_lengths[i])) for i in self.features_of(example)]

    def first_position(self, example: int) -> int:
        """Position in input_ids at which the windows of an example start."""
        return int(self.query_starts[example + 1] - self.query_starts[example]) + 2


def encode_questions(
    examples: Sequence[QuestionExample],
    tokenizer: OriginalBertTokenizer,
    settings: TaskArguments,
    *,
    allows_no_answer: bool,
    for_training: bool,
) -> SquadFeatures:
    """Tokenise every paragraph once and cut it into windows for each of its questions.

    Training leaves out the examples whose words do not hold their answer, and logs them. Otherwise every example is kept,
    with labels if all have them. Of several answers the first is the label (the original allows one in training).

    Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`.
    """
    labelled = all(example.answers is not None for example in examples)
    encode_word: Encoder = lru_cache(maxsize=_REMEMBERED_WORDS)(tokenizer.encode_ids)
    numbers: dict[str, int] = {}
    contexts: list[EncodedContext] = []
    dropped: list[str] = []
    context_of_example, queries, positions = [], [], list[Span]()
    windows_of_example: list[list[Window]] = []
    for example in examples:
        number = numbers.setdefault(example.context, len(contexts))
        if number == len(contexts):
            contexts.append(encode_context(example.context, encode_word))
        span: Span | None = NO_ANSWER
        if labelled and not example.answers and not allows_no_answer:
            raise InputError(
                f"question {example.idx} has no answer, but the task is SQuAD 1.1; take --task squad_v2, "
                "or the metric squad_v2 in your own task"
            )
        if example.answers:
            try:
                span = locate_answer(contexts[number], example.context, example.answers[0], tokenizer.encode_ids)
            except InputError as error:
                raise InputError(f"question {example.idx}: {error}") from None
        query: list[int] = []
        windows: list[Window] = []
        if span is None and for_training:
            dropped.append(example.idx)
        else:
            query = tokenizer.encode_ids(example.question)[: settings.max_query_length]
            room = settings.max_seq_length - len(query) - NUM_SPECIAL_PIECES
            windows = cut_windows(len(contexts[number].piece_ids), room, settings.doc_stride)
        context_of_example.append(number)
        queries.append(np.array(query, np.int32))
        windows_of_example.append(windows)
        positions += [positions_in_window(span or NOT_LOCATED, window, len(query) + 2) for window in windows]
    if dropped:
        named = ", ".join(dropped[:3]) + (", ..." if len(dropped) > 3 else "")
        logger.warning(
            "%d of %d training questions are left out: the words of their paragraphs do not hold their answers (%s)",
            *(len(dropped), len(examples), named),
        )
    num_several = sum(len(example.answers or ()) > 1 for example in examples)
    if for_training and num_several:
        logger.info(
            "%d of %d training questions have several answers: the first of each is trained on",
            *(num_several, len(examples)),
        )
    all_windows = np.array(list(chain.from_iterable(windows_of_example)), np.int32).reshape(-1, 2)
    return SquadFeatures(
        cls_id=int(tokenizer.cls_token_id),
        sep_id=int(tokenizer.sep_token_id),
        contexts=contexts,
        context_of_example=np.array(context_of_example, np.int32),
        query_ids=np.concatenate([np.zeros(0, np.int32), *queries]),
        query_starts=np.cumsum([0, *map(len, queries)], dtype=np.int64),
        first_feature=np.cumsum([0, *map(len, windows_of_example)], dtype=np.int64),
        window_starts=all_windows[:, 0].copy(),
        window_lengths=all_windows[:, 1].copy(),
        positions=np.array(positions, np.int32).reshape(-1, 2) if labelled else None,
        dropped=dropped,
    )
