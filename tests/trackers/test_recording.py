"""A tracker may fail at any moment: one warning, and the run is what it would have been without it."""

import logging
from importlib.util import find_spec
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainingArguments

from bert_recipes.config import parse_arguments, resolved_values
from bert_recipes.errors import InputError, Interrupted
from bert_recipes.training import trackers as recording
from bert_recipes.training.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.training.pretraining import load_data, load_model, make_trainer
from bert_recipes.training.run import run_training
from bert_recipes.training.trackers import TrackedRun, Tracker


EVENTS = ("on_train_begin", "on_log", "on_train_end")


class Stub(Tracker):
    """Counts its events and fails at one of them."""

    made: ClassVar[list["Stub"]] = []

    def __init__(self, fails_at="never", number=1):
        self.events, self.fails_at, self.number, self.files = [], fails_at, number, []
        stub = self

        class Callback(TrainerCallback):
            def on_train_begin(self, *args, **kwargs):
                stub.note("on_train_begin")

            def on_log(self, *args, **kwargs):
                stub.note("on_log")

            def on_save(self, *args, **kwargs):
                stub.note("on_save")

            def on_train_end(self, *args, **kwargs):
                stub.note("on_train_end")

        super().__init__("stub", Callback())
        Stub.made.append(self)

    def note(self, event):
        self.events.append(event)
        if event == self.fails_at and self.events.count(event) == self.number:
            raise OSError(28, "No space left on device")

    def open(self, run, state, control, model=None):
        self.run = run
        self.note("open")

    def add_files(self, files):
        self.files = [file.name for file in files]
        self.note("add_files")

    def close(self, *, failed):
        self.failed = failed
        self.note("close")


def train(store, folder, monkeypatch, make=None, **flags):
    """A run of six steps, with a stub in wandb's place."""
    argv = ["--store", store, "--output_dir", folder, "--size", "tiny", "--max_seq_length", 32, "--max_steps", 6]
    argv += ["--global_train_batch_size", 4, "--warmup_steps", 1, "--max_eval_pairs", 8, "--logging_steps", 1]
    argv += ["--eval_steps", 3, "--eval_strategy", "steps", "--save_steps", 2, "--disable_tqdm", "true"]
    argv += ["--use_cpu", "true", "--precision", "fp32", "--fast_layers", "off"]
    for name, value in flags.items():
        argv += [f"--{name}", value]
    if make is not None:
        monkeypatch.setitem(recording.TRACKERS, "wandb", make)
        argv += ["--report_to", "wandb"]
    configs = parse_arguments(ModelArguments, DataArguments, PreTrainingArguments, argv=list(map(str, argv)))
    model_args, data_args, args = configs
    data = load_data(data_args, args.seed)
    model = load_model(model_args, data.tokenizer, 32, args.seed)
    trainer = make_trainer(model, args, data, data_args.max_eval_pairs)
    run_training(trainer, configs)
    trainer.trackers.finish()
    return load_file(folder / "model.safetensors"), trainer


@pytest.fixture(scope="module")
def plain(small_store, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return train(small_store, tmp_path_factory.mktemp("plain") / "run", patch)[0]


@pytest.mark.parametrize(
    ("event", "number", "where"),
    [
        ("never", 1, None),
        ("open", 1, "its start"),
        ("on_log", 3, "on_log"),
        ("add_files", 1, "keeping files"),
        ("close", 1, "its end"),
    ],
)
def test_a_tracker_that_fails_is_dropped_with_one_warning_and_changes_nothing(
    small_store, tmp_path, monkeypatch, plain, caplog, event, number, where
):
    with caplog.at_level(logging.WARNING):
        weights, _ = train(small_store, tmp_path / "run", monkeypatch, lambda: Stub(event, number))
    stub = Stub.made[-1]
    assert all(torch.equal(weights[name], plain[name]) for name in plain)
    said = [record.getMessage() for record in caplog.records if "goes on without it" in record.getMessage()]
    if where is None:
        assert said == []
        assert stub.events[0] == "open"
        assert stub.events[-3:] == ["add_files", "on_train_end", "close"]
        assert stub.events.count("on_log") >= 8  # six steps, evaluations, the end of training
        assert not stub.failed
        assert {"run.yaml", "all_results.json"} <= set(stub.files)
    else:
        assert said == [
            f"stub fails at {where} (OSError: [Errno 28] No space left on device); the run goes on without it"
        ]
        assert stub.events[-1] == event, "nothing is asked of it any more"
        assert stub.events.count(event) == number


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("number", [1, 4, 12])
def test_a_disk_that_is_full_under_tensorboard_costs_its_log_only(
    small_store, tmp_path, monkeypatch, plain, caplog, number
):
    """Its thread of its own dies, at the start or later: nobody waits for it."""
    record_writer = pytest.importorskip("tensorboard.summary.writer.record_writer", reason="no tensorboard")
    write, calls = record_writer.RecordWriter.write, []

    def full(*args):
        calls.append(1)
        if len(calls) >= number:
            raise OSError(28, "No space left on device")
        write(*args)

    monkeypatch.setattr(record_writer.RecordWriter, "write", full)
    with caplog.at_level(logging.WARNING):
        weights, _ = train(small_store, tmp_path / "run", monkeypatch, report_to="tensorboard")
    assert len(calls) == number
    assert all(torch.equal(weights[name], plain[name]) for name in plain)
    said = [record.getMessage() for record in caplog.records if "goes on without it" in record.getMessage()]
    assert len(said) == 1
    assert "tensorboard fails at" in said[0]
    assert "No space left on device" in said[0]


def test_a_tracker_is_told_every_setting_of_the_run(small_store, tmp_path, monkeypatch):
    _, trainer = train(small_store, tmp_path / "run", monkeypatch, Stub)
    config = Stub.made[-1].run.config
    assert {"size", "max_seq_length", "learning_rate", "report_to"} <= set(config)
    assert config["report_to"] == ["wandb"]
    assert trainer.args.report_to == ["wandb"], "as it was given"


def test_any_other_callback_of_transformers_gets_all_that_it_lives_on(small_store, tmp_path, monkeypatch):
    """CodeCarbon begins at on_init_end, Neptune logs at on_evaluate, Kubeflow counts steps."""
    events = []

    class Other(TrainerCallback):
        def on_init_end(self, *args, **kwargs):
            events.append("on_init_end")

        def on_train_begin(self, *args, **kwargs):
            events.append("on_train_begin")

        def on_step_end(self, *args, **kwargs):
            events.append("on_step_end")

        def on_evaluate(self, *args, metrics, **kwargs):
            events.append("on_evaluate")

        def on_train_end(self, *args, **kwargs):
            events.append("on_train_end")

    monkeypatch.setattr(recording, "get_reporting_integration_callbacks", lambda names: [Other])
    train(small_store, tmp_path / "run", monkeypatch, report_to="mlflow")
    assert events[:2] == ["on_init_end", "on_train_begin"]
    assert events.count("on_step_end") == 6
    assert events.count("on_evaluate") >= 2
    assert events[-1] == "on_train_end"
    assert events.count("on_init_end") == events.count("on_train_end") == 1


def test_secrets_are_no_settings():
    args = TrainingArguments(output_dir="x", hub_token="hf_secret", use_cpu=True)
    assert "hf_secret" not in str(resolved_values(args))


def test_a_run_that_fails_ends_its_trackers_as_failed(small_store, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise Interrupted("stopped by SIGTERM", 143)

    monkeypatch.setattr("bert_recipes.training.run._train_and_measure", fail)
    with pytest.raises(Interrupted):
        train(small_store, tmp_path / "run", monkeypatch, Stub)
    assert Stub.made[-1].events == [], "nothing was logged: nothing was opened"
    original = Stub.open

    def opened_then_failed(trainer, resume_from):
        trainer.log({"loss": 1.0})
        fail()

    monkeypatch.setattr("bert_recipes.training.run._train_and_measure", opened_then_failed)
    with pytest.raises(Interrupted):
        train(small_store, tmp_path / "other", monkeypatch, Stub)
    stub = Stub.made[-1]
    assert stub.events == ["open", "on_log", "on_train_end", "close"]
    assert stub.failed
    assert stub.files == []
    assert Stub.open is original


def test_only_the_main_process_has_trackers():
    args = SimpleNamespace(report_to=["tensorboard"], process_index=1, output_dir="x", run_name=None)
    assert recording.Trackers(args).trackers == []


@pytest.mark.parametrize("name", ["wanbd", "clearml"])
def test_a_tracker_that_cannot_be_had_is_one_line(name):
    if find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    args = SimpleNamespace(report_to=[name], process_index=0, output_dir="x", run_name=None)
    with pytest.raises(InputError, match=f"report_to: {name} cannot be used: .*{name}"):
        recording.Trackers(args)


def test_runs_have_names_that_tell_them_apart(tmp_path):
    def name(folder, run_name=None):
        return TrackedRun(SimpleNamespace(output_dir=str(tmp_path / folder), run_name=run_name)).name

    assert name("my_bert") == "my_bert"
    assert name("my_bert", "other") == "other"
    assert name("mrpc_paper/lr2e-05/seed-1") == "lr2e-05-seed-1"


def test_notes_are_kept_for_a_run_that_goes_on_only(tmp_path, caplog):
    args = SimpleNamespace(output_dir=str(tmp_path), run_name=None)
    begun = TrackedRun(args, {"seed": 1})
    begun.note("wandb", {"id": "abc"})
    begun.note("trackio", {"name": "n"})
    assert TrackedRun(args, {"seed": 1}, resumes=True).notes("wandb") == {"id": "abc"}
    assert TrackedRun(args, {"seed": 1}, resumes=True).notes("trackio") == {"name": "n"}
    assert TrackedRun(args, {"seed": 1}, resumes=False).notes("wandb") == {}
    (tmp_path / "trackers.json").write_text("{", encoding="utf-8")
    assert TrackedRun(args, {"seed": 1}, resumes=True).notes("wandb") == {}
    assert "cannot be read" in caplog.text
