"""A tracker may fail at any moment: one warning, and the run is what it would have been without
it.
"""

import logging
from functools import partialmethod
from importlib.util import find_spec
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainingArguments

from bert_recipes.config import parse_arguments, resolved_values
from bert_recipes.errors import InputError, Interrupted
from bert_recipes.training import trackers
from bert_recipes.training.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.training.pretraining import load_data, load_model, make_trainer
from bert_recipes.training.run import run_training


class Other(TrainerCallback):
    """Any callback: CodeCarbon begins at on_init_end, Neptune logs at on_evaluate, Kubeflow counts
    steps. Fails at one event.
    """

    made: ClassVar[list["Other"]] = []

    def __init__(self, fails_at="never", number=1):
        self.events, self.fails_at, self.number, self.arguments = [], fails_at, number, {}
        Other.made.append(self)

    def note(self, event, *args, **kwargs):
        self.events.append(event)
        self.arguments[event] = args
        if event == self.fails_at and self.events.count(event) == self.number:
            raise OSError(28, "No space left on device")


class Stub(Other):
    """One of ours, in the place of wandb."""


OF_ALL = ("on_init_end", "on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_train_end")
for kind, events in ((Other, OF_ALL), (Stub, ("start", "add_files", "close"))):
    for event in events:
        setattr(kind, event, partialmethod(Other.note, event))


def train(store, folder, monkeypatch, make=None, **flags):
    """A run of six steps, with a stub in wandb's place."""
    argv = [
        "--store",
        store,
        "--output_dir",
        folder,
        "--size",
        "tiny",
        "--max_seq_length",
        32,
        "--max_steps",
        6,
    ]
    argv += [
        "--global_train_batch_size",
        4,
        "--warmup_steps",
        1,
        "--max_eval_pairs",
        8,
        "--logging_steps",
        1,
    ]
    argv += [
        "--eval_steps",
        3,
        "--eval_strategy",
        "steps",
        "--save_steps",
        2,
        "--disable_tqdm",
        "true",
    ]
    argv += ["--use_cpu", "true", "--precision", "fp32", "--fast_layers", "off"]
    for name, value in flags.items():
        argv += [f"--{name}", value]
    if make is not None:
        monkeypatch.setitem(trackers.OWN, "wandb", make)
        argv += ["--report_to", "wandb"]
    configs = parse_arguments(
        ModelArguments, DataArguments, PreTrainingArguments, argv=list(map(str, argv))
    )
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


def dropped(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if "continues without it" in record.getMessage()
    ]


@pytest.mark.parametrize(
    ("event", "number"), [("never", 1), ("start", 1), ("on_log", 3), ("add_files", 1), ("close", 1)]
)
def test_a_tracker_that_fails_is_dropped_with_one_warning_and_changes_nothing(
    small_store, tmp_path, monkeypatch, plain, caplog, event, number
):
    with caplog.at_level(logging.WARNING):
        weights, trainer = train(
            small_store, tmp_path / "run", monkeypatch, lambda: Stub(event, number)
        )
    stub = Stub.made[-1]
    assert all(torch.equal(weights[name], plain[name]) for name in plain)
    if event == "never":
        assert dropped(caplog) == []
        assert stub.events[0] == "start"
        assert stub.events[-3:] == ["add_files", "on_train_end", "close"]
        assert stub.events.count("on_log") >= 8  # six steps, evaluations, the end of training
        assert stub.arguments["close"] == (False,)
        assert {"run.yaml", "all_results.json"} <= {
            file.name for file in stub.arguments["add_files"][0]
        }
        config = stub.arguments["start"][0].config
        assert {"size", "max_seq_length", "learning_rate", "report_to"} <= set(config)
        assert config["report_to"] == trainer.args.report_to == ["wandb"], "as it was given"
    else:
        reason = "OSError: [Errno 28] No space left on device"
        assert dropped(caplog) == [
            f"wandb fails at {event} ({reason}); the run continues without it"
        ]
        assert stub.events[-1] == event, "nothing is asked of it any more"
        assert stub.events.count(event) == number


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("number", [1, 4, 12])
def test_a_disk_that_is_full_under_tensorboard_costs_its_log_only(
    small_store, tmp_path, monkeypatch, plain, caplog, number
):
    """Its thread of its own dies, at the start or later: nobody waits for it."""
    record_writer = pytest.importorskip(
        "tensorboard.summary.writer.record_writer", reason="no tensorboard"
    )
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
    (said,) = dropped(caplog)
    assert said.startswith("tensorboard fails at")
    assert "No space left on device" in said


def test_any_other_callback_of_transformers_gets_all_that_it_lives_on(
    small_store, tmp_path, monkeypatch
):
    monkeypatch.setattr(trackers, "get_reporting_integration_callbacks", lambda names: [Other])
    train(small_store, tmp_path / "run", monkeypatch, report_to="mlflow")
    events = Stub.made[-1].events
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

    def opened_then_failed(trainer, resume_from):
        trainer.log({"loss": 1.0})
        fail()

    monkeypatch.setattr("bert_recipes.training.run._train_and_measure", opened_then_failed)
    with pytest.raises(Interrupted):
        train(small_store, tmp_path / "other", monkeypatch, Stub)
    stub = Stub.made[-1]
    assert stub.events == ["start", "on_log", "on_train_end", "close"]
    assert stub.arguments["close"] == (True,)


def made(report_to=(), **settings):
    return trackers.Trackers(
        SimpleNamespace(
            **{"report_to": report_to, "process_index": 0, "output_dir": "x", "run_name": None}
            | settings
        )
    )


def test_only_the_main_process_has_trackers():
    assert made(["tensorboard"], process_index=1).callbacks == {}


@pytest.mark.parametrize("name", ["wanbd", "clearml"])
def test_a_tracker_that_cannot_be_had_is_one_line(name):
    if find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(InputError, match=f"report_to: {name} cannot be used: .*{name}"):
        made([name])


@pytest.mark.parametrize(
    ("folder", "run_name", "name"),
    [
        ("my_bert", None, "my_bert"),
        ("my_bert", "other", "other"),
        ("mrpc_paper/lr2e-05/seed-1", None, "lr2e-05-seed-1"),
    ],
)
def test_runs_have_names_that_tell_them_apart(tmp_path, folder, run_name, name):
    assert made(output_dir=str(tmp_path / folder), run_name=run_name).name == name


def test_notes_are_kept_for_a_run_that_goes_on_only(tmp_path):
    configs = (TrainingArguments(output_dir=str(tmp_path), use_cpu=True),)
    started, other = made(output_dir=str(tmp_path)), made(["tensorboard"], output_dir=str(tmp_path))
    started.note("wandb", {"id": "of what is only measured"})
    assert not (tmp_path / "trackers.json").exists()
    with started.recording(configs, resumes=False):
        started.note("wandb", {"id": "abc"})
        started.note("trackio", {"name": "n"})
    with other.recording(configs, resumes=True):
        assert other.notes == {"wandb": {"id": "abc"}, "trackio": {"name": "n"}}
    with other.recording(configs, resumes=False):
        assert other.notes == {}
