"""A vocabulary that grows: new rows are means of old ones, everything else stays."""

import pytest
import torch
import transformers

from bert_recipes.models.bert import BertForPreTraining, add_tokens
from bert_recipes.models.sizes import pretraining_config


OLD = 60


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=OLD)).eval()
    with torch.no_grad():
        model.cls.predictions.bias.copy_(torch.randn(OLD))
    return model


def test_new_rows_are_means_and_old_ones_stay(model):
    weight = model.bert.embeddings.word_embeddings.weight.detach().clone()
    bias = model.cls.predictions.bias.detach().clone()
    add_tokens(model, {OLD: [7, 9, 7], OLD + 1: [30]}, OLD + 2)
    grown = model.bert.embeddings.word_embeddings.weight
    assert grown.shape[0] == model.config.vocab_size == OLD + 2
    assert torch.equal(grown[:OLD], weight)
    torch.testing.assert_close(grown[OLD], weight[[7, 9, 7]].mean(dim=0))
    assert torch.equal(grown[OLD + 1], weight[30])
    # One weight and one bias, still.
    assert model.cls.predictions.decoder.weight is grown
    assert model.cls.predictions.decoder.bias is model.cls.predictions.bias
    torch.testing.assert_close(model.cls.predictions.bias[: OLD + 1], torch.cat([bias, bias[[7, 9, 7]].mean()[None]]))


def test_what_it_says_about_old_tokens_stays(model):
    ids = torch.randint(5, OLD, (2, 12))
    before = model(ids).prediction_logits
    add_tokens(model, {OLD: [7, 9]}, OLD + 1)
    after = model(ids).prediction_logits
    torch.testing.assert_close(after[..., :OLD], before)
    torch.testing.assert_close(after[..., OLD], before[..., [7, 9]].mean(dim=-1))


def test_stock_opens_it(model, tmp_path):
    add_tokens(model, {OLD: [7, 9]}, OLD + 1)
    model.save_pretrained(tmp_path)
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[5, OLD, 8]])
    torch.testing.assert_close(stock(ids).prediction_logits, model(ids).prediction_logits, atol=1e-5, rtol=1e-5)


def test_rows_that_padded_the_vocabulary_are_taken_first(model):
    add_tokens(model, {OLD - 4: [7, 9]}, OLD - 3)
    assert model.config.vocab_size == OLD
    weight = model.bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(weight[OLD - 4], weight[[7, 9]].mean(dim=0))


def test_ids_out_of_range_are_a_callers_error(model):
    with pytest.raises(ValueError, match="old ids below 60"):
        add_tokens(model, {OLD: [OLD]}, OLD + 1)
    with pytest.raises(ValueError, match="new ids below 61"):
        add_tokens(model, {OLD + 1: [7]}, OLD + 1)
