"""A checkpoint that is ready to be tried, and what it can do: that follows from the heads it has."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, PretrainedConfig, PreTrainedModel

from bert_recipes.checkpoint_access import check_checkpoint, opening
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TASK_FILE, FineTuningArguments, TaskArguments
from bert_recipes.finetuning.checkpoints import open_tokenizer
from bert_recipes.finetuning.input_arguments import InputArguments, architecture, read_model_config
from bert_recipes.finetuning.prediction import (
    PredictionArguments,
    Predictor,
    kind_of_head,
    make_predictor,
    task_of_checkpoint,
)
from bert_recipes.models.bert import open_checkpoint
from bert_recipes.tokenization import OriginalBertTokenizer


FILL_MASK, NEXT_SENTENCE = "fill_mask", "next_sentence"
# Column that holds the choices of a question, however many the user gives.
CHOICES = "choices"
SECOND_TEXT = "text_pair"


@dataclass(frozen=True)
class DemoModel:
    """A checkpoint on its device, in evaluation mode, with the attention that can be looked at.

    Attributes:
        name: As the user gave it.
        tokenizer: The checkpoint's.
        network: The model with its heads.
        abilities: `FILL_MASK`, `NEXT_SENTENCE`, or the kind of task that it was fine-tuned on; pieces and attention are
            there for every checkpoint.
        lacks: For each head of pre-training that is not there, a sentence that says so.
        predictor: Of a fine-tuned checkpoint; None for any other.
        second_is_optional: A text classifier that does not say whether it takes pairs.
        lock: Held while the checkpoint is used: neither tokenizers nor Trainers are made for several threads.
    """

    name: str
    tokenizer: OriginalBertTokenizer
    network: PreTrainedModel
    abilities: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    predictor: Predictor | None = None
    second_is_optional: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.network.config

    @property
    def encoder(self) -> Any:
        """The BERT below the heads."""
        return self.network.base_model


def open_demo_model(name: str, work_dir: Path, *, use_cpu: bool = False) -> DemoModel:
    """Open a run's folder or any other BERT checkpoint.

    Args:
        name: Folder or Hub name.
        work_dir: A Trainer wants a folder of its own; nothing is kept there.
        use_cpu: Do not use a GPU.
    """
    cached_only = check_checkpoint(name)
    config = _read_bert_config(name, cached_only=cached_only)
    tokenizer = open_tokenizer(name)
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"{name} has a vocabulary of {config.vocab_size:,}, its tokenizer {len(tokenizer):,} pieces: they do not belong "
            "together; put the checkpoint's own tokenizer into its folder"
        )
    if kind_of_head(config) is not None:
        model = _fine_tuned(name, tokenizer, work_dir, use_cpu=use_cpu)
    else:
        model = _pretrained(name, tokenizer, config, cached_only=cached_only)
        model.network.to("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")
    model.network.eval()
    # The fast ways to compute attention never hold its weights.
    model.network.set_attn_implementation("eager")
    return model


def _read_bert_config(name: str, *, cached_only: bool) -> BertConfig:
    with opening(name):
        try:
            values, _ = BertConfig.get_config_dict(name, local_files_only=cached_only)
        except TypeError as mistake:  # transformers 5.17 looks into it before it has seen what it is
            raise InputError(f"{name} is no BERT: config.json holds no mapping") from mistake
        # The oldest checkpoints do not name their kind.
        if not isinstance(values, dict) or values.get("model_type", "bert") != "bert":
            kind = values.get("model_type") if isinstance(values, dict) else type(values).__name__
            raise InputError(f"{name} is no BERT: the model_type in its config.json is {kind!r}; the page shows BERTs")
        return BertConfig.from_dict(values)


def _pretrained(
    name: str, tokenizer: OriginalBertTokenizer, config: PretrainedConfig, *, cached_only: bool
) -> DemoModel:
    """Abilities are the heads whose weights are in the file: one that starts anew can say nothing."""
    with opening(name):
        network, new = open_checkpoint(name, cached_only=cached_only)
    abilities, lacks = [], []
    if any(key.startswith("cls.predictions.") for key in new):
        lacks.append("it has no masked-LM head")
    else:
        abilities.append(FILL_MASK)
    if any(key.startswith(("cls.seq_relationship.", "bert.pooler.")) for key in new):
        lacks.append("it has no next-sentence head")
    elif config.type_vocab_size < 2:
        lacks.append("it knows no second segment (type_vocab_size 1), so there is no next sentence")
    else:
        abilities.append(NEXT_SENTENCE)
    return DemoModel(name, tokenizer, network, tuple(abilities), tuple(lacks))


def _fine_tuned(name: str, tokenizer: OriginalBertTokenizer, work_dir: Path, *, use_cpu: bool) -> DemoModel:
    config = read_model_config(name)
    columns = [CHOICES] if architecture(config).endswith("ForMultipleChoice") else None
    args = PredictionArguments(model_name_or_path=name, input_file="", choice_columns=columns, use_cpu=use_cpu)
    task = task_of_checkpoint(config, args)
    says_nothing = task.kind == "sequence_classification" and not (Path(name) / TASK_FILE).is_file()
    second_is_optional = says_nothing and config.type_vocab_size > 1
    if second_is_optional:
        task = dataclasses.replace(task, text_columns=(*task.text_columns, SECOND_TEXT))
    settings = TaskArguments(task=task.name, model_name_or_path=name, **InputArguments().resolved(config, name))
    run_arguments = FineTuningArguments(
        output_dir=str(work_dir),
        per_device_eval_batch_size=8,
        precision="fp32",
        fast_layers="off",
        keep_freed_memory=False,
        use_cpu=use_cpu,
        report_to="none",
        disable_tqdm=True,
    )
    predictor = make_predictor(task, settings, tokenizer, run_arguments)
    return DemoModel(
        name,
        tokenizer,
        predictor.trainer.model,
        (task.kind,),
        (f"it was fine-tuned ({architecture(config)}): its heads of pre-training are gone",),
        predictor,
        second_is_optional,
    )
