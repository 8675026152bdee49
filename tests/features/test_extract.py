"""Vectors of inputs: which layers, which inputs, stock's hidden states, and their files."""

import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, DistilBertConfig, DistilBertModel

from bert_recipes.config import parse_arguments
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
    read_inputs,
)
from bert_recipes.tokenization.loading import load_tokenizer


# Layers


HIDDEN = {number: torch.full((3, 2), 10.0**number) for number in range(7)}


@pytest.mark.parametrize(
    ("wanted", "layers"),
    [
        ("last", (6,)),
        ("second_to_last", (5,)),
        ("sum_last_four", (3, 4, 5, 6)),
        ("concat_last_four", (3, 4, 5, 6)),
        ("sum_all", (1, 2, 3, 4, 5, 6)),
        ("embeddings", (0,)),
        ("-1", (6,)),
        ("-6", (1,)),
        ("0", (0,)),
        ("2", (2,)),
    ],
)
def test_names_are_those_of_table_7_and_numbers_those_of_transformers(wanted, layers):
    """BERT, Devlin et al. 2019, Table 7; `hidden_states` of transformers begin with the
    embeddings.
    """
    (column,) = choose_columns([wanted], 6)
    assert column.layers == layers


def test_layers_are_summed_put_side_by_side_or_kept_apart():
    names = ["-1", "-2", "sum_last_four", "concat_last_four"]
    last, before, summed, joined = choose_columns(names, 6)
    assert (last.name, before.name) == ("layer_6", "layer_5")
    assert torch.equal(before.take(HIDDEN), HIDDEN[5])
    assert torch.equal(summed.take(HIDDEN), torch.full((3, 2), 1_111_000.0))
    assert joined.take(HIDDEN)[0].tolist() == [1e3, 1e3, 1e4, 1e4, 1e5, 1e5, 1e6, 1e6]


def test_half_precision_states_are_summed_in_full():
    states = {number: torch.full((1, 1), 40_000.0, dtype=torch.float16) for number in (1, 2)}
    assert Column("x", (1, 2)).take(states).item() == 80_000


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["lats"], "layers: 'lats' is no layer; allowed: embeddings, second_to_last"),
        (["weighted_sum_last_four"], "with equal ones it is sum_last_four"),
        (["-7"], "layers: -7 is given, the model has 6: -6 to 6"),
        (["-1", "6"], "names a layer twice"),
        (["concat_last_four"], "'Concat Last Four Hidden' needs 4 layers, the model has 3"),
    ],
)
def test_a_layer_that_is_not_there_is_an_error(wanted, message):
    with pytest.raises(InputError, match=message):
        choose_columns(wanted, 3 if wanted == ["concat_last_four"] else 6)


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
        {"text": "a", "text_pair": "b", "n": 1},
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
    ("name", "text", "columns", "message"),
    [
        ("none.txt", None, None, "no such file"),
        ("a.doc", "x", None, "unknown ending '.doc'; allowed: .txt, .jsonl"),
        (
            "a.jsonl",
            '{"sentence": "x"}\n',
            None,
            r"a.jsonl, line 1: no column 'text'; .*--text_columns",
        ),
        (
            "a.jsonl",
            '{"text": "x"}\n{"text": [3]}\n',
            None,
            r"line 2: column 'text' holds \[3\]; text is expected",
        ),
        ("a.jsonl", '{"a": "x"}\n', ["a", "b"], "line 1: no column 'b'"),
        ("a.jsonl", '{"text": "x"\n', None, "line 1: broken JSON"),
        ("a.txt", b"good\nb\xe9d\n", None, "line 2: not valid UTF-8"),
        ("a.txt", "", None, "no input in it"),
        ("a.jsonl", "\n", None, "no input in it"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(tmp_path, name, text, columns, message):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message):
        count_inputs(tmp_path / name, columns)


def test_inputs_are_cut_as_the_original_cuts_them(tokenizer):
    """google-research/bert extract_features.py `convert_examples_to_features`,
    `_truncate_seq_pair`.
    """

    def original(text, pair, length):
        first, second = (tokenizer.tokenize(each) if each else [] for each in (text, pair))
        if second:
            while len(first) + len(second) > length - 3:
                (first if len(first) > len(second) else second).pop()
        else:
            first = first[: length - 2]
        tokens = ["[CLS]", *first, "[SEP]"] + ([*second, "[SEP]"] if second else [])
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1 if second else 0)
        return tokens, types

    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        text, pair = ("".join(rng.choice(list("abc d"), rng.integers(0, 14))) for _ in range(2))
        pair = pair if rng.random() < 0.6 else None
        length = int(rng.integers(3, 30))
        found = encode_input((text, pair), tokenizer, length)
        tokens, types = original(text, pair, length)
        assert tokenizer.convert_ids_to_tokens(found.input_ids) == tokens
        assert found.token_type_ids == types
        whole = encode_input((text, pair), tokenizer, 100)
        assert found.is_truncated == (len(whole.input_ids) > len(found.input_ids))
        assert not whole.is_truncated
        seen.add((found.is_truncated, pair is None))
    assert len(seen) == 4


# Vectors


def random_inputs(tokenizer, number=23, seed=0, length=40):
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list("abcdefg "), rng.integers(0, 60))) for _ in range(2 * number)]
    texts[4] = texts[5] = texts[6] = ""
    pairs = [
        (a, b if rng.random() < 0.4 else None) for a, b in zip(texts[::2], texts[1::2], strict=True)
    ]
    return [encode_input(pair, tokenizer, length) for pair in pairs]


def extractor(checkpoint, layers, **settings):
    settings = {"fast_layers": "off", "use_cpu": True} | settings
    return open_extractor(FeatureArguments(str(checkpoint), "", layers=layers, **settings))


@pytest.mark.parametrize("fast_layers", ["off", "plain", "auto"])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_token_vectors_are_stocks_hidden_states(checkpoint, stock_states, fast_layers, batch_size):
    names = [
        "last",
        "second_to_last",
        "concat_last_four",
        "sum_last_four",
        "sum_all",
        "embeddings",
        "-5",
    ]
    own = extractor(checkpoint, names, fast_layers=fast_layers, batch_size=batch_size)
    inputs = random_inputs(own.tokenizer)
    vectors = own.extract(inputs)
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
        for column in own.columns:
            tokens = vectors[column.name][number]
            assert tokens.dtype == np.float32
            # Of sums, each of the terms.
            atol = 1e-5 * len(column.layers)
            np.testing.assert_allclose(tokens, expected[column.name], atol=atol, rtol=0)


@pytest.mark.parametrize("pooling", ["cls", "mean", "mean_all"])
@pytest.mark.parametrize("fast_layers", ["off", "auto"])
def test_an_input_has_the_vector_of_cls_or_a_mean(checkpoint, stock_states, pooling, fast_layers):
    own = extractor(
        checkpoint,
        ["last", "concat_last_four"],
        pooling=pooling,
        fast_layers=fast_layers,
        batch_size=4,
    )
    inputs = random_inputs(own.tokenizer)
    vectors = own.extract(inputs)
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
        for name, hidden in {
            "last": states[6],
            "concat_last_four": torch.cat(states[3:], -1),
        }.items():
            np.testing.assert_allclose(
                vectors[name][number], hidden[places].mean(0), atol=1e-5, rtol=0
            )
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
    encoded = [encode_input(pair, own.tokenizer, 40) for pair in pairs]
    vectors = own.extract(encoded)["last"]
    for pair, item, tokens in zip(pairs, encoded, vectors, strict=True):
        inputs = tokenizer(*pair, return_tensors="pt")
        assert max(inputs["input_ids"][0]) >= len(tokenizer) - 3
        with torch.no_grad():
            wanted = model(**inputs).last_hidden_state[0]
        assert item.input_ids == inputs["input_ids"][0].tolist()
        np.testing.assert_allclose(tokens, wanted, atol=1e-5, rtol=0)


def test_chunks_follow_each_other_and_are_bounded(checkpoint, monkeypatch):
    """Inputs are drawn only as chunks are asked for, whatever the file's size."""
    own = extractor(checkpoint, ["last"], batch_size=5)
    inputs = random_inputs(own.tokenizer, 60)
    monkeypatch.setattr(module, "CHUNK_BYTES", 40 * 32 * 4)
    drawn = []
    chunks = own.chunks(drawn.append(item) or item for item in inputs)
    first = next(chunks)
    assert len(drawn) == len(first.inputs) + 1
    found = [first, *chunks]
    assert len(found) > 5
    vectors = []
    for chunk in found:
        assert chunk.first_row == len(vectors)
        assert len(chunk.inputs) == 1 or sum(len(item.input_ids) for item in chunk.inputs) <= 40
        vectors += chunk.vectors["last"]
    whole = own.extract(inputs)["last"]
    for one, other in zip(vectors, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_half_precision_rounds_and_refuses_what_does_not_fit(checkpoint):
    full, half = (extractor(checkpoint, ["last"], dtype=dtype) for dtype in ("float32", "float16"))
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
    own = extractor(tmp_path, ["last", "-2"], max_seq_length=64)
    inputs = [encode_input((text, None), tokenizer, 20) for text in ("abc de", "f")]
    vectors = own.extract(inputs)
    for number, item in enumerate(inputs):
        with torch.no_grad():
            hidden = stock(torch.tensor([item.input_ids]), output_hidden_states=True).hidden_states
        np.testing.assert_allclose(vectors["last"][number], hidden[2][0], atol=1e-5)
        np.testing.assert_allclose(vectors["layer_1"][number], hidden[1][0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fast_layers", ["off", "auto"])
def test_a_model_of_base_size_is_as_close(tiny_checkpoint, tmp_path, fast_layers):
    """12 layers of 768: what a small model cannot show."""
    _, tokenizer = open_encoder(str(tiny_checkpoint))
    torch.manual_seed(0)
    stock = BertModel(BertConfig(vocab_size=len(tokenizer))).eval()
    stock.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    own = extractor(
        tmp_path, ["last", "concat_last_four", "embeddings"], fast_layers=fast_layers, batch_size=8
    )
    inputs = random_inputs(own.tokenizer, 16, length=128)
    vectors = own.extract(inputs)
    for number, item in enumerate(inputs):
        ids = {
            "input_ids": torch.tensor([item.input_ids]),
            "token_type_ids": torch.tensor([item.token_type_ids]),
        }
        with torch.no_grad():
            states = torch.cat(stock(**ids, output_hidden_states=True).hidden_states)
        expected = (states[12], torch.cat(list(states[9:]), -1), states[0])
        for rows, wanted in zip(vectors.values(), expected, strict=True):
            np.testing.assert_allclose(rows[number], wanted, atol=1e-5, rtol=0)


@pytest.mark.gpu
def test_a_gpu_gives_the_vectors_of_a_cpu(checkpoint):
    own = extractor(checkpoint, ["last", "second_to_last"], pooling="mean")
    inputs = random_inputs(own.tokenizer)
    expected = own.extract(inputs)
    own.encoder.to("cuda")
    for name, vectors in own.extract(inputs).items():
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
            first, second or None, return_tensors="pt", truncation=True, max_length=16
        )
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states
        return tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), [
            state[0].numpy() for state in hidden
        ]

    return states


@pytest.fixture
def extract(tiny_checkpoint, texts, tmp_path, monkeypatch):
    """Extract into tmp_path / "out", in chunks of 5 kB; flags replace those given by default."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 5_000)

    def run(*flags):
        given = {
            "--model_name_or_path": tiny_checkpoint,
            "--input_file": texts,
            "--output_dir": tmp_path / "out",
            "--max_seq_length": 16,
        }
        argv = [
            word for flag, value in given.items() if flag not in flags for word in (flag, value)
        ]
        return extract_features(
            parse_arguments(FeatureArguments, argv=list(map(str, (*argv, *flags))))[0]
        )

    return run


def test_googles_lines_are_the_originals(extract, stock, tmp_path, caplog):
    """google-research/bert extract_features.py `main`: keys, their order, every token, six
    digits.
    """
    extract("--format", "google_jsonl", "--layers=-1,-2")
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
                np.testing.assert_allclose(
                    layer["values"], hidden[layer["index"]][position], atol=1e-5 + 5e-7
                )
                assert all(value == round(value, 6) for value in layer["values"])
        assert line == json.dumps(row), "separators as json writes them"
    assert "1 of 26 inputs are longer than 16 positions" in caplog.text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["features.jsonl"]


def test_parquet_holds_a_row_per_input_with_vectors_of_every_token(extract, stock, tmp_path):
    summary = extract("--layers", "last", "-2")
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
    flags = ("--pooling", "mean_all", "--dtype", "float16", "--overwrite", "true")
    extract(*flags)
    table = pq.read_table(tmp_path / "out" / "features.parquet")
    assert str(table.schema.field("last").type) == "fixed_size_list<element: halffloat>[32]"
    expected = [stock(text)[1][-1].mean(0) for text in LINES]
    np.testing.assert_allclose(np.stack(table["last"].to_pylist()), expected, atol=2e-3)


@pytest.mark.parametrize("form", ["parquet", "google_jsonl"])
def test_a_file_is_complete_or_absent_and_replaced_on_request_alone(
    extract, tmp_path, monkeypatch, form
):
    flags = ("--format", form, "--layers", "-1")
    with monkeypatch.context() as patch:
        hidden_states, calls = module.hidden_states, []

        def interrupted(*arguments):
            calls.append(1)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return hidden_states(*arguments)

        patch.setattr(module, "hidden_states", interrupted)
        with pytest.raises(KeyboardInterrupt):
            extract(*flags)
    assert not list((tmp_path / "out").iterdir())
    extract(*flags)
    (file,) = (tmp_path / "out").iterdir()
    before = file.read_bytes()
    with pytest.raises(InputError, match="is there; give another --output_dir, or replace it"):
        extract(*flags)
    assert file.read_bytes() == before
    extract(*flags, "--overwrite", "true")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pooling", "max"], "pooling is 'max'; allowed: tokens, cls, mean, mean_all"),
        (["--layers", "9"], "layers: 9 is given, the model has 2: -2 to 2"),
        (
            ["--format", "google_jsonl", "--pooling", "cls"],
            "pooling is 'cls'; the original's lines",
        ),
        (["--format", "google_jsonl"], "layers: -3 is given, the model has 2"),
        (
            ["--format", "google_jsonl", "--layers=-0"],
            "layers: '-0' is given; google_jsonl counts from",
        ),
        (["--max_seq_length", "500"], "max_seq_length is 500, the model has 128 positions"),
        (["--max_seq_length", "2"], "max_seq_length is 2; allowed: 3 or more"),
        (["--text_columns", "a"], "text_columns: "),
        (
            ["--model_name_or_path", "no/such/folder"],
            "model_name_or_path: no folder no/such/folder",
        ),
    ],
)
def test_a_mistake_is_found_before_the_work(
    extract, repository, tmp_path, monkeypatch, flags, message
):
    monkeypatch.chdir(repository)
    with pytest.raises(InputError) as error:
        extract(*flags)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "out").exists()
