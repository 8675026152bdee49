"""DistilBERT: a student of half the layers, copied from its teacher, that learns its teacher's
answers beside the masked LM.
"""

import hashlib
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn import functional as F
from transformers import set_seed

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.stock_layers import layers_of
from bert_recipes.training.arguments import DistillationArguments
from bert_recipes.training.batch_buffer import PACKING
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.speed import BatchStats, forward_flops
from bert_recipes.training.trainer import RecipeTrainer


def chosen_layers(num_teacher: int, num_student: int) -> list[int]:
    """Return the teacher's layers that the student begins with: 0, 2, 4, 7, 9, 11 of 12, as in
    scripts/extract_distilbert.py.
    """
    if num_student > num_teacher:
        raise InputError(f"student_layers is {num_student}; the teacher has {num_teacher}")
    return np.linspace(0, num_teacher - 1, num_student).round().astype(int).tolist()


@torch.no_grad()
def make_student(teacher: Any, args: DistillationArguments, seed: int) -> PreTrainingModel:
    """A model of fewer layers that begins with some of the teacher's, unless told not to:
    DistilBERT for BERT, RoBERTa for RoBERTa.
    """
    set_seed(seed)
    config, base = teacher.config, teacher.base_model
    layers = chosen_layers(
        config.num_hidden_layers, args.student_layers or max(1, config.num_hidden_layers // 2)
    )
    if config.model_type == "bert":
        student = MEMBERS["distilbert"](
            transformers.DistilBertConfig(
                vocab_size=config.vocab_size,
                dim=config.hidden_size,
                n_layers=len(layers),
                n_heads=config.num_attention_heads,
                hidden_dim=config.intermediate_size,
                max_position_embeddings=config.max_position_embeddings,
                dropout=config.hidden_dropout_prob,
                attention_dropout=config.attention_probs_dropout_prob,
                activation=config.hidden_act,
                initializer_range=config.initializer_range,
                pad_token_id=config.pad_token_id,
                weight_init="normal",
            )
        )
    elif config.model_type == "roberta":
        student = MEMBERS["roberta"](
            transformers.RobertaConfig(**config.to_dict() | {"num_hidden_layers": len(layers)})
        )
    else:
        raise InputError(
            f"{args.teacher}: model_type {config.model_type} does not teach here; give a BERT or "
            "a RoBERTa"
        )
    if args.start_from_teacher is False:
        return student
    own = student.base_model
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        if not hasattr(own.embeddings, name):
            continue  # DistilBERT has no segments
        getattr(own.embeddings, name).load_state_dict(getattr(base.embeddings, name).state_dict())
    if args.fold_segments and config.model_type == "bert":
        own.embeddings.position_embeddings.weight += base.embeddings.token_type_embeddings.weight[0]
    teacher_layers = list(layers_of(base))
    for layer, number in zip(layers_of(own), layers, strict=True):
        sources = teacher_layers[number].weight_modules
        for module, source in zip(layer.weight_modules, sources, strict=True):
            module.load_state_dict(source.state_dict())
    student.get_output_embeddings().bias.copy_(teacher.get_output_embeddings().bias)
    return student


def take_teacher(trainer: RecipeTrainer, teacher: Any) -> Any:
    """Put a teacher beside a trainer's model, without dropout and gradients; a run is resumed with
    the same one.
    """
    digest = hashlib.sha256()
    for weights in teacher.state_dict().values():
        digest.update(weights.cpu().numpy().tobytes())
    trainer.resume_fingerprint["teacher"] = digest.hexdigest()
    return teacher.to(trainer.args.device).eval().requires_grad_(False)


class DistillationTrainer(BertTrainer):
    """`BertTrainer` whose student also learns its teacher's probabilities of all tokens, and its
    last hidden states.

    The losses between both are means over the real tokens of the *global* batch; the teacher reads
    the same masked input.
    """

    def __init__(
        self,
        model: PreTrainingModel,
        args: Any,
        *others: Any,
        teacher: Any,
        settings: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, *others, **kwargs)
        if teacher.config.vocab_size != model.config.vocab_size:
            raise InputError(
                f"the teacher has {teacher.config.vocab_size:,} pieces, the student "
                f"{model.config.vocab_size:,}; both need one vocabulary"
            )
        self.teacher = take_teacher(self, teacher)
        enable_packed_layers(self.teacher, self.args.fast_layers, self.args)
        self.settings = settings

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """int64 (2,): predicted tokens, and real ones."""
        return torch.stack([(batch["labels"] != IGNORE_INDEX).sum(), batch["attention_mask"].sum()])

    def part_of_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """The masked LM's, and those against the teacher. Source: distillation/distiller.py,
        `Distiller.step`.
        """
        masked, tokens = counts
        names = ("input_ids", "attention_mask", "token_type_ids", PACKING)
        texts = {name: inputs[name] for name in names if name in inputs}
        with torch.no_grad(), self.autocast():
            taught = self.teacher.encode_tokens(**texts)
        distiller = partial(self._distil, taught, tokens)
        output = model(
            **texts, labels=inputs["labels"], num_items_in_batch=masked, distiller=distiller
        )
        return self.settings.alpha_mlm * output.mlm_loss + output.distillation_loss, output

    def _distil(
        self, taught: torch.Tensor, tokens: torch.Tensor, student: Any, rows: torch.Tensor
    ) -> torch.Tensor:
        """Both losses against the teacher, weighed: hidden states (N, H) of the same N tokens."""
        settings, total = self.settings, rows.new_zeros((), dtype=torch.float32)
        if settings.alpha_ce:
            divergence = student.divergence(
                rows, lambda part: self.teacher.token_logits(taught[part]), settings.temperature
            )
            total = total + settings.alpha_ce * settings.temperature**2 * divergence / tokens
        if settings.alpha_cos:
            cosine = F.cosine_similarity(rows.float(), taught.float(), dim=-1)
            total = total + settings.alpha_cos * (1 - cosine).sum() / tokens
        return total

    def flops_of(self, work: BatchStats) -> int:
        """Add the teacher's pass; both meet the vocabulary at every real token."""
        compared = work.tokens if self.settings.alpha_ce else 0
        of_student = super().flops_of(replace(work, masked=work.masked + compared))
        return of_student + forward_flops(
            self.teacher.config, replace(work, masked=compared), nsp=False, pooler=False
        )
