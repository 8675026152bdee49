"""What a model says of held-out pairs, in words: hidden pieces with its guesses, and next-sentence verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.models.bert import BertForPreTraining


# Pairs that are looked at: enough for the examples below, a second for BERT-base on a CPU.
EXAMPLE_PAIRS = 16
# Examples of each kind; pieces around a hidden one; letters of a sentence.
NUM_MASKS, NUM_VERDICTS_A_LABEL = 8, 4
CONTEXT_PIECES = 22
LONGEST_TEXT = 320
TOP_K = 5


@torch.no_grad()
def look_at_pairs(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Run the model once over a batch of held-out pairs, masked as an evaluation masks them.

    Args:
        model: Any BERT with both heads; put into evaluation mode.
        tokenizer: Its tokenizer.
        batch: Of the collator, on the CPU; its order decides what is shown, not the result.

    Returns:
        `pairs`, how many were looked at; `masks`, a dict each: `before`, `after`, the text around a [MASK], `truth`, its
        piece, `probability` and `rank` of that, `guesses`, the most likely pieces with their probabilities; `verdicts`:
        `first`, `second`, as they were before masking, `is_next`, the probability, and `truth`, whether it does follow.
    """
    model.eval()
    inputs = {name: values.to(model.device) for name, values in batch.items()}
    output = model(**inputs, return_full_logits=False)
    assert output.prediction_logits is not None
    # A model may have more rows than the tokenizer has pieces: they pad its size to a round number.
    logits = output.prediction_logits.float()[:, : len(tokenizer)].cpu()
    verdicts: list[dict[str, Any]] = []
    if output.seq_relationship_logits is not None and "next_sentence_label" in batch:
        shares = output.seq_relationship_logits.float().softmax(-1)[:, 0].tolist()
        verdicts = _verdicts(tokenizer, batch, shares)
    return {"pairs": len(batch["input_ids"]), "masks": _masks(tokenizer, batch, logits), "verdicts": verdicts}


def _masks(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor], logits: torch.Tensor
) -> list[dict[str, Any]]:
    """The middle [MASK] of each pair, until there are `NUM_MASKS`."""
    rows, places = (batch["labels"] != IGNORE_INDEX).nonzero(as_tuple=True)
    is_hidden = batch["input_ids"][rows, places] == tokenizer.mask_token_id
    found: list[dict[str, Any]] = []
    for row in range(len(batch["input_ids"])):
        hidden = ((rows == row) & is_hidden).nonzero()[:, 0].tolist()
        if hidden and len(found) < NUM_MASKS:
            number = hidden[len(hidden) // 2]
            place, truth = int(places[number]), int(batch["labels"][row, places[number]])
            found.append(_mask(tokenizer, batch, (row, place), truth, logits[number]))
    return found


def _mask(
    tokenizer: PreTrainedTokenizerBase,
    batch: dict[str, torch.Tensor],
    where: tuple[int, int],
    truth: int,
    logits: torch.Tensor,
) -> dict[str, Any]:
    row, place = where
    probabilities = logits.softmax(-1)
    values, ids = probabilities.topk(min(TOP_K, len(probabilities)))
    pieces = tokenizer.convert_ids_to_tokens(batch["input_ids"][row].tolist())
    segments, real = batch["token_type_ids"][row].tolist(), int(batch["attention_mask"][row].sum())
    # Of its own sentence only, without [CLS] and [SEP].
    inside = [
        position
        for position in range(real)
        if segments[position] == segments[place] and pieces[position] not in (tokenizer.cls_token, tokenizer.sep_token)
    ]
    before = [position for position in inside if place - CONTEXT_PIECES <= position < place]
    while before and before[0] > inside[0] and pieces[before[0]].startswith("##"):  # it begins with a whole word
        del before[0]
    after = [position for position in inside if place < position <= place + CONTEXT_PIECES]
    return {
        "before": ("... " if before and before[0] > inside[0] else "") + pieces_as_words([pieces[p] for p in before]),
        "after": pieces_as_words([pieces[p] for p in after]) + (" ..." if after and after[-1] < inside[-1] else ""),
        "truth": tokenizer.convert_ids_to_tokens(truth),
        "probability": float(probabilities[truth]),
        "rank": 1 + int((probabilities > probabilities[truth]).sum()),
        "guesses": list(zip(tokenizer.convert_ids_to_tokens(ids.tolist()), values.tolist(), strict=True)),
    }


def _verdicts(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor], shares: Sequence[float]
) -> list[dict[str, Any]]:
    """The first pairs of each label, as many of both where there are as many, in turn."""
    labels = batch["next_sentence_label"].tolist()
    of_label = [[row for row, label in enumerate(labels) if label == wanted] for wanted in (0, 1)]
    chosen = sorted(row for rows in of_label for row in rows[:NUM_VERDICTS_A_LABEL])
    return [
        {
            "first": _sentence(tokenizer, batch, row, 0),
            "second": _sentence(tokenizer, batch, row, 1),
            "is_next": shares[row],
            "truth": labels[row] == 0,
        }
        for row in chosen
    ]


def _sentence(tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor], row: int, segment: int) -> str:
    """A segment as it was before masking; of a long first one the end, which the second goes on from."""
    ids = torch.where(batch["labels"][row] == IGNORE_INDEX, batch["input_ids"][row], batch["labels"][row])
    kept = (batch["token_type_ids"][row] == segment) & (batch["attention_mask"][row] == 1)
    pieces = tokenizer.convert_ids_to_tokens(ids[kept].tolist())
    text = pieces_as_words([piece for piece in pieces if piece not in (tokenizer.cls_token, tokenizer.sep_token)])
    if len(text) <= LONGEST_TEXT:
        return text
    if segment:
        return f"{text[:LONGEST_TEXT].rpartition(' ')[0] or text[:LONGEST_TEXT]} ..."
    return f"... {text[-LONGEST_TEXT:].partition(' ')[2] or text[-LONGEST_TEXT:]}"


def pieces_as_words(pieces: Sequence[str]) -> str:
    """Pieces as words: "play ##ing" is "playing"."""
    return " ".join(pieces).replace(" ##", "")
