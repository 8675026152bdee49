"""When a fine-tuning run ends early, and what a tracker is told of its speed."""

import json
import signal
from types import SimpleNamespace

import pytest
import tiny_runs
import torch
import yaml
from transformers.trainer_utils import IntervalStrategy

from bert_recipes.config import parse_arguments
from bert_recipes.errors import InputError, Interrupted
from bert_recipes.finetuning import trainer
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.finetuning.run import prepare_run
from bert_recipes.finetuning.trainer import FineTuningTrainer
from bert_recipes.models.padding_free import make_packing
from bert_recipes.training import trainer as base_trainer
from bert_recipes.training.batch_buffer import PACKING
from bert_recipes.training.console import LogPrinter
from bert_recipes.training.resume import (
    find_resume_checkpoint,
    prepare_output_dir,
    read_progress,
)
from bert_recipes.training.speed import training_flops


train_run = tiny_runs.train_run
RATE = 1e15  # FLOP/s, more than any machine of these tests


@pytest.fixture
def train(tiny_checkpoint, tmp_path, monkeypatch):
    """Flags -> the log of three steps on a machine of `RATE`, work and FLOPs of each."""
    counted = []

    def count(config, work, **values):
        flops = training_flops(config, work, **values)
        counted.append((work, flops))
        return flops

    monkeypatch.setattr(base_trainer, "best_rate", lambda *_: RATE)
    monkeypatch.setattr(trainer, "training_flops", count)

    def run(*flags):
        steps = ("--max_steps", 3, "--logging_steps", 1)
        train_run("sequence_classification", tiny_checkpoint, tmp_path, *steps, *flags)
        history = read_state(tmp_path / "run")["log_history"]
        return [line for line in history if "loss" in line], counted

    return run


def read_state(folder):
    return json.loads((folder / "trainer_state.json").read_text())


def test_a_tracked_run_logs_its_share_of_the_rate_and_the_time_left(train):
    pytest.importorskip("tensorboard", reason="the extra `tracking` is not installed")
    (first, *lines), counted = train("--report_to", "tensorboard")
    assert "mfu" not in first  # it is not timed
    for line, (work, flops) in zip(lines, counted, strict=True):
        assert (work.sequences, work.masked) == (8, 0)
        seconds = work.tokens / line["tokens_per_second"]
        assert line["mfu"] == pytest.approx(flops / seconds / RATE)
        assert line["hours_left"] == pytest.approx((3 - line["step"]) * seconds / 3600)


def test_where_an_encoder_does_not_learn_only_the_time_left_is_known(train):
    pytest.importorskip("tensorboard", reason="the extra `tracking` is not installed")
    lines, counted = train("--report_to", "tensorboard", "--freeze_encoder", "true")
    assert [line["step"] for line in lines if "hours_left" in line] == [2, 3]
    assert not counted


def test_nobody_waits_for_the_machine_to_be_measured_where_nobody_looks_on(train):
    lines, counted = train()
    assert not counted
    assert not [line for line in lines if "hours_left" in line]


def test_a_run_ends_after_evaluations_without_a_better_one_also_when_it_was_resumed(
    tiny_checkpoint, tmp_path
):
    """With a rate of 0 the first evaluation is never beaten."""
    flags = (
        "--max_steps 9 --eval_strategy steps --eval_steps 1 --save_strategy steps --save_steps 1 "
        "--learning_rate 0 --early_stopping_patience 3 --save_total_limit 9"
    )
    start = ("sequence_classification", tiny_checkpoint)
    train_run(*start, tmp_path / "a", *flags.split())
    state = read_state(tmp_path / "a" / "run")
    assert state["global_step"] == 4
    assert state["best_model_checkpoint"].endswith("checkpoint-1")
    # Of the last one the evaluations say already that it is over.
    for step in (3, 4):
        checkpoint = tmp_path / "a" / "run" / f"checkpoint-{step}"
        folder = tmp_path / f"after-{step}"
        run = train_run(*start, folder, *flags.split(), "--resume", checkpoint)
        assert run.trainer.num_resumed_steps == step
        assert read_state(folder / "run")["global_step"] == 4
        assert (folder / "run" / "checkpoint-4").is_dir() == (step == 3)


SAVING = ("--save_strategy", "steps", "--save_steps", 1)


def test_a_run_whose_labels_were_corrected_is_not_resumed(tiny_checkpoint, tmp_path, monkeypatch):
    """The texts and the order of training are the same."""
    kind = "sequence_classification"
    train_run(kind, tiny_checkpoint, tmp_path / "a", *SAVING, "--save_total_limit", 2)
    resume = ("--resume", tmp_path / "a" / "run" / "checkpoint-1")
    train_run(kind, tiny_checkpoint, tmp_path / "b", *SAVING, *resume)
    make_rows = tiny_runs.make_rows

    def make_corrected_rows(kind, seed):
        first, *rows = make_rows(kind, seed)
        return [first | {"label": (first["label"] + 1) % 3}, *rows]

    monkeypatch.setitem(train_run.__globals__, "make_rows", make_corrected_rows)
    # A checkpoint of version 0.2.0 does not know its examples.
    progress = tmp_path / "a" / "run" / "checkpoint-2" / "progress.json"
    state = json.loads(progress.read_text())
    del state["identity"]["training examples"]
    progress.write_text(json.dumps(state))
    checkpoint = tmp_path / "a" / "run" / "checkpoint-2"
    read_progress(checkpoint, {"training examples": "x"}, "none", 1, allow_changes=False)
    with pytest.raises(InputError, match=r"training examples is .* was made with"):
        train_run(kind, tiny_checkpoint, tmp_path / "c", *SAVING, *resume)


@pytest.mark.parametrize("kind", ["sequence_classification", "question_answering"])
def test_a_plateau_is_one_of_the_tasks_own_metric(tiny_checkpoint, tmp_path, kind):
    """Questions have no loss that can be compared; the rate falls where the metric is no longer
    higher.
    """
    flags = "--schedule trainer --lr_scheduler_type reduce_lr_on_plateau --eval_strategy steps"
    steps = "--eval_steps 1 --max_steps 5 --learning_rate 1e-6 --logging_steps 1"
    kwargs = ("--lr_scheduler_kwargs", '{"patience": 1}')
    run = train_run(kind, tiny_checkpoint, tmp_path, *flags.split(), *steps.split(), *kwargs)
    rates = [line["learning_rate"] for line in run.trainer.state.log_history if "loss" in line]
    # Nothing is learned at this rate: the third evaluation is the second without a higher one.
    assert rates[-1] < rates[0]
    assert run.trainer.args.metric_for_best_model == run.task.best_metric
    assert run.trainer.lr_scheduler.mode == "max"
    assert "mode" not in (run.trainer.args.lr_scheduler_kwargs or {})  # run.yaml has what was given


def test_a_metric_that_the_data_does_not_have_ends_no_run(tiny_checkpoint, tmp_path, caplog):
    flags = "--eval_strategy steps --eval_steps 1 --metric_for_best_model X_f1"
    run = train_run("token_classification", tiny_checkpoint, tmp_path, *flags.split())
    metrics = {"eval_f1": 0.5}
    assert not run.trainer._determine_best_metric(metrics, None)
    assert "the held-out data has no X_f1" in caplog.text


def test_predictions_are_of_the_weights_that_a_schedule_free_optimizer_measures(
    tiny_checkpoint, tmp_path
):
    trainer = train_run("sequence_classification", tiny_checkpoint, tmp_path).trainer
    modes = []
    trainer.optimizer = SimpleNamespace(eval=lambda: modes.append(trainer.model.training))
    trainer.evaluate()
    assert modes == [False]


def test_the_passes_that_are_printed_are_those_of_the_log(tiny_checkpoint, tmp_path):
    flags = ("--max_steps", 4, "--logging_steps", 1)
    trainer = train_run("sequence_classification", tiny_checkpoint, tmp_path, *flags).trainer
    printers = [c for c in trainer.callback_handler.callbacks if isinstance(c, LogPrinter)]
    assert [printer.trainer.epochs_at(4) for printer in printers] == [4 * 8 / 23]
    assert trainer.state.epoch == 4 * 8 / 23


def test_a_delay_in_epochs_is_one_of_epochs(tiny_checkpoint, tmp_path):
    """Three steps are an epoch of 23 rows."""
    flags = "--max_steps 9 --eval_strategy epoch --eval_delay 2"
    run = train_run("sequence_classification", tiny_checkpoint, tmp_path, *flags.split())
    steps = [line["step"] for line in run.trainer.state.log_history if "eval_accuracy" in line]
    assert steps == [6, 9]


@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [
        ("--max_seq_length 12", True),
        ("--max_seq_length 100", False),
    ],
)
def test_texts_that_are_cut_in_training_are_counted(
    tiny_checkpoint, tmp_path, caplog, flags, is_warned
):
    run = train_run("sequence_classification", tiny_checkpoint, tmp_path, *flags.split())
    num_full = sum(length == 12 for length in run.trainer.train_dataset.lengths)
    message = f"train.jsonl: {num_full} of 23 inputs fill all 12 positions; what does not fit"
    assert (message in caplog.text) is is_warned
    assert (num_full > 0) == is_warned


def test_the_settings_of_a_run_keep_its_epochs_for_another_run(tiny_checkpoint, tmp_path):
    """Another task or batch has other steps in them. A resume has the settings of its run."""
    flags = "--num_train_epochs 2 --max_steps -1 --eval_strategy epoch --save_strategy epoch"
    run = train_run("sequence_classification", tiny_checkpoint, tmp_path, *flags.split())
    assert run.trainer.state.global_step == 5  # 2 * 23 rows, 8 a step
    config = tmp_path / "run" / "run.yaml"
    settings = yaml.safe_load(config.read_text())
    assert (settings["max_steps"], settings["num_train_epochs"]) == (-1, 2.0)
    assert (settings["eval_strategy"], settings["save_strategy"]) == ("epoch", "epoch")
    assert "eval_steps" not in settings

    argv = ["--config", str(config), "--resume", "last"]
    resumed = parse_arguments(TaskArguments, FineTuningArguments, argv=argv)
    checkpoint = find_resume_checkpoint(resumed[1])
    prepare_run(*resumed)
    prepare_output_dir(resumed[1], resumed, checkpoint, {})  # refuses other settings

    argv = ["--config", str(config), "--global_train_batch_size", "4"]
    other = prepare_run(*parse_arguments(TaskArguments, FineTuningArguments, argv=argv))
    assert (other.trainer.args.max_steps, other.trainer.args.eval_steps) == (11, 6)


def test_a_signal_in_the_evaluation_that_ends_a_run_does_not_let_it_train_on(
    tiny_checkpoint, tmp_path, monkeypatch
):
    flags = (
        "--max_steps 9 --eval_strategy steps --eval_steps 1 --save_strategy steps --save_steps 1 "
        "--learning_rate 0 --early_stopping_patience 1"
    )
    start = ("sequence_classification", tiny_checkpoint)
    evaluate = FineTuningTrainer.evaluate

    def evaluate_until_step_2(self, *args, **kwargs):
        if self.state.global_step == 2:
            self.stop_request.signal = signal.SIGTERM
        return evaluate(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuningTrainer, "evaluate", evaluate_until_step_2)
        with pytest.raises(Interrupted, match="after step 2 of 9"):
            train_run(*start, tmp_path / "a", *flags.split())
    checkpoint = tmp_path / "a" / "run" / "checkpoint-2"
    train_run(*start, tmp_path / "b", *flags.split(), "--resume", checkpoint)
    state = read_state(tmp_path / "b" / "run")
    assert state["global_step"] == 2
    assert state["best_global_step"] == 1


@pytest.mark.parametrize(
    ("patience", "strategy", "name"), [(2, "no", "no"), (0, IntervalStrategy.EPOCH, "epoch")]
)
def test_early_stopping_wants_evaluations(tmp_path, patience, strategy, name):
    message = f"early_stopping_patience is {patience} and eval_strategy '{name}'"
    with pytest.raises(InputError, match=message):
        FineTuningArguments(
            output_dir=str(tmp_path), early_stopping_patience=patience, eval_strategy=strategy
        )


def test_the_packing_of_a_batch_is_that_of_its_longer_rows():
    """Where padding counts in the loss, a step's micro-batches are padded alike after packing."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    batch = {"input_ids": mask * 7, "attention_mask": mask, "token_type_ids": mask * 0}
    batch[PACKING] = make_packing(mask)
    tokenizer = SimpleNamespace(pad_token_id=9)
    padded = FineTuningTrainer._pad_to(SimpleNamespace(processing_class=tokenizer), batch, 6)
    assert padded["input_ids"].tolist() == [[7, 7, 7, 0, 9, 9], [7, 7, 7, 7, 9, 9]]
    torch.testing.assert_close(dict(padded[PACKING]), dict(make_packing(padded["attention_mask"])))
    torch.testing.assert_close(batch[PACKING]["places"], make_packing(mask)["places"])
