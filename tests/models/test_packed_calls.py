"""Which models, modules and calls the packed rows serve; stock layers serve the others."""

import pytest
import torch
from packed_models import (
    LENGTHS,
    assert_gradients_alike,
    assert_near,
    count_packed_calls,
    encoder_inputs,
    make_batch,
    make_model,
    run,
)
from torch.nn import functional as F
from transformers.models.bert.modeling_bert import BertSelfAttention

from bert_recipes.errors import InputError
from bert_recipes.models.bert_model import BertModel, warn_once


@pytest.fixture
def batch():
    return make_batch(LENGTHS["ragged"])


@pytest.fixture
def inputs(batch):
    return encoder_inputs(batch)


def hidden_states(model, inputs):
    return model(**inputs).last_hidden_state


def test_dropout_is_what_the_modules_say(kernels, inputs, monkeypatch):
    calls = count_packed_calls(monkeypatch)
    model = make_model(BertModel, dropout=0.3)
    model.use_fast_layers(kernels)
    assert not torch.equal(hidden_states(model, inputs), hidden_states(model, inputs))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    without_dropout = hidden_states(model, inputs)
    assert torch.equal(without_dropout, hidden_states(model.eval(), inputs))
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("zero", "other"), [("output", "attention.output"), ("attention.output", "output")]
)
def test_each_half_of_a_layer_has_its_own_dropout(kernels, inputs, zero, other):
    """What is 0 anyway may be dropped."""
    model = make_model(BertModel, num_hidden_layers=1)
    model.use_fast_layers(kernels)
    zero_half = model.encoder.layer[0].get_submodule(zero)
    with torch.no_grad():
        zero_half.dense.weight.zero_()
        zero_half.dense.bias.zero_()
    zero_half.dropout.p = 0.5
    expected = hidden_states(model, inputs)
    assert torch.equal(hidden_states(model, inputs), expected)
    model.encoder.layer[0].get_submodule(other).dropout.p = 0.5
    assert not torch.equal(hidden_states(model, inputs), expected)


class DoubledLinear(torch.nn.Linear):
    def forward(self, values):
        return 2 * super().forward(values)


class Adapter(torch.nn.Module):
    """No Linear, but with the weight and bias of one."""

    def __init__(self, linear):
        super().__init__()
        self.linear, self.weight, self.bias = linear, linear.weight, linear.bias

    def forward(self, values):
        return 2 * self.linear(values)


class DoubledAttention(BertSelfAttention):
    def forward(self, *args, **kwargs):
        output, weights = super().forward(*args, **kwargs)
        return 2 * output, weights


def change_module(model, change):
    """Adapters, pruning, noise on the embeddings, other parameters, types and abilities."""
    layer, embeddings = model.encoder.layer[1], model.embeddings
    linear = layer.intermediate.dense
    if change == "hook":
        embeddings.word_embeddings.register_forward_hook(lambda *args: 2 * args[-1])
    elif change == "pre_hook":
        linear.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    elif change == "subclass":
        linear.__class__ = DoubledLinear
    elif change == "adapter":
        layer.intermediate.dense = Adapter(linear)
    elif change == "attention":
        layer.attention.self.__class__ = DoubledAttention
    elif change == "forward":
        linear.forward = lambda values: 2 * F.linear(values, linear.weight, linear.bias)
    elif change == "linear_bias":
        layer.intermediate.dense = torch.nn.Linear(48, 100, bias=False)
    elif change == "norm_affine":
        layer.output.LayerNorm = torch.nn.LayerNorm(
            48,
            eps=1e-12,
            elementwise_affine=False,
        )
    elif change == "max_norm":
        embeddings.word_embeddings.max_norm = 0.5
    elif change == "scale_grad":
        embeddings.position_embeddings.scale_grad_by_freq = True
    else:
        model.to({"half": torch.float16, "double": torch.float64}[change])


@pytest.mark.parametrize(
    "change",
    [
        "hook",
        "pre_hook",
        "subclass",
        "adapter",
        "attention",
        "forward",
        "linear_bias",
        "norm_affine",
        "max_norm",
        "scale_grad",
        "half",
        "double",
    ],
)
def test_modules_that_are_not_stocks_are_called_as_they_are(kernels, inputs, monkeypatch, change):
    calls = count_packed_calls(monkeypatch)
    model = make_model(BertModel).eval()
    change_module(model, change)
    expected = hidden_states(model, inputs)
    model.use_fast_layers(kernels)
    assert torch.equal(hidden_states(model, inputs), expected)
    assert not calls


@pytest.mark.parametrize("change", ["activation", "type_padding"])
def test_what_the_packed_rows_can_follow_is_computed_as_stock_does(
    kernels, batch, inputs, monkeypatch, change
):
    calls = count_packed_calls(monkeypatch)
    model = make_model(BertModel)
    if change == "activation":
        model.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.GELU()
    else:
        model.embeddings.token_type_embeddings.padding_idx = 0
    gradients = []
    for fast_layers in ("off", kernels):
        model.zero_grad()
        model.use_fast_layers(fast_layers)
        token_states = hidden_states(model, inputs) * batch["attention_mask"][..., None]
        token_states.square().sum().backward()
        gradients.append(model.embeddings.token_type_embeddings.weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("settings", "has_packed_rows"),
    [
        ({"output_hidden_states": True}, False),
        ({"output_attentions": True}, False),
        ({"pads": "left"}, False),
        ({"inputs_embeds": True}, False),
        # Counts of the stock Trainer.
        ({"num_items_in_batch": torch.tensor([7, 8]), "use_cache": False}, True),
    ],
    ids=str,
)
def test_calls_that_packed_rows_cannot_serve_come_from_stock_layers(
    kernels, batch, inputs, monkeypatch, settings, has_packed_rows
):
    calls = count_packed_calls(monkeypatch)
    settings = dict(settings)
    model = make_model(BertModel, attn_implementation="eager").eval()
    if settings.pop("pads", None):
        inputs = {name: values.flip(1) for name, values in inputs.items()}
    if settings.pop("inputs_embeds", None):
        inputs["inputs_embeds"] = model.embeddings.word_embeddings(inputs.pop("input_ids"))
    expected = model(**inputs, **settings)
    model.use_fast_layers(kernels)
    output = model(**inputs, **settings)
    assert len(calls) == has_packed_rows
    if not has_packed_rows:
        assert torch.equal(output.last_hidden_state, expected.last_hidden_state)
    assert (output.hidden_states is None) == ("output_hidden_states" not in settings)
    assert (output.attentions is None) == ("output_attentions" not in settings)
    # Hooks of transformers that collect them stay on the layers, and do not turn them off for good.
    model(**encoder_inputs(batch))
    assert len(calls) == has_packed_rows + 1


def test_models_that_it_does_not_serve_say_why(caplog):
    model = make_model(BertModel, hidden_act="relu")
    with caplog.at_level("INFO"):
        assert not model.use_fast_layers("plain")
    assert "hidden_act is relu" in caplog.text
    # Keys would be fewer than queries, which flash attention aligns at their ends.
    decoder = make_model(BertModel, is_decoder=True)
    decoder.computes_pads = True
    with caplog.at_level("INFO"):
        assert not decoder.use_fast_layers("eager")
    assert "it is a decoder that computes pads" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int32])
def test_masks_of_any_type_say_where_the_tokens_are(kernels, batch, dtype):
    model, mask = make_model(), batch["attention_mask"]
    expected, gradients = run(model, batch, kernels)
    for computes_pads in (False, True):
        model.bert.computes_pads = computes_pads
        output, same = run(model, batch | {"attention_mask": mask.to(dtype)}, kernels)
        assert_near(output.loss, expected.loss)
        assert_gradients_alike(same, gradients, 1e-5)
    output, _ = run(model, batch | {"attention_mask": 3 * mask}, kernels)
    assert_near(output.loss, expected.loss)


def test_token_types_may_be_one_row_for_all_and_labels_of_any_integer_type(kernels, batch):
    model = make_model()
    types = torch.ones_like(batch["token_type_ids"])
    expected, _ = run(model, batch | {"token_type_ids": types}, kernels)
    one_row = batch | {"token_type_ids": types[:1], "labels": batch["labels"].int()}
    output, _ = run(model, one_row, kernels)
    assert torch.equal(output.loss, expected.loss)


def test_a_label_at_a_pad_is_refused(kernels, batch):
    """It has no row: another token's would be taken."""
    batch["labels"][3, 5] = 7
    with pytest.raises(InputError, match="where attention_mask is 0"):
        run(make_model(), batch, kernels)


@pytest.mark.parametrize("change", ["hook", "double", "hidden_states"])
def test_the_head_is_stocks_where_the_vocabulary_loss_does_not_serve(kernels, batch, change):
    """In training, where the packed rows would never hold the logits."""
    model = make_model()
    if change == "hook":
        model.cls.predictions.decoder.register_forward_hook(lambda *args: 2 * args[-1])
    elif change == "double":
        model = model.double()
    else:
        batch |= {"output_hidden_states": True}
    expected, stock_gradients = run(model, batch, "off")
    output, gradients = run(model, batch, kernels)
    assert output.prediction_logits is not None
    assert_near(output.loss, expected.loss)
    assert_gradients_alike(gradients, stock_gradients, 1e-5)


# What hangs on a whole encoder or head


def altered(output):
    """An output of a module, changed in every number."""
    if isinstance(output, torch.Tensor):
        return 2 * output + 0.5 if output.is_floating_point() else output
    if isinstance(output, tuple):
        return tuple(map(altered, output))
    for name in ("last_hidden_state", "pooler_output"):
        if hasattr(output, name):
            output[name] = altered(output[name])
    return output


def change_output(model, part, change):
    """Hang something on a part of a model that shows in its output."""
    module = model.get_submodule(part)
    kind, forward = type(module), module.forward
    if change == "hook":
        module.register_forward_hook(lambda *args: altered(args[-1]))
    elif change == "pre_hook":
        module.register_forward_pre_hook(lambda module, args: tuple(map(altered, args)))
    elif change == "forward":
        module.forward = lambda *args, **kwargs: altered(forward(*args, **kwargs))
    else:

        class Subclass(kind):
            def forward(self, *args, **kwargs):
                return altered(super().forward(*args, **kwargs))

        module.__class__ = Subclass


# The arguments of the encoder are names and integers: no pre_hook changes them.
HUNG = [("bert", change) for change in ("hook", "forward", "subclass")]
for head in ("cls", "cls.predictions", "bert.pooler"):
    HUNG += [(head, change) for change in ("hook", "pre_hook", "forward", "subclass")]


@pytest.mark.parametrize(("part", "change"), HUNG)
@pytest.mark.parametrize("with_labels", [True, False])
def test_what_hangs_on_a_whole_part_is_called(kernels, batch, part, change, with_labels):
    """In training and in evaluation, with the outputs of stock layers."""
    model, names = make_model(), ["mlm_loss", "nsp_loss"]
    if not with_labels:
        model.eval()
        batch, names = encoder_inputs(batch), ["prediction_logits", "seq_relationship_logits"]
    unchanged = model(**batch)
    change_output(model, part, change)
    expected = model(**batch)
    model.bert.use_fast_layers(kernels)
    output = model(**batch)
    is_token = batch["attention_mask"].bool()
    for name in names:
        value, reference = output[name], expected[name]
        if name == "prediction_logits":
            value, reference = value[is_token], reference[is_token]
        torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-4)
    name = names[1] if part == "bert.pooler" else names[0]
    assert not torch.allclose(expected[name], unchanged[name], rtol=1e-3)


def test_a_call_that_falls_back_says_why_and_says_it_once(kernels, batch, caplog):
    """The log has said before that the layers are on packed rows."""
    warn_once.cache_clear()
    model = make_model()
    model.bert.use_fast_layers(kernels)
    flipped = {name: values.flip(1) for name, values in encoder_inputs(batch).items()}
    with caplog.at_level("WARNING"):
        for _ in range(2):
            model(**flipped)
        model(**batch)
        model.bert.encoder.layer[2].output.dense.register_forward_hook(lambda *args: None)
        model(**batch)
        model.cls.register_forward_hook(lambda *args: None)
        model(**batch)
    assert [record.getMessage() for record in caplog.records] == [
        "stock layers for calls like this one, which is slower: a row does not begin with a token",
        "stock layers for calls like this one, which is slower: encoder.layer.2.output.dense is "
        "not as stock BERT has it (hooks, another type or forward)",
        "padded hidden states and the stock head for calls like this one, which is slower: "
        "encoder or heads have hooks, another type or a forward",
    ]
    model.bert.use_fast_layers("off")
    caplog.clear()
    model(**flipped)
    assert not caplog.records
