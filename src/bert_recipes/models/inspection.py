"""What a checkpoint says: filled masks, and whether a sentence is the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import num_positions


@dataclass(frozen=True)
class FilledText:
    """The model's guesses for every [MASK] of one text."""

    # For each [MASK] (piece, probability), most likely first; None for one behind what the model
    # could read.
    guesses: list[list[tuple[str, float]] | None]
    num_pieces: int  # of the text, each [MASK] counted as one
    num_read: int  # how many of them the model has read, around the first [MASK]


def knows_words(tokenizer: PreTrainedTokenizerBase, text: str, max_broken: float = 0.2) -> bool:
    """Whether a text is in a language of the tokenizer, so that a model's verdict on it means
    something.

    A vocabulary of another language has all letters of the text, and cuts its words. False for a
    text without pieces, too.

    Args:
        text: May hold "[MASK]", which does not count.
        max_broken: Fraction of pieces that are [UNK] or continue a word that is too much, 0 to 1.
    """
    pieces = tokenizer.tokenize(text.replace("[MASK]", " "))
    marked = any(
        piece[:1] in ("\u2581", "\u0120") for piece in pieces
    )  # no WordPiece: words have a mark, and not what goes on with them
    broken = sum(
        piece == tokenizer.unk_token
        or (piece[:1] not in ("\u2581", "\u0120") if marked else piece.startswith("##"))
        for piece in pieces
    )
    return bool(pieces) and broken / len(pieces) < max_broken


@torch.no_grad()
def fill_every_mask(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, text: str, top_k: int = 5
) -> FilledText:
    """Guess every [MASK] of a text, each by itself; of a text that is too long for the model, those
    in the part around the first.
    """
    if "[MASK]" not in text:
        raise InputError(f"no [MASK] in '{text}'")
    model.eval()
    # "[MASK]" in a user's text is ordinary text to the tokenizer, so it is put in as an id.
    # Byte-level pieces have the space before a word, so none stands before a mask.
    before, *others = (part.rstrip(" ") for part in text.split("[MASK]"))
    left = tokenizer(before, add_special_tokens=False, verbose=False)["input_ids"]
    right: list[int] = []
    for number, part in enumerate(others):
        right += [tokenizer.mask_token_id] if number else []
        right += tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
    num_pieces = len(left) + 1 + len(right)
    left, right = _fit_around(left, right, num_positions(model.config) - 3)
    ids = [tokenizer.cls_token_id, *left, tokenizer.mask_token_id, *right, tokenizer.sep_token_id]
    positions = [position for position, piece in enumerate(ids) if piece == tokenizer.mask_token_id]
    output = model(input_ids=torch.tensor([ids], device=model.device))
    # A model may have more rows than the tokenizer has pieces: they pad its size to a round number.
    probabilities = output.prediction_logits[0, positions].float().softmax(-1)[:, : len(tokenizer)]
    values, indices = probabilities.topk(min(top_k, probabilities.shape[-1]))
    guesses: list[list[tuple[str, float]] | None] = [
        list(zip(tokenizer.convert_ids_to_tokens(pieces), shares, strict=True))
        for pieces, shares in zip(indices.tolist(), values.tolist(), strict=True)
    ]
    unread: list[list[tuple[str, float]] | None] = [None] * (len(others) - len(guesses))
    return FilledText(guesses + unread, num_pieces, len(ids) - 2)


def _fit_around(left: list[int], right: list[int], room: int) -> tuple[list[int], list[int]]:
    """The last ids of `left` and the first of `right`, `room` in all; a short side leaves its room
    to the other.
    """
    from_left = min(len(left), max(room - len(right), room // 2))
    return left[len(left) - from_left :], right[: room - from_left]


@torch.no_grad()
def judge_next_sentence(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, first: str, second: str
) -> float:
    """Probability that the second sentence follows the first; a pair too long for the model is
    cut.
    """
    model.eval()
    length = model.config.max_position_embeddings
    inputs = tokenizer(first, second, return_tensors="pt", truncation=True, max_length=length).to(
        model.device
    )
    return float(model(**inputs).seq_relationship_logits[0].float().softmax(-1)[0])
