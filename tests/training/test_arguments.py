"""Settings of a run: what follows from them, and what is refused before any work."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.models.sizes import SIZES
from bert_recipes.training import arguments
from bert_recipes.training.arguments import PhaseArguments, PreTrainingArguments, choose_precision, plan_phases
from bert_recipes.training.bert_trainer import BertTrainer


def make(tmp_path, **settings):
    return PreTrainingArguments(output_dir=str(tmp_path), **settings)


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("config", ["tiny", "mini", "small", "medium", "base", "large"])
def test_every_size_runs_on_any_number_of_gpus_with_the_papers_batch_and_steps(
    monkeypatch, repository, config, processes
):
    """Devlin et al. 2019, appendix A.2: 256 pairs, 1,000,000 steps, 512 tokens for the last 10 % of them."""
    from bert_recipes.training.arguments import DataArguments, ModelArguments

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
    from bert_recipes.training.arguments import DataArguments

    with pytest.raises(InputError, match=message):
        DataArguments(**given)


def test_without_a_global_batch_the_second_phase_still_has_its_own_micro_batch(tmp_path, monkeypatch):
    from bert_recipes.training.arguments import DataArguments

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


def test_an_accumulation_that_the_global_batch_contradicts_is_refused(tmp_path):
    message = "gradient_accumulation_steps is 4 and global_train_batch_size 32, which makes it 1"
    with pytest.raises(InputError, match=message):
        FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, gradient_accumulation_steps=4)
    args = FineTuningArguments(
        output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=8, gradient_accumulation_steps=4
    )
    save_config(tmp_path / "run.yaml", args)
    assert "gradient_accumulation_steps" not in (tmp_path / "run.yaml").read_text()  # other processes, another one


PER_DEVICE, ACCUMULATION = "--per_device_train_batch_size", "--gradient_accumulation_steps"
GLOBAL = "--global_train_batch_size"


def read_base(repository, monkeypatch, processes, *flags):
    """bert_base.yaml: global batch 256, at most 64 at once."""
    kinds = configuration_kinds()
    monkeypatch.setattr(PreTrainingArguments, "_num_processes", staticmethod(lambda: processes))
    argv = ["--config", str(repository / "recipes/configs/pretrain/bert_base.yaml"), *map(str, flags)]
    return parse_arguments(*kinds, argv=argv)


@pytest.mark.parametrize(
    ("processes", "flags", "split", "examples"),
    [
        (1, (), (64, 4), 256),
        (8, (), (32, 1), 256),
        # What is typed makes the batch
        (1, (PER_DEVICE, 8), (8, 1), 8),
        (2, (PER_DEVICE, 8, ACCUMULATION, 3), (8, 3), 48),
        (2, (ACCUMULATION, 3), (64, 3), 384),
        # unless it is typed too.
        (2, (PER_DEVICE, 8, GLOBAL, 64), (8, 4), 64),
        (2, (ACCUMULATION, 4, GLOBAL, 64), (8, 4), 64),
        (1, (ACCUMULATION, 2, GLOBAL, 256), (128, 2), 256),
        (2, (PER_DEVICE, 8, ACCUMULATION, 4, GLOBAL, 64), (8, 4), 64),
        (2, (GLOBAL, 64), (32, 1), 64),
        (4, (PER_DEVICE, 64), (64, 1), 256),
    ],
)
def test_batch_sizes_that_were_typed_are_what_is_trained_with(
    repository, monkeypatch, caplog, processes, flags, split, examples
):
    _, data, args, second = read_base(repository, monkeypatch, processes, *flags)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == split
    assert args.global_batch_size == examples
    assert [phase.global_batch for phase in plan_phases(args, data, second)] == [examples, examples]
    told = [record.getMessage() for record in caplog.records if "instead of 256" in record.getMessage()]
    assert len(told) == (GLOBAL not in flags and examples != 256)


@pytest.mark.parametrize(
    ("processes", "flags", "words"),
    [
        (2, (PER_DEVICE, 8, ACCUMULATION, 4, GLOBAL, 32), r"32 does not agree with .* 8 x .* 4 x 2 processes \(64\)"),
        (2, (PER_DEVICE, 8, ACCUMULATION, 4, GLOBAL, 128), "128 does not agree"),
        (
            4,
            (PER_DEVICE, 8, GLOBAL, 16),
            r"16 does not agree with --per_device_train_batch_size 8 x 4 processes \(32\)",
        ),
        (1, (PER_DEVICE, 9, GLOBAL, 24), "24 does not agree"),
        (1, (ACCUMULATION, 3, GLOBAL, 256), "256 does not agree with --gradient_accumulation_steps 3"),
    ],
)
def test_batch_sizes_that_contradict_each_other_are_refused(repository, monkeypatch, processes, flags, words):
    with pytest.raises(InputError, match=words):
        read_base(repository, monkeypatch, processes, *flags)


def test_the_file_of_a_finetuning_run_gives_way_too(repository):
    argv = ["--config", str(repository / "recipes/configs/finetune/glue.yaml"), "--output_dir", "x", "--task", "mrpc"]
    _, args = parse_arguments(TaskArguments, FineTuningArguments, argv=[*argv, PER_DEVICE, "8", ACCUMULATION, "2"])
    assert args.global_batch_size == 16


def configuration_kinds():
    from bert_recipes.training.arguments import DataArguments, ModelArguments

    return ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments


def schedules(repository, config, *flags):
    """(first step, steps, warm-up) of the schedule in each phase, and the steps at which the phases begin."""
    argv = ["--config", str(repository / f"recipes/configs/pretrain/{config}.yaml"), *flags]
    if config == "instances":
        argv += ["--train_file", "a", "--tokenizer", "b"]
    _, data, args, second = parse_arguments(*configuration_kinds(), argv=argv)
    phases = plan_phases(args, data, second)
    parts = [SimpleNamespace(phase=phase) for phase in phases]
    found = []
    for part in parts:
        schedule = BertTrainer.schedule_of(SimpleNamespace(_part=part, phases=parts, args=args), args.max_steps)
        found.append((schedule.start, schedule.steps, schedule.warmup_steps))
    return found, [phase.first_step for phase in phases], args


PAPER = ([(0, 1_000_000, 10_000)] * 2, [0, 900_000])


@pytest.mark.parametrize(
    ("config", "expected", "of_300"),
    [
        # Devlin et al. 2019, appendix A.2: warm-up over the first 10,000 steps, 512 tokens for the last 10 %.
        *((f"bert_{size}", PAPER, ([(0, 300, 3)] * 2, [0, 270])) for size in SIZES),
        # NVIDIA DeepLearningExamples, BERT, run_pretraining.sh: 7,038 steps and 1,563, warm-up 0.2843 and 0.128 of them.
        (
            "bert_large_lamb",
            ([(0, 7038, 2001), (7038, 1563, 201)], [0, 7038]),
            ([(0, 245, 70), (245, 55, 8)], [0, 245]),
        ),
        ("quickstart", ([(0, 8000, 500)], [0]), ([(0, 300, 19)], [0])),
        ("books_30_minutes", ([(0, 9000, 500)], [0]), ([(0, 300, 17)], [0])),
        ("domain", ([(0, 10_000, 1000)], [0]), ([(0, 300, 30)], [0])),
        # google-research/bert README: --num_train_steps=20 --num_warmup_steps=10.
        ("instances", ([(0, 20, 10)], [0]), ([(0, 300, 150)], [0])),
    ],
)
def test_schedules_are_the_sources_and_scale_with_the_run(repository, config, expected, of_300):
    assert schedules(repository, config)[:2] == expected
    assert schedules(repository, config, "--max_steps", "300")[:2] == of_300
    # Short enough for one phase alone.
    assert schedules(repository, config, "--max_steps", "1")[1] == [0]


def test_every_configuration_is_among_those_whose_schedules_are_tested(repository):
    names = {path.stem for path in (repository / "recipes/configs/pretrain").glob("*.yaml")}
    others = {"bert_large_lamb", "quickstart", "books_30_minutes", "domain", "instances"}
    assert names == {f"bert_{size}" for size in SIZES} | others


def test_intervals_of_a_file_that_are_longer_than_the_run_become_a_fifth_of_it(repository):
    args = schedules(repository, "bert_base", "--max_steps", "300", "--save_steps", "1000")[2]
    assert (args.logging_steps, args.eval_steps, args.save_steps) == (100, 60, 1000)
    args = schedules(repository, "bert_base")[2]
    assert (args.logging_steps, args.eval_steps, args.save_steps) == (100, 10_000, 10_000)


@pytest.mark.parametrize("value", [-1, 1.5])
def test_second_phases_of_no_whole_steps_are_refused(value):
    with pytest.raises(InputError, match="allowed: whole steps, or a fraction below 1"):
        PhaseArguments(phase2_steps=value)


def test_a_share_of_an_unknown_number_of_steps_is_refused(tmp_path):
    data = configuration_kinds()[1](store="store")
    with pytest.raises(InputError, match=r"phase2_steps is 0\.1, max_steps -1"):
        plan_phases(make(tmp_path, num_train_epochs=2), data, PhaseArguments(phase2_steps=0.1))


def test_flags_of_the_trainer_that_a_finetuning_run_does_not_follow_are_named(tmp_path, caplog):
    flags = {"do_train": True, "bf16_full_eval": True}
    FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, **flags)
    assert "without effect here: bf16_full_eval True, do_train True" in caplog.text
    with pytest.raises(InputError, match="do_eval has no effect here"):
        FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, do_eval=True)
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
    assert (args.weight_decay, args.get_warmup_steps(1_000_000), args.max_grad_norm) == (0.01, 10_000, 1.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"adam_beta1": 1.5}, "adam_beta1 is 1.5"),
        ({"dataloader_persistent_workers": True}, "dataloader_num_workers of 1"),
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
    unread |= {"optim": "adafactor", "lr_scheduler_type": "cosine"}
    make(tmp_path, **unread)
    (record,) = [record for record in caplog.records if "without effect" in record.getMessage()]
    assert record.getMessage() == (
        "without effect here: data_seed 7, label_smoothing_factor 0.1, lr_scheduler_kwargs {'b': 1}, lr_scheduler_type cosine, "
        "optim adafactor, optim_args a=1"
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
    from bert_recipes.training.arguments import DataArguments
    from bert_recipes.training.pretraining import load_data

    with pytest.raises(InputError, match=f"^max_predictions_per_seq is {limit}; allowed: 1 or more$"):
        load_data(DataArguments(store=str(small_store), max_predictions_per_seq=limit), seed=1)


@pytest.mark.parametrize(("amx", "avx"), [(True, True), (False, True), (True, False)])
def test_a_cpu_with_bfloat16_units_uses_them(monkeypatch, amx, avx):
    monkeypatch.setattr(arguments, "cpu_bf16_units", lambda: {"AMX": amx, "AVX512_BF16": avx})
    chosen = choose_precision("auto", use_cpu=True)
    assert chosen.name == "bf16"
    assert ("AMX" in chosen.reason) == amx


def test_a_cpu_without_stays_with_fp32_unless_told(monkeypatch):
    monkeypatch.setattr(arguments, "cpu_bf16_units", lambda: {"AMX": False, "AVX512_BF16": False})
    assert choose_precision("auto", use_cpu=True).name == "fp32"
    assert choose_precision("bf16", use_cpu=True).name == "bf16"


def test_impossible_precisions_are_refused(monkeypatch):
    with pytest.raises(InputError, match="no fast fp16"):
        choose_precision("fp16", use_cpu=True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(InputError, match="no bfloat16 units"):
        choose_precision("bf16", use_cpu=False)
    assert choose_precision("auto", use_cpu=False).name == "fp16"
