"""Train a WordPiece vocabulary: count words, fix the alphabet, let `tokenizers` find the pieces.

The library's trainer numbers some pieces in the order of a hash map, which differs from run to run.
Here the words are counted in Python, and every single-character piece is given to the trainer in a
fixed order before it starts. What is left to it, joining the most frequent pair of pieces, has one
possible result. So the vocabulary is a function of the word counts and the settings: not of the
order of the texts, the number of threads or the process.

google-research/bert published no trainer. The library's joins pairs by frequency, as BPE does, not
by likelihood as Wu et al. 2016 describe; that is what everybody's "WordPiece" vocabularies are made
with today. `merges` has likelihood.
"""

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bert_recipes.errors import InputError
from bert_recipes.progress import Progress
from bert_recipes.rows import DEFAULT_MAX_LINE_BYTES, MAX_LINE_BYTES_LIMIT, SURROGATES
from bert_recipes.scripts import describe_unknown, name_script
from bert_recipes.settings import check_limits, option, required
from bert_recipes.tokenization.merges import merge_pieces
from bert_recipes.tokenization.normalization import (
    is_punctuation,
    normalize_text,
    warn_of_marks,
)
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.tokenization.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS


logger = logging.getLogger(__name__)

ALGORITHMS = ("frequency", "likelihood")
BYTE_BPE = "byte_bpe"
UNIGRAM = "unigram"

# Our choice: with less text a vocabulary is said to be large for it.
FEW_WORDS_OF_A_PIECE = 100

# Different words kept in memory, some 1.5 GB. Beyond, the rarest are forgotten and the report says
# how many.
_MAX_DISTINCT_TOKENS = 10_000_000

# [unused] slots between [PAD] and [UNK] in Google's vocabularies.
_FIRST_SLOTS = 99

_CHUNK_CHARACTERS = 1 << 16

# Ten times the largest vocabulary in use. The library makes room for `vocab_size` entries before it
# starts, and ends the process where there is none.
_LARGEST_SETTING = 10_000_000


@dataclass(kw_only=True)
class VocabularySettings:
    """Settings of a WordPiece vocabulary."""

    vocab_size: int = option(
        30522, "entries wanted, special tokens and slots included", least=6, most=_LARGEST_SETTING
    )
    lowercase: bool = option(True, "uncased vocabulary")
    strip_accents: bool | None = option(
        None, "drop accents and other combining marks; default: as lowercase"
    )
    split_cjk: bool = option(True, "every Han character is a word")
    min_frequency: int = option(
        2, "a pair must occur this often to become a piece", least=1, most=_LARGEST_SETTING
    )
    limit_alphabet: int = option(
        1000, "characters kept, the most frequent ones", least=1, most=_LARGEST_SETTING
    )
    num_unused: int = option(99, "[unusedN] slots", least=0, most=_LARGEST_SETTING)
    algorithm: str = option("frequency", "which pair of pieces is joined next", choices=ALGORITHMS)

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def normalization(self) -> dict[str, bool]:
        """Return the settings of `normalize_text`."""
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        return {
            "lowercase": self.lowercase,
            "strip_accents": strip_accents,
            "split_cjk": self.split_cjk,
        }


@dataclass(kw_only=True)
class TokenizerArguments(VocabularySettings):
    """Settings for what to read, what to train and where to write."""

    output_dir: str = required("folder to write; must not exist or be empty")
    files: list[str] | None = option(
        None,
        "files, folders or globs: .txt (or .train, .raw, .tokens), .jsonl, .json, .csv, .tsv (each "
        "also .gz, .bz2, .xz, .zst), .parquet",
    )
    dataset_name: str | None = option(None, "data set on the Hub, instead of --files")
    dataset_config_name: str | None = option(None, "its configuration")
    dataset_split: str = option("train", "its split")
    text_column: str = option("text", "column of the text in tables, JSON, Parquet and Hub rows")
    encoding_errors: Literal["strict", "replace"] = option(
        "strict", "broken UTF-8: stop, or put U+FFFD and count"
    )
    max_line_bytes: int = option(
        DEFAULT_MAX_LINE_BYTES,
        "longest line that is taken for text",
        least=1,
        most=MAX_LINE_BYTES_LIMIT,
    )
    algorithm: str = option(
        "frequency",
        "WordPiece that joins the most frequent pair of pieces, or the best by likelihood; "
        "RoBERTa's byte-level BPE, or ALBERT's unigram",
        choices=(*ALGORITHMS, BYTE_BPE, UNIGRAM),
    )
    overwrite: bool = option(False, "replace a tokenizer that is in output_dir already")

    def __post_init__(self) -> None:
        if (self.files is None) == (self.dataset_name is None):
            number = "neither was" if self.files is None else "both were"
            raise InputError(f"give either --files or --dataset_name; {number} given")
        super().__post_init__()


# Words of the text


@dataclass
class WordCounts:
    """Hold the counts of one pass over texts."""

    tokens: Counter[str] = field(default_factory=Counter)  # words and punctuation marks, normalized
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


def _rank_characters(tokens: Mapping[str, int]) -> list[str]:
    """Return the characters of words, the most frequent first; ties by code point."""
    frequency: Counter[str] = Counter()
    for token, number in tokens.items():
        for character in token:
            frequency[character] += number
    return sorted(frequency, key=lambda character: (-frequency[character], character))


# The vocabulary


def train_wordpiece(
    texts: Iterable[str], *, show_progress: bool = True, **settings: Any
) -> OriginalBertTokenizer:
    """Train a WordPiece vocabulary in BERT's id layout. The same texts give the same vocabulary.

    Ids: [PAD] is 0, the first 99 [unused] slots follow, then [UNK], [CLS], [SEP], [MASK], then
    further [unused] slots, then characters, then pieces by frequency. With ``num_unused=99`` the
    special tokens have the ids of Google's vocabularies: 0, 100, 101, 102, 103; fewer slots move
    the four down.

    Args:
        texts: The training text in pieces of any size, read once. Spaces and line ends
            separate words, nothing else matters.
        show_progress: Whether to show a bar.
        vocab_size: Entries wanted, everything included; 30522 by default. Google's: 30522 uncased,
            28996 cased.
        lowercase: Whether the vocabulary is uncased, as by default.
        strip_accents: Whether to drop combining marks. None: where ``lowercase`` does, as in the
            original.
        split_cjk: Whether every Han character is a word of its own. The original always does it.
        min_frequency: A pair of pieces must occur this often to become a piece; 2 by default.
        limit_alphabet: Keep this many characters, the most frequent ones (ties: by code point);
            1000 by default. Words with another character become [UNK].
        num_unused: [unusedN] slots to be given a meaning later; 99 by default.
        algorithm: Which pair of pieces is joined next: "frequency" (the most frequent one, what
            everybody's vocabularies are made with) or "likelihood" (`merge_pieces`).

    Returns:
        The tokenizer; its ``training_report`` is a `TokenizerReport` on the texts.

    Example:
        >>> tokenizer = train_wordpiece(open("corpus.txt"), vocab_size=8000)
        >>> tokenizer.save_pretrained("my_tokenizer")
    """
    return train_vocabulary(texts, VocabularySettings(**settings), show_progress=show_progress)


def train_vocabulary(
    texts: Iterable[str], settings: VocabularySettings, *, show_progress: bool = True
) -> OriginalBertTokenizer:
    """Train a WordPiece vocabulary, see `train_wordpiece`."""
    counts = count_words(texts, **settings.normalization, show_progress=show_progress)
    tokens = counts.tokens
    if not tokens:
        raise InputError(
            f"no word in the {counts.num_texts} texts to train on; a vocabulary needs text"
        )
    ranked = _rank_characters(tokens)
    # Half a surrogate pair, which broken JSON can hold, is not a character and cannot be written to
    # a file.
    valid = [character for character in ranked if not SURROGATES.match(character)]
    alphabet = set(valid[: settings.limit_alphabet])
    vocabulary = _make_vocabulary(tokens, alphabet, settings, show_progress)
    tokenizer = OriginalBertTokenizer(
        vocab=vocabulary,
        do_lower_case=settings.lowercase,
        strip_accents=settings.strip_accents,
        tokenize_chinese_chars=settings.split_cjk,
    )
    _mention_little_text(tokens.total(), len(tokenizer))
    _warn_of_unknown(tokenizer, tokens, settings.limit_alphabet)
    warn_of_marks(counts.characters, "Mn", counts.num_characters)
    measures = measure_vocabulary(tokenizer, tokens)
    tokenizer.training_report = TokenizerReport(
        num_texts=counts.num_texts,
        num_characters=counts.num_characters,
        num_tokens=tokens.total(),
        num_words=measures.num_words,
        num_distinct_tokens=len(tokens),
        num_forgotten_tokens=counts.num_forgotten,
        vocab_size=len(tokenizer),
        requested_vocab_size=settings.vocab_size,
        alphabet_size=len(alphabet),
        dropped_alphabet_size=len(ranked) - len(alphabet),
        fertility=measures.fertility,
        unk_rate=measures.unk_rate,
    )
    return tokenizer


def _make_vocabulary(
    tokens: Mapping[str, int],
    alphabet: set[str],
    settings: VocabularySettings,
    show_progress: bool,
) -> dict[str, int]:
    # Without the words that become [UNK] whatever the pieces are, and in a fixed order.
    words = {}
    for word in sorted(tokens):
        if len(word) <= MAX_WORD_CHARACTERS and alphabet.issuperset(word):
            words[word] = tokens[word]
    first_pieces = _first_pieces(words, alphabet, settings)
    join = _join_by_frequency if settings.algorithm == "frequency" else _join_by_likelihood
    vocabulary = join(words, first_pieces, settings, show_progress)
    if len(vocabulary) < settings.vocab_size:
        logger.warning(
            "The vocabulary has %d entries, not %d: no more pairs of pieces occur %d times. Give "
            "more text or a smaller vocab_size.",
            len(vocabulary),
            settings.vocab_size,
            settings.min_frequency,
        )
    if 2 * settings.num_unused > len(vocabulary):
        logger.warning(
            "%d of the %d entries are [unused] slots, which cost memory and stand in masked texts: "
            "set num_unused to 0 or 99",
            settings.num_unused,
            len(vocabulary),
        )
    return vocabulary


def _first_pieces(
    words: Mapping[str, int], alphabet: set[str], settings: VocabularySettings
) -> list[str]:
    """Return special tokens, slots and characters, in the layout of Google's vocabularies."""
    unused = [f"[unused{number}]" for number in range(settings.num_unused)]
    special = ["[PAD]", *unused[:_FIRST_SLOTS], "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special += unused[_FIRST_SLOTS:]
    inner: set[str] = set()
    for word in words:
        inner.update(word[1:])
    characters = sorted(alphabet) + [CONTINUATION + character for character in sorted(inner)]
    size = len(special) + len(characters)
    if size > settings.vocab_size:
        raise InputError(
            f"vocab_size {settings.vocab_size} is too small: {len(special)} special and [unused] "
            f"tokens and {len(characters)} single characters need {size}; raise vocab_size or "
            f"lower limit_alphabet ({settings.limit_alphabet}) or num_unused "
            f"({settings.num_unused})"
        )
    return special + characters


def _join_by_frequency(
    words: Mapping[str, int],
    first_pieces: list[str],
    settings: VocabularySettings,
    show_progress: bool,
) -> dict[str, int]:
    """Return piece -> id: the first ones in their order, then what the library's trainer joins."""
    trainer = WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=first_pieces,  # get the first ids, in this order
        continuing_subword_prefix=CONTINUATION,
        show_progress=show_progress,
    )
    trainee = Tokenizer(WordPiece(unk_token="[UNK]"))
    trainee.pre_tokenizer = WhitespaceSplit()
    trainee.train_from_iterator(_repeated(words), trainer=trainer)
    ids = trainee.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    assert pieces[: len(first_pieces)] == first_pieces, "the library's trainer has changed"
    return {piece: ids[piece] for piece in pieces}


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Write every word as often as it was counted: the trainer takes text, not counts."""
    for word, number in words.items():
        at_once = _CHUNK_CHARACTERS // (len(word) + 1)
        for start in range(0, number, at_once):
            yield f"{word} " * min(at_once, number - start)


def _join_by_likelihood(
    words: Mapping[str, int],
    first_pieces: list[str],
    settings: VocabularySettings,
    show_progress: bool,
) -> dict[str, int]:
    """Return piece -> id: the first ones in their order, then what `merge_pieces` joins."""
    vocabulary = {piece: number for number, piece in enumerate(first_pieces)}
    num_pieces = settings.vocab_size - len(vocabulary)
    for merge in merge_pieces(
        words, num_pieces, settings.min_frequency, show_progress=show_progress
    ):
        vocabulary.setdefault(merge.joined, len(vocabulary))
    return vocabulary


# Its measurements


@dataclass(frozen=True, kw_only=True)
class TokenizerReport:
    """Measurements of a vocabulary on the words of a text.

    A *word* is what normalizing and splitting at spaces gives, punctuation marks left out; a
    *token* is a word or a punctuation mark.
    """

    num_texts: int  # documents, paragraphs or lines, as they were passed
    num_characters: int
    num_tokens: int
    num_words: int
    num_distinct_tokens: int
    # Occurrences of rare words that were dropped to bound memory; they are in no other number.
    num_forgotten_tokens: int
    vocab_size: int
    requested_vocab_size: int
    alphabet_size: int  # characters that the vocabulary holds as pieces
    # Characters that the limit left out; words with one of them become [UNK].
    dropped_alphabet_size: int
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


class Measures(NamedTuple):
    """Measures of a vocabulary, as in `TokenizerReport`; rates are 0.0 where there is no word."""

    num_words: int
    fertility: float
    unk_rate: float


def measure_vocabulary(tokenizer: OriginalBertTokenizer, tokens: Mapping[str, int]) -> Measures:
    """Measure a vocabulary on words.

    Args:
        tokens: Words and punctuation marks, as normalized by this tokenizer, with how often they
            occur.
    """
    unknown = (tokenizer.unk_token_id,)
    num_words = num_pieces = num_tokens = num_unknown = 0
    for token, count in tokens.items():
        ids = tokenizer.text_encoder.words[token]
        num_tokens += count
        if ids == unknown:
            num_unknown += count
        if not is_punctuation(token[0]):
            num_words += count
            num_pieces += count * len(ids)
    return Measures(
        num_words=num_words,
        fertility=num_pieces / max(num_words, 1),
        unk_rate=num_unknown / max(num_tokens, 1),
    )


def _mention_little_text(num_tokens: int, vocab_size: int) -> None:
    words_of_a_piece = num_tokens // vocab_size
    if words_of_a_piece < FEW_WORDS_OF_A_PIECE and vocab_size > 8000:
        logger.info(
            "%d words of text for each of %d pieces: a model learns more of each from a "
            "smaller --vocab_size, like 8000",
            words_of_a_piece,
            vocab_size,
        )


def _warn_of_unknown(
    tokenizer: OriginalBertTokenizer, tokens: Mapping[str, int], limit_alphabet: int
) -> None:
    """Warn where much of the training text itself becomes [UNK], and say why."""
    scripts: Counter[str] = Counter()
    num_too_long = 0
    for token, count in tokens.items():
        if tokenizer.text_encoder.words[token] != (tokenizer.unk_token_id,):
            continue
        scripts[name_script(token)] += count
        if len(token) > MAX_WORD_CHARACTERS:
            num_too_long += count
    description = describe_unknown(scripts, sum(tokens.values()))
    if description is None:
        return
    advice = f"they hold characters that --limit_alphabet {limit_alphabet} leaves out: raise it"
    if 2 * num_too_long > scripts.total():
        advice = (
            f"they are runs of over {MAX_WORD_CHARACTERS} characters without a space: separate "
            "the words of the text by spaces, or train another kind of vocabulary "
            f"(--algorithm {UNIGRAM})"
        )
    logger.warning("%s; %s", description, advice)
