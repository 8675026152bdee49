"""bert-recipes: train your own BERT, by the rules of the paper, on today's Hugging Face stack."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from bert_recipes.data.collator import DataCollatorForPreTraining
    from bert_recipes.data.corpus import iter_documents
    from bert_recipes.data.dataset import PreTrainingDataset
    from bert_recipes.data.masking import mask_tokens
    from bert_recipes.data.pairs import build_sentence_pairs
    from bert_recipes.data.sentences import split_sentences
    from bert_recipes.data.store import open_store
    from bert_recipes.models.bert import BertForPreTraining
    from bert_recipes.tasks.catalogue import get_task, list_tasks
    from bert_recipes.tokenization.loading import load_tokenizer
    from bert_recipes.tokenization.training import train_wordpiece
    from bert_recipes.training.arguments import PreTrainingArguments
    from bert_recipes.training.bert_trainer import BertTrainer
    from bert_recipes.training.optimization import Muon, MuonFactory, MuonSettings
    from bert_recipes.training.run import run_training

if sys.platform == "win32":
    raise ImportError("bert_recipes runs on Linux and macOS; on Windows in WSL (docs/install.md)")

__version__ = "0.2.0"

# public name -> module that is imported when the name is first used
_HOMES = {
    "BertForPreTraining": "models.bert",
    "BertTrainer": "training.bert_trainer",
    "DataCollatorForPreTraining": "data.collator",
    "Muon": "training.optimization",
    "MuonFactory": "training.optimization",
    "MuonSettings": "training.optimization",
    "PreTrainingArguments": "training.arguments",
    "PreTrainingDataset": "data.dataset",
    "build_sentence_pairs": "data.pairs",
    "get_task": "tasks.catalogue",
    "iter_documents": "data.corpus",
    "list_tasks": "tasks.catalogue",
    "load_tokenizer": "tokenization.loading",
    "mask_tokens": "data.masking",
    "open_store": "data.store",
    "run_training": "training.run",
    "split_sentences": "data.sentences",
    "train_wordpiece": "tokenization.training",
}

__all__ = [  # noqa: RUF022  (in the order of the data's way)
    "load_tokenizer",
    "train_wordpiece",
    "iter_documents",
    "split_sentences",
    "build_sentence_pairs",
    "open_store",
    "PreTrainingDataset",
    "mask_tokens",
    "DataCollatorForPreTraining",
    "BertForPreTraining",
    "BertTrainer",
    "PreTrainingArguments",
    "Muon",
    "MuonFactory",
    "MuonSettings",
    "run_training",
    "get_task",
    "list_tasks",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_recipes' has no attribute '{name}'")
    return getattr(import_module(f"bert_recipes.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
