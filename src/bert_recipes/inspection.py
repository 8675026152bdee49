"""What a checkpoint says: filled masks and next-sentence verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining


@dataclass(frozen=True)
class FilledMask:
    """The model's guesses for one [MASK].

    Attributes:
        text: The sentence with [MASK].
        guesses: (piece, probability), most likely first.
    """

    text: str
    guesses: list[tuple[str, float]]


@dataclass(frozen=True)
class NextSentenceVerdict:
    """The model's verdict on a pair.

    Attributes:
        first, second: The sentences.
        is_next: Probability that the second follows the first, 0 to 1.
    """

    first: str
    second: str
    is_next: float


@torch.no_grad()
def fill_masks(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], top_k: int = 5
) -> list[FilledMask]:
    """Guess the [MASK] of each text.

    Args:
        model: Any BERT with a masked-LM head; put into evaluation mode.
        tokenizer: Its tokenizer.
        texts: Sentences with one or more "[MASK]"; the first one is filled.
        top_k: Guesses a text.

    Raises:
        InputError: A text without "[MASK]".
    """
    model.eval()
    result = []
    for text in texts:
        if "[MASK]" not in text:
            raise InputError(f"no [MASK] in '{text}'")
        before, after = text.split("[MASK]", 1)
        # "[MASK]" in a user's text is ordinary text to the tokenizer, so it is put in as an id.
        left = tokenizer(before, add_special_tokens=False)["input_ids"]
        right = tokenizer(after, add_special_tokens=False)["input_ids"]
        ids = [tokenizer.cls_token_id, *left, tokenizer.mask_token_id, *right, tokenizer.sep_token_id]
        output = model(input_ids=torch.tensor([ids], device=model.device))
        probabilities = output.prediction_logits[0, 1 + len(left)].float().softmax(-1)
        values, indices = probabilities.topk(top_k)
        pieces = tokenizer.convert_ids_to_tokens(indices.tolist())
        result.append(FilledMask(text, list(zip(pieces, values.tolist(), strict=True))))
    return result


@torch.no_grad()
def judge_next_sentences(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]]
) -> list[NextSentenceVerdict]:
    """Say for each pair how likely the second sentence follows the first.

    Args:
        model: A BERT with the next-sentence head; put into evaluation mode.
        tokenizer: Its tokenizer.
        pairs: (first, second).
    """
    model.eval()
    result = []
    for first, second in pairs:
        inputs = tokenizer(first, second, return_tensors="pt").to(model.device)
        probabilities = model(**inputs).seq_relationship_logits[0].float().softmax(-1)
        result.append(NextSentenceVerdict(first, second, probabilities[0].item()))
    return result
