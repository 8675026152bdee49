"""The tabs of the page: their fields and results, as Gradio's components.

Import it after `page.build_page` has cleaned the environment, which Gradio reads on import.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gradio as gr

from bert_recipes.demo import views
from bert_recipes.demo.model import FILL_MASK, NEXT_SENTENCE, DemoModel
from bert_recipes.demo.samples import ATTENTION, PIECES, list_examples


MAX_GUESSES = 20


class Tab(NamedTuple):
    """A tab: its view takes the values of the fields and returns those of the results, and a note.

    Fields and results are components of Gradio that are not rendered yet.
    """

    name: str
    title: str
    hint: str
    view: Callable[..., tuple[Any, ...]]
    fields: list[Any]
    results: list[Any]


Examples = Mapping[str, Sequence[str]]


def make_tabs(model: DemoModel) -> list[Tab]:
    """Return the tabs of the checkpoint's heads, then those that every checkpoint has."""
    examples = list_examples(model)
    names = (*model.abilities, ATTENTION, PIECES)
    return [TABS[name](model, examples) for name in names]


def _fill_mask_tab(model: DemoModel, examples: Examples) -> Tab:
    return Tab(
        "fill_mask",
        "Fill masks",
        "Which words stand behind the masks?",
        views.fill_masks,
        fields=[
            _textbox("Text with one or more [MASK]", examples[FILL_MASK][0]),
            _slider("Guesses for each [MASK]", 1, MAX_GUESSES, 5),
        ],
        results=[
            gr.HighlightedText(render=False, label="Filled"),
            _table("mask", "token", "probability"),
        ],
    )


def _next_sentence_tab(model: DemoModel, examples: Examples) -> Tab:
    first, second, _ = examples[NEXT_SENTENCE]
    return Tab(
        "next_sentence",
        "Next sentence",
        "Does the second text follow the first?",
        views.next_sentence,
        fields=[_textbox("First text", first), _textbox("Second text", second)],
        results=[gr.Label(render=False, label="The second text ...")],
    )


def _classification_tab(model: DemoModel, examples: Examples) -> Tab:
    return Tab(
        "classify",
        "Classify",
        "What does the model make of the text?",
        views.classify,
        fields=_column_fields(model, examples["sequence_classification"]),
        results=[gr.Label(render=False, label="Class")],
    )


def _tagging_tab(model: DemoModel, examples: Examples) -> Tab:
    return Tab(
        "tag",
        "Label words",
        "Which words have which label?",
        views.tag_words,
        fields=[_textbox("Sentence", examples["token_classification"][0])],
        results=[
            gr.HighlightedText(render=False, label="Found"),
            _table("words", "label", "least probability"),
        ],
    )


def _answer_tab(model: DemoModel, examples: Examples) -> Tab:
    question, paragraph, _ = examples["question_answering"]
    return Tab(
        "answer",
        "Answer questions",
        "Where in the paragraph is the answer?",
        views.find_answer,
        fields=[_textbox("Question", question), _textbox("Paragraph", paragraph, lines=4)],
        results=[gr.HighlightedText(render=False, label="Answer"), _table("answer", "probability")],
    )


def _choice_tab(model: DemoModel, examples: Examples) -> Tab:
    texts = examples["multiple_choice"]
    return Tab(
        "choose",
        "Choose",
        "Which of the choices fits?",
        views.choose,
        fields=[
            *_column_fields(model, texts),
            _textbox("Choices, one per line", texts[-1], lines=4),
        ],
        results=[gr.Label(render=False, label="Choice")],
    )


def _attention_tab(model: DemoModel, examples: Examples) -> Tab:
    config = model.network.config
    return Tab(
        "attention",
        "Attention",
        "Which token looks at which?",
        views.show_attention,
        fields=[
            _textbox("Text", examples[ATTENTION][0]),
            _textbox("Second text (may be empty)"),
            _slider("Layer", 1, config.num_hidden_layers, 1),
            _slider("Head (0: mean of all)", 0, config.num_attention_heads, 1),
        ],
        results=[gr.Plot(render=False, label="One head"), gr.Plot(render=False, label="All heads")],
    )


def _pieces_tab(model: DemoModel, examples: Examples) -> Tab:
    return Tab(
        "pieces",
        "Pieces",
        "How is a text cut into the tokens that the model reads?",
        views.tokenize,
        fields=[_textbox("Text", examples[PIECES][0], lines=3)],
        results=[
            gr.HighlightedText(render=False, label="Where the tokens are from"),
            _table("token", "id", "characters"),
        ],
    )


TABS: dict[str, Callable[[DemoModel, Examples], Tab]] = {
    FILL_MASK: _fill_mask_tab,
    NEXT_SENTENCE: _next_sentence_tab,
    "sequence_classification": _classification_tab,
    "token_classification": _tagging_tab,
    "question_answering": _answer_tab,
    "multiple_choice": _choice_tab,
    ATTENTION: _attention_tab,
    PIECES: _pieces_tab,
}


# Fields and results


def _column_fields(model: DemoModel, texts: Sequence[str]) -> list[Any]:
    """Return a text field for each text column of the checkpoint's task."""
    names = model.predictor.task.text_columns
    if model.second_is_optional:
        return [_textbox(names[0], texts[0]), _textbox(f"{names[1]} (may be empty)")]
    return [_textbox(name, text) for name, text in zip(names, texts, strict=False)]


def _textbox(label: str, text: str = "", lines: int = 2) -> Any:
    return gr.Textbox(
        text,
        label=label,
        lines=lines,
        max_lines=12,
        render=False,
    )


def _slider(
    label: str,
    least: int,
    most: int,
    value: int,
) -> Any:
    # A slider of one value cannot be drawn.
    most = max(most, least + 1)
    return gr.Slider(
        least,
        most,
        value,
        step=1,
        precision=0,
        label=label,
        render=False,
    )


def _table(*headers: str) -> Any:
    return gr.Dataframe(
        headers=list(headers),
        datatype="str",
        interactive=False,
        wrap=True,
        render=False,
    )
