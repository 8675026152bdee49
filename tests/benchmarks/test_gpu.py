"""The prepared steps of the GPU path, tried on a CPU."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gpu
import pytest
import torch
from measuring import BatchCounter
from sides import make_side


def make_args(tmp_path, **changes):
    return gpu.GpuArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        **{"size": "tiny", **changes},
    )


@pytest.mark.parametrize(
    ("step", "part", "cases"),
    [
        (2, "base", {"base-128", "base-512"}),
        (3, "large", {"large-512"}),
        (4, "small", {"tiny-128", "mini-128"}),
        (4, "finetuning", {"sst2-base", "squad-base"}),
    ],
)
def test_parts_have_their_cases_and_sides(tmp_path, step, part, cases):
    args = gpu.GpuArguments(
        step=step,
        part=part,
        output_dir=str(tmp_path),
    )
    samples = gpu.samples_of_part(args, part, tmp_path)
    assert set(samples) == cases
    for sample in samples.values():
        sides = gpu.sides_of(sample)
        assert list(sides) == ["stock, defaults", "stock, best", "ours, eager", "ours"]
        assert [side.is_ours for side in sides.values()] == [False, False, True, True]
        assert sides["stock, best"].switches["bf16"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 2, "part": "small"}, "part is 'small'; allowed with --step 2: base, large"),
        ({"step": 5}, "step 5 needs --store"),
        ({"step": 6}, "step is 6; allowed: 1 to 5"),
    ],
)
def test_what_cannot_be_measured_is_refused(values, message):
    with pytest.raises(gpu.InputError, match=message):
        gpu.GpuArguments(**values)


@pytest.fixture
def our_sample(tmp_path):
    args = make_args(
        tmp_path,
        step=2,
        part="base",
        tokens_per_step=256,
        budget_seconds=0.1,
    )
    sample = replace(gpu.samples_of_part(args, "base", tmp_path)["tiny-128"], vocab_size=1000)
    return gpu.sides_of(sample)["ours, eager"]


def test_a_side_is_measured_and_one_that_fails_is_a_row(tmp_path, our_sample):
    result = gpu.measure_side(our_sample)
    rate = result["tokens_per_second"]
    first, second = gpu.halves_of(result)
    assert math.isfinite(first)
    assert min(first, second) <= rate * 1.001 <= max(first, second) * 1.002
    switches = {"bf16": True, "fp16": True}
    failure = gpu.attempt(
        gpu.measure_side, replace(our_sample, side="stock_defaults", switches=switches)
    )
    measured = {
        "matmul": {"best_gflops": {"fp32": 1e5}},  # of a CPU without bfloat16 in hardware
        "sides": {"ours": result, "stock": failure},
    }
    table = gpu.table_of("tiny-128", measured)
    assert f"| ours | {rate:,.0f} |" in table
    assert f"| stock | {failure['error']} |" in table
    gpu.write_result(make_args(tmp_path, step=2), "base", measured)
    record = json.loads((tmp_path / "gpu_step2_base.json").read_text())
    assert record["machine"]["torch"]
    assert record["date"]


def test_stocks_tf32_does_not_reach_the_next_side():
    assert torch.backends.fp32_precision == gpu.FP32_PRECISION
    torch.backends.fp32_precision = "tf32"
    gpu.free_memory()
    assert torch.backends.fp32_precision == gpu.FP32_PRECISION
    assert not torch.backends.cuda.matmul.allow_tf32


def test_what_is_measured_is_saved_where_ours_fails(tmp_path, monkeypatch):
    """It is not profiled then, nor where stock alone is asked for."""
    monkeypatch.setattr(gpu, "measure_matmul", lambda sample: {"best_gflops": {"fp32": 1.0}})

    def fail(sample):
        raise TypeError("a library")

    monkeypatch.setattr(gpu, "measure_side", fail)
    monkeypatch.setattr(gpu, "profile_ours", lambda sample: pytest.fail("it cannot work"))
    args = make_args(tmp_path, step=2, size="small")
    gpu.measure_part(args, "base", tmp_path)
    record = json.loads((tmp_path / "gpu_step2_base.json").read_text())
    sides = record["result"]["small-128"]["sides"]
    assert list(sides) == list(gpu.SIDES)
    assert sides["ours"] == {"error": "TypeError: a library"}
    assert record["machine"]["gpu"] is None


def test_both_sides_of_fine_tuning_take_a_batch_at_once(tmp_path):
    args = make_args(tmp_path, step=4, part="finetuning", budget_seconds=0.1)
    sample = replace(gpu.samples_of_part(args, "finetuning", tmp_path)["squad-tiny"], max_steps=1)
    for side in gpu.sides_of(replace(sample, vocab_size=1000)).values():
        trainer = make_side(replace(side, switches={}))
        assert trainer.args.gradient_accumulation_steps == 1
        assert trainer.args.per_device_train_batch_size == sample.batch_size


def test_tests_that_need_a_gpu_are_found(repository):
    files = [Path(file).relative_to(repository).as_posix() for file in gpu.files_of_gpu_tests()]
    assert "tests/gpu/test_training.py" in files
    assert "tests/models/test_compiled_layers.py" in files
    assert len(files) < 20


def test_the_trainer_itself_reads_its_batches_and_so_measures_its_waits():
    batch = {"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, 3, dtype=torch.long)}
    batches_read = []

    def read_slowly():
        for number in range(4):
            batches_read.append(number)
            yield batch

    def fetch(iterator, num_batches, device):
        assert not batches_read
        return list(itertools.islice(iterator, num_batches)), None

    trainer = SimpleNamespace(get_batch_samples=fetch, training_step=lambda: torch.tensor(0.5))
    counter = BatchCounter(trainer, masked_lm=False)
    samples, _ = trainer.get_batch_samples(read_slowly(), 2, torch.device("cpu"))
    assert len(samples) == len(batches_read) == 2
    trainer.training_step()
    works, positions, _ = counter.read(0, 1)
    assert (works[0].tokens, works[0].sequences, positions) == (12, 4, [12])


def test_a_profile_names_what_takes_most(our_sample):
    profile = gpu.profile_ours(our_sample)
    milliseconds = [row["milliseconds"] for row in profile["top"]]
    assert milliseconds == sorted(milliseconds, reverse=True)
    assert "aten::mm" in gpu.profile_table(profile)
