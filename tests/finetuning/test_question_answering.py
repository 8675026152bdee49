"""Question answering as a kind of task: loss, batches, files and figures."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForQuestionAnswering

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import DECODERS, TaskArguments
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Answer, QuestionExample, Split


QUESTION_WORDS = ["who", "when", "did"]
WORDS = [f"word{letter}" for letter in "abcdefghijklmnopqrst"]
PIECES = [*QUESTION_WORDS, *WORDS, "?", ".", ","]


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(PIECES)


@pytest.fixture(scope="module")
def model(tokenizer, tiny_config):
    torch.manual_seed(0)
    return BertForQuestionAnswering(tiny_config(len(tokenizer), initializer_range=0.2)).eval()


def make_kind(tokenizer, *, v2=False, **settings):
    name = "squad_v2" if v2 else "squad"
    settings = {"max_seq_length": 24, "doc_stride": 6, "max_query_length": 6} | settings
    return QuestionAnswering(get_task(name), tokenizer, TaskArguments(task=name, **settings), {})


def as_split(*examples):
    return Split(name="validation", examples=examples, source="made.json", num_rows=len(examples))


def make_split(number=12, *, v2=False):
    """Questions about paragraphs of 5 to 40 words, some of which need several windows."""
    rng = np.random.default_rng(0)
    examples = []
    for index in range(number):
        words = rng.choice(WORDS, rng.integers(5, 40))
        words = [word.title() if rng.random() < 0.3 else word for word in words]
        first = int(rng.integers(0, len(words)))
        start = len("".join(words[:first])) + first
        answer = Answer(text=" ".join(words[first : first + 2]), answer_start=start)
        example = QuestionExample(
            idx=f"id{index}",
            question=" ".join(rng.choice(QUESTION_WORDS, rng.integers(1, 9))) + "?",
            context=" ".join(words) + ".",
            answers=() if v2 and index % 3 == 0 else (answer,),
        )
        examples.append(example)
    return as_split(*examples)


def run(model, batch):
    with torch.no_grad():
        return model(**batch)


def right_logits(feature):
    """10 at start and end of the answer, 0 elsewhere."""
    logits = np.zeros((2, len(feature["input_ids"])), np.float32)
    logits[0, feature["start_positions"]] = 10
    logits[1, feature["end_positions"]] = 10
    return logits


# Loss


@pytest.mark.parametrize("pad_to_max_length", [False, True])
@pytest.mark.parametrize("v2", [False, True])
def test_loss_is_that_of_the_stock_model_on_the_same_padded_batch(
    tokenizer, model, v2, pad_to_max_length
):
    """Source: run_squad.py `compute_loss`; the softmax is over all positions, padding included."""
    kind = make_kind(tokenizer, v2=v2, pad_to_max_length=pad_to_max_length)
    encoded = kind.encode(make_split(v2=v2), for_training=True)
    batch = kind.collate([encoded[int(index)] for index in np.argsort(encoded.lengths)[:9]])
    assert (batch["input_ids"].shape[1] == 24) == pad_to_max_length
    output = run(model, batch)
    assert kind.count_items(batch).item() == 9
    assert kind.loss_sum(output, batch).item() == pytest.approx(9 * output.loss.item(), rel=1e-6)


def test_a_window_whose_answer_was_not_found_takes_no_part_in_the_loss(tokenizer, model):
    kind = make_kind(tokenizer)
    context = "worda wordb\u00a0wordc wordd"
    answer = Answer(text="wordb\u00a0wordc", answer_start=6)
    lost = QuestionExample(idx="x", question="who?", context=context, answers=(answer,))
    examples = make_split(3).examples
    losses = []
    counts = []
    for rows in (examples, (lost, *examples)):
        batch = kind.collate(list(kind.encode(as_split(*rows)).features))
        losses.append(kind.loss_sum(run(model, batch), batch).item())
        counts.append(kind.count_items(batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert counts[0] == counts[1] == len(batch["input_ids"]) - 1


# Predictions


@pytest.mark.parametrize(("n_best_size", "expected"), [(1, "empty"), (2, "wordb")])
def test_with_padding_to_max_seq_length_outputs_keep_it_as_in_the_original(
    tokenizer, model, n_best_size, expected
):
    # [CLS] who ? [SEP] worda wordb wordc [SEP], then padding from position 8
    example = QuestionExample(idx="q", question="who?", context="worda wordb wordc")
    kind = make_kind(tokenizer, pad_to_max_length=True, n_best_size=n_best_size)
    encoded = kind.encode(as_split(example))
    batch = kind.collate(list(encoded.features))
    assert [logits.shape for logits in kind.split_outputs(run(model, batch), batch)] == [(2, 24)]
    logits = np.full((2, 24), -20, np.float32)
    logits[:, 5] = 5
    logits[:, 20] = 6
    assert kind.decode(encoded, [logits])[0].value == expected


@pytest.mark.parametrize("decoder", DECODERS)
def test_right_logits_give_the_gold_answers(tokenizer, decoder):
    kind = make_kind(tokenizer, v2=True, decoder=decoder)
    split = make_split(40, v2=True)
    encoded = kind.encode(split)
    predictions = kind.decode(encoded, [right_logits(feature) for feature in encoded.features])
    for example, prediction in zip(split.examples, predictions, strict=True):
        text = example.answers[0].text if example.answers else ""
        assert (prediction.idx, prediction.value) == (example.idx, text)
        # Two windows may hold the answer: the offsets decoder lists it twice.
        assert prediction.probabilities > (0.9 if decoder == "original" else 0.3)
    scores = kind.score(split.examples, predictions)
    assert {scores[name] for name in ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1")} == {100.0}


@pytest.mark.parametrize("decoder", DECODERS)
def test_added_tokens_are_one_piece_each_and_stand_in_answers(make_tokenizer, decoder):
    tokenizer = make_tokenizer(PIECES)
    tokenizer.add_tokens(["<e1>", "</e1>"])
    answer = Answer(text="<E1>wordb</e1>", answer_start=6)
    context = "Worda <E1>wordb</e1>, wordc wordd."
    example = QuestionExample(idx="q", question="who <e1>?", context=context, answers=(answer,))
    kind = make_kind(tokenizer, decoder=decoder)
    encoded = kind.encode(as_split(example))
    (feature,) = encoded.features
    stock = tokenizer.stock_tokenizer()(example.question, context)
    assert feature["input_ids"] == stock["input_ids"]
    assert feature["end_positions"] == feature["start_positions"] + 2
    assert kind.decode(encoded, [right_logits(feature)])[0].value == answer.text
    # A stretch of a word: the markers are left out.
    place = feature["start_positions"] + 1
    logits = right_logits({**feature, "start_positions": place, "end_positions": place})
    assert kind.decode(encoded, [logits])[0].value == "wordb"


def silent_outputs(encoded):
    """Of a model that is half right, and says "no answer" far too often."""
    rng = np.random.default_rng(0)
    outputs = []
    for feature in encoded.features:
        noise = rng.normal(0, 2, (2, len(feature["input_ids"])))
        logits = noise.astype(np.float32) + 0.6 * right_logits(feature)
        logits[:, 0] += 8
        outputs.append(logits)
    return outputs


@pytest.fixture(scope="module")
def answer(tokenizer):
    """A threshold -> the kind with it, and what it answers to 60 questions of five articles."""
    rows = make_split(60, v2=True).examples
    examples = [replace(row, title=f"article {number % 5}") for number, row in enumerate(rows)]

    def answers_at(threshold=0.0):
        kind = make_kind(tokenizer, v2=True, null_score_diff_threshold=threshold)
        encoded = kind.encode(as_split(*examples))
        return kind, examples, kind.decode(encoded, silent_outputs(encoded))

    return answers_at


def test_a_threshold_is_also_chosen_on_other_articles(answer):
    """Each half, decoded with the threshold that is the best one of the other."""
    kind, examples, predictions = answer()
    halves = [[number for number in range(60) if number % 5 % 2 == half] for half in (0, 1)]

    def score(kind, predictions, half):
        answers = [predictions[number] for number in halves[half]]
        return kind.score([examples[number] for number in halves[half]], answers)

    f1 = []
    for half in (0, 1):
        again, _, answers = answer(score(kind, predictions, half)["best_f1_thresh"])
        f1 += [score(again, answers, 1 - half)["f1"]] * len(halves[1 - half])
    scores = kind.score(examples, predictions)
    assert scores["split_f1"] == pytest.approx(np.mean(f1))
    assert scores["f1"] + 5 < scores["split_f1"] <= scores["best_f1"]
    one_article = [replace(row, title="") for row in examples]
    assert "split_f1" not in kind.score(one_article, predictions)


def test_the_best_threshold_is_found_where_predictions_say_no_answer(answer):
    """Decoding again with the threshold that was found gives the figure that was promised."""
    kind, examples, predictions = answer()
    scores = kind.score(examples, predictions)
    assert scores["best_f1"] > scores["f1"] + 5
    assert scores["best_f1_thresh"] > 0
    again, _, predictions = answer(scores["best_f1_thresh"])
    promised = again.score(examples, predictions)
    assert promised["f1"] == pytest.approx(scores["best_f1"])
    assert promised["best_f1"] == pytest.approx(scores["best_f1"])
    # The figures at the threshold are those of the texts in predictions.json.
    exact = []
    for prediction, row in zip(predictions, examples, strict=True):
        texts = [text.text.lower() for text in row.answers] or [""]
        exact.append(prediction.value.lower() in texts)
    assert promised["exact"] == pytest.approx(100 * np.mean(exact))


# Files


@pytest.mark.parametrize("v2", [False, True])
def test_the_official_files_are_written(tokenizer, tmp_path, v2):
    """Source: run_squad.py, predictions.json, nbest_predictions.json, null_odds.json."""
    kind = make_kind(tokenizer, v2=v2)
    split = make_split(v2=v2)
    encoded = kind.encode(split)
    predictions = kind.decode(encoded, silent_outputs(encoded))
    lines, *paths = kind.write(tmp_path, "validation", split.examples, predictions)
    assert lines.name == "predictions_validation.jsonl"
    names = ["predictions.json", "nbest_predictions.json", *["null_odds.json"] * v2]
    assert [path.name for path in paths] == names
    texts = [path.read_text(encoding="utf-8") for path in paths]
    assert texts[0].startswith('{\n    "id0": "')
    answers, n_best, *odds = map(json.loads, texts)
    assert answers == {prediction.idx: prediction.value for prediction in predictions}
    assert list(n_best) == list(answers)
    for prediction in predictions:
        entries = n_best[prediction.idx]
        assert list(entries[0]) == ["text", "probability", "start_logit", "end_logit"]
        shares = {entry["text"]: entry["probability"] for entry in entries}
        assert sum(shares.values()) == pytest.approx(1)
        assert prediction.probabilities == shares[prediction.value]
        assert v2 or entries[0]["text"] == prediction.value
    for odds_of_answers in odds:
        silent = {idx for idx in answers if odds_of_answers[idx] > 0}
        assert silent == {idx for idx in answers if not answers[idx]}
    paths = kind.write(tmp_path, "test", split.examples, predictions)
    assert [path.name for path in paths[1:]] == [f"test_{name}" for name in names]


# Mistakes


def test_an_added_token_with_a_space_is_refused(make_tokenizer):
    tokenizer = make_tokenizer(PIECES)
    tokenizer.add_tokens(["new york"])
    with pytest.raises(InputError, match="added token 'new york' holds a space"):
        make_kind(tokenizer)


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    """Source: run_squad.py `validate_flags_or_throw`."""
    with pytest.raises(InputError, match=r"max_seq_length is 67 and max_query_length 64; allowed"):
        make_kind(tokenizer, max_seq_length=67, max_query_length=64)
    assert make_kind(tokenizer, max_seq_length=68, max_query_length=64)
