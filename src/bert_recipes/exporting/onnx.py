"""Write the graph of a checkpoint and its int8 weights, and call the session as a module."""

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import architecture
from bert_recipes.finetuning.checkpoints import HEADS, kind_of_head, open_complete
from bert_recipes.models.sizes import INPUT_NAMES, inputs_of, reads_left_to_right


PRETRAINING = "pretraining"
# The oldest and the best known checkpoints name the masked-LM head only, and hold both.
_PRETRAINING_CLASSES = ("BertForPreTraining", "BertForMaskedLM")
# Head -> its outputs, and whether they say something of each token.
_OUTPUTS: Mapping[str, Mapping[str, bool]] = {
    PRETRAINING: {"prediction_logits": True, "seq_relationship_logits": False},
    "sequence_classification": {"logits": False},
    "token_classification": {"logits": True},
    "question_answering": {"start_logits": True, "end_logits": True},
    "multiple_choice": {"logits": False},
}
MODEL_FILE = "model.onnx"


class Head(NamedTuple):
    """Describe a head: "pretraining" or a kind of task, its class in transformers, its outputs."""

    name: str
    model_class: str
    outputs: Mapping[str, bool]  # name -> whether it says something of each token

    def input_axes(self) -> tuple[str, ...]:
        """Return the names of the axes of every input."""
        if self.name == "multiple_choice":
            return ("batch", "choices", "sequence")
        return ("batch", "sequence")


def head_of(config: PretrainedConfig, name: str) -> Head:
    """Return the head of a checkpoint by its config.json; `name` is for the message."""
    class_name = architecture(config)
    if class_name in _PRETRAINING_CLASSES:
        return Head(PRETRAINING, "BertForPreTraining", _OUTPUTS[PRETRAINING])
    kind = kind_of_head(config)
    if kind is None:
        raise InputError(
            f"model_name_or_path: {name} is {class_name or 'of no named architecture'}; allowed: "
            f"{', '.join(_PRETRAINING_CLASSES)}, and any model with a head "
            f"{', '.join(HEADS.values())}"
        )
    is_pooled = kind in ("sequence_classification", "multiple_choice")
    if is_pooled and reads_left_to_right(config):
        raise InputError(
            f"model_name_or_path: {name} reads from left to right, and its head the last token; "
            "stock transformers, which is exported, reads the first one (docs/family.md)"
        )
    return Head(kind, f"AutoModel{HEADS[kind]}", _OUTPUTS[kind])


def open_stock(name: str, head: Head) -> PreTrainedModel:
    """Open a checkpoint in the class that transformers has for it, in float32, to evaluate."""
    model_class = getattr(transformers, head.model_class)
    with quiet():  # what matters of the library's report is an error
        model = open_complete(name, model_class)
    return model.eval().requires_grad_(False)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings of torch.export, onnxscript and the quantiser back, about their insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def export_graph(
    model: PreTrainedModel,
    head: Head,
    folder: Path,
    opset: int,
) -> Path:
    """Write model.onnx with free axes, and model.onnx.data where its weights exceed 1.5 GiB."""
    import onnx

    inputs = inputs_of(model)
    axes = head.input_axes()
    # Sizes that differ from each other, a pad, both segments; no value of them stays in the graph.
    sizes = {
        "batch": 2,
        "choices": 3,
        "sequence": min(8, model.config.max_position_embeddings),
    }
    shape = [sizes[axis] for axis in axes]
    example = {name: torch.ones(shape, dtype=torch.int64) for name in INPUT_NAMES}
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
    remove_notes(program.model)
    file = folder / MODEL_FILE
    program.save(str(file))

    with quiet():
        # By path: a model with external data is more than a message of protobuf may hold.
        onnx.checker.check_model(str(file))
    return file


def remove_notes(model: Any) -> None:
    """Remove the exporter's stack traces, which name folders of the machine."""
    graph = model.graph
    entries = [
        model,
        graph,
        *graph.inputs,
        *graph.initializers.values(),
    ]

    for node in graph.all_nodes():
        entries.append(node)
        entries.extend(node.outputs)

    for entry in entries:
        entry.metadata_props.clear()


def size_of(file: Path) -> int:
    """Return the bytes of a model file with its external data."""
    return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))


def quantize(file: Path, folder: Path, *, reduce_range: bool) -> Path:
    """Write model.onnx into a folder: the float32 model with int8 weights, a scale a column.

    Activations become 8-bit numbers at run time, with one scale a call.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(str(file))
    # The exporter's shapes name its own symbols; the quantiser, which infers them, stops at others.
    del model.graph.value_info[:]
    with quiet(), tempfile.TemporaryDirectory() as work_dir:
        plain = Path(work_dir) / "plain.onnx"
        folded = Path(work_dir) / "folded.onnx"
        onnx.save(model, str(plain), save_as_external_data=True)
        # Weights that the graph transposes at run time are stored so: the output layer of
        # pre-training shares the embeddings, and would stay in float32.
        quant_pre_process(
            plain,
            folded,
            skip_symbolic_shape=True,
            skip_onnx_shape=True,
            save_as_external_data=True,
        )
        quantize_dynamic(
            folded,
            folder / MODEL_FILE,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
        )
    return folder / MODEL_FILE


class OnnxModel(nn.Module):
    """Call a session of onnxruntime on the CPU as the stock model is called."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def forward(self, **batch: torch.Tensor) -> ModelOutput:
        """Return the outputs by name, float32."""
        feeds = {name: batch[name].numpy() for name in self._inputs}
        outputs = ModelOutput()
        for name, array in zip(self._outputs, self._session.run(None, feeds), strict=True):
            outputs[name] = torch.from_numpy(array)
        return outputs
