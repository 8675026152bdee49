"""What a checkpoint can do follows from its heads; attention is that of stock transformers; what is
no BERT is one line.
"""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_recipes.demo.model import compute_attention, open_demo_model
from bert_recipes.demo.page import describe
from bert_recipes.demo.views import tokenize
from bert_recipes.errors import InputError
from bert_recipes.models.inspection import fill_every_mask
from bert_recipes.tokenization.others import train_byte_bpe


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("class_name", "abilities", "num_lacking"),
    [
        ("BertForPreTraining", ("fill_mask", "next_sentence"), 0),
        ("BertForNextSentencePrediction", ("next_sentence",), 1),
        ("BertModel", (), 2),
    ],
)
def test_abilities_of_a_stock_folder_follow_from_its_heads(
    tiny_checkpoint,
    tmp_path,
    class_name,
    abilities,
    num_lacking,
):
    folder = tmp_path / "model"
    getattr(transformers, class_name).from_pretrained(tiny_checkpoint).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(tiny_checkpoint / name, folder)
    model = open_demo_model(str(folder), tmp_path, use_cpu=True)
    assert (model.abilities, len(model.lacks)) == (abilities, num_lacking)


def test_a_head_for_the_order_of_texts_answers_no_next_sentence(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    (folder / "run.yaml").write_text("pair_label: order\n")
    model = open_demo_model(str(folder), tmp_path, use_cpu=True)
    assert model.abilities == ("fill_mask",)
    assert model.lacks == ("its head for pairs is about the order of two texts",)


def test_a_model_that_reads_from_left_to_right_fills_no_masks(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    change_config(folder, is_decoder=True)
    model = open_demo_model(str(folder), tmp_path, use_cpu=True)
    assert "fill_mask" not in model.abilities
    assert "reads from left to right" in model.lacks[0]


def test_the_oldest_folders_do_not_name_their_model_type(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    model = open_demo_model(str(folder), tmp_path, use_cpu=True)
    assert model.abilities == ("fill_mask", "next_sentence")


def test_a_model_of_one_segment_is_asked_for_no_pairs(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = "bert.embeddings.token_type_embeddings.weight"
    weights[name] = weights[name][:1].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    change_config(folder, type_vocab_size=1)
    model = open_demo_model(str(folder), tmp_path, use_cpu=True)
    assert model.abilities == ("fill_mask",)
    assert "knows no second segment" in model.lacks[0]
    assert compute_attention(model, "the a")[1].shape == (2, 2, 4, 4)

    with pytest.raises(InputError, match="knows no second segment"):
        compute_attention(model, "the a", "b")


@pytest.mark.parametrize(
    ("kind", "texts"),
    [(None, ("the a b c",)), ("sequence_classification", ("the cat, of 7", "dog and 9!"))],
)
def test_attention_is_that_of_stock_transformers(
    demo_model,
    fine_tuned,
    tiny_checkpoint,
    tiny_runs,
    kind,
    texts,
):
    folder = tiny_runs(kind) if kind else tiny_checkpoint
    model = fine_tuned(kind) if kind else demo_model
    stock = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(*texts, return_tensors="pt")

    with torch.no_grad():
        expected = torch.cat(stock(**inputs, output_attentions=True).attentions).numpy()

    tokens, weights, num_positions = compute_attention(model, *texts)
    assert tokens == tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    assert num_positions == len(tokens)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    assert expected.std() > 5e-4, "the heads must differ, or any picture would do"


MEMBERS = {
    "roberta": (
        "RobertaForMaskedLM",
        {
            "max_position_embeddings": 66,
            "type_vocab_size": 1,
            "pad_token_id": 1,
        },
    ),
    "albert": ("AlbertForPreTraining", {"max_position_embeddings": 64, "embedding_size": 16}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {
            "max_position_embeddings": 64,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 64,
        },
    ),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_members_of_the_family_fill_masks_and_show_their_attention_as_stock(
    kind, tiny_checkpoint, tmp_path
):
    name, settings = MEMBERS[kind]
    if kind == "roberta":
        tokenizer, _ = train_byte_bpe(["the cat of a dog"] * 3, vocab_size=270, show_progress=False)
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), **{**sizes, **settings}
    )
    stock = getattr(transformers, name)(config).eval()
    stock.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    model = open_demo_model(str(tmp_path / "model"), tmp_path, use_cpu=True)
    assert model.abilities == ("fill_mask",)
    stock.set_attn_implementation("eager")
    tokens, weights, _ = compute_attention(model, "the cat", "a dog")
    inputs = tokenizer("the cat", "a dog", return_tensors="pt")
    if kind == "distilbert":
        inputs.pop("token_type_ids")

    with torch.no_grad():
        expected = torch.cat(stock.base_model(**inputs, output_attentions=True).attentions).numpy()
    assert len(tokens) == expected.shape[-1]
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    # The guesses are those of stock's model for its own mask token.
    guesses = fill_every_mask(model.network, model.tokenizer, "the [MASK] of a dog").guesses[0]
    ids = tokenizer(f"the {tokenizer.mask_token} of a dog", return_tensors="pt")["input_ids"]

    with torch.no_grad():
        output = stock(ids)

    logits = output.logits if "logits" in output else output.prediction_logits
    likeliest = logits[0][ids[0] == tokenizer.mask_token_id][0].topk(5).indices.tolist()
    assert [piece for piece, _ in guesses] == tokenizer.convert_ids_to_tokens(likeliest)
    # The parts of the page that ask the tokenizer.
    assert (" cased." if kind == "roberta" else " uncased.") in describe(model)
    assert tokenize(model, "the cat")[2].endswith("Normalized: the cat")


@pytest.mark.parametrize("part", ["ElectraForPreTraining", "ElectraForMaskedLM"])
def test_one_of_electras_two_models_is_shown_as_what_it_is(part, tiny_checkpoint, tmp_path):
    """A new generator in place of one that is missing has learned nothing."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)
    torch.manual_seed(0)
    config = transformers.ElectraConfig(
        vocab_size=len(tokenizer),
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    stock = getattr(transformers, part)(config).eval()
    stock.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    model = open_demo_model(str(tmp_path / "model"), tmp_path, use_cpu=True)

    assert ("fill_mask" in model.abilities) is (part == "ElectraForMaskedLM")
    stock.set_attn_implementation("eager")
    inputs = tokenizer("the cat", return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(stock.electra(**inputs, output_attentions=True).attentions).numpy()
    np.testing.assert_allclose(compute_attention(model, "the cat")[1], expected, atol=1e-6)


def test_a_long_text_is_cut_to_the_positions_and_only_the_first_are_kept(demo_model):
    tokens, weights, num_positions = compute_attention(demo_model, "a " * 300, limit=10)
    _, complete, _ = compute_attention(demo_model, "a " * 126)
    assert (len(tokens), num_positions) == (10, 302)
    np.testing.assert_allclose(weights, complete[:, :, :10, :10], atol=1e-7)


def test_what_is_no_bert_is_refused(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    change_config(folder, model_type="gpt2")
    with pytest.raises(InputError, match=r"is no BERT.*'gpt2'"):
        open_demo_model(str(folder), tmp_path, use_cpu=True)
