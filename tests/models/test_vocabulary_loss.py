"""Cross-entropy without logits equals cross-entropy with them."""

import pytest
import torch
from packed_models import LENGTHS, make_batch, make_model

from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.models.vocabulary_loss import vocabulary_loss


@pytest.mark.parametrize("rows", [0, 1, 1024, 2500])
def test_the_vocabulary_loss_is_cross_entropy(kernels, rows):
    """With more rows than are held at once, and with none."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 16, generator=generator, requires_grad=True)
    weight = torch.randn(67, 16, generator=generator, requires_grad=True)
    bias = torch.randn(67, generator=generator, requires_grad=True)
    targets = torch.randint(0, 67, (rows,), generator=generator)
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum") / 7
    wanted = torch.autograd.grad(3 * expected, (hidden, weight, bias))
    implementation = load_kernels(kernels, torch.device("cpu"))
    ours = vocabulary_loss(hidden, weight, bias, targets, 7.0, implementation)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    for own, other in zip(torch.autograd.grad(3 * ours, (hidden, weight, bias)), wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4 * float(other.abs().max() if rows else 1))


def test_the_loss_says_that_it_can_be_differentiated_once(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    model.bert.use_fast_layers(kernels)
    loss = model(**batch).mlm_loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        loss.backward()
