"""A checkpoint as the page asks it: what it can do, where its attention is.

Legend: L layers, A heads, S positions.
"""

import dataclasses
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, BertConfig

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import (
    TASK_FILE,
    FineTuningArguments,
    InputArguments,
    PredictionArguments,
    TaskArguments,
    architecture,
    read_model_config,
)
from bert_recipes.finetuning.checkpoints import open_tokenizer
from bert_recipes.finetuning.prediction import kind_of_head, make_predictor, task_of_checkpoint
from bert_recipes.models.checkpoints import MASKED_LM_HEADS, MEMBERS, open_checkpoint
from bert_recipes.models.sizes import num_positions
from bert_recipes.tokenization.loading import check_vocabulary
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


FILL_MASK, NEXT_SENTENCE = "fill_mask", "next_sentence"
# Column that holds the choices of a question, however many the user gives.
CHOICES = "choices"


@dataclass(frozen=True)
class DemoModel:
    """A checkpoint on its device, in evaluation mode, with stock's eager attention."""

    name: str
    tokenizer: OriginalBertTokenizer
    network: Any  # PreTrainedModel
    abilities: tuple[
        str, ...
    ]  # FILL_MASK, NEXT_SENTENCE, or the kind of task that it was fine-tuned on
    lacks: tuple[str, ...] = ()  # a sentence for each head of pre-training that is missing
    predictor: Any = None  # the Predictor of a fine-tuned checkpoint
    second_is_optional: bool = False  # a text classifier that does not say whether it takes pairs


def open_demo_model(name: str, work_dir: Path, *, use_cpu: bool = False) -> DemoModel:
    """Open a run's folder or any other BERT checkpoint; `work_dir` is for a Trainer that wants a
    folder, nothing is kept there.
    """
    cached_only = check_checkpoint(name)
    with opening(name):
        values, _ = BertConfig.get_config_dict(name, local_files_only=cached_only)
        values = {"model_type": "bert"} | values  # the oldest checkpoints do not name it
        shown = list(dict.fromkeys(member.config_class.model_type for member in MEMBERS.values()))
        if (kind := values.pop("model_type")) not in shown:
            raise InputError(
                f"{name} is no BERT: the model_type in its config.json is {kind!r}; the page "
                f"shows {', '.join(shown)}"
            )
        config = AutoConfig.for_model(kind, **values)
    tokenizer = open_tokenizer(name)
    check_vocabulary(name, config.vocab_size, tokenizer)
    if kind_of_head(config) is not None:
        model = _fine_tuned(name, tokenizer, work_dir, use_cpu=use_cpu)
    else:
        with opening(name):
            network, new = open_checkpoint(name, cached_only=cached_only)
        network = getattr(
            network, "generator", network
        )  # of ELECTRA's two the one that fills masks
        network.to("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")
        # Only heads whose weights are in the file: a new one can say nothing.
        lacks = {}
        if any(key.startswith(MASKED_LM_HEADS) for key in new):
            lacks[FILL_MASK] = "it has no masked-LM head"
        has_pooler = not any(
            key.startswith(("cls.seq_relationship.", "bert.pooler.")) for key in new
        )
        if (
            config.model_type != "bert" or not has_pooler
        ):  # ALBERT's head is about the order of sentences
            lacks[NEXT_SENTENCE] = "it has no next-sentence head"
        elif config.type_vocab_size < 2:
            lacks[NEXT_SENTENCE] = (
                "it knows no second segment (type_vocab_size 1), so there is no next sentence"
            )
        abilities = tuple(ability for ability in (FILL_MASK, NEXT_SENTENCE) if ability not in lacks)
        model = DemoModel(name, tokenizer, network, abilities, tuple(lacks.values()))
    model.network.eval()
    # The fast ways to compute attention never hold its weights.
    model.network.set_attn_implementation("eager")
    return model


def _fine_tuned(
    name: str, tokenizer: OriginalBertTokenizer, work_dir: Path, *, use_cpu: bool
) -> DemoModel:
    config = read_model_config(name)
    columns = [CHOICES] if architecture(config).endswith("ForMultipleChoice") else None
    args = PredictionArguments(
        model_name_or_path=name, input_file="", choice_columns=columns, use_cpu=use_cpu
    )
    task = task_of_checkpoint(config, args)
    has_task_file = (Path(name) / TASK_FILE).is_file()
    second_is_optional = (
        task.kind == "sequence_classification" and not has_task_file and _takes_pairs(config)
    )
    if second_is_optional:
        task = dataclasses.replace(task, text_columns=(*task.text_columns, "text_pair"))
    settings = TaskArguments(
        task=task.name, model_name_or_path=name, **InputArguments().resolved(config, name)
    )
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
    lacks = (f"fine-tuning ({architecture(config)}) removed the pre-training heads",)
    return DemoModel(
        name, tokenizer, predictor.trainer.model, (task.kind,), lacks, predictor, second_is_optional
    )


def _takes_pairs(config: Any) -> bool:
    """A BERT of one segment has never seen two texts; members without segments tell them by
    [SEP].
    """
    return config.model_type != "bert" or config.type_vocab_size > 1


@torch.no_grad()
def compute_attention(
    model: DemoModel, first: str, second: str = "", limit: int | None = None
) -> tuple[list[str], np.ndarray, int]:
    """Read a text or a pair; with `limit` keep the first so many positions only: those of a long
    text take much memory.

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
        *texts, return_tensors="pt", truncation=True, max_length=num_positions(config)
    )
    inputs = inputs.to(model.network.device)
    encoder = model.network.base_model
    accepted = inspect.signature(
        type(encoder).forward
    ).parameters  # DistilBERT takes no token_type_ids
    given = {name: value for name, value in inputs.items() if name in accepted}
    layers = encoder(**given, output_attentions=True).attentions
    weights = torch.cat([layer[:, :, :limit, :limit].float().cpu() for layer in layers]).numpy()
    return (
        model.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0][:limit].tolist()),
        weights,
        num_tokens,
    )
