"""TinyBERT: a student learns its teacher's embeddings, hidden states and attention scores, of text
or of a task's examples.

Layers are stock's: the packed ones hold neither attention scores nor all hidden states.

Legend: B batch, S positions, h heads, L layers of the student, D its hidden size, E the teacher's.
Source: Jiao et al. 2020, section 3; huawei-noah/Pretrained-Language-Model,
TinyBERT/general_distill.py and task_distill.py.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.distillation import take_teacher
from bert_recipes.training.resume import NO_ENGINE
from bert_recipes.training.trainer import RecipeTrainer


logger = logging.getLogger(__name__)

SCORED = "bert_recipes_scored"
# Beside the weights, which are those of a stock model.
FIT_FILE = "fit_dense.safetensors"


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, *others: Any, scaling: float, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """As stock's sdpa; what it calls `attentions` are the scores before mask and softmax, (B, h, S,
    S).
    """
    out, _ = sdpa_attention_forward(module, query, key, *others, scaling=scaling, **kwargs)
    return out, query @ key.transpose(2, 3) * scaling


AttentionInterface.register(SCORED, attend)
AttentionMaskInterface.register(SCORED, sdpa_mask)


def check_pair(teacher: Any, student: Any) -> None:
    """Refuse a teacher and a student whose layers and heads cannot be compared."""
    own, other = student.config, teacher.config
    for name, config in (("teacher", other), ("student", own)):
        if config.model_type != "bert":
            raise InputError(
                f"the {name} is a {config.model_type}; TinyBERT's teacher and student are BERTs"
            )
    if own.num_attention_heads != other.num_attention_heads:
        raise InputError(
            f"the teacher has {other.num_attention_heads} heads, the student "
            f"{own.num_attention_heads}; scores are compared head by "
            "head: give a student of as many"
        )
    if other.num_hidden_layers % own.num_hidden_layers:
        raise InputError(
            f"the teacher has {other.num_hidden_layers} layers, the student "
            f"{own.num_hidden_layers}; each layer of the student learns "
            "from every n-th of the teacher: give a student whose layers divide the teacher's"
        )


def imitation_losses(
    student: Any, teacher: Any, fit: nn.Module, attention_mask: torch.Tensor
) -> torch.Tensor:
    """float32 (3,): squared errors of attention scores, hidden states and embeddings, summed over
    the layers.

    Scores are summed over the pairs of real tokens and averaged over the heads; states are summed
    over the real tokens and averaged over E. Layer m of L learns from layer m * n of L * n. The
    original averages over padding too: its loss depends on it.

    Args:
        student: Output with `hidden_states` and `attentions` (`attend`); `teacher` too.
        fit: From D to E, one for all layers and the embeddings as in the original's code; the paper
            has two.
        attention_mask: int64 (B, S).
    """
    every = len(teacher.attentions) // len(student.attentions)
    pairs = attention_mask[:, None, :, None] * attention_mask[:, None, None, :]
    scores = [
        ((own.float() - other.float()).square() * pairs).sum() / own.shape[1]
        for own, other in zip(
            student.attentions, teacher.attentions[every - 1 :: every], strict=True
        )
    ]
    embeddings, *states = [
        ((fit(own.float()) - other.float()).square().mean(-1) * attention_mask).sum()
        for own, other in zip(student.hidden_states, teacher.hidden_states[::every], strict=True)
    ]
    return torch.stack([sum(scores), sum(states), embeddings])


class ImitationTrainer(RecipeTrainer):
    """A Trainer in which the student's embeddings and layers learn from a teacher's; its pooler and
    heads stay as they are.

    Each loss is a mean over the real tokens, or pairs of them, of the *global* batch. The teacher
    has no dropout, which the original forgot to switch off.

    Args:
        weights: Of attention scores, hidden states and embeddings (paper: 1 each).
        starts_from: What the student was loaded from, whose `FIT_FILE` is taken up where there is
            one.
    """

    def __init__(
        self,
        model: Any,
        args: Any,
        *others: Any,
        teacher: Any,
        weights: Sequence[float],
        starts_from: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_pair(teacher, model)
        args.fast_layers = "off"
        for each in (model, teacher):
            each.set_attn_implementation(SCORED)
        sizes = model.config.hidden_size, teacher.config.hidden_size
        # A part of the model, so that optimiser and DDP know it.
        model.fit_dense = fit = nn.Linear(*sizes)
        model._init_weights(fit)
        model._keys_to_ignore_on_save = {f"fit_dense.{name}" for name in fit.state_dict()}
        inside = (
            "fit_dense",
            *(f"{model.base_model_prefix}.{part}." for part in ("embeddings", "encoder")),
        )
        for name, parameter in model.named_parameters():
            if not name.startswith(inside):
                parameter.requires_grad_(False)
        super().__init__(model, args, *others, **kwargs)
        if self.engine != NO_ENGINE:
            raise InputError(
                f"{self.engine} splits the student's weights, which TinyBERT needs whole: give "
                "LAUNCH=ddp"
            )
        self.teacher = take_teacher(self, teacher)
        self.weights = torch.tensor(weights, dtype=torch.float32, device=self.args.device)
        if starts_from is not None and (file := Path(starts_from) / FIT_FILE).is_file():
            fits = load_file(file)["weight"].shape == fit.weight.shape
            logger.info(
                "%s: %s",
                file,
                "taken up" if fits else "of another teacher's size, drawn from scratch",
            )
            if fits:
                self._load_fit(file)

    def _load_fit(self, file: Path) -> None:
        fit: Any = self.model.fit_dense
        fit.load_state_dict(load_file(file))

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if not self.args.should_save:  # stock calls this in every process
            return
        fit: Any = self.model.fit_dense
        save_file(fit.state_dict(), Path(output_dir or self.args.output_dir) / FIT_FILE)

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(checkpoint, model)
        self._load_fit(Path(checkpoint) / FIT_FILE)

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """int64 (2,): real tokens, and pairs of real tokens."""
        lengths = batch["attention_mask"].sum(dim=-1)
        return torch.stack([lengths.sum(), lengths.square().sum()])

    def count_work(self, batch: dict[str, torch.Tensor], items: torch.Tensor) -> torch.Tensor:
        """Without predicted tokens."""
        return RecipeTrainer.count_work(self, batch, items)

    def imitate(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """`imitation_losses` of a batch."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        texts: dict[str, Any] = {name: batch[name] for name in names}
        texts |= {"output_hidden_states": True, "output_attentions": True}
        with torch.no_grad(), self.autocast():
            taught = self.teacher.base_model(**texts)
        if isinstance(
            self.model, PreTrainingModel
        ):  # without labels it computes the logits of all tokens
            texts |= {
                "labels": torch.full_like(batch["input_ids"], IGNORE_INDEX),
                "return_full_logits": False,
            }
        output = model(**texts)
        fit: Any = self.model.fit_dense
        return imitation_losses(output, taught, fit, batch["attention_mask"])

    def part_of_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """The sum of the three, weighed."""
        tokens, pairs = counts
        parts = self.imitate(model, inputs) / torch.stack([pairs, tokens, tokens])
        return (parts * self.weights).sum(), {}


class ImitationSums:
    """Sums over held-out batches; those of several processes may be added."""

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights
        self.values = torch.zeros(5, dtype=torch.float64, device=weights.device)

    def add(self, losses: torch.Tensor, batch: dict[str, torch.Tensor]) -> None:
        """Add one batch and its `imitation_losses`."""
        lengths = batch["attention_mask"].sum(dim=-1)
        self.values += torch.cat(
            [losses.double(), torch.stack([lengths.square().sum(), lengths.sum()]).double()]
        )

    def metrics(self, prefix: str = "eval", _: str = "") -> dict[str, float]:
        """`attention_loss`, `hidden_loss`, `embedding_loss`, and `loss`, their weighed sum."""
        *sums, pairs, tokens = self.values.tolist()
        values = [total / count for total, count in zip(sums, (pairs, tokens, tokens), strict=True)]
        result = dict(zip(("attention_loss", "hidden_loss", "embedding_loss"), values, strict=True))
        result["loss"] = sum(
            weight * value for weight, value in zip(self.weights.tolist(), values, strict=True)
        )
        return {f"{prefix}_{name}": value for name, value in result.items()}


class TinyBertTrainer(ImitationTrainer, BertTrainer):
    """The general stage: the student learns from text, as it is in the data or masked, from a
    teacher that was pre-trained only.
    """

    def new_sums(self) -> Any:
        """`ImitationSums`."""
        return ImitationSums(self.weights)

    def measure(self, batch: dict[str, torch.Tensor]) -> Any:
        """`imitation_losses`."""
        return self.imitate(self.model, batch)
