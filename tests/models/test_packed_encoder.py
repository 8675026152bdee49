"""Layers on packed rows equal stock layers on padded batches: outputs, losses, every gradient."""

import pytest
import torch
import transformers
from packed_models import LENGTHS, assert_gradients_alike, make_batch, make_model, run

from bert_recipes.models import packed_encoder as packed_encoder_module
from bert_recipes.models import padding_free
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.bert_model import BertModel
from bert_recipes.models.kernels import plain
from bert_recipes.models.kernels.loading import load_kernels


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("name", LENGTHS)
def test_losses_and_gradients_are_those_of_stock_layers(kernels, name, hidden_act):
    model, batch = make_model(hidden_act=hidden_act), make_batch(LENGTHS[name])
    expected, stock_gradients = run(model, batch, "off")
    ours, gradients = run(model, batch, kernels)
    for key in ("loss", "mlm_loss", "nsp_loss"):
        torch.testing.assert_close(getattr(ours, key), getattr(expected, key), rtol=1e-5, atol=1e-6)
    assert_gradients_alike(gradients, stock_gradients, 1e-5)


def several_groups(monkeypatch, batch):
    """Make groups of all unlike lengths, which pays with longer sequences or more heads only; their
    number.
    """
    monkeypatch.setattr(padding_free, "GROUP_COST", 0)
    return len(padding_free.make_layout(batch["attention_mask"]).groups)


def test_groups_of_unlike_lengths_are_computed_as_stock_layers_compute_them(kernels, monkeypatch):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    expected, stock_gradients = run(model, batch, "off")
    assert several_groups(monkeypatch, batch) == 4
    ours, gradients = run(model, batch, kernels)
    torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert_gradients_alike(gradients, stock_gradients, 1e-5)


def test_every_dropout_of_a_pass_has_a_mask_of_its_own_in_both_directions(monkeypatch):
    """Of the embeddings, and in each of three layers of each group's attention, after attention and
    after the feed-forward part.
    """
    model, batch, masks = make_model(dropout=0.3), make_batch(LENGTHS["ragged"]), []
    original = plain.dropout_factors

    def recorded(shape, seed, stream, *args):
        masks.append((seed, stream))
        return original(shape, seed, stream, *args)

    monkeypatch.setattr(plain, "dropout_factors", recorded)
    count = 1 + 3 * (several_groups(monkeypatch, batch) + 2)
    model.bert.use_fast_layers("plain")
    loss = model(**batch).loss
    assert len(set(masks)) == len(masks) == count
    forward = set(masks)
    masks.clear()
    loss.backward()
    assert set(masks) == forward


def test_in_bfloat16_the_difference_is_its_rounding(kernels):
    """Ours and stock under autocast are both that far from float32."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    exact, exact_gradients = run(model, batch, "off")
    _, stock_gradients = run(model, batch, "off", autocast=True)
    ours, gradients = run(model, batch, kernels, autocast=True)
    torch.testing.assert_close(ours.loss, exact.loss, rtol=2e-2, atol=0)

    def distance(found):
        return sum(
            (found[name] - gradient).square().sum() for name, gradient in exact_gradients.items()
        ).sqrt()

    norm = sum(gradient.square().sum() for gradient in exact_gradients.values()).sqrt()
    assert distance(gradients) < 1.5 * distance(stock_gradients) < 0.1 * norm


@pytest.mark.parametrize(
    ("autocast", "tolerance"), [(False, 1e-6), (True, 5e-3)], ids=["fp32", "bf16"]
)
def test_the_bits_are_those_of_one_number_of_threads(kernels, autocast, tolerance):
    """Another number adds sums in another order."""
    model, batch, found = make_model(), make_batch(LENGTHS["ragged"] * 4), []
    before = torch.get_num_threads()
    for threads in (1, 2, 1, 2):
        torch.set_num_threads(threads)
        _, gradients = run(model, batch, kernels, autocast=autocast)
        found.append(torch.cat([gradient.flatten() for gradient in gradients.values()]))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert (found[0] - found[1]).norm() < tolerance * found[0].norm()


def test_hidden_states_are_those_of_stock_layers_at_real_positions(kernels):
    model = make_model(BertModel).eval()
    batch = make_batch(LENGTHS["ragged"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    expected = model(**inputs)
    assert model.use_fast_layers(kernels)
    ours = model(**inputs)
    places = batch["attention_mask"].bool()
    torch.testing.assert_close(
        ours.last_hidden_state[places], expected.last_hidden_state[places], rtol=1e-5, atol=1e-5
    )
    assert not ours.last_hidden_state[~places].any()
    torch.testing.assert_close(ours.pooler_output, expected.pooler_output, rtol=1e-5, atol=1e-5)
    as_tuple = model(**inputs, return_dict=False)
    assert torch.equal(as_tuple[0], ours.last_hidden_state)


def test_a_stock_model_gets_the_layers_with_all_that_it_has(kernels):
    stock = make_model(transformers.BertModel).eval()
    stock.encoder.layer[1].train()
    batch, addresses = (
        make_batch(LENGTHS["full_rows"]),
        {name: p.data_ptr() for name, p in stock.named_parameters()},
    )
    expected = stock(batch["input_ids"]).last_hidden_state
    own = BertModel.from_stock(stock)
    assert own is stock
    assert {name: p.data_ptr() for name, p in own.named_parameters()} == addresses
    assert own.use_fast_layers(kernels)
    assert [layer.training for layer in own.encoder.layer] == [False, True, False]
    torch.testing.assert_close(
        own(batch["input_ids"]).last_hidden_state, expected, rtol=1e-5, atol=1e-5
    )


def test_parts_of_a_batch_add_up_to_the_whole(kernels):
    """Micro-batches of other padding, one of them without a masked token: the sum is the gradient
    of the whole.
    """
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    batch["labels"][3:5] = -100
    _, whole = run(model, batch, kernels)
    model.zero_grad()
    counts = {"num_items_in_batch": (batch["labels"] != -100).sum(), "num_pairs_in_batch": 6}
    for rows in (slice(0, 3), slice(3, 5), slice(5, 6)):
        part = {key: value[rows] for key, value in batch.items()}
        longest = int(part["attention_mask"].sum(dim=1).max())
        part = {
            key: value[:, :longest] if value.dim() == 2 else value for key, value in part.items()
        }
        model(**part, **counts).loss.backward()
    assert_gradients_alike({name: p.grad for name, p in model.named_parameters()}, whole, 1e-5)


def test_the_masks_of_dropout_do_not_depend_on_the_implementation(monkeypatch):
    if load_kernels("auto", torch.device("cpu")) is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    model, batch = make_model(dropout=0.3), make_batch(LENGTHS["ragged"])
    several_groups(monkeypatch, batch)
    found = []
    for name in ("auto", "plain", "auto"):
        torch.manual_seed(5)
        found.append(run(model, batch, name))
    torch.testing.assert_close(found[0][0].loss, found[1][0].loss, rtol=1e-5, atol=1e-6)
    assert_gradients_alike(found[0][1], found[1][1], 1e-5)
    assert all(torch.equal(found[0][1][name], gradient) for name, gradient in found[2][1].items())


def test_dropout_leaves_the_expected_loss_and_its_gradient_is_right(kernels):
    """Finite differences of the dropped network, whose masks are fixed by the seed."""
    model, batch = make_model(dropout=0.3), make_batch(LENGTHS["ragged"])
    torch.manual_seed(7)
    _, gradients = run(model, batch, kernels)
    generator = torch.Generator().manual_seed(1)
    for name in (
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.0.attention.self.query.weight",
        "bert.encoder.layer.1.attention.self.value.bias",
        "bert.encoder.layer.1.intermediate.dense.weight",
        "bert.encoder.layer.2.output.LayerNorm.weight",
    ):
        parameter = model.get_parameter(name)
        direction = torch.randn(parameter.shape, generator=generator)
        losses = []
        for step in (2e-3, -2e-3):
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
                torch.manual_seed(7)
            losses.append(model(**batch).loss.item())
            with torch.no_grad():
                parameter.sub_(direction, alpha=step)
        slope = (losses[0] - losses[1]) / 4e-3
        expected = (gradients[name] * direction).sum().item()
        assert slope == pytest.approx(expected, rel=0.05, abs=2e-2), name


def test_gradient_checkpointing_changes_nothing(kernels, monkeypatch):
    model, batch = make_model(dropout=0.1), make_batch(LENGTHS["ragged"])
    torch.manual_seed(3)
    expected, plain_gradients = run(model, batch, kernels)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    layers = []
    original = packed_encoder_module.encode_layer

    def counted(*args):
        layers.append(args)
        return original(*args)

    monkeypatch.setattr(packed_encoder_module, "encode_layer", counted)
    torch.manual_seed(3)
    ours, gradients = run(model, batch, kernels)
    assert len(layers) == 2 * 3
    assert torch.equal(ours.loss, expected.loss)
    assert_gradients_alike(gradients, plain_gradients, 1e-6)


@pytest.mark.parametrize("frozen", ["embeddings", "embeddings and first layer"])
def test_reentrant_checkpointing_below_frozen_embeddings_still_learns(kernels, frozen):
    """Such checkpointing gives gradients only where an input has one."""
    found = []
    for is_checkpointed in (False, True):
        model, batch = make_model(dropout=0.1), make_batch(LENGTHS["ragged"])
        model.bert.embeddings.requires_grad_(False)
        model.bert.encoder.layer[0].requires_grad_(frozen == "embeddings")
        if is_checkpointed:
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": True}
            )
        model.bert.use_fast_layers(kernels)
        torch.manual_seed(3)
        model(**batch).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    expected, gradients = found
    assert "bert.encoder.layer.1.output.dense.weight" in gradients
    assert gradients.keys() == expected.keys()
    assert_gradients_alike(gradients, expected, 1e-6)


def test_checkpoints_carry_stock_names_and_give_the_same_loss(kernels, tmp_path):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    expected, gradients = run(model, batch, kernels)
    model.save_pretrained(tmp_path)
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path)
    assert stock.state_dict().keys() == model.state_dict().keys()
    again, found = run(BertForPreTraining.from_pretrained(tmp_path).train(), batch, "off")
    torch.testing.assert_close(again.loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert_gradients_alike(gradients, found, 1e-5)


def test_an_encoder_that_does_not_learn_still_passes_gradients_on(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    _, all_gradients = run(model, batch, kernels)
    model.zero_grad()
    model.bert.encoder.layer[1:].requires_grad_(False)
    model(**batch).loss.backward()
    assert all(parameter.grad is None for parameter in model.bert.encoder.layer[1:].parameters())
    names = [name for name, p in model.named_parameters() if p.grad is not None]
    assert_gradients_alike(
        {n: model.get_parameter(n).grad for n in names}, {n: all_gradients[n] for n in names}, 1e-6
    )
