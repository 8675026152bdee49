"""Layers on packed rows equal stock layers on padded batches: outputs, losses, every gradient."""

import itertools

import pytest
import torch
import transformers
from transformers import BertConfig

from bert_recipes.errors import InputError
from bert_recipes.kernels import load_kernels
from bert_recipes.models import bert_model as bert_model_module
from bert_recipes.models import packed_encoder as packed_encoder_module
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.bert_model import BertModel
from bert_recipes.models.packed_encoder import encode_packed
from bert_recipes.models.padding_free import GROUP_COST, LENGTH_STEP, LIKE_LENGTH, ROW_STEP, make_layout
from bert_recipes.models.vocabulary_loss import vocabulary_loss


VOCAB = 211
LENGTHS = {
    "ragged": [40, 33, 7, 1, 25, 39],
    "full_rows": [24, 24, 24],
    "one_token": [1],
    "one_long": [40, 2, 2],
    "single_row": [17],
}


@pytest.fixture(params=["auto", "plain"])
def kernels(request):
    if load_kernels(request.param, torch.device("cpu")) is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    return request.param


def make_model(cls=BertForPreTraining, hidden_act="gelu_new", dropout=0.0, **changes):
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "max_position_embeddings": 64,
        "hidden_act": hidden_act,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "initializer_range": 0.2,
    }
    return cls(BertConfig(**(settings | changes))).train()


def make_batch(lengths, seed=0, masked=0.2):
    generator = torch.Generator().manual_seed(seed)
    size = max(lengths)
    mask = (torch.arange(size) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1, VOCAB, mask.shape, generator=generator) * mask
    chosen = (torch.rand(mask.shape, generator=generator) < masked) & (mask == 1)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, mask.shape, generator=generator) * mask,
        "labels": torch.where(chosen, ids, -100),
        "next_sentence_label": torch.randint(0, 2, (len(lengths),), generator=generator),
    }


def run(model, batch, fast_layers, autocast=False):
    """Loss parts and the gradient of every parameter."""
    model.zero_grad()
    model.bert.use_fast_layers(fast_layers)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(**batch)
    output.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return output, gradients


def assert_gradients_alike(ours, expected, tolerance):
    """Equal relative to the largest gradient of the model: some are zero but for rounding (the keys' bias)."""
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        scale = max(gradient.abs().max(), 1e-2 * largest)
        assert (ours[name] - gradient).abs().max() <= tolerance * scale + 1e-7, name


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
@pytest.mark.parametrize("name", LENGTHS)
def test_losses_and_gradients_are_those_of_stock_layers(kernels, name, hidden_act):
    model, batch = make_model(hidden_act=hidden_act), make_batch(LENGTHS[name])
    expected, stock_gradients = run(model, batch, "off")
    ours, gradients = run(model, batch, kernels)
    for key in ("loss", "mlm_loss", "nsp_loss"):
        torch.testing.assert_close(getattr(ours, key), getattr(expected, key), rtol=1e-5, atol=1e-6)
    assert_gradients_alike(gradients, stock_gradients, 1e-5)


def test_in_bfloat16_the_difference_is_its_rounding(kernels):
    """Ours and stock under autocast are both that far from float32."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    exact, exact_gradients = run(model, batch, "off")
    _, stock_gradients = run(model, batch, "off", autocast=True)
    ours, gradients = run(model, batch, kernels, autocast=True)
    torch.testing.assert_close(ours.loss, exact.loss, rtol=2e-2, atol=0)

    def distance(found):
        return sum((found[name] - gradient).square().sum() for name, gradient in exact_gradients.items()).sqrt()

    norm = sum(gradient.square().sum() for gradient in exact_gradients.values()).sqrt()
    assert distance(gradients) < 1.5 * distance(stock_gradients) < 0.1 * norm


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
    batch, addresses = make_batch(LENGTHS["full_rows"]), {name: p.data_ptr() for name, p in stock.named_parameters()}
    expected = stock(batch["input_ids"]).last_hidden_state
    own = BertModel.from_stock(stock)
    assert own is stock
    assert {name: p.data_ptr() for name, p in own.named_parameters()} == addresses
    assert own.use_fast_layers(kernels)
    assert [layer.training for layer in own.encoder.layer] == [False, True, False]
    torch.testing.assert_close(own(batch["input_ids"]).last_hidden_state, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int32])
def test_masks_of_any_type_say_where_the_tokens_are(kernels, dtype):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    expected, gradients = run(model, batch, kernels)
    for computes_pads in (False, True):
        model.bert.computes_pads = computes_pads
        ours, found = run(model, batch | {"attention_mask": batch["attention_mask"].to(dtype)}, kernels)
        torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-5, atol=1e-6)
        assert_gradients_alike(found, gradients, 1e-5)
    larger, _ = run(model, batch | {"attention_mask": 3 * batch["attention_mask"]}, kernels)
    torch.testing.assert_close(larger.loss, expected.loss, rtol=1e-5, atol=1e-6)


def test_token_types_may_be_one_row_for_all_and_labels_of_any_integer_type(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    batch["token_type_ids"] = torch.ones_like(batch["token_type_ids"])
    expected, _ = run(model, batch, kernels)
    one_row = batch | {"token_type_ids": batch["token_type_ids"][:1], "labels": batch["labels"].int()}
    assert torch.equal(run(model, one_row, kernels)[0].loss, expected.loss)


def count_packed_calls(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args)
        return encode_packed(*args)

    monkeypatch.setattr(bert_model_module, "encode_packed", counted)
    return calls


def test_dropout_is_what_the_modules_say(kernels, monkeypatch):
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel, dropout=0.3), make_batch(LENGTHS["ragged"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    model.use_fast_layers(kernels)
    outputs = [model(**inputs).last_hidden_state for _ in range(2)]
    assert not torch.equal(*outputs)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert torch.equal(model(**inputs).last_hidden_state, model.eval()(**inputs).last_hidden_state)
    model.encoder.layer[0].output.dropout.p = 0.5
    model.encoder.layer[0].train()
    assert len(calls) == 4
    model(**inputs)
    assert len(calls) == 4  # two rates in one layer: stock


@pytest.mark.parametrize("change", ["hook", "pre_hook", "subclass", "forward", "half", "double"])
def test_modules_that_are_not_what_they_were_are_called_as_they_are(kernels, monkeypatch, change):
    """Adapters, pruning, noise on the embeddings, other types of numbers."""
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel).eval(), make_batch(LENGTHS["ragged"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    linear = model.encoder.layer[1].intermediate.dense

    class Doubled(torch.nn.Linear):
        def forward(self, values):
            return 2 * super().forward(values)

    if change == "hook":
        model.embeddings.word_embeddings.register_forward_hook(lambda module, args, output: 2 * output)
    elif change == "pre_hook":
        linear.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    elif change == "subclass":
        linear.__class__ = Doubled
    elif change == "forward":
        linear.forward = lambda values: 2 * torch.nn.functional.linear(values, linear.weight, linear.bias)
    else:
        model = getattr(model, change)()
    expected = model(**inputs).last_hidden_state
    model.use_fast_layers(kernels)
    assert torch.equal(model(**inputs).last_hidden_state, expected)
    assert not calls


def test_processes_of_a_run_drop_other_elements(kernels, monkeypatch):
    """Their generators have the same state: the Trainer seeds them alike."""
    model, batch, found = make_model(dropout=0.3), make_batch(LENGTHS["ragged"]), []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1, 0):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(3)
        found.append(run(model, batch, kernels)[0].loss)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_counts_of_the_stock_trainer_do_not_turn_the_layers_off(kernels, monkeypatch):
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel), make_batch(LENGTHS["ragged"])
    model.use_fast_layers(kernels)
    model(batch["input_ids"], num_items_in_batch=torch.tensor([7, 8]), use_cache=False)
    assert len(calls) == 1


def test_the_loss_says_that_it_can_be_differentiated_once(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    model.bert.use_fast_layers(kernels)
    loss = model(**batch).mlm_loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        loss.backward()


def test_parts_of_a_batch_add_up_to_the_whole(kernels):
    """Micro-batches of other padding, one of them without a masked token: the sum is the gradient of the whole."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    batch["labels"][3:5] = -100
    _, whole = run(model, batch, kernels)
    model.zero_grad()
    counts = {"num_items_in_batch": (batch["labels"] != -100).sum(), "num_pairs_in_batch": 6}
    for rows in (slice(0, 3), slice(3, 5), slice(5, 6)):
        part = {key: value[rows] for key, value in batch.items()}
        longest = int(part["attention_mask"].sum(dim=1).max())
        part = {key: value[:, :longest] if value.dim() == 2 else value for key, value in part.items()}
        model(**part, **counts).loss.backward()
    assert_gradients_alike({name: p.grad for name, p in model.named_parameters()}, whole, 1e-5)


def test_the_masks_of_dropout_do_not_depend_on_the_implementation():
    if load_kernels("auto", torch.device("cpu")) is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    model, batch = make_model(dropout=0.3), make_batch(LENGTHS["ragged"])
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


def test_checkpoints_carry_stock_names_and_give_the_same_loss(kernels, tmp_path):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    expected, _ = run(model, batch, kernels)
    model.save_pretrained(tmp_path)
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path)
    assert stock.state_dict().keys() == model.state_dict().keys()
    again, _ = run(BertForPreTraining.from_pretrained(tmp_path).train(), batch, kernels)
    assert torch.equal(again.loss, expected.loss)


def test_an_encoder_that_does_not_learn_still_passes_gradients_on(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    _, all_gradients = run(model, batch, kernels)
    model.zero_grad()
    model.bert.encoder.layer[1:].requires_grad_(False)
    model(**batch).loss.backward()
    assert all(parameter.grad is None for parameter in model.bert.encoder.layer[1:].parameters())
    names = [name for name, p in model.named_parameters() if p.grad is not None]
    assert_gradients_alike({n: model.get_parameter(n).grad for n in names}, {n: all_gradients[n] for n in names}, 1e-6)


@pytest.mark.parametrize(
    "change",
    [{"output_hidden_states": True}, {"output_attentions": True}, {"mask": "left"}, {"inputs_embeds": True}],
    ids=str,
)
def test_what_the_packed_rows_cannot_give_comes_from_stock_layers(kernels, change):
    change = dict(change)
    model = make_model(BertModel, attn_implementation="eager").eval()
    model.use_fast_layers(kernels)
    batch = make_batch(LENGTHS["ragged"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    if change.pop("mask", None):
        inputs = {key: value.flip(1) for key, value in inputs.items()}
    if change.pop("inputs_embeds", None):
        inputs["inputs_embeds"] = model.embeddings.word_embeddings(inputs.pop("input_ids"))
    ours = model(**inputs, **change)
    model.use_fast_layers("off")
    expected = model(**inputs, **change)
    assert torch.equal(ours.last_hidden_state, expected.last_hidden_state)
    assert (ours.hidden_states is None) == ("output_hidden_states" not in change)
    assert (ours.attentions is None) == ("output_attentions" not in change)


def test_models_that_it_does_not_serve_say_why(caplog):
    model = make_model(BertModel, hidden_act="relu")
    with caplog.at_level("INFO"):
        assert not model.use_fast_layers("plain")
    assert "hidden_act is relu" in caplog.text


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_packing_and_unpacking(lengths):
    batch = make_batch(lengths)
    mask = batch["attention_mask"]
    layout = make_layout(mask, tuple(mask.shape), mask.device)
    packed = layout.pack(batch["input_ids"])
    assert layout.num_tokens == sum(lengths)
    assert len(packed) == sum(lengths) or len(packed) % ROW_STEP == 0
    assert torch.equal(packed[layout.num_tokens :], packed[:1].expand(len(packed) - layout.num_tokens))
    assert torch.equal(layout.unpack(packed), batch["input_ids"])
    assert torch.equal(packed[layout.first_rows], batch["input_ids"][:, 0])
    places = mask.flatten().nonzero()[:, 0]
    assert torch.equal(packed[layout.rows_of(places)], batch["input_ids"].flatten()[places])
    assert [group.start for group in layout.groups[1:]] == [group.end for group in layout.groups[:-1]]
    for group in layout.groups:
        sizes = group.offsets.diff()
        assert int(group.offsets[-1]) == group.end - group.start
        longest = int(sizes.max())
        assert longest <= group.length < longest + LENGTH_STEP


@pytest.mark.parametrize(("heads", "expected"), [(1, [2, 3]), (12, [2, 1, 2]), (1000, [2, 1, 1, 1])])
def test_like_lengths_are_computed_together_where_that_pays(heads, expected):
    lengths = torch.tensor([300, 512, 3, 100, 500])
    mask = (torch.arange(512) < lengths[:, None]).long()
    groups = make_layout(mask, tuple(mask.shape), mask.device, heads=heads).groups
    assert [len(group.offsets) - 1 for group in groups] == expected
    for longer, group in itertools.pairwise(groups):
        spared = ((longer.offsets.diff()[0]) ** 2 - group.offsets.diff() ** 2).sum() * heads
        assert spared > GROUP_COST
    for group in make_layout(mask, tuple(mask.shape), mask.device, heads=1000).groups:
        sizes = group.offsets.diff()
        assert int(sizes.min()) >= LIKE_LENGTH * int(sizes.max())


def test_a_label_at_a_pad_is_refused(kernels):
    """It has no row: another token's would be taken."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    batch["labels"][3, 5] = 7
    with pytest.raises(InputError, match="where attention_mask is 0"):
        run(model, batch, kernels)


@pytest.mark.parametrize("rows", [0, 1, 1024, 2500])
def test_the_vocabulary_loss_is_cross_entropy(kernels, rows):
    """With more rows than are held at once, and with none."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 16, generator=generator, requires_grad=True)
    weight = torch.randn(67, 16, generator=generator, requires_grad=True)
    bias = torch.randn(67, generator=generator, requires_grad=True)
    targets = torch.randint(0, 67, (rows,), generator=generator)
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum") / 7
    wanted = torch.autograd.grad(3 * expected, (hidden, weight, bias))
    implementation = load_kernels(kernels, torch.device("cpu"))
    ours = vocabulary_loss(hidden, weight, bias, targets, 7.0, implementation)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    for own, other in zip(torch.autograd.grad(3 * ours, (hidden, weight, bias)), wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4 * float(other.abs().max() if rows else 1))
