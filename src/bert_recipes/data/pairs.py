"""Which sentences make a pair, by the rules of the original BERT: one pure function over sentence lengths.

Two drivers share it. The sequential one hands in a single generator and truncates and masks with that same generator
between two pairs, which reproduces google-research/bert's ``create_pretraining_data.py`` token for token
(``original.py``). The scalable one gives each (epoch, document) a generator of its own (``dataset.py``).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


# [CLS] A [SEP] B [SEP]
NUM_SPECIAL_TOKENS = 3

# The original draws another document at most this often; the last draw is used even if it is the document itself.
MAX_DOCUMENT_DRAWS = 10


class SentencePair(NamedTuple):
    """Two stretches of complete sentences, before truncation. Sentence indices count inside their document."""

    a_begin: int
    a_end: int  # one past the last sentence of A
    b_document: int
    b_begin: int
    b_end: int
    # B was drawn at random (label 1) instead of following A (label 0). True also where all draws of another document failed.
    is_random: bool
    length_a: int  # tokens
    length_b: int


def build_sentence_pairs(
    document: int,
    lengths_of: Callable[[int], Sequence[int]],
    num_documents: int,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    rng: random.Random,
) -> Iterator[SentencePair]:
    """Yield the pairs of one document, drawing from ``rng`` in exactly the original's order.

    A pair is yielded at the point where the original truncates and masks it, before any further draw: a caller that
    does both with the same generator between two pairs follows the original's sequence of random numbers.

    Args:
        document: Index of the document to walk.
        lengths_of: Gives the tokens in each sentence of a document, all > 0. Of a document that B is drawn from only
            ``len`` and a few elements in a row are asked for, so a lazy sequence will do.
        num_documents: Documents to draw a random next from.
        max_seq_length: Most tokens of an input, the three special ones included; at least 5.
        short_seq_prob: Probability that all pairs of this document aim at a shorter length.

    Example:
        >>> lengths = [[5, 5, 5], [7, 7]]
        >>> pairs = build_sentence_pairs(
        ...     0, lengths.__getitem__, 2, max_seq_length=13, short_seq_prob=0.0, rng=random.Random(0)
        ... )
        >>> next(pairs).length_a
        5

    Source: BERT (Devlin et al. 2019), A.2; google-research/bert create_pretraining_data.py,
    create_instances_from_document.
    """
    lengths = lengths_of(document)
    # The target is soft and holds for the whole document; the maximum is hard and is met by truncation.
    target = max_seq_length - NUM_SPECIAL_TOKENS
    if rng.random() < short_seq_prob:
        target = rng.randint(2, target)
    begin = end = chunk_length = 0
    while end < len(lengths):
        chunk_length += lengths[end]
        end += 1
        if chunk_length < target and end < len(lengths):
            continue
        count = end - begin
        a_end = begin + (rng.randint(1, count - 1) if count >= 2 else 1)
        length_a = sum(lengths[begin:a_end])
        # A chunk of one sentence has no next: it is always paired at random, without a draw.
        if count == 1 or rng.random() < 0.5:
            b = _draw_random_next(document, lengths_of, num_documents, target - length_a, rng)
            yield SentencePair(begin, a_end, *b[:3], True, length_a, b[3])
            # The sentences after A were not used: put them back.
            end = a_end
        else:
            yield SentencePair(begin, a_end, document, a_end, end, False, length_a, chunk_length - length_a)
        begin, chunk_length = end, 0


def _draw_random_next(
    document: int, lengths_of: Callable[[int], Sequence[int]], num_documents: int, target: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Return (document, begin, end, tokens) of whole sentences that reach ``target`` tokens or their document's end."""
    for _ in range(MAX_DOCUMENT_DRAWS):
        other = rng.randint(0, num_documents - 1)
        if other != document:
            break
    lengths = lengths_of(other)
    count = len(lengths)
    begin = rng.randint(0, count - 1)
    end, length = begin + 1, lengths[begin]
    while length < target and end < count:
        length += lengths[end]
        end += 1
    return other, begin, end, length


def truncate_pair(length_a: int, length_b: int, max_num_tokens: int, rng: random.Random) -> tuple[slice, slice]:
    """Return what is kept of A and of B so that both together have at most ``max_num_tokens`` tokens.

    One token at a time goes from the longer of the two (from B if they are equal), from its front or its back with
    equal probability: one draw a removed token, none if the pair fits.

    Example:
        >>> truncate_pair(3, 4, 7, random.Random(0))
        (slice(0, 3, None), slice(0, 4, None))

    Source: google-research/bert create_pretraining_data.py, truncate_seq_pair.
    """
    draw = rng.random
    begin_a = begin_b = 0
    for _ in range(length_a + length_b - max_num_tokens):
        from_front = draw() < 0.5
        if length_a > length_b:
            length_a -= 1
            begin_a += from_front
        else:
            length_b -= 1
            begin_b += from_front
    return slice(begin_a, begin_a + length_a), slice(begin_b, begin_b + length_b)
