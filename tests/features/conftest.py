"""A small checkpoint, and the hidden states that stock transformers gives for an input."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertModel


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of six layers with weights that matter, and its tokenizer; its pieces are letters."""
    from transformers import BertConfig

    from bert_recipes.tokenization.loading import load_tokenizer

    folder = tmp_path_factory.mktemp("six-layers")
    tokenizer = load_tokenizer(tiny_checkpoint)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    model = BertModel(config)

    with torch.no_grad():
        # Weights as small as those of a new model give all tokens much the same vectors.
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def stock_states(checkpoint: Path) -> Callable[[list[int], list[int]], list[torch.Tensor]]:
    """Ids and segments of one input -> its seven hidden states (tokens, 32), by stock transformers,
    without any padding.
    """
    model = BertModel.from_pretrained(checkpoint).eval()

    def states(input_ids: list[int], token_type_ids: list[int]) -> list[torch.Tensor]:
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor([input_ids]),
                token_type_ids=torch.tensor([token_type_ids]),
                output_hidden_states=True,
            )
        return [state[0] for state in output.hidden_states]

    return states
