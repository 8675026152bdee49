"""Open a checkpoint for the page: what it can do, where its attention is.

Legend: L layers, A heads, S positions.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, BertConfig

from bert_recipes.checkpointing import check_checkpoint, find_file, opening
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import (
    FineTuningArguments,
    InputArguments,
    PredictionArguments,
    TaskArguments,
    architecture,
    read_model_config,
)
from bert_recipes.finetuning.checkpoints import kind_of_head, open_tokenizer
from bert_recipes.finetuning.prediction import make_predictor, task_of_checkpoint
from bert_recipes.models.checkpoints import MASKED_LM_HEADS, MEMBERS, open_checkpoint
from bert_recipes.models.electra import ElectraForPreTraining
from bert_recipes.models.sizes import inputs_of, num_positions, reads_left_to_right
from bert_recipes.run_folder import CONFIG_FILE, TASK_FILE
from bert_recipes.tokenization.loading import check_vocabulary
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.yaml_files import read_tree


FILL_MASK = "fill_mask"
NEXT_SENTENCE = "next_sentence"
# Column that holds the choices of a question, however many the user gives.
CHOICES = "choices"


@dataclass(frozen=True)
class DemoModel:
    """A checkpoint on its device, in evaluation mode, with stock's eager attention."""

    name: str
    tokenizer: OriginalBertTokenizer
    network: Any  # PreTrainedModel
    # FILL_MASK, NEXT_SENTENCE, or the kind of task that it was fine-tuned on.
    abilities: tuple[str, ...]
    lacks: tuple[str, ...] = ()  # a sentence for each head of pre-training that is missing
    predictor: Any = None  # the Predictor of a fine-tuned checkpoint
    second_is_optional: bool = False  # a text classifier that does not say whether it takes pairs


def open_demo_model(name: str, work_dir: Path, *, use_cpu: bool = False) -> DemoModel:
    """Open a run's folder or any other BERT checkpoint.

    Args:
        name: Folder, or name on the Hub.
        work_dir: For a Trainer that needs a folder; nothing is kept there.
        use_cpu: Even where there is a GPU.
    """
    cached_only = check_checkpoint(name)
    with opening(name):
        config = _read_config(name, cached_only=cached_only)
    tokenizer = open_tokenizer(name)
    check_vocabulary(name, config.vocab_size, tokenizer)
    if kind_of_head(config) is not None:
        model = _open_fine_tuned(name, tokenizer, work_dir, use_cpu=use_cpu)
    else:
        with opening(name):
            network, new_weights = open_checkpoint(name, cached_only=cached_only)
        lacks = _missing_heads(config, new_weights)
        if isinstance(network, ElectraForPreTraining):
            # The generator fills masks. One that the checkpoint lacks has learned nothing.
            network = network.electra if FILL_MASK in lacks else network.generator
        network.to("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")
        if NEXT_SENTENCE not in lacks and _learned_order(name):
            lacks[NEXT_SENTENCE] = "its head for pairs is about the order of two texts"
        abilities = tuple(ability for ability in (FILL_MASK, NEXT_SENTENCE) if ability not in lacks)
        model = DemoModel(
            name,
            tokenizer,
            network,
            abilities,
            tuple(lacks.values()),
        )
    model.network.eval()
    # The fast ways to compute attention never hold its weights.
    model.network.set_attn_implementation("eager")
    return model


def _read_config(name: str, *, cached_only: bool) -> Any:
    """Return the configuration of a BERT or a member of its family; refuse any other model."""
    values, _ = BertConfig.get_config_dict(name, local_files_only=cached_only)
    model_type = values.pop("model_type", "bert")  # the oldest checkpoints do not name it
    family = dict.fromkeys(member.config_class.model_type for member in MEMBERS.values())
    if model_type not in family:
        raise InputError(
            f"{name} is no BERT: the model_type in its config.json is {model_type!r}; the page "
            f"shows {', '.join(family)}"
        )
    return AutoConfig.for_model(model_type, **values)


def _learned_order(name: str) -> bool:
    """Return whether a run's pairs were in order or swapped, as its run.yaml says."""
    file = find_file(name, CONFIG_FILE)
    if file is None:
        return False
    settings, _ = read_tree(file)
    return settings.get("pair_label") == "order"


def _missing_heads(config: Any, new_weights: Collection[str]) -> dict[str, str]:
    """Return why a checkpoint of pre-training lacks an ability.

    A head whose weights are not in the file is a new one, which can say nothing.
    """
    lacks = {}
    if reads_left_to_right(config):
        lacks[FILL_MASK] = "it reads from left to right, and sees nothing of what follows a mask"
    elif any(key.startswith(MASKED_LM_HEADS) for key in new_weights):
        lacks[FILL_MASK] = "it has no masked-LM head"
    pair_head = ("cls.seq_relationship.", "bert.pooler.")
    # ALBERT's head is about the order of sentences.
    if config.model_type != "bert" or any(key.startswith(pair_head) for key in new_weights):
        lacks[NEXT_SENTENCE] = "it has no next-sentence head"
    elif config.type_vocab_size < 2:
        lacks[NEXT_SENTENCE] = (
            "it knows no second segment (type_vocab_size 1), so there is no next sentence"
        )
    return lacks


def _open_fine_tuned(
    name: str,
    tokenizer: OriginalBertTokenizer,
    work_dir: Path,
    *,
    use_cpu: bool,
) -> DemoModel:
    config = read_model_config(name)
    is_choice = architecture(config).endswith("ForMultipleChoice")
    prediction_args = PredictionArguments(
        model_name_or_path=name,
        input_file="",
        choice_columns=[CHOICES] if is_choice else None,
        use_cpu=use_cpu,
    )
    task = task_of_checkpoint(config, prediction_args)
    has_task_file = find_file(name, TASK_FILE) is not None
    second_is_optional = False
    if task.kind == "sequence_classification" and not has_task_file and _takes_pairs(config):
        second_is_optional = True
        task = dataclasses.replace(task, text_columns=(*task.text_columns, "text_pair"))

    inputs = InputArguments().resolved(config, name)
    settings = TaskArguments(
        task=task.name,
        model_name_or_path=name,
        **inputs,
    )
    args = FineTuningArguments(
        output_dir=str(work_dir),
        per_device_eval_batch_size=8,
        precision="fp32",
        fast_layers="off",
        keep_freed_memory=False,
        use_cpu=use_cpu,
        report_to="none",
        disable_tqdm=True,
    )
    predictor = make_predictor(task, settings, tokenizer, args)
    return DemoModel(
        name=name,
        tokenizer=tokenizer,
        network=predictor.trainer.model,
        abilities=(task.kind,),
        lacks=(f"fine-tuning ({architecture(config)}) removed the pre-training heads",),
        predictor=predictor,
        second_is_optional=second_is_optional,
    )


def _takes_pairs(config: Any) -> bool:
    """Tell whether a model can read two texts.

    A BERT of one segment has never seen two; members without segments tell them by [SEP].
    """
    return config.model_type != "bert" or config.type_vocab_size > 1


@torch.no_grad()
def compute_attention(
    model: DemoModel,
    first: str,
    second: str = "",
    limit: int | None = None,
) -> tuple[list[str], np.ndarray, int]:
    """Return the attention of all heads over a text or a pair.

    Args:
        model: The checkpoint.
        first: A text.
        second: Another text, or nothing.
        limit: Keep the first so many positions: those of a long text take much memory.

    Returns:
        The tokens, [CLS] and [SEP] among them; float32 (L, A, S, S), row q is what token q looks
        at, a sum of 1 over all that was read; and the positions that the texts have, which may be
        more than the model reads.
    """
    config = model.network.config
    if second and not _takes_pairs(config):
        raise InputError(
            "the model knows no second segment (type_vocab_size 1 in its config.json); leave it "
            "empty"
        )
    texts = (first, second) if second else (first,)
    num_tokens = len(model.tokenizer(*texts, verbose=False)["input_ids"])
    inputs = model.tokenizer(
        *texts,
        return_tensors="pt",
        truncation=True,
        max_length=num_positions(config),
    )
    encoder = model.network.base_model
    if "token_type_ids" not in inputs_of(encoder):
        inputs.pop("token_type_ids", None)
    output = encoder(**inputs.to(model.network.device), output_attentions=True)
    layers = [layer[:, :, :limit, :limit].float().cpu() for layer in output.attentions]
    ids = inputs["input_ids"][0][:limit].tolist()
    return model.tokenizer.convert_ids_to_tokens(ids), torch.cat(layers).numpy(), num_tokens
