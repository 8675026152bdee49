"""The loss without logits and the shared weight: values and gradients of the plain formulas,
whoever asks for them.
"""

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
from bert_recipes.models.vocabulary_loss import (
    ROWS_AT_ONCE,
    TiedGradient,
    tied_embedding,
    vocabulary_divergence,
    vocabulary_loss,
)


def make_head(num_rows, dtype=torch.float32):
    """Hidden states of some rows, and the weight and bias of an output layer, which all learn."""
    torch.manual_seed(0)
    hidden = torch.randn(num_rows, 16).to(dtype).requires_grad_()
    weight = torch.randn(67, 16).to(dtype).float().requires_grad_()
    return hidden, weight, torch.randn(67, requires_grad=True)


def assert_same_loss(loss, expected, head, tolerance):
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=1e-6)
    gradients = torch.autograd.grad(3 * loss, head)
    references = torch.autograd.grad(3 * expected, head)
    for gradient, reference in zip(gradients, references, strict=True):
        assert gradient.dtype == reference.dtype
        scale = float(reference.abs().max()) if reference.numel() else 1.0
        torch.testing.assert_close(
            gradient,
            reference,
            rtol=0,
            atol=10 * tolerance * scale,
        )


NUM_ROWS = pytest.mark.parametrize("num_rows", [0, 1, 2 * ROWS_AT_ONCE + 452])


@NUM_ROWS
def test_the_vocabulary_loss_is_cross_entropy(kernels, num_rows):
    """With more rows than are held at once, and with none."""
    hidden, weight, bias = head = make_head(num_rows)
    targets = torch.arange(num_rows) % 67
    expected = F.cross_entropy(hidden @ weight.t() + bias, targets, reduction="sum") / 7
    implementation = load_kernels(kernels, torch.device("cpu"))
    loss = vocabulary_loss(hidden, weight, bias, targets, 7.0, implementation)
    assert_same_loss(loss, expected, head, 1e-5)


@NUM_ROWS
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_divergence_is_that_of_the_plain_formula(num_rows, dtype, tolerance):
    """The teacher is asked for as many rows as are held at once."""
    hidden, weight, bias = head = make_head(num_rows, dtype)
    teacher, counts = torch.randn(num_rows, 67), []

    def teacher_logits(rows):
        counts.append(len(teacher[rows]))
        return teacher[rows]

    log_shares = ((hidden.float() @ weight.t() + bias) / 2).log_softmax(-1)
    expected = F.kl_div(log_shares, (teacher / 2).softmax(-1), reduction="sum")
    loss = vocabulary_divergence(hidden, weight, bias, teacher_logits, 2.0)
    assert loss.dtype == torch.float32
    assert sum(counts) == num_rows
    assert max(counts, default=0) <= ROWS_AT_ONCE
    assert_same_loss(loss, expected, head, tolerance)


def test_the_loss_says_that_it_can_be_differentiated_once(kernels):
    model = make_model()
    model.bert.use_fast_layers(kernels)
    loss = model(**make_batch(LENGTHS["ragged"])).mlm_loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        loss.backward()


def test_the_look_up_is_torchs_embedding():
    """Outputs and gradients, with a padding id, and with what an output layer left in the same
    pass.
    """
    torch.manual_seed(0)
    weight, scale = torch.randn(11, 5, requires_grad=True), torch.randn(6, 5)
    ids, tied_gradient = torch.tensor([3, 0, 3, 7, 10, 0]), TiedGradient()
    expected = F.embedding(ids, weight, padding_idx=0)
    (gradient,) = torch.autograd.grad((expected * scale).sum(), weight)
    rows = tied_embedding(weight, ids, 0, tied_gradient)
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(torch.autograd.grad((rows * scale).sum(), weight)[0], gradient)

    rows, head_gradient = tied_embedding(weight, ids, 0, tied_gradient), torch.randn(11, 5)
    rows.register_hook(lambda _: tied_gradient.store(head_gradient.clone()))
    (total,) = torch.autograd.grad((rows * scale).sum(), weight)
    torch.testing.assert_close(total, gradient + head_gradient)


def backward(model, fast_layers, loss_of):
    model.zero_grad()
    model.bert.use_fast_layers(fast_layers)
    loss_of(model).backward()
    return gradients_of(model)


def test_two_passes_may_be_one_backward_pass(kernels):
    batches = [make_batch(LENGTHS["ragged"], seed=1), make_batch(LENGTHS["one_long"], seed=2)]

    def sum_of_losses(model):
        return sum(model(**batch).loss for batch in batches)

    model = make_model()
    expected = backward(model, "off", sum_of_losses)
    assert_gradients_alike(backward(model, kernels, sum_of_losses), expected, 1e-5)


def test_what_a_pass_left_on_its_way_is_not_counted_in_the_next(kernels):
    """The masked-LM loss is asked for the gradient of one layer alone; the other loss knows nothing
    of it.
    """
    batch, layer = make_batch(LENGTHS["ragged"]), "bert.encoder.layer.2.output.dense.weight"

    def second_loss(model):
        output = model(**batch)
        torch.autograd.grad(output.mlm_loss, model.get_parameter(layer), retain_graph=True)
        return output.nsp_loss

    model, name = make_model(), "bert.embeddings.word_embeddings.weight"
    expected = backward(model, "off", lambda model: model(**batch).nsp_loss)[name]
    gradient = backward(model, kernels, second_loss)[name]
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_the_weight_alone_may_be_asked_for(kernels):
    model, batch, gradients = make_model(), make_batch(LENGTHS["ragged"]), []
    for fast_layers in ("off", kernels):
        model.bert.use_fast_layers(fast_layers)
        weight = model.cls.predictions.decoder.weight
        gradients += torch.autograd.grad(model(**batch).loss, weight)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("change", ["frozen words", "frozen embeddings", "untied"])
def test_weights_that_are_not_shared_or_do_not_learn(kernels, change):
    """An output layer of its own; embeddings that are frozen, with and without the output layer."""
    model, batch = make_model(), make_batch(LENGTHS["ragged"])
    embeddings, name = model.bert.embeddings, "bert.embeddings.word_embeddings.weight"
    if change == "untied":
        torch.manual_seed(1)
        model.cls.predictions.decoder.weight = torch.nn.Parameter(torch.randn(VOCAB, 48) * 0.1)
    elif change == "frozen words":
        embeddings.word_embeddings.requires_grad_(False)
    else:
        embeddings.requires_grad_(False)
    _, expected = run(model, batch, "off")
    _, gradients = run(model, batch, kernels)
    assert (name in gradients) == (change == "untied")
    assert_gradients_alike(gradients, expected, 1e-5)
