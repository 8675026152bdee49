"""TinyBERT's losses against plain formulas over stock BERTs, whatever the padding and the split of
a batch.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import set_seed

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DistillationArguments, PreTrainingArguments
from bert_recipes.training.tinybert import TinyBertTrainer


WEIGHTS = (1.0, 0.7, 0.4)


def make_model(seed, size="2/32", **changes):
    torch.manual_seed(seed)
    settings = {
        "vocab_size": 200,
        "num_attention_heads": 4,
        "dropout": 0.0,
        "initializer_range": 0.1,
        "max_position_embeddings": 64,
    }
    return BertForPreTraining(pretraining_config(size, **settings | changes))


def make_teacher(**changes):
    return make_model(0, "4/64", **changes)


@pytest.fixture(scope="module")
def make_trainer(small_store, tmp_path_factory):
    """Args: teacher, student, weights of the losses, settings of the run."""
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset.from_store(store, pair_label="none", max_seq_length=48)

    def make_it(teacher, student, weights=WEIGHTS, **settings):
        attention, hidden, embeddings = weights
        distillation_args = DistillationArguments(
            teacher="a BERT", alpha_attn=attention, alpha_hidn=hidden, alpha_embd=embeddings
        )
        defaults = {
            "output_dir": str(tmp_path_factory.mktemp("run")),
            "max_steps": 2,
            "precision": "fp32",
            "max_grad_norm": 0.0,
            "use_cpu": True,
            "save_strategy": "no",
        }
        return TinyBertTrainer(
            student,
            PreTrainingArguments(**(defaults | settings)),
            DataCollatorForPreTraining(tokenizer, selection="none"),
            train_dataset=dataset,
            eval_dataset=dataset,
            max_eval_pairs=20,
            processing_class=tokenizer,
            teacher=teacher,
            settings=distillation_args,
        )

    return make_it


def make_batch(trainer):
    return trainer.data_collator([trainer.train_dataset[(0, index)] for index in range(6)])


def states_of(model, batch):
    """Stock's hidden states, and Q K^T / sqrt(d) of each layer from them."""
    stock = transformers.BertModel(model.config, add_pooling_layer=True)
    stock.load_state_dict(model.bert.state_dict())
    stock.set_attn_implementation("eager")
    names = ("input_ids", "attention_mask", "token_type_ids")
    hidden = stock(**{name: batch[name] for name in names}, output_hidden_states=True).hidden_states

    def split_heads(states):
        return states.unflatten(-1, (4, -1)).transpose(1, 2)

    scores = []
    for layer, states in zip(stock.encoder.layer, hidden, strict=False):
        query = split_heads(layer.attention.self.query(states))
        key = split_heads(layer.attention.self.key(states))
        scores.append(query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]))
    return stock, hidden, scores


def test_the_layer_to_the_teachers_width_is_that_of_the_best_step(make_trainer):
    settings = {"save_strategy": "steps", "eval_strategy": "steps", "learning_rate": 1.0}
    settings |= {"save_steps": 1, "eval_steps": 1, "load_best_model_at_end": True, "max_steps": 3}
    trainer = make_trainer(make_teacher().eval(), make_model(1), **settings)
    trainer.train()
    best = Path(trainer.state.best_model_checkpoint)
    assert best.name == "checkpoint-1"
    fit = load_file(best / "fit_dense.safetensors")
    torch.testing.assert_close(fit, dict(trainer.model.fit_dense.state_dict()), rtol=0, atol=0)


def test_the_losses_and_their_gradients_are_those_of_the_plain_formulas(make_trainer):
    """Jiao et al. 2020, equations 7 to 9, with one fit_dense and the layers of
    general_distill.py.
    """
    teacher, student = make_teacher().eval(), make_model(1)
    trainer = make_trainer(teacher, student)
    batch = make_batch(trainer)
    loss = trainer.compute_loss(student.train(), batch)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in student.named_parameters()}

    student.fit_dense.zero_grad()
    with torch.no_grad():
        _, taught, teacher_scores = states_of(teacher, batch)
    stock, hidden, scores = states_of(student, batch)
    real = batch["attention_mask"] == 1
    assert not real.all()
    pairs = (real[:, :, None] & real[:, None, :])[:, None].expand_as(scores[0])
    attention = F.mse_loss(scores[0][pairs], teacher_scores[1][pairs])
    attention += F.mse_loss(scores[1][pairs], teacher_scores[3][pairs])
    embeddings, *states = [
        F.mse_loss(student.fit_dense(hidden[layer])[real], taught[2 * layer][real])
        for layer in range(3)
    ]
    expected = WEIGHTS[0] * attention + WEIGHTS[1] * sum(states) + WEIGHTS[2] * embeddings
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in student.fit_dense.named_parameters():
        gradient = gradients[f"fit_dense.{name}"]
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-5)
    for name, parameter in stock.named_parameters():
        gradient = gradients[f"bert.{name}"]
        if name.startswith("pooler"):
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-5)


def test_without_padding_the_loss_is_the_originals_which_depends_on_padding(make_trainer):
    """general_distill.py: scores of -1e2 and less, those of padding, are 0 on both sides, and means
    are over everything.
    """
    teacher, student = make_teacher().eval(), make_model(1)
    trainer = make_trainer(teacher, student, weights=(1.0, 1.0, 1.0))

    def original(batch):
        _, hidden, scores = states_of(student, batch)
        _, taught, teacher_scores = states_of(teacher, batch)
        mask = (1 - batch["attention_mask"][:, None, None, :]) * -10000.0

        def cut(scores):
            return torch.where(scores + mask <= -1e2, 0.0, scores + mask)

        loss = 0.0
        for layer in range(2):
            loss += F.mse_loss(cut(scores[layer]), cut(teacher_scores[2 * layer + 1]))
        for layer in range(3):
            loss += F.mse_loss(student.fit_dense(hidden[layer]), taught[2 * layer])
        return loss.item()

    padded = make_batch(trainer)
    length = int(padded["attention_mask"].sum(-1).min())
    cut_batch = {name: tensor[:, :length] for name, tensor in padded.items()}
    longer = {name: F.pad(tensor, (0, 9)) for name, tensor in padded.items()}
    with torch.no_grad():
        losses = [
            trainer.compute_loss(student, batch).item() for batch in (cut_batch, padded, longer)
        ]
        assert losses[0] == pytest.approx(original(cut_batch), rel=1e-5)
        assert losses[1] == pytest.approx(losses[2], rel=1e-5)
        assert abs(original(padded) - original(longer)) > 0.01 * original(padded)


def test_counts_on_the_cpu_divide_losses_on_another_device(make_trainer, monkeypatch):
    """With one process the counts of a step stay on the CPU, also where a GPU trains."""
    trainer = make_trainer(make_teacher(), make_model(1))
    teacher = trainer.teacher
    teacher.weights = teacher.weights.to("meta")
    monkeypatch.setattr(teacher, "losses", lambda *_: torch.ones(3, device="meta"))
    loss, _ = teacher.micro_batch_loss(trainer.model, {}, torch.tensor([0.0, 5.0, 9.0]))
    assert loss.device.type == "meta"


def test_the_teacher_has_no_dropout_and_gives_one_answer(make_trainer):
    teacher, student = make_teacher(dropout=0.5).train(), make_model(1)
    trainer = make_trainer(teacher, student)
    batch = make_batch(trainer)
    losses = trainer.teacher.losses(student.train(), batch)
    assert torch.equal(trainer.teacher.losses(student, batch), losses)


def test_one_model_however_the_batch_is_split(make_trainer):
    weights = []
    for batch, accumulation in ((16, 1), (4, 4)):
        student = make_model(1)
        split = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        set_seed(3)
        make_trainer(make_teacher(), student, **split).train()
        weights.append(student.state_dict())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-6)


def test_a_run_is_resumed_to_the_bit_and_leaves_stocks_weights(make_trainer):
    def run(resume_from=None):
        student = make_model(1, dropout=0.1)
        set_seed(3)
        saving = {"save_strategy": "steps", "save_steps": 2}
        settings = {"max_steps": 4, "learning_rate": 1e-3, **saving}
        trainer = make_trainer(make_teacher(), student, **settings)
        trainer.train(resume_from_checkpoint=resume_from)
        return trainer

    straight = run()
    folder = Path(straight.args.output_dir)
    resumed = run(folder / "checkpoint-2")
    torch.testing.assert_close(
        resumed.model.state_dict(), straight.model.state_dict(), rtol=0, atol=0
    )
    _, info = transformers.BertForPreTraining.from_pretrained(
        folder / "checkpoint-4", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    # The projection is handed on, as the original's state_dict does.
    student = BertForPreTraining.from_pretrained(str(folder / "checkpoint-4"))
    make_trainer(make_teacher(), student)
    assert torch.equal(student.fit_dense.weight, straight.model.fit_dense.weight)


def test_the_held_out_loss_is_that_of_one_batch(make_trainer):
    teacher, student = make_teacher(), make_model(1)
    trainer = make_trainer(teacher, student, per_device_eval_batch_size=3)
    metrics = trainer.evaluate()
    trainer.args.per_device_eval_batch_size = 20
    assert metrics["eval_loss"] == pytest.approx(trainer.evaluate()["eval_loss"], rel=1e-4)
    losses = [metrics[f"eval_{name}_loss"] for name in ("attention", "hidden", "embedding")]
    assert metrics["eval_loss"] == pytest.approx(np.dot(WEIGHTS, losses), rel=1e-5)


@pytest.mark.parametrize(
    ("size", "expected"), [("tinybert4", 14_350_248), ("tinybert6", 66_955_008)]
)
def test_the_papers_students_have_their_parameters(size, expected):
    """Jiao et al. 2020, section 4.1: 14.5M and 67M."""
    with torch.device("meta"):
        model = BertForPreTraining(pretraining_config(size, vocab_size=30_522))
    assert model.bert.num_parameters() == expected


def test_what_cannot_be_compared_is_one_line(make_trainer):
    for changes, message in (
        ({"num_attention_heads": 2}, "the teacher has 4 heads, the student 2"),
        ({"num_hidden_layers": 3}, "the teacher has 4 layers, the student 3"),
    ):
        with pytest.raises(InputError, match=message):
            make_trainer(make_teacher(), make_model(1, **changes))
    with pytest.raises(InputError, match="size 2/32 has 32 units, which 12 heads cannot share"):
        make_model(1, num_attention_heads=12)
