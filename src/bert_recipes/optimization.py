"""Optimisers and schedules by name: the paper's Adam and its schedule, AdamW, LAMB, and everything of the Trainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bert_recipes.errors import InputError


OPTIMIZERS = ("bert_adam", "adamw", "lamb", "trainer")
SCHEDULES = ("bert_linear", "trainer")
# google-research/bert optimization.py, create_optimizer: exclude_from_weight_decay.
NO_DECAY = ("LayerNorm", "layer_norm", "bias")


class BertAdam(torch.optim.AdamW):
    """Adam as in google-research/bert optimization.py, `AdamWeightDecayOptimizer`.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  theta <- theta - lr (m / (sqrt(v) + eps) + decay theta).
    It is AdamW without bias correction. torch's fused AdamW computes
    theta (1 - lr' decay') - lr' (m / (1 - b1^t)) / (sqrt(v) / sqrt(1 - b2^t) + eps'), which is the same step for
    lr' = lr (1 - b1^t) / sqrt(1 - b2^t), eps' = eps / sqrt(1 - b2^t), decay' = decay lr / lr': one pass over the memory
    instead of eight.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate.
        betas: Decay rates of the moments (original: 0.9, 0.999).
        eps: Added to sqrt(v) (original: 1e-6).
        weight_decay: Decoupled decay (original: 0.01).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        """Set up AdamW's fused kernels."""
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        # A loss scaler must skip a step from outside: the steps are counted here, without asking the device.
        self._step_supports_amp_scaling = False

    def step(self, closure: Any = None) -> Any:
        """One update of all parameters that have a gradient.

        Raises:
            RuntimeError: The parameters with a gradient are not those of the steps before.
        """
        with self._uncorrected():
            return super().step(closure)

    @contextmanager
    def _uncorrected(self) -> Iterator[None]:
        """Set lr, eps and weight_decay so that AdamW's bias correction cancels, and put them back."""
        plain = [(group["lr"], group["eps"], group["weight_decay"]) for group in self.param_groups]
        try:
            for group in self.param_groups:
                step = self._count_step(group)
                beta1, beta2 = group["betas"]
                root = (1 - beta2**step) ** 0.5
                scale = (1 - beta1**step) / root
                group["lr"], group["eps"] = group["lr"] * scale, group["eps"] / root
                group["weight_decay"] = group["weight_decay"] / scale
            yield
        finally:
            for group, (lr, eps, weight_decay) in zip(self.param_groups, plain, strict=True):
                group["lr"], group["eps"], group["weight_decay"] = lr, eps, weight_decay

    @staticmethod
    def _count_step(group: dict[str, Any]) -> int:
        """Number of the coming step; the counters are part of the group and so of the state dict."""
        with_gradient = sum(parameter.grad is not None for parameter in group["params"])
        if group.setdefault("num_with_gradient", with_gradient) != with_gradient:
            raise RuntimeError(
                f"{with_gradient} parameters have a gradient, {group['num_with_gradient']} had one before; "
                "put parameters that are trained at other times into a group of their own"
            )
        group["num_steps"] = group.get("num_steps", 0) + 1
        return group["num_steps"]


def bert_linear(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """Factor of the learning rate at optimiser step `step` (from 0).

    step / warmup while step < warmup, then 1 - step / total: the first update has rate 0, the decay counts from step 0,
    so the peak is 1 - warmup / total. Source: google-research/bert optimization.py, `create_optimizer`.
    """
    if step < num_warmup_steps:
        return step / num_warmup_steps
    return max(0.0, 1.0 - step / num_training_steps)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: with decay, and without for names that contain one of `NO_DECAY`.

    Embeddings are decayed, as in the original.
    """
    pattern = re.compile("|".join(NO_DECAY))
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed = [parameter for name, parameter in named if not pattern.search(name)]
    plain = [parameter for name, parameter in named if pattern.search(name)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def create_optimizer(
    name: str,
    model: nn.Module,
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-6,
    weight_decay: float = 0.01,
) -> torch.optim.Optimizer:
    """Build an optimiser by name.

    Args:
        name: "bert_adam" (the paper's), "adamw" (with bias correction, fused), "lamb" (You et al. 2020, from the
            package pytorch-optimizer). "trainer" is not built here: it leaves the choice to `TrainingArguments.optim`.
        model: Its parameters are split by `decay_groups`.
        learning_rate: Peak rate.
        betas: Decay rates of the moments.
        epsilon: Denominator's epsilon.
        weight_decay: Decay of all but LayerNorm and bias parameters.

    Raises:
        InputError: Unknown name.
    """
    groups = decay_groups(model, weight_decay)
    if name == "bert_adam":
        return BertAdam(groups, lr=learning_rate, betas=betas, eps=epsilon, weight_decay=weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(
            groups, lr=learning_rate, betas=betas, eps=epsilon, weight_decay=weight_decay, fused=True
        )
    if name == "lamb":
        from pytorch_optimizer import Lamb  # heavy import, needed by few runs

        return Lamb(groups, lr=learning_rate, betas=betas, eps=epsilon, weight_decay=weight_decay)
    raise InputError(f"optimizer is '{name}'; allowed: {', '.join(OPTIMIZERS)}")


def create_bert_schedule(
    optimizer: torch.optim.Optimizer, num_warmup_steps: int, num_training_steps: int, start_step: int = 0
) -> LambdaLR:
    """The paper's schedule as a torch scheduler; step it after every optimiser step.

    Args:
        optimizer: Its groups' learning rates are the peak.
        num_warmup_steps: Steps of the warm-up.
        num_training_steps: Steps of the whole schedule.
        start_step: Where in the schedule this run begins.
    """

    def factor(step: int) -> float:
        return bert_linear(start_step + step, num_warmup_steps=num_warmup_steps, num_training_steps=num_training_steps)

    return LambdaLR(optimizer, factor)
