"""Question answering as a kind of task: loss, batches, files and figures."""

import json

import numpy as np
import pytest
import torch
from transformers import BertForQuestionAnswering

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.question_answering import AnswerPrediction, QuestionAnswering
from bert_recipes.tasks.rows import Answer, QuestionExample, Split
from bert_recipes.tasks.task import Task


WORDS = ["who", "when", "did", "?", *(f"word{letter}" for letter in "abcdefghijklmnopqrst"), ".", ","]


@pytest.fixture(scope="module")
def tokenizer(make_tokenizer):
    return make_tokenizer(WORDS)


@pytest.fixture(scope="module")
def model(tokenizer, tiny_config):
    torch.manual_seed(0)
    config = tiny_config(len(tokenizer), initializer_range=0.2)
    return BertForQuestionAnswering(config).eval()


def make_kind(tokenizer, *, v2=False, **settings):
    name = "squad_v2" if v2 else "squad"
    task = Task(
        name=name,
        kind="question_answering",
        text_columns=("question", "context"),
        label_column="answers",
        metrics=(name,),
    )
    settings = {"max_seq_length": 24, "doc_stride": 6, "max_query_length": 6} | settings
    return QuestionAnswering(task, tokenizer, TaskArguments(task=name, **settings), {})


def make_split(number=12, *, v2=False, seed=0):
    """Questions about paragraphs of 5 to 40 words, some of which need several windows."""
    rng = np.random.default_rng(seed)
    examples = []
    for index in range(number):
        words = rng.choice(WORDS[4:-2], rng.integers(5, 40)).tolist()
        words = [word.title() if rng.random() < 0.3 else word for word in words]
        context = " ".join(words) + "."
        first = int(rng.integers(0, len(words)))
        text = " ".join(words[first : first + 2])
        start = len(" ".join([*words[:first], ""])) if first else 0
        answers = () if v2 and index % 3 == 0 else (Answer(text=text, answer_start=start),)
        question = " ".join(rng.choice(WORDS[:3], rng.integers(1, 9))) + "?"
        examples.append(QuestionExample(idx=f"id{index}", question=question, context=context, answers=answers))
    return Split(name="validation", examples=examples, source="made.json", num_rows=number)


def run(model, batch):
    return model(**{key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")})


def predict(kind, model, encoded, batch_size=5):
    outputs = []
    with torch.no_grad():
        for start in range(0, len(encoded), batch_size):
            batch = kind.collate(encoded.features[start : start + batch_size])
            outputs += kind.split_outputs(run(model, batch), batch)
    return outputs


# Batches and loss


def test_a_batch_has_the_question_first_and_the_window_second(tokenizer):
    kind = make_kind(tokenizer)
    encoded = kind.encode(make_split(), for_training=True)
    batch = kind.collate([encoded[index] for index in range(len(encoded))])
    assert {key: (value.dtype, value.shape) for key, value in batch.items()} == {
        **dict.fromkeys(
            ("input_ids", "token_type_ids", "attention_mask"),
            (torch.int64, (len(encoded), int(encoded.lengths.max()))),
        ),
        **dict.fromkeys(("start_positions", "end_positions"), (torch.int64, (len(encoded),))),
    }
    assert batch["attention_mask"].sum(1).tolist() == encoded.lengths.tolist()
    separators = (batch["input_ids"] == tokenizer.sep_token_id).int()
    expected = (separators.cumsum(1) - separators >= 1) & batch["attention_mask"].bool()
    assert torch.equal(batch["token_type_ids"].bool(), expected)


@pytest.mark.parametrize("pad_to_max_length", [False, True])
@pytest.mark.parametrize("v2", [False, True])
def test_loss_is_that_of_the_stock_model_on_the_same_padded_batch(tokenizer, model, v2, pad_to_max_length):
    """Source: google-research/bert run_squad.py `compute_loss`; the softmax is over all positions, padding included."""
    kind = make_kind(tokenizer, v2=v2, pad_to_max_length=pad_to_max_length)
    encoded = kind.encode(make_split(v2=v2), for_training=True)
    batch = kind.collate(encoded.features[:9])
    assert batch["input_ids"].shape[1] == 24
    with torch.no_grad():
        stock = model(**batch).loss
        ours = kind.loss_sum(run(model, batch), batch) / kind.count_items(batch)
    assert kind.count_items(batch).item() == 9
    assert ours.item() == pytest.approx(stock.item(), rel=1e-6)


def test_loss_and_gradient_of_micro_batches_padded_alike_add_up(tokenizer, model, assert_split_changes_nothing):
    kind = make_kind(tokenizer, pad_to_max_length=True)
    assert_split_changes_nothing(kind, model, kind.encode(make_split(20), for_training=True).features[:16], 8, 1, 3)


def test_padding_counts_in_the_loss_which_is_why_micro_batches_are_padded_alike(tokenizer, model):
    kinds = make_kind(tokenizer), make_kind(tokenizer, pad_to_max_length=True)
    assert QuestionAnswering.loss_counts_padding
    losses = []
    for kind in kinds:
        encoded = kind.encode(make_split(), for_training=True)
        short = [encoded[int(index)] for index in np.flatnonzero(encoded.lengths < 20)]
        batch = kind.collate(short)
        with torch.no_grad():
            losses.append(kind.loss_sum(run(model, batch), batch).item())
    assert losses[1] > losses[0] + 0.1


def test_a_window_whose_answer_was_not_found_takes_no_part_in_the_loss(tokenizer, model):
    kind = make_kind(tokenizer)
    lost = QuestionExample(
        idx="lost",
        question="who?",
        context="worda wordb\u00a0wordc wordd worde",
        answers=(Answer(text="wordb\u00a0wordc", answer_start=6),),
    )
    split = make_split(3)
    features = kind.encode(split).features[:]
    with_lost = kind.encode(Split(name="v", examples=[lost, *split.examples], source="s", num_rows=4)).features[:]
    assert len(with_lost) == len(features) + 1
    losses, counts = [], []
    for group in (features, with_lost):
        batch = kind.collate(group)
        with torch.no_grad():
            losses.append(kind.loss_sum(run(model, batch), batch).item())
        counts.append(kind.count_items(batch).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert counts == [len(features)] * 2


# Predictions


def test_predictions_do_not_depend_on_the_batches(tokenizer, model):
    kind = make_kind(tokenizer, v2=True)
    encoded = kind.encode(make_split(25, v2=True))
    one, seven = (predict(kind, model, encoded, size) for size in (1, 7))
    assert [output.shape for output in one] == [(2, length) for length in encoded.lengths.tolist()]
    for left, right in zip(one, seven, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-4)
    answers = [[prediction.value for prediction in kind.decode(encoded, outputs)] for outputs in (one, seven)]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 3


def test_with_padding_to_max_seq_length_outputs_keep_it_as_in_the_original(tokenizer, model):
    kind = make_kind(tokenizer, pad_to_max_length=True)
    encoded = kind.encode(make_split())
    outputs = predict(kind, model, encoded)
    assert {output.shape for output in outputs} == {(2, 24)}
    # [CLS] who ? [SEP] worda wordb wordc [SEP], then padding from position 8
    example = QuestionExample(idx="q", question="who?", context="worda wordb wordc")
    split = Split(name="test", examples=[example], source="made", num_rows=1)
    for n_best_size, expected in ((1, "empty"), (2, "wordb")):
        kind = make_kind(tokenizer, pad_to_max_length=True, n_best_size=n_best_size)
        logits = np.full((2, 24), -20, np.float32)
        logits[:, 5], logits[:, 20] = 5, 6
        assert kind.decode(kind.encode(split), [logits])[0].value == expected


@pytest.mark.parametrize("decoder", ["original", "offsets"])
def test_right_logits_give_the_gold_answers(tokenizer, decoder):
    kind = make_kind(tokenizer, v2=True, decoder=decoder)
    split = make_split(40, v2=True)
    encoded = kind.encode(split)
    outputs = []
    for feature in encoded.features:
        logits = np.zeros((2, len(feature["input_ids"])), np.float32)
        logits[0, feature["start_positions"]] = logits[1, feature["end_positions"]] = 10
        outputs.append(logits)
    predictions = kind.decode(encoded, outputs)
    expected = [example.answers[0].text if example.answers else "" for example in split.examples]
    assert [prediction.value for prediction in predictions] == expected
    assert [prediction.idx for prediction in predictions] == [example.idx for example in split.examples]
    scores = kind.score(split.examples, predictions)
    assert {name: scores[name] for name in ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1")} == dict.fromkeys(
        ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_f1"), 100.0
    )
    # Two windows may hold the answer: the offsets decoder lists it twice.
    assert all(prediction.probabilities > (0.9 if decoder == "original" else 0.3) for prediction in predictions)


@pytest.mark.parametrize("decoder", ["original", "offsets"])
def test_added_tokens_are_one_piece_each_and_stand_in_answers(make_tokenizer, decoder):
    tokenizer = make_tokenizer(WORDS)
    tokenizer.add_tokens(["<e1>", "</e1>"])
    context, answer = "Worda <E1>wordb</e1>, wordc wordd.", "<E1>wordb</e1>"
    example = QuestionExample(
        idx="q", question="who <e1>?", context=context, answers=(Answer(text=answer, answer_start=6),)
    )
    split = Split(name="validation", examples=[example], source="made.json", num_rows=1)
    kind = make_kind(tokenizer, decoder=decoder)
    encoded = kind.encode(split)
    (feature,) = encoded.features
    assert feature["input_ids"] == tokenizer.stock_tokenizer()(example.question, context)["input_ids"]
    first, last = feature["start_positions"], feature["end_positions"]
    assert tokenizer.convert_ids_to_tokens(feature["input_ids"][first : last + 1]) == ["<e1>", "wordb", "</e1>"]
    logits = np.zeros((2, len(feature["input_ids"])), np.float32)
    logits[0, first] = logits[1, last] = 10
    assert kind.decode(encoded, [logits])[0].value == answer
    # Part of a word: the markers are left out.
    logits = np.zeros((2, len(feature["input_ids"])), np.float32)
    logits[0, first + 1] = logits[1, first + 1] = 10
    assert kind.decode(encoded, [logits])[0].value == "wordb"


def test_an_added_token_with_a_space_is_refused(make_tokenizer):
    tokenizer = make_tokenizer(WORDS)
    tokenizer.add_tokens(["new york"])
    with pytest.raises(InputError, match="added token 'new york' holds a space, and paragraphs are cut word by word"):
        make_kind(tokenizer)


def test_figures_of_squad_1_are_exact_match_and_f1(tokenizer):
    kind = make_kind(tokenizer)
    example = QuestionExample(
        idx="q",
        question="who?",
        context="Worda wordb wordc",
        answers=(Answer(text="wordb wordc", answer_start=6), Answer(text="Worda", answer_start=0)),
    )
    scores = kind.score([example], [AnswerPrediction(idx="q", value="wordb", best_text="wordb")])
    assert scores == {"exact_match": 0.0, "f1": pytest.approx(200 / 3)}
    assert kind.score([example], [AnswerPrediction(idx="q", value="worda.")]) == {"exact_match": 100.0, "f1": 100.0}


def test_the_best_threshold_is_found_where_predictions_say_no_answer(tokenizer, model):
    """Decoding again with the threshold that was found gives the figure that was promised."""
    split = make_split(60, v2=True)
    kind = make_kind(tokenizer, v2=True)
    encoded = kind.encode(split)
    rng = np.random.default_rng(0)
    outputs = []
    for feature in encoded.features:
        logits = rng.normal(0, 2, (2, len(feature["input_ids"]))).astype(np.float32)
        logits[0, feature["start_positions"]] += 6
        logits[1, feature["end_positions"]] += 6
        # A model that says "no answer" far too often.
        logits[:, 0] += 8
        outputs.append(logits)
    scores = kind.score(split.examples, kind.decode(encoded, outputs))
    assert scores["best_f1"] > scores["f1"] + 5
    assert scores["best_f1_thresh"] > 0
    again = make_kind(tokenizer, v2=True, null_score_diff_threshold=scores["best_f1_thresh"])
    predictions = again.decode(encoded, outputs)
    promised = again.score(split.examples, predictions)
    assert promised["f1"] == pytest.approx(scores["best_f1"])
    assert promised["best_f1"] == pytest.approx(scores["best_f1"])
    # The figures at the threshold are those of the texts in predictions.json.
    exact = np.mean(
        [
            prediction.value.lower() in ([answer.text.lower() for answer in example.answers] or [""])
            for prediction, example in zip(predictions, split.examples, strict=True)
        ]
    )
    assert promised["exact"] == pytest.approx(100 * exact)


# Files


@pytest.mark.parametrize("v2", [False, True])
def test_the_official_files_are_written(tokenizer, model, tmp_path, v2):
    """Source: google-research/bert run_squad.py, predictions.json, nbest_predictions.json, null_odds.json."""
    kind = make_kind(tokenizer, v2=v2)
    split = make_split(v2=v2)
    encoded = kind.encode(split)
    predictions = kind.decode(encoded, predict(kind, model, encoded))
    paths = kind.write(tmp_path, "validation", split.examples, predictions)
    names = ["predictions_validation.jsonl", "predictions.json", "nbest_predictions.json", *["null_odds.json"] * v2]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    ids = [example.idx for example in split.examples]
    rows = [json.loads(line) for line in paths[0].read_text(encoding="utf-8").splitlines()]
    answers = json.loads(paths[1].read_text(encoding="utf-8"))
    assert [row["idx"] for row in rows] == ids
    assert [row["prediction"] for row in rows] == [answers[idx] for idx in ids]
    assert list(answers) == ids
    nbest = json.loads(paths[2].read_text(encoding="utf-8"))
    assert list(nbest) == ids
    for row in rows:
        entries = nbest[row["idx"]]
        assert [list(entry) for entry in entries] == [["text", "probability", "start_logit", "end_logit"]] * len(
            entries
        )
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        share = next(entry["probability"] for entry in entries if entry["text"] == row["prediction"])
        assert row["probabilities"] == pytest.approx(share, abs=1e-6)
        if not v2:
            assert entries[0]["text"] == row["prediction"]
    assert paths[1].read_text(encoding="utf-8").startswith('{\n    "id0": "')
    if v2:
        odds = json.loads(paths[3].read_text(encoding="utf-8"))
        assert all((odds[idx] > 0) == (answers[idx] == "") for idx in ids)


def test_files_of_other_splits_bear_their_names(tokenizer, model, tmp_path):
    kind = make_kind(tokenizer)
    split = make_split(2)
    encoded = kind.encode(split)
    paths = kind.write(tmp_path, "test", split.examples, kind.decode(encoded, predict(kind, model, encoded)))
    assert [path.name for path in paths] == [
        "predictions_test.jsonl",
        "test_predictions.json",
        "test_nbest_predictions.json",
    ]


# Mistakes


def test_a_question_that_leaves_no_room_is_refused(tokenizer):
    """Source: run_squad.py `validate_flags_or_throw`."""
    with pytest.raises(InputError, match=r"max_seq_length is 67 and max_query_length 64; allowed"):
        make_kind(tokenizer, max_seq_length=67, max_query_length=64)
    assert make_kind(tokenizer, max_seq_length=68, max_query_length=64)


def test_ids_that_occur_twice_are_refused_for_predictions(tokenizer):
    split = make_split(3)
    twice = Split(name="v", examples=[*split.examples, split.examples[1]], source="dev.json", num_rows=4)
    kind = make_kind(tokenizer)
    with pytest.raises(InputError, match=r"dev\.json: two questions have the id id1"):
        kind.encode(twice)
    assert kind.encode(twice, for_training=True)


def test_a_row_without_a_squad_metric_is_refused(tokenizer):
    task = Task(
        name="mine", kind="question_answering", text_columns=("q", "c"), label_column="a", metrics=("accuracy",)
    )
    with pytest.raises(
        InputError, match="task mine: its metrics are accuracy; question answering takes squad, or squad_v2"
    ):
        QuestionAnswering(task, tokenizer, TaskArguments(task="squad"), {})


def test_messages_about_answers_name_the_file(tokenizer):
    example = QuestionExample(idx="q1", question="who", context="worda", answers=(Answer(text="x", answer_start=70),))
    split = Split(name="train", examples=[example], source="train.json", num_rows=1)
    with pytest.raises(InputError, match=r"^train\.json: question q1: the answer 'x' at character 70"):
        make_kind(tokenizer).encode(split, for_training=True)
