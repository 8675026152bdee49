"""The loss without logits and the shared weight: values and gradients of the plain formulas,
whoever asks for them.
"""

import pytest
import torch
from packed_models import LENGTHS, VOCAB, assert_gradients_alike, make_batch, make_model, run
from torch.nn import functional as F

from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.models.vocabulary_loss import (
    ROWS_AT_ONCE,
    SharedGradient,
    look_up,
    vocabulary_divergence,
    vocabulary_loss,
)


@pytest.mark.parametrize("rows", [0, 1, 1024, 2500])
def test_the_vocabulary_loss_is_cross_entropy(kernels, rows):
    """With more rows than are held at once, and with none."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 16, generator=generator, requires_grad=True)
    weight = torch.randn(67, 16, generator=generator, requires_grad=True)
    bias = torch.randn(67, generator=generator, requires_grad=True)
    targets = torch.randint(0, 67, (rows,), generator=generator)
    expected = (
        torch.nn.functional.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum") / 7
    )
    wanted = torch.autograd.grad(3 * expected, (hidden, weight, bias))
    implementation = load_kernels(kernels, torch.device("cpu"))
    ours = vocabulary_loss(hidden, weight, bias, targets, 7.0, implementation)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    for own, other in zip(
        torch.autograd.grad(3 * ours, (hidden, weight, bias)), wanted, strict=True
    ):
        torch.testing.assert_close(
            own, other, rtol=1e-4, atol=1e-4 * float(other.abs().max() if rows else 1)
        )


@pytest.mark.parametrize("rows", [0, 1, 2500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_divergence_is_that_of_the_plain_formula(rows, dtype):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(67, 16, generator=generator).to(dtype).float().requires_grad_()
    bias = torch.randn(67, generator=generator, requires_grad=True)
    taught = torch.randn(rows, 67, generator=generator)
    goal = (taught / 2).softmax(-1)
    said = ((hidden.float() @ weight.t() + bias) / 2).log_softmax(-1)
    expected = F.kl_div(said, goal, reduction="sum")
    ours = vocabulary_divergence(hidden, weight, bias, lambda part: taught[part], 2.0)
    assert ours.dtype == torch.float32
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=1e-6)
    wanted = torch.autograd.grad(0.3 * expected, (hidden, weight, bias))
    for own, other in zip(
        torch.autograd.grad(0.3 * ours, (hidden, weight, bias)), wanted, strict=True
    ):
        assert own.dtype == other.dtype
        scale = float(other.abs().max()) if other.numel() else 1.0
        torch.testing.assert_close(own, other, rtol=0, atol=10 * tolerance * scale)


def test_the_divergence_asks_for_as_many_rows_as_are_held_at_once():
    asked = []

    def teacher_logits(part):
        asked.append(len(range(2500)[part]))
        return torch.zeros(asked[-1], 30)

    hidden, weight = torch.ones(2500, 4, requires_grad=True), torch.ones(30, 4)
    vocabulary_divergence(hidden, weight, torch.zeros(30), teacher_logits, 1.0).backward()
    assert asked == [ROWS_AT_ONCE, ROWS_AT_ONCE, 2500 - 2 * ROWS_AT_ONCE]


def test_the_loss_says_that_it_can_be_differentiated_once(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    model.bert.use_fast_layers(kernels)
    loss = model(**batch).mlm_loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        loss.backward()


PAD = 0


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def test_the_look_up_is_torchs_embedding():
    """Outputs and gradients, with a padding id, and with what an output layer left in the same
    pass.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(11, 5, generator=generator, requires_grad=True)
    ids = torch.tensor([3, 0, 3, 7, 10, 0])
    scale = torch.randn(6, 5, generator=generator)
    expected = F.embedding(ids, weight, padding_idx=PAD)
    (gradient,) = torch.autograd.grad((expected * scale).sum(), weight)
    rows = look_up(weight, ids, PAD, shared := SharedGradient())
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(torch.autograd.grad((rows * scale).sum(), weight)[0], gradient)
    rows = look_up(weight, ids, PAD, shared)
    left = torch.randn(11, 5, generator=generator)
    rows.register_hook(lambda _: shared.leave(left.clone()))
    torch.testing.assert_close(
        torch.autograd.grad((rows * scale).sum(), weight)[0], gradient + left
    )


def test_two_passes_may_be_one_backward_pass(kernels):
    model = make_model()
    batches = [make_batch(LENGTHS["ragged"], seed=1), make_batch(LENGTHS["one_long"], seed=2)]
    model.bert.use_fast_layers("off")
    expected = gradients_of(model, sum(model(**batch).loss for batch in batches))
    model.bert.use_fast_layers(kernels)
    ours = gradients_of(model, sum(model(**batch).loss for batch in batches))
    assert_gradients_alike(ours, expected, 1e-5)


def test_what_a_pass_left_on_its_way_is_not_counted_in_the_next(kernels):
    """The masked-LM loss is asked for the gradient of one layer alone; the other loss knows nothing
    of it.
    """
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    model.bert.use_fast_layers("off")
    expected = gradients_of(model, model(**batch).nsp_loss)
    model.bert.use_fast_layers(kernels)
    output = model(**batch)
    torch.autograd.grad(
        output.mlm_loss, model.bert.encoder.layer[2].output.dense.weight, retain_graph=True
    )
    ours = gradients_of(model, output.nsp_loss)
    name = "bert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(ours[name], expected[name], rtol=1e-4, atol=1e-6)


def test_the_weight_alone_may_be_asked_for(kernels):
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    weight = model.cls.predictions.decoder.weight
    model.bert.use_fast_layers("off")
    (expected,) = torch.autograd.grad(model(**batch).loss, weight)
    model.bert.use_fast_layers(kernels)
    (ours,) = torch.autograd.grad(model(**batch).loss, weight)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", ["words", "all embeddings", "words untied"])
def test_weights_that_are_not_shared_or_do_not_learn(kernels, part):
    """An output layer of its own; embeddings that are frozen, with and without the output layer."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    words = model.bert.embeddings.word_embeddings
    if part == "words untied":
        torch.manual_seed(1)
        model.cls.predictions.decoder.weight = torch.nn.Parameter(torch.randn(VOCAB, 48) * 0.1)
        _, expected = run(model, batch, "off")
        _, ours = run(model, batch, kernels)
    else:
        frozen = words if part == "words" else model.bert.embeddings
        frozen.requires_grad_(False)
        model.bert.use_fast_layers("off")
        expected = gradients_of(model, model(**batch).loss)
        model.bert.use_fast_layers(kernels)
        ours = gradients_of(model, model(**batch).loss)
        assert ours.keys() == expected.keys()
        assert "bert.embeddings.word_embeddings.weight" not in ours
    assert_gradients_alike(ours, expected, 1e-5)
