"""The sequential driver: the original's training instances, token for token and in order, from one random generator."""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from bert_recipes.data.instance_files import Instance
from bert_recipes.data.original_masking import OriginalMasking, mask_in_original_order, shuffle
from bert_recipes.data.pairs import NUM_SPECIAL_TOKENS, build_sentence_pairs, truncate_pair
from bert_recipes.data.text_lines import MAX_LINE_BYTES
from bert_recipes.errors import InputError


# Up to here every input has room for one token of A and one of B, and the drawn shorter lengths differ.
MIN_SEQ_LENGTH = 8


@dataclass
class TokenizedDocuments:
    """Documents of sentences of token ids, all in memory as in the original, but 4 bytes a token.

    Attributes:
        tokens: All ids in a row.
        offsets: For each document, where each of its sentences begins in ``tokens``.
        lengths: For each document, the tokens in each sentence.
        num_lines: Lines read.
        num_lines_without_tokens: Lines that are not blank but gave no token; they are left out.
    """

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

    def append(self, input_ids: array, boundary: int, positions: list[int], labels: list[int], is_random: bool) -> None:
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

    Raises:
        InputError: A setting out of range.
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

    Args:
        documents: What :func:`read_documents` returns.
        pairing: The pairs' rule.
        masking: The masks' rule.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        rng: Source of all draws; the original's is ``random.Random(random_seed)``.

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
