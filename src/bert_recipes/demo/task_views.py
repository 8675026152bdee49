"""From what a user typed to what the page shows: the tabs of fine-tuned checkpoints, one for each kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from bert_recipes.demo.markup import as_percent, bars, card, escape, hue_of, mark, note, table
from bert_recipes.demo.model import CHOICES, DemoModel
from bert_recipes.demo.texts import check_optional_text, check_text
from bert_recipes.demo.views import cut_note
from bert_recipes.demo.words import split_words
from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import EncodedSplit, Prediction
from bert_recipes.finetuning.prediction import Predictor
from bert_recipes.finetuning.prediction_inputs import chunk_of_rows
from bert_recipes.finetuning.question_answering import AnswerPrediction
from bert_recipes.metrics.entities import find_entities


# Answers that are shown of those that the decoder keeps.
MAX_ANSWERS = 5
MAX_CHOICES = 20


def predict(model: DemoModel, row: Mapping[str, Any]) -> tuple[EncodedSplit, Prediction]:
    """The prediction for one input, made as recipes/predict.py makes it.

    Args:
        model: A fine-tuned checkpoint.
        row: Column -> value.
    """
    predictor = _predictor(model)
    encoded, (prediction,) = predictor.predict(chunk_of_rows(predictor.task, [row], "the page"))
    return encoded, prediction


def _predictor(model: DemoModel) -> Predictor:
    assert model.predictor is not None, "the tab is there for fine-tuned checkpoints only"
    return model.predictor


def show_class(model: DemoModel, *texts: Any) -> str:
    """The classes of a text or a pair with their probabilities, or the number of a regression."""
    task = _predictor(model).task
    checked = [check_text(texts[0], task.text_columns[0])]
    check_second = check_optional_text if model.second_is_optional else check_text
    checked += [check_second(text, name) for text, name in zip(texts[1:], task.text_columns[1:], strict=True)]
    _, prediction = predict(model, dict(zip(task.text_columns, checked, strict=True)))
    cut = note(cut_note(model, tuple(checked), _length(model)))
    if task.problem_type == "regression":
        return card("Number", f'<p class="bd-number">{float(cast(float, prediction.value)):.4g}</p>') + cut
    shares = cast(dict[str, float], prediction.probabilities)
    order = sorted(shares.items(), key=lambda item: -item[1])
    if task.problem_type == "multi_label_classification":
        chosen = cast(list[str], prediction.value)
        return card(f"Labels: {', '.join(chosen) or 'none'} (those of 50 % and more)", bars(order, chosen)) + cut
    return card(f"Class: {prediction.value}", bars(order, [str(prediction.value)])) + cut


def _length(model: DemoModel) -> int:
    return _predictor(model).trainer.kind.settings.max_seq_length


def show_tags(model: DemoModel, text: Any) -> str:
    """The sentence with what was found in it, and each find with the least probability of its words."""
    task = _predictor(model).task
    text = check_text(text, "the sentence")
    spans = split_words(text)
    words = [text[start:end] for start, end in spans]
    encoded, prediction = predict(model, {task.text_columns[0]: words})
    tags, shares = cast(list[str], prediction.value), cast(list[float], prediction.probabilities)
    found = group_words(tags, task.labels)
    names = sorted({name for name, _, _ in group_words(task.labels, task.labels)})
    parts, place, rows = [], 0, []
    for name, first, last in found:
        start, end = spans[first][0], spans[last][1]
        least = min(shares[first : last + 1])
        details = ", ".join(
            f"{words[number]}: {tags[number]} {shares[number]:.1%}" for number in range(first, last + 1)
        )
        parts += [escape(text[place:start]), mark(text[start:end], name, details, hue_of(name, names))]
        rows.append((text[start:end], name, as_percent(least)))
        place = end
    sentence = f'<p class="bd-text">{"".join(parts)}{escape(text[place:])}</p>'
    read = f"The text is longer than the model's input: it was read in {len(encoded)} windows."
    listing = table(["words", "label", "least probability"], rows) if rows else note("Nothing was found.")
    return card("Found", sentence + listing) + note(read if len(encoded) > 1 else "")


def group_words(tags: Sequence[str], labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Find what is marked: entities where all labels are "O", B-TYPE, I-TYPE and the like, else every word but those of "O".

    Args:
        tags: One for each word, each of them a label.
        labels: All that the model has.

    Returns:
        (type or label, first word, last word) in the order of the words.
    """
    try:
        find_entities(labels)
    except InputError:  # parts of speech, types without B and I, and the like
        return [(tag, number, number) for number, tag in enumerate(tags) if tag != "O"]
    return find_entities(tags)


def show_answer(model: DemoModel, question: Any, context: Any) -> str:
    """The answer in its paragraph, and the next best ones."""
    columns = _predictor(model).task.text_columns
    texts = {columns[0]: check_text(question, "the question"), columns[1]: check_text(context, "the paragraph")}
    encoded, prediction = predict(model, texts)
    answer = cast(AnswerPrediction, prediction)
    text, paragraph = str(answer.value), texts[columns[1]]
    shown, places = mark_answer(paragraph, text)
    best = [(entry.text or "(no answer)", entry.probability) for entry in answer.nbest[:MAX_ANSWERS]]
    result = card(f"Answer: {text or 'none'}", bars(best, [text or "(no answer)"]))
    if answer.null_odds is not None:
        threshold = _predictor(model).trainer.kind.settings.null_score_diff_threshold
        result += note(
            f'Score of "no answer" minus that of the best answer: {answer.null_odds:.2f} (no answer above {threshold:g}).'
        )
    if places > 1:
        result += note(
            f"These words stand {places} times in the paragraph; all are marked, the answer is one of them."
        )
    read = f"The paragraph is longer than the model's input: it was read in {len(encoded)} windows."
    return f'{result}<p class="bd-text">{shown}</p>{note(read if len(encoded) > 1 else "")}'


def mark_answer(paragraph: str, answer: str) -> tuple[str, int]:
    """The paragraph as HTML with the answer marked, and how often it stands there: predictions are texts without a place.

    Args:
        paragraph: Plain text.
        answer: Plain text; "" for none.
    """
    parts = paragraph.split(answer) if answer else [paragraph]
    return mark(answer).join(map(escape, parts)), len(parts) - 1


def show_choice(model: DemoModel, *values: Any) -> str:
    """The probabilities of the choices, which are the lines of the last field."""
    columns = _predictor(model).task.text_columns
    *texts, lines = values
    row: dict[str, Any] = {name: check_text(text, name) for name, text in zip(columns, texts, strict=True)}
    choices = [line.strip() for line in check_text(lines, "the list of choices").splitlines() if line.strip()]
    if not 2 <= len(choices) <= MAX_CHOICES:
        raise InputError(f"the choices are {len(choices)}; give 2 to {MAX_CHOICES}, one a line")
    _, prediction = predict(model, row | {CHOICES: choices})
    names = [f"{number}. {choice}" for number, choice in enumerate(choices, start=1)]
    shares = cast(list[float], prediction.probabilities)
    context, start = texts[0], " ".join(texts[1:])
    cut = next(
        filter(None, (cut_note(model, (context, f"{start} {choice}"), _length(model)) for choice in choices)), ""
    )
    chosen = names[cast(int, prediction.value)]
    return card(f"Choice: {chosen}", bars(zip(names, shares, strict=True), [chosen])) + note(cut)
