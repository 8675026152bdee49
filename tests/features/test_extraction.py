"""Vectors of inputs: stock's hidden states, whatever the batch, the layers' implementation and the order of the lengths."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, DistilBertConfig, DistilBertModel

from bert_recipes.errors import InputError
from bert_recipes.features.columns import choose_columns
from bert_recipes.features.extraction import FeatureExtractor
from bert_recipes.features.frozen_encoder import make_fast, open_encoder
from bert_recipes.features.inputs import TextInput, encode_input


def random_inputs(tokenizer, number=23, seed=0, length=40):
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list("abcdefg "), rng.integers(0, 60))) for _ in range(2 * number)]
    texts[4] = texts[5] = texts[6] = ""
    pairs = [TextInput(a, b if rng.random() < 0.4 else None) for a, b in zip(texts[::2], texts[1::2], strict=True)]
    return [encode_input(pair, tokenizer, length) for pair in pairs]


def extractor(checkpoint, layers, *, join="none", fast_layers="off", **settings):
    encoder, tokenizer = open_encoder(str(checkpoint))
    columns = choose_columns(layers, join, encoder.config.num_hidden_layers)
    make_fast(encoder, max(number for column in columns for number in column.layers), fast_layers)
    return FeatureExtractor(encoder=encoder.eval(), tokenizer=tokenizer, columns=columns, **settings)


@pytest.mark.parametrize("fast_layers", ["off", "plain", "auto"])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_token_vectors_are_stocks_hidden_states(checkpoint, stock_states, fast_layers, batch_size):
    names = ["last", "second_to_last", "concat_last_four", "sum_last_four", "sum_all", "embeddings", "-5"]
    own = extractor(checkpoint, names, fast_layers=fast_layers, batch_size=batch_size)
    inputs = random_inputs(own.tokenizer)
    part = own.extract(inputs, first_row=5)
    assert part.first_row == 5
    for number, each in enumerate(inputs):
        states = stock_states(each.input_ids, each.token_type_ids)
        rows = slice(part.offsets[number], part.offsets[number + 1])
        assert part.input_ids[rows].tolist() == each.input_ids
        assert part.token_type_ids[rows].tolist() == each.token_type_ids
        expected = {
            "last": states[6],
            "second_to_last": states[5],
            "concat_last_four": torch.cat(states[3:], -1),
            "sum_last_four": sum(states[3:]),
            "sum_all": sum(states[1:]),
            "embeddings": states[0],
            "layer_2": states[2],
        }
        assert part.vectors.keys() == expected.keys()
        for name, vectors in expected.items():
            assert part.vectors[name].dtype == np.float32
            # Of sums, each of the terms.
            atol = 1e-5 * (len(next(c.layers for c in own.columns if c.name == name)) if "sum" in name else 1)
            np.testing.assert_allclose(part.vectors[name][rows], vectors, atol=atol, rtol=0, err_msg=name)


@pytest.mark.parametrize("pooling", ["cls", "mean", "mean_all"])
@pytest.mark.parametrize("fast_layers", ["off", "auto"])
def test_an_input_has_the_vector_of_cls_or_a_mean(checkpoint, stock_states, pooling, fast_layers):
    own = extractor(checkpoint, ["last", "concat_last_four"], pooling=pooling, fast_layers=fast_layers, batch_size=4)
    inputs = random_inputs(own.tokenizer)
    part = own.extract(inputs)
    specials = {own.tokenizer.cls_token_id, own.tokenizer.sep_token_id}
    kinds = set()
    for number, each in enumerate(inputs):
        states = stock_states(each.input_ids, each.token_type_ids)
        words = [place for place, token in enumerate(each.input_ids) if token not in specials]
        if pooling == "cls":
            places = [0]
        else:
            # Of an input without words there is nothing but [CLS] and [SEP].
            places = words if pooling == "mean" and words else list(range(len(each.input_ids)))
        for name, hidden in {"last": states[6], "concat_last_four": torch.cat(states[3:], -1)}.items():
            np.testing.assert_allclose(part.vectors[name][number], hidden[places].mean(0), atol=1e-5, rtol=0)
        kinds.add((bool(words), sum(each.token_type_ids) > 0))
    assert kinds == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize("fast_layers", ["off", "auto"])
def test_a_model_with_added_tokens_reads_them_as_stock_does(checkpoint, tmp_path, fast_layers):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.add_tokens(["<e1>", "</e1>", "covid"])
    model = BertModel.from_pretrained(checkpoint).eval()
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    own = extractor(tmp_path, ["last"], fast_layers=fast_layers)
    pairs = [("ab <e1>cd</e1> covid efg", None), ("<E1>abc</e1>", "Covids <e1>d")]
    part = own.extract([encode_input(TextInput(*pair), own.tokenizer, 40) for pair in pairs])
    for number, pair in enumerate(pairs):
        inputs = tokenizer(*pair, return_tensors="pt")
        assert max(inputs["input_ids"][0]) >= len(tokenizer) - 3
        with torch.no_grad():
            wanted = model(**inputs).last_hidden_state[0]
        rows = slice(part.offsets[number], part.offsets[number + 1])
        assert part.input_ids[rows].tolist() == inputs["input_ids"][0].tolist()
        np.testing.assert_allclose(part.vectors["last"][rows], wanted, atol=1e-5, rtol=0)


def test_a_pair_whose_first_text_is_empty_has_a_mean_of_its_second(checkpoint, stock_states):
    own = extractor(checkpoint, ["last"], pooling="mean")
    each = encode_input(TextInput("", "abc"), own.tokenizer, 20)
    states = stock_states(each.input_ids, each.token_type_ids)
    assert own.tokenizer.convert_ids_to_tokens(each.input_ids) == ["[CLS]", "[SEP]", "a", "##b", "##c", "[SEP]"]
    np.testing.assert_allclose(own.extract([each]).vectors["last"][0], states[6][2:5].mean(0), atol=1e-5)


def test_parts_follow_each_other_and_hold_what_they_may(checkpoint):
    whole = extractor(checkpoint, ["last"], batch_size=5)
    inputs = random_inputs(whole.tokenizer, 60)
    budget = 40 * whole.bytes_a_vector
    parts = list(whole.parts(iter(inputs), budget, first_row=7))
    assert len(parts) > 5
    assert [part.first_row for part in parts] == [7 + int(n) for n in np.cumsum([0, *(len(p) for p in parts[:-1])])]
    assert sum(map(len, parts)) == 60
    for part in parts:
        assert part.vectors["last"].nbytes <= budget or len(part) == 1
    one = whole.extract(inputs)
    np.testing.assert_allclose(
        np.concatenate([part.vectors["last"] for part in parts]), one.vectors["last"], atol=1e-5
    )
    assert list(whole.parts([], budget)) == []


def test_texts_of_a_part_are_bounded_where_vectors_take_little(checkpoint, monkeypatch):
    own = extractor(checkpoint, ["last"], pooling="mean", batch_size=5)
    inputs = random_inputs(own.tokenizer, 60)
    monkeypatch.setattr("bert_recipes.features.extraction.MOST_TOKENS", 200)
    parts = list(own.parts(iter(inputs), 10**9))
    assert len(parts) > 3
    assert sum(map(len, parts)) == 60
    assert max(part.num_tokens for part in parts) <= 200
    monkeypatch.setattr("bert_recipes.features.extraction.MOST_INPUTS", 2)
    assert max(map(len, own.parts(iter(inputs), 10**9))) == 2


def test_inputs_are_drawn_only_as_parts_are_asked_for(checkpoint):
    """Whatever the file's size, one part is held."""
    own = extractor(checkpoint, ["last"])
    drawn = 0

    def endless():
        nonlocal drawn
        while True:
            drawn += 1
            yield encode_input(TextInput("abc", None), own.tokenizer, 20)

    parts = own.parts(endless(), 50 * own.bytes_a_vector)
    assert len(next(parts)) == 10
    assert len(next(parts)) == 10
    assert drawn == 21


def test_layers_that_nobody_wants_are_not_computed(checkpoint):
    own = extractor(checkpoint, ["-5", "embeddings"])
    assert len(own.encoder.encoder.layer) == 2
    assert len(extractor(checkpoint, ["embeddings"]).encoder.encoder.layer) == 1


def test_half_precision_rounds_and_refuses_what_does_not_fit(checkpoint):
    full, half = (extractor(checkpoint, ["last"], dtype=dtype) for dtype in ("float32", "float16"))
    inputs = random_inputs(full.tokenizer, 5)
    rounded = half.extract(inputs).vectors["last"]
    assert rounded.dtype == np.float16
    np.testing.assert_array_equal(rounded, full.extract(inputs).vectors["last"].astype(np.float16))
    with torch.no_grad():
        half.encoder.encoder.layer[-1].output.LayerNorm.bias[0] = 1e5
    with pytest.raises(InputError, match="--dtype float32"):
        half.extract(inputs)
    with torch.no_grad():
        full.encoder.encoder.layer[-1].output.LayerNorm.bias[0] = torch.nan
    with pytest.raises(InputError, match="not finite"):
        full.extract(inputs)


def test_another_architecture_is_read_too(tiny_checkpoint, tmp_path):
    """DistilBERT takes no token_type_ids."""
    _, tokenizer = open_encoder(str(tiny_checkpoint))
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64
    )
    stock = DistilBertModel(config).eval()
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    own = extractor(tmp_path, ["last", "-2"])
    inputs = [encode_input(TextInput(text, None), tokenizer, 20) for text in ("abc de", "f")]
    part = own.extract(inputs)
    for number, each in enumerate(inputs):
        with torch.no_grad():
            hidden = stock(torch.tensor([each.input_ids]), output_hidden_states=True).hidden_states
        rows = slice(part.offsets[number], part.offsets[number + 1])
        np.testing.assert_allclose(part.vectors["last"][rows], hidden[2][0], atol=1e-5)
        np.testing.assert_allclose(part.vectors["layer_1"][rows], hidden[1][0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fast_layers", ["off", "auto"])
def test_a_model_of_base_size_is_as_close(tiny_checkpoint, tmp_path, fast_layers):
    """12 layers of 768: what a small model cannot show."""
    _, tokenizer = open_encoder(str(tiny_checkpoint))
    torch.manual_seed(0)
    stock = BertModel(BertConfig(vocab_size=len(tokenizer))).eval()
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    names = ["last", "second_to_last", "concat_last_four", "embeddings"]
    own = extractor(tmp_path, names, fast_layers=fast_layers, batch_size=8)
    inputs = random_inputs(own.tokenizer, 16, length=128)
    part = own.extract(inputs)
    for number, each in enumerate(inputs):
        with torch.no_grad():
            states = stock(
                input_ids=torch.tensor([each.input_ids]),
                token_type_ids=torch.tensor([each.token_type_ids]),
                output_hidden_states=True,
            ).hidden_states
        rows = slice(part.offsets[number], part.offsets[number + 1])
        expected = (states[12][0], states[11][0], torch.cat([state[0] for state in states[9:]], -1), states[0][0])
        for name, vectors in zip(names, expected, strict=True):
            np.testing.assert_allclose(part.vectors[name][rows], vectors, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.gpu
def test_a_gpu_gives_the_vectors_of_a_cpu(checkpoint):
    own = extractor(checkpoint, ["last", "second_to_last"], pooling="mean")
    inputs = random_inputs(own.tokenizer)
    expected = own.extract(inputs).vectors
    own.encoder.to("cuda")
    for name, vectors in own.extract(inputs).vectors.items():
        np.testing.assert_allclose(vectors, expected[name], atol=1e-5, rtol=0)
