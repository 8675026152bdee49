"""Static against contextual vectors: word vectors, classifiers on frozen vectors, types of words by
their neighbours.
"""

import itertools
import json
import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.model_selection import ShuffleSplit

from bert_recipes.errors import InputError
from bert_recipes.features.arguments import StaticArguments
from bert_recipes.features.results import save_results
from bert_recipes.features.static import (
    SEED,
    compare,
    cosines,
    find_mentions,
    fit_classifier,
    frozen_features,
    make_table,
    measure_words,
    vote,
)
from bert_recipes.features.word_vectors import (
    WordVectors,
    count_cooccurrences,
    positive_pmi,
    train_word_vectors,
)
from bert_recipes.tasks.examples import Split, TaggedExample, TextExample
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.mark.parametrize(
    ("task", "folder"), [("my-task 2", "my-task 2"), ("../../x", "------x"), ("..", "--")]
)
def test_the_name_of_a_task_is_no_path(task, folder):
    assert StaticArguments().folder(task) == Path("runs/static") / folder


# Word vectors

TEXTS = ["The cat sat. The cat ran", "a dog sat", "the dog ran and the cat sat", "cat"]


def test_neighbors_and_ppmi_equal_the_plain_formula():
    """Levy, Goldberg and Dagan 2015, sections 2.1, 2.2 and 3.1, pair by pair."""
    numbers, counts = count_cooccurrences(TEXTS, window=2, min_count=2)
    assert list(numbers) == ["the", "cat", "sat", "ran", "dog"]
    pairs = Counter()
    for text in TEXTS:
        words = text.lower().replace(".", "").split()
        for place, word in enumerate(words):
            for neighbor in words[max(0, place - 2) : place] + words[place + 1 : place + 3]:
                if {word, neighbor} <= numbers.keys():
                    pairs[word, neighbor] += 1

    table = positive_pmi(counts).toarray()

    totals = Counter()
    for (word, _), count in pairs.items():
        totals[word] += count

    smoothed = sum(count**0.75 for count in totals.values())

    for first, second in itertools.product(numbers, numbers):
        count = pairs[first, second]
        cell = (numbers[first], numbers[second])
        assert counts[cell] == count
        if count:
            expected = count * smoothed / (totals[first] * totals[second] ** 0.75)
            assert table[cell] == pytest.approx(max(0.0, math.log(expected)))


def test_word_vectors_are_left_singular_vectors_times_roots():
    """Levy, Goldberg and Dagan 2015, section 3.3, with p = 0.5; by NumPy's SVD, whatever the
    signs.
    """
    numbers, counts = count_cooccurrences(TEXTS, window=5, min_count=1)
    words = train_word_vectors(TEXTS, StaticArguments(min_count=1))
    left, values, _ = np.linalg.svd(positive_pmi(counts).toarray())
    assert words.numbers == numbers
    np.testing.assert_allclose(words.vectors @ words.vectors.T, (left * values) @ left.T, atol=1e-9)


def test_a_text_is_the_mean_of_its_known_words():
    words = WordVectors({"a": 0, "b": 1}, np.array([[1.0, 0.0], [0.0, 4.0]]))
    means = words.mean(["A b b", "a c", "c", ""])
    np.testing.assert_allclose(means, [[1 / 3, 8 / 3], [1, 0], [0, 0], [0, 0]])


def test_word_vectors_of_files_know_their_words(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(["red green", "green red"] * 5), encoding="utf-8")
    words = train_word_vectors([], StaticArguments(files=[str(tmp_path)]))
    assert set(words.numbers) == {"red", "green"}
    with pytest.raises(InputError, match="no two words that occur 11 times"):
        train_word_vectors([], StaticArguments(files=[str(tmp_path)], min_count=11))


# Data


def write_task(folder, rows_of, **values):
    """A task's YAML and its two files; `rows_of` makes the rows of a split out of a generator."""
    folder.mkdir(exist_ok=True)
    for seed, split in enumerate(("train", "validation")):
        rows = rows_of(np.random.default_rng(seed), 160 if split == "train" else 40)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")

    task = {
        "files": {"train": "train.jsonl", "validation": "validation.jsonl"},
        "kind": "sequence_classification",
        "text_columns": ["text"],
        **values,
    }
    (folder / "task.yaml").write_text(json.dumps(task), encoding="utf-8")
    return str(folder / "task.yaml")


def compare_task(task_file, checkpoint, **settings):
    settings = {
        "min_count": 2,
        "vector_size": 8,
        "use_cpu": True,
        **settings,
    }
    names = {"task_file": task_file, "model_name_or_path": str(checkpoint)}
    return compare(StaticArguments(**names, **settings))


# Texts


def planted_rows(rng, number):
    """The word `yes` or `no` decides the label; all others say nothing."""
    rows = []
    for _ in range(number):
        label = int(rng.integers(2))
        words = rng.choice([*"abcdefgh"], 6).tolist()
        rows.append({"text": " ".join([*words, ("no", "yes")[label]]), "label": label})
    return rows


def equal_rows(rng, number):
    """Whether both texts name the same colour."""
    rows = []
    for _ in range(number):
        colors = rng.choice(["red", "green", "blue", "black"], 2, replace=False)
        label = int(rng.integers(2))
        second = colors[0] if label else colors[1]
        rows.append(
            {
                "text": f"it is {colors[0]}",
                "pair": f"it is {second}",
                "label": label,
            }
        )
    return rows


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("planted"), planted_rows, labels=["bad", "good"])


@pytest.fixture(scope="module")
def planted_results(planted, checkpoint):
    return compare_task(planted, checkpoint)


def test_results_of_other_settings_are_not_written_over(planted, checkpoint, tmp_path):
    before = StaticArguments(task_file=planted, model_name_or_path="runs/x", max_train_examples=9)
    save_results(tmp_path, {}, "", before)
    names = "model_name_or_path, max_train_examples, vector_size"
    with pytest.raises(InputError, match=rf"holds results of other settings \({names}\)"):
        compare_task(planted, checkpoint, output_dir=str(tmp_path))


def test_a_planted_word_is_learned_and_each_way_has_a_row(planted_results):
    rows = planted_results["rows"]
    assert [(row["vectors"], row.get("size")) for row in rows][2:] == [
        ("mean of word vectors", 8),
        ("frozen: [CLS] of the last layer", 32),
        ("frozen: mean of the last layer", 32),
        ("frozen: mean of the last four layers", 32),
    ]
    accuracy = {row["vectors"]: row["figures"]["accuracy"] for row in rows}
    assert accuracy["TF-IDF"][0] == accuracy["mean of word vectors"][0] == 1
    assert 0.85 < accuracy["TF-IDF"][1] < accuracy["TF-IDF"][2] == 1
    assert 0.4 < accuracy["none: the most frequent class"][0] < 0.6
    assert make_table(rows).count("\n") == 2 + len(rows)


def test_two_texts_are_compared_by_their_difference(checkpoint, tmp_path):
    task = write_task(
        tmp_path,
        equal_rows,
        text_columns=["text", "pair"],
        labels=["other", "same"],
        metrics=["accuracy", "f1"],
    )
    rows = compare_task(task, checkpoint)["rows"]
    assert [row["figures"]["f1"][0] for row in rows[1:3]] == [1, 1]


def test_frozen_vectors_are_those_of_stock_transformers(checkpoint, stock_states):
    examples = [
        TextExample(idx=0, text="ab c"),
        TextExample(
            idx=1,
            text="f",
            text_pair="d e",
        ),
    ]
    split = Split(
        name="train",
        examples=examples,
        source="",
        num_rows=2,
    )
    tokenizer = load_tokenizer(checkpoint)
    vectors = dict(frozen_features([split], str(checkpoint), StaticArguments(use_cpu=True)))

    for row, example in enumerate(examples):
        inputs = tokenizer(*filter(None, [example.text, example.text_pair]))
        states = stock_states(inputs["input_ids"], inputs["token_type_ids"])
        states = [state.numpy() for state in states]
        expected = [states[-1][0], states[-1].mean(0), sum(states[-4:]).mean(0)]
        for (train_vectors,), values in zip(vectors.values(), expected, strict=True):
            np.testing.assert_allclose(train_vectors[row], values, atol=2e-5)


def test_texts_that_the_encoder_reads_in_part_are_said(checkpoint, caplog):
    examples = [TextExample(idx=0, text="ab c " * 20), TextExample(idx=1, text="f")]
    split = Split(name="train", examples=examples, source="", num_rows=2)
    dict(
        frozen_features([split], str(checkpoint), StaticArguments(max_seq_length=16, use_cpu=True))
    )
    assert "1 texts are longer than 16 positions" in caplog.text


def test_labels_that_are_one_but_for_the_tenth_that_chooses_are_refused():
    labels = np.zeros(20, dtype=int)
    _, held_out = next(ShuffleSplit(1, test_size=0.1, random_state=SEED).split(labels))
    labels[held_out] = 1
    with pytest.raises(InputError, match="all the others have one label; give more examples"):
        fit_classifier(np.ones((20, 2)), labels, "accuracy")


def test_c_is_chosen_without_the_evaluation_labels(planted_results, checkpoint, tmp_path):
    def with_swapped_evaluation_labels(rng, number):
        rows = planted_rows(rng, number)
        return rows if number == 160 else [{**row, "label": 1 - row["label"]} for row in rows]

    swapped = write_task(
        tmp_path / "swapped", with_swapped_evaluation_labels, labels=["bad", "good"]
    )
    swapped_rows = compare_task(swapped, checkpoint)["rows"][1:]

    for row, swapped_row in zip(planted_results["rows"][1:], swapped_rows, strict=True):
        assert row["C"] == swapped_row["C"]
        accuracy = row["figures"]["accuracy"][0]
        assert swapped_row["figures"]["accuracy"][0] == pytest.approx(1 - accuracy)


@pytest.fixture(scope="module")
def finetuned(tiny_runs):
    return tiny_runs("sequence_classification")


def test_the_fine_tuned_row_is_read_from_its_run(finetuned, checkpoint):
    results = json.loads((finetuned / "all_results.json").read_text(encoding="utf-8"))
    task = str(finetuned.parent / "data" / "task.yaml")
    row = compare_task(task, checkpoint, finetuned=str(finetuned))["rows"][-1]
    assert row["vectors"] == "fine-tuned"
    interval = results["intervals"]["accuracy"]
    assert row["figures"]["accuracy"] == [results["eval_accuracy"], *interval]


def test_a_run_that_has_diverged_is_refused(finetuned, checkpoint, tmp_path):
    folder = shutil.copytree(finetuned, tmp_path / "run")
    results = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
    results.update(eval_accuracy=None, intervals={})
    (folder / "all_results.json").write_text(json.dumps(results), encoding="utf-8")
    task = str(finetuned.parent / "data" / "task.yaml")
    with pytest.raises(InputError, match="has diverged: its accuracy is not defined"):
        compare_task(task, checkpoint, finetuned=str(folder))


def test_a_run_on_other_examples_is_refused(
    planted,
    finetuned,
    checkpoint,
    tmp_path,
):
    with pytest.raises(InputError, match=r"has other examples than these 160 of .*train.jsonl"):
        compare_task(planted, checkpoint, finetuned=str(finetuned))
    with pytest.raises(InputError, match=r"all_results.json is missing"):
        compare_task(planted, checkpoint, finetuned=str(tmp_path))


def test_a_task_that_cannot_be_compared_is_refused(checkpoint, tmp_path):
    def constant(rng, number):
        return [{"text": "a b", "label": 1}] * number

    numbers = write_task(tmp_path / "a", constant, problem_type="regression", metrics=["pearson"])
    with pytest.raises(InputError, match="neither one class per text nor tags O, B-X, I-X"):
        compare_task(numbers, checkpoint)
    planted = write_task(tmp_path / "c", planted_rows, labels=["bad", "good"])
    with pytest.raises(InputError, match="words has no effect on task"):
        compare_task(planted, checkpoint, words=["a"])
    one_label = write_task(tmp_path / "b", constant, labels=["bad", "good"])
    with pytest.raises(InputError, match=r"train.jsonl: all examples have one label"):
        compare_task(one_label, checkpoint)


# Words


def test_equal_vectors_have_a_cosine_of_exactly_one():
    vectors = np.random.default_rng(0).normal(size=(50, 300)).astype(np.float32)
    matrix = cosines(vectors, vectors)
    assert (np.diag(matrix) == 1).all()
    np.testing.assert_allclose(matrix, cosine_similarity(vectors), atol=1e-6)


def test_the_five_nearest_vote_and_all_where_all_are_equally_near():
    types = ["PER", "LOC", "LOC", "LOC", "PER", "PER", "LOC", "LOC"]
    near = np.array([0.9, 0.1, 0.2, 0.8, 0.7, 0.6, 0.1, 0.1])
    rows = [near, -near, np.ones(8), np.array([1, 0.9, 0.5, 0.5, 0, 0, 0, 0])]
    assert vote(rows, types) == ["PER", "LOC", "LOC", "LOC"]
    assert vote([np.array([0.2, 0.3])], ["PER", "LOC"]) == ["LOC"]


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def test_mentions_are_numbered_among_all_words():
    examples = [
        TaggedExample(
            idx=0,
            tokens=("x", "Jordan", "Jordan"),
            labels=(0, 1, 2),
        ),
        TaggedExample(
            idx=1,
            tokens=("Jordan", "Jordan"),
            labels=(0, 3),
        ),
    ]
    mentions = {"Jordan": [("PER", 1), ("PER", 2), ("LOC", 4)]}
    assert find_mentions(examples, LABELS) == mentions
    without_prefixes = [label.removeprefix("B-").removeprefix("I-") for label in LABELS]
    assert find_mentions(examples, without_prefixes) == mentions


def test_figures_of_words():
    train = {"a": [("X", 0), ("Y", 1), ("X", 2)], "b": [("X", 3), ("Y", 4), ("Y", 5)]}
    held_out = {"a": [("X", 0), ("Y", 1)], "b": [("Y", 2)]}
    tables = {"a": np.array([[0.8, 0.2, 0.6], [0.1, 0.9, 0.3]]), "b": np.array([[0.4, 0.5, 0.7]])}

    figures = {}
    for name, (value, _, _) in measure_words(train, held_out, tables).items():
        figures[name] = value

    same_a, different_a = (0.8 + 0.6 + 0.9) / 3, (0.2 + 0.1 + 0.3) / 3
    assert figures["cosine, same type"] == pytest.approx((same_a + 0.6) / 2)
    expected = (same_a - different_a + 0.6 - 0.4) / 2
    assert figures["beyond another type"] == pytest.approx(expected)
    # Three training mentions are fewer than five neighbours: all vote, as for one vector per word.
    assert figures["accuracy"] == pytest.approx(2 / 3)
    assert figures["beyond the majority"] == 0


def tagged_rows(rng, number):
    """`rome` is a place after `in` and a person after `mr`; `paris` is a place only."""
    kinds = (("in rome", "B-LOC"), ("mr rome", "B-PER"), ("in paris", "B-LOC"))
    rows = []
    for _ in range(number):
        words, label = kinds[rng.integers(3)]
        before = " ".join(rng.choice([*"abcdefgh"], 3))
        tokens = f"{before} {words} g h".split()
        labels = ["O"] * 4 + [label] + ["O"] * 2
        rows.append({"tokens": tokens, "labels": labels})
    return rows


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    return write_task(
        tmp_path_factory.mktemp("tagged"),
        tagged_rows,
        kind="token_classification",
        text_columns=["tokens"],
        labels=list(LABELS),
    )


def test_contexts_tell_the_types_that_one_vector_cannot(tagged, checkpoint):
    results = compare_task(tagged, checkpoint)
    assert list(results["words"]) == ["rome"]
    static, embeddings, *layers = (row["figures"] for row in results["rows"])
    assert static["cosine, same type"][0] == 1
    assert static["beyond another type"][0] == static["beyond the majority"][0] == 0
    # At the same place of its sentence the word has the same embedding.
    assert embeddings["accuracy"] == static["accuracy"]
    assert len(layers) == 6

    for layer in layers:
        assert layer["accuracy"][0] > 0.9 > static["accuracy"][0]
        assert layer["cosine, same type"][0] < 1
        assert layer["beyond another type"][0] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"words": ["rome", "paris"]}, r"words: paris not tagged as two types, .* or take rome$"),
        ({"min_mentions": 100}, r"words: none not tagged .*, or take more examples"),
    ],
)
def test_words_without_two_types_are_refused(
    tagged,
    checkpoint,
    settings,
    message,
):
    with pytest.raises(InputError, match=message):
        compare_task(tagged, checkpoint, **settings)
