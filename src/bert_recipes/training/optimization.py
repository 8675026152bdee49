"""Optimisers and schedules by name: the paper's Adam and its schedule, AdamW, LAMB, Muon, and
everything of the Trainer.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bert_recipes.training.late_number import LateNumber


logger = logging.getLogger(__name__)

ADAM_OPTIMIZERS = ("bert_adam", "adamw")
OPTIMIZERS = (*ADAM_OPTIMIZERS, "lamb", "muon", "trainer")
SCHEDULES = ("bert_linear", "trainer")
# google-research/bert optimization.py, create_optimizer: exclude_from_weight_decay.
NO_DECAY = ("LayerNorm", "layer_norm", "bias")
# Rows and columns of a matrix for Muon: output layers of a few classes are none.
MIN_MATRIX = 32


class BertAdam(torch.optim.AdamW):
    """Adam as in google-research/bert optimization.py, `AdamWeightDecayOptimizer`.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  theta <- theta - lr (m / (sqrt(v) + eps) +
    decay theta). It is AdamW without bias correction. torch's fused AdamW computes
    theta (1 - lr' decay') - lr' (m / (1 - b1^t)) / (sqrt(v) / sqrt(1 - b2^t) + eps'), which is the
    same step for lr' = lr (1 - b1^t) / sqrt(1 - b2^t), eps' = eps / sqrt(1 - b2^t), decay' = decay
    lr / lr': one pass over the memory instead of eight.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, eps: float = 1e-6, **settings: Any
    ) -> None:
        super().__init__(params, lr=lr, eps=eps, fused=True, **settings)
        # A loss scaler must skip a step from outside: the steps are counted here, without asking
        # the device.
        self._step_supports_amp_scaling = False
        # id of a parameter -> its steps up to now; read off its state when it is first met.
        self._counts: dict[int, int] = {}
        self._counted: list[int] = []  # in the last step
        # float (), 1 where the coming step shall change nothing: it is decided on the device.
        self.found_inf: torch.Tensor | None = None
        self._found_inf_before: LateNumber | None = None

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of torch's optimiser; the steps are those of the state."""
        super().load_state_dict(state_dict)
        self._counts, self._found_inf_before = {}, None

    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        if self._found_inf_before is not None and self._found_inf_before.read() > 0:
            for key in self._counted:
                self._counts[key] -= 1  # the step before was none
        self._found_inf_before = None if self.found_inf is None else LateNumber(self.found_inf)
        self._counted = []
        # lr, eps and weight_decay are set so that AdamW's bias correction cancels, and put back.
        plain = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        try:
            for group in self.param_groups:
                if (step := self._count_step(group["params"])) == 0:
                    continue
                beta1, beta2 = group["betas"]
                root = (1 - beta2**step) ** 0.5
                scale = (1 - beta1**step) / root
                group["lr"], group["eps"] = group["lr"] * scale, group["eps"] / root
                group["weight_decay"] = group["weight_decay"] / scale
            return super().step(closure)
        finally:
            for group, (lr, eps, weight_decay) in zip(self.param_groups, plain, strict=True):
                group["lr"], group["eps"], group["weight_decay"] = lr, eps, weight_decay

    def _count_step(self, parameters: Iterable[torch.Tensor]) -> int:
        """Number of the coming step of those with a gradient, from 1; 0 where none has one."""
        numbers = set()
        for parameter in parameters:
            if parameter.grad is not None:
                key = id(parameter)
                if key not in self._counts:
                    self._counts[key] = (
                        int(self.state[parameter].get("step", 0)) if parameter in self.state else 0
                    )
                self._counts[key] += 1
                self._counted.append(key)
                numbers.add(self._counts[key])
        if len(numbers) > 1:
            raise RuntimeError(
                "parameters of one group have had a gradient in different numbers of steps; put "
                "those that are trained at other "
                "times into a group of their own"
            )
        return numbers.pop() if numbers else 0


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020) as in google-research/albert lamb_optimizer.py, `LAMBOptimizer`:
    without bias correction.

    u = m / (sqrt(v) + eps) + decay theta, with the moments of `BertAdam`;  theta <- theta - lr
    (|theta| / |u|) u for each tensor. The ratio is 1 where either norm is 0, and in groups with
    `layer_adaptation` False: LayerNorm and biases.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        """Groups may have `weight_decay` and `layer_adaptation`; the parameters are whole
        tensors.
        """
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
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if not (state := self.state[parameter]):
                    state |= {
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
            gradients = [parameter.grad for parameter in parameters]
            means, squares = (
                [self.state[each][name] for each in parameters]
                for name in ("exp_avg", "exp_avg_sq")
            )
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
                weights, lengths = (
                    torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, updates)
                )
                ratios = torch.where((weights > 0) & (lengths > 0), weights / lengths, 1.0)
                torch._foreach_mul_(updates, ratios.unbind())
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon` (Jordan et al. 2024) for groups with `momentum`, fused AdamW for those
    with `betas`: one state, one file.

    The matrices of one shape are orthogonalised together, which torch's class does one by one; that
    is the only difference.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        self._adam: Any = torch.optim.AdamW(
            [group for group in self.param_groups if "betas" in group], fused=True
        )
        for group, complete in zip(self._adam_groups(), self._adam.param_groups, strict=True):
            group |= {name: value for name, value in complete.items() if name != "params"}
        # float (), 1 where the coming step shall change nothing: it is decided on the device.
        self.found_inf: torch.Tensor | None = None

    def _adam_groups(self) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if "betas" in group]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        self._adam.param_groups, self._adam.state = self._adam_groups(), self.state
        self._adam.found_inf = self.found_inf
        self._adam.step()
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.Tensor]] = {}
            for parameter in group["params"] if "momentum" in group else ():
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._update_matrices(
                    parameters, group["lr"], group["momentum"], group["weight_decay"]
                )

    def _update_matrices(
        self, parameters: list[torch.Tensor], rate: float, momentum: float, weight_decay: float
    ) -> None:
        """Update matrices of one shape together."""
        for parameter in parameters:
            if not (state := self.state[parameter]):
                state["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        means = torch.stack(buffers)
        gradients = torch.stack(
            [parameter.grad for parameter in parameters if parameter.grad is not None]
        )
        decay: float | torch.Tensor = 1 - rate * weight_decay
        if self.found_inf is not None:
            # The momentum and the weights then stay what they are: the update is 0 below.
            is_skipped = self.found_inf.bool()
            gradients = torch.where(is_skipped, means, gradients)
            decay = torch.where(is_skipped, 1.0, decay)
        means.lerp_(gradients, 1 - momentum)
        torch._foreach_copy_(buffers, list(means.unbind()))
        nesterov = gradients.lerp(means, momentum)
        rows, columns = nesterov.shape[1:]
        updates = orthogonalise(nesterov.mT).mT if rows > columns else orthogonalise(nesterov)
        if self.found_inf is not None:
            updates = updates.masked_fill(is_skipped, 0.0)
        if weight_decay:
            torch._foreach_mul_(parameters, decay)
        scale = rate * max(1.0, rows / columns) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.add_(update, alpha=-scale)


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """(N, R, C) with singular values near 1, of (N, R, C) with R <= C: Newton-Schulz with the
    constants of torch.optim.Muon.

    In bfloat16 as there, but in float32 where products of bfloat16 are emulated: on a CPU with AVX2
    alone they take more than half of a step.
    """
    x = matrices.to(torch.bfloat16 if bfloat16_units(matrices.device.type) else torch.float32)
    x /= x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser reads `found_inf` (float (), 1 = change nothing), as torch's
    fused ones do under a loss scaler.
    """
    return hasattr(optimizer, "found_inf") or getattr(
        optimizer, "_step_supports_amp_scaling", False
    )


def bfloat16_units(device_type: str) -> list[str]:
    """Return the hardware units that multiply bfloat16, on a CPU or else on the current GPU."""
    if device_type == "cpu":
        units = {
            "AMX": torch.cpu._is_amx_tile_supported,
            "AVX512_BF16": torch.cpu._is_avx512_bf16_supported,
        }
        return [name for name, is_there in units.items() if is_there()]
    # including_emulation=False: older GPUs emulate it, slower than float32.
    return ["GPU"] if torch.cuda.is_bf16_supported(including_emulation=False) else []


def muon_groups(
    model: nn.Module, weight_decay: float, learning_rate: float, **adam: Any
) -> list[dict[str, Any]]:
    """The weights of all linear layers but pooler and output layers for Muon; the rest as
    `decay_groups` for AdamW with `adam`.
    """
    # The pooler sees one token of a sequence: next sentences are learned sooner without.
    modules = [module for name, module in model.named_modules() if "pooler" not in name]
    layers = [module.weight for module in modules if isinstance(module, nn.Linear)]
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    matrices = [
        each
        for each in layers
        if each.requires_grad and min(each.shape) >= MIN_MATRIX and id(each) not in tied
    ]
    chosen, groups = set(map(id, matrices)), decay_groups(model, weight_decay)
    for group in groups:
        group |= {"params": [each for each in group["params"] if id(each) not in chosen], **adam}
    number = sum(matrix.numel() for matrix in matrices)
    logger.info(
        "optimizer: Muon for %d matrices (%d parameters), AdamW for the rest", len(matrices), number
    )
    settings = {
        "lr": learning_rate,
        "momentum": 0.95,
        "weight_decay": 0.0,
        "rate_ratio": learning_rate / adam["lr"],
    }
    return [*(group for group in groups if group["params"]), {"params": matrices, **settings}]


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: with decay, embeddings too as in the original, and without for names that contain
    one of `NO_DECAY`.
    """
    pattern = re.compile("|".join(NO_DECAY))
    named = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    decayed = [parameter for name, parameter in named if not pattern.search(name)]
    plain = [parameter for name, parameter in named if pattern.search(name)]
    groups = [
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
    muon_learning_rate: float = 0.02,
) -> torch.optim.Optimizer:
    """Build "bert_adam" (the paper's), "adamw" (with bias correction, fused), "lamb" or "muon" over
    `decay_groups`.
    """
    settings: dict[str, Any] = {"lr": learning_rate, "betas": betas, "eps": epsilon}
    if name == "bert_adam":
        return BertAdam(decay_groups(model, weight_decay), **settings)
    if name == "adamw":
        return torch.optim.AdamW(decay_groups(model, weight_decay), fused=True, **settings)
    if name == "muon":
        return Muon(muon_groups(model, weight_decay, muon_learning_rate, **settings))
    # LAMB. Which ones have neither decay nor ratio their names say: the others may have no decay
    # either.
    groups = decay_groups(model, 1.0)
    for group in groups:
        group |= {
            "weight_decay": weight_decay * group["weight_decay"],
            "layer_adaptation": group["weight_decay"] > 0,
        }
    return Lamb(groups, **settings)


@dataclass(frozen=True)
class Schedule:
    """A warm-up and a decay; `start` is the step of the run that is step 0 of the schedule, `steps`
    are all of it.

    step / warmup while step < warmup, then (1 - step / total) ^ power: the first update has rate 0,
    the decay counts from step 0, so the peak is (1 - warmup / total) ^ power. Source:
    google-research/bert optimization.py, `create_optimizer`, with power 1; NVIDIA
    DeepLearningExamples, BERT, schedulers.py, `PolyWarmUpScheduler`, with power 0.5.
    """

    start: int
    steps: int
    warmup_steps: int
    learning_rate: float
    power: float = 1.0

    def factor(self, step: int) -> float:
        """Factor of the learning rate at a step of the run; before the start it is that of the
        start.
        """
        own = max(step - self.start, 0)
        if own < self.warmup_steps:
            return own / self.warmup_steps
        return max(0.0, 1.0 - own / self.steps) ** self.power


def set_peak_rate(scheduler: LambdaLR, learning_rate: float) -> None:
    """Give a scheduler that was loaded from a checkpoint another peak: that of the phase which
    begins.
    """
    groups = scheduler.optimizer.param_groups
    scheduler.base_lrs = [learning_rate * group.get("rate_ratio", 1.0) for group in groups]
    for group, peak, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group |= {"initial_lr": peak, "lr": peak * factor(scheduler.last_epoch)}
    scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]
