"""A checkpoint is opened for a task: its encoder, its head or a new one, nothing missing."""

import json
import logging
import os
import re
import shutil
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_recipes.errors import InputError
from bert_recipes.exporting.onnx import head_of, open_stock
from bert_recipes.features.extract import open_encoder
from bert_recipes.finetuning.arguments import TaskArguments, choose_checkpoint
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import open_checkpoint
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.task_file import read_task_file
from bert_recipes.training.run import describe_checkpoint


LABELS = ["entailment", "neutral", "contradiction"]
POOLER = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
WORDS = "bert.embeddings.word_embeddings.weight"


def open_for(folder, task, seed=1, needs_head=False, **settings):
    tokenizer = open_tokenizer(str(folder))
    arguments = TaskArguments(task=task, **{"max_seq_length": 64} | settings)
    return open_model(
        str(folder), get_task(task), tokenizer, arguments, seed=seed, needs_head=needs_head
    )


@pytest.fixture
def copy(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def test_positions_that_pre_training_never_read_are_a_warning(copy, caplog):
    (copy / "run.yaml").write_text("max_seq_length: 32\n")
    open_for(copy, "mrpc", max_seq_length=32)
    assert "never trained" not in caplog.text
    open_for(copy, "mrpc", max_seq_length=64)
    assert "was pre-trained on inputs of at most 32 tokens" in caplog.text


@pytest.fixture
def mnli_run(tiny_checkpoint, tmp_path):
    model = open_for(tiny_checkpoint, "mnli")
    model.save_pretrained(tmp_path / "mnli")
    open_tokenizer(str(tiny_checkpoint)).save_pretrained(tmp_path / "mnli")
    return tmp_path / "mnli"


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def edit_weights(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def learning(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_a_new_head_is_a_cut_off_normal_without_bias_on_the_checkpoints_encoder(tiny_checkpoint):
    """google-research/bert run_classifier.py `create_model`: truncated_normal_initializer(0.02)."""
    models = [open_for(tiny_checkpoint, "conll2003", seed) for seed in (1, 1, 2)]
    head, again, other = [model.classifier for model in models]
    # Drawn anew beyond two deviations, not cut down to them.
    assert head.weight.abs().max() < torch.tensor(0.04)
    assert head.weight.std().item() == pytest.approx(0.0176, rel=0.15)
    assert head.bias.abs().max() == 0
    assert torch.equal(head.weight, again.weight)
    assert not torch.equal(head.weight, other.weight)
    source = transformers.BertModel.from_pretrained(tiny_checkpoint, add_pooling_layer=False)
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, models[0].base_model.state_dict()[name]), name


def test_a_layer_that_both_heads_have_stays_as_it_was_pre_trained(tiny_checkpoint, tmp_path):
    """Of ModernBERT: stock draws the classifier alone."""
    tokenizer = open_tokenizer(str(tiny_checkpoint))
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    pretrained = transformers.ModernBertForMaskedLM(config)
    pretrained.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = open_for(tmp_path, "mnli")
    assert torch.equal(model.head.dense.weight, pretrained.head.dense.weight)
    assert model.classifier.weight.abs().max() < 0.04
    # With a head for other labels all of it is drawn.
    model.save_pretrained(tmp_path)
    other = open_for(tmp_path, "mrpc")
    assert not torch.equal(other.head.dense.weight, pretrained.head.dense.weight)


def test_a_head_of_another_kind_of_task_is_drawn_also_where_its_layer_has_the_same_size(
    mnli_run, tmp_path
):
    """All kinds call it `classifier`."""
    before = load_file(mnli_run / "model.safetensors")["classifier.weight"]
    (tmp_path / "tags.yaml").write_text(
        "kind: token_classification\nfiles: {train: t.jsonl}\nlabels: [O, B-X, I-X]\n"
    )
    tags = read_task_file(tmp_path / "tags.yaml")
    tokenizer = open_tokenizer(str(mnli_run))
    settings = TaskArguments(task="conll2003", max_seq_length=64)
    heads = []
    for seed in (1, 2):
        model = open_model(str(mnli_run), tags, tokenizer, settings, seed=seed)
        heads.append(model.classifier.weight)
    assert heads[0].shape == before.shape
    assert not torch.equal(heads[0], before)
    assert not torch.equal(heads[0], heads[1])


def test_a_model_of_sets_learns_no_positions(tiny_checkpoint, copy):
    positions = "bert.embeddings.position_embeddings.weight"
    assert positions in learning(open_for(tiny_checkpoint, "mrpc"))
    edit_config(copy, positions="none")
    assert positions not in learning(open_for(copy, "mrpc"))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"label2id": {"x": 0, "entailment": 1}},
        {"id2label": {number: f"LABEL_{number}" for number in range(3)}},
    ],
)
def test_a_head_with_the_same_labels_is_kept_and_class_numbers_are_those_of_id2label(
    mnli_run, caplog, config
):
    """Labels without names are taken in the order of the task."""
    caplog.set_level(logging.INFO)
    edit_config(mnli_run, **config)
    model = open_for(mnli_run, "mnli", seed=9, needs_head=True)
    assert "new head" not in caplog.text
    assert ("does not name its labels" in caplog.text) == ("id2label" in config)
    head = load_file(mnli_run / "model.safetensors")["classifier.weight"]
    assert torch.equal(model.classifier.weight, head)
    assert model.config.label2id == {name: number for number, name in enumerate(LABELS)}
    assert model.config.id2label == dict(enumerate(LABELS))


def test_labels_that_differ_in_case_alone_are_the_same_in_the_order_of_the_checkpoint(mnli_run):
    names = ["CONTRADICTION", "Entailment", "NEUTRAL"]
    edit_config(mnli_run, id2label=dict(enumerate(names)))
    model = open_for(mnli_run, "mnli", seed=9, needs_head=True)
    head = load_file(mnli_run / "model.safetensors")["classifier.weight"]
    assert torch.equal(model.classifier.weight, head)
    assert model.config.id2label == {0: "contradiction", 1: "entailment", 2: "neutral"}
    assert model.config.label2id == {"contradiction": 0, "entailment": 1, "neutral": 2}


def test_labels_that_only_case_tells_apart_are_others(mnli_run):
    task = replace(get_task("mnli"), labels=("a", "A", "b"))
    settings = TaskArguments(task="mnli", max_seq_length=64)
    opened = (task, open_tokenizer(str(mnli_run)), settings)
    edit_config(mnli_run, id2label={0: "b", 1: "A", 2: "a"})
    model = open_model(str(mnli_run), *opened, seed=1, needs_head=True)
    assert model.config.id2label == {0: "b", 1: "A", 2: "a"}
    for names in (["a", "A", "B"], ["A", "b"]):
        edit_config(mnli_run, id2label=dict(enumerate(names)))
        message = f"labels are {', '.join(names)}; the task's are a, A, b"
        with pytest.raises(InputError, match=message):
            open_model(str(mnli_run), *opened, seed=1, needs_head=True)


TWICE = {"id2label": dict(enumerate([*LABELS, "neutral"])), "label2id": {"entailment": 0}}
IS = "the checkpoint's labels are entailment, neutral, contradiction"


@pytest.mark.parametrize(
    ("task", "config", "why"),
    [
        ("mrpc", {}, f"{IS}; the task's are not_equivalent, eq"),
        ("stsb", {}, f"{IS}; the task's are one number"),
        ("mnli", TWICE, f"{IS}, neutral; the task's are"),
        (
            "mnli",
            {"problem_type": "multi_label_classification"},
            "is for multi_label_classification, the task is single_label_classification",
        ),
        (
            "mnli",
            {"architectures": ["BertForPreTraining"]},
            "no ForSequenceClassification head in this checkpoint (a BertForPreTraining)",
        ),
    ],
)
def test_a_head_for_something_else_is_replaced_and_a_checkpoint_with_it_cannot_be_measured(
    mnli_run, caplog, task, config, why
):
    """The encoder is that of the checkpoint: its task is an intermediate one."""
    caplog.set_level(logging.INFO)
    edit_config(mnli_run, **config)
    with pytest.raises(InputError, match=re.escape(why)):
        open_for(mnli_run, task, needs_head=True)
    model = open_for(mnli_run, task)
    assert f"{why}" in caplog.text
    assert f"initializing a new head for task {task}" in caplog.text
    assert model.classifier.out_features == max(1, len(get_task(task).labels))
    assert model.config.problem_type == get_task(task).problem_type
    pooler = load_file(mnli_run / "model.safetensors")["bert.pooler.dense.weight"]
    assert torch.equal(model.bert.pooler.dense.weight, pooler)


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
    caplog.set_level(logging.INFO)
    head = {"classifier.weight", "classifier.bias"}
    assert learning(open_for(copy, "mrpc", freeze_encoder=True)) == head
    edit_weights(copy, lambda weights: [weights.pop(name) for name in POOLER])
    assert learning(open_for(copy, "mrpc", freeze_encoder=True)) == head | POOLER
    assert "frozen but for what is new: bert.pooler.dense.bias, bert.pooler" in caplog.text
    assert "no weights for its pooler" in caplog.text


def test_positions_and_weights_that_are_not_there_are_refused(copy):
    open_for(copy, "mrpc", max_seq_length=128)
    with pytest.raises(InputError, match="max_seq_length is 129, the model has 128 positions"):
        open_for(copy, "mrpc", max_seq_length=129)
    edit_weights(copy, lambda weights: weights.pop("bert.encoder.layer.1.output.dense.weight"))
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
    state = open_for(copy, "mrpc").state_dict()
    assert "pytorch_model.bin is read, its tensors alone (weights_only=True)" in caplog.text
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name
    network, new_heads = open_checkpoint(str(copy), cached_only=True)
    assert new_heads == []
    assert torch.equal(network.bert.embeddings.word_embeddings.weight, weights[WORDS])


def test_a_weights_file_with_code_is_not_run_and_a_folder_without_one_is_refused(copy, tmp_path):
    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "it_ran"),)

    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has neither model\.safetensors nor pytorch_model\.bin"):
        open_for(copy, "mrpc")
    torch.save({WORDS: Runs()}, copy / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"is damaged or holds other things than tensors"):
        open_for(copy, "mrpc")
    assert not (tmp_path / "it_ran").exists()


def test_a_hub_name_in_the_local_cache_opens_offline(tiny_checkpoint, tmp_path, monkeypatch):
    repository = tmp_path / "models--me--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    shutil.copytree(tiny_checkpoint, repository / "snapshots" / "abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached_model = open_for("me/tiny", "mrpc")
    described = describe_checkpoint("me/tiny", cached_model.config)
    assert described["sha256"] == describe_checkpoint(str(tiny_checkpoint))["sha256"]
    cached = cached_model.state_dict()
    for name, weight in open_for(tiny_checkpoint, "mrpc").state_dict().items():
        assert torch.equal(cached[name], weight), name
    with pytest.raises(InputError, match="no model of that name in the local Hub cache"):
        open_for("me/other", "mrpc")


def test_rows_beyond_the_pieces_are_kept(copy, caplog):
    def repeat_rows(weights):
        num_rows = len(weights[WORDS])
        for name, tensor in weights.items():
            if tensor.shape[:1] == (num_rows,):
                weights[name] = torch.cat([tensor, tensor[:37]])

    edit_weights(copy, repeat_rows)
    words = load_file(copy / "model.safetensors")[WORDS]
    edit_config(copy, vocab_size=len(words))
    assert torch.equal(open_for(copy, "mrpc").bert.embeddings.word_embeddings.weight, words)
    assert "the other rows are kept" in caplog.text


def test_without_a_name_the_newest_finished_pretraining_run_is_taken(tmp_path, caplog):
    """It is said as a warning: the command line is read before logging is set up."""
    runs = tmp_path / "runs"

    def make_run(name, age, config):
        (runs / name).mkdir(parents=True)
        (runs / name / "config.json").write_text(config)
        (runs / name / "all_results.json").write_text("{}")
        os.utime(runs / name / "all_results.json", (1e9 - age, 1e9 - age))

    pretraining = '{"architectures": ["BertForPreTraining"]}'
    make_run("old", 2, pretraining)
    make_run("new", 1, pretraining)
    make_run("task", 0, pretraining)
    (runs / "task" / "task.yaml").touch()
    make_run("unfinished", 0, pretraining)
    (runs / "unfinished" / "all_results.json").unlink()
    make_run("classifier", 0, '{"architectures": ["BertForSequenceClassification"]}')
    make_run("null", 0, "null")
    make_run("numbers", 0, '{"architectures": 5}')
    make_run("deep", 0, "[" * 100_000)
    caplog.set_level(logging.WARNING)
    assert choose_checkpoint(None, runs) == str(runs / "new")
    assert f"{runs / 'new'} is the newest finished pre-training run" in caplog.text
    make_run("group/newer", 0, '{"architectures": ["RobertaForMaskedLM"]}')
    assert choose_checkpoint(None, runs) == str(runs / "group" / "newer")
    with pytest.raises(InputError, match=r"google-bert/bert-base-uncased.*make: MODEL=FOLDER"):
        choose_checkpoint(None, tmp_path / "empty")


def test_layers_that_config_json_does_not_count_are_refused_by_all_who_open_a_checkpoint(
    copy, mnli_run
):
    """transformers drops them: a model of half the depth would be trained and measured."""
    edit_config(copy, num_hidden_layers=1)
    edit_config(mnli_run, num_hidden_layers=1)
    head = head_of(transformers.AutoConfig.from_pretrained(mnli_run), str(mnli_run))
    for open_it in (
        lambda: open_for(mnli_run, "mnli", needs_head=True),
        lambda: open_checkpoint(str(copy), cached_only=True),
        lambda: open_encoder(str(copy)),
        lambda: open_stock(str(mnli_run), head),
    ):
        with pytest.raises(InputError, match=r"num_hidden_layers 1, its weights also .*layer\.1,"):
            open_it()


@pytest.mark.parametrize("fast_layers", ["off", "plain"])
def test_a_regression_is_computed_in_float32_under_bfloat16(tiny_checkpoint, fast_layers):
    """bfloat16 has 8 bits: numbers from 2 to 4 would differ by 1/64 at least."""
    model = open_for(tiny_checkpoint, "stsb").eval()
    enable_packed_layers(model, fast_layers)
    head = model.classifier
    torch.nn.init.constant_(head.bias, 3.0)
    inputs = []
    head.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    ids = torch.randint(5, 60, (32, 12), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids).logits
    logits.sum().backward()
    assert logits.dtype == torch.float32
    expected = inputs[0].double() @ head.weight.double().T + head.bias.double()
    assert (logits.double() - expected).abs().max() < 1e-6
    assert not torch.equal(logits, logits.bfloat16().float())
    assert head.weight.grad is not None


@pytest.mark.parametrize("packed", [False, True])
def test_a_bilstm_reads_each_text_alone(copy, packed):
    """Devlin et al. 2019, section 5.1: "a randomly initialized BiLSTM on top"."""
    model = open_for(copy, "mrpc", bilstm=True, freeze_encoder=True, dropout=0.0)
    assert {"bilstm.weight_hh_l0_reverse", "classifier.weight"} <= learning(model)
    assert not {name for name in learning(model) if name.startswith("bert.")}
    # The pooler, which the BiLSTM stands for, has no gradient; DDP would wait for one.
    unfrozen = learning(open_for(copy, "mrpc", bilstm=True))
    assert "bert.embeddings.word_embeddings.weight" in unfrozen
    assert not {name for name in unfrozen if "pooler" in name}
    plain = open_for(copy, "mrpc", dropout=0.0).bert
    if packed:
        enable_packed_layers(model, "auto")
    ids = torch.randint(5, 60, (3, 9))
    lengths = torch.tensor([4, 9, 7])
    mask = (torch.arange(9) < lengths[:, None]).long()
    logits = model(input_ids=ids, attention_mask=mask).logits
    for row, length in enumerate(lengths):
        states, _ = model.bilstm(plain(input_ids=ids[row : row + 1, :length]).last_hidden_state)
        expected = model.classifier(states[0].amax(dim=0))
        torch.testing.assert_close(logits[row], expected, rtol=1e-4, atol=1e-5)
    model.save_pretrained(copy.parent / "with")
    shutil.copy(copy / "tokenizer.json", copy.parent / "with")
    with pytest.raises(InputError, match="was fine-tuned with a BiLSTM"):
        open_for(copy.parent / "with", "mrpc")
