"""TinyBERT: a student learns its teacher's embeddings, hidden states and attention scores.

The student reads text or a task's examples. Layers are stock's: packed layers hold neither
attention scores nor all hidden states.

Legend: B batch, S positions, h heads, L layers of the student, D its hidden size, E the teacher's.
Source: Jiao et al. 2020, section 3; huawei-noah/Pretrained-Language-Model,
TinyBERT/general_distill.py and task_distill.py.
"""

import logging
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bert_recipes.checkpointing import find_file
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.run_folder import FIT_FILE
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.distillation import take_teacher
from bert_recipes.training.engines import NO_ENGINE
from bert_recipes.training.trainer import RecipeTrainer


logger = logging.getLogger(__name__)

SCORED = "bert_recipes_scored"


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, *args: Any, scaling: float, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as stock's sdpa, with the scores before mask and softmax as `attentions`.

    The scores are (B, h, S, S).
    """
    output, _ = sdpa_attention_forward(module, query, key, *args, scaling=scaling, **kwargs)
    return output, query @ key.transpose(2, 3) * scaling


AttentionInterface.register(SCORED, attend)
AttentionMaskInterface.register(SCORED, sdpa_mask)


def check_pair(teacher: Any, student: Any) -> None:
    """Refuse a teacher and a student whose layers and heads cannot be compared."""
    for name, model in (("teacher", teacher), ("student", student)):
        if model.config.model_type != "bert":
            raise InputError(
                f"the {name} is a {model.config.model_type}; TinyBERT's teacher and student are "
                "BERTs"
            )
    student_heads = student.config.num_attention_heads
    teacher_heads = teacher.config.num_attention_heads
    if student_heads != teacher_heads:
        raise InputError(
            f"the teacher has {teacher_heads} heads, the student {student_heads}; scores are "
            "compared head by head: give a student of as many"
        )
    student_layers = student.config.num_hidden_layers
    teacher_layers = teacher.config.num_hidden_layers
    if teacher_layers % student_layers:
        raise InputError(
            f"the teacher has {teacher_layers} layers, the student {student_layers}; each layer of "
            "the student learns from every n-th of the teacher: give a student whose layers divide "
            "the teacher's"
        )


def imitation_losses(
    student: Any, teacher: Any, fit: nn.Module, attention_mask: torch.Tensor
) -> torch.Tensor:
    """Return the squared errors of attention scores, hidden states and embeddings, float32 (3,).

    The errors are summed over the layers. Errors of scores are summed over the pairs of real tokens
    and averaged over the heads; errors of states are summed over the real tokens and averaged over
    E. Layer m of L learns from layer m * n of L * n. The original averages over padding too: its
    loss depends on the padding.

    Args:
        student: Output with `hidden_states` and `attentions` (`attend`); `teacher` too.
        fit: From D to E, one for all layers and the embeddings as in the original's code; the paper
            has two.
        attention_mask: int64 (B, S).
    """
    pairs = attention_mask[:, None, :, None] * attention_mask[:, None, None, :]

    def score_error(scores: torch.Tensor, teacher_scores: torch.Tensor) -> torch.Tensor:
        errors = (scores.float() - teacher_scores.float()).square()
        return (errors * pairs).sum() / scores.shape[1]

    def state_error(states: torch.Tensor, teacher_states: torch.Tensor) -> torch.Tensor:
        errors = (fit(states.float()) - teacher_states.float()).square()
        return (errors.mean(-1) * attention_mask).sum()

    n = len(teacher.attentions) // len(student.attentions)
    score_errors = []
    for scores in zip(student.attentions, teacher.attentions[n - 1 :: n], strict=True):
        score_errors.append(score_error(*scores))
    state_errors = []  # the first are the embeddings
    for states in zip(student.hidden_states, teacher.hidden_states[::n], strict=True):
        state_errors.append(state_error(*states))
    score_loss: Any = sum(score_errors)
    state_loss: Any = sum(state_errors[1:])
    return torch.stack([score_loss, state_loss, state_errors[0]])


def prepare_student(student: Any, teacher: Any) -> None:
    """Add `fit_dense` to a student, and freeze its pooler and its heads, which do not learn.

    Both models then return attention scores as `attentions` (`attend`).
    """
    check_pair(teacher, student)
    for model in (student, teacher):
        model.set_attn_implementation(SCORED)
    # A module of the model, so that optimizer and DDP know it.
    student.fit_dense = nn.Linear(student.config.hidden_size, teacher.config.hidden_size)
    student._init_weights(student.fit_dense)
    student._keys_to_ignore_on_save = {"fit_dense.weight", "fit_dense.bias"}
    prefix = student.base_model_prefix
    learning = ("fit_dense.", f"{prefix}.embeddings.", f"{prefix}.encoder.")
    for name, parameter in student.named_parameters():
        if not name.startswith(learning):
            parameter.requires_grad_(False)


class LayerTeacher:
    """A teacher whose embeddings and layers the student of a trainer imitates.

    Each loss is a mean over the real tokens, or pairs of them, of the *global* batch. The teacher
    has no dropout, which the original forgot to switch off.

    Args:
        trainer: Its model went through `prepare_student`; `FIT_FILE` is loaded where the student
            comes from a folder that has one.
        teacher: A BERT.
        settings: `alpha_attn`, `alpha_hidn` and `alpha_embd`, the weights of attention scores,
            hidden states and embeddings (paper: 1 each).
    """

    def __init__(self, trainer: RecipeTrainer, teacher: Any, settings: Any) -> None:
        if trainer.engine != NO_ENGINE:
            raise InputError(
                f"{trainer.engine} splits the student's weights, which TinyBERT needs whole: give "
                "LAUNCH=ddp"
            )
        self.trainer = trainer
        self.model = take_teacher(trainer, teacher)
        self.fit: Any = trainer.model.fit_dense
        weights = (settings.alpha_attn, settings.alpha_hidn, settings.alpha_embd)
        self.weights = torch.tensor(weights, dtype=torch.float32, device=trainer.args.device)
        trainer.module_files[FIT_FILE] = self.fit
        if trainer.model.name_or_path:
            self._load_fit(trainer.model.name_or_path)

    def _load_fit(self, name: str) -> None:
        path = find_file(name, FIT_FILE)
        if path is None:
            logger.info("%s has no %s; initializing a new one", name, FIT_FILE)
            return
        weights = load_file(path)
        if weights["weight"].shape == self.fit.weight.shape:
            logger.info("%s: loaded", path)
            self.fit.load_state_dict(weights)
        else:
            logger.info("%s: of a teacher of another size; initializing a new one", path)

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return int64 (3,): predicted tokens (none), real tokens, and pairs of real tokens."""
        lengths = batch["attention_mask"].sum(dim=-1)
        return torch.stack([lengths.new_zeros(()), lengths.sum(), lengths.square().sum()])

    def losses(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the `imitation_losses` of a batch."""
        inputs: dict[str, Any] = {}
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            inputs[name] = batch[name]
        inputs["output_hidden_states"] = inputs["output_attentions"] = True
        with torch.no_grad(), self.trainer.autocast():
            teacher_output = self.model.base_model(**inputs)
        if isinstance(self.trainer.model, PreTrainingModel):
            # Without labels the model would compute the logits of all tokens.
            inputs["labels"] = torch.full_like(batch["input_ids"], IGNORE_INDEX)
            inputs["return_full_logits"] = False
        student_output = model(**inputs)
        return imitation_losses(student_output, teacher_output, self.fit, batch["attention_mask"])

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return the weighted sum of the three losses."""
        # On the CPU where there is one process; a number from there divides on a GPU, a row cannot.
        _, tokens, pairs = counts
        score_loss, state_loss, embedding_loss = self.losses(model, inputs)
        losses = torch.stack([score_loss / pairs, state_loss / tokens, embedding_loss / tokens])
        return (losses * self.weights).sum(), {}


class ImitationSums:
    """Sums over held-out batches; those of several processes may be added."""

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights
        self.values = torch.zeros(5, dtype=torch.float64, device=weights.device)

    def add(self, losses: torch.Tensor, batch: dict[str, torch.Tensor]) -> None:
        """Add one batch and its `imitation_losses`."""
        lengths = batch["attention_mask"].sum(dim=-1)
        self.values[:3] += losses
        self.values[3] += lengths.square().sum()
        self.values[4] += lengths.sum()

    def metrics(self, prefix: str = "eval", _: str = "") -> dict[str, float]:
        """Return the three losses, and `loss`, their weighed sum."""
        attention_sum, hidden_sum, embedding_sum, pairs, tokens = self.values.tolist()
        attention_loss = attention_sum / pairs
        hidden_loss = hidden_sum / tokens
        embedding_loss = embedding_sum / tokens

        attention_weight, hidden_weight, embedding_weight = self.weights.tolist()
        loss = attention_weight * attention_loss
        loss += hidden_weight * hidden_loss
        loss += embedding_weight * embedding_loss
        return {
            f"{prefix}_attention_loss": attention_loss,
            f"{prefix}_hidden_loss": hidden_loss,
            f"{prefix}_embedding_loss": embedding_loss,
            f"{prefix}_loss": loss,
        }


class TinyBertTrainer(BertTrainer):
    """The Trainer of the general stage, whose teacher was pre-trained only.

    The student learns from text, as it is in the data or masked.
    """

    def __init__(
        self, model: Any, args: Any, *positional: Any, teacher: Any, settings: Any, **kwargs: Any
    ) -> None:
        args.fast_layers = "off"
        prepare_student(model, teacher)
        super().__init__(model, args, *positional, **kwargs)
        self.teacher = LayerTeacher(self, teacher, settings)

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the teacher's counts."""
        return self.teacher.num_items(batch)

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return the teacher's loss."""
        return self.teacher.micro_batch_loss(model, inputs, counts)

    def flops_of(self, work: Any) -> Any:
        """Return None: without the teacher's passes, most of the work, an MFU would be wrong."""
        return None

    def new_sums(self) -> Any:
        """Return `ImitationSums`."""
        return ImitationSums(self.teacher.weights)

    def measure(self, batch: dict[str, torch.Tensor]) -> Any:
        """Return the `imitation_losses` of a held-out batch."""
        return self.teacher.losses(self.model, batch)
