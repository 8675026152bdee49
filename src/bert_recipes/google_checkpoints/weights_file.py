"""model.safetensors, one tensor at a time: a library call would hold the whole model.

A file is the length of its header (uint64), the header (JSON: name -> type, shape, place), and the tensors' bytes.
Source: safetensors, "Format" in its README; `safetensors.torch.save_file` writes the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from bert_recipes.errors import InputError
from bert_recipes.google_checkpoints.configuration import read_json_mapping


WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_READ = (torch.float32, torch.float16, torch.bfloat16)


def write_weights(path: Path, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray]) -> None:
    """Write float32 tensors.

    Args:
        path: The file.
        shapes: Name -> shape.
        read: Name -> contiguous float32 of that shape; called once a name, in the order of the file.

    Raises:
        OSError: It cannot be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in sorted(shapes):
        end = place + 4 * math.prod(shapes[name])
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(shapes):
            values = read(name)
            if values.shape != shapes[name] or values.dtype != np.float32 or not values.flags.c_contiguous:
                raise ValueError(f"{name}: {values.dtype} {values.shape} is not what was announced")
            file.write(values.astype("<f4", copy=False).data)


class WeightsReader:
    """The tensors of a folder in Hub form, in one file or in several; only safetensors are opened.

    Args:
        folder: The folder.

    Attributes:
        shapes: Name -> shape.

    Raises:
        InputError: No weights as safetensors, or an index that names files elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _find_files(folder)
        self._homes: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> WeightsReader:
        with ExitStack() as stack:
            for path in self._files:
                try:
                    file = stack.enter_context(safe_open(path, framework="pt"))
                except SafetensorError as error:
                    raise InputError(f"{path}: no safetensors file, or damaged ({error}); copy it again") from error
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self._homes[name] = file
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self, name: str) -> np.ndarray:
        """Read a tensor as float32, which holds the values of smaller types exactly."""
        tensor = self._homes[name].get_tensor(name)
        if tensor.dtype not in _READ:
            allowed = ", ".join(str(kind).removeprefix("torch.") for kind in _READ)
            raise InputError(
                f"{self._folder}: {name} is {tensor.dtype}; weights of these types are converted: {allowed}"
            )
        return tensor.float().numpy()


def _find_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    index_file = folder / _INDEX_FILE
    if not index_file.is_file():
        raise InputError(f"{folder}: no {WEIGHTS_FILE}; no other weights are opened")
    files = read_json_mapping(index_file).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{index_file}: no weight_map in it")
    names = sorted({str(name) for name in files.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(f"{index_file}: {name!r:.100} is no safetensors file beside it")
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing; {index_file.name} names it")
    return [folder / name for name in names]
