"""The paper's feature-based NER: hidden states of words, the BiLSTM on them, and the table."""

import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

from bert_recipes.errors import InputError
from bert_recipes.features.arguments import LAYER_CHOICES, FeatureNerArguments
from bert_recipes.features.extract import open_encoder
from bert_recipes.features.ner import (
    FeatureTagger,
    LayerFeatures,
    load_feature_data,
    make_table,
    mean_replicates,
    measure_ways,
    predict_labels,
    train_tagger,
    word_features,
)
from bert_recipes.tasks.examples import TaggedExample
from bert_recipes.tokenization.loading import load_tokenizer


# Features


def make_encoder():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    # In training mode, as a caller may have left it: dropout must not reach the features.
    return BertModel(config).train()


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return load_tokenizer(tiny_checkpoint)


@pytest.fixture(scope="module")
def encoder():
    return make_encoder()


def make_sentences(seed):
    """Nine sentences of three documents."""
    rng = np.random.default_rng(seed)
    sentences = []
    for idx in range(9):
        words = []
        for length in rng.integers(1, 4, rng.integers(1, 9)):
            words.append("".join(rng.choice(list("abcdefghij"), length)))
        sentences.append(
            TaggedExample(
                idx=idx,
                tokens=tuple(words),
                document=idx // 3,
            )
        )
    return sentences


def test_features_are_the_hidden_states_of_first_pieces_in_the_complete_document(
    tokenizer, encoder
):
    """BERT, Devlin et al. 2019, section 5.3; against one plain pass over each document."""
    examples = make_sentences(0)
    features = word_features(
        encoder,
        tokenizer,
        examples,
        max_seq_length=64,
        dtype="float32",
    )
    assert np.diff(features.starts).tolist() == [len(example.tokens) for example in examples]
    plain = make_encoder().eval()

    expected = []
    for document in range(3):
        ids, firsts = [tokenizer.cls_token_id], []
        for example in examples[3 * document : 3 * document + 3]:
            for word in example.tokens:
                firsts.append(len(ids))
                ids += tokenizer.encode_ids(word)
        ids.append(tokenizer.sep_token_id)
        with torch.no_grad():
            hidden = plain(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected.append(torch.cat(hidden)[:, firsts].numpy())
    np.testing.assert_allclose(features.vectors, np.concatenate(expected, axis=1), atol=1e-5)


def test_features_do_not_depend_on_the_batch_and_half_precision_rounds_them(tokenizer, encoder):
    def compute(**settings):
        return word_features(
            encoder,
            tokenizer,
            make_sentences(1),
            max_seq_length=16,
            **settings,
        )

    one = compute(batch_size=1, dtype="float32")
    many = compute(batch_size=50, dtype="float32")
    half = compute()
    np.testing.assert_allclose(one.vectors, many.vectors, atol=1e-5)
    assert half.vectors.dtype == np.float16
    np.testing.assert_allclose(half.vectors, one.vectors, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_refused(tokenizer):
    large = make_encoder()
    with torch.no_grad():
        large.embeddings.LayerNorm.bias[0] = 1e5
    with pytest.raises(InputError, match="--feature_dtype float32"):
        word_features(large, tokenizer, make_sentences(0), max_seq_length=64)

    with torch.no_grad():
        large.embeddings.LayerNorm.bias[0] = torch.nan
    with pytest.raises(InputError, match="outputs are not finite; it has diverged"):
        word_features(large, tokenizer, make_sentences(0), max_seq_length=64)


# The BiLSTM

SETTINGS = FeatureNerArguments(
    lstm_dim=24,
    dropout=0.1,
    learning_rate=1e-2,
    train_batch_size=16,
    num_train_epochs=12,
    precision="fp32",
)


def build(
    way,
    *,
    hidden_size=8,
    lstm_dim=6,
    num_labels=3,
):
    torch.manual_seed(0)
    return FeatureTagger(
        LAYER_CHOICES[way],
        num_layers=12,
        hidden_size=hidden_size,
        num_labels=num_labels,
        lstm_dim=lstm_dim,
        dropout=0.0,
    )


@pytest.mark.parametrize(
    ("way", "layers", "input_size", "paper"),
    [
        ("embeddings", [0], 768, 91.0),
        ("second_to_last", [11], 768, 95.6),
        ("last", [12], 768, 94.9),
        ("weighted_sum_last_four", [9, 10, 11, 12], 768, 95.9),
        ("concat_last_four", [9, 10, 11, 12], 3072, 96.1),
        ("weighted_sum_all", list(range(1, 13)), 768, 95.5),
    ],
)
def test_the_six_ways_take_the_layers_of_the_paper(
    way,
    layers,
    input_size,
    paper,
):
    """BERT, Devlin et al. 2019, Table 7, for the 12 layers of BERT-base; number 0 is the
    embeddings.
    """
    choice = LAYER_CHOICES[way]
    assert list(range(13))[choice.layers] == layers
    assert choice.paper_dev_f1 == paper
    tagger = build(way, hidden_size=768, lstm_dim=2)
    assert tagger.input_size == tagger.lstm.input_size == input_size


def test_the_lstm_has_two_layers_of_768_units_in_both_directions_and_one_linear_layer_behind():
    """BERT, Devlin et al. 2019, section 5.3."""
    tagger = build("last", lstm_dim=FeatureNerArguments().lstm_dim, num_labels=9)
    assert (tagger.lstm.num_layers, tagger.lstm.hidden_size) == (2, 768)
    assert tagger.lstm.bidirectional
    assert tagger.classifier.weight.shape == (9, 1536)


def test_a_weighted_sum_starts_as_the_mean_of_its_layers_and_learns_its_weights():
    tagger = build("weighted_sum_last_four").eval()
    plain = build("last").eval()
    plain.load_state_dict(tagger.state_dict(), strict=False)
    vectors = torch.randn(4, 5, 8)
    logits = tagger(vectors, [3, 2])
    torch.testing.assert_close(logits, plain(vectors.mean(0, keepdim=True), [3, 2]))
    logits[:, 0].sum().backward()
    assert tagger.layer_weights.grad.abs().min() > 0
    assert tagger.scale.grad.abs() > 0


def test_concatenation_keeps_each_layer_of_a_word_together():
    tagger = build("concat_last_four").eval()
    vectors = torch.randn(4, 5, 8)
    joined = torch.cat(list(vectors), dim=-1)
    outputs, _ = tagger.lstm(joined[:, None])
    torch.testing.assert_close(tagger(vectors, [5]), tagger.classifier(outputs[:, 0]))


def test_sentences_of_a_batch_do_not_see_each_other_and_keep_their_order():
    tagger = build("last").eval()
    lengths = [2, 7, 1, 4]
    vectors = torch.randn(1, sum(lengths), 8)
    sentences = vectors.split(lengths, dim=1)
    alone = [tagger(words, [words.shape[1]]) for words in sentences]
    torch.testing.assert_close(tagger(vectors, lengths), torch.cat(alone))


def toy_corpus(
    num_sentences,
    seed,
    num_words=12,
    hidden_size=16,
):
    """A word's label is that of the word before it (0 at the start of a sentence): context decides,
    not the word.
    """
    embedding = np.random.default_rng(99).normal(size=(5, num_words, hidden_size))
    label_after = np.random.default_rng(98).integers(1, 4, num_words)
    rng = np.random.default_rng(seed)

    words = []
    labels = []
    starts = [0]
    for _ in range(num_sentences):
        sentence = rng.integers(0, num_words, rng.integers(1, 9))
        words.append(sentence)
        labels.append([0, *label_after[sentence[:-1]]])
        starts.append(starts[-1] + len(sentence))

    vectors = embedding[:, np.concatenate(words)].astype(np.float16)
    return LayerFeatures(vectors, np.array(starts)), np.concatenate(labels)


def train(
    features,
    labels,
    choice,
    settings,
    *,
    seed,
    device="cpu",
):
    return train_tagger(
        features,
        labels,
        choice,
        settings,
        num_labels=4,
        seed=seed,
        device=torch.device(device),
    )


@pytest.mark.parametrize(
    ("way", "precision", "device"),
    [
        ("embeddings", "fp32", "cpu"),
        ("weighted_sum_all", "fp32", "cpu"),
        ("concat_last_four", "fp32", "cpu"),
        ("weighted_sum_all", "bf16", "cpu"),
        pytest.param("concat_last_four", "fp32", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_every_way_learns_a_corpus_in_which_context_decides(way, precision, device):
    features, labels = toy_corpus(200, seed=0)
    held_out, expected = toy_corpus(60, seed=1)
    choice = LAYER_CHOICES[way]
    settings = replace(SETTINGS, precision=precision)
    tagger = train(
        features,
        labels,
        choice,
        settings,
        seed=3,
        device=device,
    )
    assert not tagger.training
    predicted = predict_labels(
        tagger,
        held_out,
        choice,
        precision=precision,
        batch_size=7,
    )
    assert list(map(len, predicted)) == np.diff(held_out.starts).tolist()
    assert np.bincount(expected).max() / len(expected) < 0.6
    assert (np.concatenate(predicted) == expected).mean() > 0.95


LAST = LAYER_CHOICES["last"]
SMALL = FeatureNerArguments(
    lstm_dim=8,
    train_batch_size=8,
    num_train_epochs=1,
    precision="fp32",
)


def test_the_same_seed_gives_the_same_tagger_and_another_seed_another_one():
    features, labels = toy_corpus(40, seed=0)
    first, again, different = (
        train(
            features,
            labels,
            LAST,
            SMALL,
            seed=seed,
        ).classifier.weight
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, different)


# Runs and the table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data/, model4/ and model2/."""
    folder = tmp_path_factory.mktemp("feature-ner")
    fixture = Path(__file__).parents[1] / "fixtures" / "ner_folder.py"
    runpy.run_path(str(fixture))["make_folder"](folder)
    return folder


def arguments(folder, **changes):
    settings = {
        "model_name_or_path": str(folder / "model4"),
        "data_dir": str(folder / "data"),
        "layers": ["last"],
        "max_seq_length": 64,
        "num_train_epochs": 1,
        "lstm_dim": 8,
        "use_cpu": True,
        "precision": "fp32",
    }
    return FeatureNerArguments(**{**settings, **changes})


def test_each_way_is_measured_with_each_seed_in_the_order_of_the_paper(folder):
    args = arguments(folder, layers=["last", "embeddings"], seeds=[2, 1])
    data = load_feature_data(args)
    records = measure_ways(args, data)
    order = [("embeddings", 2), ("embeddings", 1), ("last", 2), ("last", 1)]
    assert [(run["way"], run["seed"]) for run in records] == order
    again = measure_ways(arguments(folder, seeds=[1]), data)
    assert again[0]["f1"] == records[3]["f1"]
    replicates = mean_replicates(records)
    assert list(replicates) == ["f1_embeddings", "f1_last"]
    expected = np.mean([run["f1_jackknife"] for run in records[2:]], axis=0)
    assert replicates["f1_last"] == pytest.approx(expected, abs=1e-6)


def test_the_table_has_the_paper_beside_it_and_says_what_it_was_measured_on(folder):
    data = load_feature_data(arguments(folder, max_train_sentences=20, max_eval_sentences=10))
    seconds = {"train_seconds": 9, "eval_seconds": 2}
    records = [
        {
            "way": "embeddings",
            "seed": 1,
            "f1": 0.9,
            "input_size": 768,
            **seconds,
        },
        {
            "way": "concat_last_four",
            "seed": 1,
            "f1": 0.95,
            "input_size": 3072,
            **seconds,
        },
        {
            "way": "concat_last_four",
            "seed": 2,
            "f1": 0.96,
            "input_size": 3072,
            **seconds,
        },
    ]
    assert make_table(records, data) == (
        "Dev F1, 20 training and 10 dev sentences (a part of CoNLL-2003); the model has 4 layers. "
        "The paper's are those of "
        "BERT-base (12 layers, cased) on all sentences.\n\n"
        "| layers | input size | F1 | paper | seeds | seconds per run |\n"
        "| --- | --: | --: | --: | --: | --: |\n"
        "| Embeddings | 768 | 90.00 | 91.0 | 1 | 11 |\n"
        "| Concat Last Four Hidden | 3,072 | 95.50 ± 0.71 | 96.1 | 2 | 11 |\n"
    )
    full = replace(
        data,
        train=replace(data.train, published_rows=20),
        validation=replace(data.validation, published_rows=10),
    )
    assert "20 training and 10 dev sentences; the model" in make_table(records, full)


def test_a_masked_lm_checkpoint_is_opened_without_its_head(folder, tmp_path):
    config = BertConfig.from_pretrained(folder / "model4")
    BertForMaskedLM(config).bfloat16().save_pretrained(tmp_path)
    load_tokenizer(folder / "model4").save_pretrained(tmp_path)
    encoder, _ = open_encoder(str(tmp_path))
    assert type(encoder) is BertModel
    assert encoder.dtype == torch.float32


def test_windows_are_as_long_as_the_inputs_that_the_model_was_trained_on(folder, tmp_path):
    model = shutil.copytree(folder / "model4", tmp_path / "model")
    settings = {"model_name_or_path": str(model)}

    def vectors(length):
        args = arguments(folder, **settings, max_seq_length=length)
        return args, load_feature_data(args).train_features.vectors

    _, expected = vectors(16)
    for run in (
        "max_seq_length: 16\n",
        "max_seq_length: 32\nphase2_steps: 0.1\nphase2_max_seq_length: 16\n",
    ):
        (model / "run.yaml").write_text(run)
        args, found = vectors(None)
        np.testing.assert_array_equal(found, expected)
        assert args.max_seq_length == 16  # for the results and run.yaml
    (model / "run.yaml").unlink()

    with pytest.raises(InputError, match="max_seq_length is 512, the model has 64 positions"):
        vectors(None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": []}, "layers is empty; allowed: embeddings"),
        ({"seeds": []}, "seeds is empty"),
        ({"max_seq_length": 512}, "max_seq_length is 512, the model has 64 positions"),
        (
            {"model_name_or_path": "model2", "layers": list(LAYER_CHOICES)},
            "needs 4 layers, the model has 2; give others: --layers embeddings second_to_last "
            "last weighted_sum_all",
        ),
    ],
)
def test_mistakes_are_found_before_the_work(
    folder,
    monkeypatch,
    changes,
    message,
):
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=message):
        load_feature_data(arguments(folder, **changes))
