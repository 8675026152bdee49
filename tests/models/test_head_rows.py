"""What follows the last attention is computed for the rows that heads read, and changes nothing.

Against the same implementation for all rows; tests/models/test_packed_encoder.py and
test_members.py hold both to stock's layers.
"""

import pytest
import torch
from cpu_kernels import need_cpu_kernels
from member_models import CLASSES, batch_for, build
from packed_models import (
    LENGTHS,
    assert_gradients_alike,
    assert_near,
    gradients_of,
    make_batch,
    make_model,
    with_packing,
)

from bert_recipes.models import packed_encoder
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.packed_encoder import HeadRows, find_head_rows
from bert_recipes.models.padding_free import grouped_layout


IMPLEMENTATIONS = ["auto", "plain", "eager", "eager with packing"]


@pytest.fixture(params=IMPLEMENTATIONS)
def layers(request):
    if request.param == "auto":
        need_cpu_kernels()
    return request.param


@pytest.fixture
def found(monkeypatch):
    """What `find_head_rows` returned, call by call."""
    calls = []

    def spy(*arguments, **settings):
        calls.append(find_head_rows(*arguments, **settings))
        return calls[-1]

    monkeypatch.setattr(packed_encoder, "find_head_rows", spy)
    return calls


def run(model, batch, layers, **settings):
    """The losses and the gradient of every parameter."""
    for part in (model, getattr(model, "generator", None)):
        if part is not None:
            part.base_model.use_fast_layers("eager" if layers == "eager with packing" else layers)
    model.zero_grad()
    output = model(**(with_packing(batch) if layers == "eager with packing" else batch), **settings)
    output.loss.backward()
    return output, gradients_of(model)


def run_on_all_rows(monkeypatch, *arguments, **settings):
    with monkeypatch.context() as patch:
        patch.setattr(packed_encoder, "MAX_READ_FRACTION", -1.0)
        return run(*arguments, **settings)


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "BertLMHeadModel"])
def test_losses_and_gradients_of_every_member_are_those_of_all_rows(
    layers, name, found, monkeypatch
):
    model = build(name)
    batch = batch_for(name, LENGTHS["ragged"])
    if name == "ElectraForPreTraining":
        batch["draws"] = torch.full(batch["input_ids"].shape, 0.5)
    expected, all_gradients = run_on_all_rows(monkeypatch, model, batch, layers)
    assert found.pop() is None
    output, gradients = run(model, batch, layers)
    (head_rows,) = found
    assert len(head_rows.rows) < 145  # tokens of the batch
    for loss in ("loss", "mlm_loss", "nsp_loss", "disc_loss"):
        if output.get(loss) is not None:
            assert_near(output[loss], expected[loss])
    assert_gradients_alike(gradients, all_gradients, 1e-5)


@pytest.mark.parametrize("name", LENGTHS)
def test_a_first_token_may_be_predicted_too(layers, name, found, monkeypatch):
    """Its row is then read twice, and its gradients add up."""
    model, batch = make_model(), make_batch(LENGTHS[name], masked=0.1)
    batch["labels"][:, 0] = batch["input_ids"][:, 0]
    monkeypatch.setattr(packed_encoder, "MAX_READ_FRACTION", 9.0)
    output, gradients = run(model, batch, layers)
    first, predicted = found[0].rows[: len(LENGTHS[name])], found[0].rows[len(LENGTHS[name]) :]
    assert set(first.tolist()) <= set(predicted.tolist())
    expected, all_gradients = run_on_all_rows(monkeypatch, model, batch, layers)
    assert_near(output.loss, expected.loss)
    assert_gradients_alike(gradients, all_gradients, 1e-5)


def test_a_batch_may_predict_nothing(layers):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    batch["labels"][:] = -100
    output, gradients = run(model, batch, layers)
    assert output.mlm_loss == 0
    assert gradients["bert.embeddings.word_embeddings.weight"].abs().sum() > 0


def test_held_out_logits_of_predicted_tokens_are_those_of_all_rows(layers, found, monkeypatch):
    model, batch = make_model().eval(), make_batch(LENGTHS["ragged"])
    output, _ = run(model, batch, layers, return_full_logits=False)
    assert isinstance(found[0], HeadRows)
    expected, _ = run_on_all_rows(monkeypatch, model, batch, layers, return_full_logits=False)
    assert_near(output.prediction_logits, expected.prediction_logits, atol=1e-5)
    assert_near(output.seq_relationship_logits, expected.seq_relationship_logits)


@pytest.mark.parametrize(
    "settings", [{"return_full_logits": True}, {"distiller": lambda model, rows: rows.sum()}]
)
def test_who_reads_all_rows_gets_them(layers, settings, found):
    run(make_model(), make_batch(LENGTHS["ragged"]), layers, **settings)
    assert found == []


def test_a_model_that_reads_from_left_to_right_predicts_all_tokens(layers, found):
    model = build("BertForMaskedLM", is_decoder=True, use_cache=False)
    model = MEMBERS["bert_ltr"](model.config).train()
    batch = make_batch(LENGTHS["full_rows"])
    del batch["next_sentence_label"]
    run(model, batch, layers)
    assert found == []


def test_many_predicted_tokens_leave_nothing_out():
    batch = make_batch(LENGTHS["ragged"], masked=0.7)
    layout = grouped_layout(batch["attention_mask"])
    assert find_head_rows(layout, batch["labels"], None, 64) is None


def test_rows_are_filled_up_to_a_multiple():
    """For a CPU, whose libraries prepare the products of each number of rows."""
    batch = make_batch(LENGTHS["ragged"])
    layout = grouped_layout(batch["attention_mask"])
    head_rows = find_head_rows(layout, batch["labels"], None, 64)
    num_predicted = int((batch["labels"] != -100).sum())
    assert len(head_rows.rows) == 64
    assert head_rows.predicted[0].tolist() == list(range(6, 6 + num_predicted))
    assert head_rows.rows[6 + num_predicted :].sum() == 0
