"""A stock model as an ONNX file, by torch.onnx: any batch, any length."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from bert_recipes.exporting.heads import Head, inputs_of


# protobuf writes no file of more than 2 GiB; weights beyond this lie in a file of their own beside the graph.
EXTERNAL_DATA_BYTES = 1_900_000_000
MODEL_FILE = "model.onnx"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and the log of torch.export, onnxscript and the quantiser: they are about their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def export_graph(model: PreTrainedModel, head: Head, folder: Path, opset: int) -> Path:
    """Write model.onnx, its axes "batch", "sequence" (and "choices") of any size.

    Args:
        model: Of `open_stock`.
        head: Names of inputs and outputs.
        folder: Existing; the file goes there, and model.onnx.data where the weights are too large for one file.
        opset: Version of the operators.

    Returns:
        The file.
    """
    inputs = inputs_of(model)
    axes = dict(enumerate(head.input_axes()))
    returned_dicts = model.config.return_dict
    model.config.return_dict = False  # outputs as a tuple, in the order of the names
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                model,
                kwargs=_example(model, head, inputs),
                dynamic_shapes={name: dict(axes) for name in inputs},
                input_names=list(inputs),
                output_names=list(head.outputs),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    finally:
        model.config.return_dict = returned_dicts
    assert program is not None  # it is None for other ways of exporting only
    _forget_places(program.model)
    file = folder / MODEL_FILE
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    program.save(str(file), external_data=size > EXTERNAL_DATA_BYTES)
    with quiet():
        _check(file)
    return file


def _example(model: PreTrainedModel, head: Head, inputs: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Inputs to trace with: sizes that differ from each other, a pad, both segments; no value of them stays in the graph."""
    sizes = {"batch": 2, "choices": 3, "sequence": min(8, model.config.max_position_embeddings)}
    shape = [sizes[axis] for axis in head.input_axes()]
    values = {
        "input_ids": torch.ones(shape, dtype=torch.int64),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
    }
    values["attention_mask"] = torch.ones(shape, dtype=torch.int64)
    values["attention_mask"][..., -1] = 0
    values["token_type_ids"][..., 3:] = 1
    return {name: values[name] for name in inputs}


def _forget_places(model: Any) -> None:
    """Take out what the exporter notes on each node: stack traces, with the folders of the machine at hand.

    Args:
        model: `onnx_ir.Model`.
    """
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def _check(file: Path) -> None:
    import onnx

    # By path: a model with external data is more than a message of protobuf may hold.
    onnx.checker.check_model(str(file))


def describe_graph(file: Path) -> dict[str, Any]:
    """What a reader of the file has to know: versions, and the axes of inputs and outputs.

    Args:
        file: model.onnx; its weights are not read.
    """
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    return {
        "opset": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "ir_version": model.ir_version,
        "inputs": {value.name: _axes(value) for value in model.graph.input},
        "outputs": {value.name: _axes(value) for value in model.graph.output},
    }


def _axes(value: Any) -> list[str | int]:
    return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]


def size_of(file: Path) -> int:
    """Bytes of a model file with its external data."""
    return sum(path.stat().st_size for path in (file, file.with_name(f"{file.name}.data")) if path.is_file())
