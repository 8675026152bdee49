"""TinyBERT's stages of a task: the student learns a fine-tuned teacher's layers, then its answers.

Source: Jiao et al. 2020, section 3.2; huawei-noah/Pretrained-Language-Model,
TinyBERT/task_distill.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments, TeachingArguments
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.kind import Batch, TaskKind
from bert_recipes.finetuning.trainer import FineTuningTrainer, input_names, select_inputs
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.training.distillation import take_teacher
from bert_recipes.training.tinybert import LayerTeacher, prepare_student


class IntermediateTrainer(FineTuningTrainer):
    """A Trainer whose student's layers learn from the teacher's.

    The head does not learn, so there is nothing to measure.
    """

    def __init__(
        self, model: Any, args: Any, kind: TaskKind, *, teacher: Any, settings: Any, **kwargs: Any
    ) -> None:
        args.fast_layers = "off"
        prepare_student(model, teacher)
        super().__init__(model, args, kind, **kwargs)
        self.teacher = LayerTeacher(self, teacher, settings)

    def num_items(self, batch: Batch) -> torch.Tensor:
        """Return the teacher's counts."""
        return self.teacher.num_items(batch)

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return the teacher's loss."""
        return self.teacher.micro_batch_loss(model, inputs, counts)


class AnswerTrainer(FineTuningTrainer):
    """Train a student on the teacher's probabilities.

    Of a regression it learns the numbers of the labels, as in the original. The cross-entropy is
    summed over the classes, as in the paper, where the original's code averages; that of several
    labels is their mean.
    """

    def __init__(
        self,
        model: Any,
        args: Any,
        kind: TaskKind,
        *,
        teacher: Any,
        temperature: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, kind, **kwargs)
        self.teacher = take_teacher(self, teacher)
        # A DistilBERT student has no segments, its teacher may have.
        self._teacher_input_names = input_names(teacher)
        self.temperature = temperature
        enable_packed_layers(teacher, args.fast_layers, args)
        # The teacher may have the task's classes in another order.
        self.columns = [0]
        if kind.task.labels:
            classes = teacher.config.label2id
            self.columns = [classes[name] for _, name in sorted(model.config.id2label.items())]

    def flops_of(self, work: Any) -> Any:
        """Return None: without the teacher's passes an MFU would be wrong."""
        return None

    def loss_sum(self, output: Any, inputs: Batch) -> torch.Tensor:
        """Return the cross-entropy between both probabilities, summed over the examples."""
        problem_type = self.kind.task.problem_type
        if problem_type == "regression":
            return super().loss_sum(output, inputs)
        teacher_inputs = select_inputs(inputs, self._teacher_input_names)
        with torch.no_grad(), self.autocast():
            teacher_logits = self.teacher(**teacher_inputs).logits[:, self.columns]
        logits = output.logits.float() / self.temperature
        teacher_logits = teacher_logits.float() / self.temperature
        if problem_type == "multi_label_classification":
            goal = teacher_logits.sigmoid()
            losses = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")
            return losses.mean(dim=-1).sum()
        return F.cross_entropy(logits, teacher_logits.softmax(-1), reduction="sum")


def choose_trainer(
    teaching: TeachingArguments, settings: TaskArguments, kind: TaskKind, seed: int
) -> Callable[..., FineTuningTrainer]:
    """Return the Trainer of a stage with its teacher, or the one without."""
    task = kind.task
    name = teaching.teacher
    if name is None:
        return FineTuningTrainer
    if task.kind != "sequence_classification":
        raise InputError(
            f"teacher: task {task.name} is {task.kind}; classes and numbers of texts are taught"
        )
    for setting in ("class_weights", "freeze_encoder", "bilstm"):
        if getattr(settings, setting):
            raise InputError(f"{setting} has no meaning beside a teacher; leave it out")
    tokenizer = open_tokenizer(name)
    if tokenizer.fingerprint != kind.tokenizer.fingerprint:
        raise InputError(
            f"{name} has another tokenizer than {settings.model_name_or_path}; both must read one "
            "text alike"
        )
    teacher = open_model(name, task, tokenizer, settings, seed=seed, needs_head=True)
    if teaching.distil == "prediction":
        return partial(AnswerTrainer, teacher=teacher, temperature=teaching.temperature)
    return partial(IntermediateTrainer, teacher=teacher, settings=teaching)
