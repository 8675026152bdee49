"""Optimizer and schedule of the original. Source: google-research/bert optimization.py."""

import copy
import itertools
import json

import pytest
import torch
import transformers
from member_models import build
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import BertForMaskedLM, get_scheduler

from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.training import optimization
from bert_recipes.training.optimization import (
    BertAdam,
    Lamb,
    Muon,
    MuonSettings,
    Schedule,
    create_optimizer,
    decay_groups,
    set_peak_rates,
    settings_of_groups,
)


def plain_bert_adam(weights, gradients, rates, betas=(0.9, 0.999), eps=1e-6, decay=0.01):
    """AdamWeightDecayOptimizer.apply_gradients, written out in float64."""
    theta = weights.double()
    m = torch.zeros_like(theta)
    v = torch.zeros_like(theta)
    for gradient, rate in zip(gradients, rates, strict=True):
        g = gradient.double()
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        update = m / (v.sqrt() + eps) + decay * theta
        theta = theta - rate * update
    return theta


@pytest.mark.parametrize("decay", [0.01, 0.0])
def test_bert_adam_is_adam_without_bias_correction_and_with_decoupled_decay(decay):
    torch.manual_seed(0)
    start = 0.02 * torch.randn(40, 30)
    gradients = [torch.randn(40, 30) * 10.0 ** (step % 4 - 3) for step in range(30)]
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
    schedule = Schedule(0, 7038, 2001, 6e-3, power=0.5)
    assert schedule.factor(1000) == 1000 / 2001
    assert schedule.factor(5000) == pytest.approx((1 - 5000 / 7038) ** 0.5)
    assert schedule.factor(7038) == 0.0


def test_the_rate_may_stay_at_its_peak_before_it_decays():
    schedule = Schedule(0, 100, 2, 1.0, flat_until=0.5)
    rates = [schedule.factor(step) for step in (0, 1, 2, 50, 75, 100, 110)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0])
    # After a warm-up that is longer the decay begins at its end.
    schedule = Schedule(0, 100, 20, 1.0, flat_until=0.1)
    assert [schedule.factor(step) for step in (19, 20, 60)] == pytest.approx([0.95, 1.0, 0.5])
    # A run may be no longer than its warm-up.
    assert Schedule(0, 1, 1, 1.0, flat_until=0.5).factor(1) == 0.0


def test_the_momentum_of_muon_rises_in_the_first_part_of_a_run():
    momentum = [optimization.momentum_of_muon(progress, 0.1) for progress in (0, 0.05, 0.1, 1)]
    assert momentum == pytest.approx([0.85, 0.9, 0.95, 0.95])
    assert optimization.momentum_of_muon(0.0, 0.0) == 0.95


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
    set_peak_rates(second, [0.5])
    rates = []
    for _ in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        second.step()
    assert rates == pytest.approx([0, 0.25, 0.3, 0.2, 0.1])


NORMUON = MuonSettings(row_beta=0.9, weight_decay=0.05)


def make_optimizer(name, model):
    muon = NORMUON if name == "normuon" else None
    return create_optimizer(name.removeprefix("nor"), model, learning_rate=0.01, muon=muon)


def train_linear(name, interruption=None):
    """The weight after four steps, and what `interruption` makes of the optimizer after two."""
    torch.manual_seed(0)
    model = nn.Linear(40, 33)
    optimizer = make_optimizer(name, model)
    for step in range(4):
        if interruption is not None and step == 2:
            optimizer = interruption(optimizer, model)
        model(torch.randn(2, 40)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.weight


@pytest.mark.parametrize("name", ["bert_adam", "adamw", "lamb", "muon", "normuon"])
def test_neither_a_resume_nor_a_step_without_gradients_changes_anything(name):
    """A step whose gradient is not finite has none."""

    def resume(optimizer, model):
        resumed = make_optimizer(name, model)
        resumed.load_state_dict(optimizer.state_dict())
        return resumed

    def skip(optimizer, model):
        weight = model.weight.detach().clone()
        optimizer.step()
        assert torch.equal(model.weight, weight)
        return optimizer

    weight = train_linear(name)
    assert torch.equal(train_linear(name, resume), weight)
    assert torch.equal(train_linear(name, skip), weight)


@pytest.mark.parametrize("unit", ["AMX", None])
def test_muon_is_that_of_torch_beside_its_adamw(unit, monkeypatch):
    """Tall, wide and square matrices; embeddings, biases, LayerNorms, the pooler and the output
    layer of two classes are AdamW's.

    torch multiplies bfloat16 wherever it runs. Without a unit for it ours is the more exact one,
    and a CPU rounds batches otherwise than single matrices.
    """
    tolerance = 1e-6 if unit and optimization.bfloat16_unit("cpu") else 3e-4
    monkeypatch.setattr(optimization, "bfloat16_unit", lambda device_type: unit)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=50))
    expected_model = copy.deepcopy(model)
    ours = create_optimizer("muon", model, learning_rate=2e-3, weight_decay=0.01)
    matrices, tables, vectors = [], [], []
    for name, parameter in expected_model.named_parameters():
        if parameter.dim() == 1:
            vectors.append(parameter)
        elif any(word in name for word in ("embeddings", "seq_relationship", "pooler")):
            tables.append(parameter)
        else:
            matrices.append(parameter)
    optimizers = [
        ours,
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0),
        torch.optim.AdamW(tables, lr=2e-3, eps=1e-6, weight_decay=0.01),
        torch.optim.AdamW(vectors, lr=2e-3, eps=1e-6, weight_decay=0.0),
    ]
    pairs = list(zip(model.parameters(), expected_model.parameters(), strict=True))
    for _ in range(3):
        for parameter, expected in pairs:
            parameter.grad = torch.randn_like(parameter)
            expected.grad = parameter.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for parameter, expected in pairs:
        is_matrix = any(expected is matrix for matrix in matrices)
        atol = tolerance if is_matrix else 1e-6
        torch.testing.assert_close(parameter, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("shape", [(96, 40), (40, 96)])
def test_normuon_scales_the_rows_of_an_update_and_decays_what_it_makes_smaller(shape, monkeypatch):
    """Li et al. 2025 (arXiv 2510.05491), algorithm 1, with an update that keeps its norm; Chen et
    al. 2025 (arXiv 2510.12402): a weight decays where it has the sign of its update.
    """
    monkeypatch.setattr(optimization, "bfloat16_unit", lambda device_type: None)
    torch.manual_seed(0)
    model = nn.Linear(*reversed(shape))
    optimizer = create_optimizer("muon", model, learning_rate=0.01, muon=NORMUON)
    # Rows of very different gradients.
    sizes = torch.logspace(-3, 0, shape[0])[:, None]
    momentum = torch.zeros(shape)
    squares = torch.zeros(shape[0], 1)
    for _ in range(3):
        before = model.weight.detach().clone()
        gradient = sizes * torch.randn(shape)
        model.weight.grad = gradient.clone()
        optimizer.step()

        momentum = 0.95 * momentum + 0.05 * gradient
        nesterov = 0.05 * gradient + 0.95 * momentum
        tall = shape[0] > shape[1]
        update = optimization.orthogonalize((nesterov.mT if tall else nesterov)[None])[0].float()
        update = update.mT if tall else update
        squares = 0.9 * squares + 0.1 * update.square().mean(dim=1, keepdim=True)
        scaled = update / squares.sqrt()
        scaled = scaled * update.norm() / scaled.norm()
        decayed = torch.where(before * scaled > 0, before * (1 - 0.02 * 0.05), before)
        expected = decayed - 0.02 * max(1.0, shape[0] / shape[1]) ** 0.5 * scaled
        torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=1e-6)


def test_a_step_that_is_skipped_on_the_device_changes_nothing_of_normuon():
    torch.manual_seed(0)
    model = nn.Linear(40, 96)
    optimizer = make_optimizer("normuon", model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state[model.weight]))

    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()

    after = (model.state_dict(), optimizer.state[model.weight])
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert set(after[1]) == {"momentum_buffer", "row_squares"}


# What Muon must not take: tables, what meets the vocabulary, the pooler, and the output layers of
# one or two numbers.
NOT_FOR_MUON = (
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "pooler",
    "lm_head",
    "decoder",
    "dense_prediction.",
    "sop_classifier",
)


@pytest.mark.parametrize("member", ["electra", "albert"])
def test_muon_turns_every_matrix_of_a_member_by_the_same_angle_in_all_directions(member):
    """ALBERT's layers are one, ELECTRA is two networks with the same embeddings: each matrix is
    taken once, and its update is orthogonal.
    """
    torch.manual_seed(0)
    model = MEMBERS[member](
        pretraining_config("2/128", vocab_size=300, model_type=member, embedding_size=64)
    )
    optimizer = create_optimizer("muon", model, learning_rate=2e-3)
    named = dict(model.named_parameters())
    names = {parameter: name for name, parameter in named.items()}
    names_of_groups = [
        [names[parameter] for parameter in group["params"]] for group in optimizer.param_groups
    ]
    assert sorted(itertools.chain.from_iterable(names_of_groups)) == sorted(named)
    matrices = names_of_groups[-1]
    expected = {name for name, parameter in named.items() if parameter.dim() == 2}
    for word in NOT_FOR_MUON:
        expected = {name for name in expected if word not in name}
    assert set(matrices) == expected
    assert ("generator.electra.embeddings_project.weight" in matrices) == (member == "electra")

    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for name in matrices:
        rows, columns = named[name].shape
        update = (before[name] - named[name].detach()) / (0.02 * max(1.0, rows / columns) ** 0.5)
        values = torch.linalg.svdvals(update)
        # Five steps of Newton-Schulz bring them between 0.7 and 1.2 (torch.optim.Muon); small ones
        # of a square matrix need more.
        assert values.max() < 1.3, name
        assert values.median() > 0.65, name
        assert (values > 0.5).float().mean() > 0.9, name


def test_muon_leaves_out_an_output_layer_of_its_own():
    config = pretraining_config("tiny", vocab_size=100, tie_word_embeddings=False)
    model = BertForMaskedLM(config)
    optimizer = create_optimizer("muon", model, learning_rate=2e-3)
    matrices = {id(parameter) for parameter in optimizer.param_groups[-1]["params"]}
    assert id(model.cls.predictions.transform.dense.weight) in matrices
    assert id(model.cls.predictions.decoder.weight) not in matrices


@pytest.mark.parametrize(
    ("auto_class", "num_labels"),
    [
        ("AutoModelForSequenceClassification", 77),
        ("AutoModelForTokenClassification", 37),
        ("AutoModelForQuestionAnswering", 2),
        ("AutoModelForMultipleChoice", 1),
    ],
)
@pytest.mark.parametrize("member", ["bert", "electra", "roberta"])
def test_a_tasks_layers_are_adamws_beside_muon_however_many_classes_it_has(
    member, auto_class, num_labels
):
    config = pretraining_config("2/128", vocab_size=100, model_type=member)
    config.num_labels = num_labels
    model = getattr(transformers, auto_class).from_config(config)
    optimizer = create_optimizer("muon", model, learning_rate=2e-3)
    matrices = {id(parameter) for parameter in optimizer.param_groups[-1]["params"]}
    expected = {
        id(parameter)
        for name, parameter in model.named_parameters()
        if ".encoder." in name and parameter.dim() == 2
    }
    assert len(expected) == 2 * 6
    assert matrices == expected


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("polynomial", {"lr_end": 1e-3}), ("cosine_with_min_lr", {"min_lr": 1e-3})],
)
def test_a_last_rate_of_stocks_schedules_is_adamws_beside_muon(kind, settings):
    optimizer = make_optimizer("muon", nn.Linear(40, 33))
    scheduler = get_scheduler(kind, optimizer, 0, 4, scheduler_specific_kwargs=settings)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    # From 0.01 and 0.02.
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3, 2e-3])


def test_muon_may_learn_beside_an_adamw_that_does_not():
    optimizer = create_optimizer("muon", nn.Linear(40, 33), learning_rate=0.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.02]


def test_lamb_is_that_of_the_original(shared_data):
    """google-research/albert lamb_optimizer.py: its formula in float64 on five tensors, one of
    which starts at zero.
    """
    file = shared_data / "reference" / "family" / "lamb_trajectory.json"
    for tensor in json.loads(file.read_text()):
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
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = create_optimizer("lamb", model, learning_rate=0.001, weight_decay=decay)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    pairs = zip(model.parameters(), before, strict=True)
    weight_step, *steps = [(parameter - start).norm().item() for parameter, start in pairs]
    # 0.1 / sqrt(0.001) in each element at the first step, without bias correction, and the decay.
    element = 0.1 / 0.001**0.5
    # The ratio has no upper bound: here it is above 50.
    assert before[0].norm() > 50 * (element + decay * before[0]).norm()
    assert weight_step == pytest.approx(0.001 * before[0].norm().item(), rel=1e-3)
    assert steps == pytest.approx([0.001 * 40**0.5 * element] * 3, rel=1e-3)


@pytest.mark.parametrize(
    "member",
    [
        "BertForPreTraining",
        "RobertaForMaskedLM",
        "AlbertForPreTraining",
        "DistilBertForMaskedLM",
        "ElectraForPreTraining",
    ],
)
def test_decay_spares_layer_norms_and_biases_and_nothing_else(member):
    """exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"]: embeddings are decayed."""
    model = build(member)
    of_layer_norms = set()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            of_layer_norms.update(module.parameters())
    decays = {}
    for group in decay_groups(model, 0.01):
        for parameter in group["params"]:
            decays[parameter] = group["weight_decay"]
    for name, parameter in model.named_parameters():
        is_spared = parameter in of_layer_norms or name.endswith("bias")
        assert decays[parameter] == (0.0 if is_spared else 0.01), name


def test_decay_spares_layer_norms_by_any_name():
    """ModernBERT's are norm, attn_norm and mlp_norm, as stock's Trainer knows too."""
    config = transformers.ModernBertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0
    )
    model = transformers.ModernBertForMaskedLM(config)
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed, plain = (
        {names[parameter] for parameter in group["params"]} for group in decay_groups(model, 0.01)
    )
    assert "model.layers.1.attn_norm.weight" in plain
    assert {"model.final_norm.weight", "head.norm.weight"} < plain
    assert not any("norm" in name for name in decayed)


def test_the_peak_of_a_group_is_not_the_rate_that_its_last_step_had():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / 2)
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.0
    (settings,) = settings_of_groups(optimizer)
    assert settings == {"momentum": 0, "weight_decay": 0, "initial_lr": 0.5}


def adam_of_muon(parameters, lr):
    group = {"params": list(parameters), "lr": lr, "betas": (0.9, 0.99), "eps": 1e-6}
    return Muon([{**group, "weight_decay": 0.0}], lr)


@pytest.mark.parametrize("make_optimizer", [BertAdam, Lamb, adam_of_muon])
def test_a_closure_computes_the_gradients_of_its_step(make_optimizer):
    """As torch's optimizers let it, which some libraries rely on."""
    weights = {}
    for with_closure in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4)
        optimizer = make_optimizer(layer.parameters(), lr=0.1)

        def closure(layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            loss = layer(torch.ones(2, 4)).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            if with_closure:
                assert optimizer.step(closure) > 0
            else:
                closure()
                optimizer.step()
        weights[with_closure] = layer.weight
    torch.testing.assert_close(weights[True], weights[False], rtol=0, atol=0)
