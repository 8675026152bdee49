"""Train a WordPiece vocabulary: count words, fix the alphabet, let `tokenizers` find the pieces.

The library's trainer numbers some pieces in the order of a hash map, which differs from run to run.
Here the words are counted in Python, and every single-character piece is given to the trainer in a
fixed order before it starts. What is left to it, joining the most frequent pair of pieces, has one
possible result. So the vocabulary is a function of the word counts
and the settings: not of the order of the texts, the number of threads or the process.

google-research/bert published no trainer. The library's joins pairs by frequency, as BPE does, not
by likelihood as Wu et al. 2016 describe; that is what everybody's "WordPiece" vocabularies are made
with today. `merges` has likelihood.
"""

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bert_recipes.errors import InputError
from bert_recipes.progress import Progress
from bert_recipes.scripts import describe_unknown, name_script
from bert_recipes.settings import check, option, required
from bert_recipes.tokenization.merges import merge_pieces
from bert_recipes.tokenization.normalization import is_punctuation, normalize_text
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS


ALGORITHMS = ("frequency", "likelihood")
BYTE_BPE, UNIGRAM = "byte_bpe", "unigram"


@dataclass
class TokenizerArguments:
    """Settings for what to read, what to train and where to write. Those that `train_wordpiece`
    shares mean the same there.
    """

    output_dir: str = required("folder to write; must not exist or be empty")
    files: list[str] | None = option(
        None,
        "files, folders or globs: .txt, .jsonl, .json, .csv, .tsv (each also .gz, .bz2, .xz, "
        ".zst), .parquet",
    )
    dataset_name: str | None = option(None, "data set on the Hub, instead of --files")
    dataset_config_name: str | None = option(None, "its configuration")
    dataset_split: str = option("train", "its split")
    text_column: str = option("text", "column of the text in tables, JSON, Parquet and Hub rows")
    encoding_errors: Literal["strict", "replace"] = option(
        "strict", "broken UTF-8: stop, or put U+FFFD and count"
    )
    vocab_size: int = option(30522, "entries wanted, special tokens and slots included")
    lowercase: bool = option(True, "uncased vocabulary")
    strip_accents: bool | None = option(
        None, "drop accents and other combining marks; default: as lowercase"
    )
    split_cjk: bool = option(True, "every Han character is a word")
    min_frequency: int = option(2, "a pair must occur this often to become a piece")
    limit_alphabet: int = option(1000, "characters kept, the most frequent ones")
    num_unused: int = option(99, "[unusedN] slots")
    algorithm: str = option(
        "frequency",
        "WordPiece that joins the most frequent pair of pieces, or the best by likelihood; "
        "RoBERTa's byte-level BPE, or ALBERT's unigram",
        choices=(*ALGORITHMS, BYTE_BPE, UNIGRAM),
    )
    overwrite: bool = option(False, "replace a tokenizer that is in output_dir already")

    def __post_init__(self) -> None:
        if (self.files is None) == (self.dataset_name is None):
            given = "both were" if self.files is not None else "neither was"
            raise InputError(f"give either --files or --dataset_name; {given} given")
        check(self)


logger = logging.getLogger(__name__)

# Our choice: with less text a vocabulary is said to be large for it.
FEW_WORDS_OF_A_PIECE = 100

# A stray foreign word in an English corpus is worth no warning. Ours.
_MANY_MARKS = 0.005

# Different words kept in memory, some 1.5 GB. Beyond, the rarest are forgotten and the report says
# how many.
_MAX_DISTINCT_TOKENS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class TokenizerReport:
    """Measurements of a vocabulary on the words of a text.

    A *word* is what normalising and splitting at spaces gives, punctuation marks left out; a
    *token* is a word or a punctuation mark.
    """

    num_texts: int  # documents, paragraphs or lines, as they were passed
    num_characters: int
    num_tokens: int
    num_words: int
    num_distinct_tokens: int
    num_forgotten_tokens: (
        int  # occurrences of rare words dropped to bound memory; in no other number
    )
    vocab_size: int
    requested_vocab_size: int
    alphabet_size: int  # characters that the vocabulary holds as pieces
    dropped_alphabet_size: (
        int  # characters that the limit left out; words with one of them become [UNK]
    )
    fertility: float  # pieces per word; [UNK] is one piece
    unk_rate: float  # fraction of the tokens that become [UNK]

    def __str__(self) -> str:
        return (
            f"vocabulary: {self.vocab_size:,} entries, alphabet of {self.alphabet_size:,} "
            "characters "
            f"({self.dropped_alphabet_size:,} left out by the limit)\n"
            f"read: {self.num_texts:,} texts, {self.num_characters:,} characters, "
            f"{self.num_words:,} words "
            f"({self.num_distinct_tokens:,} different ones with punctuation)\n"
            f"on this text: {self.fertility:.3f} pieces a word, [UNK] rate {self.unk_rate:.4%}"
        )


@dataclass
class WordCounts:
    """The counts of one pass over texts."""

    tokens: Counter[str] = field(default_factory=Counter)  # words and punctuation marks, normalised
    num_texts: int = 0
    num_characters: int = 0
    num_forgotten: int = 0  # occurrences of words that were too many and too rare to be kept
    # Where accents are stripped: the characters, decomposed, of texts that are not ASCII.
    characters: Counter[str] = field(default_factory=Counter)

    def _forget_rarest(self) -> None:
        """Drop the rarest words until half of the room is free."""
        threshold = 0
        while len(self.tokens) > _MAX_DISTINCT_TOKENS // 2:
            threshold += 1
            rare = [token for token, number in self.tokens.items() if number <= threshold]
            self.num_forgotten += sum(self.tokens.pop(token) for token in rare)
        logger.warning(
            "More than %d different words: those seen up to %d times so far are forgotten (%d "
            "occurrences in all).",
            _MAX_DISTINCT_TOKENS,
            threshold,
            self.num_forgotten,
        )


def count_words(
    texts: Iterable[str],
    *,
    lowercase: bool,
    strip_accents: bool,
    split_cjk: bool,
    show_progress: bool = True,
) -> WordCounts:
    """Count the words of texts in one pass; the settings are those of `normalize_text`."""
    counts = WordCounts()
    for text in Progress(
        texts, desc="Counting words", unit=" texts", unit_scale=True, disable=not show_progress
    ):
        counts.num_texts += 1
        counts.num_characters += len(text)
        normalized = normalize_text(
            text, lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk
        )
        counts.tokens.update(normalized.split())
        if strip_accents and not text.isascii():
            counts.characters.update(unicodedata.normalize("NFD", text))
        if len(counts.tokens) > _MAX_DISTINCT_TOKENS:
            counts._forget_rarest()
    return counts


def _warn_of_marks(counts: WordCounts) -> None:
    """Warn where stripping accents drops many marks: accents of letters, vowel signs."""
    marks = [mark for mark in counts.characters if unicodedata.category(mark) == "Mn"]
    share = sum(counts.characters[mark] for mark in marks) / max(1, counts.num_characters)
    if share >= _MANY_MARKS:
        logger.warning(
            "Stripping accents drops accents or vowel signs, %.1f%% of the characters. Where they "
            "make letters or words, keep them by strip_accents=False (--strip_accents false).",
            100 * share,
        )


def measure_vocabulary(
    tokenizer: OriginalBertTokenizer, token_counts: Mapping[str, int]
) -> tuple[float, float]:
    """Return fertility and [UNK] rate, as `TokenizerReport` defines them; 0.0 where there is no
    word.

    Args:
        token_counts: Words and punctuation marks, as normalised by this tokenizer, with how often
            they occur.
    """
    unknown = (tokenizer.unk_token_id,)
    num_words = num_pieces = num_tokens = num_unknown = 0
    for token, count in token_counts.items():
        ids = tokenizer.text_encoder.words[token]
        num_tokens += count
        num_unknown += count * (ids == unknown)
        if not is_punctuation(token[0]):
            num_words += count
            num_pieces += count * len(ids)
    return num_pieces / max(num_words, 1), num_unknown / max(num_tokens, 1)


def _warn_of_unknown(
    tokenizer: OriginalBertTokenizer, token_counts: Mapping[str, int], limit_alphabet: int
) -> None:
    """Warn where much of the training text itself becomes [UNK], and say why."""
    unknown: Counter[str] = Counter()
    num_too_long = 0
    for token, count in token_counts.items():
        if tokenizer.text_encoder.words[token] == (tokenizer.unk_token_id,):
            unknown[name_script(token)] += count
            num_too_long += count * (len(token) > MAX_WORD_CHARACTERS)
    said = describe_unknown(unknown, sum(token_counts.values()))
    if said is None:
        return
    if 2 * num_too_long > unknown.total():
        advice = (
            f"they are runs of over {MAX_WORD_CHARACTERS} characters without a space: part the "
            "words of the text by spaces, "
            f"or train another kind of vocabulary (--algorithm {UNIGRAM})"
        )
    else:
        advice = f"they hold characters that --limit_alphabet {limit_alphabet} leaves out: raise it"
    logger.warning("%s; %s", said, advice)


# Id of [UNK] in Google's vocabularies: [PAD], 99 [unused] slots, then [UNK], [CLS], [SEP], [MASK].
_FIRST_SLOTS = 99

_CHUNK_CHARACTERS = 1 << 16

# Ten times the largest vocabulary in use. The library makes room for `vocab_size` entries before it
# starts, and ends the process where there is none.
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
    algorithm: str = "frequency",
    show_progress: bool = True,
) -> OriginalBertTokenizer:
    """Train a WordPiece vocabulary in BERT's id layout. The same texts give the same vocabulary.

    Ids: [PAD] is 0, the first 99 [unused] slots follow, then [UNK], [CLS], [SEP], [MASK], then
    further [unused] slots, then characters, then pieces by frequency. With ``num_unused=99`` the
    special tokens have the ids of Google's vocabularies: 0, 100, 101, 102, 103; fewer slots move
    the four down.

    Args:
        texts: The training text in pieces of any size, read once. Spaces and line ends part words,
            nothing else matters.
        vocab_size: Entries wanted, everything included. Google's: 30522 uncased, 28996 cased.
        strip_accents: Whether to drop combining marks. None: where ``lowercase`` does, as in the
            original.
        split_cjk: Whether every Han character is a word of its own. The original always does it.
        min_frequency: A pair of pieces must occur this often to become a piece.
        limit_alphabet: Keep this many characters, the most frequent ones (ties: by code point).
            Words with another character become [UNK].
        num_unused: [unusedN] slots to be given a meaning later.
        algorithm: Which pair of pieces is joined next: "frequency" (the most frequent one, what
            everybody's vocabularies are made with) or "likelihood" (`merge_pieces`).

    Returns:
        The tokenizer; its ``training_report`` is a `TokenizerReport` on the texts.

    Example:
        >>> tokenizer = train_wordpiece(open("corpus.txt"), vocab_size=8000)
        >>> tokenizer.save_pretrained("my_tokenizer")
    """
    for name, value, lowest in (
        ("vocab_size", vocab_size, 6),
        ("min_frequency", min_frequency, 1),
        ("limit_alphabet", limit_alphabet, 1),
        ("num_unused", num_unused, 0),
    ):
        if not lowest <= value <= _LARGEST_SETTING:
            raise InputError(
                f"{name}: {value} was given, allowed are {lowest} to {_LARGEST_SETTING}"
            )
    if algorithm not in ALGORITHMS:
        raise InputError(f"algorithm: {algorithm!r} was given, allowed are {', '.join(ALGORITHMS)}")
    drop_marks = lowercase if strip_accents is None else strip_accents
    counts = count_words(
        texts,
        lowercase=lowercase,
        strip_accents=drop_marks,
        split_cjk=split_cjk,
        show_progress=show_progress,
    )
    if not counts.tokens:
        raise InputError(
            f"no word in the {counts.num_texts} texts to train on; a vocabulary needs text"
        )
    frequency: Counter[str] = Counter()
    for token, number in counts.tokens.items():
        for character in token:
            frequency[character] += number
    ranked = sorted(frequency, key=lambda character: (-frequency[character], character))
    # Half a surrogate pair, which broken JSON can hold, is no character and cannot be written to a
    # file.
    characters = set(
        [character for character in ranked if not "\ud800" <= character <= "\udfff"][
            :limit_alphabet
        ]
    )
    # Without the words that become [UNK] whatever the pieces are, and in a fixed order.
    words = {
        word: number
        for word, number in sorted(counts.tokens.items())
        if len(word) <= MAX_WORD_CHARACTERS and characters.issuperset(word)
    }
    inner = sorted({character for word in words for character in word[1:]})
    # The layout of Google's vocabularies.
    unused = [f"[unused{number}]" for number in range(num_unused)]
    special = [
        "[PAD]",
        *unused[:_FIRST_SLOTS],
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *unused[_FIRST_SLOTS:],
    ]
    fixed = [*special, *sorted(characters), *(CONTINUATION + character for character in inner)]
    if len(fixed) > vocab_size:
        raise InputError(
            f"vocab_size {vocab_size} is too small: {len(special)} special and [unused] tokens "
            f"and {len(fixed) - len(special)} single characters "
            f"need {len(fixed)}; raise vocab_size or lower limit_alphabet ({limit_alphabet}) or "
            f"num_unused ({num_unused})"
        )
    if algorithm == "frequency":
        vocabulary = _train_by_frequency(words, fixed, vocab_size, min_frequency, show_progress)
    else:
        merges = merge_pieces(
            words, vocab_size - len(fixed), min_frequency, show_progress=show_progress
        )
        pieces = dict.fromkeys([*fixed, *(merge.joined for merge in merges)])
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
    if len(vocabulary) < vocab_size:
        logger.warning(
            "The vocabulary has %d entries, not %d: no more pairs of pieces occur %d times. Give "
            "more text or a smaller vocab_size.",
            len(vocabulary),
            vocab_size,
            min_frequency,
        )
    tokenizer = OriginalBertTokenizer(
        vocab=vocabulary,
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=split_cjk,
    )
    fertility, unk_rate = measure_vocabulary(tokenizer, counts.tokens)
    words_of_a_piece = counts.tokens.total() // len(tokenizer)
    if words_of_a_piece < FEW_WORDS_OF_A_PIECE and len(tokenizer) > 8000:
        message = (
            "%d words of text for each of %d pieces: a model learns more of each from a "
            "smaller --vocab_size, like 8000"
        )
        logger.info(message, words_of_a_piece, len(tokenizer))
    _warn_of_unknown(tokenizer, counts.tokens, limit_alphabet)
    _warn_of_marks(counts)
    tokenizer.training_report = TokenizerReport(
        num_texts=counts.num_texts,
        num_characters=counts.num_characters,
        num_tokens=counts.tokens.total(),
        num_words=sum(
            number for token, number in counts.tokens.items() if not is_punctuation(token[0])
        ),
        num_distinct_tokens=len(counts.tokens),
        num_forgotten_tokens=counts.num_forgotten,
        vocab_size=len(tokenizer),
        requested_vocab_size=vocab_size,
        alphabet_size=len(characters),
        dropped_alphabet_size=len(ranked) - len(characters),
        fertility=fertility,
        unk_rate=unk_rate,
    )
    return tokenizer


def _train_by_frequency(
    words: dict[str, int],
    fixed: list[str],
    vocab_size: int,
    min_frequency: int,
    show_progress: bool,
) -> dict[str, int]:
    """Piece -> id: the fixed ones first, in their order, then what the library's trainer joins."""
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=fixed,  # get the first ids, in this order
        continuing_subword_prefix=CONTINUATION,
        show_progress=show_progress,
    )
    trainee = Tokenizer(WordPiece(unk_token="[UNK]"))
    trainee.pre_tokenizer = WhitespaceSplit()
    trainee.train_from_iterator(_repeated(words), trainer=trainer)
    vocabulary = dict(sorted(trainee.get_vocab().items(), key=lambda item: item[1]))
    assert list(vocabulary)[: len(fixed)] == fixed, (
        "the trainer of the tokenizers library has changed"
    )
    return vocabulary


def _repeated(words: dict[str, int]) -> Iterator[str]:
    """Write every word as often as it was counted: the trainer takes text, not counts."""
    for word, number in words.items():
        at_once = _CHUNK_CHARACTERS // (len(word) + 1)
        for start in range(0, number, at_once):
            yield f"{word} " * min(at_once, number - start)
