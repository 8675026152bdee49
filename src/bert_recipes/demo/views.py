"""Answer the page's tabs: a view takes the values of a tab's fields and returns its results.

The last result is a note. Results are what Gradio's components take; Gradio shows texts as texts.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_recipes.demo.model import CHOICES, DemoModel, compute_attention
from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import NOT_FINITE
from bert_recipes.finetuning.prediction import chunk_of_rows
from bert_recipes.metrics.entities import find_entities
from bert_recipes.models.inspection import fill_every_mask, judge_next_sentence
from bert_recipes.models.sizes import num_positions
from bert_recipes.rows import check_characters
from bert_recipes.tags import are_entities
from bert_recipes.tasks.tagging import split_text


# A page of a book has some 3,000 characters; longer texts are for recipes/predict.py, which reads
# files.
MAX_CHARACTERS = 20_000
MAX_MASKS = 20
MAX_CHOICES = 20
MAX_ANSWERS = 5
MAX_LISTED = 1_000  # tokens
MAX_DRAWN = 48  # positions

# Consecutive pieces of a text, each with its label.
Marked = list[tuple[str, str | None]]
# (start, end, label), in characters
Span = tuple[int, int, str]


def check_text(value: str | None, name: str, *, is_optional: bool = False) -> str:
    """Refuse what cannot be read: nothing but space, too long, half of a surrogate pair."""
    text = value or ""
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"{name} has {len(text):,} characters; allowed: {MAX_CHARACTERS:,} "
            "(recipes/predict.py reads files)"
        )
    check_characters(text, name, "the page")
    if text.strip():
        return text
    if not is_optional:
        raise InputError(f"{name} is empty; type some text")
    return ""


def mark(text: str, spans: Iterable[Span]) -> Marked:
    """Return a text with spans of it labelled; the spans are in order and do not overlap."""
    marked: Marked = []
    position = 0
    for start, end, label in spans:
        marked.append((text[position:start], None))
        marked.append((text[start:end], label))
        position = end
    marked.append((text[position:], None))
    return marked


def note_cut(model: DemoModel, texts: Sequence[str], max_positions: int) -> str:
    """Return a note if the texts, which are one input, are longer than what the model reads."""
    layout = model.tokenizer.layout
    total = len(layout.prefix) + len(layout.suffix)
    texts = list(filter(None, texts))
    if len(texts) > 1:
        total = layout.num_special
    for text in texts:
        total += len(model.tokenizer.encode_ids(text))
    if total <= max_positions:
        return ""
    return f"{total:,} positions; the model reads {max_positions}: the rest was cut off."


# Checkpoints of pre-training


def fill_masks(
    model: DemoModel, text: str, num_guesses: int
) -> tuple[Marked, list[list[Any]], str]:
    """Return the text with the best guesses, and rows of number of the [MASK], token, probability.

    A [MASK] behind what the model reads has no guess.
    """
    text = check_text(text, "the text")
    before, *texts_after = text.split("[MASK]")
    if not 1 <= len(texts_after) <= MAX_MASKS:
        raise InputError(
            f"the text has {len(texts_after)} [MASK]; put 1 to {MAX_MASKS} in the place of words, "
            "in capital letters"
        )
    filled = fill_every_mask(model.network, model.tokenizer, text, top_k=int(num_guesses))
    marked: Marked = [(before, None)]
    rows: list[list[Any]] = []
    guesses_and_texts = zip(filled.guesses, texts_after, strict=True)
    for number, (guesses, text_after) in enumerate(guesses_and_texts, start=1):
        word = guesses[0][0] if guesses else "[MASK]"
        marked.append((word, str(number)))
        marked.append((text_after, None))
        for token, probability in guesses or [("(not read)", 0.0)]:
            if not math.isfinite(probability):
                raise InputError(NOT_FINITE)
            rows.append([number, token, f"{probability:.1%}"])

    note = ""
    if filled.num_read < filled.num_pieces:
        note = (
            f"{filled.num_pieces:,} tokens; the model reads {filled.num_read}, around the first "
            "[MASK]."
        )
    return marked, rows, note


def next_sentence(model: DemoModel, first: str, second: str) -> tuple[dict[str, float], str]:
    """Return the probability that the second text follows the first."""
    first = check_text(first, "the first text")
    second = check_text(second, "the second text")
    is_next = judge_next_sentence(model.network, model.tokenizer, first, second)
    if not math.isfinite(is_next):
        raise InputError(NOT_FINITE)
    note = note_cut(model, [first, second], model.network.config.max_position_embeddings)
    return {"follows the first": is_next, "is from somewhere else": 1 - is_next}, note


# Fine-tuned checkpoints


def predict(model: DemoModel, row: dict[str, Any]) -> tuple[Any, str]:
    """Return what recipes/predict.py predicts for a row, and a note on its windows."""
    chunk = chunk_of_rows(model.predictor.task, [row], "the page")
    windows, predictions = model.predictor.predict(chunk)
    (prediction,) = predictions
    num_windows = len(windows)
    if num_windows <= 1:
        return prediction, ""
    return prediction, f"Longer than the model's input: read in {num_windows} windows."


def make_row(model: DemoModel, *texts: str) -> dict[str, Any]:
    """Return the row of a task's data file with these texts."""
    task = model.predictor.task
    # The choices may be complete.
    may_lack_second = model.second_is_optional or task.kind == "multiple_choice"
    row: dict[str, Any] = {}
    for name, text in zip(task.text_columns, texts, strict=True):
        is_optional = may_lack_second and len(row) > 0
        row[name] = check_text(text, name, is_optional=is_optional)
    return row


def classify(model: DemoModel, *texts: str) -> tuple[dict[str, float] | str, str]:
    """Return the probabilities of the classes, or the number of a regression."""
    row = make_row(model, *texts)
    prediction, note = predict(model, row)
    if not note:  # it was not read in windows
        settings = model.predictor.trainer.kind.settings
        note = note_cut(model, list(row.values()), settings.max_seq_length)
    if prediction.probabilities is None:
        return f"{prediction.value:.4g}", note
    if isinstance(prediction.value, list):
        labels = ", ".join(prediction.value) or "none"
        note = f"Labels of 50 % and more: {labels}. {note}"
    return prediction.probabilities, note


def tag_words(model: DemoModel, text: str) -> tuple[Marked, list[list[str]], str]:
    """Return the labelled sentence, and rows of words, label, least probability of a word."""
    task = model.predictor.task
    text = check_text(text, "the sentence")
    words = split_text(text)
    tokens = [text[start:end] for start, end in words]
    prediction, note = predict(model, {task.text_columns[0]: tokens})

    spans: list[Span] = []
    rows = []
    for label, first, last in group_words(prediction.value, task.labels):
        start, _ = words[first]
        _, end = words[last]
        spans.append((start, end, label))
        probability = min(prediction.probabilities[first : last + 1])
        rows.append([text[start:end], label, f"{probability:.1%}"])
    return mark(text, spans), rows, note


def group_words(tags: Sequence[str], labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return label, first word and last word of entities, or of every word.

    Whether there are entities is a matter of all labels, not of those of one sentence.
    """
    if are_entities(labels):
        return find_entities(tags)
    return [(tag, number, number) for number, tag in enumerate(tags)]


def find_answer(
    model: DemoModel, question: str, paragraph: str
) -> tuple[Marked, list[list[str]], str]:
    """Return the paragraph with the answer, and rows of the best answers.

    The answer is marked wherever its words stand: predictions are texts.
    """
    row = make_row(model, question, paragraph)
    _, paragraph = row.values()
    prediction, window_note = predict(model, row)
    answer = str(prediction.value)
    spans: list[Span] = []
    notes = []
    if answer:
        for match in re.finditer(re.escape(answer), paragraph):
            spans.append((match.start(), match.end(), "answer"))
    else:
        notes.append("No answer.")
    rows = []
    for entry in prediction.nbest[:MAX_ANSWERS]:
        rows.append([entry.text or "(no answer)", f"{entry.probability:.1%}"])
    if prediction.null_odds is not None:
        threshold = model.predictor.trainer.kind.settings.null_score_diff_threshold
        notes.append(
            f"Score of no answer minus the best answer's: {prediction.null_odds:.2f}; no answer "
            f"above {threshold:g}."
        )
    return mark(paragraph, spans), rows, " ".join([*notes, window_note])


def choose(model: DemoModel, *values: str) -> tuple[dict[str, float], str]:
    """Return the probability of each choice; the choices are the lines of the last field."""
    *texts, text_of_choices = values
    row = make_row(model, *texts)
    choices = _read_choices(text_of_choices)
    prediction, _ = predict(model, {**row, CHOICES: choices})
    probabilities = {}
    for number, choice in enumerate(choices, start=1):
        probabilities[f"{number}. {choice}"] = prediction.probabilities[number - 1]

    context, *start_of_choices = row.values()
    longest_choice = _longest(model, choices)
    second_text = " ".join([*start_of_choices, longest_choice])
    settings = model.predictor.trainer.kind.settings
    return probabilities, note_cut(model, [context, second_text], settings.max_seq_length)


def _longest(model: DemoModel, texts: Sequence[str]) -> str:
    """Return the text with the most pieces."""
    return max(texts, key=lambda text: len(model.tokenizer.encode_ids(text)))


def _read_choices(text: str) -> list[str]:
    """Return the lines of a text that are not blank."""
    lines = check_text(text, "the list of choices").split("\n")
    choices = [line.strip() for line in lines if line.strip()]
    if not 2 <= len(choices) <= MAX_CHOICES:
        raise InputError(f"the choices are {len(choices)}; give 2 to {MAX_CHOICES}, one per line")
    return choices


# Every checkpoint


def show_attention(
    model: DemoModel,
    first: str,
    second: str,
    layer: int,
    head: int,
) -> tuple[Any, Any, str]:
    """Return heat maps of one head and of all heads.

    Args:
        model: The checkpoint.
        first: A text.
        second: Another text, or nothing.
        layer: From 1.
        head: From 1; 0 is the mean of the layer's heads.
    """
    first = check_text(first, "the first text")
    second = check_text(second, "the second text", is_optional=True)
    tokens, weights, num_tokens = compute_attention(model, first, second, MAX_DRAWN)
    if not np.isfinite(weights).all():
        raise InputError(NOT_FINITE)
    num_layers, num_heads, _, _ = weights.shape
    if not (1 <= layer <= num_layers and 0 <= head <= num_heads):
        raise InputError(
            f"the model has {num_layers} layers of {num_heads} heads; no layer {layer}, head {head}"
        )
    notes = []
    num_read = min(num_tokens, num_positions(model.network.config))
    if num_read < num_tokens:
        notes.append(f"{num_tokens:,} positions; the model reads {num_read}.")
    if len(tokens) < num_read:
        notes.append(f"Drawn are the first {len(tokens)} positions.")

    heads = weights[int(layer) - 1]
    if head:
        title = f"layer {layer:g}, head {head:g}"
        one_head = heads[int(head) - 1]
    else:
        title = f"layer {layer:g}, mean of its heads"
        one_head = heads.mean(0)
    plot = draw_heat_map(one_head, f"{title}: row looks at column", tokens)
    return plot, draw_all_heads(weights), " ".join(notes)


def draw_all_heads(weights: np.ndarray) -> Any:
    """Draw the attention of all heads, float (layers, heads, positions, positions)."""
    num_layers, num_heads, length, _ = weights.shape
    # A gap between two heads; the root lets weak weights be seen.
    gaps = ((0, 0), (0, 0), (0, 1), (0, 1))
    tiles = np.pad(np.sqrt(weights), gaps, constant_values=np.nan)
    size = length + 1
    num_rows = num_layers * size
    num_columns = num_heads * size
    tiles = tiles.transpose(0, 2, 1, 3).reshape(num_rows, num_columns)
    title = f"all heads: {num_layers} layers down, {num_heads} heads across (square roots)"
    return draw_heat_map(tiles, title)


def draw_heat_map(weights: np.ndarray, title: str, tokens: Sequence[str] = ()) -> Any:
    """Draw weights from 0 to 1 as a figure of matplotlib; `tokens` name its rows and columns."""
    from matplotlib.figure import Figure

    size = 4 + len(tokens) / 6
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    axes.imshow(
        weights,
        cmap="Purples",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    # A dollar sign is no formula.
    axes.set_xticks(range(len(tokens)), tokens, rotation=90, parse_math=False)
    axes.set_yticks(range(len(tokens)), tokens, parse_math=False)
    axes.set_title(title)
    return figure


def tokenize(model: DemoModel, text: str) -> tuple[Marked, list[list[Any]], str]:
    """Return the text marked with its tokens, and rows of token, id, characters.

    The note has counts and the normalized words.
    """
    text = check_text(text, "the text")
    tokenizer = model.tokenizer
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    ids = encoded["input_ids"]
    if not ids:
        raise InputError(
            "nothing is left of the text: it holds nothing but control characters or space"
        )
    spans: list[Span] = []
    rows = []
    position = 0
    tokens = tokenizer.convert_ids_to_tokens(ids[:MAX_LISTED])
    for number, token in enumerate(tokens):
        start, end = encoded["offset_mapping"][number]
        rows.append([token, ids[number], f"{start} to {end}"])
        # A character that gave several tokens is marked with the first.
        if position <= start < end:
            spans.append((start, end, f"{token} {ids[number]}"))
            position = end
    marked = mark(text, spans)

    words = tokenizer.normalize(text).split()
    note = (
        f"{len(text):,} characters, {len(words):,} words, {len(ids):,} tokens "
        f"({len(ids) / len(words):.2f} per word), {ids.count(tokenizer.unk_token_id):,} unknown."
    )
    if len(ids) > MAX_LISTED:
        marked[-1] = (" ...", None)
        note += f" Shown are the first {MAX_LISTED:,} tokens."
    return marked, rows, f"{note}\nNormalized: {' '.join(words[:MAX_LISTED])}"
