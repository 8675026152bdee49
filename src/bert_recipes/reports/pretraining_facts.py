"""Gather what report.json holds of a pre-training run: predictions for held-out inputs, counts."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.data.order import epoch_order
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.reports.facts import Facts, describe_sizes
from bert_recipes.training.bert_trainer import (
    EVALUATION_SEED,
    BertTrainer,
    EvaluationSampler,
    epoched,
)
from bert_recipes.training.callbacks import (
    describe_overfitting,
    describe_stuck_discriminator,
    describe_stuck_loss,
)
from bert_recipes.training.pretraining import PreTrainingData


# Inputs that are predicted: enough for the examples below, a second for BERT-base on a CPU.
NUM_EXAMPLE_INPUTS = 16
NUM_MASKS = 8
NUM_PAIRS = 8
LONGEST_TEXT = 120  # characters on each side of a [MASK]
TOP_K = 5
HASHED_PAIRS = 256  # at once


def describe_run(trainer: BertTrainer, data: PreTrainingData) -> Facts:
    """Return the sizes of a run, for the log and the report.

    Call it before training, which changes the batch split with the phase.
    """
    return {
        **describe_sizes(trainer),
        "vocabulary": len(data.tokenizer),
        "pairs_in_epoch_0": data.train.num_pairs(0),
    }


def gather_pretraining(
    trainer: BertTrainer,
    data: PreTrainingData,
    description: Facts,
    results: Facts,
) -> Facts:
    """Gather what report.json holds.

    All processes call it: where they shard the weights none can compute alone.

    Args:
        trainer: Of the run, after training.
        data: Of the run.
        description: Of `describe_run`.
        results: Those of all_results.json.
    """
    facts: Facts = {
        "kind": "pretraining",
        "run": description,
        "held_out": None,
    }
    dataset = trainer.eval_dataset
    if dataset is not None:
        num_inputs = min(NUM_EXAMPLE_INPUTS, trainer.max_eval_pairs or NUM_EXAMPLE_INPUTS)
        order = epoch_order(EVALUATION_SEED, 0, dataset.num_pairs(0))[:num_inputs]
        batch = trainer.eval_collator([dataset[(0, index)] for index in order.tolist()])
        facts["held_out"] = predict_held_out(trainer.model, data.tokenizer, batch)
    if not trainer.is_world_process_zero():
        return facts

    steps = trainer.state.max_steps
    facts["measured_on"] = None if dataset is None else fingerprint_held_out(trainer)
    facts["remark"] = (
        describe_stuck_loss(results, steps)
        or describe_stuck_discriminator(results, steps)
        or describe_overfitting(trainer)
    )
    facts["corpus"] = {"training": _count_corpus(data.train)}
    if data.validation is not None:
        facts["corpus"]["held out"] = _count_corpus(data.validation)
    return facts


def _count_corpus(inputs: Any) -> dict[str, int]:
    """Count the documents, sentences and tokens of a store, and the inputs of an epoch."""
    counts = {}
    if isinstance(inputs, PreTrainingDataset):
        counts["documents"] = int(inputs.split.num_documents)
        counts["sentences"] = int(inputs.split.num_sentences)
        counts["tokens"] = int(inputs.split.num_tokens)
    counts["inputs in epoch 0"] = inputs.num_pairs(0)
    return counts


def fingerprint_held_out(trainer: BertTrainer) -> str:
    """Return the SHA-256 of the masked held-out inputs, by which two runs are compared."""
    dataset = epoched(trainer.eval_dataset, trainer.eval_collator)
    # The size of these batches decides how much is padded, so it is always the same.
    sampler = EvaluationSampler(
        dataset,
        trainer.max_eval_pairs,
        HASHED_PAIRS,
        rank=0,
        world_size=1,
    )
    digest = hashlib.sha256()

    for keys in sampler:
        batch = trainer.eval_collator([dataset[key] for key in keys])
        for name in ("input_ids", "labels", "next_sentence_label"):
            if name in batch:
                digest.update(batch[name].numpy().tobytes())
    return digest.hexdigest()


# What the model predicts


@torch.no_grad()
def predict_held_out(
    model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor]
) -> Facts:
    """Gather what the model predicts for a batch of held-out inputs, masked as evaluated."""
    model.eval()
    inputs = {name: values.to(model.device) for name, values in batch.items()}
    output = model(**inputs, return_full_logits=False)
    # A model may have more rows than the tokenizer has pieces: they pad its size to a round number.
    logits = output.prediction_logits.float()[:, : len(tokenizer)].cpu()
    facts: Facts = {"masks": [], "verdicts": []}
    if not logits.isfinite().all():
        facts["is_finite"] = False
        return facts

    facts["masks"] = _mask_predictions(tokenizer, batch, logits)
    if output.seq_relationship_logits is not None and "next_sentence_label" in batch:
        is_next = output.seq_relationship_logits.float().softmax(-1)[:, 0].tolist()
        facts["verdicts"] = _pair_predictions(tokenizer, batch, is_next)
    return facts


def _mask_predictions(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor], logits: torch.Tensor
) -> list[Facts]:
    """Return the prediction for one [MASK] of each of the first inputs.

    Args:
        tokenizer: Of the inputs.
        batch: int64 (B, S) each.
        logits: float32 (M, V), of the predicted tokens, in order.
    """
    labels = batch["labels"]
    rows, positions = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
    truths = labels[rows, positions].tolist()
    is_mask = batch["input_ids"][rows, positions] == tokenizer.mask_token_id

    # Input -> the numbers of its predicted tokens that are a [MASK].
    masks_of_input: dict[int, list[int]] = {}
    for number in is_mask.nonzero()[:, 0].tolist():
        masks_of_input.setdefault(int(rows[number]), []).append(number)

    predictions: list[Facts] = []
    for row, masks in list(masks_of_input.items())[:NUM_MASKS]:
        middle = _middle_mask(tokenizer, masks, truths)
        ids = batch["input_ids"][row].tolist()
        context = _context(tokenizer, ids, int(positions[middle]))
        guesses = _guesses(tokenizer, logits[middle].softmax(-1), truths[middle])
        predictions.append({**context, **guesses})
    return predictions


def _middle_mask(
    tokenizer: PreTrainedTokenizerBase, masks: Sequence[int], truths: Sequence[int]
) -> int:
    """Return the middle one of the masked words, or of all masks where none is of a word.

    Args:
        tokenizer: Of the inputs.
        masks: Numbers of predicted tokens.
        truths: The right piece of every predicted token.
    """
    words = []
    for mask in masks:
        if tokenizer.decode([truths[mask]]).strip().isalnum():  # neither "##ing" nor ","
            words.append(mask)
    candidates = words or masks
    return candidates[len(candidates) // 2]


def _context(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], position: int
) -> dict[str, str]:
    """Return the text before and after a position, within its segment.

    Args:
        tokenizer: Of the model.
        ids: Of one input.
        position: Of the [MASK].
    """
    before = tokenizer.decode(ids[:position]).removeprefix(tokenizer.cls_token)
    after = tokenizer.decode(ids[position + 1 :])
    before = before.split(tokenizer.sep_token)[-1].strip()
    after = after.split(tokenizer.sep_token)[0].strip()
    # Whole words; a language without spaces is cut anywhere.
    if len(before) > LONGEST_TEXT:
        before = before[-LONGEST_TEXT:]
        before = before[before.find(" ") + 1 :]
    if len(after) > LONGEST_TEXT:
        after = after[:LONGEST_TEXT].rpartition(" ")[0] or after[:LONGEST_TEXT]
    return {"before": before, "after": after}


def _guesses(
    tokenizer: PreTrainedTokenizerBase, probabilities: torch.Tensor, truth: int
) -> dict[str, Any]:
    """Return the most likely pieces for a [MASK], and the rank of the right one.

    Args:
        tokenizer: Of the model.
        probabilities: float32 (V,).
        truth: Id of the right piece.
    """
    guesses = []
    for piece in probabilities.topk(min(TOP_K, len(probabilities))).indices.tolist():
        guesses.append([tokenizer.decode([piece]).strip(), float(probabilities[piece])])
    return {
        "truth": tokenizer.decode([truth]).strip(),
        "probability": float(probabilities[truth]),
        "rank": 1 + int((probabilities > probabilities[truth]).sum()),
        "guesses": guesses,
    }


def _pair_predictions(
    tokenizer: PreTrainedTokenizerBase, batch: dict[str, torch.Tensor], is_next: Sequence[float]
) -> list[Facts]:
    """Return the first pairs with the probability that the second text follows.

    Args:
        tokenizer: Of the model.
        batch: int64 (B, S) each, and next_sentence_label (B,).
        is_next: Probability for each pair.
    """
    # As they were before masking.
    ids = torch.where(batch["labels"] == IGNORE_INDEX, batch["input_ids"], batch["labels"])
    predictions = []
    labels = batch["next_sentence_label"].tolist()
    labelled_rows = [row for row, label in enumerate(labels) if label >= 0]
    for row in labelled_rows[:NUM_PAIRS]:
        text = tokenizer.decode(ids[row]).removeprefix(tokenizer.cls_token)
        first, second = text.split(tokenizer.sep_token)[:2]
        prediction = {
            "first": first.strip(),
            "second": second.strip(),
            "is_next": is_next[row],
            "truth": labels[row] == 0,
        }
        predictions.append(prediction)
    return predictions
