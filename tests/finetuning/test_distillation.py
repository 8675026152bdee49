"""TinyBERT's stages of a task: the teacher's layers, then its answers."""

import shutil

import pytest
import torch
import transformers
from in_process import keep_last
from tiny_runs import make_rows, write_jsonl
from torch.nn import functional as F

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments, TeachingArguments
from bert_recipes.finetuning.run import prepare_run
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.tinybert import FIT_FILE


NAMES = ["yes", "no", "perhaps"]


@pytest.fixture
def prepare(tiny_runs, tmp_path):
    """Flags -> the Trainer of a student that begins as the tiny model of its teacher's task."""
    teacher = tiny_runs("sequence_classification")
    start = teacher.parent / "start"

    def make_trainer(distil, flags="", folder="run"):
        arguments = (
            f"--task_file {teacher.parent}/data/task.yaml --dropout 0 --max_seq_length 40 "
            f"--model_name_or_path {start} --teacher {teacher} --distil {distil} --max_steps 4 "
            f"--output_dir {tmp_path / folder} --global_train_batch_size 8 --precision fp32 "
            f"--learning_rate 1e-3 --use_cpu true --disable_tqdm true {flags}"
        )
        kinds = (TaskArguments, FineTuningArguments, TeachingArguments)
        settings = parse_arguments(*kinds, argv=keep_last(arguments.split()))
        return prepare_run(*settings).trainer

    return make_trainer


def first_batch(trainer):
    return trainer.kind.collate([trainer.train_dataset[number] for number in range(7)])


@pytest.mark.parametrize("fast_layers", ["off", "auto"])
def test_the_answers_loss_and_its_gradient_are_the_soft_cross_entropy(prepare, fast_layers):
    """Jiao et al. 2020, equation 10; task_distill.py averages over the classes too."""
    trainer = prepare("prediction", f"--temperature 2 --fast_layers {fast_layers}")
    batch = first_batch(trainer)
    student = trainer.model.train()
    loss = trainer.compute_loss(student, batch)
    loss.backward()
    stock = transformers.BertForSequenceClassification(student.config)
    stock.load_state_dict(student.state_dict())
    texts = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        shares = (trainer.teacher(**texts).logits / 2).softmax(-1)
    original = -3 * (shares * (stock(**texts).logits / 2).log_softmax(-1)).mean()
    original.backward()
    assert loss.item() == pytest.approx(original.item(), rel=1e-5)
    gradients = {name: parameter.grad for name, parameter in student.named_parameters()}
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_teacher_reads_segments_which_its_student_does_not_have(prepare, tiny_runs, tmp_path):
    start = tiny_runs("sequence_classification").parent / "start"
    tokenizer = load_tokenizer(start)
    config = transformers.DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, n_layers=1, n_heads=2, hidden_dim=64
    )
    student = tmp_path / "student"
    transformers.DistilBertForMaskedLM(config).save_pretrained(student)
    tokenizer.save_pretrained(student)
    trainer = prepare("prediction", f"--model_name_or_path {student}")
    batch = first_batch(trainer)
    assert batch["token_type_ids"].any()
    loss, output = trainer.compute_loss(trainer.model.eval(), batch, return_outputs=True)
    texts = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        shares = trainer.teacher(**texts).logits.softmax(-1)
    expected = F.cross_entropy(output.logits, shares)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_teachers_classes_may_have_another_order(prepare, tiny_runs, tmp_path):
    trainer = prepare("prediction")
    loss = trainer.compute_loss(trainer.model.eval(), first_batch(trainer)).item()
    turned = shutil.copytree(tiny_runs("sequence_classification"), tmp_path / "turned")
    model = transformers.BertForSequenceClassification.from_pretrained(turned)
    order = [2, 0, 1]
    for parameter in model.classifier.parameters():
        parameter.data = parameter.data[order]
    names = [NAMES[number] for number in order]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    model.save_pretrained(turned)
    trainer = prepare("prediction", f"--teacher {turned}", folder="other")
    turned_loss = trainer.compute_loss(trainer.model.eval(), first_batch(trainer)).item()
    assert turned_loss == pytest.approx(loss, rel=1e-5)


def copy_weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("distil", ["intermediate", "prediction"])
def test_one_model_however_the_batch_is_split(prepare, distil):
    weights = []
    for size in (8, 2):
        trainer = prepare(distil, f"--per_device_train_batch_size {size}", folder=f"run{size}")
        teacher = trainer.teacher.model if distil == "intermediate" else trainer.teacher
        before = copy_weights(teacher)
        trainer.train()
        torch.testing.assert_close(copy_weights(teacher), before, rtol=0, atol=0)
        assert "teacher" in trainer.resume_fingerprint
        weights.append(copy_weights(trainer.model))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)


def test_a_stage_that_is_interrupted_ends_as_one_that_is_not(prepare, tmp_path):
    flags = "--save_strategy steps --save_steps 2 --dropout 0.1"
    trainer = prepare("intermediate", f"{flags} --save_total_limit 3")
    trainer.train()
    resumed = prepare("intermediate", flags, folder="again")
    checkpoint = tmp_path / "run" / "checkpoint-2"
    resumed.train(resume_from_checkpoint=str(checkpoint))
    weights = copy_weights(trainer.model)
    torch.testing.assert_close(copy_weights(resumed.model), weights, rtol=0, atol=0)
    assert (checkpoint / FIT_FILE).is_file()


def test_numbers_are_learned_from_the_labels(prepare, tiny_runs, tmp_path):
    """task_distill.py: the prediction stage of STS-B is the squared error to the labels."""
    rows = make_rows("sequence_classification", 0)
    rows = [row | {"label": row["label"] / 2} for row in rows]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (tmp_path / "task.yaml").write_text(
        "kind: sequence_classification\nproblem_type: regression\ntext_columns: [first, second]\n"
        "files: {train: rows.jsonl, validation: rows.jsonl}\n"
    )
    start = tiny_runs("sequence_classification").parent / "start"
    teacher = shutil.copytree(start, tmp_path / "teacher")
    model = transformers.BertForSequenceClassification.from_pretrained(start, num_labels=1)
    model.save_pretrained(teacher)
    trainer = prepare("prediction", f"--teacher {teacher} --task_file {tmp_path}/task.yaml")
    batch = first_batch(trainer)
    loss, output = trainer.compute_loss(trainer.model.eval(), batch, return_outputs=True)
    expected = F.mse_loss(output.logits[:, 0], batch["labels"])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_what_cannot_teach_is_refused(prepare, tiny_runs, tiny_checkpoint):
    tagger = tiny_runs("token_classification")
    task = tagger.parent / "data" / "task.yaml"
    for distil, flags, message in (
        ("prediction", f"--teacher {tiny_checkpoint}", "has no head for task mine"),
        ("intermediate", f"--teacher {tagger} --task_file {task}", "is token_classification"),
        ("intermediate", "--eval_strategy epoch", "give neither --eval_strategy nor --do_predict"),
        ("prediction", "--freeze_encoder true", "freeze_encoder has no meaning beside a teacher"),
        ("prediction", "--bilstm true", "bilstm has no meaning beside a teacher"),
    ):
        with pytest.raises(InputError, match=message):
            prepare(distil, flags)
    with pytest.raises(InputError, match="give both, or neither"):
        TeachingArguments(teacher="x")
