"""A fine-tuned run's tab shows what recipes/predict.py writes."""

import dataclasses
import json

import pytest

from bert_recipes.demo.tabs import answer, first_answer, tabs_of
from bert_recipes.demo.task_views import (
    MAX_CHOICES,
    group_words,
    mark_answer,
    predict,
    show_answer,
    show_choice,
    show_class,
    show_tags,
)
from bert_recipes.finetuning.kind import Prediction


KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
EVIL = "<script>alert(1)</script> <img src=x onerror=alert(2)>"


def read(run):
    rows = [json.loads(line) for line in (run.parent / "data" / "validation.jsonl").read_text().splitlines()]
    lines = [json.loads(line) for line in (run / "predictions_validation.jsonl").read_text().splitlines()]
    return list(zip(rows, lines, strict=True))


def row_of(kind, row):
    if kind == "multiple_choice":
        return {"start": row["start"], "choices": [row[name] for name in "abc"]}
    return {key: value for key, value in row.items() if key not in ("label", "labels", "answers", "id")}


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_run(fine_tuned, tiny_runs, kind):
    model = fine_tuned(kind)
    for row, line in read(tiny_runs(kind))[:8]:
        _, prediction = predict(model, row_of(kind, row))
        assert prediction.value == line["prediction"]
        assert prediction.probabilities == pytest.approx(line["probabilities"], abs=2e-6)


def test_a_pair_is_classified(fine_tuned, tiny_runs, words_of):
    model = fine_tuned("sequence_classification")
    row, line = read(tiny_runs("sequence_classification"))[0]
    words = words_of(show_class(model, row["first"], row["second"]))
    assert f"Class: {line['prediction']}" in words
    for label, share in line["probabilities"].items():
        assert f"{label} {share:.1%}".replace("%", " %") in words
    assert "cut off" not in words_of(show_class(model, "ab", "c"))
    long = words_of(show_class(model, "a " * 300, "b"))
    assert "304 positions" in long
    assert "the model reads 40" in long


def test_words_are_labelled_where_they_stand(fine_tuned, words_of):
    model = fine_tuned("token_classification")
    html = show_tags(model, "abc de, (fgh)!  <b>")
    text = html.split('class="bd-text">')[1].split("</p>")[0]
    assert "<b>" not in text
    assert words_of(text.replace("<small>X</small>", "")).replace(" ", "") == "abcde,(fgh)!<b>"
    long = words_of(show_tags(model, "abc de " * 60))
    assert "windows" in long


def test_an_answer_is_marked_in_its_paragraph(fine_tuned, tiny_runs, words_of):
    model = fine_tuned("question_answering")
    row, line = read(tiny_runs("question_answering"))[0]
    html = show_answer(model, row["question"], row["context"])
    assert f"Answer: {line['prediction']}" in words_of(html)
    text = html.split('<p class="bd-text">')[1].split("</p>")[0]
    assert words_of(text).replace(" ", "") == row["context"].replace(" ", "")
    times = row["context"].count(line["prediction"])
    assert html.count(f'<mark class="bd-mark">{line["prediction"]}</mark>') == times > 0
    assert (f"stand {times} times" in words_of(html)) is (times > 1)
    assert "windows" in words_of(show_answer(model, "a?", "b c " * 100))


@pytest.mark.parametrize(
    ("labels", "tags", "groups"),
    [
        (("O", "B-PER", "I-PER"), ("B-PER", "I-PER", "O"), [("PER", 0, 1)]),
        (("O", "B", "I"), ("O", "B", "I"), [("_", 1, 2)]),
        (("O", "PER", "LOC"), ("PER", "O", "LOC"), [("PER", 0, 0), ("LOC", 2, 2)]),
        (("NN", "-LRB-"), ("-LRB-", "NN"), [("-LRB-", 0, 0), ("NN", 1, 1)]),
        # Those of this sentence alone would look like entities.
        (("NN", "B-X", "O"), ("B-X", "B-X", "O"), [("B-X", 0, 0), ("B-X", 1, 1)]),
    ],
)
def test_labels_of_any_form_are_shown(fine_tuned, words_of, monkeypatch, labels, tags, groups):
    assert group_words(tags, labels) == groups
    model = fine_tuned("token_classification")
    prediction = Prediction(idx=0, value=list(tags), probabilities=[0.75] * len(tags))
    task = dataclasses.replace(model.predictor.task, labels=labels)
    monkeypatch.setattr("bert_recipes.demo.task_views.predict", lambda model, row: ([None], prediction))
    other = dataclasses.replace(model, predictor=dataclasses.replace(model.predictor, task=task))
    words = words_of(show_tags(other, " ".join("abc"[: len(tags)])))
    assert words.count("75.0 %") == len(groups)
    assert all(name in words for name, _, _ in groups)


@pytest.mark.parametrize(
    ("paragraph", "answer", "html", "places"),
    [
        ("Ann met <Bo>.", "Ann", '<mark class="bd-mark">Ann</mark> met &lt;Bo&gt;.', 1),
        ("a <b> a <b>", "<b>", 'a <mark class="bd-mark">&lt;b&gt;</mark> a <mark class="bd-mark">&lt;b&gt;</mark>', 2),
        ("a & b", "", "a &amp; b", 0),
        ("a & b", "x", "a &amp; b", 0),
    ],
)
def test_an_answer_is_marked_wherever_it_stands(paragraph, answer, html, places):
    assert mark_answer(paragraph, answer) == (html, places)


def test_a_choice_is_made_of_any_number(fine_tuned, tiny_runs, words_of):
    model = fine_tuned("multiple_choice")
    row, line = read(tiny_runs("multiple_choice"))[0]
    choices = [row[name] for name in "abc"]
    words = words_of(show_choice(model, row["start"], "\n".join(choices)))
    number = line["prediction"]
    assert f"Choice: {number + 1}. {choices[number]}" in words
    assert "5. ef" in words_of(show_choice(model, "ab", "a\n\nb\nc\nd\nef"))


MISTAKES = {
    "no second": ("sequence_classification", ("ab", ""), "second is empty"),
    "no words": ("token_classification", (" ",), "the sentence is empty"),
    "no question": ("question_answering", ("", "ab"), "the question is empty"),
    "no paragraph": ("question_answering", ("ab", None), "the paragraph is empty"),
    "no choices": ("multiple_choice", ("ab", "\n"), "the list of choices is empty"),
    "one choice": ("multiple_choice", ("ab", "cd"), "the choices are 1; give 2"),
    "many choices": ("multiple_choice", ("ab", "cd\n" * (MAX_CHOICES + 1)), f"are {MAX_CHOICES + 1}"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_in_the_page(fine_tuned, words_of, name):
    kind, values, message = MISTAKES[name]
    model = fine_tuned(kind)
    html = answer(model, tabs_of(model)[0], *values)
    assert html.startswith('<div class="bd-error"')
    assert message in words_of(html)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_is_typed_becomes_part_of_the_page(fine_tuned, words_of, kind):
    model = fine_tuned(kind)
    tab = tabs_of(model)[0]
    values = [EVIL for _ in tab.fields[:-1]] + [f"{EVIL}\n{EVIL}"]
    html = answer(model, tab, *values)
    assert "bd-error" not in html
    words_of(html)
    assert "<script" not in html
    assert "bd-error" not in first_answer(model, tab)
