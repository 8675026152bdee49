"""What the page shows is what the model and recipes/predict.py say; over HTTP it is the same."""

import dataclasses
import http.client
import json
import re
import socket
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

from bert_recipes.demo import page
from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.models.inspection import judge_next_sentence


pytest.importorskip("gradio", reason="the extra demo is not installed")

KINDS = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
EVIL = "<script>alert(1)</script> <img src=x onerror=alert(2)>"


def text_of(marked):
    return "".join(part for part, _ in marked)


@pytest.fixture
def lines_of(tiny_runs):
    """Kind -> (row, its line of predictions) of its run."""

    def lines(kind):
        files = (
            tiny_runs(kind).parent / "data" / "validation.jsonl",
            tiny_runs(kind) / "predictions_validation.jsonl",
        )
        return list(
            zip(*(map(json.loads, file.read_text().splitlines()) for file in files), strict=True)
        )

    return lines


def test_every_mask_gets_its_own_guesses(demo_model):
    tokenizer = demo_model.tokenizer
    marked, rows, note = page.fill_masks(demo_model, "the [MASK] of [MASK] a", 3)
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", "the", "[MASK]", "of", "[MASK]", "a", "[SEP]"])
    with torch.no_grad():
        logits = demo_model.network(input_ids=torch.tensor([ids])).prediction_logits[0].softmax(-1)
    expected = []
    for number, position in enumerate((2, 4), 1):
        values, indices = logits[position].topk(3)
        tokens = tokenizer.convert_ids_to_tokens(indices.tolist())
        expected += [
            [number, token, f"{p:.1%}"] for token, p in zip(tokens, values.tolist(), strict=True)
        ]
    assert rows == expected
    assert text_of(marked) == f"the {rows[0][1]} of {rows[3][1]} a"
    assert [label for _, label in marked] == [None, "1", None, "2", None]
    assert note == ""
    # Those behind what is read are named.
    _, rows, note = page.fill_masks(demo_model, "[MASK] " + "a " * 200 + "[MASK]", 2)
    assert "202 tokens; the model reads 126" in note
    assert rows[2] == [2, "(not read)", "0.0%"]


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_run(fine_tuned, lines_of, kind):
    model = fine_tuned(kind)
    for row, line in lines_of(kind)[:8]:
        row = {name: row[name] for name in model.predictor.task.text_columns} | (
            {"choices": [row[name] for name in "abc"]} if kind == "multiple_choice" else {}
        )
        _, prediction = page.predict(model, row)
        assert prediction.value == line["prediction"]
        assert prediction.probabilities == pytest.approx(line["probabilities"], abs=2e-6)


def test_a_pair_is_classified(fine_tuned, lines_of):
    model = fine_tuned("sequence_classification")
    row, line = lines_of("sequence_classification")[0]
    probabilities, note = page.classify(model, row["first"], row["second"])
    assert probabilities == pytest.approx(line["probabilities"], abs=2e-6)
    assert "42 positions; the model reads 40" in note
    assert page.classify(model, "ab", "c")[1] == ""
    assert "304 positions; the model reads 40" in page.classify(model, "a " * 300, "b")[1]


@pytest.mark.parametrize(
    ("prediction", "shown"),
    [
        (Prediction(idx=0, value=2.34567, probabilities=None), ("2.346", "")),
        (
            Prediction(idx=0, value=["a"], probabilities={"a": 0.75, "b": 0.25}),
            ({"a": 0.75, "b": 0.25}, "Labels of 50 % and more: a. "),
        ),
    ],
)
def test_numbers_and_several_labels_are_shown(fine_tuned, monkeypatch, prediction, shown):
    monkeypatch.setattr(page, "predict", lambda model, row: ("", prediction))
    assert page.classify(fine_tuned("sequence_classification"), "a", "b") == shown


def test_words_are_labelled_where_they_stand(fine_tuned):
    model, text = fine_tuned("token_classification"), "abc de, (fgh)!  <b>"
    marked, rows, note = page.tag_words(model, text)
    assert text_of(marked) == text
    assert [[part, label] for part, label in marked if label] == [row[:2] for row in rows]
    assert note == ""
    assert "windows" in page.tag_words(model, "abc de " * 60)[2]


@pytest.mark.parametrize(
    ("labels", "tags", "groups"),
    [
        (("O", "B-PER", "I-PER"), ("B-PER", "I-PER", "O"), [("PER", 0, 1)]),
        (("O", "B", "I"), ("O", "B", "I"), [("_", 1, 2)]),
        (("O", "PER", "LOC"), ("PER", "O", "LOC"), [("PER", 0, 0), ("LOC", 2, 2)]),
        # Those of this sentence alone would look like entities.
        (("NN", "B-X", "VB"), ("B-X", "B-X", "VB"), [("B-X", 0, 0), ("B-X", 1, 1), ("VB", 2, 2)]),
    ],
)
def test_labels_of_any_form_are_shown(fine_tuned, monkeypatch, labels, tags, groups):
    assert page.group_words(tags, labels) == groups
    model = fine_tuned("token_classification")
    prediction = Prediction(idx=0, value=list(tags), probabilities=[0.75] * len(tags))
    task = dataclasses.replace(model.predictor.task, labels=labels)
    monkeypatch.setattr(page, "predict", lambda model, row: ("", prediction))
    other = dataclasses.replace(model, predictor=dataclasses.replace(model.predictor, task=task))
    _, rows, _ = page.tag_words(other, " ".join("abc"[: len(tags)]))
    assert [row[1:] for row in rows] == [[name, "75.0%"] for name, _, _ in groups]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Angela Merkel visited the U.N. on Monday.",
            "Angela Merkel visited the U.N . on Monday .",
        ),
        ('He said: "don\'t!"', 'He said : " don\'t ! "'),
        ("  state-of-the-art\n(2020) ...", "state-of-the-art ( 2020 ) . . ."),
        ("\u201cSo?\u201d", "\u201c So ? \u201d"),
        ("", ""),
    ],
)
def test_words_lose_the_punctuation_at_their_ends(text, words):
    assert [text[start:end] for start, end in page.split_words(text)] == words.split()


def test_an_answer_is_marked_wherever_it_stands(fine_tuned, lines_of):
    model = fine_tuned("question_answering")
    row, line = lines_of("question_answering")[0]
    marked, rows, _ = page.find_answer(model, row["question"], row["context"])
    assert text_of(marked) == row["context"]
    assert [part for part, label in marked if label] == [line["prediction"]] * row["context"].count(
        line["prediction"]
    )
    assert rows[0][0] == line["prediction"]
    assert "windows" in page.find_answer(model, "a?", "b c " * 100)[2]


def test_a_choice_is_made_of_any_number(fine_tuned, lines_of):
    model = fine_tuned("multiple_choice")
    row, line = lines_of("multiple_choice")[0]
    probabilities, _ = page.choose(model, row["start"], "\n".join(row[name] for name in "abc"))
    assert list(probabilities.values()) == pytest.approx(line["probabilities"], abs=2e-6)
    assert list(page.choose(model, "ab", "a\n\nb\nc\nd\nef")[0]) == [
        "1. a",
        "2. b",
        "3. c",
        "4. d",
        "5. ef",
    ]


def test_attention_is_drawn_for_a_head_the_mean_and_all(demo_model):
    from bert_recipes.demo.model import compute_attention

    _, weights, _ = compute_attention(demo_model, "the a b")
    for head, expected in ((2, weights[1, 1]), (0, weights[1].mean(0))):
        one, everything, note = page.show_attention(demo_model, "the a b", "", 2, head)
        np.testing.assert_array_equal(one.axes[0].images[0].get_array(), expected)
        assert [label.get_text() for label in one.axes[0].get_yticklabels()] == [
            "[CLS]",
            "the",
            "a",
            "b",
            "[SEP]",
        ]
        # Layer 2 stands below, head 2 on the right; a gap of one between them.
        tiles = everything.axes[0].images[0].get_array()
        assert tiles.shape == (12, 12)
        np.testing.assert_allclose(tiles[6:11, 6:11], np.sqrt(weights[1, 1]))
        np.testing.assert_allclose(tiles[6:11, 0:5], np.sqrt(weights[1, 0]))
        assert note == ""
    note = page.show_attention(demo_model, "a " * 300, "", 1, 1)[2]
    assert (
        note
        == f"302 positions; the model reads 128. Drawn are the first {page.MAX_DRAWN} positions."
    )


def test_tokens_know_their_ids_and_where_they_are_from(demo_model):
    text = "The  caf\u00e9\t\u4e2d, [SEP]!"
    marked, rows, note = page.tokenize(demo_model, text)
    assert text_of(marked) == text
    tokens = [token for token, _, _ in rows]
    assert tokens == [
        "the",
        "c",
        "##a",
        "##f",
        "##e",
        "[UNK]",
        ",",
        "[",
        "s",
        "##e",
        "##p",
        "]",
        "!",
    ]
    assert [number for _, number, _ in rows] == demo_model.tokenizer.encode_ids(text)
    assert rows[4][2] == "8 to 9"
    assert ("\u4e2d", f"[UNK] {demo_model.tokenizer.unk_token_id}") in marked
    said = (
        "19 characters, 8 words, 13 tokens (1.62 per word), 1 unknown.\nNormalised: the cafe "
        "\u4e2d ,"
    )
    assert note.startswith(said)
    text = "a <b>&amp; \u0130 \ufb01x\n\n\u200b\u0301 end"
    assert text_of(page.tokenize(demo_model, text)[0]) == text
    marked, rows, note = page.tokenize(demo_model, "a b " * 1_000)
    assert (text_of(marked), len(rows)) == ("a b " * 499 + "a b ...", page.MAX_LISTED)
    assert "2,000 tokens (1.00 per word), 0 unknown. Shown are the first 1,000 tokens." in note


MISTAKES = [
    (None, page.fill_masks, ("the a", 5), "the text has 0 \\[MASK\\]"),
    (None, page.fill_masks, ("[MASK] " * 21, 5), "has 21 \\[MASK\\]; put 1 to 20"),
    (None, page.fill_masks, (None, 5), "the text is empty"),
    (None, page.tokenize, ("\u3000",), "the text is empty"),
    (None, page.tokenize, ("\u200b\u200b",), "nothing is left"),
    (None, page.tokenize, ("a" * (page.MAX_CHARACTERS + 1),), "20,001 characters; allowed: 20,000"),
    (None, page.tokenize, ("a\ud800",), "half of a surrogate pair"),
    (None, page.next_sentence, ("the a", ""), "the second text is empty"),
    (None, page.show_attention, ("a", "b", 3, 1), "2 layers of 2 heads; no layer 3, head 1"),
    ("sequence_classification", page.classify, ("ab", ""), "second is empty"),
    ("token_classification", page.tag_words, (" ",), "the sentence is empty"),
    ("question_answering", page.find_answer, ("ab", None), "context is empty"),
    ("multiple_choice", page.choose, ("ab", "cd"), "the choices are 1; give 2"),
    (
        "multiple_choice",
        page.choose,
        ("ab", "cd\n" * (page.MAX_CHOICES + 1)),
        f"are {page.MAX_CHOICES + 1}",
    ),
]


@pytest.mark.parametrize(("kind", "view", "values", "message"), MISTAKES)
def test_a_mistake_is_one_line(demo_model, fine_tuned, kind, view, values, message):
    with pytest.raises(InputError, match=message):
        view(fine_tuned(kind) if kind else demo_model, *values)


def test_outputs_that_are_not_finite_are_one_line(demo_model):
    weight = demo_model.network.bert.embeddings.word_embeddings.weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(float("nan"))
        for view, values in (
            (page.fill_masks, ("a [MASK]", 1)),
            (page.next_sentence, "ab"),
            (page.show_attention, ("a", "", 1, 1)),
        ):
            with pytest.raises(InputError, match="outputs are not finite"):
                view(demo_model, *values)
    finally:
        with torch.no_grad():
            weight.copy_(kept)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_the_tabs_follow_from_the_abilities(demo_model, fine_tuned, kind):
    model = fine_tuned(kind) if kind else demo_model
    names = dict(zip(KINDS, ("classify", "tag", "answer", "choose"), strict=True))
    tabs = page.make_tabs(model)
    assert [tab.name for tab in tabs] == [names.get(name, name) for name in model.abilities] + [
        "attention",
        "pieces",
    ]
    assert "removed the pre-training heads" in model.lacks[0] if kind else not model.lacks
    # Nothing that is typed becomes HTML: only these components are on the page.
    components = {type(each).__name__ for tab in tabs for each in (*tab.fields, *tab.results)}
    assert components <= {"Textbox", "Slider", "HighlightedText", "Dataframe", "Label", "Plot"}
    page.build_page(model)


@pytest.fixture(scope="module")
def served(demo_model):
    """Address of the tiny checkpoint's page, whatever the environment says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = (
        "SERVER_NAME=0.0.0.0 SHARE=True ANALYTICS_ENABLED=True "
        "ROOT_PATH=https://host.example ALLOWED_PATHS=/"
    )
    with pytest.MonkeyPatch.context() as patch:
        for setting in f"{settings} MCP_SERVER=True RUN_HISTORY=True".split():
            name, value = setting.split("=")
            patch.setenv(f"GRADIO_{name}", value)
        blocks, address = page.launch_page(
            dataclasses.replace(demo_model, name=EVIL), "127.0.0.1", port
        )
        yield address
        blocks.close(verbose=False)


def get(url, path="/", **headers):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.text = response.read().decode("utf-8")
    connection.close()
    return response


def test_an_answer_over_http_is_that_of_the_view(served, demo_model):
    import gradio_client

    client = gradio_client.Client(served, verbose=False, analytics_enabled=False)
    answer = client.predict("the a", "of b", api_name="/next_sentence")
    probabilities, note = page.next_sentence(demo_model, "the a", "of b")
    is_next = judge_next_sentence(demo_model.network, demo_model.tokenizer, "the a", "of b")
    assert list(probabilities.values()) == pytest.approx([is_next, 1 - is_next])
    assert list(probabilities) == ["follows the first", "is from somewhere else"]
    assert note == ""
    assert "403 positions" in page.next_sentence(demo_model, "a " * 200, "b " * 200)[1]
    found = {each["label"]: each["confidence"] for each in answer[0]["confidences"]}
    assert found == pytest.approx(probabilities)
    assert "4 tokens" in client.predict("the a <b", api_name="/pieces")[2]
    with pytest.raises(Exception, match="has 0 \\[MASK\\]"):
        client.predict("the a", 4, api_name="/fill_mask")
    with pytest.raises(Exception, match="99"):
        client.predict("the [MASK]", 99, api_name="/fill_mask")
    client.close()


def test_the_page_loads_nothing_from_elsewhere_and_gives_nothing_away(served):
    text = get(served).text
    assert (
        re.findall(
            r"""<(?:script|link|img|iframe)\b[^>]*\s(?:src|href)=["']?(?:https?:)?//[^>]*>""", text
        )
        == []
    )
    assert "host.example" not in text
    assert "<script>alert" not in text.split("window.gradio_config")[0]
    config = json.loads(text.split("window.gradio_config = ")[1].split(";</script>")[0])
    assert (config["analytics_enabled"], config["stylesheets"], config["root"]) == (
        False,
        [],
        served,
    )
    theme = get(served, "/theme.css").text
    assert "@import" not in theme
    assert "@font-face" not in theme
    assert get(served, "/gradio_api/file=/etc/hostname").status in (403, 404)
    for path in (
        "/docs",
        "/redoc",
        "/openapi.json",
        "/monitoring/summary",
        "/gradio_api/mcp/schema",
    ):
        assert get(served, path).status >= 400


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/info"])
def test_a_foreign_name_that_points_here_is_not_answered(served, path):
    """DNS rebinding: the browser believes the page to be another site's, and says that site's
    name.
    """
    port = urlsplit(served).port
    for name in (
        "host.example",
        f"host.example:{port}",
        "127.0.0.1.host.example",
        "localhost.host.example",
        "",
    ):
        refused = get(served, path, Host=name)
        assert (refused.status, refused.text) == (400, "Invalid host header"), name
    for name in (f"localhost:{port}", f"127.0.0.1:{port}", "LOCALHOST", f"[::1]:{port}"):
        assert get(served, path, Host=name).status == 200, name


def test_a_page_that_is_open_to_the_network_is_answered_under_every_name(demo_model):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    blocks, address = page.launch_page(demo_model, "127.0.0.1", port, is_local=False)
    assert get(address, Host="host.example").status == 200
    blocks.close(verbose=False)
