"""The model against stock transformers, and a vocabulary that grows. Source: google-research/bert
modeling.py, run_pretraining.py.
"""

import json

import pytest
import torch
import transformers
from packed_models import (
    LENGTHS,
    VOCAB,
    assert_gradients_alike,
    encoder_inputs,
    gradients_of,
    make_batch,
)
from torch.nn import functional as F

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.checkpoints import add_tokens
from bert_recipes.models.sizes import pretraining_config


def make_model(**settings):
    torch.manual_seed(0)
    return BertForPreTraining(pretraining_config("tiny", vocab_size=VOCAB, dropout=0.0, **settings))


@pytest.fixture
def batch():
    return make_batch(LENGTHS["ragged"])


def test_loss_logits_and_gradients_equal_the_stock_model(tmp_path, batch):
    model = make_model()
    model.save_pretrained(tmp_path)
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path).train()
    output, expected = model(**batch), stock(**batch)
    output.loss.backward()
    expected.loss.backward()
    assert output.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    masked_logits = expected.prediction_logits[batch["labels"] != -100]
    assert torch.allclose(output.prediction_logits, masked_logits, atol=1e-5)
    pair_logits = expected.seq_relationship_logits
    assert torch.allclose(output.seq_relationship_logits, pair_logits, atol=1e-5)
    assert_gradients_alike(gradients_of(model), gradients_of(stock), 1e-5)


def test_only_masked_positions_meet_the_vocabulary_in_training(batch):
    model = make_model()
    num_masked = int((batch["labels"] != -100).sum())
    masked, full = (num_masked, VOCAB), (*batch["input_ids"].shape, VOCAB)
    assert model(**batch).prediction_logits.shape == masked
    assert model(**batch, return_full_logits=True).prediction_logits.shape == full
    model.eval()
    output = model(**batch)
    assert output.prediction_logits.shape == full
    short_output = model(**batch, return_full_logits=False)
    assert short_output.prediction_logits.shape == masked
    assert short_output.loss.item() == pytest.approx(output.loss.item(), rel=1e-6)
    del batch["labels"]
    assert model(**batch).prediction_logits.shape == full


# A class with fewer heads leaves the weights of the other heads unused.
UNUSED_WEIGHTS = {
    "BertForPreTraining": (),
    "BertForMaskedLM": ("bert.pooler", "cls.seq"),
    "AutoModel": ("cls",),
    "BertForNextSentencePrediction": ("cls.predictions",),
}


@pytest.mark.parametrize("loader", UNUSED_WEIGHTS)
def test_checkpoint_loads_in_stock_classes_without_missing_keys(tmp_path, batch, loader):
    model = make_model().eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    kind = getattr(transformers, loader)
    stock, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all(key.startswith(UNUSED_WEIGHTS[loader]) for key in info["unexpected_keys"])

    inputs = encoder_inputs(batch)
    with torch.no_grad():
        output, expected = model(**inputs), stock.eval()(**inputs)
        encoded = model.bert(**inputs)
    pairs = {
        "BertForPreTraining": (output.prediction_logits, expected[0]),
        "BertForMaskedLM": (output.prediction_logits, expected[0]),
        "AutoModel": (encoded.last_hidden_state, expected[0]),
        "BertForNextSentencePrediction": (output.seq_relationship_logits, expected[0]),
    }
    assert torch.allclose(*pairs[loader], atol=1e-5)
    if loader == "AutoModel":
        assert torch.allclose(encoded.pooler_output, expected.pooler_output, atol=1e-5)


def test_a_stock_checkpoint_loads_in_ours_and_keeps_its_activation(tmp_path, batch):
    config = pretraining_config("tiny", vocab_size=VOCAB, hidden_act="gelu").to_dict()
    stock = transformers.BertForPreTraining(transformers.BertConfig(**config)).eval()
    stock.save_pretrained(tmp_path)
    model, info = BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.config.hidden_act == "gelu"
    inputs = encoder_inputs(batch)
    with torch.no_grad():
        logits = model.eval()(**inputs).prediction_logits
        assert torch.allclose(logits, stock(**inputs).prediction_logits, atol=1e-5)


def test_weights_start_from_a_normal_cut_at_two_deviations():
    """modeling.py create_initializer: tf.truncated_normal_initializer(stddev=0.02); biases 0,
    LayerNorm 1 and 0.
    """
    for name, parameter in make_model().named_parameters():
        if "LayerNorm.weight" in name:
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert parameter.abs().max() <= 0.04 + 1e-7, name
            if parameter.numel() > 4000:
                # The deviation of a normal cut at two deviations is 0.8796 of the uncut one.
                assert parameter.std().item() == pytest.approx(0.02 * 0.8796, rel=0.05), name


def test_initialisation_and_activation_can_be_those_of_stock():
    model = make_model(weight_init="normal", hidden_act="gelu")
    assert model.bert.embeddings.word_embeddings.weight.abs().max() > 0.06
    assert model.config.hidden_act == "gelu"
    assert make_model().config.hidden_act == "gelu_new"  # modeling.py: the tanh approximation
    with pytest.raises(InputError, match="allowed: truncated_normal, normal"):
        make_model(weight_init="zeros")


def test_positions_may_begin_as_sinusoids_and_learn_from_there(tmp_path):
    """Vaswani et al. 2017, section 3.5: what two positions have in common depends on their distance
    alone.
    """
    model = make_model(weight_init="sinusoidal_positions")
    weight = model.bert.embeddings.position_embeddings.weight
    assert weight.std().item() == pytest.approx(2 * 0.02, rel=0.1)
    products = weight @ weight.T
    for distance in (1, 3, 10):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(
            diagonal,
            diagonal[:1].expand_as(diagonal),
            rtol=1e-3,
            atol=1e-5,
        )
    assert (products[0, 0] > products[0, 1:]).all()
    with torch.no_grad():
        weight += 1
    model.save_pretrained(tmp_path)
    loaded = BertForPreTraining.from_pretrained(tmp_path)
    assert torch.equal(loaded.bert.embeddings.position_embeddings.weight, weight)


@pytest.mark.parametrize("width", [63, 1])
def test_sinusoids_fill_an_odd_number_of_dimensions(width):
    settings = {"weight_init": "sinusoidal_positions", "max_position_embeddings": 16}
    config = pretraining_config(
        f"1/{width}",
        vocab_size=40,
        **settings,
    )
    weight = BertForPreTraining(config).bert.embeddings.position_embeddings.weight
    assert weight.shape == (16, width)
    assert weight.std(dim=0).min() > 0.5 * 0.02


def test_the_two_losses_are_apart_and_sum_to_the_loss(batch):
    """run_pretraining.py: total_loss = masked_lm_loss + next_sentence_loss; a missing label has
    none.
    """
    model = make_model()
    output = model(**batch, return_full_logits=True)
    mlm = F.cross_entropy(output.prediction_logits.view(-1, VOCAB), batch["labels"].view(-1))
    nsp = F.cross_entropy(output.seq_relationship_logits, batch["next_sentence_label"])
    assert output.mlm_loss.item() == pytest.approx(mlm.item(), rel=1e-6)
    assert output.nsp_loss.item() == pytest.approx(nsp.item(), rel=1e-6)
    assert output.loss.item() == pytest.approx(mlm.item() + nsp.item(), rel=1e-6)
    as_tuple = model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert as_tuple[0].item() == pytest.approx(output.loss.item())

    labels = batch.pop("labels")
    nsp_alone = model(**batch)
    assert nsp_alone.mlm_loss is None
    assert nsp_alone.loss.item() == nsp_alone.nsp_loss.item()
    del batch["next_sentence_label"]
    assert model(**batch).loss is None
    mlm_alone = model(**batch, labels=labels)
    assert mlm_alone.nsp_loss is None
    assert mlm_alone.loss.item() == mlm_alone.mlm_loss.item()


def test_a_batch_without_masked_tokens_has_loss_zero_and_gradients_for_all_parameters(batch):
    model = make_model()
    batch["labels"].fill_(-100)
    output = model(**batch)
    assert output.mlm_loss.item() == 0.0
    output.loss.backward()
    gradients = gradients_of(model)
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


# Tokens that are added


@pytest.fixture
def model():
    model = make_model().eval()
    with torch.no_grad():
        model.cls.predictions.bias.copy_(torch.randn(VOCAB))
    return model


def test_new_rows_are_means_and_old_ones_stay(model, tmp_path):
    weight = model.bert.embeddings.word_embeddings.weight.detach().clone()
    bias = model.cls.predictions.bias.detach().clone()
    ids = torch.randint(5, VOCAB, (2, 12))
    logits = model(ids).prediction_logits
    add_tokens(model, {VOCAB: [7, 9, 7], VOCAB + 1: [30]}, VOCAB + 2)

    new_weight, head = model.bert.embeddings.word_embeddings.weight, model.cls.predictions
    assert new_weight.shape[0] == model.config.vocab_size == VOCAB + 2
    assert torch.equal(new_weight[:VOCAB], weight)
    torch.testing.assert_close(new_weight[VOCAB], weight[[7, 9, 7]].mean(dim=0))
    assert torch.equal(new_weight[VOCAB + 1], weight[30])
    torch.testing.assert_close(head.bias[:VOCAB], bias)
    torch.testing.assert_close(head.bias[VOCAB], bias[[7, 9, 7]].mean())
    # One weight and one bias, still.
    assert head.decoder.weight is new_weight
    assert head.decoder.bias is head.bias

    new_logits = model(ids).prediction_logits
    torch.testing.assert_close(new_logits[..., :VOCAB], logits)
    torch.testing.assert_close(new_logits[..., VOCAB], logits[..., [7, 9, 7]].mean(dim=-1))
    model.save_pretrained(tmp_path)
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(
        stock(ids).prediction_logits,
        new_logits,
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_head_of_its_own_predicts_new_words_like_their_pieces_too():
    model = make_model(tie_word_embeddings=False).eval()
    add_tokens(model, {VOCAB: [7, 9]}, VOCAB + 1)
    decoder = model.cls.predictions.decoder.weight
    assert decoder is not model.bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(decoder[VOCAB], decoder[[7, 9]].mean(dim=0))


def test_rows_that_padded_the_vocabulary_are_taken_first(model):
    add_tokens(model, {VOCAB - 4: [7, 9]}, VOCAB - 3)
    assert model.config.vocab_size == VOCAB
    weight = model.bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(weight[VOCAB - 4], weight[[7, 9]].mean(dim=0))
