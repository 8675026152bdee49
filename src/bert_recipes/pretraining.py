"""From settings to the parts of a pre-training run: tokenizer, data, collator, model, trainer."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from transformers import set_seed

from bert_recipes.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.instances import InstanceDataset
from bert_recipes.data.store import Store, TokenStore, open_store
from bert_recipes.errors import InputError
from bert_recipes.evaluation import EVALUATION_SEED
from bert_recipes.hub_access import is_hub_name, why_unreachable
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.monitoring import ProgressWatch
from bert_recipes.tokenization import OriginalBertTokenizer, load_tokenizer
from bert_recipes.trainer import BertTrainer


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreTrainingData:
    """What a run trains on and is measured with.

    Attributes:
        tokenizer: Opens and writes the text.
        train: Pairs to train on.
        validation: Held-out pairs, or None.
        collator: Pads and masks.
        unigram_counts: int64 (V,) of the training split, or None for instance files.
    """

    tokenizer: OriginalBertTokenizer
    train: PreTrainingDataset | InstanceDataset
    validation: PreTrainingDataset | InstanceDataset | None
    collator: DataCollatorForPreTraining
    unigram_counts: np.ndarray | None


def load_data(data: DataArguments, seed: int) -> PreTrainingData:
    """Open the store or the instance files.

    Args:
        data: Settings.
        seed: Seed of the pairs and masks of training; those of the held-out data do not depend on it.

    Raises:
        InputError: A path, tokenizer or vocabulary that does not fit.
    """
    if data.store is None:
        return _load_instances(data, seed)
    store = open_store(data.store)
    tokenizer = load_tokenizer(data.tokenizer or store.tokenizer_path)
    store.check_tokenizer(tokenizer.fingerprint, len(tokenizer))
    train = _pairs(store, store.train, data, seed)
    validation = None if store.validation is None else _pairs(store, store.validation, data, EVALUATION_SEED)
    return PreTrainingData(
        tokenizer, train, validation, make_collator(data, tokenizer, seed), store.train.unigram_counts
    )


def _pairs(store: Store, split: TokenStore, data: DataArguments, seed: int) -> PreTrainingDataset:
    ids = store.metadata["special_ids"]
    return PreTrainingDataset(
        split,
        cls_id=ids["cls"],
        sep_id=ids["sep"],
        store_fingerprint=store.fingerprint,
        max_seq_length=data.max_seq_length,
        short_seq_prob=data.short_seq_prob,
        seed=seed,
        cache_dir=None if data.data_cache_dir is None else Path(data.data_cache_dir),
        num_workers=data.data_num_processes,
    )


def _load_instances(data: DataArguments, seed: int) -> PreTrainingData:
    if data.tokenizer is None or data.train_file is None:
        raise InputError("--train_file needs --tokenizer: the folder or vocab.txt with which the file was made")
    tokenizer = load_tokenizer(data.tokenizer)
    size = len(tokenizer)
    train = InstanceDataset(data.train_file, cache_dir=data.data_cache_dir, vocab_size=size)
    validation = None
    if data.validation_file is not None:
        validation = InstanceDataset(data.validation_file, cache_dir=data.data_cache_dir, vocab_size=size)
    return PreTrainingData(tokenizer, train, validation, make_collator(data, tokenizer, seed), None)


def make_collator(data: DataArguments, tokenizer: OriginalBertTokenizer, seed: int) -> DataCollatorForPreTraining:
    """The collator that the settings describe; the limit of predictions defaults to the share of the longest pair."""
    limit = data.max_predictions_per_seq
    return DataCollatorForPreTraining(
        tokenizer,
        mlm_probability=data.mlm_probability,
        # google-research/bert README: around max_seq_length * masked_lm_prob; 20 for 128 and 77 for 512
        max_predictions_per_seq=limit or math.ceil(data.max_seq_length * data.mlm_probability),
        mask_rate=data.mask_rate,
        keep_rate=data.keep_rate,
        random_rate=data.random_rate,
        whole_word=data.whole_word,
        selection=data.selection,
        seed=seed,
    )


def load_model(
    model: ModelArguments, tokenizer: OriginalBertTokenizer, max_seq_length: int, seed: int
) -> BertForPreTraining:
    """A new model of the named size, or a checkpoint (ours or stock).

    Args:
        model: Settings.
        tokenizer: Gives the vocabulary.
        max_seq_length: Longest input of the run.
        seed: Of new weights.

    Raises:
        InputError: An unknown size, a vocabulary or length that does not fit, a checkpoint that is not there.
    """
    set_seed(seed)
    if model.model_name_or_path is None:
        config = pretraining_config(
            model.size,
            vocab_size=len(tokenizer),
            max_position_embeddings=model.max_position_embeddings,
            dropout=model.dropout,
            hidden_act=model.hidden_act,
            weight_init=model.weight_init,
            pad_token_id=tokenizer.pad_token_id,
        )
        network = BertForPreTraining(config)
    else:
        network = _from_checkpoint(model.model_name_or_path)
    if network.config.vocab_size < len(tokenizer):
        raise InputError(
            f"the tokenizer has {len(tokenizer):,} pieces, the model {network.config.vocab_size:,}: they do not belong "
            "together; give the checkpoint's own tokenizer (and a store made with it)"
        )
    if network.config.max_position_embeddings < max_seq_length:
        raise InputError(
            f"max_seq_length is {max_seq_length}, the model has {network.config.max_position_embeddings} positions; "
            "lower it, or train a new model with --max_position_embeddings"
        )
    return network


def _from_checkpoint(name: str) -> BertForPreTraining:
    folder = Path(name)
    cached_only = False
    if not folder.is_dir():
        if not is_hub_name(name):
            raise InputError(f"model_name_or_path: no folder {name}; give a checkpoint folder or a Hub name")
        reason = why_unreachable()
        cached_only = reason is not None
        if cached_only and not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise InputError(
                f"model_name_or_path: no folder {name}, no model of that name in the local Hub cache, and {reason}; "
                "give a checkpoint folder"
            )
    elif not (folder / "model.safetensors").is_file() and not (folder / "model.safetensors.index.json").is_file():
        raise InputError(f"model_name_or_path: {name} has no model.safetensors; only safetensors weights are opened")
    try:
        network, info = BertForPreTraining.from_pretrained(
            name, use_safetensors=True, output_loading_info=True, local_files_only=cached_only
        )
    except (OSError, SafetensorError) as error:
        raise InputError(f"model_name_or_path: {name} cannot be opened: {str(error).splitlines()[0]}") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:8])
        logger.warning("%s has no weights for %s; they start anew", name, missing)
    return network


def make_trainer(
    model: BertForPreTraining, args: PreTrainingArguments, data: PreTrainingData, max_eval_pairs: int
) -> BertTrainer:
    """Join the parts."""
    if data.validation is None and args.eval_strategy != "no":
        raise InputError(
            f"eval_strategy is '{args.eval_strategy.value}' but the data has no held-out part; make the store with "
            "--validation_files or --validation_fraction, or give --eval_strategy no"
        )
    if args.use_cpu and model.config.attention_probs_dropout_prob > 0:
        # On CPUs scaled_dot_product_attention has no fast path with dropout; spelled out it is quicker (same function).
        model.set_attn_implementation("eager")
    trainer = BertTrainer(
        model,
        args,
        data.collator,
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=data.tokenizer,
        unigram_counts=data.unigram_counts,
        max_eval_pairs=max_eval_pairs,
        callbacks=[ProgressWatch()],
    )
    logger.info("precision %s: %s", args.precision_reason, "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32")
    return trainer


def describe_run(trainer: BertTrainer, data: PreTrainingData) -> dict[str, Any]:
    """Sizes of a run, for the log and the report."""
    args = trainer.args
    return {
        "parameters": trainer.model.num_parameters(),
        "vocabulary": len(data.tokenizer),
        "pairs_in_epoch_0": data.train.num_pairs(0),
        "global_train_batch_size": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "processes": args.world_size,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    }
