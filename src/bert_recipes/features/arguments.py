"""Settings of the feature recipes, and the layers of the paper's Table 7; imports nothing heavy."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bert_recipes.errors import InputError
from bert_recipes.models.kernels.loading import FAST_LAYERS
from bert_recipes.rows import format_suffix
from bert_recipes.settings import SEEDS, check_limits, option, required


class LayerChoice(NamedTuple):
    """Name a row of Table 7, and which of the L + 1 hidden states it takes.

    Number 0 is the output of the embeddings.
    """

    title: str
    layers: slice
    is_summed: bool
    min_layers: int
    paper_dev_f1: float  # percent, CoNLL-2003 dev, BERT-base cased

    def check(self, num_layers: int) -> None:
        """Refuse an encoder with too few layers."""
        if num_layers < self.min_layers:
            fitting = []
            for name, choice in LAYER_CHOICES.items():
                if choice.min_layers <= num_layers:
                    fitting.append(name)
            raise InputError(
                f"'{self.title}' needs {self.min_layers} layers, the model has {num_layers}; give "
                f"others: --layers {' '.join(fitting)}"
            )


LAYER_CHOICES = {
    "embeddings": LayerChoice(
        "Embeddings",
        slice(0, 1),
        False,
        0,
        91.0,
    ),
    "second_to_last": LayerChoice(
        "Second-to-Last Hidden",
        slice(-2, -1),
        False,
        2,
        95.6,
    ),
    "last": LayerChoice(
        "Last Hidden",
        slice(-1, None),
        False,
        1,
        94.9,
    ),
    "weighted_sum_last_four": LayerChoice(
        "Weighted Sum Last Four Hidden",
        slice(-4, None),
        True,
        4,
        95.9,
    ),
    "concat_last_four": LayerChoice(
        "Concat Last Four Hidden",
        slice(-4, None),
        False,
        4,
        96.1,
    ),
    "weighted_sum_all": LayerChoice(
        "Weighted Sum All Layers",
        slice(1, None),
        True,
        1,
        95.5,
    ),
}
# The weights of the paper's sums are learned by its tagger; those of fixed vectors are equal.
NAMED_COLUMNS = {name.removeprefix("weighted_"): choice for name, choice in LAYER_CHOICES.items()}


@dataclass
class FeatureArguments:
    """Choose what is read, which vectors are wanted, and how they are kept.

    Length, batch and the layers of google_jsonl are those of google-research/bert
    extract_features.py.
    """

    model_name_or_path: str = required("checkpoint folder or Hub name")
    input_file: str = required(".txt, one input per line; .jsonl, .json, .csv, .tsv or .parquet")
    output_dir: str = option("runs/features", "features.parquet or features.jsonl")
    format: str = option("parquet", "one of", choices=("parquet", "google_jsonl"))
    layers: list[str] | None = option(
        None,
        f"{', '.join(NAMED_COLUMNS)}, or numbers like -1 -2; default: last, of google_jsonl -1 -2 "
        "-3 -4",
    )
    pooling: str = option("tokens", "one of", choices=("tokens", "cls", "mean", "mean_all"))
    text_columns: list[str] | None = option(
        None, "one or two columns of a table; default: text and, where there is one, text_pair"
    )
    max_seq_length: int = option(128, "positions of an input (original: 128)", least=5)
    batch_size: int = option(32, "inputs that are computed together (original: 32)", least=1)
    dtype: str = option("float32", "of the kept vectors", choices=("float32", "float16"))
    precision: str = option("fp32", "of the matrix products", choices=("fp32", "bf16"))
    fast_layers: str = option("auto", "layers on packed rows, on a CPU", choices=FAST_LAYERS)
    use_cpu: bool = option(False, "use the CPU even where there is a GPU")
    overwrite: bool = option(False, "replace the file of vectors that output_dir holds")

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.layer_names:
            raise InputError(f"layers is {self.layers}: it names none; give last, or -1,-2")
        if self.text_columns is not None:
            self._check_columns(self.text_columns)
        if self.format == "google_jsonl":
            self._check_google_format()

    def _check_columns(self, columns: list[str]) -> None:
        if not 1 <= len(columns) <= 2:
            raise InputError(
                f"text_columns names {len(columns)} columns; allowed: one, or two for pairs"
            )
        if format_suffix(Path(self.input_file)) == ".txt":
            raise InputError(
                f"text_columns: {self.input_file} is text and has no columns; leave it out"
            )

    def _check_google_format(self) -> None:
        for name, default in (("pooling", "tokens"), ("dtype", "float32")):
            value = getattr(self, name)
            if value != default:
                raise InputError(
                    f"{name} is '{value}'; the original's lines hold every token in float32: leave "
                    f"it at {default}, or give another --format"
                )

        for name in self.layer_names:
            # The original counts its first layer as 0, and has no embeddings.
            if not re.fullmatch(r"-0*[1-9]\d*", name):
                raise InputError(
                    f"layers: '{name}' is given; google_jsonl counts from the last layer: -1, -2, "
                    "..., or give another --format"
                )

    @property
    def layer_names(self) -> list[str]:
        """Return `layers`, one by one, or the format's default."""
        if self.layers is not None:
            names = ",".join(self.layers).split(",")
            return [name for name in names if name]
        if self.format == "google_jsonl":
            return [
                "-1",
                "-2",
                "-3",
                "-4",
            ]
        return ["last"]


@dataclass
class FeatureNerArguments:
    """Choose what is measured, and how the BiLSTM is trained.

    The paper gives the two layers, the 768 units, the frozen encoder and the documents as context;
    epochs, batch, learning rate and dropout are ours.
    """

    model_name_or_path: str = option(
        "google-bert/bert-base-cased", "checkpoint folder or Hub name; the paper's is cased"
    )
    data_dir: str | None = option(None, "folder of the CoNLL-2003 files; default: the Hub")
    output_dir: str = option("runs/feature_based_ner", "results")
    layers: list[str] = field(
        default_factory=lambda: list(LAYER_CHOICES),
        metadata={"help": "some of them", "allowed": LAYER_CHOICES},
    )
    seeds: list[int] = field(
        default_factory=lambda: [1], metadata={"help": "one run of each way for each seed", **SEEDS}
    )
    max_train_sentences: int | None = option(None, "train on at most this many sentences", least=1)
    max_eval_sentences: int | None = option(
        None, "evaluate on at most this many sentences", least=1
    )
    max_seq_length: int | None = option(
        None,
        "positions of a window of a document; default: as the run.yaml beside the model says, "
        "else 512",
        least=8,
    )
    feature_batch_size: int = option(16, "windows that the encoder reads together", least=1)
    feature_dtype: str = option(
        "float16", "of the features, in memory", choices=("float16", "float32")
    )
    num_train_epochs: float = option(10.0, "passes over the training sentences", above=0)
    train_batch_size: int = option(32, "sentences per step", least=1)
    learning_rate: float = option(1e-3, "Adam's; falls linearly to 0", above=0)
    lstm_dim: int = option(768, "units of the BiLSTM in each direction", least=1)
    dropout: float = option(0.2, "around and between the layers of the BiLSTM", least=0, below=1)
    precision: str = option(
        "auto",
        "of the BiLSTM's products on a CPU; on a GPU they are in float32",
        choices=("auto", "fp32", "bf16"),
    )
    use_cpu: bool = option(False, "do not use a GPU")

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.layers:
            raise InputError(f"layers is empty; allowed: {', '.join(LAYER_CHOICES)}")
        if not self.seeds:
            raise InputError("seeds is empty; give one or more numbers")


@dataclass
class StaticArguments:
    """Choose what is compared.

    Texts of a task with one class for each, or words of a task with tags of entities.
    """

    task: str | None = option(None, "name of a task")
    task_file: str | None = option(None, "YAML file of your own task")
    model_name_or_path: str | None = option(
        None,
        "checkpoint folder or Hub name; default: the newest finished pre-training run under runs/",
    )
    data_dir: str | None = option(None, "local folder of the task's data; default: the Hub")
    output_dir: str | None = option(None, "results; default: runs/static/TASK")
    finetuned: str | None = option(
        None, "texts: finished fine-tuning run on the same task, for its row"
    )
    words: list[str] | None = option(None, "words: only these")
    files: list[str] | None = option(
        None, "text for the word vectors; default: that of the training examples"
    )
    max_train_examples: int | None = option(None, "train on at most this many examples", least=2)
    max_eval_examples: int | None = option(None, "evaluate on at most this many examples", least=1)
    max_seq_length: int = option(128, "positions of an input of BERT", least=8)
    vector_size: int = option(300, "numbers of a word's vector", least=1)
    min_count: int = option(5, "rarer words have no vector", least=1)
    min_mentions: int = option(5, "words: training mentions as each of two types or more", least=1)
    use_cpu: bool = option(False, "do not use a GPU")

    def folder(self, task: str) -> Path:
        """Return where the results of a task go.

        Its name, which is any text, becomes that of a folder.
        """
        name = re.sub(r"[^\w -]", "-", task)
        return Path(self.output_dir or f"runs/static/{name}")


@dataclass(kw_only=True)
class LikelihoodArguments:
    """Choose how sentences are scored."""

    model_name_or_path: str = required("checkpoint with a masked-LM head: folder or Hub name")
    whole_words: bool = option(False, "with a piece, also mask the later pieces of its word")
    batch_tokens: int = option(8192, "tokens that are computed together", least=1)
    precision: str = option("fp32", "of the matrix products", choices=("fp32", "bf16"))
    fast_layers: str = option("auto", "layers on packed rows, on a CPU", choices=FAST_LAYERS)
    use_cpu: bool = option(False, "do not use a GPU")


@dataclass(kw_only=True)
class SentenceArguments(LikelihoodArguments):
    """Choose which sentences are scored: a user's, or the minimal pairs of BLiMP."""

    input_file: str | None = option(
        None, ".txt, one sentence per line; .jsonl, .json, .csv, .tsv or .parquet"
    )
    text_column: str = option("text", "of a table")
    output_file: str | None = option(None, "JSON Lines; default: printed")
    blimp_dir: str | None = option(
        None, "BLiMP's folder of .jsonl files instead: data/ of github.com/alexwarstadt/blimp"
    )
    output_dir: str = option("runs/blimp", "BLiMP: results")
    max_pairs: int | None = option(None, "BLiMP: the first so many pairs of each file", least=1)
    every_checkpoint: bool = option(
        False, "BLiMP: at each checkpoint-N of the run in --model_name_or_path, as a curve"
    )

    def __post_init__(self) -> None:
        if self.every_checkpoint and not Path(self.model_name_or_path).is_dir():
            raise InputError(
                f"every_checkpoint: model_name_or_path {self.model_name_or_path} is no folder of a "
                "run"
            )
        if (self.input_file is None) == (self.blimp_dir is None):
            raise InputError("give either --input_file FILE or --blimp_dir FOLDER")
        if self.input_file is None or self.output_file is None:
            return
        if Path(self.output_file).resolve() == Path(self.input_file).resolve():
            raise InputError(f"output_file {self.output_file} is the input file; give another one")
