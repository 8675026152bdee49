"""Tokenizers that are not WordPiece: byte-level BPE, Unigram, and what stock transformers opens."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer, UnigramTrainer

from bert_recipes.errors import InputError
from bert_recipes.rows import read_lines
from bert_recipes.tokenization.normalization import decompose, replace_surrogates, warn_of_marks
from bert_recipes.tokenization.tokenizer import (
    DEFAULT_MODEL_MAX_LENGTH,
    SPECIAL_TOKENS,
    OriginalBertTokenizer,
)
from bert_recipes.tokenization.wordpiece import CONTINUATION, PairLayout


logger = logging.getLogger(__name__)

# The first ids of RoBERTa's dictionary, in their order; <mask> is the last one. Source: fairseq
# data/dictionary.py.
FIRST_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
# google-research/albert: the control symbols of its SentencePiece models.
ALBERT_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
# 256 bytes, four special tokens and <mask>.
SMALLEST = 256 + len(FIRST_TOKENS) + 1
# Our choice: the different words of this much text take some 300 MB at most.
MEASURED_CHARACTERS = 100_000_000


@dataclass(frozen=True)
class LibraryEncoder:
    """Return ids of texts by a tokenizer.json, for bulk work; can be sent to another process.

    The file has neither truncation nor padding.
    """

    serialized: str
    prefix: str = ""  # of every text: a space before words that stand alone

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self.serialized)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def __reduce__(self) -> tuple:
        return type(self), (self.serialized, self.prefix)

    def _encode(self, text: str) -> Encoding:
        text = self.prefix + replace_surrogates(text)
        return self._tokenizer.encode(text, add_special_tokens=False)

    def __call__(self, text: str) -> list[int]:
        """Return the ids of any string, without special tokens, not truncated.

        Nothing in it is taken for a special token.
        """
        return self._encode(text).ids

    def normalize(self, text: str) -> str:
        """Return a text as it is before it is cut into words."""
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids, and the span (start, end) of characters that each was made of.

        A space before them may be among them.
        """
        encoding = self._encode(text)
        return encoding.ids, encoding.offsets


def with_bulk_encoding(tokenizer: Any) -> Any:
    """Give a stock tokenizer what `OriginalBertTokenizer` has.

    These are `text_encoder`, `following_encoder`, `encode_ids`, `encode_word`, `layout`,
    `fingerprint`, `extra_tokens` and `normalize`.
    """
    backend = tokenizer.backend_tokenizer
    # A folder has those of the last call before it was saved.
    backend.no_truncation()
    backend.no_padding()
    serialized = backend.to_str()
    tokenizer.text_encoder = tokenizer.encode_ids = LibraryEncoder(serialized)
    tokenizer.fingerprint = hashlib.sha256(serialized.encode()).hexdigest()
    tokenizer.extra_tokens = {}
    tokenizer.normalize = tokenizer.text_encoder.normalize
    # Byte-level pieces hold the space before a word, which a word of a list has lost, and so has a
    # sentence that follows another one.
    has_spaces = any(piece.startswith("\u0120") for piece in tokenizer.get_vocab())
    adds_space = getattr(backend.pre_tokenizer, "add_prefix_space", False)
    prefix = " " if has_spaces and not adds_space else ""
    tokenizer.following_encoder = tokenizer.encode_word = LibraryEncoder(serialized, prefix)
    tokenizer.layout = _pair_layout(tokenizer)
    return tokenizer


def _pair_layout(tokenizer: Any) -> PairLayout:
    """Return what a stock tokenizer puts around two texts."""
    # Every tokenizer has an id for its mask token, but perhaps none for a letter.
    text = tokenizer.mask_token
    # A stock tokenizer may keep the segments to itself (transformers#48128).
    pair = tokenizer(text, text, return_token_type_ids=True)
    ids = pair["input_ids"]
    sequences = pair.sequence_ids(0)
    first = sequences.index(0)
    second = sequences.index(1)
    end_of_first = first + sequences.count(0)
    end_of_second = second + sequences.count(1)
    return PairLayout(
        prefix=tuple(ids[:first]),
        middle=tuple(ids[end_of_first:second]),
        suffix=tuple(ids[end_of_second:]),
        second_segment=pair["token_type_ids"][second],
    )


def is_uncased(tokenizer: Any) -> bool:
    """Tell whether a stock tokenizer lower-cases; one that has no letter A is taken for cased."""
    ids = tokenizer.encode_ids("A")
    return ids == tokenizer.encode_ids("a") and tokenizer.unk_token_id not in ids


def open_stock_tokenizer(folder: Path) -> Any:
    """Open a folder with a tokenizer.json of any kind, as stock transformers does.

    It must have what masked-LM training needs.
    """
    from transformers import AutoTokenizer  # takes a second, and WordPiece needs none

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # The tokenizers library raises no class of its own.
    except Exception as error:
        raise InputError(
            f"{folder}: stock transformers opens no tokenizer there ({error})"
        ) from error
    for name in ("cls", "sep", "pad", "mask", "unk"):
        if getattr(tokenizer, f"{name}_token_id") is None:
            raise InputError(f"{folder}: its tokenizer has no {name}_token, which an encoder needs")
    with_bulk_encoding(tokenizer)
    if tokenizer.cls_token_id not in tokenizer.layout.prefix or not tokenizer.layout.suffix:
        # Pre-training adds both to every input, fine-tuning what the tokenizer adds.
        cls, sep = tokenizer.cls_token, tokenizer.sep_token
        raise InputError(
            f"{folder}: its tokenizer puts no {cls} before two texts, or no {sep} behind them; "
            "give its tokenizer.json a TemplateProcessing (tokenizers.processors) with `single` "
            "and `pair`"
        )
    return tokenizer


class _CountedTexts:
    """Yield texts to a trainer, and count them on their way."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self._counts: Counter[str] = Counter()  # texts, characters, words
        self._words: Counter[str] = Counter()  # of the first texts

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            words = text.split()
            if self._counts["characters"] < MEASURED_CHARACTERS:
                self._words.update(words)
            self._counts.update(texts=1, characters=len(text), words=len(words))
            yield replace_surrogates(text)

    def train(self, trainee: Tokenizer, trainer: Any) -> dict[str, Any]:
        """Train, and return what the library's model holds."""
        trainee.train_from_iterator(iter(self), trainer=trainer)
        if not self._counts["words"]:
            raise InputError(
                f"no word in the {self._counts['texts']} texts to train on; a vocabulary needs text"
            )
        return json.loads(trainee.to_str())["model"]

    def measure(self, tokenizer: Any) -> dict[str, float]:
        """Return the numbers of texts, characters, words (between spaces), pieces per word.

        The last is of the first `MEASURED_CHARACTERS` alone.
        """
        num_pieces = 0
        for word, count in self._words.items():
            num_pieces += count * len(tokenizer.encode_ids(word))
        return {**self._counts, "pieces_per_word": num_pieces / self._words.total()}


def train_byte_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int = 50265,
    min_frequency: int = 2,
    show_progress: bool = True,
) -> tuple[Any, dict[str, float]]:
    """Train byte-level BPE with RoBERTa's ids: <s>, <pad>, </s>, <unk>, 256 bytes, merges, <mask>.

    The same texts give the same vocabulary. Nothing is normalized, every text has its ids, and case
    is kept. Words that are given one by one get the space before them that they have in a text.

    Returns:
        A stock `RobertaTokenizer`, and measurements: texts, characters, words (between spaces),
            pieces per word.

    Source: Liu et al. 2019, section 4.4; fairseq data/dictionary.py; GPT-2's pre-tokenization.
    """
    if vocab_size < SMALLEST:
        raise InputError(
            f"vocab_size: {vocab_size} was given, byte-level BPE needs {SMALLEST} at least"
        )
    counted_texts = _CountedTexts(texts)
    trainee = Tokenizer(BPE())
    trainee.pre_tokenizer = ByteLevel(add_prefix_space=True)
    trainer = BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=min_frequency,
        initial_alphabet=ByteLevel.alphabet(),
        special_tokens=list(FIRST_TOKENS),
        show_progress=show_progress,
    )
    learned = counted_texts.train(trainee, trainer)
    vocabulary = learned["vocab"]
    vocabulary[MASK] = len(vocabulary)
    if len(vocabulary) < vocab_size:
        logger.warning(
            "The vocabulary has %d entries, not %d: no more pairs of pieces occur %d times. Give "
            "more text or a smaller vocab_size.",
            len(vocabulary),
            vocab_size,
            min_frequency,
        )
    from transformers import RobertaTokenizer

    tokenizer = with_bulk_encoding(
        RobertaTokenizer(
            vocab=vocabulary,
            merges=[tuple(merge) for merge in learned["merges"]],
            add_prefix_space=True,
            trim_offsets=True,
            mask_token=AddedToken(MASK, lstrip=True, special=True),
            model_max_length=DEFAULT_MODEL_MAX_LENGTH,
        )
    )
    return tokenizer, counted_texts.measure(tokenizer)


def train_unigram(
    texts: Iterable[str],
    *,
    vocab_size: int = 30000,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    show_progress: bool = True,
) -> tuple[Any, dict[str, float]]:
    """Train Unigram, SentencePiece's model, with ALBERT's ids and normalization.

    By default the vocabulary is uncased and without accents; `strip_accents` None is as
    `lowercase`. Stock's `AlbertTokenizer` also makes one character of the quotes `` and '', which
    google-research/albert leaves. The `tokenizers` library trains the vocabulary. Ids follow the
    pieces' letters, not their scores: the library adds those up in changing order, and their last
    digits differ from run to run.

    Returns:
        A stock `AlbertTokenizer`, and measurements as `train_byte_bpe` has them.

    Source: Lan et al. 2020, section 4.1; google-research/albert README, spm_train.
    """
    from transformers import AlbertTokenizer

    if strip_accents is None:
        strip_accents = lowercase
    case: Any = {"do_lower_case": lowercase, "keep_accents": not strip_accents}
    special = [(token, 0.0) for token in ALBERT_TOKENS]
    rules = AlbertTokenizer(vocab=[*special, ("\u2581", -1.0)], **case).backend_tokenizer
    characters: Counter[str] = Counter()
    counted_texts = _CountedTexts(_with_room_for(texts, characters, rules.normalizer, vocab_size))
    trainee = Tokenizer(Unigram())
    trainee.normalizer = rules.normalizer
    trainee.pre_tokenizer = rules.pre_tokenizer
    trainer = UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(ALBERT_TOKENS),
        unk_token="<unk>",
        show_progress=show_progress,
    )
    scores = counted_texts.train(trainee, trainer)["vocab"]
    if strip_accents:
        warn_of_marks(decompose(characters), "M", characters.total())
    learned = sorted((piece, score) for piece, score in scores if piece not in ALBERT_TOKENS)
    tokenizer = with_bulk_encoding(
        AlbertTokenizer(vocab=special + learned, model_max_length=DEFAULT_MODEL_MAX_LENGTH, **case)
    )
    if len(tokenizer) < vocab_size:
        logger.warning(
            "The vocabulary has %d entries, not %d: the text gives no more.",
            len(tokenizer),
            vocab_size,
        )
    return tokenizer, counted_texts.measure(tokenizer)


def _with_room_for(
    texts: Iterable[str], characters: Counter[str], normalizer: Any, vocab_size: int
) -> Iterator[str]:
    """Yield texts, and refuse at their end a vocabulary without room for their characters.

    These are counted.
    """
    for text in texts:
        characters.update(text)
        yield text
    normalized = normalizer.normalize_str(replace_surrogates(" ".join(characters)))
    num_characters = len(set("".join(normalized.split())))
    smallest = num_characters + len(ALBERT_TOKENS) + 1  # the mark of a word's beginning
    if vocab_size < smallest:
        raise InputError(
            f"vocab_size: {vocab_size} was given, the text has {num_characters} characters, for "
            f"which Unigram needs {smallest} at least"
        )


# Names, whose texts are numbers


@dataclass(frozen=True)
class IdEncoder:
    """Return ids of names for numbers in a text, separated by spaces.

    The names' ids begin after the special tokens.
    """

    num_names: int
    first: int

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a string of numbers.

        Another word and a number without a name are an InputError.
        """
        try:
            numbers = [int(word) for word in text.split()]
        except ValueError as error:
            raise InputError(
                f"ids {text[:60]!r}: {error}; ids are whole numbers, separated by spaces"
            ) from None
        for number in numbers:
            if not 0 <= number < self.num_names:
                raise InputError(
                    f"ids {text[:60]!r}: {number} has no name; allowed: 0 to {self.num_names - 1:,}"
                )
        return [number + self.first for number in numbers]


class NamesTokenizer(OriginalBertTokenizer):
    """A vocabulary of names whose texts are numbers.

    A saved folder shows the names, and cuts texts as any WordPiece.
    """

    @property
    def text_encoder(self) -> Any:
        """Return the encoder of numbers."""
        return IdEncoder(len(self) - len(SPECIAL_TOKENS), len(SPECIAL_TOKENS))


def load_names_tokenizer(path: str | Path) -> OriginalBertTokenizer:
    """Read a vocabulary of names, one a line, for ids that are not text.

    Line n, from 0, names id n.
    """
    vocabulary = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    for number, line in enumerate(read_lines(Path(path)), start=1):
        name = line.strip()
        is_word = len(name.split()) == 1 and not name.startswith(CONTINUATION)
        if not is_word or name in SPECIAL_TOKENS:
            raise InputError(
                f"{path}, line {number}: {name!r} is not a name; a name has no spaces, does not "
                f"begin with {CONTINUATION}, and is none of {', '.join(SPECIAL_TOKENS)}"
            )
        if name in vocabulary:
            raise InputError(f"{path}: the name {name!r} appears twice")
        vocabulary[name] = len(vocabulary)
    return NamesTokenizer(vocab=vocabulary, do_lower_case=False, tokenize_chinese_chars=False)
