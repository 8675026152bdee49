"""The settings of an extraction of features."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bert_recipes.errors import InputError
from bert_recipes.features.columns import COLUMN_NAMES, JOINS
from bert_recipes.kernels import FAST_LAYERS


FORMATS = ("parquet", "safetensors", "google_jsonl")
POOLINGS = ("tokens", "cls", "mean", "mean_all")
DTYPES = ("float32", "float16")
PRECISIONS = ("fp32", "bf16")
# google-research/bert extract_features.py
GOOGLE_LAYERS = ("-1", "-2", "-3", "-4")


@dataclass
class FeatureArguments:
    """What is read, which vectors are wanted, and how they are kept.

    Length and batch are those of google-research/bert extract_features.py.
    """

    model_name_or_path: str = field(metadata={"help": "checkpoint folder or Hub name"})
    input_file: str = field(metadata={"help": ".txt, one input a line; .jsonl, .json, .csv, .tsv or .parquet"})
    output_dir: str = field(default="runs/features", metadata={"help": "features.json and the vectors"})
    format: str = field(default="parquet", metadata={"help": f"one of {', '.join(FORMATS)}"})
    layers: list[str] | None = field(
        default=None,
        metadata={
            "help": f"{', '.join(COLUMN_NAMES)}, or numbers like -1 -2; default: last, of google_jsonl -1 -2 -3 -4"
        },
    )
    join: str = field(
        default="none", metadata={"help": f"layers given as numbers, into one vector: {', '.join(JOINS)}"}
    )
    pooling: str = field(default="tokens", metadata={"help": f"one of {', '.join(POOLINGS)}"})
    text_columns: list[str] | None = field(
        default=None,
        metadata={"help": "one or two columns of a table; default: text and, where there is one, text_pair"},
    )
    max_seq_length: int = field(default=128, metadata={"help": "positions of an input (original: 128)"})
    batch_size: int = field(default=32, metadata={"help": "inputs that are computed together (original: 32)"})
    dtype: str = field(default="float32", metadata={"help": f"of the kept vectors: {', '.join(DTYPES)}"})
    precision: str = field(default="fp32", metadata={"help": f"of the matrix products: {', '.join(PRECISIONS)}"})
    fast_layers: str = field(default="auto", metadata={"help": f"fused CPU kernels: {', '.join(FAST_LAYERS)}"})
    part_mb: int = field(
        default=256, metadata={"help": "megabytes of vectors that are held at once and make one part"}
    )
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even where there is a GPU"})
    overwrite: bool = field(default=False, metadata={"help": "replace the features that output_dir holds"})

    def __post_init__(self) -> None:
        choices = {"format": FORMATS, "join": JOINS, "pooling": POOLINGS, "dtype": DTYPES, "precision": PRECISIONS}
        for name, allowed in {**choices, "fast_layers": FAST_LAYERS}.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is '{getattr(self, name)}'; allowed: {', '.join(allowed)}")
        for name, least in (("max_seq_length", 3), ("batch_size", 1), ("part_mb", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: {least} or more")
        if self.text_columns is not None and not 1 <= len(self.text_columns) <= 2:
            raise InputError(f"text_columns names {len(self.text_columns)} columns; allowed: one, or two for pairs")
        if self.text_columns is not None and Path(self.input_file).suffix.lower() == ".txt":
            raise InputError(f"text_columns: {self.input_file} is text and has no columns; leave it out")
        if self.format == "google_jsonl":
            self._check_google()

    def _check_google(self) -> None:
        for name, only in (("pooling", "tokens"), ("join", "none"), ("dtype", "float32")):
            if getattr(self, name) != only:
                raise InputError(
                    f"{name} is '{getattr(self, name)}'; the original's lines hold every token and every layer by itself: "
                    f"leave it at {only}, or give another --format"
                )

    @property
    def wanted_layers(self) -> list[str]:
        """`layers`, one by one, or the format's default."""
        given = self.layers or (GOOGLE_LAYERS if self.format == "google_jsonl" else ("last",))
        return [item for text in given for item in text.split(",") if item]
