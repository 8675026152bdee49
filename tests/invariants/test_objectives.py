"""Every objective and every form of its inputs: one loss and one gradient however a batch is cut,
and a resume is the same run.
"""

import math
from typing import Any

import pytest
import torch
from cpu_kernels import need_cpu_kernels
from logged_history import without_times
from small_run import predicted_shares, small_run
from transformers import TrainerCallback
from two_processes import assert_same_gradients

from bert_recipes.training.arguments import DataArguments
from bert_recipes.training.pretraining import load_data


ROWS = {
    "mlm": {},
    "ltr": {},
    "roberta": {},
    "albert": {},
    "electra": {},
    "electra, random words": {"objective": "electra", "training": {"random_replacements": 0.6}},
    "albert of layers of its own": {"objective": "albert", "share_layers": "none"},
    "sentence pairs": {"objective": "bert", "input_format": "sentence_pair"},
    "documents, whole words": {
        "objective": "roberta",
        "input_format": "doc_sentences",
        "whole_word": True,
    },
    "electra's pairs, spans": {"objective": "mlm", "input_format": "electra", "selection": "spans"},
    "static masks": {"objective": "bert", "dupe_factor": 1},
    "fewer masks, NorMuon": {
        "objective": "mlm",
        "mlm_probability": 0.4,
        "mlm_probability_end": 0.1,
        "training": {
            "optimizer": "muon",
            "muon_row_beta": 0.95,
            "muon_weight_decay": 0.05,
            "muon_momentum_warmup": 0.7,
            "warmup_steps": 0.1,
            "flat_until": 0.5,
            "sampled_softmax": True,
        },
    },
}


@pytest.fixture
def run(small_store, tmp_path):
    """Train a row in this process. Args: the row, settings, a folder's name."""

    def run_it(row, name="run", **settings):
        inputs = dict(ROWS.get(row, {}))
        settings = {"per_device_train_batch_size": 16, **inputs.pop("training", {}), **settings}
        return small_run(
            store=str(small_store),
            output_dir=str(tmp_path / name),
            objective=inputs.pop("objective", row),
            inputs=inputs,
            **settings,
        )

    return run_it


SLOW_ROWS = ("ltr", "electra", "albert", "sentence pairs", "documents, whole words")


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.slow if row in SLOW_ROWS else ()) for row in ROWS],
)
def test_one_loss_and_one_gradient_and_an_exact_resume(run, tmp_path, row):
    result = run(row, "whole", save_strategy="steps", save_steps=2)
    split = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    split_result = run(row, "parts", **split, dataloader_num_workers=1)
    assert sorted(map(repr, split_result["rows"])) == sorted(map(repr, result["rows"]))
    assert_same_gradients(split_result["gradients"], result["gradients"], tolerance=2e-6)
    metrics = result["metrics"]
    mlm_loss = split_result["metrics"]["eval_mlm_loss"]
    assert mlm_loss == pytest.approx(metrics["eval_mlm_loss"], rel=1e-4)
    assert ("eval_sop_accuracy" in metrics) == ("albert" in row)
    assert ("eval_nsp_accuracy" in metrics) == (row in ("sentence pairs", "static masks"))
    resumed = run(row, "resumed", resume_from=str(tmp_path / "whole" / "checkpoint-2"))
    torch.testing.assert_close(resumed["weights"], result["weights"], rtol=0, atol=0)


SLOW_MEMBERS = ("mlm", "roberta", "albert", "distilbert")


@pytest.mark.parametrize(
    "row",
    ["electra", *(pytest.param(row, marks=pytest.mark.slow) for row in SLOW_MEMBERS)],
)
def test_a_member_with_dropout_is_resumed_bit_for_bit(run, tmp_path, row):
    """Over several steps: the masks of dropout go on where they were."""
    settings = {"dropout": 0.1, "max_steps": 5, "max_grad_norm": 1.0}
    straight = run(row, "straight", **settings, save_strategy="steps", save_steps=2)
    checkpoint = str(tmp_path / "straight" / "checkpoint-2")
    resumed = run(row, "resumed", **settings, resume_from=checkpoint)
    assert resumed["rows"] == [line for line in straight["rows"] if line[0] >= 2]
    torch.testing.assert_close(resumed["weights"], straight["weights"], rtol=0, atol=0)
    assert without_times(resumed["history"]) == without_times(straight["history"])


def test_random_words_fall_to_none_and_are_in_no_evaluation(run):
    shares = []

    class Shares(TrainerCallback):
        trainer: Any = None

        def on_step_begin(self, *args, **kwargs):
            shares.append(self.trainer.random_share)

    result = run("electra, random words", max_steps=4, callbacks=[Shares()])
    trainer, metrics = result["trainer"], result["metrics"]
    assert [*shares, trainer.random_share] == pytest.approx([0.6, 0.45, 0.3, 0.15, 0])
    trainer.state.global_step = 0
    assert trainer.random_share == 0.6
    dataset = trainer.eval_dataset
    batch = trainer.eval_collator([dataset[(0, index)] for index in range(8)])
    loss = trainer.model.eval()(**batch).loss
    assert trainer.compute_loss(trainer.model, batch).item() == loss.item()
    assert trainer.evaluate()["eval_disc_loss"] == metrics["eval_disc_loss"]
    replaced = 1 - metrics["eval_original_accuracy"]
    entropy = -replaced * math.log(replaced) - (1 - replaced) * math.log(1 - replaced)
    assert metrics["eval_base_rate_loss"] == pytest.approx(entropy)


def test_static_masks_come_again_and_dynamic_ones_do_not(small_store):
    """Liu et al. 2019, section 4.1."""

    def rows_of(epoch, **settings):
        arguments = DataArguments(store=str(small_store), max_seq_length=48, **settings)
        data = load_data(arguments, 12345)
        pairs = [data.train[epoch, index] for index in range(data.train.num_pairs(epoch))]
        return {str(data.collator([pair])["input_ids"]) for pair in pairs}

    assert rows_of(0, dupe_factor=1) == rows_of(1, dupe_factor=1)
    assert not rows_of(0) & rows_of(1)


@pytest.fixture
def left_to_right(run):
    """A trainer of `--objective ltr` as a launch makes it."""
    return run("ltr", max_steps=1)["trainer"]


def test_left_to_right_predicts_what_follows_each_token_and_hides_nothing(left_to_right):
    """Devlin et al. 2019, section 5.1, LTR & No NSP."""
    dataset = left_to_right.train_dataset
    features = [dataset[(0, index)] for index in range(8)]
    for collator in (left_to_right.data_collator, left_to_right.eval_collator):
        batch = collator(features)
        for row, feature in enumerate(features):
            text = list(feature["input_ids"])
            padding = batch["labels"].shape[1] - len(text) + 1
            assert batch["input_ids"][row, : len(text)].tolist() == text
            assert batch["labels"][row].tolist() == [*text[1:], *[-100] * padding]


def test_left_to_right_sees_nothing_of_what_follows(left_to_right):
    model, dataset = left_to_right.model.eval(), left_to_right.train_dataset
    features = [dataset[(0, index)] for index in range(4)]
    place = min(len(feature["input_ids"]) for feature in features) // 2
    batch = left_to_right.data_collator(features)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    changed = inputs["input_ids"].clone()
    changed[:, place:] = 7
    with torch.no_grad():
        before = model(**inputs).prediction_logits
        after = model(**inputs | {"input_ids": changed}).prediction_logits
    torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-5)
    assert (after[:, place] - before[:, place]).abs().max() > 1e-3


@pytest.mark.parametrize("row", ["mlm", "ltr", "roberta", "albert", "electra"])
def test_dropout_reaches_every_place_of_a_member(run, row):
    model = run(row, max_steps=1, dropout=0.3)["trainer"].model
    rates = set()
    for name, module in model.named_modules():
        if name == "sop_classifier.dropout":
            # google-research/albert run_pretraining.py has none before the head for pairs.
            assert module.p == 0.0
        elif isinstance(module, torch.nn.Dropout):
            rates.add(module.p)
        # Attention's are no modules everywhere.
        rates.add(vars(module).get("attention_dropout", 0.3))
    assert rates == {0.3}


def test_masks_become_fewer_momentum_rises_and_evaluations_have_the_rate_of_the_end(run):
    momentum = []

    class Momentum(TrainerCallback):
        def on_step_end(self, *args, optimizer, **kwargs):
            momentum.append(optimizer.param_groups[-1]["momentum"])

    result = run("fewer masks, NorMuon", max_steps=4, callbacks=[Momentum()])
    # From 0.85 to 0.95 in 0.7 of the run.
    assert momentum == pytest.approx([0.85, 0.85 + 0.1 / 2.8, 0.85 + 0.2 / 2.8, 0.95])

    # A straight line from 0.4, which reaches 0.1 after the last step.
    assert predicted_shares(result["rows"]) == pytest.approx([0.4, 0.325, 0.25, 0.175], abs=0.03)
    collator = result["trainer"].eval_collator
    assert (collator.mlm_probability, collator.mlm_probability_end) == (0.1, None)


@pytest.mark.parametrize(
    ("objective", "fast_layers", "is_sampled"),
    [("bert", "auto", True), ("bert", "off", False), ("electra", "auto", False)],
)
def test_the_softmax_of_training_is_sampled_anew_for_each_step_where_that_is_quicker(
    run, objective, fast_layers, is_sampled
):
    if is_sampled:
        need_cpu_kernels()
    pieces = []

    class Pieces(TrainerCallback):
        trainer: Any = None

        def on_pre_optimizer_step(self, *args, **kwargs):
            softmax = getattr(self.trainer.model, "sampled_softmax", None)
            pieces.append(None if softmax is None else tuple(softmax.pieces.tolist()))

    run(objective, sampled_softmax=True, fast_layers=fast_layers, callbacks=[Pieces()])
    assert len(set(pieces)) == (3 if is_sampled else 1)
    assert (None in pieces) != is_sampled
