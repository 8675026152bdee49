"""Write hidden states of a frozen BERT to a file, as one vector per token or per input.

Legend: L layers of the encoder, T tokens, H hidden size, D size of a column's vectors.

Source: BERT, Devlin et al. 2019, section 5.3 and Table 7; google-research/bert extract_features.py.
"""

import itertools
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from torch import nn
from transformers import AutoModel, PreTrainedModel

from bert_recipes.checkpointing import check_checkpoint
from bert_recipes.errors import InputError, saving
from bert_recipes.features.arguments import NAMED_COLUMNS, FeatureArguments
from bert_recipes.files import atomic_write
from bert_recipes.finetuning.checkpoints import open_complete, open_tokenizer
from bert_recipes.finetuning.kind import join_texts, pad_batch, truncate_pair
from bert_recipes.models.bert_model import BertModel
from bert_recipes.models.sizes import inputs_of, num_positions
from bert_recipes.progress import Progress
from bert_recipes.rows import (
    TABLE_SUFFIXES,
    column_text,
    format_suffix,
    list_columns,
    read_lines,
    read_table,
)
from bert_recipes.tokenization.loading import check_vocabulary
from bert_recipes.tokenization.tokenizer import OriginalBertTokenizer
from bert_recipes.training.arguments import choose_precision
from bert_recipes.training.speed import keep_freed_memory


logger = logging.getLogger(__name__)

# Layers


class Column(NamedTuple):
    """Name hidden states (0 to L) that make one vector: side by side, or summed."""

    name: str
    layers: tuple[int, ...]
    is_concatenated: bool = False

    def take(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Join hidden states: number -> (T, H), to float32 (T, D)."""
        states = [hidden[number].float() for number in self.layers]
        if self.is_concatenated:
            return torch.cat(states, dim=-1)
        return torch.stack(states).sum(0)


def choose_columns(names: Sequence[str], num_layers: int) -> list[Column]:
    """Read `NAMED_COLUMNS` and numbers (-1 the last layer, 0 the embeddings)."""
    columns = [choose_column(name, num_layers) for name in names]
    if len({column.name for column in columns}) < len(columns):
        raise InputError(f"layers: {', '.join(names)} names a layer twice")
    return columns


def choose_column(name: str, num_layers: int) -> Column:
    """Read one of `NAMED_COLUMNS`, or a number."""
    if name in NAMED_COLUMNS:
        choice = NAMED_COLUMNS[name]
        choice.check(num_layers)
        layers = tuple(range(num_layers + 1)[choice.layers])
        return Column(name, layers, is_concatenated=not choice.is_summed)
    if re.fullmatch(r"[+-]?\d+", name) is None:
        hint = ""
        plain = name.removeprefix("weighted_")
        if plain in NAMED_COLUMNS:
            hint = f"; recipes/feature_based_ner.py learns its weights; equal ones: {plain}"
        allowed = f"{', '.join(NAMED_COLUMNS)}, or numbers like -1"
        raise InputError(f"layers: '{name}' is no layer{hint}; allowed: {allowed}")
    if abs(int(name)) > num_layers:
        limits = f"-{num_layers} to {num_layers}"
        raise InputError(f"layers: {name} is given, the model has {num_layers}: {limits}")
    number = range(num_layers + 1)[int(name)]
    return Column(f"layer_{number}", (number,))


# The encoder


def choose_device(*, use_cpu: bool) -> torch.device:
    """Return the GPU where there is one and `use_cpu` does not forbid it."""
    return torch.device("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")


def open_encoder(
    name: str, max_seq_length: int = 0
) -> tuple[PreTrainedModel, OriginalBertTokenizer]:
    """Open a checkpoint's encoder in float32, and its tokenizer."""
    check_checkpoint(name)
    tokenizer = open_tokenizer(name)
    # The pooler comes after the hidden states; checkpoints of masked-LM models have none.
    encoder = open_complete(name, AutoModel, may_lack=("pooler.",))
    check_vocabulary(name, encoder.config.vocab_size, tokenizer)
    positions = num_positions(encoder.config, max_seq_length)
    if max_seq_length > positions:
        raise InputError(
            f"max_seq_length is {max_seq_length}, the model has {positions} positions; lower it"
        )
    return encoder, tokenizer


def make_fast(encoder: PreTrainedModel, deepest: int, fast_layers: str) -> None:
    """Drop a BERT's layers above hidden state number `deepest`, and compute no pads on a CPU.

    Args:
        encoder: Any model; those of other families stay as they are.
        deepest: Number of the last hidden state that is read.
        fast_layers: Of the recipe's flag.
    """
    if not isinstance(encoder, transformers.BertModel):
        return
    layers: Any = encoder.encoder.layer
    encoder.encoder.layer = nn.ModuleList(layers[: max(deepest, 1)])
    if type(encoder) is transformers.BertModel:
        BertModel.from_stock(encoder)
    if isinstance(encoder, BertModel):
        encoder.computes_pads = False
        encoder.use_fast_layers(fast_layers)


@torch.no_grad()
def hidden_states(
    encoder: PreTrainedModel,
    features: Sequence[Mapping[str, list[int]]],
    pad_token_id: int,
    layers: Sequence[int],
) -> dict[int, torch.Tensor]:
    """Compute hidden states of the tokens of some inputs, which have input_ids and token_type_ids.

    Args:
        encoder: On its device.
        features: Inputs without pads.
        pad_token_id: Of the tokenizer.
        layers: Numbers of hidden states; 0 is the output of the embeddings.

    Returns:
        Number (0 is the output of the embeddings) -> (T, H), one input after the other, on the
        encoder's device.
    """
    padded = pad_batch(features, pad_token_id)
    batch = {name: value.to(encoder.device) for name, value in padded.items()}
    is_token = batch["attention_mask"].bool()
    encoded = None
    if isinstance(encoder, BertModel):
        encoded = encoder.encode_rows(batch, keep=layers)
    if encoded is not None:
        rows = encoded.hidden_states
        return {number: encoded.layout.unpack(rows[number])[is_token] for number in layers}

    inputs = {name: batch[name] for name in inputs_of(encoder)}
    states = encoder(**inputs, output_hidden_states=True).hidden_states
    return {number: states[number][is_token] for number in layers}


# Inputs

# A text, and the second text of a pair.
TextInput = tuple[str, str | None]
# google-research/bert extract_features.py `read_examples`: the last " ||| " of a line divides it.
_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


def count_inputs(path: Path, text_columns: Sequence[str] | None) -> int:
    """Count the inputs of a file; what is wrong in it is found before the work."""
    num_inputs = sum(1 for _ in read_inputs(path, text_columns))
    if not num_inputs:
        raise InputError(f"--input_file {path}: no input in it")
    return num_inputs


def read_inputs(path: Path, text_columns: Sequence[str] | None = None) -> Iterator[TextInput]:
    """Yield line k of a .txt file, or row k of a table; an empty line is an input without words.

    A second text may be null; without text_columns it is that of `text_pair`, where a row has it.
    """
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file")
    if format_suffix(path) == ".txt":
        for line in read_lines(path):
            text = line.strip()
            pair = _PAIR.match(text)
            if pair is None:
                yield text, None
            else:
                yield pair[1], pair[2]
        return
    if format_suffix(path) not in TABLE_SUFFIXES:
        allowed = ", ".join((".txt", *TABLE_SUFFIXES))
        raise InputError(f"--input_file {path}: unknown ending '{path.suffix}'; allowed: {allowed}")
    rows = read_table(path, are_inputs=True)

    for number, row in rows.rows:
        yield _read_row(row, rows.where(number), text_columns)


def _read_row(row: Mapping[str, Any], where: str, text_columns: Sequence[str] | None) -> TextInput:
    if text_columns is not None:
        columns = list(text_columns)
    elif "text" in row:
        columns = [name for name in ("text", "text_pair") if name in row]
    else:
        raise InputError(
            f"{where}: no column 'text'; columns present: {list_columns(row)}; name one with "
            "--text_columns"
        )
    first = column_text(row, columns[0], where)
    # A named column must be there; null is no second text.
    if len(columns) == 1 or row.get(columns[1], "") is None:
        return first, None
    return first, column_text(row, columns[1], where)


class EncodedInput(NamedTuple):
    """Hold [CLS] text [SEP], or [CLS] text [SEP] second text [SEP], and whether it was cut."""

    input_ids: list[int]
    token_type_ids: list[int]
    special_places: list[int]  # of [CLS] and [SEP]
    is_truncated: bool


def encode_input(
    texts: TextInput, tokenizer: OriginalBertTokenizer, max_seq_length: int
) -> EncodedInput:
    """Cut an input into pieces as the original does; a second text without pieces is none.

    Source: google-research/bert extract_features.py `convert_examples_to_features`.

    Args:
        texts: One text, or two.
        tokenizer: Of the model.
        max_seq_length: Longest input; the longer text of a pair is cut first.
    """
    first = tokenizer.encode_ids(texts[0])
    second = tokenizer.encode_ids(texts[1] or "")
    num_pieces = len(first) + len(second)
    layout = tokenizer.layout
    if second:
        truncate_pair(first, second, max_seq_length - layout.num_special)
    feature = join_texts(tokenizer, first, second or None, max_seq_length)
    input_ids = feature["input_ids"]
    special_ids = {*layout.prefix, *layout.middle, *layout.suffix}
    special_places = [place for place, piece in enumerate(input_ids) if piece in special_ids]
    is_truncated = len(special_places) + num_pieces > len(input_ids)
    return EncodedInput(input_ids, feature["token_type_ids"], special_places, is_truncated)


# Vectors

# Bytes of vectors, or of one input, that are held at once.
CHUNK_BYTES = 256_000_000


class Chunk(NamedTuple):
    """Hold some consecutive inputs of a file, from number first_row on, with their vectors.

    vectors: column -> for each input (S, D), or (D,) with a pooling.
    """

    first_row: int
    inputs: list[EncodedInput]
    vectors: dict[str, list[np.ndarray]]


@dataclass(frozen=True)
class FeatureExtractor:
    """Compute vectors with a frozen encoder, in evaluation mode on its device."""

    encoder: PreTrainedModel
    tokenizer: OriginalBertTokenizer
    columns: Sequence[Column]
    args: FeatureArguments

    def chunks(self, inputs: Iterable[EncodedInput]) -> Iterator[Chunk]:
        """Yield the vectors of all inputs in their order, about `CHUNK_BYTES` at once."""
        num_layers = sum(len(column.layers) for column in self.columns)
        bytes_per_token = 4 * self.encoder.config.hidden_size * num_layers

        first_row = 0
        num_bytes = 0
        block: list[EncodedInput] = []
        for item in inputs:
            size = len(item.input_ids) * bytes_per_token
            if block and num_bytes + size > CHUNK_BYTES:
                yield Chunk(first_row, block, self.extract(block))
                first_row += len(block)
                block = []
                num_bytes = 0
            block.append(item)
            num_bytes += size
        if block:
            yield Chunk(first_row, block, self.extract(block))

    def extract(self, inputs: Sequence[EncodedInput]) -> dict[str, list[np.ndarray]]:
        """Compute the vectors of some inputs, those of like length together."""
        num_inputs = len(inputs)
        batch_size = self.args.batch_size
        order = sorted(range(num_inputs), key=lambda number: -len(inputs[number].input_ids))
        vectors: dict[str, list[np.ndarray]] = {}
        for column in self.columns:
            vectors[column.name] = [np.empty(0)] * num_inputs

        for start in range(0, num_inputs, batch_size):
            numbers = order[start : start + batch_size]
            batch = [inputs[number] for number in numbers]
            lengths = [len(item.input_ids) for item in batch]
            hidden = self._hidden_states(batch)
            for column in self.columns:
                name = column.name
                tokens_of_batch = column.take(hidden).cpu().numpy()
                tokens_of_inputs = np.split(tokens_of_batch, np.cumsum(lengths)[:-1])
                for number, tokens in zip(numbers, tokens_of_inputs, strict=True):
                    pooled = pool(tokens, inputs[number], self.args.pooling)
                    vectors[name][number] = self._as_dtype(name, pooled)
        return vectors

    def _hidden_states(self, batch: Sequence[EncodedInput]) -> dict[int, torch.Tensor]:
        features = []
        for item in batch:
            features.append({"input_ids": item.input_ids, "token_type_ids": item.token_type_ids})
        layers: set[int] = set()
        for column in self.columns:
            layers.update(column.layers)
        is_bf16 = self.args.precision == "bf16"
        with torch.autocast(self.encoder.device.type, torch.bfloat16, enabled=is_bf16):
            return hidden_states(
                self.encoder, features, self.tokenizer.pad_token_id, sorted(layers)
            )

    def _as_dtype(self, name: str, vectors: np.ndarray) -> np.ndarray:
        if not np.isfinite(vectors).all():
            raise InputError(
                f"{name}: the model's outputs are not finite; it has diverged, or "
                "--precision fp32 helps"
            )
        if self.args.dtype == "float16" and np.abs(vectors).max() > np.finfo(np.float16).max:
            raise InputError(
                f"{name}: a value above 65,504 does not fit into float16; give --dtype float32"
            )
        return vectors.astype(self.args.dtype)


def pool(tokens: np.ndarray, item: EncodedInput, pooling: str) -> np.ndarray:
    """Return the vectors of an input's tokens (S, D), or one of them all (D,).

    Args:
        tokens: float32 (S, D).
        item: The input of these tokens.
        pooling: "tokens", "cls", "mean" or "mean_all", which counts [CLS] and [SEP], too.
    """
    if pooling == "tokens":
        return tokens
    if pooling == "cls":
        return tokens[0]
    # A mean is of the text, unless there is none.
    if pooling == "mean" and len(item.special_places) < len(tokens):
        tokens = np.delete(tokens, item.special_places, axis=0)
    return tokens.mean(0)


# Files


def make_table(chunk: Chunk, tokenizer: OriginalBertTokenizer) -> pa.Table:
    """Return a row per input: row, truncated, tokens, token_type_ids and columns of vectors."""
    tokens = []
    segments = []
    for item in chunk.inputs:
        tokens.append(tokenizer.convert_ids_to_tokens(item.input_ids))
        segments.append(item.token_type_ids)
    arrays: dict[str, Any] = {
        "row": pa.array(range(chunk.first_row, chunk.first_row + len(chunk.inputs))),
        "truncated": pa.array([item.is_truncated for item in chunk.inputs]),
        "tokens": pa.array(tokens, pa.list_(pa.string())),
        "token_type_ids": pa.array(segments, pa.list_(pa.int8())),
    }

    for name, vectors in chunk.vectors.items():
        rows = np.concatenate([np.atleast_2d(vector) for vector in vectors])
        values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        if vectors[0].ndim == 2:
            values = pa.ListArray.from_arrays(arrays["tokens"].offsets, values)
        arrays[name] = values
    return pa.table(arrays)


def write_parquet(path: Path, chunks: Iterable[Chunk], extractor: FeatureExtractor) -> None:
    """Write a row group of `make_table` for each chunk."""
    tables = (make_table(chunk, extractor.tokenizer) for chunk in chunks)
    first = next(tables)
    # Vectors repeat nothing: a dictionary of them costs time and gains nothing.
    with pq.ParquetWriter(path, first.schema, use_dictionary=False) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table)


def write_google_jsonl(path: Path, chunks: Iterable[Chunk], extractor: FeatureExtractor) -> None:
    """Write a line per input as google-research/bert extract_features.py `main` does."""
    num_states = extractor.encoder.config.num_hidden_layers + 1
    # The original's -1, -2, ... -> column.
    names = {column.layers[0] - num_states: column.name for column in extractor.columns}
    with path.open("w", encoding="utf-8") as file:
        for chunk in chunks:
            for number, item in enumerate(chunk.inputs):
                tokens = extractor.tokenizer.convert_ids_to_tokens(item.input_ids)
                vectors = {index: chunk.vectors[name][number] for index, name in names.items()}
                line = {
                    "linex_index": chunk.first_row + number,
                    "features": google_features(tokens, vectors),
                }
                file.write(json.dumps(line) + "\n")


def google_features(
    tokens: Sequence[str], vectors: Mapping[int, np.ndarray]
) -> list[dict[str, Any]]:
    """Return the tokens of an input with their vectors, rounded, by the original's layer."""
    features = []
    for position, token in enumerate(tokens):
        layers = []
        for index, rows in vectors.items():
            values = [round(value, 6) for value in rows[position].tolist()]
            layers.append({"index": index, "values": values})
        features.append({"token": token, "layers": layers})
    return features


# All together

# Format -> its file, and what writes it.
WRITERS: Mapping[str, tuple[str, Callable[..., None]]] = {
    "parquet": ("features.parquet", write_parquet),
    "google_jsonl": ("features.jsonl", write_google_jsonl),
}


@dataclass
class Summary:
    """Count what was computed, in so many seconds."""

    file: Path
    num_inputs: int = 0
    num_tokens: int = 0
    num_truncated: int = 0
    seconds: float = 0.0

    def count(self, chunk: Chunk) -> None:
        """Add a chunk."""
        self.num_inputs += len(chunk.inputs)
        self.num_tokens += sum(len(item.input_ids) for item in chunk.inputs)
        self.num_truncated += sum(item.is_truncated for item in chunk.inputs)


def extract_features(args: FeatureArguments) -> Summary:
    """Write the vectors of all inputs into a file that is complete or absent."""
    name, write = WRITERS[args.format]
    summary = Summary(Path(args.output_dir) / name)
    if summary.file.exists() and not args.overwrite:
        raise InputError(
            f"{summary.file} is there; give another --output_dir, or replace it with "
            "--overwrite true"
        )

    extractor = open_extractor(args)
    path = Path(args.input_file)
    num_inputs = count_inputs(path, args.text_columns)

    def counted_chunks() -> Iterator[Chunk]:
        texts = read_inputs(path, args.text_columns)
        progress = Progress(
            texts,
            total=num_inputs,
            unit="input",
            leave=False,
        )
        tokenizer = extractor.tokenizer
        inputs = (encode_input(text, tokenizer, args.max_seq_length) for text in progress)

        for chunk in extractor.chunks(inputs):
            summary.count(chunk)
            yield chunk

    start = time.perf_counter()
    with saving(summary.file), atomic_write(summary.file) as staged:
        write(staged, counted_chunks(), extractor)

    summary.seconds = time.perf_counter() - start
    if summary.num_truncated:
        logger.warning(
            "%d of %d inputs are longer than %d positions and cut there; raise --max_seq_length",
            summary.num_truncated,
            num_inputs,
            args.max_seq_length,
        )
    return summary


def open_extractor(args: FeatureArguments) -> FeatureExtractor:
    """Open the checkpoint on its device, without the layers that no column needs."""
    device = choose_device(use_cpu=args.use_cpu)
    choose_precision(args.precision, use_cpu=device.type == "cpu")
    encoder, tokenizer = open_encoder(args.model_name_or_path, args.max_seq_length)
    columns = choose_columns(args.layer_names, encoder.config.num_hidden_layers)
    # They are kernels of the CPU.
    fast_layers = args.fast_layers if device.type == "cpu" else "off"
    make_fast(encoder, max(max(column.layers) for column in columns), fast_layers)
    if device.type == "cpu":
        keep_freed_memory()
    encoder = cast(PreTrainedModel, encoder.to(device).eval())
    return FeatureExtractor(encoder, tokenizer, columns, args)
