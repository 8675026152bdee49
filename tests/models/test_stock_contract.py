"""What transformers asks of any of its models (its `ModelTesterMixin`), of the five families beside
their stock classes.
"""

import copy
import inspect

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.electra import ElectraForMaskedLM

from .packed_models import LENGTHS, VOCAB, assert_gradients_alike, make_batch


pytestmark = pytest.mark.slow

SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 66, "initializer_range": 0.2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 48,
    "initializer_range": 0.2,
}
CONFIGS = {
    "BertForPreTraining": transformers.BertConfig(**SIZES, **NO_DROPOUT),
    "BertForMaskedLM": transformers.BertConfig(**SIZES, **NO_DROPOUT),
    "RobertaForMaskedLM": transformers.RobertaConfig(**SIZES, **NO_DROPOUT, pad_token_id=0),
    "AlbertForPreTraining": transformers.AlbertConfig(
        **SIZES, **NO_DROPOUT, embedding_size=16, classifier_dropout_prob=0.0
    ),
    "DistilBertForMaskedLM": transformers.DistilBertConfig(
        **DISTILBERT, max_position_embeddings=66, dropout=0.0, attention_dropout=0.0
    ),
    "ElectraForPreTraining": transformers.ElectraConfig(
        **SIZES, **NO_DROPOUT, embedding_size=16, generator_size=0.5
    ),
    "ElectraForMaskedLM": transformers.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=16),
}
CLASSES = {kind.__name__: kind for kind in [*MEMBERS.values(), ElectraForMaskedLM]}
EVERY = pytest.mark.parametrize("name", CONFIGS)
WITH_VOCABULARY = pytest.mark.parametrize(
    "name", [name for name in CONFIGS if name != "ElectraForPreTraining"]
)


def build(name, **changes):
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[name])
    config.update(changes)
    return CLASSES[name](config).eval()


def stock_of(name):
    return getattr(transformers, name)


def inputs_for(name, lengths="ragged"):
    """What a model without labels is given."""
    batch = make_batch(LENGTHS[lengths])
    taken = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if name.startswith(("Bert", "Albert", "Electra")):
        taken["token_type_ids"] = batch["token_type_ids"]
    return taken


def with_labels(name):
    """What it is given in training."""
    batch = make_batch(LENGTHS["ragged"])
    taken = inputs_for(name) | {"labels": batch["labels"]}
    if name.endswith("PreTraining") and not name.startswith("Electra"):
        taken["next_sentence_label"] = batch["next_sentence_label"]
    if name == "ElectraForPreTraining":
        taken["draws"] = torch.rand(
            batch["labels"].shape, generator=torch.Generator().manual_seed(1)
        )
    return taken


@torch.no_grad()
def first_output(model, inputs):
    return model(**inputs, return_dict=False)[0]


def assert_weights_equal(found, expected):
    names = dict(expected.named_parameters())
    assert dict(found.named_parameters()).keys() == names.keys()
    for name, weight in found.named_parameters():
        assert torch.equal(weight, names[name]), name


@EVERY
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_saved_model_is_the_same_with_its_output_layer_tied_or_not(tmp_path, name, is_tied):
    model = build(name, tie_word_embeddings=is_tied)
    model.save_pretrained(tmp_path)
    again, info = CLASSES[name].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert_weights_equal(again, model)
    stock, info = stock_of(name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    real = inputs_for(name)["attention_mask"] == 1
    outputs = [first_output(each.eval(), inputs_for(name))[real] for each in (model, again, stock)]
    assert torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2], rtol=1e-4, atol=1e-5)


@EVERY
def test_the_forms_in_which_stock_opens_a_model_work(tmp_path, name):
    model = build(name)
    model.save_pretrained(tmp_path)
    assert_weights_equal(
        CLASSES[name].from_pretrained(pretrained_model_name_or_path=tmp_path), model
    )
    assert_weights_equal(CLASSES[name].from_pretrained(tmp_path, config=model.config), model)
    weights = model.state_dict()
    assert_weights_equal(
        CLASSES[name].from_pretrained(None, config=model.config, state_dict=weights), model
    )
    half = CLASSES[name].from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}


@EVERY
def test_a_weight_that_a_file_lacks_is_named_and_drawn(tmp_path, name):
    model = build(name)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    dropped = [each for each in weights if "embeddings" in each and "LayerNorm" not in each]
    dropped += [each for each in weights if each.endswith("weight") and "layer" in each][:3]
    assert len(dropped) >= 4
    for lost in dropped:
        kept = {key: weight for key, weight in weights.items() if key != lost}
        save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
        again, info = CLASSES[name].from_pretrained(tmp_path, output_loading_info=True)
        _, expected = stock_of(name).from_pretrained(tmp_path, output_loading_info=True)
        assert info["missing_keys"] == expected["missing_keys"]
        assert lost in info["missing_keys"]
        fresh = again.get_parameter(lost)
        assert torch.isfinite(fresh).all()
        assert fresh.abs().max() < 2  # what nobody has drawn may be anything


@EVERY
@pytest.mark.parametrize("size", [VOCAB + 9, VOCAB - 9])
def test_the_vocabulary_may_be_resized(tmp_path, name, size):
    model = build(name)
    before = model.get_input_embeddings().weight.detach().clone()
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == size
    words = model.get_input_embeddings().weight
    kept = min(size, VOCAB)
    assert torch.equal(words[:kept], before[:kept])
    inputs = inputs_for(name)
    inputs["input_ids"] = inputs["input_ids"].clamp(max=size - 1)
    first_output(model, inputs)
    labelled = with_labels(name)
    labelled["input_ids"] = inputs["input_ids"]
    labelled["labels"] = labelled["labels"].clamp(max=size - 1)
    model.train()(**labelled).loss.backward()
    model.save_pretrained(tmp_path)
    _, info = stock_of(name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    again, info = CLASSES[name].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert_weights_equal(again, model)
    if name == "ElectraForPreTraining":
        assert model.generator.electra.embeddings.word_embeddings.weight is words
        assert model.generator.generator_lm_head.weight is words
        assert len(model.generator.generator_lm_head.bias) == size
        _, info = transformers.ElectraForMaskedLM.from_pretrained(
            tmp_path / "generator", output_loading_info=True
        )
        assert not any(info.values())


@EVERY
def test_weights_that_are_one_are_named_as_tied(name):
    model = build(name)
    by_place = {}
    for key, weight in model.state_dict(keep_vars=True).items():
        by_place.setdefault(weight.data_ptr(), []).append(key)
    shared = [keys for keys in by_place.values() if len(keys) > 1]
    assert (
        shared
        or not getattr(model.config, "tie_word_embeddings", True)
        or name == "ElectraForPreTraining"
    )
    for keys in shared:
        assert sum(key in model.all_tied_weights_keys for key in keys) == len(keys) - 1


@EVERY
def test_outputs_are_alike_as_a_tuple_and_by_name_and_as_stocks(name):
    model, inputs = build(name), inputs_for(name)
    stock = stock_of(name)(model.config).eval()
    stock.load_state_dict(model.state_dict(), strict=False)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    for each in (model, stock):
        each.set_attn_implementation("eager")
    real = inputs["attention_mask"] == 1
    with torch.no_grad():
        by_name = model(**inputs, **wanted)
        as_tuple = model(**inputs, **wanted, return_dict=False)
        expected = stock(**inputs, **wanted)
    assert len(as_tuple) == len(by_name.to_tuple()) == len(expected.to_tuple())
    for found, same in zip(as_tuple, by_name.to_tuple(), strict=True):
        if torch.is_tensor(found):
            assert torch.equal(found, same)
    assert len(by_name.hidden_states) == len(expected.hidden_states)
    for found, other in zip(by_name.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(found[real], other[real], rtol=1e-4, atol=1e-5)
    assert len(by_name.attentions) == len(expected.attentions) == 2
    for found, other in zip(by_name.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)


@EVERY
def test_embeddings_may_be_given_instead_of_ids(name):
    model, inputs = build(name), inputs_for(name, "full_rows")
    expected = first_output(model, inputs)
    ids = inputs.pop("input_ids")
    found = first_output(model, inputs | {"inputs_embeds": model.get_input_embeddings()(ids)})
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@EVERY
def test_gradient_checkpointing_changes_no_gradient(name):
    if not stock_of(name).supports_gradient_checkpointing:
        pytest.skip("stock has none here either")
    gradients = []
    for is_checkpointed in (False, True):
        model = build(name).train()
        if is_checkpointed:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        model(**with_labels(name)).loss.backward()
        gradients.append(
            {
                key: weight.grad
                for key, weight in model.named_parameters()
                if weight.grad is not None
            }
        )
    assert gradients[1].keys() == gradients[0].keys()
    assert_gradients_alike(gradients[1], gradients[0], 1e-5)


@EVERY
def test_the_attention_may_be_chosen_later(name):
    model, inputs = build(name), inputs_for(name)
    real = inputs["attention_mask"] == 1
    found = []
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        kinds = {
            each.config._attn_implementation
            for each in model.modules()
            if hasattr(each, "set_attn_implementation")
        }
        assert kinds == {implementation}
        found.append(first_output(model, inputs)[real])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@EVERY
def test_a_copy_is_a_model_of_its_own(name):
    model = build(name)
    copied = copy.deepcopy(model)
    assert torch.equal(
        first_output(copied, inputs_for(name)), first_output(model, inputs_for(name))
    )
    with torch.no_grad():
        copied.get_input_embeddings().weight.zero_()
    assert model.get_input_embeddings().weight.abs().sum() > 0
    if (decoder := copied.get_output_embeddings()) is not None:
        assert decoder.weight is copied.get_input_embeddings().weight
    if name == "ElectraForPreTraining":
        assert copied.generator.generator_lm_head.weight is copied.get_input_embeddings().weight


@EVERY
def test_the_first_argument_is_input_ids_and_labels_are_named_as_labels(name):
    names = list(inspect.signature(CLASSES[name].forward).parameters)
    assert names[:2] == ["self", "input_ids"]
    assert "labels" in names


@WITH_VOCABULARY
def test_the_loss_is_one_number_and_no_label_means_none(name):
    model, batch = build(name).train(), with_labels(name)
    assert model(**batch).loss.shape == ()
    assert model(**inputs_for(name)).loss is None
    batch["labels"] = torch.full_like(batch["labels"], IGNORE_INDEX)
    assert torch.isfinite(model(**batch).loss)
