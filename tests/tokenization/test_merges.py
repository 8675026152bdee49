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
    """`course` is the worked example of the Hugging Face course, chapter 6.6; the merges were found
    by brute force.
    """
    case = json.loads(
        (shared_data / "reference" / "family" / "likelihood_wordpiece.json").read_text()
    )[name]
    merges = merge_pieces(case["counts"], 1000, 2 if name.endswith("2") else 1)
    found = [list(merge) for merge in itertools.islice(merges, len(case["merges"]))]
    assert found == [
        [left, right, joined, number] for left, right, joined, _, _, number, _ in case["merges"]
    ]


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
        left, right = max(scores, key=scores.get)  # the first of equals, in the order of `pairs`
        yield left, right
        for word, split in splits.items():
            new = []
            for piece in split:
                if new and new[-1] == left and piece == right:
                    new[-1] = left + right[2:]
                else:
                    new.append(piece)
            splits[word] = new


@pytest.mark.parametrize("seed", range(5))
def test_merges_are_those_of_the_plain_rule(seed):
    rng = random.Random(seed)
    words = {
        "".join(rng.choices("aabbcde", k=rng.randint(1, 9))): rng.randint(1, 40) for _ in range(60)
    }
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
