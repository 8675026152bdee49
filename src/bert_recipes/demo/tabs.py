"""The tabs of a checkpoint's page: which there are follows from its heads. No word of the page's framework here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bert_recipes.demo.markup import error, note
from bert_recipes.demo.model import CHOICES, FILL_MASK, NEXT_SENTENCE, DemoModel
from bert_recipes.demo.task_views import show_answer, show_choice, show_class, show_tags
from bert_recipes.demo.views import MAX_GUESSES, show_attention, show_filled_masks, show_next_sentence, show_pieces
from bert_recipes.errors import InputError
from bert_recipes.inspection import knows_words


@dataclass(frozen=True)
class Field:
    """Something to type or to set.

    Attributes:
        label: Above it.
        value: At the start: text, or a whole number for a slider.
        lines: Height of a text field.
        limits: Least and greatest number of a slider; None for a text field.
        needs_text: Whether there is nothing to show while it is empty.
    """

    label: str
    value: str | int
    lines: int = 1
    limits: tuple[int, int] | None = None
    needs_text: bool = True


@dataclass(frozen=True)
class Tab:
    """One thing to try.

    Attributes:
        name: Name of its function for programs.
        title: On the tab.
        hint: What is to be done.
        button: On the button.
        fields: Texts first, then sliders; their values are what `view` takes after the model.
        view: Values -> HTML; raises `InputError` for the user's mistakes.
    """

    name: str
    title: str
    hint: str
    button: str
    fields: tuple[Field, ...]
    view: Callable[..., str]


def tabs_of(model: DemoModel) -> list[Tab]:
    """The tabs of the checkpoint's heads, then those that every checkpoint has."""
    makers = {
        FILL_MASK: _fill_mask,
        NEXT_SENTENCE: _next_sentence,
        "sequence_classification": _classification,
        "token_classification": _tagging,
        "question_answering": _answering,
        "multiple_choice": _choosing,
    }
    return [*(makers[ability](model) for ability in model.abilities), _attention(model), _pieces(model)]


def answer(model: DemoModel, tab: Tab, *values: Any) -> str:
    """What the page shows for the values of a tab's fields; a user's mistake as one line.

    Calls wait for each other.
    """
    try:
        with model.lock:
            return tab.view(model, *values)
    except InputError as mistake:
        return error(str(mistake))


def first_answer(model: DemoModel, tab: Tab) -> str:
    """What the page shows at the start: the answer for the examples, where the model knows their words."""
    if any(field.needs_text and field.value == "" for field in tab.fields):
        return note("Type a text, then press the button.")
    return answer(model, tab, *(field.value for field in tab.fields))


def _example(model: DemoModel, text: str) -> str:
    """The text, or nothing where the model's vocabulary is of another language."""
    return text if knows_words(model.tokenizer, text) else ""


def _text(model: DemoModel, label: str, example: str, lines: int = 1, *, needs_text: bool = True) -> Field:
    return Field(label, _example(model, example), lines, needs_text=needs_text)


def _fill_mask(model: DemoModel) -> Tab:
    fields = (
        _text(model, "Text with one or more [MASK]", "The function returns a [MASK] of all [MASK] in the file.", 2),
        Field("Guesses for each [MASK]", 5, limits=(1, MAX_GUESSES)),
    )
    hint = "Which words stand behind the masks?"
    return Tab("fill_mask", "Fill masks", hint, "Fill", fields, show_filled_masks)


def _next_sentence(model: DemoModel) -> Tab:
    first, second = "The function opens a file and reads it.", "It returns the first line of the file."
    fields = (_text(model, "First text", first, 2), _text(model, "Second text", second, 2))
    hint = "Does the second text follow the first, or is it from another place?"
    return Tab("next_sentence", "Next sentence", hint, "Judge", fields, show_next_sentence)


def _classification(model: DemoModel) -> Tab:
    assert model.predictor is not None
    examples = ("The film is a quiet triumph and its actors are good.", "The actors of the film are very good.")
    fields = []
    for number, column in enumerate(model.predictor.task.text_columns):
        is_needed = number == 0 or not model.second_is_optional
        label = column if is_needed else f"{column} (may be empty)"
        example = _example(model, examples[number % 2]) if is_needed else ""
        fields.append(Field(label, example, 2, needs_text=is_needed))
    hint = "What does the model make of the text?"
    return Tab("classify", "Classify", hint, "Classify", tuple(fields), show_class)


def _tagging(model: DemoModel) -> Tab:
    text = "Angela Merkel visited the offices of Siemens in Munich on Monday."
    hint = "Which words have which label? Punctuation at the ends of words is cut off as a word of its own."
    return Tab("tag", "Label words", hint, "Find", (_text(model, "Sentence", text, 2),), show_tags)


def _answering(model: DemoModel) -> Tab:
    paragraph = (
        "The book was written by Jane Austen and first published in London in 1813. It was read by many people."
    )
    fields = (_text(model, "Question", "Who wrote the book?"), _text(model, "Paragraph", paragraph, 4))
    return Tab("answer", "Answer questions", "Where in the paragraph is the answer?", "Answer", fields, show_answer)


def _choosing(model: DemoModel) -> Tab:
    assert model.predictor is not None
    examples = ("She opens the door of the car and looks inside.", "She")
    columns = model.predictor.task.text_columns
    fields = [_text(model, column, examples[number % 2], 2) for number, column in enumerate(columns)]
    choices = "takes her bag from the seat.\nreads the whole book in the sea.\nis eaten by the car."
    fields.append(_text(model, f"{CHOICES.capitalize()}, one a line", choices, 4))
    return Tab("choose", "Choose", "Which of the choices fits?", "Choose", tuple(fields), show_choice)


def _attention(model: DemoModel) -> Tab:
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    fields = (
        _text(model, "Text", "The value of the key is returned if it is in the list.", 2),
        Field("Second text (may be empty)", "", 2, needs_text=False),
        Field("Layer", 1, limits=(1, layers)),
        Field("Head (0: mean of all)", 1, limits=(0, heads)),
    )
    hint = "Which piece looks at which, in any layer and head?"
    return Tab("attention", "Attention", hint, "Look", fields, show_attention)


def _pieces(model: DemoModel) -> Tab:
    text = "Unbelievable: the tokenizer's vocabulary holds pieces of words, na\u00efve ones too!"
    hint = "How is a text cut into the pieces that the model reads?"
    return Tab("pieces", "Pieces", hint, "Cut", (Field("Text", text, 3),), show_pieces)
