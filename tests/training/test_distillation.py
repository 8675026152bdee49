"""DistilBERT's student and its losses, against the plain computation of
huggingface/transformers-research-projects distillation/.
"""

import copy

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.sampled_softmax import SampledSoftmax
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DistillationArguments, PreTrainingArguments
from bert_recipes.training.distillation import DistillationTrainer, copied_layers, make_student
from bert_recipes.training.speed import BatchStats


WEIGHTS = {"temperature": 2.0, "alpha_ce": 5.0, "alpha_mlm": 2.0, "alpha_cos": 1.0}


NUM_PIECES = 200


def make_teacher(member="bert", size="4/64", vocab_size=NUM_PIECES, positions=None):
    torch.manual_seed(0)
    settings = {"vocab_size": vocab_size, "dropout": 0.0, "initializer_range": 0.2}
    settings["positions"] = positions
    settings["model_type"] = member.partition("_")[0]
    return MEMBERS[member](pretraining_config(size, **settings)).eval()


def settings(**changes):
    return DistillationArguments(**({"teacher": "x"} | WEIGHTS | changes))


@pytest.fixture(scope="module")
def data(small_store):
    """A collator and a data set."""
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset.from_store(store, pair_label="none", max_seq_length=48)
    return DataCollatorForPreTraining(tokenizer), dataset


@pytest.fixture(scope="module")
def batch(data):
    collator, dataset = data
    return collator([dataset[index] for index in range(6)])


@pytest.fixture
def make_trainer(data, tmp_path):
    """Args: teacher, settings of the distillation, settings of the run."""

    def make_it(teacher, distillation_args, **changes):
        collator, dataset = data
        student = make_student(teacher, distillation_args, 1)
        defaults = {
            "max_steps": 2,
            "precision": "fp32",
            "max_grad_norm": 0.0,
            "use_cpu": True,
            "save_strategy": "no",
        }
        return DistillationTrainer(
            student,
            PreTrainingArguments(output_dir=str(tmp_path), **(defaults | changes)),
            collator,
            train_dataset=dataset,
            teacher=teacher,
            settings=distillation_args,
        )

    return make_it


def test_the_student_of_six_begins_with_the_layers_of_the_original():
    """scripts/extract_distilbert.py."""
    assert copied_layers(12, 6) == [0, 2, 4, 7, 9, 11]
    with pytest.raises(InputError, match="student_layers is 5; the teacher has 4"):
        copied_layers(4, 5)


@pytest.mark.parametrize("folds", [True, False])
def test_with_all_layers_and_the_segment_folded_in_the_student_is_its_teacher(batch, folds):
    teacher = make_teacher()
    student = make_student(teacher, settings(student_layers=4, fold_segments=folds), 1).eval()
    head = teacher.cls.predictions.transform
    student.vocab_transform.load_state_dict(head.dense.state_dict())
    student.vocab_layer_norm.load_state_dict(head.LayerNorm.state_dict())
    inputs = batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])}
    with torch.no_grad():
        logits = student(**inputs).prediction_logits - teacher(**inputs).prediction_logits
    difference = logits[batch["attention_mask"] == 1].abs().max()
    assert (difference < 1e-3) == folds


def test_a_student_of_a_random_start_has_nothing_of_its_teacher():
    teacher = make_teacher()
    query = teacher.bert.encoder.layer[0].attention.self.query.weight
    for starts in (None, False):
        student = make_student(teacher, settings(start_from_teacher=starts), 1)
        layer = student.distilbert.transformer.layer[0]
        assert torch.equal(layer.attention.q_lin.weight, query) == (starts is None)


def test_the_student_of_a_teacher_of_sets_learns_no_positions():
    teacher = make_teacher(positions="none")
    student = make_student(teacher, settings(), 1)
    weight = student.distilbert.embeddings.position_embeddings.weight
    assert not weight.any()
    assert not weight.requires_grad
    assert student.config.positions == "none"
    with pytest.raises(InputError, match="fold_segments adds to the positions, and x has none"):
        make_student(teacher, settings(fold_segments=True), 1)


def test_robertas_student_is_a_roberta():
    student = make_student(make_teacher("roberta"), settings(), 1)
    assert type(student).__name__ == "RobertaForMaskedLM"
    assert student.config.num_hidden_layers == 2


@pytest.mark.parametrize("fast_layers", ["auto", "off"])
def test_the_loss_and_its_gradient_are_those_of_the_plain_formulas(
    make_trainer, batch, fast_layers
):
    teacher = make_teacher()
    trainer = make_trainer(teacher, settings(), fast_layers=fast_layers)
    student = trainer.model.train()
    loss = trainer.compute_loss(student, batch)
    loss.backward()
    ours = {name: parameter.grad.clone() for name, parameter in student.named_parameters()}
    student.zero_grad()
    stock = transformers.DistilBertForMaskedLM(student.config).train()
    stock.load_state_dict(student.state_dict())
    stock.tie_weights()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    output = stock(**inputs, labels=batch["labels"], output_hidden_states=True)
    with torch.no_grad():
        plain = transformers.BertForPreTraining(teacher.config).eval()
        plain.load_state_dict(teacher.state_dict())
        plain.tie_weights()
        # The original's teacher reads no segments either.
        taught = plain(**inputs, output_hidden_states=True)
    real = batch["attention_mask"] == 1
    log_probs = (output.logits[real] / 2.0).log_softmax(-1)
    teacher_probs = (taught.prediction_logits[real] / 2.0).softmax(-1)
    divergence = F.kl_div(log_probs, teacher_probs, reduction="batchmean") * 4.0
    states, teacher_states = output.hidden_states[-1][real], taught.hidden_states[-1][real]
    cosine = F.cosine_embedding_loss(states, teacher_states, torch.ones(len(states)))
    expected = 5.0 * divergence + 2.0 * output.loss + cosine
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("alpha_ce", [5.0, 0.0])
def test_the_flops_of_a_step_are_those_that_pytorch_counts(make_trainer, data, alpha_ce):
    """The student's passes, the teacher's one, and where the teacher is compared both heads at
    every token.
    """
    # Without a pooler, which stock layers would compute for nothing.
    teacher = make_teacher("bert_mlm")
    trainer = make_trainer(teacher, settings(alpha_ce=alpha_ce), fast_layers="off")
    teacher.set_attn_implementation("eager")
    trainer.model.set_attn_implementation("eager")
    collator, dataset = data
    batch = collator([dataset[0]] * 3)
    work = BatchStats(*trainer.count_work(batch, trainer.num_items(batch)).tolist())
    assert work.masked > 0
    with FlopCounterMode(display=False) as counted:
        trainer.compute_loss(trainer.model.train(), batch).backward()
    assert trainer.flops_of(work) == counted.get_total_flops()


def test_a_sampled_softmax_saves_no_flops_of_the_comparison(make_trainer):
    """The divergence is over all pieces."""
    trainer = make_trainer(make_teacher("bert_mlm"), settings())
    work = BatchStats(tokens=100, squares=1000, sequences=4, masked=15)
    flops = trainer.flops_of(work)
    config = trainer.model.config
    softmax = SampledSoftmax(np.arange(config.vocab_size), seed=0)
    trainer.model.sampled_softmax = softmax
    num_left_out = config.vocab_size - len(softmax.pieces)
    assert num_left_out > 0
    assert flops - trainer.flops_of(work) == 6 * 15 * config.hidden_size * num_left_out


def test_a_head_that_is_watched_gives_the_same_divergence(make_trainer, batch):
    """A hook on the output layer sees the logits, as in stock."""
    trainer = make_trainer(make_teacher(), settings())
    student = trainer.model.train()
    loss = trainer.compute_loss(student, batch)
    shapes = []
    student.vocab_projector.register_forward_hook(lambda *args: shapes.append(args[-1].shape))
    assert trainer.compute_loss(student, batch).item() == pytest.approx(loss.item(), rel=1e-4)
    assert (int(batch["attention_mask"].sum()), NUM_PIECES) in shapes


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(make_trainer, batch):
    teacher = make_teacher("roberta")
    trainer = make_trainer(teacher, settings(student_layers=4, alpha_mlm=0.0))
    trainer.model.lm_head.load_state_dict(teacher.lm_head.state_dict())
    loss = trainer.compute_loss(trainer.model.train(), batch)
    assert loss.item() == pytest.approx(0.0, abs=1e-4)


def test_one_gradient_however_the_batch_is_accumulated_and_the_teacher_stays(make_trainer):
    weights = []
    for batch, accumulation in ((16, 1), (4, 4)):
        teacher = make_teacher(size="2/32")
        before = copy.deepcopy(teacher.state_dict())
        split = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        trainer = make_trainer(teacher, settings(student_layers=1), **split)
        trainer.train()
        torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)
        assert not teacher.training
        assert "teacher" in trainer.resume_fingerprint
        weights.append(trainer.model.state_dict())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-6)


def test_what_cannot_teach_is_one_line(tmp_path):
    with pytest.raises(InputError, match="model_type albert does not teach here"):
        make_student(make_teacher("albert"), settings(), 1)
    student = make_student(make_teacher(), settings(), 1)
    args = PreTrainingArguments(output_dir=str(tmp_path), max_steps=1, use_cpu=True)
    with pytest.raises(InputError, match="the teacher has 60 pieces, the student 200"):
        DistillationTrainer(
            student,
            args,
            train_dataset=[],
            teacher=make_teacher(vocab_size=60),
            settings=settings(),
        )
