"""Optimizers and schedules by name.

The paper's Adam and its schedule, AdamW, LAMB, Muon, and everything of the Trainer.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bert_recipes.training.late_number import LateNumber
from bert_recipes.training.speed import read_cpu_facts


logger = logging.getLogger(__name__)

ADAM_OPTIMIZERS = ("bert_adam", "adamw")
OPTIMIZERS = (*ADAM_OPTIMIZERS, "lamb", "muon", "trainer")
SCHEDULES = ("bert_linear", "trainer")
# Those of the Trainer that follow `metric_for_best_model`.
SCHEDULERS_BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # older transformers lack the second
# google-research/bert optimization.py, create_optimizer: exclude_from_weight_decay.
NO_DECAY = ("LayerNorm", "layer_norm", "bias")
# Linear layers whose names contain one of these are AdamW's beside Muon: a task's output layer, and
# what sees one token of a sequence. With AdamW a pooler learns next sentences sooner.
NO_MUON = ("classifier", "pooler", "sequence_summary")
# Rows and columns of a matrix for Muon, at least: other output layers have one number or two.
MIN_MATRIX = 32
# Muon's momentum at the end of its warm-up, and at the start of one (KellerJordan/modded-nanogpt).
MUON_MOMENTUM = 0.95
MUON_START_MOMENTUM = 0.85
# What the settings of a run decide in a group. A resumed run keeps them: its checkpoint may be of
# other settings, or of a version without some of them.
GROUP_SETTINGS = ("betas", "eps", "momentum", "row_beta", "weight_decay")
# The least mean square of a row of an update that NorMuon divides by.
MIN_ROW_SQUARE = 1e-10


def _loss_of(closure: Any) -> Any:
    """Let a closure compute loss and gradients before a step, as torch's optimizers do."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class BertAdam(torch.optim.AdamW):
    """Adam as in google-research/bert optimization.py, `AdamWeightDecayOptimizer`.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  theta <- theta - lr (m / (sqrt(v) + eps) +
    decay theta). It is AdamW without bias correction. torch's fused AdamW takes one pass over the
    memory instead of eight, and has a correction for the step t:
    theta (1 - lr' decay') - lr' (m / (1 - b1^t)) / (sqrt(v) / sqrt(1 - b2^t) + eps').
    `step` gives it settings with which the correction cancels:
    lr' = lr (1 - b1^t) / sqrt(1 - b2^t), eps' = eps / sqrt(1 - b2^t), decay' = decay lr / lr'.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, eps: float = 1e-6, **settings: Any
    ) -> None:
        super().__init__(params, lr=lr, eps=eps, fused=True, **settings)
        # A loss scaler must skip the call of `step`, and not inside of it: the steps are counted on
        # the host.
        self._step_supports_amp_scaling = False
        # Parameter -> number of its steps; the first number is read from its state.
        self._step_counts: dict[torch.Tensor, int] = {}
        self._parameters_of_last_step: list[torch.Tensor] = []
        # float (), on the device: 1 where the coming step must change nothing.
        self.found_inf: torch.Tensor | None = None
        self._found_inf_before: LateNumber | None = None

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of torch's optimizer; the steps are those of the state."""
        super().load_state_dict(state_dict)
        self._step_counts = {}
        self._found_inf_before = None

    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = _loss_of(closure)
        if self._found_inf_before is not None and self._found_inf_before.read() > 0:
            for parameter in self._parameters_of_last_step:
                self._step_counts[parameter] -= 1  # the previous step was skipped
        self._found_inf_before = None if self.found_inf is None else LateNumber(self.found_inf)
        self._parameters_of_last_step = []
        # AdamW's bias correction cancels with other lr, eps and weight_decay, restored below.
        plain_groups = [dict(group) for group in self.param_groups]
        try:
            for group in self.param_groups:
                step = self._count_step(group["params"])
                if step > 0:
                    beta1, beta2 = group["betas"]
                    root = (1 - beta2**step) ** 0.5
                    scale = (1 - beta1**step) / root
                    # Not in place: a learning rate may be a tensor that the scheduler holds.
                    group["lr"] = group["lr"] * scale
                    group["eps"] = group["eps"] / root
                    group["weight_decay"] = group["weight_decay"] / scale
            super().step()
            return loss
        finally:
            for group, plain_group in zip(self.param_groups, plain_groups, strict=True):
                group.update(plain_group)

    def _count_step(self, parameters: Iterable[torch.Tensor]) -> int:
        """Return the number of the coming step, from 1; 0 where no parameter has a gradient."""
        steps = set()
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if parameter not in self._step_counts:
                state = self.state.get(parameter, {})
                self._step_counts[parameter] = int(state.get("step", 0))
            self._step_counts[parameter] += 1
            self._parameters_of_last_step.append(parameter)
            steps.add(self._step_counts[parameter])
        if len(steps) > 1:
            raise RuntimeError(
                "parameters of one group have had a gradient in different numbers of steps; put "
                "those that are trained at other times into a group of their own"
            )
        return max(steps, default=0)


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020) without bias correction.

    u = m / (sqrt(v) + eps) + decay theta, with the moments of `BertAdam`;  theta <- theta - lr
    (|theta| / |u|) u for each tensor. The ratio is 1 where either norm is 0, and in groups with
    `layer_adaptation` False: LayerNorm and biases. Source: google-research/albert
    lamb_optimizer.py, `LAMBOptimizer`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        """Take groups, which may have `weight_decay` and `layer_adaptation`, of whole tensors."""
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": 0.01,
            "layer_adaptation": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[torch.Tensor], group: Mapping[str, Any]) -> None:
        gradients: Any = [parameter.grad for parameter in parameters]
        means = []
        squares = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            means.append(state["exp_avg"])
            squares.append(state["exp_avg_sq"])
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)

        updates = torch._foreach_sqrt(squares)
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["layer_adaptation"]:
            weight_norms = torch.stack(torch._foreach_norm(parameters))
            update_norms = torch.stack(torch._foreach_norm(updates))
            has_norms = (weight_norms > 0) & (update_norms > 0)
            ratios = torch.where(has_norms, weight_norms / update_norms, 1.0)
            torch._foreach_mul_(updates, ratios.unbind())
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """Muon for groups with `momentum`, fused AdamW for those with `betas`, in one state and file.

    An update is that of `torch.optim.Muon` (Jordan et al. 2024); the matrices of one shape are
    orthogonalized together.

    A group with `row_beta` above 0 has NorMuon's rows (Li et al. 2025): each row of an update is
    divided by the root of the running mean of its squares. The update keeps its norm, as in
    KellerJordan/modded-nanogpt; the paper gives all updates one root mean square.

    The weight decay is cautious (Chen et al. 2025): a weight decays where its update makes it
    smaller too. Where the update is 0, as in a skipped step, nothing decays; in the paper it does.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        """Take groups with all their settings; stock's schedules read `lr`, the rate of AdamW."""
        super().__init__(groups, {"lr": lr})
        # It works on the groups and the state of this optimizer, whose file then has all.
        self._adam: Any = torch.optim.AdamW(self._adam_groups(), fused=True)
        # The settings that AdamW adds to its groups.
        for group, adam_group in zip(self._adam_groups(), self._adam.param_groups, strict=True):
            group.update(adam_group)
        # float (), on the device: 1 where the coming step must change nothing.
        self.found_inf: torch.Tensor | None = None

    def _adam_groups(self) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if "betas" in group]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = _loss_of(closure)
        # `load_state_dict` has put other objects in their places.
        self._adam.param_groups = self._adam_groups()
        self._adam.state = self.state
        self._adam.found_inf = self.found_inf
        self._adam.step()
        for group in self.param_groups:
            if "momentum" not in group:
                continue
            matrices_by_shape = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    matrices_by_shape[matrix.shape].append(matrix)
            for matrices in matrices_by_shape.values():
                self._update(matrices, group)
        return loss

    def _update(self, matrices: list[torch.Tensor], group: Mapping[str, Any]) -> None:
        """Update matrices of one shape together."""
        buffers = []
        for matrix in matrices:
            state = self.state[matrix]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(matrix)
            buffers.append(state["momentum_buffer"])
        means = torch.stack(buffers)
        gradients = torch.stack([matrix.grad for matrix in matrices])  # type: ignore[misc]
        if self.found_inf is not None:
            # A skipped step leaves momentum and weights as they are: its update is 0 below.
            is_skipped = self.found_inf.bool()
            gradients = torch.where(is_skipped, means, gradients)
        means.lerp_(gradients, 1 - group["momentum"])
        torch._foreach_copy_(buffers, list(means.unbind()))

        nesterov = gradients.lerp(means, group["momentum"])
        _, rows, columns = nesterov.shape
        updates = orthogonalize(nesterov.mT).mT if rows > columns else orthogonalize(nesterov)
        if group["row_beta"]:
            updates = self._scale_rows(matrices, updates.float(), group["row_beta"])
        if self.found_inf is not None:
            updates = updates.masked_fill(is_skipped, 0.0)
        scale = group["lr"] * max(1.0, rows / columns) ** 0.5
        for matrix, update in zip(matrices, updates, strict=True):
            if group["weight_decay"]:
                is_decayed = matrix * update > 0
                matrix.addcmul_(matrix, is_decayed, value=-group["lr"] * group["weight_decay"])
            matrix.add_(update, alpha=-scale)

    def _scale_rows(
        self, matrices: list[torch.Tensor], updates: torch.Tensor, beta: float
    ) -> torch.Tensor:
        """Return updates (N, R, C) whose rows are about as long as each other."""
        buffers = []
        for matrix in matrices:
            state = self.state[matrix]
            if "row_squares" not in state:
                state["row_squares"] = matrix.new_zeros(len(matrix), 1)
            buffers.append(state["row_squares"])
        squares = torch.stack(buffers)
        row_squares = updates.square().mean(dim=2, keepdim=True)
        if self.found_inf is not None:
            row_squares = torch.where(self.found_inf.bool(), squares, row_squares)
        squares.lerp_(row_squares, 1 - beta)
        torch._foreach_copy_(buffers, list(squares.unbind()))

        scaled = updates * squares.clamp(min=MIN_ROW_SQUARE).rsqrt()
        norms = updates.norm(dim=(1, 2), keepdim=True)
        scaled_norms = scaled.norm(dim=(1, 2), keepdim=True)
        return scaled * (norms / scaled_norms.clamp(min=1e-7))


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Return (N, R, C) with singular values near 1, of (N, R, C) with R <= C.

    Newton-Schulz with the constants of torch.optim.Muon, in bfloat16 as there, but in float32 where
    that is faster: on a CPU with AVX2 alone products of bfloat16 take more than half of a step.
    """
    has_unit = bfloat16_unit(matrices.device.type) is not None
    x = matrices.to(torch.bfloat16 if has_unit else torch.float32)
    norm = x.norm(dim=(1, 2), keepdim=True)
    x /= norm.clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer reads `found_inf` (float (), 1 = change nothing).

    `BertAdam` and `Muon` do, and torch's fused optimizers.
    """
    is_fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    return hasattr(optimizer, "found_inf") or is_fused


def bfloat16_unit(device_type: str) -> str | None:
    """Return what multiplies bfloat16 faster than float32, on a CPU or else on the current GPU."""
    if device_type != "cpu":
        # Older GPUs emulate it, slower than float32.
        return "GPU" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    if torch.cpu._is_amx_tile_supported():
        return "AMX"
    # Intel's processors with AMX have it too, at half the rate of float32, and virtual machines may
    # hide AMX (docs/log.md).
    is_of_amd = read_cpu_facts().get("vendor_id") == "AuthenticAMD"
    if torch.cpu._is_avx512_bf16_supported() and is_of_amd:
        return "AVX512_BF16"
    return None


@dataclass(frozen=True)
class MuonSettings:
    """The settings of Muon's matrices.

    Attributes:
        learning_rate: At its peak.
        row_beta: The decay rate of NorMuon's mean of squares; 0: Muon.
        weight_decay: Cautious: only where the update makes a weight smaller too.
    """

    learning_rate: float = 0.02
    row_beta: float = 0.0
    weight_decay: float = 0.0


def muon_groups(
    model: nn.Module, weight_decay: float, muon: MuonSettings, **adam: Any
) -> list[dict[str, Any]]:
    """Return groups for `Muon`: its matrices, and `decay_groups` of the others, for AdamW.

    The matrices are the weights of all linear layers but `NO_MUON` and output layers. `adam` has
    the settings of AdamW.
    """
    matrices = _muon_matrices(model)
    groups: list[dict[str, Any]] = []
    for group in decay_groups(model, weight_decay):
        parameters = [parameter for parameter in group["params"] if parameter not in matrices]
        if parameters:
            groups.append({**group, **adam, "params": parameters})
    muon_group: dict[str, Any] = {
        "params": list(matrices),
        "lr": muon.learning_rate,
        "momentum": MUON_MOMENTUM,
        "row_beta": muon.row_beta,
        "weight_decay": muon.weight_decay,
    }
    logger.info(
        "optimizer: Muon for %d matrices (%d parameters), AdamW for the rest",
        len(matrices),
        sum(matrix.numel() for matrix in matrices),
    )
    return [*groups, muon_group]


def _muon_matrices(model: nn.Module) -> dict[torch.Tensor, None]:
    """Return the matrices for Muon as keys: `in` a list would compare tensors by value."""
    left_out = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    # Of a model of transformers; often tied to an embedding.
    output_layer: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if output_layer is not None:
        left_out.add(output_layer.weight)
    matrices: dict[torch.Tensor, None] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or any(word in name for word in NO_MUON):
            continue
        is_large = min(module.weight.shape) >= MIN_MATRIX
        if is_large and module.weight.requires_grad and module.weight not in left_out:
            matrices[module.weight] = None
    return matrices


def _split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters with decay, and those without: `NO_DECAY`, and any LayerNorm's."""
    of_norms: set[nn.Parameter] = set()  # ModernBERT calls them norm, attn_norm, mlp_norm
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            of_norms.update(module.parameters())
    decayed = []
    plain = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter in of_norms or any(word in name for word in NO_DECAY):
            plain.append(parameter)
        else:
            decayed.append(parameter)
    return decayed, plain


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return a group with decay and one without, for LayerNorms and biases.

    Embeddings have decay, as in the original. A group without parameters is left out.
    """
    decayed, plain = _split_by_decay(model)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def create_optimizer(
    name: str,
    model: nn.Module,
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-6,
    weight_decay: float = 0.01,
    muon: MuonSettings | None = None,
) -> torch.optim.Optimizer:
    """Return the optimizer of a model.

    Args:
        name: "bert_adam" (the paper's), "adamw" (with bias correction, fused), "lamb" or "muon".
        model: Its parameters are in `decay_groups`.
        learning_rate: At its peak.
        betas: The decay rates of the moments.
        epsilon: The epsilon of Adam.
        weight_decay: The weight decay of the group that has one; Muon's matrices have
            `muon.weight_decay`.
        muon: The settings of Muon's matrices.
    """
    settings: dict[str, Any] = {"lr": learning_rate, "betas": betas, "eps": epsilon}
    if name == "bert_adam":
        return BertAdam(decay_groups(model, weight_decay), **settings)
    if name == "adamw":
        return torch.optim.AdamW(decay_groups(model, weight_decay), fused=True, **settings)
    if name == "muon":
        muon = muon or MuonSettings()
        return Muon(muon_groups(model, weight_decay, muon, **settings), learning_rate)
    if name != "lamb":
        raise ValueError(f"unknown optimizer {name!r}")
    decayed, plain = _split_by_decay(model)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay, "layer_adaptation": True},
        {"params": plain, "weight_decay": 0.0, "layer_adaptation": False},
    ]
    return Lamb([group for group in groups if group["params"]], **settings)


class MuonFactory:
    """Make Muon for a stock Trainer.

    Example:
        >>> muon = MuonSettings(learning_rate=0.01)
        >>> settings = {"learning_rate": 2e-3, "muon": muon}  # of `create_optimizer`
        >>> trainer = Trainer(model, args, optimizer_cls_and_kwargs=(MuonFactory, settings))
    """

    def __call__(self, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
        """Return the optimizer of a model, as the Trainer asks for it."""
        return create_optimizer("muon", model, **settings)


@dataclass(frozen=True)
class Schedule:
    """A warm-up and a decay.

    The factor of the learning rate is::

        step / warmup                                      while step < warmup
        min(1, (1 - step / total) / (1 - flat)) ^ power    afterwards

    With flat = 0 the decay counts from step 0, so the peak is (1 - warmup / total) ^ power; the
    first update has rate 0. With `flat_until` above 0 flat is the larger of `flat_until` and
    warmup / total.

    Source: google-research/bert optimization.py, `create_optimizer`, with power 1; NVIDIA
    DeepLearningExamples, BERT, schedulers.py, `PolyWarmUpScheduler`, with power 0.5.
    """

    start: int  # the step of the run that is step 0 of the schedule
    steps: int  # with those of the warm-up
    warmup_steps: int
    learning_rate: float
    power: float = 1.0
    flat_until: float = 0.0  # fraction of the steps

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step of the run.

        Steps before the start have the factor of the start.
        """
        step = max(step - self.start, 0)
        if step < self.warmup_steps:
            return step / self.warmup_steps
        decay_start = 0.0
        if self.flat_until > 0:
            decay_start = max(self.flat_until, self.warmup_steps / self.steps)
        remaining = max(0.0, 1.0 - step / self.steps)
        if remaining == 0:
            return 0.0
        # The quotient is above 1 while the rate is flat.
        return min(remaining / (1.0 - decay_start), 1.0) ** self.power


def momentum_of_muon(progress: float, warmup: float) -> float:
    """Return Muon's momentum at a fraction of the run, with a warm-up of a fraction of it."""
    if progress >= warmup:
        return MUON_MOMENTUM
    return MUON_START_MOMENTUM + (MUON_MOMENTUM - MUON_START_MOMENTUM) * progress / warmup


def settings_of_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return what the settings of a run decide in each group of its new optimizer."""
    all_settings = []
    for group in optimizer.param_groups:
        settings = {name: group[name] for name in GROUP_SETTINGS if name in group}
        peak = group.get("initial_lr", group["lr"])  # after a first training lr is its last rate
        all_settings.append({**settings, "initial_lr": peak})
    return all_settings


def set_peak_rates(scheduler: LambdaLR, peaks: Sequence[float]) -> None:
    """Set the peak of each group from now on in a scheduler that was loaded from a checkpoint."""
    scheduler.base_lrs = list(peaks)
    scheduler._last_lr = []
    groups = scheduler.optimizer.param_groups
    for group, peak, factor in zip(groups, peaks, scheduler.lr_lambdas, strict=True):
        group["initial_lr"] = peak
        group["lr"] = peak * factor(scheduler.last_epoch)
        scheduler._last_lr.append(group["lr"])
