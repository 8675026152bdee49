"""Words that a vocabulary cuts into pieces and a domain needs whole: they are put at its end.

A new word is an entry of the WordPiece vocabulary like any other: it is found at the beginning of
longer words too, and what begins with it is cut in another way. The ids of the old entries stay.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.rows import SURROGATES, read_lines
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.training import WordCounts, count_words, measure_vocabulary
from bert_recipes.tokenization.wordpiece import MAX_WORD_CHARACTERS


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NewWord:
    """A word that is not an entry of a vocabulary."""

    word: str  # normalized
    piece_ids: tuple[int, ...]  # what the vocabulary cuts it into; [UNK] alone if it cannot
    count: int | None = None  # in the texts; None where it comes from a list


def count_for(
    tokenizer: OriginalBertTokenizer, texts: Iterable[str], *, show_progress: bool = True
) -> WordCounts:
    """Count the words of texts as a tokenizer normalizes them."""
    return count_words(texts, **tokenizer.text_encoder.settings, show_progress=show_progress)


def choose_words(
    tokenizer: OriginalBertTokenizer, counts: WordCounts, *, num_words: int, min_frequency: int
) -> list[NewWord]:
    """Choose the words whose own entry spares the most pieces in the text; ties: by the word.

    Words without a letter and half surrogates are left out; one that was [UNK] counts as if it had
    had two pieces.
    """
    unknown = (tokenizer.unk_token_id,)
    gains: dict[NewWord, int] = {}
    for word, count in counts.tokens.items():
        ids = tokenizer.text_encoder.words[word]
        is_entry = len(ids) == 1 and ids != unknown
        if count >= min_frequency and not is_entry and _is_fit(word):
            gains[NewWord(word, ids, count)] = count * max(len(ids) - 1, 1)
    ranked = sorted(gains, key=lambda new: (-gains[new], new.word))
    return ranked[:num_words]


def _is_fit(word: str) -> bool:
    if len(word) > MAX_WORD_CHARACTERS or SURROGATES.search(word):
        return False
    return any(character.isalpha() for character in word)


def read_words(path: Path, tokenizer: OriginalBertTokenizer) -> list[NewWord]:
    """Read a list of words, one per line.

    Blank lines, words of the vocabulary and repeated ones are left out.
    """
    encoder = tokenizer.text_encoder
    new_words: dict[str, NewWord] = {}
    num_entries = num_repeated = 0
    for number, line in enumerate(read_lines(path), 1):
        words = encoder.normalize(line).split()
        if not words:
            continue
        if len(words) > 1 or len(words[0]) > MAX_WORD_CHARACTERS:
            raise InputError(
                f"{path}, line {number}: {line.strip()[:60]!r} is not a single word for this "
                f"tokenizer ({' | '.join(words)[:80]}); "
                "give one word a line, without spaces and punctuation, of at most "
                f"{MAX_WORD_CHARACTERS} characters"
            )
        word = words[0]
        if word in encoder.vocabulary:
            num_entries += 1
        elif word in new_words:
            num_repeated += 1
        else:
            new_words[word] = NewWord(word, encoder.words[word])
    if num_entries or num_repeated:
        logger.info(
            "%s: %d words are in the vocabulary already, %d are repeated",
            path,
            num_entries,
            num_repeated,
        )
    if not new_words:
        raise InputError(f"{path}: no word in it that the vocabulary lacks")
    return list(new_words.values())


def extend_tokenizer(
    tokenizer: OriginalBertTokenizer, words: Sequence[NewWord]
) -> OriginalBertTokenizer:
    """Return a new tokenizer with these words at the end of the vocabulary."""
    vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    size = len(vocabulary)
    if tokenizer.extra_tokens or sorted(vocabulary.values()) != list(range(size)):
        raise InputError(
            f"the tokenizer has {len(tokenizer.extra_tokens)} tokens beside its vocabulary of "
            f"{size}; words cannot be added after it"
        )
    for number, new in enumerate(words, start=size):
        vocabulary[new.word] = number
    return OriginalBertTokenizer(
        vocab=vocabulary,
        do_lower_case=tokenizer.do_lower_case,
        tokenize_chinese_chars=tokenizer.tokenize_chinese_chars,
        strip_accents=tokenizer.strip_accents,
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        **tokenizer.special_tokens_map,
    )


def describe_gain(
    old: OriginalBertTokenizer, new: OriginalBertTokenizer, counts: WordCounts
) -> dict[str, float]:
    """Return pieces a word and share of [UNK] before and after, on the counted text.

    A greedy cut that begins with a new word may end in letters that the vocabulary has no piece
    for; then there are more [UNK] than before, and a warning says so.
    """
    before = measure_vocabulary(old, counts.tokens)
    after = measure_vocabulary(new, counts.tokens)
    if after.unk_rate > before.unk_rate:
        logger.warning(
            "[UNK] rate %.4f %% instead of %.4f %%: some words begin with a new one and continue "
            "with what the vocabulary has no piece for",
            100 * after.unk_rate,
            100 * before.unk_rate,
        )
    return {
        "pieces_a_word_before": before.fertility,
        "pieces_a_word_after": after.fertility,
        "unk_rate_before": before.unk_rate,
        "unk_rate_after": after.unk_rate,
    }
