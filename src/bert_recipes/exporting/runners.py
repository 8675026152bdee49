"""A checkpoint and an ONNX session behind one call: a batch in, named outputs back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel

from bert_recipes.exporting.heads import Head, inputs_of


Batch = Mapping[str, torch.Tensor]
Output = dict[str, torch.Tensor]


class Runner(Protocol):
    """Runs a model on the CPU."""

    def __call__(self, batch: Batch) -> Output:
        """Outputs of the head by name, float32.

        Args:
            batch: int64 input_ids, attention_mask, token_type_ids; what the model does not take is passed by.
        """
        ...


class TorchRunner:
    """A model of this project with its fast layers, or any other.

    Args:
        model: On the CPU.
        head: Names of its outputs.
        precision: "fp32" or "bf16", as recipes run it.
    """

    def __init__(self, model: PreTrainedModel, head: Head, precision: str = "fp32") -> None:
        self._model = model.eval()
        self._inputs = inputs_of(model)
        self._outputs = tuple(head.outputs)
        self._uses_bf16 = precision == "bf16"

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Output:
        """See `Runner`."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._uses_bf16):
            output = self._model(**{name: batch[name] for name in self._inputs})
        return {name: output[name].float() for name in self._outputs}


class OnnxRunner:
    """A session of onnxruntime on the CPU.

    Args:
        file: model.onnx.
        threads: Of the session.
    """

    def __init__(self, file: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def __call__(self, batch: Batch) -> Output:
        """See `Runner`."""
        arrays = self._session.run(self._outputs, {name: batch[name].numpy() for name in self._inputs})
        return {name: torch.from_numpy(array) for name, array in zip(self._outputs, arrays, strict=True)}
