"""Tokenizers over a handful of pieces, and the settings of a model that is as small."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig

from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS, OriginalBertTokenizer


LETTERS = "abcdefghij"


@pytest.fixture(scope="session")
def make_tokenizer(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Iterable[str]], OriginalBertTokenizer]:
    """A lower-casing tokenizer whose vocabulary are the special tokens and the pieces given."""

    def make(pieces: Iterable[str]) -> OriginalBertTokenizer:
        path: Path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
        path.write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
        return load_tokenizer(path, do_lower_case=True)

    return make


@pytest.fixture(scope="session")
def letters_tokenizer(
    make_tokenizer: Callable[[Iterable[str]], OriginalBertTokenizer],
) -> OriginalBertTokenizer:
    """Words over ten letters have a piece for each letter."""
    return make_tokenizer([*LETTERS, *(f"##{letter}" for letter in LETTERS)])


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., BertConfig]:
    """Two layers of 32 units for a vocabulary of that size; more settings as keywords."""

    def make(vocab_size: int, **settings: Any) -> BertConfig:
        small = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
        }
        return BertConfig(vocab_size=vocab_size, max_position_embeddings=64, **small | settings)

    return make
