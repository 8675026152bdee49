"""Layers on packed rows equal stock layers on padded batches: outputs, losses, every gradient."""

import pytest
import torch
import transformers
from cpu_kernels import need_cpu_kernels
from packed_models import (
    LENGTHS,
    assert_gradients_alike,
    assert_near,
    distance,
    encoder_inputs,
    gradients_of,
    make_batch,
    make_model,
    run,
    with_packing,
)

from bert_recipes.models import packed_encoder as packed_encoder_module
from bert_recipes.models import padding_free
from bert_recipes.models.bert_model import BertModel
from bert_recipes.models.kernels import plain


@pytest.fixture
def batch():
    return make_batch(LENGTHS["ragged"])


@pytest.fixture(params=["auto", "plain", "eager", "eager with packing"])
def layers(request):
    """Every implementation of the layers; `eager with packing` is what runs on a GPU."""
    if request.param == "auto":
        need_cpu_kernels()
    return request.param


def run_layers(model, batch, layers, **settings):
    if layers == "eager with packing":
        return run(model, with_packing(batch), "eager", **settings)
    return run(model, batch, layers, **settings)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("name", [*LENGTHS, "without_mask"])
def test_losses_and_gradients_are_those_of_stock_layers(layers, name, hidden_act):
    model, batch = make_model(hidden_act=hidden_act), make_batch(LENGTHS.get(name, [24, 24]))
    if name == "without_mask" and layers != "eager with packing":  # every position is a row
        del batch["attention_mask"]
    expected, stock_gradients = run(model, batch, "off")
    output, gradients = run_layers(model, batch, layers)
    for loss in ("loss", "mlm_loss", "nsp_loss"):
        assert_near(output[loss], expected[loss])
    assert_gradients_alike(gradients, stock_gradients, 1e-5)


def several_groups(monkeypatch, batch):
    """Make groups of all unlike lengths, which pays with longer sequences or more heads only; their
    number.
    """
    monkeypatch.setattr(padding_free, "GROUP_COST", 0)
    return len(padding_free.grouped_layout(batch["attention_mask"]).groups)


def test_groups_of_unlike_lengths_are_computed_as_stock_layers_compute_them(
    kernels, batch, monkeypatch
):
    model = make_model()
    expected, stock_gradients = run(model, batch, "off")
    assert several_groups(monkeypatch, batch) == 4
    output, gradients = run(model, batch, kernels)
    assert_near(output.loss, expected.loss)
    assert_gradients_alike(gradients, stock_gradients, 1e-5)


def test_every_dropout_of_a_pass_has_a_mask_of_its_own_in_both_directions(batch, monkeypatch):
    """Of the embeddings, and in each of three layers of each group's attention, after attention and
    after the feed-forward part.
    """
    model, keys = make_model(dropout=0.3), []
    dropout_factors = plain.dropout_factors

    def recorded(shape, seed, stream, *args):
        keys.append((seed, stream))
        return dropout_factors(shape, seed, stream, *args)

    monkeypatch.setattr(plain, "dropout_factors", recorded)
    num_masks = 1 + 3 * (several_groups(monkeypatch, batch) + 2)
    model.bert.use_fast_layers("plain")
    loss = model(**batch).loss
    assert len(set(keys)) == len(keys) == num_masks
    forward_keys = set(keys)
    keys.clear()
    loss.backward()
    assert set(keys) == forward_keys


def test_in_bfloat16_the_difference_is_its_rounding(layers, batch):
    """Ours and stock under autocast are both that far from float32. Compiled layers keep the
    residual in bfloat16, stock's in float32.
    """
    model = make_model()
    expected, exact = run(model, batch, "off")
    _, stock = run(model, batch, "off", autocast=True)
    output, gradients = run_layers(model, batch, layers, autocast=True)
    torch.testing.assert_close(
        output.loss,
        expected.loss,
        rtol=2e-2,
        atol=0,
    )
    norm = sum(gradient.square().sum() for gradient in exact.values()).sqrt()
    assert distance(gradients, exact) < 1.5 * distance(stock, exact) < 0.1 * norm


@pytest.mark.parametrize(
    ("autocast", "tolerance"), [(False, 1e-6), (True, 5e-3)], ids=["fp32", "bf16"]
)
def test_the_bits_are_those_of_one_number_of_threads(kernels, autocast, tolerance):
    """Another number adds sums in another order."""
    model, results = make_model(num_hidden_layers=1), []
    batch = make_batch(LENGTHS["ragged"] * 2)
    num_threads = torch.get_num_threads()
    for threads in (1, 2, 1, 2):
        torch.set_num_threads(threads)
        _, gradients = run(model, batch, kernels, autocast=autocast)
        results.append(torch.cat([gradient.flatten() for gradient in gradients.values()]))
    torch.set_num_threads(num_threads)
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    assert (results[0] - results[1]).norm() < tolerance * results[0].norm()


@pytest.mark.parametrize("kernels", ["auto", "plain", "eager"])
def test_a_stock_model_gets_the_layers_with_all_that_it_has(kernels, batch):
    stock = make_model(transformers.BertModel).eval()
    stock.encoder.layer[1].train()
    addresses = {name: weight.data_ptr() for name, weight in stock.named_parameters()}
    expected = stock(**encoder_inputs(batch))
    model = BertModel.from_stock(stock)
    assert model is stock
    assert {name: weight.data_ptr() for name, weight in model.named_parameters()} == addresses
    assert model.use_fast_layers(kernels)
    assert [layer.training for layer in model.encoder.layer] == [False, True, False]

    output = model(**encoder_inputs(batch))
    states, is_token = output.last_hidden_state, batch["attention_mask"].bool()
    expected_states = expected.last_hidden_state[is_token]
    assert_near(states[is_token], expected_states, atol=1e-5)
    assert_near(output.pooler_output, expected.pooler_output, atol=1e-5)
    as_tuple = model(**encoder_inputs(batch), return_dict=False)
    assert torch.equal(as_tuple[0], states)


def test_pads_have_no_hidden_states(layers, batch):
    model = make_model(BertModel).eval()
    model.use_fast_layers(layers.replace("eager with packing", "eager"))
    states = model(**encoder_inputs(batch)).last_hidden_state
    assert not states[batch["attention_mask"] == 0].any()


@pytest.mark.parametrize("fast_layers", ["off", "auto", "plain"])
def test_parts_of_a_batch_add_up_to_the_whole_with_global_counts(fast_layers, batch):
    """Micro-batches of other padding, one of them without a masked token: the sums are the loss and
    the gradient of the whole.
    """
    model, total = make_model(), 0.0
    batch["labels"][3:5] = -100
    output, expected = run(model, batch, fast_layers)
    model.zero_grad()
    counts = {"num_items_in_batch": (batch["labels"] != -100).sum(), "num_pairs_in_batch": 6}
    for rows in (slice(0, 3), slice(3, 5), slice(5, 6)):
        micro_batch = {name: values[rows] for name, values in batch.items()}
        longest = int(micro_batch["attention_mask"].sum(dim=1).max())
        for name, values in micro_batch.items():
            if values.dim() == 2:
                micro_batch[name] = values[:, :longest]
        loss = model(**micro_batch, **counts).loss
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(output.loss.item(), rel=1e-5)
    assert_gradients_alike(gradients_of(model), expected, 1e-5)


def test_the_masks_of_dropout_do_not_depend_on_the_implementation(batch, monkeypatch):
    need_cpu_kernels()
    model, runs = make_model(dropout=0.3), []
    several_groups(monkeypatch, batch)
    for kernels in ("auto", "plain", "auto"):
        torch.manual_seed(5)
        runs.append(run(model, batch, kernels))
    (output, gradients), (plain_output, plain_gradients), (_, same_gradients) = runs
    assert_near(output.loss, plain_output.loss)
    assert_gradients_alike(gradients, plain_gradients, 1e-5)
    assert_gradients_alike(gradients, same_gradients, 0)


def test_dropout_leaves_the_expected_loss_and_its_gradient_is_right(kernels, batch):
    """Finite differences of the dropped network, whose masks are fixed by the seed."""
    model, generator = make_model(dropout=0.3), torch.Generator().manual_seed(1)
    torch.manual_seed(7)
    _, gradients = run(model, batch, kernels)

    @torch.no_grad()
    def loss_after(parameter, change):
        parameter.add_(change)
        torch.manual_seed(7)
        loss = model(**batch).loss.item()
        parameter.sub_(change)
        return loss

    for name in (
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.1.attention.self.value.bias",
        "bert.encoder.layer.1.intermediate.dense.weight",
        "bert.encoder.layer.2.output.LayerNorm.weight",
    ):
        parameter = model.get_parameter(name)
        direction = torch.randn(parameter.shape, generator=generator)
        higher = loss_after(parameter, 2e-3 * direction)
        lower = loss_after(parameter, -2e-3 * direction)
        slope = (gradients[name] * direction).sum().item()
        assert (higher - lower) / 4e-3 == pytest.approx(slope, rel=0.05, abs=2e-2), name


def test_gradient_checkpointing_changes_nothing(kernels, batch, monkeypatch):
    model, layers = make_model(dropout=0.1), []
    torch.manual_seed(3)
    expected, stored_gradients = run(model, batch, kernels)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    encode_layer = packed_encoder_module.encode_layer

    def counted(*args):
        layers.append(args)
        return encode_layer(*args)

    monkeypatch.setattr(packed_encoder_module, "encode_layer", counted)
    torch.manual_seed(3)
    output, gradients = run(model, batch, kernels)
    assert len(layers) == 2 * 3
    assert torch.equal(output.loss, expected.loss)
    assert_gradients_alike(gradients, stored_gradients, 1e-6)


@pytest.mark.parametrize("num_frozen_layers", [0, 1])
def test_reentrant_checkpointing_below_frozen_embeddings_still_learns(
    kernels, batch, num_frozen_layers
):
    """Such checkpointing gives gradients only where an input has one."""
    model = make_model(dropout=0.1)
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[:num_frozen_layers].requires_grad_(False)
    torch.manual_seed(3)
    _, expected = run(model, batch, kernels)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    torch.manual_seed(3)
    _, gradients = run(model, batch, kernels)
    assert "bert.encoder.layer.1.output.dense.weight" in gradients
    assert_gradients_alike(gradients, expected, 1e-6)


def test_an_encoder_that_does_not_learn_still_passes_gradients_on(kernels, batch):
    model = make_model()
    _, expected = run(model, batch, kernels)
    model.bert.encoder.layer[1:].requires_grad_(False)
    _, gradients = run(model, batch, kernels)
    assert not any(name.startswith("bert.encoder.layer.2") for name in gradients)
    learned = {name: expected[name] for name in gradients}
    assert_gradients_alike(gradients, learned, 1e-6)
