"""recipes/create_pretraining_data.py as a user runs it: the original's flags, the original's
instances.
"""

import functools
import json
import random
import runpy
from pathlib import Path

import pytest

from bert_recipes.data.instances import FEATURE_NAMES, InstanceDataset


ORIGINAL = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "original_rules.py"))
UNCASED = (
    "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] the a cat sat on mat ##s ##ting run ##ning . "
    ", ! [ ] mask b ##c ##d"
)
CASED = UNCASED + " The A Cat B"
TEXT = (
    "The cat sat.\nA cats running on mats!\n\nRun, cat.\nBcd sat on a mat.\nThe the cats "
    "sitting\n\n[MASK] a b\n"
)


@pytest.fixture
def run(start_recipe, tmp_path, monkeypatch):
    """Run the recipe in the folder of the files."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(start_recipe, "create_pretraining_data")


@pytest.fixture
def files(tmp_path):
    """Relative paths as in the original's README; the scripts run in the folder."""
    (tmp_path / "vocab.txt").write_text("\n".join(UNCASED.split()) + "\n")
    (tmp_path / "cased.txt").write_text("\n".join(CASED.split()) + "\n")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected(
    folder,
    *,
    texts=(TEXT,),
    vocab="vocab.txt",
    lower=True,
    max_seq=128,
    dupe=10,
    whole_word=False,
    seed=12345,
):
    vocabulary = ORIGINAL["load_vocab"](folder / vocab)
    documents = ORIGINAL["read_documents"](list(texts), vocabulary, lower)
    instances = ORIGINAL["create_instances"](
        documents, vocabulary, seed, max_seq, dupe, 0.1, 0.15, 20, whole_word
    )
    return [ORIGINAL["features"](instance, vocabulary, max_seq, 20) for instance in instances]


def check(result):
    assert result.returncode == 0, result.stderr
    return result


def test_golden_file_of_the_original_token_for_token_and_in_order(run, shared_data, tmp_path):
    # Source: google-research/bert README.md, "Pre-training with BERT"; random_seed 12345,
    # dupe_factor 5.
    check(
        run(
            f"--input_file={shared_data / 'reference' / 'sample_text.txt'}",
            "--output_file=ours.jsonl,ours.tfrecord",
            f"--vocab_file={shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'}",
            "--do_lower_case=True",
            "--max_seq_length=128",
            "--max_predictions_per_seq=20",
            "--masked_lm_prob=0.15",
            "--random_seed=12345",
            "--dupe_factor=5",
        )
    )
    golden = read(shared_data / "reference" / "tf_examples.jsonl")
    # Round-robin: the first, third, ... in the first file.
    files = read(tmp_path / "ours.jsonl"), InstanceDataset([tmp_path / "ours.tfrecord"])
    assert (len(files[0]), len(files[1]), len(golden)) == (30, 30, 60)
    for index, record in enumerate(golden):
        if index % 2:
            ours = {name: values.tolist() for name, values in files[1].record(index // 2).items()}
        else:
            ours = files[0][index // 2]
            assert list(ours) == list(FEATURE_NAMES)
        assert ours == {name: record[name] for name in FEATURE_NAMES}


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ([], {}),
        (
            ["--vocab_file=cased.txt", "--do_lower_case=False"],
            {"vocab": "cased.txt", "lower": False},
        ),
        (
            ["--vocab_file", "cased.txt", "--nodo_lower_case"],
            {"vocab": "cased.txt", "lower": False},
        ),
        (["--do_whole_word_mask", "--max_seq_length", "16"], {"whole_word": True, "max_seq": 16}),
        (
            ["-do_whole_word_mask=true", "-random_seed=7", "--dupe_factor", "3"],
            {"whole_word": True, "seed": 7, "dupe": 3},
        ),
    ],
)
def test_flags_in_all_of_the_originals_forms_give_its_instances(run, files, arguments, settings):
    if not any("vocab_file" in argument for argument in arguments):
        arguments = [*arguments, "--vocab_file=vocab.txt"]
    check(run("--input_file=text.txt", "--output_file=out.jsonl", *arguments))
    assert read(files / "out.jsonl") == expected(files, **settings)


def test_real_text_with_the_cased_vocabulary_equals_the_original(run, shared_data, tmp_path):
    source = (shared_data / "corpus" / "wiki" / "squad_train_articles.txt").read_text(
        encoding="utf-8"
    )
    rng, lines = random.Random(2), []
    for line in source[:150_000].split("\n"):
        lines += line.replace(". ", ".\n").split("\n")
        lines += [""] if rng.random() < 0.1 else []
    text = "\n".join(lines)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    vocab = shared_data / "vocab" / "bert-base-cased-vocab.txt"
    flags = [
        "--do_lower_case=False",
        "--do_whole_word_mask=True",
        "--max_seq_length=96",
        "--dupe_factor=2",
    ]
    check(run("--input_file=text.txt", "--output_file=out.jsonl", f"--vocab_file={vocab}", *flags))
    theirs = expected(
        tmp_path, texts=[text], vocab=vocab, lower=False, whole_word=True, max_seq=96, dupe=2
    )
    assert len(theirs) > 500
    assert read(tmp_path / "out.jsonl") == theirs


def test_globs_and_lists_are_read_in_order_without_a_break_between_files(run, files):
    parts = ["the cat\n", "sat on\n\na mat", "run\n\nb\n"]
    for name, part in zip(["b1.txt", "b2.txt", "a.txt"], parts, strict=True):
        (files / name).write_text(part)
    check(
        run(
            "--input_file=./b*.txt,a.txt",
            "--output_file=out.jsonl",
            "--vocab_file=vocab.txt",
            "--dupe_factor=2",
        )
    )
    # The last line of the second file has no line feed, yet is a line of its own.
    assert read(files / "out.jsonl") == expected(files, texts=parts, dupe=2)


def test_it_says_what_it_read_and_wrote(run, files):
    (files / "text.txt").write_bytes(TEXT.encode() + b"\x00\n")
    result = check(
        run("--input_file=text.txt", "--output_file=out.parquet", "--vocab_file=vocab.txt")
    )
    count = len(InstanceDataset([files / "out.parquet"]))
    assert "read 3 documents, 6 sentences" in result.stdout
    assert "1 lines without tokens left out" in result.stdout
    assert f"wrote {count} instances to out.parquet" in result.stdout
    (files / "text.txt").write_text("the cat sat.\nrun\n")
    result = check(
        run("--input_file=text.txt", "--output_file=out.jsonl", "--vocab_file=vocab.txt")
    )
    assert "warning: there is one document only" in result.stderr
    assert read(files / "out.jsonl") == expected(files, texts=["the cat sat.\nrun\n"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input_file=none.txt"], "no file matches 'none.txt'"),
        (["--input_file=empty.txt"], "empty.txt: no sentence in 0 lines"),
        (["--input_file=latin.txt"], "latin.txt, line 2: not UTF-8"),
        (["--output_file=none/out.jsonl"], "there is no folder none"),
        (["--output_file=out.csv"], "the suffix must say the format"),
        (["--vocab_file=empty.txt"], "empty.txt: no [PAD]"),
        (["--max_seq_length=7"], "max_seq_length is 7; allowed: 8 or more"),
        (["--masked_lm_prob=15"], "masked_lm_prob is 15.0; allowed: 0 to 1"),
        (["--short_seq_prob=2"], "short_seq_prob is 2.0"),
        (["--dupe_factor=0"], "dupe_factor is 0; allowed: 1 or more"),
        (["--max_predictions_per_seq=0"], "max_predictions_per_seq is 0"),
        (["--max_seq_lenght=128"], "did you mean --max_seq_length?"),
        (["--nodo_lower"], "--nodo_lower"),
        (["--do_lower_case=perhaps"], "--do_lower_case: "),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(run, files, arguments, message):
    (files / "empty.txt").touch()
    (files / "latin.txt").write_bytes(b"the cat\n\xe9t\xe9\n")
    before = sorted(files.iterdir())
    result = run(
        "--input_file=text.txt", "--output_file=out.jsonl", "--vocab_file=vocab.txt", *arguments
    )
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert sorted(files.iterdir()) == before
