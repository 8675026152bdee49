"""TinyBERT's losses against plain formulas over stock BERTs, whatever the padding and the split of
a batch.
"""

import math

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers import set_seed

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import count_parameters, pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DistillationArguments, PreTrainingArguments
from bert_recipes.training.tinybert import FIT_FILE, TinyBertTrainer


WEIGHTS = (1.0, 0.7, 0.4)


def make_model(vocab_size, seed, size="tiny", **changes):
    torch.manual_seed(seed)
    settings = {
        "num_attention_heads": 4,
        "dropout": 0.0,
        "initializer_range": 0.1,
        "max_position_embeddings": 64,
    }
    return BertForPreTraining(pretraining_config(size, vocab_size=vocab_size, **settings | changes))


@pytest.fixture
def data(small_store):
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    ids = {"cls_id": 2, "sep_id": 3, "store_fingerprint": store.fingerprint, "max_seq_length": 48}
    return tokenizer, PreTrainingDataset(store.train, pair_label="none", **ids)


def make_trainer(data, folder, teacher, student, **changes):
    tokenizer, dataset = data
    attention, hidden, embeddings = changes.pop("weights", WEIGHTS)
    settings = DistillationArguments(
        teacher="a BERT", alpha_attn=attention, alpha_hidn=hidden, alpha_embd=embeddings
    )
    defaults = {
        "max_steps": 2,
        "precision": "fp32",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "save_strategy": "no",
    }
    args = PreTrainingArguments(output_dir=str(folder), **(defaults | changes))
    collator = DataCollatorForPreTraining(tokenizer, selection="none")
    more = {"processing_class": tokenizer, "eval_dataset": dataset, "max_eval_pairs": 20}
    return TinyBertTrainer(
        student,
        args,
        collator,
        train_dataset=dataset,
        teacher=teacher,
        settings=settings,
        **more,
    )


def make_batch(data, number=6):
    tokenizer, dataset = data
    return DataCollatorForPreTraining(tokenizer, selection="none")(
        [dataset[(0, index)] for index in range(number)]
    )


def states_of(model, batch, number_of_heads=4):
    """Stock's hidden states, and Q K^T / sqrt(d) of each layer from them."""
    stock = transformers.BertModel(model.config, add_pooling_layer=True)
    stock.load_state_dict(model.bert.state_dict())
    stock.set_attn_implementation("eager")
    names = ("input_ids", "attention_mask", "token_type_ids")
    hidden = stock(**{name: batch[name] for name in names}, output_hidden_states=True).hidden_states
    scores = []
    for layer, states in zip(stock.encoder.layer, hidden, strict=False):
        own = layer.attention.self
        query, key = (
            part(states).unflatten(-1, (number_of_heads, -1)).transpose(1, 2)
            for part in (own.query, own.key)
        )
        scores.append(query @ key.transpose(2, 3) / math.sqrt(query.shape[-1]))
    return stock, hidden, scores


def test_the_losses_and_their_gradients_are_those_of_the_plain_formulas(data, tmp_path):
    """Jiao et al. 2020, equations 7 to 9, with one fit_dense and the layers of
    general_distill.py.
    """
    teacher, student = make_model(len(data[0]), 0, "mini").eval(), make_model(len(data[0]), 1)
    trainer, batch = make_trainer(data, tmp_path, teacher, student), make_batch(data)
    loss = trainer.compute_loss(student.train(), batch)
    loss.backward()
    with torch.no_grad():
        _, taught, taught_scores = states_of(teacher, batch)
    stock, hidden, scores = states_of(student, batch)
    weight, bias = (
        student.fit_dense.get_parameter(name).detach().requires_grad_()
        for name in ("weight", "bias")
    )
    real = batch["attention_mask"] == 1
    assert not real.all()
    pairs = (real[:, :, None] & real[:, None, :])[:, None].expand_as(scores[0])
    attention = sum(
        F.mse_loss(own[pairs], taught_scores[2 * i + 1][pairs]) for i, own in enumerate(scores)
    )
    fitted = [
        F.mse_loss(F.linear(own, weight, bias)[real], taught[2 * i][real])
        for i, own in enumerate(hidden)
    ]
    expected = WEIGHTS[0] * attention + WEIGHTS[1] * sum(fitted[1:]) + WEIGHTS[2] * fitted[0]
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(student.fit_dense.weight.grad, weight.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(student.fit_dense.bias.grad, bias.grad, rtol=1e-3, atol=1e-5)
    learned = {
        name: each.grad for name, each in student.bert.named_parameters() if each.requires_grad
    }
    assert not any("pooler" in name for name in learned)
    for name, parameter in stock.named_parameters():
        if name in learned:
            torch.testing.assert_close(learned[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_without_padding_the_loss_is_the_originals_which_depends_on_padding(data, tmp_path):
    """general_distill.py: scores of -1e2 and less, those of padding, are 0 on both sides, and means
    are over everything.
    """

    def original(batch):
        (_, hidden, scores), (_, taught, taught_scores) = (
            states_of(student, batch),
            states_of(teacher, batch),
        )
        mask = (1 - batch["attention_mask"][:, None, None, :]) * -10000.0
        cut = [
            [torch.where(each + mask <= -1e2, 0.0, each + mask) for each in own]
            for own in (scores, taught_scores)
        ]
        attention = sum(
            F.mse_loss(own, other) for own, other in zip(cut[0], cut[1][1::2], strict=True)
        )
        states = zip(hidden, taught[::2], strict=True)
        return attention + sum(F.mse_loss(student.fit_dense(own), other) for own, other in states)

    teacher, student = make_model(len(data[0]), 0, "mini").eval(), make_model(len(data[0]), 1)
    trainer = make_trainer(data, tmp_path, teacher, student, weights=(1.0, 1.0, 1.0))
    padded = make_batch(data)
    length = int(padded["attention_mask"].sum(-1).min())
    cut = {name: each[:, :length] for name, each in padded.items()}
    longer = {name: F.pad(each, (0, 9)) for name, each in padded.items()}
    with torch.no_grad():
        ours = [trainer.compute_loss(student, batch).item() for batch in (cut, padded, longer)]
        theirs = [original(batch).item() for batch in (cut, padded, longer)]
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert ours[1] == pytest.approx(ours[2], rel=1e-5)
    assert abs(theirs[1] - theirs[2]) > 0.01 * theirs[1]


def test_a_student_that_is_its_teacher_has_nothing_to_learn(data, tmp_path):
    teacher, student = make_model(len(data[0]), 0), make_model(len(data[0]), 0)
    trainer = make_trainer(data, tmp_path, teacher, student)
    torch.nn.init.eye_(student.fit_dense.weight)
    losses = trainer.teacher.losses(student.train(), make_batch(data))
    losses.sum().backward()
    assert losses.abs().max() < 1e-6
    assert (
        max(each.grad.abs().max() for each in student.parameters() if each.grad is not None) < 1e-4
    )


def test_the_teacher_has_no_dropout_and_gives_one_answer(data, tmp_path):
    teacher, student = make_model(len(data[0]), 0, dropout=0.5).train(), make_model(len(data[0]), 1)
    trainer, batch = make_trainer(data, tmp_path, teacher, student), make_batch(data)
    first, second = (trainer.teacher.losses(student.train(), batch) for _ in range(2))
    assert torch.equal(first, second)
    assert not teacher.training


def test_one_model_however_the_batch_is_split(data, tmp_path):
    weights = []
    for batch, accumulation in ((16, 1), (4, 4)):
        student = make_model(len(data[0]), 1)
        split = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        set_seed(3)
        trainer = make_trainer(
            data, tmp_path, make_model(len(data[0]), 0, "mini"), student, **split
        )
        trainer.train()
        weights.append({name: value.clone() for name, value in student.state_dict().items()})
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-6)


def test_a_run_is_resumed_to_the_bit_and_leaves_stocks_weights(data, tmp_path):
    def run(folder, **changes):
        student = make_model(len(data[0]), 1, dropout=0.1)
        set_seed(3)
        settings = {
            "save_strategy": "steps",
            "save_steps": 2,
            "max_steps": 4,
            "learning_rate": 1e-3,
        }
        trainer = make_trainer(
            data, folder, make_model(len(data[0]), 0, "mini"), student, **settings
        )
        trainer.train(**changes)
        return trainer

    whole = run(tmp_path / "a")
    resumed = run(tmp_path / "b", resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    before, after = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    _, info = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "a" / "checkpoint-4", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    # The projection is handed on, as the original's state_dict does.
    start = str(tmp_path / "a" / "checkpoint-4")
    teacher = make_model(len(data[0]), 0, "mini")
    other = make_trainer(data, tmp_path / "c", teacher, BertForPreTraining.from_pretrained(start))
    assert (tmp_path / "a" / "checkpoint-4" / FIT_FILE).is_file()
    assert torch.equal(other.model.fit_dense.weight, whole.model.fit_dense.weight)


def test_the_held_out_loss_is_that_of_one_batch(data, tmp_path):
    teacher, student = make_model(len(data[0]), 0, "mini"), make_model(len(data[0]), 1)
    metrics = make_trainer(
        data, tmp_path / "a", teacher, student, per_device_eval_batch_size=3
    ).evaluate()
    fit = student.fit_dense.state_dict()
    whole = make_trainer(data, tmp_path / "b", teacher, student, per_device_eval_batch_size=20)
    whole.model.fit_dense.load_state_dict(fit)
    assert metrics["eval_loss"] == pytest.approx(whole.evaluate()["eval_loss"], rel=1e-4)
    parts = [metrics[f"eval_{name}_loss"] for name in ("attention", "hidden", "embedding")]
    assert metrics["eval_loss"] == pytest.approx(
        sum(w * p for w, p in zip(WEIGHTS, parts, strict=True)), rel=1e-5
    )


@pytest.mark.parametrize(
    ("size", "expected"), [("tinybert4", 14_350_248), ("tinybert6", 66_955_008)]
)
def test_the_papers_students_have_their_parameters(size, expected):
    """Jiao et al. 2020, section 4.1: 14.5M and 67M."""
    with torch.device("meta"):
        counts = count_parameters(BertForPreTraining(pretraining_config(size, vocab_size=30_522)))
    assert (
        sum(n for name, n in counts.items() if not name.startswith("pre-training heads"))
        == expected
    )


def test_what_cannot_be_compared_is_one_line(data, tmp_path):
    size = len(data[0])
    for changes, message in (
        ({"num_attention_heads": 2}, "the teacher has 4 heads, the student 2"),
        ({"num_hidden_layers": 3}, "the teacher has 4 layers, the student 3"),
    ):
        with pytest.raises(InputError, match=message):
            make_trainer(
                data, tmp_path, make_model(size, 0, "mini"), make_model(size, 1, **changes)
            )
    with pytest.raises(InputError, match="size tiny has 128 units, which 12 heads cannot share"):
        make_model(size, 1, num_attention_heads=12)
    imitates = {"alpha_attn": 1.0, "alpha_hidn": 1.0, "alpha_embd": 1.0}
    with pytest.raises(InputError, match="--objective tinybert needs a teacher"):
        DistillationArguments(**imitates)
    with pytest.raises(InputError, match="alpha_ce is of another objective"):
        DistillationArguments(teacher="x", alpha_ce=1.0, **imitates)
