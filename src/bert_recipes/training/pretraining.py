"""Build data, model and trainer of a pre-training run.

The data are those of a store or of instance files.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from transformers import set_seed

from bert_recipes.checkpointing import check_checkpoint, opening
from bert_recipes.config import warn_in_main_process
from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.masking import (
    IGNORE_INDEX,
    SPECIAL_SELECTIONS,
    VARIABLE_SELECTIONS,
    default_max_predictions,
)
from bert_recipes.data.store import Split, open_store
from bert_recipes.errors import InputError
from bert_recipes.files import fingerprint_files
from bert_recipes.models.bert import PreTrainingModel
from bert_recipes.models.checkpoints import MASKED_LM_HEADS, MEMBERS, PAIR_HEADS, open_checkpoint
from bert_recipes.models.sizes import num_positions, pretraining_config, reads_left_to_right
from bert_recipes.progress import Progress
from bert_recipes.run_folder import CONFIG_FILE
from bert_recipes.tokenization.loading import check_vocabulary, find_tokenizer, load_tokenizer
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PhasePlan,
    PreTrainingArguments,
    key_in_last_phase,
)
from bert_recipes.training.bert_trainer import (
    EVALUATION_FIELDS,
    EVALUATION_SEED,
    BertTrainer,
    TrainingPhase,
    unigram_log_probs,
)
from bert_recipes.training.callbacks import LossWatch
from bert_recipes.training.distillation import make_student
from bert_recipes.training.launch import run_on_main_process
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.run import describe_checkpoint, describe_pretraining_data


if TYPE_CHECKING:
    from bert_recipes.data.instances import InstanceDataset

logger = logging.getLogger(__name__)

# Fields of `ModelArguments` for a new model; those that its member lacks are None.
NEW_MODEL_FIELDS = (
    "size",
    "hidden_act",
    "weight_init",
    "initializer_range",
    "dropout",
    "max_position_embeddings",
    "positions",
    "embedding_size",
    "share_layers",
)
# Fields of `DataArguments` for masks and for inputs.
MASK_FIELDS = (
    "mlm_probability",
    "mlm_probability_end",
    "mask_rate",
    "keep_rate",
    "random_rate",
    "whole_word",
    "selection",
)
INPUT_FIELDS = ("short_seq_prob", "input_format", "pair_label", "dupe_factor")
# Enough for token frequencies: more than six million tokens at 128 per pair.
MAX_COUNTED_INPUTS = 50_000
# The quickstart's data, in the current folder.
QUICKSTART_DATA = Path("data/quickstart")
# (file that a script leaves when it is done, script, configuration)
QUICKSTART_STEPS = (
    ("corpus.json", "recipes/collect_docstrings.py", None),
    ("tokenizer/vocab.txt", "tokenizer/train.py", "tokenizer/configs/quickstart.yaml"),
    ("store/store.json", "recipes/prepare_corpus.py", "recipes/configs/corpus/quickstart.yaml"),
)


# Data


def build_missing_quickstart(
    args: PreTrainingArguments, store: str | None, repository: Path
) -> None:
    """Create the missing files of the quickstart's data, if the run trains on it.

    All processes call it; the main process does the work.
    """
    if store is not None and Path(store) == QUICKSTART_DATA / "store":
        run_on_main_process(args, partial(_build_quickstart, repository))


def _build_quickstart(repository: Path) -> None:
    if (QUICKSTART_DATA / "store" / "store.json").is_file():
        return
    is_missing = False
    for result, script, config in QUICKSTART_STEPS:
        # Files after a missing one were made from another corpus or tokenizer.
        is_missing = is_missing or not (QUICKSTART_DATA / result).is_file()
        if not is_missing:
            continue
        logger.info("%s not found; running %s to create it", QUICKSTART_DATA / result, script)
        command = [sys.executable, str(repository / script)]
        if config is not None:
            command += ["--config", str(repository / config)]
        exit_code = subprocess.run(command, check=False).returncode
        if exit_code:
            raise InputError(
                f"{QUICKSTART_DATA / result} could not be created: {script} ended with exit code "
                f"{exit_code}"
            )


def files_read(
    model_args: ModelArguments, data_args: DataArguments, distillation_args: DistillationArguments
) -> dict[str, str | None]:
    """Return the files and folders that a run reads, by their settings."""
    return {
        "model_name_or_path": model_args.model_name_or_path,
        "teacher": distillation_args.teacher,
        "store": data_args.store,
        "old_store": data_args.old_store,
        "tokenizer": data_args.tokenizer,
    }


def describe_inputs(
    data_args: DataArguments,
    data: PreTrainingData,
    checkpoints: Mapping[str, tuple[str | None, Any]],
) -> dict[str, Any]:
    """Return the entries of all_results.json on the data and the checkpoints that a run read.

    `checkpoints` has the name and the model of each entry; a name of None is left out.
    """
    facts = {"data": describe_pretraining_data(data_args, data)}
    for entry, (name, model) in checkpoints.items():
        if name is not None:
            facts[entry] = describe_checkpoint(name, model.config)
    return facts


@dataclass(frozen=True)
class PreTrainingData:
    """Hold the data of a run: tokenizer, training and held-out inputs.

    `resume_fingerprint` must be the same at a resume.
    """

    tokenizer: OriginalBertTokenizer
    train: PreTrainingDataset | InstanceDataset
    validation: PreTrainingDataset | InstanceDataset | None
    collator: DataCollatorForPreTraining
    count_tokens: Callable[[], np.ndarray]
    resume_fingerprint: Mapping[str, Any] = field(default_factory=dict)
    # Held-out pairs of what the model was trained on before.
    old_validation: PreTrainingDataset | None = None
    phases: Sequence[TrainingPhase] | None = None  # None: one, with the data above

    @property
    def max_seq_length(self) -> int:
        """Return the positions that the longest input, in training or evaluation, needs."""
        datasets = [self.train, self.validation]
        for phase in self.phases or ():
            datasets += [phase.train_dataset, phase.eval_dataset]
        return max(dataset.max_seq_length for dataset in datasets if dataset is not None)

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """Return the number of each token in the training data, int64 (V,).

        The tokens are counted at the first call.
        """
        return self.count_tokens()


def load_phases(data_args: DataArguments, plans: Sequence[PhasePlan], seed: int) -> PreTrainingData:
    """Open the data of a run of one or two phases, which share a store.

    Returns:
        The data of the first phase, with `phases`.
    """
    if len(plans) > 1 and data_args.store is None:
        raise InputError("phase2_steps: instance files have one length; two phases need a --store")
    data_of_phases = []
    training_phases = []
    for plan in plans:
        data_args_of_phase = replace(
            data_args,
            max_seq_length=plan.max_seq_length,
            max_predictions_per_seq=plan.max_predictions_per_seq,
        )
        data = load_data(data_args_of_phase, seed)
        data_of_phases.append(data)
        training_phases.append(
            TrainingPhase(plan, data.train, data.validation, data.collator, data.old_validation)
        )
    return replace(data_of_phases[0], phases=training_phases)


def load_data(data_args: DataArguments, seed: int) -> PreTrainingData:
    """Open the store or the instance files.

    `seed` is that of training; the held-out pairs and masks do not depend on it.
    """
    if data_args.store is None:
        return _load_instances(data_args, seed)
    if data_args.validation_file is not None:
        raise InputError(
            "validation_file belongs to --train_file; a store has its own held-out part: leave it "
            "out"
        )
    store = open_store(data_args.store)
    tokenizer = load_tokenizer(data_args.tokenizer or store.tokenizer_path)
    store.check_tokenizer(tokenizer.fingerprint, len(tokenizer))

    settings: dict[str, Any] = {name: getattr(data_args, name) for name in INPUT_FIELDS}
    settings["max_seq_length"] = data_args.max_seq_length
    settings["num_workers"] = data_args.data_num_processes
    if data_args.data_cache_dir is not None:
        settings["cache_dir"] = Path(data_args.data_cache_dir)
    open_split: Any = partial(PreTrainingDataset.from_store, **settings)

    old_validation = None
    if data_args.old_store is not None:
        old_store = open_store(data_args.old_store)
        old_store.check_tokenizer(tokenizer.fingerprint, len(tokenizer))
        if old_store.validation is None:
            raise InputError(
                f"old_store {data_args.old_store} has no held-out part; prepare it with "
                "--validation_fraction"
            )
        old_validation = open_split(old_store, "validation", seed=EVALUATION_SEED)

    train = open_split(store, "train", seed=seed)
    validation = None
    if store.validation is not None:
        validation = open_split(store, "validation", seed=EVALUATION_SEED)
    return PreTrainingData(
        tokenizer,
        train=train,
        validation=validation,
        collator=make_collator(data_args, tokenizer, seed),
        old_validation=old_validation,
        count_tokens=partial(_count_predicted_tokens, store.train, train, data_args.selection),
        resume_fingerprint={"store": store.fingerprint, "tokenizer": tokenizer.fingerprint},
    )


def _load_instances(data_args: DataArguments, seed: int) -> PreTrainingData:
    # Needs packages that reading a store does not.
    from bert_recipes.data.instances import InstanceDataset

    if data_args.tokenizer is None or data_args.train_file is None:
        raise InputError(
            "--train_file needs --tokenizer: the folder or vocab.txt with which the file was made"
        )
    tokenizer = load_tokenizer(data_args.tokenizer)
    settings: Any = {"cache_dir": data_args.data_cache_dir, "vocab_size": len(tokenizer)}
    train = InstanceDataset(data_args.train_file, **settings)
    validation = None
    if data_args.validation_file is not None:
        validation = InstanceDataset(data_args.validation_file, **settings)
    return PreTrainingData(
        tokenizer,
        train=train,
        validation=validation,
        collator=make_collator(data_args, tokenizer, seed),
        count_tokens=lambda: _count_tokens(train, len(tokenizer)),
        resume_fingerprint={
            "instances": fingerprint_files(train.paths),
            "tokenizer": tokenizer.fingerprint,
        },
    )


def _count_predicted_tokens(
    split: Split, dataset: PreTrainingDataset, selection: str
) -> np.ndarray:
    """Return int64 (V,), the tokens of a text that may be predicted."""
    if selection not in SPECIAL_SELECTIONS:
        return split.unigram_counts
    counts = _count_tokens(dataset, len(split.unigram_counts))
    if selection == "causal":
        counts[dataset.cls_id] = 0  # it is before every token
    return counts


def _count_tokens(dataset: PreTrainingDataset | InstanceDataset, vocab_size: int) -> np.ndarray:
    """Return int64 (V,), the tokens of inputs, with special ones, as they are before masking.

    At most `MAX_COUNTED_INPUTS` are counted, at equal distances.
    """
    num_inputs = len(dataset)
    num_counted = min(num_inputs, MAX_COUNTED_INPUTS)
    logger.info("token frequencies are counted in %d of %d inputs", num_counted, num_inputs)
    positions = np.linspace(0, num_inputs - 1, num_counted).round()
    indices = positions.astype(np.int64).tolist()
    counts = np.zeros(vocab_size, dtype=np.int64)
    for index in Progress(indices, desc="count tokens", unit="input", delay=1):
        item = dataset[index]
        tokens = item["input_ids"]
        if "labels" in item:  # instances are masked
            is_masked = item["labels"] != IGNORE_INDEX
            tokens = np.where(is_masked, item["labels"], tokens)
        counts += np.bincount(tokens, minlength=vocab_size)
    return counts


def make_collator(
    data_args: DataArguments, tokenizer: OriginalBertTokenizer, seed: int
) -> DataCollatorForPreTraining:
    """Return the collator that the settings describe.

    Without a limit of predictions in the settings, the limit is `default_max_predictions` of the
    longest input.
    """
    settings = {name: getattr(data_args, name) for name in MASK_FIELDS}
    max_probability = max(data_args.mlm_probability, data_args.mlm_probability_end or 0.0)
    max_predictions = data_args.max_predictions_per_seq
    if max_predictions is None:
        max_predictions = default_max_predictions(data_args.max_seq_length, max_probability)
    num_tokens = round(data_args.max_seq_length * max_probability)
    if data_args.selection in VARIABLE_SELECTIONS and max_predictions < num_tokens:
        warn_in_main_process(
            "max_predictions_per_seq is %d: no more are predicted, though mlm_probability %g of %d "
            "tokens is %d; raise it",
            max_predictions,
            max_probability,
            data_args.max_seq_length,
            num_tokens,
        )
    return DataCollatorForPreTraining(
        tokenizer, seed=seed, max_predictions_per_seq=max_predictions, **settings
    )


# Model


def load_model(
    model_args: ModelArguments,
    tokenizer: OriginalBertTokenizer,
    max_seq_length: int,
    seed: int,
    *,
    needs_head: bool = False,
    num_heads: int | None = None,
) -> PreTrainingModel:
    """Return a new model of the named size, or the model of a checkpoint, ours or stock's.

    Heads that a checkpoint lacks are initialized, with a warning.

    Args:
        model_args: The size of a new model, or the checkpoint.
        tokenizer: The tokenizer of the data; a checkpoint must have the same one.
        max_seq_length: Longest input of the run.
        seed: The seed of new weights.
        needs_head: Refuse a checkpoint without a masked-LM head, which cannot be measured. Where
            it has none for pairs, there is no loss of pairs.
        num_heads: The number of heads of a new model; None: one for 64 units.
    """
    set_seed(seed)
    if model_args.model_name_or_path is None:
        model = _new_model(model_args, tokenizer, num_heads)
    else:
        name = model_args.model_name_or_path
        model, new_heads = _load_checkpoint(model_args, needs_head=needs_head)
        if new_heads:
            fate = "they are left out" if needs_head else "they start from scratch"
            warn_in_main_process("%s has no weights for %s; %s", name, ", ".join(new_heads), fate)
        _check_tokenizer(model_args.model_name_or_path, model.config.vocab_size, tokenizer)
    check_positions(model, max_seq_length)
    return model


def check_positions(model: PreTrainingModel, max_seq_length: int) -> None:
    """Refuse inputs that are longer than the model's positions."""
    max_positions = num_positions(model.config)
    if max_positions < max_seq_length:
        raise InputError(
            f"max_seq_length is {max_seq_length}, the model has {max_positions} positions; lower "
            "it, or train a new model with --max_position_embeddings"
        )


def _new_model(
    model_args: ModelArguments, tokenizer: OriginalBertTokenizer, num_heads: int | None
) -> PreTrainingModel:
    objective = OBJECTIVES[model_args.objective]
    settings = {name: getattr(model_args, name) for name in NEW_MODEL_FIELDS}
    settings.update(objective.new_model_config)
    settings["vocab_size"] = len(tokenizer)
    settings["pad_token_id"] = tokenizer.pad_token_id
    settings["model_type"] = objective.model_type
    settings["num_attention_heads"] = num_heads
    if objective.model_type == "roberta":
        settings["bos_token_id"] = tokenizer.cls_token_id
        settings["eos_token_id"] = tokenizer.sep_token_id
    model_class = MEMBERS[objective.model]
    return model_class(pretraining_config(**settings))


def _load_checkpoint(
    model_args: ModelArguments, *, needs_head: bool
) -> tuple[PreTrainingModel, list[str]]:
    """Return the model of a checkpoint, and the names of the heads that it lacks."""
    name = str(model_args.model_name_or_path)
    cached_only = check_checkpoint(name)
    with opening(name):
        # A model that is measured, or teaches by its head, keeps the class of its config.json.
        member = None if needs_head else OBJECTIVES[model_args.objective].model
        model, new_heads = open_checkpoint(name, cached_only=cached_only, member=member)
    class_name, *_ = model.config.architectures or ["an unnamed class"]
    if needs_head and any(key.startswith(MASKED_LM_HEADS) for key in new_heads):
        raise InputError(
            f"{name} is {class_name}, without a masked-LM head, so that of pre-training there is "
            "nothing to measure; a fine-tuned checkpoint is measured with --task NAME or "
            "--task_file CHECKPOINT/task.yaml"
        )
    if needs_head and any(key.startswith(PAIR_HEADS) for key in new_heads):
        model.has_pair_head = False
    return model, new_heads


def _check_tokenizer(name: str, vocab_size: int, tokenizer: OriginalBertTokenizer) -> None:
    """Refuse data that was not made with the checkpoint's tokenizer.

    The ids of the data would mean other pieces.
    """
    advice = (
        "both belong together: give the checkpoint's own tokenizer and data made with it, or "
        "another checkpoint"
    )
    size = len(tokenizer)
    folder = find_tokenizer(name)
    if folder is not None and load_tokenizer(folder).fingerprint != tokenizer.fingerprint:
        raise InputError(f"{name} has another tokenizer than the data ({size:,} pieces); {advice}")
    check_vocabulary(name, vocab_size, tokenizer)
    if folder is None and vocab_size != size:
        message = "%s: a vocabulary of %d for %d pieces, taken for padding as it has no tokenizer"
        warn_in_main_process(message, name, vocab_size, size)


def load_teacher(name: str | None, objective: str, tokenizer: Any) -> PreTrainingModel | None:
    """Return the teacher of a distillation; None without one."""
    if name is None:
        return None
    # TinyBERT learns from layers alone, so any BERT will do.
    needs_head = objective != "tinybert"
    teacher, _ = _load_checkpoint(ModelArguments(model_name_or_path=name), needs_head=needs_head)
    if reads_left_to_right(teacher.config):
        raise InputError(f"teacher: {name} reads from left to right; give one that reads both ways")
    _check_tokenizer(name, teacher.config.vocab_size, tokenizer)
    return teacher


def check_direction(model: PreTrainingModel, data: PreTrainingData) -> None:
    """Refuse labels that do not fit the direction in which the model reads.

    From left to right it learns the next token alone; one that reads both ways would see that.
    """
    # Instance files have labels of masked tokens, whatever the selection is.
    is_masked_already = not isinstance(data.train, PreTrainingDataset)
    predicts_next = data.collator.selection == "causal" and not is_masked_already
    is_causal = reads_left_to_right(model.config)
    if is_causal and not predicts_next:
        raise InputError(
            "the model reads from left to right and predicts the next token alone: give "
            "--objective ltr with a --store and no --selection to train it, --selection causal "
            "--pair_label none to measure it on a store"
        )
    if predicts_next and not is_causal:
        raise InputError(
            "the model reads both ways and would see the next token that it predicts: --objective "
            "ltr and --selection causal are for a new model, or a checkpoint of --objective ltr"
        )


def warn_of_other_inputs(checkpoint: str, model_type: str, data_args: DataArguments) -> None:
    """Warn where the held-out inputs are not those that the run of a checkpoint was measured on."""
    file = Path(checkpoint) / CONFIG_FILE
    of_run = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if "mlm_probability" not in of_run:  # no pre-training run of this project
        if model_type == "albert" and data_args.pair_label == "next":
            warn_in_main_process(
                "pair_label is next, but ALBERT's head has learned the order of sentences: give "
                "--pair_label order"
            )
        return
    settings_of_run = {
        name: of_run.get(key_in_last_phase(of_run, name)) for name in EVALUATION_FIELDS
    }
    measured = _held_out_inputs(vars(data_args))
    for name, value in _held_out_inputs(settings_of_run).items():
        if name in measured and measured[name] != value:
            warn_in_main_process(
                "%s is %s here and %s in %s: the figures are not those of the run",
                name,
                measured[name],
                value,
                file,
            )


def _held_out_inputs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of held-out inputs, whose masks are those of the end of a run."""
    inputs = {name: settings[name] for name in EVALUATION_FIELDS if name != "max_eval_pairs"}
    rate_at_end = inputs.pop("mlm_probability_end")
    if rate_at_end is not None:
        inputs["mlm_probability"] = rate_at_end
    return inputs


def _check_pairs(model: PreTrainingModel, data: PreTrainingData) -> None:
    """Refuse pairs without a label for a head that learns it; warn of labels without a head."""
    if model.has_pair_head and not getattr(data.train, "has_label", True):
        raise InputError(
            "pairs have no label here, and the model has a head for them: give --objective mlm, "
            "or --input_format segment_pair with a --pair_label"
        )
    # Instance files bring labels of their own: no pair_label was given.
    pair_label = getattr(data.train, "pair_label", "none")
    if not model.has_pair_head and pair_label != "none":
        message = "pair_label %s is not learned: %s has no head for pairs"
        warn_in_main_process(message, pair_label, type(model).__name__)


def build_model(
    model_args: ModelArguments,
    distillation_args: DistillationArguments,
    data: PreTrainingData,
    teacher: PreTrainingModel | None,
    seed: int,
) -> PreTrainingModel:
    """Return the model that a run trains: a new one, a checkpoint, or layers of its teacher."""
    if OBJECTIVES[model_args.objective].copies_teacher:
        model = make_student(teacher, distillation_args, seed)
        check_positions(model, data.max_seq_length)
    else:
        # TinyBERT compares attention head by head.
        num_heads = None if teacher is None else teacher.config.num_attention_heads
        longest = data.max_seq_length
        model = load_model(model_args, data.tokenizer, longest, seed, num_heads=num_heads)
    check_direction(model, data)
    _check_pairs(model, data)
    is_new = model_args.starting_point == "new model"
    # Masked instances are no text to count.
    if model_args.word_vectors and is_new and isinstance(data.train, PreTrainingDataset):
        start_with_word_vectors(model, data.train.split, data.unigram_counts)
    return model


@torch.no_grad()
def start_with_word_vectors(
    model: PreTrainingModel, split: Split, unigram_counts: np.ndarray
) -> None:
    """Set word embeddings and output bias of a new model from counts over its text.

    Word embeddings get the directions of `piece_vectors` and stay as long as random ones are;
    pieces without neighbors keep theirs. The bias of the output layer is the logarithm of the
    pieces' frequencies.
    """
    # Needs packages that training does not.
    from bert_recipes.data.neighbors import piece_vectors

    weight: Any = model.get_input_embeddings().weight
    start = time.perf_counter()
    vectors = torch.from_numpy(piece_vectors(split, *weight.shape))
    seconds = time.perf_counter() - start
    logger.info("word embeddings begin as vectors of neighbors: %.1f seconds", seconds)
    has_vector = vectors.any(dim=1)
    length = weight.norm(dim=1).mean()
    weight[has_vector] = vectors[has_vector] * length
    # ELECTRA's discriminator has no output layer over the vocabulary.
    owner: Any = getattr(model, "generator", model)
    bias = owner.get_output_embeddings().bias
    bias.copy_(unigram_log_probs(unigram_counts))


# Trainer


def check_held_out(args: PreTrainingArguments, data: PreTrainingData) -> None:
    """Refuse evaluations without a held-out part."""
    if data.validation is None and args.eval_strategy != "no":
        raise InputError(
            f"eval_strategy is '{args.eval_strategy.value}' but the data has no held-out part; "
            "make the store with --validation_files or --validation_fraction, or give "
            "--eval_strategy no"
        )


def make_trainer(
    model: PreTrainingModel,
    args: PreTrainingArguments,
    data: PreTrainingData,
    max_eval_pairs: int,
    trainer_class: Callable[..., BertTrainer] = BertTrainer,
) -> BertTrainer:
    """Return the Trainer of a model on the data of a run.

    Args:
        model: The model to train.
        args: The settings of the training.
        data: The data of the run, in one or two phases.
        max_eval_pairs: The most held-out pairs that an evaluation measures.
        trainer_class: The class of the Trainer of the run's objective.
    """
    # Counting the pieces of masked instances opens many of them: only where the counts are read.
    needs_counts = data.validation is not None or args.sampled_softmax
    trainer = trainer_class(
        model,
        args,
        data.collator,
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=data.tokenizer,
        resume_fingerprint=data.resume_fingerprint,
        unigram_counts=data.unigram_counts if needs_counts else None,
        max_eval_pairs=max_eval_pairs,
        old_dataset=data.old_validation,
        phases=data.phases,
    )
    trainer.add_callback(LossWatch(trainer))
    _check_best_metric(trainer)
    logger.info("precision %s: %s", trainer.precision, args.precision_reason)
    return trainer


def _check_best_metric(trainer: BertTrainer) -> None:
    """Refuse a metric of the best checkpoint that no evaluation has."""
    metric = trainer.args.metric_for_best_model
    if metric is None:
        return
    sums = trainer.new_sums()
    sums.values.fill_(1.0)  # `metrics` leaves out what there is no data of
    names = [name.removeprefix("eval_") for name in sums.metrics("eval", trainer.pairs_task)]
    if not getattr(trainer.model, "has_pair_head", True):
        names = [name for name in names if not name.startswith(("nsp", "sop", "majority"))]
    if trainer.old_dataset is not None:
        names += [f"old_{name}" for name in names]
    if metric.removeprefix("eval_") not in names:
        raise InputError(f"metric_for_best_model is '{metric}'; allowed: {', '.join(names)}")
