"""An ONNX model with weights of 8 bits: dynamic quantisation by onnxruntime."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_recipes.exporting.graphs import EXTERNAL_DATA_BYTES, MODEL_FILE, quiet, size_of


@dataclass(frozen=True)
class Int8Settings:
    """How weights become 8-bit numbers; activations do at run time, a scale a call.

    Attributes:
        per_channel: A scale for each column of a weight, not one for the whole.
        embeddings: The embeddings too, not the products alone.
        reduce_range: 7 bits.
    """

    per_channel: bool
    embeddings: bool
    reduce_range: bool = False

    @property
    def name(self) -> str:
        """For folders and tables."""
        scale = "a scale a column" if self.per_channel else "one scale a weight"
        return f"{scale}, {'with' if self.embeddings else 'without'} embeddings"

    @property
    def operators(self) -> list[str]:
        """Operators whose weights become int8."""
        return ["MatMul", "Gather"] if self.embeddings else ["MatMul"]


def list_candidates(per_channel: bool | None, embeddings: bool | None, *, reduce_range: bool) -> list[Int8Settings]:
    """Every choice that is left open."""
    return [
        Int8Settings(channel, words, reduce_range)
        for words in ((True, False) if embeddings is None else (embeddings,))
        for channel in ((False, True) if per_channel is None else (per_channel,))
    ]


def quantize(file: Path, folder: Path, settings: Int8Settings) -> Path:
    """Write model.onnx with int8 weights.

    Args:
        file: The float32 model.
        folder: Existing; gets the file.
        settings: How.

    Returns:
        The file.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = folder / MODEL_FILE
    model = onnx.load(str(file))
    # The shapes that the exporter notes name its own symbols; the quantiser infers them anew and stops where they differ.
    del model.graph.value_info[:]
    _store_turned(model.graph)
    with quiet(), tempfile.TemporaryDirectory(dir=folder) as place:
        plain = Path(place) / MODEL_FILE
        onnx.save(model, str(plain), save_as_external_data=size_of(file) > EXTERNAL_DATA_BYTES)
        del model
        quantize_dynamic(
            plain,
            target,
            op_types_to_quantize=settings.operators,
            per_channel=settings.per_channel,
            reduce_range=settings.reduce_range,
            weight_type=QuantType.QInt8,
            use_external_data_format=size_of(plain) > EXTERNAL_DATA_BYTES,
        )
    return target


def _store_turned(graph: Any) -> None:
    """Store weights turned that the graph turns at run time, so that their products are of int8 like all others.

    That is the output layer of pre-training, which shares the word embeddings: it gets int8 numbers of its own.

    Args:
        graph: `onnx.GraphProto`, changed in place.
    """
    import numpy as np
    from onnx import numpy_helper

    weights = {weight.name: weight for weight in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        axes = next((list(each.ints) for each in node.attribute if each.name == "perm"), None)
        turned = np.ascontiguousarray(np.transpose(numpy_helper.to_array(weights[node.input[0]]), axes))
        graph.initializer.append(numpy_helper.from_array(turned, node.output[0]))
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for weight in weights.values():
        if weight.name not in read:
            graph.initializer.remove(weight)


def describe_weights(file: Path, settings: Int8Settings) -> dict[str, Any]:
    """What became int8 and what did not.

    Returns:
        The settings; numbers and bytes of int8 and float weights; `float_operators`, operators that still read a float
        weight of more than one axis; `float_products`, number of products of two activations, which have no weight.
    """
    import onnx

    model = onnx.load(str(file))
    sizes = {weight.name: weight for weight in model.graph.initializer}
    numbers: Counter[str] = Counter()
    for weight in sizes.values():
        count = 1
        for length in weight.dims:
            count *= length
        kind = "int8" if weight.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8) else "float"
        if weight.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT):
            numbers[kind] += count
    left: Counter[str] = Counter()
    products = 0
    for node in model.graph.node:
        read = [sizes[name] for name in node.input if name in sizes]
        if any(weight.data_type == onnx.TensorProto.FLOAT and len(weight.dims) > 1 for weight in read):
            left[node.op_type] += 1
        elif node.op_type in ("MatMul", "Gemm"):
            products += 1
        elif node.op_type == "Attention":  # scores and contexts
            products += 2
    return {
        **asdict(settings),
        "operators": settings.operators,
        "int8_weights": numbers["int8"],
        "float_weights": numbers["float"],
        "float_operators": dict(left),
        "float_products": products,
    }
