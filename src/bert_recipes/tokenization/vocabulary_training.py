"""Train a WordPiece vocabulary: count words, fix the alphabet, let `tokenizers` find the pieces.

The library's trainer numbers some pieces in the order of a hash map, which differs from run to run. Here the words are
counted in Python, and every single-character piece is given to the trainer in a fixed order before it starts. What is left
to it, joining the most frequent pair of pieces, has one possible result. So the vocabulary is a function of the word counts
and the settings: not of the order of the texts, the number of threads or the process.

google-research/bert published no trainer. The library's joins pairs by frequency, as BPE does, not by likelihood as
Wu et al. 2016 describe; that is what everybody's "WordPiece" vocabularies are made with today.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bert_recipes.errors import InputError
from bert_recipes.tokenization.bert_tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.normalization import is_punctuation
from bert_recipes.tokenization.vocabulary_report import (
    TokenizerReport,
    measure_vocabulary,
    warn_about_changed_letters,
    warn_about_deleted_marks,
)
from bert_recipes.tokenization.word_counts import WordCounts, count_words
from bert_recipes.tokenization.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS


logger = logging.getLogger(__name__)

# Id of [UNK] in Google's vocabularies: [PAD], 99 [unused] slots, then [UNK], [CLS], [SEP], [MASK].
_FIRST_SLOTS = 99

_CHUNK_CHARACTERS = 1 << 16

# Ten times the largest vocabulary in use. The library makes room for `vocab_size` entries before it starts, and ends the
# process where there is none.
_LARGEST_SETTING = 10_000_000


def train_wordpiece(
    texts: Iterable[str],
    *,
    vocab_size: int = 30522,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    min_frequency: int = 2,
    limit_alphabet: int = 1000,
    num_unused: int = 99,
    show_progress: bool = True,
) -> OriginalBertTokenizer:
    """Train a WordPiece vocabulary in BERT's id layout. The same texts give the same vocabulary.

    Ids: [PAD] is 0, the first 99 [unused] slots follow, then [UNK], [CLS], [SEP], [MASK], then further [unused] slots, then
    characters, then pieces by frequency. With ``num_unused=99`` the special tokens have the ids of Google's vocabularies:
    0, 100, 101, 102, 103; fewer slots move the four down.

    Args:
        texts: the training text in pieces of any size, read once. Spaces and line ends part words, nothing else matters.
        vocab_size: entries wanted, everything included. Google's: 30522 uncased, 28996 cased.
        lowercase: whether to lower-case.
        strip_accents: whether to drop combining marks. None: where ``lowercase`` does, as in the original.
        split_cjk: whether every Han character is a word of its own. The original always does it.
        min_frequency: a pair of pieces must occur this often to become a piece.
        limit_alphabet: keep this many characters, the most frequent ones (ties: by code point). Words with another
            character become [UNK].
        num_unused: [unusedN] slots to be given a meaning later.
        show_progress: whether to draw progress bars on stderr.

    Returns:
        The tokenizer; its ``training_report`` is a `TokenizerReport` on the texts.

    Example:
        >>> tokenizer = train_wordpiece(open("corpus.txt"), vocab_size=8000)
        >>> tokenizer.save_pretrained("my_tokenizer")
    """
    _check_settings(
        vocab_size=vocab_size, min_frequency=min_frequency, limit_alphabet=limit_alphabet, num_unused=num_unused
    )
    drop_marks = lowercase if strip_accents is None else strip_accents
    counts = count_words(
        texts, lowercase=lowercase, strip_accents=drop_marks, split_cjk=split_cjk, show_progress=show_progress
    )
    if not counts.tokens:
        raise InputError(f"no word in the {counts.num_texts} texts to train on; a vocabulary needs text")
    alphabet, num_dropped = _alphabet(counts.tokens, limit_alphabet)
    words = _trainable(counts.tokens, alphabet)
    characters = sorted(alphabet)
    inner = sorted({character for word in words for character in word[1:]})
    fixed = [*_special_and_unused(num_unused), *characters, *(CONTINUATION + character for character in inner)]
    if len(fixed) > vocab_size:
        raise InputError(
            f"vocab_size {vocab_size} is too small: {5 + num_unused} special and [unused] tokens and {len(fixed) - 5 - num_unused} single characters "
            f"need {len(fixed)}; raise vocab_size or lower limit_alphabet ({limit_alphabet}) or num_unused ({num_unused})"
        )
    vocabulary = _train(words, fixed, vocab_size, min_frequency, show_progress)
    if len(vocabulary) < vocab_size:
        logger.warning(
            "The vocabulary has %d entries, not %d: no more pairs of pieces occur %d times. Give more text or a smaller vocab_size.",
            len(vocabulary),
            vocab_size,
            min_frequency,
        )
    tokenizer = OriginalBertTokenizer(
        vocab=vocabulary, do_lower_case=lowercase, strip_accents=strip_accents, tokenize_chinese_chars=split_cjk
    )
    tokenizer.training_report = _report(tokenizer, counts, len(alphabet), num_dropped, vocab_size)
    return tokenizer


def _check_settings(**settings: int) -> None:
    lowest = {"vocab_size": 6, "min_frequency": 1, "limit_alphabet": 1, "num_unused": 0}
    for name, value in settings.items():
        if value < lowest[name]:
            raise InputError(f"{name}: {value} was given, but it must be {lowest[name]} or more")
        if value > _LARGEST_SETTING:
            raise InputError(f"{name}: {value} was given, but it must be {_LARGEST_SETTING} or less")


def _alphabet(tokens: Counter[str], limit: int) -> tuple[set[str], int]:
    """Choose the characters to keep; returns them and the number of those left out."""
    frequency: Counter[str] = Counter()
    for token, number in tokens.items():
        for character in token:
            frequency[character] += number
    ranked = sorted(frequency, key=lambda character: (-frequency[character], character))
    # Half a surrogate pair, which broken JSON can hold, is no character and cannot be written to a file.
    kept = [character for character in ranked if not "\ud800" <= character <= "\udfff"][:limit]
    return set(kept), len(ranked) - len(kept)


def _trainable(tokens: Counter[str], alphabet: set[str]) -> dict[str, int]:
    """Leave out the words that become [UNK] whatever the pieces are, and put the rest in a fixed order."""
    return {
        word: tokens[word] for word in sorted(tokens) if len(word) <= MAX_WORD_CHARACTERS and alphabet.issuperset(word)
    }


def _special_and_unused(num_unused: int) -> list[str]:
    """The tokens that come first, in the layout of Google's vocabularies."""
    unused = [f"[unused{number}]" for number in range(num_unused)]
    return ["[PAD]", *unused[:_FIRST_SLOTS], "[UNK]", "[CLS]", "[SEP]", "[MASK]", *unused[_FIRST_SLOTS:]]


def _train(
    words: dict[str, int], fixed: list[str], vocab_size: int, min_frequency: int, show_progress: bool
) -> dict[str, int]:
    """Run the library's trainer and take the vocabulary out of it: piece to id in the order of the ids."""
    trainee = Tokenizer(WordPiece(unk_token="[UNK]"))
    trainee.pre_tokenizer = WhitespaceSplit()
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        # The trainer gives its "special" tokens the first ids, in this order.
        special_tokens=fixed,
        continuing_subword_prefix=CONTINUATION,
        show_progress=show_progress,
    )
    trainee.train_from_iterator(_repeated(words), trainer=trainer)
    vocabulary = dict(sorted(trainee.get_vocab().items(), key=lambda item: item[1]))
    if list(vocabulary)[: len(fixed)] != fixed or list(vocabulary.values()) != list(range(len(vocabulary))):
        raise RuntimeError(
            "the tokenizers library did not keep the order of the first tokens; its trainer has changed"
        )
    return vocabulary


def _repeated(words: dict[str, int]) -> Iterator[str]:
    """Write every word as often as it was counted, in chunks: the trainer takes text, not counts."""
    chunk: list[str] = []
    room = _CHUNK_CHARACTERS
    for word, number in words.items():
        while number:
            times = min(number, room // (len(word) + 1) + 1)
            chunk.append(f"{word} " * times)
            number -= times
            room -= times * (len(word) + 1)
            if room <= 0:
                yield "".join(chunk)
                chunk, room = [], _CHUNK_CHARACTERS
    yield "".join(chunk)


def _report(
    tokenizer: OriginalBertTokenizer, counts: WordCounts, alphabet_size: int, num_dropped: int, vocab_size: int
) -> TokenizerReport:
    fertility, unk_rate = measure_vocabulary(tokenizer, counts.tokens)
    num_words = sum(number for token, number in counts.tokens.items() if not is_punctuation(token[0]))
    deleted, scripts = counts.marks.shares()
    warn_about_deleted_marks(scripts)
    warn_about_changed_letters(counts.marks.changed_letters())
    return TokenizerReport(
        num_texts=counts.num_texts,
        num_characters=counts.num_characters,
        num_tokens=counts.tokens.total(),
        num_words=num_words,
        num_distinct_tokens=len(counts.tokens),
        num_forgotten_tokens=counts.num_forgotten,
        vocab_size=len(tokenizer),
        requested_vocab_size=vocab_size,
        alphabet_size=alphabet_size,
        dropped_alphabet_size=num_dropped,
        fertility=fertility,
        unk_rate=unk_rate,
        deleted_marks=deleted,
        deleted_script_marks=scripts,
    )
