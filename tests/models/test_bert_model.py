"""Which layers a model gets: other arithmetic, the same weights, names and answers."""

import pytest
import torch
import transformers
from cpu_kernels import need_cpu_kernels
from packed_models import (
    LENGTHS,
    assert_gradients_alike,
    assert_near,
    encoder_inputs,
    gradients_of,
    make_batch,
    make_model,
)
from transformers import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from bert_recipes.models.bert_model import BertModel, enable_packed_layers
from bert_recipes.models.padding_free import make_packing


@pytest.fixture
def inputs():
    return encoder_inputs(make_batch(LENGTHS["ragged"]))


def test_a_stock_model_with_a_head_gets_layers_on_packed_rows(tmp_path, inputs):
    model, labels = make_model(BertForSequenceClassification), torch.arange(6) % 2
    model(**inputs, labels=labels).loss.backward()
    expected, names = gradients_of(model), list(model.state_dict())
    model.zero_grad()
    enable_packed_layers(model, "plain")
    assert isinstance(model.bert, BertModel)
    assert model.bert.fast_kernels is not None
    assert list(model.state_dict()) == names
    model(**inputs, labels=labels).loss.backward()
    assert_gradients_alike(gradients_of(model), expected, 1e-5)
    model.save_pretrained(tmp_path)
    stock = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    logits = model.eval()(**inputs).logits
    assert_near(stock(**inputs).logits, logits, atol=1e-5)


@pytest.mark.parametrize("lengths", ["ragged", "full_rows", "one_long"])
@pytest.mark.parametrize("fast_layers", ["auto", "plain", "eager", "eager, with packing"])
def test_a_head_that_counts_pads_gets_those_of_stock_layers(lengths, fast_layers):
    """Of question answering: its softmax is over all positions (google-research/bert run_squad.py,
    `compute_loss`). Pads attend to the tokens of their sequence, and nobody attends to them.
    """
    kernels = fast_layers.removesuffix(", with packing")
    if kernels == "auto":
        need_cpu_kernels()
    inputs, model = (
        encoder_inputs(make_batch(LENGTHS[lengths])),
        make_model(BertForQuestionAnswering),
    )
    starts = torch.zeros(len(LENGTHS[lengths]), dtype=torch.long)
    inputs |= {"start_positions": starts, "end_positions": torch.arange(len(starts))}
    expected = model(**inputs)
    expected.loss.backward()
    stock_gradients = gradients_of(model)
    model.zero_grad()
    enable_packed_layers(model, kernels)
    if fast_layers.endswith("with packing"):
        inputs["packing"] = make_packing(inputs["attention_mask"])
    output = model(**inputs)
    output.loss.backward()
    assert_near(output.loss, expected.loss)
    assert_near(output.start_logits, expected.start_logits, atol=1e-5)
    assert_gradients_alike(gradients_of(model), stock_gradients, 1e-4)


def test_a_label_on_a_pad_counts_under_a_stock_head_as_it_does_in_stock(kernels, inputs):
    """`from_stock` does not know the head: it may be anybody's."""
    model = make_model(BertForTokenClassification).eval()
    inputs["labels"] = torch.ones_like(inputs["input_ids"])
    expected = model(**inputs).loss
    assert BertModel.from_stock(model.bert).use_fast_layers(kernels)
    assert_near(model(**inputs).loss, expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("fast_layers", ["plain", "off"])
def test_attention_stays_what_the_user_asked_for(attention, fast_layers):
    model = make_model(BertForSequenceClassification, attn_implementation=attention)
    enable_packed_layers(model, fast_layers)
    assert model.config._attn_implementation == attention
    assert (model.bert.fast_kernels is None) == (fast_layers == "off")


def test_other_architectures_keep_what_they_have():
    config = transformers.MPNetConfig(vocab_size=99, hidden_size=32, num_attention_heads=2)
    model = transformers.MPNetForSequenceClassification(config)
    enable_packed_layers(model, "plain")
    assert type(model.mpnet).__module__.startswith("transformers.")


def test_a_model_put_under_our_class_still_tells_of_its_attention_and_draws_no_number(inputs):
    class NewModel(BertModel):
        """A class of which none was ever built, as in a process that opens a fine-tuned checkpoint
        only.
        """

    stock = make_model(transformers.BertModel, attn_implementation="eager").eval()
    inputs |= {"output_attentions": True, "output_hidden_states": True}
    expected = stock(**inputs)
    random_state = torch.get_rng_state()
    output = NewModel.from_stock(stock)(**inputs)
    assert torch.equal(torch.get_rng_state(), random_state)
    for name in ("attentions", "hidden_states"):
        torch.testing.assert_close(output[name], expected[name])
