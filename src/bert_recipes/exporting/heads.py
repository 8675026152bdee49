"""What goes into and comes out of each head, and the stock class that is exported.

Legend: B batch, C choices or classes, S positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from bert_recipes.checkpoint_access import check_checkpoint, opening
from bert_recipes.errors import InputError
from bert_recipes.finetuning.input_arguments import architecture
from bert_recipes.finetuning.kinds import KIND_CLASSES
from bert_recipes.models.sizes import check_layers


PRETRAINING = "pretraining"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The oldest and the best known checkpoints name the masked-LM head only, and hold both.
_PRETRAINING_CLASSES = ("BertForPreTraining", "BertForMaskedLM")


@dataclass(frozen=True)
class Head:
    """A head by what it gives.

    Attributes:
        name: "pretraining", or the kind of task that it is for.
        model_class: Its class in transformers.
        outputs: Name of an output -> its axes after the batch's; "sequence" where there is something for each token.
    """

    name: str
    model_class: str
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def input_axes(self) -> tuple[str, ...]:
        """Names of the axes of every input."""
        return ("batch", "choices", "sequence") if self.name == "multiple_choice" else ("batch", "sequence")

    def is_by_token(self, output: str) -> bool:
        """Whether an output says something of each token, (B, S) or (B, S, ...)."""
        return self.outputs[output][:1] == ("sequence",)


_OUTPUTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    PRETRAINING: {"prediction_logits": ("sequence", "vocabulary"), "seq_relationship_logits": ("classes",)},
    "sequence_classification": {"logits": ("classes",)},
    "token_classification": {"logits": ("sequence", "classes")},
    "question_answering": {"start_logits": ("sequence",), "end_logits": ("sequence",)},
    "multiple_choice": {"logits": ("choices",)},
}


def head_of(config: PretrainedConfig, name: str) -> Head:
    """The head that a checkpoint has.

    Args:
        config: Its config.json.
        name: Its folder or Hub name.
    """
    built = architecture(config)
    if built in _PRETRAINING_CLASSES:
        return Head(PRETRAINING, "BertForPreTraining", _OUTPUTS[PRETRAINING])
    for kind, kind_class in KIND_CLASSES.items():
        if built.endswith(kind_class.auto_class.removeprefix("AutoModel")):
            return Head(kind, kind_class.auto_class, _OUTPUTS[kind])
    heads = ", ".join(kind.auto_class.removeprefix("AutoModel") for kind in KIND_CLASSES.values())
    raise InputError(
        f"model_name_or_path: {name} is {built or 'of no named architecture'}; allowed: "
        f"{', '.join(_PRETRAINING_CLASSES)}, and any model with a head {heads}"
    )


def open_stock(name: str, head: Head, attention: str = "sdpa") -> PreTrainedModel:
    """Open a checkpoint in the class that transformers has for it: plain modules, for export.

    Args:
        name: Folder or Hub name.
        head: Of `head_of`.
        attention: How transformers is to compute attention.

    Returns:
        The model, float32, in evaluation mode.
    """
    cached_only = check_checkpoint(name)
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # what matters of its report is said below
    try:
        with opening(name):
            config = AutoConfig.from_pretrained(name, local_files_only=cached_only)
            model, info = getattr(transformers, head.model_class).from_pretrained(
                name,
                config=config,
                use_safetensors=True,
                output_loading_info=True,
                dtype=torch.float32,
                attn_implementation=attention,
                local_files_only=cached_only,
                ignore_mismatched_sizes=True,
            )
    finally:
        transformers.logging.set_verbosity(verbosity)
    check_layers(name, config, info["unexpected_keys"])
    lost = {key if isinstance(key, str) else key[0] for key in (*info["missing_keys"], *info["mismatched_keys"])}
    if lost:
        raise InputError(
            f"model_name_or_path: {name} has no weights for {min(lost)} ({len(lost)} missing or of another size than "
            "config.json says); only a whole checkpoint is exported"
        )
    return model.eval().requires_grad_(False)


def inputs_of(model: PreTrainedModel) -> tuple[str, ...]:
    """The inputs that a model takes, in the order in which it takes them; DistilBERT has no token_type_ids."""
    return tuple(name for name in inspect.signature(model.forward).parameters if name in INPUTS)
