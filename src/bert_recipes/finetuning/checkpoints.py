"""Open a checkpoint for a task or for prediction: its tokenizer, its encoder, a head that is kept
or new.
"""

import logging
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.utils import rnn
from transformers import PretrainedConfig, PreTrainedModel, set_seed

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments, read_model_config
from bert_recipes.finetuning.kind import TaskKind
from bert_recipes.hub_access import has_safetensors
from bert_recipes.models.sizes import check_layers, num_positions
from bert_recipes.tasks.task import Task
from bert_recipes.tokenization.loading import check_vocabulary, load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)


def open_tokenizer(name: str) -> OriginalBertTokenizer:
    """The checkpoint's own tokenizer."""
    try:
        return load_tokenizer(name)
    except InputError as error:
        raise InputError(
            f"{error} (a checkpoint is fine-tuned with its own tokenizer: copy its tokenizer.json "
            "or vocab.txt there)"
        ) from error


def open_model(
    name: str,
    task: Task,
    kind: type[TaskKind],
    tokenizer: OriginalBertTokenizer,
    settings: TaskArguments,
    *,
    seed: int,
    needs_head: bool = False,
) -> PreTrainedModel:
    """Open any BERT-like checkpoint with the task's head.

    A head is kept where the checkpoint was trained on the same labels for the same type of problem;
    otherwise a new one is drawn by the original's rule (google-research/bert run_classifier.py
    `create_model`: a normal of deviation 0.02 cut off at two deviations, bias 0), which a log line
    says. With needs_head, for a checkpoint that is measured, that is an error.
    """
    config = read_model_config(name)
    check_vocabulary(name, getattr(config, "vocab_size", 0), tokenizer)
    length, positions = settings.max_seq_length, num_positions(config, settings.max_seq_length)
    if length > positions:
        raise InputError(
            f"max_seq_length is {length}, the model has {positions} positions; lower "
            "--max_seq_length"
        )
    why_new = _why_new_head(config, task, kind)
    if needs_head and why_new:
        raise InputError(
            f"{name} has no head for task {task.name}: {why_new}; fine-tune it first "
            "(recipes/finetune.py)"
        )
    _fit_config(name, config, task, settings, is_new=why_new is not None)
    set_seed(seed)
    model, new = _load(name, kind, config, keeps_head=why_new is None)
    inside = set(model.base_model.modules())
    head = [part for part in model.modules() if isinstance(part, nn.Linear) and part not in inside]
    if why_new:
        std = getattr(config, "initializer_range", 0.02)
        for layer in head:
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        logger.info("%s: %s; initialising a new head for task %s", name, why_new, task.name)
    if task.problem_type == "regression":
        for layer in head:
            layer.__class__ = Float32Linear
    if settings.freeze_encoder:
        for key, parameter in model.named_parameters():
            if key.startswith(f"{model.base_model_prefix}."):
                parameter.requires_grad_(key in new)
        if new:
            logger.info("the encoder is frozen but for what is new: %s", ", ".join(sorted(new)))
    if settings.bilstm:
        _add_bilstm(model)
    return model


def _add_bilstm(model: PreTrainedModel) -> None:
    """Put a new BiLSTM between encoder and head; a pooled text is the largest of its states over
    the tokens.

    Source: Devlin et al. 2019, section 5.1. The paper gives neither the size, half the hidden size
    a direction here, nor what a classifier reads.
    """
    size = model.config.hidden_size
    # Outside of the encoder, which may be frozen and goes without training mode then.
    model.bilstm = bilstm = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)

    def read(encoder: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        is_token = kwargs["attention_mask"] != 0
        hidden, lengths = output.last_hidden_state, is_token.sum(dim=1).cpu()
        with torch.autocast(hidden.device.type, enabled=False):
            packed = rnn.pack_padded_sequence(
                hidden.float(), lengths, batch_first=True, enforce_sorted=False
            )
            states = bilstm(packed)[0]
        states, _ = rnn.pad_packed_sequence(states, batch_first=True, total_length=hidden.shape[1])
        output.last_hidden_state = states
        if output.get("pooler_output") is not None:
            output.pooler_output = states.masked_fill(~is_token[..., None], -torch.inf).amax(dim=1)

    model.base_model.register_forward_hook(read, with_kwargs=True)


def _from_pretrained(
    name: str, model_class: Any, **options: Any
) -> tuple[PreTrainedModel, set[str], set[str]]:
    """The model, the keys that the file lacks, and those with the ones that are of another size
    there; all are drawn at random.
    """
    verbosity = transformers.logging.get_verbosity()
    # what matters of missing and unexpected weights our own lines report
    transformers.logging.set_verbosity_error()
    try:
        cached_only = check_checkpoint(name)
        with opening(name):
            model, info = model_class.from_pretrained(
                name,
                use_safetensors=has_safetensors(name, cached_only=cached_only),
                output_loading_info=True,
                # whatever the file holds: weights that learn are kept in full precision
                dtype=torch.float32,
                local_files_only=cached_only,
                ignore_mismatched_sizes=True,
                **options,
            )
    finally:
        transformers.logging.set_verbosity(verbosity)
    check_layers(name, model.config, info["unexpected_keys"])
    missing = set(info["missing_keys"])
    return (
        model,
        missing,
        missing | {key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]},
    )


def _load(
    name: str, kind: type[TaskKind], config: PretrainedConfig, *, keeps_head: bool
) -> tuple[PreTrainedModel, set[str]]:
    """The model, and the parameters of its pooler if they are new; no other part of the encoder may
    be.
    """
    model, missing, lost = _from_pretrained(
        name, getattr(transformers, kind.auto_class), config=config
    )
    inside = f"{model.base_model_prefix}."
    # A masked-LM checkpoint has no pooler.
    new = {
        key for key in missing if not keeps_head and key.startswith(inside) and ".pooler." in key
    }
    lost = {key for key in lost - new if keeps_head or key.startswith(inside)}
    if lost:
        raise InputError(
            f"{name}: no weights for {min(lost)} ({len(lost)} missing) of the size that "
            "config.json says; weights and "
            "config.json do not belong together"
        )
    if new:
        logger.warning(
            "%s has no weights for its pooler (%s); it is drawn at random",
            name,
            ", ".join(sorted(new)),
        )
    return model, new


def open_complete(
    name: str, model_class: Any, *, may_lack: tuple[str, ...] = (), **options: Any
) -> PreTrainedModel:
    """Open a checkpoint in float32 that has every weight, but for those of some parts (beginnings
    of keys).
    """
    model, _, lost = _from_pretrained(name, model_class, **options)
    lost = {key for key in lost if not key.startswith(may_lack)}
    if lost:
        raise InputError(
            f"model_name_or_path: {name} has no weights for {min(lost)} ({len(lost)} missing or "
            "of another size than "
            "config.json says); give a complete checkpoint"
        )
    return model


def _why_new_head(config: PretrainedConfig, task: Task, kind: type[TaskKind]) -> str | None:
    """Why the checkpoint's head cannot serve the task, or None."""
    wanted = kind.auto_class.removeprefix("AutoModel")
    built = (config.architectures or ["none"])[0]
    if not built.endswith(wanted):
        return f"no {wanted} head in this checkpoint (a {built})"
    if task.kind not in ("sequence_classification", "token_classification"):
        return None
    names = label_names(config)
    if task.problem_type == "regression":
        fits = len(names) == 1
    else:
        unnamed = all(label == f"LABEL_{number}" for number, label in enumerate(names))
        fits = sorted(names) == sorted(task.labels) or (unnamed and len(names) == len(task.labels))
    if not fits:
        labels = ", ".join(task.labels) or "one number"
        return f"the checkpoint's labels are {', '.join(names)}; the task's are {labels}"
    if task.kind == "sequence_classification" and config.problem_type not in (
        None,
        task.problem_type,
    ):
        return f"the checkpoint is for {config.problem_type}, the task is {task.problem_type}"
    return None


def label_names(config: PretrainedConfig) -> list[str]:
    """Names of the classes in the order of their numbers; label2id of config.json may be missing or
    stale.
    """
    return [str(config.id2label[number]) for number in sorted(config.id2label)]


def _fit_config(
    name: str, config: PretrainedConfig, task: Task, settings: TaskArguments, *, is_new: bool
) -> None:
    """Labels, type of problem and dropout as the task wants them, for a new head or one that is
    kept.
    """
    if is_new:
        config.problem_type = None
    if task.kind in ("sequence_classification", "token_classification") and task.labels:
        names = label_names(config)
        if not is_new and sorted(names) != sorted(task.labels):
            labels = ", ".join(task.labels)
            logger.info(
                "%s does not name its labels; they are taken for %s, in this order", name, labels
            )
        if is_new or sorted(names) != sorted(task.labels):
            names = list(task.labels)
        config.id2label = dict(enumerate(names))
        config.label2id = {label: number for number, label in enumerate(names)}
    elif is_new and task.kind != "multiple_choice":
        config.num_labels = (
            2 if task.kind == "question_answering" else 1
        )  # start and end, or a number
    if task.kind == "sequence_classification":
        config.problem_type = task.problem_type  # stock pipelines choose sigmoid or softmax by it
    if settings.dropout is not None:
        # Each kind of model has other names for them; a rate that is None follows another one.
        for field, rate in config.to_dict().items():
            if "dropout" in field and rate is not None:
                setattr(config, field, settings.dropout)


class Float32Linear(nn.Linear):
    """A layer of a regression's head: in float32 whatever the encoder computes in, as bfloat16
    keeps two to three digits.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Float (B, in) to float32 (B, out)."""
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return nn.functional.linear(input.float(), self.weight.float(), bias)
