"""benchmarks/benchmark.py as a user starts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: object, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/benchmark.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--suite", "pretrainign"), "did you mean 'pretraining'"),
        (("--sizes", "hug"), "sizes is 'hug'"),
        (("--lengths", "1024"), "allowed: 16 to 512"),
        (("--report_only", "true", "--output_dir", "nowhere"), "no results file there"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: tuple[str, ...], said: str):
    done = start(*arguments)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.slow
def test_sides_take_turns_and_the_report_is_made_of_the_results(tmp_path: Path):
    flags = ("--suite", "pretraining", "--sizes", "tiny", "--vocab_size", 1000, "--tokens_per_step", 256)
    flags += ("--budget_seconds", 0.1, "--search", "off", "--rounds", 2, "--use_cpu", "true", "--output_dir", tmp_path)
    done = start(*flags)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*.json")
    records = json.loads(file.read_text(encoding="utf-8"))["records"]
    samples = [record for record in records if record["role"] == "sample"]
    sides = ["stock_defaults", "ours"]  # nothing was searched: nobody knows stock's best
    assert [(record["round"], record["side"]) for record in samples] == [(n, side) for n in (0, 1) for side in sides]
    assert not [record["error"] for record in records if "error" in record]
    assert "| tiny-128-256tokens-vocab1000 |" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {file.name, "benchmarks.md", f"{file.stem}.png"}
    # What is finished is not measured again.
    again = start(*flags, "--resume", "true")
    assert again.returncode == 0, again.stderr
    assert "finished before" in again.stderr
    assert json.loads(file.read_text(encoding="utf-8"))["records"] == records


@pytest.mark.slow
def test_time_to_quality_measures_both_sides_on_the_same_held_out_pairs(tmp_path: Path):
    from speed.generated_text import write_text

    for number in range(4):
        write_text(tmp_path / f"text-{number}.txt", 0.2, seed=number)
    flags = ("--suite", "time_to_quality", "--minutes", 0.2, "--files", *sorted(tmp_path.glob("text-*.txt")))
    done = start(*flags, "--vocab_size", 1000, "--use_cpu", "true", "--output_dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").glob("*.json")
    records = json.loads(file.read_text(encoding="utf-8"))["records"]
    assert {record["side"] for record in records} == {"ours", "stock_defaults"}
    for record in records:
        assert record["result"]["points"][-1]["seconds"] >= 0.2 * 60
        assert 0 < record["result"]["mlm_loss"] < 8
