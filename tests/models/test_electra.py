"""ELECTRA against stock's two classes: losses, logits, gradients, and the files. Source:
google-research/electra run_pretraining.py.
"""

import shutil

import pytest
import torch
import transformers
from packed_models import LENGTHS, VOCAB, assert_gradients_alike, gradients_of, make_batch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.hub import list_files
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import open_checkpoint
from bert_recipes.models.electra import (
    ElectraForPreTraining,
    _generator_config,
    sample_tokens,
)
from bert_recipes.models.sizes import count_parameters, pretraining_config
from bert_recipes.training.engines import consolidate_zero_checkpoint


def make_model(**changes):
    torch.manual_seed(0)
    settings = {
        "model_type": "electra",
        "dropout": 0.0,
        "hidden_act": "gelu",
        "initializer_range": 0.2,
        "embedding_size": 48,
    }
    config = pretraining_config(
        "2/96",
        vocab_size=VOCAB,
        **(settings | changes),
    )
    return ElectraForPreTraining(config).train()


@pytest.mark.parametrize("has_generator", [True, False])
def test_a_pushed_generator_is_found_under_the_name_of_its_discriminator(
    tmp_path, monkeypatch, has_generator
):
    model = make_model()
    repository = tmp_path / "models--me--electra"
    snapshot = repository / "snapshots" / "abc"
    model.save_pretrained(tmp_path / "run")
    for name in list_files(tmp_path / "run"):
        if has_generator or not name.startswith("generator/"):
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "run" / name, snapshot / name)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    opened, missing = open_checkpoint("me/electra", cached_only=True)
    assert bool(missing) is not has_generator
    same = [
        torch.equal(*pair) for pair in zip(opened.parameters(), model.parameters(), strict=True)
    ]
    assert all(same) is has_generator


def test_the_generator_of_a_checkpoint_in_a_folder_is_that_of_the_checkpoint(tmp_path):
    make_model().save_pretrained(tmp_path)  # another one, above it
    torch.manual_seed(1)
    model = make_model()
    with torch.no_grad():
        model.generator.generator_lm_head.bias.fill_(3.0)
    model.save_pretrained(tmp_path / "checkpoint-1")
    opened = type(model).from_pretrained(tmp_path, subfolder="checkpoint-1")
    for name, weight in model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], weight), name


def test_a_push_that_would_lose_the_generator_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"call model.push_to_hub"):
        make_model().save_pretrained(tmp_path / "mine", push_to_hub=True)
    assert not (tmp_path / "mine").exists()


def make_electra_batch(lengths):
    batch = make_batch(lengths)
    del batch["next_sentence_label"]
    draws = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(1))
    is_hidden = (batch["labels"] != IGNORE_INDEX) & (draws < 0.85)
    return batch | {"input_ids": torch.where(is_hidden, 3, batch["input_ids"]), "draws": draws}


def test_micro_batches_of_stocks_trainer_add_up_whatever_their_number():
    """It passes the predicted tokens of the step, and not its real ones."""
    model = make_model()
    batch = make_electra_batch(LENGTHS["ragged"])
    alone = model(**batch)
    num_predicted = int((batch["labels"] != IGNORE_INDEX).sum())
    one_of_four = model(**batch, num_items_in_batch=4 * num_predicted)
    torch.testing.assert_close(4 * one_of_four.disc_loss, alone.disc_loss)
    torch.testing.assert_close(4 * one_of_four.loss, alone.loss)


def test_a_checkpoint_of_deepspeed_becomes_both_folders(tmp_path, monkeypatch):
    """Stock's class has no place for the generator's weights."""
    zero_to_fp32 = pytest.importorskip("deepspeed.utils.zero_to_fp32")
    model = make_model()
    model.save_pretrained(tmp_path / "checkpoint")
    monkeypatch.setattr(
        zero_to_fp32, "get_fp32_state_dict_from_zero_checkpoint", lambda folder: model.state_dict()
    )
    opened = consolidate_zero_checkpoint(tmp_path / "checkpoint")
    opened.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model")
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def load_stock(name, folder):
    kind = getattr(transformers, name)
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    return model.train()


@pytest.mark.parametrize("fast_layers", ["off", "plain", "auto"])
@pytest.mark.parametrize("lengths", ["ragged", "full_rows", "one_long"])
def test_losses_and_gradients_are_those_of_stocks_two_classes(tmp_path, fast_layers, lengths):
    model, batch = make_model(), make_electra_batch(LENGTHS[lengths])
    model.save_pretrained(tmp_path)
    discriminator = load_stock("ElectraForPreTraining", tmp_path)
    generator = load_stock("ElectraForMaskedLM", tmp_path / "generator")
    # google-research/electra: one block of embeddings
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()

    labels, inputs = batch["labels"], {n: batch[n] for n in ("attention_mask", "token_type_ids")}
    generated = generator(
        input_ids=batch["input_ids"],
        labels=labels,
        **inputs,
    )
    is_predicted = labels != IGNORE_INDEX
    # A sample is the inverse of the distribution at its draw.
    heights = generated.logits[is_predicted].detach().softmax(-1).cumsum(-1)
    samples = (heights <= batch["draws"][is_predicted][:, None]).sum(-1, keepdim=True)
    # Far from both neighbours, so that no processor's rounding samples another token.
    ends = heights.gather(1, samples)
    begins = F.pad(heights, (1, 0)).gather(1, samples)
    batch["draws"][is_predicted] = ((begins + ends) / 2)[:, 0]
    text = torch.where(is_predicted, labels, batch["input_ids"])
    shown = text.clone()
    shown[is_predicted] = samples[:, 0]

    enable_packed_layers(model, fast_layers)
    mask = None if lengths == "full_rows" else batch["attention_mask"]
    output = model(**batch | {"attention_mask": mask})
    output.loss.backward()
    judged = discriminator(
        input_ids=shown,
        labels=(shown != text).long(),
        **inputs,
    )
    # google-research/electra configure_pretraining.py: disc_weight = 50.0
    expected = generated.loss + 50 * judged.loss
    expected.backward()

    assert output.mlm_loss.item() == pytest.approx(generated.loss.item(), rel=1e-5)
    assert output.disc_loss.item() == pytest.approx(judged.loss.item(), rel=1e-5)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    is_token = batch["attention_mask"] == 1
    torch.testing.assert_close(
        output.disc_logits,
        judged.logits[is_token],
        rtol=1e-4,
        atol=1e-5,
    )
    assert torch.equal(output.replaced, (shown != text)[is_token])
    assert output.replaced.any()
    stock_gradients = gradients_of(discriminator)
    for name, gradient in gradients_of(generator).items():
        stock_gradients[f"generator.{name}"] = gradient
    gradients = gradients_of(model)
    assert_gradients_alike(gradients, {name: stock_gradients[name] for name in gradients}, 1e-4)


def test_a_generator_that_copies_leaves_nothing_to_find():
    """The loss is then softplus of the logits; a sample that equals the text counts as original."""
    model, batch = make_model(), make_electra_batch(LENGTHS["ragged"])
    batch["labels"] = torch.where(batch["labels"] == IGNORE_INDEX, IGNORE_INDEX, 7)
    with torch.no_grad():
        model.generator.generator_lm_head.bias[7] = 1e4
        output = model(**batch)
    assert not output.replaced.any()
    loss = F.softplus(output.disc_logits).mean().item()
    assert output.disc_loss.item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6])
def test_a_share_of_the_samples_is_any_word(share):
    """The draws below the share give every word alike, the others have the generator's
    probabilities: here one word's is 0.7, another's 0.3.
    """
    size = 40_000
    draws, logits = torch.arange(size) / size, torch.full((size, VOCAB), -1000.0)
    logits[:, 3] = torch.tensor(0.7).log()
    logits[:, 9] = torch.tensor(0.3).log()
    words = sample_tokens(logits, draws, torch.tensor(share))
    num_random = round(share * size)
    counts = torch.bincount(words[:num_random], minlength=VOCAB)
    assert torch.all((counts - num_random / VOCAB).abs() <= 1)
    counts = torch.bincount(words[num_random:], minlength=VOCAB) / (size - num_random)
    assert counts[[3, 9]].tolist() == pytest.approx([0.7, 0.3], abs=1e-3)


@pytest.mark.parametrize(
    ("size", "discriminator", "generator"),
    [("small", 13_549_057, 4_620_026), ("base", 109_483_009, None)],
)
def test_sizes_are_the_originals(size, discriminator, generator):
    """google/electra-small-discriminator and its generator, electra-base-discriminator."""
    config = pretraining_config(size, vocab_size=30522, model_type="electra")
    with torch.device("meta"):
        model = ElectraForPreTraining(config)
    assert sum(count_parameters(model).values()) == model.num_parameters()
    num_weights = 0
    for name, weight in model.named_parameters():
        if not name.startswith("generator."):
            num_weights += weight.numel()
    assert num_weights == discriminator
    assert generator in (None, model.generator.num_parameters())


@pytest.mark.parametrize(("width", "heads"), [(896, 2), (832, 2), (1024, 4)])
def test_a_generator_of_any_width_has_heads_that_divide_it(width, heads):
    config = _generator_config(
        pretraining_config(f"2/{width}", vocab_size=VOCAB, model_type="electra")
    )
    assert config.hidden_size == width // 4
    assert config.num_attention_heads == heads


def test_a_folder_is_opened_with_its_generator_or_a_new_one(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path / "both")
    loaded, new = open_checkpoint(
        str(tmp_path / "both"),
        cached_only=True,
        member="electra",
    )
    assert not new
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    stock = load_stock("ElectraForPreTraining", tmp_path / "both")
    stock.save_pretrained(tmp_path / "one")
    alone, new = open_checkpoint(
        str(tmp_path / "one"),
        cached_only=True,
        member="electra",
    )
    assert new == ["generator.generator_predictions.dense.weight"]
    for name, weight in alone.electra.embeddings.named_parameters():
        assert alone.generator.electra.embeddings.get_parameter(name) is weight


@pytest.mark.parametrize("is_tied", [True, False])
def test_electras_generator_is_saved_whole_with_its_output_layer_tied_or_not(tmp_path, is_tied):
    model = make_model(tie_word_embeddings=is_tied)
    model.save_pretrained(tmp_path)
    stock = load_stock("ElectraForMaskedLM", tmp_path / "generator")
    words = stock.electra.embeddings.word_embeddings.weight
    assert (stock.generator_lm_head.weight is words) == is_tied
    for name, weight in stock.named_parameters():
        assert torch.equal(weight, model.generator.get_parameter(name)), name


def test_embeddings_that_a_file_lacks_are_named(tmp_path):
    """Both networks have them: the generator's copy does not stand for the discriminator's."""
    make_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["electra.embeddings.position_embeddings.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    message = r"no weights for electra\.embeddings\.position_embeddings\.weight"
    with pytest.raises(InputError, match=message):
        open_checkpoint(str(tmp_path), cached_only=True, member="electra")
