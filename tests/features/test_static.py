"""Static against contextual vectors: word vectors, classifiers on frozen vectors, types of words by
their neighbours.
"""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_recipes.errors import InputError
from bert_recipes.features.arguments import StaticArguments
from bert_recipes.features.static import (
    STRENGTHS,
    WordVectors,
    compare,
    cosines,
    count_neighbors,
    find_mentions,
    fit_classifier,
    frozen_features,
    make_table,
    measure_words,
    positive_pmi,
    train_word_vectors,
    vote,
)
from bert_recipes.tasks.examples import Split, TaggedExample, TextExample
from bert_recipes.tokenization.loading import load_tokenizer


@pytest.mark.parametrize(
    ("task", "folder"),
    [
        ("sst2", "sst2"),
        ("my-task 2", "my-task 2"),
        ("../../x", "------x"),
        ("/etc", "-etc"),
        ("..", "--"),
    ],
)
def test_the_name_of_a_task_is_no_path(task, folder):
    assert StaticArguments().folder(task) == Path("runs/static") / folder


# Word vectors

TEXTS = ["The cat sat. The cat ran", "a dog sat", "the dog ran and the cat sat", "cat"]


def test_neighbors_and_ppmi_equal_the_plain_formula():
    """Levy, Goldberg and Dagan 2015, sections 2.1, 2.2 and 3.1, pair by pair."""
    numbers, counts = count_neighbors(TEXTS, window=2, min_count=2)
    assert list(numbers) == ["the", "cat", "sat", "ran", "dog"]
    pairs = Counter()
    for text in TEXTS:
        words = text.lower().replace(".", "").split()
        for place, word in enumerate(words):
            for other in words[max(0, place - 2) : place] + words[place + 1 : place + 3]:
                if {word, other} <= numbers.keys():
                    pairs[word, other] += 1
    assert {(a, b): counts[numbers[a], numbers[b]] for a in numbers for b in numbers} == {
        (a, b): pairs[a, b] for a in numbers for b in numbers
    }
    table, total = positive_pmi(counts).toarray(), pairs.total()
    of_word = {word: sum(count for (a, _), count in pairs.items() if a == word) for word in numbers}
    smoothed = sum(count**0.75 for count in of_word.values())
    for (a, b), count in pairs.items():
        expected = math.log((count / total) / (of_word[a] / total * of_word[b] ** 0.75 / smoothed))
        assert table[numbers[a], numbers[b]] == pytest.approx(max(0.0, expected))


def test_word_vectors_are_left_singular_vectors_times_roots():
    """Levy, Goldberg and Dagan 2015, section 3.3, with p = 0.5; by NumPy's SVD, whatever the
    signs.
    """
    numbers, counts = count_neighbors(TEXTS, window=5, min_count=1)
    found = train_word_vectors(TEXTS, StaticArguments(min_count=1))
    left, values, _ = np.linalg.svd(positive_pmi(counts).toarray())
    assert found.numbers == numbers
    np.testing.assert_allclose(found.vectors @ found.vectors.T, (left * values) @ left.T, atol=1e-9)


def test_a_text_is_the_mean_of_its_known_words():
    words = WordVectors({"a": 0, "b": 1}, np.array([[1.0, 0.0], [0.0, 4.0]]))
    np.testing.assert_allclose(
        words.mean(["A b b", "a c", "c", ""]), [[1 / 3, 8 / 3], [1, 0], [0, 0], [0, 0]]
    )


def test_word_vectors_of_files_know_their_words(tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(["red green", "green red"] * 5), encoding="utf-8")
    assert set(train_word_vectors([], StaticArguments(files=[str(tmp_path)])).numbers) == {
        "red",
        "green",
    }
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
    files = {"train": "train.jsonl", "validation": "validation.jsonl"}
    values = {"files": files, "kind": "sequence_classification", "text_columns": ["text"]} | values
    (folder / "task.yaml").write_text(json.dumps(values), encoding="utf-8")
    return str(folder / "task.yaml")


def compare_task(task_file, checkpoint, folder, **settings):
    settings = {"min_count": 2, "vector_size": 8, "use_cpu": True} | settings
    names = {
        "task_file": task_file,
        "model_name_or_path": str(checkpoint),
        "output_dir": str(folder),
    }
    return compare(StaticArguments(**names, **settings))


# Texts


def planted_rows(rng, number):
    """The word `yes` or `no` decides the label; all others say nothing."""
    for _ in range(number):
        label, words = int(rng.integers(2)), rng.choice([*"abcdefgh"], 6).tolist()
        yield {"text": " ".join([*words, ("no", "yes")[label]]), "label": label}


def equal_rows(rng, number):
    """Whether both texts name the same colour."""
    for _ in range(number):
        first, other = rng.choice(["red", "green", "blue", "black"], 2, replace=False)
        label = int(rng.integers(2))
        yield {
            "text": f"it is {first}",
            "pair": f"it is {first if label else other}",
            "label": label,
        }


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("planted"), planted_rows, labels=["bad", "good"])


def test_a_planted_word_is_learned_and_each_way_has_a_row(planted, checkpoint, tmp_path):
    rows = compare_task(planted, checkpoint, tmp_path)["rows"]
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
    rows = compare_task(task, checkpoint, tmp_path)["rows"]
    assert [row["figures"]["f1"][0] for row in rows[1:3]] == [1, 1]


def test_frozen_vectors_are_those_of_stock_transformers(checkpoint, stock_states):
    examples = [
        TextExample(idx=0, text="ab c"),
        TextExample(idx=1, text="f", text_pair="d e"),
        TextExample(idx=2, text=""),
    ]
    split, tokenizer = (
        Split(name="train", examples=examples, source="", num_rows=3),
        load_tokenizer(checkpoint),
    )
    found = dict(frozen_features([split], str(checkpoint), StaticArguments(use_cpu=True)))
    for row, example in enumerate(examples):
        ids = [tokenizer.cls_token_id, *tokenizer.encode_ids(example.text), tokenizer.sep_token_id]
        pair = (
            [*tokenizer.encode_ids(example.text_pair), tokenizer.sep_token_id]
            if example.text_pair
            else []
        )
        states = [
            state.numpy() for state in stock_states(ids + pair, [0] * len(ids) + [1] * len(pair))
        ]
        expected = [states[-1][0], states[-1].mean(0), sum(states[-4:]).mean(0)]
        for (vectors,), plain in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(vectors[row], plain, atol=2e-5)


def test_c_is_chosen_without_the_evaluation_labels(planted, checkpoint, tmp_path):
    def other_labels(rng, number):
        rows = list(planted_rows(rng, number))
        return rows if number == 160 else [row | {"label": 1 - row["label"]} for row in rows]

    other = write_task(tmp_path / "other", other_labels, labels=["bad", "good"])
    first, second = (
        compare_task(task, checkpoint, tmp_path)["rows"][1:] for task in (planted, other)
    )
    assert [row["C"] for row in first] == [row["C"] for row in second]
    for one, two in zip(first, second, strict=True):
        assert one["figures"]["accuracy"][0] == pytest.approx(1 - two["figures"]["accuracy"][0])


def test_c_is_the_best_on_the_part_that_was_left_out():
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(200, 30)), rng.integers(0, 2, 200)
    vectors[:, 0] += labels
    search = fit_classifier(vectors, labels, "accuracy")
    scores = search.cv_results_["mean_test_score"]
    assert len(scores) == len(STRENGTHS)
    assert search.best_params_["C"] == STRENGTHS[int(scores.argmax())]
    assert scores.max() > scores.min()


@pytest.fixture(scope="module")
def finetuned(tiny_runs):
    return tiny_runs("sequence_classification")


def test_the_fine_tuned_row_is_read_from_its_run(finetuned, checkpoint, tmp_path):
    results = json.loads((finetuned / "all_results.json").read_text(encoding="utf-8"))
    task = str(finetuned.parent / "data" / "task.yaml")
    last = compare_task(task, checkpoint, tmp_path, finetuned=str(finetuned))["rows"][-1]
    assert last["vectors"] == "fine-tuned"
    assert last["figures"]["accuracy"] == [
        results["eval_accuracy"],
        *results["intervals"]["accuracy"],
    ]


def test_a_run_on_other_examples_is_refused(planted, finetuned, checkpoint, tmp_path):
    with pytest.raises(InputError, match=r"has other examples than these 160 of .*train.jsonl"):
        compare_task(planted, checkpoint, tmp_path, finetuned=str(finetuned))
    with pytest.raises(
        InputError, match=r"all_results.json is missing; give the folder of a finished run"
    ):
        compare_task(planted, checkpoint, tmp_path, finetuned=str(tmp_path))


def test_a_task_that_cannot_be_compared_is_refused(checkpoint, tmp_path):
    def constant(rng, number):
        yield from ({"text": "a b", "label": 1} for _ in range(number))

    numbers = write_task(tmp_path / "a", constant, problem_type="regression", metrics=["pearson"])
    with pytest.raises(InputError, match="neither one class per text nor tags O, B-X, I-X"):
        compare_task(numbers, checkpoint, tmp_path)
    one_label = write_task(tmp_path / "b", constant, labels=["bad", "good"])
    with pytest.raises(InputError, match=r"train.jsonl: all examples have one label"):
        compare_task(one_label, checkpoint, tmp_path)


# Words


def test_equal_vectors_have_a_cosine_of_exactly_one():
    vectors = np.random.default_rng(0).normal(size=(50, 300)).astype(np.float32)
    found = cosines(vectors, vectors)
    assert (np.diag(found) == 1).all()
    np.testing.assert_allclose(found, np.corrcoef(vectors), atol=0.02)


def test_the_five_nearest_vote_and_all_where_all_are_equally_near():
    types = ["PER", "LOC", "LOC", "LOC", "PER", "PER", "LOC", "LOC"]
    near = np.array([0.9, 0.1, 0.2, 0.8, 0.7, 0.6, 0.1, 0.1])
    assert vote([near, -near, np.ones(8), np.array([1, 0.9, 0.5, 0.5, 0, 0, 0, 0])], types) == [
        "PER",
        "LOC",
        "LOC",
        "LOC",
    ]
    assert vote([np.array([0.2, 0.3])], ["PER", "LOC"]) == ["LOC"]


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def test_mentions_are_numbered_among_all_words():
    examples = [
        TaggedExample(idx=0, tokens=("x", "Jordan", "Jordan"), labels=(0, 1, 2)),
        TaggedExample(idx=1, tokens=("Jordan", "Jordan"), labels=(0, 3)),
    ]
    assert find_mentions(examples, LABELS) == {"Jordan": [("PER", 1), ("PER", 2), ("LOC", 4)]}


def test_figures_of_words():
    train = {"a": [("X", 0), ("Y", 1), ("X", 2)], "b": [("X", 3), ("Y", 4), ("Y", 5)]}
    held_out = {"a": [("X", 0), ("Y", 1)], "b": [("Y", 2)]}
    tables = {"a": np.array([[0.8, 0.2, 0.6], [0.1, 0.9, 0.3]]), "b": np.array([[0.4, 0.5, 0.7]])}
    found = {name: value for name, (value, *_) in measure_words(train, held_out, tables).items()}
    same_a, other_a = (0.8 + 0.6 + 0.9) / 3, (0.2 + 0.1 + 0.3) / 3
    assert found["cosine, same type"] == pytest.approx((same_a + 0.6) / 2)
    assert found["beyond another type"] == pytest.approx((same_a - other_a + 0.6 - 0.4) / 2)
    # Three training mentions are fewer than five neighbours: all vote, as for one vector per word.
    assert (found["accuracy"], found["beyond the majority"]) == (pytest.approx(2 / 3), 0)


def tagged_rows(rng, number):
    """`rome` is a place after `in` and a person after `mr`; `paris` is a place only."""
    for _row in range(number):
        kind = int(rng.integers(3))
        start = [["in", "rome"], ["mr", "rome"], ["in", "paris"]][kind]
        words = [
            *rng.choice([*"abcdefgh"], 3).tolist(),
            *start,
            *rng.choice([*"abcdefgh"], 2).tolist(),
        ]
        yield {
            "tokens": words,
            "labels": ["O"] * 4 + [["B-LOC", "B-PER", "B-LOC"][kind]] + ["O"] * 2,
        }


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    return write_task(
        tmp_path_factory.mktemp("tagged"),
        tagged_rows,
        kind="token_classification",
        text_columns=["tokens"],
        labels=list(LABELS),
    )


def test_contexts_tell_the_types_that_one_vector_cannot(tagged, checkpoint, tmp_path):
    results = compare_task(tagged, checkpoint, tmp_path)
    assert list(results["words"]) == ["rome"]
    static, embeddings, *layers = (row["figures"] for row in results["rows"])
    assert static["cosine, same type"][0] == 1
    assert static["beyond another type"][0] == static["beyond the majority"][0] == 0
    # At the same place of its sentence the word has the same embedding.
    assert embeddings["accuracy"] == static["accuracy"]
    assert len(layers) == 6
    assert all(layer["accuracy"][0] > 0.9 > static["accuracy"][0] for layer in layers)
    assert all(
        layer["cosine, same type"][0] < 1 and layer["beyond another type"][0] > 0
        for layer in layers
    )


def test_words_without_two_types_are_refused(tagged, checkpoint, tmp_path):
    with pytest.raises(
        InputError, match=r"words: paris not tagged as two types, 5 times each, .* or take rome$"
    ):
        compare_task(tagged, checkpoint, tmp_path, words=["rome", "paris"])
    with pytest.raises(
        InputError,
        match=r"words: none not tagged .* lower --min_mentions or --min_count, or take more",
    ):
        compare_task(tagged, checkpoint, tmp_path, min_mentions=100)
