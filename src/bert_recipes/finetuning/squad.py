"""SQuAD by the rules of google-research/bert run_squad.py: windows, features, answers.

Other tokenizers than WordPiece, and paragraphs in scripts that part no words by spaces: the same
windows and n-best list, but answers are found, and cut out, by the pieces' character offsets. The
original takes a Chinese paragraph for one word, and trains on the first place where the answer's
pieces stand in it.

Legend: T pieces of a paragraph, W windows of a split, S positions of a model input (padding may
follow the text; it then competes for the best positions, as in the original, whose inputs are all
padded to max_seq_length).
"""

import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

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
    """Split at spaces, tabs, carriage returns, line feeds and U+202F.

    Other Unicode spaces stay inside words.
    """
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedContext:
    """A paragraph, tokenized once for all its questions.

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


@dataclass(frozen=True, slots=True, eq=False)
class OffsetContext:
    """A paragraph in pieces that know their characters.

    Attributes:
        piece_ids: int32 (T,).
        offsets: int32 (T, 2), start and end of each piece in the text.
    """

    text: str
    piece_ids: np.ndarray
    offsets: np.ndarray


Context = EncodedContext | OffsetContext


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


def cut_windows(num_pieces: int, max_pieces: int, doc_stride: int) -> list[tuple[int, int]]:
    """Cover a paragraph with windows (first piece, piece behind the last) of max_pieces at most.

    An empty paragraph has none.

    Example:
        >>> cut_windows(10, 6, 3)
        [(0, 6), (3, 9), (6, 10)]

    Source: run_squad.py `convert_examples_to_features`.
    """
    windows = []
    start = 0
    while start < num_pieces:
        end = min(start + max_pieces, num_pieces)
        windows.append((start, end))
        if end == num_pieces:
            break
        start += min(max_pieces, doc_stride)
    return windows


def window_owners(windows: Sequence[tuple[int, int]], lengths: np.ndarray) -> np.ndarray:
    """Return int64 (units,), for each unit of a text the number of the window that owns it.

    A window (first unit, unit behind the last) has the score min(pieces to the unit's left, pieces
    to its right) + 0.01 * pieces of the window; the highest score owns the unit, of equal ones the
    first. Units are pieces in SQuAD, words in tagging.

    Args:
        windows: Of the text.
        lengths: int64 (units,), pieces of each unit.

    Source: run_squad.py `_check_is_max_context`.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    owners = np.zeros(len(lengths), np.int64)
    best_scores = np.full(len(lengths), -1.0)
    for number, (start, end) in enumerate(windows):
        first_piece = offsets[start]
        last_piece = offsets[end]
        pieces_to_left = offsets[start:end] - first_piece
        pieces_to_right = last_piece - offsets[start + 1 : end + 1]
        context = np.minimum(pieces_to_left, pieces_to_right)
        scores = context + 0.01 * (last_piece - first_piece)

        is_better = scores > best_scores[start:end]
        units = np.arange(start, end)[is_better]
        owners[units] = number
        best_scores[units] = scores[is_better]
    return owners


# Answers in windows


def locate_answer(context: EncodedContext, answer: Answer, encode: Encoder) -> Span:
    """Find the first and last piece of an answer: its characters lead to words, words to pieces.

    `NOT_LOCATED` where the words do not hold the answer: it has other spaces than they, such as
    U+00A0, or is nothing but spaces.

    Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`.
    """
    cleaned = " ".join(answer.text.split())
    # A character between two words belongs to the word before it. -1, before the first word, is the
    # last word for Python and so for the original, which then hardly ever finds the answer: the
    # same is done here.
    characters = [answer.answer_start, answer.answer_start + len(answer.text) - 1]
    word_numbers = np.searchsorted(context.word_starts, characters, side="right") - 1
    first_word, last_word = word_numbers.tolist()
    words = split_words(context.text)[first_word : last_word + 1]
    if not cleaned or cleaned not in " ".join(words):
        return NOT_LOCATED
    start = int(context.first_piece[:-1][first_word])
    end = int(context.first_piece[last_word + 1]) - 1
    pieces = context.piece_ids[start : end + 1].tolist()
    return improve_answer_span(pieces, start, end, encode(answer.text))


def locate_by_offsets(context: OffsetContext, answer: Answer) -> Span:
    """Return the first and last piece with a character of an answer, or `NOT_LOCATED`."""
    start = answer.answer_start
    end = start + len(answer.text)
    piece_starts, piece_ends = context.offsets.T
    pieces = np.flatnonzero((piece_ends > start) & (piece_starts < end))
    if not answer.text.strip() or not pieces.size:
        return NOT_LOCATED
    return int(pieces[0]), int(pieces[-1])


def improve_answer_span(pieces: list[int], start: int, end: int, answer: list[int]) -> Span:
    """Narrow a span of complete words to the answer's pieces: "(1895-1943)." to "1895".

    It stays as it was where it does not hold them ("Japan" in "Japanese"). Source: run_squad.py
    `_improve_answer_span`.
    """
    if not answer:
        return start, end
    size = len(answer)
    for offset in range(len(pieces) - size + 1):
        if pieces[offset : offset + size] == answer:
            first = start + offset
            return first, first + size - 1
    return start, end


def positions_in_window(answer: Span, window: tuple[int, int], first_position: int) -> Span:
    """Return start and end of an answer in the model's input.

    Both are 0, the position of [CLS], where the window does not hold the complete answer.

    Source: run_squad.py `convert_examples_to_features`.
    """
    if answer == NOT_LOCATED:
        return NOT_LOCATED
    start, end = window
    first, last = answer
    if first < start or last >= end:
        return 0, 0
    offset = first_position - start
    return first + offset, last + offset


# Features


@dataclass(frozen=True, slots=True)
class WindowLogits:
    """The logits of one window, and where it stands.

    Attributes:
        logits: float32 (2, S), of start and end.
        first_position: Position of its first piece in the model's input.
        first_piece: Number of its first piece in the paragraph.
        owned: bool (pieces of the window,), whether answers may start at a piece: no other window
            sees more around it.
    """

    logits: np.ndarray
    first_position: int
    first_piece: int
    owned: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SquadFeatures(Sequence[Feature]):
    """The windows of a split; a model input is made when it is asked for, from shared arrays.

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
    contexts: list[Context]
    queries: list[np.ndarray]
    windows: np.ndarray
    positions: np.ndarray | None
    dropped: list[str]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Return int64 (W,), the positions of each feature."""
        query_lengths = np.array([len(query) for query in self.queries], np.int64)
        examples, starts, ends = self.windows.T
        return query_lengths[examples] + ends - starts + self.tokenizer.layout.num_special

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: Any) -> Any:
        """Return the feature of a window."""
        example, start, end = self.windows[index].tolist()
        query = self.queries[example].tolist()
        window = self.contexts[example].piece_ids[start:end].tolist()
        length = int(self.lengths[index])
        feature = join_texts(self.tokenizer, query, window, length)
        if self.positions is not None:
            first, last = self.positions[index].tolist()
            feature["start_positions"] = first
            feature["end_positions"] = last
        return feature

    def windows_of(self, example: int, outputs: Sequence[np.ndarray]) -> list[WindowLogits]:
        """Return the windows of an example with their logits.

        Args:
            example: Its number.
            outputs: float32 (2, S) for each feature of the split.
        """
        first, last = np.searchsorted(self.windows[:, 0], [example, example + 1]).tolist()
        spans = self.windows[first:last, 1:].tolist()
        piece_ids = self.contexts[example].piece_ids
        owners = window_owners(spans, np.ones_like(piece_ids))
        query = self.queries[example]
        windows = []
        for number, (start, end) in enumerate(spans):
            window = WindowLogits(
                logits=outputs[first + number],
                first_position=self.tokenizer.layout.start_of_second(len(query)),
                first_piece=start,
                owned=owners[start:end] == number,
            )
            windows.append(window)
        return windows


def encode_questions(
    split: Split, tokenizer: Any, settings: TaskArguments, *, for_training: bool
) -> SquadFeatures:
    """Tokenize every paragraph once and cut it into windows for each of its questions.

    Training leaves out the examples whose words do not hold their answer, and logs them. Otherwise
    every example stays, with labels if all have them. Of several answers the first is the label
    (the original allows one in training).

    Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`.
    """
    examples: Sequence[Any] = split.examples
    encode_word = lru_cache(maxsize=_REMEMBERED_WORDS)(tokenizer.encode_ids)
    context_of = cache(partial(_encode_paragraph, tokenizer=tokenizer, encode_word=encode_word))

    contexts: list[Context] = []
    queries: list[np.ndarray] = []
    windows: list[tuple[int, int, int]] = []
    positions: list[Span] = []
    dropped: list[str] = []
    for number, example in enumerate(examples):
        context = context_of(example.context)
        query = tokenizer.encode_ids(example.question)[: settings.max_query_length]
        contexts.append(context)
        queries.append(np.array(query, np.int32))
        answer = _locate_label(context, example, tokenizer.encode_ids)
        if answer == NOT_LOCATED and for_training:
            dropped.append(example.idx)
            continue

        max_pieces = settings.max_seq_length - len(query) - tokenizer.layout.num_special
        first_position = tokenizer.layout.start_of_second(len(query))
        for start, end in cut_windows(len(context.piece_ids), max_pieces, settings.doc_stride):
            windows.append((number, start, end))
            positions.append(positions_in_window(answer, (start, end), first_position))

    if dropped:
        message = "%d of %d training questions are left out: %s (%s)"
        why = "the words of their paragraphs do not hold their answers"
        logger.warning(message, len(dropped), len(examples), why, shorten(dropped, 3))
    num_several = sum(len(example.answers or ()) > 1 for example in examples)
    if for_training and num_several:
        message = (
            "%d of %d training questions have several answers: the first of each is trained on"
        )
        logger.info(message, num_several, len(examples))
    is_labelled = all(example.answers is not None for example in examples)
    return SquadFeatures(
        tokenizer=tokenizer,
        contexts=contexts,
        queries=queries,
        windows=np.array(windows, np.int32).reshape(-1, 3),
        positions=np.array(positions, np.int32).reshape(-1, 2) if is_labelled else None,
        dropped=dropped,
    )


def _encode_paragraph(text: str, tokenizer: Any, encode_word: Encoder) -> Context:
    """Cut a paragraph into words and pieces, or into pieces that know their characters."""
    if not isinstance(tokenizer, OriginalBertTokenizer):
        piece_ids, offsets = tokenizer.encode_ids.with_offsets(text)
    elif is_unspaced(text):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        piece_ids = encoded["input_ids"]
        offsets = encoded["offset_mapping"]
    else:
        return encode_context(text, encode_word)
    return OffsetContext(
        text, np.array(piece_ids, np.int32), np.array(offsets, np.int32).reshape(-1, 2)
    )


def _locate_label(context: Context, example: QuestionExample, encode: Encoder) -> Span:
    """Return the pieces of an example's first answer."""
    if not example.answers:
        return NO_ANSWER
    answer = example.answers[0]
    if answer.answer_start < 0:
        return NOT_LOCATED
    if isinstance(context, OffsetContext):
        return locate_by_offsets(context, answer)
    return locate_answer(context, answer, encode)


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
    if not predicted or predicted not in normalized:
        return original
    start = normalized.index(predicted)
    characters = [index for index, character in enumerate(original) if character != " "]
    if len(characters) != len(normalized.replace(" ", "")):
        return original
    # Neither end of the prediction is a space, so both have a partner.
    first = len(normalized[:start].replace(" ", ""))
    last = first + len(predicted.replace(" ", "")) - 1
    return original[characters[first] : characters[last] + 1]


def make_original_text(
    context: EncodedContext, pieces: Sequence[str], normalize: Callable[[str], str]
) -> SpanText:
    """Return a function from (first piece, last piece) to the text, as the original gives it.

    That is the words of the span, cut to the characters of its pieces. What the candidates of a
    paragraph have in common is computed once.

    Args:
        context: The paragraph.
        pieces: The piece of each id.
        normalize: Gives the string whose words the tokenizer cuts into pieces.

    Source: run_squad.py `write_predictions`.
    """
    words = split_words(context.text)

    @cache
    def original_of(first_word: int, last_word: int) -> tuple[str, str]:
        original = " ".join(words[first_word : last_word + 1])
        return original, " ".join(normalize(original).split())

    def span_text(start: int, end: int) -> str:
        numbers = context.piece_ids[start : end + 1].tolist()
        joined = " ".join(pieces[number] for number in numbers)
        merged = joined.replace(" ##", "").replace("##", "")
        predicted = " ".join(merged.split())

        # Of the words that start at one piece only the last has pieces.
        word_numbers = np.searchsorted(context.first_piece, [start, end], side="right") - 1
        first_word, last_word = word_numbers.tolist()
        original, normalized = original_of(first_word, last_word)
        return realign(predicted, original, normalized)

    return span_text


def make_offset_text(context: Context, tokenizer: Any) -> SpanText:
    """Return a function from (first piece, last piece) to the text, as Hugging Face's example.

    That is a slice between offsets. The space before a piece is left out.
    """
    if isinstance(context, OffsetContext):
        offsets = context.offsets.tolist()
    else:
        words = split_words(context.text)
        encoded = tokenizer(words, add_special_tokens=False, return_offsets_mapping=True)
        offsets = []
        word_starts = context.word_starts.tolist()
        for word_start, pieces in zip(word_starts, encoded["offset_mapping"], strict=True):
            for start, end in pieces:
                offsets.append((word_start + start, word_start + end))

    def span_text(start: int, end: int) -> str:
        return context.text[offsets[start][0] : offsets[end][1]].strip()

    return span_text


# Decoding

# What the original starts the minimum of the null scores with: all that an example without windows
# has.
_NO_NULL_SCORE = 1_000_000.0
# Stands for an answer where there is no valid span at all. Source: run_squad.py
# `write_predictions`.
_NONCE = "empty"


class ScoredText(NamedTuple):
    """A text with the logits of its first and of its last piece."""

    text: str
    start_logit: float
    end_logit: float


@dataclass(frozen=True, slots=True)
class NBestEntry:
    """An answer among the best; the probability is that of their softmax."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclass(frozen=True)
class AnswerPrediction(Prediction):
    """Hold an answer: `value` is its text ("" for none), `probabilities` its share among the best.

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
    """Decode as settings.decoder says: with "original" by the rules of the functions below.

    The original crashes where a question of 2.0 has no candidate but the null one (a list that
    holds nothing but "" has no other cause). Here the answer is then "" whatever the threshold, and
    the odds are those against logits of 0.

    With "offsets" as today's Hugging Face example does, so that the difference can be seen: answers
    may start in any window, equal texts stay in the list, sums are of float32, and "empty" joins a
    "" that is alone; see `make_offset_text`.

    Source: run_squad.py `write_predictions`; for the crash google-research/bert PR #1106;
    transformers examples/pytorch/question-answering/utils_qa.py `postprocess_qa_predictions`.
    """
    precision = np.float64 if settings.decoder == "original" else np.float32
    null, null_score = _find_null(windows, precision)
    optional_null = null if allows_no_answer else None
    candidates = _rank_candidates(windows, optional_null, settings, precision)
    answers = _choose_answers(candidates, span_text, settings)
    _fill_nbest(answers, optional_null, settings)
    nbest = _add_probabilities(answers)
    if allows_no_answer:
        return _choose_by_odds(idx, nbest, null_score, settings)
    best = nbest[0]
    return AnswerPrediction(idx, best.text, best.probability, best.text, nbest)


def _find_null(windows: Sequence[WindowLogits], precision: Any) -> tuple[ScoredText, float]:
    """Return "" with the logits at [CLS] of the window where their sum is least, and the sum.

    In SQuAD 2.0 the sum is the null score, and "" is a candidate too.
    """
    nulls = [(ScoredText("", 0.0, 0.0), _NO_NULL_SCORE)]
    for window in windows:
        logits_of_cls = window.logits[:, 0]
        start_logit, end_logit = logits_of_cls.astype(precision)
        null = ScoredText("", *logits_of_cls.tolist())
        nulls.append((null, float(start_logit + end_logit)))
    return min(nulls, key=itemgetter(1))


def _rank_candidates(
    windows: Sequence[WindowLogits],
    null: ScoredText | None,
    settings: TaskArguments,
    precision: Any,
) -> np.ndarray:
    """Return the spans of all windows, and the null answer, by the falling sum of their logits.

    They are float64 (candidates, 4) as of `_find_spans`; the null answer has -1 for its pieces.
    """
    spans = [np.zeros((0, 4))]
    for window in windows:
        spans.append(_find_spans(window, settings))
    if null is not None:
        spans.append(np.array([[-1, -1, null.start_logit, null.end_logit]]))
    candidates = np.concatenate(spans)
    scores = candidates[:, 2].astype(precision) + candidates[:, 3].astype(precision)
    ranks = np.argsort(-scores, kind="stable")
    return candidates[ranks]


def _choose_answers(
    candidates: np.ndarray, span_text: SpanText, settings: TaskArguments
) -> list[ScoredText]:
    """Return the texts of the n_best_size best spans; a text that is there already is left out.

    Args:
        candidates: Of `_rank_candidates`.
        span_text: Gives the text of a span.
        settings: Of the run.
    """
    answers: list[ScoredText] = []
    texts = set()
    for candidate in candidates:
        if len(answers) >= settings.n_best_size:
            break
        first, last, start_logit, end_logit = candidate.tolist()
        is_null = first < 0
        text = "" if is_null else span_text(int(first), int(last))
        is_blank = not is_null and not text  # a piece that is nothing but space
        is_repeated = settings.decoder == "original" and text in texts
        if is_blank or is_repeated:
            continue
        texts.add(text)
        answers.append(ScoredText(text, start_logit, end_logit))
    return answers


def _fill_nbest(
    answers: list[ScoredText], null: ScoredText | None, settings: TaskArguments
) -> None:
    """Add the null answer where it is missing (2.0), and "empty" to a list without an answer."""
    texts = [answer.text for answer in answers]
    if null is not None and "" not in texts:
        answers.append(null)
    # Hugging Face's example adds "empty" to a "" too; `texts` are those before null was added.
    adds_to_null = settings.decoder != "original" and texts == [""]
    if not answers or adds_to_null:
        answers.insert(0, ScoredText(_NONCE, 0.0, 0.0))


def _add_probabilities(answers: Sequence[ScoredText]) -> tuple[NBestEntry, ...]:
    """Return answers with their softmax, in the original's order of operations."""
    scores = [answer.start_logit + answer.end_logit for answer in answers]
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    entries = []
    for answer, power in zip(answers, powers, strict=True):
        text, start_logit, end_logit = answer
        entries.append(NBestEntry(text, power / total, start_logit, end_logit))
    return tuple(entries)


def _choose_by_odds(
    idx: str, nbest: tuple[NBestEntry, ...], null_score: float, settings: TaskArguments
) -> AnswerPrediction:
    """Answer "" where the null odds exceed the threshold, else the best text that is not "" (2.0).

    The null odds are the null score - the score of that text.
    """
    non_null = [entry for entry in nbest if entry.text]
    best = NBestEntry("", 0.0, 0.0, 0.0)
    if non_null:
        best = non_null[0]
    odds = null_score - best.start_logit - best.end_logit
    value = best.text
    if odds > settings.null_score_diff_threshold:
        value = ""
    probability = next(entry.probability for entry in nbest if entry.text == value)
    return AnswerPrediction(idx, value, probability, best.text, nbest, odds)


def _find_spans(window: WindowLogits, settings: TaskArguments) -> np.ndarray:
    """Return float64 (spans, 4): first and last piece of the valid spans, and their logits.

    Starts and ends are the n_best_size best. A span is valid if it lies in the paragraph, the
    window owns its start, and it is no longer than max_answer_length. Spans are ordered by the rank
    of their start, then of their end.
    """
    ranks = np.argsort(-window.logits, axis=1, kind="stable")[:, : settings.n_best_size]
    starts, ends = ranks - window.first_position  # in the window
    num_pieces = len(window.owned)
    starts = starts[(starts >= 0) & (starts < num_pieces)]
    ends = ends[(ends >= 0) & (ends < num_pieces)]
    if settings.decoder == "original":
        starts = starts[window.owned[starts]]
    lengths = ends - starts[:, None] + 1
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= settings.max_answer_length))
    starts = starts[rows]
    ends = ends[columns]
    start_logits, end_logits = window.logits[:, window.first_position :]
    spans = [
        starts + window.first_piece,
        ends + window.first_piece,
        start_logits[starts],
        end_logits[ends],
    ]
    return np.column_stack(spans).astype(np.float64)
