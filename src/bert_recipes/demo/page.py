"""The page: a tab for each thing that the checkpoint can do. Views give what Gradio's components
take; Gradio shows texts as texts.
"""

import functools
import logging
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from bert_recipes.demo.model import CHOICES, FILL_MASK, NEXT_SENTENCE, DemoModel, compute_attention
from bert_recipes.demo.samples import ATTENTION, MADE_UP, PIECES, read_run_examples
from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import NOT_FINITE
from bert_recipes.finetuning.prediction import chunk_of_rows
from bert_recipes.metrics.entities import find_entities
from bert_recipes.models.inspection import fill_every_mask, judge_next_sentence, knows_words
from bert_recipes.models.sizes import num_positions
from bert_recipes.rows import check_characters
from bert_recipes.tags import are_entities
from bert_recipes.tokenization.normalization import is_punctuation


logger = logging.getLogger(__name__)

# A page of a book has some 3,000 characters; longer texts are for recipes/predict.py, which reads
# files.
MAX_CHARACTERS = 20_000
MAX_MASKS = MAX_GUESSES = MAX_CHOICES = 20
MAX_LISTED, MAX_DRAWN = 1_000, 48
# Parts of a text, each with what it is marked with.
Marked = list[tuple[str, str | None]]


def check_text(value: str | None, name: str, *, is_optional: bool = False) -> str:
    """Refuse what cannot be read: nothing but space, too long, half of a surrogate pair."""
    text = value or ""
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"{name} has {len(text):,} characters; allowed: {MAX_CHARACTERS:,} "
            "(recipes/predict.py reads files)"
        )
    check_characters(text, name, "the page")
    if not text.strip() and not is_optional:
        raise InputError(f"{name} is empty; type some text")
    return text if text.strip() else ""


def _cut_note(model: DemoModel, texts: Sequence[str], max_positions: int) -> str:
    lengths = [len(model.tokenizer.encode_ids(text)) + 1 for text in texts if text]
    total = sum(lengths) + 1
    return f"{total:,} positions; the model reads {max_positions}: the rest was cut off." * (
        total > max_positions
    )


# Views: values of a tab's fields -> values of its results. The last result is a note.


def fill_masks(
    model: DemoModel, text: str, num_guesses: int
) -> tuple[Marked, list[list[Any]], str]:
    """The text with the best guesses, and rows of (number of the [MASK], token, probability)."""
    text = check_text(text, "the text")
    before, *parts = text.split("[MASK]")
    if not 1 <= len(parts) <= MAX_MASKS:
        raise InputError(
            f"the text has {len(parts)} [MASK]; put 1 to {MAX_MASKS} in the place of words, in "
            "capital letters"
        )
    filled = fill_every_mask(model.network, model.tokenizer, text, top_k=int(num_guesses))
    marked: Marked = [(before, None)]
    rows: list[list[Any]] = []
    for number, (found, part) in enumerate(zip(filled.guesses, parts, strict=True), 1):
        guesses = [("(not read)", 0.0)] if found is None else found
        if not all(math.isfinite(probability) for _, probability in guesses):
            raise InputError(NOT_FINITE)
        marked += [(found[0][0] if found else "[MASK]", str(number)), (part, None)]
        rows += [[number, token, f"{probability:.1%}"] for token, probability in guesses]
    is_cut = filled.num_read < filled.num_pieces
    note = (
        f"{filled.num_pieces:,} tokens; the model reads {filled.num_read}, around the first [MASK]."
    )
    return marked, rows, note * is_cut


def next_sentence(model: DemoModel, first: str, second: str) -> tuple[dict[str, float], str]:
    """How likely the second text follows the first."""
    texts = check_text(first, "the first text"), check_text(second, "the second text")
    is_next = judge_next_sentence(model.network, model.tokenizer, *texts)
    if not math.isfinite(is_next):
        raise InputError(NOT_FINITE)
    probabilities = {"follows the first": is_next, "is from somewhere else": 1 - is_next}
    return probabilities, _cut_note(model, texts, model.network.config.max_position_embeddings)


def predict(model: DemoModel, row: dict[str, Any]) -> tuple[str, Any]:
    """The prediction for one input, made as recipes/predict.py makes it, and a note on its
    windows.
    """
    encoded, (prediction,) = model.predictor.predict(
        chunk_of_rows(model.predictor.task, [row], "the page")
    )
    return f"Longer than the model's input: read in {len(encoded)} windows." * (
        len(encoded) > 1
    ), prediction


def _row(model: DemoModel, *texts: str) -> dict[str, Any]:
    return {
        name: check_text(text, name, is_optional=model.second_is_optional and number > 0)
        for number, (name, text) in enumerate(
            zip(model.predictor.task.text_columns, texts, strict=True)
        )
    }


def classify(model: DemoModel, *texts: str) -> tuple[dict[str, float] | str, str]:
    """The probabilities of the classes, or the number of a regression."""
    row = _row(model, *texts)
    _, prediction = predict(model, row)
    note = _cut_note(
        model, list(row.values()), model.predictor.trainer.kind.settings.max_seq_length
    )
    if prediction.probabilities is None:
        return f"{prediction.value:.4g}", note
    if isinstance(prediction.value, list):
        note = f"Labels of 50 % and more: {', '.join(prediction.value) or 'none'}. {note}"
    return prediction.probabilities, note


def tag_words(model: DemoModel, text: str) -> tuple[Marked, list[list[str]], str]:
    """The sentence with what was found in it, and rows of (words, label, least probability of a
    word).
    """
    task = model.predictor.task
    text = check_text(text, "the sentence")
    spans = split_words(text)
    note, prediction = predict(
        model, {task.text_columns[0]: [text[start:end] for start, end in spans]}
    )
    marked, rows, position = cast(Marked, []), [], 0
    for label, first, last in group_words(prediction.value, task.labels):
        start, end = spans[first][0], spans[last][1]
        marked += [(text[position:start], None), (text[start:end], label)]
        rows.append(
            [text[start:end], label, f"{min(prediction.probabilities[first : last + 1]):.1%}"]
        )
        position = end
    return [*marked, (text[position:], None)], rows, note


def split_words(text: str) -> list[tuple[int, int]]:
    """Spans of the words as tagging tasks have them: punctuation at the ends of a word stands
    alone, inside it stays.

    "U.N." is "U.N" and ".", "don't" is one word: a model reads a word's label off its first token.
    """
    spans = []
    for match in re.finditer(r"\S+", text):
        start, end = first, last = match.span()
        while first < end and is_punctuation(text[first]):
            first += 1
        while last > first and is_punctuation(text[last - 1]):
            last -= 1
        spans += [(number, number + 1) for number in range(start, first)]
        spans += [(first, last)] if first < last else []
        spans += [(number, number + 1) for number in range(last, end)]
    return spans


def group_words(tags: Sequence[str], labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return (type, first word, last word) of entities where the labels mark such; else every word
    and its label.
    """
    if are_entities(labels):
        return find_entities(tags)
    return [(tag, number, number) for number, tag in enumerate(tags)]


def find_answer(
    model: DemoModel, question: str, paragraph: str
) -> tuple[Marked, list[list[str]], str]:
    """The paragraph with the answer, marked wherever its words stand: predictions are texts; and
    rows of the best answers.
    """
    row = _row(model, question, paragraph)
    windows, prediction = predict(model, row)
    answer, paragraph = str(prediction.value), list(row.values())[1]
    marked: Marked = []
    for part in paragraph.split(answer) if answer else [paragraph]:
        marked += [(answer, "answer"), (part, None)] if marked else [(part, None)]
    rows = [
        [entry.text or "(no answer)", f"{entry.probability:.1%}"] for entry in prediction.nbest[:5]
    ]
    notes = [] if answer else ["No answer."]
    if prediction.null_odds is not None:
        threshold = model.predictor.trainer.kind.settings.null_score_diff_threshold
        odds = f"{prediction.null_odds:.2f}; no answer above {threshold:g}."
        notes.append(f"Score of no answer minus the best answer's: {odds}")
    return marked, rows, " ".join([*notes, windows])


def choose(model: DemoModel, *values: str) -> tuple[dict[str, float], str]:
    """The probability of each choice; the choices are the lines of the last field."""
    row = _row(model, *values[:-1])
    lines = check_text(values[-1], "the list of choices").splitlines()
    choices = [line.strip() for line in lines if line.strip()]
    if not 2 <= len(choices) <= MAX_CHOICES:
        raise InputError(f"the choices are {len(choices)}; give 2 to {MAX_CHOICES}, one per line")
    _, prediction = predict(model, row | {CHOICES: choices})
    names = [f"{number}. {choice}" for number, choice in enumerate(choices, 1)]
    context, *start = row.values()
    longest = max(choices, key=lambda choice: len(model.tokenizer.encode_ids(choice)))
    most = model.predictor.trainer.kind.settings.max_seq_length
    note = _cut_note(model, (context, " ".join([*start, longest])), most)
    return dict(zip(names, prediction.probabilities, strict=True)), note


def show_attention(
    model: DemoModel, first: str, second: str, layer: int, head: int
) -> tuple[Any, Any, str]:
    """Heat maps of one head (0: the layer's mean) and of all heads; layers and heads count from
    1.
    """
    first, second = (
        check_text(first, "the first text"),
        check_text(second, "the second text", is_optional=True),
    )
    tokens, weights, length_of_text = compute_attention(model, first, second, MAX_DRAWN)
    if not np.isfinite(weights).all():
        raise InputError(NOT_FINITE)
    num_layers, num_heads, length, _ = weights.shape
    if not (1 <= layer <= num_layers and 0 <= head <= num_heads):
        raise InputError(
            f"the model has {num_layers} layers of {num_heads} heads; no layer {layer}, head {head}"
        )
    num_read = min(length_of_text, num_positions(model.network.config))
    notes = (
        [f"{length_of_text:,} positions; the model reads {num_read}."]
        if num_read < length_of_text
        else []
    )
    notes += [f"Drawn are the first {len(tokens)} positions."] if len(tokens) < num_read else []
    of_layer = weights[int(layer) - 1]
    title = (
        f"layer {layer:g}, {f'head {head:g}' if head else 'mean of its heads'}: row looks at column"
    )
    one = draw_heat_map(of_layer[int(head) - 1] if head else of_layer.mean(0), title, tokens)
    # A gap between two heads; the root lets weak weights be seen.
    tiles = np.pad(np.sqrt(weights), ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    tiles = tiles.transpose(0, 2, 1, 3).reshape(num_layers * (length + 1), num_heads * (length + 1))
    title = f"all heads: {num_layers} layers down, {num_heads} heads across (square roots)"
    return one, draw_heat_map(tiles, title), " ".join(notes)


def draw_heat_map(weights: np.ndarray, title: str, tokens: Sequence[str] = ()) -> Any:
    """Draw weights from 0 to 1 as a figure of matplotlib; `tokens` name its rows and columns."""
    from matplotlib.figure import Figure

    size = 4 + len(tokens) / 6
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    axes.imshow(weights, cmap="Purples", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks(
        range(len(tokens)), tokens, rotation=90, parse_math=False
    )  # a dollar sign is no formula
    axes.set_yticks(range(len(tokens)), tokens, parse_math=False)
    axes.set_title(title)
    return figure


def tokenize(model: DemoModel, text: str) -> tuple[Marked, list[list[Any]], str]:
    """The text marked with its tokens; rows of (token, id, characters); counts and the normalised
    words.
    """
    text, tokenizer = check_text(text, "the text"), model.tokenizer
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, words = encoded["input_ids"], tokenizer.normalize(text).split()
    if not ids:
        raise InputError(
            "nothing is left of the text: it holds nothing but control characters or space"
        )
    marked, rows, position = cast(Marked, []), [], 0
    tokens = zip(tokenizer.convert_ids_to_tokens(ids), ids, encoded["offset_mapping"], strict=True)
    for token, number, (start, end) in list(tokens)[:MAX_LISTED]:
        rows.append([token, number, f"{start} to {end}"])
        if position <= start < end:  # a character that gave several tokens is marked with the first
            marked += [(text[position:start], None), (text[start:end], f"{token} {number}")]
            position = end
    marked.append((text[position:] if len(ids) <= MAX_LISTED else " ...", None))
    note = (
        f"{len(text):,} characters, {len(words):,} words, {len(ids):,} tokens "
        f"({len(ids) / len(words):.2f} per word), "
    )
    note += f"{ids.count(tokenizer.unk_token_id):,} unknown."
    note += f" Shown are the first {MAX_LISTED:,} tokens." * (len(ids) > MAX_LISTED)
    return marked, rows, f"{note}\nNormalised: {' '.join(words[:MAX_LISTED])}"


# The page


class Tab(NamedTuple):
    """One thing to try: `view` takes the values of `fields` and gives those of `results` and a
    note.
    """

    name: str
    title: str
    hint: str
    view: Callable[..., tuple[Any, ...]]
    fields: list[Any]
    results: list[Any]


def make_tabs(model: DemoModel) -> list[Tab]:
    """The tabs of the checkpoint's heads, then those that every checkpoint has."""
    import gradio as gr

    of_run = read_run_examples(Path(model.name))

    def example(tab: str, number: int) -> str:
        """Return the text of a field; none that is made up where the vocabulary is of another
        language.
        """
        if tab in of_run:
            return of_run[tab][number] if number < len(of_run[tab]) else ""
        made_up = MADE_UP[tab][number]
        return made_up if knows_words(model.tokenizer, made_up) else ""

    def text(label: str, value: str = "", lines: int = 2) -> Any:
        return gr.Textbox(value, label=label, lines=lines, max_lines=12, render=False)

    def slider(label: str, least: int, most: int, value: int) -> Any:
        # A slider of one value cannot be drawn.
        return gr.Slider(
            least, max(most, least + 1), value, step=1, precision=0, label=label, render=False
        )

    def table(*headers: str) -> Any:
        return gr.Dataframe(
            headers=list(headers), datatype="str", interactive=False, wrap=True, render=False
        )

    def columns(tab: str) -> list[Any]:
        names = list(model.predictor.task.text_columns) if model.predictor else []
        if model.second_is_optional:
            return [text(names[0], example(tab, 0)), text(f"{names[1]} (may be empty)")]
        return [text(name, example(tab, number)) for number, name in enumerate(names[:2])]

    marked, label = (
        functools.partial(kind, render=False) for kind in (gr.HighlightedText, gr.Label)
    )
    config = model.network.config
    heads = {
        FILL_MASK: Tab(
            "fill_mask",
            "Fill masks",
            "Which words stand behind the masks?",
            fill_masks,
            [
                text("Text with one or more [MASK]", example(FILL_MASK, 0)),
                slider("Guesses for each [MASK]", 1, MAX_GUESSES, 5),
            ],
            [marked(label="Filled"), table("mask", "token", "probability")],
        ),
        NEXT_SENTENCE: Tab(
            "next_sentence",
            "Next sentence",
            "Does the second text follow the first?",
            next_sentence,
            [
                text("First text", example(NEXT_SENTENCE, 0)),
                text("Second text", example(NEXT_SENTENCE, 1)),
            ],
            [label(label="The second text ...")],
        ),
        "sequence_classification": Tab(
            "classify",
            "Classify",
            "What does the model make of the text?",
            classify,
            columns("sequence_classification"),
            [label(label="Class")],
        ),
        "token_classification": Tab(
            "tag",
            "Label words",
            "Which words have which label?",
            tag_words,
            [text("Sentence", example("token_classification", 0))],
            [marked(label="Found"), table("words", "label", "least probability")],
        ),
        "question_answering": Tab(
            "answer",
            "Answer questions",
            "Where in the paragraph is the answer?",
            find_answer,
            [
                text("Question", example("question_answering", 0)),
                text("Paragraph", example("question_answering", 1), 4),
            ],
            [marked(label="Answer"), table("answer", "probability")],
        ),
        "multiple_choice": Tab(
            "choose",
            "Choose",
            "Which of the choices fits?",
            choose,
            [
                *columns("multiple_choice"),
                text("Choices, one per line", example("multiple_choice", 2), 4),
            ],
            [label(label="Choice")],
        ),
    }
    return [
        *(heads[ability] for ability in model.abilities),
        Tab(
            "attention",
            "Attention",
            "Which token looks at which?",
            show_attention,
            [
                text("Text", example(ATTENTION, 0)),
                text("Second text (may be empty)"),
                slider("Layer", 1, config.num_hidden_layers, 1),
                slider("Head (0: mean of all)", 0, config.num_attention_heads, 1),
            ],
            [gr.Plot(label="One head", render=False), gr.Plot(label="All heads", render=False)],
        ),
        Tab(
            "pieces",
            "Pieces",
            "How is a text cut into the tokens that the model reads?",
            tokenize,
            [text("Text", example(PIECES, 0), 3)],
            [marked(label="Where the tokens are from"), table("token", "id", "characters")],
        ),
    ]


def build_page(model: DemoModel) -> Any:
    """Build the page as `gradio.Blocks`; the examples are answered now, so that a page that is
    opened has something to show.
    """
    # Nothing is left to the environment: neither who reaches the page nor what is reported.
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr

    config = model.network.config
    facts = (
        f"{type(model.network).__name__}, {config.num_hidden_layers} layers of "
        f"{config.num_attention_heads} heads, hidden size "
        f"{config.hidden_size}, {model.network.num_parameters():,} parameters, "
        f"{len(model.tokenizer):,} tokens, "
        f"{'uncased' if model.tokenizer.do_lower_case else 'cased'}."
    )
    lacks = f" Not shown: {'; '.join(model.lacks)}." if model.lacks else ""

    def answer(tab: Tab, *values: Any) -> tuple[Any, ...]:
        try:
            return tab.view(model, *values)
        except InputError as mistake:
            raise gr.Error(escape(str(mistake)), print_exception=False) from None

    with gr.Blocks(title=f"{model.name} - bert-recipes", analytics_enabled=False) as page:
        gr.HTML(f"<h1>{escape(model.name)}</h1><p>{escape(facts + lacks)}</p>")
        for tab in make_tabs(model):
            with gr.Tab(tab.title, id=tab.name):
                gr.Markdown(tab.hint)
                with gr.Row():
                    for field in tab.fields:
                        field.render()
                button = gr.Button(tab.title, variant="primary")
                results = [*tab.results, gr.Textbox(show_label=False, max_lines=6, render=False)]
                for result in results:
                    result.render()
                # The checkpoint is asked once at a time: neither tokenizers nor Trainers are made
                # for several threads.
                events: dict[str, Any] = {
                    "concurrency_limit": 1,
                    "concurrency_id": "model",
                    "inputs": tab.fields,
                }
                events |= {"fn": functools.partial(answer, tab), "outputs": results}
                button.click(api_name=tab.name, **events)
                for field in tab.fields:
                    event = field.release if isinstance(field, gr.Slider) else field.submit
                    event(api_visibility="private", **events)
                if tab.fields[0].value:
                    _answer_example(model, tab, results)
    page.queue(max_size=64)
    return page


def _answer_example(model: DemoModel, tab: Tab, results: Sequence[Any]) -> None:
    """Fill the results with the answer to the example in the fields."""
    try:
        values = tab.view(model, *(field.value for field in tab.fields))
    except InputError:  # a run's example can lack a text: then it waits for one
        return
    for result, value in zip(results, values, strict=True):
        result.value = result.postprocess(value)


def launch_page(
    model: DemoModel, host: str, port: int, *, is_local: bool = True
) -> tuple[Any, str]:
    """Serve the page in a thread; return the page, whose `close` ends it, and its address.

    `is_local`: only this machine reaches the address. Then no other name than its own is answered,
    or a site whose name is made to point here (DNS rebinding) could read the page.
    """
    page = build_page(model)
    import gradio as gr
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    names = [host, f"[{host}]", "localhost", "127.0.0.1", "[::1]"] if is_local else ["*"]

    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        footer_links=[],
        max_file_size=1,
        enable_monitoring=False,
        # Pages of FastAPI that load their scripts from elsewhere, and fonts that Gradio's own
        # themes fetch.
        app_kwargs={
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
            "middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=names)],
        },
        theme=gr.themes.Base(
            font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
    )
    return page, address.rstrip("/")


def serve(model: DemoModel, host: str, port: int, *, is_local: bool) -> None:
    """Serve the page until Ctrl-C or SIGTERM; `is_local` as for `launch_page`."""
    page, address = launch_page(model, host, port, is_local=is_local)
    # SIGINT too: a shell starts what it puts in the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    logger.info("the page is at %s (Ctrl-C ends it)", address)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    page.close(verbose=False)
    logger.info("the page is closed")
