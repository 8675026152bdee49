"""What transformers asks of any of its models (its `ModelTesterMixin`), of the five families beside
their stock classes.
"""

import copy
import inspect

import pytest
import torch
import transformers
from member_models import CLASSES, CONFIGS, batch_for, build, build_stock
from packed_models import LENGTHS, VOCAB, assert_gradients_alike, gradients_of
from safetensors.torch import load_file, save_file

from bert_recipes.data.masking import IGNORE_INDEX


pytestmark = [pytest.mark.slow, pytest.mark.parametrize("name", CONFIGS)]


def inputs_for(name, lengths="ragged"):
    """What a model without labels is given."""
    batch = batch_for(name, LENGTHS[lengths])
    names = ["input_ids", "attention_mask"]
    if not name.startswith("DistilBert"):
        names.append("token_type_ids")
    return {name: batch[name] for name in names}


def labelled_inputs(name):
    """What it is given in training."""
    batch = batch_for(name, LENGTHS["ragged"])
    if name == "ElectraForPreTraining":
        generator = torch.Generator().manual_seed(1)
        batch["draws"] = torch.rand(batch["labels"].shape, generator=generator)
    if name.startswith("DistilBert"):
        del batch["token_type_ids"]
    return batch


@torch.no_grad()
def first_output(model, inputs):
    return model.eval()(**inputs, return_dict=False)[0]


def load(kind, folder):
    """The model of a folder that has all its weights and no other."""
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    return model


def assert_weights_equal(model, expected):
    weights = dict(expected.named_parameters())
    assert dict(model.named_parameters()).keys() == weights.keys()
    for name, weight in model.named_parameters():
        assert torch.equal(weight, weights[name]), name


def test_the_forms_in_which_stock_opens_a_model_work(tmp_path, name):
    model, kind = build(name), CLASSES[name]
    model.save_pretrained(tmp_path)
    weights = model.state_dict()
    assert_weights_equal(kind.from_pretrained(pretrained_model_name_or_path=tmp_path), model)
    assert_weights_equal(kind.from_pretrained(tmp_path, config=model.config), model)
    from_weights = kind.from_pretrained(None, config=model.config, state_dict=weights)
    assert_weights_equal(from_weights, model)
    half = kind.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}


def test_a_weight_that_a_file_lacks_is_named_and_drawn(tmp_path, name):
    build(name).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    keys = [key for key in weights if "embeddings" in key and "LayerNorm" not in key]
    keys += [key for key in weights if key.endswith("weight") and "layer" in key][:3]
    assert len(keys) >= 4
    for key in keys:
        incomplete = {name: weights[name] for name in weights if name != key}
        save_file(incomplete, file, metadata={"format": "pt"})
        model, info = CLASSES[name].from_pretrained(tmp_path, output_loading_info=True)
        stock = getattr(transformers, name)
        _, expected = stock.from_pretrained(tmp_path, output_loading_info=True)
        assert key in info["missing_keys"]
        assert info["missing_keys"] == expected["missing_keys"]
        weight = model.get_parameter(key)
        assert weight.isfinite().all()
        assert weight.abs().max() < 2  # what nobody has drawn may be anything


@pytest.mark.parametrize("size", [VOCAB + 9, VOCAB - 9])
def test_the_vocabulary_may_be_resized(tmp_path, name, size):
    model = build(name)
    old_words = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == size
    words, num_common = model.get_input_embeddings().weight, min(size, VOCAB)
    assert torch.equal(words[:num_common], old_words[:num_common])
    batch = labelled_inputs(name)
    for field in ("input_ids", "labels"):
        batch[field] = batch[field].clamp(max=size - 1)
    model(**batch).loss.backward()
    model.save_pretrained(tmp_path)
    load(getattr(transformers, name), tmp_path)
    assert_weights_equal(load(CLASSES[name], tmp_path), model)
    if name == "ElectraForPreTraining":
        generator = model.generator
        assert generator.electra.embeddings.word_embeddings.weight is words
        assert generator.generator_lm_head.weight is words
        assert len(generator.generator_lm_head.bias) == size
        load(transformers.ElectraForMaskedLM, tmp_path / "generator")


def test_outputs_are_alike_as_a_tuple_and_by_name_and_as_stocks(name):
    model, inputs = build(name).eval(), inputs_for(name)
    stock = build_stock(model).eval()
    model.set_attn_implementation("eager")
    stock.set_attn_implementation("eager")
    inputs |= {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        by_name, expected = model(**inputs), stock(**inputs)
        as_tuple = model(**inputs, return_dict=False)
    assert len(as_tuple) == len(by_name.to_tuple()) == len(expected.to_tuple())
    for value, same in zip(as_tuple, by_name.to_tuple(), strict=True):
        if torch.is_tensor(value):
            assert torch.equal(value, same)
    is_token = inputs["attention_mask"] == 1
    for states, reference in zip(by_name.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(
            states[is_token],
            reference[is_token],
            rtol=1e-4,
            atol=1e-5,
        )
    assert by_name.attentions
    for weights, reference in zip(by_name.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(weights, reference, rtol=1e-4, atol=1e-5)


def test_embeddings_may_be_given_instead_of_ids(name):
    model, inputs = build(name), inputs_for(name, "full_rows")
    expected = first_output(model, inputs)
    inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
    torch.testing.assert_close(
        first_output(model, inputs),
        expected,
        rtol=1e-4,
        atol=1e-5,
    )


def test_gradient_checkpointing_changes_no_gradient(name):
    if not getattr(transformers, name).supports_gradient_checkpointing:
        pytest.skip("stock has none here either")
    model, batch = build(name), labelled_inputs(name)
    model(**batch).loss.backward()
    expected = gradients_of(model)
    model.zero_grad()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    model(**batch).loss.backward()
    assert_gradients_alike(gradients_of(model), expected, 1e-5)


def test_the_attention_may_be_chosen_later(name):
    model, inputs = build(name), inputs_for(name)
    is_token, outputs = inputs["attention_mask"] == 1, []
    for attention in ("sdpa", "eager"):
        model.set_attn_implementation(attention)
        for module in model.modules():
            if hasattr(module, "set_attn_implementation"):
                assert module.config._attn_implementation == attention
        outputs.append(first_output(model, inputs)[is_token])
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def test_a_copy_is_a_model_of_its_own(name):
    model, inputs = build(name), inputs_for(name)
    copied = copy.deepcopy(model)
    assert torch.equal(first_output(copied, inputs), first_output(model, inputs))
    words, decoder = copied.get_input_embeddings().weight, copied.get_output_embeddings()
    with torch.no_grad():
        words.zero_()
    assert model.get_input_embeddings().weight.abs().sum() > 0
    assert decoder is None or decoder.weight is words
    if name == "ElectraForPreTraining":
        assert copied.generator.generator_lm_head.weight is words


def test_the_first_argument_is_input_ids_and_labels_are_named_as_labels(name):
    names = list(inspect.signature(CLASSES[name].forward).parameters)
    assert names[:2] == ["self", "input_ids"]
    assert "labels" in names


def test_the_loss_is_one_number_and_no_label_means_none(name):
    if name == "ElectraForPreTraining":
        pytest.skip("its discriminator has labels of its own making")
    model, batch = build(name), labelled_inputs(name)
    assert model(**batch).loss.shape == ()
    assert model(**inputs_for(name)).loss is None
    batch["labels"] = torch.full_like(batch["labels"], IGNORE_INDEX)
    assert model(**batch).loss.isfinite()
