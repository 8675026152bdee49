"""SQuAD by the rules of google-research/bert run_squad.py: paragraph -> windows -> features, logits
-> n-best -> answer.

Other tokenizers than WordPiece, and paragraphs in scripts that part no words by spaces: the same
windows and n-best list, but answers are found, and cut out, by the pieces' character offsets. The
original takes a Chinese paragraph for one word, and trains on the first place where the answer's
pieces stand in it.

Legend: T pieces of a paragraph, S positions of a model input (padding may follow the text; it then
competes for the best positions, as in the original, whose inputs are all padded to max_seq_length).
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, cast

import numpy as np

from bert_recipes.errors import shorten
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.kind import Feature, Prediction, join_texts
from bert_recipes.scripts import is_unspaced
from bert_recipes.tasks.examples import Answer, QuestionExample, Split
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# Words are separated by these five characters and by nothing else. Source: run_squad.py
# `is_whitespace`.
_WORD = re.compile("[^ \t\r\n\u202f]+")
# Distinct words whose ids are remembered while a split is encoded; some 50 MB.
_REMEMBERED_WORDS = 200_000

Encoder = Callable[[str], list[int]]
# First and last piece of an answer in the paragraph.
Span = tuple[int, int]
# The question has none: [CLS] is the answer of every window.
NO_ANSWER: Span = (-1, -1)
# There is one, but not in the words as they were cut: its windows take no part in the loss.
NOT_LOCATED: Span = (-100, -100)


# Windows


def split_words(text: str) -> list[str]:
    """Split at spaces, tabs, carriage returns, line feeds and U+202F; other Unicode spaces stay
    inside words.
    """
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedContext:
    """A paragraph, tokenised once for all its questions.

    Attributes:
        piece_ids: int32 (T,).
        first_piece: int32 (words + 1,), number of the first piece of each word of `split_words`; T
            at the end.
        word_starts: int32 (words,), the character at which each word starts.
    """

    text: str
    piece_ids: np.ndarray
    first_piece: np.ndarray
    word_starts: np.ndarray


def encode_context(text: str, encode_word: Encoder) -> EncodedContext:
    """Cut every word of a paragraph into pieces; a word of control characters has none."""
    words = list(_WORD.finditer(text))
    pieces = [encode_word(word.group()) for word in words]
    return EncodedContext(
        text=text,
        piece_ids=np.array(list(chain.from_iterable(pieces)), np.int32),
        first_piece=np.cumsum([0, *map(len, pieces)], dtype=np.int32),
        word_starts=np.array([word.start() for word in words], np.int32),
    )


@dataclass(frozen=True, slots=True, eq=False)
class OffsetContext:
    """A paragraph in pieces that know their characters; int32 (T,) piece_ids, int32 (T, 2) offsets,
    start and end.
    """

    text: str
    piece_ids: np.ndarray
    offsets: np.ndarray


def cut_windows(num_pieces: int, max_pieces: int, doc_stride: int) -> list[tuple[int, int]]:
    """Cover a paragraph with windows (first piece, piece behind the last) of max_pieces at most; an
    empty one has none.

    Example:
        >>> cut_windows(10, 6, 3)
        [(0, 6), (3, 9), (6, 10)]

    Source: run_squad.py `convert_examples_to_features`.
    """
    windows: list[tuple[int, int]] = []
    while num_pieces and (not windows or windows[-1][1] < num_pieces):
        start = windows[-1][0] + min(max_pieces, doc_stride) if windows else 0
        windows.append((start, min(start + max_pieces, num_pieces)))
    return windows


def window_owners(windows: Sequence[tuple[int, int]], lengths: np.ndarray) -> np.ndarray:
    """Say for each unit of a text, of int64 (units,) pieces, which window sees most around it:
    int64 (units,).

    A window (first unit, unit behind the last) has the score min(pieces to the unit's left, pieces
    to its right) + 0.01 * pieces of the window; of equal scores the first window has it. Units are
    pieces in SQuAD, words in tagging.

    Source: run_squad.py `_check_is_max_context`.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    owners = np.zeros(len(lengths), np.int64)
    best = np.full(len(lengths), -1.0)
    for number, (start, end) in enumerate(windows):
        left = offsets[start:end] - offsets[start]
        right = offsets[end] - offsets[start + 1 : end + 1]
        score = np.minimum(left, right) + 0.01 * (offsets[end] - offsets[start])
        better = start + np.flatnonzero(score > best[start:end])
        owners[better] = number
        best[better] = score[better - start]
    return owners


# Answers in windows


def locate_answer(context: EncodedContext, answer: Answer, encode: Encoder) -> Span | None:
    """Find the first and last piece of an answer: its characters lead to words, the words to
    pieces.

    None where the words do not hold the answer: it has other spaces than they, such as U+00A0, or
    is nothing but spaces.

    Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`.
    """
    cleaned = " ".join(answer.text.split())
    # A character between two words belongs to the word before it. -1, before the first word, is the
    # last word for Python and so for the original, which then hardly ever finds the answer: the
    # same is done here.
    characters = [answer.answer_start, answer.answer_start + len(answer.text) - 1]
    first, last = (np.searchsorted(context.word_starts, characters, side="right") - 1).tolist()
    if not cleaned or cleaned not in " ".join(split_words(context.text)[first : last + 1]):
        return None
    start, end = int(context.first_piece[:-1][first]), int(context.first_piece[last + 1]) - 1
    return improve_answer_span(
        context.piece_ids[start : end + 1].tolist(), start, end, encode(answer.text)
    )


def locate_by_offsets(context: OffsetContext, answer: Answer) -> Span | None:
    """Return the first and last piece that hold a character of an answer; None where it has
    none.
    """
    end = answer.answer_start + len(answer.text)
    starts, ends = context.offsets.T
    pieces = np.flatnonzero((ends > answer.answer_start) & (starts < end))
    return (int(pieces[0]), int(pieces[-1])) if answer.text.strip() and len(pieces) else None


def improve_answer_span(pieces: list[int], start: int, end: int, answer: list[int]) -> Span:
    """Narrow a span of complete words to the first span of the answer's pieces: "(1895-1943)." to
    "1895".

    It stays as it was where there is none ("Japan" in "Japanese"). Source: run_squad.py
    `_improve_answer_span`.
    """
    if answer:
        for offset in range(len(pieces) - len(answer) + 1):
            if pieces[offset : offset + len(answer)] == answer:
                return start + offset, start + offset + len(answer) - 1
    return start, end


def positions_in_window(answer: Span, window: tuple[int, int], first_position: int) -> Span:
    """Start and end of an answer in the model's input; 0, that of [CLS], where the window does not
    hold all of it.

    Source: run_squad.py `convert_examples_to_features`.
    """
    if answer == NOT_LOCATED:
        return NOT_LOCATED
    start, end = window
    if answer[0] < start or answer[1] >= end:
        return 0, 0
    return answer[0] - start + first_position, answer[1] - start + first_position


# Features


@dataclass(frozen=True, slots=True)
class WindowLogits:
    """The prediction for one window, whose first piece has a position in the input and a number in
    the paragraph.

    Attributes:
        logits: float32 (2, S), of start and end.
        owned: bool (pieces of the window,), whether answers may start at a piece: no other window
            sees more around it.
    """

    logits: np.ndarray
    first_position: int
    first_piece: int
    owned: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SquadFeatures(Sequence[Feature]):
    """The windows of a split; a model input is put together when it is asked for, from arrays that
    share the text.

    A feature is the pair of question and window as the tokenizer lays out pairs and, where the
    split has answers, start_positions and end_positions: positions in input_ids; 0, that of [CLS],
    where the window lacks the answer or the question has none; -100 where the answer is not in the
    words (never in training).

    Attributes:
        contexts: The paragraph of each example; questions about one share it.
        queries: int32 ids of each example's question.
        windows: int32 (W, 3), number of the example, first piece of the paragraph, piece behind the
            last.
        positions: int32 (W, 2), start and end; None without labels.
        dropped: Ids of the training examples whose words do not hold their answer.
    """

    tokenizer: Any
    contexts: list[EncodedContext | OffsetContext]
    queries: list[np.ndarray]
    windows: np.ndarray
    positions: np.ndarray | None
    dropped: list[str]

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 (W,), positions of each feature."""
        queries = np.array([len(query) for query in self.queries], np.int64)
        special = self.tokenizer.layout.num_special
        return queries[self.windows[:, 0]] + self.windows[:, 2] - self.windows[:, 1] + special

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        example, start, end = self.windows[index].tolist()
        query, window = (
            self.queries[example].tolist(),
            self.contexts[example].piece_ids[start:end].tolist(),
        )
        feature = join_texts(self.tokenizer, query, window, int(self.lengths[index]))
        feature["attention_mask"] = [1] * len(feature["input_ids"])
        if self.positions is not None:
            feature["start_positions"], feature["end_positions"] = self.positions[index].tolist()
        return feature

    def windows_of(self, example: int, outputs: Sequence[np.ndarray]) -> list[WindowLogits]:
        """The windows of an example with their part of the outputs, float32 (2, S) for each
        feature.
        """
        first, last = np.searchsorted(self.windows[:, 0], [example, example + 1]).tolist()
        spans = [(start, end) for _, start, end in self.windows[first:last].tolist()]
        owners = window_owners(spans, np.ones_like(self.contexts[example].piece_ids))
        return [
            WindowLogits(
                logits=logits,
                first_position=self.tokenizer.layout.start_of_second(len(self.queries[example])),
                first_piece=start,
                owned=owners[start:end] == number,
            )
            for number, (logits, (start, end)) in enumerate(
                zip(outputs[first:last], spans, strict=True)
            )
        ]


def encode_questions(
    split: Split, tokenizer: Any, settings: TaskArguments, *, for_training: bool
) -> SquadFeatures:
    """Tokenise every paragraph once and cut it into windows for each of its questions.

    Training leaves out the examples whose words do not hold their answer, and logs them. Otherwise
    every example is kept, with labels if all have them. Of several answers the first is the label
    (the original allows one in training).

    Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`.
    """
    examples = cast(Sequence[QuestionExample], split.examples)
    encode_word: Encoder = lru_cache(maxsize=_REMEMBERED_WORDS)(tokenizer.encode_ids)
    has_words = isinstance(tokenizer, OriginalBertTokenizer)

    @cache
    def context_of(text: str) -> EncodedContext | OffsetContext:
        if has_words and not is_unspaced(text):
            return encode_context(text, encode_word)
        if has_words:
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        else:
            ids, offsets = tokenizer.encode_ids.with_offsets(text)
        return OffsetContext(
            text, np.array(ids, np.int32), np.array(offsets, np.int32).reshape(-1, 2)
        )

    def locate(context: EncodedContext | OffsetContext, answer: Answer) -> Span | None:
        if answer.answer_start < 0:
            return None
        if isinstance(context, OffsetContext):
            return locate_by_offsets(context, answer)
        return locate_answer(context, answer, tokenizer.encode_ids)

    contexts: list[EncodedContext | OffsetContext] = []
    queries: list[np.ndarray] = []
    windows: list[tuple[int, int, int]] = []
    positions: list[Span] = []
    dropped: list[str] = []
    for number, example in enumerate(examples):
        context = context_of(example.context)
        query = tokenizer.encode_ids(example.question)[: settings.max_query_length]
        contexts.append(context)
        queries.append(np.array(query, np.int32))
        span = locate(context, example.answers[0]) if example.answers else NO_ANSWER
        if span is None and for_training:
            dropped.append(example.idx)
            continue
        room = settings.max_seq_length - len(query) - tokenizer.layout.num_special
        for window in cut_windows(len(context.piece_ids), room, settings.doc_stride):
            windows.append((number, *window))
            positions.append(
                positions_in_window(
                    span or NOT_LOCATED, window, tokenizer.layout.start_of_second(len(query))
                )
            )
    if dropped:
        logger.warning(
            "%d of %d training questions are left out: the words of their paragraphs do not hold "
            "their answers (%s)",
            *(len(dropped), len(examples), shorten(dropped, 3)),
        )
    num_several = sum(len(example.answers or ()) > 1 for example in examples)
    if for_training and num_several:
        logger.info(
            "%d of %d training questions have several answers: the first of each is trained on",
            *(num_several, len(examples)),
        )
    labelled = all(example.answers is not None for example in examples)
    return SquadFeatures(
        tokenizer=tokenizer,
        contexts=contexts,
        queries=queries,
        windows=np.array(windows, np.int32).reshape(-1, 3),
        positions=np.array(positions, np.int32).reshape(-1, 2) if labelled else None,
        dropped=dropped,
    )


# The text of a span

# (first piece, last piece) in the paragraph -> text.
SpanText = Callable[[int, int], str]


def realign(predicted: str, original: str, normalized: str) -> str:
    """Find the characters of the original text that a predicted text was made of.

    Case and accents are gone from the prediction, and the original's words may hold more than was
    predicted: for "steve smith" in "Steve Smith's" the answer is "Steve Smith". Without their
    spaces the original and its normal form are laid side by side, character by character; where
    their lengths differ, or the prediction is not in the normal form (it holds [UNK], for example),
    the complete original is the answer. Words have one space between them.

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


def original_texts(
    context: EncodedContext, pieces: Sequence[str], normalize: Callable[[str], str]
) -> SpanText:
    """Spans as the original gives them: the words of the paragraph, cut to the characters of the
    pieces.

    `pieces` has the piece of each id, `normalize` gives the string whose words the tokenizer cuts
    into pieces. What the candidates of a paragraph have in common is computed once.

    Source: run_squad.py `write_predictions`.
    """
    words = split_words(context.text)

    @cache
    def original_of(first: int, last: int) -> tuple[str, str]:
        original = " ".join(words[first : last + 1])
        return original, " ".join(normalize(original).split())

    def span_text(start: int, end: int) -> str:
        joined = " ".join(pieces[number] for number in context.piece_ids[start : end + 1].tolist())
        predicted = " ".join(joined.replace(" ##", "").replace("##", "").split())
        # Of the words that start at one piece only the last has pieces.
        first, last = (
            np.searchsorted(context.first_piece, [start, end], side="right") - 1
        ).tolist()
        return realign(predicted, *original_of(first, last))

    return span_text


def offset_texts(context: EncodedContext | OffsetContext, tokenizer: Any) -> SpanText:
    """Spans as slices between the tokenizer's character offsets, as today's Hugging Face example
    takes them, without the space before a piece.
    """
    if isinstance(context, OffsetContext):
        offsets = context.offsets.tolist()
    else:
        encoded = tokenizer(
            split_words(context.text), add_special_tokens=False, return_offsets_mapping=True
        )
        offsets = [
            (start + first, start + last)
            for start, of_word in zip(
                context.word_starts.tolist(), encoded["offset_mapping"], strict=True
            )
            for first, last in of_word
        ]
    return lambda start, end: context.text[offsets[start][0] : offsets[end][1]].strip()


# Decoding

# What the original starts the minimum of the null scores with: all that an example without windows
# has.
_NO_NULL_SCORE = 1_000_000.0
# Stands for an answer where there is no valid span at all. Source: run_squad.py
# `write_predictions`.
_NONCE = "empty"


@dataclass(frozen=True, slots=True)
class NBestEntry:
    """An answer among the best; the probability is that of their softmax."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """An answer; `value` is its text ("" for none), `probabilities` its probability among the best
    (a float).

    Attributes:
        best_text: The best answer other than "", whatever the threshold; "" where there is none at
            all.
        nbest: The best answers, best first.
        null_odds: Score of "no answer" minus that of best_text; None in SQuAD 1.1.
    """

    best_text: str = ""
    nbest: tuple[NBestEntry, ...] = ()
    null_odds: float | None = None


def decode_answer(
    idx: str,
    windows: Sequence[WindowLogits],
    span_text: SpanText,
    settings: TaskArguments,
    *,
    allows_no_answer: bool,
) -> AnswerPrediction:
    """Decode as settings.decoder says: with "original" by these rules.

    1. Of each window the n_best_size best starts and ends; a span is a candidate if it lies in the
       paragraph, its start is owned by the window, and it is no longer than max_answer_length.
    2. SQuAD 2.0: the null score is the least of the windows' logits at [CLS], start + end; it is a
       candidate too.
    3. By falling sum of the logits, candidates of new text enter the n-best list, until it has
       n_best_size. "" is added where it is not among them (2.0).
    4. No candidate at all: the answer is "empty", with logits 0 (1.1).
    5. 2.0: null odds = null score - score of the best text that is not ""; the answer is "" if they
       exceed the threshold.

    The original crashes where a question of 2.0 has no candidate but the null one (a list that
    holds nothing but "" has no other cause). Here the answer is then "" whatever the threshold, and
    the odds are those against rule 4's logits.

    With "offsets" as today's Hugging Face example does, so that the difference can be seen: answers
    may start in any window, equal texts stay in the list, sums are of float32, and "empty" joins a
    "" that is alone; see `offset_texts`.

    Source: run_squad.py `write_predictions`; for the crash google-research/bert PR #1106;
    transformers examples/pytorch/question-answering/utils_qa.py `postprocess_qa_predictions`.
    """
    is_original = settings.decoder == "original"
    precision = np.float64 if is_original else np.float32
    nulls = [(0.0, 0.0, _NO_NULL_SCORE)]
    for window in windows:
        start, end = window.logits[:, 0].tolist()
        nulls.append((start, end, float(precision(start) + precision(end))))
    null_start, null_end, null_score = min(nulls, key=itemgetter(2))

    parts = [_candidates(window, settings) for window in windows]
    if allows_no_answer:
        parts.append(np.array([[-1, -1, null_start, null_end]]))
    candidates = np.concatenate([np.zeros((0, 4)), *parts])
    totals = candidates[:, 2].astype(precision) + candidates[:, 3].astype(precision)
    entries: list[tuple[str, float, float]] = []
    texts: set[str] = set()
    for rank in np.argsort(-totals, kind="stable").tolist():
        if len(entries) >= settings.n_best_size:
            break
        first, last, start, end = candidates[rank].tolist()
        text = "" if first < 0 else span_text(int(first), int(last))
        if first >= 0 and not text:
            continue  # a piece that is nothing but space
        if text not in texts or not is_original:
            texts.add(text)
            entries.append((text, start, end))
    if allows_no_answer and "" not in texts:
        entries.append(("", null_start, null_end))
    if not entries or (len(entries) == 1 and "" in texts and not is_original):
        entries.insert(0, (_NONCE, 0.0, 0.0))

    # The softmax in the original's order of operations.
    highest = max(start + end for _, start, end in entries)
    powers = [math.exp(start + end - highest) for _, start, end in entries]
    total_power = sum(powers)
    nbest = tuple(
        NBestEntry(text, power / total_power, *ends)
        for (text, *ends), power in zip(entries, powers, strict=True)
    )
    value, best_text, odds = nbest[0].text, nbest[0].text, None
    if allows_no_answer:
        best_text, start, end = next((entry for entry in entries if entry[0]), ("", 0.0, 0.0))
        odds = null_score - start - end
        value = "" if odds > settings.null_score_diff_threshold else best_text
    probability = next((entry.probability for entry in nbest if entry.text == value), 0.0)
    return AnswerPrediction(
        idx, value, probability, best_text=best_text, nbest=nbest, null_odds=odds
    )


def _candidates(window: WindowLogits, settings: TaskArguments) -> np.ndarray:
    """float64 (candidates, 4): first and last piece and their logits of the valid spans, by rank of
    start, then of end.
    """
    best = (
        np.argsort(-window.logits, axis=1, kind="stable")[:, : settings.n_best_size]
        - window.first_position
    )
    starts, ends = (row[(row >= 0) & (row < len(window.owned))] for row in best)
    if settings.decoder == "original":
        starts = starts[window.owned[starts]]
    lengths = ends[None, :] - starts[:, None] + 1
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= settings.max_answer_length))
    starts, ends = starts[rows], ends[columns]
    logits = (
        window.logits[0, starts + window.first_position],
        window.logits[1, ends + window.first_position],
    )
    return np.column_stack(
        [starts + window.first_piece, ends + window.first_piece, *logits]
    ).astype(np.float64)
