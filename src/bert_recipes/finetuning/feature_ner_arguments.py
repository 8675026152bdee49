"""The settings of feature-based named entity recognition."""

from __future__ import annotations

from dataclasses import dataclass, field

from bert_recipes.errors import InputError
from bert_recipes.finetuning.feature_tagger import LAYER_CHOICES
from bert_recipes.precision import PRECISIONS


FEATURE_DTYPES = ("float16", "float32")


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
    max_train_sentences: int | None = field(default=None, metadata={"help": "train on this many sentences at most"})
    max_eval_sentences: int | None = field(default=None, metadata={"help": "measure on this many sentences at most"})
    max_seq_length: int = field(default=512, metadata={"help": "positions of a window of a document"})
    feature_batch_size: int = field(default=16, metadata={"help": "windows that the encoder reads together"})
    feature_dtype: str = field(
        default="float16", metadata={"help": f"of kept features: {' or '.join(FEATURE_DTYPES)}"}
    )
    num_train_epochs: float = field(default=10.0, metadata={"help": "passes over the training sentences"})
    train_batch_size: int = field(default=32, metadata={"help": "sentences of a step"})
    learning_rate: float = field(default=1e-3, metadata={"help": "Adam's; falls linearly to 0"})
    lstm_dim: int = field(default=768, metadata={"help": "units of the BiLSTM in each direction"})
    dropout: float = field(default=0.2, metadata={"help": "around and between the layers of the BiLSTM"})
    precision: str = field(default="auto", metadata={"help": f"of the BiLSTM's products: {', '.join(PRECISIONS[:3])}"})
    use_cpu: bool = field(default=False, metadata={"help": "do not use a GPU"})

    def __post_init__(self) -> None:
        unknown = [name for name in self.layers if name not in LAYER_CHOICES]
        if unknown or not self.layers:
            given = f"'{unknown[0]}'" if unknown else "empty"
            raise InputError(f"layers is {given}; allowed: {', '.join(LAYER_CHOICES)}")
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds is {self.seeds}; allowed: one or more numbers, 0 or more")
        if self.feature_dtype not in FEATURE_DTYPES:
            raise InputError(f"feature_dtype is '{self.feature_dtype}'; allowed: {', '.join(FEATURE_DTYPES)}")
        if self.precision not in PRECISIONS[:3]:
            raise InputError(f"precision is '{self.precision}'; allowed: {', '.join(PRECISIONS[:3])}")
        least = {"max_seq_length": 8, "feature_batch_size": 1, "train_batch_size": 1, "lstm_dim": 1}
        least |= {"max_train_sentences": 1, "max_eval_sentences": 1}
        for name, value in least.items():
            if getattr(self, name) is not None and getattr(self, name) < value:
                raise InputError(f"{name} is {getattr(self, name)}; allowed: {value} or more")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; allowed: 0 or more and below 1")
        for name in ("num_train_epochs", "learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; allowed: above 0")
