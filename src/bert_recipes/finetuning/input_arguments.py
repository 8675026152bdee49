"""How a fine-tuned checkpoint is to read its inputs: as it did when it was trained, unless somebody says otherwise."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from bert_recipes.checkpoint_access import check_checkpoint, opening
from bert_recipes.config_file import read_tree
from bert_recipes.errors import InputError
from bert_recipes.field_types import field_types, read_text
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.run_folder import CONFIG_FILE


logger = logging.getLogger(__name__)

# google-research/bert run_squad.py: max_seq_length; windows take what does not fit.
_SQUAD_LENGTH = 384
# As many as any original BERT has; batches are padded to their longest input, so that short ones cost nothing.
_MOST_POSITIONS = 512


def _as_trained(name: str) -> Any:
    help_text = TaskArguments.__dataclass_fields__[name].metadata["help"]
    return field(default=None, metadata={"help": f"{help_text}; default: as the checkpoint was trained"})


@dataclass
class InputArguments:
    """How inputs are cut and answers decoded; None: as the checkpoint was trained."""

    max_seq_length: int | None = _as_trained("max_seq_length")
    pad_to_max_length: bool | None = _as_trained("pad_to_max_length")
    label_all_pieces: bool | None = _as_trained("label_all_pieces")
    context: str | None = _as_trained("context")
    doc_stride: int | None = _as_trained("doc_stride")
    max_query_length: int | None = _as_trained("max_query_length")
    n_best_size: int | None = _as_trained("n_best_size")
    max_answer_length: int | None = _as_trained("max_answer_length")
    null_score_diff_threshold: float | None = _as_trained("null_score_diff_threshold")
    decoder: str | None = _as_trained("decoder")

    def resolved(self, config: PretrainedConfig, name: str) -> dict[str, Any]:
        """A value for every field: what was given, what the run's run.yaml says, or the default of `TaskArguments`.

        A checkpoint without run.yaml reads as many positions as it has, 512 at most; 384 for question answering.

        Args:
            config: The checkpoint's.
            name: Its folder or Hub name.
        """
        trained = read_trained_settings(Path(name))
        values: dict[str, Any] = {}
        for item in fields(InputArguments):
            given = getattr(self, item.name)
            default = TaskArguments.__dataclass_fields__[item.name].default
            values[item.name] = trained.get(item.name, default) if given is None else given
        if self.max_seq_length is None and "max_seq_length" not in trained:
            most = _SQUAD_LENGTH if architecture(config).endswith("ForQuestionAnswering") else _MOST_POSITIONS
            values["max_seq_length"] = min(most, getattr(config, "max_position_embeddings", most))
            logger.info("%s does not say how long its inputs were: max_seq_length %d", name, values["max_seq_length"])
        return values


def read_trained_settings(folder: Path) -> Mapping[str, Any]:
    """The fields of `InputArguments` that the run.yaml of a folder has; none where it has no run.yaml."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return {}
    values, lines = read_tree(path)
    hints = field_types(TaskArguments)
    settings: dict[str, Any] = {"context": "document"}  # what runs read that were made before the setting
    for item in fields(InputArguments):
        text = values.get(item.name)
        if text is not None:
            try:
                settings[item.name] = read_text(hints[item.name], text)
            except (ValueError, AttributeError) as error:
                raise InputError(f"{path}, line {lines[item.name]}: {item.name}: {error}") from error
    return settings


def read_model_config(name: str) -> PretrainedConfig:
    """The config.json of a checkpoint.

    Args:
        name: Folder or Hub name.
    """
    cached_only = check_checkpoint(name)
    with opening(name):
        return AutoConfig.from_pretrained(name, local_files_only=cached_only)


def architecture(config: PretrainedConfig) -> str:
    """Name of the class that wrote the checkpoint; "" where config.json does not say."""
    return str((config.architectures or [""])[0])
