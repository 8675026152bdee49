"""Hidden states of a frozen BERT, as one vector per token or per input, in files of bounded size.

Legend: L layers of the encoder, T tokens, N inputs, H hidden size, D size of a column's vectors.

Source: BERT, Devlin et al. 2019, section 5.3 and Table 7; google-research/bert extract_features.py.
"""

import hashlib
import inspect
import itertools
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from safetensors.numpy import save_file
from torch import nn
from transformers import AutoModel, PreTrainedModel

from bert_recipes.checkpointing import check_checkpoint
from bert_recipes.errors import InputError, saving
from bert_recipes.features.arguments import COLUMN_NAMES, NAMED_COLUMNS, FeatureArguments
from bert_recipes.files import atomic_write, lock_run, write_json
from bert_recipes.finetuning.checkpoints import open_complete, open_tokenizer
from bert_recipes.finetuning.kind import join_texts, pad_batch, truncate_pair
from bert_recipes.models.bert_model import BertModel
from bert_recipes.models.sizes import num_positions
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
    """One vector per token or input, out of hidden states (0 to L) that are joined by none (one),
    sum or concat.
    """

    name: str
    layers: tuple[int, ...]
    join: str

    def size(self, hidden_size: int) -> int:
        """D."""
        return hidden_size * len(self.layers) if self.join == "concat" else hidden_size

    def take(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Join hidden states: number -> (T, H), to float32 (T, D)."""
        parts = [hidden[number].float() for number in self.layers]
        return torch.cat(parts, dim=-1) if self.join == "concat" else torch.stack(parts).sum(0)


def choose_columns(wanted: Sequence[str], join: str, num_layers: int) -> list[Column]:
    """Read `COLUMN_NAMES` and numbers (-1 the last layer, 0 the embeddings), which `join` makes one
    column.
    """
    numbers = {}
    for text in [text for text in wanted if text not in NAMED_COLUMNS]:
        if re.fullmatch(r"[+-]?\d+", text) is None:
            plain = text.removeprefix("weighted_")
            hint = f"; its weights are learned (make ner-features), with equal ones it is {plain}"
            allowed = f"allowed: {', '.join(COLUMN_NAMES)}, or numbers like -1"
            raise InputError(
                f"layers: '{text}' is no layer{hint * (plain in NAMED_COLUMNS)}; {allowed}"
            )
        if abs(int(text)) > num_layers:
            raise InputError(
                f"layers: {text} is given, the model has {num_layers}: -{num_layers} to "
                f"{num_layers}"
            )
        numbers[text] = range(num_layers + 1)[int(text)]
    if join != "none" and len(numbers) < 2:
        raise InputError(
            f"join is '{join}'; it is for two or more layers given as numbers: give --layers -1 "
            "-2 ..."
        )
    if len(set(numbers.values())) < len(numbers) or len(set(wanted)) < len(wanted):
        raise InputError(f"layers: {', '.join(wanted)} names a layer twice")
    columns = []
    for text in wanted:
        if text in NAMED_COLUMNS:
            choice = NAMED_COLUMNS[text]
            choice.check(num_layers)
            own_join = text.split("_")[0] if text.startswith(("sum", "concat")) else "none"
            columns.append(Column(text, tuple(range(num_layers + 1)[choice.taken]), own_join))
        elif join == "none":
            columns.append(Column(f"layer_{numbers[text]}", (numbers[text],), "none"))
    if join != "none":
        columns.append(
            Column("_".join([join, *map(str, numbers.values())]), tuple(numbers.values()), join)
        )
    return columns


# The encoder

# Fields of a model's configuration that change nothing in its hidden states.
_NAMES_IN_CONFIG = re.compile(
    "_name_or_path|transformers_version|dtype|torch_dtype|architectures|id2label|label2id|num_labels|problem_type|"
    "output_hidden_states|use_cache"
)


def choose_device(*, use_cpu: bool) -> torch.device:
    """The GPU where there is one and `use_cpu` does not forbid it."""
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
    """Drop a BERT's layers above hidden state number `deepest`, and compute the others without pads
    where the CPU can.
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
    """Hidden states of the tokens of some inputs, which have input_ids and token_type_ids.

    Returns:
        Number (0 is the output of the embeddings) -> (T, H), one input after the other, on the
        encoder's device.
    """
    batch = {
        name: value.to(encoder.device) for name, value in pad_batch(features, pad_token_id).items()
    }
    is_token = batch["attention_mask"].bool()
    if isinstance(encoder, BertModel):
        encoded = encoder.encode_rows(batch, keep=layers)
        if encoded is not None:
            states = encoded.hidden_states
            return {number: encoded.layout.unpack(states[number])[is_token] for number in layers}
    # DistilBERT, for one, takes no token_type_ids.
    accepted = inspect.signature(type(encoder).forward).parameters
    inputs = {name: value for name, value in batch.items() if name in accepted}
    hidden = encoder(**inputs, output_hidden_states=True).hidden_states
    return {number: hidden[number][is_token] for number in layers}


def encoder_hash(encoder: PreTrainedModel) -> str:
    """SHA-256 (hex) of the configuration and of every weight that a hidden state depends on; the
    pooler comes after them.
    """
    config = {
        name: value
        for name, value in encoder.config.to_dict().items()
        if not _NAMES_IN_CONFIG.fullmatch(name)
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        if not name.startswith("pooler."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
    return digest.hexdigest()


# Inputs

# A text, and the second text of a pair.
TextInput = tuple[str, str | None]
# google-research/bert extract_features.py `read_examples`: the last " ||| " of a line divides it.
_PAIR = re.compile(r"^(.*) \|\|\| (.*)$")


def survey_inputs(path: Path, text_columns: Sequence[str] | None) -> tuple[int, str]:
    """Count the inputs of a file and hash (SHA-256, hex) their texts; what is wrong in it is found
    before the work.
    """
    digest, num_inputs = hashlib.sha256(), 0
    for each in read_inputs(path, text_columns):
        digest.update(json.dumps(each).encode())
        num_inputs += 1
    if not num_inputs:
        raise InputError(f"--input_file {path}: no input in it")
    return num_inputs, digest.hexdigest()


def read_inputs(path: Path, text_columns: Sequence[str] | None = None) -> Iterator[TextInput]:
    """Yield line k of a .txt file, where an empty line is an input without words, or row k of a
    table.

    A second text may be null; without text_columns it is that of `text_pair`, where a row has it.
    """
    if not path.is_file():
        raise InputError(f"--input_file {path}: no such file")
    if format_suffix(path) == ".txt":
        for line in map(str.strip, read_lines(path)):
            pair = _PAIR.match(line)
            yield (line, None) if pair is None else (pair[1], pair[2])
        return
    if format_suffix(path) not in TABLE_SUFFIXES:
        allowed = ", ".join((".txt", *TABLE_SUFFIXES))
        raise InputError(f"--input_file {path}: unknown ending '{path.suffix}'; allowed: {allowed}")
    rows = read_table(path)
    first, *others = text_columns or ("text", "text_pair")
    for number, row in rows.rows:
        where = rows.where(number)
        if text_columns is None and first not in row:
            present = list_columns(row)
            raise InputError(
                f"{where}: no column '{first}'; columns present: {present}; name one with "
                "--text_columns"
            )
        has_none = not others or (
            row[others[0]] is None if others[0] in row else text_columns is None
        )
        yield (
            column_text(row, first, where),
            None if has_none else column_text(row, others[0], where),
        )


class EncodedInput(NamedTuple):
    """[CLS] text [SEP], or [CLS] text [SEP] second text [SEP], and whether tokens were cut off."""

    input_ids: list[int]
    token_type_ids: list[int]
    is_truncated: bool


def encode_input(
    texts: TextInput, tokenizer: OriginalBertTokenizer, max_seq_length: int
) -> EncodedInput:
    """Cut an input into pieces as the original does: a second text of which no piece is left is
    none.

    Source: google-research/bert extract_features.py `convert_examples_to_features`.
    """
    first, second = tokenizer.encode_ids(texts[0]), tokenizer.encode_ids(texts[1] or "")
    is_truncated = len(first) + len(second) > max_seq_length - (3 if second else 2)
    if second:
        truncate_pair(first, second, max_seq_length - 3)
    feature = join_texts(tokenizer, first, second or None, max_seq_length)
    return EncodedInput(feature["input_ids"], feature["token_type_ids"], is_truncated)


# Vectors

# Whatever the vectors take: texts' ids, in Python's own objects, take memory, too.
MAX_PART_INPUTS, MAX_PART_TOKENS = 100_000, 2_000_000


@dataclass(frozen=True)
class Part:
    """The vectors of N consecutive inputs, the first of which is number `first_row` of the file."""

    first_row: int
    offsets: np.ndarray  # int64 (N + 1,), where the tokens of each input begin among the T
    input_ids: np.ndarray  # int32 (T,)
    token_type_ids: np.ndarray  # int8 (T,)
    is_truncated: np.ndarray  # bool (N,)
    vectors: dict[
        str, np.ndarray
    ]  # column's name -> float (T, D), or (N, D) where inputs have one vector each

    def __len__(self) -> int:
        return len(self.is_truncated)

    @property
    def counts(self) -> dict[str, int]:
        """As the index has them."""
        num_truncated = int(self.is_truncated.sum())
        return {
            "num_inputs": len(self),
            "num_tokens": len(self.input_ids),
            "num_truncated": num_truncated,
        }


@dataclass(frozen=True)
class FeatureExtractor:
    """A frozen encoder, in evaluation mode on its device, and what is wanted of it."""

    encoder: PreTrainedModel
    tokenizer: OriginalBertTokenizer
    columns: Sequence[Column]
    args: FeatureArguments

    @property
    def bytes_per_vector(self) -> int:
        """Bytes of one vector of every column."""
        size = sum(column.size(self.encoder.config.hidden_size) for column in self.columns)
        return size * np.dtype(self.args.dtype).itemsize

    def parts(
        self, inputs: Iterable[EncodedInput], part_bytes: int, first_row: int = 0
    ) -> Iterator[Part]:
        """Yield the vectors of all inputs in their order; those of a part take part_bytes, or are
        of one input.
        """
        held: list[EncodedInput] = []
        num_tokens = 0
        for each in inputs:
            own = len(each.input_ids)
            size = self.bytes_per_vector * (
                num_tokens + own if self.args.pooling == "tokens" else len(held) + 1
            )
            if held and (
                size > part_bytes
                or len(held) == MAX_PART_INPUTS
                or num_tokens + own > MAX_PART_TOKENS
            ):
                yield self.extract(held, first_row)
                first_row, held, num_tokens = first_row + len(held), [], 0
            held.append(each)
            num_tokens += own
        if held:
            yield self.extract(held, first_row)

    def extract(self, inputs: Sequence[EncodedInput], first_row: int = 0) -> Part:
        """Compute the vectors of one input or more, inputs of like length together."""
        lengths = np.array([len(each.input_ids) for each in inputs])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        per_token = self.args.pooling == "tokens"
        width = self.encoder.config.hidden_size
        vectors = {
            column.name: np.empty(
                (offsets[-1] if per_token else len(inputs), column.size(width)), self.args.dtype
            )
            for column in self.columns
        }
        layers = sorted({number for column in self.columns for number in column.layers})
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(order), self.args.batch_size):
            numbers = order[start : start + self.args.batch_size]
            batch = [inputs[number] for number in numbers]
            rows = (
                np.concatenate([np.arange(offsets[n], offsets[n + 1]) for n in numbers])
                if per_token
                else numbers
            )
            features = [
                {"input_ids": each.input_ids, "token_type_ids": each.token_type_ids}
                for each in batch
            ]
            with torch.autocast(
                self.encoder.device.type, torch.bfloat16, enabled=self.args.precision == "bf16"
            ):
                hidden = hidden_states(self.encoder, features, self.tokenizer.pad_token_id, layers)
            for column in self.columns:
                name, values = column.name, self._pool(column.take(hidden), batch).cpu().numpy()
                if not np.isfinite(values).all():
                    problem = (
                        "the model's outputs are not finite; it has diverged, or "
                        "--precision fp32 helps"
                    )
                    raise InputError(f"{name}: {problem}")
                if np.abs(values).max(initial=0) > np.finfo(self.args.dtype).max:
                    raise InputError(
                        f"{name}: a value above 65,504 does not fit into float16; give --dtype "
                        "float32"
                    )
                vectors[name][rows] = values.astype(self.args.dtype)
        return Part(
            first_row=first_row,
            offsets=offsets,
            input_ids=np.concatenate([each.input_ids for each in inputs]).astype(np.int32),
            token_type_ids=np.concatenate([each.token_type_ids for each in inputs]).astype(np.int8),
            is_truncated=np.array([each.is_truncated for each in inputs]),
            vectors=vectors,
        )

    def _pool(self, values: torch.Tensor, batch: Sequence[EncodedInput]) -> torch.Tensor:
        """(T, D) -> (N, D), unless every token keeps its own."""
        if self.args.pooling == "tokens":
            return values
        lengths = torch.tensor([len(each.input_ids) for each in batch], device=values.device)
        if self.args.pooling == "cls":
            return values[lengths.cumsum(0) - lengths]
        counted = []
        for each in batch:
            own = np.ones(len(each.input_ids), bool)
            # [CLS] text [SEP] second text [SEP]; a mean is of all the others, unless there are
            # none.
            specials = {0, len(own) - sum(each.token_type_ids) - 1, len(own) - 1}
            if self.args.pooling == "mean" and len(specials) < len(own):
                own[list(specials)] = False
            counted.append(own)
        weights = torch.from_numpy(np.concatenate(counted)).to(values)[:, None]
        owners = torch.repeat_interleave(torch.arange(len(batch), device=values.device), lengths)
        sums = values.new_zeros((len(batch), values.shape[1])).index_add_(
            0, owners, values * weights
        )
        return sums / values.new_zeros((len(batch), 1)).index_add_(0, owners, weights)


# Files


def write_parquet(path: Path, part: Part, tokenizer: OriginalBertTokenizer) -> None:
    """Write one row per input: `row`, `truncated`, `tokens`, `token_type_ids` and the columns of
    vectors, of fixed size.
    """
    offsets = pa.array(part.offsets.astype(np.int32))
    tokens = tokenizer.convert_ids_to_tokens(part.input_ids.tolist())
    arrays: dict[str, Any] = {
        "row": pa.array(np.arange(part.first_row, part.first_row + len(part))),
        "truncated": pa.array(part.is_truncated),
        "tokens": pa.ListArray.from_arrays(offsets, pa.array(tokens, pa.string())),
        "token_type_ids": pa.ListArray.from_arrays(offsets, pa.array(part.token_type_ids)),
    }
    for name, vectors in part.vectors.items():
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        # Every input has two tokens or more.
        arrays[name] = (
            values if len(vectors) == len(part) else pa.ListArray.from_arrays(offsets, values)
        )
    # Vectors repeat nothing: a dictionary of them costs time and gains nothing.
    pq.write_table(pa.table(arrays), path, use_dictionary=False)


def write_safetensors(path: Path, part: Part, tokenizer: OriginalBertTokenizer) -> None:
    """Write `offsets`, `input_ids`, `token_type_ids`, `truncated` and the columns of vectors."""
    tensors = {
        "offsets": part.offsets,
        "input_ids": part.input_ids,
        "token_type_ids": part.token_type_ids,
    }
    save_file({**tensors, "truncated": part.is_truncated, **part.vectors}, path)


def google_lines(
    part: Part, layer_numbers: Mapping[str, int], tokenizer: OriginalBertTokenizer
) -> Iterator[str]:
    """Yield the lines of a part as the original writes them; layer_numbers maps columns to its -1,
    -2, ...

    Source: google-research/bert extract_features.py `main`.
    """
    tokens = tokenizer.convert_ids_to_tokens(part.input_ids.tolist())
    for number, (start, end) in enumerate(itertools.pairwise(part.offsets)):
        features = []
        for position in range(start, end):
            values = {
                index: part.vectors[name][position].tolist()
                for name, index in layer_numbers.items()
            }
            layers = [
                {"index": index, "values": [round(each, 6) for each in own]}
                for index, own in values.items()
            ]
            features.append({"token": tokens[position], "layers": layers})
        yield json.dumps({"linex_index": part.first_row + number, "features": features}) + "\n"


INDEX_FILE, GOOGLE_FILE = "features.json", "features.jsonl"
# Nothing else is deleted: "features-train.parquet" is the user's.
_PART = re.compile(r"features(-\d{5,}\.(parquet|safetensors)|\.jsonl)")
_LEFTOVER = re.compile(r"\.features(\.json|\.jsonl|-\d{5,}\.(parquet|safetensors))\.\d+\.tmp")


def open_folder(folder: Path, settings: Mapping[str, Any], *, overwrite: bool) -> dict[str, Any]:
    """Take a folder for features of these settings (JSON), and give its index with the parts that
    are there.

    Features of other settings are refused or, with overwrite, deleted.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir {folder} is a file; give a folder")
    _read_index(folder)  # nothing is left beside a folder of somebody else's
    with saving(folder):
        lock_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
    index = _read_index(folder)
    before = index.get("settings", {})
    if index and before != settings and not overwrite:
        names = {
            "model": "another model",
            "tokenizer": "another tokenizer",
            "inputs": "other inputs",
        }
        other = next((name for name in settings if before.get(name) != settings[name]), "settings")
        raise InputError(
            f"output_dir {folder} holds features of "
            f"{names.get(other, f'{other} {before.get(other)}')}; give another "
            "--output_dir, or replace them with --overwrite true"
        )
    parts = [] if overwrite else index.get("parts", [])
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    kept = list(itertools.takewhile(lambda part: sizes.get(part["file"]) == part["bytes"], parts))
    if len(kept) < len(parts):
        damaged = folder / parts[len(kept)]["file"]
        logger.warning("%s is missing or damaged; it and what follows is computed again", damaged)
    kept_files = {part["file"] for part in kept}
    for path in folder.iterdir():
        if (_PART.fullmatch(path.name) and path.name not in kept_files) or _LEFTOVER.fullmatch(
            path.name
        ):
            path.unlink()
    is_complete = bool(kept) and len(kept) == len(parts) and index["is_complete"]
    return {"is_complete": is_complete, "parts": kept, "settings": dict(settings)}


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX_FILE
    if path.is_file():
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path}: not the index of features ({error}); give another --output_dir"
            ) from error
    if folder.is_dir() and any(_LEFTOVER.fullmatch(path.name) is None for path in folder.iterdir()):
        raise InputError(
            f"output_dir {folder} holds files that are no features; give another --output_dir"
        )
    return {}


# All together

BYTES_PER_MB = 1_000_000


class Summary(NamedTuple):
    """Counts of all features in the folder, and what this call computed in so many seconds."""

    num_inputs: int
    num_tokens: int
    num_truncated: int
    computed: int
    seconds: float


def extract_features(args: FeatureArguments) -> Summary:
    """Compute the vectors of all inputs, or those that an earlier call has not come to."""
    check_checkpoint(args.model_name_or_path)
    device = choose_device(use_cpu=args.use_cpu)
    choose_precision(args.precision, use_cpu=device.type == "cpu")
    encoder, tokenizer = open_encoder(args.model_name_or_path, args.max_seq_length)
    columns = choose_columns(args.wanted_layers, args.join, encoder.config.num_hidden_layers)
    folder = Path(args.output_dir)
    num_inputs, inputs_hash = survey_inputs(Path(args.input_file), args.text_columns)
    settings = {
        "model": encoder_hash(encoder),
        "tokenizer": tokenizer.fingerprint,
        "inputs": inputs_hash,
        "layers": {column.name: [column.join, *column.layers] for column in columns},
        **{
            name: getattr(args, name)
            for name in ("pooling", "max_seq_length", "dtype", "precision", "part_mb")
        },
        "format": args.format,
    }
    index = open_folder(folder, settings, overwrite=args.overwrite)
    first_row = sum(part["num_inputs"] for part in index["parts"])
    if first_row:
        logger.info("%s: %d of %d inputs are there already", folder, first_row, num_inputs)
    index |= {
        "model": args.model_name_or_path,
        "input_file": args.input_file,
        "num_inputs": num_inputs,
        "columns": [
            column._asdict() | {"size": column.size(encoder.config.hidden_size)}
            for column in columns
        ],
    }
    start = time.perf_counter()
    if not index["is_complete"]:
        with saving(folder):
            write_json(folder / INDEX_FILE, index)
        make_fast(
            encoder, max(number for column in columns for number in column.layers), args.fast_layers
        )
        if device.type == "cpu":
            keep_freed_memory()
        encoder = cast(PreTrainedModel, encoder.to(device).eval())
        _write_parts(FeatureExtractor(encoder, tokenizer, columns, args), folder, index, first_row)
    num_tokens, num_truncated = (
        sum(part[key] for part in index["parts"]) for key in ("num_tokens", "num_truncated")
    )
    done = Summary(
        num_inputs, num_tokens, num_truncated, num_inputs - first_row, time.perf_counter() - start
    )
    if not index["is_complete"]:
        index |= {"is_complete": True, "num_tokens": num_tokens, "num_truncated": num_truncated}
        index |= {
            "seconds": round(done.seconds, 3),
            "inputs_per_second": round(done.computed / done.seconds, 2),
        }
        with saving(folder):
            write_json(folder / INDEX_FILE, index)
    if num_truncated:
        text = "%d of %d inputs are longer than %d positions and cut there; raise --max_seq_length"
        logger.warning(text, num_truncated, num_inputs, args.max_seq_length)
    return done


def _write_parts(
    extractor: FeatureExtractor, folder: Path, index: dict[str, Any], first_row: int
) -> None:
    """Write the inputs from first_row on, a file per part or one file of the original's lines, and
    enter them in the index.
    """
    args = extractor.args
    inputs = itertools.islice(
        read_inputs(Path(args.input_file), args.text_columns), first_row, None
    )
    encoded = (encode_input(text, extractor.tokenizer, args.max_seq_length) for text in inputs)
    parts = extractor.parts(encoded, args.part_mb * BYTES_PER_MB, first_row)
    with Progress(total=index["num_inputs"], initial=first_row, unit="input", leave=False) as bar:
        if args.format == "google_jsonl":
            index["parts"] = [_write_google_file(extractor, parts, folder / GOOGLE_FILE, bar)]
            return
        write = write_parquet if args.format == "parquet" else write_safetensors
        for part in parts:
            path = folder / f"features-{len(index['parts']):05d}.{args.format}"
            with saving(path), atomic_write(path) as aside:
                write(aside, part, extractor.tokenizer)
            entry = {
                "file": path.name,
                "first_row": part.first_row,
                **part.counts,
                "bytes": path.stat().st_size,
            }
            index["parts"].append(entry)
            with saving(folder):
                write_json(folder / INDEX_FILE, index)
            bar.update(len(part))
            del part  # or it would be held while the next one is computed


def _write_google_file(
    extractor: FeatureExtractor, parts: Iterable[Part], path: Path, bar: Progress
) -> dict[str, Any]:
    """Write all parts into one file, and return its entry in the index."""
    num_states = extractor.encoder.config.num_hidden_layers + 1
    numbers = {column.name: column.layers[0] - num_states for column in extractor.columns}
    sums = Counter[str]()
    with saving(path), atomic_write(path) as aside, aside.open("w", encoding="utf-8") as file:
        for part in parts:
            file.writelines(google_lines(part, numbers, extractor.tokenizer))
            sums.update(part.counts)
            bar.update(len(part))
            del part  # as above
    return {"file": path.name, "first_row": 0, **sums, "bytes": path.stat().st_size}
