"""create_pretraining_data.py of google-research/bert: one generator draws documents, pairs,
truncation and masks in turn.

Training does not use this (``dataset.py`` and ``masking.py`` are keyed, ``masking.py`` is
vectorised); the recipe of the
same name does. Tokens are kept in arrays: everything is in memory as in the original, but 4 bytes
per token.
"""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_recipes.data.instances import Instance
from bert_recipes.data.pairs import NUM_SPECIAL_TOKENS, build_sentence_pairs, shuffle, truncate_pair
from bert_recipes.errors import InputError
from bert_recipes.progress import Progress
from bert_recipes.rows import MAX_LINE_BYTES


@dataclass(frozen=True, kw_only=True)
class OriginalMasking:
    """The number of tokens that are predicted and what replaces them."""

    masked_lm_prob: (
        float  # of an input's tokens, special tokens counted; one token is predicted in any case
    )
    max_predictions_per_seq: int
    whole_word: bool  # pieces that start with ## are masked together with the piece before them
    mask_id: int
    random_word_ids: Sequence[int]  # the vocabulary in file order, special and unused entries too
    is_continuation: Sequence[bool]  # for each id, whether its piece starts with ##
    # ALBERT's runs: words of the longest one, and the draws of their lengths, of a generator of
    # their own; None: words or tokens.
    ngram: int | None = None
    uniform: Callable[[], float] = random.random


def choose_ngrams(
    words: Sequence[list[int]],
    limit: int,
    most_words: int,
    rng: random.Random,
    uniform: Callable[[], float],
) -> list[list[int]]:
    """ALBERT's masks: runs of one to `most_words` whole words, n of them with a probability
    proportional to 1/n.

    A run that does not fit is tried shorter, one that meets another is passed over.

    Args:
        words: Positions of each word, in order.
        limit: Positions that are predicted, at most.
        uniform: Gives the numbers in [0, 1) that decide n; the original draws them from another
            generator.

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
        count = int(shares.searchsorted(uniform(), side="right")) + 1
        run = [position for word in words[start : start + count] for position in word]
        while count > 1 and len(covered) + len(run) > limit:
            count -= 1
            run = [position for word in words[start : start + count] for position in word]
        if len(covered) + len(run) <= limit and covered.isdisjoint(run):
            covered.update(run)
            runs.append(run)
    return runs


def mask_in_original_order(
    input_ids: MutableSequence[int], boundary: int, masking: OriginalMasking, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Mask an input in place; return the predicted positions in ascending order, and the original
    ids there.

    Args:
        input_ids: [CLS] A [SEP] B [SEP], (L,); changed in place.
        boundary: Number of positions up to and with the first [SEP].

    Source: google-research/bert create_pretraining_data.py, create_masked_lm_predictions.
    """
    positions = [*range(1, boundary - 1), *range(boundary, len(input_ids) - 1)]
    limit = min(
        masking.max_predictions_per_seq, max(1, round(len(input_ids) * masking.masked_lm_prob))
    )
    words: list[list[int]] = []
    if masking.whole_word or masking.ngram is not None:
        words = _words(
            positions, input_ids, masking.is_continuation if masking.whole_word else None
        )
    if masking.ngram is not None:
        runs = choose_ngrams(words, limit, masking.ngram, rng, masking.uniform)
        chosen = [position for run in runs for position in run]
    elif masking.whole_word:
        chosen = _choose_whole_words(words, limit, rng)
    else:
        shuffle(positions, rng)
        chosen = positions[:limit]
    labels = {}
    for position in chosen:
        labels[position] = input_ids[position]
        if rng.random() < 0.8:
            input_ids[position] = masking.mask_id
        elif rng.random() >= 0.5:
            vocabulary = masking.random_word_ids
            input_ids[position] = vocabulary[rng.randint(0, len(vocabulary) - 1)]
    if masking.ngram is not None:
        shuffle(words, rng)  # the original shuffles its candidates once more
    ordered = sorted(labels)
    return ordered, [labels[position] for position in ordered]


def _words(
    positions: list[int], input_ids: Sequence[int], is_continuation: Sequence[bool] | None
) -> list[list[int]]:
    """The positions of each word. As in the original, a continuation at the start of B (its word
    was cut) joins the last word of A.
    """
    words: list[list[int]] = []
    for position in positions:
        if words and is_continuation is not None and is_continuation[input_ids[position]]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def _choose_whole_words(words: list[list[int]], limit: int, rng: random.Random) -> list[int]:
    """Return the positions of whole words in drawn order; a word that would exceed the limit is
    passed over.
    """
    shuffle(words, rng)
    chosen: list[int] = []
    for word in words:
        if len(chosen) >= limit:
            break
        if len(chosen) + len(word) <= limit:
            chosen += word
    return chosen


@dataclass
class TokenizedDocuments:
    """Documents of sentences of token ids; for each document where its sentences begin in `tokens`,
    and their lengths.
    """

    tokens: array = field(default_factory=lambda: array("i"))
    offsets: list[array] = field(default_factory=list)
    lengths: list[array] = field(default_factory=list)
    num_lines_without_tokens: int = 0


def read_documents(files: Sequence[Path], encode: Callable[[str], list[int]]) -> TokenizedDocuments:
    """Read one sentence per line; a blank line ends a document, the end of a file does not.

    Args:
        files: UTF-8 text files, read in this order.
        encode: Token ids of a sentence, without special tokens.

    Source: google-research/bert create_pretraining_data.py, create_training_instances.
    """
    documents = TokenizedDocuments()
    is_open, num_lines = False, 0
    for num_lines, sentence in enumerate(_read_lines(files), start=1):  # noqa: B007
        ids = encode(sentence) if sentence else []
        if not sentence:
            is_open = False
        elif not ids:
            documents.num_lines_without_tokens += 1
        else:
            if not is_open:
                documents.offsets.append(array("q"))
                documents.lengths.append(array("i"))
                is_open = True
            documents.offsets[-1].append(len(documents.tokens))
            documents.lengths[-1].append(len(ids))
            documents.tokens.extend(ids)
    if not documents.lengths:
        names = ", ".join(map(str, files))
        raise InputError(
            f"{names}: no sentence in {num_lines} lines; one sentence a line is expected"
        )
    return documents


def _read_lines(files: Iterable[Path]) -> Iterator[str]:
    """Yield stripped lines; only a line feed ends a line, as in the original."""
    total = sum(file.stat().st_size for file in files)
    with Progress(total=total, desc="tokenize", unit="B", unit_scale=True, delay=1) as progress:
        for file in files:
            with open(file, "rb") as lines:
                for number, line in enumerate(
                    iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), start=1
                ):
                    if len(line) > MAX_LINE_BYTES:
                        raise InputError(
                            f"{file}, line {number}: this line is longer than {MAX_LINE_BYTES:,} "
                            "bytes; is it text with "
                            "one sentence a line (line ends \\n)?"
                        )
                    try:
                        text = line.decode("utf-8")
                    except UnicodeDecodeError as error:
                        raise InputError(
                            f"{file}, line {number}: not UTF-8 ({error}); convert the file"
                        ) from error
                    progress.update(len(line))
                    yield text.strip()


def create_training_instances(
    documents: TokenizedDocuments,
    tokenizer: Any,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    dupe_factor: int,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    whole_word: bool,
    rng: random.Random,
    is_ordered: bool = False,
    ngram: int | None = None,
    uniform: Callable[[], float] = random.random,
) -> list[Instance]:
    """Return the original's instances for these documents, in its order.

    One generator is drawn from throughout: documents are shuffled once; then, ``dupe_factor`` times
    over all documents, pairs, truncation and masks in turn; at last the instances are shuffled.
    With one document only, a random B comes from that document, as in the original.

    Args:
        tokenizer: Any BERT tokenizer; gives the vocabulary and the special ids.
        max_seq_length: Most tokens of an instance, special tokens included; at least 8, so that
            every input has room for A and B.

    Source: google-research/bert create_pretraining_data.py, create_training_instances.
    """
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    masking = OriginalMasking(
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        whole_word=whole_word,
        mask_id=tokenizer.mask_token_id,
        random_word_ids=[number for _, number in pieces],
        is_continuation=[piece.startswith("##") for piece, _ in pieces],
        ngram=ngram,
        uniform=uniform,
    )
    order = list(range(len(documents.lengths)))
    shuffle(order, rng)
    lengths = [documents.lengths[document] for document in order]
    offsets = [documents.offsets[document] for document in order]
    tokens = documents.tokens
    cls, sep = array("i", [tokenizer.cls_token_id]), array("i", [tokenizer.sep_token_id])
    instances: list[Instance] = []
    passes = (document for _ in range(dupe_factor) for document in range(len(order)))
    for document in Progress(
        passes, total=dupe_factor * len(order), desc="pairs", unit="document", delay=1
    ):
        for pair in build_sentence_pairs(
            document,
            lengths.__getitem__,
            len(lengths),
            max_seq_length=max_seq_length,
            short_seq_prob=short_seq_prob,
            rng=rng,
            is_ordered=is_ordered,
        ):
            keep_a, keep_b = truncate_pair(
                pair.length_a, pair.length_b, max_seq_length - NUM_SPECIAL_TOKENS, rng
            )
            a, b = offsets[document][pair.a_begin], offsets[pair.b_document][pair.b_begin]
            tokens_a, tokens_b = (
                tokens[a + keep_a.start : a + keep_a.stop],
                tokens[b + keep_b.start : b + keep_b.stop],
            )
            input_ids = cls + tokens_a + sep + tokens_b + sep
            boundary = len(tokens_a) + 2
            positions, ids = mask_in_original_order(input_ids, boundary, masking, rng)
            instances.append(
                Instance(
                    input_ids,
                    boundary,
                    array("i", positions),
                    array("i", ids),
                    pair.is_random or pair.is_swapped,
                )
            )
    shuffle(instances, rng)
    return instances
