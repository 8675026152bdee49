"""DistilBERT's student and its losses, against the plain computation of
huggingface/transformers-research-projects distillation/.
"""

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
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DistillationArguments, PreTrainingArguments
from bert_recipes.training.distillation import DistillationTrainer, chosen_layers, make_student
from bert_recipes.training.speed import BatchStats


WEIGHTS = {"temperature": 2.0, "alpha_ce": 5.0, "alpha_mlm": 2.0, "alpha_cos": 1.0}


def make_teacher(vocab_size, member="bert", size="mini"):
    torch.manual_seed(0)
    model_type = member.partition("_")[0]
    return MEMBERS[member](
        pretraining_config(
            size, vocab_size=vocab_size, model_type=model_type, dropout=0.0, initializer_range=0.2
        )
    ).eval()


def settings(**changes):
    return DistillationArguments(**({"teacher": "x"} | WEIGHTS | changes))


@pytest.fixture
def data(small_store):
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    ids = {"cls_id": 2, "sep_id": 3, "store_fingerprint": store.fingerprint, "max_seq_length": 48}
    return tokenizer, PreTrainingDataset(store.train, pair_label="none", **ids)


def make_trainer(data, tmp_path, teacher, own, **changes):
    tokenizer, dataset = data
    student = make_student(teacher, own, 1)
    defaults = {
        "max_steps": 2,
        "precision": "fp32",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "save_strategy": "no",
    }
    args = PreTrainingArguments(output_dir=str(tmp_path), **(defaults | changes))
    collator = DataCollatorForPreTraining(tokenizer)
    return DistillationTrainer(
        student, args, collator, train_dataset=dataset, teacher=teacher, settings=own
    )


def test_the_student_of_six_begins_with_the_layers_of_the_original():
    """scripts/extract_distilbert.py."""
    assert chosen_layers(12, 6) == [0, 2, 4, 7, 9, 11]
    with pytest.raises(InputError, match="student_layers is 5; the teacher has 4"):
        chosen_layers(4, 5)


@pytest.mark.parametrize("folds", [True, False])
def test_with_all_layers_and_the_segment_folded_in_the_student_is_its_teacher(data, folds):
    tokenizer, dataset = data
    teacher = make_teacher(len(tokenizer))
    student = make_student(teacher, settings(student_layers=4, fold_segments=folds), 1).eval()
    head = teacher.cls.predictions.transform
    student.vocab_transform.load_state_dict(head.dense.state_dict())
    student.vocab_layer_norm.load_state_dict(head.LayerNorm.state_dict())
    batch = DataCollatorForPreTraining(tokenizer)([dataset[index] for index in range(5)])
    batch["token_type_ids"].zero_()
    with torch.no_grad():
        difference = (student(**batch).prediction_logits - teacher(**batch).prediction_logits)[
            batch["attention_mask"] == 1
        ]
    assert (difference.abs().max() < 1e-3) == folds


def test_a_student_of_a_random_start_has_nothing_of_its_teacher(data):
    teacher = make_teacher(len(data[0]))
    taken = make_student(teacher, settings(), 1).state_dict().values()
    of_teacher = [value for value in teacher.state_dict().values() if value.dim() == 2]
    own = make_student(teacher, settings(start_from_teacher=False), 1).state_dict().values()

    def shared(values):
        return sum(torch.equal(one, other) for one in values for other in of_teacher)

    assert shared(taken) > 10
    assert shared(own) == 0


def test_robertas_student_is_a_roberta(data):
    teacher = make_teacher(len(data[0]), "roberta")
    student = make_student(teacher, settings(), 1)
    assert type(student).__name__ == "RobertaForMaskedLM"
    assert student.config.num_hidden_layers == 2


@pytest.mark.parametrize("fast_layers", ["auto", "off"])
def test_the_loss_and_its_gradient_are_those_of_the_plain_formulas(data, tmp_path, fast_layers):
    tokenizer, dataset = data
    teacher, own = make_teacher(len(tokenizer)), settings()
    trainer = make_trainer(data, tmp_path, teacher, own, fast_layers=fast_layers)
    batch = DataCollatorForPreTraining(tokenizer)([dataset[index] for index in range(6)])
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
        taught = plain(**inputs, token_type_ids=batch["token_type_ids"], output_hidden_states=True)
    real = batch["attention_mask"] == 1
    said, goal = (each / 2.0 for each in (output.logits[real], taught.prediction_logits[real]))
    divergence = F.kl_div(said.log_softmax(-1), goal.softmax(-1), reduction="batchmean") * 4.0
    ends = output.hidden_states[-1][real], taught.hidden_states[-1][real]
    cosine = F.cosine_embedding_loss(*ends, torch.ones(len(ends[0])))
    expected = 5.0 * divergence + 2.0 * output.loss + cosine
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("alpha_ce", [5.0, 0.0])
def test_the_flops_of_a_step_are_those_that_pytorch_counts(data, tmp_path, alpha_ce):
    """The student's passes, the teacher's one, and where the teacher is compared both heads at
    every token.
    """
    tokenizer, dataset = data
    teacher = make_teacher(
        len(tokenizer), "bert_mlm"
    )  # without a pooler, which stock layers would compute for nothing
    trainer = make_trainer(data, tmp_path, teacher, settings(alpha_ce=alpha_ce), fast_layers="off")
    for each in (teacher, trainer.model):
        each.set_attn_implementation("eager")
    batch = DataCollatorForPreTraining(tokenizer)([dataset[0]] * 3)
    work = BatchStats(*trainer.count_work(batch, trainer.num_items(batch)).tolist())
    assert work.masked > 0
    with FlopCounterMode(display=False) as counted:
        trainer.compute_loss(trainer.model.train(), batch).backward()
    assert trainer.flops_of(work) == counted.get_total_flops()


def test_a_head_that_is_watched_gives_the_same_divergence(data, tmp_path):
    """A hook on the output layer sees the logits, as in stock."""
    tokenizer, dataset = data
    losses, seen = [], []
    for is_watched in (False, True):
        trainer = make_trainer(data, tmp_path, make_teacher(len(tokenizer)), settings())
        if is_watched:
            trainer.model.vocab_projector.register_forward_hook(
                lambda *args: seen.append(args[-1].shape)
            )
        batch = DataCollatorForPreTraining(tokenizer)([dataset[index] for index in range(4)])
        loss = trainer.compute_loss(trainer.model.train(), batch)
        loss.backward()
        losses.append((loss.item(), trainer.model.get_input_embeddings().weight.grad.norm().item()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert (int(batch["attention_mask"].sum()), len(tokenizer)) in seen


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it(data, tmp_path):
    teacher = make_teacher(len(data[0]), "roberta")
    own = settings(student_layers=4, alpha_mlm=0.0)
    trainer = make_trainer(data, tmp_path, teacher, own)
    trainer.model.lm_head.load_state_dict(teacher.lm_head.state_dict())
    tokenizer, dataset = data
    batch = DataCollatorForPreTraining(tokenizer)([dataset[index] for index in range(4)])
    loss = trainer.compute_loss(trainer.model.train(), batch)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-4)
    assert (
        max(
            parameter.grad.abs().max()
            for parameter in trainer.model.parameters()
            if parameter.grad is not None
        )
        < 1e-3
    )


def test_one_gradient_however_the_batch_is_accumulated_and_the_teacher_stays(data, tmp_path):
    weights = []
    for batch, accumulation in ((16, 1), (4, 4)):
        teacher = make_teacher(len(data[0]), size="tiny")
        before = {name: value.clone() for name, value in teacher.state_dict().items()}
        trainer = make_trainer(
            data,
            tmp_path,
            teacher,
            settings(student_layers=1),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
        )
        trainer.train()
        assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
        assert not teacher.training
        weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-6)


def test_what_cannot_teach_is_one_line(data, tmp_path):
    with pytest.raises(InputError, match="model_type albert does not teach here"):
        make_student(make_teacher(50, "albert"), settings(), 1)
    student = make_student(make_teacher(50), settings(), 1)
    args = PreTrainingArguments(output_dir=str(tmp_path), max_steps=1, use_cpu=True)
    with pytest.raises(InputError, match="the teacher has 60 pieces, the student 50"):
        DistillationTrainer(
            student, args, train_dataset=data[1], teacher=make_teacher(60), settings=settings()
        )
    with pytest.raises(InputError, match="needs a teacher"):
        DistillationArguments(**WEIGHTS)
    with pytest.raises(InputError, match="give both, or neither"):
        DistillationArguments(teacher="x")
