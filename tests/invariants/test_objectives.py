"""Every objective and every form of its inputs: one loss and one gradient however a batch is cut,
and a resume is the same run.
"""

import math
from typing import Any

import pytest
import torch
from small_run import small_run
from transformers import TrainerCallback


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
}


def run(row, store, folder, **settings):
    inputs = dict(ROWS[row])
    settings = inputs.pop("training", {}) | settings
    return small_run(
        store=str(store),
        output_dir=str(folder),
        objective=inputs.pop("objective", row),
        inputs=inputs,
        **settings,
    )


@pytest.mark.parametrize("row", ROWS)
def test_one_loss_and_one_gradient_and_an_exact_resume(small_store, tmp_path, row):
    whole = run(
        row,
        small_store,
        tmp_path / "a",
        per_device_train_batch_size=16,
        save_strategy="steps",
        save_steps=2,
    )
    parts = run(
        row,
        small_store,
        tmp_path / "b",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        dataloader_num_workers=1,
    )
    assert sorted(map(repr, parts["rows"])) == sorted(map(repr, whole["rows"]))
    for own, other in zip(parts["gradients"][:2], whole["gradients"][:2], strict=True):
        norm = torch.stack([gradient.norm() for gradient in other.values()]).norm()
        difference = torch.stack([(own[name] - other[name]).norm() for name in other]).norm()
        assert difference / norm < 2e-6
    assert parts["metrics"]["eval_mlm_loss"] == pytest.approx(
        whole["metrics"]["eval_mlm_loss"], rel=1e-4
    )
    assert ("eval_sop_accuracy" in whole["metrics"]) == ("albert" in row)
    assert ("eval_nsp_accuracy" in whole["metrics"]) == (row in ("sentence pairs", "static masks"))
    checkpoint = str(tmp_path / "a" / "checkpoint-2")
    resumed = run(
        row, small_store, tmp_path / "c", per_device_train_batch_size=16, resume_from=checkpoint
    )
    assert all(
        torch.equal(resumed["weights"][name], weights) for name, weights in whole["weights"].items()
    )


def test_random_words_fall_to_none_and_are_in_no_evaluation(small_store, tmp_path):
    shares = []

    class Shares(TrainerCallback):
        trainer: Any = None

        def on_step_begin(self, *others, **kwargs):
            shares.append(self.trainer.random_share)

    found = run("electra, random words", small_store, tmp_path, max_steps=4, callbacks=[Shares()])
    assert shares == pytest.approx([0.6, 0.45, 0.3, 0.15])
    assert found["trainer"].random_share == 0
    metrics = found["metrics"]
    found["trainer"].state.global_step = 0
    assert found["trainer"].random_share == 0.6
    trainer, dataset = found["trainer"], found["trainer"].eval_dataset
    batch = trainer.eval_collator([dataset[(0, index)] for index in range(8)])
    own, none = trainer.model.eval()(**batch), trainer.compute_loss(trainer.model.eval(), batch)
    assert none.item() == own.loss.item()
    assert found["trainer"].evaluate()["eval_disc_loss"] == metrics["eval_disc_loss"]
    replaced = 1 - metrics["eval_original_accuracy"]
    entropy = -replaced * math.log(replaced) - (1 - replaced) * math.log(1 - replaced)
    assert metrics["eval_base_rate_loss"] == pytest.approx(entropy)


def test_static_masks_come_again_and_dynamic_ones_do_not(small_store, tmp_path):
    """Liu et al. 2019, section 4.1."""
    rows = {}
    for copies in (1, None):
        found = small_run(
            store=str(small_store),
            output_dir=str(tmp_path / str(copies)),
            inputs={"dupe_factor": copies},
            per_device_train_batch_size=64,
            max_steps=12,
        )["rows"]
        rows[copies] = [row[1:] for row in found]
    assert len(set(rows[1])) < 0.6 * len(rows[1])
    assert len(set(rows[None])) == len(rows[None])


@pytest.fixture
def left_to_right(small_store, tmp_path):
    """A trainer of `--objective ltr` as a launch makes it."""
    return run("ltr", small_store, tmp_path, max_steps=1)["trainer"]


def test_left_to_right_predicts_what_follows_each_token_and_hides_nothing(left_to_right):
    """Devlin et al. 2019, section 5.1, LTR & No NSP."""
    dataset = left_to_right.train_dataset
    plain = [dataset[(0, index)]["input_ids"] for index in range(8)]
    for collator in (left_to_right.data_collator, left_to_right.eval_collator):
        batch = collator([dataset[(0, index)] for index in range(8)])
        for ids, mask, labels, text in zip(
            batch["input_ids"].tolist(),
            batch["attention_mask"],
            batch["labels"].tolist(),
            plain,
            strict=True,
        ):
            length = int(mask.sum())
            assert ids[:length] == list(text)
            assert labels[: length - 1] == ids[1:length]
            assert set(labels[length - 1 :]) == {-100}


def test_left_to_right_sees_nothing_of_what_follows(left_to_right):
    model, dataset = left_to_right.model.eval(), left_to_right.train_dataset
    batch = left_to_right.data_collator([dataset[(0, index)] for index in range(4)])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    place = int(batch["attention_mask"].sum(1).min()) // 2
    changed = inputs["input_ids"].clone()
    changed[:, place:] = torch.where(
        inputs["attention_mask"][:, place:] == 1, 7, changed[:, place:]
    )
    with torch.no_grad():
        before = model(**inputs).prediction_logits
        after = model(**inputs | {"input_ids": changed}).prediction_logits
    torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-5)
    assert (after[:, place] - before[:, place]).abs().max() > 1e-3


@pytest.mark.parametrize("row", ["mlm", "ltr", "roberta", "albert", "electra"])
def test_dropout_reaches_every_place_of_a_member(small_store, tmp_path, row):
    model = run(row, small_store, tmp_path, max_steps=1, dropout=0.3)["trainer"].model
    rates = {
        name: module.p
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Dropout)
    }
    # google-research/albert run_pretraining.py has none before the head for pairs.
    assert rates.pop("sop_classifier.dropout", 0.0) == 0.0
    assert set(rates.values()) == {0.3}
    # Attention's are no modules everywhere.
    attention = [
        value
        for each in model.modules()
        for name, value in vars(each).items()
        if name == "attention_dropout"
    ]
    assert set(attention) <= {0.3}
