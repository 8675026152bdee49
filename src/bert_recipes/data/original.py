"""Masks as the original draws them: one random number after the other, from the generator that also drew the pairs.

Training does not use this (``masking.py`` is vectorised and keyed); it serves ``create_pretraining_data.py``.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from bert_recipes.data.corpus import MAX_LINE_BYTES
from bert_recipes.data.instances import Instance
from bert_recipes.data.pairs import NUM_SPECIAL_TOKENS, build_sentence_pairs, truncate_pair
from bert_recipes.errors import InputError


@dataclass(frozen=True, kw_only=True)
class OriginalMasking:
    """How many tokens are predicted and what stands in their place.

    Attributes:
        masked_lm_prob: Share of an input's tokens that is predicted, special tokens counted in; 0 to 1. One token is
            predicted in any case.
        max_predictions_per_seq: Most predictions an input; at least 1.
        whole_word: Whether pieces that start with ``##`` are masked together with the piece before them.
        mask_id: Id of [MASK].
        random_word_ids: The vocabulary in file order, special and unused entries too: what a random word is drawn from.
        is_continuation: For each id, whether its piece starts with ``##``.
    """

    masked_lm_prob: float
    max_predictions_per_seq: int
    whole_word: bool
    mask_id: int
    random_word_ids: Sequence[int]
    is_continuation: Sequence[bool]

    def __post_init__(self) -> None:
        if not 0.0 <= self.masked_lm_prob <= 1.0:
            raise InputError(f"masked_lm_prob: {self.masked_lm_prob} given, allowed is a share, 0 to 1")
        if self.max_predictions_per_seq < 1:
            raise InputError(f"max_predictions_per_seq: {self.max_predictions_per_seq} given, at least 1 is needed")


def mask_in_original_order(
    input_ids: MutableSequence[int], boundary: int, masking: OriginalMasking, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Mask an input in place.

    Args:
        input_ids: [CLS] A [SEP] B [SEP], (L,); changed in place.
        boundary: Number of positions up to and with the first [SEP].
        masking: The rule.
        rng: Source of the draws.

    Returns:
        The predicted positions in ascending order, and the original ids there.

    Source: google-research/bert create_pretraining_data.py, create_masked_lm_predictions.
    """
    positions = [*range(1, boundary - 1), *range(boundary, len(input_ids) - 1)]
    limit = min(masking.max_predictions_per_seq, max(1, round(len(input_ids) * masking.masked_lm_prob)))
    if masking.whole_word:
        chosen = _choose_whole_words(positions, input_ids, masking.is_continuation, limit, rng)
    else:
        shuffle(positions, rng)
        chosen = positions[:limit]
    labels = {}
    for position in chosen:
        labels[position] = input_ids[position]
        if rng.random() < 0.8:
            input_ids[position] = masking.mask_id
        elif rng.random() >= 0.5:
            words = masking.random_word_ids
            input_ids[position] = words[rng.randint(0, len(words) - 1)]
    ordered = sorted(labels)
    return ordered, [labels[position] for position in ordered]


def _choose_whole_words(
    positions: list[int], input_ids: Sequence[int], is_continuation: Sequence[bool], limit: int, rng: random.Random
) -> list[int]:
    """Return the positions of whole words in drawn order; a word that would exceed the limit is passed over.

    As in the original, a continuation at the start of B (its word was cut by truncation) joins the last word of A.
    """
    words: list[list[int]] = []
    for position in positions:
        if words and is_continuation[input_ids[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    shuffle(words, rng)
    chosen: list[int] = []
    for word in words:
        if len(chosen) >= limit:
            break
        if len(chosen) + len(word) <= limit:
            chosen += word
    return chosen


def shuffle(items: list, rng: random.Random) -> None:
    """Do what ``rng.shuffle(items)`` does, with the same draws, in half the time: the shuffles are most of the work.

    The algorithm is spelt out, so the instances would not change if a later Python shuffled in another way.
    """
    draw = rng.getrandbits
    num_left = len(items)
    while num_left > 1:
        # As many bits for every place down to the next power of two.
        bits = num_left.bit_length()
        fewest = max(2, 1 << (bits - 1))
        for last in range(num_left - 1, fewest - 2, -1):
            other = draw(bits)
            while other > last:
                other = draw(bits)
            items[last], items[other] = items[other], items[last]
        num_left = fewest - 1


# Up to here every input has room for one token of A and one of B, and the drawn shorter lengths differ.
MIN_SEQ_LENGTH = 8


@dataclass
class TokenizedDocuments:
    """Documents of sentences of token ids, all in memory as in the original, but 4 bytes a token."""

    tokens: array = field(default_factory=lambda: array("i"))
    offsets: list[array] = field(default_factory=list)
    lengths: list[array] = field(default_factory=list)
    num_lines: int = 0
    num_lines_without_tokens: int = 0


def read_documents(files: Iterable[Path], encode: Callable[[str], list[int]]) -> TokenizedDocuments:
    """Read one sentence a line; a blank line ends a document, the end of a file does not.

    Args:
        files: UTF-8 text files, read in this order.
        encode: Token ids of a sentence, without special tokens.

    Source: google-research/bert create_pretraining_data.py, create_training_instances.
    """
    files = list(files)
    documents = TokenizedDocuments()
    is_open = False
    for sentence in _read_lines(files, documents):
        if not sentence:
            is_open = False
            continue
        ids = encode(sentence)
        if not ids:
            documents.num_lines_without_tokens += 1
            continue
        if not is_open:
            documents.offsets.append(array("q"))
            documents.lengths.append(array("i"))
            is_open = True
        documents.offsets[-1].append(len(documents.tokens))
        documents.lengths[-1].append(len(ids))
        documents.tokens.extend(ids)
    if not documents.lengths:
        names = ", ".join(map(str, files))
        raise InputError(f"{names}: no sentence in {documents.num_lines} lines; one sentence a line is expected")
    return documents


def _read_lines(files: list[Path], documents: TokenizedDocuments) -> Iterator[str]:
    """Yield stripped lines; only a line feed ends a line, as in the original."""
    total = sum(file.stat().st_size for file in files)
    with tqdm(total=total, desc="tokenize", unit="B", unit_scale=True, delay=1) as progress:
        for file in files:
            with open(file, "rb") as lines:
                number = 0
                while line := lines.readline(MAX_LINE_BYTES + 1):
                    number += 1
                    if len(line) > MAX_LINE_BYTES:
                        raise InputError(
                            f"{file}, line {number}: this line is longer than {MAX_LINE_BYTES:,} bytes; is it text with "
                            "one sentence a line (line ends \\n)?"
                        )
                    try:
                        text = line.decode("utf-8")
                    except UnicodeDecodeError as error:
                        raise InputError(
                            f"{file}, line {number}: not UTF-8 (byte {error.start + 1} of the line is "
                            f"0x{line[error.start]:02x}); convert the file to UTF-8"
                        ) from error
                    documents.num_lines += 1
                    progress.update(len(line))
                    yield text.strip()


@dataclass
class InstanceBuffer:
    """Instances in memory, 4 bytes a number, in an order that can be shuffled."""

    numbers: array = field(default_factory=lambda: array("i"))
    # Four entries an instance: where its numbers end, positions of type 0, predictions, label.
    heads: array = field(default_factory=lambda: array("q"))
    order: list[int] = field(default_factory=list)

    def append(
        self, input_ids: array, boundary: int, positions: list[int], labels: list[int], is_random: bool
    ) -> None:
        """Add one at the end; the arguments are those of `Instance`."""
        self.numbers.extend(input_ids)
        self.numbers.fromlist(positions)
        self.numbers.fromlist(labels)
        self.order.append(len(self.order))
        self.heads.fromlist([len(self.numbers), boundary, len(positions), is_random])

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Instance]:
        for index in self.order:
            end, boundary, count, is_random = self.heads[4 * index : 4 * index + 4]
            numbers = self.numbers[self.heads[4 * index - 4] if index else 0 : end].tolist()
            length = len(numbers) - 2 * count
            positions, labels = numbers[length : length + count], numbers[length + count :]
            yield Instance(numbers[:length], boundary, positions, labels, bool(is_random))


@dataclass(frozen=True, kw_only=True)
class OriginalPairs:
    """How the text becomes pairs.

    Attributes:
        max_seq_length: Most tokens of an instance, special tokens included; at least 8.
        short_seq_prob: Share of documents with a shorter target length; 0 to 1.
        dupe_factor: Passes over the documents, each with other pairs and masks; at least 1.
    """

    max_seq_length: int
    short_seq_prob: float
    dupe_factor: int

    def __post_init__(self) -> None:
        if self.max_seq_length < MIN_SEQ_LENGTH:
            raise InputError(f"max_seq_length: {self.max_seq_length} given, at least {MIN_SEQ_LENGTH} is needed")
        if not 0.0 <= self.short_seq_prob <= 1.0:
            raise InputError(f"short_seq_prob: {self.short_seq_prob} given, allowed is a probability, 0 to 1")
        if self.dupe_factor < 1:
            raise InputError(f"dupe_factor: {self.dupe_factor} given, at least 1 pass is needed")


def create_training_instances(
    documents: TokenizedDocuments,
    pairing: OriginalPairs,
    masking: OriginalMasking,
    *,
    cls_id: int,
    sep_id: int,
    rng: random.Random,
) -> InstanceBuffer:
    """Return the original's instances for these documents, in its order.

    One generator is drawn from throughout: documents are shuffled once; then, ``dupe_factor`` times over all
    documents, pairs, truncation and masks in turn; at last the instances are shuffled. With one document only, a random
    B comes from that document, as in the original.

    Source: google-research/bert create_pretraining_data.py, create_training_instances.
    """
    order = list(range(len(documents.lengths)))
    shuffle(order, rng)
    lengths = [documents.lengths[document] for document in order]
    offsets = [documents.offsets[document] for document in order]
    tokens, max_num_tokens = documents.tokens, pairing.max_seq_length - NUM_SPECIAL_TOKENS
    buffer = InstanceBuffer()
    cls, sep = array("i", [cls_id]), array("i", [sep_id])
    passes = (document for _ in range(pairing.dupe_factor) for document in range(len(order)))
    for document in tqdm(passes, total=pairing.dupe_factor * len(order), desc="pairs", unit="document", delay=1):
        for pair in build_sentence_pairs(
            document,
            lengths.__getitem__,
            len(lengths),
            max_seq_length=pairing.max_seq_length,
            short_seq_prob=pairing.short_seq_prob,
            rng=rng,
        ):
            keep_a, keep_b = truncate_pair(pair.length_a, pair.length_b, max_num_tokens, rng)
            a, b = offsets[document][pair.a_begin], offsets[pair.b_document][pair.b_begin]
            tokens_a, tokens_b = tokens[a + keep_a.start : a + keep_a.stop], tokens[b + keep_b.start : b + keep_b.stop]
            input_ids = cls + tokens_a + sep + tokens_b + sep
            boundary = len(tokens_a) + 2
            positions, labels = mask_in_original_order(input_ids, boundary, masking, rng)
            buffer.append(input_ids, boundary, positions, labels, pair.is_random)
    shuffle(buffer.order, rng)
    return buffer
