"""Settings of a run: what follows from them, and what is refused before any work."""

import pytest
from transformers import TrainingArguments

from bert_recipes.arguments import PreTrainingArguments
from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments
from bert_recipes.phases import PhaseArguments, plan_phases


def make(tmp_path, **settings):
    return PreTrainingArguments(output_dir=str(tmp_path), **settings)


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("config", ["tiny", "mini", "small", "medium", "base", "large"])
def test_every_size_runs_on_any_number_of_gpus_with_the_papers_batch_and_steps(
    monkeypatch, repository, config, processes
):
    """Devlin et al. 2019, appendix A.2: 256 pairs, 1,000,000 steps, 512 tokens for the last 10 % of them."""
    from bert_recipes.arguments import DataArguments, ModelArguments

    kinds = (ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments)
    argv = ["--config", str(repository / f"recipes/configs/pretrain/bert_{config}.yaml")]
    alone = parse_arguments(*kinds, argv=argv)[2]
    monkeypatch.setattr(PreTrainingArguments, "_num_processes", staticmethod(lambda: processes))
    _, data, args, second = parse_arguments(*kinds, argv=argv)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps * processes == 256
    assert args.per_device_train_batch_size <= alone.per_device_train_batch_size
    first, last = plan_phases(args, data, second)
    assert (first.first_step, first.end_step, first.max_seq_length, first.global_batch) == (0, 900_000, 128, 256)
    assert (last.first_step, last.end_step, last.max_seq_length, last.global_batch) == (900_000, 1_000_000, 512, 256)
    assert first.own_schedule is last.own_schedule is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"^the data is missing: give --store FOLDER .* or --train_file FILE$"),
        ({"store": "a", "train_file": ["b"]}, "^both --store and --train_file are given; give one of them$"),
    ],
)
def test_data_that_is_missing_and_data_that_is_given_twice_are_told_apart(given, message):
    from bert_recipes.arguments import DataArguments

    with pytest.raises(InputError, match=message):
        DataArguments(**given)


def test_without_a_global_batch_the_second_phase_still_has_its_own_micro_batch(tmp_path, monkeypatch):
    from bert_recipes.arguments import DataArguments

    monkeypatch.setattr(PreTrainingArguments, "_num_processes", staticmethod(lambda: 2))
    args = make(tmp_path, max_steps=10, per_device_train_batch_size=64, gradient_accumulation_steps=4)
    data = DataArguments(store="store")
    first, last = plan_phases(args, data, PhaseArguments(phase2_steps=1, phase2_per_device_train_batch_size=16))
    assert (first.global_batch, first.micro_batch) == (512, 64)
    assert (last.global_batch, last.micro_batch) == (512, 16)
    first, last = plan_phases(args, data, PhaseArguments(phase2_steps=1, phase2_global_train_batch_size=32))
    assert (first.global_batch, first.micro_batch) == (512, 64)
    assert (last.global_batch, last.micro_batch) == (32, 64)


@pytest.mark.parametrize("name", ["phase2_per_device_train_batch_size", "phase2_global_train_batch_size"])
def test_a_second_phase_without_examples_is_refused(name):
    with pytest.raises(InputError, match=f"{name} is 0; allowed: 1 or more"):
        PhaseArguments(phase2_steps=1, **{name: 0})


def test_the_global_batch_is_cut_into_the_largest_parts_that_fit(tmp_path):
    args = make(tmp_path, global_train_batch_size=24, per_device_train_batch_size=9)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (8, 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps 4 has no effect, it is 1: --global_train"),
        (
            {"per_device_train_batch_size": 64},
            "per_device_train_batch_size 64 is cut to 32: --global_train_batch_size 32",
        ),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, ""),
        ({"global_train_batch_size": 16}, ""),
    ],
)
def test_a_batch_that_another_setting_decides_is_a_warning(tmp_path, caplog, settings, words):
    with caplog.at_level("WARNING"):
        FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, **settings)
    assert words in caplog.text
    assert len(caplog.records) == bool(words)


@pytest.mark.parametrize("flag", ["do_train", "do_eval", "bf16_full_eval", "fp16_full_eval"])
def test_flags_of_the_trainer_that_a_finetuning_run_would_ignore_are_refused(tmp_path, flag):
    with pytest.raises(InputError, match=f"{flag} has no effect here"):
        FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, **{flag: True})
    # eval_strategy sets do_eval, which run.yaml then holds.
    args = FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="epoch")
    FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="epoch", do_eval=args.do_eval)


def test_run_yaml_leaves_out_what_belongs_to_one_launch(tmp_path):
    args = make(tmp_path / "run", overwrite_run=True, allow_changes=True, use_cpu=True, precision="fp32")
    save_config(tmp_path / "run.yaml", args)
    text = (tmp_path / "run.yaml").read_text()
    for name in ("overwrite_run", "resume", "allow_changes", "use_cpu", "bf16"):
        assert f"\n{name}:" not in text
    (again,) = parse_arguments(PreTrainingArguments, argv=["--config", str(tmp_path / "run.yaml")])
    assert again.precision == "fp32"
    assert not again.overwrite_run


def test_the_launcher_does_not_overrule_the_runs_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    args = make(tmp_path, precision="fp32")
    assert not args.bf16
    assert args.mixed_precision == "no"


def test_defaults_are_the_papers(tmp_path):
    """Devlin et al. 2019, A.2: Adam 1e-4, 0.9, 0.999, decay 0.01, warm-up 10,000; optimization.py: 1e-6, clip 1.0."""
    args = make(tmp_path)
    assert args.learning_rate == 1e-4
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.999, 1e-6)
    assert (args.weight_decay, args.warmup_steps, args.max_grad_norm) == (0.01, 10_000, 1.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"adam_beta1": 1.5}, "adam_beta1 is 1.5"),
        ({"dataloader_persistent_workers": True}, "dataloader_num_workers of 1"),
        ({"optim": "adafactor"}, "--optimizer trainer"),
        ({"lr_scheduler_type": "cosine"}, "--schedule trainer"),
        ({"remove_unused_columns": True}, "leave it false"),
        ({"schedule_power": 0.0}, "schedule_power is 0.0; allowed: above 0"),
        ({"bf16": True, "precision": "fp32"}, "give one of them"),
        ({"auto_find_batch_size": True}, "has no effect here"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(tmp_path, settings, words):
    with pytest.raises(InputError, match=words):
        make(tmp_path, **settings)


def test_the_trainers_own_optimiser_and_schedule_can_be_chosen(tmp_path):
    args = make(tmp_path, optimizer="trainer", optim="adafactor", schedule="trainer", lr_scheduler_type="cosine")
    assert isinstance(args, TrainingArguments)
    assert args.optim == "adafactor"


def test_settings_of_stock_that_nothing_reads_are_named_in_one_warning(tmp_path, caplog):
    unread = {"label_smoothing_factor": 0.1, "data_seed": 7, "optim_args": "a=1", "lr_scheduler_kwargs": {"b": 1}}
    make(tmp_path, **unread)
    (record,) = [record for record in caplog.records if "without effect" in record.getMessage()]
    assert record.getMessage() == (
        "without effect here: data_seed 7, label_smoothing_factor 0.1, lr_scheduler_kwargs {'b': 1}, optim_args a=1"
    )
    caplog.clear()
    chosen = {"optimizer": "trainer", "schedule": "trainer", "optim_args": "a=1", "lr_scheduler_kwargs": {}}
    FineTuningArguments(output_dir=str(tmp_path), data_seed=7, **chosen)
    assert "without effect" not in caplog.text


@pytest.mark.parametrize("steps", [-5, -2, 0])
def test_a_number_of_steps_is_positive_or_minus_one(tmp_path, steps):
    with pytest.raises(InputError, match=f"^max_steps is {steps}; allowed: 1 or more, or -1 for num_train_epochs$"):
        make(tmp_path, max_steps=steps)
    assert make(tmp_path, max_steps=-1).max_steps == -1  # stock's "not given"


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_no_predictions_is_refused(small_store, limit):
    from bert_recipes.arguments import DataArguments
    from bert_recipes.pretraining import load_data

    with pytest.raises(InputError, match=f"^max_predictions_per_seq is {limit}; allowed: 1 or more$"):
        load_data(DataArguments(store=str(small_store), max_predictions_per_seq=limit), seed=1)
