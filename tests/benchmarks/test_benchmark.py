"""benchmarks/benchmark.py as a user starts it: what it refuses, which samples it runs, what it
finds again.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import benchmark
import pytest
from benchmark import BenchmarkArguments, Cases, SuiteRun
from generated import write_text
from side_by_side import BUDGET, OURS, STOCK_DEFAULTS, read_results
from sides import stock_configurations


ROOT = Path(__file__).resolve().parents[2]
MACHINE = {
    "processor": "AMD EPYC",
    "gpu": None,
    "cores": 2,
    "threads": 2,
    "torch": "2",
    "transformers": "5",
}


def start(*arguments: object, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/benchmark.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"suite": "pretrainign"}, "suite is 'pretrainign'; allowed: pretraining"),
        ({"sizes": ["hug"]}, "sizes is 'hug'"),
        ({"tasks": ["sst"]}, "tasks is 'sst'; allowed: sst2"),
        ({"documents": "short"}, "documents is 'short'"),
        ({"lengths": [1024]}, "allowed: 16 to 512"),
        ({"rounds": 0}, "rounds is 0; allowed: 1 or more"),
        ({"threads": 0}, "threads is 0; allowed: 1 or more"),
        ({"budget_seconds": 0.0}, "budget_seconds is 0.0; allowed: above 0"),
        ({"measure_lengths": True}, "measure_lengths needs --data_dir DATA"),
        ({"data_dir": "DATA"}, "give --tokenizer too"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(arguments: dict, said: str):
    with pytest.raises(benchmark.InputError, match=re.escape(said)):
        BenchmarkArguments(**arguments)


def test_a_folder_without_results_is_one_clear_line(tmp_path: Path):
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    done = start("--report_only", "true", "--output_dir", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert re.match("error: .*no results file there", done.stderr)


class Samples:
    """Stands in for the processes: every side has a rate, and a list of what was started."""

    def __init__(self, rates: dict[str, float]) -> None:
        self.rates, self.started = rates, []

    def __call__(self, sample, threads) -> tuple[dict, str | None]:
        self.started.append(sample.side or sample.kind)
        if sample.side not in self.rates:
            return {"machine": MACHINE, "best_gflops": {}}, None
        rate = self.rates[sample.side]
        if not rate:
            return {}, "exit code 1"
        return {"machine": MACHINE, "tokens_per_second": rate, "precision": "bf16"}, None


RATES = {
    STOCK_DEFAULTS: 1.0,
    "stock_bf16": 3.0,
    "stock_like_lengths": 5.0,
    "stock_eager": 4.0,
    OURS: 9.0,
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a suite; returns which samples were started, and the records of the results file."""

    def _run(rates: dict[str, float] | None = None, **settings) -> tuple[list[str], list[dict]]:
        samples = Samples(RATES if rates is None else rates)
        monkeypatch.setattr(benchmark, "run_sample", samples)
        args = BenchmarkArguments(
            sizes=["tiny"], output_dir=str(tmp_path), use_cpu=True, **settings
        )
        suite = SuiteRun(args, MACHINE)
        suite.run(Cases(args, tmp_path / "work"))
        return samples.started, read_results(suite.file)

    return _run


def test_sides_take_turns_and_after_a_round_only_the_fastest_of_stock(run):
    started, records = run()
    first = [*stock_configurations("cpu"), OURS]
    later = [STOCK_DEFAULTS, "stock_like_lengths", OURS]
    assert len(stock_configurations("cpu")) == 4
    assert started == [*first, "matmul", *later, *later]
    samples = [record for record in records if record["role"] == "sample"]
    assert [record["round"] for record in samples] == [0] * 5 + [1] * 3 + [2] * 3
    assert samples[1]["spec"]["switches"] == stock_configurations("cpu")["stock_bf16"]
    assert {record["case"] for record in records} == {"tiny-128"}


def test_what_is_finished_is_kept_and_what_failed_is_measured_again(run):
    _, before = run({**RATES, "stock_eager": 0.0}, rounds=1)
    assert [record.get("error") for record in before].count("exit code 1") == 1
    started, records = run(rounds=1, resume=True)
    assert started == ["stock_eager"]
    assert records[:-1] == before
    assert {record["run"] for record in records} == {before[0]["run"]}
    # Other settings are other samples.
    assert len(run(rounds=1, resume=True, budget_seconds=3.0)[0]) == 5
    # Only a whole benchmark resumes by itself.
    assert len(run(rounds=1)[0]) == 6


def test_one_round_is_finished_whatever_the_time(run):
    started, _ = run(time_limit_minutes=1e-9)
    assert started == [*stock_configurations("cpu"), OURS, "matmul"]


def test_a_run_to_a_quality_gives_stock_its_fastest_configuration(run):
    assert run(suite="time_to_quality")[0] == [BUDGET, OURS, STOCK_DEFAULTS]
    run(rounds=1)
    started, records = run(suite="time_to_quality")
    assert started == [BUDGET, OURS, "stock_like_lengths"]
    assert records[-1]["spec"]["switches"] == stock_configurations("cpu")["stock_like_lengths"]


def test_a_case_is_named_by_what_is_not_the_default(run, tmp_path: Path):
    settings = {"documents": "mixed", "tokens_per_step": 256, "vocab_size": 1000, "lengths": [64]}
    args = BenchmarkArguments(sizes=["mini"], **settings)
    assert [case.name for case in Cases(args, tmp_path).chosen()] == [
        "mini-64-mixed-256tokens-vocab1000"
    ]
    args = BenchmarkArguments(suite="all")
    cases = Cases(args, tmp_path).chosen()
    assert (
        len({(case.suite, case.name) for case in cases}) == len(cases) == 6 * 2 * 2 + 4 + 12 + 2 + 1
    )


def test_whole_passes_are_measured_where_batches_hold_like_lengths(tmp_path: Path):
    (case,) = Cases(BenchmarkArguments(suite="finetuning", use_cpu=True), tmp_path).chosen()
    whole = {side for side, sample in case.samples.items() if sample.whole_pass}
    assert whole == {"stock_like_lengths", "stock_eager", OURS}
    assert all(
        case.samples[side].warmup_steps == case.samples[side].max_steps == 24 for side in whole
    )


@pytest.mark.slow
def test_the_report_is_made_of_the_results(tmp_path: Path):
    flags = (
        "--suite",
        "pretraining",
        "--sizes",
        "tiny",
        "--vocab_size",
        1000,
        "--tokens_per_step",
        256,
    )
    flags += ("--budget_seconds", 0.1, "--rounds", 1, "--use_cpu", "true", "--output_dir", tmp_path)
    done = start(*flags)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*.json")
    assert not [record["error"] for record in read_results(file) if "error" in record]
    assert "| tiny-128-256tokens-vocab1000 |" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {
        file.name,
        "benchmarks.md",
        f"{file.stem}.png",
    }


@pytest.mark.slow
def test_time_to_quality_measures_both_sides_on_the_same_held_out_pairs(tmp_path: Path):
    for number in range(4):
        write_text(tmp_path / f"text-{number}.txt", 0.2, seed=number)
    flags = (
        "--suite",
        "time_to_quality",
        "--minutes",
        0.2,
        "--files",
        *sorted(tmp_path.glob("text-*.txt")),
    )
    done = start(
        *flags, "--vocab_size", 1000, "--use_cpu", "true", "--output_dir", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").glob("*.json")
    records = json.loads(file.read_text(encoding="utf-8"))["records"]
    assert {record["side"] for record in records} == {"budget", "ours", "stock_defaults"}
    for record in records:
        assert record["result"]["points"][-1]["seconds"] >= 0.2 * 60
        assert 0 < record["result"]["mlm_loss"] < 8
