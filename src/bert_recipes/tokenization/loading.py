"""Open a tokenizer from a folder, a vocab.txt or the Hub; write one; compare it with a model."""

import contextlib
import json
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from tokenizers import AddedToken

from bert_recipes.errors import InputError, first_line
from bert_recipes.files import atomic_dir, check_empty, check_place, read_json_object
from bert_recipes.hub_access import is_hub_name, network_errors, why_unreachable
from bert_recipes.rows import read_lines
from bert_recipes.run_folder import MODEL_CONFIG_FILE
from bert_recipes.tokenization.others import is_uncased, load_names_tokenizer, open_stock_tokenizer
from bert_recipes.tokenization.tokenizer import (
    DEFAULT_MODEL_MAX_LENGTH,
    SPECIAL_TOKENS,
    OriginalBertTokenizer,
)
from bert_recipes.tokenization.wordpiece import CONTINUATION


logger = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
ADDED_TOKENS_FILE = "added_tokens.json"
# Where tokenizer_config.json names no class, stock transformers takes it from the model's file.
_FILES = (
    TOKENIZER_FILE,
    CONFIG_FILE,
    VOCABULARY_FILE,
    ADDED_TOKENS_FILE,
    "special_tokens_map.json",
    MODEL_CONFIG_FILE,
)

REPORT_FILE = "tokenizer_report.json"
# All that is ever written: a folder that holds anything else is not a tokenizer's alone and is left
# as it is.
_OUR_FILES = {TOKENIZER_FILE, CONFIG_FILE, VOCABULARY_FILE, REPORT_FILE}

# What keeps the id of a piece that stands in a vocab.txt again.
_REPEATED = re.compile(r".*\[line \d+, again on line \d+\]", re.DOTALL)

# Of an added token: where in a text it is recognized.
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")

# Settings of stock's BertJapaneseTokenizer with which it cuts text as BERT does.
_BERT_SETTINGS = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "wordpiece"}

# Settings that name special tokens, where they are BERT's.
_BERT_TOKENS = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}

# Tokenizers with a vocabulary like BERT's that split text by other rules before WordPiece.
_OTHER_CLASSES = ("RoFormerTokenizer", "KoBertTokenizer")

# Files of SentencePiece and byte-level BPE, of which stock transformers makes a tokenizer.json.
_SENTENCEPIECE_FILES = ("spm.model", "spiece.model", "sentencepiece.bpe.model")
_BPE_FILES = ("vocab.json", "merges.txt")

# How BERT's tokenizer.json changes and splits text.
_RULES = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}

# transformers' "no limit" is a number of 31 digits.
_NO_LIMIT = 2**31

# Sizes that a vocabulary is rounded up to a multiple of.
_ROUND_NUMBERS = (1, 8, 16, 32, 64, 128)


# Open a tokenizer


def load_corpus_tokenizer(tokenizer: str | None, names: str | None) -> Any:
    """Open the tokenizer of a corpus: of text, or of ids that a file of names explains."""
    if names is not None:
        return load_names_tokenizer(names)
    assert tokenizer is not None
    return load_tokenizer(tokenizer)


def load_tokenizer(path: str | Path, do_lower_case: bool | None = None) -> Any:
    """Open a tokenizer; WordPiece cuts text as google-research/bert does.

    Its ``model_max_length`` is 512 where it does not say otherwise. BPE and Unigram are stock's own
    (`open_stock_tokenizer`).

    Args:
        path: A folder with tokenizer.json or vocab.txt (and, if there is one,
            tokenizer_config.json); or a vocab.txt, with the tokenizer_config.json beside it; or the
            name of a model on the Hub, whose files are taken from the local cache or downloaded.
        do_lower_case: Whether to lower-case. None: as the folder says. Where nothing says it, as
            with a bare vocab.txt, the vocabulary decides: cased if a piece other than ``[...]`` and
            ``<...>`` holds a capital letter, else uncased. A log line tells which.

    Example:
        >>> tokenizer = load_tokenizer("runs/quickstart/tokenizer")
        >>> tokenizer("Hello, World!")["input_ids"]
    """
    location = Path(path)
    if not location.exists():
        if not is_hub_name(str(path)):
            raise InputError(
                f"{path}: no such file or folder; give a tokenizer folder or a vocab.txt"
            )
        location = _find_hub_folder(str(path))
    folder = location.parent if location.is_file() else location
    config_file = folder / CONFIG_FILE
    # A vocabulary of another name is not that of the folder's tokenizer.
    is_of_folder = location == folder or location.name == VOCABULARY_FILE
    settings = read_json_object(config_file) if is_of_folder and config_file.exists() else {}
    if location.is_file():
        return _build(read_vocabulary(location), settings, do_lower_case, location)

    if (location / TOKENIZER_FILE).exists():
        return _load_serialized(location, settings, do_lower_case)
    vocabulary_file = location / VOCABULARY_FILE
    if not vocabulary_file.exists():
        raise InputError(
            f"{location}: neither tokenizer.json nor vocab.txt is in it; {_advice(location)}"
        )
    vocabulary = read_vocabulary(vocabulary_file)
    tokenizer = _build(vocabulary, settings, do_lower_case, vocabulary_file)
    _add_tokens(tokenizer, _old_added_tokens(location, settings), location)
    return tokenizer


def _advice(folder: Path) -> str:
    """Return what to do about a folder without tokenizer.json and vocab.txt."""
    names = {file.name for file in folder.iterdir()}
    packages = ""
    if not names.isdisjoint(_SENTENCEPIECE_FILES):
        packages = " (needs pip install sentencepiece protobuf)"
    elif not names.issuperset(_BPE_FILES):
        return "give a tokenizer's folder"
    return f"stock transformers writes tokenizer.json: {_writing_call(str(folder))}{packages}"


def _writing_call(folder: str) -> str:
    return f'AutoTokenizer.from_pretrained("{folder}").save_pretrained("{folder}")'


def find_tokenizer(name: str) -> Path | None:
    """Return the folder of a checkpoint's tokenizer files, or None if none is within reach."""
    folder = Path(name)
    if folder.is_dir():
        files = (folder / TOKENIZER_FILE, folder / VOCABULARY_FILE)
        return folder if any(file.is_file() for file in files) else None
    try:
        return _find_hub_folder(name)
    except InputError as error:
        logger.info("%s", error)
        return None


def _find_hub_folder(name: str) -> Path:
    """Return the cached folder of a model's tokenizer files, which are downloaded if need be."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    cached = {file: try_to_load_from_cache(name, file) for file in _FILES}
    cached_folder = None
    for file in (TOKENIZER_FILE, VOCABULARY_FILE):
        path = cached[file]
        if isinstance(path, str):
            cached_folder = Path(path).parent
    # None: the cache does not know whether the model has the file, as where another program took
    # only one.
    is_complete = None not in cached.values()
    if cached_folder is not None and (is_complete or why_unreachable() is not None):
        return cached_folder
    absence = f"{name}: no such file or folder, and no model of that name in the local Hub cache"
    reason = why_unreachable()
    if reason is not None:
        raise InputError(f"{absence}; {reason}, so give a local folder or vocab.txt")
    folder = None
    try:
        for file in _FILES:
            with contextlib.suppress(RemoteEntryNotFoundError):
                folder = Path(hf_hub_download(name, file)).parent
    except network_errors() as error:
        if cached_folder is not None:
            return cached_folder
        if getattr(error, "errno", None) is not None:  # of this machine: a full disk
            raise
        response = getattr(error, "response", None)
        answer = getattr(response, "status_code", None) or first_line(error)
        raise InputError(
            f"{absence}; {constants.ENDPOINT} answers {answer}: check the name, or give a local "
            "folder"
        ) from None
    files = (TOKENIZER_FILE, VOCABULARY_FILE)
    if folder is None or not any((folder / file).exists() for file in files):
        raise InputError(
            f"{name}: this model on the Hub has neither tokenizer.json nor vocab.txt; download it "
            f"(hf download {name} --local-dir FOLDER), and stock transformers writes "
            f"tokenizer.json: {_writing_call('FOLDER')}"
        )
    return folder


def _build(
    vocabulary: dict[str, int], settings: dict[str, Any], do_lower_case: bool | None, path: Path
) -> OriginalBertTokenizer:
    _check_rules(settings, path)
    length = settings.get("model_max_length")
    if not isinstance(length, int) or length >= _NO_LIMIT:
        length = DEFAULT_MODEL_MAX_LENGTH
    names = settings.get("model_input_names") or OriginalBertTokenizer.model_input_names
    return OriginalBertTokenizer(
        vocab=vocabulary,
        model_input_names=names,
        do_lower_case=_settle_case(vocabulary, settings, do_lower_case, path),
        strip_accents=settings.get("strip_accents"),
        tokenize_chinese_chars=settings.get("tokenize_chinese_chars", True),
        model_max_length=length,
    )


def _check_rules(settings: Mapping[str, Any], path: Path) -> None:
    """Refuse a vocabulary whose text is cut by other rules than BERT's: its ids would be wrong."""
    others = []
    for name, value in _BERT_SETTINGS.items():
        if settings.get(name) not in (None, value):
            others.append(f"{name} {settings[name]!r}")
    class_name = str(settings.get("tokenizer_class")).removesuffix("Fast")
    if class_name in _OTHER_CLASSES:
        others.append(f"tokenizer_class {class_name!r}")
    for name, token in _BERT_TOKENS.items():
        content = settings.get(name)
        if isinstance(content, dict):
            content = content.get("content")
        if content not in (None, token):  # MPNet has BERT's pieces, and tokens of its own
            raise InputError(
                f"{path.with_name(CONFIG_FILE)}: {name} is {content!r}; allowed with WordPiece: "
                f"{token!r}, as in BERT"
            )
    if others:
        raise InputError(
            f"{path.with_name(CONFIG_FILE)}: {others[0]} splits text by other rules than BERT's, "
            "the only ones for WordPiece here; give a checkpoint with BERT's rules, or one with "
            "BPE or Unigram in a tokenizer.json"
        )


def _settle_case(
    vocabulary: Mapping[str, int], settings: dict[str, Any], do_lower_case: bool | None, path: Path
) -> bool:
    """Return whether to lower-case: as asked for, as stored, or as the pieces look."""
    stored = settings.get("do_lower_case")
    if stored not in (None, True, False):
        raise InputError(f"{path.parent}: do_lower_case is {stored!r}; allowed: true, false")
    if do_lower_case is not None:
        if stored not in (None, do_lower_case):
            logger.warning(
                "%s is stored with do_lower_case=%s, but do_lower_case=%s was asked for and is "
                "used. If that is not meant, leave it out.",
                path.parent,
                stored,
                do_lower_case,
            )
        return do_lower_case
    if stored is not None:
        return bool(stored)
    # [CLS], and <S> of google-research/bert's Chinese vocabulary.
    words = [piece for piece in vocabulary if not piece.startswith(("[", "<"))]
    cased = [piece for piece in words if piece != piece.lower()]
    reason = f"it holds the piece {cased[0]!r}" if cased else "no piece holds a capital letter"
    do_lower_case = not cased
    logger.info(
        "%s does not say whether to lower-case; do_lower_case=%s, for %s. Pass do_lower_case to "
        "decide yourself.",
        path,
        do_lower_case,
        reason,
    )
    return do_lower_case


# A bare vocabulary


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a vocab.txt, one piece per line: piece to id, in the order of the ids.

    As in the original, whitespace around a piece is not part of it, a blank line is an entry that
    matches nothing, and of a piece that appears twice the last line counts; the line before
    keeps its id under a name that no text holds. Unlike there, blank lines at the end are left out.

    Source: google-research/bert tokenization.py `load_vocab`.
    """
    pieces = [line.strip() for line in read_lines(path)]
    while pieces and not pieces[-1]:
        pieces.pop()
    last_lines = {piece: line for line, piece in enumerate(pieces, start=1)}
    vocabulary: dict[str, int] = {}
    repeated = []
    for line, piece in enumerate(pieces, start=1):
        last = last_lines[piece]
        if line != last:
            repeated.append(f"{piece!r} stands on line {line} and on line {last}")
            # No word of a text holds a space.
            piece = f"{piece} [line {line}, again on line {last}]".strip()
        vocabulary[piece] = line - 1
    if repeated:
        logger.warning(
            "%s: %s; the last line counts, as in the original (pieces that are there again: %d)",
            path,
            repeated[0],
            len(repeated),
        )
    _check_special_tokens(vocabulary, path)
    return vocabulary


def _check_special_tokens(vocabulary: Mapping[str, int], path: Path) -> None:
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise InputError(
            f"{path}: no {', '.join(missing)} among its {len(vocabulary)} pieces; a BERT "
            f"vocabulary holds {', '.join(SPECIAL_TOKENS)}, one piece a line"
        )


# A tokenizer.json


def _load_serialized(folder: Path, settings: dict[str, Any], do_lower_case: bool | None) -> Any:
    path = folder / TOKENIZER_FILE
    serialized = read_json_object(path)
    model = serialized.get("model") or {}
    model_type = _type_of_model(model)
    if model_type in ("BPE", "Unigram"):
        tokenizer = open_stock_tokenizer(folder)
        is_lower = is_uncased(tokenizer)
        if do_lower_case not in (None, is_lower):
            logger.warning(
                "%s: do_lower_case=%s has no effect: a %s tokenizer has its own rules, which are "
                "%s",
                path,
                do_lower_case,
                model_type,
                "uncased" if is_lower else "cased",
            )
        return tokenizer
    if model_type != "WordPiece" or model.get("continuing_subword_prefix") != CONTINUATION:
        raise InputError(
            f"{path}: holds no BPE, Unigram, or WordPiece model with the prefix ##, but "
            f"{model_type or 'no model'}"
        )
    vocabulary = _serialized_vocabulary(model.get("vocab"), path)
    normalizer = serialized.get("normalizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        stored = {
            "do_lower_case": normalizer.get("lowercase"),
            "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
            "strip_accents": normalizer.get("strip_accents"),
        }
        settings = {**stored, **settings}
    _warn_of_other_rules(serialized, path)
    tokenizer = _build(vocabulary, settings, do_lower_case, path)
    _add_tokens(tokenizer, serialized.get("added_tokens", []), path)
    return tokenizer


def _type_of_model(model: Mapping[str, Any]) -> str | None:
    """Return the type of the model in a tokenizer.json.

    Old files do not name it, among them those of the released RoBERTa and XLM-RoBERTa: it follows
    from their fields.
    """
    if "type" in model:
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if model else None


def _warn_of_other_rules(serialized: Mapping[str, Any], path: Path) -> None:
    """Warn where a tokenizer.json has rules for text that are not BERT's, and are not used."""
    other_rules = []
    for part, type_of_bert in _RULES.items():
        rule = (serialized.get(part) or {}).get("type", "none")
        if rule != type_of_bert:
            other_rules.append(f"{part} {rule}, not {type_of_bert}")
    if other_rules:
        logger.warning(
            "%s: its rules for text are not BERT's (%s); text is normalized and split by BERT's, "
            "so ids may be other ones than those of stock transformers",
            path,
            "; ".join(other_rules),
        )


def _serialized_vocabulary(ids: Any, path: Path) -> dict[str, int]:
    """Return the vocabulary of a tokenizer.json, in the order of the ids.

    A vocab.txt beside it must hold the same one.
    """
    if not isinstance(ids, dict) or not all(isinstance(number, int) for number in ids.values()):
        raise InputError(
            f"{path}: its model has no vocabulary of pieces and numbers; fetch or write the file "
            "again"
        )
    vocabulary = {piece: ids[piece] for piece in sorted(ids, key=ids.__getitem__)}
    _check_special_tokens(vocabulary, path)
    vocabulary_file = path.with_name(VOCABULARY_FILE)
    if not vocabulary_file.exists():
        return vocabulary
    lines = read_vocabulary(vocabulary_file)
    if _without_repeated(lines) != _without_repeated(vocabulary):
        raise InputError(
            f"{path.parent}: vocab.txt and tokenizer.json hold different vocabularies; delete the "
            "wrong one"
        )
    return lines


def _without_repeated(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Return a vocabulary without what stands for repeated pieces.

    White space is left out as well: vocab.txt cannot hold it.
    """
    pieces = [piece for piece in vocabulary if not _REPEATED.fullmatch(piece)]
    return {piece.strip(): vocabulary[piece] for piece in pieces}


# Added tokens


def _old_added_tokens(folder: Path, settings: dict[str, Any]) -> list[Any]:
    """Return the added tokens of a folder without a tokenizer.json.

    They are in its settings, or in older versions in a file of their own.
    """
    tokens = []
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for number, token in decoder.items():
            if isinstance(token, dict):
                tokens.append({**token, "id": number})
        return tokens

    file = folder / ADDED_TOKENS_FILE
    if not file.exists():
        return []
    special = []
    for token in settings.get("additional_special_tokens") or []:
        special.append(token.get("content") if isinstance(token, dict) else token)
    for content, number in read_json_object(file).items():
        is_special = content in special
        tokens.append(
            {"id": number, "content": content, "special": is_special, "normalized": not is_special}
        )
    return tokens


def _add_tokens(tokenizer: OriginalBertTokenizer, tokens: list[Any], path: Path) -> None:
    """Add the tokens that somebody added to the vocabulary, in the order of their ids.

    A special one that the vocabulary holds is left out: texts are cut as if it were not there.
    """
    vocabulary = tokenizer.get_vocab()
    special = []
    try:
        for token in sorted(tokens, key=lambda token: int(token["id"])):
            content = token["content"]
            if content in SPECIAL_TOKENS:
                continue
            if token["special"]:
                special.append(content)
                if content in vocabulary:
                    continue
            flags = {name: token[name] for name in _FLAGS if name in token}
            added = AddedToken(content, **flags)
            tokenizer.add_tokens(added, special_tokens=bool(token["special"]))
            if tokenizer.convert_tokens_to_ids(content) != int(token["id"]):
                raise ValueError(
                    f"{content!r} has the id {token['id']}, which does not follow on the vocabulary"
                )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: its added tokens are damaged ({error!r}); fetch or write the file again"
        ) from None
    if special:
        logger.warning(
            "%s: special tokens that were added (%s) are read as text, as [SEP] is; stock "
            'transformers reads each as one token; with "special": false in the file it is one '
            "here too",
            path,
            ", ".join(special),
        )


# A tokenizer and a model


def check_vocabulary(name: str, vocab_size: int, tokenizer: OriginalBertTokenizer) -> None:
    """Refuse a tokenizer with more pieces than a model has rows: its ids would be no row's.

    More rows than pieces are kept, as the model's config.json has them. That is said, unless they
    round the vocabulary up to a multiple of 8, 16, ..., 128.

    Args:
        name: The model's, for the message.
        vocab_size: Rows of its token embedding.
    """
    size = len(tokenizer)
    if size > vocab_size:
        raise InputError(
            f"{name} has a vocabulary of {vocab_size:,}, the tokenizer {size:,} pieces: they do "
            "not belong together; give the model's own tokenizer"
        )
    usual_sizes = [math.ceil(size / multiple) * multiple for multiple in _ROUND_NUMBERS]
    if vocab_size not in usual_sizes:
        logger.warning(
            "%s has a vocabulary of %s, the tokenizer %s pieces: the other rows are kept, and no "
            "text has them; if that is not meant, give the model's own tokenizer",
            name,
            f"{vocab_size:,}",
            f"{size:,}",
        )


# A tokenizer's folder


def check_tokenizer_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, an output folder whose contents would be lost.

    A tokenizer alone may be overwritten.
    """
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    is_tokenizer = bool(names) and names <= _OUR_FILES
    if not is_tokenizer:
        check_empty(folder)
    elif not overwrite:
        raise InputError(
            f"output_dir: {folder} holds a tokenizer; give another folder, or --overwrite to "
            "replace it"
        )
    check_place(folder)


def write_tokenizer_folder(
    folder: Path, tokenizer: OriginalBertTokenizer, report: Mapping[str, Any]
) -> None:
    """Write tokenizer and tokenizer_report.json to a folder; it appears complete.

    The folder has passed `check_tokenizer_folder`.
    """
    with atomic_dir(folder, replace=True) as staged:
        tokenizer.save_pretrained(staged)
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        (staged / REPORT_FILE).write_text(text, encoding="utf-8", newline="\n")
