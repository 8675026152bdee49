"""The parts of a pre-training run: data of a store or of instance files, a model, and the trainer
of both.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import set_seed

from bert_recipes.checkpointing import check_checkpoint, opening, warn_once
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.masking import IGNORE_INDEX, default_max_predictions
from bert_recipes.data.store import Store, open_store
from bert_recipes.errors import InputError
from bert_recipes.files import fingerprint_files
from bert_recipes.models.bert import (
    MASKED_LM_HEADS,
    MEMBERS,
    ElectraForPreTraining,
    PreTrainingModel,
    open_checkpoint,
)
from bert_recipes.models.sizes import num_positions, pretraining_config
from bert_recipes.progress import Progress
from bert_recipes.tokenization.loading import check_vocabulary, find_tokenizer, load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    Phase,
    PreTrainingArguments,
)
from bert_recipes.training.bert_trainer import EVALUATION_SEED, BertTrainer, TrainingPhase
from bert_recipes.training.callbacks import LossWatch
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.replaced_tokens import ElectraTrainer


if TYPE_CHECKING:
    from bert_recipes.data.instances import InstanceDataset

logger = logging.getLogger(__name__)

# Settings that only a new model has, and those of masks (of `make_collator`) and inputs.
NEW_MODEL_FIELDS = (
    "size",
    "hidden_act",
    "weight_init",
    "initializer_range",
    "dropout",
    "max_position_embeddings",
)
ALBERT_FIELDS = ("embedding_size", "share_layers")
MASK_FIELDS = ("mask_rate", "keep_rate", "random_rate", "whole_word", "selection")
INPUT_FIELDS = ("short_seq_prob", "input_format", "pair_label", "dupe_factor")
# Enough for token frequencies: more than six million tokens at 128 a pair.
MAX_COUNTED_INSTANCES = 50_000
# The quickstart's data, in the current folder: what a script leaves when it is done; the script;
# its configuration.
QUICKSTART = Path("data/quickstart")
QUICKSTART_STEPS = (
    ("corpus.json", "recipes/collect_docstrings.py", None),
    ("tokenizer/vocab.txt", "tokenizer/train.py", "tokenizer/configs/quickstart.yaml"),
    ("store/store.json", "recipes/prepare_corpus.py", "recipes/configs/corpus/quickstart.yaml"),
)


# Data


def build_missing_quickstart(store: str | None, repository: Path) -> None:
    """Make the quickstart's data, from the first part that is missing on, where a run is to train
    on its store.
    """
    missing = [not (QUICKSTART / made).is_file() for made, *_ in QUICKSTART_STEPS]
    if store is None or Path(store) != QUICKSTART / "store" or not missing[-1]:
        return
    for _, script, config in QUICKSTART_STEPS[missing.index(True) :]:
        logger.info("%s is missing, %s makes it", store, script)
        flags = [] if config is None else ["--config", str(repository / config)]
        code = subprocess.run(
            [sys.executable, str(repository / script), *flags], check=False
        ).returncode
        if code:
            raise InputError(
                f"{store} is missing and could not be made: {script} ended with exit code {code}"
            )


@dataclass(frozen=True)
class PreTrainingData:
    """What a run trains on and is measured with; `identity` must be the same where it is
    resumed.
    """

    tokenizer: OriginalBertTokenizer
    train: PreTrainingDataset | InstanceDataset
    validation: PreTrainingDataset | InstanceDataset | None
    collator: DataCollatorForPreTraining
    count_tokens: Callable[[], np.ndarray]
    identity: Mapping[str, Any] = field(default_factory=dict)
    old: PreTrainingDataset | None = None  # the held-out part of other text

    @property
    def max_seq_length(self) -> int:
        """Positions that the longest input, in training or evaluation, needs."""
        return max(
            part.max_seq_length for part in (self.train, self.validation) if part is not None
        )

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """int64 (V,), how often each token stands in the training data; counted when it is first
        asked for.
        """
        return self.count_tokens()


def load_phases(data: DataArguments, seed: int, phases: Sequence[Phase]) -> list[PreTrainingData]:
    """The data of each phase, of the same store."""
    if len(phases) > 1 and data.store is None:
        raise InputError("phase2_steps: instance files have one length; two phases need a --store")
    own = ("max_seq_length", "max_predictions_per_seq")
    return [
        load_data(replace(data, **{name: getattr(phase, name) for name in own}), seed)
        for phase in phases
    ]


def load_data(data: DataArguments, seed: int) -> PreTrainingData:
    """Open the store or the instance files; `seed` is that of training, the held-out pairs and
    masks do not depend on it.
    """
    if data.store is None:
        return _load_instances(data, seed)
    if data.validation_file is not None:
        raise InputError(
            "validation_file belongs to --train_file; a store has its own held-out part: leave it "
            "out"
        )
    store = open_store(data.store)
    tokenizer = load_tokenizer(data.tokenizer or store.tokenizer_path)
    store.check_tokenizer(tokenizer.fingerprint, len(tokenizer))

    old = None if data.old_store is None else open_store(data.old_store)
    if old is not None:
        old.check_tokenizer(tokenizer.fingerprint, len(tokenizer))
        if old.validation is None:
            raise InputError(
                f"old_store {data.old_store} has no held-out part; prepare it with "
                "--validation_fraction"
            )

    def pairs(store: Store, split: str, seed: int) -> PreTrainingDataset:
        return PreTrainingDataset.from_store(
            store,
            split,
            max_seq_length=data.max_seq_length,
            seed=seed,
            **{name: getattr(data, name) for name in INPUT_FIELDS},
            cache_dir=None if data.data_cache_dir is None else Path(data.data_cache_dir),
            num_workers=data.data_num_processes,
        )

    return PreTrainingData(
        tokenizer,
        train=pairs(store, "train", seed),
        validation=None
        if store.validation is None
        else pairs(store, "validation", EVALUATION_SEED),
        collator=make_collator(data, tokenizer, seed),
        old=None if old is None else pairs(old, "validation", EVALUATION_SEED),
        count_tokens=lambda: store.train.unigram_counts,
        identity={"store": store.fingerprint, "tokenizer": tokenizer.fingerprint},
    )


def _load_instances(data: DataArguments, seed: int) -> PreTrainingData:
    from bert_recipes.data.instances import (
        InstanceDataset,
    )  # needs packages that reading a store does not

    if data.tokenizer is None or data.train_file is None:
        raise InputError(
            "--train_file needs --tokenizer: the folder or vocab.txt with which the file was made"
        )
    tokenizer = load_tokenizer(data.tokenizer)
    settings: Any = {"cache_dir": data.data_cache_dir, "vocab_size": len(tokenizer)}
    train = InstanceDataset(data.train_file, **settings)
    return PreTrainingData(
        tokenizer,
        train=train,
        validation=None
        if data.validation_file is None
        else InstanceDataset(data.validation_file, **settings),
        collator=make_collator(data, tokenizer, seed),
        count_tokens=lambda: _count_tokens(train, len(tokenizer)),
        identity={"instances": fingerprint_files(train.paths), "tokenizer": tokenizer.fingerprint},
    )


def _count_tokens(dataset: InstanceDataset, vocab_size: int) -> np.ndarray:
    """int64 (V,): tokens of instances as they were before masking, of at most
    `MAX_COUNTED_INSTANCES` at equal distances.
    """
    chosen = (
        np.linspace(0, len(dataset) - 1, min(len(dataset), MAX_COUNTED_INSTANCES))
        .round()
        .astype(np.int64)
    )
    logger.info("token frequencies are counted in %d of %d instances", len(chosen), len(dataset))
    counts = np.zeros(vocab_size, dtype=np.int64)
    for index in Progress(chosen.tolist(), desc="count tokens", unit="instance", delay=1):
        item = dataset[index]
        original = np.where(item["labels"] == IGNORE_INDEX, item["input_ids"], item["labels"])
        counts += np.bincount(original, minlength=vocab_size)
    return counts


def make_collator(
    data: DataArguments, tokenizer: OriginalBertTokenizer, seed: int
) -> DataCollatorForPreTraining:
    """The collator that the settings describe; the limit of predictions defaults to the share of
    the longest pair.
    """
    rates = {
        name: getattr(data, name)
        for name in ("mlm_probability", "max_predictions_per_seq", *MASK_FIELDS)
    }
    if rates["max_predictions_per_seq"] is None:
        rates["max_predictions_per_seq"] = default_max_predictions(
            data.max_seq_length, data.mlm_probability
        )
    return DataCollatorForPreTraining(tokenizer, seed=seed, **rates)


# Model


def load_model(
    model: ModelArguments,
    tokenizer: OriginalBertTokenizer,
    max_seq_length: int,
    seed: int,
    *,
    needs_head: bool = False,
    heads: int | None = None,
) -> PreTrainingModel:
    """A new model of the named size, or a checkpoint, ours or stock; heads that it lacks start from
    scratch, with a warning.

    `max_seq_length` is the longest input of the run. `needs_head`: a checkpoint is measured, and
    refused without a masked-LM head. `heads` are a new model's own; None: one for 64 units.
    """
    set_seed(seed)
    if model.model_name_or_path is None:
        objective = OBJECTIVES[model.objective]
        own = {name: getattr(model, name) for name in NEW_MODEL_FIELDS}
        own |= {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "model_type": objective.model_type,
            "num_attention_heads": heads,
        }
        own |= dict(objective.config) | (
            {} if model.positions is None else {"positions": model.positions}
        )
        if objective.model_type in ("albert", "electra"):
            own |= {name: getattr(model, name) for name in ALBERT_FIELDS}
        if objective.model_type == "roberta":
            own |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
        network = MEMBERS[objective.model](pretraining_config(own.pop("size"), **own))
    else:
        network = _load_checkpoint(model, needs_head=needs_head)
        _check_tokenizer(model.model_name_or_path, network.config.vocab_size, tokenizer)
    if num_positions(network.config) < max_seq_length:
        raise InputError(
            f"max_seq_length is {max_seq_length}, the model has {num_positions(network.config)} "
            "positions; "
            "lower it, or train a new model with --max_position_embeddings"
        )
    return network


def _load_checkpoint(model: ModelArguments, *, needs_head: bool) -> PreTrainingModel:
    name = str(model.model_name_or_path)
    cached_only = check_checkpoint(name)
    with opening(name):
        # What is measured is what the folder says it is.
        member = None if needs_head else OBJECTIVES[model.objective].model
        network, new_heads = open_checkpoint(name, cached_only=cached_only, member=member)
    if needs_head and any(key.startswith(MASKED_LM_HEADS) for key in new_heads):
        raise InputError(
            f"{name} is {(network.config.architectures or ['an unnamed class'])[0]}, without a "
            "masked-LM head, so that of pre-training "
            "there is nothing to measure; a fine-tuned checkpoint is measured with --task NAME or "
            "--task_file CHECKPOINT/task.yaml"
        )
    if new_heads:
        warn_once("%s has no weights for %s; they start from scratch", name, ", ".join(new_heads))
    return network


def _check_tokenizer(name: str, vocab_size: int, tokenizer: OriginalBertTokenizer) -> None:
    """Refuse data that was not made with the checkpoint's tokenizer: its ids would mean other
    pieces.
    """
    advice = (
        "both belong together: give the checkpoint's own tokenizer and data made with it, or "
        "another checkpoint"
    )
    size, folder = len(tokenizer), find_tokenizer(name)
    if folder is not None and load_tokenizer(folder).fingerprint != tokenizer.fingerprint:
        raise InputError(f"{name} has another tokenizer than the data ({size:,} pieces); {advice}")
    check_vocabulary(name, vocab_size, tokenizer)
    if folder is None and vocab_size != size:
        message = "%s: a vocabulary of %d for %d pieces, taken for padding as it has no tokenizer"
        warn_once(message, name, vocab_size, size)


def load_teacher(distillation: DistillationArguments, tokenizer: Any) -> PreTrainingModel | None:
    """The teacher of a distillation; None without one."""
    if distillation.teacher is None:
        return None
    # TinyBERT learns from layers alone, so any BERT will do.
    needs_head = None in distillation.imitation_weights
    teacher = _load_checkpoint(
        ModelArguments(model_name_or_path=distillation.teacher), needs_head=needs_head
    )
    _check_tokenizer(distillation.teacher, teacher.config.vocab_size, tokenizer)
    return teacher


# Trainer


def make_trainer(
    model: PreTrainingModel,
    args: PreTrainingArguments,
    data: PreTrainingData | Sequence[PreTrainingData],
    max_eval_pairs: int,
    phases: Sequence[Phase] | None = None,
    kind: Callable[..., BertTrainer] | None = None,
) -> BertTrainer:
    """Join the parts: the data of the run or of each phase, and the phases (None: one), in a
    Trainer of a kind.
    """
    parts = [data] if isinstance(data, PreTrainingData) else list(data)
    first = parts[0]
    if first.validation is None and args.eval_strategy != "no":
        raise InputError(
            f"eval_strategy is '{args.eval_strategy.value}' but the data has no held-out part; "
            "make the store with "
            "--validation_files or --validation_fraction, or give --eval_strategy no"
        )
    planned = None
    if phases is not None:
        learns_pairs = type(model)._pair_logits is not PreTrainingModel._pair_logits
        if learns_pairs and not getattr(first.train, "has_label", True):
            raise InputError(
                "pairs have no label here, and the model has a head for them: give --objective "
                "mlm, "
                "or --input_format segment_pair with a --pair_label"
            )
        joined = zip(phases, parts, strict=True)
        planned = [
            TrainingPhase(phase, part.train, part.validation, part.collator)
            for phase, part in joined
        ]
    kind = kind or (ElectraTrainer if isinstance(model, ElectraForPreTraining) else BertTrainer)
    trainer = kind(
        model,
        args,
        first.collator,
        train_dataset=first.train,
        eval_dataset=first.validation,
        processing_class=first.tokenizer,
        resume_fingerprint=first.identity,
        unigram_counts=None if first.validation is None else first.unigram_counts,
        max_eval_pairs=max_eval_pairs,
        old_dataset=first.old,
        phases=planned,
        callbacks=[LossWatch()],
    )
    logger.info("precision %s: %s", trainer.precision, args.precision_reason)
    return trainer
