"""The graph takes any batch and any length, and says what the checkpoint says in stock's class."""

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForSequenceClassification

from bert_recipes.exporting.onnx import OnnxModel, head_of, open_stock, quantize, size_of
from bert_recipes.finetuning.arguments import read_model_config
from bert_recipes.tokenization.loading import load_tokenizer


onnx = pytest.importorskip("onnx", reason="onnx is not installed (the extra `export`)")

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HEADS = {
    "pretraining": {
        "prediction_logits": ["batch", "sequence", 112],
        "seq_relationship_logits": ["batch", 2],
    },
    "sequence_classification": {"logits": ["batch", 3]},
    "token_classification": {"logits": ["batch", "sequence", 3]},
    "question_answering": {
        "start_logits": ["batch", "sequence"],
        "end_logits": ["batch", "sequence"],
    },
    "multiple_choice": {"logits": ["batch", "choices"]},
}


SLOW_HEADS = ("token_classification", "question_answering", "sequence_classification")
HEAD_PARAMETERS = [
    pytest.param(head, marks=[pytest.mark.slow] if head in SLOW_HEADS else []) for head in HEADS
]


def make_batch(shape, vocab_size=41, seed=0):
    """Random ids of random lengths, pads behind them, both segments."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocab_size, shape, generator=generator)
    lengths = torch.randint(1, shape[-1] + 1, shape[:-1], generator=generator)
    positions = torch.arange(shape[-1]).expand(shape)
    mask = (positions < lengths[..., None]).long()
    types = ((positions > lengths[..., None] // 2) & (mask == 1)).long()
    return {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "token_type_ids": types,
    }


def head_and_model(run):
    """The head of a run, and the checkpoint in stock's class."""
    head = head_of(read_model_config(str(run)), str(run))
    return head, open_stock(str(run), head)


def check_outputs(
    head,
    expected,
    output,
    mask,
):
    """Outputs are the same at real tokens."""
    for name in head.outputs:
        difference = (expected[name] - output[name][:, : expected[name].shape[1]]).abs()
        difference = difference[mask.bool()] if head.outputs[name] else difference
        assert difference.max() < 1e-5


@pytest.mark.parametrize("head", HEAD_PARAMETERS)
def test_names_and_axes_are_the_hubs_and_no_folder_of_this_machine_is_named(exported, head):
    file = exported(head)[0] / "model.onnx"
    graph = onnx.load(str(file)).graph
    axes = {}
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        axes[value.name] = [dim.dim_param or dim.dim_value for dim in dims]

    input_axes = ["batch", "sequence"]
    if head == "multiple_choice":
        input_axes.insert(1, "choices")
    assert axes == {**dict.fromkeys(INPUTS, input_axes), **HEADS[head]}
    assert [value.name for value in graph.input] == list(INPUTS)
    content = file.read_bytes()

    for text in ("site-packages", transformers.__file__.rpartition("/")[0], str(file.parent)):
        assert text.encode() not in content


@pytest.mark.parametrize("head", HEAD_PARAMETERS)
def test_any_batch_and_any_length_give_the_outputs_of_the_checkpoint(exported, runs, head):
    """From one token to the last position."""
    session = OnnxModel(exported(head)[0] / "model.onnx")
    run_head, stock = head_and_model(runs(head))
    most = stock.config.max_position_embeddings
    shapes = [(1, 1), (1, most), (5, most), (3, 17), (33, 5), (2, 2), (2, 3)]
    for number, shape in enumerate(shapes):
        if head == "multiple_choice":
            shape = (shape[0], 1 + number % 4, shape[1])
        batch = make_batch(shape, seed=number)
        output = session(**batch)
        assert all(output[name].shape[0] == shape[0] for name in run_head.outputs)
        check_outputs(run_head, stock(**batch), output, batch["attention_mask"])


@pytest.mark.parametrize("head", HEAD_PARAMETERS)
def test_what_stands_at_pads_changes_nothing(exported, runs, head):
    session = OnnxModel(exported(head)[0] / "model.onnx")
    run_head = head_of(read_model_config(str(runs(head))), str(runs(head)))
    batch = make_batch((4, 3, 9) if head == "multiple_choice" else (4, 9))
    mask = batch["attention_mask"]
    expected = session(**batch)
    assert (mask == 0).any()
    batch["input_ids"] = torch.where(mask == 0, 7, batch["input_ids"])
    check_outputs(run_head, expected, session(**batch), mask)
    padded = {name: torch.nn.functional.pad(values, (0, 6)) for name, values in batch.items()}
    check_outputs(run_head, expected, session(**padded), mask)


DEBERTA = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "type_vocab_size": 0,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "initializer_range": 0.5,
}
DISTILBERT = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "settings", "inputs"),
    [
        # Without segments, and computed without sdpa.
        ("deberta-v2", DEBERTA, ["input_ids", "attention_mask"]),
        ("distilbert", DISTILBERT, ["input_ids", "attention_mask"]),
    ],
)
def test_models_of_other_families_are_exported_with_their_own_inputs(
    tiny_checkpoint, tmp_path, export, model_type, settings, inputs
):
    tokenizer = load_tokenizer(tiny_checkpoint)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    config = AutoConfig.for_model(model_type, num_labels=2, **sizes, **settings)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    folder, report = export(tmp_path / "model")
    graph = onnx.load(str(folder / "model.onnx")).graph
    assert [value.name for value in graph.input] == inputs
    assert report["largest_difference"] < 1e-5


# On processors without VNNI sums of products of 8 bits are cut off at 16 bits, which 7 bits avoid.
@pytest.mark.parametrize(
    ("reduce_range", "largest_weight", "error"), [(False, 127, 0.3), (True, 64, 0.1)]
)
def test_all_matrices_of_pretraining_become_int8_also_from_a_file_of_their_own(
    exported, tmp_path, reduce_range, largest_weight, error
):
    """The output layer too, which shares its weights with the embeddings. Every column of a product
    has a scale of its own.
    """
    file = tmp_path / "plain" / "model.onnx"
    file.parent.mkdir()
    model = onnx.load(str(exported("pretraining")[0] / "model.onnx"))
    settings = {
        "save_as_external_data": True,
        "location": "model.onnx.data",
        "size_threshold": 0,
    }
    onnx.save(model, str(file), **settings)
    assert size_of(file) > 2 * file.stat().st_size
    (tmp_path / "int8").mkdir()
    int8 = quantize(file, tmp_path / "int8", reduce_range=reduce_range)
    assert list(int8.parent.iterdir()) == [int8]

    graph = onnx.load(str(int8)).graph
    weights = {}
    for weight in graph.initializer:
        assert len(weight.dims) < 2 or weight.data_type != onnx.TensorProto.FLOAT, weight.name
        weights[weight.name] = onnx.numpy_helper.to_array(weight)
    products = [node.input[1] for node in graph.node if node.op_type == "MatMulInteger"]
    assert products
    for name in products:
        assert abs(weights[name].astype(int)).max() == largest_weight
        scales = weights[name.replace("_quantized", "_scale")]
        assert scales.shape == weights[name].shape[1:]

    batch = make_batch((3, 9))
    expected = OnnxModel(exported("pretraining")[0] / "model.onnx")(**batch)
    output = OnnxModel(int8)(**batch)
    difference = (expected.prediction_logits - output.prediction_logits).square().mean().sqrt()
    assert 1e-4 < difference < error * expected.prediction_logits.std()
