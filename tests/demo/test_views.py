"""The views give what the model and recipes/predict.py say."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bert_recipes.demo import views
from bert_recipes.demo.model import compute_attention
from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.models.inspection import judge_next_sentence


KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")


def text_of(marked):
    return "".join(piece for piece, _ in marked)


@pytest.fixture
def lines_of(tiny_runs):
    """Kind -> (row, its line of predictions) of its run."""

    def lines(kind):
        rows = (tiny_runs(kind).parent / "data" / "validation.jsonl").read_text()
        predictions = (tiny_runs(kind) / "predictions_validation.jsonl").read_text()
        pairs = zip(rows.splitlines(), predictions.splitlines(), strict=True)
        return [(json.loads(row), json.loads(line)) for row, line in pairs]

    return lines


def test_every_mask_gets_its_own_guesses(demo_model):
    tokenizer = demo_model.tokenizer
    marked, rows, note = views.fill_masks(demo_model, "the [MASK] of [MASK] a", 3)
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", "the", "[MASK]", "of", "[MASK]", "a", "[SEP]"])
    with torch.no_grad():
        logits = demo_model.network(input_ids=torch.tensor([ids])).prediction_logits[0].softmax(-1)

    expected = []
    for number, position in ((1, 2), (2, 4)):
        values, indices = logits[position].topk(3)
        tokens = tokenizer.convert_ids_to_tokens(indices.tolist())
        for token, value in zip(tokens, values.tolist(), strict=True):
            expected.append([number, token, f"{value:.1%}"])
    assert rows == expected
    assert text_of(marked) == f"the {rows[0][1]} of {rows[3][1]} a"
    assert [label for _, label in marked] == [None, "1", None, "2", None]
    assert note == ""


def test_a_mask_behind_what_is_read_is_named(demo_model):
    _, rows, note = views.fill_masks(demo_model, "[MASK] " + "a " * 200 + "[MASK]", 2)
    assert "202 tokens; the model reads 126" in note
    assert rows[2] == [2, "(not read)", "0.0%"]


def test_the_next_sentence_is_judged_by_the_head(demo_model):
    probabilities, note = views.next_sentence(demo_model, "the a", "of b")
    is_next = judge_next_sentence(demo_model.network, demo_model.tokenizer, "the a", "of b")
    assert probabilities == pytest.approx(
        {"follows the first": is_next, "is from somewhere else": 1 - is_next}
    )
    assert note == ""
    assert "403 positions" in views.next_sentence(demo_model, "a " * 200, "b " * 200)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_run(fine_tuned, lines_of, kind):
    model = fine_tuned(kind)
    for row, line in lines_of(kind)[:3]:
        values = {name: row[name] for name in model.predictor.task.text_columns}
        if kind == "multiple_choice":
            values["choices"] = [row[name] for name in "abc"]
        prediction, _ = views.predict(model, values)
        assert prediction.value == line["prediction"]
        assert prediction.probabilities == pytest.approx(line["probabilities"], abs=2e-6)


def test_a_pair_is_classified(fine_tuned, lines_of):
    model = fine_tuned("sequence_classification")
    row, line = lines_of("sequence_classification")[0]
    probabilities, note = views.classify(model, row["first"], row["second"])
    assert probabilities == pytest.approx(line["probabilities"], abs=2e-6)
    assert "42 positions; the model reads 40" in note
    assert views.classify(model, "ab", "c")[1] == ""


@pytest.mark.parametrize(
    ("value", "probabilities", "result"),
    [
        (2.34567, None, ("2.346", "")),
        (["a"], {"a": 0.75}, ({"a": 0.75}, "Labels of 50 % and more: a. ")),
    ],
)
def test_numbers_and_several_labels_are_shown(
    fine_tuned,
    monkeypatch,
    value,
    probabilities,
    result,
):
    prediction = Prediction(
        idx=0,
        value=value,
        probabilities=probabilities,
    )
    monkeypatch.setattr(views, "predict", lambda model, row: (prediction, ""))
    assert views.classify(fine_tuned("sequence_classification"), "a", "b") == result
    # Nothing of a text that was read in windows was cut off.
    monkeypatch.setattr(views, "predict", lambda model, row: (prediction, "read in 3 windows."))
    _, note = views.classify(fine_tuned("sequence_classification"), "a " * 99, "b")
    assert note.endswith("read in 3 windows.")
    assert "cut off" not in note


def test_words_are_labelled_where_they_stand(fine_tuned):
    model = fine_tuned("token_classification")
    text = "abc de, (fgh)!  <b>"
    marked, rows, note = views.tag_words(model, text)
    assert text_of(marked) == text
    assert [[piece, label] for piece, label in marked if label] == [row[:2] for row in rows]
    assert note == ""
    assert "windows" in views.tag_words(model, "abc de " * 60)[2]


@pytest.mark.parametrize(
    ("labels", "tags", "groups"),
    [
        (("O", "B-PER", "I-PER"), ("B-PER", "I-PER", "O"), [("PER", 0, 1)]),
        (("O", "PER", "LOC"), ("PER", "O", "LOC"), [("PER", 0, 0), ("LOC", 2, 2)]),
        # Those of this sentence alone would look like entities.
        (("NN", "B-X", "VB"), ("B-X", "B-X", "VB"), [("B-X", 0, 0), ("B-X", 1, 1), ("VB", 2, 2)]),
    ],
)
def test_labels_of_any_form_are_shown(
    fine_tuned,
    monkeypatch,
    labels,
    tags,
    groups,
):
    model = fine_tuned("token_classification")
    prediction = Prediction(
        idx=0,
        value=list(tags),
        probabilities=[0.75] * len(tags),
    )
    task = dataclasses.replace(model.predictor.task, labels=labels)
    predictor = dataclasses.replace(model.predictor, task=task)
    monkeypatch.setattr(views, "predict", lambda model, row: (prediction, ""))
    _, rows, _ = views.tag_words(dataclasses.replace(model, predictor=predictor), "a b c")
    assert [row[1:] for row in rows] == [[name, "75.0%"] for name, _, _ in groups]
    assert views.group_words(tags, labels) == groups


def test_a_sentence_is_cut_into_words_as_predict_cuts_it(fine_tuned):
    model = fine_tuned("token_classification")
    # Of labels without O, every word has its row.
    task = dataclasses.replace(model.predictor.task, labels=("B-X", "I-X"))
    model = dataclasses.replace(model, predictor=dataclasses.replace(model.predictor, task=task))
    text = "林夏在Oslo工作。"
    marked, rows, _ = views.tag_words(model, text)
    assert text_of(marked) == text
    words = [word for word, _, _ in rows]
    assert words == ["林", "夏", "在", "Oslo", "工", "作", "。"]
    prediction, _ = views.predict(model, {"tokens": text})
    assert [label for _, label, _ in rows] == prediction.value


def test_an_answer_is_marked_wherever_it_stands(fine_tuned, lines_of):
    model = fine_tuned("question_answering")
    row, line = lines_of("question_answering")[0]
    marked, rows, _ = views.find_answer(model, row["question"], row["context"])
    assert text_of(marked) == row["context"]
    answers = [piece for piece, label in marked if label]
    assert answers == [line["prediction"]] * row["context"].count(line["prediction"])
    assert rows[0][0] == line["prediction"]
    assert "windows" in views.find_answer(model, "a?", "b c " * 100)[2]


def test_a_choice_is_made_of_any_number(fine_tuned, lines_of):
    model = fine_tuned("multiple_choice")
    row, line = lines_of("multiple_choice")[0]
    probabilities, _ = views.choose(model, row["start"], "\n".join(row[name] for name in "abc"))
    assert list(probabilities.values()) == pytest.approx(line["probabilities"], abs=2e-6)
    probabilities, _ = views.choose(model, "ab", "a\n\nb\nc\nef")
    assert list(probabilities) == ["1. a", "2. b", "3. c", "4. ef"]


def test_the_start_of_choices_may_be_in_them():
    task = SimpleNamespace(kind="multiple_choice", text_columns=("context", "start"))
    model = SimpleNamespace(second_is_optional=False, predictor=SimpleNamespace(task=task))
    assert views.make_row(model, "ab", "") == {"context": "ab", "start": ""}
    task.kind = "sequence_classification"
    with pytest.raises(InputError, match="start is empty"):
        views.make_row(model, "ab", "")


def test_attention_is_drawn_for_a_head_the_mean_and_all(demo_model):
    tokens, weights, _ = compute_attention(demo_model, "the a b")
    for head, expected in ((2, weights[1, 1]), (0, weights[1].mean(0))):
        one_head, all_heads, note = views.show_attention(
            demo_model,
            "the a b",
            "",
            2,
            head,
        )
        axes = one_head.axes[0]
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert [label.get_text() for label in axes.get_yticklabels()] == tokens
        # Layer 2 stands below, head 2 on the right; a gap of one between them.
        tiles = all_heads.axes[0].images[0].get_array()
        assert tiles.shape == (12, 12)
        np.testing.assert_allclose(tiles[6:11, 6:11], np.sqrt(weights[1, 1]))
        np.testing.assert_allclose(tiles[6:11, 0:5], np.sqrt(weights[1, 0]))
        assert note == ""

    note = views.show_attention(
        demo_model,
        "a " * 300,
        "",
        1,
        1,
    )[2]
    assert note == "302 positions; the model reads 128. Drawn are the first 48 positions."


def test_tokens_know_their_ids_and_where_they_are_from(demo_model):
    tokenizer = demo_model.tokenizer
    text = "The  caf\u00e9\t\u4e2d, [SEP]!"
    marked, rows, note = views.tokenize(demo_model, text)
    assert text_of(marked) == text
    tokens = [token for token, _, _ in rows]
    assert " ".join(tokens) == "the c ##a ##f ##e [UNK] , [ s ##e ##p ] !"
    assert [number for _, number, _ in rows] == tokenizer.encode_ids(text)
    assert rows[4][2] == "8 to 9"
    assert ("\u4e2d", f"[UNK] {tokenizer.unk_token_id}") in marked
    counts = "19 characters, 8 words, 13 tokens (1.62 per word), 1 unknown.\n"
    assert note.startswith(f"{counts}Normalized: the cafe \u4e2d ,")
    text = "a <b>&amp; \u0130 \ufb01x\n\n\u200b\u0301 end"
    assert text_of(views.tokenize(demo_model, text)[0]) == text


def test_only_the_first_tokens_of_a_long_text_are_listed(demo_model):
    marked, rows, note = views.tokenize(demo_model, "a b " * 1_000)
    assert (text_of(marked), len(rows)) == ("a b " * 499 + "a b ...", views.MAX_LISTED)
    assert "2,000 tokens (1.00 per word), 0 unknown. Shown are the first 1,000 tokens." in note


MISTAKES = [
    (None, views.fill_masks, ("the a", 5), "the text has 0 \\[MASK\\]"),
    (None, views.fill_masks, ("[MASK] " * 21, 5), "has 21 \\[MASK\\]; put 1 to 20"),
    (None, views.fill_masks, (None, 5), "the text is empty"),
    (None, views.tokenize, ("\u3000",), "the text is empty"),
    (None, views.tokenize, ("\u200b\u200b",), "nothing is left"),
    (None, views.tokenize, ("a" * 20_001,), "20,001 characters; allowed: 20,000"),
    (None, views.tokenize, ("a\ud800",), "half of a surrogate pair"),
    (None, views.next_sentence, ("the a", ""), "the second text is empty"),
    (None, views.show_attention, ("a", "b", 3, 1), "2 layers of 2 heads; no layer 3, head 1"),
    ("sequence_classification", views.classify, ("ab", ""), "second is empty"),
    ("token_classification", views.tag_words, (" ",), "the sentence is empty"),
    ("multiple_choice", views.choose, ("ab", "cd"), "the choices are 1; give 2"),
    ("multiple_choice", views.choose, ("ab", "cd\u2028ef"), "the choices are 1; give 2"),
    ("multiple_choice", views.choose, ("ab", "cd\n" * 21), "the choices are 21; give 2 to 20"),
]


@pytest.mark.parametrize(("kind", "view", "values", "message"), MISTAKES)
def test_a_mistake_is_one_line(
    demo_model,
    fine_tuned,
    kind,
    view,
    values,
    message,
):
    with pytest.raises(InputError, match=message):
        view(fine_tuned(kind) if kind else demo_model, *values)


@pytest.mark.parametrize(
    ("view", "values"),
    [
        (views.fill_masks, ("a [MASK]", 1)),
        (views.next_sentence, "ab"),
        (views.show_attention, ("a", "", 1, 1)),
    ],
)
def test_outputs_that_are_not_finite_are_one_line(
    demo_model,
    monkeypatch,
    view,
    values,
):
    weight = demo_model.network.bert.embeddings.word_embeddings.weight
    monkeypatch.setattr(weight, "data", torch.full_like(weight, float("nan")))
    with pytest.raises(InputError, match="outputs are not finite"):
        view(demo_model, *values)
