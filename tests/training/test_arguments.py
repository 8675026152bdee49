"""Settings of a run: what follows from them, and what is refused before any work."""

import pytest
import torch

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import FineTuningArguments, TaskArguments
from bert_recipes.models.sizes import SIZES
from bert_recipes.training import optimization
from bert_recipes.training.arguments import (
    NO_STEP_LIMIT,
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PhaseArguments,
    PreTrainingArguments,
    check_teacher,
    choose_precision,
    plan_phases,
)
from bert_recipes.training.bert_trainer import phase_schedule
from bert_recipes.training.pretraining import load_data


def make(tmp_path, **settings):
    return PreTrainingArguments(output_dir=str(tmp_path), **settings)


def make_finetuning(tmp_path, **settings):
    return FineTuningArguments(output_dir=str(tmp_path), use_cpu=True, **settings)


@pytest.fixture
def parse(repository, monkeypatch):
    """Read a configuration of pre-training with flags, as one of several processes; settings, and
    the phases.
    """

    def parse_it(config, *flags, processes=1):
        monkeypatch.setattr(PreTrainingArguments, "_num_processes", staticmethod(lambda: processes))
        argv = [
            "--config",
            str(repository / f"recipes/configs/pretrain/{config}.yaml"),
            *map(str, flags),
        ]
        kinds = (ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments)
        _, data, args, second = parse_arguments(*kinds, argv=argv)
        return args, plan_phases(args, data, second)

    return parse_it


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("size", SIZES)
def test_every_size_runs_on_any_number_of_gpus_with_the_papers_batch_and_steps(
    parse, size, processes
):
    """Devlin et al. 2019, appendix A.2: 256 pairs, 1,000,000 steps, 512 tokens for the last 10 % of
    them.
    """
    alone, _ = parse(f"bert_{size}")
    args, phases = parse(f"bert_{size}", processes=processes)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps * processes == 256
    assert args.per_device_train_batch_size <= alone.per_device_train_batch_size
    spans = [(p.first_step, p.end_step, p.max_seq_length, p.global_batch) for p in phases]
    assert spans == [(0, 900_000, 128, 256), (900_000, 1_000_000, 512, 256)]


@pytest.mark.parametrize(
    ("metric", "greater_is_better"),
    [
        ("loss", False),
        ("mlm_accuracy", True),
        ("perplexity", False),
        ("eval_mlm_bits_per_character", False),
    ],
)
def test_the_best_checkpoint_has_the_lowest_perplexity(tmp_path, metric, greater_is_better):
    args = make(tmp_path, metric_for_best_model=metric)
    assert args.greater_is_better is greater_is_better


def test_the_best_checkpoint_is_that_of_the_lowest_loss(tmp_path):
    args = make(tmp_path, save_strategy="best", eval_strategy="steps")
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)


def test_without_a_global_batch_the_second_phase_still_has_its_own_micro_batch(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(PreTrainingArguments, "_num_processes", staticmethod(lambda: 2))
    args = make(
        tmp_path, max_steps=10, per_device_train_batch_size=64, gradient_accumulation_steps=4
    )
    for second, batches in (
        ({"phase2_per_device_train_batch_size": 16}, [(512, 64), (512, 16)]),
        ({"phase2_global_train_batch_size": 32}, [(512, 64), (32, 64)]),
    ):
        phases = plan_phases(
            args, DataArguments(store="store"), PhaseArguments(phase2_steps=1, **second)
        )
        assert [(phase.global_batch, phase.micro_batch) for phase in phases] == batches


PER_DEVICE, ACCUMULATION = "--per_device_train_batch_size", "--gradient_accumulation_steps"
GLOBAL = "--global_train_batch_size"


@pytest.mark.parametrize(
    ("processes", "flags", "split", "examples"),
    [
        (1, (), (64, 4), 256),
        (8, (), (32, 1), 256),
        # What is typed makes the batch
        (1, (PER_DEVICE, 8), (8, 1), 8),
        (2, (ACCUMULATION, 3), (64, 3), 384),
        # unless it is typed too.
        (2, (PER_DEVICE, 8, GLOBAL, 64), (8, 4), 64),
        (1, (ACCUMULATION, 2, GLOBAL, 256), (128, 2), 256),
        (2, (GLOBAL, 64), (32, 1), 64),
    ],
)
def test_batch_sizes_that_were_typed_are_what_is_trained_with(
    parse, caplog, processes, flags, split, examples
):
    """bert_base.yaml: global batch 256, at most 64 at once."""
    args, phases = parse("bert_base", *flags, processes=processes)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == split
    assert args.global_batch_size == examples
    assert [phase.global_batch for phase in phases] == [examples, examples]
    is_told = "instead of 256" in caplog.text
    assert is_told == (GLOBAL not in flags and examples != 256)


@pytest.mark.parametrize(
    ("processes", "flags", "words"),
    [
        (
            2,
            (PER_DEVICE, 8, ACCUMULATION, 4, GLOBAL, 32),
            r"32 does not agree with .* 8 x .* 4 x 2 processes \(64\)",
        ),
        (
            4,
            (PER_DEVICE, 8, GLOBAL, 16),
            r"16 does not agree with --per_device_train_batch_size 8 x 4 processes \(32\)",
        ),
        (
            1,
            (ACCUMULATION, 3, GLOBAL, 256),
            "256 does not agree with --gradient_accumulation_steps 3",
        ),
    ],
)
def test_batch_sizes_that_contradict_each_other_are_refused(parse, processes, flags, words):
    with pytest.raises(InputError, match=words):
        parse("bert_base", *flags, processes=processes)


def test_the_file_of_a_finetuning_run_gives_way_too(repository):
    config = repository / "recipes/configs/finetune/glue.yaml"
    flags = f"--config {config} --output_dir x --task mrpc {PER_DEVICE} 8 {ACCUMULATION} 2"
    _, args = parse_arguments(TaskArguments, FineTuningArguments, argv=flags.split())
    assert args.global_batch_size == 16


def schedules(parse, config, *flags):
    """(first step, steps, warm-up) of the schedule in each phase, and the first step of each."""
    if config == "instances":
        flags += ("--train_file", "a", "--tokenizer", "b")
    args, phases = parse(config, *flags)
    spans = []
    for phase in phases:
        schedule = phase_schedule(phase, phases, args, args.max_steps)
        spans.append((schedule.start, schedule.steps, schedule.warmup_steps))
    return spans, [phase.first_step for phase in phases]


PAPER = ([(0, 1_000_000, 10_000)] * 2, [0, 900_000])


# By the clock: the fraction of the time stands for that of so many steps.
BY_CLOCK = (0, NO_STEP_LIMIT, 2 * NO_STEP_LIMIT // 100)
# Of files with one phase: their schedule, and its warm-up in a run of 300 steps.
ONE_PHASE = {
    "quickstart": ((0, 2800, 56), 6),
    "books_30_minutes": (BY_CLOCK, 6),
    "laptop": (BY_CLOCK, 6),
    "bert_budget": ((0, NO_STEP_LIMIT, 6 * NO_STEP_LIMIT // 100), 18),
    "babylm_night": (BY_CLOCK, 6),
    "babylm_gpu": (BY_CLOCK, 6),
    "roberta_base": ((0, 125_000, 10_000), 24),
    "albert_base": ((0, 125_000, 3125), 8),
    "electra_small": ((0, 1_000_000, 10_000), 3),
    "domain": ((0, 10_000, 1000), 30),
    # google-research/bert README: --num_train_steps=20 --num_warmup_steps=10.
    "instances": ((0, 20, 10), 150),
}


@pytest.mark.parametrize("config", ONE_PHASE)
def test_a_schedule_scales_with_the_run(parse, config):
    schedule, warmup_of_300 = ONE_PHASE[config]
    assert schedules(parse, config) == ([schedule], [0])
    assert schedules(parse, config, "--max_steps", 300) == ([(0, 300, warmup_of_300)], [0])


@pytest.mark.parametrize(
    ("config", "expected", "of_300"),
    [
        # Devlin et al. 2019, appendix A.2: warm-up over the first 10,000 steps, 512 tokens for the
        # last 10 %.
        *((f"bert_{size}", PAPER, ([(0, 300, 3)] * 2, [0, 270])) for size in SIZES),
        # NVIDIA DeepLearningExamples, BERT, run_pretraining.sh: 7,038 steps and 1,563, warm-up
        # 0.2843 and 0.128 of them.
        (
            "bert_large_lamb",
            ([(0, 7038, 2001), (7038, 1563, 201)], [0, 7038]),
            ([(0, 245, 70), (245, 55, 8)], [0, 245]),
        ),
    ],
)
def test_schedules_of_two_phases_are_the_sources(parse, caplog, config, expected, of_300):
    assert schedules(parse, config) == expected
    assert schedules(parse, config, "--max_steps", 300) == of_300
    # Short enough for one phase alone.
    assert schedules(parse, config, "--max_steps", 1)[1] == [0]
    assert "of 1 steps is no whole step: the run has one phase" in caplog.text


def test_epochs_have_the_warm_up_of_their_steps(parse):
    assert schedules(parse, "tapt", "--max_steps", 300) == ([(0, 300, 18)], [0])


def test_steps_or_minutes_that_are_typed_replace_those_of_the_file(parse):
    args, _ = parse("books_30_minutes", "--max_steps", 300)
    assert (args.max_steps, args.max_minutes) == (300, None)
    args, _ = parse("quickstart", "--max_minutes", 2)
    assert (args.max_steps, args.max_minutes) == (NO_STEP_LIMIT, 2)
    # Fractions of steps that nobody knows give way to the fifths of the minutes.
    args, _ = parse("tapt", "--max_minutes", 2)
    assert (args.eval_steps, args.save_steps) == (NO_STEP_LIMIT, NO_STEP_LIMIT)
    with pytest.raises(InputError, match="max_steps is 300 and max_minutes 2; give one of them"):
        parse("quickstart", "--max_minutes", 2, "--max_steps", 300)


@pytest.mark.parametrize("kind", ["inverse_sqrt", "warmup_stable_decay"])
def test_a_schedule_that_counts_steps_does_not_go_by_the_clock(parse, kind):
    flags = ("--lr_scheduler_type", kind)
    assert parse("roberta_base", *flags)[0].lr_scheduler_type == kind
    args, _ = parse("roberta_base", "--max_minutes", 2)
    assert (args.max_minutes, args.schedule) == (2, "trainer")
    with pytest.raises(InputError, match=f"'{kind}', which counts steps; allowed with max_minutes"):
        parse("roberta_base", *flags, "--max_minutes", 2)


def test_the_second_phase_of_a_file_gives_way_to_the_clock(parse, caplog):
    """docs/runs.md: make pretrain CONFIG=bert_tiny ARGS="--store my_store --max_minutes 30"."""
    args, phases = parse("bert_tiny", "--max_minutes", 30)
    assert args.max_minutes == 30
    assert [phase.max_seq_length for phase in phases] == [128]
    assert "the file's phase2_steps: left out, as a run by the clock has one phase" in caplog.text
    with pytest.raises(InputError, match="a run by the clock has one phase: leave one of them out"):
        parse("bert_tiny", "--max_minutes", 30, "--phase2_steps", 100)


def test_every_configuration_is_among_those_whose_schedules_are_tested(repository):
    names = {path.stem for path in (repository / "recipes/configs/pretrain").glob("*.yaml")}
    names_of_sizes = {f"bert_{size}" for size in SIZES}
    assert names == names_of_sizes | {"bert_large_lamb", "tapt", *ONE_PHASE}


def test_intervals_of_a_file_that_are_longer_than_the_run_become_a_fifth_of_it(parse):
    args, _ = parse("bert_base", "--max_steps", 300, "--save_steps", 1000)
    assert (args.logging_steps, args.eval_steps, args.save_steps) == (100, 60, 1000)
    args, _ = parse("bert_base")
    assert (args.logging_steps, args.eval_steps, args.save_steps) == (100, 10_000, 10_000)


@pytest.mark.parametrize(
    ("objective", "size"),
    [("tinybert", "tinybert4"), ("albert", "xxlarge"), ("electra", "small"), ("bert", "4/256")],
)
def test_members_have_sizes_of_their_own(objective, size):
    assert ModelArguments(objective=objective, size=size).size == size


@pytest.mark.parametrize(
    ("objective", "size"), [("roberta", "tinybert4"), ("bert", "xxlarge"), ("bert", "4/256/7")]
)
def test_sizes_of_other_members_are_refused(objective, size):
    with pytest.raises(InputError, match=f"size is '{size}'"):
        ModelArguments(objective=objective, size=size)


# What an objective has: against a file, and against flags


KINDS = (ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments, DistillationArguments)


@pytest.fixture
def resolve(repository):
    """Read a configuration with flags as recipes/pretrain.py does; return all values by their
    names.
    """

    def resolve_it(config, *flags):
        folder = repository / "recipes/configs/pretrain"
        path = config if str(config).endswith(".yaml") else folder / f"{config}.yaml"
        values = {}
        for settings in parse_arguments(*KINDS, argv=["--config", str(path), *map(str, flags)]):
            values.update(vars(settings))
        return values

    return resolve_it


def test_evaluations_of_a_file_for_days_do_not_take_the_minutes(resolve, caplog):
    assert resolve("bert_base")["max_eval_pairs"] == 10_000
    values = resolve("bert_base", "--max_minutes", "null")
    assert (values["max_eval_pairs"], values["max_steps"]) == (10_000, 1_000_000)
    assert "max_eval_pairs" not in caplog.text
    assert resolve("bert_base", "--max_minutes", 15)["max_eval_pairs"] == 2000
    assert "max_eval_pairs of the file becomes 2000" in caplog.text
    caplog.clear()
    flags = ("--max_minutes", 15, "--max_eval_pairs", 10_000)
    assert resolve("bert_base", *flags)["max_eval_pairs"] == 10_000
    assert resolve("quickstart", "--max_minutes", 15)["max_eval_pairs"] == 1000
    assert "max_eval_pairs" not in caplog.text


ORIGINALS = {
    # Clark et al. 2020; google-research/electra configure_pretraining.py and
    # pretrain/pretrain_helpers.py.
    "electra": {"mask_rate": 0.85, "keep_rate": 0.15, "random_rate": 0.0, "learning_rate": 2e-4},
    # google-research/albert README, version 2.
    "albert": {"dropout": 0.0, "selection": "ngrams", "pair_label": "order"},
    # Sanh et al. 2019; distillation/train.py.
    "distilbert": {
        "learning_rate": 5e-4,
        "warmup_steps": 0.05,
        "adam_beta2": 0.98,
        "weight_decay": 0.0,
        "max_grad_norm": 5.0,
        "temperature": 2.0,
        "alpha_ce": 5.0,
        "alpha_mlm": 2.0,
        "alpha_cos": 1.0,
    },
    # Jiao et al. 2020; TinyBERT/general_distill.py.
    "tinybert": {
        "learning_rate": 5e-5,
        "warmup_steps": 0.1,
        "selection": "none",
        "alpha_attn": 1.0,
        "alpha_hidn": 1.0,
        "alpha_embd": 1.0,
    },
    # fairseq models/roberta/model.py.
    "roberta": {"weight_init": "normal", "hidden_act": "gelu", "selection": "fairseq"},
    "ltr": {"selection": "causal", "pair_label": "none"},
    "mlm": {"pair_label": "none"},
}


def test_smaller_electras_have_the_rate_of_small(resolve):
    assert resolve("bert_tiny", "--objective", "electra")["learning_rate"] == 5e-4
    assert resolve("bert_large", "--objective", "electra")["learning_rate"] == 2e-4


def test_masks_that_repeat_have_one_rate():
    with pytest.raises(InputError, match="dupe_factor repeats masks"):
        DataArguments(store="s", dupe_factor=10, mlm_probability_end=0.15)


def flags_of(objective):
    teacher = ["--teacher", "x"] if objective in ("distilbert", "tinybert") else []
    return ["--objective", objective, *teacher]


@pytest.mark.parametrize("objective", ORIGINALS)
def test_an_objective_has_its_values_whatever_a_file_of_another_one_says(
    resolve, repository, caplog, objective
):
    of_file = resolve("bert_base")
    caplog.clear()
    values = resolve("bert_base", *flags_of(objective))
    text = (repository / "recipes/configs/pretrain/bert_base.yaml").read_text(encoding="utf-8")
    for name, value in ORIGINALS[objective].items():
        assert values[name] == value
        # What the file said otherwise is named, and nothing else.
        is_replaced = f"\n{name}: " in text and of_file[name] != value
        assert (f"{name} {value} instead of the file's" in caplog.text) == is_replaced


def test_what_is_typed_is_stronger_than_the_objective(resolve, caplog):
    flags = ["--learning_rate", "3e-4", "--keep_rate", "0.05", "--random_rate", "0.1"]
    values = resolve("bert_tiny", *flags_of("electra"), *flags)
    assert values["learning_rate"] == 3e-4
    rates = [values[f"{name}_rate"] for name in ("keep", "random", "mask")]
    assert rates == [0.05, 0.1, 0.85]
    assert "learning_rate" not in caplog.text
    assert resolve("bert_tiny", *flags_of("albert"), "--dropout", 0.1)["dropout"] == 0.1


@pytest.mark.parametrize("flags", [(), ("--objective", "albert")])
def test_a_file_for_the_objective_keeps_its_own_values(resolve, tmp_path, caplog, flags):
    """As run.yaml, which a run leaves and that starts it again; the objective may be typed as
    well.
    """
    text = "objective: albert\nstore: a\noutput_dir: b\ndropout: 0.2\nselection: count\n"
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    values = resolve(tmp_path / "own.yaml", *flags)
    assert (values["dropout"], values["selection"]) == (0.2, "count")
    assert values["pair_label"] == "order"
    assert "instead of" not in caplog.text


def test_the_originals_rates_are_adams_and_those_of_a_new_model(resolve):
    """Muon's files have rates of their own, and so has training that goes on from a checkpoint."""
    muon = resolve("books_30_minutes", *flags_of("electra"))
    assert (muon["optimizer"], muon["learning_rate"], muon["mask_rate"]) == ("muon", 2e-3, 0.85)
    lamb = resolve("bert_tiny", *flags_of("electra"), "--optimizer", "lamb")
    assert lamb["learning_rate"] == 1e-4
    resumed = resolve("domain", *flags_of("electra"), "--model_name_or_path", "x")
    assert (resumed["learning_rate"], resumed["mask_rate"]) == (2e-5, 0.85)
    assert resumed["hidden_act"] == "gelu_new"


def test_run_yaml_leaves_out_what_belongs_to_one_launch(tmp_path):
    batch = {"global_train_batch_size": 24, "per_device_train_batch_size": 9}
    flags = {"overwrite_run": True, "allow_changes": True, "use_cpu": True}
    args = make(tmp_path / "run", precision="fp32", **flags, **batch)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (8, 3)
    save_config(tmp_path / "run.yaml", args)
    text = (tmp_path / "run.yaml").read_text()
    # Other processes have another accumulation.
    for name in (*flags, "resume", "bf16", "gradient_accumulation_steps"):
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
    """Devlin et al. 2019, A.2: Adam 1e-4, 0.9, 0.999, decay 0.01, warm-up 10,000; optimization.py:
    1e-6, clip 1.0.
    """
    args = make(tmp_path)
    assert (args.learning_rate, args.get_warmup_steps(1_000_000)) == (1e-4, 10_000)
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.999, 1e-6)
    assert (args.weight_decay, args.max_grad_norm) == (0.01, 1.0)


def phases_of(tmp_path, **second):
    return plan_phases(
        make(tmp_path, num_train_epochs=2), DataArguments(store="a"), PhaseArguments(**second)
    )


@pytest.mark.parametrize("objective", ["distilbert", "tinybert"])
def test_an_objective_with_a_teacher_takes_it(resolve, objective):
    flags = ("--objective", objective, "--teacher", "x")
    values = resolve("quickstart", *flags)
    names = DistillationArguments.__dataclass_fields__
    check_teacher(objective, DistillationArguments(**{name: values[name] for name in names}))


@pytest.mark.parametrize(
    ("objective", "flags", "words"),
    [
        ("distilbert", "", "^--objective distilbert needs a teacher: give --teacher CHECKPOINT$"),
        ("tinybert", "", "^--objective tinybert needs a teacher"),
        ("bert", "--teacher x", "^teacher has no .* --objective bert: leave .* distilbert or tiny"),
        ("mlm", "--teacher x --temperature 2", "^teacher has no meaning with --objective mlm"),
        ("mlm", "--temperature 2", "^temperature has no .* or give --objective distilbert$"),
        ("tinybert", "--teacher x --alpha_ce 1", "^alpha_ce has no meaning with .* tinybert"),
        ("tinybert", "--teacher x --student_layers 2", "^student_layers has no meaning with"),
        ("distilbert", "--teacher x --temperature null", "^temperature is null; .* needs a number"),
    ],
)
def test_a_teacher_and_its_weights_belong_to_an_objective(resolve, objective, flags, words):
    values = resolve("quickstart", "--objective", objective, *flags.split())
    names = DistillationArguments.__dataclass_fields__
    args = DistillationArguments(**{name: values[name] for name in names})
    with pytest.raises(InputError, match=words):
        check_teacher(objective, args)


def data_of(_, **settings):
    return DataArguments(**settings)


@pytest.mark.parametrize(
    ("build", "settings", "words"),
    [
        (make, {"seed": -1}, "seed is -1"),
        (make, {"power_watts": -5}, "power_watts is -5"),
        (make, {"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0"),
        (make, {"max_steps": -2}, "^max_steps is -2; allowed: 1 or more, or -1 for num_"),
        (make, {"max_steps": 0}, "^max_steps is 0; allowed: 1 or more"),
        (make, {"learning_rate": float("nan")}, "learning_rate is nan"),
        (make, {"adam_beta1": 1.5}, "adam_beta1 is 1.5"),
        (make, {"dataloader_persistent_workers": True}, "dataloader_num_workers of 1"),
        (make, {"logging_nan_inf_filter": True}, "leave it out: it would hide"),
        (make, {"auto_find_batch_size": True}, "the global batch would change"),
        (make, {"bf16_full_eval": True}, "evaluations have the precision of the training"),
        (make, {"save_on_each_node": True}, "output_dir is one folder of all machines"),
        (make, {"enable_jit_checkpoint": True}, "SIGTERM saves a checkpoint anyway"),
        (make, {"bf16": True, "precision": "fp32"}, "give one of them"),
        (make, {"hub_token": "hf_x"}, "log in with `hf auth login`"),
        (make, {"global_train_batch_size": 0}, "global batch of 0 cannot be shared"),
        (
            make_finetuning,
            {"gradient_accumulation_steps": 4},
            "global_train_batch_size 32, which makes it 1",
        ),
        (make_finetuning, {"do_eval": True}, "do_eval has no effect here"),
        (phases_of, {"phase2_steps": 1, "phase2_learning_rate": 1e-4}, "give both, or neither"),
        (phases_of, {"phase2_steps": -1}, "allowed: 0 or more"),
        (phases_of, {"phase2_steps": 1.5}, "allowed: whole steps, or a fraction below 1"),
        (phases_of, {"phase2_steps": 0.1}, r"phase2_steps is 0\.1, max_steps -1"),
        (data_of, {}, "^no data is given: give --store FOLDER .* or --train_file"),
        (data_of, {"store": "a", "train_file": ["b"]}, "^both --store and --train_fi"),
        (data_of, {"store": "a", "short_seq_prob": 1.1}, "is 1.1; allowed: 0 to 1"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(tmp_path, build, settings, words):
    with pytest.raises(InputError, match=words):
        build(tmp_path, **settings)


def test_a_limit_of_no_predictions_is_refused(small_store):
    with pytest.raises(InputError, match=r"^max_predictions_per_seq is 0; allowed: 1 or more$"):
        load_data(DataArguments(store=str(small_store), max_predictions_per_seq=0), seed=1)


def test_do_eval_is_taken_where_eval_strategy_has_set_it_as_in_a_run_yaml(tmp_path):
    args = make_finetuning(tmp_path, eval_strategy="epoch")
    make_finetuning(tmp_path, eval_strategy="epoch", do_eval=args.do_eval)


@pytest.mark.parametrize(
    ("amx", "avx", "maker", "unit"),
    [
        (True, True, "GenuineIntel", "AMX"),
        (False, True, "AuthenticAMD", "AVX512_BF16"),
        # Half as fast as float32 there: measured on a virtual machine without AMX.
        (False, True, "GenuineIntel", None),
        (False, False, "AuthenticAMD", None),
    ],
)
def test_a_cpu_that_is_faster_in_bfloat16_uses_it_and_others_only_when_told(
    monkeypatch, amx, avx, maker, unit
):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)
    monkeypatch.setattr(optimization, "read_cpu_facts", lambda: {"vendor_id": maker})
    precision, reason = choose_precision("auto", use_cpu=True)
    assert precision == ("bf16" if unit else "fp32")
    assert (unit or "no faster") in reason
    assert choose_precision("bf16", use_cpu=True).name == "bf16"


def test_impossible_precisions_are_refused(monkeypatch):
    with pytest.raises(InputError, match="no fast fp16"):
        choose_precision("fp16", use_cpu=True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    with pytest.raises(InputError, match="no bfloat16 units"):
        choose_precision("bf16", use_cpu=False)
    assert choose_precision("auto", use_cpu=False).name == "fp16"


@pytest.mark.parametrize(
    ("flags", "rates"),
    [
        ("--selection spans", (0.15, None)),
        ("--objective roberta", (0.15, None)),
        ("--selection spans --mlm_probability 0.2", (0.2, None)),
        ("--objective albert", (0.3, 0.15)),
        ("--mlm_probability 0.2", (0.2, None)),
        ("--mlm_probability 0.2 --mlm_probability_end 0.1", (0.2, 0.1)),
        ("--dupe_factor 10", (0.15, None)),
    ],
)
def test_the_second_rate_of_a_file_gives_way_to_what_has_one(tmp_path, flags, rates):
    config = tmp_path / "config.yaml"
    lines = ["store: s", "output_dir: o", "mlm_probability: 0.3", "mlm_probability_end: 0.15"]
    config.write_text("\n".join(lines))
    kinds = (ModelArguments, DataArguments, PreTrainingArguments)
    _, data_args, _ = parse_arguments(*kinds, argv=["--config", str(config), *flags.split()])
    assert (data_args.mlm_probability, data_args.mlm_probability_end) == rates


def test_a_second_rate_of_null_is_none(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("store: s\nmlm_probability_end: null\nselection: count\n")
    argv = ["--config", str(config), "--selection", "spans"]
    (data_args,) = parse_arguments(DataArguments, argv=argv)
    assert (data_args.mlm_probability, data_args.mlm_probability_end) == (0.15, None)
