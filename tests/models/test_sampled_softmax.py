"""The softmax over a part of the vocabulary: what it estimates, and its exact cases."""

import numpy as np
import pytest
import torch
from packed_models import (
    LENGTHS,
    VOCAB,
    assert_gradients_alike,
    gradients_of,
    make_batch,
    make_model,
    run,
)
from torch.nn import functional as F

from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.models.sampled_softmax import SampledSoftmax


# The piece v stands VOCAB - v times in the text.
COUNTS = np.arange(VOCAB, 0, -1)


def test_the_frequent_pieces_cover_their_share_and_the_others_are_drawn_by_seed_and_step():
    softmax = SampledSoftmax(COUNTS, seed=1, frequent_share=0.5, rare_pieces_per_drawn=10)
    frequent = softmax.is_frequent.nonzero()[:, 0]
    covered = COUNTS[frequent].sum() / COUNTS.sum()
    assert frequent.tolist() == list(range(len(frequent)))
    assert covered >= 0.5 > COUNTS[frequent[:-1]].sum() / COUNTS.sum()
    num_rare = VOCAB - len(frequent)
    drawn = softmax.pieces[len(frequent) :]
    assert len(drawn) == len(set(drawn.tolist())) == -(-num_rare // 10)
    assert drawn.min() >= len(frequent)
    softmax.draw(5)
    others = softmax.pieces
    assert not torch.equal(others[len(frequent) :], drawn)
    again = SampledSoftmax(COUNTS, seed=1, frequent_share=0.5, rare_pieces_per_drawn=10)
    again.draw(5)
    assert torch.equal(again.pieces, others)


@pytest.mark.parametrize("change", ["all frequent", "all rare", "all drawn"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_exact_cases_are_the_full_softmax(kernels, change, tied):
    """All pieces are frequent; no target is; or every other piece is drawn."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    if not tied:
        torch.manual_seed(1)
        model.cls.predictions.decoder.weight = torch.nn.Parameter(torch.randn(VOCAB, 48) * 0.1)
    expected, expected_gradients = run(model, batch, kernels)
    share = {"all frequent": 1.0, "all rare": 0.0, "all drawn": 0.5}[change]
    softmax = SampledSoftmax(
        COUNTS, 1, frequent_share=share, rare_pieces_per_drawn=1 if change == "all drawn" else 50
    )
    if change == "all rare":  # one piece is frequent; let no target be it
        batch["labels"][batch["labels"] == 0] = -100
    model.sampled_softmax = softmax
    output, gradients = run(model, batch, kernels)
    torch.testing.assert_close(output.mlm_loss, expected.mlm_loss, rtol=1e-5, atol=1e-6)
    assert_gradients_alike(gradients, expected_gradients, 1e-5)


def test_the_sum_over_the_vocabulary_is_the_full_one_in_expectation():
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(4, 16), torch.randn(VOCAB, 16) / 4, torch.randn(VOCAB)
    softmax = SampledSoftmax(COUNTS, 1, frequent_share=0.5, rare_pieces_per_drawn=10)
    targets = torch.tensor([0, 3, 5, 8])
    plain = load_kernels("plain", torch.device("cpu"))
    logits = hidden @ weight.t() + bias
    expected = logits.exp().sum(1)
    sums = []
    for step in range(4000):
        softmax.draw(step)
        losses = []
        for row in range(4):
            part = slice(row, row + 1)
            losses.append(
                softmax.frequent_loss(hidden[part], weight, bias, targets[part], 1.0, plain)
            )
        sums.append((torch.stack(losses) + logits[torch.arange(4), targets]).exp())
    means = torch.stack(sums).mean(0)
    torch.testing.assert_close(means, expected, rtol=0.02, atol=0)


def test_a_batch_in_parts_has_the_loss_and_gradient_of_the_whole(kernels):
    batch = make_batch(LENGTHS["ragged"])
    num_predicted = int((batch["labels"] >= 0).sum())
    model = make_model()
    model.bert.use_fast_layers(kernels)
    model.sampled_softmax = SampledSoftmax(COUNTS, 1, frequent_share=0.5)
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    losses, gradients = [], []
    for parts in ([slice(0, 6)], [slice(0, 2), slice(2, 6)]):
        model.zero_grad()
        total = 0.0
        for part in parts:
            inputs = {name: batch[name][part] for name in names}
            loss = model(**inputs, num_items_in_batch=num_predicted).mlm_loss
            loss.backward()
            total += loss.item()
        losses.append(total)
        gradients.append(gradients_of(model))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_gradients_alike(gradients[1], gradients[0], 1e-5)


def test_evaluation_and_stock_layers_have_the_full_softmax(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    expected, _ = run(model, batch, "off")
    model.sampled_softmax = SampledSoftmax(COUNTS, 1, frequent_share=0.1)
    output, _ = run(model, batch, "off")
    assert output.mlm_loss.item() == expected.mlm_loss.item()
    model.bert.use_fast_layers(kernels)
    with torch.no_grad():
        logits = model.eval()(**{k: v for k, v in batch.items() if k != "labels"}).prediction_logits
        loss = model(**batch).mlm_loss
    expected_loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(loss, expected_loss, rtol=1e-4, atol=1e-5)
