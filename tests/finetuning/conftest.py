"""Tokenizers over a handful of pieces, and the settings of a model that is as small."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig

from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS, OriginalBertTokenizer


LETTERS = "abcdefghij"


@pytest.fixture(scope="session")
def make_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Iterable[str]], OriginalBertTokenizer]:
    """A lower-casing tokenizer whose vocabulary are the special tokens and the pieces given."""

    def make(pieces: Iterable[str]) -> OriginalBertTokenizer:
        path: Path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
        path.write_text("\n".join([*SPECIAL_TOKENS, *pieces]) + "\n", encoding="utf-8")
        return load_tokenizer(path, do_lower_case=True)

    return make


@pytest.fixture(scope="session")
def letters_tokenizer(make_tokenizer: Callable[[Iterable[str]], OriginalBertTokenizer]) -> OriginalBertTokenizer:
    """Words over ten letters have a piece for each letter."""
    return make_tokenizer([*LETTERS, *(f"##{letter}" for letter in LETTERS)])


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., BertConfig]:
    """Two layers of 32 units for a vocabulary of that size; more settings as keywords."""

    def make(vocab_size: int, **settings: Any) -> BertConfig:
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        return BertConfig(vocab_size=vocab_size, max_position_embeddings=64, **small | settings)

    return make


@pytest.fixture(scope="session")
def assert_split_changes_nothing() -> Callable[..., None]:
    """Loss and gradients of features in batches of other sizes, which add up, are those of one batch."""

    def check(kind: Any, model: Any, features: list, *sizes: int) -> None:
        results = []
        for size in (len(features), *sizes):
            batches = [kind.collate(features[start : start + size]) for start in range(0, len(features), size)]
            items = sum(kind.count_items(batch) for batch in batches)
            model.zero_grad()
            total = 0.0
            for batch in batches:
                inputs = {key: value for key, value in batch.items() if key not in kind.label_keys}
                loss = kind.loss_sum(model(**inputs), batch) / items
                loss.backward()
                total += loss.item()
            results.append((total, [each.grad.clone() for each in model.parameters() if each.grad is not None]))
        for total, gradients in results[1:]:
            assert total == pytest.approx(results[0][0], rel=1e-5)
            for gradient, expected in zip(gradients, results[0][1], strict=True):
                torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)

    return check
