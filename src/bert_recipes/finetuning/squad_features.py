"""Questions about paragraphs -> features, by the rules of google-research/bert run_squad.py.

Legend: T pieces of a paragraph, W windows (features), Q pieces of all questions together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, overload

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import Feature
from bert_recipes.finetuning.squad_answers import (
    NO_ANSWER,
    NOT_LOCATED,
    Span,
    are_labelled,
    locate_answer,
    positions_in_window,
    report_training_answers,
)
from bert_recipes.finetuning.squad_windows import EncodedContext, Encoder, Window, cut_windows, encode_context
from bert_recipes.tasks.examples import QuestionExample
from bert_recipes.tokenization import OriginalBertTokenizer


# Distinct words whose ids are remembered while a split is encoded; some 50 MB.
_REMEMBERED_WORDS = 200_000
# [CLS], and [SEP] twice.
_SPECIAL_PIECES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowSettings:
    """How questions and paragraphs are cut, in pieces; see `TaskArguments`.

    Source: run_squad.py, the flags of these names.
    """

    max_seq_length: int
    max_query_length: int
    doc_stride: int

    def __post_init__(self) -> None:
        if self.max_seq_length <= self.max_query_length + _SPECIAL_PIECES:
            raise InputError(
                f"max_seq_length is {self.max_seq_length} and max_query_length {self.max_query_length}; allowed: "
                f"max_seq_length above max_query_length + {_SPECIAL_PIECES}; raise the one or lower the other"
            )

    def windows(self, context_pieces: int, query_pieces: int) -> list[Window]:
        """The windows of a paragraph beside a question of so many pieces."""
        return cut_windows(context_pieces, self.max_seq_length - query_pieces - _SPECIAL_PIECES, self.doc_stride)


@dataclass(frozen=True, kw_only=True)
class SquadFeatures(Sequence[Feature]):
    """The windows of a split; a model input is put together when it is asked for, from arrays that share the text.

    A feature is [CLS] question [SEP] window [SEP], types 0 up to the first [SEP] and 1 after it, and, where the split
    has answers, start_positions and end_positions: positions in input_ids; 0, that of [CLS], where the window lacks the
    answer or the question has none; -100 where the answer is not in the words (never in training).

    Attributes:
        cls_id, sep_id: Ids of the special pieces.
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
        return np.diff(self.query_starts)[self.example_of_feature] + self.window_lengths + _SPECIAL_PIECES

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
    settings: WindowSettings,
    *,
    allows_no_answer: bool,
    for_training: bool,
) -> SquadFeatures:
    """Tokenise every paragraph once and cut it into windows for each of its questions.

    Args:
        examples: The questions.
        tokenizer: Cuts by the original's rules.
        settings: Lengths, in pieces.
        allows_no_answer: Whether an example without answers is a question that has none (SQuAD 2.0).
        for_training: Leave out the examples whose words do not hold their answer, which are logged. Otherwise every
            example is kept, with labels if all have them.

    Returns:
        The features, in the order of the examples. Of several answers the first is the label (the original allows one
        in training).

    Source: run_squad.py `read_squad_examples`, `convert_examples_to_features`.
    """
    labelled = are_labelled(examples, allows_no_answer=allows_no_answer, for_training=for_training)
    encode_word: Encoder = lru_cache(maxsize=_REMEMBERED_WORDS)(tokenizer.encode_ids)
    numbers: dict[str, int] = {}
    parts = _Parts()
    num_several = 0
    for example in examples:
        number = numbers.setdefault(example.context, len(parts.contexts))
        if number == len(parts.contexts):
            parts.contexts.append(encode_context(example.context, encode_word))
        span: Span | None = NO_ANSWER
        if example.answers:
            num_several += len(example.answers) > 1
            span = _locate(parts.contexts[number], example, tokenizer.encode_ids)
        if span is None and for_training:
            parts.dropped.append(example.idx)
            parts.add(number, [], [], NO_ANSWER)
            continue
        query = tokenizer.encode_ids(example.question)[: settings.max_query_length]
        windows = settings.windows(len(parts.contexts[number].piece_ids), len(query))
        parts.add(number, query, windows, NOT_LOCATED if span is None else span)
    if for_training:
        report_training_answers(len(examples), parts.dropped, num_several)
    return parts.features(int(tokenizer.cls_token_id), int(tokenizer.sep_token_id), labelled=labelled)


def _locate(context: EncodedContext, example: QuestionExample, encode: Encoder) -> Span | None:
    assert example.answers
    try:
        return locate_answer(context, example.context, example.answers[0], encode)
    except InputError as error:
        raise InputError(f"question {example.idx}: {error}") from None


class _Parts:
    """Collects what `SquadFeatures` is made of."""

    def __init__(self) -> None:
        self.contexts: list[EncodedContext] = []
        self.dropped: list[str] = []
        self._context_of_example: list[int] = []
        self._queries: list[np.ndarray] = []
        self._windows: list[Window] = []
        self._num_windows: list[int] = []
        self._positions: list[Span] = []

    def add(self, context: int, query: list[int], windows: list[Window], answer: Span) -> None:
        """Add an example: the number of its paragraph, the question's ids, its windows, and its answer's pieces."""
        self._context_of_example.append(context)
        self._queries.append(np.array(query, np.int32))
        self._windows += windows
        self._num_windows.append(len(windows))
        self._positions += [positions_in_window(answer, window, len(query) + 2) for window in windows]

    def features(self, cls_id: int, sep_id: int, *, labelled: bool) -> SquadFeatures:
        """Put the arrays together."""
        windows = np.array(self._windows, np.int32).reshape(-1, 2)
        return SquadFeatures(
            cls_id=cls_id,
            sep_id=sep_id,
            contexts=self.contexts,
            context_of_example=np.array(self._context_of_example, np.int32),
            query_ids=np.concatenate([np.zeros(0, np.int32), *self._queries]),
            query_starts=np.cumsum([0, *map(len, self._queries)], dtype=np.int64),
            first_feature=np.cumsum([0, *self._num_windows], dtype=np.int64),
            window_starts=windows[:, 0].copy(),
            window_lengths=windows[:, 1].copy(),
            positions=np.array(self._positions, np.int32).reshape(-1, 2) if labelled else None,
            dropped=self.dropped,
        )
