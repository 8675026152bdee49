"""recipes/create_pretraining_data.py as a user runs it: the original's flags, the original's
instances.
"""

import functools
import json
import random

import original_rules
import pytest

from bert_recipes.data.instances import FEATURE_NAMES, InstanceDataset


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
def run(call_recipe, tmp_path, monkeypatch):
    """Run the recipe in the folder of the files."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(call_recipe, "create_pretraining_data")


@pytest.fixture
def files(tmp_path):
    """Relative paths as in the original's README; the scripts run in the folder."""
    (tmp_path / "vocab.txt").write_text("\n".join(UNCASED.split()) + "\n")
    (tmp_path / "cased.txt").write_text("\n".join(CASED.split()) + "\n")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected(vocabulary_file, texts, *, lower=True, max_seq=128, **settings):
    """The original's features of texts."""
    defaults = {"seed": 12345, "dupe": 10, "whole_word": False}
    settings = defaults | settings
    vocabulary = original_rules.load_vocab(vocabulary_file)
    documents = original_rules.read_documents(texts, vocabulary, lower)
    seed, dupe, whole_word = settings["seed"], settings["dupe"], settings["whole_word"]
    instances = original_rules.create_instances(
        documents, vocabulary, seed, max_seq, dupe, 0.1, 0.15, 20, whole_word
    )
    return [original_rules.features(instance, vocabulary, max_seq, 20) for instance in instances]


def test_golden_file_of_the_original_token_for_token_and_in_order(run, shared_data, tmp_path):
    # Source: google-research/bert README.md, "Pre-training with BERT"; random_seed 12345,
    # dupe_factor 5.
    run(
        f"--input_file={shared_data}/reference/sample_text.txt",
        f"--vocab_file={shared_data}/vocab/bert-base-uncased-vocab.txt",
        "--output_file=ours.jsonl,ours.tfrecord --do_lower_case=True --max_seq_length=128",
        "--max_predictions_per_seq=20 --masked_lm_prob=0.15 --random_seed=12345 --dupe_factor=5",
    )
    golden = read(shared_data / "reference" / "tf_examples.jsonl")
    golden = [{name: record[name] for name in FEATURE_NAMES} for record in golden]
    # Round-robin: the first, third, ... in the first file.
    records = read(tmp_path / "ours.jsonl")

    assert records == golden[::2]
    assert list(records[0]) == list(FEATURE_NAMES)

    dataset = InstanceDataset([tmp_path / "ours.tfrecord"])

    assert len(dataset) == 30

    for index, record in enumerate(golden[1::2]):
        features = dataset.record(index)
        assert {name: values.tolist() for name, values in features.items()} == record


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("--do_lower_case=False", {"lower": False}),
        ("--nodo_lower_case", {"lower": False}),
        ("--do_whole_word_mask --max_seq_length 16", {"whole_word": True, "max_seq": 16}),
        (
            "-do_whole_word_mask=true -random_seed=7 --dupe_factor 3",
            {"whole_word": True, "seed": 7, "dupe": 3},
        ),
    ],
)
def test_flags_in_all_of_the_originals_forms_give_its_instances(run, files, flags, settings):
    vocabulary = "vocab.txt" if settings.get("lower", True) else "cased.txt"
    run("--input_file=text.txt --output_file=out.jsonl", f"--vocab_file={vocabulary}", flags)

    assert read(files / "out.jsonl") == expected(files / vocabulary, [TEXT], **settings)


def test_real_text_with_the_cased_vocabulary_equals_the_original(run, shared_data, tmp_path):
    articles = shared_data / "corpus" / "wiki" / "squad_train_articles.txt"
    rng = random.Random(2)
    lines = []
    for line in articles.read_text(encoding="utf-8")[:80_000].split("\n"):
        lines += line.replace(". ", ".\n").split("\n")
        lines += [""] if rng.random() < 0.1 else []
    text = "\n".join(lines)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    vocabulary = shared_data / "vocab" / "bert-base-cased-vocab.txt"
    flags = "--do_lower_case=False --do_whole_word_mask=True --max_seq_length=96 --dupe_factor=2"
    run("--input_file=text.txt --output_file=out.jsonl", f"--vocab_file={vocabulary}", flags)
    settings = {"lower": False, "whole_word": True, "max_seq": 96, "dupe": 2}
    features = expected(vocabulary, [text], **settings)

    assert len(features) > 300
    assert read(tmp_path / "out.jsonl") == features


def test_globs_and_lists_are_read_in_order_without_a_break_between_files(run, files):
    # The last line of the second file has no line feed, yet is a line of its own.
    texts = {"b1.txt": "the cat\n", "b2.txt": "sat on\n\na mat", "a.txt": "run\n\nb\n"}
    for name, text in texts.items():
        (files / name).write_text(text)
    flags = "--output_file=out.jsonl --vocab_file=vocab.txt --dupe_factor=2"
    run("--input_file=./b*.txt,a.txt", flags)
    features = expected(files / "vocab.txt", list(texts.values()), dupe=2)

    assert read(files / "out.jsonl") == features


def test_it_says_what_it_read_and_wrote(run, files):
    (files / "text.txt").write_bytes(TEXT.encode() + b"\x00\n")
    output = run("--input_file=text.txt --vocab_file=vocab.txt --output_file=out.parquet")
    count = len(InstanceDataset([files / "out.parquet"]))

    assert "read 3 documents, 6 sentences" in output
    assert "1 lines without tokens left out" in output
    assert f"wrote {count} instances to out.parquet" in output


def test_one_document_alone_is_warned_of(start_recipe, files, monkeypatch):
    monkeypatch.chdir(files)
    (files / "text.txt").write_text("the cat sat.\nrun\n")
    flags = "--input_file=text.txt --vocab_file=vocab.txt --output_file=out.jsonl"
    done = start_recipe("create_pretraining_data", flags)

    assert "warning: there is one document only" in done.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--input_file=none.txt", "no file matches 'none.txt'"),
        ("--input_file=latin.txt", "latin.txt, line 2: not UTF-8"),
        ("--output_file=out.csv", "the suffix must say the format"),
        ("--vocab_file=empty.txt", "empty.txt: no [PAD]"),
        ("--max_seq_length=7", "max_seq_length is 7; allowed: 8 or more"),
        ("--masked_lm_prob=15", "masked_lm_prob is 15.0; allowed: 0 to 1"),
        ("--max_seq_lenght=128", "did you mean --max_seq_length?"),
        ("--nodo_lower", "--nodo_lower"),
        ("--do_lower_case=perhaps", "--do_lower_case: "),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(run, files, flag, message):
    (files / "empty.txt").touch()
    (files / "latin.txt").write_bytes(b"the cat\n\xe9t\xe9\n")
    before = sorted(files.iterdir())
    common = "--input_file=text.txt --output_file=out.jsonl --vocab_file=vocab.txt"
    error = run(common, flag, code=1)

    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert sorted(files.iterdir()) == before
