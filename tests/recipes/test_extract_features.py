"""recipes/extract_features.py as a user runs it: what it writes, read back by other people's readers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoTokenizer, BertModel

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.features import parts as parts_module
from bert_recipes.features.arguments import FeatureArguments
from bert_recipes.features.run import extract_features


LINES = ["ab cd", "", "a" * 9 + " " + "b" * 9, "abc ||| de f", "x", "the of and the"] + [
    f"a{number} b" for number in range(20)
]


def run(repository, *arguments):
    command = [sys.executable, str(repository / "recipes" / "extract_features.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=repository)


def extract(*arguments):
    return extract_features(parse_arguments(FeatureArguments, argv=list(map(str, arguments)))[0])


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

    def states(line, max_length=16):
        first, _, second = line.partition(" ||| ")
        inputs = tokenizer(first, second or None, return_tensors="pt", truncation=True, max_length=max_length)
        with torch.no_grad():
            hidden = model(**inputs, output_hidden_states=True).hidden_states
        return tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), [state[0].numpy() for state in hidden]

    return states


@pytest.fixture(scope="module")
def google(repository, tiny_checkpoint, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("google") / "out"
    arguments = ["--model_name_or_path", tiny_checkpoint, "--input_file", texts, "--output_dir", folder]
    done = run(repository, *arguments, "--format", "google_jsonl", "--layers=-1,-2", "--max_seq_length", 16)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_googles_lines_are_the_originals(google, stock):
    """google-research/bert extract_features.py `main`: keys, their order, every token, six digits."""
    folder, done = google
    lines = (folder / "features.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(LINES)
    for number, (line, text) in enumerate(zip(lines, LINES, strict=True)):
        row = json.loads(line)
        assert list(row) == ["linex_index", "features"]
        assert row["linex_index"] == number
        tokens, hidden = stock(text)
        assert [feature["token"] for feature in row["features"]] == tokens
        for place, feature in enumerate(row["features"]):
            assert list(feature) == ["token", "layers"]
            assert [list(layer) for layer in feature["layers"]] == [["index", "values"]] * 2
            assert [layer["index"] for layer in feature["layers"]] == [-1, -2]
            for layer in feature["layers"]:
                np.testing.assert_allclose(layer["values"], hidden[layer["index"]][place], atol=1e-5 + 5e-7)
                assert all(value == round(value, 6) for value in layer["values"])
        assert line == json.dumps(row), "separators as json writes them"
    assert "1 of 26 inputs are longer than 16 positions" in done.stderr
    assert "inputs/s" in done.stdout
    assert {path.name for path in folder.iterdir()} == {"features.json", "features.jsonl"}


def test_parquet_holds_a_row_an_input_with_vectors_of_every_token(tiny_checkpoint, texts, stock, tmp_path):
    extract(
        *("--model_name_or_path", tiny_checkpoint, "--input_file", texts, "--output_dir", tmp_path / "out"),
        *("--layers", "last", "-1", "-2", "--join", "concat", "--max_seq_length", 16),
    )
    (file,) = (tmp_path / "out").glob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    assert [row["row"] for row in rows] == list(range(len(LINES)))
    for row, text in zip(rows, LINES, strict=True):
        tokens, hidden = stock(text)
        assert row["tokens"] == tokens
        assert row["truncated"] == (len(text) > 15)
        np.testing.assert_allclose(row["last"], hidden[-1], atol=1e-5)
        np.testing.assert_allclose(row["concat_2_1"], np.concatenate([hidden[2], hidden[1]], -1), atol=1e-5)
        assert row["token_type_ids"] == [0] * row["token_type_ids"].count(0) + [1] * row["token_type_ids"].count(1)
    assert sum(rows[3]["token_type_ids"]) == 4  # d ##e f [SEP]
    index = json.loads((tmp_path / "out" / "features.json").read_text())
    assert index["is_complete"]
    assert (index["num_inputs"], index["num_truncated"]) == (len(LINES), 1)
    assert index["num_tokens"] == sum(len(row["tokens"]) for row in rows)
    assert [column["size"] for column in index["columns"]] == [32, 64]


def parts_of(folder, suffix):
    files = sorted(folder.glob(f"features-*{suffix}"))
    index = json.loads((folder / "features.json").read_text())
    assert [part["file"] for part in index["parts"]] == [file.name for file in files]
    return index, files


def test_safetensors_parts_and_their_index_give_every_input_its_vectors(
    tiny_checkpoint, texts, stock, tmp_path, monkeypatch
):
    monkeypatch.setattr("bert_recipes.features.run.BYTES_A_MB", 5_000)
    arguments = ("--model_name_or_path", tiny_checkpoint, "--input_file", texts, "--max_seq_length", 16)
    arguments += ("--part_mb", 1, "--format", "safetensors")
    extract(*arguments, "--output_dir", tmp_path / "tokens")
    index, files = parts_of(tmp_path / "tokens", ".safetensors")
    assert len(files) > 3
    row = 0
    for file, part in zip(files, index["parts"], strict=True):
        tensors = load_file(file)
        assert part["first_row"] == row
        assert part["num_inputs"] == len(tensors["truncated"]) == len(tensors["offsets"]) - 1
        assert tensors["last"].nbytes <= 5_000
        for start, end in zip(tensors["offsets"][:-1], tensors["offsets"][1:], strict=True):
            _, hidden = stock(LINES[row])
            np.testing.assert_allclose(tensors["last"][start:end], hidden[-1], atol=1e-5)
            row += 1
    assert row == len(LINES)
    extract(*arguments, "--output_dir", tmp_path / "sentences", "--pooling", "mean_all", "--dtype", "float16")
    _, files = parts_of(tmp_path / "sentences", ".safetensors")
    vectors = np.concatenate([load_file(file)["last"] for file in files])
    assert vectors.dtype == np.float16
    expected = np.stack([stock(text)[1][-1].mean(0) for text in LINES])
    np.testing.assert_allclose(vectors, expected, atol=2e-3)


def small(tiny_checkpoint, texts, folder, *more):
    arguments = ("--model_name_or_path", tiny_checkpoint, "--input_file", texts, "--output_dir", folder)
    return (*arguments, "--max_seq_length", 16, "--part_mb", 1, *more)


@pytest.mark.parametrize("form", ["parquet", "safetensors"])
def test_an_interrupted_extraction_goes_on_to_the_same_files(tiny_checkpoint, texts, tmp_path, monkeypatch, form):
    monkeypatch.setattr("bert_recipes.features.run.BYTES_A_MB", 5_000)
    extract(*small(tiny_checkpoint, texts, tmp_path / "whole", "--format", form))
    writer = f"write_{form}"
    write, calls = getattr(parts_module, writer), []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            arguments[0].write_bytes(b"half a par")
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(f"bert_recipes.features.run.{writer}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            extract(*small(tiny_checkpoint, texts, tmp_path / "cut", "--format", form))
    assert len(list((tmp_path / "cut").glob("features-*"))) == 2
    assert not json.loads((tmp_path / "cut" / "features.json").read_text())["is_complete"]
    (tmp_path / "cut" / ".features-00002.parquet.1.tmp").write_bytes(b"left by a killed process")
    done = extract(*small(tiny_checkpoint, texts, tmp_path / "cut", "--format", form))
    assert 0 < done.computed < len(LINES)
    whole, cut = ({path.name: path for path in (tmp_path / name).iterdir()} for name in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    for name, path in whole.items():
        if name != "features.json":
            assert path.read_bytes() == cut[name].read_bytes()
    texts_of = [json.loads(files["features.json"].read_text()) for files in (whole, cut)]
    for text in texts_of:
        del text["seconds"], text["inputs_per_second"]
    assert texts_of[0] == texts_of[1]
    # Once more: nothing is computed.
    again = extract(*small(tiny_checkpoint, texts, tmp_path / "cut", "--format", form))
    assert (again.computed, again.num_tokens) == (0, done.num_tokens)


def test_a_damaged_part_and_what_follows_is_computed_anew(tiny_checkpoint, texts, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("bert_recipes.features.run.BYTES_A_MB", 5_000)
    folder = tmp_path / "out"
    extract(*small(tiny_checkpoint, texts, folder))
    files = sorted(folder.glob("*.parquet"))
    before = [file.read_bytes() for file in files]
    files[1].write_bytes(before[1][:-9])
    extract(*small(tiny_checkpoint, texts, folder))
    assert [file.read_bytes() for file in files] == before
    assert "features-00001.parquet is damaged" in caplog.text


def test_googles_file_is_there_as_a_whole_or_not_at_all(tiny_checkpoint, texts, tmp_path, monkeypatch):
    arguments = small(tiny_checkpoint, texts, tmp_path / "out", "--format", "google_jsonl", "--layers", "-1")

    def interrupted(*arguments):
        yield "{}"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bert_recipes.features.run.google_lines", interrupted)
        with pytest.raises(KeyboardInterrupt):
            extract(*arguments)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["features.json"]
    assert extract(*arguments).computed == len(LINES)
    assert extract(*arguments).computed == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layers", "second_to_last"], "holds features of layers"),
        (["--max_seq_length", 12], "holds features of max_seq_length 16"),
        (["--pooling", "mean"], "holds features of pooling tokens"),
        (["--format", "safetensors"], "holds features of format parquet"),
    ],
)
def test_features_of_other_settings_are_neither_taken_nor_replaced(tiny_checkpoint, texts, tmp_path, flags, message):
    extract(*small(tiny_checkpoint, texts, tmp_path / "out"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(InputError, match=message):
        extract(*small(tiny_checkpoint, texts, tmp_path / "out", *flags))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    extract(*small(tiny_checkpoint, texts, tmp_path / "out", *flags, "--overwrite", "true"))
    index = json.loads((tmp_path / "out" / "features.json").read_text())
    assert index["is_complete"]
    suffixes = {path.suffix for path in (tmp_path / "out").iterdir()} - {".json"}
    assert suffixes == {".safetensors" if "--format" in flags else ".parquet"}


def test_what_a_killed_process_leaves_is_taken_over_and_a_users_own_file_is_kept(tiny_checkpoint, texts, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".features.json.1.tmp").write_text("{", encoding="utf-8")  # killed before there was an index
    extract(*small(tiny_checkpoint, texts, folder))
    part = (folder / "features-00000.parquet").read_bytes()
    (folder / "features-train.parquet").write_bytes(b"a user's")
    (folder / "features-00000.parquet").unlink()  # killed while the old features were deleted
    extract(*small(tiny_checkpoint, texts, folder, "--overwrite", "true"))
    assert (folder / "features-00000.parquet").read_bytes() == part
    assert (folder / "features-train.parquet").read_bytes() == b"a user's"
    assert {path.name for path in folder.iterdir()} == {
        "features.json",
        "features-00000.parquet",
        "features-train.parquet",
    }


def test_the_index_is_deleted_last(tiny_checkpoint, texts, tmp_path, monkeypatch):
    """Killed in between, the folder is still known as one of features."""
    folder = tmp_path / "out"
    extract(*small(tiny_checkpoint, texts, folder))
    unlink = Path.unlink

    def killed(path, missing_ok=False):
        if path.name == "features.json":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            extract(*small(tiny_checkpoint, texts, folder, "--overwrite", "true"))
    assert [path.name for path in folder.iterdir()] == ["features.json"]
    assert extract(*small(tiny_checkpoint, texts, folder)).computed == len(LINES)


def test_another_model_or_other_inputs_are_seen(tiny_checkpoint, texts, tmp_path):
    extract(*small(tiny_checkpoint, texts, tmp_path / "out"))
    other = shutil.copytree(tiny_checkpoint, tmp_path / "other")
    model = BertModel.from_pretrained(other)
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias[0] += 1e-3
    model.save_pretrained(other)
    with pytest.raises(InputError, match="holds features of another model"):
        extract(*small(other, texts, tmp_path / "out"))
    changed = tmp_path / "in.txt"
    changed.write_text(texts.read_text().replace("ab cd", "ab ce"))
    with pytest.raises(InputError, match="holds features of other inputs"):
        extract(*small(tiny_checkpoint, changed, tmp_path / "out"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pooling", "max"], "error: pooling is 'max'; allowed: tokens, cls, mean, mean_all"),
        (["--layers", "9"], "error: layers: 9 is given, the model has 2: -2 to 2"),
        (["--format", "google_jsonl", "--pooling", "cls"], "error: pooling is 'cls'; the original's lines"),
        (["--format", "google_jsonl"], "error: layers: -3 is given, the model has 2"),
        (["--max_seq_length", "500"], "error: max_seq_length is 500, the model has 128 positions"),
        (["--text_columns", "a"], "error: text_columns: "),
        (["--output_dir", "recipes"], "error: output_dir recipes holds files that are no features"),
        (["--model_name_or_path", "no/such/folder"], "error: model_name_or_path: no folder no/such/folder"),
    ],
)
def test_a_mistake_is_one_line(repository, tiny_checkpoint, texts, tmp_path, monkeypatch, flags, message):
    common = ["--model_name_or_path", tiny_checkpoint, "--input_file", texts, "--output_dir", tmp_path / "out"]
    monkeypatch.chdir(repository)
    given = {name: value for name, value in zip(common[::2], common[1::2], strict=True) if name not in flags}
    with pytest.raises(InputError) as error:
        extract(*[word for pair in given.items() for word in pair], *flags)
    assert f"error: {error.value}".startswith(message)
    assert not (tmp_path / "out").exists()
    assert not (repository / ".recipes.lock").exists()


def test_a_mistake_ends_the_script_without_a_traceback(call_recipe, tiny_checkpoint, tmp_path):
    flags = ("--model_name_or_path", tiny_checkpoint, "--input_file", tmp_path / "none.txt")
    said = call_recipe("extract_features", *flags, code=1)
    assert said.splitlines()[-1].startswith("error: --input_file")
    assert "Traceback" not in said


@pytest.mark.slow
def test_memory_stays_bounded_whatever_the_size_of_the_file(repository, tiny_checkpoint, tmp_path):
    """64 MB of vectors a part; the second file has ten times as many inputs and takes the same memory."""
    peaks = {}
    for number in (30_000, 300_000):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(f"a{row} b c d e f g h\n" for row in range(number)), encoding="utf-8")
        code = (
            "import sys, resource; from bert_recipes.config import parse_arguments;"
            "from bert_recipes.features.arguments import FeatureArguments;"
            "from bert_recipes.features.run import extract_features;"
            "extract_features(parse_arguments(FeatureArguments)[0]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
        )
        flags = ["--model_name_or_path", tiny_checkpoint, "--input_file", path, "--part_mb", 16, "--batch_size", 256]
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, flags), "--output_dir", str(tmp_path / f"out{number}")],
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
        )
        peaks[number] = int(done.stdout.split()[-1])
    assert peaks[300_000] < peaks[30_000] + 60
