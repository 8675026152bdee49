"""The BiLSTM of the paper's Table 7 and its six ways of taking layers."""

import numpy as np
import pytest
import torch

from bert_recipes.errors import InputError
from bert_recipes.finetuning.feature_tagger import (
    LAYER_CHOICES,
    FeatureTagger,
    TaggerSettings,
    predict_labels,
    train_tagger,
)
from bert_recipes.finetuning.layer_features import LayerFeatures


CPU = torch.device("cpu")


def build(way, *, num_layers=12, hidden_size=8, lstm_dim=6, dropout=0.0, num_labels=3):
    torch.manual_seed(0)
    return FeatureTagger(
        LAYER_CHOICES[way],
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_labels=num_labels,
        lstm_dim=lstm_dim,
        dropout=dropout,
    )


@pytest.mark.parametrize(
    ("way", "taken", "input_size"),
    [
        ("embeddings", [0], 768),
        ("second_to_last", [11], 768),
        ("last", [12], 768),
        ("weighted_sum_last_four", [9, 10, 11, 12], 768),
        ("concat_last_four", [9, 10, 11, 12], 3072),
        ("weighted_sum_all", list(range(1, 13)), 768),
    ],
)
def test_the_six_ways_take_the_layers_of_the_paper(way, taken, input_size):
    """BERT, Devlin et al. 2019, Table 7, for the 12 layers of BERT-base; number 0 is the embeddings."""
    choice = LAYER_CHOICES[way]
    assert list(range(13))[choice.taken] == taken
    tagger = build(way, hidden_size=768, lstm_dim=2)
    assert tagger.input_size == tagger.lstm.input_size == input_size


def test_the_ways_and_figures_are_those_of_the_paper_in_its_order():
    """BERT, Devlin et al. 2019, Table 7."""
    assert [choice.paper_dev_f1 for choice in LAYER_CHOICES.values()] == [91.0, 95.6, 94.9, 95.9, 96.1, 95.5]


def test_the_lstm_has_two_layers_of_768_units_in_both_directions_and_one_linear_layer_behind():
    """BERT, Devlin et al. 2019, section 5.3."""
    tagger = build("last", hidden_size=8, lstm_dim=TaggerSettings().lstm_dim, num_labels=9)
    assert (tagger.lstm.num_layers, tagger.lstm.hidden_size, tagger.lstm.bidirectional) == (2, 768, True)
    assert tagger.classifier.weight.shape == (9, 1536)


def test_a_weighted_sum_starts_as_the_mean_of_its_layers_and_learns_its_weights():
    tagger = build("weighted_sum_last_four").eval()
    plain = build("last").eval()
    plain.load_state_dict({k: v for k, v in tagger.state_dict().items() if k not in ("layer_weights", "scale")})
    vectors = torch.randn(4, 5, 8)
    logits = tagger(vectors, [3, 2])
    torch.testing.assert_close(logits, plain(vectors.mean(0, keepdim=True), [3, 2]))
    logits[:, 0].sum().backward()
    assert tagger.layer_weights.grad.abs().min() > 0
    assert tagger.scale.grad.abs() > 0


def test_concatenation_keeps_each_layer_of_a_word_together():
    tagger = build("concat_last_four").eval()
    vectors = torch.randn(4, 5, 8)
    joined = torch.stack([torch.cat([vectors[layer, word] for layer in range(4)]) for word in range(5)])
    outputs, _ = tagger.lstm(joined[:, None])
    torch.testing.assert_close(tagger(vectors, [5]), tagger.classifier(outputs[:, 0]))


def test_sentences_of_a_batch_do_not_see_each_other_and_keep_their_order():
    tagger = build("last").eval()
    lengths = [2, 7, 1, 4]
    vectors = torch.randn(1, sum(lengths), 8)
    together = tagger(vectors, lengths)
    alone = [tagger(part, [part.shape[1]]) for part in vectors.split(lengths, dim=1)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize(
    ("way", "layers"), [("concat_last_four", 3), ("weighted_sum_last_four", 2), ("second_to_last", 1)]
)
def test_a_model_with_too_few_layers_is_refused_for_a_way(way, layers):
    with pytest.raises(InputError, match=f"the model has {layers}; give others: --layers embeddings "):
        build(way, num_layers=layers)


def toy_corpus(num_sentences, seed, num_words=12, hidden_size=16):
    """A word's label is that of the word before it (0 at the start of a sentence): context decides, not the word."""
    embedding = np.random.default_rng(99).normal(size=(5, num_words, hidden_size))
    own_label = np.random.default_rng(98).integers(1, 4, num_words)
    rng = np.random.default_rng(seed)
    sentences = [rng.integers(0, num_words, rng.integers(1, 9)) for _ in range(num_sentences)]
    labels = [np.concatenate([[0], own_label[words[:-1]]]) for words in sentences]
    starts = np.concatenate([[0], np.cumsum([len(words) for words in sentences])])
    vectors = embedding[:, np.concatenate(sentences)].astype(np.float16)
    return LayerFeatures(vectors=vectors, starts=starts, folder=None, key=""), np.concatenate(labels)


SETTINGS = TaggerSettings(lstm_dim=24, dropout=0.1, learning_rate=1e-2, batch_size=16, num_epochs=12)


@pytest.mark.parametrize("way", LAYER_CHOICES)
def test_every_way_learns_a_corpus_in_which_context_decides(way):
    train, labels = toy_corpus(200, seed=0)
    held_out, expected = toy_corpus(60, seed=1)
    choice = LAYER_CHOICES[way]
    tagger = train_tagger(train, labels, choice, SETTINGS, num_labels=4, seed=3, device=CPU)
    assert not tagger.training
    found = predict_labels(tagger, held_out, choice, precision="fp32", batch_size=7)
    assert [len(sentence) for sentence in found] == np.diff(held_out.starts).tolist()
    accuracy = (np.concatenate(found) == expected).mean()
    chance = np.bincount(expected).max() / len(expected)
    assert chance < 0.6
    assert accuracy > 0.95


def test_the_same_seed_gives_the_same_tagger_and_another_seed_another_one():
    train, labels = toy_corpus(40, seed=0)
    choice = LAYER_CHOICES["last"]
    settings = TaggerSettings(lstm_dim=8, batch_size=8, num_epochs=1)
    first, again, other = (
        train_tagger(train, labels, choice, settings, num_labels=4, seed=seed, device=CPU).state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def test_bfloat16_gives_nearly_the_same_tagger():
    train, labels = toy_corpus(200, seed=0)
    held_out, expected = toy_corpus(60, seed=1)
    choice = LAYER_CHOICES["weighted_sum_all"]
    settings = TaggerSettings(**{**SETTINGS.__dict__, "precision": "bf16"})
    tagger = train_tagger(train, labels, choice, settings, num_labels=4, seed=3, device=CPU)
    found = predict_labels(tagger, held_out, choice, precision="bf16")
    assert (np.concatenate(found) == expected).mean() > 0.95


def test_sentences_without_words_are_passed_over_in_training_and_stay_in_place():
    train, labels = toy_corpus(6, seed=0)
    starts = np.insert(train.starts, 3, train.starts[3])
    with_empty = LayerFeatures(vectors=train.vectors, starts=starts, folder=None, key="")
    settings = TaggerSettings(lstm_dim=8, batch_size=32, num_epochs=1)
    tagger = train_tagger(with_empty, labels, LAYER_CHOICES["last"], settings, num_labels=4, seed=1, device=CPU)
    found = predict_labels(tagger, with_empty, LAYER_CHOICES["last"], precision="fp32")
    assert [len(sentence) for sentence in found] == np.diff(starts).tolist()
    assert found[3] == []


@pytest.mark.gpu
def test_the_tagger_learns_on_a_gpu():
    train, labels = toy_corpus(200, seed=0)
    held_out, expected = toy_corpus(60, seed=1)
    choice = LAYER_CHOICES["concat_last_four"]
    settings = TaggerSettings(**{**SETTINGS.__dict__, "precision": "bf16"})
    tagger = train_tagger(train, labels, choice, settings, num_labels=4, seed=3, device=torch.device("cuda"))
    found = predict_labels(tagger, held_out, choice, precision="bf16")
    assert (np.concatenate(found) == expected).mean() > 0.95
