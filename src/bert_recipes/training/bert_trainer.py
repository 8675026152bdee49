"""`BertTrainer`: the Trainer of pre-training.

Sentence pairs, two phases, both losses over the global batch, exact evaluation on held-out pairs.
"""

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput, TrainOutput
from transformers.utils import find_labels

from bert_recipes.checkpointing import read_step
from bert_recipes.config import warn_in_main_process
from bert_recipes.data.collator import DataCollatorForPreTraining, count_characters
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.data.order import EpochedDataset, EpochShuffle, ProgressDataset, epoch_order
from bert_recipes.errors import InputError
from bert_recipes.metrics.certainty import jackknife_replicates
from bert_recipes.models.bert import (
    BertForPreTrainingOutput,
    PreTrainingModel,
    mean_cross_entropy,
)
from bert_recipes.models.electra import ElectraForPreTraining
from bert_recipes.models.sampled_softmax import SampledSoftmax
from bert_recipes.models.sizes import counts_from_pad, reads_left_to_right
from bert_recipes.training.arguments import PhasePlan
from bert_recipes.training.batch_buffer import PACKING
from bert_recipes.training.callbacks import DrawPieces, SaveAtEpochs
from bert_recipes.training.launch import check_processes_agree
from bert_recipes.training.optimization import Schedule
from bert_recipes.training.speed import BatchStats, training_flops
from bert_recipes.training.trainer import RecipeTrainer


logger = logging.getLogger(__name__)

# The held-out pairs and masks are the same for every seed of the training, so that runs can be
# compared.
EVALUATION_SEED = 12345
# Settings of the data on which the held-out pairs and their masks depend.
EVALUATION_FIELDS = (
    "max_seq_length",
    "short_seq_prob",
    "mlm_probability",
    "mlm_probability_end",
    "max_predictions_per_seq",
    "max_eval_pairs",
    "mask_rate",
    "keep_rate",
    "random_rate",
    "whole_word",
    "selection",
    "input_format",
    "pair_label",
)


class SameEveryEpoch(Dataset):
    """Take (epoch, index) for a data set that takes an index.

    With `adds_key` an item has that key, which draws new masks in each epoch.
    """

    def __init__(self, dataset: Any, *, adds_key: bool) -> None:
        self.dataset = dataset
        self.adds_key = adds_key

    def num_pairs(self, epoch: int) -> int:
        """Return the items of an epoch."""
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        _, index = key
        item = self.dataset[index]
        return {"key": key, **item} if self.adds_key else item


def epoched(dataset: Any, collator: Any = None) -> Any:
    """Return a data set that takes (epoch, index).

    Our data sets do; lists and those of torch and `datasets` take an index.
    """
    if hasattr(dataset, "num_pairs"):
        return dataset
    if not hasattr(dataset, "__len__"):
        raise InputError(
            f"{type(dataset).__name__} has no length, so it cannot be shuffled or resumed; give a "
            "map-style data set"
        )
    # Another collator may not know what to do with a key.
    adds_key = isinstance(collator, DataCollatorForPreTraining)
    return SameEveryEpoch(dataset, adds_key=adds_key)


def without_epochs(dataset: Any) -> Any:
    """Return the data set that was given to `epoched`."""
    return dataset.dataset if isinstance(dataset, SameEveryEpoch) else dataset


@dataclass(frozen=True)
class ShiftedLabelsCheck:
    """Refuse labels that are the tokens themselves, for a model that reads from left to right.

    Stock's classes shift such labels; ours take the label of each position as it is, and would
    learn to repeat what they read.
    """

    collator: Any

    def __call__(self, features: list[Any]) -> Any:
        """Collate features."""
        batch = self.collator(features)
        labels = batch["labels"]
        is_predicted = labels != IGNORE_INDEX
        tokens = batch["input_ids"][is_predicted]
        if len(tokens) and torch.equal(labels[is_predicted], tokens):
            raise InputError(
                "labels are the input ids themselves; here the label of each position is the next "
                "token: shift them by one"
            )
        return batch


class EvaluationSampler(Sampler[tuple[int, int]]):
    """The held-out pairs of a process, of the first `max_pairs` (None: all) of a fixed order.

    Every process gets the same number of batches, so that collectives inside the model never hang.
    A batch that only fills up the number has `is_padding_batch` True and must not be counted.
    """

    def __init__(
        self,
        dataset: EpochedDataset,
        max_pairs: int | None,
        batch_size: int,
        rank: int,
        world_size: int,
    ) -> None:
        self.dataset = dataset
        order = epoch_order(EVALUATION_SEED, 0, dataset.num_pairs(0))[:max_pairs]
        self.num_pairs = len(order)
        keys = [(0, index) for index in order.tolist()]
        keys_of_process = keys[rank::world_size]
        self.batches = []
        for start in range(0, len(keys_of_process), batch_size):
            self.batches.append(keys_of_process[start : start + batch_size])
        # As many batches as the first process has.
        num_batches = math.ceil(math.ceil(len(keys) / world_size) / batch_size)
        num_padding = num_batches - len(self.batches)
        self.is_padding_batch = [False] * len(self.batches) + [True] * num_padding
        self.batches += [keys[:1]] * num_padding

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:  # type: ignore[override]
        yield from self.batches


def unigram_log_probs(counts: np.ndarray) -> torch.Tensor:
    """Return the log-probability of each token under add-one counts, float64 (V,) in nats.

    `counts` is int64 (V,), of the training split.
    """
    smoothed = counts.astype(np.float64) + 1.0
    return torch.from_numpy(np.log(smoothed / smoothed.sum()))


def pair_labels(batch: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the labels of the pairs, int64 (B,), None without them.

    The key is ours or that of stock's ALBERT.
    """
    return batch.get("next_sentence_label", batch.get("sentence_order_label"))


def predicted_and_real_tokens(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the number of predicted tokens, and that of real ones, int64 (2,)."""
    num_predicted = (batch["labels"] != IGNORE_INDEX).sum()
    return torch.stack([num_predicted, batch["attention_mask"].sum()])


class PreTrainingSums:
    """Sums over held-out batches from which the metrics follow.

    The sums of several processes may be added.

    Args:
        device: Where the batches are.
        unigram: float64 (V,) of `unigram_log_probs`; None: without that baseline.
        piece_lengths: int64 (V,) of `count_characters`; None: without bits per character.
    """

    NAMES: tuple[str, ...] = (
        "mlm_loss",
        "mlm_correct",
        "masked",
        "unigram_loss",
        "unigram_correct",
        "characters",
        "nsp_loss",
        "nsp_correct",
        "pairs",
        "random",
    )

    def __init__(
        self,
        device: torch.device,
        unigram: torch.Tensor | None = None,
        piece_lengths: torch.Tensor | None = None,
    ) -> None:
        self.values = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)
        self.unigram = None if unigram is None else unigram.to(device)
        self.piece_lengths = None if piece_lengths is None else piece_lengths.to(device)

    def add(self, output: Any, batch: dict[str, torch.Tensor]) -> None:
        """Add one batch.

        Args:
            output: The model's with return_full_logits=False; its losses are means over the batch.
            batch: The inputs of the model.
        """
        sums = self._sums(output, batch)
        for position, name in enumerate(self.NAMES):
            self.values[position] += sums.get(name, 0)

    def _sums(self, output: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        packing: Any = batch.get(PACKING)
        if packing is None:
            targets = batch["labels"][batch["labels"] != IGNORE_INDEX]
        else:
            targets = packing["targets"]  # finding them on a GPU makes the host wait
        sums: dict[str, Any] = {
            "mlm_loss": output.mlm_loss.double() * targets.numel(),
            "mlm_correct": (output.prediction_logits.argmax(-1) == targets).sum(),
            "masked": targets.numel(),
        }
        if self.unigram is not None:
            sums["unigram_loss"] = -self.unigram[targets].sum()
            sums["unigram_correct"] = (targets == self.unigram.argmax()).sum()
        if self.piece_lengths is not None:
            sums["characters"] = self.piece_lengths[targets].sum()
        if output.nsp_loss is not None:
            labels = pair_labels(batch)
            assert labels is not None
            sums["pairs"] = (labels >= 0).sum()
            sums["nsp_loss"] = output.nsp_loss.double() * sums["pairs"]
            sums["nsp_correct"] = (output.seq_relationship_logits.argmax(-1) == labels).sum()
            sums["random"] = (labels > 0).sum()
        return sums

    def metrics(self, prefix: str = "eval", pairs_task: str = "nsp") -> dict[str, float]:
        """Return losses (nats), accuracies (0 to 1) and their baselines; without data, none.

        `unigram_accuracy` is the accuracy of always predicting the most frequent piece,
        `majority_accuracy` that of always predicting the more frequent label.
        `mlm_bits_per_character` is the masked-LM loss over the characters of the hidden pieces: it
        compares vocabularies, best with masks over whole words.

        Args:
            prefix: The prefix of the names.
            pairs_task: Names the loss of the pairs.
        """
        sums = self.sums_by_name()
        masked, pairs = sums["masked"], sums["pairs"]
        metrics: dict[str, float] = {}
        loss = 0.0
        if masked:
            mlm_loss = sums["mlm_loss"] / masked
            loss += mlm_loss
            metrics["mlm_loss"] = mlm_loss
            metrics["mlm_accuracy"] = sums["mlm_correct"] / masked
            metrics["perplexity"] = math.exp(min(mlm_loss, 700.0))  # exp overflows above 709
            if self.unigram is not None:
                metrics["unigram_loss"] = sums["unigram_loss"] / masked
                metrics["unigram_accuracy"] = sums["unigram_correct"] / masked
            if sums["characters"]:
                bits = sums["mlm_loss"] / math.log(2)
                metrics["mlm_bits_per_character"] = bits / sums["characters"]
        if pairs:
            pairs_loss = sums["nsp_loss"] / pairs
            loss += pairs_loss
            metrics[f"{pairs_task}_loss"] = pairs_loss
            metrics[f"{pairs_task}_accuracy"] = sums["nsp_correct"] / pairs
            metrics["majority_accuracy"] = max(sums["random"], pairs - sums["random"]) / pairs
        metrics["loss"] = loss
        if masked:
            metrics["masked_tokens"] = masked
        if pairs:
            metrics["pairs"] = pairs
        return {f"{prefix}_{name}": value for name, value in metrics.items()}

    def sums_by_name(self) -> dict[str, float]:
        """Return the sums by their `NAMES`."""
        return dict(zip(self.NAMES, self.values.tolist(), strict=True))


class HeldOutSums(NamedTuple):
    """The sums of an evaluation, at its end and batch by batch."""

    at_end: Any  # of `BertTrainer.new_sums`
    after_batches: torch.Tensor  # float64 (1 + batches, sums): zeros, and after each batch


def as_our_output(output: Any, batch: Mapping[str, torch.Tensor]) -> BertForPreTrainingOutput:
    """Return a stock model's output in the form of our models.

    The losses are separate, and the logits are those of the predicted tokens alone.
    """
    logits = output.prediction_logits if "prediction_logits" in output else output.logits
    is_predicted = batch["labels"] != IGNORE_INDEX
    predicted_logits = logits[is_predicted]
    pair_logits = output.get("seq_relationship_logits", output.get("sop_logits"))
    labels = pair_labels(batch)
    nsp_loss = None
    if pair_logits is not None and labels is not None:
        nsp_loss = mean_cross_entropy(pair_logits, labels, None)
    return BertForPreTrainingOutput(
        mlm_loss=mean_cross_entropy(predicted_logits, batch["labels"][is_predicted], None),
        nsp_loss=nsp_loss,
        prediction_logits=predicted_logits,
        seq_relationship_logits=pair_logits,
    )


@dataclass(frozen=True)
class TrainingPhase:
    """A phase: its steps, batches and schedule, and its data as `Trainer` takes them."""

    plan: PhasePlan
    train_dataset: Any
    eval_dataset: Any
    data_collator: Callable[[list[Any]], dict[str, torch.Tensor]]
    old_dataset: Any = None


def phase_schedule(
    plan: PhasePlan, plans: Sequence[PhasePlan], args: Any, num_training_steps: int
) -> Schedule:
    """Return the schedule of a phase, or that of the run.

    The schedule of the run ends where a phase with a schedule of its own begins.
    """
    start, end = 0, num_training_steps
    warmup, learning_rate = args.warmup_steps, args.learning_rate
    if plan.own_schedule is not None:
        start, end = plan.first_step, plan.end_step
        warmup, learning_rate = plan.own_schedule
    elif plans[-1].own_schedule is not None:
        end = plans[-1].first_step
    num_steps = end - start
    num_warmup_steps = int(warmup) if warmup >= 1 else math.ceil(warmup * num_steps)
    return Schedule(
        start, num_steps, num_warmup_steps, learning_rate, args.schedule_power, args.flat_until
    )


class BertTrainer(RecipeTrainer):
    """`Trainer` for `BertForPreTraining`.

    The MLM loss is the mean over all predicted tokens and the NSP loss the mean over all pairs of
    the *global* batch. Both losses and the rate of real tokens are logged; evaluation is exact over
    held-out pairs.

    Args:
        model: One of `models.checkpoints.MEMBERS`, or any model of transformers with a masked-LM
            head. The loss of the latter, a mean over a micro-batch, counts by its predicted tokens;
            so a loss of pairs is not quite the mean over those of the global batch.
        data_collator: Yields `input_ids`, `labels`, and where there are such `token_type_ids`,
            `attention_mask`, `next_sentence_label`; default: the Trainer's.
        unigram_counts: int64 (V,), token counts of the training split, for the unigram baseline and
            `sampled_softmax`.
        max_eval_pairs: Held-out pairs an evaluation uses; None: all.
        phases: The phases of the run, with their data; None: one, with the data given.
        old_dataset: Held-out pairs of what the model was trained on before, measured whenever
            `eval_dataset` is; for the phases that have none of their own.
        kwargs: As `Trainer`'s; data sets are any map-style ones. With `compute_metrics` evaluation
            is stock's.
    """

    trains_electra = False

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        data_collator: Callable[[list[Any]], dict[str, torch.Tensor]] | None = None,
        *,
        unigram_counts: np.ndarray | None = None,
        max_eval_pairs: int | None = None,
        phases: Sequence[TrainingPhase] | None = None,
        old_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(model, ElectraForPreTraining) and not self.trains_electra:
            raise InputError(
                "ElectraForPreTraining has two losses over different tokens, and two folders: give "
                "it to ElectraTrainer (bert_recipes.training.electra)"
            )
        # Saved with the model, whatever wraps the collator.
        kwargs.setdefault("processing_class", getattr(data_collator, "tokenizer", None))
        super().__init__(model=model, args=args, data_collator=data_collator, **kwargs)
        # Our model may be wrapped, for example by PEFT.
        self._is_ours = any(isinstance(module, PreTrainingModel) for module in model.modules())
        if phases is None:
            plan = PhasePlan(
                first_step=0,
                end_step=self.args.max_steps,
                global_batch=self.global_batch_size,
                micro_batch=self.args.per_device_train_batch_size,
                max_seq_length=0,
                max_predictions_per_seq=None,
            )
            phases = [
                TrainingPhase(plan, self.train_dataset, self.eval_dataset, self.data_collator)
            ]
        self.phases: list[TrainingPhase] = []
        for phase in phases:
            if phase.old_dataset is None:
                phase = replace(phase, old_dataset=old_dataset)
            self.phases.append(phase)
        self.num_phases = len(self.phases)
        global_batches = [str(phase.plan.global_batch) for phase in self.phases]
        self.resume_fingerprint["global batch"] = ", then ".join(global_batches)
        self._check_batches()
        self._set_phase(self.phases[0])
        self._order: EpochShuffle | None = None
        self._epochs_before = 0.0  # passes over the data in earlier phases
        self.unigram = None if unigram_counts is None else unigram_log_probs(unigram_counts)
        self.piece_lengths = self._count_characters()
        self.max_eval_pairs = max_eval_pairs
        # Of stock arguments; ours have steps alone.
        strategies = (args.eval_strategy, args.save_strategy, args.logging_strategy)
        if self.train_dataset is not None and "epoch" in strategies:
            dataset = epoched(self.train_dataset, self.data_collator)
            self._replace_epochs_by_steps(self._steps_of_epochs(dataset, 1))
        if self.args.save_at_epochs:
            self.add_callback(SaveAtEpochs(self))
        if self.args.sampled_softmax:
            self._enable_sampled_softmax(unigram_counts)
        self.held_out_sums: HeldOutSums | None = None  # of the last evaluation

    def _enable_sampled_softmax(self, counts: np.ndarray | None) -> None:
        """Let the masked LM learn over a part of the vocabulary, where that is quicker."""
        if counts is None:
            raise InputError("sampled_softmax needs unigram_counts, the pieces' counts in the text")
        model: Any = self.model
        has_kernels = getattr(model.base_model, "loss_kernels", None) is not None
        # Stock's losses do not read it, and ELECTRA has no output layer over the vocabulary.
        has_head = isinstance(model, PreTrainingModel) and model.get_output_embeddings() is not None
        is_possible = self.args.device.type == "cpu" and has_kernels and has_head
        possible = str(is_possible).lower()
        advice = "--sampled_softmax false"
        check_processes_agree(self.args, "sampled_softmax", possible, advice)
        if not is_possible:
            logger.info(
                "the loss is over all pieces: sampled_softmax is for a masked LM of ours, in fast "
                "layers on a CPU"
            )
            return
        softmax = SampledSoftmax(counts, self.args.seed)
        self.add_callback(DrawPieces(softmax))
        logger.info(
            "softmax in training: %d frequent pieces, and in each step %d drawn from the others",
            softmax.num_frequent,
            softmax.num_drawn,
        )

    def _count_characters(self) -> torch.Tensor | None:
        """Return the characters of each piece, int64 (V,); None without a tokenizer."""
        tokenizer: Any = self.processing_class
        if not hasattr(tokenizer, "get_vocab"):
            return None
        vocabulary = tokenizer.get_vocab()
        size = max(len(tokenizer), max(vocabulary.values()) + 1)  # ids may have holes
        special_ids = getattr(tokenizer, "all_special_ids", ())
        return torch.from_numpy(count_characters(vocabulary, size, special_ids))

    # Phases

    def train(
        self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any
    ) -> TrainOutput:
        """Train phase after phase, each resumed from the last checkpoint of the one before."""
        checkpoint = self._find_checkpoint(resume_from_checkpoint)
        num_steps_done = 0 if checkpoint is None else read_step(checkpoint)
        for phase in self.phases[:-1]:
            if num_steps_done >= phase.plan.end_step:
                continue
            self._set_phase(phase)
            super().train(resume_from_checkpoint=checkpoint, **kwargs)
            checkpoint = self._checkpoint_folder()
            if self.deepspeed is not None:
                # An engine is for one phase: stock makes a new one of the bare model only.
                self.deepspeed.destroy()
                self.deepspeed = None
                self.model_wrapped = self.model
        self._set_phase(self.phases[-1])
        output = super().train(resume_from_checkpoint=checkpoint, **kwargs)
        if self.args.save_at_epochs and not self.args.estimate:
            self._warn_of_missed_epochs()
        return output

    def _warn_of_missed_epochs(self) -> None:
        """Warn of numbers in `save_at_epochs` that the run did not reach."""
        step = self.state.global_step
        # As `SaveAtEpochs` rounds the last step.
        epochs = self.epochs_at(step + 1)
        missed = [f"{number:g}" for number in self.args.save_at_epochs if number > epochs]
        if missed:
            warn_in_main_process(
                "save_at_epochs: the run ended after %.3g passes; no checkpoint at %s",
                self.epochs_at(step),
                ", ".join(missed),
            )

    def _set_phase(self, phase: TrainingPhase) -> None:
        """Set the data of a phase, and in `args` its batch sizes where there are two phases."""
        self._phase = phase
        self.train_dataset = phase.train_dataset
        self.eval_dataset = phase.eval_dataset
        self.old_dataset = phase.old_dataset
        collator = phase.data_collator
        if isinstance(collator, DataCollatorForPreTraining):
            if counts_from_pad(self.model.config):
                collator = replace(collator, draws_pad=False)
            self.data_collator = collator
            # Evaluations predict the fraction of the end of the run.
            self.eval_collator = replace(
                collator,
                seed=EVALUATION_SEED,
                mlm_probability=collator.mlm_probability_end or collator.mlm_probability,
                mlm_probability_end=None,
            )
        else:  # another collator may not know what to do with further columns
            if self._is_ours and reads_left_to_right(self.model.config):
                collator = ShiftedLabelsCheck(collator)
            self.data_collator = self._get_collator_with_removed_columns(collator, "training")
            self.eval_collator = self._get_collator_with_removed_columns(collator, "evaluation")
        if len(self.phases) > 1:
            args = self.args
            batch, accumulation = args.split_batch(phase.plan.global_batch, phase.plan.micro_batch)
            args.per_device_train_batch_size = batch
            args.gradient_accumulation_steps = accumulation
        self._train_batch_size = self.args.train_batch_size

    def _check_batches(self) -> None:
        """Refuse batches that cannot be split, before the first phase.

        DeepSpeed needs the same number of micro-batches in both.
        """
        if len(self.phases) == 1:
            return
        sizes = []
        counts = []
        # `split_batch` refuses a batch that the processes cannot share.
        for phase in self.phases:
            plan = phase.plan
            size, accumulation = self.args.split_batch(plan.global_batch, plan.micro_batch)
            sizes.append(size)
            counts.append(accumulation)
        if not self.is_deepspeed_enabled or len(set(counts)) == 1:
            return
        global_batches = [phase.plan.global_batch for phase in self.phases]
        if len(set(global_batches)) == 1:
            advice = (
                f"--per_device_train_batch_size {min(sizes)} "
                f"--phase2_per_device_train_batch_size {min(sizes)}"
            )
        else:
            advice = (
                "--per_device_train_batch_size and --phase2_per_device_train_batch_size in the "
                f"ratio of the global batches {global_batches[0]} and {global_batches[-1]}"
            )
        raise InputError(
            "phase2_per_device_train_batch_size: DeepSpeed takes the same number of micro-batches "
            f"per step in both phases, here it would be {' and then '.join(map(str, counts))}; "
            f"give --global_train_batch_size {global_batches[0]} {advice}"
        )

    def _is_end_of_phase(self) -> bool:
        """Return whether a phase ends, with a checkpoint from which the next one begins."""
        is_last_phase = self._phase is self.phases[-1]
        return not is_last_phase and self.state.global_step == self._phase.plan.end_step

    @property
    def first_step(self) -> int:
        """Return the steps before the phase."""
        return self._phase.plan.first_step

    def _is_start_of_phase(self) -> bool:
        """Return whether a later phase than the first begins with the next step."""
        return 0 < self.state.global_step == self.first_step

    def schedule_of(self, num_training_steps: int) -> Schedule:
        """Return the schedule of the run, or that of the phase."""
        plans = [phase.plan for phase in self.phases]
        return phase_schedule(self._phase.plan, plans, self.args, num_training_steps)

    # Data

    def get_train_dataloader(self) -> DataLoader:
        """Return the micro-batches of the phase, as one pass over its `EpochShuffle`."""
        args = self.args
        first_step = self.first_step
        dataset = epoched(self.train_dataset, self.data_collator)
        if isinstance(dataset, PreTrainingDataset):
            counted = self._loaded_state["pairs_of_epochs"].get(str(first_step), {})
            # With allow_changes the store, seed or length may be another one, and so the pairs; and
            # with another version of this project their rules.
            if counted.get("index") == dataset.index_name:
                dataset.remember_num_pairs(counted["counts"])
            elif counted and counted["counts"][-1] != dataset.num_pairs(len(counted["counts"]) - 1):
                warn_in_main_process(
                    "the pairs are other ones than before the resume: some of this epoch come "
                    "twice or not at all"
                )
        self._epochs_before = 0.0
        for earlier in self.phases:
            if earlier.plan.first_step < first_step:
                num_steps = earlier.plan.end_step - earlier.plan.first_step
                num_pairs = epoched(earlier.train_dataset).num_pairs(0)
                self._epochs_before += num_steps * earlier.plan.global_batch / num_pairs
        if args.max_steps < 0:
            args.max_steps = self._steps_of_epochs(dataset, args.num_train_epochs)
        steps = args.max_steps - first_step
        # The loader is the whole run: stock would multiply its length by num_train_epochs.
        num_samples = steps * self.global_batch_size
        order = EpochShuffle(dataset, num_samples, args.seed, self._epoch_builder(dataset))
        self._order = order
        keys: Any = order.keys
        if getattr(self.data_collator, "mlm_probability_end", None) is not None:
            keys = self._keys_with_progress
            dataset = ProgressDataset(dataset)
        return self.train_loader(keys, num_samples, first_step, dataset)

    def _epoch_builder(self, dataset: Any) -> Callable[[int], None] | None:
        """Return what builds the pairs of a coming epoch, or None where nobody waits for them.

        Data workers are there to keep a GPU busy, which would wait at each new epoch. One process
        of a machine builds for all. An estimate ends before the next epoch.
        """
        args = self.args
        if not isinstance(dataset, PreTrainingDataset) or args.dataloader_num_workers == 0:
            return None
        if args.local_process_index > 0 or args.estimate:
            return None
        return dataset.build_ahead

    def _keys_with_progress(self, begin: int, end: int) -> list[tuple[Any, float]]:
        """Return keys of `ProgressDataset` for samples of one step, as `EpochShuffle.keys`."""
        order: Any = self._order
        if self.args.max_minutes is not None:
            # Batches are read ahead of `self.clock`.
            progress = min(self._elapsed_fraction(), 1.0)
        else:
            step = self.first_step + begin // self.global_batch_size
            progress = step / self.args.max_steps
        return [(key, progress) for key in order.keys(begin, end)]

    def state_dict(self) -> dict[str, Any]:
        """Add the number of pairs of each epoch, which a resumed run would have to count again."""
        order: Any = self._order
        dataset = order.dataset
        counted = {
            "index": dataset.index_name if isinstance(dataset, PreTrainingDataset) else None,
            "counts": [dataset.num_pairs(epoch) for epoch in range(order.epoch + 1)],
        }
        state = super().state_dict()
        state["pairs_of_epochs"] = {str(self.first_step): counted}
        state["epochs"] = self.epochs_at(self.state.global_step)
        return state

    def _steps_of_epochs(self, dataset: EpochedDataset, num_epochs: float) -> int:
        """Return the optimizer steps in that many epochs, rounded down; at least one."""
        whole_epochs = int(num_epochs)
        num_pairs = sum(dataset.num_pairs(epoch) for epoch in range(whole_epochs))
        fraction = num_epochs % 1
        if fraction:
            num_pairs += math.floor(fraction * dataset.num_pairs(whole_epochs))
        return max(1, num_pairs // self.global_batch_size)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the held-out pairs of this process; not sharded again by Accelerate."""
        if self.compute_metrics is not None:
            return super().get_eval_dataloader(eval_dataset)
        if isinstance(eval_dataset, str):  # with several data sets stock gives a name
            eval_dataset = self.eval_dataset[eval_dataset]
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = epoched(given, self.eval_collator)
        args = self.args
        sampler = EvaluationSampler(
            dataset, self.max_eval_pairs, args.eval_batch_size, args.process_index, args.world_size
        )
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=self.device_collator(self.eval_collator),
            # An iterator draws a number: from torch's generator it would change the dropout of the
            # steps after it.
            generator=torch.Generator(),
        )

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as stock, with `compute_metrics`; rows need not have a label of pairs."""
        if self._is_ours and self.args.label_names is None and "labels" in inputs:
            names = ("labels", "next_sentence_label")
            self.label_names = [name for name in names if name in inputs]
        return super().prediction_step(model, inputs, *args, **kwargs)

    # Loss

    def num_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return predicted tokens and pairs with a label (without labels all), int64 (2,)."""
        num_predicted = (batch["labels"] != IGNORE_INDEX).sum()
        labels = pair_labels(batch)
        if labels is None:
            num_pairs = num_predicted.new_tensor(len(batch["input_ids"]))
        else:
            num_pairs = (labels != IGNORE_INDEX).sum()
        return torch.stack([num_predicted, num_pairs])

    def count_work(self, batch: dict[str, torch.Tensor], items: torch.Tensor) -> torch.Tensor:
        """Return the fields of `BatchStats`, the last of which are the predicted tokens."""
        work = super().count_work(batch, items)
        num_predicted = items[:1]
        return torch.cat([work[:-1], num_predicted])

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return the sum of masked-LM and pair loss, and the output."""
        num_predicted, num_pairs = counts  # of the whole step
        if self._is_ours:
            output = model(**inputs, num_items_in_batch=num_predicted, num_pairs_in_batch=num_pairs)
            loss = output.loss
            pair_logits = output.seq_relationship_logits
            if pair_logits is not None and output.nsp_loss is None:
                # DDP waits for a gradient of each parameter: give the unused head a zero one, and
                # in one process too, for the same weights.
                loss = loss + 0.0 * pair_logits.float().sum()
            return loss, output
        output = model(**inputs)
        if output.loss is None:
            labels = ", ".join(find_labels(type(self.model)))
            raise InputError(
                f"{type(self.model).__name__} of transformers gives no loss for these batches; it "
                f"wants all of {labels}"
            )
        num_predicted_here, _ = self.num_items(inputs)
        # Stock's mean over no predicted token is NaN.
        loss = torch.where(num_predicted_here > 0, output.loss, 0.0)
        return loss * (num_predicted_here / num_predicted), output

    # Logging

    @property
    def pairs_task(self) -> str:
        """Return the name of the pairs' task in logs: nsp, or sop where the order is learned."""
        return getattr(self.train_dataset, "pairs_task", "nsp")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add both losses, the rate of real tokens, MFU and the hours left to the training log.

        The rate is without padding, of all processes.
        """
        if "loss" in logs:
            loss_names = ("mlm_loss", f"{self.pairs_task}_loss")
            logs.update(self.meter.read(self.accelerator, loss_names))
            logs.update(self.mfu_and_hours_left())
        super().log(logs, start_time)

    @property
    def phase_end(self) -> int:
        """Return the last step of the phase that trains."""
        return self._phase.plan.end_step

    def epochs_at(self, step: float) -> float:
        """Return the passes over the data up to a step of this phase, once it has begun."""
        order: Any = self._order
        num_steps = step - self.first_step
        num_pairs = order.dataset.num_pairs(0)
        return self._epochs_before + num_steps * self.global_batch_size / num_pairs

    def flops_of(self, work: BatchStats) -> int:
        """Return the model FLOPs of training steps, with the heads that the model has."""
        has_pooler = getattr(self.model.base_model, "pooler", None) is not None
        config = self.model.config
        softmax = getattr(self.model, "sampled_softmax", None)
        if softmax is not None:
            config = copy.copy(config)
            config.vocab_size = len(softmax.pieces)
        return training_flops(config, work, nsp=has_pooler, pooler=has_pooler)

    # Evaluation

    def new_sums(self) -> Any:
        """Return empty sums over held-out batches."""
        return PreTrainingSums(self.args.device, self.unigram, self.piece_lengths)

    def measure(self, batch: dict[str, torch.Tensor]) -> Any:
        """Return the model's output for a held-out batch, for the sums."""
        if self._is_ours:
            return self.model(**batch, return_full_logits=False)
        return as_our_output(self.model(**batch), batch)

    @torch.no_grad()
    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Return exact means over all held-out pairs of all processes (`PreTrainingSums.metrics`).

        `predict` uses stock's loop.
        """
        sampler: Any = dataloader.batch_sampler
        if not isinstance(sampler, EvaluationSampler):
            return super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        loaders = {metric_key_prefix: dataloader}
        if self.old_dataset is not None and without_epochs(sampler.dataset) is self.eval_dataset:
            loaders[f"{metric_key_prefix}_old"] = self.get_eval_dataloader(self.old_dataset)
        metrics = {}
        num_pairs = 0
        for prefix, loader in loaders.items():
            measured = self._sum_held_out(loader, description)
            metrics.update(measured.at_end.metrics(prefix, self.pairs_task))
            num_pairs += loader.batch_sampler.num_pairs  # type: ignore[union-attr]
            if prefix == metric_key_prefix:
                self.held_out_sums = measured
        return EvalLoopOutput(
            predictions=None, label_ids=None, metrics=metrics, num_samples=num_pairs
        )

    def _sum_held_out(self, dataloader: DataLoader, description: str) -> HeldOutSums:
        """Measure the batches of a loader."""
        sampler: Any = dataloader.batch_sampler
        model = self.model
        was_training = model.training
        model.eval()
        self.use_mean_weights()
        sums = self.new_sums()
        values = [sums.values.clone()]
        batches = self.show_progress(dataloader, description)
        with self.stoppable():
            for batch, is_padding_batch in zip(batches, sampler.is_padding_batch, strict=True):
                self.check_stop()
                batch = self._prepare_inputs(batch)
                with self.accelerator.autocast():
                    output = self.measure(batch)
                if not is_padding_batch:
                    sums.add(output, batch)
                values.append(sums.values.clone())
        model.train(was_training)
        after_batches = torch.stack(values)
        if self.args.world_size > 1:
            after_batches = self.accelerator.reduce(after_batches, reduction="sum")
            sums.values = after_batches[-1].clone()
        return HeldOutSums(sums, after_batches)

    def measure_all(self) -> dict[str, Any]:
        """Return the held-out metrics, and as `jackknife` the `jackknife_replicates` of each loss.

        Each replicate leaves out one batch, and has six digits.
        """
        results = super().measure_all()
        if self.held_out_sums is None:  # no held-out data, or stock's evaluation
            return results
        sums = copy.copy(self.held_out_sums.at_end)
        sums_of_batches = self.held_out_sums.after_batches.diff(dim=0)

        def score(batches: Sequence[int]) -> dict[str, float]:
            sums.values = sums_of_batches[list(batches)].sum(dim=0)
            return sums.metrics("eval", self.pairs_task)

        replicates = jackknife_replicates(score, len(sums_of_batches))
        losses = {}
        for name, values in replicates.items():
            if name.endswith("loss") and name not in ("eval_unigram_loss", "eval_base_rate_loss"):
                losses[name.removeprefix("eval_")] = np.round(values, 6).tolist()
        return {**results, "jackknife": losses}
