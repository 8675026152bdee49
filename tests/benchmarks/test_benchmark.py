"""benchmarks/benchmark.py as a user starts it: what it refuses, which samples it runs, what it
finds again.
"""

import re
import runpy
import sys

import benchmark
import pytest
import sides
from benchmark import BenchmarkArguments, Cases, SuiteRun
from generated import write_text
from results import read_results
from sample import BUDGET, OURS, STOCK_DEFAULTS, Sample, check_gpu
from sides import stock_configurations

from bert_recipes.errors import InputError
from bert_recipes.training.speed import describe_machine


@pytest.fixture
def start(repository, monkeypatch, capsys):
    """Runs the script; returns its exit code and what it printed."""

    def run(*arguments: object):
        script = repository / "benchmarks" / "benchmark.py"
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": "pretrainign"}, "suite is 'pretrainign'; allowed: pretraining"),
        ({"sizes": ["hug"]}, "sizes is 'hug'"),
        ({"lengths": [1024]}, "allowed: 16 to 512"),
        ({"measure_lengths": True}, "measure_lengths needs --data_dir DATA"),
        ({"data_dir": "DATA"}, "give --tokenizer too"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(arguments, message):
    with pytest.raises(benchmark.InputError, match=re.escape(message)):
        BenchmarkArguments(**arguments)


def test_a_folder_without_results_is_one_clear_line(tmp_path, start):
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    code, _, stderr = start("--report_only", "true", "--output_dir", tmp_path)
    assert (code, stderr.count("\n")) == (1, 1)
    assert re.match("error: .*no results file there", stderr)


RATES = {
    STOCK_DEFAULTS: 1.0,
    "stock_bf16": 3.0,
    "stock_like_lengths": 5.0,
    "stock_eager": 4.0,
    OURS: 9.0,
}


def set_unit(monkeypatch, unit):
    """Say what computes in bfloat16 in hardware."""
    monkeypatch.setattr("sample.bfloat16_unit", lambda device: unit)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a suite with a stand-in for the processes, in which every side has a rate.

    Returns which samples were started, and the records of the results file.
    """

    machine = describe_machine()
    set_unit(monkeypatch, "AMX")

    def run_suite(rates=RATES, **settings):
        started = []

        def run_sample(sample, threads, timeout):
            started.append(sample.side or sample.kind)
            rate = rates.get(sample.side)
            if rate == 0:
                return {}, "exit code 1"
            return {"machine": machine, "tokens_per_second": rate, "precision": "bf16"}, None

        monkeypatch.setattr(benchmark, "run_sample", run_sample)
        args = BenchmarkArguments(
            sizes=["tiny"], output_dir=str(tmp_path), use_cpu=True, **settings
        )
        suite = SuiteRun(args, machine)
        suite.run(Cases(args, tmp_path / "work"))
        return started, read_results(suite.file)

    return run_suite


def test_one_round_is_finished_whatever_the_time(run):
    started, _ = run(time_limit_minutes=1e-9)
    assert started == [*stock_configurations("cpu"), OURS, "matmul"]


def test_sides_take_turns_and_after_a_round_only_the_fastest_of_stock(run):
    started, records = run()
    first = [*stock_configurations("cpu"), OURS]
    later = [STOCK_DEFAULTS, "stock_like_lengths", OURS]
    assert len(first) == 5
    assert started == [*first, "matmul", *later, *later]
    samples = [record for record in records if record["role"] == "sample"]
    assert [record["round"] for record in samples] == [0] * 5 + [1] * 3 + [2] * 3
    assert samples[1]["spec"]["switches"] == stock_configurations("cpu")["stock_bf16"]
    assert {record["case"] for record in records} == {"tiny-128"}


@pytest.mark.parametrize(
    ("num_gpus", "unit", "words"),
    [(2, "GPU", "CUDA_VISIBLE_DEVICES=0"), (1, None, "no bfloat16 units"), (1, "GPU", None)],
)
def test_one_gpu_with_bfloat16_is_measured(monkeypatch, num_gpus, unit, words):
    set_unit(monkeypatch, unit)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    check_gpu(use_cpu=True)
    if words is None:
        check_gpu(use_cpu=False)
        return
    with pytest.raises(InputError, match=words):
        check_gpu(use_cpu=False)


@pytest.mark.parametrize(
    ("unit", "use_cpu", "section"),
    [("AMX", True, "cpu"), (None, True, "cpu_without_bf16"), (None, False, "gpu")],
)
def test_stock_at_its_best_has_the_precision_that_suits_the_machine(
    monkeypatch, unit, use_cpu, section
):
    set_unit(monkeypatch, unit)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert sides.section_of_machine(Sample(kind="", use_cpu=use_cpu)) == section
    has_bf16 = any(settings.get("bf16") for settings in stock_configurations(section).values())
    assert has_bf16 == (section != "cpu_without_bf16")


@pytest.mark.parametrize("unit", ["AMX", None])
def test_steps_and_predictions_are_in_bfloat16_where_the_cpu_has_it(monkeypatch, tmp_path, unit):
    set_unit(monkeypatch, unit)
    args = BenchmarkArguments(sizes=["tiny"], use_cpu=True)
    cases = Cases(args, tmp_path)
    (steps,) = cases.steps()
    assert ("ours_bf16" in steps.samples) == bool(unit)
    assert {STOCK_DEFAULTS, "ours_fp32", OURS, "muon"} <= steps.samples.keys()
    predictions = [case.samples[OURS].precision for case in cases.inference()]
    assert predictions == (["fp32", "bf16"] if unit else ["fp32"])


def test_what_is_finished_stays_and_what_failed_is_measured_again(run):
    _, before = run({**RATES, "stock_eager": 0.0}, rounds=1)
    assert [record.get("error") for record in before].count("exit code 1") == 1
    started, records = run(rounds=1, resume=True)
    assert started == ["stock_eager"]
    assert records[:-1] == before
    assert {record["run"] for record in records} == {before[0]["run"]}
    # Samples with other settings are another run: the report takes those of a run together.
    started, _ = run(
        rounds=1,
        resume=True,
        budget_seconds=3.0,
    )
    assert len(started) == 6
    # Only a whole benchmark resumes by itself.
    started, _ = run(rounds=1)
    assert len(started) == 6


def test_a_run_to_a_quality_gives_stock_its_fastest_configuration(run):
    started, _ = run(suite="time_to_quality")
    assert started == [BUDGET, OURS, STOCK_DEFAULTS]
    run(rounds=1)
    started, records = run(suite="time_to_quality")
    assert started == [BUDGET, OURS, "stock_like_lengths"]
    assert records[-1]["spec"]["switches"] == stock_configurations("cpu")["stock_like_lengths"]


def test_a_case_is_named_by_what_is_not_the_default(tmp_path, monkeypatch):
    set_unit(monkeypatch, "AMX")
    settings = {
        "documents": "mixed",
        "tokens_per_step": 256,
        "vocab_size": 1000,
        "lengths": [64],
    }
    (case,) = Cases(BenchmarkArguments(sizes=["mini"], **settings), tmp_path).of_suite()
    assert case.name == "mini-64-mixed-256tokens-vocab1000"
    cases = Cases(BenchmarkArguments(suite="all"), tmp_path).of_suite()
    names = {(case.suite, case.name) for case in cases}
    assert len(names) == len(cases) == 6 * 2 * 2 + 4 + 12 + 2 + 1


@pytest.mark.parametrize(("task", "defaults_vary"), [("sst2", False), ("conll2003", True)])
def test_whole_passes_are_measured_where_batches_have_several_lengths(
    tmp_path, task, defaults_vary
):
    arguments = BenchmarkArguments(suite="finetuning", tasks=[task], use_cpu=True)
    (case,) = Cases(arguments, tmp_path).of_suite()
    whole_passes = {side for side, sample in case.samples.items() if sample.whole_pass}
    assert ("stock_defaults" in whole_passes) == defaults_vary
    assert whole_passes | {"stock_defaults"} == set(case.samples)
    for side in whole_passes:
        sample = case.samples[side]
        assert sample.warmup_steps == sample.max_steps > 1


@pytest.mark.slow
def test_the_report_is_made_of_the_results(tmp_path, start):
    flags = "--suite pretraining --sizes tiny --vocab_size 1000 --tokens_per_step 256 "
    flags += "--budget_seconds 0.1 --rounds 1 --use_cpu true"
    code, stdout, stderr = start(*flags.split(), "--output_dir", tmp_path)
    assert code in (None, 0), stderr
    (file,) = tmp_path.glob("*.json")
    assert not [record["error"] for record in read_results(file) if "error" in record]
    assert "| tiny-128-256tokens-vocab1000 |" in stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {file.name, "benchmarks.md", f"{file.stem}.png"}


@pytest.mark.slow
def test_time_to_quality_measures_all_sides_on_the_same_held_out_pairs(tmp_path, start):
    files = [write_text(tmp_path / f"text-{seed}.txt", 0.2, seed=seed) for seed in range(4)]
    flags = ["--suite", "time_to_quality", "--minutes", 0.2, "--files", *files]
    flags += [
        "--vocab_size",
        1000,
        "--use_cpu",
        "true",
        "--output_dir",
        tmp_path / "out",
    ]
    code, _, stderr = start(*flags)
    assert code in (None, 0), stderr
    (file,) = (tmp_path / "out").glob("*.json")
    records = read_results(file)
    assert {record["side"] for record in records} == {BUDGET, OURS, STOCK_DEFAULTS}
    for record in records:
        assert record["result"]["points"][-1]["seconds"] >= 0.2 * 60
        assert 0 < record["result"]["mlm_loss"] < 8
