"""Vectors of inputs: which layers, which inputs, stock's hidden states, and their files."""

import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, BertModel, DistilBertConfig, DistilBertModel

from bert_recipes.errors import InputError
from bert_recipes.features import extract as module
from bert_recipes.features.arguments import FeatureArguments
from bert_recipes.features.extract import (
    Column,
    choose_columns,
    count_inputs,
    encode_input,
    extract_features,
    open_encoder,
    open_extractor,
    pool,
    read_inputs,
)
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.others import train_byte_bpe


# Layers


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("last", (6,)),
        ("second_to_last", (5,)),
        ("concat_last_four", (3, 4, 5, 6)),
        ("sum_all", (1, 2, 3, 4, 5, 6)),
        ("embeddings", (0,)),
        ("-1", (6,)),
        ("-6", (1,)),
        ("2", (2,)),
    ],
)
def test_names_are_those_of_table_7_and_numbers_those_of_transformers(name, layers):
    """BERT, Devlin et al. 2019, Table 7; `hidden_states` of transformers begin with the
    embeddings.
    """
    (column,) = choose_columns([name], 6)
    assert column.layers == layers


def test_layers_are_summed_put_side_by_side_or_kept_apart():
    states = {number: torch.full((3, 2), 10.0**number) for number in range(7)}
    single, summed, joined = choose_columns(["-2", "sum_last_four", "concat_last_four"], 6)
    assert single.name == "layer_5"
    assert torch.equal(single.take(states), states[5])
    assert torch.equal(summed.take(states), torch.full((3, 2), 1_111_000.0))
    assert joined.take(states)[0].tolist() == [1e3, 1e3, 1e4, 1e4, 1e5, 1e5, 1e6, 1e6]


def test_no_layers_are_refused():
    with pytest.raises(InputError, match=r"layers is .*: it names none"):
        FeatureArguments("model", "texts.txt", layers=[","])


@pytest.mark.parametrize(("device", "fast_layers"), [("cuda", "off"), ("cpu", "auto")])
def test_a_gpu_needs_no_kernels_of_the_cpu(tiny_checkpoint, monkeypatch, device, fast_layers):
    chosen = []
    monkeypatch.setattr(module, "choose_device", lambda **settings: torch.device(device))
    monkeypatch.setattr(module, "choose_precision", lambda *args, **settings: None)
    monkeypatch.setattr(module, "make_fast", lambda *args: chosen.append(args[-1]))
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *args: self)
    open_extractor(FeatureArguments(str(tiny_checkpoint), "", layers=["last"]))
    assert chosen == [fast_layers]


def test_half_precision_states_are_summed_in_full():
    states = {number: torch.full((1, 1), 40_000.0, dtype=torch.float16) for number in (1, 2)}
    assert Column("x", (1, 2)).take(states).item() == 80_000


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["lats"], "layers: 'lats' is no layer; allowed: embeddings, second_to_last"),
        (["weighted_sum_last_four"], "equal ones: sum_last_four"),
        (["-4"], "layers: -4 is given, the model has 3: -3 to 3"),
        (["-1", "3"], "names a layer twice"),
        (["concat_last_four"], "'Concat Last Four Hidden' needs 4 layers, the model has 3"),
    ],
)
def test_a_layer_that_is_not_there_is_an_error(names, message):
    with pytest.raises(InputError, match=message):
        choose_columns(names, 3)


# Inputs


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return load_tokenizer(tiny_checkpoint)


def test_lines_are_read_as_the_original_reads_them(tmp_path):
    """google-research/bert extract_features.py `read_examples`: stripped, and divided at the last '
    ||| '.
    """
    path = tmp_path / "in.txt"
    path.write_text(
        "  one text \n\na ||| b\na ||| b ||| c\na |||b\n||| b\na ||| \n", encoding="utf-8"
    )
    assert list(read_inputs(path)) == [
        ("one text", None),
        ("", None),
        ("a", "b"),
        ("a ||| b", "c"),
        ("a |||b", None),
        ("||| b", None),
        ("a |||", None),
    ]


def test_tables_give_the_named_columns_row_by_row(tmp_path):
    rows = [
        {
            "text": "a",
            "text_pair": "b",
            "n": 1,
        },
        {"text": "c ||| d", "text_pair": None},
        {"text": ""},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # In a table a text is a text: only lines are divided.
    assert list(read_inputs(path)) == [("a", "b"), ("c ||| d", None), ("", None)]
    other = tmp_path / "in.parquet"
    pq.write_table(pa.table({"q": ["x", "y"], "p": ["z", None]}), other)
    assert list(read_inputs(other, ["q", "p"])) == [("x", "z"), ("y", None)]
    assert list(read_inputs(other, ["p"])) == [("z", None), ("", None)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.txt", None, "no such file"),
        ("a.doc", "x", "unknown ending '.doc'; allowed: .txt, .jsonl"),
        ("a.jsonl", '{"a": "x"}\n', r"a.jsonl, line 1: no column 'text'; .*--text_columns"),
        ("a.txt", "", "no input in it"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(
    tmp_path,
    name,
    text,
    message,
):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        count_inputs(tmp_path / name, None)


def test_inputs_are_cut_as_the_original_cuts_them(tokenizer):
    """google-research/bert extract_features.py `convert_examples_to_features`,
    `_truncate_seq_pair`.
    """

    def encode_as_original(text, pair, length):
        first = tokenizer.tokenize(text)
        second = tokenizer.tokenize(pair or "")
        if second:
            while len(first) + len(second) > length - 3:
                longer = first if len(first) > len(second) else second
                longer.pop()
        else:
            first = first[: length - 2]
        tokens = ["[CLS]", *first, "[SEP]"]
        types = [0] * len(tokens)
        if second:
            tokens += [*second, "[SEP]"]
            types += [1] * (len(second) + 1)
        return tokens, types

    rng = np.random.default_rng(0)
    cases = set()
    for _ in range(100):
        text, pair = ("".join(rng.choice(list("abc d"), rng.integers(0, 14))) for _ in range(2))
        if rng.random() < 0.4:
            pair = None
        length = int(rng.integers(3, 30))
        encoded = encode_input((text, pair), tokenizer, length)
        tokens, types = encode_as_original(text, pair, length)
        assert tokenizer.convert_ids_to_tokens(encoded.input_ids) == tokens
        assert encoded.token_type_ids == types
        uncut = encode_input((text, pair), tokenizer, 100)
        assert encoded.is_truncated == (len(uncut.input_ids) > len(encoded.input_ids))
        cases.add((encoded.is_truncated, pair is None))
    assert len(cases) == 4


# Vectors


def random_inputs(tokenizer, number=23, length=40):
    """Single texts and pairs, some of them without words."""
    rng = np.random.default_rng(0)
    inputs = []
    for row in range(number):
        first, second = ("".join(rng.choice(list("abcdefg "), rng.integers(60))) for _ in range(2))
        if row in (2, 3):
            first = second = ""
        texts = (first, second if rng.random() < 0.4 else None)
        inputs.append(encode_input(texts, tokenizer, length))
    return inputs


def make_extractor(checkpoint, layers, **settings):
    settings = {
        "fast_layers": "off",
        "use_cpu": True,
        **settings,
    }
    return open_extractor(FeatureArguments(str(checkpoint), "", layers=layers, **settings))


@pytest.mark.parametrize(("fast_layers", "batch_size"), [("off", 1), ("plain", 7), ("auto", 7)])
def test_token_vectors_are_stocks_hidden_states(
    checkpoint,
    stock_states,
    fast_layers,
    batch_size,
):
    names = [
        "last",
        "second_to_last",
        "concat_last_four",
        "sum_last_four",
        "sum_all",
        "embeddings",
        "-5",
    ]
    extractor = make_extractor(checkpoint, names, fast_layers=fast_layers, batch_size=batch_size)
    inputs = random_inputs(extractor.tokenizer)
    vectors = extractor.extract(inputs)

    for number, item in enumerate(inputs):
        states = stock_states(item.input_ids, item.token_type_ids)
        expected = {
            "last": states[6],
            "second_to_last": states[5],
            "concat_last_four": torch.cat(states[3:], -1),
            "sum_last_four": sum(states[3:]),
            "sum_all": sum(states[1:]),
            "embeddings": states[0],
            "layer_2": states[2],
        }
        assert vectors.keys() == expected.keys()
        for column in extractor.columns:
            tokens = vectors[column.name][number]
            assert tokens.dtype == np.float32
            # Of sums, each of the terms.
            atol = 1e-5 * len(column.layers)
            np.testing.assert_allclose(tokens, expected[column.name], atol=atol, rtol=0)


@pytest.mark.parametrize("pooling", ["cls", "mean", "mean_all"])
def test_an_input_has_the_vector_of_cls_or_a_mean(checkpoint, stock_states, pooling):
    extractor = make_extractor(checkpoint, ["last"], pooling=pooling, batch_size=4)
    tokenizer = extractor.tokenizer
    inputs = random_inputs(tokenizer)

    cases = set()
    for item, vector in zip(inputs, extractor.extract(inputs)["last"], strict=True):
        states = stock_states(item.input_ids, item.token_type_ids)[6]
        words = [token not in (tokenizer.cls_token_id, tokenizer.sep_token_id) for token in item[0]]
        if pooling == "cls":
            states = states[:1]
        elif pooling == "mean" and any(words):
            # Of an input without words there is nothing but [CLS] and [SEP].
            states = states[words]
        np.testing.assert_allclose(vector, states.mean(0), atol=1e-5, rtol=0)
        cases.add((any(words), any(item.token_type_ids)))
    assert cases == {(True, True), (True, False), (False, False)}


def test_robertas_pairs_have_two_separators_and_one_segment():
    tokenizer = train_byte_bpe(["the best cost"] * 9, vocab_size=262, show_progress=False)[0]
    for max_length, is_truncated in ((8, False), (7, True)):
        item = encode_input(("a", "b"), tokenizer, max_length)
        assert item.special_places == [0, 3, 4, len(item.input_ids) - 1]
        assert item.is_truncated == is_truncated
        tokens = np.arange(len(item.input_ids), dtype=np.float32)[:, None]
        words = [tokens[1], tokens[2], *tokens[5:-1]]
        assert pool(tokens, item, "mean") == np.mean(words)


def test_chunks_follow_each_other_and_are_bounded(checkpoint, monkeypatch):
    """Inputs are drawn only as chunks are asked for, whatever the file's size."""
    extractor = make_extractor(checkpoint, ["last"], batch_size=5)
    inputs = random_inputs(extractor.tokenizer, 60)
    monkeypatch.setattr(module, "CHUNK_BYTES", 40 * 32 * 4)
    drawn = []
    chunks = extractor.chunks(drawn.append(item) or item for item in inputs)
    first = next(chunks)
    assert len(drawn) == len(first.inputs) + 1
    vectors = list(first.vectors["last"])

    for chunk in chunks:
        assert chunk.first_row == len(vectors)
        assert len(chunk.inputs) == 1 or sum(len(item.input_ids) for item in chunk.inputs) <= 40
        vectors.extend(chunk.vectors["last"])

    for tokens, expected in zip(vectors, extractor.extract(inputs)["last"], strict=True):
        np.testing.assert_allclose(tokens, expected, atol=1e-5)


def test_half_precision_rounds_and_refuses_what_does_not_fit(checkpoint):
    full, half = (
        make_extractor(checkpoint, ["last"], dtype=dtype) for dtype in ("float32", "float16")
    )
    inputs = random_inputs(full.tokenizer, 5)

    for rounded, tokens in zip(
        half.extract(inputs)["last"], full.extract(inputs)["last"], strict=True
    ):
        assert rounded.dtype == np.float16
        np.testing.assert_array_equal(rounded, tokens.astype(np.float16))

    with torch.no_grad():
        half.encoder.encoder.layer[-1].output.LayerNorm.bias[0] = 1e5

    with pytest.raises(InputError, match="--dtype float32"):
        half.extract(inputs)

    with torch.no_grad():
        full.encoder.encoder.layer[-1].output.LayerNorm.bias[0] = torch.nan

    with pytest.raises(InputError, match="not finite"):
        full.extract(inputs)


def test_heads_that_are_not_read_are_not_reported(tiny_checkpoint, caplog, monkeypatch):
    """transformers has a table of them for whoever opens a pre-trained BERT as an encoder."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    open_encoder(str(tiny_checkpoint))
    assert not caplog.records


def test_another_architecture_is_read_too(tiny_checkpoint, tmp_path):
    """DistilBERT takes no token_type_ids."""
    _, tokenizer = open_encoder(str(tiny_checkpoint))
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=64,
    )
    stock = DistilBertModel(config).eval()
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    extractor = make_extractor(tmp_path, ["last", "-2"], max_seq_length=64)
    inputs = [encode_input((text, None), tokenizer, 20) for text in ("abc de", "f")]
    vectors = extractor.extract(inputs)

    for number, item in enumerate(inputs):
        with torch.no_grad():
            hidden = stock(torch.tensor([item.input_ids]), output_hidden_states=True).hidden_states
        np.testing.assert_allclose(vectors["last"][number], hidden[2][0], atol=1e-5)
        np.testing.assert_allclose(vectors["layer_1"][number], hidden[1][0], atol=1e-5)


@pytest.mark.gpu
def test_a_gpu_gives_the_vectors_of_a_cpu(checkpoint):
    extractor = make_extractor(checkpoint, ["last", "second_to_last"], pooling="mean")
    inputs = random_inputs(extractor.tokenizer)
    expected = extractor.extract(inputs)
    extractor.encoder.to("cuda")
    for name, vectors in extractor.extract(inputs).items():
        np.testing.assert_allclose(vectors, expected[name], atol=1e-5, rtol=0)


# Files

LINES = ["ab cd", "", "a" * 9 + " " + "b" * 9, "abc ||| de f", "x", "the of and the"] + [
    f"a{number} b" for number in range(20)
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "in.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def stock(tiny_checkpoint):
    """Line -> tokens and hidden states by stock transformers alone, each input by itself."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    model = BertModel.from_pretrained(tiny_checkpoint).eval()

    def states(line):
        first, _, second = line.partition(" ||| ")
        inputs = tokenizer(
            first,
            second or None,
            return_tensors="pt",
            truncation=True,
            max_length=16,
        )
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states
        tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        return tokens, [state[0].numpy() for state in hidden]

    return states


@pytest.fixture
def extract(
    tiny_checkpoint,
    texts,
    tmp_path,
    monkeypatch,
):
    """Extract into tmp_path / "out", in chunks of 5 kB."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 5_000)

    def run(**settings):
        args = FeatureArguments(
            str(tiny_checkpoint),
            str(texts),
            str(tmp_path / "out"),
            **{"max_seq_length": 16, **settings},
        )
        return extract_features(args)

    return run


def test_googles_lines_are_the_originals(
    extract,
    stock,
    tmp_path,
    caplog,
):
    """google-research/bert extract_features.py `main`: keys, their order, every token, six
    digits.
    """
    extract(format="google_jsonl", layers=["-1,-2"])
    lines = (tmp_path / "out" / "features.jsonl").read_text(encoding="utf-8").splitlines()
    for number, (line, text) in enumerate(zip(lines, LINES, strict=True)):
        row = json.loads(line)
        assert list(row) == ["linex_index", "features"]
        assert row["linex_index"] == number
        tokens, hidden = stock(text)
        assert [feature["token"] for feature in row["features"]] == tokens
        for position, feature in enumerate(row["features"]):
            assert list(feature) == ["token", "layers"]
            assert [list(layer) for layer in feature["layers"]] == [["index", "values"]] * 2
            assert [layer["index"] for layer in feature["layers"]] == [-1, -2]
            for layer in feature["layers"]:
                values = np.array(layer["values"])
                np.testing.assert_allclose(values, hidden[layer["index"]][position], atol=2e-5)
                np.testing.assert_array_equal(values, values.round(6))
        assert line == json.dumps(row), "separators as json writes them"
    assert "1 of 26 inputs are longer than 16 positions" in caplog.text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["features.jsonl"]


def test_parquet_holds_a_row_per_input_with_vectors_of_every_token(extract, stock, tmp_path):
    summary = extract(layers=["last", "-2"])
    file = pq.ParquetFile(tmp_path / "out" / "features.parquet")
    assert file.num_row_groups > 3
    rows = file.read().to_pylist()
    assert [row["row"] for row in rows] == list(range(len(LINES)))

    for row, text in zip(rows, LINES, strict=True):
        tokens, hidden = stock(text)
        assert row["tokens"] == tokens
        assert row["truncated"] == (len(text) > 15)
        np.testing.assert_allclose(row["last"], hidden[-1], atol=1e-5)
        np.testing.assert_allclose(row["layer_1"], hidden[1], atol=1e-5)
        assert sorted(row["token_type_ids"]) == row["token_type_ids"]
    assert sum(rows[3]["token_type_ids"]) == 4  # d ##e f [SEP]
    assert (summary.num_inputs, summary.num_truncated) == (len(LINES), 1)
    assert summary.num_tokens == sum(len(row["tokens"]) for row in rows)
    extract(
        pooling="mean_all",
        dtype="float16",
        overwrite=True,
    )
    table = pq.read_table(tmp_path / "out" / "features.parquet")
    assert str(table.schema.field("last").type) == "fixed_size_list<element: halffloat>[32]"
    expected = [stock(text)[1][-1].mean(0) for text in LINES]
    np.testing.assert_allclose(np.stack(table["last"].to_pylist()), expected, atol=2e-3)


@pytest.mark.parametrize("form", ["parquet", "google_jsonl"])
def test_a_file_is_complete_or_absent_and_replaced_on_request_alone(
    extract,
    tmp_path,
    monkeypatch,
    form,
):
    hidden_states = module.hidden_states
    calls = []

    def interrupt(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return hidden_states(*arguments)

    settings = {"format": form, "layers": ["-1"]}
    monkeypatch.setattr(module, "hidden_states", interrupt)
    with pytest.raises(KeyboardInterrupt):
        extract(**settings)
    assert not list((tmp_path / "out").iterdir())
    extract(**settings)
    (file,) = (tmp_path / "out").iterdir()
    first = file.read_bytes()

    with pytest.raises(InputError, match="is there; give another --output_dir, or replace it"):
        extract(**settings)
    extract(**settings, overwrite=True)
    assert file.read_bytes() == first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "google_jsonl", "pooling": "cls"}, "pooling is 'cls'; the original's lines"),
        ({"format": "google_jsonl", "layers": ["-0"]}, "layers: '-0' is given; google_jsonl"),
        ({"max_seq_length": 500}, "max_seq_length is 500, the model has 128 positions"),
        ({"text_columns": ["a"]}, "text_columns: .*in.txt is text and has no columns"),
        ({"text_columns": ["a", "b", "c"]}, "text_columns names 3 columns"),
    ],
)
def test_a_mistake_is_found_before_the_work(
    extract,
    tmp_path,
    settings,
    message,
):
    with pytest.raises(InputError, match=message):
        extract(**settings)
    assert not (tmp_path / "out").exists()
