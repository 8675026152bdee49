"""Define what the four kinds of tasks have in common: from examples to inputs, and back.

A kind encodes the examples of a split, gives the training loss of a batch, decodes the model's
outputs to predictions, and scores these. `FineTuningTrainer` does all else.

Legend: B batch, S positions, C classes or choices.
"""

import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bert_recipes.data.masking import IGNORE_INDEX
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.scripts import describe_unknown, name_script
from bert_recipes.tasks.examples import Split, list_texts
from bert_recipes.tasks.task import CLASSIFICATION_KINDS, Task
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer


logger = logging.getLogger(__name__)

# One model input: input_ids and token_type_ids as lists of int, and labels under the kind's
# label_keys.
Feature = Mapping[str, Any]
Batch = dict[str, torch.Tensor]
NOT_FINITE = (
    "the model's outputs are not finite; its weights are broken or its training has diverged: "
    "take another checkpoint, or train with a lower learning rate; on a GPU in fp16 first "
    "try --precision fp32"
)


class NotFiniteError(InputError):
    """A model whose outputs are not finite, so that there is nothing to predict."""


@dataclass(frozen=True)
class EncodedSplit:
    """A split as the model takes it: a data set of `Feature`, in the order of the examples.

    Attributes:
        lengths: int64 (features,), positions of each.
        details: What the kind needs to come back from outputs to predictions.
    """

    split: Split
    features: Sequence[Feature]
    lengths: np.ndarray
    details: Any = None

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> Feature:
        return self.features[index]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one example.

    Attributes:
        value: Name of a label, a number (regression), the names of the labels (multi-label), one
            label a word (token classification), the answer's text (question answering), the number
            of the choice (multiple choice).
        probabilities: Label -> probability; one float a word (token classification) or a choice
            (multiple choice); that of the answer (question answering); None for regression.
    """

    idx: int | str
    value: str | int | float | list[str]
    probabilities: dict[str, float] | list[float] | float | None = None

    def as_line(self, idx: int | str) -> dict[str, Any]:
        """Return `idx`, `prediction` and, where there are any, `probabilities` (6 digits)."""
        line = {"idx": idx, "prediction": self.value}
        if self.probabilities is not None:
            line["probabilities"] = _round(self.probabilities)
        return line


@dataclass(eq=False)
class TaskKind(ABC):
    """Encode, train, decode and measure a kind of task.

    Attributes:
        label2id: Label name -> the model's class number; empty where no labels have names.
    """

    task: Task
    tokenizer: OriginalBertTokenizer
    settings: TaskArguments
    label2id: Mapping[str, int]

    # Keys of a batch that are labels: the model never sees them.
    label_keys: ClassVar[tuple[str, ...]] = ("labels",)
    # Whether the loss changes with the padded length: then all micro-batches of a step are padded
    # alike.
    loss_counts_padding: ClassVar[bool] = False

    @property
    def cuts_texts(self) -> bool:
        """Return whether what does not fit into an input is lost."""
        has_one_input = self.task.kind in ("sequence_classification", "multiple_choice")
        return has_one_input and self.settings.long_documents != "windows"

    def __post_init__(self) -> None:  # noqa: B027  (not every kind needs it)
        """Check the settings, and prepare what the kind computes once."""

    @abstractmethod
    def encode(self, split: Split, *, for_training: bool = False) -> EncodedSplit:
        """Make examples features; labels are added where the split has them.

        Args:
            split: Of one kind of examples.
            for_training: Examples that teach nothing may be left out.
        """

    def collate(self, features: Sequence[Feature]) -> Batch:
        """Pad to the longest feature.

        Returns:
            int64 (B, S) or (B, C, S) input_ids, token_type_ids and attention_mask, and the labels
            if all features have them: int64 classes or positions, float32 numbers or flags.
        """
        batch = self.pad(features)
        for key in self.label_keys:
            if all(key in feature for feature in features):
                batch[key] = torch.tensor([feature[key] for feature in features])
        return batch

    def count_items(self, batch: Batch) -> torch.Tensor:
        """Return int64 (): the examples, labelled tokens or features that the loss averages."""
        return torch.tensor(len(batch["labels"]), device=batch["labels"].device)

    def class_weights(self, train: EncodedSplit) -> torch.Tensor | None:
        """Return float32 (C,), the weight of each class in the training loss; None: all the same.

        auto is N / (C * N of the class), as scikit-learn's class_weight="balanced".
        """
        weights_by_name = self.settings.class_weights
        if weights_by_name is None:
            return None
        has_classes = self.task.kind in CLASSIFICATION_KINDS
        if not has_classes or self.task.problem_type != "single_label_classification":
            raise InputError(
                f"class_weights: task {self.task.name} has no single class to choose; leave them "
                "out"
            )
        names = list(self.label2id)
        if isinstance(weights_by_name, str):  # auto
            classes = np.concatenate([np.ravel(feature["labels"]) for feature in train.features])
            counts = np.bincount(classes[classes != IGNORE_INDEX], minlength=len(names))
            balanced = counts.sum() / (len(names) * counts.clip(min=1))
            return torch.from_numpy(balanced).float()
        weights = torch.ones(len(names))
        for name, weight in weights_by_name.items():
            is_weight = isinstance(weight, int | float) and 0 <= weight < math.inf
            if name not in names or not is_weight:
                raise InputError(
                    f"class_weights: {name!r}: {weight}; allowed: {', '.join(names)}, each with 0 "
                    "or more"
                )
            weights[self.label2id[name]] = weight
        return weights

    @abstractmethod
    def loss_sum(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return float32 (): the loss summed over the batch's items.

        Args:
            output: Of the model, which has seen no labels.
            batch: With labels.
        """

    def split_outputs(self, output: Any, batch: Batch) -> list[np.ndarray]:
        """Return a float32 array for each feature of the batch, without padding.

        It holds (C,) logits, unless the kind says otherwise.
        """
        return list(output.logits.detach().float().cpu().numpy())

    @abstractmethod
    def decode(self, encoded: EncodedSplit, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Return a prediction for each example, in order.

        Args:
            encoded: The split.
            outputs: As of `split_outputs`, in the order of the features.
        """

    @abstractmethod
    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the task's metrics over labelled examples.

        Args:
            examples: With labels.
            predictions: One for each example, in order.
        """

    def write(
        self, folder: Path, split_name: str, examples: Sequence[Any], predictions: Sequence[Any]
    ) -> list[Path]:
        """Write predictions_<split>.jsonl and the kind's files; return their paths.

        Args:
            folder: It exists.
            split_name: Becomes a part of the names.
            examples: Of the split.
            predictions: One for each example, in order.
        """
        path = folder / f"predictions_{split_name}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for prediction in predictions:
                line = json.dumps(prediction.as_line(prediction.idx), ensure_ascii=False)
                file.write(line + "\n")
        return [path]

    def pad(
        self, features: Sequence[Feature], label_pads: Mapping[str, int] | None = None
    ) -> Batch:
        """Pad with `pad_batch`, to max_seq_length where the settings ask for it."""
        settings = self.settings
        pad_to = settings.max_seq_length if settings.pad_to_max_length else None
        pad_token_id = int(self.tokenizer.pad_token_id)
        return pad_batch(features, pad_token_id, pad_to=pad_to, label_pads=label_pads)


# Features of a split in which unknown words are counted, at equal distances.
_MAX_SAMPLED = 5_000


def warn_of_cut_texts(encoded: EncodedSplit, kind: TaskKind) -> None:
    """Warn where texts of a split fill all positions: what does not fit is lost."""
    max_length = kind.settings.max_seq_length
    num_full = int((encoded.lengths >= max_length).sum())
    if not num_full or not kind.cuts_texts:
        return
    advice = "give a larger --max_seq_length, if the model has more positions"
    # Pairs and choices have no windows.
    if kind.task.kind == "sequence_classification" and len(kind.task.text_columns) == 1:
        advice += ", or --long_documents windows (docs/tasks.md)"
    logger.warning(
        "%s: %d of %d inputs fill all %d positions; what does not fit is cut off: %s",
        encoded.split.source,
        num_full,
        len(encoded),
        max_length,
        advice,
    )


def warn_of_unknown(encoded: EncodedSplit, tokenizer: Any) -> bool:
    """Warn where much of a split is [UNK] for a checkpoint's tokenizer; return whether it is so."""
    num_unknown = 0
    num_tokens = 0
    step = max(1, len(encoded) // _MAX_SAMPLED)
    for number in range(0, len(encoded), step):
        input_ids = encoded[number]["input_ids"]
        is_choice = isinstance(input_ids[0], list)
        for sequence in input_ids if is_choice else [input_ids]:
            num_tokens += len(sequence)
            num_unknown += sequence.count(tokenizer.unk_token_id)
    if num_unknown == 0:
        return False
    texts: list[str] = []
    for example in encoded.split.examples[:100]:
        texts += list_texts(example)
    script = name_script(" ".join(texts))
    description = describe_unknown({script: num_unknown}, num_tokens)
    if description is None:
        return False
    message = (
        "%s: %s; give a checkpoint whose tokenizer was trained on such text (--model_name_or_path)"
    )
    logger.warning(message, encoded.split.source, description)
    return True


def truncate_pair(tokens_a: list[int], tokens_b: list[int], max_tokens: int) -> None:
    """Shorten two lists in place until they have max_tokens together.

    The longer one loses its last token; of two equally long ones the second (so that A keeps the
    odd token, which stock `longest_first` gives to B). Source: google-research/bert
    run_classifier.py `_truncate_seq_pair`.
    """
    while len(tokens_a) + len(tokens_b) > max_tokens:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        longer.pop()


def join_texts(
    tokenizer: Any, first: list[int], second: list[int] | None, max_seq_length: int
) -> dict[str, Any]:
    """Join one or two texts with special tokens, cut to max_seq_length positions.

    [CLS] first [SEP], or [CLS] first [SEP] second [SEP], also of an empty second; RoBERTa has two
    [SEP] between.

    Returns:
        input_ids and token_type_ids, lists of int.
    """
    layout = tokenizer.layout
    if second is None:
        max_tokens = max_seq_length - len(layout.prefix) - len(layout.suffix)
        input_ids = [*layout.prefix, *first[:max_tokens], *layout.suffix]
        token_type_ids = [0] * len(input_ids)
        return {"input_ids": input_ids, "token_type_ids": token_type_ids}

    max_tokens = max_seq_length - layout.num_special
    truncate_pair(first, second, max_tokens)
    segment_a = [*layout.prefix, *first, *layout.middle]
    segment_b = [*second, *layout.suffix]
    token_type_ids = [0] * len(segment_a)
    token_type_ids += [layout.second_segment] * len(segment_b)
    return {"input_ids": segment_a + segment_b, "token_type_ids": token_type_ids}


def pad_batch(
    features: Sequence[Feature],
    pad_token_id: int,
    *,
    pad_to: int | None = None,
    label_pads: Mapping[str, int] | None = None,
) -> Batch:
    """Pad features to the longest of them, or to pad_to.

    Args:
        features: With input_ids and token_type_ids.
        pad_token_id: Of the tokenizer.
        pad_to: Number of positions.
        label_pads: Other keys with a value for each position -> the value at padding, for example
            {"labels": -100}.

    Returns:
        int64 (B, S) input_ids, token_type_ids, the keys of label_pads, and an attention_mask.
    """
    lengths = np.array([len(feature["input_ids"]) for feature in features])
    length = lengths.max() if pad_to is None else pad_to
    pad_values = {"input_ids": pad_token_id, "token_type_ids": 0, **(label_pads or {})}
    batch = {}
    for key, pad_value in pad_values.items():
        array = np.full((len(features), length), pad_value, dtype=np.int64)
        for row, feature in zip(array, features, strict=True):
            row[: len(feature[key])] = feature[key]
        batch[key] = torch.from_numpy(array)
    is_token = np.arange(length) < lengths[:, None]
    batch["attention_mask"] = torch.from_numpy(is_token.astype(np.int64))
    return batch


def softmax(logits: np.ndarray) -> np.ndarray:
    """Turn float64 (..., C) logits into probabilities."""
    values = np.exp(logits - logits.max(-1, keepdims=True))
    return values / values.sum(-1, keepdims=True)


def _round(value: Any) -> Any:
    """Round a number, or the numbers of a list or a mapping, to 6 digits."""
    if isinstance(value, dict):
        return {name: round(number, 6) for name, number in value.items()}
    if isinstance(value, list):
        return [round(number, 6) for number in value]
    return round(value, 6)


# Of a validation split, that are no reason for a warning: short sentences repeat.
_MOST_SHARED_ROWS = 0.1


def warn_of_shared_rows(train: EncodedSplit, eval_splits: Mapping[str, EncodedSplit]) -> None:
    """Warn where many rows of the validation data are in the training data too."""
    texts_of_training = {tuple(list_texts(example)) for example in train.split.examples}
    for encoded in eval_splits.values():
        examples = encoded.split.examples
        num_shared = 0
        for example in examples:
            if tuple(list_texts(example)) in texts_of_training:
                num_shared += 1
        if num_shared > _MOST_SHARED_ROWS * len(examples):
            logger.warning(
                "%s: the texts of %d of %d rows are in the training data too: the metrics say less "
                "of new texts; keep repeated rows on one side",
                encoded.split.source,
                num_shared,
                len(examples),
            )
