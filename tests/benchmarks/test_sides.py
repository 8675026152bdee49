"""Both sides do the same work, and what they did is counted right."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import quality
import sides
import torch
from lengths import TASK_LIMITS, read_lengths
from side_by_side import (
    MAX_WARMUP_STEPS,
    OURS,
    STEPS,
    STOCK_DEFAULTS,
    Sample,
    describe_failure,
    measure,
    run_sample,
)
from sides import LikeLengths, make_side, stock_configurations
from transformers.trainer_pt_utils import LengthGroupedSampler

from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training import trainer as base_trainer
from bert_recipes.training.pretraining import load_data


CONFIGS = Path(__file__).resolve().parents[2] / "recipes" / "configs"


@pytest.fixture
def spec(tmp_path: Path) -> Sample:
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
def task_spec(spec: Sample) -> Sample:
    return replace(
        spec,
        kind="finetuning",
        config=str(CONFIGS / "finetune" / "glue.yaml"),
        length=128,
        task="sst2",
        lengths=(0, 0, 0, 0, 5, 3, 2, 0, 0, 4),
        batch_size=4,
        whole_pass=True,
    )


def unmasked(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], int]]:
    """The rows of a batch without pads, as they were before masking, with their next-sentence
    label.
    """
    labels = batch["labels"]
    original = torch.where(labels == -100, batch["input_ids"], labels)
    rows = zip(original, batch["attention_mask"], batch["next_sentence_label"], strict=True)
    return [(row[mask.bool()].tolist(), int(label)) for row, mask, label in rows]


def test_both_sides_train_on_the_same_pairs_in_the_same_batches(spec: Sample):
    ours = iter(make_side(spec).get_train_dataloader())
    stock_spec = replace(spec, side=STOCK_DEFAULTS)
    stock = iter(make_side(stock_spec).get_train_dataloader())
    for _ in range(4):
        assert unmasked(next(ours)) == unmasked(next(stock))


def test_batches_of_like_length_come_in_any_order():
    """Stock serves each fifty batches from the longest to the shortest; here the first ones are
    like all.
    """
    lengths = torch.randint(5, 128, (4 * 64,), generator=torch.Generator().manual_seed(0)).tolist()
    order = list(LikeLengths(lengths, 4, seed=1))
    assert sorted(order) == list(range(len(lengths)))
    batches = [
        [lengths[number] for number in order[start : start + 4]]
        for start in range(0, len(order), 4)
    ]
    assert sum(max(batch) - min(batch) <= 12 for batch in batches) >= len(batches) - 4
    means = [sum(batch) / 4 for batch in batches]
    assert abs(sum(means[:20]) / 20 - sum(means) / len(means)) < 15
    assert means != sorted(means, reverse=True)


def test_stock_is_stock(spec: Sample):
    trainer = make_side(replace(spec, side=STOCK_DEFAULTS))
    assert type(trainer.model).__module__.startswith("transformers.")
    assert type(trainer.data_collator).__module__.startswith("transformers.")
    assert trainer.model.config.hidden_act == "gelu"
    assert trainer.model.config._attn_implementation == "sdpa"
    assert trainer.accelerator.mixed_precision == "no"


@pytest.mark.parametrize("side", [STOCK_DEFAULTS, OURS])
def test_pads_are_counted_apart_and_take_no_part_in_the_rate(spec: Sample, side: str):
    trainer = make_side(replace(spec, side=side))
    batches = list(itertools.islice(trainer.get_train_dataloader(), 1, 4))
    result = measure(replace(spec, side=side))
    assert len(result["step_seconds"]) == len(result["losses"]) == 3
    assert result["tokens"] == sum(result["step_tokens"])
    assert result["step_sequences"] == [4, 4, 4]
    assert result["tokens"] == sum(int(batch["attention_mask"].sum()) for batch in batches)
    assert result["positions"] == sum(batch["input_ids"].numel() for batch in batches)
    assert result["pads"] == result["positions"] - result["tokens"]
    assert result["sequences"] == 12
    assert 0 < result["masked"] < result["tokens"]
    # Times are rounded in the file.
    assert result["tokens_per_second"] == pytest.approx(
        result["tokens"] / sum(result["step_seconds"]), rel=1e-3
    )
    assert result["flops"] > 0
    assert result["peak_memory_mb"] >= 0


@pytest.mark.parametrize(
    ("side", "switches", "precision"),
    [
        (OURS, {"precision": "bf16"}, "bf16"),
        (OURS, {"precision": "fp32"}, "fp32"),
        (STOCK_DEFAULTS, {}, "fp32"),
        ("stock_other", {"bf16": True}, "bf16"),
    ],
)
def test_the_precision_is_that_of_the_side_alone(
    spec: Sample, monkeypatch: pytest.MonkeyPatch, side: str, switches: dict, precision: str
):
    """Our settings are read for the data of both sides, and leave their precision in the
    environment.
    """
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert measure(replace(spec, side=side, switches=switches))["precision"] == precision


def test_the_time_ends_a_sample_but_not_before_its_least_steps(spec: Sample):
    result = measure(replace(spec, budget_seconds=1e-9, max_steps=40))
    assert len(result["step_seconds"]) == 2


def test_a_warm_up_ends_with_its_time_or_after_some_steps(spec: Sample):
    """Steps after it are counted, wherever it ends."""
    long = measure(replace(spec, warmup_seconds=60.0))
    assert long["warmup_steps"] == MAX_WARMUP_STEPS
    assert len(long["step_seconds"]) == len(long["losses"]) == 3
    batches = make_side(replace(spec, warmup_seconds=60.0)).get_train_dataloader()
    measured = itertools.islice(batches, MAX_WARMUP_STEPS, MAX_WARMUP_STEPS + 3)
    assert long["tokens"] == sum(int(batch["attention_mask"].sum()) for batch in measured)
    assert measure(replace(spec, warmup_seconds=1e-9))["warmup_steps"] == 1


@pytest.mark.parametrize("task", sorted(TASK_LIMITS))
@pytest.mark.parametrize("side", [STOCK_DEFAULTS, OURS])
def test_every_task_trains_on_each_side(task_spec: Sample, task: str, side: str):
    limit = TASK_LIMITS[task]
    config = str(CONFIGS / "finetune" / f"{limit.config}.yaml")
    result = measure(replace(task_spec, side=side, task=task, config=config))
    assert len(result["step_seconds"]) == 3
    assert (result["sequences"], result["masked"]) == (12, 0)
    if side == STOCK_DEFAULTS and limit.stock_padding == "max":
        assert result["positions"] == 12 * limit.max_length
    else:
        assert result["positions"] <= 12 * 9


def test_both_sides_are_fine_tuned_on_the_same_features(task_spec: Sample):
    features = sides.make_features(task_spec, 16)
    ours = sides.our_finetuning(task_spec, features)
    stock = sides.stock_finetuning(replace(task_spec, side=STOCK_DEFAULTS), features)

    def rows(trainer) -> list[list[int]]:
        return sorted(
            row[mask.bool()].tolist()
            for batch in trainer.get_train_dataloader()
            for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        )

    assert rows(ours) == rows(stock) == sorted(feature["input_ids"] for feature in features)


@pytest.mark.parametrize("side", [STOCK_DEFAULTS, OURS])
def test_predictions_are_timed_on_each_side(task_spec: Sample, side: str):
    result = measure(
        replace(task_spec, kind="inference", side=side, budget_seconds=0.01, batch_size=8)
    )
    assert result["examples"] == 16
    assert result["examples_per_second"] > 0


def test_rates_of_matrix_products_are_measured_in_both_precisions(spec: Sample):
    result = measure(replace(spec, kind="matmul", what="small"))
    assert set(result["best_gflops"]) == {"fp32", "bf16"}
    for precision, rates in result["rates"].items():
        assert result["best_gflops"][precision] == max(rate["gflops"] for rate in rates.values())
        assert all(rate["repetitions"] == 20 for rate in rates.values())


def test_committed_lengths_are_within_the_tasks_limits():
    for task, histogram in read_lengths().items():
        assert len(histogram) <= TASK_LIMITS[task].max_length + 1
        assert sum(histogram) > 10_000
        assert sum(histogram[:3]) == 0  # [CLS], [SEP] and something between them


def test_a_sample_is_a_process(spec: Sample):
    result, error = run_sample(
        replace(spec, min_steps=1, max_steps=1, lengths=(0, 1), files=("a",))
    )
    assert error is None
    assert result["tokens"] > 0
    assert result["machine"]["torch"] == torch.__version__
    assert run_sample(spec, timeout=0.2) == ({}, "still running after 0 s")


@pytest.mark.parametrize(
    "switches", stock_configurations("cpu").values(), ids=stock_configurations("cpu")
)
def test_every_configuration_of_stock_trains(spec: Sample, task_spec: Sample, switches: dict):
    for sample in (spec, task_spec):
        result = measure(replace(sample, side="stock_other", switches=switches))
        assert result["precision"] == ("bf16" if switches.get("bf16") else "fp32")
        assert result["tokens"] > 0


def test_a_failure_is_told_in_one_line():
    assert (
        describe_failure(1, "Traceback\n  File x\nValueError: too large\n\n")
        == "exit code 1: ValueError: too large"
    )
    assert "signal 9" in describe_failure(-9, "")


def test_each_step_on_the_way_to_ours_is_ours_with_other_settings(spec: Sample):
    chosen = {}
    for side, (_, switches) in STEPS.items():
        trainer = make_side(replace(spec, side=side, switches=switches))
        chosen[side] = (trainer.args.bf16, trainer.args.fast_layers)
    assert chosen["ours_fp32"] == (False, "off")
    assert chosen["ours_bf16"] == (True, "off")
    assert chosen[OURS][1] == "auto"


def test_kept_memory_is_a_setting(spec: Sample, monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(base_trainer, "keep_freed_memory", lambda: calls.append(True))
    make_side(replace(spec, switches={"keep_freed_memory": "false"}))
    assert calls == []
    make_side(spec)
    assert calls == [True]


@pytest.mark.parametrize(
    "switches",
    [{}, {"train_sampling_strategy": "group_by_length"}, {"padding": "max", "attention": "eager"}],
    ids=str,
)
def test_a_run_to_a_quality_trains_with_the_switches_of_its_record(
    spec: Sample, small_store: Path, switches: dict[str, str]
):
    """Stock's own order of like lengths is another one in every pass."""
    spec = replace(
        spec,
        kind="quality",
        config=str(CONFIGS / "pretrain" / "quickstart.yaml"),
        switches=switches,
    )
    model_args, data_args, args = quality.quickstart_settings(spec, small_store)
    data = load_data(data_args, args.seed)
    load_tokenizer(small_store / "tokenizer").save_pretrained(spec.work_dir)
    trainer = quality.stock_run(spec, Path(spec.work_dir) / "vocab.txt", model_args, args, data)
    assert trainer.model.config._attn_implementation == switches.get("attention", "sdpa")
    short = [{"input_ids": [2, 7, 3], "token_type_ids": [0, 0, 0], "next_sentence_label": 0}] * 2
    assert trainer.data_collator(short)["input_ids"].shape[1] == (
        128 if "padding" in switches else 3
    )
    orders = [list(trainer._get_train_sampler()) for _ in range(2)]
    assert orders[0] != orders[1]
    assert isinstance(trainer._get_train_sampler(), LengthGroupedSampler) == (
        "train_sampling_strategy" in switches
    )


def test_mixed_documents_give_inputs_of_256_tokens_on_average(spec: Sample):
    spec = replace(spec, documents="mixed", length=512, tokens_per_step=200_000)
    _, settings, _ = sides.our_settings(spec)
    lengths = sides.make_data(spec, settings).train.lengths(0)
    assert 240 < lengths.mean() < 272
    assert lengths.max() <= 512
