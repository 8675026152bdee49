"""Fine-tuning, always the same run: the split of the batch, processes and interruptions change
nothing.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning_run import TASKS, finetuning_run
from safetensors.torch import load_file
from sklearn.utils.class_weight import compute_class_weight
from transformers import Trainer, TrainingArguments

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
    settings = {"output_dir": str(folder), "kinds": KINDS, "per_device_train_batch_size": 4}
    settings["per_device_eval_batch_size"] = 5
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
    ]
    script = Path(__file__).with_name("finetuning_run.py")
    done = subprocess.run(
        [*command, str(script), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def assert_same_gradients(left, right, tolerance=1e-6):
    """Of the first two steps: the first update has rate 0, so that both gradients come from equal
    weights.
    """
    assert len(left) == len(right) == 3
    for step, (a, b) in enumerate(zip(left[:2], right[:2], strict=True)):
        assert a.keys() == b.keys()
        norm = torch.stack([g.norm() for g in a.values()]).norm()
        assert norm > 0
        difference = torch.stack([(a[name] - b[name]).norm() for name in a]).norm()
        assert difference / norm < tolerance, f"step {step}: {difference / norm}"


def assert_same_predictions(left, right):
    assert [(idx, value) for idx, value, _ in left] == [(idx, value) for idx, value, _ in right]
    for (_, _, shares), (_, _, others) in zip(left, right, strict=True):
        assert shares == pytest.approx(others, abs=1e-5)


def assert_same_figures(left, right):
    names = left.keys() - {"eval_seconds"}
    assert len(names) >= 2
    for name in names:
        assert left[name] == pytest.approx(right[name], rel=1e-6), name


def losses(history):
    return [line["loss"] for line in history if "loss" in line]


@pytest.mark.parametrize("micro_batch", [8, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_one_loss_and_one_gradient_however_the_batch_is_accumulated(
    kind, micro_batch, whole_batch, tmp_path
):
    run = finetuning_run(kind, output_dir=str(tmp_path), per_device_train_batch_size=micro_batch)
    assert run["trainer"].args.gradient_accumulation_steps == 16 // micro_batch
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
    runs = [
        finetuning_run(
            kind,
            output_dir=str(tmp_path / str(size)),
            per_device_train_batch_size=size,
            class_weights="auto",
        )
        for size in (16, 4)
    ]
    assert_same_gradients(runs[0]["gradients"], runs[1]["gradients"])
    trainer = runs[0]["trainer"]
    trainer.model.eval()
    classes = np.concatenate(
        [np.ravel(feature["labels"]) for feature in trainer.train_dataset.features]
    )
    present, classes = np.unique(classes[classes != -100]), classes[classes != -100]
    balanced = compute_class_weight("balanced", classes=present, y=classes) * len(present)
    weights = torch.zeros(trainer.model.config.num_labels, dtype=torch.float64)
    weights[torch.from_numpy(present)] = torch.from_numpy(balanced)
    batch = trainer.kind.collate([trainer.train_dataset[number] for number in range(6)])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    logits = trainer.model(**inputs).logits.flatten(0, -2).double()
    wanted = torch.nn.CrossEntropyLoss(weight=weights)(logits, batch["labels"].flatten())
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(
        wanted.item(), rel=1e-6
    )
    plain = torch.nn.CrossEntropyLoss()(logits, batch["labels"].flatten())
    assert abs(plain.item() - wanted.item()) > 1e-4
    assert (
        runs[0]["metrics"]["eval_loss"]
        == finetuning_run(kind, output_dir=str(tmp_path / "x"))["metrics"]["eval_loss"]
    )


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
    gradients = [{} for _ in range(3)]
    for key, gradient in load_file(two_processes / kind / "gradients.safetensors").items():
        step, name = key.split("/", 1)
        gradients[int(step)][name] = gradient
    assert_same_gradients(gradients, whole_batch[kind]["gradients"])
    history, metrics, predictions = json.loads((two_processes / kind / "logs.json").read_text())
    assert losses(history) == pytest.approx(losses(whole_batch[kind]["history"]), rel=1e-6)
    assert_same_figures(metrics, whole_batch[kind]["metrics"])
    assert_same_predictions(predictions, json.loads(json.dumps(whole_batch[kind]["predictions"])))


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
    common = {
        "dropout": 0.1,
        "per_device_train_batch_size": 8,
        "max_grad_norm": 1.0,
        "max_steps": 7,
    }
    common |= {"eval_strategy": "steps", "eval_steps": 3}
    straight = finetuning_run(kind, output_dir=str(tmp_path / "a"), **common)
    finetuning_run(
        kind,
        output_dir=str(tmp_path / "b"),
        **(common | {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2}),
    )
    checkpoint = tmp_path / "b" / "checkpoint-4"
    resumed = finetuning_run(
        kind, output_dir=str(tmp_path / "c"), resume_from=str(checkpoint), **common
    )
    assert len(resumed["gradients"]) == 3
    assert losses(resumed["history"]) == losses(straight["history"])
    for name, weights in straight["weights"].items():
        assert torch.equal(weights, resumed["weights"][name]), name
        assert not torch.equal(weights, straight["first_weights"][name]) or ".key.bias" in name, (
            name
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_encoder_keeps_its_weights_and_has_no_dropout(kind, tmp_path):
    settings = {"freeze_encoder": True, "dropout": 0.5, "learning_rate": 0.1}
    run = finetuning_run(kind, output_dir=str(tmp_path), **settings)
    changed = {
        name for name, p in run["weights"].items() if not torch.equal(p, run["first_weights"][name])
    }
    assert changed == {name for name in run["weights"] if not name.startswith("bert.")}
    trainer = run["trainer"]
    batch = trainer.kind.collate([trainer.train_dataset[number] for number in range(4)])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    flat = {key: value.view(-1, value.shape[-1]) for key, value in inputs.items()}
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch)
    states = [trainer.model.base_model(**flat).last_hidden_state for _ in range(2)]
    assert torch.equal(*states)


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


@pytest.mark.parametrize("kind", KINDS)
def test_stock_heads_multiply_the_loss_by_the_micro_batches(kind, whole_batch, tmp_path):
    """huggingface/transformers#47688; the question-answering head alone divides as it is asked
    to.
    """

    def stock_loss(micro_batch, accumulation):
        ours = finetuning_run(kind, output_dir=str(tmp_path), train=False)["trainer"]
        args = TrainingArguments(
            output_dir=str(tmp_path),
            use_cpu=True,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            train_sampling_strategy="sequential",
        )
        dataset = ours.train_dataset
        rows = [dataset[number % len(dataset)] for number in range(16)]
        trainer = Trainer(ours.model, args, ours.kind.collate, train_dataset=rows)
        trainer.train()
        return trainer.state.log_history[0]["loss"]

    factor = 1 if kind == "question_answering" else 4
    assert stock_loss(4, 4) / stock_loss(16, 1) == pytest.approx(factor, rel=0.1)
