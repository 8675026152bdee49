"""DistilBERT: a student with half of its teacher's layers, which learns from the teacher's answers.

It learns the masked LM too.
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

from bert_recipes.errors import InputError
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.stock_layers import layers_of
from bert_recipes.training.arguments import DistillationArguments
from bert_recipes.training.batch_buffer import PACKING
from bert_recipes.training.bert_trainer import BertTrainer, predicted_and_real_tokens
from bert_recipes.training.speed import BatchStats, forward_flops, training_flops
from bert_recipes.training.trainer import RecipeTrainer


def copied_layers(num_teacher: int, num_student: int) -> list[int]:
    """Return the numbers of the teacher's layers that the student begins with.

    Of 12 layers these are 0, 2, 4, 7, 9 and 11, as in scripts/extract_distilbert.py.
    """
    if num_student > num_teacher:
        raise InputError(f"student_layers is {num_student}; the teacher has {num_teacher}")
    return np.linspace(0, num_teacher - 1, num_student).round().astype(int).tolist()


@torch.no_grad()
def make_student(teacher: Any, args: DistillationArguments, seed: int) -> PreTrainingModel:
    """Return a model of fewer layers, DistilBERT for BERT, RoBERTa for RoBERTa.

    The student begins with layers of the teacher, unless `start_from_teacher` is False.
    """
    set_seed(seed)
    config = teacher.config
    num_layers = args.student_layers or max(1, config.num_hidden_layers // 2)
    layer_numbers = copied_layers(config.num_hidden_layers, num_layers)
    if config.model_type == "bert":
        student = MEMBERS["distilbert"](_distilbert_config(config, num_layers))
    elif config.model_type == "roberta":
        student_config = transformers.RobertaConfig(**config.to_dict())
        student_config.num_hidden_layers = num_layers
        student = MEMBERS["roberta"](student_config)
    else:
        raise InputError(
            f"{args.teacher}: model_type {config.model_type} does not teach here; give a BERT or "
            "a RoBERTa"
        )
    if args.fold_segments and _has_no_positions(config):
        raise InputError(
            f"fold_segments adds to the positions, and {args.teacher} has none: leave it out"
        )
    if args.start_from_teacher is False:
        return student

    embeddings = student.base_model.embeddings
    teacher_embeddings = teacher.base_model.embeddings
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        if hasattr(embeddings, name):  # DistilBERT has no segments
            _copy_weights(getattr(embeddings, name), getattr(teacher_embeddings, name))
    if args.fold_segments and config.model_type == "bert":
        segments = teacher_embeddings.token_type_embeddings.weight
        embeddings.position_embeddings.weight += segments[0]
    teacher_layers = list(layers_of(teacher.base_model))
    for layer, number in zip(layers_of(student.base_model), layer_numbers, strict=True):
        teacher_modules = teacher_layers[number].weight_modules
        for module, teacher_module in zip(layer.weight_modules, teacher_modules, strict=True):
            _copy_weights(module, teacher_module)
    student.get_output_embeddings().bias.copy_(teacher.get_output_embeddings().bias)
    return student


def _distilbert_config(config: Any, num_layers: int) -> transformers.DistilBertConfig:
    student_config = transformers.DistilBertConfig(
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        n_layers=num_layers,
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
    if _has_no_positions(config):
        student_config.positions = "none"
    return student_config


def _has_no_positions(config: Any) -> bool:
    return getattr(config, "positions", None) == "none"


def _copy_weights(module: torch.nn.Module, source: torch.nn.Module) -> None:
    module.load_state_dict(source.state_dict())


def take_teacher(trainer: RecipeTrainer, teacher: Any) -> Any:
    """Put a teacher beside a trainer's model, without dropout and gradients.

    A run is resumed with the same teacher.
    """
    digest = hashlib.sha256()
    for weights in teacher.state_dict().values():
        digest.update(weights.cpu().numpy().tobytes())
    trainer.resume_fingerprint["teacher"] = digest.hexdigest()
    return teacher.to(trainer.args.device).eval().requires_grad_(False)


class DistillationTrainer(BertTrainer):
    """`BertTrainer` of a student that also learns its teacher's probabilities and hidden states.

    The probabilities are of all tokens, the hidden states the last ones. The losses between teacher
    and student are means over the real tokens of the *global* batch; the teacher reads the same
    masked input.
    """

    def __init__(
        self,
        model: PreTrainingModel,
        args: Any,
        *positional: Any,
        teacher: Any,
        settings: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, *positional, **kwargs)
        if teacher.config.vocab_size != model.config.vocab_size:
            raise InputError(
                f"the teacher has {teacher.config.vocab_size:,} pieces, the student "
                f"{model.config.vocab_size:,}; both need one vocabulary"
            )
        self.teacher = take_teacher(self, teacher)
        enable_packed_layers(self.teacher, self.args.fast_layers, self.args)
        self.settings = settings

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the predicted tokens, and the real ones, int64 (2,)."""
        return predicted_and_real_tokens(batch)

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return the loss of the masked LM and those against the teacher, and the output.

        Source: distillation/distiller.py, `Distiller.step`.
        """
        masked, tokens = counts
        # The students see no segments, and so the teacher sees none, as in the original.
        names = ("input_ids", "attention_mask", PACKING)
        texts = {name: inputs[name] for name in names if name in inputs}
        with torch.no_grad(), self.autocast():
            teacher_states = self.teacher.encode_tokens(**texts)
        distiller = partial(self._distil, teacher_states, tokens)
        output = model(
            **texts, labels=inputs["labels"], num_items_in_batch=masked, distiller=distiller
        )
        return self.settings.alpha_mlm * output.mlm_loss + output.distillation_loss, output

    def _distil(
        self, teacher_states: torch.Tensor, tokens: torch.Tensor, student: Any, states: torch.Tensor
    ) -> torch.Tensor:
        """Return both losses against the teacher, weighed.

        Args:
            teacher_states: The last hidden states of the teacher, (N, H).
            tokens: The tokens of the global batch.
            student: The model.
            states: The last hidden states of the student, (N, H), of the same N tokens.
        """
        settings = self.settings
        loss = states.new_zeros((), dtype=torch.float32)
        if settings.alpha_ce:
            divergence = student.divergence(
                states,
                lambda rows: self.teacher.token_logits(teacher_states[rows]),
                settings.temperature,
            )
            loss = loss + settings.alpha_ce * settings.temperature**2 * divergence / tokens
        if settings.alpha_cos:
            cosine = F.cosine_similarity(states.float(), teacher_states.float(), dim=-1)
            loss = loss + settings.alpha_cos * (1 - cosine).sum() / tokens
        return loss

    def flops_of(self, work: BatchStats) -> int:
        """Add the teacher's pass; both meet the whole vocabulary at every real token."""
        compared = 0
        if self.settings.alpha_ce:
            compared = work.tokens
        teacher_flops = forward_flops(
            self.teacher.config,
            replace(work, masked=compared),
            nsp=False,
            pooler=False,
        )
        # The student's encoder is counted with its masked tokens.
        head_alone = BatchStats(
            tokens=0,
            squares=0,
            sequences=0,
            masked=compared,
        )
        head_flops = training_flops(self.model.config, head_alone)
        return super().flops_of(work) + head_flops + teacher_flops
