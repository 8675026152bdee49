"""Both sides do the same work, and what they did is counted right."""

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import quality
import sides
import torch
from lengths import TASK_LIMITS
from measuring import measure
from sample import BUDGET, MAX_WARMUP_STEPS, OURS, STOCK_DEFAULTS, Sample
from side_by_side import describe_failure, run_sample
from sides import LikeLengths, make_side, stock_configurations
from transformers.trainer_pt_utils import LengthGroupedSampler

from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import DistillationArguments
from bert_recipes.training.pretraining import build_model, load_data, make_trainer


CONFIGS = Path(__file__).resolve().parents[2] / "recipes" / "configs"
SIDES = pytest.mark.parametrize("side", [STOCK_DEFAULTS, OURS])
STOCK_ON_CPUS = [
    (section, name)
    for section in ("cpu", "cpu_without_bf16")
    for name in stock_configurations(section)
]


@pytest.fixture
def sample(tmp_path):
    return Sample(
        kind="pretraining",
        side=OURS,
        work_dir=str(tmp_path),
        config=str(CONFIGS / "pretrain" / "bert_tiny.yaml"),
        length=32,
        tokens_per_step=128,
        vocab_size=200,
        use_cpu=True,
        warmup_steps=1,
        min_steps=2,
        max_steps=3,
        budget_seconds=60.0,
    )


@pytest.fixture
def task_sample(sample):
    return replace(
        sample,
        kind="finetuning",
        config=str(CONFIGS / "finetune" / "glue.yaml"),
        length=128,
        task="sst2",
        lengths=(0, 0, 0, 0, 5, 3, 2, 0, 0, 4),
        batch_size=4,
        whole_pass=True,
    )


def unmasked(batch):
    """The rows of a batch without pads, as they were before masking, with their pair's label."""
    labels = batch["labels"]
    original = torch.where(labels == -100, batch["input_ids"], labels)
    return [rows_of(original, batch["attention_mask"]), batch["next_sentence_label"].tolist()]


def rows_of(ids, attention_mask):
    """The rows of a batch without pads."""
    return [row[mask.bool()].tolist() for row, mask in zip(ids, attention_mask, strict=True)]


def test_both_sides_train_on_the_same_pairs_in_the_same_batches(sample):
    ours = iter(make_side(sample).get_train_dataloader())
    stock = make_side(replace(sample, side=STOCK_DEFAULTS))
    for batch in itertools.islice(stock.get_train_dataloader(), 4):
        assert unmasked(batch) == unmasked(next(ours))
    assert type(stock.model).__module__.startswith("transformers.")
    assert type(stock.data_collator).__module__.startswith("transformers.")
    assert stock.model.config.hidden_act == "gelu"
    assert stock.model.config._attn_implementation == "sdpa"
    assert stock.accelerator.mixed_precision == "no"


def test_both_sides_are_fine_tuned_on_the_same_features(task_sample):
    features = sides.make_features(task_sample, 16)
    stock_sample = replace(task_sample, side=STOCK_DEFAULTS)
    expected = sorted(feature["input_ids"] for feature in features)
    for trainer in (
        sides.our_finetuning(task_sample, features),
        sides.stock_finetuning(stock_sample, features),
    ):
        rows = []
        for batch in trainer.get_train_dataloader():
            rows += rows_of(batch["input_ids"], batch["attention_mask"])
        assert sorted(rows) == expected


def test_batches_of_like_length_come_in_any_order():
    """Stock serves each fifty batches from the longest to the shortest; here the first ones are
    like all.
    """
    lengths = torch.randint(5, 128, (4 * 64,), generator=torch.Generator().manual_seed(0))
    order = list(LikeLengths(lengths.tolist(), 4, seed=1))
    assert sorted(order) == list(range(len(lengths)))
    batches = lengths[order].view(64, 4).float()
    spreads = batches.amax(dim=1) - batches.amin(dim=1)
    assert (spreads <= 12).sum() >= 60
    means = batches.mean(dim=1)
    assert abs(means[:20].mean() - means.mean()) < 15
    assert means.tolist() != sorted(means.tolist(), reverse=True)


@SIDES
def test_pads_are_counted_apart_and_take_no_part_in_the_rate(sample, side):
    sample = replace(sample, side=side)
    batches = list(itertools.islice(make_side(sample).get_train_dataloader(), 1, 4))
    result = measure(sample)
    tokens = [int(batch["attention_mask"].sum()) for batch in batches]
    positions = sum(batch["input_ids"].numel() for batch in batches)
    assert (result["step_tokens"], result["step_sequences"]) == (tokens, [4, 4, 4])
    assert (result["tokens"], result["positions"]) == (sum(tokens), positions)
    assert result["pads"] == positions - sum(tokens)
    assert 0 < result["masked"] < result["tokens"]
    # Times are rounded in the file.
    rate = result["tokens"] / sum(result["step_seconds"])
    assert result["tokens_per_second"] == pytest.approx(rate, rel=1e-3)
    assert result["flops"] > 0


@pytest.mark.parametrize(
    ("side", "switches", "precision"),
    [
        (OURS, {"precision": "bf16"}, "bf16"),
        (OURS, {"precision": "fp32"}, "fp32"),
        (STOCK_DEFAULTS, {}, "fp32"),
    ],
)
def test_the_precision_is_that_of_the_side_alone(sample, monkeypatch, side, switches, precision):
    """Our settings are read for the data of both sides, and leave their precision in the
    environment.
    """
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert measure(replace(sample, side=side, switches=switches))["precision"] == precision


def test_the_time_ends_a_sample_but_not_before_its_least_steps(sample):
    result = measure(replace(sample, budget_seconds=1e-9, max_steps=40, warmup_seconds=1e-9))
    assert len(result["step_seconds"]) == 2
    assert result["warmup_steps"] == 1


def test_a_warm_up_ends_after_some_steps(sample):
    """Steps after it are counted, wherever it ends."""
    result = measure(replace(sample, warmup_seconds=60.0))
    assert result["warmup_steps"] == MAX_WARMUP_STEPS
    assert len(result["step_seconds"]) == len(result["losses"]) == 3


@pytest.mark.parametrize("task", ["conll2003", "squad"])
@SIDES
def test_a_task_trains_on_each_side(task_sample, task, side):
    limit = TASK_LIMITS[task]
    config = str(CONFIGS / "finetune" / f"{limit.config}.yaml")
    result = measure(replace(task_sample, side=side, task=task, config=config))
    assert len(result["step_seconds"]) == 3
    assert (result["sequences"], result["masked"]) == (12, 0)
    if side == STOCK_DEFAULTS and limit.stock_padding == "max":
        assert result["positions"] == 12 * limit.max_length
    else:
        assert result["positions"] <= 12 * 9


@SIDES
def test_predictions_are_timed_on_each_side(task_sample, side):
    settings = {"kind": "inference", "side": side, "budget_seconds": 0.01, "batch_size": 8}
    result = measure(replace(task_sample, **settings))
    assert result["examples"] == 16
    assert result["examples_per_second"] > 0


@pytest.mark.parametrize(("unit", "precisions"), [("AMX", {"fp32", "bf16"}), (None, {"fp32"})])
def test_rates_of_matrix_products_are_measured_in_the_precisions_of_the_machine(
    sample, monkeypatch, unit, precisions
):
    monkeypatch.setattr("sample.bfloat16_unit", lambda device: unit)
    result = measure(replace(sample, kind="matmul", variant="small", use_cpu=True))
    assert set(result["best_gflops"]) == precisions
    rates = result["rates"]["fp32"].values()
    assert result["best_gflops"]["fp32"] == max(rate["gflops"] for rate in rates)


@pytest.mark.slow
def test_a_sample_is_a_process(sample):
    one_step = replace(
        sample,
        min_steps=1,
        max_steps=1,
        lengths=(0, 1),
        files=("a",),
    )
    result, error = run_sample(one_step)
    assert error is None
    assert result["tokens"] > 0
    assert result["machine"]["torch"] == torch.__version__
    assert run_sample(sample, timeout=0.2) == ({}, "still running after 0 s")


@pytest.mark.parametrize(
    ("code", "stderr", "message"),
    [
        (1, "Traceback\n  File x\nValueError: too large\n\n", "exit code 1: ValueError: too large"),
        (2, "", "exit code 2: "),
        (-9, "", "ended by signal 9 (killed: out of memory?)"),
    ],
)
def test_a_failure_is_told_in_one_line(code, stderr, message):
    assert describe_failure(code, stderr) == message


@pytest.mark.parametrize(
    ("switches", "attention", "length", "is_grouped"),
    [
        ({}, "sdpa", 3, False),
        ({"train_sampling_strategy": "group_by_length"}, "sdpa", 3, True),
        ({"padding": "max", "attention": "eager"}, "eager", 128, False),
    ],
    ids=str,
)
def test_a_run_to_a_quality_trains_with_the_switches_of_its_record(
    sample, small_store, switches, attention, length, is_grouped
):
    """Stock's own order of like lengths is another one in every pass."""
    config = str(CONFIGS / "pretrain" / "quickstart.yaml")
    sample = replace(sample, kind="quality", config=config, switches=switches)
    model_args, data_args, args = quality.quickstart_settings(sample, small_store)
    data = load_data(data_args, args.seed)
    load_tokenizer(small_store / "tokenizer").save_pretrained(sample.work_dir)
    trainer = quality.stock_run(sample, Path(sample.work_dir) / "vocab.txt", model_args, args, data)
    assert trainer.model.config._attn_implementation == attention
    pair = {"input_ids": [2, 7, 3], "token_type_ids": [0, 0, 0], "next_sentence_label": 0}
    assert trainer.data_collator([pair, pair])["input_ids"].shape == (2, length)
    sampler = trainer._get_train_sampler()
    assert list(sampler) != list(trainer._get_train_sampler())
    assert isinstance(sampler, LengthGroupedSampler) == is_grouped


def test_the_budget_of_a_run_to_a_quality_is_the_quickstart_by_the_clock(sample, small_store):
    """All others have the paper's masks; the clock of all sides is also the trainer's."""
    config = str(CONFIGS / "pretrain" / "quickstart.yaml")
    sample = replace(sample, kind="quality", config=config, minutes=3.0)
    found = []
    for side in (BUDGET, OURS):
        work = replace(sample, side=side)
        model_args, data_args, args = quality.quickstart_settings(work, small_store)
        rates = data_args.mlm_probability, data_args.mlm_probability_end
        found.append((args.max_minutes, model_args.word_vectors, rates, args.flat_until))
    assert found == [(3.0, True, (0.3, 0.15), 0.3), (3.0, False, (0.15, None), 0.0)]

    data = load_data(data_args, args.seed)
    model = build_model(model_args, DistillationArguments(), data, None, args.seed)
    trainer = make_trainer(model, args, data, 10, quality.TimedTrainer)
    trainer.timed_run = SimpleNamespace(share=lambda: 0.375)
    assert trainer._elapsed_fraction() == 0.375


@pytest.mark.slow
@pytest.mark.parametrize(("section", "name"), STOCK_ON_CPUS)
def test_every_configuration_of_stock_trains(sample, task_sample, section, name):
    switches = stock_configurations(section)[name]
    for work in (sample, task_sample):
        result = measure(replace(work, side=name, switches=switches))
        assert result["precision"] == ("bf16" if switches.get("bf16") else "fp32")
        assert result["tokens"] > 0


def test_mixed_documents_give_inputs_of_256_tokens_on_average(sample):
    sample = replace(sample, documents="mixed", length=512, tokens_per_step=200_000)
    _, settings, _ = sides.our_settings(sample)
    lengths = sides.make_data(sample, settings).train.lengths(0)
    assert 240 < lengths.mean() < 272
    assert lengths.max() <= 512
