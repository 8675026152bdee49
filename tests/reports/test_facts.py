"""What report.json says of predictions, training data and held-out sentences is what the run did
and what its model says.
"""

import json
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from bert_recipes.data.order import EpochShuffle
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import read_task_file
from bert_recipes.finetuning.kind import Prediction
from bert_recipes.finetuning.question_answering import AnswerPrediction
from bert_recipes.reports import facts as facts_module
from bert_recipes.reports.facts import (
    calibration,
    count_pairs,
    count_phase,
    describe_run,
    fingerprint_held_out,
    gather_pretraining,
    look_at_pairs,
    pieces_as_words,
    split_facts,
)
from bert_recipes.reports.finish import report_run
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


# Fine-tuning


def facts_of(task, examples, predictions):
    facts = split_facts(task, "", "validation", examples, {"validation": predictions})
    json.dumps(facts, allow_nan=False)
    assert facts["examples"] == facts["looked_at"] == len(examples)
    return facts


def texts_task(**values):
    return Task(
        name="t",
        kind="sequence_classification",
        text_columns=("a", "b"),
        label_column="label",
        **values,
    )


def questions_task(metric):
    columns = {"text_columns": ("q", "c"), "label_column": "answers"}
    return Task(name="t", kind="question_answering", metrics=(metric,), **columns)


def of_class(task, number, share):
    """A prediction of class `number`."""
    others = (1 - share) / (len(task.labels) - 1)
    shares = {name: share if place == number else others for place, name in enumerate(task.labels)}
    return Prediction(idx=0, value=task.labels[number], probabilities=shares)


def test_classes():
    task = texts_task(labels=("x", "y", "z"))
    rng = np.random.default_rng(0)
    gold, said, shares = (
        rng.integers(0, 3, 200),
        rng.integers(0, 3, 200),
        0.4 + 0.6 * rng.random(200),
    )
    examples = [
        TextExample(idx=row, text=f"text {row}", text_pair="q" * 900, label=int(gold[row]))
        for row in range(200)
    ]
    facts = facts_of(task, examples, [of_class(task, said[row], shares[row]) for row in range(200)])
    matrix = np.zeros((3, 3), int)
    np.add.at(matrix, (gold, said), 1)
    assert facts["confusion"] == matrix.tolist()
    assert [score["support"] for score in facts["classes"]] == matrix.sum(axis=1).tolist()
    expected = calibration(shares, gold == said)["expected_calibration_error"]
    assert facts["calibration"]["expected_calibration_error"] == pytest.approx(expected)
    wrong = sorted(
        (row for row in range(200) if gold[row] != said[row]), key=lambda row: -shares[row]
    )[:12]
    assert [error["texts"][0] for error in facts["worst"]] == [
        ["a", f"text {row}"] for row in wrong
    ]
    assert [error["probability"] for error in facts["worst"]] == pytest.approx(
        shares[wrong].tolist()
    )
    assert [(e["said"], e["truth"]) for e in facts["worst"]] == [
        ("xyz"[said[row]], "xyz"[gold[row]]) for row in wrong
    ]
    assert all(len(error["texts"][1][1]) < 520 for error in facts["worst"])


def test_a_model_without_errors_has_none_and_outputs_that_are_not_finite_are_said_to_be():
    task, examples = texts_task(labels=("x", "y")), [TextExample(idx=0, text="a", label=1)]
    facts = facts_of(task, examples, [of_class(task, 1, 0.9)])
    assert (facts["worst"], facts["confusion"]) == ([], [[0, 0], [0, 1]])
    assert split_facts(task, "", "v", examples, {})["looked_at"] == 0


def test_of_many_classes_the_most_frequent_mistakes_are_listed():
    names = tuple(f"c{number}" for number in range(60))
    task = texts_task(labels=names)
    gold = [0] * 5 + [1] * 3 + [2] * 9
    said = [7] * 5 + [8] * 3 + [2] * 9
    examples = [TextExample(idx=0, text="t", label=number) for number in gold]
    facts = facts_of(task, examples, [of_class(task, number, 0.5) for number in said])
    assert "confusion" not in facts
    assert facts["mistakes"] == [["c0", "c7", 5], ["c1", "c8", 3]]
    assert len(facts["classes"]) == 60
    score = facts["classes"][1]
    assert (score["recall"], score["support"], score["predicted"]) == (0.0, 3, 0)
    assert (facts["classes"][2]["f1"], facts["classes"][7]["predicted"]) == (1.0, 5)


def test_several_labels():
    task = texts_task(
        labels=("x", "y"), problem_type="multi_label_classification", metrics=("multi_label",)
    )
    shares = [{"x": 0.9, "y": 0.2}, {"x": 0.1, "y": 0.6}, {"x": 0.99, "y": 0.4}]
    gold = [(0,), (0, 1), ()]
    examples = [TextExample(idx=n, text=f"t{n}", label=labels) for n, labels in enumerate(gold)]
    facts = facts_of(
        task, examples, [Prediction(idx=0, value=[], probabilities=each) for each in shares]
    )
    assert [(s["support"], s["predicted"]) for s in facts["classes"]] == [(2, 2), (1, 1)]
    assert [s["f1"] for s in facts["classes"]] == [0.5, 1.0]
    assert sum(each["count"] for each in facts["calibration"]["bins"]) == 6
    first, second = facts["worst"]
    assert (first["texts"], first["said"], first["truth"], first["about"]) == (
        [["", "t2"]],
        "x",
        "none",
        "x",
    )
    assert (second["said"], second["truth"], second["about"], second["probability"]) == (
        "y",
        "x, y",
        "x",
        0.1,
    )


def test_numbers():
    task = texts_task(problem_type="regression", metrics=("pearson",), label_range=(0.0, 5.0))
    examples = [TextExample(idx=n, text=f"t{n}", label=float(n)) for n in range(5)]
    facts = facts_of(
        task, examples, [Prediction(idx=0, value=value) for value in (0.5, 1.0, 2.0, 0.0, 4.0)]
    )
    assert facts["mean_absolute_error"] == pytest.approx(0.7)
    assert facts["root_mean_squared_error"] == pytest.approx(np.sqrt((0.25 + 9) / 5))
    assert facts["error_of_the_mean"] == pytest.approx(1.2)
    assert facts["worst"][0] == {"texts": [["", "t3"]], "said": "0.000", "truth": "3.000"}
    assert facts["dots"][0] == [0, 1, 2, 3, 4]


def test_tags():
    columns = {"text_columns": ("tokens",), "label_column": "labels", "labels": ("O", "B-X", "I-X")}
    task = Task(name="t", kind="token_classification", metrics=("entities",), **columns)
    long = tuple(f"w{n}" for n in range(60))
    examples = [
        TaggedExample(idx=0, tokens=("a", "b", "c"), labels=(1, 2, 0)),
        TaggedExample(idx=1, tokens=long, labels=(0,) * 60),
    ]
    predictions = [
        Prediction(idx=0, value=["B-X", "O", "B-X"], probabilities=[0.9, 0.8, 0.95]),
        Prediction(idx=1, value=["O"] * 30 + ["B-X"] + ["O"] * 29, probabilities=[0.99] * 60),
    ]
    facts = facts_of(task, examples, predictions)
    assert facts["words"] == 63
    assert np.array(facts["confusion"]).sum() == 63
    assert facts["confusion"] == [[59, 2, 0], [0, 1, 0], [1, 0, 0]]
    every = facts["entities"][-1]
    assert (every["type"], every["support"], every["predicted"], every["f1"]) == ("all", 1, 3, 0.0)
    first, second = facts["worst"]  # one of each sentence, the most confident first
    assert (first["word"], first["said"], first["truth"]) == ("w30", "B-X", "O")
    assert first["before"].startswith("... w16 ")
    assert first["after"].endswith(" w44 ...")
    assert (second["word"], second["before"], second["probability"]) == ("c", "a b", 0.95)


def question(number, answers, context="The tower was built in 1889 by Eiffel."):
    gold = tuple(Answer(text=text, answer_start=context.index(text)) for text in answers)
    return QuestionExample(idx=f"q{number}", question="When?", context=context, answers=gold)


def test_answers():
    examples = [
        question(0, ["1889"]),
        question(1, ["1889"]),
        question(2, []),
        question(3, ["built in 1889"]),
    ]
    said = [("1889", 0.9), ("Eiffel", 0.8), ("tower", 0.95), ("in 1889", 0.4)]
    predictions = [
        AnswerPrediction(idx=f"q{n}", value=text, probabilities=p)
        for n, (text, p) in enumerate(said)
    ]
    facts = facts_of(questions_task("squad_v2"), examples, predictions)
    assert facts["confusion"] == [[3, 0], [1, 0]]  # "no answer" was never said
    assert facts["f1_counts"] == [2, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert [error["said"] for error in facts["worst"]] == ["tower", "Eiffel"]
    assert facts["worst"][0]["truth"] == "no answer"
    assert facts["worst"][1]["before"] == "The tower was built in "
    assert facts["worst"][1]["answer"] == "1889"
    assert "confusion" not in facts_of(questions_task("squad"), examples[:2], predictions[:2])


def test_a_paragraph_without_spaces_is_cut_where_it_falls():
    context = "\u5854" * 600
    answer = Answer(text=context[:3], answer_start=300)
    example = QuestionExample(idx="q", question="?", context=context, answers=(answer,))
    prediction = AnswerPrediction(idx="q", value="no", probabilities=0.5)
    (error,) = facts_of(questions_task("squad"), [example], [prediction])["worst"]
    assert error["before"] == "... " + context[:220]
    assert error["after"] == context[:220] + " ..."


def test_choices():
    task = Task(
        name="t",
        kind="multiple_choice",
        text_columns=("c",),
        choice_columns=("a", "b"),
        label_column="label",
    )
    examples = [
        ChoiceExample(idx=n, context=f"c{n}", choices=("yes", "no"), label=n % 2) for n in range(3)
    ]
    predictions = [
        Prediction(idx=n, value=0, probabilities=[0.7 + n / 10, 0.3 - n / 10]) for n in range(3)
    ]
    facts = facts_of(task, examples, predictions)
    assert facts["confusion"] == [[2, 0], [1, 0]]
    (error,) = facts["worst"]
    assert (error["said"], error["truth"], error["probability"]) == (
        "yes",
        "no",
        pytest.approx(0.8),
    )


def test_a_split_that_is_too_large_is_looked_at_in_part(monkeypatch):
    monkeypatch.setattr(facts_module, "MOST_EXAMPLES", 10)
    task = texts_task(labels=("x", "y"))
    examples = [TextExample(idx=n, text=f"t{n}", label=n % 2) for n in range(1000)]
    found = split_facts(task, "", "v", examples, {"v": [of_class(task, 0, 0.9)] * 1000})
    assert (found["examples"], found["looked_at"]) == (1000, 10)
    assert np.array(found["confusion"]).sum() == 10


# Runs


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        (
            "sequence_classification",
            ("By class", "Confusion matrix", "Calibration", "Worst errors"),
        ),
        ("token_classification", ("By class", "Confusion matrix", "Calibration", "Worst errors")),
        ("question_answering", ("F1 of the answers", "Calibration")),
        ("multiple_choice", ("By class", "Confusion matrix", "Calibration", "Worst errors")),
    ],
)
def test_a_run_of_every_kind_has_its_report(tiny_runs, kind, sections):
    folder = tiny_runs(kind)
    facts = json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)
    (split,) = facts["splits"]
    num_rows = len((folder / "predictions_validation.jsonl").read_text().splitlines())
    assert split["looked_at"] == split["examples"] == num_rows
    assert facts["task"] == read_task_file(folder / "task.yaml").name
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for title in sections:
        assert f"<h2>{title}" in page
        assert f"\n## {title}" in text
    assert 'aria-label="Reliability: expected calibration error' in page
    assert "Guo et al. 2017" in text


# Scores and calibration


def test_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(60):
        classes, rows = int(rng.integers(1, 6)), int(rng.integers(1, 40))
        gold, predicted = (
            rng.integers(0, classes, rows).tolist(),
            rng.integers(0, classes, rows).tolist(),
        )
        names = list(range(classes))
        facts = facts_module.class_facts([str(name) for name in names], gold, predicted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where one class only is there
            assert (
                facts["confusion"]
                == metrics.confusion_matrix(gold, predicted, labels=names).tolist()
            )
        expected = metrics.precision_recall_fscore_support(
            gold, predicted, labels=names, zero_division=0
        )
        found = [
            [score[name] for name in ("precision", "recall", "f1", "support")]
            for score in facts["classes"]
        ]
        assert np.allclose(np.array(found).T, expected)
        counts = np.bincount(predicted, minlength=classes).tolist()
        assert [score["predicted"] for score in facts["classes"]] == counts


def by_hand(probabilities, outcomes, num_bins):
    """The definition, bin by bin."""
    error = 0.0
    for number in range(num_bins):
        low, high = number / num_bins, (number + 1) / num_bins
        inside = [low < p <= high or (number == 0 and p == 0) for p in probabilities]
        if any(inside):
            accuracy = np.mean([o for o, i in zip(outcomes, inside, strict=True) if i])
            confidence = np.mean([p for p, i in zip(probabilities, inside, strict=True) if i])
            error += sum(inside) / len(outcomes) * abs(accuracy - confidence)
    return error


def test_the_calibration_error_is_that_of_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rows, num_bins = (
            int(rng.integers(1, 200)),
            int(rng.choice([4, 8, 16])),
        )  # edges without rounding
        probabilities = rng.random(rows) if rng.random() < 0.5 else rng.integers(0, 17, rows) / 16
        outcomes = rng.random(rows) < probabilities
        found = calibration(probabilities, outcomes, num_bins)
        assert sum(each["count"] for each in found["bins"]) == rows
        assert found["expected_calibration_error"] == pytest.approx(
            by_hand(probabilities, outcomes, num_bins)
        )
    bins = calibration([0.0, 1.0, 1.0 + 1e-9], [False, True, True], 10)["bins"]
    assert (bins[0]["count"], bins[-1]["count"]) == (1, 2)


# Pre-training


def train(store, folder, second, **settings):
    """A run of two phases, as recipes/pretrain.py makes it."""
    own = {
        "warmup_steps": 2,
        "logging_steps": 5,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
        "seed": 3,
    }
    own |= {"precision": "fp32", "use_cpu": True, "disable_tqdm": True, "output_dir": str(folder)}
    args = PreTrainingArguments(**own, **settings)
    data_args = DataArguments(store=str(store), max_seq_length=32, max_eval_pairs=12)
    phases = plan_phases(args, data_args, PhaseArguments(phase2_max_seq_length=48, **second))
    data = load_phases(data_args, phases, args.seed)
    model = load_model(ModelArguments(size="tiny"), data.tokenizer, 48, args.seed)
    trainer = make_trainer(model, args, data, data_args.max_eval_pairs)
    trainer.train()
    return trainer, data


@pytest.fixture(scope="module")
def trained(small_store, tmp_path_factory):
    """Over more than an epoch."""
    folder = tmp_path_factory.mktemp("run")
    return train(small_store, folder, {"phase2_steps": 10}, max_steps=40, global_train_batch_size=8)


def test_the_counts_are_those_of_the_pairs_that_were_trained_on(trained, monkeypatch):
    monkeypatch.setattr(facts_module, "SAMPLED_PAIRS", 10_000)
    trainer, _ = trained
    for part, steps in zip(trainer.phases, (30, 10), strict=True):
        counted = count_phase(trainer, part)
        samples = steps * 8
        assert counted["trained_pairs"] == samples
        keys = EpochShuffle(part.train_dataset, samples, 3).keys(0, samples)
        # The sample is taken of the last pass over the data alone; all of it where that is the
        # whole run.
        keys = keys[samples - counted["pairs"] :]
        assert counted["sampled_from"] == counted["pairs"]
        pairs = [part.train_dataset[key] for key in keys]
        assert counted["tokens"] == sum(len(pair["input_ids"]) for pair in pairs)
        assert counted["random_next"] == sum(pair["next_sentence_label"] for pair in pairs)
        assert counted["next"] + counted["random_next"] == counted["pairs"] == len(pairs)
        batches = [pairs[start : start + 4] for start in range(0, len(pairs), 4)]
        assert counted["positions"] == sum(
            len(b) * max(len(pair["input_ids"]) for pair in b) for b in batches
        )
        assert sum(counted["length_counts"]) == len(pairs)
        assert counted["length_edges"][-1] >= counted["max_seq_length"]


def test_the_held_out_inputs_are_known_by_what_they_are_and_not_by_how_many_were_asked_for(
    trained, monkeypatch
):
    trainer, _ = trained
    measured_on = fingerprint_held_out(trainer)
    pairs = trainer.eval_dataset.num_pairs(0)
    hashes = []
    for number in (12, 6, pairs, pairs + 1000):
        monkeypatch.setattr(trainer, "max_eval_pairs", number)
        hashes.append(fingerprint_held_out(trainer))
    assert hashes[0] == measured_on
    assert len(set(hashes)) == 3
    assert hashes[2] == hashes[3]
    monkeypatch.setattr(
        trainer, "eval_collator", replace(trainer.eval_collator, mlm_probability=0.3)
    )
    assert fingerprint_held_out(trainer) not in hashes


@pytest.mark.parametrize(
    ("second", "micro", "accumulation"),
    [
        ({"phase2_per_device_train_batch_size": 2}, 2, 4),
        ({"phase2_global_train_batch_size": 2}, 2, 1),
    ],
)
def test_phases_have_batches_of_their_own_without_a_global_batch(
    small_store, tmp_path, second, micro, accumulation
):
    trainer, _ = train(
        small_store,
        tmp_path,
        {"phase2_steps": 1, **second},
        max_steps=3,
        gradient_accumulation_steps=2,
    )
    args = trainer.args
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (
        micro,
        accumulation,
    )
    first, last = (count_phase(trainer, part) for part in trainer.phases)
    assert (first["global_batch"], first["micro_batch"], first["trained_pairs"]) == (8, 4, 16)
    batch = micro * accumulation
    assert (last["global_batch"], last["micro_batch"], last["trained_pairs"]) == (
        batch,
        micro,
        batch,
    )
    assert trainer.resume_fingerprint["global batch"] == f"8, then {batch}"
    trainer.is_deepspeed_enabled = True
    with pytest.raises(
        InputError, match="give --global_train_batch_size 8, --per_device_train_batch_size"
    ):
        trainer._check_batches()


def test_a_sample_lies_over_the_last_pass_and_is_no_larger_than_wanted(trained, monkeypatch):
    trainer, _ = trained
    monkeypatch.setattr(facts_module, "SAMPLED_PAIRS", 16)
    counted = count_phase(trainer, trainer.phases[0])
    assert (counted["pairs"], counted["sampled_batches"], counted["micro_batch"]) == (16, 4, 4)
    assert counted["steps"] == [0, 30]


def test_lengths_and_masks_are_counted_as_the_batch_has_them():
    batch = {
        "input_ids": torch.tensor([[2, 4, 9, 3, 0], [2, 7, 8, 6, 3]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        "labels": torch.tensor([[-100, 5, 9, -100, -100], [-100, 6, -100, -100, -100]]),
        "next_sentence_label": torch.tensor([1, 0]),
    }
    found = count_pairs([batch], 8, mask_id=4)
    # [MASK] for 5; 9 left as it is; 7 in the place of 6.
    assert (found["predicted"], found["masked"], found["kept"]) == (3, 1, 1)
    assert (found["positions"], found["tokens"]) == (10, 9)
    assert (found["next"], found["random_next"]) == (1, 1)
    edges = np.array(found["length_edges"])
    assert found["length_counts"][int(np.searchsorted(edges, 4)) - 1] == 1
    assert found["length_counts"][int(np.searchsorted(edges, 5)) - 1] == 1


def test_guesses_and_verdicts_are_the_models(trained):
    trainer, data = trained
    tokenizer, model = data.tokenizer, trainer.model
    features = [trainer.eval_dataset[(0, index)] for index in range(16)]
    batch = trainer.eval_collator(features)
    found = look_at_pairs(model, tokenizer, batch)
    assert found["pairs"] == 16
    assert len(found["masks"]) == 8
    model.eval()
    with torch.no_grad():
        output = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
        )
    seen = 0
    for row in range(16):
        hidden = (batch["input_ids"][row] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
        if not hidden or seen == len(found["masks"]):
            continue
        mask, place = found["masks"][seen], hidden[len(hidden) // 2]
        seen += 1
        shares = output.prediction_logits[row, place].softmax(-1)
        truth = int(batch["labels"][row, place])
        assert mask["truth"] == tokenizer.convert_ids_to_tokens(truth)
        assert mask["probability"] == pytest.approx(shares[truth].item(), rel=1e-3)
        assert mask["rank"] == int((shares > shares[truth]).sum()) + 1
        pieces = tokenizer.convert_ids_to_tokens(shares.topk(5).indices.tolist())
        assert [piece for piece, _ in mask["guesses"]] == pieces
        around = [mask["before"].removeprefix("... "), mask["after"].removesuffix(" ...")]
        whole = tokenizer.convert_ids_to_tokens(batch["input_ids"][row].tolist())
        first = max(number for number in range(place) if whole[number] in ("[CLS]", "[SEP]")) + 1
        assert pieces_as_words(whole[first:place]).endswith(around[0])
        assert pieces_as_words(whole[place + 1 :]).startswith(around[1])
    assert seen == 8
    shares = output.seq_relationship_logits.softmax(-1)[:, 0].tolist()
    labels = [feature["next_sentence_label"] for feature in features]
    rows = sorted(
        row for wanted in (0, 1) for row in [r for r in range(16) if labels[r] == wanted][:4]
    )
    ids, types = features[rows[0]]["input_ids"], features[rows[0]]["token_type_ids"]
    # Before masking, without [CLS] and [SEP]; of a long first text the end.
    first, second = (
        pieces_as_words(tokenizer.convert_ids_to_tokens(part.tolist()))
        for part in (ids[types == 0][1:-1], ids[types == 1][:-1])
    )
    assert first.endswith(found["verdicts"][0]["first"].removeprefix("... "))
    assert found["verdicts"][0]["second"] == second
    assert [verdict["truth"] for verdict in found["verdicts"]] == [labels[row] == 0 for row in rows]
    assert [verdict["is_next"] for verdict in found["verdicts"]] == pytest.approx(
        [shares[row] for row in rows], rel=1e-3
    )


def test_the_text_around_a_mask_is_that_of_its_own_sentence(trained):
    trainer, data = trained
    tokenizer = data.tokenizer
    ids = [
        tokenizer.cls_token_id,
        *range(10, 50),
        tokenizer.sep_token_id,
        60,
        4,
        61,
        tokenizer.sep_token_id,
    ]
    types, place = [0] * 42 + [1] * 4, 20
    labels = [-100] * len(ids)
    labels[place], ids[place] = 30, tokenizer.mask_token_id
    batch = {
        "input_ids": torch.tensor([ids]),
        "token_type_ids": torch.tensor([types]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.int64),
        "labels": torch.tensor([labels]),
    }
    (mask,) = look_at_pairs(trainer.model, tokenizer, batch)["masks"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert mask["before"] == pieces_as_words(pieces[1:place])
    assert mask["after"] == pieces_as_words(pieces[place + 1 : 41])
    assert pieces_as_words(["play", "##ing", "##s", "on"]) == "playings on"


def test_everything_is_json_and_a_report_follows_from_the_main_process(trained, tmp_path):
    trainer, data = trained
    results = trainer.evaluate()
    (tmp_path / "all_results.json").write_text(json.dumps(results))
    gather = partial(gather_pretraining, trainer, data, describe_run(trainer, data), results)
    names = {path.name for path in report_run(tmp_path, gather, is_main=True)}
    assert names == {"report.md", "report.html", "losses.png", "report.json"}
    facts = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert [phase["steps"] for phase in facts["phases"]] == [[0, 30], [30, 40]]
    assert facts["identity"].keys() == {"store", "tokenizer"}
    assert facts["corpus"]["training"]["documents"] == 40
    assert facts["corpus"]["training"]["inputs in epoch 0"] == data.train.num_pairs(0)
    assert "Phase 2, steps 30 to 40: counted over" in (tmp_path / "report.md").read_text()
    (tmp_path / "other").mkdir()
    assert (
        report_run(tmp_path / "other", gather, is_main=False) == []
    )  # another process takes part and writes nothing
    assert not list((tmp_path / "other").iterdir())
