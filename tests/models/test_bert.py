"""The model against stock transformers, and a vocabulary that grows. Source: google-research/bert
modeling.py, run_pretraining.py.
"""

import json

import pytest
import torch
import transformers
from torch.nn import functional as F

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.checkpoints import add_tokens
from bert_recipes.models.sizes import pretraining_config


VOCAB = 503


def make_model(seed=0, **settings):
    torch.manual_seed(seed)
    return BertForPreTraining(pretraining_config("tiny", vocab_size=VOCAB, dropout=0.0, **settings))


def make_batch(rows=6, size=24, masked=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCAB, (rows, size), generator=generator)
    lengths = torch.randint(size // 2, size + 1, (rows, 1), generator=generator)
    attention = (torch.arange(size) < lengths).long()
    labels = torch.full_like(ids, -100)
    labels[:, 1 : 1 + masked] = torch.randint(5, VOCAB, (rows, masked), generator=generator)
    return {
        "input_ids": ids * attention,
        "attention_mask": attention,
        "token_type_ids": (torch.arange(size) > size // 3).long().expand(rows, size).contiguous(),
        "labels": labels,
        "next_sentence_label": torch.randint(0, 2, (rows,), generator=generator),
    }


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_close_gradients(left, right, tolerance):
    """Relative to the whole gradient: that of the key biases is zero but for rounding."""
    assert left.keys() == right.keys()
    norm = torch.stack([g.norm() for g in left.values()]).norm()
    for name in left:
        assert (left[name] - right[name]).norm() / norm < tolerance, name


def test_loss_logits_and_gradients_equal_the_stock_model(tmp_path):
    ours, batch = make_model(), make_batch()
    ours.save_pretrained(tmp_path)
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path)
    ours.train()
    stock.train()
    left, right = ours(**batch), stock(**batch)
    left.loss.backward()
    right.loss.backward()
    assert left.loss.item() == pytest.approx(right.loss.item(), rel=1e-6)
    full = right.prediction_logits[batch["labels"] != -100]
    assert torch.allclose(left.prediction_logits, full, atol=1e-5)
    assert torch.allclose(left.seq_relationship_logits, right.seq_relationship_logits, atol=1e-5)
    assert_close_gradients(gradients(ours), gradients(stock), 1e-6)


def test_only_masked_positions_meet_the_vocabulary_in_training():
    model, batch = make_model().train(), make_batch(rows=6, masked=4)
    assert model(**batch).prediction_logits.shape == (24, VOCAB)
    assert model(**batch, return_full_logits=True).prediction_logits.shape == (6, 24, VOCAB)
    model.eval()
    assert model(**batch).prediction_logits.shape == (6, 24, VOCAB)
    few = model(**batch, return_full_logits=False)
    assert few.prediction_logits.shape == (24, VOCAB)
    assert few.loss.item() == pytest.approx(model(**batch).loss.item(), rel=1e-6)
    del batch["labels"]
    assert model(**batch).prediction_logits.shape == (6, 24, VOCAB)


@pytest.mark.parametrize(
    "loader",
    ["BertForPreTraining", "BertForMaskedLM", "AutoModel", "BertForNextSentencePrediction"],
)
def test_checkpoint_loads_in_stock_classes_without_missing_keys(tmp_path, loader):
    model, batch = make_model().eval(), make_batch()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        "BertForPreTraining"
    ]
    stock, info = getattr(transformers, loader).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    # A class with fewer heads leaves the others' weights unused; those are the heads it does not
    # have.
    unused = {
        "BertForPreTraining": (),
        "BertForMaskedLM": ("bert.pooler", "cls.seq"),
        "AutoModel": ("cls",),
    }
    allowed = unused.get(loader, ("cls.predictions",))
    assert all(key.startswith(allowed) for key in info["unexpected_keys"]), info["unexpected_keys"]
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        ours, theirs = model(**inputs), stock.eval()(**inputs)
        if loader == "AutoModel":
            hidden = model.bert(**inputs)
            assert torch.allclose(hidden.last_hidden_state, theirs.last_hidden_state, atol=1e-5)
            assert torch.allclose(hidden.pooler_output, theirs.pooler_output, atol=1e-5)
        elif loader == "BertForNextSentencePrediction":
            assert torch.allclose(ours.seq_relationship_logits, theirs.logits, atol=1e-5)
        else:
            logits = theirs.prediction_logits if loader == "BertForPreTraining" else theirs.logits
            assert torch.allclose(ours.prediction_logits, logits, atol=1e-5)


def test_a_stock_checkpoint_loads_in_ours_and_keeps_its_activation(tmp_path):
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
    )
    stock = transformers.BertForPreTraining(config).eval()
    stock.save_pretrained(tmp_path)
    ours, info = BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert ours.config.hidden_act == "gelu"
    batch = make_batch()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        assert torch.allclose(
            ours.eval()(**inputs).prediction_logits, stock(**inputs).prediction_logits, atol=1e-5
        )


def test_weights_start_from_a_normal_cut_at_two_deviations():
    """modeling.py create_initializer: tf.truncated_normal_initializer(stddev=0.02); biases 0,
    LayerNorm 1 and 0.
    """
    model = make_model()
    for name, parameter in model.named_parameters():
        if "LayerNorm.weight" in name:
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            assert parameter.abs().max() <= 0.04 + 1e-7, name
            if parameter.numel() > 4000:
                # the deviation of a normal cut at two deviations is 0.8796 of the uncut one
                assert parameter.std().item() == pytest.approx(0.02 * 0.8796, rel=0.05), name


def test_initialisation_and_activation_can_be_those_of_stock():
    model = make_model(weight_init="normal", hidden_act="gelu")
    assert model.bert.embeddings.word_embeddings.weight.abs().max() > 0.06
    assert model.config.hidden_act == "gelu"
    assert (
        make_model().config.hidden_act == "gelu_new"
    )  # modeling.py gelu is the tanh approximation
    with pytest.raises(InputError, match="allowed: truncated_normal, normal"):
        make_model(weight_init="zeros")


def test_positions_may_begin_as_sinusoids_and_learn_from_there(tmp_path):
    """Vaswani et al. 2017, section 3.5: what two positions have in common depends on their distance
    alone.
    """
    model, plain = make_model(weight_init="sinusoidal_positions"), make_model()
    new, old = (each.bert.embeddings.position_embeddings.weight for each in (model, plain))
    assert new.std().item() == pytest.approx(2 * 0.02, rel=0.1)
    alike = new @ new.T
    for distance in (1, 3, 10):
        diagonal = alike.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-3, atol=1e-5)
    assert (alike[0, 0] > alike[0, 1:]).all()
    assert not torch.equal(new, old)
    with torch.no_grad():
        new += 1
    model.save_pretrained(tmp_path)
    loaded = BertForPreTraining.from_pretrained(tmp_path)
    assert torch.equal(loaded.bert.embeddings.position_embeddings.weight, new)


@pytest.mark.parametrize("size", ["1/63", "1/1"])
def test_sinusoids_fill_an_odd_number_of_dimensions(size):
    config = pretraining_config(
        size, vocab_size=40, weight_init="sinusoidal_positions", max_position_embeddings=16
    )
    weight = BertForPreTraining(config).bert.embeddings.position_embeddings.weight
    assert weight.shape == (16, int(size[2:]))
    assert weight.std(dim=0).min() > 0.5 * 0.02


def test_the_two_losses_are_apart_and_sum_to_the_loss():
    """run_pretraining.py: total_loss = masked_lm_loss + next_sentence_loss."""
    model, batch = make_model(), make_batch()
    output = model(**batch, return_full_logits=True)
    mlm = F.cross_entropy(output.prediction_logits.view(-1, VOCAB), batch["labels"].view(-1))
    nsp = F.cross_entropy(output.seq_relationship_logits, batch["next_sentence_label"])
    assert output.mlm_loss.item() == pytest.approx(mlm.item(), rel=1e-6)
    assert output.nsp_loss.item() == pytest.approx(nsp.item(), rel=1e-6)
    assert output.loss.item() == pytest.approx(mlm.item() + nsp.item(), rel=1e-6)


def test_either_label_may_be_missing():
    model, batch = make_model(), make_batch()
    labels = batch.pop("labels")
    output = model(**batch)
    assert output.mlm_loss is None
    assert output.loss.item() == output.nsp_loss.item()
    del batch["next_sentence_label"]
    assert model(**batch).loss is None
    output = model(**batch, labels=labels)
    assert output.nsp_loss is None
    assert output.loss.item() == output.mlm_loss.item()


def test_a_batch_without_masked_tokens_has_loss_zero_and_gradients_for_all_parameters():
    model, batch = make_model(), make_batch()
    batch["labels"].fill_(-100)
    output = model(**batch)
    assert output.mlm_loss.item() == 0.0
    output.loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_parts_of_a_batch_add_up_to_the_whole_with_global_counts():
    model, batch = make_model(), make_batch(rows=8)
    batch["labels"][0, 1:4] = -100  # rows with different numbers of masked tokens
    whole = model(**batch)
    whole.loss.backward()
    expected = gradients(model)
    model.zero_grad()
    masked = (batch["labels"] != -100).sum()
    total = 0.0
    for start in range(0, 8, 2):
        part = {name: values[start : start + 2] for name, values in batch.items()}
        loss = model(**part, num_items_in_batch=masked, num_pairs_in_batch=8).loss
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole.loss.item(), rel=1e-6)
    assert_close_gradients(expected, gradients(model), 1e-6)


def test_outputs_can_be_tuples_as_in_stock():
    model, batch = make_model(), make_batch()
    output = model(**batch, return_dict=False)
    assert isinstance(output, tuple)
    assert output[0].item() == pytest.approx(model(**batch).loss.item())


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
    torch.testing.assert_close(
        model.cls.predictions.bias[: OLD + 1], torch.cat([bias, bias[[7, 9, 7]].mean()[None]])
    )


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
    torch.testing.assert_close(
        stock(ids).prediction_logits, model(ids).prediction_logits, atol=1e-5, rtol=1e-5
    )


def test_rows_that_padded_the_vocabulary_are_taken_first(model):
    add_tokens(model, {OLD - 4: [7, 9]}, OLD - 3)
    assert model.config.vocab_size == OLD
    weight = model.bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(weight[OLD - 4], weight[[7, 9]].mean(dim=0))
