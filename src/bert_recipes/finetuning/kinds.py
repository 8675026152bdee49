"""The kinds of task by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bert_recipes.finetuning.kind import TaskKind
from bert_recipes.finetuning.multiple_choice import MultipleChoice
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.finetuning.sequence_classification import SequenceClassification
from bert_recipes.finetuning.token_classification import TokenClassification


KIND_CLASSES: Mapping[str, type[TaskKind]] = MappingProxyType(
    {
        "sequence_classification": SequenceClassification,
        "token_classification": TokenClassification,
        "question_answering": QuestionAnswering,
        "multiple_choice": MultipleChoice,
    }
)
