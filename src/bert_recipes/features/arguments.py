"""Settings of both feature recipes, and the layers of the paper's Table 7; imports nothing heavy."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bert_recipes.errors import InputError
from bert_recipes.models.kernels.loading import FAST_LAYERS


class LayerChoice(NamedTuple):
    """A row of Table 7: which of the L + 1 hidden states are taken; number 0 is the output of the embeddings."""

    title: str
    taken: slice
    is_summed: bool
    min_layers: int
    paper_dev_f1: float  # percent, CoNLL-2003 dev, BERT-base cased

    def check(self, num_layers: int) -> None:
        """Refuse an encoder with too few layers."""
        if num_layers < self.min_layers:
            fitting = " ".join(name for name, each in LAYER_CHOICES.items() if each.min_layers <= num_layers)
            raise InputError(
                f"'{self.title}' needs {self.min_layers} layers, the model has {num_layers}; give others: --layers {fitting}"
            )


LAYER_CHOICES = {
    "embeddings": LayerChoice("Embeddings", slice(0, 1), False, 0, 91.0),
    "second_to_last": LayerChoice("Second-to-Last Hidden", slice(-2, -1), False, 2, 95.6),
    "last": LayerChoice("Last Hidden", slice(-1, None), False, 1, 94.9),
    "weighted_sum_last_four": LayerChoice("Weighted Sum Last Four Hidden", slice(-4, None), True, 4, 95.9),
    "concat_last_four": LayerChoice("Concat Last Four Hidden", slice(-4, None), False, 4, 96.1),
    "weighted_sum_all": LayerChoice("Weighted Sum All Layers", slice(1, None), True, 1, 95.5),
}
# The weights of the paper's sums are learned by its tagger; those of fixed vectors are equal.
NAMED_COLUMNS = {name.removeprefix("weighted_"): choice for name, choice in LAYER_CHOICES.items()}
COLUMN_NAMES = tuple(NAMED_COLUMNS)


FEATURE_DTYPES = ("float16", "float32")
_CHOICES = {
    "format": ("parquet", "safetensors", "google_jsonl"),
    "join": ("none", "sum", "concat"),
    "pooling": ("tokens", "cls", "mean", "mean_all"),
    "dtype": ("float32", "float16"),
    "precision": ("fp32", "bf16"),
    "fast_layers": FAST_LAYERS,
}
_NER_CHOICES = {"feature_dtype": FEATURE_DTYPES, "precision": ("auto", "fp32", "bf16")}


def _choice(name: str, default: str, what: str) -> Any:
    return field(default=default, metadata={"help": f"{what}{', '.join(_CHOICES[name])}"})


def _check(args: Any, choices: Mapping[str, Sequence[str]], least: Mapping[str, int]) -> None:
    for name, allowed in choices.items():
        if getattr(args, name) not in allowed:
            raise InputError(f"{name} is '{getattr(args, name)}'; allowed: {', '.join(allowed)}")
    for name, number in least.items():
        if getattr(args, name) is not None and getattr(args, name) < number:
            raise InputError(f"{name} is {getattr(args, name)}; allowed: {number} or more")


@dataclass
class FeatureArguments:
    """What is read, which vectors are wanted, and how they are kept.

    Length, batch and the layers of google_jsonl are those of google-research/bert extract_features.py.
    """

    model_name_or_path: str = field(metadata={"help": "checkpoint folder or Hub name"})
    input_file: str = field(metadata={"help": ".txt, one input per line; .jsonl, .json, .csv, .tsv or .parquet"})
    output_dir: str = field(default="runs/features", metadata={"help": "features.json and the vectors"})
    format: str = _choice("format", "parquet", "one of ")
    layers: list[str] | None = field(
        default=None,
        metadata={
            "help": f"{', '.join(COLUMN_NAMES)}, or numbers like -1 -2; default: last, of google_jsonl -1 -2 -3 -4"
        },
    )
    join: str = _choice("join", "none", "layers given as numbers, into one vector: ")
    pooling: str = _choice("pooling", "tokens", "one of ")
    text_columns: list[str] | None = field(
        default=None,
        metadata={"help": "one or two columns of a table; default: text and, where there is one, text_pair"},
    )
    max_seq_length: int = field(default=128, metadata={"help": "positions of an input (original: 128)"})
    batch_size: int = field(default=32, metadata={"help": "inputs that are computed together (original: 32)"})
    dtype: str = _choice("dtype", "float32", "of the kept vectors: ")
    precision: str = _choice("precision", "fp32", "of the matrix products: ")
    fast_layers: str = _choice("fast_layers", "auto", "fused CPU kernels: ")
    part_mb: int = field(
        default=256, metadata={"help": "megabytes of vectors that are held at once and make one part"}
    )
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})
    overwrite: bool = field(default=False, metadata={"help": "replace the features that output_dir holds"})

    def __post_init__(self) -> None:
        _check(self, _CHOICES, {"max_seq_length": 3, "batch_size": 1, "part_mb": 1})
        if self.text_columns is not None and not 1 <= len(self.text_columns) <= 2:
            raise InputError(f"text_columns names {len(self.text_columns)} columns; allowed: one, or two for pairs")
        if self.text_columns is not None and Path(self.input_file).suffix.lower() == ".txt":
            raise InputError(f"text_columns: {self.input_file} is text and has no columns; leave it out")
        if self.format != "google_jsonl":
            return
        for name, only in (("pooling", "tokens"), ("join", "none"), ("dtype", "float32")):
            if getattr(self, name) != only:
                raise InputError(
                    f"{name} is '{getattr(self, name)}'; the original's lines hold every token and every layer by itself: "
                    f"leave it at {only}, or give another --format"
                )
        # The original counts its first layer as 0, and has no embeddings.
        wrong = [text for text in self.wanted_layers if not re.fullmatch(r"-0*[1-9]\d*", text)]
        if wrong:
            raise InputError(
                f"layers: '{wrong[0]}' is given; google_jsonl counts from the last layer: -1, -2, ..., or give another --format"
            )

    @property
    def wanted_layers(self) -> list[str]:
        """`layers`, one by one, or the format's default."""
        given = self.layers or (("-1", "-2", "-3", "-4") if self.format == "google_jsonl" else ("last",))
        return [item for text in given for item in text.split(",") if item]


@dataclass
class FeatureNerArguments:
    """What is measured, and how the BiLSTM is trained.

    The paper gives the two layers, the 768 units, the frozen encoder and the documents as context; epochs, batch, learning
    rate and dropout are ours.
    """

    model_name_or_path: str = field(
        default="google-bert/bert-base-cased", metadata={"help": "checkpoint folder or Hub name; the paper's is cased"}
    )
    data_dir: str | None = field(default=None, metadata={"help": "folder of the CoNLL-2003 files; default: the Hub"})
    output_dir: str = field(default="runs/feature_based_ner", metadata={"help": "results; a finished run is kept"})
    features_dir: str | None = field(default=None, metadata={"help": "kept features; default: output_dir/features"})
    layers: list[str] = field(
        default_factory=lambda: list(LAYER_CHOICES), metadata={"help": f"some of {', '.join(LAYER_CHOICES)}"}
    )
    seeds: list[int] = field(default_factory=lambda: [1], metadata={"help": "one run of each way for each seed"})
    max_train_sentences: int | None = field(default=None, metadata={"help": "train on at most this many sentences"})
    max_eval_sentences: int | None = field(default=None, metadata={"help": "evaluate on at most this many sentences"})
    max_seq_length: int = field(default=512, metadata={"help": "positions of a window of a document"})
    feature_batch_size: int = field(default=16, metadata={"help": "windows that the encoder reads together"})
    feature_dtype: str = field(
        default="float16", metadata={"help": f"of kept features: {' or '.join(FEATURE_DTYPES)}"}
    )
    num_train_epochs: float = field(default=10.0, metadata={"help": "passes over the training sentences"})
    train_batch_size: int = field(default=32, metadata={"help": "sentences per step"})
    learning_rate: float = field(default=1e-3, metadata={"help": "Adam's; falls linearly to 0"})
    lstm_dim: int = field(default=768, metadata={"help": "units of the BiLSTM in each direction"})
    dropout: float = field(default=0.2, metadata={"help": "around and between the layers of the BiLSTM"})
    precision: str = field(
        default="auto", metadata={"help": f"of the BiLSTM's products: {', '.join(_NER_CHOICES['precision'])}"}
    )
    use_cpu: bool = field(default=False, metadata={"help": "do not use a GPU"})

    def __post_init__(self) -> None:
        unknown = [name for name in self.layers if name not in LAYER_CHOICES]
        if unknown or not self.layers:
            given = f"'{unknown[0]}'" if unknown else "empty"
            raise InputError(f"layers is {given}; allowed: {', '.join(LAYER_CHOICES)}")
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds is {self.seeds}; allowed: one or more numbers, 0 or more")
        ones = ("feature_batch_size", "train_batch_size", "lstm_dim", "max_train_sentences", "max_eval_sentences")
        _check(self, _NER_CHOICES, dict.fromkeys(ones, 1) | {"max_seq_length": 8})
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; allowed: 0 or more and below 1")
        for name in ("num_train_epochs", "learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; allowed: above 0")
