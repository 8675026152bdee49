"""Open a tokenizer from a folder, a vocab.txt or the Hub; write one; tell whether it belongs to a
model.
"""

import contextlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from tokenizers import AddedToken

from bert_recipes.errors import InputError
from bert_recipes.files import atomic_dir, read_json_object
from bert_recipes.hub_access import is_hub_name, why_unreachable
from bert_recipes.rows import read_lines
from bert_recipes.tokenization.others import open_stock_tokenizer
from bert_recipes.tokenization.tokenizer import (
    DEFAULT_MODEL_MAX_LENGTH,
    SPECIAL_TOKENS,
    OriginalBertTokenizer,
)


_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "added_tokens.json")

# What keeps the id of a piece that stands in a vocab.txt again.
_REPEATED = re.compile(r".*\[line \d+, again on line \d+\]", re.DOTALL)

logger = logging.getLogger(__name__)

_FLAGS = (
    "single_word",
    "lstrip",
    "rstrip",
    "normalized",
)  # of an added token: where in a text it is recognised


def load_tokenizer(path: str | Path, do_lower_case: bool | None = None) -> Any:
    """Open a tokenizer; WordPiece cuts text as google-research/bert does, and its
    ``model_max_length`` is 512 where it does not say otherwise.

    BPE and Unigram are stock's own (`open_stock_tokenizer`).

    Args:
        path: A folder with tokenizer.json or vocab.txt (and, if there is one,
            tokenizer_config.json); or a vocab.txt; or the name of a model on the Hub, whose files
            are taken from the local cache or downloaded.
        do_lower_case: Whether to lower-case. None: as the folder says. Where nothing says it, as
            with a bare vocab.txt,
            the vocabulary decides: cased if a piece other than the ``[...]`` ones holds a capital
                letter, else uncased.
            A log line tells which.

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
    if location.is_dir():
        return _load_folder(location, do_lower_case)
    return _build(read_vocabulary(location), {}, do_lower_case, location)


def _find_hub_folder(name: str) -> Path:
    """Find the cached folder with the tokenizer files of a model, downloading them if they are not
    in the cache.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

    for file in ("tokenizer.json", "vocab.txt"):
        cached = try_to_load_from_cache(name, file)
        if isinstance(cached, str):
            return Path(cached).parent
    wanted = f"{name}: no such file or folder, and no model of that name in the local Hub cache"
    reason = why_unreachable()
    if reason:
        raise InputError(f"{wanted}; {reason}, so give a local folder or vocab.txt")
    folder = None
    try:
        for file in _FILES:
            with contextlib.suppress(RemoteEntryNotFoundError):
                folder = Path(hf_hub_download(name, file)).parent
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise InputError(
            f"{wanted}; {constants.ENDPOINT} answers {status}: check the name, or give a local "
            "folder"
        ) from None
    if folder is None:
        raise InputError(
            f"{name}: this model on the Hub has no {', '.join(_FILES)}; BERT needs WordPiece"
        )
    return folder


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a vocab.txt, one piece per line: piece to id, in the order of the ids.

    As in the original, whitespace around a piece is no part of it, a blank line is an entry that
    matches nothing, and of a piece that stands there twice the last line counts; the line before
    keeps its id under a name that no text holds. Unlike there, blank lines at the end are left out.

    Source: google-research/bert tokenization.py `load_vocab`.
    """
    pieces = [line.strip() for line in read_lines(path)]
    while pieces and not pieces[-1]:
        pieces.pop()
    vocabulary: dict[str, int] = {}
    last_index = {piece: index for index, piece in enumerate(pieces)}
    repeated = 0
    for index, piece in enumerate(pieces):
        last = last_index[piece]
        if index == last:
            vocabulary[piece] = index
            continue
        # No word of a text holds a space.
        vocabulary[f"{piece} [line {index + 1}, again on line {last + 1}]".strip()] = index
        repeated += 1
        if repeated == 1:
            first = f"{piece!r} stands on line {index + 1} and on line {last + 1}"
    if repeated:
        message = (
            "%s: %s; the last line counts, as in the original (pieces that are there again: %d)"
        )
        logger.warning(message, path, first, repeated)
    _check_special_tokens(vocabulary, path)
    return vocabulary


def _check_special_tokens(vocabulary: Mapping[str, int], path: Path) -> None:
    if missing := [token for token in SPECIAL_TOKENS if token not in vocabulary]:
        raise InputError(
            f"{path}: no {', '.join(missing)} among its {len(vocabulary)} pieces; a BERT "
            f"vocabulary holds {', '.join(SPECIAL_TOKENS)}, one piece a line"
        )


def _load_folder(folder: Path, do_lower_case: bool | None) -> Any:
    tokenizer_file, config_file, vocabulary_file = (folder / name for name in _FILES[:3])
    vocabulary = read_vocabulary(vocabulary_file) if vocabulary_file.exists() else None
    settings = read_json_object(config_file) if config_file.exists() else {}
    if not tokenizer_file.exists():
        if vocabulary is None:
            raise InputError(
                f"{folder}: neither tokenizer.json nor vocab.txt is in it; give a tokenizer's "
                "folder"
            )
        tokenizer = _build(vocabulary, settings, do_lower_case, vocabulary_file)
        return _add_tokens(tokenizer, _old_added_tokens(folder, settings), folder)
    serialized = read_json_object(tokenizer_file)
    model = serialized.get("model") or {}
    # Files of old versions of the library do not name the model's type, but only WordPiece has this
    # prefix.
    if model.get("type", "WordPiece") in ("BPE", "Unigram"):
        return open_stock_tokenizer(folder)
    if (
        model.get("type", "WordPiece") != "WordPiece"
        or model.get("continuing_subword_prefix") != "##"
    ):
        raise InputError(
            f"{tokenizer_file}: holds no BPE, Unigram, or WordPiece model with the prefix ##, but "
            f"{model.get('type', 'no model')}"
        )
    pieces = model.get("vocab")
    if not isinstance(pieces, dict) or not all(
        isinstance(number, int) for number in pieces.values()
    ):
        raise InputError(
            f"{tokenizer_file}: its model has no vocabulary of pieces and numbers; fetch or write "
            "the file again"
        )
    own_vocabulary = dict(sorted(pieces.items(), key=lambda item: item[1]))
    _check_special_tokens(own_vocabulary, tokenizer_file)
    if vocabulary is not None and _without_repeated(vocabulary) == _without_repeated(
        own_vocabulary
    ):
        own_vocabulary = vocabulary
    elif vocabulary is not None:
        raise InputError(
            f"{folder}: vocab.txt and tokenizer.json hold different vocabularies; delete the "
            "wrong one"
        )
    normalizer = serialized.get("normalizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        names = {"lowercase": "do_lower_case", "handle_chinese_chars": "tokenize_chinese_chars"}
        settings = {
            names.get(name, name): value for name, value in normalizer.items() if name != "type"
        } | settings
    tokenizer = _build(own_vocabulary, settings, do_lower_case, tokenizer_file)
    return _add_tokens(tokenizer, serialized.get("added_tokens", []), tokenizer_file)


def _without_repeated(vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Return a vocabulary without what stands for repeated pieces, and without white space, which
    vocab.txt cannot hold.
    """
    return {
        piece.strip(): number
        for piece, number in vocabulary.items()
        if not _REPEATED.fullmatch(piece)
    }


def _old_added_tokens(folder: Path, settings: dict[str, Any]) -> list[Any]:
    """The added tokens of a folder without a tokenizer.json: in its settings, or in older versions
    in a file of their own.
    """
    decoder, file = settings.get("added_tokens_decoder"), folder / "added_tokens.json"
    if isinstance(decoder, dict):
        return [
            {**token, "id": token_id}
            for token_id, token in decoder.items()
            if isinstance(token, dict)
        ]
    extra = settings.get("additional_special_tokens") or []
    special = [each.get("content") if isinstance(each, dict) else each for each in extra]
    return [
        {
            "id": token_id,
            "content": content,
            "special": content in special,
            "normalized": content not in special,
        }
        for content, token_id in (read_json_object(file) if file.exists() else {}).items()
    ]


def _add_tokens(
    tokenizer: OriginalBertTokenizer, tokens: list[Any], path: Path
) -> OriginalBertTokenizer:
    """Add the tokens that somebody added to the vocabulary, in the order of their ids.

    A special one that the vocabulary holds is left out: texts are cut as if it were not there.
    """
    known, special = tokenizer.get_vocab(), []
    try:
        for token in sorted(tokens, key=lambda token: int(token["id"])):
            content, is_special = token["content"], bool(token["special"])
            if content in SPECIAL_TOKENS:
                continue
            special += [content] if is_special else []
            if not (is_special and content in known):
                flags = {name: token[name] for name in _FLAGS if name in token}
                tokenizer.add_tokens(AddedToken(content, **flags), special_tokens=is_special)
                if tokenizer.convert_tokens_to_ids(content) != int(token["id"]):
                    raise ValueError(
                        f"{content!r} has the id {token['id']}, which does not follow on the "
                        "vocabulary"
                    )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: its added tokens are damaged ({error!r}); fetch or write the file again"
        ) from None
    if special:
        logger.warning(
            "%s: its added special tokens (%s) are text where a text holds them, as [SEP] is, and "
            "no single tokens as in stock "
            'transformers; with "special": false in the file they are',
            path,
            ", ".join(special),
        )
    return tokenizer


def _build(
    vocabulary: dict[str, int], settings: dict[str, Any], do_lower_case: bool | None, path: Path
) -> OriginalBertTokenizer:
    stated = settings.get("do_lower_case")
    if isinstance(stated, str):
        if stated.lower() not in ("true", "false"):
            raise InputError(f"{path.parent}: do_lower_case is {stated!r}; allowed: true, false")
        stated = stated.lower() == "true"
    if do_lower_case is None and stated is None:
        capital = next(
            (piece for piece in vocabulary if piece != piece.lower() and not piece.startswith("[")),
            None,
        )
        do_lower_case = capital is None
        logger.info(
            "%s does not say whether to lower-case; do_lower_case=%s, for %s. Pass do_lower_case "
            "to decide yourself.",
            path,
            do_lower_case,
            "no piece holds a capital letter"
            if capital is None
            else f"it holds the piece {capital!r}",
        )
    elif do_lower_case is None:
        do_lower_case = stated
    elif stated not in (None, do_lower_case):
        logger.warning(
            "%s is stored with do_lower_case=%s, but do_lower_case=%s was asked for and is used. "
            "If that is not meant, leave it out.",
            path.parent,
            stated,
            do_lower_case,
        )
    # Folders that state none get transformers' "no limit", a number of 31 digits.
    length = settings.get("model_max_length")
    return OriginalBertTokenizer(
        vocab=vocabulary,
        do_lower_case=bool(do_lower_case),
        strip_accents=settings.get("strip_accents"),
        tokenize_chinese_chars=settings.get("tokenize_chinese_chars", True),
        model_max_length=length
        if isinstance(length, int) and length < 2**31
        else DEFAULT_MODEL_MAX_LENGTH,
    )


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
            "not belong together; give the "
            "model's own tokenizer"
        )
    if vocab_size not in {-(-size // multiple) * multiple for multiple in (1, 8, 16, 32, 64, 128)}:
        logger.warning(
            "%s has a vocabulary of %s, the tokenizer %s pieces: the other rows are kept, and no "
            "text has them; if that is "
            "not meant, give the model's own tokenizer",
            name,
            f"{vocab_size:,}",
            f"{size:,}",
        )


REPORT_FILE = "tokenizer_report.json"
# All that is ever written: a folder that holds anything else is not a tokenizer's alone and is left
# as it is.
_OUR_FILES = frozenset({"tokenizer.json", "tokenizer_config.json", "vocab.txt", REPORT_FILE})


def check_tokenizer_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, an output folder whose contents would be lost; a tokenizer alone may
    be overwritten.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file; give a folder")
    present = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(present - _OUR_FILES):
        raise InputError(
            f"output_dir: {folder} holds other things ({others[0]}); give a new or empty folder"
        )
    if present and not overwrite:
        raise InputError(
            f"output_dir: {folder} holds a tokenizer; give another folder, or --overwrite to "
            "replace it"
        )


def write_tokenizer_folder(
    folder: Path, tokenizer: OriginalBertTokenizer, report: Mapping[str, Any]
) -> None:
    """Write tokenizer and tokenizer_report.json to a folder that passed `check_tokenizer_folder`;
    it appears complete.
    """
    with atomic_dir(folder, replace=True) as staged:
        tokenizer.save_pretrained(staged)
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        (staged / REPORT_FILE).write_text(text, encoding="utf-8", newline="\n")


def find_tokenizer(name: str) -> Path | None:
    """The folder of a checkpoint's tokenizer files, or None if it has none (or none within
    reach).
    """
    folder = Path(name)
    if folder.is_dir():
        return (
            folder
            if any((folder / file).is_file() for file in ("tokenizer.json", "vocab.txt"))
            else None
        )
    try:
        return _find_hub_folder(name)
    except InputError as error:
        logger.info("%s", error)
        return None
