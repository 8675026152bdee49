"""WordPiece by likelihood: against merges worked out with exact fractions, and the plain rule."""

import itertools
import json
import random
from fractions import Fraction

import pytest

from bert_recipes.tokenization.merges import merge_pieces
from bert_recipes.tokenization.training import train_wordpiece


@pytest.mark.parametrize("name", ["hug", "course", "seed", "seed_min_frequency_2"])
def test_likelihood_joins_as_worked_out_by_hand(shared_data, name):
    """`course` is the example of the Hugging Face course, chapter 6.6; found by brute force."""
    file = shared_data / "reference" / "family" / "likelihood_wordpiece.json"
    case = json.loads(file.read_text())[name]
    merges = list(merge_pieces(case["counts"], 1000, 2 if name.endswith("2") else 1))
    for number, expected in enumerate(case["merges"]):
        first, second, joined, _, _, frequency, _ = expected
        assert merges[number] == (first, second, joined, frequency)


def plain_merges(words, min_frequency):
    splits = {word: [word[0], *("##" + character for character in word[1:])] for word in words}
    while True:
        pairs, pieces = {}, {}
        for word, split in splits.items():
            for pair in itertools.pairwise(split):
                pairs[pair] = pairs.get(pair, 0) + words[word]
            for piece in split:
                pieces[piece] = pieces.get(piece, 0) + words[word]
        scores = {
            pair: Fraction(number, pieces[pair[0]] * pieces[pair[1]])
            for pair, number in pairs.items()
            if number >= min_frequency
        }
        if not scores:
            return
        first, second = max(scores, key=scores.get)  # of equals the first in the order of `pairs`
        yield first, second
        for word, split in splits.items():
            joined = []
            for piece in split:
                if joined and joined[-1] == first and piece == second:
                    joined[-1] = first + second[2:]
                else:
                    joined.append(piece)
            splits[word] = joined


@pytest.mark.parametrize("seed", range(3))
def test_merges_are_those_of_the_plain_rule(seed):
    rng = random.Random(seed)
    words = {}
    for _ in range(60):
        word = "".join(rng.choices("aabbcde", k=rng.randint(1, 9)))
        words[word] = rng.randint(1, 40)
    merges = [merge[:2] for merge in merge_pieces(words, 10**6, 2)]
    assert len(merges) > 50
    assert merges == list(plain_merges(words, 2))


def test_a_vocabulary_by_likelihood_is_whole_and_cuts_all_words():
    texts = ["the hugs of a pug, the puns of a bun"] * 4
    tokenizer = train_wordpiece(
        texts, vocab_size=60, num_unused=5, algorithm="likelihood", show_progress=False
    )
    assert tokenizer.training_report.unk_rate == 0
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer.tokenize("hugs") != list("hugs")
