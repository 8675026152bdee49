"""WordPiece by likelihood and by gain: against merges worked out with exact fractions, and against
the plain rule.
"""

import itertools
import json
import math
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
    merges = merge_pieces(case["counts"], "likelihood", 1000, 2 if name.endswith("2") else 1)
    found = [list(merge) for merge in itertools.islice(merges, len(case["merges"]))]
    assert found == [
        [left, right, joined, number] for left, right, joined, _, _, number, _ in case["merges"]
    ]


def plain_merges(words, score, min_frequency):
    splits = {word: [word[0], *("##" + character for character in word[1:])] for word in words}
    while True:
        pairs, pieces = {}, {}
        for word, split in splits.items():
            for pair in itertools.pairwise(split):
                pairs[pair] = pairs.get(pair, 0) + words[word]
            for piece in split:
                pieces[piece] = pieces.get(piece, 0) + words[word]
        total = sum(pieces.values())
        scores = {
            pair: score(number, pieces[pair[0]], pieces[pair[1]], total)
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


@pytest.mark.parametrize("algorithm", ["likelihood", "gain"])
@pytest.mark.parametrize("seed", range(5))
def test_merges_are_those_of_the_plain_rule(algorithm, seed):
    rng = random.Random(seed)
    words = {
        "".join(rng.choices("aabbcde", k=rng.randint(1, 9))): rng.randint(1, 40) for _ in range(60)
    }
    score = {
        "likelihood": lambda pair, left, right, total: Fraction(pair, left * right),
        # Rounded, so that what differs by rounding alone is a tie here, too.
        "gain": lambda pair, left, right, total: float(
            f"{pair * math.log(pair * total / (left * right)):.10e}"
        ),
    }[algorithm]
    found = [merge[:2] for merge in merge_pieces(words, algorithm, 10**6, 2)]
    assert len(found) > 50
    assert found == list(plain_merges(words, score, 2))


@pytest.mark.parametrize("algorithm", ["likelihood", "gain"])
def test_a_vocabulary_by_another_rule_is_whole_and_cuts_all_words(algorithm):
    texts = ["the hugs of a pug, the puns of a bun"] * 4
    tokenizer = train_wordpiece(
        texts, vocab_size=60, num_unused=5, algorithm=algorithm, show_progress=False
    )
    assert tokenizer.training_report.unk_rate == 0
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer.tokenize("hugs") != list("hugs")
