"""Hidden states of words: the right ones, computed once, and never those of something else."""

import logging
import shutil

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from bert_recipes.errors import InputError
from bert_recipes.finetuning.layer_features import FeatureRequest, compute_layer_features
from bert_recipes.tasks.examples import TaggedExample


LETTERS = "abcdefghij"


def make_encoder(seed=0, **changes):
    torch.manual_seed(seed)
    settings = {
        "vocab_size": 25,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    } | changes
    # In training mode, as a caller may have left it: dropout must not reach the features.
    return BertModel(BertConfig(**settings)).train()


@pytest.fixture(scope="module")
def tokenizer(letters_tokenizer):
    return letters_tokenizer


@pytest.fixture(scope="module")
def encoder():
    return make_encoder()


def compute(encoder, tokenizer, examples, folder, **settings):
    request = FeatureRequest(encoder=encoder, tokenizer=tokenizer, examples=examples, **settings)
    return compute_layer_features(request, folder)


def sentences(seed=0, number=9):
    rng = np.random.default_rng(seed)
    return [
        TaggedExample(
            idx=i,
            tokens=tuple("".join(rng.choice(list(LETTERS), rng.integers(1, 4))) for _ in range(rng.integers(1, 9))),
            document=i // 3,
        )
        for i in range(number)
    ]


def test_features_are_the_hidden_states_of_first_pieces_in_the_whole_document(tokenizer, encoder, tmp_path):
    """BERT, Devlin et al. 2019, section 5.3; against one plain pass over each document."""
    examples = sentences()
    features = compute(encoder, tokenizer, examples, tmp_path, max_seq_length=64, dtype="float32")
    assert features.vectors.shape == (5, sum(len(example.tokens) for example in examples), 32)
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
    assert encoder.training, "the encoder is left as it was"


def test_features_do_not_depend_on_the_batch_and_half_precision_rounds_them(tokenizer, encoder, tmp_path):
    examples = sentences(1)
    settings = {"max_seq_length": 16}
    one = compute(encoder, tokenizer, examples, tmp_path / "a", batch_size=1, dtype="float32", **settings)
    many = compute(encoder, tokenizer, examples, tmp_path / "b", batch_size=50, dtype="float32", **settings)
    half = compute(encoder, tokenizer, examples, tmp_path / "c", **settings)
    assert one.key == many.key != half.key
    np.testing.assert_allclose(one.vectors, many.vectors, atol=1e-5)
    assert half.vectors.dtype == np.float16
    assert half.vectors.nbytes == one.vectors.nbytes // 2
    np.testing.assert_allclose(half.vectors, one.vectors, rtol=1e-3, atol=1e-4)


def count_calls(encoder, monkeypatch):
    calls = []
    forward = encoder.forward
    monkeypatch.setattr(encoder, "forward", lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs))
    return calls


def test_features_are_computed_once(tokenizer, encoder, tmp_path, monkeypatch, caplog):
    calls = count_calls(encoder, monkeypatch)
    with caplog.at_level(logging.INFO):
        first = compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=64)
        computed = len(calls)
        again = compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=64)
    assert computed > 0
    assert len(calls) == computed
    np.testing.assert_array_equal(first.vectors, again.vectors)
    assert f"{first.vectors.nbytes / 1e6:.1f} MB" in caplog.text
    assert "kept ones reused" in caplog.text


def test_another_pooler_name_or_label_set_does_not_make_features_stale(tokenizer, encoder, tmp_path):
    """A masked-LM checkpoint has no pooler: it is drawn anew each time, and hidden states do not depend on it."""
    first = compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=64)
    other = make_encoder()
    torch.nn.init.normal_(other.pooler.dense.weight)
    other.config.id2label = {0: "x", 1: "y", 2: "z"}
    other.config._name_or_path = "elsewhere"
    assert compute(other, tokenizer, sentences(), tmp_path, max_seq_length=64).key == first.key


def test_whatever_features_follow_from_makes_new_ones(tokenizer, make_tokenizer, encoder, tmp_path):
    def key(model=encoder, own=tokenizer, examples=None, length=64, dtype="float16"):
        examples = sentences() if examples is None else examples
        return compute(model, own, examples, tmp_path, max_seq_length=length, dtype=dtype).key

    (tmp_path / "other").mkdir()
    nudged = make_encoder()
    with torch.no_grad():
        nudged.encoder.layer[0].output.dense.bias[3] += 1e-6
    moved = [*sentences()[:-1], TaggedExample(idx=8, tokens=sentences()[-1].tokens, document=7)]
    renamed = [TaggedExample(idx=0, tokens=("j", *sentences()[0].tokens[1:])), *sentences()[1:]]
    assert renamed[0].tokens != sentences()[0].tokens
    keys = [
        key(),
        key(nudged),
        key(make_encoder(layer_norm_eps=1e-5)),
        key(own=make_tokenizer([*LETTERS[::-1], *(f"##{letter}" for letter in LETTERS[::-1])])),
        key(examples=moved),
        key(examples=renamed),
        key(length=32),
        key(dtype="float32"),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("damage", ["no key", "cut short", "other key", "other shape"])
def test_damaged_features_are_computed_anew(tokenizer, encoder, tmp_path, damage, caplog):
    first = compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=64)
    expected = np.array(first.vectors)
    vectors, key = first.folder / "vectors.npy", first.folder / "key.json"
    if damage == "no key":
        key.unlink()
    elif damage == "cut short":
        vectors.write_bytes(vectors.read_bytes()[:-10])
    elif damage == "other key":
        key.write_text('{"key": "0"}', encoding="utf-8")
    else:
        np.save(vectors, expected[1:])
    again = compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=64)
    np.testing.assert_array_equal(again.vectors, expected)
    assert "computed anew" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [first.folder.name]


def test_an_interrupted_computation_leaves_nothing_behind(tokenizer, tmp_path, monkeypatch):
    encoder = make_encoder()

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(encoder, "forward", stop)
    with pytest.raises(KeyboardInterrupt):
        compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=64)
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_half_precision_cannot_hold_is_an_error(tokenizer, tmp_path):
    encoder = make_encoder()
    with torch.no_grad():
        encoder.embeddings.LayerNorm.bias[0] = 1e5
    with pytest.raises(InputError, match="--feature_dtype float32"):
        compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=64)


def test_too_small_a_disk_and_too_long_windows_are_found_before_the_work(tokenizer, encoder, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="max_seq_length is 65, the model has 64 positions"):
        compute(encoder, tokenizer, sentences(), tmp_path, max_seq_length=65)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(InputError, match="--features_dir"):
        compute(encoder, tokenizer, sentences(), tmp_path / "new", max_seq_length=64)
