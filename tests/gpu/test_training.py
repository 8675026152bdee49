"""A GPU computes what the CPU computes: every member, whole runs, kills, fine-tuning, and nothing
waits.

    make test PYTHON=python3 ARGS="-mgpu -n4"

Models are small: a run of these tests takes about three minutes on an H100, most of them for
compiling.
"""

import json
import signal
import subprocess
import sys
import time
import warnings

import pytest
import tiny_runs
import torch
from packed_models import LENGTHS, VOCAB, make_batch, with_packing
from small_run import small_run

from bert_recipes.models import electra
from bert_recipes.models.bert_model import enable_packed_layers
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PreTrainingArguments,
    RunArguments,
)
from bert_recipes.training.bert_trainer import BertTrainer
from bert_recipes.training.distillation import DistillationTrainer, make_student
from bert_recipes.training.objectives import OBJECTIVES
from bert_recipes.training.pretraining import load_data, load_model
from bert_recipes.training.tinybert import TinyBertTrainer


pytestmark = pytest.mark.gpu

EVERY_MEMBER = [name for name in OBJECTIVES if name != "tinybert"]
DISTILLATION = DistillationArguments(
    teacher="it",
    temperature=2.0,
    alpha_ce=5.0,
    alpha_mlm=2.0,
    alpha_cos=1.0,
)
IMITATION = DistillationArguments(teacher="it", alpha_attn=1.0, alpha_hidn=1.0, alpha_embd=1.0)


@pytest.fixture(autouse=True)
def exact_float32():
    """No TF32: products of float32 are those of the CPU."""
    torch.backends.cuda.matmul.allow_tf32 = False


def make_member(objective):
    row = OBJECTIVES[objective]
    torch.manual_seed(0)
    if objective == "distilbert":
        return make_student(make_member("bert"), DISTILLATION, seed=0).train()
    sizes = {"vocab_size": VOCAB, "dropout": 0.0, "initializer_range": 0.1}
    config = pretraining_config("mini", model_type=row.model_type, **sizes, **row.new_model_config)
    return MEMBERS[row.model](config).train()


def batch_of(objective, lengths="ragged"):
    batch = make_batch(LENGTHS[lengths])
    if objective not in ("bert", "albert"):
        del batch["next_sentence_label"]
    if objective == "electra":
        generator = torch.Generator().manual_seed(5)
        batch["draws"] = torch.rand(batch["input_ids"].shape, generator=generator)
    if objective == "distilbert":
        del batch["token_type_ids"]
    return batch


def to_gpu(batch):
    moved = {}
    for name, value in batch.items():
        moved[name] = to_gpu(value) if isinstance(value, dict) else value.cuda()
    return moved


@pytest.fixture
def same_words(monkeypatch):
    """The words of ELECTRA's generator are those of the first pass: rounding would draw others."""
    sample_tokens = electra.sample_tokens
    word_of_draw = {}

    def sample(logits, draws, random_share):
        words = sample_tokens(logits, draws, random_share)
        drawn = []
        for draw, word in zip(draws.tolist(), words.tolist(), strict=True):
            drawn.append(word_of_draw.setdefault(draw, word))
        return words.new_tensor(drawn)

    monkeypatch.setattr(electra, "sample_tokens", sample)


def gradients_of(model, batch, *, autocast=False):
    model.zero_grad()
    with torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
        loss = model(**batch).loss
    loss.backward()
    return {name: parameter.grad.double().cpu() for name, parameter in model.named_parameters()}


def distance(gradients, expected):
    """Relative to the whole gradient."""
    difference = sum((gradients[name] - expected[name]).square().sum() for name in expected)
    square = sum(gradient.square().sum() for gradient in expected.values())
    return float((difference / square) ** 0.5)


@pytest.mark.usefixtures("same_words")
@pytest.mark.parametrize("objective", EVERY_MEMBER)
def test_gradients_of_a_member_are_the_cpus(objective, tmp_path):
    """In float32 stock layers on padded rows; in bfloat16 packed rows, which may be as far off as
    stock's padded ones.
    """
    batch, model = batch_of(objective), make_member(objective)
    expected = gradients_of(model, batch)
    model.cuda()
    assert distance(gradients_of(model, to_gpu(batch)), expected) < 1e-4
    allowed = distance(gradients_of(model, to_gpu(batch), autocast=True), expected)
    args = RunArguments(output_dir=str(tmp_path), precision="bf16", report_to="none")
    enable_packed_layers(model, "auto", args)
    counters = torch._dynamo.utils.counters
    counters.clear()
    gradients = gradients_of(model, to_gpu(with_packing(batch)), autocast=True)
    assert distance(gradients, expected) < max(1.5 * allowed, 1e-3)
    assert not counters["graph_break"]
    # Batches of other sizes take the same functions.
    num_graphs = counters["stats"]["unique_graphs"]
    gradients_of(model, to_gpu(with_packing(batch_of(objective, "one_long"))), autocast=True)
    assert counters["stats"]["unique_graphs"] == num_graphs


RUN = {
    "max_steps": 60,
    "per_device_train_batch_size": 16,
    "logging_steps": 10,
    "max_grad_norm": 1.0,
}
NORMUON = {
    "optimizer": "muon",
    "muon_row_beta": 0.95,
    "muon_weight_decay": 0.05,
    "muon_momentum_warmup": 0.1,
}


def losses_of(result):
    return [line["loss"] for line in result["history"] if "loss" in line]


def test_sixty_steps_have_the_losses_of_the_cpu(small_store, tmp_path):
    expected = small_run(
        store=str(small_store), output_dir=str(tmp_path / "cpu"), fast_layers="off", **RUN
    )
    ours = small_run(store=str(small_store), output_dir=str(tmp_path / "gpu"), use_cpu=False, **RUN)
    assert losses_of(ours) == pytest.approx(losses_of(expected), rel=1e-3)
    assert ours["metrics"]["eval_mlm_loss"] == pytest.approx(
        expected["metrics"]["eval_mlm_loss"], rel=1e-3
    )
    assert ours["metrics"]["eval_nsp_accuracy"] == pytest.approx(
        expected["metrics"]["eval_nsp_accuracy"], abs=0.08
    )


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({"optimizer": "bert_adam"}, "bf16"),
        ({"optimizer": "adamw"}, "bf16"),
        ({"optimizer": "lamb"}, "bf16"),
        ({"optimizer": "muon"}, "bf16"),
        (NORMUON, "bf16"),
        ({"optimizer": "bert_adam"}, "fp16"),
    ],
)
def test_packed_rows_in_half_precision_learn_as_much(small_store, tmp_path, settings, precision):
    settings = RUN | {"dropout": 0.1} | settings
    expected = small_run(store=str(small_store), output_dir=str(tmp_path / "cpu"), **settings)
    settings |= {"use_cpu": False, "precision": precision, "dataloader_num_workers": 2}
    ours = small_run(store=str(small_store), output_dir=str(tmp_path / "gpu"), **settings)
    assert losses_of(ours)[-1] == pytest.approx(losses_of(expected)[-1], abs=0.15)
    assert ours["metrics"]["eval_mlm_loss"] == pytest.approx(
        expected["metrics"]["eval_mlm_loss"], abs=0.15
    )


def test_a_step_makes_nobody_wait(small_store, tmp_path, monkeypatch):
    """CUDA's own detector: a warning wherever the host waits for the device."""
    step = BertTrainer.training_step

    def watched(self, *args, **kwargs):
        if self.state.global_step == 5:  # everything is compiled, and no line is logged
            torch.cuda.set_sync_debug_mode("warn")
        if self.state.global_step == 8:  # the end of the run reads the sum of the losses
            torch.cuda.set_sync_debug_mode("default")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(BertTrainer, "training_step", watched)
    settings = {
        "max_steps": 9,
        "logging_steps": 100,
        "per_device_train_batch_size": 16,
        "precision": "bf16",
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            args = PreTrainingArguments(
                output_dir=str(tmp_path),
                save_strategy="no",
                disable_tqdm=True,
                dataloader_num_workers=2,
                **settings,
            )
            data = load_data(DataArguments(store=str(small_store), max_seq_length=48), args.seed)
            model = load_model(ModelArguments(size="tiny"), data.tokenizer, 48, args.seed)
            trainer = BertTrainer(model, args, data.collator, train_dataset=data.train)
            trainer.train()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    messages = [str(warning.message) for warning in caught]
    waits = [message for message in messages if "synchronizing CUDA operation" in message]
    assert waits == []


@pytest.mark.parametrize(
    ("trainer_class", "settings"),
    [(DistillationTrainer, DISTILLATION), (TinyBertTrainer, IMITATION)],
)
def test_a_distillation_learns(small_store, tmp_path, trainer_class, settings):
    args = PreTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        logging_steps=10,
        precision="bf16",
        per_device_train_batch_size=16,
        save_strategy="no",
        disable_tqdm=True,
        learning_rate=1e-3,
    )
    data_args = DataArguments(store=str(small_store), max_seq_length=48, pair_label="none")
    data = load_data(data_args, args.seed)
    model_args = ModelArguments(size="tiny", dropout=0.0)
    teacher = load_model(model_args, data.tokenizer, 48, args.seed).eval()
    student = load_model(model_args, data.tokenizer, 48, args.seed + 1)
    if trainer_class is DistillationTrainer:
        student = make_student(teacher, settings, seed=1)
    trainer = trainer_class(
        student,
        args,
        data.collator,
        teacher=teacher,
        settings=settings,
        train_dataset=data.train,
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0]


def test_a_run_that_is_stopped_continues_as_if_it_was_not(repository, small_store, tmp_path):
    """Sums of a GPU depend on the order of its threads: losses are near, not equal."""
    command = [sys.executable, str(repository / "recipes" / "pretrain.py")]
    command += ["--config", str(repository / "recipes" / "configs" / "pretrain" / "bert_tiny.yaml")]
    flags = {
        "store": small_store,
        "max_seq_length": 48,
        "max_steps": 300,
        "global_train_batch_size": 16,
        "logging_steps": 50,
        "per_device_train_batch_size": 16,
        "eval_strategy": "no",
        "save_steps": 100,
        "phase2_steps": 0,
        "max_eval_pairs": 20,
        "dropout": 0,
        "warmup_steps": 2,
        "learning_rate": 1e-3,
    }
    for name, value in flags.items():
        command += [f"--{name}", str(value)]

    def start(folder):
        return subprocess.Popen([*command, "--output_dir", str(folder)], cwd=tmp_path)

    assert start(tmp_path / "whole").wait(timeout=200) == 0
    process = start(tmp_path / "stopped")
    deadline = time.monotonic() + 200
    while not (tmp_path / "stopped" / "checkpoint-100").is_dir() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=100) == 128 + signal.SIGTERM
    assert start(tmp_path / "stopped").wait(timeout=200) == 0
    histories = {}
    for name in ("whole", "stopped"):
        state = json.loads((tmp_path / name / "trainer_state.json").read_text())
        histories[name] = state["log_history"]
    losses = {name: losses_of({"history": history}) for name, history in histories.items()}
    assert len(losses["whole"]) == 6
    assert losses["stopped"] == pytest.approx(losses["whole"], rel=0.02)


@pytest.mark.parametrize(
    "kind", ["sequence_classification", "question_answering", "token_classification"]
)
def test_fine_tuning_and_prediction_run(kind, tiny_checkpoint, tmp_path):
    flags = "--use_cpu false --precision bf16 --max_steps 30 --dataloader_num_workers 2"
    flags += " --logging_steps 10 --learning_rate 0.01"
    folder = tiny_runs.make_run(kind, tiny_checkpoint, tmp_path, *flags.split())
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    losses = [line["loss"] for line in history if "loss" in line]
    assert losses[-1] < losses[0]
    assert (folder / "all_results.json").is_file()
