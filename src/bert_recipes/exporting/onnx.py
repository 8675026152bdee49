"""The graph of a checkpoint, its int8 weights, and the session as a module.

Legend: B batch, C choices or classes, S positions, V vocabulary.
"""

import inspect
import logging
import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import architecture
from bert_recipes.finetuning.checkpoints import open_complete
from bert_recipes.finetuning.run import KIND_CLASSES


PRETRAINING = "pretraining"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The oldest and the best known checkpoints name the masked-LM head only, and hold both.
_PRETRAINING_CLASSES = ("BertForPreTraining", "BertForMaskedLM")
# Outputs of each head -> their axes after the batch's; "sequence" where there is something for each
# token.
_OUTPUTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    PRETRAINING: {
        "prediction_logits": ("sequence", "vocabulary"),
        "seq_relationship_logits": ("classes",),
    },
    "sequence_classification": {"logits": ("classes",)},
    "token_classification": {"logits": ("sequence", "classes")},
    "question_answering": {"start_logits": ("sequence",), "end_logits": ("sequence",)},
    "multiple_choice": {"logits": ("choices",)},
}
# protobuf writes no file of more than 2 GiB; weights beyond this lie in a file of their own beside
# the graph.
EXTERNAL_DATA_BYTES = 1_900_000_000
MODEL_FILE = "model.onnx"


class Head(NamedTuple):
    """A head by what it gives: "pretraining" or a kind of task, its class in transformers, its
    outputs and their axes.
    """

    name: str
    model_class: str
    outputs: Mapping[str, tuple[str, ...]]

    def input_axes(self) -> tuple[str, ...]:
        """Names of the axes of every input."""
        return (
            ("batch", "choices", "sequence")
            if self.name == "multiple_choice"
            else ("batch", "sequence")
        )

    def is_by_token(self, output: str) -> bool:
        """Whether an output says something of each token, (B, S) or (B, S, ...)."""
        return self.outputs[output][:1] == ("sequence",)


def head_of(config: PretrainedConfig, name: str) -> Head:
    """The head of a checkpoint, by its config.json; `name` is for the message."""
    built = architecture(config)
    if built in _PRETRAINING_CLASSES:
        return Head(PRETRAINING, "BertForPreTraining", _OUTPUTS[PRETRAINING])
    for kind, kind_class in KIND_CLASSES.items():
        if built.endswith(kind_class.auto_class.removeprefix("AutoModel")):
            return Head(kind, kind_class.auto_class, _OUTPUTS[kind])
    heads = ", ".join(kind.auto_class.removeprefix("AutoModel") for kind in KIND_CLASSES.values())
    raise InputError(
        f"model_name_or_path: {name} is {built or 'of no named architecture'}; allowed: "
        f"{', '.join(_PRETRAINING_CLASSES)}, and any model with a head {heads}"
    )


def open_stock(name: str, head: Head) -> PreTrainedModel:
    """Open a checkpoint in the class that transformers has for it, plain modules: float32, in
    evaluation mode.
    """
    with quiet():  # what matters of the library's report is an error
        model = open_complete(
            name, getattr(transformers, head.model_class), attn_implementation="sdpa"
        )
    return model.eval().requires_grad_(False)


def inputs_of(model: nn.Module) -> tuple[str, ...]:
    """The inputs that a model takes, in the order in which it takes them; DistilBERT has no
    token_type_ids.
    """
    return tuple(name for name in inspect.signature(model.forward).parameters if name in INPUTS)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and the log of torch.export, onnxscript and the quantiser: they are
    about their own insides.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def export_graph(model: PreTrainedModel, head: Head, folder: Path, opset: int) -> Path:
    """Write model.onnx with free axes, and model.onnx.data where the weights are too large for one
    file.
    """
    import onnx

    inputs, axes = inputs_of(model), head.input_axes()
    # Sizes that differ from each other, a pad, both segments; no value of them stays in the graph.
    sizes = {"batch": 2, "choices": 3, "sequence": min(8, model.config.max_position_embeddings)}
    example = {
        name: torch.ones([sizes[axis] for axis in axes], dtype=torch.int64) for name in INPUTS
    }
    example["attention_mask"][..., -1] = 0
    example["token_type_ids"][..., :3] = 0
    returned_dicts = model.config.return_dict
    model.config.return_dict = False  # outputs as a tuple, in the order of the names
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                model,
                kwargs={name: example[name] for name in inputs},
                dynamic_shapes={name: dict(enumerate(axes)) for name in inputs},
                input_names=list(inputs),
                output_names=list(head.outputs),
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
    finally:
        model.config.return_dict = returned_dicts
    assert program is not None  # it is None for other ways of exporting only
    # The exporter notes stack traces on each node, with the folders of the machine at hand.
    graph = program.model.graph
    values = [value for node in graph.all_nodes() for value in node.outputs]
    parts: list[Any] = [
        program.model,
        graph,
        *graph.all_nodes(),
        *values,
        *graph.inputs,
        *graph.initializers.values(),
    ]
    for part in parts:
        part.metadata_props.clear()
    file = folder / MODEL_FILE
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    program.save(str(file), external_data=size > EXTERNAL_DATA_BYTES)
    with quiet():
        # By path: a model with external data is more than a message of protobuf may hold.
        onnx.checker.check_model(str(file))
    return file


def describe_graph(file: Path) -> dict[str, Any]:
    """What a reader of the file has to know: versions, and the axes of inputs and outputs."""
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    found: dict[str, Any] = {
        "opset": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    }
    found["ir_version"] = model.ir_version
    for name, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        shapes = {value.name: value.type.tensor_type.shape.dim for value in values}
        found[name] = {
            key: [axis.dim_param or axis.dim_value for axis in shape]
            for key, shape in shapes.items()
        }
    return found


def size_of(file: Path) -> int:
    """Bytes of a model file with its external data."""
    return sum(
        path.stat().st_size
        for path in (file, file.with_name(f"{file.name}.data"))
        if path.is_file()
    )


class Int8Settings(NamedTuple):
    """How weights become 8-bit numbers; activations do at run time, one scale per call."""

    per_channel: bool  # a scale for each column of a weight, not one for all of it
    embeddings: bool  # the embeddings too, not the products alone
    reduce_range: bool = False  # 7 bits

    @property
    def name(self) -> str:
        """For tables."""
        scale = "a scale a column" if self.per_channel else "one scale a weight"
        return f"{scale}, {'with' if self.embeddings else 'without'} embeddings"

    @property
    def operators(self) -> list[str]:
        """Operators whose weights become int8."""
        return ["MatMul", "Gather"] if self.embeddings else ["MatMul"]


def quantize(file: Path, folder: Path, settings: Int8Settings) -> Path:
    """Write the float32 model with int8 weights as model.onnx into a folder."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder.mkdir(exist_ok=True)
    target = folder / MODEL_FILE
    model = onnx.load(str(file))
    # The shapes that the exporter notes name its own symbols; the quantiser infers them again and
    # stops where they differ.
    del model.graph.value_info[:]
    _store_transposed(model.graph)
    with quiet(), tempfile.TemporaryDirectory(dir=folder) as work_dir:
        plain = Path(work_dir) / MODEL_FILE
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


def _store_transposed(graph: Any) -> None:
    """Store weights transposed that the graph transposes at run time, so that their products are of
    int8 like all others.

    It is the output layer of pre-training, which shares the word embeddings and gets int8 numbers
    of its own.
    """
    from onnx import numpy_helper

    weights = {weight.name: weight for weight in graph.initializer}
    for node in [
        node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights
    ]:
        axes = next((list(each.ints) for each in node.attribute if each.name == "perm"), None)
        transposed = np.ascontiguousarray(
            np.transpose(numpy_helper.to_array(weights[node.input[0]]), axes)
        )
        graph.initializer.append(numpy_helper.from_array(transposed, node.output[0]))
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for weight in weights.values():
        if weight.name not in read:
            graph.initializer.remove(weight)


def describe_weights(file: Path, settings: Int8Settings) -> dict[str, Any]:
    """What became int8 and what did not: `float_products` have two activations and no weight,
    `float_operators` read a float matrix.
    """
    import onnx

    model = onnx.load(str(file))
    kinds = {
        onnx.TensorProto.INT8: "int8",
        onnx.TensorProto.UINT8: "int8",
        onnx.TensorProto.FLOAT: "float",
    }
    weights = {each.name: each for each in model.graph.initializer if each.data_type in kinds}
    numbers, left, products = Counter[str](), Counter[str](), 0
    for weight in weights.values():
        numbers[kinds[weight.data_type]] += math.prod(weight.dims)
    matrices = {
        name
        for name, each in weights.items()
        if kinds[each.data_type] == "float" and len(each.dims) > 1
    }
    for node in model.graph.node:
        if matrices.intersection(node.input):
            left[node.op_type] += 1
        else:  # Attention: scores and contexts
            products += {"MatMul": 1, "Gemm": 1, "Attention": 2}.get(node.op_type, 0)
    return {
        **settings._asdict(),
        "operators": settings.operators,
        "int8_weights": numbers["int8"],
        "float_weights": numbers["float"],
        "float_operators": dict(left),
        "float_products": products,
    }


class OnnxModel(nn.Module):
    """A session of onnxruntime on the CPU, called as the stock model is."""

    def __init__(self, file: Path, threads: int) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> ModelOutput:
        """Outputs by name, float32."""
        batch: Any = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
        }
        arrays = self._session.run(
            self._outputs, {name: batch[name].numpy() for name in self._inputs}
        )
        return ModelOutput(
            {
                name: torch.from_numpy(array)
                for name, array in zip(self._outputs, arrays, strict=True)
            }
        )
