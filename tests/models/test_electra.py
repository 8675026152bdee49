"""ELECTRA against stock's two classes: losses, logits, gradients, and the files. Source:
google-research/electra run_pretraining.py.
"""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import open_checkpoint
from bert_recipes.models.electra import DISCRIMINATOR_WEIGHT, ElectraForPreTraining, sample_words
from bert_recipes.models.sizes import count_parameters, pretraining_config

from .packed_models import LENGTHS, VOCAB, assert_gradients_alike, make_batch


def make_model(**changes):
    torch.manual_seed(0)
    settings = {
        "dropout": 0.0,
        "hidden_act": "gelu",
        "initializer_range": 0.2,
        "embedding_size": 48,
        **changes,
    }
    return ElectraForPreTraining(
        pretraining_config("2/96", vocab_size=VOCAB, model_type="electra", **settings)
    ).train()


def make_electra_batch(lengths):
    batch = make_batch(lengths)
    del batch["next_sentence_label"]
    draws = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(1))
    hidden = (batch["labels"] != IGNORE_INDEX) & (draws < 0.85)
    return batch | {"input_ids": torch.where(hidden, 3, batch["input_ids"]), "draws": draws}


def stocks(model, folder):
    model.save_pretrained(folder)
    found = []
    for kind, place in (
        (transformers.ElectraForPreTraining, folder),
        (transformers.ElectraForMaskedLM, folder / "generator"),
    ):
        stock, info = kind.from_pretrained(place, output_loading_info=True)
        assert not any(info.values())
        found.append(stock.train())
    discriminator, generator = found
    generator.electra.embeddings = (
        discriminator.electra.embeddings
    )  # google-research/electra: one block of embeddings
    generator.tie_weights()
    return discriminator, generator


@pytest.mark.parametrize("fast_layers", ["off", "plain", "auto"])
@pytest.mark.parametrize("lengths", ["ragged", "full_rows", "one_long"])
def test_losses_and_gradients_are_those_of_stocks_two_classes(tmp_path, fast_layers, lengths):
    model, batch = make_model(), make_electra_batch(LENGTHS[lengths])
    discriminator, generator = stocks(model, tmp_path)
    enable_packed_layers(model, fast_layers)
    output = model(**batch)
    output.loss.backward()
    inputs = {name: batch[name] for name in ("attention_mask", "token_type_ids")}
    filled = generator(input_ids=batch["input_ids"], labels=batch["labels"], **inputs)
    predicted = batch["labels"] != IGNORE_INDEX
    heights = filled.logits[predicted].detach().softmax(-1).cumsum(-1)
    chosen = (heights <= batch["draws"][predicted][:, None]).sum(
        -1
    )  # the inverse of the distribution
    text = torch.where(predicted, batch["labels"], batch["input_ids"])
    shown = text.clone()
    shown[predicted] = chosen
    told = discriminator(input_ids=shown, labels=(shown != text).long(), **inputs)
    expected = filled.loss + DISCRIMINATOR_WEIGHT * told.loss
    expected.backward()
    assert output.mlm_loss.item() == pytest.approx(filled.loss.item(), rel=1e-5)
    assert output.disc_loss.item() == pytest.approx(told.loss.item(), rel=1e-5)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    is_token = batch["attention_mask"] == 1
    torch.testing.assert_close(output.disc_logits, told.logits[is_token], rtol=1e-4, atol=1e-5)
    assert torch.equal(output.replaced, (shown != text)[is_token])
    assert output.replaced.any()
    theirs = {name: each.grad for name, each in discriminator.named_parameters()}
    theirs |= {f"generator.{name}": each.grad for name, each in generator.named_parameters()}
    ours = {name: each.grad for name, each in model.named_parameters()}
    assert_gradients_alike(ours, {name: theirs[name] for name in ours}, 1e-4)


def test_a_generator_that_copies_leaves_nothing_to_find():
    """The loss is then softplus of the logits; a sample that equals the text counts as original."""
    model, batch = make_model(), make_electra_batch(LENGTHS["ragged"])
    labels = batch["labels"]
    batch["labels"] = torch.where(labels == IGNORE_INDEX, IGNORE_INDEX, 7)
    with torch.no_grad():
        model.generator.generator_lm_head.bias[7] = 1e4
        output = model(**batch)
    assert not output.replaced.any()
    assert output.disc_loss.item() == pytest.approx(
        F.softplus(output.disc_logits).mean().item(), rel=1e-6
    )


def test_samples_have_the_generators_probabilities(monkeypatch):
    """Chi-squared of 20,000 samples, with 210 degrees of freedom: three deviations."""
    model, size = make_model(), (400, 50)
    encode, shown = model._encode, []
    monkeypatch.setattr(
        model,
        "_encode",
        lambda inputs, plan: shown.append(inputs["input_ids"]) or encode(inputs, plan),
    )
    with torch.no_grad():
        for parameter in model.generator.generator_predictions.parameters():
            # the layers say nothing: all positions have the distribution of the biases
            parameter.zero_()
        model.generator.generator_lm_head.bias.copy_(torch.linspace(-2, 2, VOCAB))
        draws = torch.rand(size, generator=torch.Generator().manual_seed(3))
        model(
            input_ids=torch.full(size, 9), labels=torch.zeros(size, dtype=torch.long), draws=draws
        )
        expected = model.generator.generator_lm_head.bias.softmax(0) * draws.numel()
    counts = torch.bincount(shown[0].flatten(), minlength=VOCAB)
    assert ((counts - expected).square() / expected).sum() < 210 + 3 * (2 * 210) ** 0.5


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6])
def test_a_share_of_the_samples_is_any_word(share):
    """The generator always says word 3: the rest of the draws gives it, the share gives every word
    alike.
    """
    draws = torch.from_numpy((np.arange(40_000) / 40_000).astype(np.float32))
    logits = torch.zeros(40_000, VOCAB)
    logits[:, 3] = 1000.0
    words = sample_words(logits, draws, torch.tensor(share))
    random_words = torch.bincount(words[: round(share * 40_000)], minlength=VOCAB)
    assert torch.all((random_words - share * 40_000 / VOCAB).abs() <= 1)
    assert torch.all(words[round(share * 40_000) :] == 3)


def test_a_share_of_0_is_the_originals(tmp_path):
    model, batch = make_model(), make_electra_batch(LENGTHS["ragged"])
    output, none = model(**batch), model(**batch, random_share=torch.tensor(0.0))
    assert torch.equal(output.replaced, none.replaced)
    assert torch.equal(output.loss, none.loss)


@pytest.mark.parametrize(("size", "discriminator"), [("small", 13_549_057), ("base", 109_483_009)])
def test_sizes_are_the_originals(size, discriminator):
    """google/electra-small-discriminator and its generator, electra-base-discriminator."""
    with torch.device("meta"):
        model = ElectraForPreTraining(
            pretraining_config(size, vocab_size=30522, model_type="electra")
        )
    assert sum(count_parameters(model).values()) == model.num_parameters()
    own = [
        each.numel() for name, each in model.named_parameters() if not name.startswith("generator.")
    ]
    assert sum(own) == discriminator
    if size == "small":
        assert model.generator.num_parameters() == 4_620_026


def test_a_folder_is_opened_with_its_generator_or_a_new_one(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path / "both")
    again, new = open_checkpoint(str(tmp_path / "both"), cached_only=True, member="electra")
    assert not new
    assert all(
        torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items()
    )
    discriminator = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "both")
    discriminator.save_pretrained(tmp_path / "one")
    alone, new = open_checkpoint(str(tmp_path / "one"), cached_only=True, member="electra")
    assert new == ["generator.generator_predictions.dense.weight"]
    shared = [
        dict(each.named_parameters())
        for each in (alone.generator.electra.embeddings, alone.electra.embeddings)
    ]
    assert all(shared[0][name] is weight for name, weight in shared[1].items())


@pytest.mark.parametrize("is_tied", [True, False])
def test_electras_generator_is_saved_whole_with_its_output_layer_tied_or_not(tmp_path, is_tied):
    model = make_model(tie_word_embeddings=is_tied)
    model.save_pretrained(tmp_path)
    stock, info = transformers.ElectraForMaskedLM.from_pretrained(
        tmp_path / "generator", output_loading_info=True
    )
    assert not any(info.values())
    head, words = stock.generator_lm_head.weight, stock.electra.embeddings.word_embeddings.weight
    assert (head is words) == is_tied
    for key, weight in stock.named_parameters():
        assert torch.equal(weight, model.generator.get_parameter(key)), key


def test_embeddings_that_a_file_lacks_are_named(tmp_path):
    """Both networks have them: the generator's copy does not stand for the discriminator's."""
    make_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["electra.embeddings.position_embeddings.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        InputError, match=r"no weights for electra\.embeddings\.position_embeddings\.weight"
    ):
        open_checkpoint(str(tmp_path), cached_only=True, member="electra")
