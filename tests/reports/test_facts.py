"""Facts in report.json are what the run did and what its model predicts."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import transformers

from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.finetuning.squad import AnswerPrediction
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.reports.facts import describe_sizes
from bert_recipes.reports.finetuning_facts import calibration, class_facts, split_facts
from bert_recipes.reports.finish import report_run
from bert_recipes.reports.pretraining_facts import (
    describe_run,
    fingerprint_held_out,
    gather_pretraining,
    predict_held_out,
)
from bert_recipes.tasks.examples import (
    Answer,
    ChoiceExample,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from bert_recipes.tasks.task import Task
from bert_recipes.training.arguments import (
    DataArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
    plan_phases,
)
from bert_recipes.training.pretraining import load_model, load_phases, make_trainer


# Fine-tuning: a table of tasks, with examples, predictions and what is to be seen of them


def task_of(kind="sequence_classification", **values):
    columns = {"text_columns": ("a", "b"), "label_column": "label"}
    return Task(
        name="t",
        kind=kind,
        **{**columns, **values},
    )


def texts(labels):
    return [
        TextExample(
            idx=row,
            text=f"text {row}",
            text_pair="q " * 400,
            label=label,
        )
        for row, label in enumerate(labels)
    ]


def predictions_of(rows):
    """Predictions of (value, probabilities)."""
    return [
        Prediction(
            idx=0,
            value=value,
            probabilities=shares,
        )
        for value, shares in rows
    ]


def question(number, answers):
    context = "The tower was built in 1889 by Eiffel."
    gold = tuple(Answer(text=text, answer_start=context.index(text)) for text in answers)
    return QuestionExample(
        idx=f"q{number}",
        question="When?",
        context=context,
        answers=gold,
    )


WORDS = tuple(f"w{number}" for number in range(60))
ANSWERS = [("1889", 0.9), ("Eiffel", 0.8), ("tower", 0.95), ("in 1889", 0.4)]
KINDS = {
    "classes": (
        task_of(labels=("x", "y", "z")),
        texts([0, 1, 2, 1]),
        predictions_of(
            [("x", {"x": 0.6}), ("z", {"z": 0.7}), ("y", {"y": 0.9}), ("y", {"y": 0.8})]
        ),
        {"confusion": [[1, 0, 0], [0, 1, 1], [0, 1, 0]]},
        [("text 2", "y", "z", 0.9), ("text 1", "z", "y", 0.7)],
    ),
    "several labels": (
        task_of(
            labels=("x", "y"),
            problem_type="multi_label_classification",
            metrics=("multi_label",),
        ),
        texts([(0,), (0, 1), ()]),
        predictions_of(
            [
                ([], {"x": 0.9, "y": 0.2}),
                ([], {"x": 0.1, "y": 0.6}),
                ([], {"x": 0.99, "y": 0.4}),
            ]
        ),
        {
            "classes": [
                {
                    "precision": 0.5,
                    "recall": 0.5,
                    "f1": 0.5,
                    "support": 2,
                },
                {
                    "precision": 1.0,
                    "recall": 1.0,
                    "f1": 1.0,
                    "support": 1,
                },
            ]
        },
        [("text 2", "x", "none", 0.99), ("text 1", "y", "x, y", 0.9)],
    ),
    "numbers": (
        task_of(
            problem_type="regression",
            metrics=("pearson",),
            label_range=(0.0, 5.0),
        ),
        texts([0.0, 1.0, 2.0, 3.0]),
        predictions_of([(0.5, None), (1.0, None), (2.0, None), (0.0, None)]),
        {
            "dots": [[0, 1, 2, 3], [0.5, 1, 2, 0]],
            "mean_absolute_error": 0.875,
            "error_of_the_mean": 1.0,
        },
        [("text 3", "0.000", "3.000", None), ("text 0", "0.500", "0.000", None)],
    ),
    "tags": (
        task_of("token_classification", metrics=("entities",), labels=("O", "B-X", "I-X")),
        [
            TaggedExample(
                idx=0,
                tokens=("a", "b", "c"),
                labels=(1, 2, 0),
            ),
            TaggedExample(
                idx=1,
                tokens=WORDS,
                labels=(0,) * 60,
            ),
        ],
        predictions_of(
            [
                (["B-X", "O", "B-X"], [0.9, 0.8, 0.95]),
                (["O"] * 30 + ["B-X"] + ["O"] * 29, [0.99] * 60),
            ]
        ),
        {
            "confusion": [[59, 2, 0], [0, 1, 0], [1, 0, 0]],
            "entities": [
                {
                    "type": name,
                    "precision": 0.0,
                    "recall": 0.0,
                    "f1": 0.0,
                    "support": 1,
                }
                for name in ("X", "all")
            ],
        },
        [
            (" ".join(WORDS[16:45]), "B-X", "O", 0.99),
            ("a b c", "B-X", "O", 0.95),
            ("a b c", "O", "I-X", 0.8),
        ],
    ),
    "answers": (
        task_of("question_answering", metrics=("squad_v2",)),
        [question(row, answers) for row, answers in enumerate((["1889"], ["1889"], [], ["1889"]))],
        [
            AnswerPrediction(
                idx=f"q{row}",
                value=text,
                probabilities=share,
            )
            for row, (text, share) in enumerate(ANSWERS)
        ],
        {"confusion": [[3, 0], [1, 0]], "labels": ["has an answer", "no answer"]},
        [("When?", "tower", "no answer", 0.95), ("When?", "Eiffel", "1889", 0.8)],
    ),
    "choices": (
        task_of("multiple_choice", choice_columns=("a", "b")),
        [
            ChoiceExample(
                idx=row,
                context=f"c{row}",
                choices=("yes", "no"),
                label=row % 2,
            )
            for row in range(3)
        ],
        predictions_of([(0, [0.7, 0.3]), (0, [0.8, 0.2]), (0, [0.9, 0.1])]),
        {"confusion": [[2, 0], [1, 0]], "labels": ["1", "2"]},
        [("c1", "1", "2", 0.8)],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_facts_of_every_kind_are_those_of_its_predictions(kind):
    task, examples, predictions, expected, expected_errors = KINDS[kind]
    facts = split_facts(task, "validation", examples, predictions)
    json.dumps(facts, allow_nan=False)
    assert facts["examples"] == len(examples)
    assert {name: facts[name] for name in expected} == expected

    errors = []
    for error in facts["worst"][: len(expected_errors)]:
        texts = [text for _, text in error["texts"]]
        number = error.get("error", error.get("probability"))
        errors.append((texts[0], error["said"], error["truth"], number))
        assert max(map(len, texts)) < 520
    assert errors == expected_errors
    assert ("calibration" in facts) is (kind != "numbers")
    # Where the outputs were not finite nothing was predicted.
    assert "worst" not in split_facts(task, "validation", examples, None)


# Texts of the first rows: what is said, what is true, whether it is right.
FIRST = {
    "classes": [("x", "x", True), ("z", "y", False), ("y", "z", False)],
    "several labels": [("x", "x", True), ("y", "x, y", False), ("x", "none", False)],
    "numbers": [("0.500", "0.000", None), ("1.000", "1.000", None), ("2.000", "2.000", None)],
    # Sentences, not words.
    "tags": [("a (X), c (X)", "a b (X)", False), ("w30 (X)", "none", False)],
    "answers": [("1889", "1889", True), ("Eiffel", "1889", False), ("tower", "no answer", False)],
    "choices": [("1", "1", True), ("1", "2", False), ("1", "1", True)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_rows_are_examples_of_every_kind(kind):
    task, examples, predictions, _, _ = KINDS[kind]
    first = split_facts(task, "validation", examples, predictions)["first"]
    assert [(row["said"], row["truth"], row.get("is_right")) for row in first] == FIRST[kind]
    if kind == "tags":
        assert first[0]["texts"] == [["", "a b c"]]
    # Of several labels no probability is that of the prediction.
    has_probability = kind in ("classes", "answers", "choices")
    assert all(("probability" in row) is has_probability for row in first)


def test_words_of_a_task_without_entities_stand_beside_their_tags():
    task = task_of("token_classification", metrics=("accuracy",), labels=("DET", "NOUN"))
    example = TaggedExample(idx=0, tokens=("the", "sea"), labels=(0, 1))
    predictions = predictions_of([(["DET", "DET"], [0.9, 0.8])])
    [row] = split_facts(task, "validation", [example], predictions)["first"]
    assert (row["said"], row["truth"]) == ("the/DET sea/DET", "the/DET sea/NOUN")


def test_of_many_classes_the_most_frequent_mistakes_are_listed():
    names = [f"c{number}" for number in range(60)]
    facts = class_facts(names, [0] * 5 + [1] * 3 + [2] * 9, [7] * 5 + [8] * 3 + [2] * 9)
    assert "confusion" not in facts
    assert facts["mistakes"] == [["c0", "c7", 5], ["c1", "c8", 3]]
    assert len(facts["classes"]) == 60
    assert (facts["classes"][1]["recall"], facts["classes"][1]["support"]) == (0.0, 3)


def test_the_scores_of_one_label_are_those_of_the_label_and_not_of_its_absence():
    task = task_of(
        labels=("x",),
        problem_type="multi_label_classification",
        metrics=("multi_label",),
    )
    shares = [([], {"x": share}) for share in (0.9, 0.8, 0.1, 0.2)]
    facts = split_facts(task, "validation", texts([(0,), (), (), ()]), predictions_of(shares))
    (scores,) = facts["classes"]
    assert scores == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1}


def test_the_calibration_error_is_that_of_the_definition():
    # Guo et al. 2017, equation 3: bins of 1/15, each weighted by its predictions.
    measured = calibration([0.30, 0.32, 0.95, 1.0, 1.0 + 1e-9], [True, False, True, True, False])
    assert [row["count"] for row in measured["bins"]] == [2, 3]
    expected = 0.4 * abs(0.5 - 0.31) + 0.6 * abs(2 / 3 - 2.95 / 3)
    assert measured["expected_calibration_error"] == pytest.approx(expected)


CLASSES = ("By class", "Confusion matrix", "Calibration", "Worst errors")


@pytest.mark.parametrize(
    ("kind", "sections"),
    [("sequence_classification", CLASSES), ("question_answering", ("Calibration",))],
)
def test_a_run_of_every_kind_has_its_report(tiny_runs, kind, sections):
    folder = tiny_runs(kind)
    facts = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    assert [split["examples"] for split in facts["splits"]] == [23]
    assert facts["task"] == "mine"
    page = (folder / "report.html").read_text()
    text = (folder / "report.md").read_text()
    for title in sections:
        assert f"<h2>{title}" in page
        assert f"\n## {title}" in text
    assert 'aria-label="Reliability: expected calibration error' in page


# Pre-training


def train(store, folder, second, **settings):
    """A run of two phases, as recipes/pretrain.py makes it."""
    args = PreTrainingArguments(
        output_dir=str(folder),
        warmup_steps=2,
        logging_steps=5,
        per_device_train_batch_size=4,
        save_strategy="no",
        seed=3,
        precision="fp32",
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    data_args = DataArguments(
        store=str(store),
        max_seq_length=32,
        max_eval_pairs=12,
    )
    phases = plan_phases(args, data_args, PhaseArguments(phase2_max_seq_length=48, **second))
    data = load_phases(data_args, phases, args.seed)
    model = load_model(ModelArguments(size="tiny"), data.tokenizer, 48, args.seed)
    trainer = make_trainer(model, args, data, data_args.max_eval_pairs)
    trainer.train()
    return trainer, data


@pytest.fixture(scope="module")
def trained(small_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return train(
        small_store,
        folder,
        {"phase2_steps": 4},
        max_steps=12,
        global_train_batch_size=8,
    )


def test_the_held_out_inputs_are_known_by_what_they_are_and_not_by_how_many_were_asked_for(
    trained, monkeypatch
):
    trainer, _ = trained
    pairs = trainer.eval_dataset.num_pairs(0)
    hashes = [fingerprint_held_out(trainer)]
    for number in (12, 6, pairs, pairs + 1000):
        monkeypatch.setattr(trainer, "max_eval_pairs", number)
        hashes.append(fingerprint_held_out(trainer))
    assert hashes[0] == hashes[1]
    assert hashes[3] == hashes[4]
    assert len(set(hashes)) == 3
    collator = replace(trainer.eval_collator, mlm_probability=0.3)
    monkeypatch.setattr(trainer, "eval_collator", collator)
    assert fingerprint_held_out(trainer) not in hashes


def test_phases_have_batches_of_their_own_without_a_global_batch(small_store, tmp_path):
    second = {"phase2_steps": 1, "phase2_per_device_train_batch_size": 2}
    settings = {"max_steps": 3, "gradient_accumulation_steps": 2}
    trainer, _ = train(small_store, tmp_path, second, **settings)
    args = trainer.args
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 4)
    assert trainer.resume_fingerprint["global batch"] == "8, then 8"
    trainer.is_deepspeed_enabled = True
    message = (
        "here it would be 2 and then 4; give --global_train_batch_size 8 "
        "--per_device_train_batch_size 2 --phase2_per_device_train_batch_size 2"
    )
    with pytest.raises(InputError, match=message):
        trainer._check_batches()


def test_everything_is_json_and_a_report_follows_from_the_main_process(trained, tmp_path):
    trainer, data = trained
    results = trainer.evaluate()
    (tmp_path / "all_results.json").write_text(json.dumps(results))
    gather = partial(
        gather_pretraining,
        trainer,
        data,
        describe_run(trainer, data),
        results,
    )
    names = {path.name for path in report_run(tmp_path, gather, is_main=True)}
    assert names == {"report.md", "report.html", "report.json"}
    facts = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert facts["measured_on"] == fingerprint_held_out(trainer)
    assert facts["run"]["parameters"] == trainer.model.num_parameters()
    assert facts["corpus"]["training"]["documents"] == 40
    assert facts["corpus"]["training"]["inputs in epoch 0"] == data.train.num_pairs(0)
    # Another process takes part and writes nothing.
    (tmp_path / "empty").mkdir()
    assert report_run(tmp_path / "empty", gather, is_main=False) == []
    assert not list((tmp_path / "empty").iterdir())


def test_the_parameters_are_those_of_the_model_that_the_folder_holds(trained):
    """Without ELECTRA's generator; under ZeRO 3 those of all processes."""
    model = MEMBERS["electra"](
        pretraining_config("2/64", vocab_size=100, model_type="electra", embedding_size=32)
    )
    args = SimpleNamespace(world_size=1)
    trainer = SimpleNamespace(model=model, args=args, precision="fp32", global_batch_size=8)
    stock = transformers.ElectraForPreTraining(model.config).num_parameters()
    assert describe_sizes(trainer)["parameters"] == stock
    next(model.parameters()).ds_numel = 10**9
    assert describe_sizes(trainer)["parameters"] > 10**9


def test_predictions_of_held_out_inputs_are_the_models(trained):
    trainer, data = trained
    tokenizer = data.tokenizer
    batch = trainer.eval_collator([trainer.eval_dataset[(0, index)] for index in range(16)])
    facts = predict_held_out(trainer.model, tokenizer, batch)
    assert (len(facts["masks"]), len(facts["verdicts"])) == (8, 8)
    names = ("input_ids", "attention_mask", "token_type_ids")

    with torch.no_grad():
        output = trainer.model.eval()(**{name: batch[name] for name in names})

    ids = batch["input_ids"][0]
    labels = batch["labels"][0]
    places = []
    for place in (ids == tokenizer.mask_token_id).nonzero()[:, 0].tolist():
        if tokenizer.convert_ids_to_tokens(int(labels[place])).isalnum():
            places.append(place)
    place = places[len(places) // 2]
    probabilities = output.prediction_logits[0, place].softmax(-1)
    truth = int(labels[place])
    mask = facts["masks"][0]
    assert mask["truth"] == tokenizer.convert_ids_to_tokens(truth)
    assert mask["probability"] == pytest.approx(probabilities[truth].item(), rel=1e-3)
    assert mask["rank"] == int((probabilities > probabilities[truth]).sum()) + 1
    pieces = tokenizer.convert_ids_to_tokens(probabilities.topk(5).indices.tolist())
    assert [piece for piece, _ in mask["guesses"]] == pieces
    assert f"{mask['before']} [MASK] {mask['after']}".strip() in tokenizer.decode(ids)
    # A chunk of one sentence has no order, and is not shown.
    first, *others = batch["next_sentence_label"].tolist()
    batch["next_sentence_label"][1] = -100
    without_second = predict_held_out(trainer.model, tokenizer, batch)["verdicts"]
    assert [verdict["truth"] for verdict in without_second] == [
        label == 0 for label in [first, *others[1:8]]
    ]
    verdict = facts["verdicts"][0]
    text = f"[CLS] {verdict['first']} [SEP] {verdict['second']} [SEP]"
    assert tokenizer.decode(torch.where(labels == -100, ids, labels)).startswith(text)
    assert verdict["truth"] is (int(batch["next_sentence_label"][0]) == 0)
    is_next = output.seq_relationship_logits[0].softmax(-1)[0].item()
    assert verdict["is_next"] == pytest.approx(is_next, rel=1e-3)


def test_a_word_is_shown_rather_than_punctuation(trained):
    trainer, data = trained
    tokenizer = data.tokenizer
    batch = trainer.eval_collator([trainer.eval_dataset[(0, 0)]])
    word = next(piece for piece in tokenizer.get_vocab() if piece.isalnum())
    pieces = [word, "[UNK]", "[UNK]"]
    batch["labels"][:] = -100
    batch["labels"][0, 2:5] = torch.tensor(tokenizer.convert_tokens_to_ids(pieces))
    batch["input_ids"][0, 2:5] = tokenizer.mask_token_id
    assert predict_held_out(trainer.model, tokenizer, batch)["masks"][0]["truth"] == word
    batch["labels"][0, 2] = -100
    truth = predict_held_out(trainer.model, tokenizer, batch)["masks"][0]["truth"]
    assert truth == "[UNK]"


def test_outputs_that_are_not_finite_give_no_examples(trained, monkeypatch):
    trainer, data = trained
    batch = trainer.eval_collator([trainer.eval_dataset[(0, index)] for index in range(4)])
    weight = trainer.model.bert.embeddings.word_embeddings.weight
    monkeypatch.setattr(weight, "data", torch.full_like(weight, float("nan")))
    facts = predict_held_out(trainer.model, data.tokenizer, batch)
    assert facts == {"masks": [], "verdicts": [], "is_finite": False}
