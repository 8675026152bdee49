"""Which layers a model gets: other arithmetic, the same weights, names and answers."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
)

from bert_recipes.models.bert_model import BertModel, enable_packed_layers
from bert_recipes.models.kernels.loading import load_kernels


SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
BATCH = {
    "input_ids": torch.arange(1, 25).view(2, 12),
    "attention_mask": (torch.arange(12) < torch.tensor([[12], [7]])).long(),
    "labels": torch.tensor([0, 1]),
}


def make_classifier(**settings):
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES, **settings))


def gradients(model):
    model.zero_grad()
    model(**BATCH).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_a_stock_model_with_a_head_gets_layers_on_packed_rows(tmp_path):
    model = make_classifier(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    expected, names = gradients(model), list(model.state_dict())
    enable_packed_layers(model, "plain")
    assert isinstance(model.bert, BertModel)
    assert model.bert.fast_kernels is not None
    assert list(model.state_dict()) == names
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    model.save_pretrained(tmp_path)
    again = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(
        again(**BATCH).logits, model.eval()(**BATCH).logits, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("fast_layers", ["auto", "plain"])
@pytest.mark.parametrize("lengths", [(12, 7), (12, 12), (12, 1)], ids=str)
def test_a_head_that_counts_pads_gets_those_of_stock_layers(lengths, fast_layers):
    """Of question answering: its softmax is over all positions (google-research/bert run_squad.py,
    `compute_loss`).
    """
    if load_kernels(fast_layers, torch.device("cpu")) is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    torch.manual_seed(0)
    config = BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForQuestionAnswering(config).train()
    inputs = {
        "input_ids": BATCH["input_ids"],
        "attention_mask": (torch.arange(12) < torch.tensor(lengths)[:, None]).long(),
    }
    inputs |= {"start_positions": torch.tensor([3, 0]), "end_positions": torch.tensor([5, 0])}

    def outputs():
        model.zero_grad()
        output = model(**inputs)
        output.loss.backward()
        return output, {
            name: parameter.grad.clone() for name, parameter in model.named_parameters()
        }

    expected, wanted = outputs()
    enable_packed_layers(model, fast_layers)
    assert model.bert.fast_kernels is not None
    ours, found = outputs()
    torch.testing.assert_close(ours.start_logits, expected.start_logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-5, atol=1e-6)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fast_layers", ["auto", "plain"])
def test_a_label_on_a_pad_counts_under_a_stock_head_as_it_does_in_stock(fast_layers):
    """`from_stock` does not know the head: it may be anybody's."""
    if load_kernels(fast_layers, torch.device("cpu")) is None:
        pytest.skip("no compiler, or no x86-64 with AVX2")
    torch.manual_seed(0)
    model = BertForTokenClassification(BertConfig(**SIZES)).eval()
    batch = BATCH | {"labels": torch.ones_like(BATCH["input_ids"])}
    expected = model(**batch).loss
    assert BertModel.from_stock(model.bert).use_fast_layers(fast_layers)
    torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("fast_layers", ["plain", "off"])
def test_attention_stays_what_the_user_asked_for(attention, fast_layers):
    model = make_classifier(attention_probs_dropout_prob=0.1, attn_implementation=attention)
    enable_packed_layers(model, fast_layers)
    assert model.config._attn_implementation == attention
    assert (model.bert.fast_kernels is None) == (fast_layers == "off")


def test_other_architectures_keep_what_they_have():
    other = MPNetForSequenceClassification(MPNetConfig(**SIZES))
    enable_packed_layers(other, "plain")
    assert type(other.mpnet).__module__.startswith("transformers.")


def test_a_model_put_under_our_class_still_tells_of_its_attention():
    class Own(BertModel):
        """A class of which none was ever built, as in a process that opens a fine-tuned checkpoint
        only.
        """

    model = make_classifier(attn_implementation="eager").eval()
    expected = model.bert(BATCH["input_ids"], output_attentions=True, output_hidden_states=True)
    own = Own.from_stock(make_classifier(attn_implementation="eager").bert.eval())
    seen = own(BATCH["input_ids"], output_attentions=True, output_hidden_states=True)
    for name in ("attentions", "hidden_states"):
        for own_layer, layer in zip(getattr(seen, name), getattr(expected, name), strict=True):
            torch.testing.assert_close(own_layer, layer)


def test_putting_a_model_under_our_class_draws_no_random_number():
    class Own(BertModel):
        """As above."""

    bert = make_classifier().bert
    state = torch.get_rng_state()
    Own.from_stock(bert)
    assert torch.equal(torch.get_rng_state(), state)
