"""Open a checkpoint for a task or for prediction: its tokenizer, its encoder, its head."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.utils import rnn
from transformers import PretrainedConfig, PreTrainedModel, set_seed

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import (
    TaskArguments,
    architecture,
    read_model_config,
    read_trained_settings,
)
from bert_recipes.hub_access import has_safetensors
from bert_recipes.models.sizes import check_layers, num_positions
from bert_recipes.tasks.task import CLASSIFICATION_KINDS, Task
from bert_recipes.tokenization.loading import check_vocabulary, load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# Kind of task -> what the names of the classes of transformers with its head end with.
HEADS = {
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}

# What the names of the classes that are pre-trained end with.
_PRETRAINED = ("ForMaskedLM", "ForPreTraining")


def open_tokenizer(name: str) -> OriginalBertTokenizer:
    """Return the checkpoint's tokenizer."""
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
    tokenizer: OriginalBertTokenizer,
    settings: TaskArguments,
    *,
    seed: int,
    needs_head: bool = False,
) -> PreTrainedModel:
    """Open any BERT-like checkpoint with the task's head.

    A head stays where the checkpoint was trained on the same labels for the same type of problem;
    otherwise a new one is drawn, which a log line says.

    Args:
        name: Folder or Hub name.
        task: Decides about head, labels and type of problem.
        tokenizer: The checkpoint's.
        settings: Length, dropout, and what is trained.
        seed: Of new weights.
        needs_head: Refuse a checkpoint without the task's head: it is to be measured.
    """
    config = read_model_config(name)
    check_vocabulary(name, getattr(config, "vocab_size", 0), tokenizer)
    _check_length(config, settings.max_seq_length)
    _warn_of_untrained_positions(name, config, settings.max_seq_length)

    why_new = _why_new_head(config, task)
    if needs_head and why_new is not None:
        raise InputError(
            f"{name} has no head for task {task.name}: {why_new}; fine-tune it first "
            "(recipes/finetune.py)"
        )
    _set_labels(name, config, task, is_new=why_new is not None)
    if settings.dropout is not None:
        _set_dropout(config, settings.dropout)

    set_seed(seed)
    model, new_keys = _load(name, task.kind, config, keeps_head=why_new is None)
    head = _head_layers(model)
    if why_new is not None:
        logger.info("%s: %s; initializing a new head for task %s", name, why_new, task.name)
        new_layers = list(head.values())
        if architecture(config).endswith(_PRETRAINED):
            # A pre-trained checkpoint may share a layer with the new head, as ModernBERT does:
            # only what its file lacks is new. After another task every layer is drawn again.
            new_layers = [layer for key, layer in head.items() if f"{key}.weight" in new_keys]
        _draw_weights(new_layers, getattr(config, "initializer_range", 0.02))
    if task.problem_type == "regression":
        for layer in head.values():
            layer.__class__ = Float32Linear
    if settings.freeze_encoder:
        _freeze_encoder(model, new_keys)
    # A checkpoint that must have its head is measured as it is: a BiLSTM would be untrained.
    if settings.bilstm and not needs_head:
        _add_bilstm(model)
    return model


def _check_length(config: PretrainedConfig, length: int) -> None:
    """Refuse inputs that are longer than the model has positions."""
    max_length = num_positions(config, length)
    if length > max_length:
        raise InputError(
            f"max_seq_length is {length}, the model has {max_length} positions; lower "
            "--max_seq_length"
        )


def _warn_of_untrained_positions(name: str, config: PretrainedConfig, length: int) -> None:
    """Warn where inputs are longer than those that a pre-trained model of ours has seen."""
    if not Path(name).is_dir() or not architecture(config).endswith(_PRETRAINED):
        return
    trained_length = read_trained_settings(name).get("max_seq_length", length)
    if length > trained_length:
        logger.warning(
            "%s was pre-trained on inputs of at most %d tokens: its later positions were never "
            "trained, and max_seq_length is %d",
            name,
            trained_length,
            length,
        )


def _head_layers(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """Return the linear layers outside of the encoder by their names."""
    encoder = set(model.base_model.modules())
    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module not in encoder:
            layers[name] = module
    return layers


def _draw_weights(layers: Sequence[nn.Linear], std: float) -> None:
    """Draw weights of a normal that is cut off at two deviations; biases are 0.

    Source: google-research/bert run_classifier.py `create_model`.
    """
    for layer in layers:
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _freeze_encoder(model: PreTrainedModel, new_keys: Collection[str]) -> None:
    """Let no parameter of the encoder learn, but those of a new pooler."""
    new_pooler = []
    for name, parameter in model.named_parameters():
        if name.startswith(f"{model.base_model_prefix}."):
            parameter.requires_grad_(name in new_keys)
            if name in new_keys:
                new_pooler.append(name)
    if new_pooler:
        logger.info("the encoder is frozen but for what is new: %s", ", ".join(sorted(new_pooler)))


def _add_bilstm(model: PreTrainedModel) -> None:
    """Put a new BiLSTM between encoder and head.

    A pooled text is the largest of its states over the tokens. The paper gives neither the size,
    half the hidden size a direction here, nor what a classifier reads.

    Source: Devlin et al. 2019, section 5.1.
    """
    size = model.config.hidden_size
    pooler = getattr(model.base_model, "pooler", None)
    if pooler is not None:
        pooler.requires_grad_(False)  # nobody reads it
    bilstm = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)

    def read(encoder: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Replace an encoder's hidden states, (B, S, H), and its pooled ones, (B, H).

        It is a forward hook of the encoder.
        """
        hidden_states = output.last_hidden_state
        is_token = kwargs["attention_mask"] != 0
        with torch.autocast(hidden_states.device.type, enabled=False):
            packed = rnn.pack_padded_sequence(
                hidden_states.float(),
                is_token.sum(dim=1).cpu(),
                batch_first=True,
                enforce_sorted=False,
            )
            packed_states, _ = bilstm(packed)
        length = hidden_states.shape[1]
        states, _ = rnn.pad_packed_sequence(packed_states, batch_first=True, total_length=length)
        output.last_hidden_state = states
        if output.get("pooler_output") is not None:
            is_pad = ~is_token[..., None]
            output.pooler_output = states.masked_fill(is_pad, -torch.inf).amax(dim=1)

    # Outside of the encoder, which may be frozen and goes without training mode then.
    model.bilstm = bilstm
    model.base_model.register_forward_hook(read, with_kwargs=True)


def _from_pretrained(
    name: str, model_class: Any, **options: Any
) -> tuple[PreTrainedModel, set[str], set[str]]:
    """Load a checkpoint.

    Returns:
        The model, the keys that the file lacks, and those of another size there; their weights are
        drawn at random.
    """
    cached_only = check_checkpoint(name)
    with opening(name):
        model, info = model_class.from_pretrained(
            name,
            use_safetensors=has_safetensors(name, cached_only=cached_only),
            output_loading_info=True,
            # Whatever the file holds: weights that learn are in full precision.
            dtype=torch.float32,
            local_files_only=cached_only,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,
            **options,
        )
    check_layers(name, model.config, info["unexpected_keys"])
    if getattr(model.config, "positions", None) == "none":
        # A model of sets: its positions are zeros that never learn.
        model.base_model.embeddings.position_embeddings.weight.requires_grad_(False)
    mismatched = {key for key, _, _ in info["mismatched_keys"]}
    return model, set(info["missing_keys"]), mismatched


def _load(
    name: str, kind: str, config: PretrainedConfig, *, keeps_head: bool
) -> tuple[PreTrainedModel, set[str]]:
    """Load a checkpoint with the head of a kind; its encoder is complete, but for its pooler.

    Returns:
        The model, and the keys of what is new: a head, and a pooler that a masked-LM checkpoint
        lacks.
    """
    model_class = getattr(transformers, f"AutoModel{HEADS[kind]}")
    model, missing, mismatched = _from_pretrained(name, model_class, config=config)
    new_pooler = []
    lost = []
    for key in sorted(missing | mismatched):
        is_encoder = key.startswith(f"{model.base_model_prefix}.")
        if is_encoder and not keeps_head and ".pooler." in key and key in missing:
            new_pooler.append(key)
        elif is_encoder or keeps_head:
            lost.append(key)
    if lost:
        raise InputError(
            f"{name}: no weights for {lost[0]} ({len(lost)} missing) of the size that config.json "
            "says; weights and config.json do not belong together"
        )
    if new_pooler:
        message = "%s has no weights for its pooler (%s); it is drawn at random"
        logger.warning(message, name, ", ".join(new_pooler))
    return model, missing | mismatched


def open_complete(
    name: str, model_class: Any, *, may_lack: tuple[str, ...] = (), **options: Any
) -> PreTrainedModel:
    """Open a checkpoint in float32 that has every weight.

    Keys that begin with one of may_lack may be missing.
    """
    model, missing, mismatched = _from_pretrained(name, model_class, **options)
    lost = [key for key in missing | mismatched if not key.startswith(may_lack)]
    if lost:
        raise InputError(
            f"model_name_or_path: {name} has no weights for {min(lost)} ({len(lost)} missing or "
            "of another size than config.json says); give a complete checkpoint"
        )
    return model


def kind_of_head(config: PretrainedConfig) -> str | None:
    """Return the kind of task whose head the checkpoint has; None for any other architecture."""
    for kind, head in HEADS.items():
        if architecture(config).endswith(head):
            return kind
    return None


def _why_new_head(config: PretrainedConfig, task: Task) -> str | None:
    """Return why the checkpoint's head cannot serve the task, or None."""
    if kind_of_head(config) != task.kind:
        head = HEADS[task.kind]
        return f"no {head} head in this checkpoint (a {architecture(config) or 'none'})"
    if task.kind not in CLASSIFICATION_KINDS:
        return None

    names = label_names(config)
    if not _fits_labels(names, task):
        names_of_checkpoint = ", ".join(names)
        names_of_task = ", ".join(task.labels) or "one number"
        return f"the checkpoint's labels are {names_of_checkpoint}; the task's are {names_of_task}"

    is_other_problem = config.problem_type not in (None, task.problem_type)
    if task.kind == "sequence_classification" and is_other_problem:
        return f"the checkpoint is for {config.problem_type}, the task is {task.problem_type}"
    return None


def _fits_labels(names: Sequence[str], task: Task) -> bool:
    """Return whether a checkpoint with these labels, or as many without names, serves a task."""
    if task.problem_type == "regression":
        return len(names) == 1
    stock_names = [f"LABEL_{number}" for number in range(len(task.labels))]
    if list(names) == stock_names:
        return True
    return _labels_in_order(names, task) is not None


def _labels_in_order(names: Sequence[str], task: Task) -> list[str] | None:
    """Return the labels of a task in the order in which a checkpoint names them; None for others.

    They may differ in case, unless that tells two labels apart.
    """
    if sorted(names) == sorted(task.labels):
        return list(names)
    labels = {label.casefold(): label for label in task.labels}
    if len(labels) < len(task.labels):
        return None
    folded = [name.casefold() for name in names]
    if sorted(folded) != sorted(labels):
        return None
    return [labels[name] for name in folded]


def label_names(config: PretrainedConfig) -> list[str]:
    """Return the names of the classes in the order of their numbers.

    label2id of config.json may be missing or stale.
    """
    name_of = config.id2label
    return [str(name_of[number]) for number in sorted(name_of)]


def _set_labels(name: str, config: PretrainedConfig, task: Task, *, is_new: bool) -> None:
    """Set labels and type of problem as the task has them, for a new head or the checkpoint's."""
    if is_new:
        config.problem_type = None
    if task.kind in CLASSIFICATION_KINDS and task.labels:
        names = _labels_in_order(label_names(config), task)
        if names is None and not is_new:
            message = "%s does not name its labels; they are taken for %s, in this order"
            logger.warning(message, name, ", ".join(task.labels))
        if names is None or is_new:
            names = list(task.labels)
        config.id2label = dict(enumerate(names))
        config.label2id = {label: number for number, label in enumerate(names)}
    elif is_new and task.kind == "question_answering":
        config.num_labels = 2  # start and end
    elif is_new and task.kind != "multiple_choice":
        config.num_labels = 1  # a number
    if task.kind == "sequence_classification":
        config.problem_type = task.problem_type  # stock pipelines choose sigmoid or softmax by it


def _set_dropout(config: PretrainedConfig, dropout: float) -> None:
    """Set every rate of a config, which each kind of model names in its way.

    A rate that is None follows another one.
    """
    for name, rate in config.to_dict().items():
        if "dropout" in name and rate is not None:
            setattr(config, name, dropout)


class Float32Linear(nn.Linear):
    """A layer of a regression's head, in float32 whatever the encoder computes in.

    bfloat16 has two to three digits.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map float (B, in) to float32 (B, out)."""
        bias = None
        if self.bias is not None:
            bias = self.bias.float()
        with torch.autocast(input.device.type, enabled=False):
            return nn.functional.linear(input.float(), self.weight.float(), bias)
