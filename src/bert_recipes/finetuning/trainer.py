"""The Trainer of fine-tuning: the exact loss of a kind, predictions in the order of the rows."""

import hashlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.finetuning.arguments import FineTuningArguments
from bert_recipes.finetuning.certainty import describe_certainty
from bert_recipes.finetuning.kind import (
    NOT_FINITE,
    Batch,
    EncodedSplit,
    NotFiniteError,
    Prediction,
    TaskKind,
)
from bert_recipes.finetuning.order import num_training_steps, training_order
from bert_recipes.models.sizes import inputs_of
from bert_recipes.tasks.examples import hash_of_examples
from bert_recipes.tasks.task import figure_names, with_prefix
from bert_recipes.training.batch_buffer import PACKING
from bert_recipes.training.callbacks import EarlyStopping
from bert_recipes.training.resume import TRAINING_EXAMPLES
from bert_recipes.training.speed import BatchStats, training_flops
from bert_recipes.training.trainer import RecipeTrainer


logger = logging.getLogger(__name__)


def input_names(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the keys of a batch that a model takes."""
    return (PACKING, *inputs_of(model))


def select_inputs(batch: Batch, names: Sequence[str]) -> Batch:
    """Return what of a batch has one of these keys."""
    inputs = {}
    for name in names:
        if name in batch:
            inputs[name] = batch[name]
    return inputs


class FineTuningTrainer(RecipeTrainer):
    """`Trainer` for any kind of task; takes what `Trainer` takes, and the kind.

    The loss is the kind's, a mean over the items of the global batch. Predictions come back in the
    order of the rows, whatever the order of the batches: stock `Trainer.predict` with batches of
    like length gives them in another one.

    Args:
        eval_splits: Metric prefix -> validation split; one without a prefix ("") where there is
            only one.
        freeze_encoder: `open_model` has fixed the encoder: it goes without dropout.

    Attributes:
        labelled_tests: Metric prefix -> test split with labels, which is measured once, when the
            training is done.
        predictions: Name of a split -> its predictions by the last evaluation.
    """

    args: FineTuningArguments
    control: Any

    def __init__(
        self,
        model: torch.nn.Module,
        args: FineTuningArguments,
        kind: TaskKind,
        *,
        train_dataset: EncodedSplit | None = None,
        eval_splits: Mapping[str, EncodedSplit] | None = None,
        freeze_encoder: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            data_collator=kind.collate,
            train_dataset=train_dataset,
            eval_dataset=dict(eval_splits) if eval_splits else None,
            **kwargs,
        )
        self.kind = kind
        self.eval_splits = dict(eval_splits or {})
        self.freeze_encoder = freeze_encoder
        self._input_names = input_names(model)
        self.class_weights: torch.Tensor | None = None
        if args.early_stopping_patience is not None:
            self.add_callback(EarlyStopping(args.early_stopping_patience))
        self.labelled_tests: dict[str, EncodedSplit] = {}
        self.predictions: dict[str, list[Prediction]] = {}

        if train_dataset is not None:
            self.class_weights = kind.class_weights(train_dataset)
            self._plan_training(train_dataset)

    def _plan_training(self, train: EncodedSplit) -> None:
        """Turn epochs into steps: the loader is one pass over the complete run, not an epoch.

        A few examples more or less, another label, tokenizer or task change the fingerprint, and a
        resume is refused.
        """
        lengths = np.ascontiguousarray(train.lengths, dtype=np.int64)
        digest = hashlib.sha256(lengths.tobytes()).hexdigest()[:12]
        num_features = len(lengths)
        self.resume_fingerprint["training features"] = f"{num_features} ({digest})"
        labels = ", ".join(self.kind.label2id)
        examples = f"{hash_of_examples(train.split.examples)[:12]} ({labels})"
        self.resume_fingerprint[TRAINING_EXAMPLES] = examples

        args = self.args
        if args.max_steps < 0:
            num_steps = num_training_steps(
                num_features,
                self.global_batch_size,
                args.num_train_epochs,
            )
            self._set_argument("max_steps", num_steps)
        self._replace_epochs_by_steps(math.ceil(num_features / self.global_batch_size))

    # Data

    def get_train_dataloader(self) -> DataLoader:
        """Return the complete run as one pass over its `training_order`."""
        args = self.args
        order = training_order(
            self.train_dataset.lengths,
            num_steps=args.max_steps,
            global_batch=self.global_batch_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            strategy=args.train_sampling_strategy,
        )
        return self.train_loader(lambda begin, end: order[begin:end].tolist(), len(order))

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return stock's batches, padded to one length where padding counts in the loss."""
        batches, counts = super().get_batch_samples(*args, **kwargs)
        if not self.kind.loss_counts_padding or not batches:
            return batches, counts

        longest = max(batch["input_ids"].shape[-1] for batch in batches)
        if self.args.world_size > 1:
            lengths = torch.tensor([longest], device=self.args.device)
            lengths = self.accelerator.gather(lengths)
            longest = int(lengths.max())
        padded_batches = [self._pad_to(batch, longest) for batch in batches]
        return padded_batches, counts

    def _pad_to(self, batch: Batch, length: int) -> Batch:
        """Return a batch with longer rows, and its packing with their positions.

        Args:
            batch: int64 (B, S) input_ids, attention_mask and token_type_ids, and other keys, which
                stay.
            length: Positions of the result, S or more.
        """
        size = batch["input_ids"].shape[-1]
        if size == length:
            return batch
        padded: dict[str, Any] = dict(batch)
        pad_values = {
            "input_ids": self.processing_class.pad_token_id,
            "attention_mask": 0,
            "token_type_ids": 0,
        }
        for name, value in pad_values.items():
            padded[name] = pad(batch[name], (0, length - size), value=value)
        if PACKING in batch:
            packing: Any = batch[PACKING]
            rows = packing["places"] // size
            positions = packing["places"] % size
            padded[PACKING] = {**packing, "places": rows * length + positions}
        return padded

    def model_inputs(self, batch: Batch) -> Batch:
        """Return what the model takes of a batch."""
        return select_inputs(batch, self._input_names)

    # Loss

    def num_items(self, batch: Batch) -> torch.Tensor:
        """Return (1,): int64 examples, labelled tokens or features, as the kind's loss counts.

        With class weights it is float64, their sum.
        """
        if self.class_weights is None:
            return self.kind.count_items(batch).view(1)
        labels = batch["labels"]
        classes = labels[labels != IGNORE_INDEX]
        weights = self.class_weights.to(labels.device)
        weights_of_items = weights[classes].double()
        return weights_of_items.sum().view(1)

    def micro_batch_loss(
        self, model: Any, inputs: Any, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Any]:
        """Return a micro-batch's summand of the mean over the items, and the model's output.

        Args:
            model: Wrapped, where several processes train it.
            inputs: A batch of the kind.
            counts: float32 (1,), `num_items` of the complete step.
        """
        if self.freeze_encoder:
            # The Trainer has switched dropout on everywhere.
            self.model.base_model.eval()
        output = model(**self.model_inputs(inputs))
        loss_sum = self.loss_sum(output, inputs)
        num_items = counts[0]
        return loss_sum / num_items, output

    def loss_sum(self, output: Any, inputs: Batch) -> torch.Tensor:
        """Return float32 (): the training loss summed over the items of a batch."""
        if self.class_weights is None:
            return self.kind.loss_sum(output, inputs)

        logits = output.logits.float().flatten(0, -2)
        labels = inputs["labels"].flatten()
        weights = self.class_weights.to(logits.device, non_blocking=True)
        return cross_entropy(logits, labels, weight=weights, reduction="sum")

    # Logging

    def flops_of(self, work: BatchStats) -> int | None:
        """Return the model FLOPs, or None where the formula is not the model's.

        It is another architecture, or a component of it does not learn.
        """
        model: Any = self.model
        learns = all(weight.requires_grad for weight in model.parameters())
        is_bert = model.config.model_type == "bert"
        if not is_bert or not learns:
            return None

        has_pooler = getattr(model.base_model, "pooler", None) is not None
        return training_flops(model.config, work, nsp=False, pooler=has_pooler)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the rate of real tokens (no padding, all processes), for trackers MFU too."""
        if "loss" in logs:
            logs.update(self.meter.read(self.accelerator))
            # Measuring the machine takes seconds, longer than many a fine-tuning run: only where a
            # tracker records it.
            if self.args.report_to:
                logs.update(self.mfu_and_hours_left())
        super().log(logs, start_time)

    # Evaluation and prediction

    def evaluate(
        self,
        eval_dataset: Mapping[str, EncodedSplit] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Measure on every validation split, by default the Trainer's.

        Returns:
            The kind's metrics as `eval_<metric>`, or `eval_<prefix>_<metric>` where there are
            several splits; also the loss, where it can be computed, and the seconds that predicting
            took. Where an output of a split is NaN or infinite, every metric of that split is NaN.
        """
        splits: Mapping[str, EncodedSplit] = self.eval_splits
        if eval_dataset is not None:
            splits = eval_dataset
        metrics = self._measure_splits(splits, metric_key_prefix)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def measure_all(self) -> dict[str, Any]:
        """Return the metrics of all labelled splits, and how certain they are.

        Those of validation splits begin with `eval_`, those of test splits with `test_`.
        `intervals` and `baselines` are those of `describe_certainty`.
        """
        results: dict[str, Any] = {}
        if self.eval_splits:
            results.update(self.evaluate_at_end())
            certainty = describe_certainty(self.kind, self.eval_splits, self.predictions)
            results.update(certainty)

        if self.labelled_tests:
            results.update(self._measure_splits(self.labelled_tests, "test"))
            certainty = describe_certainty(self.kind, self.labelled_tests, self.predictions)
            for name, values in certainty.items():
                all_values = results.setdefault(name, {})
                for metric, value in values.items():
                    all_values[f"test_{metric}"] = value
        return results

    def _measure_splits(
        self, splits: Mapping[str, EncodedSplit], metric_key_prefix: str
    ) -> dict[str, float]:
        """Return and log the metrics of splits, as `evaluate` names them."""
        start = time.perf_counter()
        metrics: dict[str, float] = {}
        with self.stoppable():
            for prefix, encoded in splits.items():
                for metric, value in self._measure(encoded).items():
                    name = with_prefix(prefix, metric)
                    metrics[f"{metric_key_prefix}_{name}"] = value
        metrics[f"{metric_key_prefix}_seconds"] = round(time.perf_counter() - start, 2)
        self.log(dict(metrics))
        return metrics

    def _measure(self, encoded: EncodedSplit) -> dict[str, float]:
        """Return the metrics of a split, and keep its predictions.

        All are NaN, and nothing is predicted, where the model has diverged.
        """
        outputs, loss = self.predict_outputs(encoded)
        name = encoded.split.name
        metrics: dict[str, float] = {}
        if loss is not None:
            metrics["loss"] = loss

        if not _all_finite(outputs):
            self.predictions.pop(name, None)
            if self.is_world_process_zero():
                message = "%s: %s; metrics are undefined, nothing is predicted"
                logger.warning(message, name, NOT_FINITE)
            task = self.kind.task
            names = [*metrics, *figure_names(task.metrics, [name], task.labels)]
            return dict.fromkeys(names, math.nan)
        with self.stop_request.at_once():
            predictions = self.kind.decode(encoded, outputs)
            metrics.update(self.kind.score(encoded.split.examples, predictions))
        self.check_stop()  # raises where a signal has left the block early
        self.predictions[name] = predictions
        return metrics

    @torch.no_grad()
    def predict_outputs(self, encoded: EncodedSplit) -> tuple[list[np.ndarray], float | None]:
        """Run the model over a split, the longest features first.

        Every process takes its share of the batches, and gets the results of all.

        Returns:
            The kind's output of each feature, in the order of the features, and the mean loss: None
            without labels, and where padding counts in the loss, which would change with the size
            of the batches.
        """
        computes_loss = self._has_loss(encoded)
        was_training = self.model.training
        self.model.eval()
        self.use_mean_weights()
        outputs: list[tuple[int, np.ndarray]] = []
        loss_and_items = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        collate = self.device_collator(self.kind.collate)
        batches = self._evaluation_batches(encoded)
        for numbers, is_filler in self.show_progress(batches, encoded.split.name):
            self.check_stop()
            features = [encoded[number] for number in numbers]
            batch = self._prepare_input(collate(features))
            with self.accelerator.autocast():
                output = self.model(**self.model_inputs(batch))
            if is_filler:
                continue
            if computes_loss:
                loss_and_items[0] += self.kind.loss_sum(output, batch)
                loss_and_items[1] += self.kind.count_items(batch)
            arrays = self.kind.split_outputs(output, batch)
            outputs += zip(numbers, arrays, strict=True)

        self.model.train(was_training)

        if self.args.world_size > 1:
            outputs = gather_object(outputs)
            loss_and_items = self.accelerator.reduce(loss_and_items, reduction="sum")
        outputs.sort(key=itemgetter(0))
        arrays = [array for _, array in outputs]
        if not computes_loss:
            return arrays, None
        loss, num_items = loss_and_items.tolist()
        return arrays, loss / max(num_items, 1.0)

    def _has_loss(self, encoded: EncodedSplit) -> bool:
        """Return whether a split has labels, and a loss that does not depend on the batches."""
        if len(encoded) == 0 or self.kind.loss_counts_padding:
            return False
        first = encoded[0]
        return all(key in first for key in self.kind.label_keys)

    def _evaluation_batches(self, encoded: EncodedSplit) -> list[tuple[list[int], bool]]:
        """Return this process's batches: numbers of features, and whether it only fills up.

        Every process has as many, or a collective inside of the model would hang. Longest features
        come first, so that what takes too much memory fails at once.
        """
        order = np.argsort(-encoded.lengths, kind="stable").tolist()
        size = self.args.eval_batch_size
        batches = []
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            batches.append((numbers, False))

        world_size = self.args.world_size
        filler = (order[:1], True)
        while len(batches) % world_size:
            batches.append(filler)
        return batches[self.args.process_index :: world_size]

    def predict_split(self, encoded: EncodedSplit) -> list[Prediction]:
        """Return one prediction for each example of a split, in its order.

        Raises:
            NotFiniteError: The model has diverged.
        """
        with self.stoppable():
            outputs, _ = self.predict_outputs(encoded)
            if not _all_finite(outputs):
                raise NotFiniteError(f"{encoded.split.source}: {NOT_FINITE}")
            with self.stop_request.at_once():
                predictions = self.kind.decode(encoded, outputs)
        return predictions


def _all_finite(outputs: Sequence[np.ndarray]) -> bool:
    """Return whether no output is NaN or infinite."""
    return all(np.isfinite(array).all() for array in outputs)
