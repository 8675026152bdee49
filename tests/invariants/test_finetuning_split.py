"""Fine-tuning, always the same run: the split of the batch, processes and interruptions change
nothing.
"""

import json
import math

import numpy as np
import pytest
import torch
from finetuning_run import TASKS, finetuning_run
from sklearn.utils.class_weight import compute_class_weight
from two_processes import assert_same_gradients, load_gradients, run_two

from bert_recipes.errors import InputError
from bert_recipes.finetuning.kind import NOT_FINITE


KINDS = tuple(TASKS)


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return {kind: finetuning_run(kind, output_dir=str(folder / kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    batches = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 5}
    run_two("finetuning_run.py", {"output_dir": str(folder), "kinds": KINDS, **batches})
    return folder


def assert_same_predictions(predictions, expected):
    for (index, value, probabilities), (*row, theirs) in zip(predictions, expected, strict=True):
        assert [index, value] == row
        assert probabilities == pytest.approx(theirs, abs=1e-5)


def assert_same_figures(metrics, expected):
    names = metrics.keys() - {"eval_seconds"}
    assert len(names) >= 2
    for name in names:
        assert metrics[name] == pytest.approx(expected[name], rel=1e-6), name


def losses(history):
    return [line["loss"] for line in history if "loss" in line]


@pytest.mark.parametrize("kind", KINDS)
def test_one_loss_and_one_gradient_however_the_batch_is_accumulated(kind, whole_batch, tmp_path):
    run = finetuning_run(kind, output_dir=str(tmp_path), per_device_train_batch_size=4)
    assert run["trainer"].args.gradient_accumulation_steps == 4
    assert_same_gradients(run["gradients"], whole_batch[kind]["gradients"])
    assert losses(run["history"]) == pytest.approx(losses(whole_batch[kind]["history"]), rel=1e-6)
    assert len(losses(run["history"])) == 3


@pytest.mark.parametrize("kind", ["sequence_classification", "token_classification"])
def test_class_weights_are_those_of_torch_and_scikit_learn_however_the_batch_is_accumulated(
    kind, tmp_path
):
    """The mean of `torch.nn.CrossEntropyLoss(weight=...)`, which divides by the sum of the
    weights.
    """
    settings = {"output_dir": str(tmp_path), "class_weights": "auto"}
    result = finetuning_run(kind, **settings)
    split_result = finetuning_run(kind, **settings, per_device_train_batch_size=4)
    assert_same_gradients(split_result["gradients"], result["gradients"])
    plain = finetuning_run(kind, output_dir=str(tmp_path), train=False)
    assert result["metrics"]["eval_loss"] == plain["metrics"]["eval_loss"]

    trainer = result["trainer"]
    trainer.model.eval()
    labels = np.concatenate([np.ravel(row["labels"]) for row in trainer.train_dataset.features])
    labels = labels[labels != -100]
    classes = np.unique(labels)
    weights = torch.zeros(trainer.model.config.num_labels, dtype=torch.float64)
    balanced = compute_class_weight("balanced", classes=classes, y=labels) * len(classes)
    weights[classes] = torch.from_numpy(balanced)
    batch, logits = logits_of(trainer, 6)
    expected = torch.nn.CrossEntropyLoss(weight=weights)(logits, batch["labels"].flatten())
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    plain_loss = torch.nn.CrossEntropyLoss()(logits, batch["labels"].flatten())
    assert abs(plain_loss.item() - expected.item()) > 1e-4


def logits_of(trainer, number):
    """A batch of the first rows, and their logits (rows or tokens, labels)."""
    batch = trainer.kind.collate([trainer.train_dataset[index] for index in range(number)])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    return batch, trainer.model(**inputs).logits.flatten(0, -2).double()


@pytest.mark.parametrize(
    ("kind", "weights", "words"),
    [
        (
            "sequence_classification",
            {"maybe": 2},
            "'maybe': 2; allowed: not_equivalent, equivalent, each with 0 or more",
        ),
        ("token_classification", {"O": -1}, "'O': -1; allowed: O, B-PER"),
        ("multiple_choice", "auto", "task swag has no single class to choose"),
        ("question_answering", "auto", "task squad has no single class to choose"),
        (
            "sequence_classification",
            "balanced",
            "class_weights is 'balanced'; allowed: auto, or a mapping",
        ),
    ],
)
def test_class_weights_that_fit_no_class_are_refused(kind, weights, words, tmp_path):
    with pytest.raises(InputError, match=words):
        finetuning_run(kind, output_dir=str(tmp_path), class_weights=weights)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_have_the_same_loss_gradient_and_predictions(
    kind, whole_batch, two_processes
):
    """A batch of 5 over 27 examples leaves the processes different numbers of batches."""
    expected, folder = whole_batch[kind], two_processes / kind
    gradients = load_gradients(folder / "gradients.safetensors")
    assert_same_gradients(gradients, expected["gradients"])
    history, metrics, predictions = json.loads((folder / "logs.json").read_text())
    assert losses(history) == pytest.approx(losses(expected["history"]), rel=1e-6)
    assert_same_figures(metrics, expected["metrics"])
    assert_same_predictions(predictions, json.loads(json.dumps(expected["predictions"])))


@pytest.mark.slow
def test_two_processes_have_the_same_loss_and_gradient_with_class_weights(tmp_path):
    kinds = ("sequence_classification", "token_classification")
    settings = {"class_weights": "auto"}
    batch = {"per_device_train_batch_size": 4}
    folder = tmp_path / "two"
    run_two("finetuning_run.py", {"output_dir": str(folder), "kinds": kinds, **settings, **batch})
    for kind in kinds:
        expected = finetuning_run(kind, output_dir=str(tmp_path / kind), **settings)
        gradients = load_gradients(folder / kind / "gradients.safetensors")
        assert_same_gradients(gradients, expected["gradients"])
        history, *_ = json.loads((folder / kind / "logs.json").read_text())
        assert losses(history) == pytest.approx(losses(expected["history"]), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_evaluation_batches_changes_no_prediction_and_no_figure(
    kind, whole_batch, tmp_path
):
    run = finetuning_run(kind, output_dir=str(tmp_path), per_device_eval_batch_size=1, train=False)
    assert_same_figures(run["metrics"], whole_batch[kind]["metrics"])
    assert_same_predictions(run["predictions"], whole_batch[kind]["predictions"])


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_equals_uninterrupted_bit_for_bit(kind, tmp_path):
    """Across the end of an epoch, with dropout, accumulation and evaluation in between."""
    settings = {
        "dropout": 0.1,
        "per_device_train_batch_size": 8,
        "max_grad_norm": 1.0,
        "max_steps": 7,
        "eval_strategy": "steps",
        "eval_steps": 3,
    }
    saving = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2}
    straight = finetuning_run(kind, output_dir=str(tmp_path / "a"), **settings)
    finetuning_run(kind, output_dir=str(tmp_path / "b"), **settings | saving)
    settings["resume_from"] = str(tmp_path / "b" / "checkpoint-4")
    resumed = finetuning_run(kind, output_dir=str(tmp_path / "c"), **settings)
    assert len(resumed["gradients"]) == 3
    assert losses(resumed["history"]) == losses(straight["history"])
    torch.testing.assert_close(resumed["weights"], straight["weights"], rtol=0, atol=0)
    for name, weights in straight["weights"].items():
        has_learned = not torch.equal(weights, straight["first_weights"][name])
        assert has_learned or ".key.bias" in name, name


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "greedy"])
def test_a_schedule_by_a_metric_goes_on_where_it_was(schedule, tmp_path):
    """No loss is lower by so much as this threshold: from the third evaluation on every second one
    halves the rate. The checkpoint falls between two of them.
    """
    kwargs = {"patience": 1, "factor": 0.5, "threshold": 100.0, "threshold_mode": "abs"}
    settings = {
        "schedule": "trainer",
        "lr_scheduler_type": schedule,
        "lr_scheduler_kwargs": {**kwargs, "min_lr": 0.0},
        "max_steps": 8,
        "eval_strategy": "steps",
        "eval_steps": 1,
    }
    saving = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2}
    kind = "sequence_classification"
    straight = finetuning_run(kind, output_dir=str(tmp_path / "a"), **settings | saving)
    settings["resume_from"] = str(tmp_path / "a" / "checkpoint-4")
    resumed = finetuning_run(kind, output_dir=str(tmp_path / "b"), **settings)
    expected = [1e-3, 1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4, 1.25e-4]
    for run in (straight, resumed):
        rates = [line["learning_rate"] for line in run["history"] if "learning_rate" in line]
        assert rates == pytest.approx(expected)
    torch.testing.assert_close(resumed["weights"], straight["weights"], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_encoder_keeps_its_weights_and_has_no_dropout(kind, tmp_path):
    settings = {"freeze_encoder": True, "dropout": 0.5, "learning_rate": 0.1}
    run = finetuning_run(kind, output_dir=str(tmp_path), **settings)
    for name, weights in run["weights"].items():
        is_frozen = name.startswith("bert.")
        assert torch.equal(weights, run["first_weights"][name]) == is_frozen, name
    trainer = run["trainer"]
    batch = trainer.kind.collate([trainer.train_dataset[number] for number in range(4)])
    trainer.compute_loss(trainer.model.train(), batch)
    ids = batch["input_ids"].flatten(0, -2)
    states = trainer.model.base_model(ids).last_hidden_state
    assert torch.equal(trainer.model.base_model(ids).last_hidden_state, states)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_has_diverged_has_no_figures_and_predicts_nothing(
    kind, whole_batch, tmp_path, caplog
):
    trainer = finetuning_run(kind, output_dir=str(tmp_path), train=False)["trainer"]
    with torch.no_grad():
        next(trainer.model.base_model.parameters()).fill_(float("nan"))
    metrics = trainer.evaluate()
    usual = {name for name in whole_batch[kind]["metrics"] if not name.endswith("number")}
    assert metrics.keys() >= usual - {"eval_seconds"}
    assert all(math.isnan(value) for name, value in metrics.items() if name != "eval_seconds")
    assert [record.message for record in caplog.records if "not finite" in record.message] == [
        f"validation: {NOT_FINITE}; metrics are undefined, nothing is predicted"
    ]
    assert not trainer.predictions
    with pytest.raises(InputError, match="made up: the model's outputs are not finite"):
        trainer.predict_split(trainer.eval_splits[""])
