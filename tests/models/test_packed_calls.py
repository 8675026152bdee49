"""Which models, modules and calls the packed rows serve; stock layers serve the others."""

import functools

import pytest
import torch
from packed_models import (
    LENGTHS,
    assert_gradients_alike,
    count_packed_calls,
    make_batch,
    make_model,
    run,
)
from transformers.models.bert.modeling_bert import BertSelfAttention

from bert_recipes.errors import InputError
from bert_recipes.models.bert_model import BertModel, say_once


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
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("silent", "other"), [("output", "attention.output"), ("attention.output", "output")]
)
def test_each_half_of_a_layer_has_its_own_dropout(kernels, silent, other):
    """What is 0 anyway may be dropped."""
    model, batch = make_model(BertModel, num_hidden_layers=1), make_batch(LENGTHS["ragged"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    model.use_fast_layers(kernels)
    silent, other = (model.encoder.layer[0].get_submodule(name) for name in (silent, other))
    with torch.no_grad():
        silent.dense.weight.zero_()
        silent.dense.bias.zero_()
    silent.dropout.p = 0.5
    expected = model(**inputs).last_hidden_state
    assert torch.equal(model(**inputs).last_hidden_state, expected)
    other.dropout.p = 0.5
    assert not torch.equal(model(**inputs).last_hidden_state, expected)


@pytest.mark.parametrize(
    "change", ["hook", "pre_hook", "subclass", "wrapper", "attention", "forward", "half", "double"]
)
def test_modules_that_are_not_what_they_were_are_called_as_they_are(kernels, monkeypatch, change):
    """Adapters, pruning, noise on the embeddings, other types of numbers."""
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel).eval(), make_batch(LENGTHS["ragged"])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    linear = model.encoder.layer[1].intermediate.dense

    class Doubled(torch.nn.Linear):
        def forward(self, values):
            return 2 * super().forward(values)

    class Wrapped(torch.nn.Module):
        """As adapters do it: no Linear, but with its weight and bias."""

        def __init__(self, inner):
            super().__init__()
            self.inner, self.weight, self.bias = inner, inner.weight, inner.bias

        def forward(self, values):
            return 2 * self.inner(values)

    class OtherAttention(BertSelfAttention):
        def forward(self, *args, **kwargs):
            output, *rest = super().forward(*args, **kwargs)
            return (2 * output, *rest)

    if change == "hook":
        model.embeddings.word_embeddings.register_forward_hook(
            lambda module, args, output: 2 * output
        )
    elif change == "pre_hook":
        linear.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    elif change == "subclass":
        linear.__class__ = Doubled
    elif change == "wrapper":
        model.encoder.layer[1].intermediate.dense = Wrapped(linear)
    elif change == "attention":
        model.encoder.layer[1].attention.self.__class__ = OtherAttention
    elif change == "forward":
        linear.forward = lambda values: (
            2 * torch.nn.functional.linear(values, linear.weight, linear.bias)
        )
    else:
        model = getattr(model, change)()
    expected = model(**inputs).last_hidden_state
    model.use_fast_layers(kernels)
    assert torch.equal(model(**inputs).last_hidden_state, expected)
    assert not calls


@pytest.mark.parametrize("change", ["activation", "type_padding"])
def test_what_the_packed_rows_can_follow_is_computed_as_stock_does(kernels, monkeypatch, change):
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel), make_batch(LENGTHS["ragged"])
    if change == "activation":
        model.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.GELU()
    else:
        model.embeddings.token_type_embeddings.padding_idx = 0
    found = []
    for fast_layers in ("off", kernels):
        model.zero_grad()
        model.use_fast_layers(fast_layers)
        hidden = model(
            batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
        ).last_hidden_state
        (hidden * batch["attention_mask"][..., None]).square().sum().backward()
        found.append(model.embeddings.token_type_embeddings.weight.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)
    assert len(calls) == 1


def test_counts_of_the_stock_trainer_do_not_turn_the_layers_off(kernels, monkeypatch):
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel), make_batch(LENGTHS["ragged"])
    model.use_fast_layers(kernels)
    model(batch["input_ids"], num_items_in_batch=torch.tensor([7, 8]), use_cache=False)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"output_hidden_states": True},
        {"output_attentions": True},
        {"mask": "left"},
        {"inputs_embeds": True},
    ],
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int32])
def test_masks_of_any_type_say_where_the_tokens_are(kernels, dtype):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    expected, gradients = run(model, batch, kernels)
    for computes_pads in (False, True):
        model.bert.computes_pads = computes_pads
        ours, found = run(
            model, batch | {"attention_mask": batch["attention_mask"].to(dtype)}, kernels
        )
        torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-5, atol=1e-6)
        assert_gradients_alike(found, gradients, 1e-5)
    larger, _ = run(model, batch | {"attention_mask": 3 * batch["attention_mask"]}, kernels)
    torch.testing.assert_close(larger.loss, expected.loss, rtol=1e-5, atol=1e-6)


def test_token_types_may_be_one_row_for_all_and_labels_of_any_integer_type(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    batch["token_type_ids"] = torch.ones_like(batch["token_type_ids"])
    expected, _ = run(model, batch, kernels)
    one_row = batch | {
        "token_type_ids": batch["token_type_ids"][:1],
        "labels": batch["labels"].int(),
    }
    assert torch.equal(run(model, one_row, kernels)[0].loss, expected.loss)


def test_a_label_at_a_pad_is_refused(kernels):
    """It has no row: another token's would be taken."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    batch["labels"][3, 5] = 7
    with pytest.raises(InputError, match="where attention_mask is 0"):
        run(model, batch, kernels)


@pytest.mark.parametrize("change", ["hook", "double", "hidden_states"])
def test_the_head_is_stocks_where_the_vocabulary_loss_does_not_serve(kernels, change):
    """In training, where the packed rows would never hold the logits."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    if change == "hook":
        model.cls.predictions.decoder.register_forward_hook(lambda module, args, output: 2 * output)
    elif change == "double":
        model = model.double()
    else:
        batch |= {"output_hidden_states": True}
    expected, stock_gradients = run(model, batch, "off")
    ours, gradients = run(model, batch, kernels)
    assert ours.prediction_logits is not None
    torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert_gradients_alike(gradients, stock_gradients, 1e-5)


def change_part(model, part, change):
    """Hang something on a part of a model that shows in its output, or in what is recorded."""
    module = model.get_submodule(part)
    if change == "hook":
        module.register_forward_hook(lambda module, args, output: altered(output))
    elif change == "pre_hook":
        module.register_forward_pre_hook(
            lambda module, args, kwargs: (tuple(map(altered, args)), kwargs), with_kwargs=True
        )
    elif change == "forward":
        original = module.forward
        module.forward = lambda *args, **kwargs: altered(original(*args, **kwargs))
    else:
        module.__class__ = type(
            "Own",
            (type(module),),
            {"forward": functools.partialmethod(altered_forward, type(module))},
        )


def altered_forward(self, cls, *args, **kwargs):
    return altered(cls.forward(self, *args, **kwargs))


def altered(output):
    if isinstance(output, torch.Tensor):
        return 2 * output + 0.5 if output.is_floating_point() else output
    if isinstance(output, tuple):
        return tuple(map(altered, output))
    for name in (
        ("last_hidden_state", "pooler_output") if hasattr(output, "last_hidden_state") else ()
    ):
        output[name] = 2 * output[name] + 0.5
    return output


@pytest.mark.parametrize("change", ["hook", "pre_hook", "forward", "subclass"])
@pytest.mark.parametrize("part", ["bert", "cls", "cls.predictions", "bert.pooler"])
@pytest.mark.parametrize("with_labels", [True, False])
def test_what_hangs_on_a_whole_part_is_called(kernels, part, change, with_labels):
    """In training and in evaluation, with the outputs of stock layers."""
    if (part, change) == ("bert", "pre_hook"):
        pytest.skip("the arguments of the encoder are names and integers")
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    if not with_labels:
        model.eval()
        batch = {name: value for name, value in batch.items() if "label" not in name}
    plain_output = model(**batch)
    change_part(model, part, change)
    outputs = []
    for fast_layers in ("off", kernels):
        model.bert.use_fast_layers(fast_layers)
        outputs.append(model(**batch))
    expected, ours = outputs
    names = (
        ("mlm_loss", "nsp_loss")
        if with_labels
        else ("prediction_logits", "seq_relationship_logits")
    )
    places = batch["attention_mask"].bool()
    for name in names:
        own, other = getattr(ours, name), getattr(expected, name)
        if name == "prediction_logits":
            own, other = own[places], other[places]
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
    changed = names[1] if part == "bert.pooler" else names[0]
    assert not torch.allclose(getattr(expected, changed), getattr(plain_output, changed), rtol=1e-3)


def test_one_call_for_hidden_states_does_not_turn_the_layers_off_for_good(kernels, monkeypatch):
    """Hooks of transformers that collect them stay on the layers."""
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel).eval(), make_batch(LENGTHS["ragged"])
    model.use_fast_layers(kernels)
    assert model(batch["input_ids"], output_hidden_states=True).hidden_states is not None
    assert not calls
    model(batch["input_ids"])
    assert len(calls) == 1


@pytest.mark.parametrize(
    "change",
    ["linear_bias", "norm_affine", "max_norm", "scale_grad"],
)
def test_modules_with_other_parameters_or_abilities_are_called_as_they_are(
    kernels, monkeypatch, change
):
    calls = count_packed_calls(monkeypatch)
    model, batch = make_model(BertModel).eval(), make_batch(LENGTHS["ragged"])
    layer, embeddings = model.encoder.layer[1], model.embeddings
    if change == "linear_bias":
        layer.intermediate.dense = torch.nn.Linear(48, 100, bias=False)
    elif change == "norm_affine":
        layer.output.LayerNorm = torch.nn.LayerNorm(48, eps=1e-12, elementwise_affine=False)
    elif change == "max_norm":
        embeddings.word_embeddings.max_norm = 0.5
    else:
        embeddings.position_embeddings.scale_grad_by_freq = True
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    expected = model(**inputs).last_hidden_state
    model.use_fast_layers(kernels)
    assert torch.equal(model(**inputs).last_hidden_state, expected)
    assert not calls


def test_a_call_that_falls_back_says_why_and_says_it_once(kernels, caplog):
    """The log has said before that the layers are on packed rows."""
    say_once.cache_clear()
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    model.bert.use_fast_layers(kernels)
    flipped = {name: value.flip(1) for name, value in batch.items() if value.dim() == 2}
    with caplog.at_level("WARNING"):
        for _ in range(2):
            model(**flipped)
        model(**batch)
        model.bert.encoder.layer[2].output.dense.register_forward_hook(
            lambda module, args, output: output
        )
        model(**batch)
        model.cls.register_forward_hook(lambda module, args, output: output)
        model(**batch)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "stock layers for calls like this one, which is slower: a row does not begin with a token",
        "stock layers for calls like this one, which is slower: encoder.layer.2.output.dense is "
        "not as stock BERT has it "
        "(hooks, another type or forward)",
        "padded hidden states and the stock head for calls like this one, which is slower: "
        "encoder or heads have hooks, another "
        "type or a forward",
    ]
    model.bert.use_fast_layers("off")
    caplog.clear()
    model(**flipped)
    assert not caplog.records
