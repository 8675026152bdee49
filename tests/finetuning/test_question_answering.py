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


WORDS = [
    "who",
    "when",
    "did",
    "?",
    *(f"word{letter}" for letter in "abcdefghijklmnopqrst"),
    ".",
    ",",
]


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(WORDS)


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
        words = [
            word.title() if rng.random() < 0.3 else word
            for word in rng.choice(WORDS[4:-2], rng.integers(5, 40))
        ]
        first = int(rng.integers(0, len(words)))
        answer = Answer(
            text=" ".join(words[first : first + 2]),
            answer_start=len("".join(words[:first])) + first,
        )
        question = " ".join(rng.choice(WORDS[:3], rng.integers(1, 9))) + "?"
        answers = () if v2 and index % 3 == 0 else (answer,)
        examples.append(
            QuestionExample(
                idx=f"id{index}", question=question, context=" ".join(words) + ".", answers=answers
            )
        )
    return as_split(*examples)


def run(model, batch):
    with torch.no_grad():
        return model(
            **{key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
        )


def predict(kind, model, encoded, batch_size=5):
    outputs = []
    for start in range(0, len(encoded), batch_size):
        batch = kind.collate(encoded.features[start : start + batch_size])
        outputs += kind.split_outputs(run(model, batch), batch)
    return outputs


def logits_for(feature, *, first=None, last=None):
    """10 at start and end of the answer, or at other positions, 0 elsewhere."""
    logits = np.zeros((2, len(feature["input_ids"])), np.float32)
    logits[0, feature["start_positions"] if first is None else first] = 10
    logits[1, feature["end_positions"] if last is None else last] = 10
    return logits


# Loss


@pytest.mark.parametrize("pad_to_max_length", [False, True])
@pytest.mark.parametrize("v2", [False, True])
def test_loss_is_that_of_the_stock_model_on_the_same_padded_batch(
    tokenizer, model, v2, pad_to_max_length
):
    """Source: google-research/bert run_squad.py `compute_loss`; the softmax is over all positions,
    padding included.
    """
    kind = make_kind(tokenizer, v2=v2, pad_to_max_length=pad_to_max_length)
    encoded = kind.encode(make_split(v2=v2), for_training=True)
    batch = kind.collate([encoded[int(index)] for index in np.argsort(encoded.lengths)[:9]])
    assert (batch["input_ids"].shape[1] == 24) == pad_to_max_length
    with torch.no_grad():
        stock = model(**batch).loss
    ours = kind.loss_sum(run(model, batch), batch) / kind.count_items(batch)
    assert kind.count_items(batch).item() == 9
    assert ours.item() == pytest.approx(stock.item(), rel=1e-6)


def test_a_window_whose_answer_was_not_found_takes_no_part_in_the_loss(tokenizer, model):
    kind = make_kind(tokenizer)
    answer = Answer(text="wordb\u00a0wordc", answer_start=6)
    lost = QuestionExample(
        idx="x", question="who?", context="worda wordb\u00a0wordc wordd", answers=(answer,)
    )
    losses, counts = [], []
    for examples in (make_split(3).examples, (lost, *make_split(3).examples)):
        batch = kind.collate(kind.encode(as_split(*examples)).features[:])
        losses.append(kind.loss_sum(run(model, batch), batch).item())
        counts.append(kind.count_items(batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert counts[0] == counts[1] == len(batch["input_ids"]) - 1


# Predictions


def test_with_padding_to_max_seq_length_outputs_keep_it_as_in_the_original(tokenizer, model):
    # [CLS] who ? [SEP] worda wordb wordc [SEP], then padding from position 8
    split = as_split(QuestionExample(idx="q", question="who?", context="worda wordb wordc"))
    for n_best_size, expected in ((1, "empty"), (2, "wordb")):
        kind = make_kind(tokenizer, pad_to_max_length=True, n_best_size=n_best_size)
        encoded = kind.encode(split)
        assert [output.shape for output in predict(kind, model, encoded)] == [(2, 24)]
        logits = np.full((2, 24), -20, np.float32)
        logits[:, 5], logits[:, 20] = 5, 6
        assert kind.decode(encoded, [logits])[0].value == expected


@pytest.mark.parametrize("decoder", DECODERS)
def test_right_logits_give_the_gold_answers(tokenizer, decoder):
    kind = make_kind(tokenizer, v2=True, decoder=decoder)
    split = make_split(40, v2=True)
    encoded = kind.encode(split)
    predictions = kind.decode(encoded, [logits_for(feature) for feature in encoded.features])
    expected = [(each.idx, each.answers[0].text if each.answers else "") for each in split.examples]
    assert [(prediction.idx, prediction.value) for prediction in predictions] == expected
    scores = kind.score(split.examples, predictions)
    assert {scores[name] for name in ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1")} == {100.0}
    # Two windows may hold the answer: the offsets decoder lists it twice.
    assert all(
        prediction.probabilities > (0.9 if decoder == "original" else 0.3)
        for prediction in predictions
    )


@pytest.mark.parametrize("decoder", DECODERS)
def test_added_tokens_are_one_piece_each_and_stand_in_answers(make_tokenizer, decoder):
    tokenizer = make_tokenizer(WORDS)
    tokenizer.add_tokens(["<e1>", "</e1>"])
    answer = Answer(text="<E1>wordb</e1>", answer_start=6)
    context = "Worda <E1>wordb</e1>, wordc wordd."
    example = QuestionExample(idx="q", question="who <e1>?", context=context, answers=(answer,))
    kind = make_kind(tokenizer, decoder=decoder)
    encoded = kind.encode(as_split(example))
    (feature,) = encoded.features
    assert (
        feature["input_ids"] == tokenizer.stock_tokenizer()(example.question, context)["input_ids"]
    )
    first, last = feature["start_positions"], feature["end_positions"]
    assert tokenizer.convert_ids_to_tokens(feature["input_ids"][first : last + 1]) == [
        "<e1>",
        "wordb",
        "</e1>",
    ]
    assert kind.decode(encoded, [logits_for(feature)])[0].value == answer.text
    # Part of a word: the markers are left out.
    logits = logits_for(feature, first=first + 1, last=first + 1)
    assert kind.decode(encoded, [logits])[0].value == "wordb"


def silent_outputs(encoded):
    """Of a model that is half right, and says "no answer" far too often."""
    rng, outputs = np.random.default_rng(0), []
    for feature in encoded.features:
        logits = rng.normal(0, 2, (2, len(feature["input_ids"]))).astype(
            np.float32
        ) + 0.6 * logits_for(feature)
        logits[:, 0] += 8
        outputs.append(logits)
    return outputs


def test_a_threshold_is_also_chosen_on_other_articles(tokenizer, model):
    """Each half, decoded with the threshold that is the best one of the other."""
    split = make_split(60, v2=True)
    examples = [
        replace(row, title=f"article {number % 5}") for number, row in enumerate(split.examples)
    ]
    kind = make_kind(tokenizer, v2=True)
    encoded = kind.encode(replace(split, examples=examples))
    outputs = silent_outputs(encoded)
    predictions = kind.decode(encoded, outputs)
    halves = [[number for number in range(60) if number % 5 % 2 == side] for side in (0, 1)]
    f1 = []
    for half, other in (halves, halves[::-1]):
        own = kind.score(
            [examples[number] for number in half], [predictions[number] for number in half]
        )
        again = make_kind(tokenizer, v2=True, null_score_diff_threshold=own["best_f1_thresh"])
        decoded = again.decode(encoded, outputs)
        scores = again.score(
            [examples[number] for number in other], [decoded[number] for number in other]
        )
        f1 += [scores["f1"]] * len(other)
    scores = kind.score(examples, predictions)
    assert scores["split_f1"] == pytest.approx(np.mean(f1))
    assert scores["f1"] + 5 < scores["split_f1"] <= scores["best_f1"]
    assert "split_f1" not in kind.score(
        [replace(row, title="one") for row in examples], predictions
    )


def test_the_best_threshold_is_found_where_predictions_say_no_answer(tokenizer, model):
    """Decoding again with the threshold that was found gives the figure that was promised."""
    split = make_split(60, v2=True)
    kind = make_kind(tokenizer, v2=True)
    encoded = kind.encode(split)
    outputs = silent_outputs(encoded)
    scores = kind.score(split.examples, kind.decode(encoded, outputs))
    assert scores["best_f1"] > scores["f1"] + 5
    assert scores["best_f1_thresh"] > 0
    again = make_kind(tokenizer, v2=True, null_score_diff_threshold=scores["best_f1_thresh"])
    predictions = again.decode(encoded, outputs)
    promised = again.score(split.examples, predictions)
    assert promised["f1"] == pytest.approx(scores["best_f1"])
    assert promised["best_f1"] == pytest.approx(scores["best_f1"])
    # The figures at the threshold are those of the texts in predictions.json.
    pairs = zip(predictions, split.examples, strict=True)
    exact = [
        said.value.lower() in ([each.text.lower() for each in row.answers] or [""])
        for said, row in pairs
    ]
    assert promised["exact"] == pytest.approx(100 * np.mean(exact))


# Files


@pytest.mark.parametrize("v2", [False, True])
def test_the_official_files_are_written(tokenizer, model, tmp_path, v2):
    """Source: google-research/bert run_squad.py, predictions.json, nbest_predictions.json,
    null_odds.json.
    """
    kind = make_kind(tokenizer, v2=v2)
    split = make_split(v2=v2)
    encoded = kind.encode(split)
    predictions = kind.decode(encoded, predict(kind, model, encoded))
    paths = kind.write(tmp_path, "validation", split.examples, predictions)
    official = ["predictions.json", "nbest_predictions.json", *["null_odds.json"] * v2]
    assert [path.name for path in paths] == ["predictions_validation.jsonl", *official]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    rows = [json.loads(line) for line in paths[0].read_text(encoding="utf-8").splitlines()]
    answers, nbest, *others = (json.loads(path.read_text(encoding="utf-8")) for path in paths[1:])
    assert [(row["idx"], row["prediction"]) for row in rows] == list(answers.items())
    assert (
        [row["idx"] for row in rows] == list(nbest) == [example.idx for example in split.examples]
    )
    for row in rows:
        entries = nbest[row["idx"]]
        assert {tuple(entry) for entry in entries} == {
            ("text", "probability", "start_logit", "end_logit")
        }
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        share = next(
            entry["probability"] for entry in entries if entry["text"] == row["prediction"]
        )
        assert row["probabilities"] == pytest.approx(share, abs=1e-6)
        assert v2 or entries[0]["text"] == row["prediction"]
    assert paths[1].read_text(encoding="utf-8").startswith('{\n    "id0": "')
    assert all(
        (odds[idx] > 0) == (answer == "") for odds in others for idx, answer in answers.items()
    )
    names = [path.name for path in kind.write(tmp_path, "test", split.examples, predictions)]
    assert names == ["predictions_test.jsonl", *(f"test_{name}" for name in official)]


# Mistakes


def test_an_added_token_with_a_space_is_refused(make_tokenizer):
    tokenizer = make_tokenizer(WORDS)
    tokenizer.add_tokens(["new york"])
    with pytest.raises(
        InputError,
        match="added token 'new york' holds a space, and paragraphs are cut word by word",
    ):
        make_kind(tokenizer)


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    """Source: run_squad.py `validate_flags_or_throw`."""
    with pytest.raises(InputError, match=r"max_seq_length is 67 and max_query_length 64; allowed"):
        make_kind(tokenizer, max_seq_length=67, max_query_length=64)
    assert make_kind(tokenizer, max_seq_length=68, max_query_length=64)
