"""Optimiser and schedule of the original. Source: google-research/bert optimization.py."""

import json

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.training import optimization
from bert_recipes.training.optimization import (
    BertAdam,
    Lamb,
    Schedule,
    create_optimizer,
    decay_groups,
    set_peak_rate,
)


def plain_bert_adam(weights, gradients, rates, betas=(0.9, 0.999), eps=1e-6, decay=0.01):
    """AdamWeightDecayOptimizer.apply_gradients, written out in float64."""
    theta, m, v = (
        weights.double(),
        torch.zeros_like(weights.double()),
        torch.zeros_like(weights.double()),
    )
    for gradient, rate in zip(gradients, rates, strict=True):
        g = gradient.double()
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        update = m / (v.sqrt() + eps) + decay * theta
        theta = theta - rate * update
    return theta


@pytest.mark.parametrize("decay", [0.01, 0.0])
def test_bert_adam_is_adam_without_bias_correction_and_with_decoupled_decay(decay):
    generator = torch.Generator().manual_seed(0)
    start = 0.02 * torch.randn(40, 30, generator=generator)
    gradients = [
        torch.randn(40, 30, generator=generator) * 10.0 ** (step % 4 - 3) for step in range(30)
    ]
    rates = [1e-3 * (step + 1) / 30 for step in range(30)]
    parameter = nn.Parameter(start.clone())
    optimizer = BertAdam([parameter], weight_decay=decay)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = gradient
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == rate
    expected = plain_bert_adam(start, gradients, rates, decay=decay)
    moved = (expected - start.double()).abs().max().item()
    assert (parameter.double() - expected).abs().max().item() / moved < 1e-5


def test_bert_adam_refuses_parameters_that_are_trained_now_and_then():
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = BertAdam([first, second])
    first.grad = torch.ones(2)
    optimizer.step()
    second.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="group of their own"):
        optimizer.step()


def test_schedule_starts_at_zero_warms_up_and_decays_from_step_zero():
    """create_optimizer: polynomial_decay counted from 0, warm-up replaces it while step <
    warmup.
    """
    rates = [Schedule(0, 100, 10, 1.0).factor(step) for step in (0, 5, 9, 10, 55, 100)]
    assert rates == pytest.approx([0.0, 0.5, 0.9, 0.9, 0.45, 0.0])  # the peak is 1 - warmup / total
    assert Schedule(0, 100, 0, 1.0).factor(0) == 1.0


def test_the_decay_may_have_another_power():
    """NVIDIA DeepLearningExamples, BERT, schedulers.py, PolyWarmUpScheduler: warm-up to the peak,
    then (1 - progress) ** 0.5.
    """
    schedule = Schedule(0, 7038, round(0.2843 * 7038), 6e-3, power=0.5)
    assert schedule.factor(1000) == 1000 / 2001
    for step in (2001, 5000, 7037):
        assert schedule.factor(step) == pytest.approx((1 - step / 7038) ** 0.5)
    assert schedule.factor(7038) == 0.0


def test_a_phase_may_have_a_schedule_of_its_own():
    """It begins where the one before has ended, with its own peak; what was loaded from the
    checkpoint is the other's.
    """
    optimizer = BertAdam([nn.Parameter(torch.ones(1))], lr=2.0)
    first = LambdaLR(optimizer, Schedule(0, 10, 4, 2.0).factor)
    for _ in range(10):
        first.step()
    second = LambdaLR(optimizer, Schedule(10, 5, 2, 0.5).factor)
    second.load_state_dict(first.state_dict())
    set_peak_rate(second, 0.5)
    seen = []
    for _ in range(5):
        seen.append(optimizer.param_groups[0]["lr"])
        second.step()
    assert seen == pytest.approx([0.5 * x for x in (0, 0.5, 0.6, 0.4, 0.2)])
    # The first step's rate is the new schedule's also where both have the same peak.
    third = LambdaLR(optimizer, Schedule(10, 5, 0, 2.0).factor)
    third.load_state_dict(first.state_dict())
    set_peak_rate(third, 2.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["bert_adam", "lamb", "muon"])
def test_training_goes_on_from_a_state_dict(name):
    finals = []
    for parts in ((8,), (3, 5)):
        torch.manual_seed(0)
        model, state, done = nn.Linear(40, 32), None, 0
        for steps in parts:
            optimizer = create_optimizer(name, model, learning_rate=0.01)
            if state is not None:
                optimizer.load_state_dict(state)
            for step in range(done, done + steps):
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, float(step % 3) - 0.5)
                optimizer.step()
            state, done = optimizer.state_dict(), done + steps
        finals.append(model.weight.detach().clone())
    assert torch.equal(*finals)


@pytest.mark.parametrize("name", ["bert_adam", "adamw", "lamb", "muon"])
def test_a_step_without_gradients_changes_nothing(name):
    """What is left of a step whose gradient was not finite."""
    finals = []
    for skips in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(32, 33)
        optimizer = create_optimizer(name, model, learning_rate=0.01)
        for step in range(4):
            if skips and step == 2:
                before = [parameter.detach().clone() for parameter in model.parameters()]
                optimizer.zero_grad()
                optimizer.step()
                assert all(
                    torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
                )
            model(torch.ones(2, 32)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        finals.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*finals, strict=True))


@pytest.mark.parametrize("units", [["some"], []])
def test_muon_is_that_of_torch_beside_its_adamw(units, monkeypatch):
    """Tall, wide and square matrices; embeddings, biases, LayerNorms, the pooler and the output
    layer of two classes are AdamW's.

    torch multiplies bfloat16 wherever it runs. Without units for it ours is the more exact one, and
    a CPU rounds batches otherwise than single matrices.
    """
    tolerance = 1e-6 if units and optimization.bfloat16_units("cpu") else 3e-4
    monkeypatch.setattr(optimization, "bfloat16_units", lambda device_type: units)
    models = [BertForPreTraining(pretraining_config("tiny", vocab_size=50)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ours = create_optimizer(
        "muon", models[0], learning_rate=2e-3, weight_decay=0.01, muon_learning_rate=0.02
    )
    named = dict(models[1].named_parameters())
    is_matrix = {
        name: each.dim() == 2
        and not any(part in name for part in ("embeddings", "seq_relationship", "pooler"))
        for name, each in named.items()
    }
    theirs = [
        torch.optim.Muon(
            [named[name] for name in named if is_matrix[name]], lr=0.02, weight_decay=0.0
        )
    ]
    for decay in (0.01, 0.0):
        others = [
            each
            for name, each in named.items()
            if not is_matrix[name] and (each.dim() == 1) == (decay == 0.0)
        ]
        theirs.append(torch.optim.AdamW(others, lr=2e-3, eps=1e-6, weight_decay=decay))
    for _ in range(3):
        for parameter, other in zip(models[0].parameters(), named.values(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            other.grad = parameter.grad.clone()
        for optimizer in (ours, *theirs):
            optimizer.step()
    for parameter, (name, other) in zip(models[0].parameters(), named.items(), strict=True):
        torch.testing.assert_close(
            parameter, other, rtol=0, atol=tolerance if is_matrix[name] else 1e-6, msg=name
        )
    assert sum(len(group["params"]) for group in ours.param_groups) == len(named)


# What Muon must not take: tables, what meets the vocabulary, the pooler, and the output layers of
# one or two numbers.
NOT_FOR_MUON = (
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "pooler",
    "lm_head",
    "decoder",
)
NOT_FOR_MUON += ("dense_prediction.", "sop_classifier")


@pytest.mark.parametrize("member", ["electra", "albert"])
def test_muon_turns_every_matrix_of_a_member_by_the_same_angle_in_all_directions(member):
    """ALBERT's layers are one, ELECTRA is two networks with the same embeddings: each matrix is
    taken once, and its update is orthogonal.
    """
    torch.manual_seed(0)
    model = MEMBERS[member](
        pretraining_config("2/128", vocab_size=300, model_type=member, embedding_size=64)
    )
    optimizer = create_optimizer("muon", model, learning_rate=2e-3, muon_learning_rate=0.02)
    named = dict(model.named_parameters())
    expected = {
        name
        for name, each in named.items()
        if each.dim() == 2 and not any(part in name for part in NOT_FOR_MUON)
    }
    names = {id(parameter): name for name, parameter in named.items()}
    (group,) = [group for group in optimizer.param_groups if "momentum" in group]
    chosen = [names[id(parameter)] for parameter in group["params"]]
    assert sorted(chosen) == sorted(expected)
    assert {"electra": "generator.electra.embeddings_project.weight"}.get(
        member, chosen[0]
    ) in chosen
    in_groups = [
        names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]
    ]
    assert sorted(in_groups) == sorted(named)
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for name in chosen:
        rows, columns = named[name].shape
        update = (before[name] - named[name].detach()) / (0.02 * max(1.0, rows / columns) ** 0.5)
        values = torch.linalg.svdvals(update)
        # Five steps of Newton-Schulz bring them between 0.7 and 1.2 (torch.optim.Muon); small ones
        # of a square matrix need more.
        assert values.max() < 1.3, name
        assert values.median() > 0.65, name
        assert (values > 0.5).float().mean() > 0.9, name


def test_lamb_is_that_of_the_original(shared_data):
    """google-research/albert lamb_optimizer.py: its formula in float64 on five tensors, one of
    which starts at zero.
    """
    for tensor in json.loads(
        (shared_data / "reference" / "family" / "lamb_trajectory.json").read_text()
    ):
        parameter = nn.Parameter(torch.tensor(tensor["start"], dtype=torch.float64))
        group = {name: tensor[name] for name in ("weight_decay", "layer_adaptation")}
        optimizer = Lamb([{"params": [parameter], **group}], lr=tensor["lr"])
        for gradient, expected in zip(tensor["gradients"], tensor["parameters"], strict=True):
            parameter.grad = torch.tensor(gradient, dtype=torch.float64)
            optimizer.step()
            expected = torch.tensor(expected, dtype=torch.float64)
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("decay", [0.01, 0.0])
def test_lambs_step_is_the_weights_own_length_but_for_layer_norms_and_biases(decay):
    """lamb_optimizer.py: exclude_from_layer_adaptation is exclude_from_weight_decay; neither a
    decay of 0 nor a long tensor changes that.
    """
    torch.manual_seed(0)
    model = nn.ModuleDict({"dense": nn.Linear(30, 40), "LayerNorm": nn.LayerNorm(40)})
    with torch.no_grad():
        model["dense"].weight.mul_(4000.0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = create_optimizer("lamb", model, learning_rate=0.001, weight_decay=decay)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moved = {
        name: (parameter - before[name]).norm().item()
        for name, parameter in model.named_parameters()
    }
    # The ratio has no upper bound: here it is above 50. The update has 0.1 / sqrt(0.001) in each
    # element, and the decay.
    update = 0.1 / 0.001**0.5 + decay * before["dense.weight"]
    assert before["dense.weight"].norm() > 50 * update.norm()
    assert moved.pop("dense.weight") == pytest.approx(
        0.001 * before["dense.weight"].norm().item(), rel=1e-3
    )
    # 0.1 / sqrt(0.001) each element at the first step, without bias correction.
    assert list(moved.values()) == pytest.approx([0.001 * 40**0.5 * 0.1 / 0.001**0.5] * 3, rel=1e-3)


def test_decay_spares_layer_norms_and_biases_and_nothing_else():
    """exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"]: embeddings are decayed."""
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=50))
    decayed, plain = decay_groups(model, 0.01)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert decayed["weight_decay"] == 0.01
    assert plain["weight_decay"] == 0.0
    spared = {name for name in names.values() if "LayerNorm" in name or name.endswith("bias")}
    assert sorted(names[id(p)] for p in plain["params"]) == sorted(spared)
    assert sorted(names[id(p)] for p in decayed["params"]) == sorted(set(names.values()) - spared)
    assert "bert.embeddings.word_embeddings.weight" not in spared
