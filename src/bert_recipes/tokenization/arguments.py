"""The settings of tokenizer/train.py."""

from dataclasses import dataclass, field
from typing import Literal

from bert_recipes.errors import InputError


@dataclass
class TokenizerArguments:
    """What to read, what to train, where to write. Settings that `train_wordpiece` shares mean the same there."""

    output_dir: str = field(metadata={"help": "folder to write; must not exist or be empty"})
    files: list[str] | None = field(
        default=None, metadata={"help": "files, folders or globs: .txt, .jsonl, .json (each also .gz), .parquet"}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "data set on the Hub, instead of --files"})
    dataset_config_name: str | None = field(default=None, metadata={"help": "its configuration"})
    dataset_split: str = field(default="train", metadata={"help": "its split"})
    text_column: str = field(default="text", metadata={"help": "column of the text in JSON, Parquet and Hub rows"})
    encoding_errors: Literal["strict", "replace"] = field(
        default="strict", metadata={"help": "broken UTF-8: stop, or put U+FFFD and count"}
    )
    vocab_size: int = field(default=30522, metadata={"help": "entries wanted, special tokens and slots included"})
    lowercase: bool = field(default=True, metadata={"help": "uncased vocabulary"})
    strip_accents: bool | None = field(
        default=None, metadata={"help": "drop accents and other combining marks; default: as lowercase"}
    )
    split_cjk: bool = field(default=True, metadata={"help": "every Han character is a word"})
    min_frequency: int = field(default=2, metadata={"help": "a pair must occur this often to become a piece"})
    limit_alphabet: int = field(default=1000, metadata={"help": "characters kept, the most frequent ones"})
    num_unused: int = field(default=99, metadata={"help": "[unusedN] slots"})
    overwrite: bool = field(default=False, metadata={"help": "replace a tokenizer that is in output_dir already"})

    def __post_init__(self) -> None:
        if (self.files is None) == (self.dataset_name is None):
            given = "both were" if self.files is not None else "neither was"
            raise InputError(f"give either --files or --dataset_name; {given} given")
