"""A checkpoint's answers: filled masks, and verdicts on the next sentence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import num_positions


MASK = "[MASK]"
# SentencePiece and byte-level vocabularies mark the pieces that begin a word, WordPiece the others.
WORD_MARKS = ("\u2581", "\u0120")
CONTINUATION_MARK = "##"
# A text is of another language if this fraction or more of its pieces is [UNK] or continues a
# word.
MAX_BROKEN = 0.2

# (piece, probability), most likely first; None for a [MASK] behind what the model could read.
Guesses = list[tuple[str, float]] | None


@dataclass(frozen=True)
class FilledText:
    """The model's guesses for every [MASK] of one text."""

    guesses: list[Guesses]  # for each [MASK]
    num_pieces: int  # of the text, each [MASK] counted as one
    num_read: int  # how many of them the model has read, around the first [MASK]


def knows_words(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    """Return whether a text is in a language of the tokenizer: a model's verdict on it makes sense.

    A vocabulary of another language has all letters of the text, and cuts its words. False for a
    text without pieces, too.

    Args:
        tokenizer: A tokenizer of any kind.
        text: May hold "[MASK]", which does not count.
    """
    pieces = tokenizer.tokenize(text.replace(MASK, " "))
    if not pieces:
        return False
    marks_beginnings = any(piece.startswith(WORD_MARKS) for piece in pieces)
    num_broken = 0
    for piece in pieces:
        if marks_beginnings:
            is_continuation = not piece.startswith(WORD_MARKS)
        else:
            is_continuation = piece.startswith(CONTINUATION_MARK)
        if is_continuation or piece == tokenizer.unk_token:
            num_broken += 1
    return num_broken / len(pieces) < MAX_BROKEN


@torch.no_grad()
def fill_every_mask(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, text: str, top_k: int = 5
) -> FilledText:
    """Guess every [MASK] of a text, each by itself.

    In a text that is too long for the model, only the masks in the part around the first one are
    guessed.

    Args:
        model: Put into evaluation mode.
        tokenizer: The model's.
        text: With at least one [MASK].
        top_k: Guesses for each.
    """
    if MASK not in text:
        raise InputError(f"no {MASK} in '{text}'")
    model.eval()
    # "[MASK]" in a user's text is ordinary text to the tokenizer, so it is put in as an id.
    text_before, *texts_after = text.split(MASK)
    ids_before = _encode(tokenizer, text_before)
    ids_after = _encode(tokenizer, texts_after[0])
    for text_after in texts_after[1:]:
        ids_after += [tokenizer.mask_token_id, *_encode(tokenizer, text_after)]
    num_pieces = len(ids_before) + 1 + len(ids_after)
    num_special = 3  # [CLS], [MASK] and [SEP]
    room = num_positions(model.config) - num_special
    ids_before, ids_after = _fit_around(ids_before, ids_after, room)

    ids = [tokenizer.cls_token_id, *ids_before, tokenizer.mask_token_id]
    ids += [*ids_after, tokenizer.sep_token_id]
    input_ids = torch.tensor([ids], device=model.device)
    logits = model(input_ids=input_ids).prediction_logits[0]
    probabilities = logits[input_ids[0] == tokenizer.mask_token_id].float().softmax(-1)
    # A model may have more rows than the tokenizer has pieces: they pad its size to a round number.
    probabilities = probabilities[:, : len(tokenizer)]
    best = probabilities.topk(min(top_k, probabilities.shape[-1]))
    guesses: list[Guesses] = []
    for piece_ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        pieces = tokenizer.convert_ids_to_tokens(piece_ids)
        guesses.append(list(zip(pieces, values, strict=True)))
    num_unread = len(texts_after) - len(guesses)
    guesses += [None] * num_unread
    return FilledText(guesses, num_pieces, num_read=len(ids) - 2)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of what stands between two masks.

    Byte-level pieces have the space before a word, so none stands before a mask. A tokenizer of
    another kind reads its own mask in the text, as `<mask>`: it is an unknown word here.
    """
    ids = tokenizer(text.rstrip(" "), add_special_tokens=False, verbose=False)["input_ids"]
    mask_id = tokenizer.mask_token_id
    return [tokenizer.unk_token_id if piece_id == mask_id else piece_id for piece_id in ids]


def _fit_around(before: list[int], after: list[int], room: int) -> tuple[list[int], list[int]]:
    """Return the last ids before a mask and the first after it, `room` in all.

    A short side leaves its room to the other.
    """
    num_before = min(len(before), max(room - len(after), room // 2))
    num_after = room - num_before
    return before[len(before) - num_before :], after[:num_after]


@torch.no_grad()
def judge_next_sentence(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, first: str, second: str
) -> float:
    """Return the probability that the second sentence follows the first.

    A pair too long for the model is cut.
    """
    model.eval()
    inputs = tokenizer(
        first,
        second,
        return_tensors="pt",
        truncation=True,
        max_length=model.config.max_position_embeddings,
    )
    logits = model(**inputs.to(model.device)).seq_relationship_logits[0]
    return float(logits.float().softmax(-1)[0])
