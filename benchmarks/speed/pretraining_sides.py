"""A pre-training step on each side: the same generated pairs, the whole Trainer loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import BertConfig, BertTokenizer, DataCollatorForLanguageModeling, set_seed

from bert_recipes.config import parse_arguments
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.order import epoch_order
from bert_recipes.data.store import open_store
from bert_recipes.models.sizes import SIZES, pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DataArguments, ModelArguments, PhaseArguments, PreTrainingArguments
from bert_recipes.training.pretraining import PreTrainingData, load_data, load_model, make_collator, make_trainer
from speed.spec import SampleSpec
from speed.stock_switches import StaticDataset, StockTrainer, stock_arguments, stock_defaults
from speed.synthetic import CLS_ID, MIXED, MIXED_SHORT, SEP_ID, SyntheticSplit, write_vocabulary


# Generated tokens, at least.
MIN_TOKENS = 50_000
# Share of the masked tokens for which the limit of predictions leaves room: google-research/bert README, 20 of 128.
MASKED_SHARE = 0.15


def our_settings(spec: SampleSpec) -> tuple[ModelArguments, DataArguments, PreTrainingArguments]:
    """The settings of recipes/configs/pretrain with the size, length, batch and steps of the sample."""
    flags: dict[str, Any] = {
        "store": spec.store or "generated",
        "output_dir": f"{spec.work_dir}/ours",
        "size": spec.size,
        "max_seq_length": spec.length,
        "max_predictions_per_seq": math.ceil(spec.length * MASKED_SHARE),
        "global_train_batch_size": spec.pairs_per_step,
        "per_device_train_batch_size": spec.pairs_per_step,
        "max_steps": spec.total_steps,
        "phase2_steps": 0,
        "seed": spec.seed,
        "eval_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": "true",
        "data_cache_dir": f"{spec.work_dir}/pairs",
    }
    if spec.use_cpu or not torch.cuda.is_available():
        # On a CPU workers would take the cores of the training.
        flags |= {"use_cpu": "true", "dataloader_num_workers": 0}
    if spec.is_ours:
        flags |= spec.switches
    argv = ["--config", spec.config] if spec.config else []
    argv += [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    model, data, args, _ = parse_arguments(
        ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments, argv=argv
    )
    return model, data, args


def make_data(spec: SampleSpec, settings: DataArguments) -> PreTrainingData:
    """A store's pairs, or those of generated ids in memory.

    Args:
        spec: How much is generated: enough for every step of the sample.
        settings: Lengths and masking.
    """
    if spec.store:
        return load_data(settings, spec.seed)
    folder = Path(spec.work_dir)
    vocabulary = folder / "vocab.txt"
    if not vocabulary.is_file():
        write_vocabulary(vocabulary, spec.vocab_size)
    tokenizer = load_tokenizer(vocabulary, do_lower_case=True)
    needed = max(MIN_TOKENS, math.ceil(1.3 * spec.tokens_per_step * spec.total_steps))
    split = SyntheticSplit(needed, spec.vocab_size, documents=spec.documents, seed=spec.seed)
    train = PreTrainingDataset(
        split,  # type: ignore[arg-type]  # drawn, with the same methods
        cls_id=CLS_ID,
        sep_id=SEP_ID,
        store_fingerprint=f"generated-{spec.documents}-{spec.vocab_size}-{spec.seed}",
        max_seq_length=spec.length,
        short_seq_prob=MIXED_SHORT if spec.documents == MIXED else settings.short_seq_prob,
        seed=spec.seed,
        cache_dir=folder / "pairs",
    )
    collator = make_collator(settings, tokenizer, spec.seed)
    return PreTrainingData(tokenizer, train, None, collator, lambda: np.zeros(spec.vocab_size, dtype=np.int64))


class StaticPairs:
    """The pairs of epoch 0 in the order in which ours is trained on them, written down once.

    Args:
        data: Gives the pairs.
        seed: Of the order.
    """

    def __init__(self, data: PreTrainingDataset, seed: int) -> None:
        """Write them down: 5 bytes a token and no object for each."""
        order = epoch_order(seed, 0, data.num_pairs(0))
        self.lengths = data.lengths(0)[order]
        self._offsets = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        self._ids = np.empty(self._offsets[-1], dtype=np.int32)
        self._types = np.empty(self._offsets[-1], dtype=np.int8)
        self._labels = np.empty(len(order), dtype=np.int8)
        for number, index in enumerate(order.tolist()):
            pair = data[(0, index)]
            place = slice(self._offsets[number], self._offsets[number + 1])
            self._ids[place], self._types[place] = pair["input_ids"], pair["token_type_ids"]
            self._labels[number] = pair["next_sentence_label"]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One pair as a stock collator takes it: lists of int, and the label."""
        place = slice(self._offsets[number], self._offsets[number + 1])
        return {
            "input_ids": self._ids[place].tolist(),
            "token_type_ids": self._types[place].tolist(),
            "next_sentence_label": int(self._labels[number]),
        }


def stock_config(size: str, vocab_size: int) -> BertConfig:
    """A `BertConfig` of one of our sizes, everything else as stock has it."""
    layers, hidden = SIZES[size]
    ours = pretraining_config(size, vocab_size=vocab_size)
    return BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=ours.num_attention_heads,
        intermediate_size=ours.intermediate_size,
    )


def make_ours(spec: SampleSpec) -> Any:
    """The Trainer that recipes/pretrain.py makes."""
    model_args, data_args, args = our_settings(spec)
    data = make_data(spec, data_args)
    model = load_model(model_args, data.tokenizer, spec.length, spec.seed)
    return make_trainer(model, args, data, data_args.max_eval_pairs)


def make_stock(spec: SampleSpec) -> Any:
    """`BertForPreTraining`, `DataCollatorForLanguageModeling` and `Trainer` with the switches of the sample."""
    switches = stock_defaults() | dict(spec.switches)
    _, data_args, _ = our_settings(spec)
    data = make_data(spec, data_args)
    vocabulary = Path(data.tokenizer.name_or_path or spec.work_dir)
    file = vocabulary if vocabulary.is_file() else vocabulary / "vocab.txt"
    if spec.store:
        file = open_store(spec.store).tokenizer_path / "vocab.txt"
    tokenizer = BertTokenizer(vocab=str(file))
    assert len(tokenizer) == len(data.tokenizer)
    set_seed(spec.seed)
    model = transformers.BertForPreTraining(stock_config(spec.size, len(tokenizer)))
    model.set_attn_implementation(switches["attn"])
    assert isinstance(data.train, PreTrainingDataset)
    pairs = StaticPairs(data.train, spec.seed)
    multiple = spec.length if switches["padding"] == "max" else None
    return StockTrainer(
        pairs.lengths.tolist(),
        model=model,
        args=stock_arguments(spec, switches, spec.pairs_per_step),
        data_collator=DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=multiple),
        train_dataset=StaticDataset(pairs),
    )


def make_side(spec: SampleSpec) -> Any:
    """The Trainer of the side that the sample names."""
    return make_ours(spec) if spec.is_ours else make_stock(spec)
