"""Parts on disk: Parquet, safetensors, or the lines of google-research/bert extract_features.py.

Each Parquet and safetensors file says in its own metadata what it holds, so that an extraction can go on behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_recipes.features.extraction import Part


METADATA = "bert_recipes.features"
Pieces = Callable[[list[int]], list[str]]


@dataclass(frozen=True)
class PartRecord:
    """What a part's file says of itself.

    Attributes:
        key: SHA-256 (hex) of what the vectors follow from.
        first_row, num_inputs, num_tokens, num_truncated: Of the part.
    """

    key: str
    first_row: int
    num_inputs: int
    num_tokens: int
    num_truncated: int

    @classmethod
    def of(cls, part: Part, key: str) -> PartRecord:
        """Describe a part."""
        return cls(key, part.first_row, len(part), part.num_tokens, int(part.is_truncated.sum()))


def write_parquet(path: Path, part: Part, record: PartRecord, pieces: Pieces) -> None:
    """Write one row an input: `row`, `truncated`, `tokens`, `token_type_ids` and the columns of vectors.

    Args:
        path: New file.
        part: Its vectors become lists of vectors (one a token) or vectors (one an input), of fixed size.
        record: Goes into the file's metadata.
        pieces: Ids to pieces.
    """
    offsets = pa.array(part.offsets.astype(np.int32))
    arrays: dict[str, Any] = {
        "row": pa.array(np.arange(part.first_row, part.first_row + len(part))),
        "truncated": pa.array(part.is_truncated),
        "tokens": pa.ListArray.from_arrays(offsets, pa.array(pieces(part.input_ids.tolist()), pa.string())),
        "token_type_ids": pa.ListArray.from_arrays(offsets, pa.array(part.token_type_ids)),
    }
    for name, vectors in part.vectors.items():
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        arrays[name] = pa.ListArray.from_arrays(offsets, values) if part.has_token_vectors else values
    table = pa.table(arrays).replace_schema_metadata({METADATA: json.dumps(asdict(record))})
    # Vectors repeat nothing: a dictionary of them costs time and gains nothing.
    pq.write_table(table, path, use_dictionary=False)


def write_safetensors(path: Path, part: Part, record: PartRecord, pieces: Pieces) -> None:
    """Write the tensors of a part: `offsets`, `input_ids`, `token_type_ids`, `truncated` and the columns of vectors.

    Args:
        path: New file.
        part: Of input k the tokens, and the rows of (T, D) vectors, are those from offsets[k] to offsets[k + 1].
        record: Goes into the file's metadata.
        pieces: Not used: ids say the same.
    """
    tensors = {
        "offsets": part.offsets,
        "input_ids": part.input_ids,
        "token_type_ids": part.token_type_ids,
        "truncated": part.is_truncated,
        **part.vectors,
    }
    save_file(tensors, path, metadata={METADATA: json.dumps(asdict(record))})


def google_lines(part: Part, layer_numbers: Mapping[str, int], pieces: Pieces) -> Iterator[str]:
    """Yield the lines of a part as the original writes them.

    Args:
        part: With a vector a token.
        layer_numbers: Column's name -> the layer as the original counts it, -1 for the last.
        pieces: Ids to pieces.

    Yields:
        {"linex_index": row, "features": [{"token": piece, "layers": [{"index": -1, "values": [...]}, ...]}, ...]}, values
        rounded to six digits.

    Source: google-research/bert extract_features.py `main`.
    """
    tokens = pieces(part.input_ids.tolist())
    for number, (start, end) in enumerate(zip(part.offsets[:-1], part.offsets[1:], strict=True)):
        features = []
        for place in range(start, end):
            layers = [
                {"index": index, "values": [round(value, 6) for value in part.vectors[name][place].tolist()]}
                for name, index in layer_numbers.items()
            ]
            features.append({"token": tokens[place], "layers": layers})
        yield json.dumps({"linex_index": part.first_row + number, "features": features})


def read_record(path: Path) -> PartRecord | None:
    """What a Parquet or safetensors file of a part says of itself; None for one that is damaged or is no such file."""
    try:
        if path.suffix == ".parquet":
            text = (pq.read_schema(path).metadata or {})[METADATA.encode()].decode()
        else:
            with safe_open(path, "np") as file:
                text = (file.metadata() or {})[METADATA]
        return PartRecord(**json.loads(text))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException, SafetensorError):
        return None
