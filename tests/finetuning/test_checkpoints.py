import json
import logging
import os
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_recipes.errors import InputError
from bert_recipes.exporting.onnx import head_of, open_stock
from bert_recipes.features.extract import open_encoder
from bert_recipes.finetuning.arguments import TaskArguments, choose_checkpoint
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.sequence_classification import SequenceClassification
from bert_recipes.finetuning.token_classification import TokenClassification
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import open_checkpoint
from bert_recipes.tasks.catalogue import get_task


def open_for(folder, task, kind=SequenceClassification, seed=1, needs_head=False, **settings):
    tokenizer = open_tokenizer(str(folder))
    arguments = TaskArguments(task=task, **{"max_seq_length": 64} | settings)
    return open_model(
        str(folder), get_task(task), kind, tokenizer, arguments, seed=seed, needs_head=needs_head
    )


@pytest.fixture
def copy(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


@pytest.fixture
def mnli_run(tiny_checkpoint, tmp_path):
    model = open_for(tiny_checkpoint, "mnli")
    model.save_pretrained(tmp_path / "mnli")
    open_tokenizer(str(tiny_checkpoint)).save_pretrained(tmp_path / "mnli")
    return tmp_path / "mnli"


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_the_encoder_is_the_checkpoints_and_class_names_are_the_tasks(tiny_checkpoint):
    model = open_for(tiny_checkpoint, "mnli")
    source = transformers.BertModel.from_pretrained(tiny_checkpoint)
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, model.base_model.state_dict()[name]), name
    assert model.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}


def test_a_new_head_is_a_cut_off_normal_without_bias(tiny_checkpoint):
    """google-research/bert run_classifier.py `create_model`:
    truncated_normal_initializer(stddev=0.02), zeros.
    """
    head = open_for(tiny_checkpoint, "conll2003", TokenClassification).classifier
    assert head.weight.abs().max() <= 0.04
    assert head.weight.std().item() == pytest.approx(0.0176, rel=0.15)
    assert head.bias.abs().max() == 0
    again = open_for(tiny_checkpoint, "conll2003", TokenClassification).classifier
    assert torch.equal(head.weight, again.weight)
    other = open_for(tiny_checkpoint, "conll2003", TokenClassification, seed=2).classifier
    assert not torch.equal(head.weight, other.weight)


@pytest.mark.parametrize(
    "edited",
    [
        {},
        {"label2id": None},
        {"label2id": {"x": 0, "entailment": 1}},
        {"id2label": {n: f"LABEL_{n}" for n in range(3)}},
    ],
)
def test_a_head_with_the_same_labels_is_kept_and_class_numbers_are_those_of_id2label(
    mnli_run, caplog, edited
):
    """Labels without names are taken in the order of the task."""
    edit_config(mnli_run, **edited)
    with caplog.at_level(logging.INFO):
        model = open_for(mnli_run, "mnli", seed=9, needs_head=True)
    assert "new head" not in caplog.text
    assert ("does not name its labels" in caplog.text) == ("id2label" in edited)
    kept = transformers.BertForSequenceClassification.from_pretrained(mnli_run)
    assert torch.equal(model.classifier.weight, kept.classifier.weight)
    assert model.config.label2id == {"entailment": 0, "neutral": 1, "contradiction": 2}
    assert model.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}


NAMES = ["entailment", "neutral", "contradiction"]


@pytest.mark.parametrize(
    ("task", "edited", "why"),
    [
        (
            "mrpc",
            {},
            "the checkpoint's labels are entailment, neutral, contradiction; the task's are "
            "not_equivalent, eq",
        ),
        (
            "stsb",
            {},
            "the checkpoint's labels are entailment, neutral, contradiction; the task's are one "
            "number",
        ),
        (
            "mnli",
            {"id2label": dict(enumerate([*NAMES, "neutral"])), "label2id": {"entailment": 0}},
            "the checkpoint's labels are entailment, neutral, contradiction, neutral; the task's "
            "are",
        ),
        (
            "mnli",
            {"problem_type": "multi_label_classification"},
            "the checkpoint is for multi_label_classification, the task is "
            "single_label_classification",
        ),
        (
            "mnli",
            {"architectures": ["BertForPreTraining"]},
            "no ForSequenceClassification head in this checkpoint (a BertForPreTraining)",
        ),
    ],
)
def test_a_head_for_something_else_is_replaced_and_a_checkpoint_with_it_cannot_be_measured(
    mnli_run, caplog, task, edited, why
):
    """The encoder is that of the checkpoint: its task is an intermediate one."""
    edit_config(mnli_run, **edited)
    with pytest.raises(InputError, match=re.escape(why)):
        open_for(mnli_run, task, needs_head=True)
    with caplog.at_level(logging.INFO):
        model = open_for(mnli_run, task)
    assert f"initialising a new head for task {task}" in caplog.text
    assert why in caplog.text
    assert model.classifier.out_features == max(1, len(get_task(task).labels))
    assert model.config.problem_type == get_task(task).problem_type
    trained = transformers.BertModel.from_pretrained(mnli_run)
    assert torch.equal(trained.pooler.dense.weight, model.bert.pooler.dense.weight)


def test_a_regressions_head_is_saved_as_stocks_and_bears_its_type(tiny_checkpoint, tmp_path):
    """Stock pipelines put a sigmoid over a single number whose problem_type is not said."""
    open_for(tiny_checkpoint, "stsb").save_pretrained(tmp_path)
    open_tokenizer(str(tiny_checkpoint)).save_pretrained(tmp_path)
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(stock.classifier) is torch.nn.Linear
    edit_config(tmp_path, problem_type=None)
    model = open_for(tmp_path, "stsb")
    assert torch.equal(model.classifier.weight, stock.classifier.weight)
    assert model.config.problem_type == "regression"


def test_a_new_pooler_is_not_frozen(copy, caplog):
    def trained(model):
        return {name for name, parameter in model.named_parameters() if parameter.requires_grad}

    head = {"classifier.weight", "classifier.bias"}
    assert trained(open_for(copy, "mrpc", freeze_encoder=True)) == head
    weights = {
        name: weight
        for name, weight in load_file(copy / "model.safetensors").items()
        if "pooler" not in name
    }
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.INFO):
        model = open_for(copy, "mrpc", freeze_encoder=True)
    assert trained(model) == head | {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert (
        "frozen but for what is new: bert.pooler.dense.bias, bert.pooler.dense.weight"
        in caplog.text
    )


def test_dropout_of_encoder_and_head_can_be_set(tiny_checkpoint):
    model = open_for(tiny_checkpoint, "mrpc", dropout=0.0)
    assert model.dropout.p == 0.0
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.0


def test_positions_and_weights_that_are_not_there_are_refused(copy):
    with pytest.raises(InputError, match="max_seq_length is 129, the model has 128 positions"):
        open_for(copy, "mrpc", max_seq_length=129)
    weights = load_file(copy / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"no weights for bert\.encoder\.layer\.1\.output"):
        open_for(copy, "mrpc")


def test_weights_of_pytorch_are_read_where_there_are_no_others(copy, caplog):
    """Most checkpoints before 2023 (BioBERT, SciBERT, ...) have pytorch_model.bin alone."""
    caplog.set_level(logging.INFO, logger="bert_recipes")
    weights = load_file(copy / "model.safetensors")
    expected = open_for(copy, "mrpc").state_dict()
    assert "pytorch_model.bin" not in caplog.text
    torch.save(weights, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    found = open_for(copy, "mrpc").state_dict()
    assert "pytorch_model.bin is read, its tensors alone (weights_only=True)" in caplog.text
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    network, new_heads = open_checkpoint(str(copy), cached_only=True)
    assert new_heads == []
    assert torch.equal(
        network.bert.embeddings.word_embeddings.weight,
        weights["bert.embeddings.word_embeddings.weight"],
    )


def test_code_in_a_weights_file_is_not_run(copy, tmp_path):
    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "it_ran"),)

    (copy / "model.safetensors").unlink()
    torch.save({"bert.embeddings.word_embeddings.weight": Runs()}, copy / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=r"pytorch_model\.bin is damaged or holds other things than tensors"
    ):
        open_for(copy, "mrpc")
    (copy / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"pytorch_model\.bin is damaged"):
        open_for(copy, "mrpc")
    assert not (tmp_path / "it_ran").exists()


def test_a_folder_without_weights_names_both_files(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has neither model\.safetensors nor pytorch_model\.bin"):
        open_for(copy, "mrpc")


def test_rows_beyond_the_pieces_are_kept(copy, caplog):
    weights = load_file(copy / "model.safetensors")
    rows = weights["bert.embeddings.word_embeddings.weight"]
    extra = torch.cat([rows, rows[:37]])
    names = [name for name, tensor in weights.items() if tensor.shape[:1] == rows.shape[:1]]
    for name in names:
        weights[name] = torch.cat([weights[name], weights[name][:37]])
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    edit_config(copy, vocab_size=len(extra))
    model = open_for(copy, "mrpc")
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, extra)
    assert "the other rows are kept" in caplog.text


def test_without_a_name_the_newest_finished_pretraining_run_is_taken(tiny_checkpoint, tmp_path):
    runs = tmp_path / "runs"
    for age, name in enumerate(["new", "old", "unfinished"]):
        shutil.copytree(tiny_checkpoint, runs / name)
        if name != "unfinished":
            (runs / name / "all_results.json").write_text("{}")
            os.utime(runs / name / "all_results.json", (1e9 - age, 1e9 - age))
    for name, text in (
        ("null", "null"),
        ("numbers", '{"architectures": 5}'),
        ("deep", "[" * 100_000),
    ):
        shutil.copytree(runs / "new", runs / name)
        (runs / name / "config.json").write_text(text)
    tuned = shutil.copytree(runs / "new", runs / "mrpc")
    edit_config(tuned, architectures=["BertForSequenceClassification"])
    assert choose_checkpoint(None, runs) == str(runs / "new")
    os.utime(shutil.copytree(runs / "new", runs / "newer") / "all_results.json", (1e9 + 1, 1e9 + 1))
    edit_config(runs / "newer", architectures=["RobertaForMaskedLM"])
    assert choose_checkpoint(None, runs) == str(runs / "newer")
    with pytest.raises(InputError, match=r"google-bert/bert-base-uncased.*make: MODEL=FOLDER"):
        choose_checkpoint(None, tmp_path / "empty")


def test_layers_that_config_json_does_not_count_are_refused_by_all_who_open_a_checkpoint(
    copy, mnli_run
):
    """transformers drops them: a model of half the depth would be trained and measured."""
    for folder in (copy, mnli_run):
        edit_config(folder, num_hidden_layers=1)
    words = r"num_hidden_layers 1, its weights also .*layer\.1, which would be dropped"
    head = head_of(transformers.AutoConfig.from_pretrained(mnli_run), str(mnli_run))
    for open_it in (
        lambda: open_for(copy, "rte"),
        lambda: open_for(mnli_run, "mnli", needs_head=True),
        lambda: open_checkpoint(str(copy), cached_only=True),
        lambda: open_encoder(str(copy)),
        lambda: open_stock(str(mnli_run), head),
    ):
        with pytest.raises(InputError, match=words) as caught:
            open_it()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fast_layers", ["off", "plain"])
def test_a_regression_is_computed_in_float32_under_bfloat16(tiny_checkpoint, fast_layers):
    """bfloat16 keeps 8 bits: numbers from 2 to 4 would differ by 1/64 at least."""
    model = open_for(tiny_checkpoint, "stsb").eval()
    enable_packed_layers(model, fast_layers)
    with torch.no_grad():
        model.classifier.bias.fill_(3.0)
    ids = torch.randint(5, 60, (32, 12), generator=torch.Generator().manual_seed(1))
    pooled = []
    model.classifier.register_forward_pre_hook(lambda module, inputs: pooled.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids).logits
    logits.sum().backward()
    assert logits.dtype == torch.float32
    expected = (
        pooled[0].double() @ model.classifier.weight.double().T + model.classifier.bias.double()
    )
    assert (logits.double() - expected).abs().max() < 1e-6
    assert not torch.equal(logits, logits.bfloat16().float())
    assert model.classifier.weight.grad is not None


@pytest.mark.parametrize("packed", [False, True])
def test_a_bilstm_reads_each_text_alone(copy, packed):
    """Devlin et al. 2019, section 5.1: "a randomly initialized BiLSTM on top"."""
    model = open_for(copy, "mrpc", bilstm=True, freeze_encoder=True, dropout=0.0)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {"bilstm.weight_hh_l0_reverse", "classifier.weight"} <= names
    assert "bert.embeddings.word_embeddings.weight" not in names
    plain = open_for(copy, "mrpc", dropout=0.0).bert
    if packed:
        enable_packed_layers(model, "auto")
    ids, mask = torch.randint(5, 60, (3, 9)), torch.ones(3, 9, dtype=torch.int64)
    lengths = (4, 9, 7)
    for row, length in enumerate(lengths):
        mask[row, length:] = 0
    logits = model(input_ids=ids, attention_mask=mask).logits
    for row, length in enumerate(lengths):
        states, _ = model.bilstm(plain(input_ids=ids[row : row + 1, :length]).last_hidden_state)
        torch.testing.assert_close(
            logits[row], model.classifier(states[0].amax(dim=0)), rtol=1e-4, atol=1e-5
        )


def test_a_checkpoint_with_a_bilstm_is_not_taken_for_one_without(copy, tmp_path):
    open_for(copy, "mrpc", bilstm=True).save_pretrained(tmp_path / "with")
    shutil.copy(copy / "tokenizer.json", tmp_path / "with")
    with pytest.raises(InputError, match="was fine-tuned with a BiLSTM"):
        open_for(tmp_path / "with", "mrpc")
