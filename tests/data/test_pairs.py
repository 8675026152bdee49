"""build_sentence_pairs and truncate_pair against the rules of google-research/bert
create_pretraining_data.py.
"""

import random
from itertools import chain

import original_rules
import pytest

from bert_recipes.data.pairs import MAX_DOCUMENT_DRAWS, build_sentence_pairs, truncate_pair


class FixedRandom(random.Random):
    """Gives prepared answers and notes the draws."""

    def __init__(self, *answers):
        super().__init__(0)
        self.answers, self.draws = list(answers), []

    def random(self):
        self.draws.append("random")
        return self.answers.pop(0)

    def randint(self, low, high):
        self.draws.append((low, high))
        answer = self.answers.pop(0)
        assert low <= answer <= high
        return answer


def build(lengths, document, rng, max_seq_length=13, short_seq_prob=0.1):
    return list(
        build_sentence_pairs(
            document,
            lengths.__getitem__,
            len(lengths),
            max_seq_length=max_seq_length,
            short_seq_prob=short_seq_prob,
            rng=rng,
        )
    )


def random_documents(rng):
    """Documents of sentences; a token is (document, sentence, place)."""
    max_sentences, max_tokens = rng.choice([1, 3, 12]), rng.choice([3, 20, 90])
    documents = []
    for document in range(rng.randint(2, 5)):
        sentences = []
        for sentence in range(rng.randint(1, max_sentences)):
            places = range(rng.randint(1, max_tokens))
            sentences.append([(document, sentence, place) for place in places])
        documents.append(sentences)
    return documents


def our_pairs(documents, document, max_seq_length, short_seq_prob, rng):
    """Tokens of A and B, tokens of B with its [SEP], and whether B is random."""
    lengths = [list(map(len, sentences)) for sentences in documents]
    pairs = build_sentence_pairs(
        document,
        lengths.__getitem__,
        len(lengths),
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
        rng=rng,
    )
    for pair in pairs:
        a = list(chain(*documents[document][pair.a_begin : pair.a_end]))
        b = list(chain(*documents[pair.b_document][pair.b_begin : pair.b_end]))
        assert (len(a), len(b)) == (pair.length_a, pair.length_b)
        keep_a, keep_b = truncate_pair(len(a), len(b), max_seq_length - 3, rng)
        yield a[keep_a] + b[keep_b], len(b[keep_b]) + 1, pair.is_random


def original_pairs(*arguments):
    for tokens, types, is_random in original_rules.pairs_of_document(*arguments):
        yield [token for token in tokens if len(token) == 3], sum(types), is_random


@pytest.mark.parametrize("max_seq_length", [8, 16, 64, 128])
def test_pairs_and_draws_equal_the_original_on_random_corpora(max_seq_length):
    rng = random.Random(max_seq_length)

    for seed in range(100):
        documents = random_documents(rng)
        document, short_seq_prob = rng.randrange(len(documents)), rng.choice([0.0, 0.1, 1.0])
        settings = documents, document, max_seq_length, short_seq_prob
        our_rng, original_rng = random.Random(seed), random.Random(seed)
        assert list(our_pairs(*settings, our_rng)) == list(original_pairs(*settings, original_rng))
        assert our_rng.getstate() == original_rng.getstate()


def test_target_length_is_drawn_once_for_a_document():
    # short (0.05 < 0.1), target 4; then for each pair: a_end, next or random.
    rng = FixedRandom(0.05, 4, 1, 0.9, 1, 0.9)
    pairs = build([[2, 2, 2, 2], [5]], 0, rng)

    assert [(p.a_begin, p.a_end, p.b_begin, p.b_end) for p in pairs] == [(0, 1, 1, 2), (2, 3, 3, 4)]
    assert rng.draws == ["random", (2, 10), (1, 1), "random", (1, 1), "random"]


def test_a_chunk_ends_where_it_reaches_the_target_or_the_document_ends():
    pairs = build([[4, 4, 4, 1, 1], [5]], 0, FixedRandom(0.5, 2, 0.9, 1, 0.9))
    assert [(p.a_begin, p.a_end, p.b_begin, p.b_end) for p in pairs] == [(0, 2, 2, 3), (3, 4, 4, 5)]
    assert [(p.length_a, p.length_b) for p in pairs] == [(8, 4), (1, 1)]


def test_a_single_sentence_is_paired_at_random_without_a_draw():
    rng = FixedRandom(0.5, 1, 0)
    (pair,) = build([[12], [5]], 0, rng)

    assert pair.is_random
    assert pair.b_document == 1
    # Only: short?, which document, which sentence.
    assert rng.draws == ["random", (0, 1), (0, 0)]


def test_unused_sentences_are_put_back():
    # The chunk is sentences 0-2; A takes the first, B is random: the next chunk begins at sentence
    # 1.
    rng = FixedRandom(0.5, 1, 0.4, 1, 0, 1, 0.9)
    first, second = build([[4, 4, 4], [20]], 0, rng)

    assert (first.a_begin, first.a_end, first.is_random) == (0, 1, True)
    assert (second.a_begin, second.a_end, second.b_begin, second.b_end) == (1, 2, 2, 3)


def test_a_random_b_takes_whole_sentences_until_the_rest_of_the_target():
    # target 10, A has 4: B needs 6 and takes 5 + 5.
    rng = FixedRandom(0.5, 1, 0.4, 1, 1, 1, 0.9)
    first, _ = build([[4, 4, 4], [9, 5, 5, 5]], 0, rng)
    assert (first.b_begin, first.b_end, first.length_b) == (1, 3, 10)


def test_another_document_is_drawn_ten_times_and_the_label_stays_random():
    rng = FixedRandom(0.5, *[0] * MAX_DOCUMENT_DRAWS, 0)
    (pair,) = build([[12], [5]], 0, rng)

    assert pair.b_document == 0
    assert pair.is_random
    assert rng.draws.count((0, 1)) == 10


def test_truncation_takes_from_the_longer_and_from_b_in_a_tie():
    assert truncate_pair(5, 5, 9, FixedRandom(0.4)) == (slice(0, 5), slice(1, 5))
    assert truncate_pair(5, 5, 9, FixedRandom(0.6)) == (slice(0, 5), slice(0, 4))
    assert truncate_pair(6, 5, 10, FixedRandom(0.4)) == (slice(1, 6), slice(0, 5))
    assert truncate_pair(6, 5, 10, FixedRandom(0.6)) == (slice(0, 5), slice(0, 5))
