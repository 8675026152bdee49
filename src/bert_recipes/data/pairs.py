"""Choose the sentences of an input by the rules of the originals, from sentence lengths alone.

Two drivers share it. The sequential one hands in a single generator and truncates and masks with
that same generator between two pairs, which reproduces google-research/bert's
``create_pretraining_data.py`` token for token (``original.py``). The scalable one gives each
(epoch, document) a generator of its own (``formats.py``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np


# [CLS] A [SEP] B [SEP]
NUM_SPECIAL_TOKENS = 3

# The original draws another document at most this often; the last draw is used even if it is the
# document itself.
MAX_DOCUMENT_DRAWS = 10


class SentencePair(NamedTuple):
    """Two stretches of complete sentences, before truncation.

    Sentence indices count inside their document.
    """

    a_begin: int
    a_end: int  # one past the last sentence of A
    b_document: int
    b_begin: int
    b_end: int
    length_a: int  # tokens
    length_b: int
    # B was drawn at random instead of following A. True also where all draws of another document
    # failed.
    is_random: bool = False
    is_swapped: bool = False  # B comes before A


class RandomNext(NamedTuple):
    """A stretch of complete sentences that is drawn as B."""

    document: int
    begin: int
    end: int
    length: int  # tokens


def _pair_with_random_next(begin: int, end: int, length: int, b: RandomNext) -> SentencePair:
    """Return the pair of the sentences [begin, end), which have `length` tokens, and B."""
    return SentencePair(
        a_begin=begin,
        a_end=end,
        b_document=b.document,
        b_begin=b.begin,
        b_end=b.end,
        length_a=length,
        length_b=b.length,
        is_random=True,
    )


def build_sentence_pairs(
    document: int,
    lengths_of: Callable[[int], Sequence[int]],
    num_documents: int,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    rng: random.Random,
    is_ordered: bool = False,
) -> Iterator[SentencePair]:
    """Yield the pairs of one document, drawing from `rng` in exactly the original's order.

    A pair is yielded at the point where the original truncates and masks it, before any further
    draw: a caller that does both with the same generator between two pairs follows the original's
    sequence of random numbers.

    Args:
        document: Index of the document to walk.
        lengths_of: Gives the tokens in each sentence of a document, all > 0. Of a document that B
            is drawn from only `len` and a few elements in a row are read, so a lazy sequence will
            do.
        num_documents: Documents to draw a random next from.
        max_seq_length: Most tokens of an input, the three special ones included; at least 5.
        short_seq_prob: Probability that all pairs of this document aim at a shorter length.
        rng: The source of all draws.
        is_ordered: B always follows A, and both are swapped with probability 1/2; only a chunk of
            one sentence has a random B. As in google-research/albert create_pretraining_data.py.

    Example:
        >>> lengths = [[5, 5, 5], [7, 7]]
        >>> pairs = build_sentence_pairs(
        ...     0,
        ...     lengths.__getitem__,
        ...     2,
        ...     max_seq_length=13,
        ...     short_seq_prob=0.0,
        ...     rng=random.Random(0),
        ... )
        >>> next(pairs).length_a
        5

    Source: BERT (Devlin et al. 2019), A.2; google-research/bert create_pretraining_data.py,
    create_instances_from_document.
    """
    lengths = lengths_of(document)
    # The target is soft and holds for the whole document; the maximum is hard and is met by
    # truncation.
    target = max_seq_length - NUM_SPECIAL_TOKENS
    if rng.random() < short_seq_prob:
        target = rng.randint(2, target)
    begin = 0
    while begin < len(lengths):
        end, chunk_length = _take_chunk(lengths, begin, target)
        count = end - begin
        a_end = begin + 1
        if count >= 2:
            a_end = begin + rng.randint(1, count - 1)
        length_a = sum(lengths[begin:a_end])
        length_b = chunk_length - length_a
        # A chunk of one sentence has no next: it is always paired at random, without a draw.
        if count == 1 or (not is_ordered and rng.random() < 0.5):
            room = target - length_a
            b = _draw_random_next(document, lengths_of, num_documents, room, rng)
            yield _pair_with_random_next(begin, a_end, length_a, b)
            # The sentences after A were not used: put them back.
            begin = a_end
            continue
        if is_ordered and rng.random() < 0.5:
            yield SentencePair(
                a_begin=a_end,
                a_end=end,
                b_document=document,
                b_begin=begin,
                b_end=a_end,
                length_a=length_b,
                length_b=length_a,
                is_swapped=True,
            )
        else:
            yield SentencePair(
                a_begin=begin,
                a_end=a_end,
                b_document=document,
                b_begin=a_end,
                b_end=end,
                length_a=length_a,
                length_b=length_b,
            )
        begin = end


def _take_chunk(lengths: Sequence[int], begin: int, target: int) -> tuple[int, int]:
    """Take the sentences from `begin` on that reach `target` tokens, or the document's end.

    Returns:
        One past the last sentence, and the tokens.
    """
    num_sentences = len(lengths)
    end = begin + 1
    length = lengths[begin]
    while length < target and end < num_sentences:
        length += lengths[end]
        end += 1
    return end, length


def build_single_sentence_pairs(
    document: int,
    lengths_of: Callable[[int], Sequence[int]],
    num_documents: int,
    rng: random.Random,
) -> Iterator[SentencePair]:
    """Yield pairs of one sentence each: B is the next one, or a random one.

    B is of another document with probability 1/2, and after the last sentence of a document.

    RoBERTa's SENTENCE-PAIR (Liu et al. 2019, section 4.2), of which no code was published: the
    draws are ours. Every sentence is in one pair of its own document.
    """
    lengths = lengths_of(document)
    begin = 0
    while begin < len(lengths):
        a_end = begin + 1
        length_a = lengths[begin]
        if a_end == len(lengths) or rng.random() < 0.5:
            b = _draw_random_next(document, lengths_of, num_documents, target=1, rng=rng)
            yield _pair_with_random_next(begin, a_end, length_a, b)
            begin = a_end
        else:
            b_end = a_end + 1
            length_b = lengths[a_end]
            yield SentencePair(
                a_begin=begin,
                a_end=a_end,
                b_document=document,
                b_begin=a_end,
                b_end=b_end,
                length_a=length_a,
                length_b=length_b,
            )
            begin = b_end


def pack_items(sizes: np.ndarray, room: int) -> list[int]:
    """Pack items in order as long as they fit; return the number of the first item of each block.

    The last number is the number of items. An item that is larger than the room has a block of its
    own. Source: fairseq data/token_block_utils_fast.pyx, `complete`.
    """
    ends = np.cumsum(sizes)
    bounds = [0]
    begin = num_packed = 0
    while begin < len(ends):
        end = int(np.searchsorted(ends, num_packed + room, side="right"))
        begin = max(end, begin + 1)
        num_packed = int(ends[begin - 1])
        bounds.append(begin)

    return bounds


def split_segments(lengths: Sequence[int], target: int, rng: random.Random) -> list[bool]:
    """Return for each of an example's sentences whether it belongs to the first segment.

    Source: as `build_segments`.
    """
    # A small chance to have one segment, as classification has.
    target_a = (target - NUM_SPECIAL_TOKENS) // 2
    if rng.random() < 0.1:
        target_a = 100_000
    length_a = length_b = 0
    is_first = []
    for length in lengths:
        fits = length_a == 0 or length_a + length < target_a
        # The sentence that crosses the target goes either way.
        if fits or (length_b == 0 and length_a < target_a and rng.random() < 0.5):
            length_a += length
            is_first.append(True)
        else:
            length_b += length
            is_first.append(False)

    return is_first


class Segments(NamedTuple):
    """Sentences of a document, and which of them make the first segment."""

    begin: int
    end: int  # one past the last sentence
    is_first: list[bool]
    target: int  # tokens that were aimed at
    next_target: int


def build_segments(
    lengths: Sequence[int], max_seq_length: int, target: int, rng_of: Callable[[int], random.Random]
) -> Iterator[Segments]:
    """Yield ELECTRA's examples of one document.

    An example is sentences until the target is reached, in one or two segments.

    Args:
        lengths: Tokens of each sentence.
        max_seq_length: Most tokens of an input, special tokens included.
        target: The target of the first example.
        rng_of: Gives the generator of the example that begins with a sentence.

    Source: google-research/electra build_pretraining_dataset.py, `ExampleBuilder`.
    """
    begin = total = 0
    for end, length in enumerate(lengths, start=1):
        total += length
        if total >= target or end == len(lengths):
            rng = rng_of(begin)
            is_first = split_segments(lengths[begin:end], target, rng)
            # A small chance of a random length.
            next_target = max_seq_length
            if rng.random() < 0.05:
                next_target = rng.randint(5, max_seq_length)
            yield Segments(begin, end, is_first, target, next_target)
            target = next_target
            begin = end
            total = 0


def _draw_random_next(
    document: int,
    lengths_of: Callable[[int], Sequence[int]],
    num_documents: int,
    target: int,
    rng: random.Random,
) -> RandomNext:
    """Return whole sentences that reach `target` tokens or their document's end."""
    for _ in range(MAX_DOCUMENT_DRAWS):
        random_document = rng.randint(0, num_documents - 1)
        if random_document != document:
            break

    lengths = lengths_of(random_document)
    begin = rng.randint(0, len(lengths) - 1)
    end, length = _take_chunk(lengths, begin, target)
    return RandomNext(random_document, begin, end, length)


def truncate_pair(
    length_a: int, length_b: int, max_num_tokens: int, rng: random.Random
) -> tuple[slice, slice]:
    """Return the slices of A and of B that have at most `max_num_tokens` tokens together.

    One token at a time goes from the longer of the two (from B if they are equal), from its front
    or its back with equal probability: one draw a removed token, none if the pair fits.

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


def shuffle(items: list, rng: random.Random) -> None:
    """Do what `rng.shuffle(items)` does, with the same draws, in half the time.

    The shuffles are most of the work. The algorithm is spelt out, so the instances would not change
    if a later Python shuffled in another way.
    """
    draw = rng.getrandbits
    num_left = len(items)

    while num_left > 1:
        # The same number of bits for every position down to the next power of two.
        bits = num_left.bit_length()
        fewest = max(2, 1 << (bits - 1))
        for last in range(num_left - 1, fewest - 2, -1):
            position = draw(bits)
            while position > last:
                position = draw(bits)
            items[last], items[position] = items[position], items[last]
        num_left = fewest - 1
