"""Gold answers -> pieces of the paragraph -> positions in a window, by the rules of google-research/bert run_squad.py."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from bert_recipes.errors import InputError
from bert_recipes.finetuning.squad_windows import EncodedContext, Encoder, Window, split_words
from bert_recipes.tasks.examples import Answer, QuestionExample


logger = logging.getLogger(__name__)

# First and last piece of an answer in the paragraph.
Span = tuple[int, int]
# The question has none: [CLS] is the answer of every window.
NO_ANSWER: Span = (-1, -1)
# There is one, but not in the words as they were cut: its windows take no part in the loss.
NOT_LOCATED: Span = (-100, -100)


def are_labelled(examples: Sequence[QuestionExample], *, allows_no_answer: bool, for_training: bool) -> bool:
    """Whether the examples carry answers, after a check that the task can take them.

    Args:
        examples: The questions.
        allows_no_answer: Whether questions may have none.
        for_training: Whether answers are needed.

    Raises:
        InputError: An example without an answer where each needs one.
    """
    for example in examples:
        if example.answers is None:
            if for_training:
                raise InputError(f"question {example.idx}: its answers are hidden; training needs them")
            return False
        if not example.answers and not allows_no_answer:
            raise InputError(
                f"question {example.idx} has no answer, but the task is SQuAD 1.1; take --task squad_v2, "
                "or the metric squad_v2 in your own task"
            )
    return True


def locate_answer(context: EncodedContext, text: str, answer: Answer, encode: Encoder) -> Span | None:
    """Find the pieces of an answer.

    The answer's characters lead to words, the words to pieces; within these the span is narrowed by
    `improve_answer_span`.

    Args:
        context: The paragraph, encoded.
        text: The paragraph.
        answer: Of this paragraph.
        encode: Text -> ids of its pieces.

    Returns:
        First and last piece, or None where the words do not hold the answer: it has other spaces than they, such as
        U+00A0, or is nothing but spaces.

    Raises:
        InputError: The answer's characters reach beyond the paragraph.

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
    """Narrow a span of whole words to the pieces of the answer: "(1895-1943)." to "1895".

    Args:
        pieces: Ids of the pieces from start to end.
        start: First piece of the words.
        end: Last piece of the words.
        answer: Ids of the answer's pieces.

    Returns:
        The first span of the answer's pieces; start and end as they were where there is none ("Japan" in "Japanese").

    Source: run_squad.py `_improve_answer_span`.
    """
    if answer:
        for offset in range(len(pieces) - len(answer) + 1):
            if pieces[offset : offset + len(answer)] == answer:
                return start + offset, start + offset + len(answer) - 1
    return start, end


def positions_in_window(answer: Span, window: Window, first_position: int) -> Span:
    """Positions of an answer in the model's input.

    Args:
        answer: First and last piece in the paragraph, `NO_ANSWER` or `NOT_LOCATED`.
        window: First piece and number of pieces.
        first_position: Position of the window's first piece.

    Returns:
        Start and end position; 0, that of [CLS], where the window does not hold the whole answer.

    Source: run_squad.py `convert_examples_to_features`.
    """
    if answer == NOT_LOCATED:
        return NOT_LOCATED
    start, length = window
    if answer[0] < start or answer[1] >= start + length:
        return 0, 0
    shift = first_position - start
    return answer[0] + shift, answer[1] + shift


def report_training_answers(num_examples: int, dropped: Sequence[str], num_several: int) -> None:
    """Log what was left out of a training split.

    Args:
        num_examples: Examples of the split.
        dropped: Ids of the questions whose answers were not found in the words.
        num_several: Questions with more than one answer.
    """
    if dropped:
        named = ", ".join(dropped[:3]) + (", ..." if len(dropped) > 3 else "")
        logger.warning(
            "%d of %d training questions are left out: the words of their paragraphs do not hold their answers (%s)",
            len(dropped),
            num_examples,
            named,
        )
    if num_several:
        logger.info(
            "%d of %d training questions have several answers: the first of each is trained on",
            num_several,
            num_examples,
        )
