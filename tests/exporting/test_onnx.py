"""The graph takes any batch and any length, and says what the checkpoint says in stock's class and
in ours.
"""

import pytest
import torch
import transformers
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from bert_recipes.exporting import onnx as graphs
from bert_recipes.exporting.export import Side
from bert_recipes.exporting.onnx import _OUTPUTS, Head, OnnxModel, head_of, open_stock
from bert_recipes.finetuning.arguments import read_model_config
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.tokenization.loading import load_tokenizer


HEADS = {
    "pretraining": {
        "prediction_logits": ["batch", "sequence", 120],
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


def make_batch(shape, vocab_size=100, seed=0):
    """Random ids of random lengths, pads behind them, both segments."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocab_size, shape, generator=generator)
    lengths = torch.randint(1, shape[-1] + 1, shape[:-1], generator=generator)
    positions = torch.arange(shape[-1]).expand(shape)
    mask = (positions < lengths[..., None]).long()
    types = ((positions > lengths[..., None] // 2) & (mask == 1)).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


def stock_side(run, head):
    """The checkpoint in stock's class, and its head."""
    found = head_of(read_model_config(str(run)), str(run))
    assert found.name == head
    return Side(open_stock(str(run), found), found)


def session_of(folder, head):
    """The exported model, its outputs as `Side` gives them."""
    return Side(OnnxModel(folder / "model.onnx", 1), head)


def largest_difference(head, expected, output, batch):
    side = Side(torch.nn.Identity(), head)
    side.compare(expected, output, batch["attention_mask"].bool())
    return side.largest


@pytest.mark.parametrize("head", HEADS)
def test_names_and_axes_are_the_hubs_and_no_folder_of_this_machine_is_named(exported, head):
    folder, report = exported(head)
    axes = ["batch", "choices", "sequence"] if head == "multiple_choice" else ["batch", "sequence"]
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    assert report["inputs"] == dict.fromkeys(inputs, axes)
    assert list(report["inputs"]) == list(inputs)
    assert report["outputs"] == HEADS[head]
    assert report["opset"] == {"ai.onnx": 20}
    content = (folder / "model.onnx").read_bytes()
    for text in ("site-packages", transformers.__file__.rpartition("/")[0], str(folder)):
        assert text.encode() not in content


@pytest.mark.parametrize("head", HEADS)
def test_any_batch_and_any_length_give_the_outputs_of_the_checkpoint(exported, runs, head):
    """From one token to the last position, in stock's class and in ours."""
    folder, _ = exported(head)
    stock = stock_side(runs(head), head)
    found, most = stock.head, stock.model.config.max_position_embeddings
    session = session_of(folder, found)
    plain = stock_side(runs(head), head).model
    plain = BertForPreTraining.from_pretrained(runs(head)) if head == "pretraining" else plain
    enable_packed_layers(plain, "plain")
    ours = Side(plain, found)
    assert most == (512 if head == "pretraining" else 128)
    shapes = [(1, 1), (1, 2), (1, most), (5, most), (3, 17), (8, 8), (33, 5)]
    shapes += [(2, length) for length in (*range(1, 65), most // 2, most - 1)]
    for number, shape in enumerate(shapes):
        if head == "multiple_choice":
            shape = (shape[0], 1 + number % 4, shape[1])
        batch = make_batch(shape, seed=number)
        output = session(**batch)
        assert all(output[name].shape[0] == shape[0] for name in found.outputs)
        assert largest_difference(found, stock(**batch), output, batch) < 1e-5, shape
        if number < 10:
            assert largest_difference(found, ours(**batch), output, batch) < 1e-5, shape


@pytest.mark.parametrize("head", HEADS)
def test_what_stands_at_pads_changes_nothing(exported, head):
    folder, _ = exported(head)
    found = Head(head, "", _OUTPUTS[head])
    session = session_of(folder, found)
    batch = make_batch((4, 3, 9) if head == "multiple_choice" else (4, 9))
    expected = session(**batch)
    pads = batch["attention_mask"] == 0
    assert pads.any()
    other = batch | {"input_ids": torch.where(pads, 77, batch["input_ids"])}
    assert largest_difference(found, expected, session(**other), batch) < 1e-5
    output = session(
        **{name: torch.nn.functional.pad(values, (0, 6)) for name, values in batch.items()}
    )
    for name in found.outputs:
        if found.is_by_token(name):
            output[name] = output[name][:, : batch["input_ids"].shape[-1]]
    assert largest_difference(found, expected, output, batch) < 1e-5


@pytest.mark.slow
def test_a_model_without_segments_has_no_input_for_them(tiny_checkpoint, tmp_path, export):
    tokenizer = load_tokenizer(tiny_checkpoint)
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        dim=32,
        hidden_dim=64,
        n_layers=2,
        n_heads=2,
        max_position_embeddings=64,
    )
    config.num_labels = 2
    DistilBertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("abc def\nghi\na b c d e f\n")
    _, report = export(tmp_path / "model", "--input_file", tmp_path / "texts.txt")
    assert list(report["inputs"]) == ["input_ids", "attention_mask"]
    assert report["compared_on"]["number"] == 3
    assert report["rows"][-1]["largest_difference"] < 1e-5


@pytest.mark.slow
def test_large_weights_lie_beside_the_graph(runs, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (the extra `export`)")
    stock = stock_side(runs("sequence_classification"), "sequence_classification")
    monkeypatch.setattr(graphs, "EXTERNAL_DATA_BYTES", 1000)
    file = graphs.export_graph(stock.model, stock.head, tmp_path, 20)
    assert (tmp_path / "model.onnx.data").stat().st_size > 2 * file.stat().st_size
    assert (
        graphs.size_of(file) == file.stat().st_size + (tmp_path / "model.onnx.data").stat().st_size
    )
    batch = make_batch((3, 9), vocab_size=70)
    expected = stock(**batch)
    assert (
        largest_difference(stock.head, expected, session_of(tmp_path, stock.head)(**batch), batch)
        < 1e-5
    )
    small = tmp_path / "int8"
    settings = graphs.Int8Settings(per_channel=True, embeddings=True)
    assert graphs.quantize(file, small, settings) == small / "model.onnx"
    assert sorted(path.name for path in small.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert (
        largest_difference(stock.head, expected, session_of(small, stock.head)(**batch), batch)
        < 1.0
    )
