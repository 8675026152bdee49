"""TinyBERT's stages of a task: the teacher's layers, then its answers, by the same Trainer and the
same files as fine-tuning.
"""

import runpy
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from repeated_flags import keep_last
from torch.nn import functional as F

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments, TeachingArguments
from bert_recipes.finetuning.run import prepare_run
from bert_recipes.training.tinybert import FIT_FILE


TINY_RUNS = runpy.run_path(str(Path(__file__).parents[1] / "fixtures" / "tiny_runs.py"))
LABELS = {"yes": 0, "no": 1, "perhaps": 2}


@pytest.fixture
def prepare(tiny_runs, tmp_path):
    """Flags -> the run of a student that begins as the tiny model, with the task that its
    fine-tuned teacher knows.
    """
    teacher = tiny_runs("sequence_classification")

    def run(distil, *flags, task=None, folder="run"):
        arguments = [
            "--task_file",
            task or teacher.parent / "data" / "task.yaml",
            "--dropout",
            0,
            "--max_seq_length",
            40,
        ]
        arguments += [
            "--model_name_or_path",
            teacher.parent / "start",
            "--teacher",
            teacher,
            "--distil",
            distil,
        ]
        arguments += [
            "--output_dir",
            tmp_path / folder,
            "--max_steps",
            4,
            "--global_train_batch_size",
            8,
        ]
        arguments += ["--precision", "fp32", "--use_cpu", "true", "--disable_tqdm", "true", *flags]
        kinds = (TaskArguments, FineTuningArguments, TeachingArguments)
        settings, args, teaching = parse_arguments(*kinds, argv=keep_last(arguments))
        return prepare_run(settings, args, teaching)

    return run


def first_batch(trainer):
    return trainer.kind.collate([trainer.train_dataset[number] for number in range(7)])


@pytest.mark.parametrize("fast_layers", ["off", "auto"])
def test_the_answers_loss_and_its_gradient_are_the_soft_cross_entropy(prepare, fast_layers):
    """Jiao et al. 2020, equation 10; task_distill.py, soft_cross_entropy, averages over the classes
    too.
    """
    trainer = prepare("prediction", "--temperature", 2, "--fast_layers", fast_layers).trainer
    batch, student = first_batch(trainer), trainer.model.train()
    loss = trainer.compute_loss(student, batch)
    loss.backward()
    stock = transformers.BertForSequenceClassification(student.config)
    stock.load_state_dict(student.state_dict())
    texts = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        taught = trainer.teacher(**texts).logits / 2
    original = (-taught.softmax(-1) * (stock(**texts).logits / 2).log_softmax(-1)).mean()
    (3 * original).backward()
    assert loss.item() == pytest.approx(3 * original.item(), rel=1e-5)
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(
            dict(student.named_parameters())[name].grad, parameter.grad, rtol=1e-3, atol=1e-5
        )


def test_the_teachers_classes_may_have_another_order(prepare, tiny_runs, tmp_path):
    straight = prepare("prediction").trainer
    other = tmp_path / "other"
    shutil.copytree(tiny_runs("sequence_classification"), other)
    model = transformers.BertForSequenceClassification.from_pretrained(other)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight[order])
        model.classifier.bias.copy_(model.classifier.bias[order])
    names = [list(LABELS)[number] for number in order.tolist()]
    model.config.id2label, model.config.label2id = (
        dict(enumerate(names)),
        {name: n for n, name in enumerate(names)},
    )
    model.save_pretrained(other)
    turned = prepare("prediction", "--teacher", other, folder="turned").trainer
    losses = [
        each.compute_loss(each.model.eval(), first_batch(each)).item()
        for each in (straight, turned)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("distil", ["intermediate", "prediction"])
def test_one_model_however_the_batch_is_split(prepare, distil):
    weights = []
    for size in (8, 2):
        trainer = prepare(
            distil,
            "--per_device_train_batch_size",
            size,
            "--learning_rate",
            1e-3,
            folder=f"run{size}",
        ).trainer
        teacher = trainer.teacher.model if distil == "intermediate" else trainer.teacher
        before = {name: value.clone() for name, value in teacher.state_dict().items()}
        trainer.train()
        assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
        weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-3, atol=1e-5)


def test_a_stage_that_is_interrupted_ends_as_one_that_is_not(prepare, tmp_path):
    flags = ("--save_strategy", "steps", "--save_steps", 2, "--learning_rate", 1e-3)
    whole = prepare("intermediate", *flags, "--dropout", 0.1, "--save_total_limit", 3).trainer
    whole.train()
    resumed = prepare("intermediate", *flags, "--dropout", 0.1, folder="again").trainer
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    after = resumed.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in whole.model.state_dict().items())
    assert (tmp_path / "run" / "checkpoint-2" / FIT_FILE).is_file()


def test_numbers_are_learned_from_the_labels(prepare, tiny_runs, tmp_path):
    """task_distill.py: the prediction stage of STS-B is the squared error to the labels."""
    data = tmp_path / "data"
    data.mkdir()
    rows = TINY_RUNS["make_rows"]("sequence_classification", 0)
    TINY_RUNS["write_jsonl"](
        data / "train.jsonl", [row | {"label": row["label"] / 2} for row in rows]
    )
    TINY_RUNS["write_jsonl"](
        data / "validation.jsonl", [row | {"label": row["label"] / 2} for row in rows]
    )
    (data / "task.yaml").write_text(
        "name: mine\nkind: sequence_classification\nproblem_type: regression\ntext_columns: "
        "[first, second]\n"
        "files: {train: train.jsonl, validation: validation.jsonl}\n"
    )
    start = tiny_runs("sequence_classification").parent / "start"
    teacher = transformers.BertForSequenceClassification.from_pretrained(start, num_labels=1)
    teacher.save_pretrained(tmp_path / "teacher")
    shutil.copy(start / "tokenizer.json", tmp_path / "teacher")
    shutil.copy(start / "tokenizer_config.json", tmp_path / "teacher")
    trainer = prepare(
        "prediction", "--teacher", tmp_path / "teacher", task=data / "task.yaml"
    ).trainer
    batch = first_batch(trainer)
    loss, output = trainer.compute_loss(trainer.model.eval(), batch, return_outputs=True)
    assert loss.item() == pytest.approx(
        F.mse_loss(output.logits[:, 0], batch["labels"]).item(), rel=1e-5
    )


def test_what_cannot_teach_is_one_line(prepare, tiny_runs, tiny_checkpoint):
    with pytest.raises(
        InputError,
        match=r"has no head for task mine: no \w+ head in this checkpoint \(a BertForPreTraining\)",
    ):
        prepare("prediction", "--teacher", tiny_checkpoint)
    tagger = tiny_runs("token_classification")
    with pytest.raises(
        InputError,
        match="task mine is token_classification; classes and numbers of texts are taught",
    ):
        prepare("intermediate", "--teacher", tagger, task=tagger.parent / "data" / "task.yaml")
    with pytest.raises(InputError, match="give neither --eval_strategy nor --do_predict"):
        prepare("intermediate", "--eval_strategy", "epoch")
    with pytest.raises(InputError, match="freeze_encoder has no meaning beside a teacher"):
        prepare("prediction", "--freeze_encoder", "true")
    with pytest.raises(InputError, match="give both, or neither"):
        TeachingArguments(teacher="x")
