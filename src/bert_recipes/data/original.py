"""The instances of google-research/bert's create_pretraining_data.py, token for token.

One generator draws documents, pairs, truncation and masks in turn. Training does not use this
(`dataset.py` and `masking.py` are keyed); the recipe of the same name does. Everything is in memory
as in the original, but 4 bytes per token.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bert_recipes.data.instances import Instance
from bert_recipes.data.pairs import NUM_SPECIAL_TOKENS, build_sentence_pairs, shuffle, truncate_pair
from bert_recipes.errors import InputError
from bert_recipes.progress import Progress
from bert_recipes.rows import DEFAULT_MAX_LINE_BYTES


@dataclass(frozen=True, kw_only=True)
class OriginalSettings:
    """The settings of the original's instances.

    Attributes:
        max_seq_length: Most tokens of an instance, special tokens included; at least 8, so that
            every input has room for A and B.
        short_seq_prob: Fraction of documents whose pairs aim at a shorter length.
        dupe_factor: How often each document is read, with other draws.
        masked_lm_prob: Fraction of an input's tokens that is predicted, special tokens counted; one
            token is predicted in any case.
        max_predictions_per_seq: Most tokens that are predicted.
        whole_word: The pieces of a word are masked together.
        is_ordered: As in `build_sentence_pairs`.
        ngram: ALBERT's runs: words of the longest one; None = words or tokens.
        draw_ngram_length: Returns the numbers in [0, 1) that decide the lengths of ALBERT's runs,
            from a generator of their own.
    """

    max_seq_length: int
    short_seq_prob: float
    dupe_factor: int
    masked_lm_prob: float
    max_predictions_per_seq: int
    whole_word: bool
    is_ordered: bool = False
    ngram: int | None = None
    draw_ngram_length: Callable[[], float] = random.random


@dataclass(frozen=True)
class OriginalMasking:
    """The settings and the vocabulary of masks."""

    settings: OriginalSettings
    mask_id: int
    random_word_ids: Sequence[int]  # the vocabulary in file order, special and unused entries too
    is_continuation: Sequence[bool]  # for each id, whether its piece goes on with a word
    joins_segments: bool  # whether such a piece at the start of B joins the last word of A

    @classmethod
    def from_tokenizer(cls, settings: OriginalSettings, tokenizer: Any) -> OriginalMasking:
        """Take the vocabulary of any BERT tokenizer."""
        # Takes torch, and seconds.
        from bert_recipes.data.collator import find_continuations, is_byte_level

        id_of_piece = tokenizer.get_vocab()
        pieces = sorted(id_of_piece, key=id_of_piece.__getitem__)
        return cls(
            settings,
            mask_id=tokenizer.mask_token_id,
            random_word_ids=[id_of_piece[piece] for piece in pieces],
            is_continuation=find_continuations(id_of_piece, len(pieces)).tolist(),
            joins_segments=not is_byte_level(id_of_piece),
        )


def choose_ngrams(
    words: Sequence[list[int]],
    limit: int,
    most_words: int,
    rng: random.Random,
    draw_ngram_length: Callable[[], float],
) -> list[list[int]]:
    """Return ALBERT's masks: runs of one to `most_words` whole words.

    A run has n words with a probability proportional to 1/n. One that does not fit is tried
    shorter, one that meets another is passed over.

    Args:
        words: Positions of each word, in order.
        limit: Positions that are predicted, at most.
        most_words: The most words of a run.
        rng: Shuffles the words from which runs start.
        draw_ngram_length: Returns the numbers in [0, 1) that decide n; the original draws them from
            another generator.

    Returns:
        The positions of the runs, in the order of their choice.

    Source: google-research/albert create_pretraining_data.py, create_masked_lm_predictions.
    """
    shares = np.cumsum(1.0 / np.arange(1, most_words + 1))
    shares /= shares[-1]
    order = list(range(len(words)))
    shuffle(order, rng)
    covered: set[int] = set()
    runs = []
    for start in order:
        if len(covered) >= limit:
            break
        count = int(shares.searchsorted(draw_ngram_length(), side="right")) + 1
        run = list(chain.from_iterable(words[start : start + count]))
        while count > 1 and len(covered) + len(run) > limit:
            count -= 1
            run = list(chain.from_iterable(words[start : start + count]))
        if len(covered) + len(run) <= limit and covered.isdisjoint(run):
            covered.update(run)
            runs.append(run)

    return runs


def mask_in_original_order(
    input_ids: MutableSequence[int], boundary: int, masking: OriginalMasking, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Mask an input in place.

    Args:
        input_ids: [CLS] A [SEP] B [SEP], (L,); changed in place.
        boundary: Number of positions up to and with the first [SEP].
        masking: How.
        rng: The source of all draws but ALBERT's lengths.

    Returns:
        The predicted positions in ascending order, and the original ids there.

    Source: google-research/bert create_pretraining_data.py, create_masked_lm_predictions.
    """
    settings = masking.settings
    positions = [*range(1, boundary - 1), *range(boundary, len(input_ids) - 1)]
    share = max(1, round(len(input_ids) * settings.masked_lm_prob))
    limit = min(settings.max_predictions_per_seq, share)
    words = [[position] for position in positions]
    if settings.whole_word:
        words = _words(positions, boundary, input_ids, masking)
    if settings.ngram is not None:
        runs = choose_ngrams(words, limit, settings.ngram, rng, settings.draw_ngram_length)
        predicted = list(chain.from_iterable(runs))
    else:
        predicted = _choose_words(words, limit, rng)

    labels = {}
    for position in predicted:
        labels[position] = input_ids[position]
        if rng.random() < 0.8:
            input_ids[position] = masking.mask_id
        elif rng.random() >= 0.5:
            number = rng.randint(0, len(masking.random_word_ids) - 1)
            input_ids[position] = masking.random_word_ids[number]

    if settings.ngram is not None:
        shuffle(words, rng)  # the original shuffles its candidates once more
    ordered = sorted(labels)
    return ordered, [labels[position] for position in ordered]


def _words(
    positions: list[int], boundary: int, input_ids: Sequence[int], masking: OriginalMasking
) -> list[list[int]]:
    """Return the positions of each word.

    As in the original, a continuation at the start of B (its word was cut) joins the last word of
    A. Not so in a byte-level vocabulary, where the first word of a text may look like one.
    """
    words: list[list[int]] = []
    for position in positions:
        goes_on = masking.is_continuation[input_ids[position]]
        if position == boundary and not masking.joins_segments:
            goes_on = False
        if words and goes_on:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def _choose_words(words: list[list[int]], limit: int, rng: random.Random) -> list[int]:
    """Return the positions of words in drawn order.

    A word that would exceed the limit is passed over.
    """
    shuffle(words, rng)
    positions: list[int] = []
    for word in words:
        if len(positions) >= limit:
            break
        if len(positions) + len(word) <= limit:
            positions += word
    return positions


@dataclass
class TokenizedDocuments:
    """Documents of sentences of token ids."""

    tokens: array = field(default_factory=lambda: array("i"))
    # For each document where its sentences begin in `tokens`, and their lengths.
    offsets: list[array] = field(default_factory=list)
    lengths: list[array] = field(default_factory=list)
    num_lines_without_tokens: int = 0

    def add_sentence(self, ids: Sequence[int], *, opens_document: bool) -> None:
        """Add a sentence to the last document, or to a new one."""
        if opens_document:
            self.offsets.append(array("q"))
            self.lengths.append(array("i"))
        self.offsets[-1].append(len(self.tokens))
        self.lengths[-1].append(len(ids))
        self.tokens.extend(ids)


def read_documents(files: Sequence[Path], encode: Callable[[str], list[int]]) -> TokenizedDocuments:
    """Read one sentence per line; a blank line ends a document, the end of a file does not.

    Args:
        files: UTF-8 text files, read in this order.
        encode: Token ids of a sentence, without special tokens.

    Source: google-research/bert create_pretraining_data.py, create_training_instances.
    """
    documents = TokenizedDocuments()
    opens_document = True
    for sentence in _read_lines(files):
        ids = encode(sentence)
        if ids:
            documents.add_sentence(ids, opens_document=opens_document)
            opens_document = False
        elif sentence:
            documents.num_lines_without_tokens += 1
        else:
            opens_document = True

    if not documents.lengths:
        names = ", ".join(map(str, files))
        raise InputError(f"{names}: there is no sentence; one sentence a line is expected")
    return documents


def _read_lines(files: Iterable[Path]) -> Iterator[str]:
    """Yield stripped lines; only a line feed ends a line, as in the original."""
    total = sum(file.stat().st_size for file in files)
    with Progress(total=total, desc="tokenize", unit="B", unit_scale=True, delay=1) as progress:
        for path in files:
            with open(path, "rb") as file:
                read_line = partial(file.readline, DEFAULT_MAX_LINE_BYTES + 1)
                lines = iter(read_line, b"")
                for number, line in enumerate(lines, start=1):
                    progress.update(len(line))
                    text = _decode_line(line, f"{path}, line {number}")
                    yield text.strip()


def _decode_line(line: bytes, place: str) -> str:
    if len(line) > DEFAULT_MAX_LINE_BYTES:
        raise InputError(
            f"{place}: this line is longer than {DEFAULT_MAX_LINE_BYTES:,} bytes; is it text with "
            "one sentence a line (line ends \\n)?"
        )

    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 ({error}); convert the file") from error


def create_training_instances(
    documents: TokenizedDocuments, tokenizer: Any, settings: OriginalSettings, rng: random.Random
) -> list[Instance]:
    """Return the original's instances for these documents, in its order.

    One generator is drawn from throughout: documents are shuffled once; then, `dupe_factor` times
    over all documents, pairs, truncation and masks in turn; at last the instances are shuffled.
    With one document only, a random B comes from that document, as in the original.

    Args:
        documents: The result of `read_documents`.
        tokenizer: Any BERT tokenizer; gives the vocabulary and the special ids.
        settings: Lengths and masks.
        rng: The generator.

    Source: google-research/bert create_pretraining_data.py, create_training_instances.
    """
    masking = OriginalMasking.from_tokenizer(settings, tokenizer)
    order = list(range(len(documents.lengths)))
    shuffle(order, rng)
    lengths = [documents.lengths[document] for document in order]
    offsets = [documents.offsets[document] for document in order]
    tokens = documents.tokens
    cls = array("i", [tokenizer.cls_token_id])
    sep = array("i", [tokenizer.sep_token_id])
    passes = list(range(len(order))) * settings.dupe_factor
    instances: list[Instance] = []
    for document in Progress(passes, desc="pairs", unit="document", delay=1):
        for pair in build_sentence_pairs(
            document,
            lengths.__getitem__,
            len(lengths),
            max_seq_length=settings.max_seq_length,
            short_seq_prob=settings.short_seq_prob,
            rng=rng,
            is_ordered=settings.is_ordered,
        ):
            max_num_tokens = settings.max_seq_length - NUM_SPECIAL_TOKENS
            keep_a, keep_b = truncate_pair(pair.length_a, pair.length_b, max_num_tokens, rng)
            begin_a = offsets[document][pair.a_begin]
            begin_b = offsets[pair.b_document][pair.b_begin]
            tokens_a = tokens[begin_a + keep_a.start : begin_a + keep_a.stop]
            tokens_b = tokens[begin_b + keep_b.start : begin_b + keep_b.stop]
            input_ids = cls + tokens_a + sep + tokens_b + sep
            boundary = len(tokens_a) + 2
            positions, ids = mask_in_original_order(input_ids, boundary, masking, rng)
            is_random = pair.is_random or pair.is_swapped
            instances.append(
                Instance(input_ids, boundary, array("i", positions), array("i", ids), is_random)
            )

    shuffle(instances, rng)
    return instances
